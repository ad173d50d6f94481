//! Asks the service at a path that only root can write, so that nobody else can answer.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use gshare_abi::trusted;
use gshare_abi::wire::{self, LaunchAnswer, Plan};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::refusal::{ENDED, INTERNAL, NO_SERVICE, NOT_PERMITTED, Refusal};

/// The service's socket unless the file beside the launcher names another.
const SOCKET: &str = "/run/gshare/gshared.sock";
/// Name of that file, one line.
const BESIDE: &str = "gshare-exec.socket";
/// Longest wait for a restart of the service.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for one answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(50);

/// Asks until there is an answer. If the service dies first, asks again: moving into the claim twice is harmless.
pub(crate) fn ask(own: &Path, claim: u64) -> Result<Plan, Refusal> {
    let socket = socket(own)?;
    let until = Instant::now() + PATIENCE;
    let error = loop {
        match try_once(&socket, claim) {
            Ok(LaunchAnswer::Go(plan)) => return Ok(plan),
            Ok(LaunchAnswer::Refused { code, message }) => return Err(refused(&code, message)),
            Err(Failed::Untrusted(why)) => {
                return Err(Refusal::new(
                    NOT_PERMITTED,
                    format!("the service cannot be trusted: {why}"),
                ));
            }
            Err(Failed::Io(error)) if Instant::now() + AGAIN < until && passing(&error) => {
                std::thread::sleep(AGAIN);
            }
            Err(Failed::Io(error)) => break error,
        }
    };
    Err(Refusal::new(
        NO_SERVICE,
        format!("no gshare service answers at {socket}: {error}"),
    )
    .hint("gshare doctor says why"))
}

enum Failed {
    Untrusted(String),
    Io(io::Error),
}

fn try_once(socket: &str, claim: u64) -> Result<LaunchAnswer, Failed> {
    let mut stream = wire::connect_within(socket, ANSWER).map_err(Failed::Io)?;
    check_peer(socket, &stream).map_err(Failed::Untrusted)?;
    wire::launch(&mut stream, claim, ANSWER).map_err(Failed::Io)
}

/// Checks that root listens there, and that nobody else can have put the socket there.
fn check_peer(socket: &str, stream: &UnixStream) -> Result<(), String> {
    let dir = Path::new(socket).parent().unwrap_or(Path::new("/"));
    trusted(dir)?;
    let peer = getsockopt(&stream.as_fd(), PeerCredentials).map_err(|error| error.to_string())?;
    if peer.uid() == 0 {
        Ok(())
    } else {
        Err(format!(
            "the service at {socket} runs as uid {}, but must run as root",
            peer.uid()
        ))
    }
}

/// Whether an error may come from a restart of the service.
fn passing(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionRefused, ConnectionReset, Interrupted, NotFound, TimedOut,
        UnexpectedEof, WouldBlock,
    };
    let kinds = [
        BrokenPipe,
        ConnectionRefused,
        ConnectionReset,
        Interrupted,
        NotFound,
        TimedOut,
        UnexpectedEof,
        WouldBlock,
    ];
    kinds.contains(&error.kind())
}

fn socket(own: &Path) -> Result<String, Refusal> {
    let file = own.with_file_name(BESIDE);
    let refuse = |why: String| {
        let what = format!("the service's address cannot be trusted: {why}");
        Refusal::new(NOT_PERMITTED, what).hint("to install gshare-exec again: sudo gshare setup")
    };
    let text = match std::fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(SOCKET.to_owned()),
        Err(error) => return Err(refuse(format!("{}: {error}", file.display()))),
        Ok(text) => text,
    };
    trusted(&file).map_err(refuse)?;
    let path = text.trim();
    if path.starts_with('/') {
        Ok(path.to_owned())
    } else {
        Err(refuse(format!("{} names no absolute path", file.display())))
    }
}

fn refused(code: &str, message: String) -> Refusal {
    let number = match code {
        "ended" => ENDED,
        "internal" => INTERNAL,
        _ => NOT_PERMITTED,
    };
    Refusal::new(number, message)
}
