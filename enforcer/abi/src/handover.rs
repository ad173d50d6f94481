//! What the command line hands to the launcher in a sealed memfd: the command's environment, byte for byte, and the
//! settings that the kernel resets for a program with file capabilities. The content is untrusted and is used with the
//! user's own rights only.

use std::fmt;

const MAGIC: &str = "gshare-handover 1";

/// Maximum size in bytes: more than the kernel accepts as an environment.
pub const HANDOVER_LIMIT: u64 = 8 << 20;

/// The content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handover {
    /// Signal for the process when its parent dies (PR_SET_PDEATHSIG); 0 for none.
    pub death_signal: u32,
    /// The parent at that time. If it has changed since, the signal is sent at once.
    pub parent: u32,
    /// Soft limit of the stack in bytes (RLIMIT_STACK).
    pub stack_bytes: u64,
    /// Execution domain (personality(2)).
    pub personality: u32,
    /// `NAME=value` and a zero byte each, as in `/proc/PID/environ`.
    pub environment: Vec<u8>,
}

/// The bytes are not a handover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotHandover(&'static str);

impl fmt::Display for NotHandover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the environment passed to gshare-exec {}", self.0)
    }
}

impl std::error::Error for NotHandover {}

impl Handover {
    /// Encodes it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = format!(
            "{MAGIC}\n{} {} {} {}\n",
            self.death_signal, self.parent, self.stack_bytes, self.personality
        );
        [head.as_bytes(), &self.environment].concat()
    }

    /// Decodes it.
    ///
    /// # Errors
    /// [`NotHandover`] if a line or a number is missing.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotHandover> {
        let cut = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n');
        let end = cut(bytes).ok_or(NotHandover("lacks its first line"))?;
        if bytes[..end] != *MAGIC.as_bytes() {
            return Err(NotHandover("is of another version"));
        }
        let rest = &bytes[end + 1..];
        let end = cut(rest).ok_or(NotHandover("lacks its second line"))?;
        let numbers = str::from_utf8(&rest[..end]).map_err(|_| NotHandover("has no numbers"))?;
        let mut numbers = numbers.split(' ').map(str::parse::<u64>);
        let mut next = || match numbers.next() {
            Some(Ok(number)) => Ok(number),
            _ => Err(NotHandover("lacks a number")),
        };
        let short = |number: u64| u32::try_from(number).map_err(|_| NotHandover("is out of range"));
        let environment = rest[end + 1..].to_vec();
        if environment.last().is_some_and(|byte| *byte != 0) {
            return Err(NotHandover("is cut off"));
        }
        Ok(Self {
            death_signal: short(next()?)?,
            parent: short(next()?)?,
            stack_bytes: next()?,
            personality: short(next()?)?,
            environment,
        })
    }

    /// The entries of the environment, without their zero bytes.
    pub fn entries(&self) -> impl Iterator<Item = &[u8]> {
        let text = self.environment.strip_suffix(b"\0");
        text.into_iter()
            .flat_map(|text| text.split(|byte| *byte == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_the_environment_survives() {
        let odd: Vec<u8> = (1..=255).collect();
        let environments: [&[&[u8]]; 4] = [
            &[],
            &[b"A=1", b"A=2", b"no equals sign", b"=x"],
            &[b"", b"B="],
            &[&odd],
        ];
        for entries in environments {
            let environment: Vec<u8> = entries.iter().flat_map(|e| [*e, b"\0"].concat()).collect();
            let handover = Handover {
                death_signal: 15,
                parent: 4711,
                stack_bytes: u64::MAX,
                personality: 0x0004_0000,
                environment,
            };
            let read = Handover::from_bytes(&handover.to_bytes()).expect("reads");
            assert_eq!(read, handover);
            assert_eq!(read.entries().collect::<Vec<_>>(), entries);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let whole = Handover {
            environment: b"A=1\0".to_vec(),
            ..Handover::default()
        }
        .to_bytes();
        for end in 0..whole.len() - 4 {
            assert!(Handover::from_bytes(&whole[..end]).is_err(), "{end}");
        }
        assert!(Handover::from_bytes(&whole[..whole.len() - 1]).is_err());
        assert!(Handover::from_bytes(b"gshare-handover 2\n0 0 0 0\n").is_err());
        assert!(Handover::from_bytes(b"gshare-handover 1\n0 0 x 0\n").is_err());
        assert!(Handover::from_bytes(b"gshare-handover 1\n0 0 0 99999999999\n").is_err());
    }
}
