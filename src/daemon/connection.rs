//! A connection as the state's task knows it: its number, where replies go, and its turn.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use gshare_abi::wire::{Answer, LaunchAnswer};
use gshare_proto::{Reply, WireError};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Maximum number of unread queue places for a client; more are not sent.
pub(crate) const UNREAD_PLACES: usize = 16;

pub(crate) type ConnId = u64;

/// A line to send, with descriptors.
#[derive(Debug)]
pub(crate) struct Out {
    pub(super) line: Arc<[u8]>,
    pub(super) fds: Vec<OwnedFd>,
}

/// Where replies of a connection go.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(super) out: mpsc::UnboundedSender<Out>,
    pub(super) unsent: Arc<AtomicUsize>,
    /// The other end is a member of version 0.1.
    pub(super) older: bool,
}

impl Sender {
    /// A sender whose client has gone.
    #[cfg(test)]
    pub(crate) fn closed() -> Self {
        Self {
            out: mpsc::unbounded_channel().0,
            unsent: Arc::default(),
            older: false,
        }
    }

    /// Sends a reply; it is dropped if the client has gone.
    pub(crate) fn reply(&self, reply: &Reply) {
        self.line(Self::encode(reply).into());
    }

    /// Encodes a reply as a line.
    pub(crate) fn encode(reply: &Reply) -> Vec<u8> {
        match serde_json::to_vec(reply) {
            Ok(mut line) => {
                line.push(b'\n');
                line
            }
            Err(error) => {
                tracing::error!(%error, "a reply could not be written as JSON");
                Vec::new()
            }
        }
    }

    /// Sends a line made by [`Self::encode`]; several connections may share it.
    pub(crate) fn line(&self, line: Arc<[u8]>) {
        self.send(Out {
            line,
            fds: Vec::new(),
        });
    }

    /// Sends a refusal.
    pub(crate) fn error(&self, error: WireError) {
        self.reply(&Reply::Error(error));
    }

    /// Sends a reply or a refusal.
    pub(crate) fn answer(&self, answer: Result<Reply, WireError>) {
        self.reply(&answer.unwrap_or_else(Reply::Error));
    }

    /// The same sender for a member of 0.1.
    pub(super) fn to_older(&self) -> Self {
        Self {
            older: true,
            ..self.clone()
        }
    }

    /// Answers a member.
    pub(crate) fn member(&self, answer: &Answer) {
        self.member_with(answer, Vec::new());
    }

    /// Refuses a member's request.
    pub(crate) fn refuse_member(&self, code: &str, message: String) {
        let code = code.to_owned();
        self.member(&Answer::Refused { code, message });
    }

    /// Answers a member, with descriptors.
    pub(crate) fn member_with(&self, answer: &Answer, fds: Vec<OwnedFd>) {
        self.bytes(
            match self.older {
                true => super::older::line(answer).into_bytes(),
                false => answer.bytes(),
            },
            fds,
        );
    }

    /// Answers the launcher.
    pub(crate) fn launcher(&self, answer: &LaunchAnswer) {
        self.bytes(answer.bytes(), Vec::new());
    }

    fn bytes(&self, bytes: Vec<u8>, fds: Vec<OwnedFd>) {
        self.send(Out {
            line: bytes.into(),
            fds,
        });
    }

    /// Whether the client has read everything. A stopped client is not sent snapshot after snapshot.
    pub(crate) fn idle(&self) -> bool {
        self.unsent() == 0
    }

    /// Number of replies that the client has not read yet.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Whether the connection has ended.
    pub(crate) fn gone(&self) -> bool {
        self.out.is_closed()
    }

    fn send(&self, out: Out) {
        // Counted before the other side can count down.
        self.unsent.fetch_add(1, Ordering::Relaxed);
        let _ = self.out.send(out);
    }
}

/// The turn of a connection, and of its user, to have one request handled.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Time at which its line was complete.
    pub(super) received: Instant,
    pub(super) _connection: OwnedSemaphorePermit,
    pub(super) _user: Option<OwnedSemaphorePermit>,
}
