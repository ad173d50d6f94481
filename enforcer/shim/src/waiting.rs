//! A process that waits for the GPU of its claim: its user's messages, and how the user ends the wait.
//!
//! Ctrl-C, or an interrupt of a notebook's cell, must work although a thread stands in a driver call. So during a wait
//! a handler of the proxy notes SIGINT and calls the program's own.

use std::{
    ffi::{c_int, c_void},
    mem, ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use gshare_abi::wire::Waits;

use crate::say;

/// Minimum time between messages about a changed reason.
const PAUSE: Duration = Duration::from_secs(2);

/// Number of interrupts during waits.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);
/// The program's handler, called by ours, and its flags, one of which tells how to call it.
static HANDLER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static TAKES_INFO: AtomicBool = AtomicBool::new(false);
/// Waiting threads, and the disposition to restore after the last of them.
static WAITERS: Mutex<Waiters> = Mutex::new(Waiters {
    count: 0,
    before: None,
});

struct Waiters {
    count: usize,
    before: Option<Before>,
}

/// The program's disposition of SIGINT.
struct Before(libc::sigaction);

extern "C" fn note(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    INTERRUPTS.fetch_add(1, Ordering::SeqCst);
    let handler = HANDLER.load(Ordering::SeqCst);
    if matches!(handler, libc::SIG_DFL | libc::SIG_IGN) {
        return;
    }
    if TAKES_INFO.load(Ordering::SeqCst) {
        // SAFETY: the program installed it with SA_SIGINFO, so this is its type.
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the program installed it without SA_SIGINFO, so this is its type.
        let handler: extern "C" fn(c_int) = unsafe { mem::transmute(handler) };
        handler(signal);
    }
}

fn disposition() -> Option<libc::sigaction> {
    // SAFETY: zeroes are a valid `sigaction`, which is only written to.
    let mut now: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: reads the disposition into the place above.
    let done = unsafe { libc::sigaction(libc::SIGINT, ptr::null(), &raw mut now) };
    (done == 0).then_some(now)
}

/// Listens for interrupts during its lifetime. Programs that ignore them, or end by them, are left as they are.
pub(crate) struct Ear {
    /// Number of earlier interrupts.
    before: u32,
}

impl Ear {
    pub(crate) fn new() -> Self {
        let mut waiters = WAITERS.lock().unwrap_or_else(PoisonError::into_inner);
        waiters.count += 1;
        let before = INTERRUPTS.load(Ordering::SeqCst);
        // Even if others wait already: the program may have set another handler since.
        let now = disposition().filter(|now| {
            let handler = now.sa_sigaction;
            !matches!(handler, libc::SIG_DFL | libc::SIG_IGN) && handler != ours()
        });
        if let Some(now) = now {
            HANDLER.store(now.sa_sigaction, Ordering::SeqCst);
            TAKES_INFO.store(now.sa_flags & libc::SA_SIGINFO != 0, Ordering::SeqCst);
            let action = libc::sigaction {
                sa_sigaction: ours(),
                sa_flags: now.sa_flags | libc::SA_SIGINFO,
                ..now
            };
            // SAFETY: `note` has the type that SA_SIGINFO asks for and only stores to atomics before it calls on.
            if unsafe { libc::sigaction(libc::SIGINT, &raw const action, ptr::null_mut()) } == 0 {
                waiters.before = Some(Before(now));
            }
        }
        Self { before }
    }

    /// Whether an interrupt has come since.
    pub(crate) fn hears(&self) -> bool {
        INTERRUPTS.load(Ordering::SeqCst) != self.before
    }
}

impl Drop for Ear {
    /// The last one restores the program's handler, unless the program has installed another meanwhile.
    fn drop(&mut self) {
        let mut waiters = WAITERS.lock().unwrap_or_else(PoisonError::into_inner);
        waiters.count -= 1;
        if waiters.count > 0 {
            return;
        }
        let Some(Before(before)) = waiters.before.take() else {
            return;
        };
        if disposition().is_some_and(|now| now.sa_sigaction == ours()) {
            // SAFETY: what the program had set itself.
            unsafe { libc::sigaction(libc::SIGINT, &raw const before, ptr::null_mut()) };
        }
    }
}

fn ours() -> libc::sighandler_t {
    note as *const () as usize
}

pub(crate) struct Waiting {
    begun: Instant,
    /// The claim, its place and the reason of the last message, and its time.
    told: Option<(u64, u32, String, Instant)>,
    /// Since the first message.
    ear: Option<Ear>,
}

impl Waiting {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            told: None,
            ear: None,
        }
    }

    pub(crate) fn has_waited(&self) -> bool {
        self.told.is_some()
    }

    /// The claim has its GPU.
    pub(crate) fn granted(&self) {
        if let Some((claim, ..)) = &self.told {
            say::line(&format!(
                "claim c{claim} got its GPU after {} s",
                self.begun.elapsed().as_secs()
            ));
        }
    }

    /// An interrupt ended the wait.
    pub(crate) fn given_up(&self) {
        if let Some((claim, ..)) = &self.told {
            say::line(&format!(
                "claim c{claim}: this CUDA call stopped waiting for a GPU; the next call asks again"
            ));
        }
    }

    /// The service has gone during the wait.
    pub(crate) fn deserted(&mut self) {
        if let Some((claim, position, ..)) = &self.told
            && *position > 0
        {
            let claim = *claim;
            say::line(&format!(
                "claim c{claim}: the service does not answer; the wait continues once it is back"
            ));
            self.told = Some((claim, 0, String::new(), Instant::now()));
        }
    }
}

impl Waits for Waiting {
    fn told(&mut self, claim: u64, position: u32, reason: &str) {
        match &self.told {
            None => self.ear = Some(Ear::new()),
            Some((_, place, why, at)) => {
                let same = *place == position && (why == reason || at.elapsed() < PAUSE);
                if same {
                    return;
                }
            }
        }
        let place = match position {
            0 | 1 => "first in the queue".to_owned(),
            n => format!("number {n} in the queue"),
        };
        say::line(&format!(
            "claim c{claim} waits for its GPU, {place}: {reason}"
        ));
        self.told = Some((claim, position, reason.to_owned(), Instant::now()));
    }

    fn stops(&mut self) -> bool {
        self.ear.as_ref().is_some_and(Ear::hears)
    }
}
