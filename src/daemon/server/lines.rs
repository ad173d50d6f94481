//! Lines from what arrives on a connection.

use std::io;
use std::sync::Arc;

use gshare_abi::wire;
use gshare_proto::MAX_LINE;
use tokio::net::UnixStream;

use super::budget::{Budget, SMALL, Unfinished};

/// Why no further line is read.
pub(super) enum Stop {
    TooLong,
    /// What began as a member's message is none.
    Malformed(String),
    /// Too much is unfinished of this user.
    TooMany,
    End,
}

/// Longest message of a member or the launcher in bytes: it has a few numbers.
const MEMBER: usize = 1024;

/// Splits what arrives into lines of clients and messages of members; cancel safe.
pub(super) struct Lines {
    buffer: Vec<u8>,
    seen: usize,
    /// Length of the one that is there.
    whole: usize,
    unfinished: Unfinished,
    budget: Arc<Budget>,
}

impl Lines {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self {
            buffer: Vec::new(),
            seen: 0,
            whole: 0,
            unfinished: Unfinished::new(Arc::clone(&budget)),
            budget,
        }
    }

    /// Waits for a whole one and gives its length; it stays until it is taken.
    pub(super) async fn next(&mut self, stream: &UnixStream) -> io::Result<Result<usize, Stop>> {
        loop {
            match self.length() {
                Ok(Some(whole)) => {
                    self.whole = whole;
                    return Ok(Ok(whole));
                }
                Ok(None) => {}
                Err(stop) => return Ok(Err(stop)),
            }
            self.seen = self.buffer.len();
            if self.seen > MAX_LINE {
                return Ok(Err(Stop::TooLong));
            }
            stream.readable().await?;
            let budget = Arc::clone(&self.budget);
            // What is read is kept before anything can be cancelled.
            if let Some(stop) = budget.round(|| self.read(stream)).await? {
                return Ok(Err(stop));
            }
        }
    }

    /// Length of what is whole.
    fn length(&self) -> Result<Option<usize>, Stop> {
        if wire::begins(&self.buffer) {
            let length = wire::length(&self.buffer);
            let length = length.map_err(|error| Stop::Malformed(error.to_string()))?;
            if length.is_some_and(|length| length > MEMBER) {
                return Err(Stop::TooLong);
            }
            return Ok(length.filter(|&length| length <= self.buffer.len()));
        }
        let end = self.buffer[self.seen..].iter().position(|b| *b == b'\n');
        Ok(end.map(|end| self.seen + end + 1))
    }

    /// Reads once what has arrived.
    fn read(&mut self, stream: &UnixStream) -> io::Result<Option<Stop>> {
        let mut chunk = [0; 16 * 1024];
        // Little until it is known that this line needs more.
        let most = if self.seen < SMALL {
            SMALL
        } else {
            chunk.len()
        };
        match stream.try_read(&mut chunk[..most]) {
            Ok(0) => Ok(Some(Stop::End)),
            Ok(n) => {
                self.buffer.reserve(n);
                self.buffer.extend_from_slice(&chunk[..n]);
                let room = self.unfinished.hold(self.buffer.len());
                Ok((!room).then_some(Stop::TooMany))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The one that is there.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let rest = self.buffer.split_off(self.whole.min(self.buffer.len()));
        let taken = std::mem::replace(&mut self.buffer, rest);
        (self.seen, self.whole) = (0, 0);
        self.unfinished.hold(self.buffer.len());
        taken
    }
}
