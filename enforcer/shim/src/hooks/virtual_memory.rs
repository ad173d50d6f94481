//! Memory that the program maps itself.

use std::{
    ffi::c_void,
    sync::{MutexGuard, PoisonError},
};

use super::memory::{ask, judged};
use gshare_abi::SHARES_MEMORY;

use crate::{
    blocks::NO_HEAP,
    cuda::{CuResult, DevicePtr, NOT_PERMITTED, PlacedProps, SUCCESS},
    driver,
    process::{self, Process},
    reservation::Reservation,
    vmm::{Gone, Virtual},
};

fn mapped(process: &Process) -> MutexGuard<'_, Virtual> {
    process
        .mapped
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn settle(process: &Process, gone: impl IntoIterator<Item = Gone>) {
    for (gpu, bytes) in gone {
        if let Some(gpu) = process.gpus.get(gpu) {
            let whole = gpu.rounded(bytes);
            let mut ledger = gpu.ledger();
            ledger.died(bytes);
            ledger.shrink(whole);
        }
    }
}

pub(crate) unsafe fn create(
    original: unsafe extern "C" fn(*mut u64, usize, *const PlacedProps, u64) -> CuResult,
    handle: *mut u64,
    bytes: usize,
    props: *const PlacedProps,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(handle, bytes, props, flags) };
    if handle.is_null() || bytes == 0 {
        return call();
    }
    // SAFETY: NULL, or the caller's properties, whose start this is.
    let device = unsafe { props.as_ref() }.and_then(PlacedProps::device);
    // Host memory is not the GPU's.
    let Some(device) = device else {
        return call();
    };
    // SAFETY: read only after the driver has written there.
    let made = || unsafe { *handle };
    if flags != 0
        && let Some(code) = judged(call, made, driver::helpers().mem_release)
    {
        return code;
    }
    let mut reservation = Reservation::default();
    let asked = process::with(|process| {
        if process.is_foreign(device) {
            return Some(Err(NOT_PERMITTED));
        }
        let gpu = process.gpu_of_device(device)?;
        let asked = ask(process, gpu, NO_HEAP, bytes as u64, &mut reservation);
        Some(asked.map(|()| gpu))
    });
    let gpu = match asked.flatten() {
        None => return call(),
        Some(Err(code)) => return code,
        Some(Ok(asked)) => asked,
    };
    let result = call();
    if result == SUCCESS {
        process::with(|process| {
            reservation.commit_unaddressed(bytes as u64);
            // SAFETY: the driver has just written there.
            let handle = unsafe { *handle };
            mapped(process).created(handle, gpu, bytes as u64);
        });
    }
    result
}

pub(crate) unsafe fn release(
    original: unsafe extern "C" fn(u64) -> CuResult,
    handle: u64,
) -> CuResult {
    // Before the driver has it back: it may reuse the handle at once.
    let taken = process::with(|process| mapped(process).take(handle)).flatten();
    // SAFETY: the caller's own argument.
    let result = unsafe { original(handle) };
    if let Some(taken) = taken {
        process::with(|process| {
            let gone = mapped(process).taken(handle, taken, result == SUCCESS);
            settle(process, gone);
        });
    }
    result
}

pub(crate) unsafe fn map(
    original: unsafe extern "C" fn(DevicePtr, usize, usize, u64, u64) -> CuResult,
    pointer: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(pointer, bytes, offset, handle, flags) };
    if result == SUCCESS {
        process::with(|process| mapped(process).mapped(pointer, bytes as u64, handle));
    }
    result
}

pub(crate) unsafe fn unmap(
    original: unsafe extern "C" fn(DevicePtr, usize) -> CuResult,
    pointer: DevicePtr,
    bytes: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(pointer, bytes) };
    if result == SUCCESS {
        process::with(|process| {
            let gone = mapped(process).unmapped(pointer, bytes as u64);
            settle(process, gone);
        });
    }
    result
}

pub(crate) unsafe fn retain(
    original: unsafe extern "C" fn(*mut u64, *mut c_void) -> CuResult,
    handle: *mut u64,
    address: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(handle, address) };
    if result == SUCCESS && !handle.is_null() {
        // SAFETY: the driver has just written there.
        let handle = unsafe { *handle };
        process::with(|process| mapped(process).retained(address as u64, handle));
    }
    result
}

pub(crate) unsafe fn export(
    original: unsafe extern "C" fn(*mut c_void, u64, i32, u64) -> CuResult,
    shareable: *mut c_void,
    handle: u64,
    kind: i32,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(shareable, handle, kind, flags) };
    if result == SUCCESS {
        process::with(|process| {
            process.note(SHARES_MEMORY);
            mapped(process).exported(handle);
        });
    }
    result
}

pub(crate) unsafe fn import(
    original: unsafe extern "C" fn(*mut u64, *mut c_void, i32) -> CuResult,
    handle: *mut u64,
    shareable: *mut c_void,
    kind: i32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(handle, shareable, kind) };
    if result == SUCCESS && !handle.is_null() {
        // SAFETY: the driver has just written there.
        let handle = unsafe { *handle };
        process::with(|process| {
            process.note(SHARES_MEMORY);
            mapped(process).imported(handle);
        });
    }
    result
}
