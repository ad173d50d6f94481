//! Sizes of memory: for the program, the claim's cap is the GPU.

use std::sync::atomic::Ordering;

use crate::{
    cuda::{CuResult, Device, INVALID_DEVICE, SUCCESS, Width},
    gpu::Gpu,
    process,
};

fn cap(gpu: &Gpu) -> u64 {
    gpu.limits().memory_cap_bytes.load(Ordering::Relaxed)
}

pub(crate) unsafe fn total_mem<N: Width>(
    original: unsafe extern "C" fn(*mut N, Device) -> CuResult,
    bytes: *mut N,
    device: Device,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(bytes, device) };
    if result == SUCCESS && !bytes.is_null() {
        let shown = process::with(|process| {
            let gpu = process.gpus.get(process.gpu_of_device(device)?)?;
            Some(cap(gpu))
        });
        if let Some(Some(shown)) = shown {
            // SAFETY: the driver has just written there.
            unsafe { *bytes = N::narrow(shown.min((*bytes).wide())) };
        }
    }
    result
}

/// Devices outside the claim do not exist for the program.
pub(crate) unsafe fn device_count(
    original: unsafe extern "C" fn(*mut i32) -> CuResult,
    count: *mut i32,
) -> CuResult {
    // SAFETY: the caller's own argument.
    let result = unsafe { original(count) };
    if result == SUCCESS && !count.is_null() {
        let shown = process::with(|process| i32::try_from(process.view.len()).ok());
        if let Some(Some(shown)) = shown {
            // SAFETY: the driver has just written there.
            unsafe { *count = shown };
        }
    }
    result
}

pub(crate) unsafe fn device_get(
    original: unsafe extern "C" fn(*mut Device, i32) -> CuResult,
    device: *mut Device,
    ordinal: i32,
) -> CuResult {
    let meant = process::with(|process| {
        let meant = usize::try_from(ordinal).ok();
        meant.and_then(|meant| process.view.get(meant)).copied()
    });
    match meant {
        // SAFETY: the caller's own place, written as the driver writes it.
        Some(Some(meant)) if !device.is_null() => unsafe {
            *device = meant;
            SUCCESS
        },
        Some(None) if !device.is_null() => INVALID_DEVICE,
        // SAFETY: the caller's own arguments.
        _ => unsafe { original(device, ordinal) },
    }
}

pub(crate) unsafe fn device_by_bus(
    original: unsafe extern "C" fn(*mut Device, *const libc::c_char) -> CuResult,
    device: *mut Device,
    bus: *const libc::c_char,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(device, bus) };
    if result == SUCCESS && !device.is_null() {
        // SAFETY: the driver has just written there.
        let found = unsafe { *device };
        if process::with(|process| process.is_foreign(found)) == Some(true) {
            return INVALID_DEVICE;
        }
    }
    result
}

/// Free and total bytes of the claim, given the driver's free bytes.
fn inside(driver_free: u64, driver_total: u64) -> Option<(u64, u64)> {
    process::with(|process| {
        if process.pools_changed.load(Ordering::Relaxed) {
            process.refresh_pools();
        }
        let (gpu, _) = process.here()?;
        let gpu = process.gpus.get(gpu)?;
        let total = cap(gpu).min(driver_total);
        let charged = gpu.charged_bytes();
        Some((total.saturating_sub(charged).min(driver_free), total))
    })
    .flatten()
}

pub(crate) unsafe fn mem_info<N: Width>(
    original: unsafe extern "C" fn(*mut N, *mut N) -> CuResult,
    free: *mut N,
    total: *mut N,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(free, total) };
    if result == SUCCESS && !free.is_null() && !total.is_null() {
        // SAFETY: the driver has just written there.
        let (driver_free, driver_total) = unsafe { (*free, *total) };
        if let Some(shown) = inside(driver_free.wide(), driver_total.wide()) {
            // SAFETY: as above.
            unsafe { (*free, *total) = (N::narrow(shown.0), N::narrow(shown.1)) };
        }
    }
    result
}
