//! The service's end of the sockets by which a claim's processes call the arbiter of a GPU.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use crate::sys::{receive_byte, socket_pair};

/// A socket pair of one claim on one GPU. Its members hang on the other end; when the service is gone
/// they see that at once.
#[derive(Debug)]
pub struct Doorbell {
    own: OwnedFd,
    members: OwnedFd,
}

impl Doorbell {
    /// Makes the pair.
    pub fn new() -> io::Result<Self> {
        let (own, members) = socket_pair()?;
        Ok(Self { own, members })
    }

    /// The end to hand to members.
    pub fn member_fd(&self) -> BorrowedFd<'_> {
        self.members.as_fd()
    }

    /// Takes in all calls that have come; whether there was one. Does not wait.
    pub fn drain(&self) -> bool {
        let mut rang = false;
        while receive_byte(self.own.as_raw_fd()) {
            rang = true;
        }
        rang
    }
}

/// The end to wait on: readable when somebody has called.
impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}
