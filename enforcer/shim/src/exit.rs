//! The end of the process: the proxy's own threads must be out of the driver by then, because drivers shut down while a
//! program exits.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use gshare_abi::{Reach, futex_wait, futex_wake, monotonic_ns};

/// Longest wait of an exit for such threads: one may be blocked in the driver for ever.
const PATIENCE: Duration = Duration::from_millis(20);

static EXITS: AtomicBool = AtomicBool::new(false);
/// The proxy's own threads inside the driver; a futex.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// The process that registered the handler; a forked child has none of its threads.
static OWNER: OnceLock<libc::pid_t> = OnceLock::new();

unsafe extern "C" {
    fn __cxa_atexit(
        handler: extern "C" fn(*mut libc::c_void),
        argument: *mut libc::c_void,
        object: *mut libc::c_void,
    ) -> libc::c_int;
}

/// Whether the program's exit handlers run.
pub(crate) fn is_under_way() -> bool {
    EXITS.load(Ordering::SeqCst)
}

/// Registers a handler for `exit` after the driver's initialisation: handlers run in reverse order, so this one runs
/// before the driver's.
pub(crate) fn hear() {
    OWNER.get_or_init(|| {
        // SAFETY: the handler takes any argument; without an object it runs when the process exits, not when a library
        // is unloaded, and this library is never unloaded.
        unsafe { __cxa_atexit(on_exit, std::ptr::null_mut(), std::ptr::null_mut()) };
        // SAFETY: only reads a number.
        unsafe { libc::getpid() }
    });
}

extern "C" fn on_exit(_: *mut libc::c_void) {
    EXITS.store(true, Ordering::SeqCst);
    // SAFETY: only reads a number.
    if OWNER.get() != Some(&unsafe { libc::getpid() }) {
        return;
    }
    let until = monotonic_ns() + PATIENCE.as_nanos() as u64;
    loop {
        let inside = INSIDE.load(Ordering::SeqCst);
        if inside == 0 || monotonic_ns() >= until {
            return;
        }
        futex_wait(&INSIDE, inside, Some(until), Reach::Process);
    }
}

/// Calls the driver on one of the proxy's own threads; `None` once the process exits, and the thread has nothing to do.
pub(crate) fn unless<R>(call: impl FnOnce() -> R) -> Option<R> {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let result = (!is_under_way()).then(call);
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    if is_under_way() {
        futex_wake(&INSIDE, Reach::Process);
    }
    result
}
