//! NVML calls that have no safe wrapper.
#![allow(unsafe_code, reason = "NVML calls that nvml-wrapper lacks")]

use nvml_wrapper::Device;

/// The number of the GPU instance behind a MIG handle. `parent` keeps the library loaded.
pub(super) fn gpu_instance(parent: &Device<'_>, mig: &Device<'_>) -> Option<u32> {
    let call = parent
        .nvml()
        .lib()
        .nvmlDeviceGetGpuInstanceId
        .as_ref()
        .ok()?;
    let mut id = 0;
    // SAFETY: the handle is the one that NVML gave for this library, and `id` is valid for the result.
    (unsafe { call(mig.handle(), &raw mut id) } == 0).then_some(id)
}

/// The number of the compute instance behind a MIG handle.
pub(super) fn compute_instance(parent: &Device<'_>, mig: &Device<'_>) -> Option<u32> {
    let call = parent
        .nvml()
        .lib()
        .nvmlDeviceGetComputeInstanceId
        .as_ref()
        .ok()?;
    let mut id = 0;
    // SAFETY: as above.
    (unsafe { call(mig.handle(), &raw mut id) } == 0).then_some(id)
}
