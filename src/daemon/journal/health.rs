//! Errors of GPUs, until an administrator reports the repair or the machine restarts.

use gshare_core::Quota;
use rusqlite::{Connection, params};

use super::admin::{DrainRecord, put_quota, remove_quota};
use super::file::{Journal, JournalError, put_meta, signed};

/// A journaled error of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XidRecord {
    pub(crate) uuid: String,
    /// When, Unix milliseconds.
    pub(crate) at_ms: u64,
    /// Its number.
    pub(crate) code: u64,
    /// The process that it names.
    pub(crate) pid: Option<u32>,
    /// `nvml` or `kernel log`.
    pub(crate) source: String,
}

/// A record that a feature wants to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// An error of a GPU.
    AddXid(XidRecord),
    /// Errors of a GPU are over: one kind, or all.
    ForgetXids {
        uuid: String,
        /// Number of the kind.
        code: Option<u64>,
    },
    /// A value to be stored under a key.
    Meta(String, String),
    /// A GPU is drained.
    Drain(DrainRecord),
    /// A GPU, named by its lasting name, is drained no longer.
    Undrain(String),
    /// An administrator has set a guarantee.
    Quota(Quota),
    /// The guarantee of this party is removed.
    NoQuota(String),
}

impl Store {
    /// Whether it is an observation; everything else is a decision.
    pub(crate) fn is_seen(&self) -> bool {
        matches!(self, Self::AddXid(_) | Self::ForgetXids { .. })
    }

    /// Writes a decision, as part of a transaction. Errors of GPUs are not decisions.
    pub(crate) fn put(&self, db: &Connection) -> Result<(), JournalError> {
        match self {
            Self::Meta(key, value) => put_meta(db, key, value),
            Self::Drain(drain) => drain.put(db),
            Self::Undrain(name) => DrainRecord::remove(db, name),
            Self::Quota(quota) => put_quota(db, quota),
            Self::NoQuota(party) => remove_quota(db, party),
            Self::AddXid(_) | Self::ForgetXids { .. } => Ok(()),
        }
    }
}

pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS xid (
    boot TEXT NOT NULL, uuid TEXT NOT NULL, at_ms INTEGER NOT NULL, code INTEGER NOT NULL, pid INTEGER,
    source TEXT NOT NULL, mended INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE INDEX IF NOT EXISTS xid_gpu ON xid (uuid, at_ms);
";

impl Journal {
    /// Writes all of it, or nothing. `boot` identifies the present boot.
    pub(crate) fn store(&self, boot: &str, all: &[Store]) -> Result<(), JournalError> {
        let together = self.db.unchecked_transaction()?;
        for one in all {
            match one {
                Store::AddXid(xid) => add_xid(self, boot, xid)?,
                Store::ForgetXids { uuid, code } => forget_xids(self, uuid, *code)?,
                word => word.put(&self.db)?,
            }
        }
        Ok(together.commit()?)
    }

    /// Errors since this boot that are not repaired, oldest first.
    pub(crate) fn xids(&self, boot: &str, from_ms: u64) -> Result<Vec<XidRecord>, JournalError> {
        let mut rows = self.db.prepare(
            "SELECT uuid, at_ms, code, pid, source FROM xid
             WHERE boot = ?1 AND at_ms >= ?2 AND mended = 0 ORDER BY at_ms, rowid",
        )?;
        let xid = |r: &rusqlite::Row<'_>| {
            let (at, code): (i64, i64) = (r.get(1)?, r.get(2)?);
            Ok(XidRecord {
                uuid: r.get(0)?,
                at_ms: at.unsigned_abs(),
                code: code.unsigned_abs(),
                pid: r.get(3)?,
                source: r.get(4)?,
            })
        };
        Ok(rows
            .query_map(params![boot, signed(from_ms)], xid)?
            .collect::<Result<_, _>>()?)
    }
}

fn forget_xids(journal: &Journal, uuid: &str, code: Option<u64>) -> Result<(), JournalError> {
    journal.db.execute(
        "UPDATE xid SET mended = 1 WHERE uuid = ?1 AND code = ifnull(?2, code)",
        params![uuid, code.map(signed)],
    )?;
    Ok(())
}

fn add_xid(journal: &Journal, boot: &str, xid: &XidRecord) -> Result<(), JournalError> {
    journal.db
        .prepare_cached("INSERT INTO xid (boot, uuid, at_ms, code, pid, source) VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![boot, xid.uuid, signed(xid.at_ms), signed(xid.code), xid.pid, xid.source])?;
    // A failing GPU may report errors for weeks.
    journal
        .db
        .prepare_cached(
            "DELETE FROM xid WHERE uuid = ?1 AND at_ms <
                 (SELECT at_ms FROM xid WHERE uuid = ?1 ORDER BY at_ms DESC LIMIT 1 OFFSET 1000)",
        )?
        .execute([&xid.uuid])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_hold_until_they_are_mended_or_the_machine_was_restarted() {
        let dir = tempfile::tempdir().unwrap();
        let j = Journal::open(&dir.path().join("db")).unwrap();
        let xid = |uuid: &str, at_ms| XidRecord {
            uuid: uuid.to_owned(),
            at_ms,
            code: 79,
            pid: Some(4),
            source: "nvml".to_owned(),
        };
        let both = [xid("GPU-a", 5), xid("GPU-b", 6)].map(Store::AddXid);
        j.store("boot-1", &both).unwrap();
        assert_eq!(
            j.xids("boot-1", 0).unwrap(),
            [xid("GPU-a", 5), xid("GPU-b", 6)]
        );
        assert_eq!(j.xids("boot-2", 0).unwrap(), []);
        let forget = |uuid: &str, code| Store::ForgetXids {
            uuid: uuid.to_owned(),
            code,
        };
        let over = [forget("GPU-a", None), forget("GPU-b", Some(80))];
        j.store("boot-1", &over).unwrap();
        assert_eq!(j.xids("boot-1", 0).unwrap(), [xid("GPU-b", 6)]);
        assert_eq!(j.xids("boot-1", 7).unwrap(), []);
    }
}
