//! The service's end of the sockets through which a claim's processes call the arbiter of a GPU.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use crate::sys::{receive_bytes, socket_pair};

/// A socket pair of a claim on a GPU. Members hold the other end, and see at once when the service is gone.
#[derive(Debug)]
pub struct Doorbell {
    own: OwnedFd,
    members: OwnedFd,
}

impl Doorbell {
    /// Creates the pair.
    pub fn new() -> io::Result<Self> {
        let (own, members) = socket_pair()?;
        Ok(Self { own, members })
    }

    /// The end to hand to members.
    pub fn member_fd(&self) -> BorrowedFd<'_> {
        self.members.as_fd()
    }

    /// Reads the calls that have arrived, and returns their number. Does not wait, and leaves calls that arrive faster
    /// than they are read.
    pub fn drain(&self) -> u32 {
        u32::try_from(receive_bytes(self.own.as_raw_fd())).unwrap_or(u32::MAX)
    }
}

/// The end to poll: readable after a call.
impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}
