//! Files of older versions: converted in one transaction, and without the command lines and directories that they had.

use gshare_proto::CommandLine;
use rusqlite::{Connection, Transaction, params};
use serde_json::Value;

use super::file::{DOCUMENT, FORMAT, JournalError, put_meta, signed};
use super::past::KEPT_MS;
use super::records::ClaimRecord;

/// Converts a file of format 1 to the present format. `half` is called in the middle, for the test of a crash there.
pub(super) fn convert(db: &mut Connection, half: impl FnOnce()) -> Result<(), JournalError> {
    let tx = db.transaction()?;
    let before: Vec<String> = tx
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('claim', 'ended', 'event')")?
        .query_map([], |r| r.get(0))?
        .collect::<Result<_, _>>()?;
    for table in &before {
        tx.execute_batch(&format!("ALTER TABLE {table} RENAME TO old_{table}"))?;
    }
    tx.execute_batch("DROP INDEX IF EXISTS event_claim")?;
    super::lay_out(&tx)?;
    half();
    let newest: i64 = if before.iter().any(|t| t == "ended") {
        tx.query_row(
            "SELECT coalesce(max(ended_ms), 0) FROM old_ended",
            [],
            |r| r.get(0),
        )?
    } else {
        0
    };
    for table in &before {
        match table.as_str() {
            "claim" => held(&tx)?,
            "ended" => ended(&tx, newest)?,
            _ => events(&tx, newest)?,
        }
        tx.execute_batch(&format!("DROP TABLE old_{table}"))?;
    }
    waiting(&tx)?;
    tx.pragma_update(None, "user_version", FORMAT)?;
    tx.commit()?;
    // The file can shrink once it is rewritten.
    db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    tracing::info!("the journal is converted to the new format");
    Ok(())
}

/// Reduces the records that have whole command lines, in a file of any format, and rewrites the file: free space still
/// has the old ones.
pub(super) fn forget_lines(db: &mut Connection) -> Result<(), JournalError> {
    const DONE: &str = "lines";
    let tx = db.transaction()?;
    let mut changed = 0;
    for table in ["claim", "ended", "unread"] {
        let old = "record NOT LIKE '%\"line\":%'";
        let rows: Vec<(i64, String)> = tx
            .prepare(&format!("SELECT rowid, record FROM {table} WHERE {old}"))?
            .query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for (row, text) in rows {
            if let Some(record) = bounded(&text) {
                changed += tx.execute(
                    &format!("UPDATE {table} SET record = ?2 WHERE rowid = ?1"),
                    params![row, serde_json::to_string(&record)?],
                )?;
            }
        }
        changed += tx.execute(
            &format!(
                "UPDATE {table} SET record =
                     json_remove(record, '$.command', '$.cwd', '$.lazy', '$.kernel.connection')
                 WHERE {old} AND CASE WHEN json_valid(record) THEN coalesce(record ->> 'command',
                     record ->> 'cwd', record ->> 'lazy', record ->> '$.kernel.connection') IS NOT NULL END"
            ),
            [],
        )?;
    }
    if changed > 0 {
        tx.execute("DELETE FROM meta WHERE key = ?1", [DONE])?;
    }
    let done = tx
        .prepare("SELECT 1 FROM meta WHERE key = ?1")?
        .exists([DONE])?;
    tx.commit()?;
    if !done && rewrite(db)? {
        put_meta(db, DONE, "")?;
    }
    Ok(())
}

/// Writes a file without free space, and empties its log; false if another program still reads the log.
pub(crate) fn rewrite(db: &Connection) -> rusqlite::Result<bool> {
    db.execute_batch("VACUUM")?;
    let busy: bool = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get(0))?;
    Ok(!busy)
}

/// A record with its texts cut to the present bounds; `None` if it cannot be read.
fn bounded(text: &str) -> Option<ClaimRecord> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    // Texts about lazy claims and kernels may be longer than is accepted now.
    for field in ["lazy", "kernel"] {
        if let Some(said) = value.get(field)
            && said.to_string().len() > 16 * 1024
        {
            value[field] = Value::Null;
        }
    }
    let mut record: ClaimRecord = serde_json::from_value(value).ok()?;
    record.command = CommandLine::of(&*record.command).into_words().into();
    if let Some(spec) = record.terms.lazy.take() {
        record.terms.ask_later(*spec);
    }
    Some(record)
}

fn held(tx: &Transaction<'_>) -> Result<(), JournalError> {
    tx.execute(
        "INSERT INTO claim (id, waits, format, record) SELECT id, 0, ?1, record FROM old_claim",
        [DOCUMENT],
    )?;
    Ok(())
}

fn ended(tx: &Transaction<'_>, newest: i64) -> Result<(), JournalError> {
    tx.execute(
        "INSERT INTO ended (id, uid, ended_ms, pid, start_ticks, uncapped, cause, peak_bytes, launches, format, record)
         SELECT id, uid, ended_ms, json_extract(record, '$.process.pid'), json_extract(record, '$.process.start_ticks'),
             coalesce(json_extract(record, '$.uncapped'), 0), cause, peak_bytes, launches, ?2, record
         FROM old_ended WHERE ended_ms >= ?1 AND json_valid(record)",
        params![newest - signed(KEPT_MS), DOCUMENT],
    )?;
    // Numbers are never reused.
    let highest: i64 = tx.query_row("SELECT coalesce(max(id), 0) FROM old_ended", [], |r| {
        r.get(0)
    })?;
    let told: Option<String> = tx
        .query_row("SELECT value FROM meta WHERE key = 'told'", [], |r| {
            r.get(0)
        })
        .ok();
    let told = told.and_then(|t| t.parse().ok()).unwrap_or(0);
    tx.execute(
        "INSERT OR REPLACE INTO meta (key, value) VALUES ('told', ?1)",
        [highest.max(told).to_string()],
    )?;
    Ok(())
}

fn events(tx: &Transaction<'_>, newest: i64) -> Result<(), JournalError> {
    tx.execute(
        "INSERT INTO event (at_ms, claim, uid, text)
         SELECT e.at_ms, e.claim, coalesce((SELECT uid FROM ended WHERE id = e.claim),
             (SELECT json_extract(record, '$.uid') FROM claim WHERE id = e.claim AND json_valid(record)), 0), e.text
         FROM old_event e WHERE e.at_ms >= ?1",
        [newest - signed(KEPT_MS)],
    )?;
    Ok(())
}

/// Waiting claims were in one text with the core's other state.
fn waiting(tx: &Transaction<'_>) -> Result<(), JournalError> {
    let text: Option<String> = tx
        .query_row("SELECT value FROM meta WHERE key = 'machine'", [], |r| {
            r.get(0)
        })
        .ok();
    let Some(mut machine) = text.and_then(|t| serde_json::from_str::<Value>(&t).ok()) else {
        return Ok(());
    };
    let waits = machine["waits"].as_object().cloned().unwrap_or_default();
    for (id, said) in waits {
        if let (Some(record), Ok(id)) = (bounded(&said.to_string()), id.parse::<i64>()) {
            tx.execute(
                "INSERT OR IGNORE INTO claim (id, waits, format, record) VALUES (?1, 1, ?2, ?3)",
                params![id, DOCUMENT, serde_json::to_string(&record)?],
            )?;
        }
    }
    for place in machine["queue"].as_array().cloned().unwrap_or_default() {
        if let (Some(id), Some(seq)) = (place["id"].as_i64(), place["seq"].as_i64()) {
            tx.execute(
                "INSERT OR REPLACE INTO queue (id, seq, format, record) VALUES (?1, ?2, ?3, ?4)",
                params![id, seq, DOCUMENT, place.to_string()],
            )?;
        }
    }
    if let Some(machine) = machine.as_object_mut() {
        machine.remove("waits");
        machine.remove("queue");
    }
    tx.execute(
        "UPDATE meta SET value = ?1 WHERE key = 'machine'",
        [machine.to_string()],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::super::tests::claim;
    use super::super::{Journal, KernelRecord};
    use super::*;

    /// What is left of the command, the directory and the kernel of a claim in such a file.
    fn reduced(id: u64) -> ClaimRecord {
        let mut record = claim(id);
        record.command = vec!["true".to_owned(), "SECRET".to_owned()].into();
        record.origin.kernel = Some(KernelRecord {
            id: "k".to_owned(),
            ..KernelRecord::default()
        });
        record.terms.lazy = Some(Box::default());
        record
    }

    /// A file of format 1: a held claim, a damaged one, an ended one with a text that is too long, events, and a
    /// waiting claim.
    fn old(path: &Path) {
        let db = Connection::open(path).unwrap();
        db.execute_batch(
            "CREATE TABLE claim (id INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
             CREATE TABLE ended (
                 id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, ended_ms INTEGER NOT NULL, cause TEXT NOT NULL,
                 peak_bytes INTEGER, launches INTEGER, record TEXT NOT NULL) STRICT;
             CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
             CREATE TABLE event (at_ms INTEGER NOT NULL, claim INTEGER NOT NULL, text TEXT NOT NULL) STRICT;
             CREATE INDEX event_claim ON event (claim, at_ms);
             PRAGMA user_version = 1;",
        )
        .unwrap();
        let text = |id| {
            let mut old = serde_json::to_value(reduced(id)).unwrap();
            let fields = old.as_object_mut().unwrap();
            assert!(fields.remove("line").is_some() && fields.remove("shape").is_some());
            old["command"] = serde_json::json!(["true", "SECRET"]);
            old["cwd"] = "/SECRET".into();
            old["kernel"]["connection"] = "/SECRET/kernel-k.json".into();
            old["lazy"]["command"] = serde_json::json!(["true", "SECRET"]);
            old
        };
        let put = "INSERT INTO claim VALUES (?1, ?2)";
        db.execute(put, params![1, text(1).to_string()]).unwrap();
        db.execute(put, params![2, "{half"]).unwrap();
        let mut long = text(3);
        long["command"] = serde_json::json!(["x".repeat(100_000)]);
        db.execute(
            "INSERT INTO ended VALUES (3, 1000, 5000, 'released', NULL, NULL, ?1)",
            [long.to_string()],
        )
        .unwrap();
        db.execute("INSERT INTO event VALUES (4000, 3, 'granted')", [])
            .unwrap();
        let machine = serde_json::json!({
            "gpus": [], "waits": {"9": text(9)},
            "queue": [{"id": 9, "seq": 4}], "seq": 4,
        });
        db.execute(
            "INSERT INTO meta VALUES ('machine', ?1), ('told', '9')",
            [machine.to_string()],
        )
        .unwrap();
    }

    fn check(path: &Path, unread: &[u64]) {
        let mut j = Journal::open(path).unwrap();
        let found = j.claims(0).unwrap();
        assert_eq!(found.held, [reduced(1)]);
        assert_eq!(found.waiting, [reduced(9)]);
        assert_eq!(found.unread, unread);
        assert_eq!(j.next_id().0, 10);
        let process = claim(3).process.unwrap();
        let of = (process.pid.cast_unsigned(), process.start_ticks);
        assert_eq!(j.ended_of(1000, of, 0).unwrap().unwrap().id, 3);
        let size: i64 =
            j.db.query_row("SELECT length(record) FROM ended", [], |r| r.get(0))
                .unwrap();
        assert!(size < 2048, "{size}");
        let events = j.events(gshare_core::ClaimId(3)).unwrap();
        assert_eq!(events, [(4000, 1000, "granted".to_owned())]);
        let machine = j.meta("machine").unwrap().unwrap();
        assert!(!machine.contains("waits"), "{machine}");
        has_no_line(path);
    }

    fn has_no_line(path: &Path) {
        for file in std::fs::read_dir(path.parent().unwrap()).unwrap() {
            let file = file.unwrap().path();
            let bytes = std::fs::read(&file).unwrap();
            assert!(!bytes.windows(6).any(|w| w == b"SECRET"), "{file:?}");
        }
    }

    #[test]
    fn a_file_of_the_format_before_is_converted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        old(&path);
        // The last version kept a copy.
        old(&path.with_extension("db.format-1"));
        check(&path, &[2]);
        check(&path, &[]);
    }

    #[test]
    fn nothing_in_a_file_of_this_format_has_a_line_that_an_older_version_stored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        drop(Journal::open(&path).unwrap());
        let db = Connection::open(&path).unwrap();
        // Rewritten and deleted rows, and records that cannot be read.
        let text = format!(
            r#"{{"id": 1, "command": ["{}"], "cwd": "/SECRET"}}"#,
            "SECRET".repeat(900)
        );
        for id in 1..9 {
            db.execute("INSERT INTO claim VALUES (?1, 0, 1, ?2)", params![id, text])
                .unwrap();
            db.execute(
                "INSERT INTO unread VALUES (?1, 1, 1, ?2)",
                params![id, text],
            )
            .unwrap();
        }
        let line = serde_json::to_string(&claim(2)).unwrap();
        db.execute("UPDATE claim SET record = ?1 WHERE id < 5", [line])
            .unwrap();
        db.execute("DELETE FROM unread WHERE id < 5", []).unwrap();
        db.execute("DELETE FROM meta WHERE key = 'lines'", [])
            .unwrap();
        drop(db);
        let journal = Journal::open(&path).unwrap();
        has_no_line(&path);
        let rows = "SELECT count(*) FROM unread WHERE record = '{\"id\":1}'";
        let rows: i64 = journal.db.query_row(rows, [], |r| r.get(0)).unwrap();
        assert_eq!(rows, 4);
        assert!(journal.meta("lines").unwrap().is_some());
    }

    #[test]
    fn a_file_that_another_program_reads_is_rewritten_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        drop(Journal::open(&path).unwrap());
        let reader = Connection::open(&path).unwrap();
        reader.execute("DELETE FROM meta", []).unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM meta;").unwrap();
        let journal = Journal::open(&path).unwrap();
        assert_eq!(journal.meta("lines").unwrap(), None);
        drop(reader);
        drop(journal);
        let journal = Journal::open(&path).unwrap();
        assert!(journal.meta("lines").unwrap().is_some());
    }

    const DIES: &str = "GSHARE_TEST_CONVERT_AND_DIE";

    /// The same program again, killed in the middle: the file still has the old format, and is then converted.
    #[test]
    fn a_death_in_the_middle_of_the_conversion_loses_nothing() {
        if let Some(path) = std::env::var_os(DIES) {
            let path = PathBuf::from(path);
            let mut db = Connection::open(&path).unwrap();
            db.pragma_update(None, "journal_mode", "WAL").unwrap();
            let _ = convert(&mut db, || {
                let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
            });
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        old(&path);
        let name =
            "daemon::journal::older::tests::a_death_in_the_middle_of_the_conversion_loses_nothing";
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(DIES, &path)
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(9));
        let db = Connection::open(&path).unwrap();
        let format: i64 = db
            .query_row("PRAGMA user_version", [], |r| r.get(0))
            .unwrap();
        assert_eq!(format, 1);
        drop(db);
        check(&path, &[2]);
    }
}
