//! Single calls by function pointer, as a program makes them.

use std::{
    ffi::{CStr, CString, c_void},
    fmt,
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// The library cannot be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(String);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

macro_rules! calls {
    ($($(#[$doc:meta])* $field:ident: $name:literal, ($($kind:ty),*);)*) => {
        /// The functions of the no-op driver, called directly or through a proxy.
        ///
        /// All methods are safe: [`Calls::load`] only accepts a library with the no-op driver behind it, which
        /// dereferences no handle, and the methods own the pointers for results.
        #[derive(Clone, Copy, Debug)]
        pub struct Calls {
            $($field: unsafe extern "C" fn($($kind),*) -> i32,)*
        }

        impl Calls {
            fn find(library: *mut c_void) -> Result<Self, LoadError> {
                Ok(Self {
                    $($field: {
                        let found = symbol(library, $name)?;
                        // SAFETY: the driver and its proxies have this signature under this name.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> i32>(found)
                        }
                    },)*
                })
            }
        }
    };
}

type Launch = unsafe extern "C" fn(
    usize,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    usize,
    *mut c_void,
    *mut c_void,
) -> i32;

calls! {
    init: c"cuInit", (u32);
    retain: c"cuDevicePrimaryCtxRetain", (*mut usize, i32);
    set_current: c"cuCtxSetCurrent", (usize);
    mem_info: c"cuMemGetInfo_v2", (*mut usize, *mut usize);
    alloc: c"cuMemAlloc_v2", (*mut u64, usize);
    free: c"cuMemFree_v2", (u64);
    alloc_async: c"cuMemAllocAsync", (*mut u64, usize, usize);
    free_async: c"cuMemFreeAsync", (u64, usize);
    stream_query: c"cuStreamQuery", (usize);
    launch: c"cuLaunchKernel", (
        usize, u32, u32, u32, u32, u32, u32, u32, usize, *mut c_void, *mut c_void
    );
    launch_ptsz: c"cuLaunchKernel_ptsz", (
        usize, u32, u32, u32, u32, u32, u32, u32, usize, *mut c_void, *mut c_void
    );
}

const FUNCTION: usize = 0x2000;
const STREAM: usize = 0x3000;

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, LoadError> {
    // SAFETY: a handle that is never closed, and a NUL-terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        let name = name.to_string_lossy();
        return Err(LoadError(format!("the library has no {name}")));
    }
    Ok(found)
}

impl Calls {
    /// Loads a library by its absolute path, for the rest of the process, without making its symbols global.
    ///
    /// # Errors
    /// If it cannot be loaded, or is neither the no-op driver nor a proxy of it.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| LoadError(format!("{} contains a NUL", path.display())))?;
        // SAFETY: a NUL-terminated path. Only initialisers of the no-op driver or a proxy run.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: after a failure dlerror returns a NUL-terminated text.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(LoadError(format!("cannot load: {}", why.to_string_lossy())));
        }
        // The look-up includes the library's dependencies.
        symbol(library, c"gshare_noop_driver")
            .map_err(|_| LoadError(format!("{} is no no-op driver", path.display())))?;
        Self::find(library)
    }

    /// `cuInit`, then the primary context of the first GPUs, made current. Returns the driver's code.
    #[must_use]
    pub fn begin(&self, devices: i32) -> i32 {
        // SAFETY: an integer.
        let mut code = unsafe { (self.init)(0) };
        for device in 0..devices {
            let mut context = 0;
            if code == 0 {
                // SAFETY: `context` is valid for the result.
                code = unsafe { (self.retain)(&raw mut context, device) };
            }
            if code == 0 {
                // SAFETY: the context just made.
                code = unsafe { (self.set_current)(context) };
            }
        }
        code
    }

    /// `cuCtxSetCurrent` with the driver's one context, for a further thread. Returns the driver's code.
    #[must_use]
    pub fn enter(&self) -> i32 {
        // SAFETY: the no-op driver dereferences no handle.
        unsafe { (self.set_current)(crate::driver::HANDLE) }
    }

    #[inline]
    fn launch_by(launch: Launch) -> i32 {
        let null = std::ptr::null_mut();
        // SAFETY: the no-op driver dereferences none of these.
        unsafe { launch(FUNCTION, 1, 1, 1, 32, 1, 1, 0, STREAM, null, null) }
    }

    /// `cuLaunchKernel`.
    #[inline]
    #[must_use]
    pub fn launch(&self) -> i32 {
        Self::launch_by(self.launch)
    }

    /// `cuLaunchKernel_ptsz`.
    #[inline]
    #[must_use]
    pub fn launch_ptsz(&self) -> i32 {
        Self::launch_by(self.launch_ptsz)
    }

    /// `cuStreamQuery`: a call that neither launches nor allocates.
    #[inline]
    #[must_use]
    pub fn stream_query(&self) -> i32 {
        // SAFETY: the no-op driver dereferences no handle.
        unsafe { (self.stream_query)(STREAM) }
    }

    /// `cuMemGetInfo`: free and total bytes.
    #[inline]
    #[must_use]
    pub fn mem_info(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both places are valid for the results.
        let code = unsafe { (self.mem_info)(&raw mut free, &raw mut total) };
        if code == 0 { (free, total) } else { (0, 0) }
    }

    /// `cuMemAlloc`: the address.
    #[inline]
    pub fn alloc(&self, bytes: usize) -> Result<u64, i32> {
        let mut pointer = 0;
        // SAFETY: `pointer` is valid for the result.
        match unsafe { (self.alloc)(&raw mut pointer, bytes) } {
            0 => Ok(pointer),
            code => Err(code),
        }
    }

    /// `cuMemFree`: the driver's code.
    #[inline]
    #[must_use]
    pub fn free(&self, pointer: u64) -> i32 {
        // SAFETY: the no-op driver dereferences no address.
        unsafe { (self.free)(pointer) }
    }

    /// `cuMemAllocAsync`: the address.
    #[inline]
    pub fn alloc_async(&self, bytes: usize) -> Result<u64, i32> {
        let mut pointer = 0;
        // SAFETY: `pointer` is valid for the result.
        match unsafe { (self.alloc_async)(&raw mut pointer, bytes, STREAM) } {
            0 => Ok(pointer),
            code => Err(code),
        }
    }

    /// `cuMemFreeAsync`: the driver's code.
    #[inline]
    #[must_use]
    pub fn free_async(&self, pointer: u64) -> i32 {
        // SAFETY: the no-op driver dereferences no address.
        unsafe { (self.free_async)(pointer, STREAM) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_library_is_refused() {
        let error = Calls::load(Path::new("libc.so.6")).unwrap_err().to_string();
        assert!(error.contains("no no-op driver"), "{error}");
        let error = Calls::load(Path::new("/absent.so"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/absent.so"), "{error}");
    }
}
