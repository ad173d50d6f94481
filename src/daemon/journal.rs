//! What must survive the service: granted claims, learnt context overheads, and the record of ended
//! claims. One SQLite file in WAL mode; a claim is written before anything is done for it.

mod admin;
mod health;
mod holding;
mod memory;
mod story;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gshare_proto::{ClaimSpec, KernelSpec};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

pub(crate) use admin::{DrainRecord, QuotaRecord};
pub(crate) use holding::{HeldRecord, HoldingRecord, ParkedRecord};
pub(crate) use memory::MemoryRecord;

/// Why the journal failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    /// It could not be opened.
    #[error("cannot open the journal {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: rusqlite::Error,
    },
    /// It was written by a newer gshare.
    #[error(
        "the journal has format {found}, this gshare knows up to {known}; start the newer gshare, or move the file away"
    )]
    Newer {
        /// In the file.
        found: i64,
        /// Known here.
        known: i64,
    },
    /// A statement failed: a full disk, a damaged file.
    #[error("cannot use the journal: {0}")]
    Sql(rusqlite::Error),
    /// A record could not be turned into text or back.
    #[error("a record of the journal is damaged")]
    Record(#[from] serde_json::Error),
}

// Its cause stands in its own text, so that every line of the log has it; as a source it would be told twice.
impl From<rusqlite::Error> for JournalError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

/// A claim's part of one GPU, as journaled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SliceRecord {
    /// UUID of the GPU.
    pub(crate) uuid: String,
    /// Ties the usage page to this grant.
    pub(crate) token: u64,
    /// Guaranteed bytes.
    pub(crate) mem: u64,
    /// Most bytes.
    pub(crate) mem_limit: u64,
    /// Guaranteed SMs in thousandths.
    pub(crate) sm_milli: u32,
    /// Most SMs in thousandths.
    pub(crate) sm_limit_milli: u32,
    /// How the claim holds it.
    #[serde(default)]
    pub(crate) held: HeldRecord,
}

/// A process for good: pids are used again, the pair is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    /// Process id.
    pub(crate) pid: i32,
    /// Start in clock ticks since boot.
    pub(crate) start_ticks: u64,
}

/// A granted claim, as journaled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimRecord {
    /// Number.
    pub(crate) id: u64,
    /// Owner.
    pub(crate) uid: u32,
    /// Name given by the user.
    pub(crate) name: Option<String>,
    /// Project.
    pub(crate) project: String,
    /// Class.
    pub(crate) class: String,
    /// Command line.
    pub(crate) command: Vec<String>,
    /// Working directory.
    pub(crate) cwd: Option<String>,
    /// Outlives its command.
    pub(crate) hold: bool,
    /// Granted, Unix milliseconds.
    pub(crate) granted_ms: u64,
    /// Lease end, Unix milliseconds.
    pub(crate) ends_ms: Option<u64>,
    /// The command; absent for a held claim without one.
    pub(crate) process: Option<ProcessRecord>,
    /// Processes that joined later (used without cgroups, where descent says who is a member).
    #[serde(default)]
    pub(crate) joined: Vec<ProcessRecord>,
    /// Its GPUs.
    pub(crate) slices: Vec<SliceRecord>,
    /// The cgroup of the service that the command is the main process of, where the claim lives in it.
    #[serde(default)]
    pub(crate) lodging: Option<PathBuf>,
    /// Its commands are started by the launcher.
    #[serde(default)]
    pub(crate) strict: bool,
    /// It is being ended, and why: a restarted service goes on with that.
    #[serde(default)]
    pub(crate) ending: Option<String>,
    /// And all its processes with it.
    #[serde(default)]
    pub(crate) kill_all: bool,
    /// Its command ran before it was claimed: nobody counts what that process uses.
    #[serde(default)]
    pub(crate) adopted: bool,
    /// The cgroup that an adopted or uncapped process was found in, from the top.
    #[serde(default)]
    pub(crate) place: Option<String>,
    /// A process outside claims that is accounted as a claim: it holds nothing and has no cap.
    #[serde(default)]
    pub(crate) uncapped: bool,
    /// UUIDs of the GPUs that it may use; none named: any.
    #[serde(default)]
    pub(crate) only: Vec<String>,
    /// Where it is.
    #[serde(default)]
    pub(crate) holding: HoldingRecord,
    /// Its command may be ended and started anew.
    #[serde(default)]
    pub(crate) requeue: bool,
    /// It is being ended for that.
    #[serde(default)]
    pub(crate) requeued: bool,
    /// Thousandths of the SMs that it asked for, while its share is lowered.
    #[serde(default)]
    pub(crate) sm_full: Option<u32>,
    /// It stays on the GPUs where it started.
    #[serde(default)]
    pub(crate) no_move: bool,
    /// Its command was asked to end because its lease was over.
    #[serde(default)]
    pub(crate) stopped: bool,
    /// Programs of it were, whether its command was or not.
    #[serde(default)]
    pub(crate) told: bool,
    /// How its GPUs are to be shared; none named: in any way.
    #[serde(default)]
    pub(crate) mode: Option<String>,
    /// What it asks for when a program first needs the GPU.
    #[serde(default)]
    pub(crate) lazy: Option<Box<ClaimSpec>>,
    /// The service said its size.
    #[serde(default)]
    pub(crate) auto: bool,
    /// The notebook's kernel that is its command.
    #[serde(default)]
    pub(crate) kernel: Option<KernelSpec>,
}

impl ClaimRecord {
    /// Whether the same process asks for the same once more, as a client does that lost its connection.
    pub(crate) fn asks_as(&self, other: &Self) -> bool {
        let asked = |r: &Self| {
            (
                r.process,
                r.uid,
                r.name.clone(),
                r.project.clone(),
                r.class.clone(),
                r.command.clone(),
                r.cwd.clone(),
                r.hold,
            )
        };
        self.process.is_some() && asked(self) == asked(other)
    }
}

/// A point of a GPU's history: means over the ten seconds before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleRecord {
    /// When, Unix milliseconds.
    pub(crate) at_ms: u64,
    /// UUID of the GPU.
    pub(crate) uuid: String,
    /// SM activity, or time busy where the GPU does not count it, in percent.
    pub(crate) activity: Option<f32>,
    /// Bytes in use by everybody.
    pub(crate) used_bytes: Option<u64>,
    /// Bytes that claims requested.
    pub(crate) claimed_bytes: u64,
}

const FORMAT: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS claim (id INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS ended (
    id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, ended_ms INTEGER NOT NULL, cause TEXT NOT NULL,
    peak_bytes INTEGER, launches INTEGER, record TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS overhead (
    model TEXT NOT NULL, driver TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (model, driver)) STRICT;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
";

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    db: Connection,
}

impl Journal {
    /// Opens or creates the file.
    pub(crate) fn open(path: &Path) -> Result<Self, JournalError> {
        let open = |source| JournalError::Open {
            path: path.to_owned(),
            source,
        };
        let db = Connection::open(path).map_err(open)?;
        // Others may pass through the directory; SQLite gives the files beside it the same mode.
        let own = std::fs::Permissions::from_mode(0o600);
        if let Err(error) = std::fs::set_permissions(path, own) {
            tracing::warn!(%error, "the journal keeps the mode that it has");
        }
        db.busy_timeout(Duration::from_secs(2)).map_err(open)?;
        // WAL with synchronous = NORMAL loses nothing when the process is killed, and no fsync stands in
        // the way of a claim.
        db.pragma_update(None, "journal_mode", "WAL")
            .map_err(open)?;
        db.pragma_update(None, "synchronous", "NORMAL")
            .map_err(open)?;
        let found: i64 = db
            .query_row("PRAGMA user_version", [], |r| r.get(0))
            .map_err(open)?;
        if found > FORMAT {
            return Err(JournalError::Newer {
                found,
                known: FORMAT,
            });
        }
        db.execute_batch(SCHEMA).map_err(open)?;
        db.execute_batch(admin::SCHEMA).map_err(open)?;
        db.execute_batch(health::SCHEMA).map_err(open)?;
        db.execute_batch(story::SCHEMA).map_err(open)?;
        db.pragma_update(None, "user_version", FORMAT)
            .map_err(open)?;
        Ok(Self { db })
    }

    /// Writes a claim (new or changed).
    pub(crate) fn put(&self, claim: &ClaimRecord) -> Result<(), JournalError> {
        let text = serde_json::to_string(claim)?;
        self.db
            .prepare_cached("INSERT OR REPLACE INTO claim (id, record) VALUES (?1, ?2)")?
            .execute(params![signed(claim.id), text])?;
        Ok(())
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
        let text = serde_json::to_string(claim)?;
        let tx = self.db.transaction()?;
        tx.prepare_cached("DELETE FROM claim WHERE id = ?1")?
            .execute([signed(claim.id)])?;
        tx.prepare_cached(
            "INSERT OR REPLACE INTO ended (id, uid, ended_ms, cause, peak_bytes, launches, record)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            signed(claim.id),
            claim.uid,
            signed(ended_ms),
            cause,
            peak_bytes.map(signed),
            launches.map(signed),
            text
        ])?;
        tx.commit()?;
        Ok(())
    }

    /// All claims that were held when the last service stopped. Damaged records are left out and counted.
    pub(crate) fn claims(&self) -> Result<(Vec<ClaimRecord>, usize), JournalError> {
        let mut rows = self.db.prepare("SELECT record FROM claim ORDER BY id")?;
        let texts: Vec<String> = rows
            .query_map([], |r| r.get(0))?
            .collect::<Result<_, _>>()?;
        let total = texts.len();
        let claims: Vec<ClaimRecord> = texts
            .iter()
            .filter_map(|t| serde_json::from_str(t).ok())
            .collect();
        let damaged = total - claims.len();
        Ok((claims, damaged))
    }

    /// Processes outside claims that were accounted and have ended since a moment, the last first: when, and
    /// what is known of them.
    pub(crate) fn uncapped_since(
        &self,
        from_ms: u64,
    ) -> Result<Vec<(u64, ClaimRecord)>, JournalError> {
        let mut rows = self.db.prepare(
            "SELECT ended_ms, record FROM ended
             WHERE ended_ms >= ?1 AND json_extract(record, '$.uncapped') = 1
             ORDER BY ended_ms DESC LIMIT 1000",
        )?;
        let found: Vec<(i64, String)> = rows
            .query_map([signed(from_ms)], |r| Ok((r.get(0)?, r.get(1)?)))?
            .collect::<Result<_, _>>()?;
        let read = |(at, text): (i64, String)| {
            Some((at.unsigned_abs(), serde_json::from_str(&text).ok()?))
        };
        Ok(found.into_iter().filter_map(read).collect())
    }

    /// A number above every id that was ever granted, or told to somebody who waited.
    pub(crate) fn next_id(&self) -> Result<u64, JournalError> {
        let told = self.meta("told")?.and_then(|t| t.parse::<u64>().ok());
        let highest: i64 = self.db.query_row(
            "SELECT max(coalesce((SELECT max(id) FROM claim), 0), coalesce((SELECT max(id) FROM ended), 0))",
            [],
            |r| r.get(0),
        )?;
        Ok(highest
            .unsigned_abs()
            .max(told.unwrap_or(0))
            .saturating_add(1))
    }

    /// Learnt bytes that a context costs on a model under a driver.
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

    /// Records what a context costs.
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

    /// Points of the GPUs that older versions kept here, oldest first.
    pub(crate) fn samples(&self) -> Result<Vec<SampleRecord>, JournalError> {
        if !self.has_samples()? {
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

    /// They are kept elsewhere now.
    pub(crate) fn forget_samples(&self) -> Result<(), JournalError> {
        self.db.execute_batch("DROP TABLE IF EXISTS sample")?;
        Ok(())
    }

    fn has_samples(&self) -> Result<bool, JournalError> {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'sample'";
        let tables: i64 = self.db.query_row(sql, [], |r| r.get(0))?;
        Ok(tables > 0)
    }

    /// A word remembered under a key.
    pub(crate) fn meta(&self, key: &str) -> Result<Option<String>, JournalError> {
        Ok(self
            .db
            .query_row("SELECT value FROM meta WHERE key = ?1", [key], |r| r.get(0))
            .optional()?)
    }

    /// Whether it takes anything.
    pub(crate) fn try_out(&self) -> Result<(), JournalError> {
        self.set_meta("tried", "")
    }

    /// Remembers a word under a key.
    pub(crate) fn set_meta(&self, key: &str, value: &str) -> Result<(), JournalError> {
        self.db.execute(
            "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)",
            [key, value],
        )?;
        Ok(())
    }
}

/// SQLite integers are signed; no figure here comes near the top bit.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: u64) -> ClaimRecord {
        ClaimRecord {
            id,
            uid: 1000,
            name: Some("n".into()),
            project: "p".into(),
            class: "batch".into(),
            command: vec!["true".into()],
            cwd: None,
            hold: false,
            granted_ms: 5,
            ends_ms: None,
            process: Some(ProcessRecord {
                pid: 1,
                start_ticks: 2,
            }),
            joined: Vec::new(),
            strict: false,
            slices: vec![SliceRecord {
                uuid: "GPU-x".into(),
                token: u64::MAX,
                mem: 1,
                mem_limit: 2,
                sm_milli: 3,
                sm_limit_milli: 4,
                held: HeldRecord::Timeslice,
            }],
            lodging: None,
            ending: None,
            kill_all: false,
            adopted: false,
            uncapped: false,
            place: None,
            only: Vec::new(),
            holding: HoldingRecord::Here,
            requeue: false,
            requeued: false,
            sm_full: None,
            no_move: false,
            stopped: false,
            told: false,
            mode: None,
            lazy: None,
            auto: false,
            kernel: None,
        }
    }

    #[test]
    fn claims_survive_reopening_and_ids_are_never_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        {
            let mut j = Journal::open(&path).unwrap();
            assert_eq!(j.next_id().unwrap(), 1);
            j.put(&claim(1)).unwrap();
            j.put(&claim(2)).unwrap();
            j.end(&claim(2), 9, "command exited", Some(7), None)
                .unwrap();
            j.learn_overhead("m", "580", 300).unwrap();
        }
        let j = Journal::open(&path).unwrap();
        assert_eq!(j.claims().unwrap(), (vec![claim(1)], 0));
        assert_eq!(j.next_id().unwrap(), 3);
        assert_eq!(j.overhead("m", "580").unwrap(), Some(300));
        assert_eq!(j.overhead("m", "590").unwrap(), None);
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
    fn a_damaged_record_does_not_lose_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let j = Journal::open(&dir.path().join("db")).unwrap();
        j.put(&claim(1)).unwrap();
        j.db.execute("INSERT INTO claim VALUES (7, '{half')", [])
            .unwrap();
        assert_eq!(j.claims().unwrap(), (vec![claim(1)], 1));
    }

    #[test]
    fn a_newer_format_and_a_file_that_is_no_database_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        Journal::open(&path)
            .unwrap()
            .db
            .pragma_update(None, "user_version", 99)
            .unwrap();
        assert!(matches!(
            Journal::open(&path),
            Err(JournalError::Newer { found: 99, .. })
        ));
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
}
