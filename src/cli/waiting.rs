//! Display of a waiting claim, and its withdrawal by Ctrl-C.
//!
//! The waiting claim lives as long as the connection, so every way out of this process withdraws it.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gshare_core::units::show_duration;
use gshare_proto::{Queued, messages};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{getpgrp, tcgetpgrp};

use super::failure::Failure;
use super::out;
use super::table::plain;

/// Signals that end the wait.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// The display of a wait; nothing happens before the first [`Waiting::show`].
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    quiet: bool,
    last: Option<Queued>,
    watch: Option<Watch>,
}

/// The thread that counts and listens for signals.
#[derive(Debug)]
struct Watch {
    state: Arc<Mutex<State>>,
    old_mask: SigSet,
}

#[derive(Debug)]
struct State {
    id: String,
    /// The grant or the refusal has arrived: the thread must not write or withdraw any more.
    over: bool,
    /// A line of progress is on the terminal and must be removed before other output.
    drawn: bool,
}

impl Waiting {
    /// `quiet`: without output.
    pub(crate) fn new(quiet: bool) -> Self {
        Self {
            quiet,
            ..Self::default()
        }
    }

    /// Shows the claim's place, if it has changed.
    pub(crate) fn show(&mut self, queued: &Queued) -> Result<(), Failure> {
        if self.watch.is_none() {
            self.watch = Some(Watch::start(queued.id.clone(), self.quiet)?);
        }
        if self.last.as_ref() == Some(queued) {
            return Ok(());
        }
        self.last = Some(queued.clone());
        // A restarted service may assign another number.
        if let Some(mut state) = self.lock() {
            state.id.clone_from(&queued.id);
        }
        if !self.quiet {
            let mut state = self.lock();
            if let Some(state) = state.as_deref_mut() {
                state.clear();
            }
            out::note(&sentence(queued));
        }
        Ok(())
    }

    /// Tells the user that the service does not answer and that the claim waits for it.
    pub(crate) fn service_gone(&self) {
        if !self.quiet {
            if let Some(mut state) = self.lock() {
                state.clear();
            }
            let most = show_duration(super::connect::patience());
            out::note(&format!(
                "the gshare service does not answer, perhaps because it restarts; this claim waits up to {most} for it \
                 (Ctrl-C ends the wait)"
            ));
        }
    }

    /// Ends the wait: restores signals, removes the line of progress.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        if let Some(mut state) = self.lock() {
            state.clear();
            state.over = true;
        }
        if let Some(watch) = self.watch.take() {
            watch.old_mask.thread_set_mask().map_err(io::Error::from)?;
        }
        Ok(())
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.watch.as_ref().map(|w| lock(&w.state))
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    fn start(id: String, quiet: bool) -> Result<Self, Failure> {
        let mut mask = SigSet::empty();
        // A signal that the caller ignores (nohup) stays ignored: blocked, it would be delivered here.
        let ignored = ignored_signals();
        for signal in ENDING {
            if ignored & (1 << (signal as u32 - 1)) == 0 {
                mask.add(signal);
            }
        }
        let old_mask = SigSet::thread_get_mask().map_err(io::Error::from)?;
        mask.thread_block().map_err(io::Error::from)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(io::Error::from)?;
        let state = Arc::new(Mutex::new(State {
            id,
            over: false,
            drawn: false,
        }));
        let shared = Arc::clone(&state);
        let draw = !quiet && io::stderr().is_terminal();
        let hangs_up = mask.contains(Signal::SIGHUP);
        let terminal = hangs_up.then(controlling_terminal).flatten();
        std::thread::Builder::new()
            .name("waiting".to_owned())
            .spawn(move || watch(&signals, terminal.as_ref(), &shared, draw, quiet))?;
        Ok(Self { state, old_mask })
    }
}

/// Draws the line of progress and ends the process on a signal.
fn watch(
    signals: &SignalFd,
    terminal: Option<&File>,
    state: &Mutex<State>,
    draw: bool,
    quiet: bool,
) {
    let since = Instant::now();
    let timeout = if draw {
        PollTimeout::from(250u16)
    } else {
        PollTimeout::NONE
    };
    for turn in 0usize.. {
        let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        fds.extend(terminal.map(|tty| PollFd::new(tty.as_fd(), PollFlags::empty())));
        let _ = poll(&mut fds, timeout);
        let closed = PollFlags::POLLHUP | PollFlags::POLLERR;
        let hung_up = fds[1..]
            .iter()
            .any(|tty| tty.revents().is_some_and(|e| e.intersects(closed)));
        let signal = signals
            .read_signal()
            .ok()
            .flatten()
            .map(|info| info.ssi_signo.cast_signed());
        let signal = signal.or(hung_up.then_some(libc::SIGHUP));
        let mut state = lock(state);
        if state.over {
            return;
        }
        if let Some(signal) = signal {
            state.clear();
            if !quiet {
                out::note(&format!("{} withdrawn", state.id));
            }
            die_of(signal);
        }
        if draw && is_in_foreground() {
            state.draw(turn, since.elapsed());
        }
    }
}

/// Whether this process may draw on the terminal of stderr, which background jobs share with others. A terminal that
/// does not control this process has no foreground group.
fn is_in_foreground() -> bool {
    tcgetpgrp(io::stderr()).map_or(true, |group| group == getpgrp())
}

/// The terminal that controls this process. `su -` keeps the SIGHUP of a closed terminal from its programs, so the
/// terminal itself is watched.
fn controlling_terminal() -> Option<File> {
    let mut open = File::options();
    open.read(true).custom_flags(libc::O_NOCTTY);
    open.open("/dev/tty").ok()
}

/// Ends the process as the signal would have, as shells and scripts expect.
pub(crate) fn die_of(number: i32) -> ! {
    if let Ok(signal) = Signal::try_from(number) {
        let mut mask = SigSet::empty();
        mask.add(signal);
        let _ = mask.thread_unblock();
        let _ = raise(signal);
    }
    std::process::exit(128 + number);
}

impl State {
    fn draw(&mut self, turn: usize, elapsed: Duration) {
        const FRAMES: [&str; 4] = ["|", "/", "-", "\\"];
        let mut stderr = io::stderr().lock();
        let _ = write!(
            stderr,
            "\r{} waits {} (Ctrl-C withdraws)\x1b[K",
            FRAMES[turn % FRAMES.len()],
            show_duration(elapsed)
        );
        let _ = stderr.flush();
        self.drawn = true;
    }

    fn clear(&mut self) {
        if self.drawn {
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K");
            let _ = stderr.flush();
            self.drawn = false;
        }
    }
}

/// `c22 waits (2nd): needs 11.8 GiB; most free is 5.8 on GPU 0; with -g 0.2 it would start now`
fn sentence(queued: &Queued) -> String {
    let mut text = format!(
        "{} waits ({}): {}",
        queued.id,
        ordinal(queued.position),
        plain(&queued.reason)
    );
    if let Some(arguments) = &queued.would_start {
        text.push_str(&format!("; {}", messages::starts_now(plain(arguments))));
    }
    text
}

/// The time until then; the seconds of a countdown are never rounded away.
pub(crate) fn left(now_ms: u64, at_ms: u64) -> String {
    let seconds = at_ms.saturating_sub(now_ms).div_ceil(1000);
    show_duration(Duration::from_secs(seconds))
}

/// `1st`, `2nd`, `11th`.
pub(crate) fn ordinal(n: u32) -> String {
    let suffix = match (n % 100, n % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}

/// Bit n - 1 is set for every signal n that this process ignores.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_names_place_reason_and_what_would_start() {
        let queued = Queued {
            id: "c22".into(),
            position: 2,
            reason: "needs 11.8 GiB; most free is 5.8 on GPU 0".into(),
            would_start: Some("-g 0.2".into()),
        };
        assert_eq!(
            sentence(&queued),
            "c22 waits (2nd): needs 11.8 GiB; most free is 5.8 on GPU 0; with -g 0.2 it would start now"
        );
        let places = [1, 3, 4, 11, 12, 13, 21, 111, 122].map(ordinal);
        assert_eq!(
            places,
            [
                "1st", "3rd", "4th", "11th", "12th", "13th", "21st", "111th", "122nd"
            ]
        );
    }
}
