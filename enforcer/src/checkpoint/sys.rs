//! The driver's functions, by `dlopen` and `dlsym`.

#![allow(
    unsafe_code,
    reason = "calls into libcuda; every block states why it is sound"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Outcome, ProcessState, Step};

/// The CUDA version that introduced these functions.
const SINCE: c_int = 12_080;

type Function<T> = unsafe extern "C" fn(c_int, *mut T) -> c_int;

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArgs {
    timeout_ms: c_uint,
    reserved: [c_uint; 15],
}

/// `CUcheckpointGpuPair`: old and new UUID.
type Pair = [[u8; 16]; 2];

/// `CUcheckpointRestoreArgs`.
#[repr(C)]
struct RestoreArgs {
    pairs: *mut Pair,
    count: c_uint,
    padding: c_uint,
    reserved: [u64; 6],
}

/// `CUcheckpointCheckpointArgs` and `CUcheckpointUnlockArgs`.
#[repr(C)]
struct NoArgs([u64; 8]);

const _: () = assert!(size_of::<LockArgs>() == 64);
const _: () = assert!(size_of::<RestoreArgs>() == 64);

#[derive(Clone, Copy)]
pub(super) struct Driver {
    state: Function<c_int>,
    lock: Function<LockArgs>,
    checkpoint: Function<NoArgs>,
    restore: Function<RestoreArgs>,
    unlock: Function<NoArgs>,
    error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

/// Parses `GPU-...`.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let hex: Vec<u8> = text
        .strip_prefix("GPU-")?
        .bytes()
        .filter(|b| *b != b'-')
        .collect();
    let hex = std::str::from_utf8(&hex).ok().filter(|h| h.len() == 32)?;
    let mut bytes = [0; 16];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl Driver {
    /// Loads the library and initialises it.
    pub(super) fn load(library: &Path) -> Result<Self, Outcome> {
        let unusable = |why: String| Outcome::Unusable(format!("{}: {why}", library.display()));
        let name =
            CString::new(library.as_os_str().as_bytes()).map_err(|e| unusable(e.to_string()))?;
        // SAFETY: the name ends in NUL. The driver's constructors are trusted as those of any program that uses CUDA.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(unusable("cannot be loaded".to_owned()));
        }
        // SAFETY: the handle is never closed; names end in NUL.
        let find = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
        let find = |name: &CStr| {
            let found: *mut c_void = find(name);
            if found.is_null() { None } else { Some(found) }
        };
        macro_rules! function {
            ($name:literal) => {{
                let found = find($name).ok_or(Outcome::NoSuchDriver)?;
                // SAFETY: the driver's function of this name has the signature of the field it goes to (cuda.h).
                unsafe { std::mem::transmute::<*mut c_void, _>(found) }
            }};
        }
        #[allow(
            clippy::missing_transmute_annotations,
            reason = "each target type is the type of the field"
        )]
        let driver = Self {
            state: function!(c"cuCheckpointProcessGetState"),
            lock: function!(c"cuCheckpointProcessLock"),
            checkpoint: function!(c"cuCheckpointProcessCheckpoint"),
            restore: function!(c"cuCheckpointProcessRestore"),
            unlock: function!(c"cuCheckpointProcessUnlock"),
            error_name: function!(c"cuGetErrorName"),
        };
        if let Some(version) = find(c"cuDriverGetVersion") {
            let mut found = 0;
            // SAFETY: the driver's function of this name has this signature (cuda.h); the out pointer is valid.
            let code = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(
                    version,
                )(&raw mut found)
            };
            if code == 0 && found < SINCE {
                return Err(Outcome::NoSuchDriver);
            }
        }
        let init = find(c"cuInit").ok_or(Outcome::NoSuchDriver)?;
        // SAFETY: the driver's function of this name has this signature (cuda.h), and its flags must be 0.
        let code = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_uint) -> c_int>(init)(0)
        };
        match driver.outcome(code) {
            Outcome::Failed { name, .. } => Err(unusable(format!("cuInit gave {name}"))),
            _ => Ok(driver),
        }
    }

    fn outcome(&self, code: c_int) -> Outcome {
        if code == 0 {
            return Outcome::Done;
        }
        let mut text = std::ptr::null();
        // SAFETY: the out pointer is valid; the string belongs to the driver for good.
        let known = unsafe { (self.error_name)(code, &raw mut text) } == 0 && !text.is_null();
        let name = if known {
            // SAFETY: the driver returned success, so the text is a static string.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        } else {
            "unknown error".to_owned()
        };
        Outcome::Failed { code, name }
    }

    /// Carries out a step; takes as long as the driver.
    pub(super) fn run(&self, pid: i32, step: &Step) -> Outcome {
        let mut none = NoArgs([0; 8]);
        let code = match step {
            Step::State => {
                let mut state = -1;
                // SAFETY: the out pointer is valid.
                let code = unsafe { (self.state)(pid, &raw mut state) };
                if code == 0 {
                    return Outcome::State(match state {
                        0 => ProcessState::Running,
                        1 => ProcessState::Locked,
                        2 => ProcessState::Checkpointed,
                        4 | 5 => ProcessState::Busy,
                        _ => ProcessState::Failed,
                    });
                }
                code
            }
            Step::Lock { timeout_ms } => {
                let mut args = LockArgs {
                    timeout_ms: *timeout_ms,
                    reserved: [0; 15],
                };
                // SAFETY: the arguments have the layout that the driver expects, and live through the call.
                unsafe { (self.lock)(pid, &raw mut args) }
            }
            // SAFETY: as above.
            Step::Checkpoint => unsafe { (self.checkpoint)(pid, &raw mut none) },
            Step::Restore { pairs } => {
                let named: Option<Vec<Pair>> = pairs
                    .iter()
                    .map(|(old, new)| Some([uuid(old)?, uuid(new)?]))
                    .collect();
                let Some(mut list) = named else {
                    return self.outcome(super::INVALID_VALUE);
                };
                let mut args = RestoreArgs {
                    pairs: if list.is_empty() {
                        std::ptr::null_mut()
                    } else {
                        list.as_mut_ptr()
                    },
                    count: c_uint::try_from(list.len()).unwrap_or(c_uint::MAX),
                    padding: 0,
                    reserved: [0; 6],
                };
                // SAFETY: as above; so does the list.
                unsafe { (self.restore)(pid, &raw mut args) }
            }
            // SAFETY: as above.
            Step::Unlock => unsafe { (self.unlock)(pid, &raw mut none) },
        };
        self.outcome(code)
    }
}

#[cfg(test)]
mod tests {
    use super::uuid;

    #[test]
    fn uuids() {
        let bytes = uuid("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f").expect("a UUID");
        assert!(bytes.iter().zip(0..).all(|(byte, i)| *byte == i));
        for wrong in [
            "",
            "GPU-",
            "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f",
            "GPU-zz",
        ] {
            assert_eq!(uuid(wrong), None, "{wrong}");
        }
    }
}
