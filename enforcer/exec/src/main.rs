//! `gshare-exec`: the only privileged program of gshare. It becomes the command of a claim, inside a mount namespace in
//! which gshare's proxies lie over the driver's libraries.
//!
//! `gshare claim` replaces itself by it: `gshare-exec CLAIM FD -- COMMAND ...`. FD is a sealed memfd with the command's
//! environment, because the loader strips the environment of a program with capabilities. The caller decides nothing
//! else: the service, asked at a path that only root can write, says which claim may be entered and what is mounted
//! over what.
//!
//! It has one file capability, CAP_SYS_ADMIN, permitted and not effective: raised for the mounts alone, then dropped
//! for good. On any failure it prints the reason and exits, and the command never runs.

mod files;
mod mounts;
mod refusal;
mod rights;
mod service;
mod sys;

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gshare_abi::Handover;
use gshare_abi::wire::Plan;
use refusal::{CANNOT_RUN, NOT_FOUND, Refusal, USAGE};

fn main() -> ExitCode {
    match run() {
        Err(refusal) => refusal.tell(),
    }
}

fn run() -> Result<Infallible, Refusal> {
    let asked = Asked::from_arguments(std::env::args_os().collect())?;
    let handover = files::handover(asked.fd)?;
    rights::check_privilege()?;
    let own = files::own_file()?;
    let plan = plan(&own, asked.claim)?;
    files::close_devices(&plan.majors)?;
    mounts::make(&plan.binds)?;
    rights::for_good()?;
    rights::restore(&handover);
    Err(exec(asked.command, &handover))
}

/// How long a plan may refer to replaced files: the service notices a replaced driver within a tick.
const REPLACED: Duration = Duration::from_secs(2);

/// The service's plan, checked against the present files.
fn plan(own: &Path, claim: u64) -> Result<Plan, Refusal> {
    let until = Instant::now() + REPLACED;
    loop {
        let plan = service::ask(own, claim)?;
        plan.binds.iter().try_for_each(mounts::trust)?;
        match plan.binds.iter().try_for_each(mounts::check) {
            Ok(()) => return Ok(plan),
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            Err(refusal) => return Err(refusal),
        }
    }
}

/// The parsed arguments.
#[derive(Debug)]
struct Asked {
    claim: u64,
    fd: RawFd,
    command: Vec<CString>,
}

impl Asked {
    fn from_arguments(arguments: Vec<OsString>) -> Result<Self, Refusal> {
        let usage = || {
            Refusal::new(
                USAGE,
                "gshare-exec is run by `gshare claim`, `gshare shell` and `gshare join`, not by people",
            )
        };
        let mut arguments = arguments.into_iter().skip(1);
        let mut word = || {
            let word = arguments.next().and_then(|word| word.into_string().ok());
            word.ok_or_else(usage)
        };
        let (claim, fd, dashes) = (word()?, word()?, word()?);
        let claim = claim.parse().map_err(|_| usage())?;
        let fd: RawFd = fd.parse().map_err(|_| usage())?;
        let command: Vec<CString> = arguments
            .map(|argument| CString::new(argument.into_vec()))
            .collect::<Result<_, _>>()
            .map_err(|_| usage())?;
        if dashes != "--" || fd < 3 || command.is_empty() {
            return Err(usage());
        }
        Ok(Self { claim, fd, command })
    }
}

/// Becomes the command. The search uses the user's rights and the user's own PATH, which the loader leaves alone.
fn exec(command: Vec<CString>, handover: &Handover) -> Refusal {
    let environment: Result<Vec<CString>, _> = handover.entries().map(CString::new).collect();
    let Ok(environment) = environment else {
        return Refusal::new(USAGE, "the environment passed to gshare-exec is damaged");
    };
    sys::end_by_sigpipe();
    let Err(error) = nix::unistd::execvpe(&command[0], &command, &environment);
    let name = command[0].to_string_lossy();
    let (code, why) = match error {
        nix::errno::Errno::ENOENT => (NOT_FOUND, "command not found".to_owned()),
        other => (
            CANNOT_RUN,
            format!("cannot run: {}", std::io::Error::from(other)),
        ),
    };
    Refusal::new(code, format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Result<Asked, Refusal> {
        Asked::from_arguments(words.iter().map(Into::into).collect())
    }

    #[test]
    fn reads_its_arguments() {
        let read = asked(&["gshare-exec", "12", "7", "--", "env", "--", "-0"]).expect("reads");
        assert_eq!((read.claim, read.fd), (12, 7));
        let command: Vec<&[u8]> = read.command.iter().map(CString::as_bytes).collect();
        assert_eq!(command, [b"env".as_slice(), b"--", b"-0"]);
    }

    #[test]
    fn other_arguments_are_refused() {
        for words in [
            &[][..],
            &["x"],
            &["x", "1", "3", "--"],
            &["x", "1", "3", "env"],
            &["x", "c1", "3", "--", "env"],
            &["x", "-1", "3", "--", "env"],
            &["x", "1", "2", "--", "env"],
            &["x", "1", "-3", "--", "env"],
            &["x", "1", "99999999999", "--", "env"],
        ] {
            assert_eq!(asked(words).expect_err("refused").code, USAGE, "{words:?}");
        }
    }
}
