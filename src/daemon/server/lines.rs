//! Splits the input of a connection into lines.

use std::io;
use std::sync::Arc;

use tokio::net::UnixStream;

use super::budget::{Budget, SMALL, Unfinished};
use super::split::{Bad, Split};

/// Why no further line is read.
pub(super) enum Stop {
    Bad(Bad),
    /// The user has too many incomplete bytes.
    TooMany,
    End,
}

/// Splits the input into lines of clients and messages of members; cancel safe.
pub(super) struct Lines {
    arrived: Split,
    /// Length of the complete one.
    whole: usize,
    unfinished: Unfinished,
    budget: Arc<Budget>,
}

impl Lines {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self {
            arrived: Split::default(),
            whole: 0,
            unfinished: Unfinished::new(Arc::clone(&budget)),
            budget,
        }
    }

    /// Waits for a complete one and returns its length; it stays until it is taken.
    pub(super) async fn next(&mut self, stream: &UnixStream) -> io::Result<Result<usize, Stop>> {
        loop {
            match self.arrived.whole() {
                Ok(Some(whole)) => {
                    self.whole = whole;
                    return Ok(Ok(whole));
                }
                Ok(None) => {}
                Err(bad) => return Ok(Err(Stop::Bad(bad))),
            }
            stream.readable().await?;
            let budget = Arc::clone(&self.budget);
            // Input is stored before anything can be cancelled.
            if let Some(stop) = budget.round(|| self.read(stream)).await? {
                return Ok(Err(stop));
            }
        }
    }

    /// Reads the available input once.
    fn read(&mut self, stream: &UnixStream) -> io::Result<Option<Stop>> {
        let mut chunk = [0; 16 * 1024];
        // Read little until the line is known to need more.
        let most = if self.arrived.len() < SMALL {
            SMALL
        } else {
            chunk.len()
        };
        match stream.try_read(&mut chunk[..most]) {
            Ok(0) => Ok(Some(Stop::End)),
            Ok(n) => {
                self.arrived.push(&chunk[..n]);
                let room = self.unfinished.hold(self.arrived.len());
                Ok((!room).then_some(Stop::TooMany))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The complete one.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let taken = self.arrived.take(std::mem::take(&mut self.whole));
        self.unfinished.hold(self.arrived.len());
        taken
    }
}
