//! NVML calls that have no safe wrapper.
#![allow(unsafe_code, reason = "NVML calls that nvml-wrapper lacks")]

use std::ptr::null_mut;

use nvml_wrapper::Device;
use nvml_wrapper::error::nvml_try;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t,
};

use super::health::Remapped;
use super::mig::{MigError, MigInstance, error};

/// A function of the library; `None` if the driver is too old for it.
macro_rules! call {
    ($device:ident, $name:ident) => {
        match &$device.nvml().lib().$name {
            Ok(call) => call,
            Err(_) => return Err(MigError::NotSupported),
        }
    };
}

fn tried(call: &'static str, code: u32) -> Result<(), MigError> {
    nvml_try(code).map_err(|e| error(call, &e))
}

/// The profile for a constant of the header; `None` if the GPU lacks it.
pub(super) fn profile(device: &Device<'_>, constant: u32) -> Option<nvmlGpuInstanceProfileInfo_t> {
    let lib = device.nvml().lib();
    let call = lib.nvmlDeviceGetGpuInstanceProfileInfo.as_ref().ok()?;
    // SAFETY: plain data, for which zero is a value.
    let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the handle is the one that NVML gave for this library, and `info` is valid for the result.
    let code = unsafe { call(device.handle(), constant, &raw mut info) };
    (code == 0).then_some(info)
}

/// Possible places of a profile's instances: the first memory slice, and the number of slices.
pub(super) fn places(device: &Device<'_>, profile: u32) -> Result<Vec<(u32, u32)>, MigError> {
    const NAME: &str = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";
    let call = call!(device, nvmlDeviceGetGpuInstancePossiblePlacements_v2);
    let mut count = 0;
    // SAFETY: as above; without a list NVML only counts.
    tried(NAME, unsafe {
        call(device.handle(), profile, null_mut(), &raw mut count)
    })?;
    let none = nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    let mut list = vec![none; count as usize];
    // SAFETY: as above; the list has room for as many as NVML has just counted.
    tried(NAME, unsafe {
        call(device.handle(), profile, list.as_mut_ptr(), &raw mut count)
    })?;
    list.truncate(count as usize);
    Ok(list.iter().map(|p| (p.start, p.size)).collect())
}

pub(super) fn gpu_instances(
    device: &Device<'_>,
    profile: u32,
) -> Result<Vec<MigInstance>, MigError> {
    /// More than any GPU can have of one profile.
    const MOST: usize = 32;
    let call = call!(device, nvmlDeviceGetGpuInstances);
    let mut list: [nvmlGpuInstance_t; MOST] = [null_mut(); MOST];
    let mut count = MOST as u32;
    // SAFETY: as above; the list has room for all that a GPU can have.
    tried("nvmlDeviceGetGpuInstances", unsafe {
        call(device.handle(), profile, list.as_mut_ptr(), &raw mut count)
    })?;
    let found = list.iter().take(count as usize);
    found.map(|gi| describe(device, *gi)).collect()
}

fn describe(device: &Device<'_>, gi: nvmlGpuInstance_t) -> Result<MigInstance, MigError> {
    let info = info(device, gi)?;
    let open = compute_instances(device, gi)?;
    Ok(MigInstance {
        gi: info.id,
        profile: info.profileId,
        start: info.placement.start,
        open: !open.is_empty(),
    })
}

fn info(device: &Device<'_>, gi: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, MigError> {
    let call = call!(device, nvmlGpuInstanceGetInfo);
    // SAFETY: plain data, for which zero is a value.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: NVML gave the handle a moment ago, and `info` is valid for the result.
    tried("nvmlGpuInstanceGetInfo", unsafe { call(gi, &raw mut info) })?;
    Ok(info)
}

fn by_id(device: &Device<'_>, id: u32) -> Result<nvmlGpuInstance_t, MigError> {
    let call = call!(device, nvmlDeviceGetGpuInstanceById);
    let mut gi = null_mut();
    // SAFETY: the handle is the one that NVML gave for this library, and `gi` is valid for the result.
    tried("nvmlDeviceGetGpuInstanceById", unsafe {
        call(device.handle(), id, &raw mut gi)
    })?;
    Ok(gi)
}

/// The first memory slice of a GPU instance; `None` if this process may not ask.
pub(super) fn start_of(device: &Device<'_>, id: u32) -> Option<u32> {
    let gi = by_id(device, id).ok()?;
    Some(info(device, gi).ok()?.placement.start)
}

/// The constants of nvml.h for compute instances of 1, 2, 3, 4, 7, 8 and 6 slices.
const COMPUTE: [u32; 7] = [0, 1, 2, 3, 4, 5, 6];

/// Number and slices of the compute profiles of a GPU instance.
fn compute_profiles(device: &Device<'_>, gi: nvmlGpuInstance_t) -> Vec<(u32, u32)> {
    let lib = device.nvml().lib();
    let Ok(call) = &lib.nvmlGpuInstanceGetComputeInstanceProfileInfo else {
        return Vec::new();
    };
    let profile = |constant: u32| {
        // SAFETY: plain data, for which zero is a value.
        let mut info: nvml_wrapper_sys::bindings::nvmlComputeInstanceProfileInfo_t =
            unsafe { std::mem::zeroed() };
        // SAFETY: NVML gave the handle a moment ago, and `info` is valid for the result; 0: engines are shared.
        let code = unsafe { call(gi, constant, 0, &raw mut info) };
        (code == 0).then_some((info.id, info.sliceCount))
    };
    COMPUTE.into_iter().filter_map(profile).collect()
}

fn compute_instances(
    device: &Device<'_>,
    gi: nvmlGpuInstance_t,
) -> Result<Vec<nvmlComputeInstance_t>, MigError> {
    /// More than any GPU instance can have of one profile.
    const MOST: usize = 16;
    let call = call!(device, nvmlGpuInstanceGetComputeInstances);
    let mut found = Vec::new();
    for (profile, _) in compute_profiles(device, gi) {
        let mut list: [nvmlComputeInstance_t; MOST] = [null_mut(); MOST];
        let mut count = MOST as u32;
        // SAFETY: NVML gave the handle a moment ago; the list has room for all that there can be.
        tried("nvmlGpuInstanceGetComputeInstances", unsafe {
            call(gi, profile, list.as_mut_ptr(), &raw mut count)
        })?;
        found.extend(list.iter().take(count as usize));
    }
    Ok(found)
}

pub(super) fn make_gpu_instance(
    device: &Device<'_>,
    profile: u32,
    start: u32,
    size: u32,
) -> Result<(), MigError> {
    let call = call!(device, nvmlDeviceCreateGpuInstanceWithPlacement);
    let place = nvmlGpuInstancePlacement_t { start, size };
    let mut gi = null_mut();
    // SAFETY: the handle is the one that NVML gave for this library; the place and `gi` are valid.
    tried("nvmlDeviceCreateGpuInstanceWithPlacement", unsafe {
        call(device.handle(), profile, &raw const place, &raw mut gi)
    })
}

/// Makes the compute instance that covers a whole GPU instance.
pub(super) fn make_compute_instance(
    device: &Device<'_>,
    gi: u32,
    slices: u32,
) -> Result<(), MigError> {
    let gi = by_id(device, gi)?;
    let profiles = compute_profiles(device, gi);
    let whole = profiles.iter().find(|p| p.1 == slices);
    let (profile, _) = whole.ok_or(MigError::NotSupported)?;
    let call = call!(device, nvmlGpuInstanceCreateComputeInstance);
    let mut ci = null_mut();
    // SAFETY: NVML gave the handle a moment ago, and `ci` is valid for the result.
    tried("nvmlGpuInstanceCreateComputeInstance", unsafe {
        call(gi, *profile, &raw mut ci)
    })
}

/// Removes all compute instances of a GPU instance.
pub(super) fn remove_compute_instances(device: &Device<'_>, gi: u32) -> Result<(), MigError> {
    let gi = by_id(device, gi)?;
    let call = call!(device, nvmlComputeInstanceDestroy);
    for ci in compute_instances(device, gi)? {
        // SAFETY: NVML gave the handle a moment ago.
        tried("nvmlComputeInstanceDestroy", unsafe { call(ci) })?;
    }
    Ok(())
}

pub(super) fn remove_gpu_instance(device: &Device<'_>, gi: u32) -> Result<(), MigError> {
    let gi = by_id(device, gi)?;
    let call = call!(device, nvmlGpuInstanceDestroy);
    // SAFETY: NVML gave the handle a moment ago.
    tried("nvmlGpuInstanceDestroy", unsafe { call(gi) })
}

/// The number of a MIG handle's GPU instance. `parent` keeps the library loaded.
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

/// The number of a MIG handle's compute instance.
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

/// Replaced memory rows; `None` if the GPU has no spare rows.
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
