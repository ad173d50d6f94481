//! Launches are let through or not, and counted. Nothing here locks, allocates, panics or enters the
//! kernel; only where the GPU is shared may a launch have to ask the gate, and wait there.

#![allow(clippy::too_many_arguments, reason = "the driver's signatures")]

use std::ffi::c_void;

use super::graph::is_captured;
use gshare_gate::Mode;

use crate::{
    cuda::{CuResult, Handle, SUCCESS},
    gate::{self, Pass},
    gpu::Gpu,
    mark::Thread,
    process::{self, Process},
    work::Work,
};

#[inline]
fn gpu_of(process: &'static Process) -> Option<&'static Gpu> {
    match process.gpus.as_slice() {
        [gpu] => Some(gpu),
        gpus => process.here().and_then(|(gpu, _)| gpus.get(gpu)),
    }
}

#[inline]
fn counted(stream: Handle, work: Work, call: impl FnOnce() -> CuResult) -> CuResult {
    counted_as(stream, work, 1, call)
}

/// Lets a launch of so many kernels through, or not, or later.
#[inline]
pub(super) fn counted_as(
    stream: Handle,
    work: Work,
    kernels: u64,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let Some(process) = process::current() else {
        return call();
    };
    let Some(gpu) = gpu_of(process) else {
        return call();
    };
    if !gpu.granted() {
        return refused(process);
    }
    // What is recorded runs with the graph, and counts then.
    if is_captured(stream) {
        return call();
    }
    let word = gpu.turn();
    let thread = Thread::current();
    let pass = if word.mode() != Mode::Free {
        gate::enter(process, gpu, word, work, stream, thread)
    } else if work.counts() && !gpu.tally.add(work.key, stream, thread.number()) {
        gate::measure(process, gpu, word, work, stream, thread)
    } else {
        Pass::Go
    };
    if matches!(pass, Pass::Refused) {
        return refused(process);
    }
    let result = call();
    if let Pass::Measured(trial) = pass {
        gate::leave(gpu, *trial, result);
    }
    if result == SUCCESS {
        gpu.launched(thread, kernels);
    }
    result
}

fn volume(x: u32, y: u32, z: u32) -> u64 {
    u64::from(x)
        .wrapping_mul(u64::from(y))
        .wrapping_mul(u64::from(z))
}

/// Lets a short move of so many copied bytes through while the claim holds the GPU.
#[inline]
pub(super) fn let_through(copied: u64, call: impl FnOnce() -> CuResult) -> CuResult {
    let process = process::current();
    match process.and_then(|process| Some((process, gpu_of(process)?))) {
        Some((process, gpu)) if !gpu.granted() => refused(process),
        Some((_, gpu)) => {
            let result = call();
            if result == SUCCESS && copied > 0 {
                gpu.copied(Thread::current(), copied);
            }
            result
        }
        None => call(),
    }
}

/// Counts a copy of so many bytes.
pub(super) fn note_copy(copied: u64, result: CuResult) {
    if result == SUCCESS
        && copied > 0
        && let Some(gpu) = process::current().and_then(gpu_of)
    {
        gpu.copied(Thread::current(), copied);
    }
}

#[cold]
fn refused(process: &'static Process) -> CuResult {
    process.not_granted()
}

/// The start of `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    sizes: [u32; 7],
    stream: Handle,
}

pub(crate) unsafe fn kernel(
    original: unsafe extern "C" fn(
        Handle,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        Handle,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> CuResult,
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    let blocks = volume(grid_x, grid_y, grid_z);
    let work = Work::grid(function, blocks, volume(block_x, block_y, block_z), shared);
    // SAFETY: the caller's own arguments.
    counted(stream, work, || unsafe {
        original(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params,
            extra,
        )
    })
}

pub(crate) unsafe fn kernel_ex(
    original: unsafe extern "C" fn(
        *const c_void,
        Handle,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> CuResult,
    config: *const c_void,
    function: Handle,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // SAFETY: NULL, or the caller's configuration, which is larger and has the stream there.
    let config_start = unsafe { config.cast::<LaunchConfig>().as_ref() };
    let stream = config_start.map_or(0, |it| it.stream);
    let sizes = config_start.map_or([0; 7], |it| it.sizes);
    let [x, y, z, block_x, block_y, block_z, shared] = sizes;
    let threads = volume(block_x, block_y, block_z);
    let work = Work::grid(function, volume(x, y, z), threads, shared);
    // SAFETY: the caller's own arguments.
    counted(stream, work, || unsafe {
        original(config, function, params, extra)
    })
}

pub(crate) unsafe fn cooperative(
    original: unsafe extern "C" fn(
        Handle,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        Handle,
        *mut *mut c_void,
    ) -> CuResult,
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    params: *mut *mut c_void,
) -> CuResult {
    let blocks = volume(grid_x, grid_y, grid_z);
    let work = Work::grid(function, blocks, volume(block_x, block_y, block_z), shared);
    // SAFETY: the caller's own arguments.
    counted(stream, work, || unsafe {
        original(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params,
        )
    })
}

pub(crate) unsafe fn cooperative_many(
    original: unsafe extern "C" fn(*mut c_void, u32, u32) -> CuResult,
    list: *mut c_void,
    count: u32,
    flags: u32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    counted(0, Work::unknown(0, u64::from(count)), || unsafe {
        original(list, count, flags)
    })
}

pub(crate) unsafe fn old(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    function: Handle,
) -> CuResult {
    // SAFETY: the caller's own argument.
    counted(0, Work::unknown(function, 1), || unsafe {
        original(function)
    })
}

pub(crate) unsafe fn old_grid(
    original: unsafe extern "C" fn(Handle, i32, i32) -> CuResult,
    function: Handle,
    width: i32,
    height: i32,
) -> CuResult {
    let blocks = volume(width.cast_unsigned(), height.cast_unsigned(), 1);
    let work = Work::unknown(function, blocks);
    // SAFETY: the caller's own arguments.
    counted(0, work, || unsafe { original(function, width, height) })
}

pub(crate) unsafe fn old_grid_async(
    original: unsafe extern "C" fn(Handle, i32, i32, Handle) -> CuResult,
    function: Handle,
    width: i32,
    height: i32,
    stream: Handle,
) -> CuResult {
    let blocks = volume(width.cast_unsigned(), height.cast_unsigned(), 1);
    let work = Work::unknown(function, blocks);
    // SAFETY: the caller's own arguments.
    counted(stream, work, || unsafe {
        original(function, width, height, stream)
    })
}
