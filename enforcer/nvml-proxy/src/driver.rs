//! The driver's own library, at the path that staging wrote.

use std::{
    ffi::{CStr, CString, c_void},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use crate::paths;

static LIBRARY: OnceLock<usize> = OnceLock::new();

fn library() -> *mut c_void {
    let handle = LIBRARY.get_or_init(|| {
        CString::new(paths::real())
            .ok()
            .filter(|path| !path.is_empty())
            // SAFETY: the path is NUL-terminated. The library is loaded already, as a dependency of
            // this one; the call only gives its handle.
            .map_or(0, |path| unsafe {
                libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) as usize
            })
    });
    *handle as *mut c_void
}

/// The driver's function of this name, cached in `place`; null if it has none.
pub(crate) fn find(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let library = library();
    if library.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a valid handle and a NUL-terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    place.store(found, Ordering::Release);
    found
}
