//! Captures and graphs. Nothing is inserted while a stream captures: recorded calls run later, so they are neither
//! counted nor charged before their graph is launched.

use std::ffi::c_void;

use super::launch::let_through;
use crate::{
    capture::{ask_whether_captured, began, ended, is_captured},
    cuda::{CuResult, Device, Handle, NODE_GRAPH, NODE_KERNEL, SUCCESS},
    gate,
    graphs::Work,
    process::{self, Process},
    work::Work as Launched,
};

macro_rules! begin {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => {$(
        pub(crate) unsafe fn $name(
            original: unsafe extern "C" fn($($kind),*) -> CuResult,
            $($arg: $kind),*
        ) -> CuResult {
            // SAFETY: the caller's own arguments.
            began(unsafe { original($($arg),*) })
        }
    )*};
}

begin! {
    begin(stream: Handle);
    begin_mode(stream: Handle, mode: i32);
    begin_with(stream: Handle, params: *mut c_void);
    begin_into(
        stream: Handle, graph: Handle, dependencies: *const Handle, edges: *const c_void,
        count: usize, mode: i32
    );
    begin_again(
        stream: Handle, mode: i32, graph: Handle, callback: *mut c_void, user: *mut c_void
    );
}

/// This call also ends an invalid capture.
pub(crate) unsafe fn end(
    original: unsafe extern "C" fn(Handle, *mut Handle) -> CuResult,
    stream: Handle,
    graph: *mut Handle,
) -> CuResult {
    let captured = is_captured(stream);
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(stream, graph) };
    if captured && !ask_whether_captured(stream) {
        ended();
    }
    result
}

pub(crate) unsafe fn end_with(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    stream: Handle,
) -> CuResult {
    let captured = is_captured(stream);
    // SAFETY: the caller's own argument.
    let result = unsafe { original(stream) };
    if captured && !ask_whether_captured(stream) {
        ended();
    }
    result
}

/// Notes the work of an executable graph's launch.
unsafe fn instantiated(result: CuResult, exec: *mut Handle, graph: Handle) -> CuResult {
    if result == SUCCESS && !exec.is_null() {
        // SAFETY: the driver has just written there.
        let exec = unsafe { *exec };
        process::with(|process| {
            let work = Work::of(process, graph);
            process.graphs().note(exec, work);
        });
    }
    result
}

pub(crate) unsafe fn instantiate(
    original: unsafe extern "C" fn(
        *mut Handle,
        Handle,
        *mut Handle,
        *mut std::ffi::c_char,
        usize,
    ) -> CuResult,
    exec: *mut Handle,
    graph: Handle,
    node: *mut Handle,
    log: *mut std::ffi::c_char,
    log_bytes: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    unsafe { instantiated(original(exec, graph, node, log, log_bytes), exec, graph) }
}

pub(crate) unsafe fn instantiate_flags(
    original: unsafe extern "C" fn(*mut Handle, Handle, u64) -> CuResult,
    exec: *mut Handle,
    graph: Handle,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    unsafe { instantiated(original(exec, graph, flags), exec, graph) }
}

/// Flag of an instantiation that uploads the graph at once, with its memory.
const UPLOAD: u64 = 2;

pub(crate) unsafe fn instantiate_params(
    original: unsafe extern "C" fn(*mut Handle, Handle, *mut u64) -> CuResult,
    exec: *mut Handle,
    graph: Handle,
    params: *mut u64,
) -> CuResult {
    // SAFETY: NULL, or the caller's parameters, which begin with the flags.
    let uploads = unsafe { params.as_ref() }.is_some_and(|flags| flags & UPLOAD != 0);
    let make = || {
        // SAFETY: the caller's own arguments.
        let result = unsafe { original(exec, graph, params) };
        // SAFETY: as above.
        unsafe { instantiated(result, exec, graph) }
    };
    if !uploads {
        return make();
    }
    let work = process::with(|process| Work::of(process, graph));
    with_memory(work, make)
}

/// Changes an executable graph in place. Its local memory is charged at the next launch. `whole`: all of its kernels
/// are known again.
fn changed(
    exec: Handle,
    whole: bool,
    call: impl FnOnce() -> CuResult,
    local: impl FnOnce(&Process) -> Option<u64>,
) -> CuResult {
    let result = let_through(0, call);
    if result == SUCCESS {
        process::with(|process| {
            // Unknown graphs are ignored.
            if process.graphs().of(exec).is_none() {
                return;
            }
            let local = local(process).unwrap_or(0);
            let more = process.graphs().needs(exec, local, whole);
            if more {
                gate::forget_graph(process, exec);
            }
        });
    }
    result
}

/// The same for a graph that contains its needs.
fn changed_to(
    exec: Handle,
    whole: bool,
    graph: Handle,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    changed(exec, whole, call, |process| {
        Some(Work::of(process, graph).local)
    })
}

pub(crate) unsafe fn update(
    original: unsafe extern "C" fn(Handle, Handle, *mut Handle, *mut i32) -> CuResult,
    exec: Handle,
    graph: Handle,
    node: *mut Handle,
    told: *mut i32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(exec, graph, node, told) };
    changed_to(exec, true, graph, call)
}

pub(crate) unsafe fn update_told(
    original: unsafe extern "C" fn(Handle, Handle, *mut c_void) -> CuResult,
    exec: Handle,
    graph: Handle,
    told: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(exec, graph, told) };
    changed_to(exec, true, graph, call)
}

pub(crate) unsafe fn set_child(
    original: unsafe extern "C" fn(Handle, Handle, Handle) -> CuResult,
    exec: Handle,
    node: Handle,
    graph: Handle,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(exec, node, graph) };
    changed_to(exec, false, graph, call)
}

/// The function in a kernel node's parameters, or the library's kernel behind them (`CUDA_KERNEL_NODE_PARAMS_v2`).
///
/// # Safety
/// The driver took the parameters; of the first version, which ends before the kernel, only with a function.
unsafe fn function_at(params: *const Handle) -> Handle {
    // SAFETY: by the caller.
    match unsafe { *params } {
        // SAFETY: likewise.
        0 => unsafe { *params.add(7) },
        function => function,
    }
}

pub(crate) unsafe fn set_kernel(
    original: unsafe extern "C" fn(Handle, Handle, *const Handle) -> CuResult,
    exec: Handle,
    node: Handle,
    params: *const Handle,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(exec, node, params) };
    changed(exec, false, call, |process| {
        // SAFETY: the driver has just taken them.
        process.meet_kernel(unsafe { function_at(params) })
    })
}

/// `CUgraphNodeParams`: the kind of node, and its parameters from the third word on.
pub(crate) unsafe fn set_node(
    original: unsafe extern "C" fn(Handle, Handle, *mut Handle) -> CuResult,
    exec: Handle,
    node: Handle,
    params: *mut Handle,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(exec, node, params) };
    changed(exec, false, call, |process| {
        // SAFETY: the driver has just taken them.
        let (kind, own) = unsafe { (*params.cast::<i32>(), params.add(2)) };
        match kind {
            // SAFETY: as above.
            NODE_KERNEL => process.meet_kernel(unsafe { function_at(own) }),
            // SAFETY: as above.
            NODE_GRAPH => Some(Work::of(process, unsafe { *own }).local),
            _ => None,
        }
    })
}

pub(crate) unsafe fn exec_destroy(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    exec: Handle,
) -> CuResult {
    // The driver may reuse the handle as soon as it has it back.
    let work = process::with(|process| process.graphs().forget(exec)).flatten();
    // SAFETY: the caller's own argument.
    let result = unsafe { original(exec) };
    if let Some(work) = work {
        process::with(|process| {
            if result != SUCCESS {
                process.graphs().note(exec, work);
                return;
            }
            gate::forget_graph(process, exec);
            if work.bytes > 0 {
                process.refresh_graph_memory(work.gpu);
            }
        });
    }
    result
}

/// Runs `call`, for which the driver may have to take the graph's memory.
fn with_memory(work: Option<Work>, call: impl FnOnce() -> CuResult) -> CuResult {
    let Some(work) = work.filter(|work| work.bytes > 0) else {
        return call();
    };
    let asked = process::with(|process| process.reserve_graph_memory(work));
    match asked {
        None => call(),
        Some(Err(code)) => code,
        Some(Ok(charged)) => {
            let result = call();
            process::with(|process| process.settle_graph_memory(work.gpu, charged));
            result
        }
    }
}

fn work_of(exec: Handle) -> Option<Work> {
    process::with(|process| process.graphs().of(exec)).flatten()
}

pub(crate) unsafe fn upload(
    original: unsafe extern "C" fn(Handle, Handle) -> CuResult,
    exec: Handle,
    stream: Handle,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    with_memory(work_of(exec), || unsafe { original(exec, stream) })
}

pub(crate) unsafe fn launch(
    original: unsafe extern "C" fn(Handle, Handle) -> CuResult,
    exec: Handle,
    stream: Handle,
) -> CuResult {
    let work = work_of(exec);
    let kernels = work.map_or(1, |work| work.kernels);
    let launched = Launched::graph(exec, work.and_then(|work| work.own_ns));
    let call = || {
        // SAFETY: the caller's own arguments.
        with_memory(work, || unsafe { original(exec, stream) })
    };
    super::launch::counted_as(stream, launched.key, true, kernels, || launched, call)
}

/// The driver releases the device's unused graph memory.
pub(crate) unsafe fn trim(
    original: unsafe extern "C" fn(Device) -> CuResult,
    device: Device,
) -> CuResult {
    // SAFETY: the caller's own argument.
    let result = unsafe { original(device) };
    if result == SUCCESS {
        process::with(|process: &Process| {
            if let Some(gpu) = process.gpu_of_device(device) {
                process.refresh_graph_memory(gpu);
            }
        });
    }
    result
}
