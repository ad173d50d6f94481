//! `cuGetProcAddress`: the pointer for each name, version and kind of stream.

use std::ffi::CString;

use super::support::{INVALID_VALUE, version};
use crate::call::find_cuda;
use crate::cu;
use crate::trial::{Trial, skip};

/// Result code, address and status.
fn ask(name: &str, version: i32, flags: u64) -> (u32, u64, u32) {
    let name = CString::new(name).unwrap_or_default();
    let (mut p, mut status) = (1u64, 99u32);
    let code = cu!(cuGetProcAddress_v2(
        name.as_ptr(),
        &raw mut p,
        version,
        flags,
        &raw mut status
    ));
    (code, p, status)
}

/// Checks that the pointer is that of the exported symbol.
fn is_symbol(t: &mut Trial, name: &str, at: i32, flags: u64, symbol: &str) {
    if at > version() {
        return;
    }
    let Some(p) = find_cuda(symbol) else {
        return;
    };
    let what = format!("{name} of {at} with flags {flags} is {symbol}");
    t.same(&what, (0, p as u64, 0), ask(name, at, flags));
}

const SOURCE: &str = "Driver Entry Point Access, cuGetProcAddress";

super::list! {
    "lookup.versions", "Driver Entry Point Access, cuGetProcAddress: the function of that version", |t| {
        is_symbol(t, "cuMemAlloc", 12_000, 0, "cuMemAlloc_v2");
        is_symbol(t, "cuCtxCreate", 11_030, 0, "cuCtxCreate_v2");
        is_symbol(t, "cuCtxCreate", 11_040, 0, "cuCtxCreate_v3");
        is_symbol(t, "cuCtxCreate", 12_050, 0, "cuCtxCreate_v4");
        is_symbol(t, "cuDeviceGetUuid", 11_030, 0, "cuDeviceGetUuid");
        is_symbol(t, "cuDeviceGetUuid", 11_040, 0, "cuDeviceGetUuid_v2");
        is_symbol(t, "cuStreamGetCaptureInfo", 12_030, 0, "cuStreamGetCaptureInfo_v3");
        is_symbol(t, "cuGraphInstantiate", 12_000, 0, "cuGraphInstantiate_v2");
        is_symbol(t, "cuGraphInstantiate", 11_000, 0, "cuGraphInstantiate_v2");
    }
    "lookup.itself", "Driver Entry Point Access, cuGetProcAddress: it finds itself", |t| {
        is_symbol(t, "cuGetProcAddress", 12_000, 0, "cuGetProcAddress_v2");
        is_symbol(t, "cuGetProcAddress", 11_030, 0, "cuGetProcAddress");
    }
    "lookup.per-thread", "Driver Entry Point Access, cuGetProcAddress: CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM", |t| {
        is_symbol(t, "cuLaunchKernel", 12_000, 2, "cuLaunchKernel_ptsz");
        is_symbol(t, "cuMemcpyHtoD", 12_000, 2, "cuMemcpyHtoD_v2_ptds");
        is_symbol(t, "cuStreamSynchronize", 12_000, 2, "cuStreamSynchronize_ptsz");
        is_symbol(t, "cuGraphLaunch", 12_000, 2, "cuGraphLaunch_ptsz");
        // Before the twins, which came with 7.0.
        t.same("cuLaunchKernel of 6.5", (0, 0, 2), ask("cuLaunchKernel", 6_050, 2));
        // Without a twin, the function itself.
        is_symbol(t, "cuMemAlloc", 12_000, 2, "cuMemAlloc_v2");
        is_symbol(t, "cuInit", 12_000, 2, "cuInit");
    }
    "lookup.legacy", "Driver Entry Point Access, cuGetProcAddress: CU_GET_PROC_ADDRESS_LEGACY_STREAM", |t| {
        is_symbol(t, "cuLaunchKernel", 12_000, 1, "cuLaunchKernel");
        is_symbol(t, "cuMemcpyHtoD", 12_000, 1, "cuMemcpyHtoD_v2");
        is_symbol(t, "cuLaunchKernel", 12_000, 0, "cuLaunchKernel");
    }
    "lookup.unknown", "Driver Entry Point Access, cuGetProcAddress: success, NULL and CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND", |t| {
        t.same("no such function", (0, 0, 1), ask("cuNoSuchFunction", 12_000, 0));
        t.same("a name with its version", (0, 0, 1), ask("cuMemAlloc_v2", 12_000, 0));
    }
    "lookup.too-low", "Driver Entry Point Access, cuGetProcAddress: CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT", |t| {
        t.same("cuMemAllocAsync of 11.1", (0, 0, 2), ask("cuMemAllocAsync", 11_010, 0));
        t.same("cuLibraryLoadData of 11.8", (0, 0, 2), ask("cuLibraryLoadData", 11_080, 0));
    }
    "lookup.refused", "Driver Entry Point Access, cuGetProcAddress: unknown flags; observed: newer than the driver", |t| {
        if version() < 12_000 {
            skip("the driver is older than 12.0");
        }
        // The newest function; the documentation says that the version is refused.
        t.same("version 99.0", ask("cuMemAlloc", 12_000, 0), ask("cuMemAlloc", 99_000, 0));
        t.code("flags 64", &[INVALID_VALUE], ask("cuMemAlloc", 12_000, 64).0);
        t.holds(SOURCE, ask("cuMemAlloc", version(), 0).0 == 0, "the driver's own version");
    }
}
