//! Notes shared memory, managed variables and graphics memory: the driver cannot checkpoint them, so the claim cannot
//! be detached, and `gshare ps` reports that.

use std::ffi::c_void;

use gshare_abi::{SHARES_MEMORY, USES_FOREIGN, USES_MANAGED, USES_MULTICAST};

use super::launch::let_through;
use crate::{
    cuda::{CuResult, DevicePtr, SUCCESS},
    driver, process,
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

/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
const IS_MANAGED: i32 = 8;

/// Notes a module's variable if it is managed: its memory shows in no allocation.
fn variable(result: CuResult, address: impl FnOnce() -> DevicePtr) -> CuResult {
    let is_managed = || {
        let mut managed = 0u8;
        // SAFETY: the value of this attribute is a byte, and there is room for it.
        let asked = unsafe {
            driver::helpers().pointer_attribute?(
                (&raw mut managed).cast::<c_void>(),
                IS_MANAGED,
                address(),
            )
        };
        (asked == SUCCESS && managed != 0).then_some(())
    };
    if result == SUCCESS {
        let _ = process::with(|process| is_managed().map(|()| process.note(USES_MANAGED)));
    }
    result
}

pub(crate) unsafe fn global(
    original: unsafe extern "C" fn(*mut DevicePtr, *mut usize, usize, usize) -> CuResult,
    address: *mut DevicePtr,
    bytes: *mut usize,
    module: usize,
    name: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(address, bytes, module, name) };
    // SAFETY: NULL, or the driver has written there.
    variable(result, || unsafe { address.as_ref() }.copied().unwrap_or(0))
}

pub(crate) unsafe fn global_v1(
    original: unsafe extern "C" fn(*mut u32, *mut u32, usize, usize) -> CuResult,
    address: *mut u32,
    bytes: *mut u32,
    module: usize,
    name: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(address, bytes, module, name) };
    // SAFETY: NULL, or the driver has written there.
    let written = || unsafe { address.as_ref() }.copied().unwrap_or(0);
    variable(result, || written().into())
}

pub(crate) unsafe fn managed(
    original: unsafe extern "C" fn(usize, usize, usize, usize) -> CuResult,
    address: usize,
    bytes: usize,
    library: usize,
    name: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    noted(
        unsafe { original(address, bytes, library, name) },
        USES_MANAGED,
    )
}

pub(crate) unsafe fn import(
    original: unsafe extern "C" fn(usize, usize) -> CuResult,
    made: usize,
    of: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(made, of) };
    noted(let_through(0, call), USES_FOREIGN)
}

pub(crate) unsafe fn register(
    original: unsafe extern "C" fn(usize, usize, u32) -> CuResult,
    made: usize,
    of: usize,
    flags: u32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(made, of, flags) };
    noted(let_through(0, call), USES_FOREIGN)
}

pub(crate) unsafe fn register_image(
    original: unsafe extern "C" fn(usize, u32, u32, u32) -> CuResult,
    made: usize,
    image: u32,
    target: u32,
    flags: u32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(made, image, target, flags) };
    noted(let_through(0, call), USES_FOREIGN)
}
