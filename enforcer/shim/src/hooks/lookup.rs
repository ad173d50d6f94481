//! The entrances: initialisation, and the driver's own symbol look-up, through which nearly all programs find
//! everything else.

use std::ffi::{c_char, c_void};

use crate::{
    cuda::{CuResult, NO_DEVICE, SUCCESS},
    driver, enter, exit, process,
};

pub(crate) unsafe fn init(original: unsafe extern "C" fn(u32) -> CuResult, flags: u32) -> CuResult {
    let stranger = process::current().is_none();
    if stranger && let Err(code) = enter::enter() {
        return code;
    }
    // SAFETY: the caller's own argument.
    let result = unsafe { original(flags) };
    if result == SUCCESS && stranger {
        enter::settle();
        exit::hear();
    } else if result == NO_DEVICE && stranger {
        enter::in_vain();
    }
    result
}

/// Does the work of the program's own `cuInit`, which was postponed.
pub(crate) fn init_late() {
    let Some(original) = driver::helpers().init else {
        return;
    };
    // SAFETY: no flags are known; the call may be made at any time.
    let _ = unsafe { init(original, 0) };
}

/// Replaces the function that the driver found by its hook. The address distinguishes versions and the per-thread twin,
/// whatever name, version and flags were asked for.
unsafe fn reroute(result: CuResult, found: *mut *mut c_void) {
    if result != SUCCESS || found.is_null() {
        return;
    }
    // SAFETY: the driver has just written there and reported success.
    let original = unsafe { *found };
    let hook = std::panic::catch_unwind(|| driver::route(original)).unwrap_or(None);
    if let Some(hook) = hook {
        // SAFETY: as above.
        unsafe { *found = hook };
    }
}

pub(crate) unsafe fn get_proc_address(
    original: unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> CuResult,
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(symbol, found, version, flags) };
    // SAFETY: `found` was good enough for the driver.
    unsafe { reroute(result, found) };
    result
}

pub(crate) unsafe fn get_proc_address_v2(
    original: unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut i32) -> CuResult,
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut i32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(symbol, found, version, flags, status) };
    // SAFETY: `found` was good enough for the driver.
    unsafe { reroute(result, found) };
    result
}
