//! The history's file: one SQLite database with three tables of sums (ten seconds, a minute, an hour), each rolled up
//! from the finer one in the transaction that ends its step. One thread has it open.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::sum::{Key, STEP_S, Step, Sum};

/// A table of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// Name of the table.
    pub(crate) table: &'static str,
    /// Seconds of a step.
    pub(crate) step: i64,
    /// Seconds for which steps are kept.
    pub(crate) kept: i64,
    /// Name of its mark: the time up to which it is rolled up.
    mark: &'static str,
}

const DAY: i64 = 86_400;

/// From fine to coarse.
pub(crate) const LEVELS: [Level; 3] = [
    Level {
        table: "ten",
        step: STEP_S,
        kept: DAY,
        mark: "",
    },
    Level {
        table: "minute",
        step: 60,
        kept: 31 * DAY,
        mark: "minute",
    },
    Level {
        table: "hour",
        step: 3600,
        kept: 2 * 365 * DAY,
        mark: "hour",
    },
];

/// After this time sums are kept without user and claim, and run records are deleted. Its mark is the time up to
/// which that is done.
const NAMED: Level = Level {
    table: "hour",
    step: 3600,
    kept: 90 * DAY,
    mark: "named",
};
/// Owner of sums without a user.
pub(crate) const NOBODY: u32 = u32::MAX;

/// 2 added `mem_borrowed`, which is unknown in older rows; 3 added `private`.
const FORMAT: i64 = 3;

/// The columns of sums in the order of [`values`].
pub(super) const COLUMNS: [&str; 18] = [
    "looked",
    "claimed",
    "used",
    "used_known",
    "used_s",
    "estimate",
    "busy",
    "mem_claimed",
    "mem_used",
    "borrowed",
    "throttled",
    "waited",
    "idle_off",
    "idle_kernel",
    "idle_cpu",
    "idle_io",
    "idle_other",
    "mem_borrowed",
];
/// Columns that may be unknown.
const UNKNOWN: [&str; 4] = ["used", "busy", "mem_used", "mem_borrowed"];

fn schema() -> String {
    let columns: Vec<String> = COLUMNS
        .iter()
        .map(|c| {
            let null = if UNKNOWN.contains(c) { "" } else { " NOT NULL" };
            format!("{c} INTEGER{null}")
        })
        .collect();
    let table = |level: &Level| {
        format!(
            "CREATE TABLE IF NOT EXISTS {} (at INTEGER NOT NULL, series INTEGER NOT NULL, {}, \
             PRIMARY KEY (at, series)) STRICT, WITHOUT ROWID;",
            level.table,
            columns.join(", ")
        )
    };
    let tables: Vec<String> = LEVELS.iter().map(table).collect();
    format!(
        "CREATE TABLE IF NOT EXISTS series (
             id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, claim INTEGER NOT NULL, uid INTEGER NOT NULL,
             gpu TEXT NOT NULL, UNIQUE (kind, claim, uid, gpu)) STRICT;
         CREATE TABLE IF NOT EXISTS face (
             claim INTEGER PRIMARY KEY, uid INTEGER NOT NULL, since_ms INTEGER NOT NULL, project TEXT NOT NULL,
             what TEXT NOT NULL, notebook TEXT, source TEXT, private INTEGER NOT NULL DEFAULT 0) STRICT;
         CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
         {}",
        tables.join("\n")
    )
}

/// A claim's name in reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimFace {
    pub(crate) claim: u64,
    pub(crate) uid: u32,
    /// Granted, Unix milliseconds.
    pub(crate) since_ms: u64,
    pub(crate) project: String,
    /// The program.
    pub(crate) what: String,
    /// Notebook, and the source of that name.
    pub(crate) notebook: Option<(String, String)>,
    /// Hidden from other users.
    pub(crate) private: bool,
}

/// The open history.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) db: Connection,
    max_bytes: u64,
    series: HashMap<Key, i64>,
    insert: String,
}

/// Shares are stored in thousandths of a GPU second, bytes in MiB seconds: small numbers for SQLite.
const SHARE: f64 = 1000.0;
const MIB: f64 = 1_048_576.0;

fn whole(value: f64, unit: f64) -> i64 {
    (value * unit).round() as i64
}

fn values(sum: &Sum) -> [Option<i64>; 18] {
    let share = |v: f64| Some(whole(v, SHARE));
    let [off, kernel, cpu, io, other] = sum.idle.map(share);
    [
        share(sum.looked),
        share(sum.claimed),
        sum.used.and_then(share),
        share(sum.used_known),
        share(sum.used_s),
        Some(i64::from(sum.estimate)),
        sum.busy.and_then(share),
        Some(whole(sum.mem_claimed, 1.0 / MIB)),
        sum.mem_used.map(|v| whole(v, 1.0 / MIB)),
        share(sum.borrowed),
        share(sum.throttled),
        share(sum.waited),
        off,
        kernel,
        cpu,
        io,
        other,
        sum.mem_borrowed.map(|v| whole(v, 1.0 / MIB)),
    ]
}

/// Reads a sum from the [`COLUMNS`] that begin at `first`.
pub(super) fn read(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Sum> {
    let get = |i: usize| row.get::<_, Option<i64>>(first + i);
    let share = |i: usize| Ok::<_, rusqlite::Error>(get(i)?.map(|v| v as f64 / SHARE));
    let sure = |i: usize| Ok::<_, rusqlite::Error>(share(i)?.unwrap_or(0.0));
    Ok(Sum {
        looked: sure(0)?,
        claimed: sure(1)?,
        used: share(2)?,
        used_known: sure(3)?,
        used_s: sure(4)?,
        estimate: get(5)?.unwrap_or(0) != 0,
        busy: share(6)?,
        mem_claimed: get(7)?.unwrap_or(0) as f64 * MIB,
        mem_used: get(8)?.map(|v| v as f64 * MIB),
        borrowed: sure(9)?,
        throttled: sure(10)?,
        waited: sure(11)?,
        idle: [sure(12)?, sure(13)?, sure(14)?, sure(15)?, sure(16)?],
        mem_borrowed: get(17)?.map(|v| v as f64 * MIB),
    })
}

/// `sum(looked), ..., max(estimate), ...`.
pub(super) fn summed() -> String {
    let column = |c: &&str| match *c {
        "estimate" => "max(estimate)".to_owned(),
        c => format!("sum({c})"),
    };
    COLUMNS.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// Kinds of lines in the file.
pub(super) mod kind {
    pub(in super::super) const MACHINE: i64 = 0;
    pub(in super::super) const GPU: i64 = 1;
    pub(in super::super) const CLAIM: i64 = 2;
    pub(in super::super) const WAIT: i64 = 3;
}

fn fields(key: &Key) -> (i64, i64, i64, &str) {
    match key {
        Key::Machine => (kind::MACHINE, 0, 0, ""),
        Key::Gpu(gpu) => (kind::GPU, 0, 0, gpu),
        Key::Claim { claim, uid, gpu } => (kind::CLAIM, claim.cast_signed(), i64::from(*uid), gpu),
        Key::Wait(uid) => (kind::WAIT, 0, i64::from(*uid), ""),
    }
}

impl Store {
    /// Opens or creates the file. A damaged file is renamed: the service starts without its history.
    ///
    /// # Errors
    ///
    /// When the file can be neither opened nor created, or has a newer format.
    pub(crate) fn open(path: &Path, max_bytes: u64) -> rusqlite::Result<Self> {
        match Self::try_open(path, max_bytes) {
            Err(error) if is_damage(&error) => {
                let aside = path.with_extension("db.damaged");
                tracing::warn!(%error, aside = %aside.display(), "the history is damaged; gshare starts a new one");
                for end in ["-wal", "-shm"] {
                    let mut beside = path.as_os_str().to_owned();
                    beside.push(end);
                    let _ = std::fs::remove_file(beside);
                }
                let _ = std::fs::rename(path, aside);
                Self::try_open(path, max_bytes)
            }
            other => other,
        }
    }

    fn try_open(path: &Path, max_bytes: u64) -> rusqlite::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let db = Connection::open(path)?;
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
        db.busy_timeout(Duration::from_secs(2))?;
        let found: i64 = db.query_row("PRAGMA user_version", [], |r| r.get(0))?;
        if found > FORMAT {
            return Err(rusqlite::Error::InvalidParameterName(format!(
                "the history has format {found}, this gshare knows up to {FORMAT}"
            )));
        }
        if found == 0 {
            // Free pages are returned to the file system.
            db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        db.pragma_update(None, "journal_mode", "WAL")?;
        // A killed process loses nothing; a power failure may lose the last minutes.
        db.pragma_update(None, "synchronous", "NORMAL")?;
        // Keep the service small: one MiB of pages is enough for writing.
        db.pragma_update(None, "cache_size", -1024)?;
        if found == 1 {
            for level in &LEVELS {
                let table = level.table;
                db.execute_batch(&format!(
                    "ALTER TABLE {table} ADD COLUMN mem_borrowed INTEGER"
                ))?;
            }
        }
        if matches!(found, 1 | 2) {
            db.execute_batch("ALTER TABLE face ADD COLUMN private INTEGER NOT NULL DEFAULT 0")?;
        }
        db.execute_batch(&schema())?;
        db.execute_batch(super::runs::SCHEMA)?;
        db.pragma_update(None, "user_version", FORMAT)?;
        let names = COLUMNS.join(", ");
        let places: Vec<String> = (3..3 + COLUMNS.len()).map(|n| format!("?{n}")).collect();
        let add: Vec<String> = COLUMNS
            .iter()
            .map(|c| match *c {
                "estimate" => "estimate = max(estimate, excluded.estimate)".to_owned(),
                c if UNKNOWN.contains(&c) => {
                    format!("{c} = coalesce({c} + excluded.{c}, {c}, excluded.{c})")
                }
                c => format!("{c} = {c} + excluded.{c}"),
            })
            .collect();
        let insert = format!(
            "INSERT INTO ten (at, series, {names}) VALUES (?1, ?2, {}) ON CONFLICT (at, series) DO UPDATE SET {}",
            places.join(", "),
            add.join(", ")
        );
        let mut store = Self {
            db,
            max_bytes,
            series: HashMap::new(),
            insert,
        };
        match super::runs::forget_words(&mut store) {
            // On a full disk the next start does it.
            Err(error) if !is_damage(&error) => {
                tracing::warn!(%error, "the history still has words that an older version stored");
            }
            done => done?,
        }
        Ok(store)
    }

    /// Imports points of an older version, once.
    pub(crate) fn take_over(&mut self, steps: &[Step]) -> rusqlite::Result<()> {
        self.in_transaction(|store| {
            let done: Option<i64> = store
                .db
                .query_row("SELECT value FROM meta WHERE key = 'taken over'", [], |r| {
                    r.get(0)
                })
                .optional()?;
            let new = |step: &&Step| done.is_none_or(|done| step.at > done);
            for step in steps.iter().filter(new) {
                store.write(step)?;
            }
            let last = steps.iter().map(|step| step.at).chain(done).max();
            if let Some(last) = last {
                store.db.execute(
                    "INSERT OR REPLACE INTO meta (key, value) VALUES ('taken over', ?1)",
                    [last],
                )?;
            }
            Ok(())
        })
    }

    /// A GPU's activity since a moment, oldest first: milliseconds, and percent if known.
    pub(crate) fn activity_since(
        &self,
        uuid: &str,
        from_ms: u64,
    ) -> rusqlite::Result<Vec<(u64, Option<f32>)>> {
        let mut rows = self.db.prepare_cached(
            "SELECT at, CASE WHEN used IS NULL THEN 100.0 * busy / looked ELSE 100.0 * used / used_s END
             FROM ten JOIN series s ON s.id = series
             WHERE s.kind = ?1 AND s.gpu = ?2 AND at >= ?3 AND looked > 0 ORDER BY at",
        )?;
        let point = |r: &rusqlite::Row<'_>| {
            let (at, percent): (i64, Option<f64>) = (r.get(0)?, r.get(1)?);
            Ok((at.unsigned_abs() * 1000, percent.map(|p| p as f32)))
        };
        rows.query_map(params![kind::GPU, uuid, (from_ms / 1000) as i64], point)?
            .collect()
    }

    /// Adds steps, rolls up complete ones and deletes old ones, in one transaction.
    pub(crate) fn add_all(&mut self, steps: &[Step]) -> rusqlite::Result<()> {
        let result = self.in_transaction(|store| {
            for step in steps {
                store.write(step)?;
            }
            Ok(())
        });
        if result.is_err() {
            // Numbers assigned in the failed transaction are not in the file.
            self.series.clear();
        }
        result
    }

    pub(super) fn in_transaction(
        &mut self,
        body: impl FnOnce(&mut Self) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        self.db.execute_batch("BEGIN IMMEDIATE")?;
        let done = body(self).and_then(|()| self.db.execute_batch("COMMIT"));
        if done.is_err() && !self.db.is_autocommit() {
            let _ = self.db.execute_batch("ROLLBACK");
        }
        done
    }

    fn write(&mut self, step: &Step) -> rusqlite::Result<()> {
        for (key, sum) in &step.rows {
            let series = self.series_of(key)?;
            let mut statement = self.db.prepare_cached(&self.insert)?;
            let values = values(sum);
            let all = [Some(step.at), Some(series)].into_iter().chain(values);
            statement.execute(rusqlite::params_from_iter(all))?;
        }
        // After the clock is set back, steps fall into rolled-up time: roll it up again.
        for level in LEVELS[1..].iter().chain([&NAMED]) {
            let begin = step.at - step.at.rem_euclid(level.step);
            if self.mark(level)?.is_some_and(|mark| mark > begin) {
                self.set_mark(level, begin)?;
            }
        }
        let end = step.at + STEP_S;
        self.roll(end)?;
        if end % 3600 == 0 {
            self.drop_old(end)?;
        }
        Ok(())
    }

    fn series_of(&mut self, key: &Key) -> rusqlite::Result<i64> {
        if let Some(id) = self.series.get(key) {
            return Ok(*id);
        }
        // Bound the cache; numbers of current lines are read again.
        if self.series.len() > 4096 {
            self.series.clear();
        }
        let (kind, claim, uid, gpu) = fields(key);
        let row = params![kind, claim, uid, gpu];
        self.db
            .prepare_cached(
                "INSERT OR IGNORE INTO series (kind, claim, uid, gpu) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(row)?;
        let id = self
            .db
            .prepare_cached(
                "SELECT id FROM series WHERE kind = ?1 AND claim = ?2 AND uid = ?3 AND gpu = ?4",
            )?
            .query_row(row, |r| r.get(0))?;
        self.series.insert(key.clone(), id);
        Ok(id)
    }

    /// The time up to which a level is rolled up; absent before the first time.
    pub(super) fn mark(&self, level: &Level) -> rusqlite::Result<Option<i64>> {
        self.db
            .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
            .query_row([level.mark], |r| r.get(0))
            .optional()
    }

    fn set_mark(&self, level: &Level, at: i64) -> rusqlite::Result<()> {
        self.db
            .prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)")?
            .execute(params![level.mark, at])?;
        Ok(())
    }

    /// Rolls up every step that had ended by `end`. After a crash the next call completes it.
    fn roll(&mut self, end: i64) -> rusqlite::Result<()> {
        for pair in LEVELS.windows(2) {
            let (fine, coarse) = (&pair[0], &pair[1]);
            let upto = end - end.rem_euclid(coarse.step);
            let from = match self.mark(coarse)? {
                Some(mark) => mark,
                None => {
                    let first = format!("SELECT min(at) FROM {}", fine.table);
                    let first: Option<i64> = self.db.query_row(&first, [], |r| r.get(0))?;
                    let Some(first) = first else { continue };
                    first - first.rem_euclid(coarse.step)
                }
            };
            if from >= upto {
                continue;
            }
            let roll = format!(
                "INSERT OR REPLACE INTO {} SELECT at - at % {}, series, {} FROM {} \
                 WHERE at >= ?1 AND at < ?2 GROUP BY 1, 2",
                coarse.table,
                coarse.step,
                summed(),
                fine.table
            );
            self.db.prepare_cached(&roll)?.execute([from, upto])?;
            self.set_mark(coarse, upto)?;
        }
        Ok(())
    }

    fn drop_old(&mut self, now: i64) -> rusqlite::Result<()> {
        for level in &LEVELS {
            // Delete whole steps of the coarser level, so that none is there in part.
            let cut = now - level.kept;
            self.drop_before(level, cut - cut.rem_euclid(3600))?;
        }
        self.forget_names(now - NAMED.kept)?;
        for (level, part) in LEVELS.iter().zip([4, 8, 8]) {
            for _ in 0..part {
                if self.bytes()? <= self.max_bytes {
                    return Ok(());
                }
                let oldest = format!("SELECT min(at) FROM {}", level.table);
                let oldest: Option<i64> = self.db.query_row(&oldest, [], |r| r.get(0))?;
                let Some(oldest) = oldest else { break };
                let cut = oldest + ((now - oldest) / part).max(3600);
                self.drop_before(level, cut - cut.rem_euclid(3600))?;
            }
        }
        Ok(())
    }

    fn drop_before(&mut self, level: &Level, cut: i64) -> rusqlite::Result<()> {
        let sql = format!("DELETE FROM {} WHERE at < ?1", level.table);
        let gone = self.db.prepare_cached(&sql)?.execute([cut])?;
        if gone > 0 && level.step == 3600 {
            self.drop_lines()?;
        }
        Ok(())
    }

    /// Deletes lines without any sums.
    fn drop_lines(&mut self) -> rusqlite::Result<()> {
        self.series.clear();
        self.db.execute_batch(
            "DELETE FROM series WHERE id NOT IN
                 (SELECT series FROM hour UNION SELECT series FROM minute UNION SELECT series FROM ten);
             DELETE FROM face WHERE claim NOT IN (SELECT claim FROM series)",
        )
    }

    /// Merges sums before a moment into sums without user and claim; deletes run records.
    fn forget_names(&mut self, cut: i64) -> rusqlite::Result<()> {
        let cut = cut - cut.rem_euclid(NAMED.step);
        self.db
            .prepare_cached("DELETE FROM run WHERE ended_ms < ?1")?
            .execute([cut * 1000])?;
        let from = self.mark(&NAMED)?.unwrap_or(i64::MIN);
        if from >= cut {
            return Ok(());
        }
        let of_users = format!("kind IN ({}, {})", kind::CLAIM, kind::WAIT);
        let then = "hour WHERE at >= ?1 AND at < ?2";
        let nameless = format!(
            "INSERT OR IGNORE INTO series (kind, claim, uid, gpu)
             SELECT DISTINCT kind, 0, {NOBODY}, gpu FROM series
             WHERE {of_users} AND id IN (SELECT series FROM {then})"
        );
        let added = format!(
            "INSERT OR REPLACE INTO hour SELECT at, n.id, {} FROM hour
             JOIN series s ON s.id = series
             JOIN series n ON (n.kind, n.claim, n.uid, n.gpu) = (s.kind, 0, {NOBODY}, s.gpu)
             WHERE at >= ?1 AND at < ?2 AND s.{of_users} GROUP BY at, n.id",
            summed()
        );
        let gone = format!(
            "DELETE FROM {then} AND series IN (SELECT id FROM series WHERE {of_users} AND uid <> {NOBODY})"
        );
        for sql in [&nameless, &added, &gone] {
            self.db.prepare_cached(sql)?.execute([from, cut])?;
        }
        self.set_mark(&NAMED, cut)?;
        self.drop_lines()
    }

    /// Returns some free pages to the file system. Not in a transaction.
    pub(crate) fn shrink(&self) -> rusqlite::Result<()> {
        self.db.execute_batch("PRAGMA incremental_vacuum(256)")
    }

    /// Bytes in use in the file.
    pub(crate) fn bytes(&self) -> rusqlite::Result<u64> {
        let one = |pragma: &str| {
            let value: i64 = self
                .db
                .query_row(&format!("PRAGMA {pragma}"), [], |r| r.get(0))?;
            Ok::<u64, rusqlite::Error>(value.unsigned_abs())
        };
        let pages = one("page_count")?.saturating_sub(one("freelist_count")?);
        Ok(pages * one("page_size")?)
    }

    /// Stores a claim's name.
    pub(crate) fn name_claim(&self, face: &ClaimFace) -> rusqlite::Result<()> {
        let (notebook, source) = face.notebook.clone().unzip();
        self.db
            .prepare_cached(
                "INSERT OR REPLACE INTO face (claim, uid, since_ms, project, what, notebook, source, private)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                face.claim.cast_signed(),
                face.uid,
                face.since_ms.cast_signed(),
                face.project,
                face.what,
                notebook,
                source,
                face.private
            ])?;
        Ok(())
    }
}

/// Whether the file itself is damaged, rather than the disk full or the file locked.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(
        error.sqlite_error_code(),
        Some(DatabaseCorrupt | NotADatabase)
    )
}
