//! How a process calls the arbiter of its GPU, and sees whether the service lives: one end of a socket
//! pair, the other end of which the service has.

use std::{
    io,
    os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd},
};

use crate::{
    member::wrong,
    sys::{has_hung_up, send_byte, socket_inode},
};

/// The member's end. Programs close descriptors that are not theirs, and the number may then mean
/// something else: the end is looked at before each use.
#[derive(Debug)]
pub struct Bell {
    fd: RawFd,
    inode: u64,
}

impl Bell {
    /// Takes the end for the rest of the process.
    ///
    /// # Errors
    /// When it is no socket.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let inode = socket_inode(fd.as_raw_fd())
            .ok_or_else(|| wrong("the descriptor for wake-ups is not a socket"))?;
        let fd = fd.into_raw_fd();
        Ok(Self { fd, inode })
    }

    fn is_there(&self) -> bool {
        socket_inode(self.fd) == Some(self.inode)
    }

    /// Has the arbiter look. Does not wait; where many calls lie before it already, one more is not
    /// needed.
    pub fn ring(&self) {
        if self.is_there() {
            send_byte(self.fd);
        }
    }

    /// Whether the service that gave this end out still runs; `None` when the program has closed it.
    pub fn service_lives(&self) -> Option<bool> {
        self.is_there().then(|| !has_hung_up(self.fd))
    }
}
