//! The two libraries of the driver, opened at run time, and calls into them by name.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Calls a function of `libcuda.so.1`: `cu!(cuInit(0u32))` returns its result code. The types of the arguments must be
/// those of the C function. If the driver lacks the function, the check ends.
#[macro_export]
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let f = $crate::call::cuda(stringify!($name));
        $crate::call::Call::call(($($arg,)*), f)
    }};
}

/// The same for `libnvidia-ml.so.1`.
#[macro_export]
macro_rules! ml {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let f = $crate::call::nvml(stringify!($name));
        $crate::call::Call::call(($($arg,)*), f)
    }};
}

/// A tuple of arguments that a C function can be called with.
pub(crate) trait Call {
    fn call(self, f: *mut c_void) -> u32;
}

macro_rules! calls {
    ($($($t:ident)*;)*) => {$(
        impl<$($t),*> Call for ($($t,)*) {
            #[allow(non_snake_case, reason = "type names double as variables")]
            fn call(self, f: *mut c_void) -> u32 {
                // SAFETY: `f` is the library's function, and the check passes what it takes.
                let f: extern "C" fn($($t),*) -> u32 = unsafe { std::mem::transmute(f) };
                let ($($t,)*) = self;
                f($($t),*)
            }
        }
    )*};
}

calls! {
    ;
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
    A B C D E F G H I;
    A B C D E F G H I J;
    A B C D E F G H I J K;
}

struct Library {
    name: &'static CStr,
    handle: OnceLock<Option<usize>>,
    known: Mutex<Option<HashMap<String, usize>>>,
}

static CUDA: Library = Library::new(c"libcuda.so.1");
static NVML: Library = Library::new(c"libnvidia-ml.so.1");

impl Library {
    const fn new(name: &'static CStr) -> Library {
        Library {
            name,
            handle: OnceLock::new(),
            known: Mutex::new(None),
        }
    }

    fn handle(&self) -> Option<usize> {
        *self.handle.get_or_init(|| {
            // SAFETY: the name is a C string; the library is the driver's.
            let p = unsafe { libc::dlopen(self.name.as_ptr(), libc::RTLD_NOW) };
            (!p.is_null()).then_some(p as usize)
        })
    }

    fn find(&self, name: &str) -> Option<*mut c_void> {
        let handle = self.handle()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_with(HashMap::new);
        if let Some(&p) = known.get(name) {
            return Some(p as *mut c_void);
        }
        let c = CString::new(name).ok()?;
        // SAFETY: the handle is open for the life of the process.
        let p = unsafe { libc::dlsym(handle as *mut c_void, c.as_ptr()) };
        if p.is_null() {
            return None;
        }
        known.insert(name.to_owned(), p as usize);
        Some(p)
    }

    fn get(&self, name: &str) -> *mut c_void {
        self.find(name).unwrap_or_else(|| {
            let library = self.name.to_string_lossy();
            crate::trial::skip(format!("{library} has no {name}"))
        })
    }
}

/// The address of a CUDA function; if the driver lacks it, the check ends.
pub(crate) fn cuda(name: &str) -> *mut c_void {
    CUDA.get(name)
}

pub(crate) fn find_cuda(name: &str) -> Option<*mut c_void> {
    CUDA.find(name)
}

/// The address of an NVML function; if the driver lacks it, the check ends.
pub(crate) fn nvml(name: &str) -> *mut c_void {
    NVML.get(name)
}

pub(crate) fn find_nvml(name: &str) -> Option<*mut c_void> {
    NVML.find(name)
}

/// The driver's name for a result code.
pub(crate) fn error_name(code: u32) -> Option<String> {
    let f = CUDA.find("cuGetErrorName")?;
    let mut name: *const c_char = std::ptr::null();
    if (code, &raw mut name).call(f) != 0 || name.is_null() {
        return None;
    }
    // SAFETY: the driver returned a C string that it keeps.
    Some(
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned(),
    )
}
