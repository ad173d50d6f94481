//! Administrators' decisions, and the audit log: a decision and its entry are one transaction.

use gshare_core::quota::PartyError;
use gshare_core::{Quota, Share};
use gshare_proto::AuditEntry;
use rusqlite::{Connection, Transaction, params};

use super::file::{Journal, JournalError, signed};

/// Entries of the audit log can be added, never changed or removed.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, uid INTEGER NOT NULL, user TEXT NOT NULL,
    action TEXT NOT NULL, target TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL, reason TEXT) STRICT;
CREATE TRIGGER IF NOT EXISTS audit_stays BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log only grows'); END;
CREATE TRIGGER IF NOT EXISTS audit_stays_whole BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log only grows'); END;
CREATE TABLE IF NOT EXISTS drain (
    uuid TEXT PRIMARY KEY, since_ms INTEGER NOT NULL, by TEXT NOT NULL, reason TEXT) STRICT;
CREATE TABLE IF NOT EXISTS quota (
    party TEXT PRIMARY KEY, gpus_milli INTEGER, weight_milli INTEGER, max_milli INTEGER) STRICT;
";

/// A drained GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrainRecord {
    pub(crate) uuid: String,
    /// Since when, Unix milliseconds.
    pub(crate) since_ms: u64,
    /// Name of the administrator.
    pub(crate) by: String,
    pub(crate) reason: Option<String>,
}

impl Journal {
    /// Applies an administrator's decision to the journal together with its entries in the audit log.
    pub(crate) fn audited(
        &mut self,
        entries: &[AuditEntry],
        change: impl FnOnce(&Transaction<'_>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let tx = self.db.transaction()?;
        change(&tx)?;
        for entry in entries {
            tx.prepare_cached(
                "INSERT INTO audit (at_ms, uid, user, action, target, before, after, reason)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                signed(entry.at_ms),
                entry.uid,
                entry.user,
                entry.action,
                entry.target,
                entry.before,
                entry.after,
                entry.reason
            ])?;
        }
        tx.commit()?;
        Ok(())
    }

    /// The newest entries of the audit log, oldest first.
    pub(crate) fn audit_log(&self, last: u32) -> Result<Vec<AuditEntry>, JournalError> {
        let mut rows = self.db.prepare(
            "SELECT seq, at_ms, uid, user, action, target, before, after, reason FROM audit
             ORDER BY seq DESC LIMIT ?1",
        )?;
        let entry = |r: &rusqlite::Row<'_>| {
            let (seq, at): (i64, i64) = (r.get(0)?, r.get(1)?);
            Ok(AuditEntry {
                seq: seq.unsigned_abs(),
                at_ms: at.unsigned_abs(),
                uid: r.get(2)?,
                user: r.get(3)?,
                action: r.get(4)?,
                target: r.get(5)?,
                before: r.get(6)?,
                after: r.get(7)?,
                reason: r.get(8)?,
            })
        };
        let mut entries: Vec<AuditEntry> =
            rows.query_map([last], entry)?.collect::<Result<_, _>>()?;
        entries.reverse();
        Ok(entries)
    }

    /// The guarantees that administrators set; an error where the party cannot be read.
    pub(crate) fn quotas(&self) -> Result<Vec<Result<Quota, PartyError>>, JournalError> {
        let mut rows = self.db.prepare(
            "SELECT party, gpus_milli, weight_milli, max_milli FROM quota ORDER BY party",
        )?;
        let quota = |r: &rusqlite::Row<'_>| {
            let (gpus, max): (Option<u32>, Option<u32>) = (r.get(1)?, r.get(3)?);
            let weight_milli = r.get(2)?;
            Ok(r.get::<_, String>(0)?.parse().map(|party| Quota {
                party,
                gpus: gpus.map(Share::from_milli),
                weight_milli,
                max: max.map(Share::from_milli),
            }))
        };
        Ok(rows.query_map([], quota)?.collect::<Result<_, _>>()?)
    }

    pub(crate) fn drains(&self) -> Result<Vec<DrainRecord>, JournalError> {
        let mut rows = self
            .db
            .prepare("SELECT uuid, since_ms, by, reason FROM drain ORDER BY uuid")?;
        let record = |r: &rusqlite::Row<'_>| {
            let since: i64 = r.get(1)?;
            Ok(DrainRecord {
                uuid: r.get(0)?,
                since_ms: since.unsigned_abs(),
                by: r.get(2)?,
                reason: r.get(3)?,
            })
        };
        Ok(rows.query_map([], record)?.collect::<Result<_, _>>()?)
    }
}

/// Inserts or replaces a guarantee.
pub(super) fn put_quota(tx: &Connection, quota: &Quota) -> Result<(), JournalError> {
    let party = quota.party.to_string();
    let (gpus, max) = (quota.gpus.map(Share::milli), quota.max.map(Share::milli));
    tx.execute(
        "INSERT OR REPLACE INTO quota (party, gpus_milli, weight_milli, max_milli) VALUES (?1, ?2, ?3, ?4)",
        params![party, gpus, quota.weight_milli, max],
    )?;
    Ok(())
}

/// Deletes that of a party.
pub(super) fn remove_quota(tx: &Connection, party: &str) -> Result<(), JournalError> {
    tx.execute("DELETE FROM quota WHERE party = ?1", [party])?;
    Ok(())
}

impl DrainRecord {
    /// Inserts or replaces it.
    pub(crate) fn put(&self, tx: &Connection) -> Result<(), JournalError> {
        tx.execute(
            "INSERT OR REPLACE INTO drain (uuid, since_ms, by, reason) VALUES (?1, ?2, ?3, ?4)",
            params![self.uuid, signed(self.since_ms), self.by, self.reason],
        )?;
        Ok(())
    }

    /// Deletes that of a GPU.
    pub(crate) fn remove(tx: &Connection, uuid: &str) -> Result<(), JournalError> {
        tx.execute("DELETE FROM drain WHERE uuid = ?1", [uuid])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(target: &str) -> AuditEntry {
        AuditEntry {
            at_ms: 7,
            uid: 1000,
            user: "ada".into(),
            action: "drain".into(),
            target: target.into(),
            before: "open".into(),
            after: "drained".into(),
            reason: Some("fan".into()),
            ..AuditEntry::default()
        }
    }

    #[test]
    fn the_audit_log_only_grows() {
        let dir = tempfile::tempdir().unwrap();
        let mut j = Journal::open(&dir.path().join("db")).unwrap();
        for n in 0..3 {
            j.audited(&[entry(&n.to_string())], |_| Ok(())).unwrap();
        }
        let seen = j.audit_log(2).unwrap();
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0].seq + 1, seen[1].seq);
        assert_eq!((seen[1].target.as_str(), seen[1].uid), ("2", 1000));
        for change in ["DELETE FROM audit", "UPDATE audit SET uid = 0"] {
            let error = j.db.execute(change, []).unwrap_err().to_string();
            assert!(error.contains("only grows"), "{error}");
        }
        assert_eq!(j.audit_log(9).unwrap().len(), 3);
    }

    #[test]
    fn a_decision_and_its_entry_are_written_together_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let mut j = Journal::open(&dir.path().join("db")).unwrap();
        let drain = DrainRecord {
            uuid: "GPU-x".into(),
            since_ms: 5,
            by: "ada".into(),
            reason: None,
        };
        let failed = j.audited(&[entry("x")], |tx| {
            drain.put(tx)?;
            tx.execute("no such statement", [])?;
            Ok(())
        });
        assert!(failed.is_err());
        assert_eq!(j.drains().unwrap(), []);
        assert_eq!(j.audit_log(9).unwrap(), []);
        j.audited(&[entry("x")], |tx| drain.put(tx)).unwrap();
        assert_eq!(j.drains().unwrap(), [drain]);
        j.audited(&[entry("x")], |tx| DrainRecord::remove(tx, "GPU-x"))
            .unwrap();
        assert_eq!(j.drains().unwrap(), []);
        assert_eq!(j.audit_log(9).unwrap().len(), 2);
    }
}
