//! The past: ended claims, and events of each, for `gshare log`. Both are limited by age and by size, so that no user
//! can fill the disk or displace others' entries.

use std::collections::HashMap;

use gshare_core::ClaimId;
use rusqlite::{Connection, OptionalExtension, params};

use super::file::{DOCUMENT, Journal, JournalError, signed};
use super::records::ClaimRecord;
use crate::clock::unix_ms;

pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS ended (
    id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, ended_ms INTEGER NOT NULL, pid INTEGER, start_ticks INTEGER,
    uncapped INTEGER NOT NULL, cause TEXT NOT NULL, peak_bytes INTEGER, launches INTEGER, format INTEGER NOT NULL,
    record TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS ended_owner ON ended (uid, ended_ms);
CREATE INDEX IF NOT EXISTS ended_at ON ended (ended_ms);
CREATE INDEX IF NOT EXISTS ended_process ON ended (pid, start_ticks) WHERE pid IS NOT NULL;
CREATE INDEX IF NOT EXISTS ended_uncapped ON ended (ended_ms) WHERE uncapped;
CREATE TABLE IF NOT EXISTS event (
    at_ms INTEGER NOT NULL, claim INTEGER NOT NULL, uid INTEGER NOT NULL, text TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS event_claim ON event (claim, at_ms);
CREATE INDEX IF NOT EXISTS event_owner ON event (uid, at_ms);
CREATE INDEX IF NOT EXISTS event_at ON event (at_ms);
";

/// Retention, in milliseconds.
pub(crate) const KEPT_MS: u64 = 30 * 86_400_000;
/// Maximum number of lines in a claim's log.
const LINES: u32 = 500;
/// Maximum number of ended claims that `gshare log` lists.
const LISTED: u32 = 20;
/// How many of the last claims that ended can be named by their name.
const NAMED: u32 = 1000;
/// Maximum length of a line, in characters.
const LINE: usize = 2000;
/// Approximate bytes that SQLite needs for a row with its index entries.
const ROW: u64 = 120;
/// Rows deleted and pages returned in one step, to keep each step short.
const ROWS_AT_A_TIME: u64 = 500;
const PAGES_AT_A_TIME: u64 = 256;

/// Maximum number of ends that wait for a full disk.
const UNWRITTEN: usize = 10_000;

/// A table with a limited size.
#[derive(Debug)]
pub(super) struct Table {
    name: &'static str,
    at: &'static str,
    size: &'static str,
    /// Maximum bytes of all owners, and of one.
    most: u64,
    most_of_one: u64,
}

pub(super) const ENDED: Table = Table {
    name: "ended",
    at: "ended_ms",
    size: "length(record)",
    most: 20 << 20,
    most_of_one: 4 << 20,
};
pub(super) const EVENTS: Table = Table {
    name: "event",
    at: "at_ms",
    size: "length(text)",
    most: 16 << 20,
    most_of_one: 2 << 20,
};

/// Bytes by owner in a table. A transaction changes a copy, which takes effect when it is committed.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget {
    of: HashMap<u32, u64>,
    all: u64,
}

impl Budget {
    /// Reads it from the file.
    pub(super) fn of(db: &Connection, table: &Table) -> rusqlite::Result<Self> {
        let sql = format!(
            "SELECT uid, sum({} + {ROW}) FROM {} GROUP BY uid",
            table.size, table.name
        );
        let mut rows = db.prepare(&sql)?;
        let of: HashMap<u32, u64> = rows
            .query_map([], |r| Ok((r.get(0)?, r.get::<_, i64>(1)?.unsigned_abs())))?
            .collect::<Result<_, _>>()?;
        Ok(Self {
            all: of.values().sum(),
            of,
        })
    }

    /// After a row was written: deletes the oldest of the largest owner until there is room.
    fn add(
        &mut self,
        db: &Connection,
        table: &Table,
        uid: u32,
        bytes: usize,
    ) -> rusqlite::Result<()> {
        let bytes = bytes as u64 + ROW;
        *self.of.entry(uid).or_default() += bytes;
        self.all += bytes;
        while self.of.get(&uid).is_some_and(|b| *b > table.most_of_one) {
            if !self.drop_oldest(db, table, uid)? {
                break;
            }
        }
        while self.all > table.most {
            let most = self.of.iter().max_by_key(|(_, bytes)| **bytes);
            let Some(uid) = most.map(|(uid, _)| *uid) else {
                break;
            };
            if !self.drop_oldest(db, table, uid)? {
                break;
            }
        }
        Ok(())
    }

    fn drop_oldest(&mut self, db: &Connection, table: &Table, uid: u32) -> rusqlite::Result<bool> {
        let sql = format!(
            "DELETE FROM {0} WHERE rowid = (SELECT rowid FROM {0} WHERE uid = ?1 ORDER BY {1} LIMIT 1)
             RETURNING {2}",
            table.name, table.at, table.size
        );
        let freed: Option<i64> = db
            .prepare_cached(&sql)?
            .query_row([uid], |r| r.get(0))
            .optional()?;
        match freed {
            Some(bytes) => self.less(uid, bytes.unsigned_abs() + ROW),
            None => self.less(uid, u64::MAX),
        }
        Ok(freed.is_some())
    }

    fn less(&mut self, uid: u32, bytes: u64) {
        if let Some(of) = self.of.get_mut(&uid) {
            let bytes = bytes.min(*of);
            *of -= bytes;
            self.all -= bytes;
            if *of == 0 {
                self.of.remove(&uid);
            }
        }
    }

    /// Deletes some rows from before a moment; false once there are none.
    fn forget(&mut self, db: &Connection, table: &Table, before_ms: u64) -> rusqlite::Result<bool> {
        let sql = format!(
            "DELETE FROM {0} WHERE rowid IN (SELECT rowid FROM {0} WHERE {1} < ?1 LIMIT {ROWS_AT_A_TIME})
             RETURNING uid, {2}",
            table.name, table.at, table.size
        );
        let mut rows = db.prepare_cached(&sql)?;
        let gone: Vec<(u32, i64)> = rows
            .query_map([signed(before_ms)], |r| Ok((r.get(0)?, r.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for (uid, bytes) in &gone {
            self.less(*uid, bytes.unsigned_abs() + ROW);
        }
        Ok(!gone.is_empty())
    }
}

/// An ended claim that is not in the journal yet.
#[derive(Debug)]
pub(crate) struct Ended {
    record: ClaimRecord,
    ended_ms: u64,
    cause: String,
    peak: u64,
    launches: u64,
}

impl Ended {
    /// A claim that ends now.
    pub(crate) fn new(record: ClaimRecord, cause: &str, peak: u64, launches: u64) -> Self {
        Self {
            record,
            ended_ms: unix_ms(),
            cause: cause.to_owned(),
            peak,
            launches,
        }
    }
}

impl Journal {
    /// Records the end of a claim, or postpones that while the disk is full.
    pub(crate) fn put_end(&mut self, ended: Ended) {
        self.unwritten.push(ended);
        self.write_ends();
    }

    /// Writes the postponed ends. The claims have ended; but a restarted service would restore them, so this is
    /// retried until the disk has room.
    pub(crate) fn write_ends(&mut self) {
        let mut ends = std::mem::take(&mut self.unwritten);
        while let Some(end) = ends.first() {
            let (peak, launches) = (Some(end.peak), Some(end.launches));
            if let Err(error) = self.end(&end.record, end.ended_ms, &end.cause, peak, launches) {
                tracing::error!(claim = end.record.id, %error, "the end of a claim is not in the journal yet; gshare \
                    tries again");
                break;
            }
            ends.remove(0);
        }
        ends.truncate(UNWRITTEN);
        self.unwritten = ends;
    }

    /// Number of ended claims that are not written yet.
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten.len()
    }

    /// Moves a claim to the record of ended ones, in one transaction.
    pub(crate) fn end(
        &mut self,
        claim: &ClaimRecord,
        ended_ms: u64,
        cause: &str,
        peak_bytes: Option<u64>,
        launches: Option<u64>,
    ) -> Result<(), JournalError> {
        let mut claim = claim.clone();
        // Its request for later.
        claim.terms.lazy = None;
        let text = serde_json::to_string(&claim)?;
        let tx = self.db.transaction()?;
        tx.prepare_cached("DELETE FROM claim WHERE id = ?1")?
            .execute([signed(claim.id)])?;
        tx.prepare_cached(
            "INSERT OR REPLACE INTO ended
                 (id, uid, ended_ms, pid, start_ticks, uncapped, cause, peak_bytes, launches, format, record)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute(params![
            signed(claim.id),
            claim.uid,
            signed(ended_ms),
            claim.process.map(|p| p.pid),
            claim.process.map(|p| signed(p.start_ticks)),
            claim.origin.uncapped,
            cause,
            peak_bytes.map(signed),
            launches.map(signed),
            DOCUMENT,
            text
        ])?;
        let mut ended = self.ended.clone();
        ended.add(&tx, &ENDED, claim.uid, text.len())?;
        tx.commit()?;
        self.ended = ended;
        Ok(())
    }

    /// Logs an event of a user's claim. On a full disk only this entry is lost.
    pub(crate) fn note(&mut self, uid: u32, id: ClaimId, text: &str) {
        if let Err(error) = self.add_event(unix_ms(), id, uid, text) {
            tracing::warn!(%id, %error, "could not record an event of a claim");
        }
    }

    /// Adds an event of a user's claim.
    pub(crate) fn add_event(
        &mut self,
        at_ms: u64,
        id: ClaimId,
        uid: u32,
        text: &str,
    ) -> Result<(), JournalError> {
        let text: String = text.chars().take(LINE).collect();
        let tx = self.db.transaction()?;
        tx.prepare_cached("INSERT INTO event (at_ms, claim, uid, text) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![signed(at_ms), signed(id.0), uid, text])?;
        let mut events = self.events.clone();
        events.add(&tx, &EVENTS, uid, text.len())?;
        tx.commit()?;
        self.events = events;
        Ok(())
    }

    /// The newest events of a claim, oldest first: time, owner, text.
    pub(crate) fn events(&self, id: ClaimId) -> Result<Vec<(u64, u32, String)>, JournalError> {
        let mut rows = self.db.prepare_cached(
            "SELECT at_ms, uid, text FROM event WHERE claim = ?1 ORDER BY at_ms DESC, rowid DESC LIMIT ?2",
        )?;
        let event = |r: &rusqlite::Row<'_>| {
            let at: i64 = r.get(0)?;
            Ok((at.unsigned_abs(), r.get(1)?, r.get(2)?))
        };
        let mut events: Vec<(u64, u32, String)> = rows
            .query_map(params![signed(id.0), LINES], event)?
            .collect::<Result<_, _>>()?;
        events.reverse();
        Ok(events)
    }

    /// When and why a user's claim ended: milliseconds since 1970, and the cause in words.
    pub(crate) fn end_of(
        &self,
        id: ClaimId,
        uid: u32,
    ) -> Result<Option<(u64, String)>, JournalError> {
        let mut rows = self.db.prepare_cached(
            "SELECT at_ms, text FROM event WHERE claim = ?1 AND uid = ?2 AND text LIKE '%ended: %'
             ORDER BY at_ms DESC, rowid DESC LIMIT 1",
        )?;
        let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, i64>(0)?, r.get::<_, String>(1)?));
        let found = rows.query_row(params![signed(id.0), uid], row).optional()?;
        Ok(found.and_then(|(at, text)| {
            let (_, cause) = text.split_once("ended: ")?;
            Some((at.unsigned_abs(), cause.to_owned()))
        }))
    }

    /// Deletes some of the past; once nothing is left to delete, again after an hour.
    pub(crate) fn forget_past(&mut self) {
        let now = unix_ms();
        if now < self.forget_ms {
            return;
        }
        match self.forget(now.saturating_sub(KEPT_MS)) {
            Ok(true) => {}
            Ok(false) => self.forget_ms = now + 3_600_000,
            Err(error) => {
                self.forget_ms = now + 60_000;
                tracing::warn!(%error, "could not delete old events");
            }
        }
    }

    /// Deletes some rows from before a moment and returns free pages of the file; false once nothing is left to do.
    fn forget(&mut self, before_ms: u64) -> Result<bool, JournalError> {
        let tx = self.db.transaction()?;
        let (mut ended, mut events) = (self.ended.clone(), self.events.clone());
        let mut more = ended.forget(&tx, &ENDED, before_ms)?;
        more |= events.forget(&tx, &EVENTS, before_ms)?;
        tx.execute("DELETE FROM unread WHERE at_ms < ?1", [signed(before_ms)])?;
        tx.commit()?;
        (self.ended, self.events) = (ended, events);
        let free: i64 = self
            .db
            .query_row("PRAGMA freelist_count", [], |r| r.get(0))?;
        // Keep some, which are soon needed again.
        if free.unsigned_abs() > PAGES_AT_A_TIME {
            self.db
                .execute_batch(&format!("PRAGMA incremental_vacuum({PAGES_AT_A_TIME})"))?;
            more = true;
        }
        Ok(more)
    }

    /// A user's claim that ended since a moment and whose command was this process.
    pub(crate) fn ended_of(
        &self,
        uid: u32,
        process: (u32, u64),
        from_ms: u64,
    ) -> Result<Option<ClaimRecord>, JournalError> {
        let (pid, start_ticks) = process;
        let mut rows = self.db.prepare_cached(
            "SELECT record FROM ended WHERE pid = ?1 AND start_ticks = ?2 AND uid = ?3 AND ended_ms >= ?4
             ORDER BY ended_ms DESC LIMIT 1",
        )?;
        let found: Option<String> = rows
            .query_row(
                params![pid, signed(start_ticks), uid, signed(from_ms)],
                |r| r.get(0),
            )
            .optional()?;
        Ok(found.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// The last claims that ended, of one user or of all, newest first: with the time and the cause.
    pub(crate) fn last_ended(
        &self,
        uid: Option<u32>,
    ) -> Result<Vec<(ClaimRecord, u64, String)>, JournalError> {
        let mut rows =
            self.db
                .prepare_cached(&last_ended("record, ended_ms, cause", uid, LISTED))?;
        let row = |r: &rusqlite::Row<'_>| {
            let (text, at): (String, i64) = (r.get(0)?, r.get(1)?);
            let record = serde_json::from_str(&text).ok();
            let cause = r.get(2)?;
            Ok(record.map(|record| (record, at.unsigned_abs(), cause)))
        };
        let found: Vec<_> = rows.query_map([], row)?.collect::<Result<_, _>>()?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The last claim with a name that ended, of one user or of all, among the last [`NAMED`] that ended.
    pub(crate) fn last_named(
        &self,
        uid: Option<u32>,
        name: &str,
    ) -> Result<Option<ClaimId>, JournalError> {
        let lately = last_ended("id, record, ended_ms", uid, NAMED);
        let mut rows = self.db.prepare_cached(&format!(
            "SELECT id FROM ({lately})
             WHERE CASE WHEN json_valid(record) THEN json_extract(record, '$.name') END = ?1
             ORDER BY ended_ms DESC LIMIT 1"
        ))?;
        let id: Option<i64> = rows.query_row([name], |r| r.get(0)).optional()?;
        Ok(id.map(|id| ClaimId(id.unsigned_abs())))
    }

    /// Accounted processes without a claim that have ended since a moment, the last first: time and record.
    pub(crate) fn uncapped_since(
        &self,
        from_ms: u64,
    ) -> Result<Vec<(u64, ClaimRecord)>, JournalError> {
        let mut rows = self.db.prepare_cached(
            "SELECT ended_ms, record FROM ended WHERE uncapped AND ended_ms >= ?1
             ORDER BY ended_ms DESC LIMIT 200",
        )?;
        let found: Vec<(i64, String)> = rows
            .query_map([signed(from_ms)], |r| Ok((r.get(0)?, r.get(1)?)))?
            .collect::<Result<_, _>>()?;
        let read = |(at, text): (i64, String)| {
            Some((at.unsigned_abs(), serde_json::from_str(&text).ok()?))
        };
        Ok(found.into_iter().filter_map(read).collect())
    }

    /// See [`ended_since`].
    pub(crate) fn ended_since(
        &self,
        from_ms: u64,
    ) -> Result<Vec<(ClaimRecord, u64, u64)>, JournalError> {
        Ok(ended_since(&self.db, from_ms)?)
    }
}

fn last_ended(what: &str, uid: Option<u32>, most: u32) -> String {
    let of = uid.map_or_else(String::new, |uid| format!("uid = {uid} AND"));
    format!(
        "SELECT {what} FROM ended WHERE {of} ended_ms >= 0 AND NOT uncapped
         ORDER BY ended_ms DESC LIMIT {most}"
    )
}

/// Claims that ended since a moment, with the time and their peak bytes. Damaged records are left out.
pub(crate) fn ended_since(
    db: &Connection,
    from_ms: u64,
) -> rusqlite::Result<Vec<(ClaimRecord, u64, u64)>> {
    let mut rows = db.prepare(
        "SELECT record, ended_ms, coalesce(peak_bytes, 0) FROM ended WHERE ended_ms >= ?1",
    )?;
    let row = |r: &rusqlite::Row<'_>| {
        let (text, at, peak): (String, i64, i64) = (r.get(0)?, r.get(1)?, r.get(2)?);
        let record = serde_json::from_str(&text).ok();
        Ok(record.map(|record| (record, at.unsigned_abs(), peak.unsigned_abs())))
    };
    let found: Vec<_> = rows
        .query_map([signed(from_ms)], row)?
        .collect::<Result<_, _>>()?;
    Ok(found.into_iter().flatten().collect())
}

/// Claims that hold something now, and accounted programs without a claim. Damaged records are left out.
pub(crate) fn running(db: &Connection) -> rusqlite::Result<Vec<ClaimRecord>> {
    let mut rows = db.prepare("SELECT record FROM claim WHERE NOT waits")?;
    let texts: Vec<String> = rows
        .query_map([], |r| r.get(0))?
        .collect::<Result<_, _>>()?;
    let read = |text: &String| serde_json::from_str(text).ok();
    Ok(texts.iter().filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::claim;
    use super::*;

    #[test]
    fn events_are_kept_in_order_by_claim_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let mut j = Journal::open(&dir.path().join("db")).unwrap();
        for (at, id, text) in [(5, 1, "waits"), (7, 2, "other"), (9, 1, "granted")] {
            j.add_event(at, ClaimId(id), 7, text).unwrap();
        }
        let told = |j: &Journal, id| j.events(ClaimId(id)).unwrap();
        assert_eq!(
            told(&j, 1),
            [(5, 7, "waits".to_owned()), (9, 7, "granted".to_owned())]
        );
        assert_eq!(told(&j, 3), []);
        while j.forget(9).unwrap() {}
        assert_eq!(told(&j, 1), [(9, 7, "granted".to_owned())]);
    }

    #[test]
    fn no_arguments_and_no_paths_are_kept_of_what_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let mut j = Journal::open(&path).unwrap();
        let words = [
            "/usr/bin/python3",
            "/home/ada/secret/train.py",
            "--data",
            "/data/patients",
        ];
        let record = ClaimRecord {
            command: words.map(str::to_owned).to_vec().into(),
            ..claim(1)
        };
        j.end(&record, 1, "released", None, None).unwrap();
        let kept: String =
            j.db.query_row("SELECT record FROM ended", [], |r| r.get(0))
                .unwrap();
        assert!(kept.contains("train.py"), "{kept}");
        for word in ["secret", "patients", "--data", "/usr/bin"] {
            assert!(!kept.contains(word), "{word}: {kept}");
        }
    }

    #[test]
    fn what_the_disk_does_not_take_is_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mut j = Journal::open(&dir.path().join("db")).unwrap();
        j.add_event(1, ClaimId(1), 7, "waits").unwrap();
        // A transaction fails when it is committed, as on a full disk.
        j.db.execute_batch(
            "PRAGMA foreign_keys = ON;
             CREATE TABLE disk (room INTEGER PRIMARY KEY);
             CREATE TABLE used (room REFERENCES disk DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER full_of_events AFTER INSERT ON event BEGIN INSERT INTO used VALUES (1); END;
             CREATE TRIGGER full_of_ended AFTER INSERT ON ended BEGIN INSERT INTO used VALUES (1); END;
             CREATE TRIGGER full AFTER DELETE ON event BEGIN INSERT INTO used VALUES (1); END;",
        )
        .unwrap();
        for _ in 0..3 {
            j.add_event(2, ClaimId(1), 7, "granted").unwrap_err();
            j.end(&claim(1), 3, "released", None, None).unwrap_err();
            j.forget(9).unwrap_err();
        }
        let counted = [(&j.events, &EVENTS), (&j.ended, &ENDED)];
        for (budget, table) in counted {
            let stored = Budget::of(&j.db, table).unwrap();
            assert_eq!((budget.all, &budget.of), (stored.all, &stored.of));
        }
    }

    /// A user who makes and ends claims for ever can neither fill the disk nor displace others' entries.
    #[test]
    fn what_is_over_is_kept_by_size_and_by_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let mut j = Journal::open(&path).unwrap();
        let other = ClaimRecord { uid: 1, ..claim(1) };
        j.end(&other, 1, "released", None, None).unwrap();
        let large = ClaimRecord {
            command: vec!["x".repeat(4000)].into(),
            ..claim(0)
        };
        for id in 2..4000 {
            let record = ClaimRecord {
                id,
                ..large.clone()
            };
            j.end(&record, id, "released", None, None).unwrap();
            j.add_event(id, ClaimId(id), 1000, &"y".repeat(3000))
                .unwrap();
        }
        let rows = |sql: &str| -> i64 { j.db.query_row(sql, [], |r| r.get(0)).unwrap() };
        let kept = rows("SELECT sum(length(record)) FROM ended WHERE uid = 1000");
        assert!(kept.unsigned_abs() <= ENDED.most_of_one, "{kept}");
        let kept = rows("SELECT sum(length(text)) FROM event");
        assert!(kept.unsigned_abs() <= EVENTS.most_of_one, "{kept}");
        assert_eq!(rows("SELECT count(*) FROM ended WHERE uid = 1"), 1);
        assert_eq!(rows("SELECT max(id) FROM ended"), 3999, "the newest stay");
        let listed = |uid| j.last_ended(uid).unwrap().into_iter().map(|(r, ..)| r.id);
        assert!(listed(Some(1000)).eq((3980..4000).rev()), "of one user");
        assert!(listed(Some(1)).eq([1]));
        // The file shrinks when they are deleted.
        let pages = rows("PRAGMA page_count");
        while j.forget(u64::MAX >> 1).unwrap() {}
        let after: i64 =
            j.db.query_row("PRAGMA page_count", [], |r| r.get(0))
                .unwrap();
        assert!(after < pages / 2, "{pages} -> {after}");
    }

    #[test]
    fn the_last_claim_of_an_owner_with_a_name_is_known_after_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut j = Journal::open(&dir.path().join("db")).unwrap();
        for (id, uid, name) in [
            (1, 1000, "train"),
            (2, 1000, "train"),
            (3, 1, "train"),
            (4, 1000, "x"),
        ] {
            let record = ClaimRecord {
                uid,
                name: Some(name.to_owned()),
                ..claim(id)
            };
            j.end(&record, id, "released", None, None).unwrap();
        }
        let last = |uid, name| j.last_named(uid, name).unwrap().map(|id| id.0);
        assert_eq!(last(Some(1000), "train"), Some(2));
        assert_eq!(last(None, "train"), Some(3));
        assert_eq!(last(Some(1), "x"), None);
    }

    /// No query of the state's task may scan a whole table.
    #[test]
    fn no_question_reads_a_whole_table() {
        let dir = tempfile::tempdir().unwrap();
        let j = Journal::open(&dir.path().join("db")).unwrap();
        for sql in [
            "SELECT record FROM ended WHERE pid = 1 AND start_ticks = 2 AND uid = 3 AND ended_ms >= 4
             ORDER BY ended_ms DESC LIMIT 1",
            "SELECT ended_ms, record FROM ended WHERE uncapped AND ended_ms >= 1 ORDER BY ended_ms DESC LIMIT 200",
            "SELECT at_ms, text FROM event WHERE claim = 1 ORDER BY at_ms DESC, rowid DESC LIMIT 5",
            "SELECT rowid FROM ended WHERE uid = 1 ORDER BY ended_ms LIMIT 1",
            "SELECT rowid FROM event WHERE at_ms < 1 LIMIT 5",
            "SELECT record FROM ended WHERE ended_ms >= 1",
            &last_ended("record", Some(1), 5),
            &last_ended("record", None, 5),
        ] {
            let mut rows = j.db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let plan: Vec<String> = rows
                .query_map([], |r| r.get(3))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            let whole = ["SCAN", "TEMP B-TREE"].map(|w| plan.iter().any(|p| p.contains(w)));
            assert_eq!(whole, [false; 2], "{sql}: {plan:?}");
        }
    }
}
