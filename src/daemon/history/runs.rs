//! Records of ended runs: command, size, use, and how it ended. A table in the history's file, written by its thread.
//! Each record keeps the prediction that would have been made, so that its error is known.

use std::collections::HashMap;
use std::time::Duration;

use gshare_core::Bytes;
use gshare_core::predict::{
    BINS, Busy, Earlier, Estimate, NOMINAL, Past, RUNS, SCORES, Scores, Shape, Span, duration,
    estimate, is_name,
};
use gshare_enforcer::proc;
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use super::store::Store;
use crate::daemon::journal;
use crate::daemon::line::hashed;

/// Maximum number of records; the oldest are dropped.
const MOST: i64 = 100_000;
/// Number of equal parts of its time for which a run's memory is recorded.
pub(crate) const PARTS: usize = 32;

pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS run (
    id INTEGER PRIMARY KEY, ended_ms INTEGER NOT NULL, uid INTEGER NOT NULL, script TEXT NOT NULL,
    gpus INTEGER NOT NULL, seconds REAL NOT NULL, kind INTEGER, score REAL, record TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS run_script ON run (uid, script, ended_ms);
CREATE INDEX IF NOT EXISTS run_shared ON run (script, ended_ms);
CREATE INDEX IF NOT EXISTS run_user ON run (uid, ended_ms);
CREATE INDEX IF NOT EXISTS run_score ON run (uid, kind, ended_ms);
CREATE INDEX IF NOT EXISTS run_ended ON run (ended_ms);
";

/// An ended run of a command in a claim. Bytes, seconds; fractions of a GPU are 0 to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    /// Number of the record; 0 until it has one.
    #[serde(default)]
    pub(crate) id: u64,
    pub(crate) claim: u64,
    /// End, Unix milliseconds.
    pub(crate) ended_ms: u64,
    pub(crate) uid: u32,
    pub(crate) project: String,
    pub(crate) class: String,
    /// The key of its command.
    #[serde(flatten)]
    pub(crate) shape: Shape,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) notebook: Option<String>,
    #[serde(flatten)]
    pub(crate) asked: AskedByRun,
    #[serde(flatten)]
    pub(crate) used: UsedByRun,
    #[serde(flatten)]
    pub(crate) ended: EndOfRun,
    /// Basis of the prediction before it, and its error in units of its spread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) score: Option<f64>,
}

/// Size and limits of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AskedByRun {
    pub(crate) gpu_model: String,
    /// GPUs that it had.
    pub(crate) gpus: u32,
    /// Requested on each.
    #[serde(rename = "asked_mem")]
    pub(crate) mem: u64,
    #[serde(rename = "asked_sm")]
    pub(crate) sm: f64,
    /// Claimed with `-g auto`.
    #[serde(default)]
    pub(crate) auto: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UsedByRun {
    /// Peak on one GPU.
    pub(crate) peak: u64,
    /// Median, 90th and 99th percentile over its time.
    pub(crate) mem: [u64; 3],
    /// Peak in each part of the run, in order of time.
    pub(crate) parts: Vec<u64>,
    /// Means over the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sm_active: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) occupancy: Option<f64>,
    /// Seconds per twentieth of its GPU that it used: of GPU time in turns, otherwise of SMs.
    pub(crate) busy: [f64; BINS],
    /// Its claim took turns.
    pub(crate) in_turns: bool,
    /// Seconds of a whole GPU: worked, burst above its size, throttled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gpu_s: Option<f64>,
    pub(crate) burst_gpu_s: f64,
    pub(crate) throttled_s: f64,
    /// Allocations refused at the cap.
    #[serde(default)]
    pub(crate) refusals: u64,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EndOfRun {
    pub(crate) seconds: f64,
    /// Why its claim ended.
    #[serde(rename = "end")]
    pub(crate) cause: String,
    /// Exit status of its command, or the signal that ended it; neither if the kernel did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit_signal: Option<i32>,
}

impl RunRecord {
    pub(crate) fn past(&self) -> Past {
        Past {
            id: self.id,
            shape: self.shape.clone(),
            peak: Bytes(self.used.peak),
        }
    }
}

/// Whose runs may be used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whose {
    pub(crate) uid: u32,
    /// Also those of users with the same primary group.
    pub(crate) group: bool,
    /// Also everybody's.
    pub(crate) all: bool,
}

/// Experience from earlier runs of a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) estimate: Option<Estimate>,
    /// The records that it is based on, newest first.
    pub(crate) records: Vec<RunRecord>,
    pub(crate) time: Option<Span>,
}

impl Told {
    /// The fraction of a GPU's SMs (or time) that was enough for nine in ten of these runs.
    pub(crate) fn share(&self) -> Option<f64> {
        let enough = |r: &RunRecord| Busy(r.used.busy).enough();
        let mut all: Vec<f64> = self.records.iter().filter_map(enough).collect();
        all.sort_by(f64::total_cmp);
        let place = ((all.len() as f64 * 0.9).ceil() as usize).checked_sub(1)?;
        all.get(place).copied()
    }
}

fn scores(db: &Connection, uid: u32) -> rusqlite::Result<Scores> {
    let sql =
        "SELECT id, score FROM run WHERE uid = ?1 AND kind = ?2 ORDER BY ended_ms DESC LIMIT ?3";
    let mut scores = Scores::default();
    for (kind, list) in scores.0.iter_mut().enumerate() {
        let mut statement = db.prepare_cached(sql)?;
        let rows = statement.query_map(params![uid, kind as i64, SCORES as i64], |row| {
            Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?))
        })?;
        *list = rows.collect::<rusqlite::Result<_>>()?;
    }
    Ok(scores)
}

impl Store {
    fn list(
        &self,
        condition: &str,
        values: &[&dyn rusqlite::ToSql],
        limit: usize,
    ) -> rusqlite::Result<Vec<RunRecord>> {
        let sql = format!(
            "SELECT id, record FROM run WHERE {condition} ORDER BY ended_ms DESC LIMIT {limit}"
        );
        let mut statement = self.db.prepare_cached(&sql)?;
        let rows = statement.query_map(values, |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
        })?;
        let mut found = Vec::new();
        for row in rows {
            let (id, text) = row?;
            // Skip a record that cannot be read.
            if let Ok(mut record) = serde_json::from_str::<RunRecord>(&text) {
                record.id = id.unsigned_abs();
                found.push(record);
            }
        }
        Ok(found)
    }

    /// Experience from earlier runs.
    pub(crate) fn told(&self, whose: &Whose, shape: &Shape, gpus: u32) -> rusqlite::Result<Told> {
        let own = self.list(
            "uid = ?1 AND script = ?2",
            &[&whose.uid, &shape.script],
            RUNS,
        )?;
        let mut shared = Vec::new();
        if whose.all || whose.group {
            shared = self.list(
                "script = ?2 AND uid <> ?1",
                &[&whose.uid, &shape.script],
                RUNS,
            )?;
            let mut same = HashMap::new();
            let own_group = proc::primary_gid(whose.uid);
            shared.retain(|r| {
                whose.all
                    || *same.entry(r.uid).or_insert_with(|| {
                        own_group.is_some() && proc::primary_gid(r.uid) == own_group
                    })
            });
        }
        // Needed only if there are no closer runs.
        let user = if own.is_empty() && shared.is_empty() {
            self.list("uid = ?1", &[&whose.uid], RUNS)?
        } else {
            Vec::new()
        };
        let past = |list: &[RunRecord]| list.iter().map(RunRecord::past).collect();
        let earlier = Earlier {
            script: past(&own),
            shared: past(&shared),
            user: past(&user),
        };
        let estimate = estimate(shape, &earlier, &scores(&self.db, whose.uid)?, NOMINAL);
        let mut all = own;
        all.extend(shared);
        all.extend(user);
        let records = estimate
            .iter()
            .flat_map(|e| &e.runs)
            .filter_map(|run| all.iter().find(|r| r.id == run.id).cloned());
        let records: Vec<RunRecord> = records.collect();
        Ok(Told {
            estimate,
            records,
            time: self.time_of(whose.uid, Some(&shape.script), gpus)?,
        })
    }

    /// Duration of a user's runs with this number of GPUs; of one script, if it ran often enough.
    pub(crate) fn time_of(
        &self,
        uid: u32,
        script: Option<&str>,
        gpus: u32,
    ) -> rusqlite::Result<Option<Span>> {
        let list = |condition: &str, script: &str| -> rusqlite::Result<Vec<Duration>> {
            let sql = format!(
                "SELECT seconds FROM run WHERE uid = ?1 AND gpus = ?2 AND {condition} ORDER BY ended_ms DESC LIMIT 64"
            );
            let mut statement = self.db.prepare_cached(&sql)?;
            let rows =
                statement.query_map(params![uid, gpus, script], |row| row.get::<_, f64>(0))?;
            let seconds: Vec<f64> = rows.collect::<rusqlite::Result<_>>()?;
            Ok(seconds
                .into_iter()
                .map(|s| Duration::from_secs_f64(s.clamp(0.0, 1e9)))
                .collect())
        };
        let same = script.map_or(Ok(Vec::new()), |script| list("script = ?3", script))?;
        let user = list("?3 = ?3", "")?;
        Ok(duration(&same, &user))
    }

    /// Stores a run, with the prediction that would have been made.
    pub(crate) fn add_run(&mut self, mut record: RunRecord, whose: &Whose) -> rusqlite::Result<()> {
        let told = self.told(whose, &record.shape, record.asked.gpus)?;
        let mut kind = None;
        if let Some(said) = told.estimate.filter(|_| record.used.peak > 0) {
            record.level = Some(said.level.name().to_owned());
            record.score = Some(said.score(Bytes(record.used.peak)));
            kind = Some(said.kind as i64);
            for run in said.new_ones() {
                self.db
                    .prepare_cached("UPDATE run SET kind = NULL WHERE id = ?1")?
                    .execute([run.cast_signed()])?;
            }
        }
        let text = serde_json::to_string(&record).unwrap_or_default();
        self.db.prepare_cached(
            "INSERT INTO run (ended_ms, uid, script, gpus, seconds, kind, score, record) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            record.ended_ms.cast_signed(),
            record.uid,
            record.shape.script,
            record.asked.gpus,
            record.ended.seconds,
            kind,
            record.score,
            text
        ])?;
        let newest: Option<i64> = self
            .db
            .query_row("SELECT max(id) FROM run", [], |r| r.get(0))
            .optional()?
            .flatten();
        if let Some(newest) = newest {
            self.db
                .prepare_cached("DELETE FROM run WHERE id <= ?1")?
                .execute([newest - MOST])?;
        }
        Ok(())
    }

    /// A user's own runs, newest first.
    pub(crate) fn runs_of(&self, uid: u32, most: usize) -> rusqlite::Result<Vec<RunRecord>> {
        self.list("uid = ?1", &[&uid], most)
    }
}

/// Records of earlier versions had words of arguments, code as the name of a script, and paths of notebooks.
pub(super) fn forget_words(store: &mut Store) -> rusqlite::Result<()> {
    const DONE: &str = "plain";
    let has = |store: &Store, key| {
        let sql = "SELECT 1 FROM meta WHERE key = ?1";
        store.db.prepare(sql)?.exists([key])
    };
    if has(store, DONE)? {
        return Ok(());
    }
    let words_are_hashed = has(store, "words")?;
    let ids: Vec<i64> = store
        .db
        .prepare("SELECT id FROM run")?
        .query_map([], |r| r.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    store.in_transaction(|store| {
        for id in ids {
            let mut found = store.list("id = ?1", &[&id], 1)?;
            if let Some(RunRecord { shape, notebook, .. }) = found.first_mut() {
                if !words_are_hashed {
                    shape.words = hashed(&shape.words);
                }
                if has_code(&shape.script) {
                    "-c".clone_into(&mut shape.script);
                }
                let name = |key: &str| is_name(key.strip_prefix("argument ").unwrap_or(key));
                shape.numbers.retain(|(key, _)| name(key));
                if let Some((_, name)) = notebook.as_deref().and_then(|path| path.rsplit_once('/')) {
                    *notebook = Some(name.to_owned());
                }
            }
            // Skip a record that cannot be read.
            let script = found.first().map(|r| &*r.shape.script);
            let text = found.first().and_then(|r| serde_json::to_string(r).ok());
            store
                .db
                .prepare_cached("UPDATE run SET record = ?2, script = ?3 WHERE id = ?1")?
                .execute(params![id, text.unwrap_or_default(), script.unwrap_or_default()])?;
        }
        store.db.execute_batch(
            "UPDATE face SET notebook = replace(notebook, rtrim(notebook, replace(notebook, '/', '')), '')
             WHERE notebook LIKE '%/%';
             UPDATE face SET what = substr(what, 1, instr(what, ' ')) || '-c'
             WHERE what LIKE '% % %' AND (what LIKE 'python%'
                 OR substr(what, 1, instr(what, ' ') - 1) IN ('bash', 'sh', 'perl', 'ruby', 'node', 'julia', 'Rscript'));
             INSERT OR IGNORE INTO meta (key, value) VALUES ('words', 1)",
        )
    })?;
    // Free space still has the old ones.
    if journal::rewrite(&store.db)? {
        store
            .db
            .execute("INSERT INTO meta (key, value) VALUES (?1, 1)", [DONE])?;
    }
    Ok(())
}

/// Whether the name of a script is the end of code, as earlier versions took it from `bash -lc`.
fn has_code(script: &str) -> bool {
    script.contains(|c: char| c.is_whitespace() || c.is_ascii_punctuation() && !"._-+".contains(c))
}

/// Inserts records unchanged, for benchmarks.
#[cfg(feature = "lab")]
pub(crate) fn put_runs(store: &Store, records: &[RunRecord]) -> rusqlite::Result<()> {
    store.db.execute_batch("BEGIN")?;
    for record in records {
        let text = serde_json::to_string(record).unwrap_or_default();
        store.db.prepare_cached(
            "INSERT INTO run (ended_ms, uid, script, gpus, seconds, kind, score, record) VALUES (?1, ?2, ?3, ?4, ?5, 1, 0.5, ?6)",
        )?
        .execute(params![record.ended_ms.cast_signed(), record.uid, record.shape.script, record.asked.gpus, record.ended.seconds, text])?;
    }
    store.db.execute_batch("COMMIT")
}
