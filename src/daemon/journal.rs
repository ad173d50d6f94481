//! The journal: state that must survive the service, such as granted claims, learnt context costs and the record of
//! ended claims. One SQLite file in WAL mode; a claim is written before anything is done for it.

mod admin;
mod file;
mod fold;
mod health;
mod holding;
mod older;
mod past;
mod records;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use gshare_core::ClaimId;
use gshare_core::machine::Kept;
use rusqlite::{Connection, OptionalExtension, params};

pub(crate) use admin::DrainRecord;
use file::{DOCUMENT, FORMAT, put_meta, signed};
pub(crate) use file::{Journal, JournalError};
use fold::Fold;
pub(crate) use health::{Store, XidRecord};
pub(crate) use holding::{HoldingRecord, ParkedRecord};
pub(crate) use older::rewrite;
use past::Budget;
pub(crate) use past::{Ended, ended_since, running};
#[cfg(test)]
pub(crate) use records::RunsRecord;
pub(crate) use records::{
    BehalfRecord, ClaimRecord, KernelRecord, OriginRecord, SampleRecord, SliceRecord, TermsRecord,
};

/// File name in the state directory.
pub(crate) const FILE: &str = "gshare.db";

/// Opens it read-only, beside the task that writes it.
pub(crate) fn reader(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)
}

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS claim (
    id INTEGER PRIMARY KEY, waits INTEGER NOT NULL, format INTEGER NOT NULL, record TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS queue (
    id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, format INTEGER NOT NULL, record TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS unread (
    id INTEGER NOT NULL, at_ms INTEGER NOT NULL, format INTEGER NOT NULL, record TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS overhead (
    model TEXT NOT NULL, driver TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (model, driver)) STRICT;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
";

/// Claims that were held or waited when the last service stopped.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) held: Vec<ClaimRecord>,
    pub(crate) waiting: Vec<ClaimRecord>,
    /// Ids of claims whose record could not be read.
    pub(crate) unread: Vec<u64>,
}

impl Journal {
    /// Opens it for a service that starts.
    pub(crate) fn begin(path: &Path) -> Result<Self, JournalError> {
        let mut journal = Self::open(path)?;
        let before = journal.meta("epoch")?.and_then(|e| e.parse::<u64>().ok());
        journal.starts = before.unwrap_or(0) + 1;
        journal.set_meta("epoch", &journal.starts.to_string())?;
        if journal.newer.is_none() {
            journal.fold = Some(Fold::beside(&journal.db, path)?);
        }
        Ok(journal)
    }

    /// How many services have used it, including this one.
    pub(crate) fn starts(&self) -> u64 {
        self.starts
    }

    /// The id of the next claim.
    pub(crate) fn next_id(&self) -> ClaimId {
        ClaimId(self.next_id)
    }

    /// Takes the id for a new claim.
    pub(crate) fn take_id(&mut self) -> ClaimId {
        let id = self.next_id();
        self.take_ids_to(id);
        id
    }

    /// Keeps new claims from using this id or a smaller one.
    pub(crate) fn take_ids_to(&mut self, id: ClaimId) {
        self.next_id = self.next_id.max(id.0.saturating_add(1));
    }

    /// Opens or creates the file. An older format is converted in one transaction; a newer format is not changed.
    pub(crate) fn open(path: &Path) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Open {
            path: path.to_owned(),
            source,
        };
        let mut db = Connection::open(path).map_err(failed)?;
        // Others may pass through the directory; SQLite gives its additional files the same mode.
        let own = std::fs::Permissions::from_mode(0o600);
        if let Err(error) = std::fs::set_permissions(path, own) {
            tracing::warn!(%error, "cannot set the journal's file mode to 0600");
        }
        db.busy_timeout(Duration::from_secs(2)).map_err(failed)?;
        let found: i64 = db
            .query_row("PRAGMA user_version", [], |r| r.get(0))
            .map_err(failed)?;
        if found > FORMAT {
            let mut journal = beside_newer(path, found).map_err(failed)?;
            journal.next_id = first_free_id(&journal)?;
            return Ok(journal);
        }
        let tables: i64 = db
            .query_row("SELECT count(*) FROM sqlite_master", [], |r| r.get(0))
            .map_err(failed)?;
        if tables == 0 {
            // Only an empty file accepts this without being rewritten.
            db.pragma_update(None, "auto_vacuum", "INCREMENTAL")
                .map_err(failed)?;
        }
        // WAL with synchronous = NORMAL loses nothing when the process is killed, and claims wait for no fsync, which
        // only folding makes.
        db.pragma_update(None, "journal_mode", "WAL")
            .map_err(failed)?;
        db.pragma_update(None, "synchronous", "NORMAL")
            .map_err(failed)?;
        db.pragma_update(None, "journal_size_limit", 4 << 20)
            .map_err(failed)?;
        if tables > 0 && found < FORMAT {
            older::convert(&mut db, || {})?;
        }
        lay_out(&db).map_err(failed)?;
        db.pragma_update(None, "user_version", FORMAT)
            .map_err(failed)?;
        // An older version kept a copy of a file that it converted.
        let _ = std::fs::remove_file(path.with_extension("db.format-1"));
        // On a full disk the next start does it.
        if let Err(error) = older::forget_lines(&mut db) {
            tracing::warn!(%error, "the journal still has command lines that an older version stored");
        }
        let mut journal = over(db, None);
        journal.ended = Budget::of(&journal.db, &past::ENDED)?;
        journal.events = Budget::of(&journal.db, &past::EVENTS)?;
        journal.next_id = first_free_id(&journal)?;
        Ok(journal)
    }

    /// Writes a changed claim. On a full disk only this change is lost.
    pub(crate) fn keep(&self, claim: &ClaimRecord, what: &str) {
        if let Err(error) = self.put(claim) {
            tracing::error!(claim = claim.id, %error, "could not record in the journal {what}");
        }
    }

    /// Why nothing new may be promised: the file belongs to a newer service.
    pub(crate) fn newer(&self) -> Option<String> {
        let found = self.newer?;
        Some(format!(
            "the journal has format {found}, but this gshared knows only up to {FORMAT}: running claims keep their limits, but nothing new is granted"
        ))
    }

    /// Writes a new or changed claim that is held.
    pub(crate) fn put(&self, claim: &ClaimRecord) -> Result<(), JournalError> {
        write(&self.db, claim, false)
    }

    /// All claims that were held or waited when the last service stopped. An unreadable record is set aside
    /// unchanged, and its claim ends.
    pub(crate) fn claims(&mut self, now_ms: u64) -> Result<Claims, JournalError> {
        let mut found = Claims::default();
        let rows: Vec<(i64, bool, String)> = self
            .db
            .prepare("SELECT id, waits, record FROM claim ORDER BY id")?
            .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?
            .collect::<Result<_, _>>()?;
        for (id, waits, text) in rows {
            match serde_json::from_str(&text) {
                Ok(record) if waits => found.waiting.push(record),
                Ok(record) => found.held.push(record),
                Err(_) => found.unread.push(id.unsigned_abs()),
            }
        }
        let tx = self.db.transaction()?;
        for id in &found.unread {
            tx.execute(
                "INSERT INTO unread (id, at_ms, format, record)
                 SELECT id, ?2, format, record FROM claim WHERE id = ?1",
                params![signed(*id), signed(now_ms)],
            )?;
            tx.execute("DELETE FROM claim WHERE id = ?1", [signed(*id)])?;
        }
        tx.commit()?;
        Ok(found)
    }

    /// Saves the queue in one step: new and removed waiting claims, and new, changed and removed places.
    pub(crate) fn put_queue(&mut self, changes: &QueueChanges) -> Result<(), JournalError> {
        let tx = self.db.transaction()?;
        for claim in &changes.waiting {
            write(&tx, claim, true)?;
        }
        for id in &changes.withdrawn {
            tx.prepare_cached("DELETE FROM claim WHERE id = ?1 AND waits")?
                .execute([signed(*id)])?;
        }
        for place in &changes.places {
            tx.prepare_cached(
                "INSERT OR REPLACE INTO queue (id, seq, format, record) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(params![
                signed(place.id.0),
                signed(place.seq),
                DOCUMENT,
                serde_json::to_string(place)?
            ])?;
        }
        for id in &changes.gone {
            tx.prepare_cached("DELETE FROM queue WHERE id = ?1")?
                .execute([signed(*id)])?;
        }
        if let Some((key, text)) = &changes.memory {
            tx.prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)")?
                .execute([key, text])?;
        }
        tx.commit()?;
        Ok(())
    }

    /// The order of the queue. Unreadable places are left out.
    pub(crate) fn places(&self) -> Result<Vec<Kept>, JournalError> {
        let mut rows = self.db.prepare("SELECT record FROM queue ORDER BY seq")?;
        let texts: Vec<String> = rows
            .query_map([], |r| r.get(0))?
            .collect::<Result<_, _>>()?;
        Ok(texts
            .iter()
            .filter_map(|t| serde_json::from_str(t).ok())
            .collect())
    }

    /// Learnt bytes of a context on a model under a driver.
    pub(crate) fn overhead(&self, model: &str, driver: &str) -> Result<Option<u64>, JournalError> {
        let bytes: Option<i64> = self
            .db
            .query_row(
                "SELECT bytes FROM overhead WHERE model = ?1 AND driver = ?2",
                [model, driver],
                |r| r.get(0),
            )
            .optional()?;
        Ok(bytes.map(i64::unsigned_abs))
    }

    /// Records the cost of a context.
    pub(crate) fn learn_overhead(
        &self,
        model: &str,
        driver: &str,
        bytes: u64,
    ) -> Result<(), JournalError> {
        self.db.execute(
            "INSERT OR REPLACE INTO overhead (model, driver, bytes) VALUES (?1, ?2, ?3)",
            params![model, driver, signed(bytes)],
        )?;
        Ok(())
    }

    /// Points of the GPUs that older versions stored here, oldest first.
    pub(crate) fn samples(&self) -> Result<Vec<SampleRecord>, JournalError> {
        if !has_samples(self)? {
            return Ok(Vec::new());
        }
        let mut rows = self.db.prepare(
            "SELECT at_ms, uuid, activity, used_bytes, claimed_bytes FROM sample ORDER BY at_ms",
        )?;
        let sample = |r: &rusqlite::Row<'_>| {
            let (at, used): (i64, Option<i64>) = (r.get(0)?, r.get(3)?);
            Ok(SampleRecord {
                at_ms: at.unsigned_abs(),
                uuid: r.get(1)?,
                activity: r.get::<_, Option<f64>>(2)?.map(|a| a as f32),
                used_bytes: used.map(i64::unsigned_abs),
                claimed_bytes: r.get::<_, i64>(4)?.unsigned_abs(),
            })
        };
        Ok(rows.query_map([], sample)?.collect::<Result<_, _>>()?)
    }

    /// They are stored elsewhere now.
    pub(crate) fn forget_samples(&self) -> Result<(), JournalError> {
        self.db.execute_batch("DROP TABLE IF EXISTS sample")?;
        Ok(())
    }

    /// A value stored under a key.
    pub(crate) fn meta(&self, key: &str) -> Result<Option<String>, JournalError> {
        Ok(self
            .db
            .query_row("SELECT value FROM meta WHERE key = ?1", [key], |r| r.get(0))
            .optional()?)
    }

    /// Whether it can be written.
    pub(crate) fn try_out(&self) -> Result<(), JournalError> {
        self.set_meta("tried", "")
    }

    /// Behaves as on a full disk from now on.
    #[cfg(test)]
    pub(crate) fn take_no_more(&self) {
        let refused = self.db.pragma_update(None, "query_only", true);
        refused.expect("it is open");
    }

    /// Once a second: has the log folded if it has grown.
    pub(crate) fn fold(&mut self) {
        if let Some(fold) = &mut self.fold {
            fold.due(&self.db);
        }
    }

    /// Stores a value under a key.
    pub(crate) fn set_meta(&self, key: &str, value: &str) -> Result<(), JournalError> {
        put_meta(&self.db, key, value)
    }
}

fn over(db: Connection, newer: Option<i64>) -> Journal {
    Journal {
        fold: None,
        db,
        ended: Budget::default(),
        events: Budget::default(),
        newer,
        starts: 0,
        next_id: 0,
        unwritten: Vec::new(),
        forget_ms: 0,
    }
}

/// A copy in memory of the known tables of a file with a newer format.
fn beside_newer(path: &Path, found: i64) -> rusqlite::Result<Journal> {
    let db = Connection::open_in_memory()?;
    lay_out(&db)?;
    let file = path.to_string_lossy();
    db.execute("ATTACH DATABASE ?1 AS newer", [file.as_ref()])?;
    for (table, columns) in [
        ("claim", "id, waits, format, record"),
        ("meta", "key, value"),
        ("overhead", "model, driver, bytes"),
        ("drain", "uuid, since_ms, by, reason"),
        ("quota", "party, gpus_milli, weight_milli, max_milli"),
    ] {
        let sql = format!(
            "INSERT OR IGNORE INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}"
        );
        if let Err(error) = db.execute(&sql, []) {
            tracing::warn!(table, %error, "cannot read a table of the newer journal");
        }
    }
    db.execute("DETACH DATABASE newer", [])?;
    Ok(over(db, Some(found)))
}

fn lay_out(db: &Connection) -> rusqlite::Result<()> {
    for schema in [SCHEMA, past::SCHEMA, admin::SCHEMA, health::SCHEMA] {
        db.execute_batch(schema)?;
    }
    Ok(())
}

/// A number above every id that was ever granted, or told to a waiting client.
fn first_free_id(journal: &Journal) -> Result<u64, JournalError> {
    let told = journal.meta("told")?.and_then(|t| t.parse::<u64>().ok());
    let highest: i64 = journal.db.query_row(
        "SELECT max(coalesce((SELECT max(id) FROM claim), 0), coalesce((SELECT max(id) FROM ended), 0))",
        [],
        |r| r.get(0),
    )?;
    Ok(highest
        .unsigned_abs()
        .max(told.unwrap_or(0))
        .saturating_add(1))
}

fn has_samples(journal: &Journal) -> Result<bool, JournalError> {
    let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'sample'";
    let tables: i64 = journal.db.query_row(sql, [], |r| r.get(0))?;
    Ok(tables > 0)
}

#[derive(Debug, Default)]
pub(crate) struct QueueChanges {
    pub(crate) waiting: Vec<ClaimRecord>,
    pub(crate) withdrawn: Vec<u64>,
    pub(crate) places: Vec<Kept>,
    pub(crate) gone: Vec<u64>,
    /// Key and text of the core's other saved state.
    pub(crate) memory: Option<(String, String)>,
}

impl QueueChanges {
    /// Nothing has changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
            && self.withdrawn.is_empty()
            && self.places.is_empty()
            && self.gone.is_empty()
            && self.memory.is_none()
    }
}

fn write(db: &Connection, claim: &ClaimRecord, waits: bool) -> Result<(), JournalError> {
    let text = serde_json::to_string(claim)?;
    db.prepare_cached(
        "INSERT OR REPLACE INTO claim (id, waits, format, record) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![signed(claim.id), waits, DOCUMENT, text])?;
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use gshare_enforcer::proc::ProcessKey;

    use super::*;

    pub(in crate::daemon::journal) fn claim(id: u64) -> ClaimRecord {
        ClaimRecord {
            id,
            uid: 1000,
            name: Some("n".into()),
            project: "p".into(),
            class: "batch".into(),
            command: vec!["true".into()].into(),
            granted_ms: 5,
            process: Some(ProcessKey {
                pid: 1,
                start_ticks: 2,
            }),
            slices: vec![SliceRecord {
                uuid: "GPU-x".into(),
                token: u64::MAX,
                mem: 1,
                mem_limit: 2,
                sm_milli: 3,
                sm_limit_milli: 4,
                held: gshare_core::Held::Timeslice,
            }],
            ..ClaimRecord::default()
        }
    }

    #[test]
    fn claims_survive_reopening_and_ids_are_never_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        {
            let mut j = Journal::open(&path).unwrap();
            assert_eq!(j.next_id(), ClaimId(1));
            j.put(&claim(1)).unwrap();
            j.put(&claim(2)).unwrap();
            j.end(&claim(2), 9, "command exited", Some(7), None)
                .unwrap();
            j.learn_overhead("m", "580", 300).unwrap();
        }
        let mut j = Journal::open(&path).unwrap();
        assert_eq!(j.claims(0).unwrap().held, [claim(1)]);
        assert_eq!(j.next_id(), ClaimId(3));
        assert_eq!(j.overhead("m", "580").unwrap(), Some(300));
        assert_eq!(j.overhead("m", "590").unwrap(), None);
    }

    #[test]
    fn an_older_service_of_this_format_reads_the_kernel_of_a_claim() {
        let mut record = claim(1);
        record.origin.kernel = Some(KernelRecord {
            id: "k".into(),
            connection: "/home/ada/kernel-k.json".into(),
        });
        let text = serde_json::to_value(&record).unwrap();
        let kernel = text["kernel"].clone();
        let spec: gshare_proto::KernelSpec = serde_json::from_value(kernel).unwrap();
        assert_eq!((&*spec.id, &*spec.connection), ("k", ""));
    }

    #[test]
    fn points_of_older_versions_are_read_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let j = Journal::open(&dir.path().join("db")).unwrap();
        assert_eq!(j.samples().unwrap(), []);
        j.db.execute_batch(
            "CREATE TABLE sample (
                 at_ms INTEGER NOT NULL, uuid TEXT NOT NULL, activity REAL, used_bytes INTEGER,
                 claimed_bytes INTEGER NOT NULL, PRIMARY KEY (uuid, at_ms)) STRICT, WITHOUT ROWID;
             INSERT INTO sample VALUES (20, 'GPU-x', NULL, 7, 5), (10, 'GPU-x', 50.0, NULL, 5);",
        )
        .unwrap();
        let found = j.samples().unwrap();
        assert_eq!(
            (found[0].at_ms, found[0].activity, found[0].used_bytes),
            (10, Some(50.0), None)
        );
        assert_eq!((found[1].activity, found[1].used_bytes), (None, Some(7)));
        j.forget_samples().unwrap();
        assert_eq!(j.samples().unwrap(), []);
    }

    #[test]
    fn a_damaged_record_is_laid_aside_and_does_not_lose_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut j = Journal::open(&dir.path().join("db")).unwrap();
        j.put(&claim(1)).unwrap();
        j.db.execute("INSERT INTO claim VALUES (7, 0, 9, '{half')", [])
            .unwrap();
        let found = j.claims(5).unwrap();
        assert_eq!((found.held, found.unread), (vec![claim(1)], vec![7]));
        let kept: String =
            j.db.query_row("SELECT record FROM unread WHERE id = 7", [], |r| r.get(0))
                .unwrap();
        assert_eq!(kept, "{half");
        assert_eq!(j.claims(6).unwrap().unread, [0; 0], "told once");
    }

    #[test]
    fn who_waits_has_a_row_and_all_of_a_connection_go_in_one_step() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let mut j = Journal::open(&path).unwrap();
        j.put_queue(&QueueChanges {
            waiting: (1..=3).map(claim).collect(),
            ..QueueChanges::default()
        })
        .unwrap();
        // A waiting claim is granted meanwhile: its row changes to a held one.
        j.put(&claim(2)).unwrap();
        j.put_queue(&QueueChanges {
            withdrawn: vec![1, 2],
            ..QueueChanges::default()
        })
        .unwrap();
        drop(j);
        let found = Journal::open(&path).unwrap().claims(0).unwrap();
        assert_eq!(
            (found.held, found.waiting),
            (vec![claim(2)], vec![claim(3)])
        );
    }

    #[test]
    fn a_newer_file_is_read_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let j = Journal::open(&path).unwrap();
        assert_eq!(j.newer(), None);
        j.put(&claim(1)).unwrap();
        j.db.pragma_update(None, "user_version", 99).unwrap();
        drop(j);
        let mut newer = Journal::open(&path).unwrap();
        assert!(newer.newer().unwrap().contains("format 99"));
        assert_eq!(newer.claims(0).unwrap().held, [claim(1)]);
        newer.end(&claim(1), 9, "released", None, None).unwrap();
        drop(newer);
        assert_eq!(
            Journal::open(&path).unwrap().claims(0).unwrap().held,
            [claim(1)]
        );
    }

    #[test]
    fn a_file_that_is_no_database_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let junk = dir.path().join("junk");
        std::fs::write(
            &junk,
            "this is no database at all, but long enough to be looked at".repeat(20),
        )
        .unwrap();
        assert!(matches!(
            Journal::open(&junk),
            Err(JournalError::Open { .. })
        ));
    }

    #[test]
    fn the_log_is_folded_by_the_thread_and_not_by_a_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        let mut journal = Journal::begin(&path).unwrap();
        let size = || path.metadata().unwrap().len();
        let before = size();
        let long = "x".repeat(10_000);
        for n in 0..600 {
            journal.set_meta(&n.to_string(), &long).unwrap();
        }
        assert_eq!(
            size(),
            before,
            "more than SQLite's own 1,000 pages, in the log only"
        );
        journal.fold();
        for _ in 0..500 {
            if size() > before + 6_000_000 {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(size() > before + 6_000_000, "{}", size());
        // A clean end leaves one file.
        drop(journal);
        assert!(!path.with_extension("db-wal").exists());
    }
}
