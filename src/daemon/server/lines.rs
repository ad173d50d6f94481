//! Lines from what arrives on a connection.

use std::io;
use std::sync::Arc;

use gshare_proto::MAX_LINE;
use tokio::net::UnixStream;

use super::budget::{Budget, SMALL, Unfinished};

/// Why no further line is read.
pub(super) enum Stop {
    TooLong,
    /// Too much is unfinished of this user.
    TooMany,
    End,
}

/// Splits what arrives into lines; cancel safe.
pub(super) struct Lines {
    buffer: Vec<u8>,
    seen: usize,
    unfinished: Unfinished,
    budget: Arc<Budget>,
}

impl Lines {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self {
            buffer: Vec::new(),
            seen: 0,
            unfinished: Unfinished::new(Arc::clone(&budget)),
            budget,
        }
    }

    /// Waits for a whole line and gives its length; it stays until it is taken.
    pub(super) async fn next(&mut self, stream: &UnixStream) -> io::Result<Result<usize, Stop>> {
        loop {
            if let Some(end) = self.buffer[self.seen..].iter().position(|b| *b == b'\n') {
                return Ok(Ok(self.seen + end + 1));
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

    /// The line that is there.
    pub(super) fn take(&mut self) -> String {
        let rest = &self.buffer[self.seen..];
        let end = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
        let end = (self.seen + end + 1).min(self.buffer.len());
        let rest = self.buffer.split_off(end);
        let line = std::mem::replace(&mut self.buffer, rest);
        self.seen = 0;
        self.unfinished.hold(self.buffer.len());
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }
}
