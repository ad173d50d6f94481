//! A grid of blocks, and what it fills of a GPU as far as the driver says.

use std::sync::atomic::Ordering;

use gshare_gate::Fill;

use crate::{
    cuda::{Handle, SUCCESS},
    driver,
    gpu::Gpu,
};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const SMS: i32 = 16;
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
const THREADS: i32 = 39;
/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
const LOCAL: i32 = 3;

/// A grid of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) function: Handle,
    pub(crate) blocks: u64,
    pub(crate) threads: u64,
    pub(crate) shared: u32,
}

impl Grid {
    /// What the grid fills of the GPU of the calling thread's context.
    pub(crate) fn fill(&self, gpu: &Gpu) -> Option<Fill> {
        let threads = i32::try_from(self.threads).ok().filter(|n| *n > 0)?;
        let sms = sms_of(gpu)?;
        let mut resident = 0;
        // SAFETY: a valid place for the result, and the caller's own function.
        let result = unsafe {
            driver::helpers().occupancy?(
                &raw mut resident,
                self.function,
                threads,
                self.shared as usize,
            )
        };
        let resident = u32::try_from(resident).ok().filter(|n| *n > 0)?;
        let warps = threads.cast_unsigned().div_ceil(32);
        (result == SUCCESS).then(|| Fill::of_grid(sms, resident, self.blocks, warps))
    }
}

/// Bytes of local memory that each thread of a kernel needs; `None` where the driver does not say.
pub(crate) fn local_bytes(function: Handle) -> Option<u64> {
    let mut bytes = 0;
    // SAFETY: a valid place for the result, and the caller's own function.
    let result = unsafe { driver::helpers().func_attribute?(&raw mut bytes, LOCAL, function) };
    u64::try_from(bytes).ok().filter(|_| result == SUCCESS)
}

/// An attribute of the GPU of the calling thread's context; `None` where the driver does not say.
fn attribute(of: i32) -> Option<i32> {
    let helpers = driver::helpers();
    let (mut device, mut value) = (-1, 0);
    // SAFETY: valid places for the results.
    let result = unsafe {
        if helpers.ctx_get_device?(&raw mut device) != SUCCESS {
            return None;
        }
        helpers.device_attribute?(&raw mut value, of, device)
    };
    (result == SUCCESS).then_some(value)
}

/// Threads that can be on the GPU of the calling thread's context at a time.
pub(crate) fn resident_threads(gpu: &Gpu) -> Option<u64> {
    let threads = u64::try_from(attribute(THREADS)?).ok()?;
    Some(threads * u64::from(sms_of(gpu)?))
}

/// SMs that the driver shows of the GPU of the calling thread's context, asked once.
fn sms_of(gpu: &Gpu) -> Option<u32> {
    let known = gpu.sms.load(Ordering::Relaxed);
    if known > 0 {
        return Some(known);
    }
    let sms = u32::try_from(attribute(SMS)?).ok().filter(|n| *n > 0)?;
    gpu.sms.store(sms, Ordering::Relaxed);
    Some(sms)
}
