//! Lines of clients and messages of members in the input of a connection.

use gshare_abi::wire;
use gshare_proto::MAX_LINE;

/// Longest message of a member or the launcher in bytes: it has a few numbers.
const MEMBER: usize = 1024;

/// Why nothing further is read.
#[derive(Debug)]
pub(super) enum Bad {
    TooLong,
    /// It began like a member's message and is not one.
    Malformed(String),
}

/// Input that was not taken yet.
#[derive(Debug, Default)]
pub(super) struct Split {
    buffer: Vec<u8>,
    /// The bytes up to here contain no end of a line.
    seen: usize,
}

impl Split {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.reserve(bytes.len());
        self.buffer.extend_from_slice(bytes);
    }

    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Length of the first one, if it is complete; it stays until it is taken.
    pub(super) fn whole(&mut self) -> Result<Option<usize>, Bad> {
        if wire::begins(&self.buffer) {
            let length = wire::length(&self.buffer);
            let length = length.map_err(|error| Bad::Malformed(error.to_string()))?;
            if length.is_some_and(|length| length > MEMBER) {
                return Err(Bad::TooLong);
            }
            return Ok(length.filter(|&length| length <= self.buffer.len()));
        }
        let end = self.buffer[self.seen..].iter().position(|b| *b == b'\n');
        let length = end.map(|end| self.seen + end + 1);
        self.seen = length.map_or(self.buffer.len(), |length| length - 1);
        if self.seen > MAX_LINE {
            return Err(Bad::TooLong);
        }
        Ok(length)
    }

    /// Takes the first, complete bytes of this number.
    pub(super) fn take(&mut self, whole: usize) -> Vec<u8> {
        let rest = self.buffer.split_off(whole.min(self.buffer.len()));
        self.seen = 0;
        std::mem::replace(&mut self.buffer, rest)
    }
}
