//! The end of the process: threads of the proxy's own are out of the driver by then, because drivers take themselves
//! down while a program exits.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use gshare_abi::{Reach, futex_wait, futex_wake, monotonic_ns};

/// Longest that an exit waits for such threads: one may be held up in the driver by something that never ends.
const PATIENCE: Duration = Duration::from_millis(20);

static EXITS: AtomicBool = AtomicBool::new(false);
/// Threads of the proxy's own that are inside the driver; a futex.
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

/// Has `exit` hear of this before it comes to the driver's own handlers: they run in the opposite order. To be called
/// after the driver was initialised.
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

/// Calls the driver on a thread of the proxy's own; `None` once the process exits, and the thread has nothing to do.
pub(crate) fn unless<R>(call: impl FnOnce() -> R) -> Option<R> {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let result = (!is_under_way()).then(call);
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    if is_under_way() {
        futex_wake(&INSIDE, Reach::Process);
    }
    result
}
