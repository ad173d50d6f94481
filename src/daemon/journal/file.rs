//! The open file, and what can go wrong with it.

use std::path::PathBuf;

use rusqlite::Connection;

use super::past::{Budget, Ended};

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

/// Of the file: 1 had the waiting claims in one text of `meta`, 2 has a row for each.
pub(super) const FORMAT: i64 = 2;

/// Of the documents in it: [`ClaimRecord`] as JSON.
pub(super) const DOCUMENT: i64 = 1;

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(super) db: Connection,
    pub(super) ended: Budget,
    pub(super) events: Budget,
    /// The file has a newer format: nothing is written to it, and this is a copy in memory.
    pub(super) newer: Option<i64>,
    /// How many services have used it.
    pub(super) starts: u64,
    /// Above every id that was ever granted or told.
    pub(super) next_id: u64,
    /// Ended claims that a full disk does not take.
    pub(super) unwritten: Vec<Ended>,
    /// When it forgets what is old, Unix milliseconds.
    pub(super) forget_ms: u64,
}

/// Keeps a text under a key, as part of a transaction.
pub(crate) fn put_meta(db: &Connection, key: &str, value: &str) -> Result<(), JournalError> {
    db.execute(
        "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)",
        [key, value],
    )?;
    Ok(())
}

/// SQLite integers are signed; no figure here comes near the top bit.
pub(super) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
