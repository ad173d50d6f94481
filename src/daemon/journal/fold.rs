//! Folding: SQLite moves what it has appended to its log into the file itself, and waits for the disk meanwhile. A
//! thread of its own does that, so that no claim waits.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

/// Changed rows between two runs; each takes at most a few pages of the log.
const ROWS: u64 = 200;
/// Pages of the log after which a commit folds it itself, should the thread have ended.
const OWN_PAGES: u32 = 8_000;

/// The thread.
#[derive(Debug)]
pub(super) struct Fold {
    /// `None` only while it is dropped.
    poke: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Rows that were changed until the last run.
    rows: u64,
}

impl Fold {
    /// Starts it beside this connection.
    pub(super) fn beside(db: &Connection, path: &Path) -> rusqlite::Result<Self> {
        let own = Connection::open(path)?;
        let (poke, poked) = sync_channel(1);
        let builder = std::thread::Builder::new().name("journal".to_owned());
        let thread = builder.spawn(move || run(&own, &poked));
        if let Err(error) = &thread {
            tracing::warn!(%error, "the journal's log is folded by commits");
        } else {
            db.pragma_update(None, "wal_autocheckpoint", OWN_PAGES)?;
        }
        Ok(Self {
            poke: Some(poke),
            thread: thread.ok(),
            rows: db.total_changes(),
        })
    }

    /// Has the log folded if enough was written since the last time.
    pub(super) fn due(&mut self, db: &Connection) {
        let rows = db.total_changes();
        if rows - self.rows >= ROWS {
            self.rows = rows;
            // A full channel: it is about to run.
            let _ = self.poke.as_ref().map(|poke| poke.try_send(()));
        }
    }
}

/// Leaves the last connection to the journal, which folds and removes the log when it closes.
impl Drop for Fold {
    fn drop(&mut self) {
        self.poke = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(db: &Connection, poked: &Receiver<()>) {
    while poked.recv().is_ok() {
        // `PASSIVE` makes no reader and no writer wait. Without space in the file system the next run does it.
        let folded = db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = folded {
            tracing::warn!(%error, "the journal's log could not be folded");
        }
    }
}
