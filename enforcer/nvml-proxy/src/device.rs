//! The driver's devices that belong to the claim. For a claim on an instance of a divided GPU these are the instance
//! and its GPU, which stands for the instance: programs begin with the GPU and ask it for its instances.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    sync::atomic::AtomicPtr,
};

use gshare_abi::GpuUuid;

use crate::{
    driver,
    layout::{Code, FUNCTION_NOT_FOUND, Handle, NOT_FOUND, SUCCESS},
    share::{Part, Share},
};

macro_rules! call_driver {
    ($name:literal, ($($value:expr => $kind:ty),*)) => {{
        static PLACE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let found = driver::find(&PLACE, $name);
        if found.is_null() {
            FUNCTION_NOT_FOUND
        } else {
            // SAFETY: the driver's function of this name has this signature (nvml.h).
            let function = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> Code>(found)
            };
            // SAFETY: the pointers are the caller's own, or valid for the call.
            unsafe { function($($value),*) }
        }
    }};
}

/// UUID of a handle's GPU or instance; `None` for an invalid handle.
fn uuid_of(device: Handle) -> Option<GpuUuid> {
    let mut text = [0_u8; 96];
    let at: *mut c_char = text.as_mut_ptr().cast();
    let code = call_driver!(c"nvmlDeviceGetUUID", (
        device => Handle, at => *mut c_char, text.len() as u32 => u32
    ));
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    text.parse().ok().filter(|_| code == SUCCESS)
}

fn by_uuid(text: &str) -> Result<Handle, Code> {
    let uuid = CString::new(text).map_err(|_| NOT_FOUND)?;
    let mut device: Handle = std::ptr::null_mut();
    let code = call_driver!(c"nvmlDeviceGetHandleByUUID", (
        uuid.as_ptr() => *const c_char, &raw mut device => *mut Handle
    ));
    if code == SUCCESS {
        Ok(device)
    } else {
        Err(code)
    }
}

fn handle_of(uuid: GpuUuid) -> Result<Handle, Code> {
    let text = uuid.to_string();
    by_uuid(&text).or_else(|code| {
        // An instance's name has the same form with another prefix.
        by_uuid(&text.replacen("GPU-", "MIG-", 1)).map_err(|_| code)
    })
}

/// The GPU of an instance; `None` for a GPU, and on drivers without instances.
fn gpu_of_instance(device: Handle) -> Option<Handle> {
    let mut is_instance = 0_u32;
    let code = call_driver!(c"nvmlDeviceIsMigDeviceHandle", (
        device => Handle, &raw mut is_instance => *mut u32
    ));
    if code != SUCCESS || is_instance == 0 {
        return None;
    }
    let mut gpu: Handle = std::ptr::null_mut();
    let code = call_driver!(c"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", (
        device => Handle, &raw mut gpu => *mut Handle
    ));
    (code == SUCCESS).then_some(gpu)
}

/// The GPU of a part: its own UUID if the part is a whole GPU.
fn gpu_of(part: &Part) -> GpuUuid {
    if let Some(known) = part.gpu.get() {
        return *known;
    }
    let Ok(own) = handle_of(part.uuid) else {
        // The driver does not show the GPU now.
        return part.uuid;
    };
    let gpu = gpu_of_instance(own).map_or(Some(part.uuid), uuid_of);
    gpu.map_or(part.uuid, |gpu| *part.gpu.get_or_init(|| gpu))
}

/// The claim's GPUs in its order.
fn gpus(share: &Share) -> Vec<GpuUuid> {
    let mut all: Vec<GpuUuid> = Vec::with_capacity(share.parts.len());
    for gpu in share.parts.iter().map(gpu_of) {
        if !all.contains(&gpu) {
            all.push(gpu);
        }
    }
    all
}

/// Number of the claim's GPUs.
pub(crate) fn count(share: &Share) -> u32 {
    gpus(share).len() as u32
}

/// The claim's GPU with this number, if it exists.
pub(crate) fn nth(share: &Share, index: u32) -> Option<Result<Handle, Code>> {
    gpus(share).get(index as usize).copied().map(handle_of)
}

/// The claim's number for a handle's GPU.
pub(crate) fn index(share: &Share, device: Handle) -> Option<u32> {
    let own = gpu_of(part(share, device)?);
    let at = gpus(share).iter().position(|gpu| *gpu == own)?;
    Some(at as u32)
}

/// The claim's part for a handle.
pub(crate) fn part(share: &Share, device: Handle) -> Option<&Part> {
    let uuid = uuid_of(device)?;
    let mut parts = share.parts.iter();
    parts.find(|part| part.uuid == uuid || gpu_of(part) == uuid)
}

/// Whether a handle belongs to a device outside the claim. Devices without a UUID are left to the driver.
pub(crate) fn is_foreign(share: &Share, device: Handle) -> bool {
    share.later.is_none() && uuid_of(device).is_some() && part(share, device).is_none()
}

/// The claim's instances on a GPU; `None` without any, because the GPU is not divided or not the claim's.
pub(crate) fn instances(share: &Share, gpu: Handle) -> Option<Vec<Handle>> {
    let uuid = uuid_of(gpu)?;
    let parts = share.parts.iter();
    let mut here = parts.filter(|part| part.uuid != uuid && gpu_of(part) == uuid);
    let first = here.next()?;
    let all = std::iter::once(first).chain(here);
    Some(all.filter_map(|part| handle_of(part.uuid).ok()).collect())
}

/// Whether the claim may look into the GPU instance with this number.
pub(crate) fn may_see(share: &Share, gpu: Handle, number: u32) -> bool {
    let Some(own) = instances(share, gpu) else {
        return true;
    };
    own.into_iter().any(|instance| {
        let mut found = u32::MAX;
        let code = call_driver!(c"nvmlDeviceGetGpuInstanceId", (
            instance => Handle, &raw mut found => *mut u32
        ));
        code == SUCCESS && found == number
    })
}
