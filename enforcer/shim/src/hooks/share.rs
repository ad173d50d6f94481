//! What a program shares with others is noted: the driver cannot checkpoint it, so the claim cannot be detached, and
//! `gshare ps` says so.

use gshare_abi::{SHARES_MEMORY, USES_MULTICAST};

use super::launch::let_through;
use crate::{
    cuda::{CuResult, SUCCESS},
    process,
};

/// `CUipcMemHandle` and `CUipcEventHandle`, which are passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle([u64; 8]);

fn noted(result: CuResult, flags: u64) -> CuResult {
    if result == SUCCESS {
        let _ = process::with(|process| process.note(flags));
    }
    result
}

pub(crate) unsafe fn export(
    original: unsafe extern "C" fn(usize, usize) -> CuResult,
    handle: usize,
    what: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    noted(unsafe { original(handle, what) }, SHARES_MEMORY)
}

pub(crate) unsafe fn open_memory(
    original: unsafe extern "C" fn(usize, IpcHandle, u32) -> CuResult,
    pointer: usize,
    handle: IpcHandle,
    flags: u32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    noted(
        let_through(0, || unsafe { original(pointer, handle, flags) }),
        SHARES_MEMORY,
    )
}

pub(crate) unsafe fn open_event(
    original: unsafe extern "C" fn(usize, IpcHandle) -> CuResult,
    event: usize,
    handle: IpcHandle,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    noted(
        let_through(0, || unsafe { original(event, handle) }),
        SHARES_MEMORY,
    )
}

pub(crate) unsafe fn export_pool(
    original: unsafe extern "C" fn(usize, usize, i32, u64) -> CuResult,
    handle: usize,
    pool: usize,
    kind: i32,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    noted(
        let_through(0, || unsafe { original(handle, pool, kind, flags) }),
        SHARES_MEMORY,
    )
}

pub(crate) unsafe fn multicast(
    original: unsafe extern "C" fn(usize, usize) -> CuResult,
    handle: usize,
    properties: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    noted(
        let_through(0, || unsafe { original(handle, properties) }),
        USES_MULTICAST,
    )
}
