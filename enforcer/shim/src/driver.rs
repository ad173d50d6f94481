//! The real driver: found by the path that staging wrote, resolved once. Each hooked name keeps the
//! address of its own original, so that a version or per-thread twin never reaches another one's.

use std::{
    ffi::{CStr, CString, c_void},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use crate::{
    cuda::Helpers,
    paths,
    table::{self, COUNT, Entry, passed},
};

static ORIGINALS: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(ptr::null_mut()) }; COUNT];
static LOADED: OnceLock<Loaded> = OnceLock::new();

struct Loaded {
    helpers: Helpers,
    /// Original and hook of each row that this driver has, by address of the original.
    routes: Vec<(usize, usize)>,
}

/// The driver's own function behind a hooked name, or null where this driver has none.
#[inline]
pub(crate) fn original(entry: Entry) -> *mut c_void {
    let known = ORIGINALS[entry as usize].load(Ordering::Relaxed);
    if known.is_null() {
        return original_slow(entry);
    }
    known
}

#[cold]
fn original_slow(entry: Entry) -> *mut c_void {
    loaded();
    ORIGINALS[entry as usize].load(Ordering::Acquire)
}

/// Functions that are called and not hooked.
pub(crate) fn helpers() -> &'static Helpers {
    &loaded().helpers
}

/// The hook that stands for the driver's function at this address, if it is a hooked one.
pub(crate) fn route(original: *mut c_void) -> Option<*mut c_void> {
    let routes = &loaded().routes;
    let found = routes.binary_search_by_key(&(original as usize), |(from, _)| *from);
    found.ok().map(|at| routes[at].1 as *mut c_void)
}

/// Finds the driver's functions, once.
pub(crate) fn find_all() {
    loaded();
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
    if handle.is_null() {
        return Loaded {
            helpers: Helpers::default(),
            routes: Vec::new(),
        };
    }
    // SAFETY: the handle is valid and the name NUL-terminated.
    let find = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
    let mut routes = Vec::with_capacity(COUNT + passed::NAMES.len());
    let hooks = table::rows().into_iter().zip(&ORIGINALS);
    let passed = passed::rows().into_iter().zip(&passed::ORIGINALS);
    for ((name, hook), place) in hooks.chain(passed) {
        let original = find(name);
        place.store(original, Ordering::Release);
        if !original.is_null() {
            routes.push((original as usize, hook as usize));
        }
    }
    // Stable: of two names for one address the hooked one counts.
    routes.sort_by_key(|(from, _)| *from);
    routes.dedup_by_key(|(from, _)| *from);
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
        primary_state: helper!(c"cuDevicePrimaryCtxGetState"),
        device_pool: helper!(c"cuDeviceGetMemPool"),
        default_pool: helper!(c"cuDeviceGetDefaultMemPool"),
        pool_attribute: helper!(c"cuMemPoolGetAttribute"),
        pool_trim: helper!(c"cuMemPoolTrimTo"),
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
        kernel_node: helper!(
            c"cuGraphKernelNodeGetParams_v2",
            c"cuGraphKernelNodeGetParams"
        ),
        mem_free: helper!(c"cuMemFree_v2"),
        mem_free_async: helper!(c"cuMemFreeAsync"),
    };
    Loaded { helpers, routes }
}
