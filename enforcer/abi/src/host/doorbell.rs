//! The service's end of the sockets by which a claim's processes call the arbiter of a GPU.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use crate::sys::{receive_byte, socket_pair};

/// More calls than the kernel keeps for one that does not listen.
const MOST: usize = 512;

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

    /// Takes in the calls that have come; how many. Does not wait, and leaves what comes faster than it is taken in.
    pub fn drain(&self) -> u32 {
        let calls = (0..MOST).take_while(|_| receive_byte(self.own.as_raw_fd()));
        u32::try_from(calls.count()).unwrap_or(u32::MAX)
    }
}

/// The end to wait on: readable when somebody has called.
impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}
