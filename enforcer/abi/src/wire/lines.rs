//! Lines of the service, and the descriptors that come beside them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::LINE_LIMIT;
use crate::recv_with_fds;

/// Between two looks whether one who waits still does.
const LOOK: Duration = Duration::from_millis(200);

/// Reads a stream line by line.
pub(super) struct Lines<'a> {
    stream: &'a mut UnixStream,
    read: Vec<u8>,
    /// What came beside the lines so far.
    pub(super) fds: Vec<OwnedFd>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(stream: &'a mut UnixStream) -> Self {
        Self {
            stream,
            read: Vec::new(),
            fds: Vec::new(),
        }
    }

    /// The next line, read by `deadline`.
    pub(super) fn next(&mut self, deadline: Instant) -> io::Result<String> {
        loop {
            if let Some(line) = self.whole()? {
                return Ok(line);
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

    /// The next line, however long it takes; `Interrupted` when it stops.
    pub(super) fn next_unless(&mut self, stops: &mut dyn FnMut() -> bool) -> io::Result<String> {
        use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        loop {
            if let Some(line) = self.whole()? {
                return Ok(line);
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

    /// A line that is there already.
    fn whole(&mut self) -> io::Result<Option<String>> {
        let wrong = |text| io::Error::new(io::ErrorKind::InvalidData, text);
        let Some(end) = self.read.iter().position(|&byte| byte == b'\n') else {
            return match self.read.len() > LINE_LIMIT {
                true => Err(wrong("answer is longer than 64 KiB")),
                false => Ok(None),
            };
        };
        let mut line: Vec<u8> = self.read.drain(..=end).collect();
        line.pop();
        match String::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(wrong("answer is not UTF-8")),
        }
    }
}
