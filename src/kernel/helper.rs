//! A small process with a user's own rights, for actions that the service must not do as root: reading the files of
//! the user's kernels and Jupyter servers, querying the servers, and writing into the output of notebooks. The
//! service starts one per user with kernels, and more if those kernels were started with different groups.
//!
//! A line of JSON in, and a line out for each query. It ends when the service does.

use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;

use gshare_enforcer::proc::Rights;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use serde::{Deserialize, Serialize};

use super::seen::Seen;
use super::servers::{Asker, Sought};

/// First argument of the process.
pub const ARGUMENT: &str = "__notebooks";

/// Requests of the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// Query the state of these kernels; answered with one line, a list of [`Seen`].
    Look(Vec<Sought>),
    /// Check whether the connection file of a claim's kernel is gone; answered with `true` or `false`.
    Gone { claim: u64, path: PathBuf },
    /// Write a line into the output of a kernel.
    Say {
        /// Pid of the kernel.
        pid: i32,
        /// Its start in clock ticks since boot; the pid may have been reused.
        start_ticks: u64,
        /// The line.
        text: String,
    },
}

/// Arguments with which a process takes those rights for good; without them it keeps its own.
#[must_use]
pub fn arguments(rights: &Rights) -> Vec<String> {
    let numbers = [rights.uid, rights.gid].into_iter();
    let all = numbers.chain(rights.groups.iter().copied());
    all.map(|id| id.to_string()).collect()
}

/// Becomes the user: the standard library can set the user and a group, but not the supplementary groups, and access
/// to a home directory may depend on them.
fn become_user(arguments: &[String]) -> io::Result<()> {
    let wrong = || io::Error::other("its arguments are a user and groups, as numbers");
    let ids = arguments.iter().map(|a| a.parse::<u32>());
    let ids: Vec<u32> = ids.collect::<Result<_, _>>().map_err(|_| wrong())?;
    let [uid, gid, groups @ ..] = ids.as_slice() else {
        return if ids.is_empty() { Ok(()) } else { Err(wrong()) };
    };
    let groups: Vec<Gid> = groups.iter().map(|g| Gid::from_raw(*g)).collect();
    let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
    setgroups(&groups)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    Ok(())
}

/// Serves until its input ends.
///
/// # Errors
///
/// When it may not act as the user of its arguments, or the answers cannot be written.
pub fn run(arguments: &[String]) -> io::Result<()> {
    become_user(arguments)?;
    // Other processes of the same user must not control it.
    let _ = nix::sys::prctl::set_dumpable(false);
    let mut out = io::stdout().lock();
    let mut asker = Asker::default();
    for line in io::stdin().lock().lines() {
        match serde_json::from_str(&line?) {
            Ok(Wanted::Look(sought)) => {
                let seen: Vec<Seen> = asker.look(&sought);
                let text = serde_json::to_string(&seen)?;
                writeln!(out, "{text}")?;
                out.flush()?;
            }
            Ok(Wanted::Gone { path, .. }) => {
                let found = fs::symlink_metadata(&path);
                let gone = matches!(found, Err(e) if e.kind() == io::ErrorKind::NotFound);
                writeln!(out, "{gone}")?;
                out.flush()?;
            }
            Ok(Wanted::Say {
                pid,
                start_ticks,
                text,
            }) => {
                if gshare_enforcer::proc::key(pid).is_some_and(|k| k.start_ticks == start_ticks) {
                    // A reader that does not listen misses a line, which is also on the screen.
                    let _ = say(pid, &text);
                }
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Writes a line into a kernel's standard error. A Python kernel has a pipe there that it reads itself and forwards
/// to the notebook, below the last cell that ran; no code inside the kernel is needed. Only a pipe is written to, and
/// a full one is skipped.
fn say(pid: i32, text: &str) -> io::Result<()> {
    let path = format!("/proc/{pid}/fd/2");
    if !fs::metadata(&path)?.file_type().is_fifo() {
        return Ok(());
    }
    let mut pipe = fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(&path)?;
    pipe.write_all(format!("gshare: {text}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_the_service_wants_survives_the_line() {
        for wanted in [
            Wanted::Look(vec![Sought {
                id: "k".into(),
                dir: "/run/user/7/jupyter".into(),
                pid: 5,
            }]),
            Wanted::Gone {
                claim: 3,
                path: "/run/user/7/kernel.json".into(),
            },
            Wanted::Say {
                pid: 7,
                start_ticks: 9,
                text: "a\n\"b\"".into(),
            },
        ] {
            let line = serde_json::to_string(&wanted).expect("written");
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Wanted>(&line).expect("read"), wanted);
        }
    }

    #[test]
    fn a_line_comes_out_of_the_pipe_that_a_program_has_as_its_standard_error() {
        let mut child = Command::new("sh")
            .args(["-c", "echo ready >&2; read x"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("read");
        say(child.id().cast_signed(), "it is wanted").expect("said");
        drop(child.stdin.take());
        let mut rest = String::new();
        said.read_to_string(&mut rest).expect("read");
        assert_eq!(rest, "gshare: it is wanted\n");
        child.wait().expect("ended");
    }
}
