//! Supervises a command as a child process: for `gshare claim -t`, so that the exit code can report the end of its
//! time limit; for `gshare claim --requeue`, so that it can start again after it was ended for others.
//!
//! The child is this program again: it claims, and executes the command in place. This process only passes on signals
//! and job control, and asks the service afterwards what happened to the claim. Without these flags there is no such
//! parent: the command is this process.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gshare_enforcer::proc::{self, ProcessKey};
use gshare_proto::{Call, LeaseView, Reply};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::failure::{self, Failure};
use super::waiting::die_of;
use super::{Outcome, connect, out};

/// First argument of the child.
const CHILD: &str = "--child";
/// Signals that are passed on to the command.
const PASSED_ON: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];
/// Sent by the kernel, to every process in the foreground of the terminal: the command has it already.
const BY_KERNEL: i32 = 0x80;
/// Longest wait for the service's answer.
const ANSWER: Duration = Duration::from_secs(3);

/// Whether a claim with a time limit gets a parent: not the main process of a systemd service, which must stay the
/// command.
pub(crate) fn wanted() -> bool {
    !connect::is_main_of_unit()
}

/// Runs this program again with the same arguments, and ends with the command's exit code, or 124 if its time limit
/// ended. A command that was ended and queued again is restarted.
pub(crate) fn run(socket: Option<&Path>) -> Outcome {
    let mut argv = std::env::args_os();
    let name = argv.next().unwrap_or_else(|| OsString::from("gshare"));
    let argv: Vec<OsString> = argv.collect();
    let mask: SigSet = received().map(|(signal, _)| signal).collect();
    let before = mask.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let before = before.map_err(io::Error::from)?;
    let blocked = received().filter(|(signal, _)| before.contains(*signal));
    let blocked = blocked.fold(0, |bits, (_, bit)| bits | bit).to_string();
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC).map_err(io::Error::from)?;
    let status = loop {
        let child = Command::new("/proc/self/exe")
            .arg0(&name)
            .args([CHILD, &blocked])
            .args(&argv)
            .spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let key = proc::key(pid.as_raw());
        let status = watch(&signals, pid)?;
        let became = key.and_then(|key| lease_of(socket, key));
        let became = became.unwrap_or_default();
        let id = became.id.unwrap_or_default();
        if became.requeued {
            out::note(&format!(
                "gshare: {id} was ended to make room; its command waits in the queue and will restart"
            ));
            continue;
        }
        if became.over || (became.told && status.as_if_told()) {
            out::note(&format!(
                "gshare: {id} reached its time limit before its command was done"
            ));
            return Ok(failure::ENDED);
        }
        break status;
    };
    match status {
        Ended::Exited(code) => Ok(code),
        Ended::Killed(signal) => die_of(signal),
    }
}

/// The signals that the parent blocks to read them, each with its bit.
fn received() -> impl Iterator<Item = (Signal, u64)> {
    let all = PASSED_ON.into_iter().chain([Signal::SIGCHLD]);
    all.map(|signal| (signal, 1 << (signal as u32)))
}

/// If this process is a child of [`run`], it ends with its parent, as if they were one process, and blocks only what the
/// parent's caller blocks.
pub(crate) fn as_child(blocked: Option<u64>) {
    let Some(blocked) = blocked else {
        return;
    };
    let own = received().filter(|(_, bit)| blocked & bit == 0);
    let own: SigSet = own.map(|(signal, _)| signal).collect();
    let done = own.thread_unblock();
    if let Err(error) = done.and_then(|()| prctl::set_pdeathsig(Signal::SIGKILL)) {
        out::note(&format!(
            "gshare: warning: if this gshare process is killed, the command will keep running: {error}"
        ));
    }
}

/// How the command ended.
enum Ended {
    Exited(u8),
    Killed(i32),
}

impl Ended {
    /// A script that waits for a program ends like this when that program is asked to end; a script that continues
    /// and succeeds has ended by itself.
    fn as_if_told(&self) -> bool {
        match self {
            Self::Exited(code) => *code != 0,
            Self::Killed(signal) => [libc::SIGTERM, libc::SIGKILL].contains(signal),
        }
    }
}

/// Passes signals on until the child has ended.
fn watch(signals: &SignalFd, child: Pid) -> Result<Ended, Failure> {
    loop {
        let Some(info) = signals.read_signal().map_err(io::Error::from)? else {
            continue;
        };
        let number = i32::try_from(info.ssi_signo).unwrap_or(0);
        let Ok(signal) = Signal::try_from(number) else {
            continue;
        };
        if signal != Signal::SIGCHLD {
            if info.ssi_code != BY_KERNEL {
                // It may have just ended.
                let _ = kill(child, signal);
            }
            continue;
        }
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        match waitpid(child, Some(flags)).map_err(io::Error::from)? {
            WaitStatus::Exited(_, code) => {
                return Ok(Ended::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
            }
            WaitStatus::Signaled(_, signal, _) => return Ok(Ended::Killed(signal as i32)),
            // The shell must see a stopped job; the command continues with it.
            WaitStatus::Stopped(..) => {
                let _ = raise(Signal::SIGSTOP);
                let _ = kill(child, Signal::SIGCONT);
            }
            _ => {}
        }
    }
}

fn lease_of(socket: Option<&Path>, key: ProcessKey) -> Option<LeaseView> {
    let mut client = connect::connect(socket).ok()?;
    client.set_read_timeout(Some(ANSWER)).ok()?;
    let call = Call::Lease {
        pid: key.pid.cast_unsigned(),
        start_ticks: key.start_ticks,
    };
    match client.call(&call).ok()? {
        Reply::Lease(view) => Some(view),
        _ => None,
    }
}
