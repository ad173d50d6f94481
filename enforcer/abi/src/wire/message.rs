//! A message: a header, then as many bytes as it states. Numbers are in native byte order: both sides run on one
//! machine.

use std::fmt;

/// Start of each message. No text begins so, and the service can tell it from its clients' lines.
const MAGIC: [u8; 4] = *b"\x01gsh";

/// Version of the messages. Members of 0.1 sent lines of JSON, which count as version 1. A message may end in bytes
/// that an older reader does not know and ignores.
const VERSION: u16 = 2;

/// Maximum body size in bytes.
pub const LIMIT: usize = 64 << 10;

#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    magic: [u8; 4],
    version: u16,
    kind: u16,
    /// Length of the body in bytes.
    length: u32,
}

const HEADER: usize = size_of::<Header>();

impl Header {
    /// The header of the message that begins here; `None` while it is incomplete.
    fn read(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        if !MAGIC.starts_with(&bytes[..bytes.len().min(MAGIC.len())]) {
            return Err(Malformed(
                "it does not start with a message header".to_owned(),
            ));
        }
        if bytes.len() < HEADER {
            return Ok(None);
        }
        let mut header = Body(bytes);
        let header = Self {
            magic: header.take("magic")?,
            version: header.take("version").map(u16::from_ne_bytes)?,
            kind: header.take("kind").map(u16::from_ne_bytes)?,
            length: header.u32("length")?,
        };
        if header.version != VERSION {
            let version = header.version;
            let text =
                format!("it has version {version}, but this program knows only version {VERSION}");
            return Err(Malformed(text));
        }
        if header.length as usize > LIMIT {
            return Err(Malformed(format!("it is longer than {LIMIT} bytes")));
        }
        Ok(Some(header))
    }
}

/// The bytes are not such a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for std::io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, malformed)
    }
}

fn missing(field: &str) -> Malformed {
    Malformed(format!("`{field}` is missing"))
}

/// Whether bytes begin like a message; one byte is enough.
pub fn begins(bytes: &[u8]) -> bool {
    bytes.first() == MAGIC.first()
}

/// Length of the message that begins here, with its header; `None` while it is incomplete.
///
/// # Errors
/// If no message begins here, or one of another version or above the [`LIMIT`].
pub fn length(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let header = Header::read(bytes)?;
    Ok(header.map(|header| HEADER + header.length as usize))
}

/// Kind and body of a complete message.
pub(super) fn open(message: &[u8]) -> Result<(u16, Body<'_>), Malformed> {
    let header = Header::read(message)?.ok_or_else(|| missing("header"))?;
    let body = message[HEADER..].get(..header.length as usize);
    Ok((header.kind, Body(body.ok_or_else(|| missing("body"))?)))
}

/// The unread rest of a body.
#[derive(Debug)]
pub(super) struct Body<'a>(&'a [u8]);

impl Body<'_> {
    pub(super) fn take<const N: usize>(&mut self, field: &str) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(|| missing(field))?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u32(&mut self, field: &str) -> Result<u32, Malformed> {
        self.take(field).map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self, field: &str) -> Result<u64, Malformed> {
        self.take(field).map(u64::from_ne_bytes)
    }

    pub(super) fn text(&mut self, field: &str) -> Result<String, Malformed> {
        let length = self.u32(field)? as usize;
        let (text, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| missing(field))?;
        self.0 = rest;
        let text = std::str::from_utf8(text);
        text.map(str::to_owned)
            .map_err(|_| Malformed(format!("`{field}` is not UTF-8")))
    }

    /// A list with its length in front, each element read by `one`.
    pub(super) fn list<T>(
        &mut self,
        field: &str,
        mut one: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32(field)?;
        (0..count).map(|_| one(self)).collect()
    }
}

#[derive(Debug)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new(kind: u16) -> Self {
        let header = Self(MAGIC.to_vec());
        let header = header.bytes(&VERSION.to_ne_bytes());
        header.bytes(&kind.to_ne_bytes()).u32(0)
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(super) fn u32(self, number: u32) -> Self {
        self.bytes(&number.to_ne_bytes())
    }

    pub(super) fn u64(self, number: u64) -> Self {
        self.bytes(&number.to_ne_bytes())
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.u32(count(text.len())).bytes(text.as_bytes())
    }

    pub(super) fn list<T>(self, list: &[T], one: impl Fn(Self, &T) -> Self) -> Self {
        list.iter().fold(self.u32(count(list.len())), one)
    }

    pub(super) fn done(mut self) -> Vec<u8> {
        let length = count(self.0.len() - HEADER);
        self.0[HEADER - 4..HEADER].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
