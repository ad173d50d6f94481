//! A grid of blocks, and the part of a GPU that it fills according to the driver.

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError, atomic::Ordering};

use gshare_gate::Fill;

use crate::{
    cuda::{Device, Handle, SUCCESS},
    driver,
    gpu::Gpu,
    map::{Table, table},
};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const SMS: i32 = 16;
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
const THREADS: i32 = 39;
/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
const LOCAL: i32 = 3;

/// A variable of libcudadevrt, through which kernels start kernels: programs linked with it by CUDA 12 or 13 contain
/// it.
const DEVICE_RUNTIME: &CStr = c"__CNPRT_VERSION_NUMBER__";

#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) function: Handle,
    pub(crate) blocks: u64,
    pub(crate) threads: u64,
    pub(crate) shared: u32,
}

impl Grid {
    /// The grid's fill of the GPU of the calling thread's context.
    pub(crate) fn fill(&self, gpu: &Gpu) -> Option<Fill> {
        let threads = i32::try_from(self.threads).ok().filter(|n| *n > 0)?;
        let sms = sms_of(gpu)?;
        let mut resident = 0;
        let told = driver::helpers().occupancy.is_some_and(|ask| {
            // SAFETY: a valid place for the result, and the caller's own function.
            let result = unsafe {
                ask(
                    &raw mut resident,
                    self.function,
                    threads,
                    self.shared as usize,
                )
            };
            result == SUCCESS
        });
        // If unknown, one block per SM at a time, the minimum.
        let resident = u32::try_from(if told { resident } else { 1 });
        let resident = resident.ok().filter(|n| *n > 0)?;
        let warps = threads.cast_unsigned().div_ceil(32);
        Some(Fill::of_grid(sms, resident, self.blocks, warps))
    }
}

/// Kernels of libraries: the driver accepts them as functions in launches and for occupancy, and nowhere else (cuda.h,
/// `cuLaunchKernel`).
static KERNELS: Mutex<Table<Handle, Handle>> = Mutex::new(table());

fn kernels() -> MutexGuard<'static, Table<Handle, Handle>> {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver has returned kernels of a library.
pub(crate) fn note_kernels(library: Handle, found: impl IntoIterator<Item = Handle>) {
    let mut kernels = kernels();
    for kernel in found.into_iter().filter(|kernel| *kernel != 0) {
        kernels.insert(kernel, library);
    }
}

/// A library is about to go.
pub(crate) fn forget_kernels(library: Handle) {
    kernels().retain(|_, its| *its != library);
}

/// Bytes of local memory that each thread of a kernel needs; `None` if the driver does not tell.
pub(crate) fn local_bytes(function: Handle) -> Option<u64> {
    let (helpers, mut bytes) = (driver::helpers(), 0);
    let is_kernel = kernels().contains_key(&function);
    // SAFETY: a valid place for the result, and the caller's own function or kernel of a library.
    let result = unsafe {
        if is_kernel {
            helpers.kernel_attribute?(&raw mut bytes, LOCAL, function, device()?)
        } else {
            helpers.func_attribute?(&raw mut bytes, LOCAL, function)
        }
    };
    u64::try_from(bytes).ok().filter(|_| result == SUCCESS)
}

/// Whether kernels in this one's module or library can start others; `None` if the driver cannot be asked.
pub(crate) fn starts_kernels(function: Handle) -> Option<bool> {
    let (helpers, name) = (driver::helpers(), DEVICE_RUNTIME.as_ptr());
    let library = kernels().get(&function).copied();
    let (mut address, mut bytes, mut module) = (0, 0, 0);
    // SAFETY: valid places for the results, the caller's own function or kernel, and the module that the driver names.
    let result = unsafe {
        match library {
            Some(of) => helpers.library_global?(&raw mut address, &raw mut bytes, of, name),
            None => match helpers.func_module?(&raw mut module, function) {
                SUCCESS => helpers.module_global?(&raw mut address, &raw mut bytes, module, name),
                code => code,
            },
        }
    };
    Some(result == SUCCESS)
}

/// The device of the calling thread's context; `None` if the driver does not tell.
fn device() -> Option<Device> {
    let mut device = -1;
    // SAFETY: a valid place for the result.
    let result = unsafe { driver::helpers().ctx_get_device?(&raw mut device) };
    (result == SUCCESS).then_some(device)
}

/// An attribute of the current device.
fn attribute(of: i32) -> Option<i32> {
    let (device, mut value) = (device()?, 0);
    // SAFETY: a valid place for the result.
    let result = unsafe { driver::helpers().device_attribute?(&raw mut value, of, device) };
    (result == SUCCESS).then_some(value)
}

/// Maximum resident threads of the GPU of the calling thread's context.
pub(crate) fn resident_threads(gpu: &Gpu) -> Option<u64> {
    let threads = u64::try_from(attribute(THREADS)?).ok()?;
    Some(threads * u64::from(sms_of(gpu)?))
}

/// SMs of the GPU of the calling thread's context according to the driver, asked once.
fn sms_of(gpu: &Gpu) -> Option<u32> {
    let known = gpu.sms.load(Ordering::Relaxed);
    if known > 0 {
        return Some(known);
    }
    let sms = u32::try_from(attribute(SMS)?).ok().filter(|n| *n > 0)?;
    gpu.sms.store(sms, Ordering::Relaxed);
    Some(sms)
}
