//! Notes kernels of libraries, so that the driver is never asked about one as if it were a function.

use crate::{
    cuda::{CuResult, Handle, SUCCESS},
    driver, grid,
};

pub(crate) unsafe fn kernel(
    original: unsafe extern "C" fn(*mut Handle, Handle, usize) -> CuResult,
    kernel: *mut Handle,
    library: Handle,
    name: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(kernel, library, name) };
    if result == SUCCESS {
        // SAFETY: NULL, or the driver has just written there.
        grid::note_kernels(library, unsafe { kernel.as_ref() }.copied());
    }
    result
}

pub(crate) unsafe fn kernels(
    original: unsafe extern "C" fn(*mut Handle, u32, Handle) -> CuResult,
    kernels: *mut Handle,
    room: u32,
    library: Handle,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(kernels, room, library) };
    let mut count = 0;
    let ask = driver::helpers().kernel_count;
    // SAFETY: a valid place for the result.
    let known = ask.is_some_and(|ask| unsafe { ask(&raw mut count, library) } == SUCCESS);
    if result == SUCCESS && known && !kernels.is_null() {
        // SAFETY: the driver has written as many as there are and as there is room for.
        let found = unsafe { std::slice::from_raw_parts(kernels, room.min(count) as usize) };
        grid::note_kernels(library, found.iter().copied());
    }
    result
}

pub(crate) unsafe fn unload(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    library: Handle,
) -> CuResult {
    // Before the driver may reuse the handles.
    grid::forget_kernels(library);
    // SAFETY: the caller's own argument.
    unsafe { original(library) }
}
