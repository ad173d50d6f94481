//! Notes shared memory, managed variables and graphics memory: the driver cannot checkpoint them, so the claim cannot
//! be detached, and `gshare ps` reports that.

use std::ffi::c_void;

use gshare_abi::{SHARES_MEMORY, USES_FOREIGN, USES_MANAGED, USES_MULTICAST};

use super::launch::let_through;
use crate::{
    cuda::{CuResult, DevicePtr, SUCCESS, Width},
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

/// A hook that notes its use. `through`: the call is refused while the claim does not have the GPU.
macro_rules! noted {
    ($($name:ident($($arg:ident: $kind:ty),*) $how:ident, $flags:expr;)*) => {$(
        pub(crate) unsafe fn $name(
            original: unsafe extern "C" fn($($kind),*) -> CuResult,
            $($arg: $kind),*
        ) -> CuResult {
            // SAFETY: the caller's own arguments.
            let call = || unsafe { original($($arg),*) };
            noted(noted!(@ $how call), $flags)
        }
    )*};
    (@ through $call:ident) => { let_through(0, $call) };
    (@ always $call:ident) => { $call() };
}

noted! {
    export(handle: usize, what: usize) always, SHARES_MEMORY;
    open_memory(pointer: usize, handle: IpcHandle, flags: u32) through, SHARES_MEMORY;
    open_event(event: usize, handle: IpcHandle) through, SHARES_MEMORY;
    export_pool(handle: usize, pool: usize, kind: i32, flags: u64) through, SHARES_MEMORY;
    multicast(handle: usize, properties: usize) through, USES_MULTICAST;
    managed(address: usize, bytes: usize, library: usize, name: usize) always, USES_MANAGED;
    import(made: usize, of: usize) through, USES_FOREIGN;
    register(made: usize, of: usize, flags: u32) through, USES_FOREIGN;
    register_image(made: usize, image: u32, target: u32, flags: u32) through, USES_FOREIGN;
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

pub(crate) unsafe fn global<P: Width, N>(
    original: unsafe extern "C" fn(*mut P, *mut N, usize, usize) -> CuResult,
    address: *mut P,
    bytes: *mut N,
    module: usize,
    name: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(address, bytes, module, name) };
    // SAFETY: NULL, or the driver has written there.
    let written = || unsafe { address.as_ref() }.map_or(0, |address| address.wide());
    variable(result, written)
}
