//! Every name that the proxy defines. The hooks: one row per signature, with all the names (versions, per-thread twins)
//! that share it. The rest of the driver's names, from `table/entries.tsv`, each get a trampoline (`passed`). The
//! exported functions, the list of names and the routes of `cuGetProcAddress` come from these two lists alone.

use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use crate::{
    cuda::{CuResult, Device, DevicePtr, Handle, NOT_FOUND, NOT_READY, PlacedProps},
    detach, driver,
    hooks::{
        self,
        array::{Deep, Flat},
        share::IpcHandle,
    },
    mark::{self, Inside},
};

/// Each hooked name keeps the address of its own original, so that versions and per-thread twins stay separate.
static ORIGINALS: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(ptr::null_mut()) }; COUNT];

/// The driver's own function behind a hooked name, or null if this driver has none.
#[inline]
fn original(entry: Entry) -> *mut c_void {
    let known = ORIGINALS[entry as usize].load(Ordering::Relaxed);
    if known.is_null() {
        return original_slow(entry);
    }
    known
}

#[cold]
fn original_slow(entry: Entry) -> *mut c_void {
    find_all();
    ORIGINALS[entry as usize].load(Ordering::Acquire)
}

/// Finds the driver's function behind each name, once.
pub(crate) fn find_all() {
    static FOUND: OnceLock<()> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut routes = Vec::with_capacity(COUNT + passed::NAMES.len());
        let hooks = rows().into_iter().zip(&ORIGINALS);
        let passed = passed::rows().into_iter().zip(&passed::ORIGINALS);
        for ((name, hook), place) in hooks.chain(passed) {
            let original = driver::find(name);
            place.store(original, Ordering::Release);
            if !original.is_null() {
                routes.push((original as usize, hook as usize));
            }
        }
        driver::set_routes(routes);
    });
}

/// The whole of a hook.
macro_rules! hook {
    ($name:ident, ($($arg:ident: $kind:ty),*), $hook:path) => {{
        let _inside = Inside::new(
            Entry::$name as u32,
            const { mark::kind(stringify!($name)) },
        );
        if const { !detach::is_free(stringify!($name)) }
            && detach::is_due()
            && !detach::hold_back(stringify!($name))
        {
            return NOT_READY;
        }
        let original = original(Entry::$name);
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
    }};
}

macro_rules! export {
    (cuLaunchKernel, $args:tt, $hook:path) => {
        export!(@quick cuLaunchKernel, $args, $hook, hooks::launch::quick_kernel);
    };
    (cuLaunchKernel_ptsz, $args:tt, $hook:path) => {
        export!(@quick cuLaunchKernel_ptsz, $args, $hook, hooks::launch::quick_kernel);
    };
    (cuLaunchKernelEx, $args:tt, $hook:path) => {
        export!(@quick cuLaunchKernelEx, $args, $hook, hooks::launch::quick_kernel_ex);
    };
    (cuLaunchKernelEx_ptsz, $args:tt, $hook:path) => {
        export!(@quick cuLaunchKernelEx_ptsz, $args, $hook, hooks::launch::quick_kernel_ex);
    };
    (@quick $name:ident, ($($arg:ident: $kind:ty),*), $hook:path, $quick:path) => {
        /// The proxy's entry under the driver's name.
        ///
        /// # Safety
        /// As the driver's function of this name demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> CuResult {
            // Reached by a jump: the program's arguments are where they were.
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn examined($($arg: $kind),*) -> CuResult {
                hook!($name, ($($arg: $kind),*), $hook)
            }
            let original = || ORIGINALS[Entry::$name as usize].load(Ordering::Relaxed);
            if let Some(gpu) = hooks::launch::quick_gpu()
                && let Some(original) = ptr::NonNull::new(original())
                && let Some(quick) = $quick(gpu, Entry::$name as u32, $($arg),*)
            {
                // SAFETY: as in `hook`.
                let result = unsafe {
                    let original = std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn($($kind),*) -> CuResult,
                    >(original.as_ptr());
                    original($($arg),*)
                };
                quick.end(result);
                return result;
            }
            // SAFETY: the caller's own arguments.
            unsafe { examined($($arg),*) }
        }
    };
    ($name:ident, ($($arg:ident: $kind:ty),*), $hook:path) => {
        /// The proxy's entry under the driver's name.
        ///
        /// # Safety
        /// As the driver's function of this name demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> CuResult {
            hook!($name, ($($arg: $kind),*), $hook)
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

        /// All names with a hook.
        pub const NAMES: &[&str] = &[$($(stringify!($name)),+),*];

        pub(crate) const COUNT: usize = NAMES.len();

        /// Name and number of arguments of each hook.
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

#[macro_use]
mod trampoline;

/// Entry points without a hook.
pub mod passed {
    include!(concat!(env!("OUT_DIR"), "/passed.rs"));
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
    hooks::info::total_mem => (bytes: *mut u32, device: Device) { cuDeviceTotalMem }
    hooks::info::mem_info => (free: *mut usize, total: *mut usize) { cuMemGetInfo_v2 }
    hooks::info::mem_info => (free: *mut u32, total: *mut u32) { cuMemGetInfo }

    hooks::context::primary_retain => (context: *mut Handle, device: Device) {
        cuDevicePrimaryCtxRetain
    }
    hooks::context::primary_release => (device: Device) {
        cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2,
    }
    hooks::context::primary_reset => (device: Device) {
        cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2,
    }
    hooks::context::green_create => (
        green: *mut Handle, part: Handle, device: Device, flags: u32
    ) { cuGreenCtxCreate }
    hooks::context::green_destroy => (green: Handle) { cuGreenCtxDestroy }
    hooks::context::create => (context: *mut Handle, flags: u32, device: Device) {
        cuCtxCreate, cuCtxCreate_v2,
    }
    hooks::context::create_v3 => (
        context: *mut Handle, affinity: *mut c_void, count: i32, flags: u32, device: Device
    ) { cuCtxCreate_v3 }
    hooks::context::create_v4 => (
        context: *mut Handle, params: *mut c_void, flags: u32, device: Device
    ) { cuCtxCreate_v4 }
    hooks::context::set_limit => (limit: i32, value: usize) { cuCtxSetLimit }
    hooks::context::destroy => (context: Handle) { cuCtxDestroy, cuCtxDestroy_v2 }

    hooks::memory::alloc => (pointer: *mut DevicePtr, bytes: usize) { cuMemAlloc_v2 }
    hooks::memory::alloc => (pointer: *mut u32, bytes: u32) { cuMemAlloc }
    hooks::memory::alloc_pitch => (
        pointer: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32
    ) { cuMemAllocPitch_v2 }
    hooks::memory::alloc_pitch => (
        pointer: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32
    ) { cuMemAllocPitch }
    hooks::memory::alloc_managed => (pointer: *mut DevicePtr, bytes: usize, flags: u32) {
        cuMemAllocManaged
    }
    hooks::memory::free => (pointer: DevicePtr) { cuMemFree_v2 }
    hooks::memory::free => (pointer: u32) { cuMemFree }

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

    hooks::share::export => (handle: usize, what: usize) {
        cuIpcGetMemHandle, cuIpcGetEventHandle
    }
    hooks::share::open_memory => (pointer: usize, handle: IpcHandle, flags: u32) {
        cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2
    }
    hooks::share::open_event => (event: usize, handle: IpcHandle) { cuIpcOpenEventHandle }
    hooks::share::export_pool => (handle: usize, pool: usize, kind: i32, flags: u64) {
        cuMemPoolExportToShareableHandle
    }
    hooks::share::multicast => (handle: usize, properties: usize) { cuMulticastCreate }

    hooks::share::global => (
        address: *mut DevicePtr, bytes: *mut usize, module: usize, name: usize
    ) { cuModuleGetGlobal_v2, cuLibraryGetGlobal }
    hooks::share::global => (
        address: *mut u32, bytes: *mut u32, module: usize, name: usize
    ) { cuModuleGetGlobal }
    hooks::library::kernel => (kernel: *mut Handle, library: Handle, name: usize) {
        cuLibraryGetKernel
    }
    hooks::library::kernels => (kernels: *mut Handle, room: u32, library: Handle) {
        cuLibraryEnumerateKernels
    }
    hooks::library::unload => (library: Handle) { cuLibraryUnload }
    hooks::share::managed => (address: usize, bytes: usize, library: usize, name: usize) {
        cuLibraryGetManaged
    }
    hooks::share::import => (made: usize, of: usize) {
        cuImportExternalMemory, cuImportExternalSemaphore
    }
    hooks::share::register => (made: usize, of: usize, flags: u32) {
        cuGraphicsGLRegisterBuffer, cuGraphicsEGLRegisterImage
    }
    hooks::share::register_image => (made: usize, image: u32, target: u32, flags: u32) {
        cuGraphicsGLRegisterImage
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
    hooks::graph::update => (exec: Handle, graph: Handle, node: *mut Handle, told: *mut i32) {
        cuGraphExecUpdate
    }
    hooks::graph::update_told => (exec: Handle, graph: Handle, told: *mut c_void) {
        cuGraphExecUpdate_v2
    }
    hooks::graph::set_child => (exec: Handle, node: Handle, graph: Handle) {
        cuGraphExecChildGraphNodeSetParams
    }
    hooks::graph::set_kernel => (exec: Handle, node: Handle, params: *const Handle) {
        cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2,
    }
    hooks::graph::set_node => (exec: Handle, node: Handle, params: *mut Handle) {
        cuGraphExecNodeSetParams
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

    hooks::moves::line => (a: usize, b: usize, bytes: usize) {
        cuMemcpy, cuMemcpyDtoD, cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoH,
        cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, cuMemcpyHtoD, cuMemcpyHtoD_v2,
        cuMemcpyHtoD_v2_ptds, cuMemcpy_ptds, cuMemsetD16, cuMemsetD16_v2, cuMemsetD16_v2_ptds,
        cuMemsetD32, cuMemsetD32_v2, cuMemsetD32_v2_ptds, cuMemsetD8, cuMemsetD8_v2,
        cuMemsetD8_v2_ptds,
    }
    hooks::moves::line_async => (a: usize, b: usize, bytes: usize, stream: usize) {
        cuMemcpyAsync, cuMemcpyAsync_ptsz, cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2,
        cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,
        cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,
        cuMemcpyHtoDAsync_v2_ptsz, cuMemsetD16Async, cuMemsetD16Async_ptsz, cuMemsetD32Async,
        cuMemsetD32Async_ptsz, cuMemsetD8Async, cuMemsetD8Async_ptsz,
    }
    hooks::moves::array => (a: usize, b: usize, c: usize, bytes: usize) {
        cuMemcpyAtoD, cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds, cuMemcpyAtoH, cuMemcpyAtoH_v2,
        cuMemcpyAtoH_v2_ptds, cuMemcpyDtoA, cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds, cuMemcpyHtoA,
        cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds,
    }
    hooks::moves::array_async => (a: usize, b: usize, c: usize, bytes: usize, stream: usize) {
        cuMemcpyAtoHAsync, cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz, cuMemcpyHtoAAsync,
        cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz,
    }
    hooks::moves::across => (a: usize, b: usize, c: usize, d: usize, bytes: usize) {
        cuMemcpyAtoA, cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds, cuMemcpyPeer, cuMemcpyPeer_ptds,
    }
    hooks::moves::across_async => (
        a: usize, b: usize, c: usize, d: usize, bytes: usize, stream: usize
    ) {
        cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
    }
    hooks::moves::rows => (a: usize, b: usize, c: usize, width: usize, height: usize) {
        cuMemsetD2D16, cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, cuMemsetD2D32, cuMemsetD2D32_v2,
        cuMemsetD2D32_v2_ptds, cuMemsetD2D8, cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds,
    }
    hooks::moves::rows_async => (
        a: usize, b: usize, c: usize, width: usize, height: usize, stream: usize
    ) {
        cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz, cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz,
        cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz,
    }
    hooks::moves::flat_old => (copy: usize) {
        cuMemcpy2D, cuMemcpy2DUnaligned, cuMemcpy3D,
    }
    hooks::moves::flat_old_async => (copy: usize, stream: usize) {
        cuMemcpy2DAsync, cuMemcpy3DAsync,
    }
    hooks::moves::flat_copy => (copy: usize) {
        cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2D_v2, cuMemcpy2D_v2_ptds,
    }
    hooks::moves::flat_copy_async => (copy: usize, stream: usize) {
        cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz,
    }
    hooks::moves::deep_copy => (copy: usize) {
        cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, cuMemcpy3D_v2, cuMemcpy3D_v2_ptds,
    }
    hooks::moves::deep_copy_async => (copy: usize, stream: usize) {
        cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DPeerAsync,
        cuMemcpy3DPeerAsync_ptsz,
    }
    hooks::moves::list_3 => (a: usize, b: usize, stream: usize) {
        cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz,
    }
    hooks::moves::list_4 => (a: usize, b: usize, c: usize, stream: usize) {
        cuFabricCpyBatchAsync, cuFabricCpyBatchAsync_ptsz, cuMemcpy3DBatchAsync_v2,
        cuMemcpy3DBatchAsync_v2_ptsz,
    }
    hooks::moves::list_5 => (a: usize, b: usize, c: usize, d: usize, stream: usize) {
        cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz, cuMemcpyWithAttributesAsync,
        cuMemcpyWithAttributesAsync_ptsz,
    }
    hooks::moves::list_8 => (
        a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, stream: usize
    ) {
        cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz,
    }
    hooks::moves::list_9 => (
        a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: usize, stream:
        usize
    ) {
        cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz,
    }
}
