//! A small blocking client, for the command line: no runtime, so that `gshare claim` starts fast.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Call, Hello, MAX_LINE, PROTOCOL, Reply, WireError, messages};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{}", messages::no_answer(.path.display()))]
    NoService {
        /// Socket.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the connection to the gshare service broke")]
    Io(#[from] io::Error),
    #[error("the gshare service closed the connection")]
    Closed,
    #[error("{}", messages::strange_answer())]
    Garbled(#[source] serde_json::Error),
    #[error("{}", .0.message)]
    Refused(WireError),
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    /// The last line.
    line: Vec<u8>,
    /// Called if the greeting is late.
    late: Option<fn()>,
}

/// Beginning of every line with a snapshot.
const SNAPSHOT: &str = r#"{"reply":"snapshot","#;
/// A snapshot has tens of kilobytes.
const BUFFER: usize = 64 << 10;

impl Client {
    /// Connects. The greeting is sent with the first call, so that a call costs one round trip.
    ///
    /// # Errors
    ///
    /// [`ClientError::NoService`] when nothing listens at `path`.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).map_err(|source| ClientError::NoService {
            path: path.to_owned(),
            source,
        })?;
        let mut client = Self {
            reader: BufReader::with_capacity(BUFFER, stream),
            line: Vec::new(),
            late: None,
        };
        client.write(&Hello {
            gshare: PROTOCOL,
            client: concat!("gshare ", env!("CARGO_PKG_VERSION")).into(),
        })?;
        Ok(client)
    }

    /// Sends a call and returns the first reply after the greeting's.
    ///
    /// # Errors
    ///
    /// A refusal by the service is [`ClientError::Refused`].
    pub fn call(&mut self, call: &Call) -> Result<Reply, ClientError> {
        self.write(call)?;
        self.next_reply()
    }

    /// The next line of an answer with several lines.
    ///
    /// # Errors
    ///
    /// As for [`Self::call`].
    pub fn next_reply(&mut self) -> Result<Reply, ClientError> {
        loop {
            match self.read()? {
                Reply::Hello { .. } => {
                    if self.late.is_some() {
                        self.set_read_timeout(None)?;
                    }
                }
                Reply::Error(e) => return Err(ClientError::Refused(e)),
                other => return Ok(other),
            }
        }
    }

    /// Calls `tell` once if the greeting has not arrived after this time; the wait goes on.
    ///
    /// # Errors
    ///
    /// As for [`Self::set_read_timeout`].
    pub fn tell_if_late(&mut self, after: Duration, tell: fn()) -> io::Result<()> {
        self.set_read_timeout(Some(after))?;
        self.late = Some(tell);
        Ok(())
    }

    /// Limits how long a read may block, in place of [`Self::tell_if_late`]; `None` waits for ever.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.late = None;
        self.reader.get_ref().set_read_timeout(timeout)
    }

    fn write(&mut self, line: &impl serde::Serialize) -> Result<(), ClientError> {
        let mut text = serde_json::to_string(line).map_err(ClientError::Garbled)?;
        text.push('\n');
        self.reader.get_mut().write_all(text.as_bytes())?;
        Ok(())
    }

    fn read(&mut self) -> Result<Reply, ClientError> {
        // Snapshots grow with the number of claims, so replies may be longer than requests.
        let (limit, line) = (64 * MAX_LINE as u64, &mut self.line);
        line.clear();
        let mut reader = io::Read::take(&mut self.reader, limit);
        let n = match (reader.read_until(b'\n', line), self.late) {
            (Err(e), Some(tell)) if e.kind() == io::ErrorKind::WouldBlock => {
                tell();
                reader.get_ref().get_ref().set_read_timeout(None)?;
                reader.read_until(b'\n', line)?
            }
            (read, _) => read?,
        };
        if n == 0 || line.last() != Some(&b'\n') {
            return Err(ClientError::Closed);
        }
        // Check UTF-8 once for the whole line: doing so for each string costs a fifth of the reading.
        let line = std::str::from_utf8(line)
            .map_err(|e| ClientError::Garbled(serde::de::Error::custom(e)))?;
        // Watching clients read one every second, so skip the search for the kind of line.
        if line.starts_with(SNAPSHOT) {
            let snapshot = serde_json::from_str(line).map_err(ClientError::Garbled)?;
            return Ok(Reply::Snapshot(snapshot));
        }
        serde_json::from_str(line).map_err(ClientError::Garbled)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.get_ref().as_fd()
    }
}
