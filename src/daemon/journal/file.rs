//! The open file, and its errors.

use std::path::PathBuf;

use rusqlite::Connection;

use super::fold::Fold;
use super::past::{Budget, Ended};

/// Why the journal failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error("cannot open the journal {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot use the journal: {0}")]
    Sql(rusqlite::Error),
    #[error("a record of the journal is damaged")]
    Record(#[from] serde_json::Error),
}

// The cause is part of the error's own text, so that every log line has it; as a source it would appear twice.
impl From<rusqlite::Error> for JournalError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

/// Format of the file: 1 had all waiting claims in one text of `meta`, 2 has a row for each.
pub(super) const FORMAT: i64 = 2;

/// Format of the documents in it: [`ClaimRecord`] as JSON.
pub(super) const DOCUMENT: i64 = 1;

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Dropped before the connection, which then is the last. A copy in memory has none.
    pub(super) fold: Option<Fold>,
    pub(super) db: Connection,
    pub(super) ended: Budget,
    pub(super) events: Budget,
    /// The file has a newer format: it is not written, and this is a copy in memory.
    pub(super) newer: Option<i64>,
    /// How many services have used it.
    pub(super) starts: u64,
    /// Above every id that was ever granted or told to a client.
    pub(super) next_id: u64,
    /// Ended claims that could not be written to a full disk.
    pub(super) unwritten: Vec<Ended>,
    /// When old entries are next deleted, Unix milliseconds.
    pub(super) forget_ms: u64,
}

/// Stores a text under a key, as part of a transaction.
pub(crate) fn put_meta(db: &Connection, key: &str, value: &str) -> Result<(), JournalError> {
    db.execute(
        "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)",
        [key, value],
    )?;
    Ok(())
}

/// SQLite integers are signed; no value here comes near the top bit.
pub(super) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
