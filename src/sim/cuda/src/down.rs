//! The end of the driver: it takes itself down while the process exits, as real ones do. Threads that others have
//! brought into the process (a proxy's own) would crash in it then, at the latest when they next come to it.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::code::{DEINITIALIZED, R};
use crate::driver;

/// The name of threads that must be gone by then begins so: none of the program's.
const FOREIGN: &[u8] = b"gshare-";

/// How long it takes: who comes within that time finds half of it gone.
const TAKES: Duration = Duration::from_millis(3);

static DOWN: AtomicBool = AtomicBool::new(false);
/// Such a thread has ever called.
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

/// From now on the process's exit takes the driver down.
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
    // Threads whose own storage is gone are the program's.
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

/// A call; such threads are counted while it lasts.
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
