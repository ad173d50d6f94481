//! The driver takes itself down while the process exits, as real drivers do. Threads that a proxy has started in the
//! process would then crash, at the latest on their next call.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::code::{DEINITIALIZED, R};
use crate::driver;

/// Name prefix of threads that must be gone by then. The program's own threads have other names.
const FOREIGN: &[u8] = b"gshare-";

/// Duration of the teardown: calls in this time find the driver half destroyed.
const TAKES: Duration = Duration::from_millis(3);

static DOWN: AtomicBool = AtomicBool::new(false);
/// Whether a thread with this prefix has ever called.
static CAME: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    fn __cxa_atexit(
        handler: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        object: *mut c_void,
    ) -> c_int;
}

extern "C" fn take_down(_: *mut c_void) {
    DOWN.store(true, Ordering::SeqCst);
    // A forked child has none of its parent's threads.
    if !driver::is_forked() && INSIDE.load(Ordering::SeqCst) != 0 {
        crash("sits in the driver while the program exits");
    }
    if CAME.load(Ordering::SeqCst) {
        std::thread::sleep(TAKES);
    }
}

fn crash(why: &str) -> ! {
    eprintln!("simulated driver: a thread of a proxy's own {why}");
    std::process::abort();
}

/// Takes the driver down at the process's exit.
pub(crate) fn arm() {
    static ARMED: Once = Once::new();
    ARMED.call_once(|| {
        // SAFETY: the handler takes any argument, and this library stays until the process is gone.
        unsafe { __cxa_atexit(take_down, std::ptr::null_mut(), std::ptr::null_mut()) };
    });
}

fn is_foreign() -> bool {
    thread_local! {
        static FOREIGNER: Cell<Option<bool>> = const { Cell::new(None) };
    }
    // A thread without thread-local storage any more is the program's.
    let known = FOREIGNER.try_with(Cell::get).unwrap_or(Some(false));
    known.unwrap_or_else(|| {
        let mut name = [0_u8; 16];
        // SAFETY: room for the 16 bytes that the name has with its NUL.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        let name = CStr::from_bytes_until_nul(&name).map_or(&[][..], CStr::to_bytes);
        let foreign = name.starts_with(FOREIGN);
        let _ = FOREIGNER.try_with(|it| it.set(Some(foreign)));
        foreign
    })
}

/// A call; calls of threads with the prefix are counted while they last.
pub(crate) struct Guest(bool);

impl Drop for Guest {
    fn drop(&mut self) {
        if self.0 {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

pub(crate) fn enter() -> R<Guest> {
    let foreign = is_foreign();
    if foreign {
        CAME.store(true, Ordering::SeqCst);
        INSIDE.fetch_add(1, Ordering::SeqCst);
    }
    let guest = Guest(foreign);
    if DOWN.load(Ordering::SeqCst) {
        if foreign {
            crash("comes to the driver after the program's exit took it down");
        }
        return Err(DEINITIALIZED);
    }
    Ok(guest)
}
