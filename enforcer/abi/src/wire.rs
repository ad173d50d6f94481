//! The message by which a member obtains its pages, both sides.
//!
//! The member sends one JSON line, the service answers with one. A positive answer carries two
//! descriptors for each GPU it lists, in that order: the limits page (read-only) and the usage page. Behind
//! all pairs may follow one doorbell for each GPU. A claim that has no GPU yet is claimed with the first
//! registration; lines that say what is waited for come before the answer then.

mod json;
mod launch;
mod lines;

use std::{
    fmt,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

pub use self::launch::{Bind, Launch, LaunchAnswer, Plan};

use self::json::{Value, quote};
use self::lines::Lines;
use crate::{ABI_VERSION, GpuUuid, sys::connect};

/// Longest line of either side in bytes.
pub const LINE_LIMIT: usize = 64 << 10;

/// What a member asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Register {
    /// Version of the pages that the member understands.
    pub abi: u32,
    /// The process, in its own pid namespace; the service goes by the socket's credentials.
    pub pid: u32,
    /// Claim that the environment names; a hint only.
    pub hint: Option<u64>,
    /// It only looks: a claim that has no GPU yet is not claimed for it.
    pub looks: bool,
}

/// What a member asks for whose claim is detached: its GPU memory back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// Claim that the environment names; a hint only.
    pub hint: Option<u64>,
}

impl Want {
    /// Reads the line; `None` for another message.
    pub fn parse(line: &str) -> Option<Self> {
        let value = Value::parse(line).ok()?;
        (value.text("op") == Some("want")).then(|| Self {
            hint: value.number("hint"),
        })
    }

    /// The line, with its newline.
    pub fn line(&self) -> String {
        let hint = self
            .hint
            .map_or_else(|| "null".to_owned(), |hint| hint.to_string());
        format!("{{\"op\":\"want\",\"hint\":{hint}}}\n")
    }

    /// The answer's line: what is waited for, for people; empty for nothing.
    pub fn answer(message: &str) -> String {
        format!("{{\"ok\":true,\"message\":{}}}\n", quote(message))
    }
}

/// Tells the service at `socket` that this process wants its GPU memory back; gives what is waited for, in words.
/// Takes at most about `timeout`.
///
/// # Errors
/// When no service answers, or it refuses.
pub fn want(socket: &str, hint: Option<u64>, timeout: Duration) -> io::Result<String> {
    let deadline = Instant::now() + timeout;
    let mut stream = connect(socket, timeout)?;
    send_all(&mut stream, Want { hint }.line().as_bytes())?;
    let line = Lines::new(&mut stream).next(deadline)?;
    let garbled = |error: Malformed| io::Error::new(io::ErrorKind::InvalidData, error);
    let value = Value::parse(&line).map_err(garbled)?;
    match refusal(&value).map_err(garbled)? {
        Some((_, message)) => Err(io::Error::other(message)),
        None => Ok(value.text("message").unwrap_or_default().to_owned()),
    }
}

/// One GPU of a positive answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// The GPU.
    pub uuid: GpuUuid,
    /// The slot in its usage page.
    pub slot: usize,
    /// How often the slot was handed out.
    pub generation: u64,
}

/// The service's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The process is a member.
    Member {
        /// Number of the claim.
        claim: u64,
        /// Its name, for messages.
        name: String,
        /// A seat on each of its GPUs.
        gpus: Vec<Seat>,
        /// Variables of the environment, name and value, for which the process was started with places
        /// (see [`crate::place`]).
        env: Vec<(String, String)>,
    },
    /// The claim's GPUs are not free yet; another line follows.
    Wait {
        /// Number of the claim.
        claim: u64,
        /// 1 is the head of the queue.
        position: u32,
        /// What it waits for, for people.
        reason: String,
    },
    /// To one who only looks: the claim has no GPUs yet.
    Later {
        /// Number of the claim.
        claim: u64,
        /// How many it will have.
        gpus: u32,
    },
    /// The process is not a member.
    Refused {
        /// A word for programs, such as `no_claim`.
        code: String,
        /// A sentence for people.
        message: String,
    },
}

/// The line is not such a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed registration: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

fn missing(field: &str) -> Malformed {
    Malformed(format!("`{field}` is missing or of the wrong kind"))
}

/// Code and sentence of an answer that refuses; `None` if it grants.
fn refusal(answer: &Value) -> Result<Option<(String, String)>, Malformed> {
    match answer.get("ok") {
        Some(Value::Bool(true)) => Ok(None),
        Some(Value::Bool(false)) => Ok(Some((
            answer.text("code").unwrap_or("unknown").to_owned(),
            answer.text("message").unwrap_or_default().to_owned(),
        ))),
        _ => Err(missing("ok")),
    }
}

/// Pairs of texts; whatever else is there is left out.
fn variables(field: Option<&Value>) -> Vec<(String, String)> {
    let Some(Value::Array(entries)) = field else {
        return Vec::new();
    };
    let pair = |entry: &Value| match entry {
        Value::Array(pair) => match pair.as_slice() {
            [Value::Text(name), Value::Text(value)] => Some((name.clone(), value.clone())),
            _ => None,
        },
        _ => None,
    };
    entries.iter().filter_map(pair).collect()
}

impl Register {
    /// Whether a line asks for registration, without looking at the rest of it.
    pub fn is_register(line: &str) -> bool {
        Value::parse(line).is_ok_and(|value| value.text("op") == Some("register"))
    }

    /// Reads the line.
    pub fn parse(line: &str) -> Result<Self, Malformed> {
        let value = Value::parse(line)?;
        if value.text("op") != Some("register") {
            return Err(missing("op"));
        }
        Ok(Self {
            abi: value
                .number("abi")
                .and_then(|abi| u32::try_from(abi).ok())
                .ok_or_else(|| missing("abi"))?,
            pid: value
                .number("pid")
                .and_then(|pid| u32::try_from(pid).ok())
                .ok_or_else(|| missing("pid"))?,
            hint: value.number("hint"),
            looks: matches!(value.get("looks"), Some(Value::Bool(true))),
        })
    }

    /// The line, with its newline.
    pub fn line(&self) -> String {
        let hint = self
            .hint
            .map_or_else(|| "null".to_owned(), |hint| hint.to_string());
        format!(
            "{{\"op\":\"register\",\"abi\":{},\"pid\":{},\"hint\":{hint},\"looks\":{}}}\n",
            self.abi, self.pid, self.looks
        )
    }
}

impl Answer {
    /// Reads the line.
    pub fn parse(line: &str) -> Result<Self, Malformed> {
        let value = Value::parse(line)?;
        let number = |field: &str| {
            let number = value.number(field).and_then(|n| u32::try_from(n).ok());
            number.ok_or_else(|| missing(field))
        };
        let claim = || value.number("claim").ok_or_else(|| missing("claim"));
        if value.get("wait").is_some() {
            return Ok(Self::Wait {
                claim: claim()?,
                position: number("wait")?,
                reason: value.text("reason").unwrap_or_default().to_owned(),
            });
        }
        if value.get("later").is_some() {
            return Ok(Self::Later {
                claim: claim()?,
                gpus: number("later")?,
            });
        }
        if let Some((code, message)) = refusal(&value)? {
            return Ok(Self::Refused { code, message });
        }
        let Some(Value::Array(entries)) = value.get("gpus") else {
            return Err(missing("gpus"));
        };
        let seat = |entry: &Value| -> Result<Seat, Malformed> {
            Ok(Seat {
                uuid: entry
                    .text("uuid")
                    .ok_or_else(|| missing("uuid"))?
                    .parse()
                    .map_err(|error| Malformed(format!("{error}")))?,
                slot: entry
                    .number("slot")
                    .and_then(|slot| usize::try_from(slot).ok())
                    .ok_or_else(|| missing("slot"))?,
                generation: entry
                    .number("generation")
                    .ok_or_else(|| missing("generation"))?,
            })
        };
        Ok(Self::Member {
            claim: claim()?,
            name: value.text("name").unwrap_or_default().to_owned(),
            gpus: entries.iter().map(seat).collect::<Result<_, _>>()?,
            env: variables(value.get("env")),
        })
    }

    /// The line, with its newline.
    pub fn line(&self) -> String {
        match self {
            Self::Member {
                claim,
                name,
                gpus,
                env,
            } => {
                let gpus: Vec<String> = gpus
                    .iter()
                    .map(|seat| {
                        format!(
                            "{{\"uuid\":\"{}\",\"slot\":{},\"generation\":{}}}",
                            seat.uuid, seat.slot, seat.generation
                        )
                    })
                    .collect();
                let env: Vec<String> = env
                    .iter()
                    .map(|(name, value)| format!("[{},{}]", quote(name), quote(value)))
                    .collect();
                format!(
                    "{{\"ok\":true,\"claim\":{claim},\"name\":{},\"gpus\":[{}],\"env\":[{}]}}\n",
                    quote(name),
                    gpus.join(","),
                    env.join(",")
                )
            }
            Self::Wait {
                claim,
                position,
                reason,
            } => format!(
                "{{\"wait\":{position},\"claim\":{claim},\"reason\":{}}}\n",
                quote(reason)
            ),
            Self::Later { claim, gpus } => format!("{{\"later\":{gpus},\"claim\":{claim}}}\n"),
            Self::Refused { code, message } => format!(
                "{{\"ok\":false,\"code\":{},\"message\":{}}}\n",
                quote(code),
                quote(message)
            ),
        }
    }
}

/// A process that waits for the GPUs of its claim.
pub trait Waits {
    /// What is waited for now.
    fn told(&mut self, claim: u64, position: u32, reason: &str);

    /// Looked at some times a second: whether to give up.
    fn stops(&mut self) -> bool;
}

/// Registers this process with the service at `socket`; takes at most about `timeout`, or, where the claim has
/// no GPU yet, until it has or `waits` stops. Without `waits` it only looks. The descriptors are two for each
/// GPU of a positive answer, limits and usage; behind all of these there may be one more for each, by which it
/// calls the GPU's arbiter.
///
/// # Errors
/// `Interrupted` when `waits` stopped; the kernel's otherwise, or `InvalidData`.
pub fn register(
    socket: &str,
    hint: Option<u64>,
    timeout: Duration,
    mut waits: Option<&mut dyn Waits>,
) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let mut stream = connect(socket, timeout)?;
    let message = Register {
        abi: ABI_VERSION,
        pid: std::process::id(),
        hint,
        looks: waits.is_none(),
    };
    send_all(&mut stream, message.line().as_bytes())?;
    let mut lines = Lines::new(&mut stream);
    let mut line = lines.next(Instant::now() + timeout)?;
    let answer = loop {
        let answer = Answer::parse(&line)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
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
                line = lines.next_unless(&mut || waits.stops())?;
            }
            _ => break answer,
        }
    };
    let fds = lines.fds;
    let gpus = match &answer {
        Answer::Member { gpus, .. } => gpus.len(),
        Answer::Wait { .. } | Answer::Later { .. } | Answer::Refused { .. } => 0,
    };
    if fds.len() != 2 * gpus && fds.len() != 3 * gpus {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the service sent {} descriptors for {gpus} GPUs, expected two or three for each",
                fds.len()
            ),
        ));
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

/// Asks the service at `socket` for the plan of a launch; takes at most about `timeout`. The stream goes with the
/// call: whoever launches has asked by then.
///
/// # Errors
/// When no service answers, or something else than a service.
pub fn launch(stream: &mut UnixStream, claim: u64, timeout: Duration) -> io::Result<LaunchAnswer> {
    let deadline = Instant::now() + timeout;
    send_all(stream, Launch { claim }.line().as_bytes())?;
    let line = Lines::new(stream).next(deadline)?;
    LaunchAnswer::parse(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Connects to the service's socket; the stream has `timeout` for connecting, reads and writes.
///
/// # Errors
/// The kernel's, or `InvalidInput` for a path that is too long.
pub fn connect_within(socket: &str, timeout: Duration) -> io::Result<UnixStream> {
    connect(socket, timeout)
}

/// Reads one line of at most [`LINE_LIMIT`] bytes, for a service that handles a connection in a
/// thread of its own.
pub fn read_request(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() <= LINE_LIMIT {
        match stream.read(&mut byte)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if byte[0] == b'\n' => {
                return String::from_utf8(line)
                    .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"));
            }
            _ => line.push(byte[0]),
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "line too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_line() {
        for hint in [None, Some(0), Some(u64::MAX)] {
            let register = Register {
                abi: 1,
                pid: 4711,
                hint,
                looks: hint.is_none(),
            };
            let line = register.line();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(Register::parse(line.trim_end()), Ok(register));
        }
    }

    #[test]
    fn a_wish_survives_the_line() {
        for hint in [None, Some(7)] {
            let want = Want { hint };
            assert_eq!(Want::parse(want.line().trim_end()), Some(want));
        }
        assert_eq!(Want::parse(r#"{"op":"register"}"#), None);
        let answer = Value::parse(&Want::answer("GPU 1 \"x\""));
        assert!(answer.is_ok_and(|a| a.text("message") == Some("GPU 1 \"x\"")));
    }

    #[test]
    fn an_answer_survives_the_line() {
        for answer in [
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
            Answer::Refused {
                code: "no_claim".to_owned(),
                message: "process 12 is in no claim".to_owned(),
            },
        ] {
            assert_eq!(Answer::parse(answer.line().trim_end()), Ok(answer));
        }
    }

    #[test]
    fn what_the_service_writes_is_what_the_member_expects() {
        let line = r#"{"ok": true, "claim": 3, "name": "c3", "extra": [1, {"a": null}],
            "gpus": [{"uuid": "GPU-0123abcd-4567-89ef-0011-aabbccddeeff", "slot": 5, "generation": 9}]}"#;
        let Ok(Answer::Member {
            claim, gpus, env, ..
        }) = Answer::parse(line)
        else {
            panic!("{line}");
        };
        assert_eq!((claim, gpus[0].slot, gpus[0].generation), (3, 5, 9));
        assert!(env.is_empty(), "an older service sends none");
    }

    #[test]
    fn other_lines_are_errors_that_name_the_field() {
        for (line, expected) in [
            ("", "end"),
            ("{", "field name"),
            ("[]", "ok"),
            (r#"{"ok":1}"#, "ok"),
            (r#"{"ok":true,"claim":1}"#, "gpus"),
            (r#"{"ok":true,"claim":-1,"gpus":[]}"#, "claim"),
            (r#"{"ok":true,"claim":1,"gpus":[{}]}"#, "uuid"),
            (
                r#"{"ok":true,"claim":1,"gpus":[{"uuid":"GPU-1"}]}"#,
                "GPU-1",
            ),
        ] {
            let error = Answer::parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert!(Register::parse(r#"{"op":"register","abi":1}"#).is_err());
        assert!(!Register::is_register(r#"{"op":"ps"}"#));
        assert!(Register::is_register(r#"{"op":"register"}"#));
    }
}
