//! Messages from a stream, and the attached descriptors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::message::length;
use crate::recv_with_fds;

/// Time between checks whether the process still waits.
const LOOK: Duration = Duration::from_millis(200);

pub(super) struct Messages<'a> {
    stream: &'a mut UnixStream,
    read: Vec<u8>,
    /// Descriptors received so far.
    pub(super) fds: Vec<OwnedFd>,
}

impl<'a> Messages<'a> {
    pub(super) fn new(stream: &'a mut UnixStream) -> Self {
        Self {
            stream,
            read: Vec::new(),
            fds: Vec::new(),
        }
    }

    /// The next message, read by `deadline`.
    pub(super) fn next(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = self.whole()? {
                return Ok(message);
            }
            let left = deadline
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())
                .ok_or(io::ErrorKind::TimedOut)?;
            match self.more(left) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                more => more?,
            }
        }
    }

    /// The next message, however long it takes; `Interrupted` when `stops` returns true.
    pub(super) fn next_unless(&mut self, stops: &mut dyn FnMut() -> bool) -> io::Result<Vec<u8>> {
        use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        loop {
            if let Some(message) = self.whole()? {
                return Ok(message);
            }
            match self.more(LOOK) {
                Err(error) if !matches!(error.kind(), Interrupted | WouldBlock | TimedOut) => {
                    return Err(error);
                }
                _ => {}
            }
            if stops() {
                return Err(Interrupted.into());
            }
        }
    }

    fn more(&mut self, timeout: Duration) -> io::Result<()> {
        let mut chunk = [0; 4096];
        self.stream.set_read_timeout(Some(timeout))?;
        match recv_with_fds(self.stream.as_fd(), &mut chunk, &mut self.fds)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.read.extend_from_slice(&chunk[..count]);
                Ok(())
            }
        }
    }

    /// A message that has arrived already.
    fn whole(&mut self) -> io::Result<Option<Vec<u8>>> {
        let whole = length(&self.read)?.filter(|&whole| whole <= self.read.len());
        Ok(whole.map(|whole| self.read.drain(..whole).collect()))
    }
}
