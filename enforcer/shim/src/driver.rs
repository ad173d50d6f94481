//! The real driver, at the path that staging wrote, resolved once.

use std::{
    ffi::{CStr, CString, c_void},
    ptr,
    sync::OnceLock,
};

use crate::{cuda::Helpers, paths};

static LOADED: OnceLock<Loaded> = OnceLock::new();
/// Original and hook of each name that this driver has, sorted by the original's address.
static ROUTES: OnceLock<Vec<(usize, usize)>> = OnceLock::new();

struct Loaded {
    helpers: Helpers,
    /// Result of `dlopen`; null without a driver.
    handle: usize,
}

/// The driver's own function of this name, or null if it has none.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    find_in(loaded().handle as *mut c_void, name)
}

fn find_in(handle: *mut c_void, name: &CStr) -> *mut c_void {
    if handle.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: an open handle that is never closed, and a string that ends in NUL.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// Functions that the proxy calls without hooking them.
pub(crate) fn helpers() -> &'static Helpers {
    &loaded().helpers
}

/// The hook for the driver's function at this address.
pub(crate) fn route(original: *mut c_void) -> Option<*mut c_void> {
    let routes = ROUTES.get()?;
    let found = routes.binary_search_by_key(&(original as usize), |(from, _)| *from);
    found.ok().map(|at| routes[at].1 as *mut c_void)
}

/// Sets which hook stands for which driver function; once.
pub(crate) fn set_routes(mut routes: Vec<(usize, usize)>) {
    ROUTES.get_or_init(|| {
        // Stable: of two names for one address the first, the hooked one, counts.
        routes.sort_by_key(|(from, _)| *from);
        routes.dedup_by_key(|(from, _)| *from);
        routes
    });
}

fn loaded() -> &'static Loaded {
    LOADED.get_or_init(load)
}

#[allow(
    clippy::missing_transmute_annotations,
    reason = "the type is that of the field it goes to"
)]
fn load() -> Loaded {
    let handle = CString::new(paths::real())
        .ok()
        .filter(|path| !path.is_empty())
        // SAFETY: the path is NUL-terminated. The library is loaded already, as a dependency of
        // this one; the call only gives its handle.
        .map_or(ptr::null_mut(), |path| unsafe {
            libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL)
        });
    let find = |name: &CStr| find_in(handle, name);
    macro_rules! helper {
        ($($name:literal),+) => {{
            let mut found: *mut c_void = ptr::null_mut();
            $(if found.is_null() {
                found = find($name);
            })+
            // SAFETY: `Option` of a function pointer has the layout of a pointer, null being
            // `None`; the signature of each field is that of the named function in cuda.h.
            unsafe { std::mem::transmute::<*mut c_void, _>(found) }
        }};
    }
    let helpers = Helpers {
        ctx_get_current: helper!(c"cuCtxGetCurrent"),
        ctx_get_device: helper!(c"cuCtxGetDevice"),
        device_get_count: helper!(c"cuDeviceGetCount"),
        device_get: helper!(c"cuDeviceGet"),
        device_attribute: helper!(c"cuDeviceGetAttribute"),
        device_get_uuid: helper!(c"cuDeviceGetUuid_v2", c"cuDeviceGetUuid"),
        total_mem: helper!(c"cuDeviceTotalMem_v2"),
        primary_retain: helper!(c"cuDevicePrimaryCtxRetain"),
        primary_release: helper!(c"cuDevicePrimaryCtxRelease_v2"),
        primary_state: helper!(c"cuDevicePrimaryCtxGetState"),
        device_pool: helper!(c"cuDeviceGetMemPool"),
        default_pool: helper!(c"cuDeviceGetDefaultMemPool"),
        pool_attribute: helper!(c"cuMemPoolGetAttribute"),
        pool_trim: helper!(c"cuMemPoolTrimTo"),
        stream_context: helper!(c"cuStreamGetCtx"),
        stream_contexts: helper!(c"cuStreamGetCtx_v2"),
        stream_green: helper!(c"cuStreamGetGreenCtx"),
        green_as_context: helper!(c"cuCtxFromGreenCtx"),
        stream_device: helper!(c"cuStreamGetDevice"),
        stream_is_capturing: helper!(c"cuStreamIsCapturing"),
        graph_nodes: helper!(c"cuGraphGetNodes"),
        node_kind: helper!(c"cuGraphNodeGetType"),
        alloc_node: helper!(c"cuGraphMemAllocNodeGetParams"),
        child_graph: helper!(c"cuGraphChildGraphNodeGetGraph"),
        graph_attribute: helper!(c"cuDeviceGetGraphMemAttribute"),
        graph_trim: helper!(c"cuDeviceGraphMemTrim"),
        ctx_set_current: helper!(c"cuCtxSetCurrent"),
        exchange_capture_mode: helper!(c"cuThreadExchangeStreamCaptureMode"),
        event_create: helper!(c"cuEventCreate"),
        event_destroy: helper!(c"cuEventDestroy_v2", c"cuEventDestroy"),
        event_record: helper!(c"cuEventRecord"),
        event_query: helper!(c"cuEventQuery"),
        event_sync: helper!(c"cuEventSynchronize"),
        event_elapsed: helper!(c"cuEventElapsedTime"),
        occupancy: helper!(c"cuOccupancyMaxActiveBlocksPerMultiprocessor"),
        pointer_attribute: helper!(c"cuPointerGetAttribute"),
        func_attribute: helper!(c"cuFuncGetAttribute"),
        func_module: helper!(c"cuFuncGetModule"),
        module_global: helper!(c"cuModuleGetGlobal_v2"),
        library_global: helper!(c"cuLibraryGetGlobal"),
        kernel_count: helper!(c"cuLibraryGetKernelCount"),
        kernel_attribute: helper!(c"cuKernelGetAttribute"),
        kernel_node: helper!(
            c"cuGraphKernelNodeGetParams_v2",
            c"cuGraphKernelNodeGetParams"
        ),
        mem_free: helper!(c"cuMemFree_v2"),
        mem_free_async: helper!(c"cuMemFreeAsync"),
        mem_release: helper!(c"cuMemRelease"),
        array_destroy: helper!(c"cuArrayDestroy"),
        levels_destroy: helper!(c"cuMipmappedArrayDestroy"),
        init: helper!(c"cuInit"),
    };
    Loaded {
        helpers,
        handle: handle as usize,
    }
}
