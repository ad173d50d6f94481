//! Every name that the proxy defines. The hooks: one row per signature, with all the names (versions,
//! per-thread twins) that share it. The rest of the driver's names, from `table/entries.tsv`, get a
//! trampoline each (`passed`). The exported functions, the list of names and the routes of
//! `cuGetProcAddress` come from these two lists alone.

use std::ffi::{CStr, c_void};

use crate::{
    cuda::{CuResult, Device, DevicePtr, Handle, NOT_FOUND, PlacedProps},
    driver,
    hooks::{
        self,
        array::{Deep, Flat},
    },
    mark::Inside,
};

macro_rules! export {
    ($name:ident, ($($arg:ident: $kind:ty),*), $hook:path) => {
        /// Entry of the proxy under the driver's name.
        ///
        /// # Safety
        /// As the driver's function of this name demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> CuResult {
            let _inside = Inside::new(Entry::$name as u32);
            let original = driver::original(Entry::$name);
            if original.is_null() {
                return NOT_FOUND;
            }
            // SAFETY: the driver's function of this name has this signature (cuda.h).
            let original = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> CuResult>(
                    original,
                )
            };
            // SAFETY: the caller keeps to the driver's rules for these arguments.
            unsafe { $hook(original, $($arg),*) }
        }
    };
}

macro_rules! arguments {
    (($($arg:ident: $kind:ty),*)) => { <[&str]>::len(&[$(stringify!($arg)),*]) };
}

macro_rules! hooks {
    ($($hook:path => $args:tt { $($name:ident),+ $(,)? })*) => {
        /// A row's name, as an index.
        #[allow(non_camel_case_types, reason = "the driver's names")]
        #[derive(Clone, Copy)]
        pub(crate) enum Entry {
            $($($name),+),*
        }

        /// Every name that has a hook.
        pub const NAMES: &[&str] = &[$($(stringify!($name)),+),*];

        pub(crate) const COUNT: usize = NAMES.len();

        /// Name of each hook with the number of its arguments.
        pub fn arguments() -> impl Iterator<Item = (&'static str, usize)> {
            [$($((stringify!($name), arguments!($args))),+),*].into_iter()
        }

        /// Name and entry of each row, in the order of [`Entry`].
        pub(crate) fn rows() -> [(&'static CStr, *mut c_void); COUNT] {
            [$($({
                const NAME: &CStr = match CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                (NAME, $name as *mut c_void)
            }),+),*]
        }

        $($(export!($name, $args, $hook);)+)*
    };
}

/// Whether a hooked name's default stream is that of the calling thread.
pub(crate) fn is_per_thread(entry: u32) -> bool {
    NAMES
        .get(entry as usize)
        .is_some_and(|name| name.ends_with("_ptsz"))
}

/// Entry points without a hook.
#[cfg(target_arch = "x86_64")]
pub mod passed;

/// Where there are no trampolines yet these names reach the driver through the dependency on it.
#[cfg(not(target_arch = "x86_64"))]
pub mod passed {
    use std::{
        ffi::{CStr, c_void},
        sync::atomic::AtomicPtr,
    };

    /// Every name that has a trampoline.
    pub const NAMES: &[&str] = &[];
    pub(crate) static ORIGINALS: [AtomicPtr<c_void>; 0] = [];

    pub(crate) fn rows() -> [(&'static CStr, *mut c_void); 0] {
        []
    }
}

hooks! {
    hooks::lookup::init => (flags: u32) { cuInit }
    hooks::lookup::get_proc_address => (
        symbol: *const libc::c_char, found: *mut *mut c_void, version: i32, flags: u64
    ) { cuGetProcAddress }
    hooks::lookup::get_proc_address_v2 => (
        symbol: *const libc::c_char, found: *mut *mut c_void, version: i32, flags: u64,
        status: *mut i32
    ) { cuGetProcAddress_v2 }

    hooks::info::device_count => (count: *mut i32) { cuDeviceGetCount }
    hooks::info::device_get => (device: *mut Device, ordinal: i32) { cuDeviceGet }
    hooks::info::device_by_bus => (device: *mut Device, bus: *const libc::c_char) {
        cuDeviceGetByPCIBusId
    }
    hooks::info::total_mem => (bytes: *mut usize, device: Device) { cuDeviceTotalMem_v2 }
    hooks::info::total_mem_v1 => (bytes: *mut u32, device: Device) { cuDeviceTotalMem }
    hooks::info::mem_info => (free: *mut usize, total: *mut usize) { cuMemGetInfo_v2 }
    hooks::info::mem_info_v1 => (free: *mut u32, total: *mut u32) { cuMemGetInfo }

    hooks::context::primary_retain => (context: *mut Handle, device: Device) {
        cuDevicePrimaryCtxRetain
    }
    hooks::context::primary_end => (device: Device) {
        cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2,
        cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2,
    }
    hooks::context::create => (context: *mut Handle, flags: u32, device: Device) {
        cuCtxCreate, cuCtxCreate_v2,
    }
    hooks::context::create_v3 => (
        context: *mut Handle, affinity: *mut c_void, count: i32, flags: u32, device: Device
    ) { cuCtxCreate_v3 }
    hooks::context::create_v4 => (
        context: *mut Handle, params: *mut c_void, flags: u32, device: Device
    ) { cuCtxCreate_v4 }
    hooks::context::destroy => (context: Handle) { cuCtxDestroy, cuCtxDestroy_v2 }

    hooks::memory::alloc => (pointer: *mut DevicePtr, bytes: usize) { cuMemAlloc_v2 }
    hooks::memory::alloc_v1 => (pointer: *mut u32, bytes: u32) { cuMemAlloc }
    hooks::memory::alloc_pitch => (
        pointer: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32
    ) { cuMemAllocPitch_v2 }
    hooks::memory::alloc_pitch_v1 => (
        pointer: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32
    ) { cuMemAllocPitch }
    hooks::memory::alloc_managed => (pointer: *mut DevicePtr, bytes: usize, flags: u32) {
        cuMemAllocManaged
    }
    hooks::memory::free => (pointer: DevicePtr) { cuMemFree_v2 }
    hooks::memory::free_v1 => (pointer: u32) { cuMemFree }

    hooks::pool::alloc_async => (pointer: *mut DevicePtr, bytes: usize, stream: Handle) {
        cuMemAllocAsync, cuMemAllocAsync_ptsz,
    }
    hooks::pool::alloc_from_pool => (
        pointer: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle
    ) { cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz }
    hooks::pool::free_async => (pointer: DevicePtr, stream: Handle) {
        cuMemFreeAsync, cuMemFreeAsync_ptsz,
    }
    hooks::pool::create => (pool: *mut Handle, props: *const PlacedProps) { cuMemPoolCreate }
    hooks::pool::destroy => (pool: Handle) { cuMemPoolDestroy }
    hooks::pool::trim => (pool: Handle, keep: usize) { cuMemPoolTrimTo }
    hooks::pool::sync_handle => (handle: Handle) {
        cuStreamSynchronize, cuStreamSynchronize_ptsz, cuEventSynchronize, cuCtxSynchronize_v2,
    }
    hooks::pool::sync => () { cuCtxSynchronize }

    hooks::virtual_memory::create => (
        handle: *mut u64, bytes: usize, props: *const PlacedProps, flags: u64
    ) { cuMemCreate }
    hooks::virtual_memory::release => (handle: u64) { cuMemRelease }
    hooks::virtual_memory::map => (
        pointer: DevicePtr, bytes: usize, offset: usize, handle: u64, flags: u64
    ) { cuMemMap }
    hooks::virtual_memory::unmap => (pointer: DevicePtr, bytes: usize) { cuMemUnmap }
    hooks::virtual_memory::export => (
        shareable: *mut c_void, handle: u64, kind: i32, flags: u64
    ) { cuMemExportToShareableHandle }
    hooks::virtual_memory::import => (handle: *mut u64, shareable: *mut c_void, kind: i32) {
        cuMemImportFromShareableHandle
    }
    hooks::virtual_memory::retain => (handle: *mut u64, address: *mut c_void) {
        cuMemRetainAllocationHandle
    }

    hooks::array::create => (array: *mut Handle, descriptor: *const Flat<u32>) { cuArrayCreate }
    hooks::array::create => (array: *mut Handle, descriptor: *const Flat<usize>) {
        cuArrayCreate_v2
    }
    hooks::array::create => (array: *mut Handle, descriptor: *const Deep<u32>) { cuArray3DCreate }
    hooks::array::create => (array: *mut Handle, descriptor: *const Deep<usize>) {
        cuArray3DCreate_v2
    }
    hooks::array::create_levels => (
        array: *mut Handle, descriptor: *const Deep<usize>, levels: u32
    ) { cuMipmappedArrayCreate }
    hooks::array::destroy => (array: Handle) { cuArrayDestroy, cuMipmappedArrayDestroy }

    hooks::graph::begin => (stream: Handle) { cuStreamBeginCapture, cuStreamBeginCapture_ptsz }
    hooks::graph::begin_mode => (stream: Handle, mode: i32) {
        cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz,
    }
    hooks::graph::begin_into => (
        stream: Handle, graph: Handle, dependencies: *const Handle, edges: *const c_void,
        count: usize, mode: i32
    ) { cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz }
    hooks::graph::begin_with => (stream: Handle, params: *mut c_void) {
        cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig_ptsz,
    }
    hooks::graph::begin_again => (
        stream: Handle, mode: i32, graph: Handle, callback: *mut c_void, user: *mut c_void
    ) { cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz }
    hooks::graph::end => (stream: Handle, graph: *mut Handle) {
        cuStreamEndCapture, cuStreamEndCapture_ptsz,
    }
    hooks::graph::end_with => (stream: Handle) {
        cuStreamEndCaptureToCig, cuStreamEndCaptureToCig_ptsz,
    }
    hooks::graph::instantiate => (
        exec: *mut Handle, graph: Handle, node: *mut Handle, log: *mut libc::c_char,
        log_bytes: usize
    ) { cuGraphInstantiate, cuGraphInstantiate_v2 }
    hooks::graph::instantiate_flags => (exec: *mut Handle, graph: Handle, flags: u64) {
        cuGraphInstantiateWithFlags
    }
    hooks::graph::instantiate_params => (exec: *mut Handle, graph: Handle, params: *mut u64) {
        cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
    }
    hooks::graph::exec_destroy => (exec: Handle) { cuGraphExecDestroy }
    hooks::graph::upload => (exec: Handle, stream: Handle) { cuGraphUpload, cuGraphUpload_ptsz }
    hooks::graph::trim => (device: Device) { cuDeviceGraphMemTrim }

    hooks::launch::kernel => (
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: Handle, params: *mut *mut c_void,
        extra: *mut *mut c_void
    ) { cuLaunchKernel, cuLaunchKernel_ptsz }
    hooks::launch::kernel_ex => (
        config: *const c_void, function: Handle, params: *mut *mut c_void, extra: *mut *mut c_void
    ) { cuLaunchKernelEx, cuLaunchKernelEx_ptsz }
    hooks::launch::cooperative => (
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: Handle, params: *mut *mut c_void
    ) { cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz }
    hooks::launch::cooperative_many => (list: *mut c_void, count: u32, flags: u32) {
        cuLaunchCooperativeKernelMultiDevice
    }
    hooks::graph::launch => (exec: Handle, stream: Handle) { cuGraphLaunch, cuGraphLaunch_ptsz }
    hooks::launch::old => (function: Handle) { cuLaunch }
    hooks::launch::old_grid => (function: Handle, width: i32, height: i32) { cuLaunchGrid }
    hooks::launch::old_grid_async => (
        function: Handle, width: i32, height: i32, stream: Handle
    ) { cuLaunchGridAsync }
}
