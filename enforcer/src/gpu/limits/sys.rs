//! Memory limits that the driver itself enforces on a control group: release 615 and later. Like all of NVML, called
//! from the GPU's thread only.
#![allow(
    unsafe_code,
    reason = "functions newer than the bindings, looked up by name"
)]

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nvml_wrapper::Device;

/// `NVML_DEVICE_MEMORY_LIMIT_MAX` of nvml.h (13.5).
const NO_LIMIT: u64 = u64::MAX;
const SUCCESS: u32 = 0;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const FUNCTION_NOT_FOUND: u32 = 13;

/// An operation on a control group's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitOrder {
    /// Only test whether such limits exist.
    Probe {
        /// Directory of any control group except the top.
        cgroup: PathBuf,
    },
    /// Guaranteed and maximum bytes.
    Set {
        /// Directory of the control group.
        cgroup: PathBuf,
        /// Guaranteed.
        soft: u64,
        /// Maximum.
        hard: u64,
    },
    /// Remove the limit, before the control group is removed.
    Clear {
        /// Directory of the control group.
        cgroup: PathBuf,
    },
}

/// Why a limit is not in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    #[error("this driver has no memory limits for control groups (needs release 615 or later)")]
    Unsupported,
    #[error("NVML does not {verb} the memory limit of {cgroup}: error {code}")]
    Refused {
        verb: &'static str,
        cgroup: PathBuf,
        code: u32,
    },
    #[error("GPU {gpu} gave no answer about memory limits")]
    NoAnswer { gpu: u32 },
}

/// `nvmlSetMemoryLimits_v1_t`
#[repr(C)]
struct SetLimits {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
}

/// `nvmlGetMemoryLimits_v1_t`
#[repr(C)]
struct GetLimits {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

const _: () = assert!(size_of::<SetLimits>() == 24 && size_of::<GetLimits>() == 32);

type Set = unsafe extern "C" fn(*mut c_void, *mut SetLimits) -> u32;
type Get = unsafe extern "C" fn(*mut c_void, *mut GetLimits) -> u32;

/// Carries out an order on a GPU.
pub(in crate::gpu) fn obey(
    library: &Path,
    device: &Device<'_>,
    order: &LimitOrder,
) -> Result<(), LimitError> {
    // SAFETY: the handle is used below only, while `device` lives.
    let handle: *mut c_void = unsafe { device.handle() }.cast();
    let (verb, cgroup, code) = match order {
        LimitOrder::Probe { cgroup } => ("tell", cgroup, get(library, handle, cgroup)),
        LimitOrder::Set { cgroup, soft, hard } => {
            ("set", cgroup, set(library, handle, cgroup, *soft, *hard))
        }
        LimitOrder::Clear { cgroup } => {
            ("clear", cgroup, set(library, handle, cgroup, 0, NO_LIMIT))
        }
    };
    match (order, code) {
        (_, SUCCESS) => Ok(()),
        // The driver can tell, and there is no limit.
        (LimitOrder::Probe { .. }, NOT_FOUND) => Ok(()),
        (_, NOT_SUPPORTED | FUNCTION_NOT_FOUND) => Err(LimitError::Unsupported),
        (_, code) => Err(LimitError::Refused {
            verb,
            cgroup: cgroup.clone(),
            code,
        }),
    }
}

fn get(library: &Path, handle: *mut c_void, cgroup: &Path) -> u32 {
    let Some(found) = function(library, c"nvmlDeviceGetMemoryLimits_v1") else {
        return FUNCTION_NOT_FOUND;
    };
    let Ok(name) = CString::new(cgroup.as_os_str().as_bytes()) else {
        return NOT_FOUND;
    };
    let mut limits = GetLimits {
        name_space: name.as_ptr(),
        soft: 0,
        hard: 0,
        used: 0,
    };
    // SAFETY: NVML exports this name with this signature (nvml.h 13.5), the library stays loaded as long as NVML
    // is initialised, the handle is of a live device, and the structure and its string live over the call.
    unsafe { std::mem::transmute::<*mut c_void, Get>(found)(handle, &raw mut limits) }
}

fn set(library: &Path, handle: *mut c_void, cgroup: &Path, soft: u64, hard: u64) -> u32 {
    let Some(found) = function(library, c"nvmlDeviceSetMemoryLimits_v1") else {
        return FUNCTION_NOT_FOUND;
    };
    let Ok(name) = CString::new(cgroup.as_os_str().as_bytes()) else {
        return NOT_FOUND;
    };
    let mut limits = SetLimits {
        name_space: name.as_ptr(),
        soft,
        hard,
    };
    // SAFETY: as in `get`.
    unsafe { std::mem::transmute::<*mut c_void, Set>(found)(handle, &raw mut limits) }
}

/// A function of the library, which is loaded already.
fn function(library: &Path, name: &std::ffi::CStr) -> Option<*mut c_void> {
    let path = CString::new(library.as_os_str().as_bytes()).ok()?;
    // SAFETY: both strings are terminated. The library was loaded when NVML was initialised, so nothing is run
    // here; the handle is not closed, which keeps it loaded for good.
    let found = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return None;
        }
        libc::dlsym(handle, name.as_ptr())
    };
    (!found.is_null()).then_some(found)
}
