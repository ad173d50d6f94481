//! The messages by which a member obtains its pages and the launcher its plan, both sides.
//!
//! A member sends [`Register`]. A positive [`Answer`] carries two descriptors for each listed GPU, in order: the limits
//! page (read-only) and the usage page. One doorbell for each GPU may follow all pairs. The first registration claims
//! the GPU of a claim that has none yet; messages with the reason for waiting then precede the answer.
//!
//! They are not JSON: a program keeps the proxy that it started with, and a parser has no place in other people's
//! processes. See the `message` module for the layout. The service also understands the lines of members of 0.1.

mod launch;
mod message;
mod stream;

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

pub use self::launch::{Bind, Launch, LaunchAnswer, NO_NEW_PRIVS, Plan};
pub use self::message::{LIMIT, Malformed, begins, length};

use self::message::{Body, Writer, open};
use self::stream::Messages;
use crate::{ABI_VERSION, GpuUuid, sys::connect};

/// Kinds of messages; numbers are never reused.
mod kind {
    pub(super) const REGISTER: u16 = 1;
    pub(super) const WANT: u16 = 2;
    pub(super) const LAUNCH: u16 = 3;
    pub(super) const MEMBER: u16 = 16;
    pub(super) const WAIT: u16 = 17;
    pub(super) const LATER: u16 = 18;
    pub(super) const REFUSED: u16 = 19;
    pub(super) const WANTED: u16 = 20;
    pub(super) const PLAN: u16 = 21;
}

/// Requests of a claim's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Become a member.
    Register(Register),
    /// Get the GPU memory back.
    Want(Want),
    /// Become the command of a claim, or another process in it.
    Launch(Launch),
}

/// A member's request for its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Register {
    /// Version of the pages that the member understands.
    pub abi: u32,
    /// The process, in its own pid namespace; the service uses the socket's credentials.
    pub pid: u32,
    /// Claim named by the environment; a hint only.
    pub hint: Option<u64>,
    /// Only a query: no GPU is claimed for a claim that has none yet.
    pub looks: bool,
}

/// The request of a member of a detached claim for its GPU memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// Claim named by the environment; a hint only.
    pub hint: Option<u64>,
}

/// Flag of a registration: only a query.
const LOOKS: u32 = 1;

fn hint(writer: Writer, hint: Option<u64>) -> Writer {
    writer.list(hint.as_slice(), |writer, hint| writer.u64(*hint))
}

fn read_hint(body: &mut Body<'_>) -> Result<Option<u64>, Malformed> {
    Ok(body.list("hint", |body| body.u64("hint"))?.pop())
}

impl Request {
    /// Decodes a message.
    ///
    /// # Errors
    /// [`Malformed`], which names the missing part.
    pub fn read(message: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut body) = open(message)?;
        match kind {
            kind::REGISTER => Ok(Self::Register(Register {
                abi: body.u32("abi")?,
                pid: body.u32("pid")?,
                looks: body.u32("flags")? & LOOKS != 0,
                hint: read_hint(&mut body)?,
            })),
            kind::WANT => Ok(Self::Want(Want {
                hint: read_hint(&mut body)?,
            })),
            kind::LAUNCH => Ok(Self::Launch(Launch {
                claim: body.u64("claim")?,
            })),
            other => Err(Malformed(format!("unknown request kind {other}"))),
        }
    }

    /// The message.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Register(asked) => {
                let writer = Writer::new(kind::REGISTER).u32(asked.abi).u32(asked.pid);
                hint(writer.u32(if asked.looks { LOOKS } else { 0 }), asked.hint)
            }
            Self::Want(asked) => hint(Writer::new(kind::WANT), asked.hint),
            Self::Launch(asked) => Writer::new(kind::LAUNCH).u64(asked.claim),
        }
        .done()
    }
}

/// Asks the service at `socket` to restore this process's GPU memory; returns the reason for a wait, for people. Takes
/// at most about `timeout`.
///
/// # Errors
/// If no service answers, or it refuses.
pub fn want(socket: &str, hint: Option<u64>, timeout: Duration) -> io::Result<String> {
    let deadline = Instant::now() + timeout;
    let mut stream = connect(socket, timeout)?;
    send_all(&mut stream, &Request::Want(Want { hint }).bytes())?;
    match Answer::read(&Messages::new(&mut stream).next(deadline)?)? {
        Answer::Wanted { message } => Ok(message),
        Answer::Refused { message, .. } => Err(io::Error::other(message)),
        _ => Err(Malformed("unexpected reply kind".to_owned()).into()),
    }
}

/// One GPU of a positive answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    pub uuid: GpuUuid,
    /// The slot in its usage page.
    pub slot: usize,
    /// Times the slot was handed out.
    pub generation: u64,
}

/// The service's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The process is a member.
    Member {
        claim: u64,
        /// Its name, for messages.
        name: String,
        /// A seat on each of its GPUs.
        gpus: Vec<Seat>,
        /// Environment variables, name and value, for the process's placeholders (see [`crate::place`]).
        env: Vec<(String, String)>,
    },
    /// The claim's GPUs are not free yet; another message follows.
    Wait {
        claim: u64,
        /// 1 is the head of the queue.
        position: u32,
        /// Reason for the wait, for people.
        reason: String,
    },
    /// For a process that only asks: the claim has no GPUs yet.
    Later {
        claim: u64,
        /// Number of GPUs that it will have.
        gpus: u32,
    },
    /// To a process that wants its memory back.
    Wanted {
        /// Reason for the wait, for people; empty without one.
        message: String,
    },
    /// The process is not a member.
    Refused {
        /// A code for programs, such as `no_claim`.
        code: String,
        message: String,
    },
}

impl Answer {
    /// Decodes a message.
    ///
    /// # Errors
    /// [`Malformed`], which names the missing part.
    pub fn read(message: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut body) = open(message)?;
        match kind {
            kind::MEMBER => Ok(Self::Member {
                claim: body.u64("claim")?,
                gpus: body.list("gpus", |body| {
                    Ok(Seat {
                        uuid: GpuUuid(body.take("uuid")?),
                        slot: body.u32("slot")? as usize,
                        generation: body.u64("generation")?,
                    })
                })?,
                name: body.text("name")?,
                env: body.list("env", |body| Ok((body.text("env")?, body.text("env")?)))?,
            }),
            kind::WAIT => Ok(Self::Wait {
                claim: body.u64("claim")?,
                position: body.u32("position")?,
                reason: body.text("reason")?,
            }),
            kind::LATER => Ok(Self::Later {
                claim: body.u64("claim")?,
                gpus: body.u32("gpus")?,
            }),
            kind::WANTED => Ok(Self::Wanted {
                message: body.text("message")?,
            }),
            kind::REFUSED => Ok(Self::Refused {
                code: body.text("code")?,
                message: body.text("message")?,
            }),
            other => Err(Malformed(format!("unknown reply kind {other}"))),
        }
    }

    /// The message.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Member {
                claim,
                name,
                gpus,
                env,
            } => Writer::new(kind::MEMBER)
                .u64(*claim)
                .list(gpus, |writer, seat| {
                    let slot = u32::try_from(seat.slot).unwrap_or(u32::MAX);
                    writer.bytes(&seat.uuid.0).u32(slot).u64(seat.generation)
                })
                .text(name)
                .list(env, |writer, (name, value)| writer.text(name).text(value)),
            Self::Wait {
                claim,
                position,
                reason,
            } => Writer::new(kind::WAIT)
                .u64(*claim)
                .u32(*position)
                .text(reason),
            Self::Later { claim, gpus } => Writer::new(kind::LATER).u64(*claim).u32(*gpus),
            Self::Wanted { message } => Writer::new(kind::WANTED).text(message),
            Self::Refused { code, message } => Writer::new(kind::REFUSED).text(code).text(message),
        }
        .done()
    }
}

/// A process that waits for the GPUs of its claim.
pub trait Waits {
    /// Reports the reason for the wait.
    fn told(&mut self, claim: u64, position: u32, reason: &str);

    /// Whether to give up; called some times a second.
    fn stops(&mut self) -> bool;
}

/// Registers this process with the service at `socket`; takes at most about `timeout` or, for a claim without a GPU,
/// until it has one or `waits` stops. Without `waits` it is only a query. The descriptors are two for each GPU of a
/// positive answer, limits and usage; one doorbell for each GPU may follow all of these.
///
/// # Errors
/// `Interrupted` if `waits` stopped; otherwise the kernel's, or `InvalidData`.
pub fn register(
    socket: &str,
    hint: Option<u64>,
    timeout: Duration,
    mut waits: Option<&mut dyn Waits>,
) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let mut stream = connect(socket, timeout)?;
    let register = Register {
        abi: ABI_VERSION,
        pid: std::process::id(),
        hint,
        looks: waits.is_none(),
    };
    send_all(&mut stream, &Request::Register(register).bytes())?;
    let mut messages = Messages::new(&mut stream);
    let mut message = messages.next(Instant::now() + timeout)?;
    let answer = loop {
        let answer = Answer::read(&message)?;
        match (&answer, &mut waits) {
            (
                Answer::Wait {
                    claim,
                    position,
                    reason,
                },
                Some(waits),
            ) => {
                waits.told(*claim, *position, reason);
                message = messages.next_unless(&mut || waits.stops())?;
            }
            _ => break answer,
        }
    };
    let fds = messages.fds;
    let gpus = match &answer {
        Answer::Member { gpus, .. } => gpus.len(),
        _ => 0,
    };
    if fds.len() != 2 * gpus && fds.len() != 3 * gpus {
        return Err(Malformed(format!(
            "the service sent {} descriptors for {gpus} GPUs, expected two or three for each",
            fds.len()
        ))
        .into());
    }
    Ok((answer, fds))
}

fn send_all(stream: &mut UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    // Not `write_all`, which would raise SIGPIPE in a program that has not ignored it.
    while !bytes.is_empty() {
        let sent = crate::send_with_fds(stream.as_fd(), bytes, &[])?;
        bytes = &bytes[sent..];
    }
    stream.flush()
}

/// Asks the service at the other end of `stream` for the plan of a launch; takes at most about `timeout`.
///
/// # Errors
/// If no service answers, or another program does.
pub fn launch(stream: &mut UnixStream, claim: u64, timeout: Duration) -> io::Result<LaunchAnswer> {
    let deadline = Instant::now() + timeout;
    send_all(stream, &Request::Launch(Launch { claim }).bytes())?;
    Ok(LaunchAnswer::read(&Messages::new(stream).next(deadline)?)?)
}

/// Connects to the service's socket; the stream has `timeout` for connecting, reads and writes.
///
/// # Errors
/// The kernel's, or `InvalidInput` for a path that is too long.
pub fn connect_within(socket: &str, timeout: Duration) -> io::Result<UnixStream> {
    connect(socket, timeout)
}

/// Reads one request, for a service that handles a connection in a thread of its own.
///
/// # Errors
/// The kernel's, or `InvalidData`.
pub fn read_request(stream: &mut UnixStream) -> io::Result<Request> {
    let mut message = Vec::new();
    let mut byte = [0];
    loop {
        if length(&message)? == Some(message.len()) {
            return Ok(Request::read(&message)?);
        }
        stream.read_exact(&mut byte)?;
        message.push(byte[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive() {
        for hint in [None, Some(0), Some(u64::MAX)] {
            for request in [
                Request::Register(Register {
                    abi: 1,
                    pid: 4711,
                    hint,
                    looks: hint.is_none(),
                }),
                Request::Want(Want { hint }),
                Request::Launch(Launch {
                    claim: hint.unwrap_or(3),
                }),
            ] {
                let bytes = request.bytes();
                assert!(begins(&bytes));
                assert_eq!(length(&bytes), Ok(Some(bytes.len())));
                assert_eq!(Request::read(&bytes), Ok(request));
            }
        }
    }

    fn answers() -> Vec<Answer> {
        vec![
            Answer::Member {
                claim: 3,
                name: "c3 ü \\ \"".to_owned(),
                gpus: vec![
                    Seat {
                        uuid: GpuUuid([7; 16]),
                        slot: 5,
                        generation: 9,
                    },
                    Seat {
                        uuid: GpuUuid([8; 16]),
                        slot: 127,
                        generation: u64::MAX,
                    },
                ],
                env: vec![("A".to_owned(), "/x \"y\"".to_owned())],
            },
            Answer::Member {
                claim: 0,
                name: String::new(),
                gpus: vec![],
                env: vec![],
            },
            Answer::Wait {
                claim: 4,
                position: 2,
                reason: "needs 8.0 GiB; \"c1\" has it".to_owned(),
            },
            Answer::Later { claim: 4, gpus: 2 },
            Answer::Wanted {
                message: "GPU 1 \"x\"".to_owned(),
            },
            Answer::Refused {
                code: "no_claim".to_owned(),
                message: "process 12 is in no claim".to_owned(),
            },
        ]
    }

    #[test]
    fn answers_survive() {
        for answer in answers() {
            assert_eq!(Answer::read(&answer.bytes()), Ok(answer));
        }
    }

    #[test]
    fn a_message_that_is_cut_names_what_is_missing_and_one_with_more_is_read() {
        for answer in answers() {
            let bytes = answer.bytes();
            for cut in 0..bytes.len() {
                assert!(Answer::read(&bytes[..cut]).is_err(), "{answer:?} {cut}");
            }
            // From a newer sender.
            let more = [&bytes[..], b"more"].concat();
            let mut longer = more.clone();
            let body = u32::try_from(more.len() - 12).expect("short");
            longer[8..12].copy_from_slice(&body.to_ne_bytes());
            assert_eq!(Answer::read(&longer), Ok(answer));
        }
        let cut = |bytes: &[u8]| Answer::read(bytes).expect_err("cut").to_string();
        let seat = Answer::Later { claim: 1, gpus: 1 }.bytes();
        let mut short = seat[..20].to_vec();
        short[8..12].copy_from_slice(&8_u32.to_ne_bytes());
        assert!(cut(&short).contains("`gpus` is missing"), "{}", cut(&short));
        let foreign = cut(b"{\"ok\":true}");
        assert!(foreign.contains("message header"), "{foreign}");
        let mut newer = seat;
        newer[4] = 9;
        assert!(cut(&newer).contains("version 9"), "{}", cut(&newer));
    }

    #[test]
    fn a_long_body_and_a_count_that_lies_are_refused() {
        let mut long = Request::Launch(Launch { claim: 1 }).bytes();
        long[8..12].copy_from_slice(&(64_u32 << 20).to_ne_bytes());
        assert!(length(&long).is_err());
        let mut lies = Request::Want(Want { hint: Some(1) }).bytes();
        lies[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(Request::read(&lies).is_err());
    }

    /// Messages of members of 0.2 stay valid: programs keep the library that they started with.
    #[test]
    #[cfg(target_endian = "little")]
    fn the_bytes_of_0_2_are_understood() {
        let register = [
            1, b'g', b's', b'h', 2, 0, 1, 0, 24, 0, 0,
            0, // header: version 2, kind 1, 24 bytes
            3, 0, 0, 0, // pages
            0x67, 0x12, 0, 0, // process
            1, 0, 0, 0, // only a query
            1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, // claim 7
        ];
        let expected = Register {
            abi: 3,
            pid: 4711,
            hint: Some(7),
            looks: true,
        };
        assert_eq!(
            Request::read(&register),
            Ok(Request::Register(expected.clone()))
        );
        assert_eq!(Request::Register(expected).bytes(), register);
        for (hex, request) in [
            (
                "01677368020002000c000000010000000700000000000000",
                Request::Want(Want { hint: Some(7) }),
            ),
            (
                "0167736802000300080000000700000000000000",
                Request::Launch(Launch { claim: 7 }),
            ),
        ] {
            assert_eq!(request.bytes(), bytes(hex));
            assert_eq!(Request::read(&bytes(hex)), Ok(request));
        }
        let recorded = [
            "016773680200100064000000030000000000000002000000070707070707070707070707070707070500000009000000\
             00000000080808080808080808080808080808087f000000ffffffffffffffff09000000633320c3bc205c2022010000\
             000100000041060000002f7820227922",
            "0167736802001000140000000000000000000000000000000000000000000000",
            "01677368020011002a0000000400000000000000020000001a0000006e6565647320382e30204769423b202263312220\
             686173206974",
            "01677368020012000c000000040000000000000002000000",
            "01677368020014000d00000009000000475055203120227822",
            "016773680200130029000000080000006e6f5f636c61696d1900000070726f6365737320313220697320696e206e6f20\
             636c61696d",
        ];
        for (hex, answer) in recorded.iter().zip(answers()) {
            assert_eq!(answer.bytes(), bytes(hex));
            assert_eq!(Answer::read(&bytes(hex)), Ok(answer));
        }
        assert_eq!(recorded.len(), answers().len());
        let plan = Plan {
            claim: 7,
            majors: vec![195, 510],
            binds: vec![Bind {
                from: "/a \"b\"".to_owned(),
                device: 1,
                inode: u64::MAX,
                on: "/ü".to_owned(),
            }],
        };
        let refused = LaunchAnswer::Refused {
            code: "ended".to_owned(),
            message: "c3 is ending".to_owned(),
        };
        for (hex, answer) in [
            (
                "016773680200150041000000070000000000000002000000c300000000000000fe010000000000000100000006000000\
             2f61202262220100000000000000ffffffffffffffff030000002fc3bc",
                LaunchAnswer::Go(plan),
            ),
            (
                "01677368020013001900000005000000656e6465640c000000633320697320656e64696e67",
                refused,
            ),
        ] {
            assert_eq!(answer.bytes(), bytes(hex));
            assert_eq!(LaunchAnswer::read(&bytes(hex)), Ok(answer));
        }
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let at = |i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hexadecimal");
        (0..hex.len()).step_by(2).map(at).collect()
    }
}
