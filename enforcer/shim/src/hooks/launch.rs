//! Admits and counts launches. Nothing here locks, allocates, panics or enters the kernel; only on a shared GPU a
//! launch may have to ask the gate, and wait there.

#![allow(clippy::too_many_arguments, reason = "the driver's signatures")]

use std::{ffi::c_void, sync::atomic::Ordering};

use gshare_abi::State;
use gshare_gate::{Key, Step, place};

use super::context;
use crate::{
    capture::{any_capture, is_captured},
    cuda::{CuResult, Handle, SUCCESS},
    forked,
    gate::{self, Pass},
    gpu::Gpu,
    held,
    mark::{self, Thread},
    process::{self, Process},
    work::Work,
};

/// A launch that goes at once, as nearly all do. With one GPU it is found without a call, so that the program's
/// arguments stay where they are.
pub(crate) struct Quick {
    inside: mark::Quick,
    gpu: &'static Gpu,
}

/// The claim's only GPU, or that of the calling thread's context; `None` outside claims.
#[inline(always)]
pub(crate) fn quick_gpu() -> Option<&'static Gpu> {
    // SAFETY: null, or a GPU of a leaked `Process`.
    let only = unsafe { forked::only_gpu().cast::<Gpu>().as_ref() };
    only.or_else(|| process::current().and_then(gpu_here))
}

impl Quick {
    /// `None`: the launch has to be examined.
    #[inline(always)]
    pub(crate) fn find(
        gpu: &'static Gpu,
        entry: u32,
        stream: Handle,
        key: impl FnOnce() -> Key,
    ) -> Option<Self> {
        let inside = mark::Quick::new(entry)?;
        if held::word().load(Ordering::Relaxed) != State::Granted as u32 || any_capture() {
            return None;
        }
        let place = place(stream, inside.thread.id());
        let goes = gpu.tally.goes(gpu.turn(), key(), place);
        goes.then_some(Self { inside, gpu })
    }

    #[inline(always)]
    pub(crate) fn end(self, result: CuResult) {
        if result == SUCCESS {
            self.gpu.launched(self.inside.thread, 1);
        }
        self.inside.end();
    }
}

/// [`Quick::find`] for the arguments of `kernel` and of `kernel_ex`.
#[inline(always)]
pub(crate) fn quick_kernel(
    gpu: &'static Gpu,
    entry: u32,
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared: u32,
    stream: Handle,
    _params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Option<Quick> {
    Quick::find(gpu, entry, stream, || {
        let blocks = volume(grid_x, grid_y, grid_z);
        Key::kernel(function, blocks, volume(block_x, block_y, block_z))
    })
}

#[inline(always)]
pub(crate) fn quick_kernel_ex(
    gpu: &'static Gpu,
    entry: u32,
    config: *const c_void,
    function: Handle,
    _params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Option<Quick> {
    // SAFETY: as in `kernel_ex`.
    let LaunchConfig { sizes, stream } = unsafe { config.cast::<LaunchConfig>().as_ref()? };
    let [x, y, z, block_x, block_y, block_z, _] = *sizes;
    Quick::find(gpu, entry, *stream, || {
        Key::kernel(function, volume(x, y, z), volume(block_x, block_y, block_z))
    })
}

#[inline]
fn gpu_of(process: &'static Process) -> Option<&'static Gpu> {
    match process.gpus.as_slice() {
        [gpu] => Some(gpu),
        _ => gpu_here(process),
    }
}

/// With several GPUs, that of the calling thread's context.
#[inline(never)]
fn gpu_here(process: &'static Process) -> Option<&'static Gpu> {
    process.here().and_then(|(gpu, _)| process.gpus.get(gpu))
}

/// A launch of one kernel, with its key.
#[inline(always)]
fn counted(
    stream: Handle,
    key: Key,
    work: impl FnOnce() -> Work,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    counted_as(stream, key, true, 1, work, call)
}

/// The same for a call that does not give the shape of its blocks.
fn unshaped(
    stream: Handle,
    function: Handle,
    blocks: u64,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let work = Work::unknown(function, blocks);
    counted(stream, work.key, || work, call)
}

/// Admits, refuses or delays a launch of kernels. `counts`: SMs work on it. `work` is called if the launch has to be
/// examined.
///
/// Inlined around the driver call, of which there is only one, so that the program's arguments stay in registers.
#[inline(always)]
pub(super) fn counted_as(
    stream: Handle,
    key: Key,
    counts: bool,
    kernels: u64,
    work: impl FnOnce() -> Work,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let mut member = None;
    let mut trial = None;
    if let Some(process) = process::current()
        && let Some(gpu) = gpu_of(process)
    {
        if !gpu.granted() {
            return refused(process);
        }
        // Recorded work counts when its graph runs.
        if !is_captured(stream) {
            let (word, thread) = (gpu.turn(), Thread::current());
            let place = place(stream, thread.id());
            let pass = match gpu.tally.pass(word, key, counts, place) {
                Step::Go => Pass::Go,
                slow => {
                    let work = work();
                    if let Err(code) = context::charge_local(process, gpu, &work) {
                        return code;
                    }
                    gate::closer(process, gpu, slow, word, work, stream, place)
                }
            };
            match pass {
                Pass::Go => {}
                Pass::Measured(it) => trial = Some(it),
                Pass::Refused => return refused(process),
            }
            member = Some((gpu, thread));
        }
    }
    let result = call();
    if let Some((gpu, thread)) = member {
        // Before the thread that looks for its end may look.
        if result == SUCCESS {
            gpu.launched(thread, kernels);
        }
        if let Some(trial) = trial {
            gate::leave(gpu, trial, result);
        }
    }
    result
}

#[inline]
fn volume(x: u32, y: u32, z: u32) -> u64 {
    u64::from(x)
        .wrapping_mul(u64::from(y))
        .wrapping_mul(u64::from(z))
}

/// Lets a short copy through while the claim has the GPU.
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

/// Counts a copy of this many bytes.
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

/// A launch by a grid, with as many further arguments.
macro_rules! grid {
    ($($name:ident($($more:ident),*);)*) => {$(
        #[inline(always)]
        pub(crate) unsafe fn $name(
            original: unsafe extern "C" fn(
                Handle, u32, u32, u32, u32, u32, u32, u32, Handle, $(grid!(@ $more)),*
            ) -> CuResult,
            function: Handle,
            x: u32,
            y: u32,
            z: u32,
            block_x: u32,
            block_y: u32,
            block_z: u32,
            shared: u32,
            stream: Handle,
            $($more: grid!(@ $more)),*
        ) -> CuResult {
            let (blocks, threads) = (volume(x, y, z), volume(block_x, block_y, block_z));
            let key = Key::kernel(function, blocks, threads);
            let work = move || Work::grid(function, blocks, threads, shared);
            // SAFETY: the caller's own arguments.
            counted(stream, key, work, move || unsafe {
                original(
                    function, x, y, z, block_x, block_y, block_z, shared, stream, $($more),*
                )
            })
        }
    )*};
    (@ $more:ident) => { *mut *mut c_void };
}

grid! {
    kernel(params, extra);
    cooperative(params);
}

#[inline(always)]
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
    let (blocks, threads) = (volume(x, y, z), volume(block_x, block_y, block_z));
    let key = Key::kernel(function, blocks, threads);
    let work = move || Work::grid(function, blocks, threads, shared);
    // SAFETY: the caller's own arguments.
    counted(stream, key, work, move || unsafe {
        original(config, function, params, extra)
    })
}

pub(crate) unsafe fn cooperative_many(
    original: unsafe extern "C" fn(*mut c_void, u32, u32) -> CuResult,
    list: *mut c_void,
    count: u32,
    flags: u32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    unshaped(0, 0, u64::from(count), || unsafe {
        original(list, count, flags)
    })
}

pub(crate) unsafe fn old(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    function: Handle,
) -> CuResult {
    // SAFETY: the caller's own argument.
    unshaped(0, function, 1, || unsafe { original(function) })
}

pub(crate) unsafe fn old_grid(
    original: unsafe extern "C" fn(Handle, i32, i32) -> CuResult,
    function: Handle,
    width: i32,
    height: i32,
) -> CuResult {
    let blocks = volume(width.cast_unsigned(), height.cast_unsigned(), 1);
    // SAFETY: the caller's own arguments.
    unshaped(0, function, blocks, || unsafe {
        original(function, width, height)
    })
}

pub(crate) unsafe fn old_grid_async(
    original: unsafe extern "C" fn(Handle, i32, i32, Handle) -> CuResult,
    function: Handle,
    width: i32,
    height: i32,
    stream: Handle,
) -> CuResult {
    let blocks = volume(width.cast_unsigned(), height.cast_unsigned(), 1);
    // SAFETY: the caller's own arguments.
    unshaped(stream, function, blocks, || unsafe {
        original(function, width, height, stream)
    })
}
