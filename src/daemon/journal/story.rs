//! What happened to each claim, for `gshare log`, and what users held lately.

use gshare_core::ClaimId;
use rusqlite::params;

use super::{ClaimRecord, Journal, JournalError, signed};

pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS event (at_ms INTEGER NOT NULL, claim INTEGER NOT NULL, text TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS event_claim ON event (claim, at_ms);
";

impl Journal {
    /// Adds something that happened to a claim.
    pub(crate) fn add_event(
        &self,
        at_ms: u64,
        id: ClaimId,
        text: &str,
    ) -> Result<(), JournalError> {
        self.db
            .prepare_cached("INSERT INTO event (at_ms, claim, text) VALUES (?1, ?2, ?3)")?
            .execute(params![signed(at_ms), signed(id.0), text])?;
        Ok(())
    }

    /// What happened to a claim, oldest first.
    pub(crate) fn events(&self, id: ClaimId) -> Result<Vec<(u64, String)>, JournalError> {
        let mut rows = self.db.prepare_cached(
            "SELECT at_ms, text FROM event WHERE claim = ?1 ORDER BY at_ms, rowid",
        )?;
        let event = |r: &rusqlite::Row<'_>| {
            let at: i64 = r.get(0)?;
            Ok((at.unsigned_abs(), r.get(1)?))
        };
        Ok(rows
            .query_map([signed(id.0)], event)?
            .collect::<Result<_, _>>()?)
    }

    /// Forgets what happened before a moment.
    pub(crate) fn forget_events(&self, before_ms: u64) -> Result<(), JournalError> {
        self.db
            .execute("DELETE FROM event WHERE at_ms < ?1", [signed(before_ms)])?;
        Ok(())
    }

    /// Claims of a user that ended since a moment and whose command was the process of this number, the last
    /// first.
    pub(crate) fn ended_of(
        &self,
        uid: u32,
        pid: u32,
        from_ms: u64,
    ) -> Result<Vec<ClaimRecord>, JournalError> {
        let mut rows = self.db.prepare(
            "SELECT record FROM ended WHERE ended_ms >= ?1 AND uid = ?2
             AND json_extract(record, '$.process.pid') = ?3 ORDER BY ended_ms DESC LIMIT 8",
        )?;
        let found: Vec<String> = rows
            .query_map(rusqlite::params![signed(from_ms), uid, pid], |r| r.get(0))?
            .collect::<Result<_, _>>()?;
        let read = |text: String| serde_json::from_str(&text).ok();
        Ok(found.into_iter().filter_map(read).collect())
    }

    /// Claims that ended since a moment, and when. Damaged records are left out.
    pub(crate) fn ended_since(
        &self,
        from_ms: u64,
    ) -> Result<Vec<(ClaimRecord, u64)>, JournalError> {
        let mut rows = self
            .db
            .prepare("SELECT record, ended_ms FROM ended WHERE ended_ms >= ?1")?;
        let row = |r: &rusqlite::Row<'_>| {
            let (text, at): (String, i64) = (r.get(0)?, r.get(1)?);
            Ok((text, at.unsigned_abs()))
        };
        let found: Vec<(String, u64)> = rows
            .query_map([signed(from_ms)], row)?
            .collect::<Result<_, _>>()?;
        Ok(found
            .into_iter()
            .filter_map(|(text, at)| Some((serde_json::from_str(&text).ok()?, at)))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_kept_in_order_by_claim_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let j = Journal::open(&dir.path().join("db")).unwrap();
        for (at, id, text) in [(5, 1, "waits"), (7, 2, "other"), (9, 1, "granted")] {
            j.add_event(at, ClaimId(id), text).unwrap();
        }
        let told = |id| j.events(ClaimId(id)).unwrap();
        assert_eq!(
            told(1),
            [(5, "waits".to_owned()), (9, "granted".to_owned())]
        );
        assert_eq!(told(3), []);
        j.forget_events(9).unwrap();
        assert_eq!(told(1), [(9, "granted".to_owned())]);
    }
}
