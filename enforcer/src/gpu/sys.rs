//! NVML calls that have no safe wrapper.
#![allow(unsafe_code, reason = "NVML calls that nvml-wrapper lacks")]

use nvml_wrapper::Device;

use super::health::Remapped;

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

/// Rows of memory that the GPU has replaced; `None` where it has no spare ones.
pub(super) fn remapped_rows(device: &Device<'_>) -> Option<Remapped> {
    let call = device
        .nvml()
        .lib()
        .nvmlDeviceGetRemappedRows
        .as_ref()
        .ok()?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is the one that NVML gave for this library, and all four are valid for the results.
    let code = unsafe {
        call(
            device.handle(),
            &raw mut corrected,
            &raw mut uncorrected,
            &raw mut pending,
            &raw mut failed,
        )
    };
    (code == 0).then_some(Remapped {
        corrected,
        uncorrected,
        pending: pending != 0,
        failed: failed != 0,
    })
}
