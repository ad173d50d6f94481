//! A process's end of a socket pair with the service: it calls the arbiter of its GPU, and shows whether the service
//! lives.

use std::{
    io,
    os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd},
};

use crate::{
    member::wrong,
    sys::{has_hung_up, send_byte, socket_inode},
};

/// The member's end. Programs close descriptors that they did not open, and the number may then mean another file: the
/// end is checked before each use.
#[derive(Debug)]
pub struct Bell {
    fd: RawFd,
    inode: u64,
}

impl Bell {
    /// Takes the end for the rest of the process.
    ///
    /// # Errors
    /// If it is not a socket.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let inode = socket_inode(fd.as_raw_fd())
            .ok_or_else(|| wrong("the descriptor for wake-ups is not a socket"))?;
        let fd = fd.into_raw_fd();
        Ok(Self { fd, inode })
    }

    fn is_there(&self) -> bool {
        socket_inode(self.fd) == Some(self.inode)
    }

    /// Calls the arbiter. Does not wait; if many calls are queued already, another is not needed.
    pub fn ring(&self) {
        if self.is_there() {
            send_byte(self.fd);
        }
    }

    /// Whether the service that created this pair still runs; `None` if the program has closed the descriptor.
    pub fn service_lives(&self) -> Option<bool> {
        self.is_there().then(|| !has_hung_up(self.fd))
    }
}
