//! The gate for every call of the program: shut while the process is locked.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::code::{R, UNKNOWN};

const OPEN: u32 = 0;
const SHUT: u32 = 1;
/// The process is lost: calls fail.
const LOST: u32 = 2;

static DOOR: AtomicU32 = AtomicU32::new(OPEN);
/// Threads inside a call.
static INSIDE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Nesting of this thread's calls: a host function that the driver calls may call the driver.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

fn futex(word: &AtomicU32, op: i32, value: u32) {
    // SAFETY: the word is a static.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            op | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

fn depth(by: i32) -> u32 {
    let changed = DEPTH.try_with(|d| {
        let before = d.get();
        d.set(before.saturating_add_signed(by));
        before
    });
    changed.unwrap_or(0)
}

/// A call of the program, for its duration.
#[derive(Debug)]
pub(crate) struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        if depth(-1) == 1 {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Begins a call; waits while the process is locked.
pub(crate) fn enter() -> R<Inside> {
    if depth(0) == 0 {
        loop {
            INSIDE.fetch_add(1, Ordering::SeqCst);
            match DOOR.load(Ordering::SeqCst) {
                OPEN => break,
                door => {
                    INSIDE.fetch_sub(1, Ordering::SeqCst);
                    if door == LOST {
                        return Err(UNKNOWN);
                    }
                    futex(&DOOR, libc::FUTEX_WAIT, SHUT);
                }
            }
        }
    }
    depth(1);
    Ok(Inside)
}

pub(super) fn shut() {
    DOOR.store(SHUT, Ordering::SeqCst);
}

pub(super) fn open() {
    DOOR.store(OPEN, Ordering::SeqCst);
    futex(&DOOR, libc::FUTEX_WAKE, i32::MAX as u32);
}

pub(super) fn lose() {
    DOOR.store(LOST, Ordering::SeqCst);
    futex(&DOOR, libc::FUTEX_WAKE, i32::MAX as u32);
}

/// Waits until all calls are over and `idle` is true; `false` on timeout.
pub(super) fn drained(until: Option<Instant>, mut idle: impl FnMut() -> bool) -> bool {
    loop {
        if INSIDE.load(Ordering::SeqCst) == 0 && idle() {
            return true;
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return false;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}
