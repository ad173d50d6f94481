//! Arguments from C, and the frame of every exported function.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::callback;
use crate::checkpoint;
use crate::code::{CUresult, INVALID_VALUE, NOT_PERMITTED, R, SUCCESS, UNKNOWN};
use crate::down;
use crate::driver::{self, Driver};

/// A pointer for a result. Only C callers make it; their contract (cuda.h) says that it is NULL or valid for writing a
/// `T`.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// No result wanted.
    pub(crate) const NULL: Out<T> = Out(std::ptr::null_mut());

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn addr(self) -> u64 {
        self.0 as u64
    }

    /// Fails for NULL; called before anything changes.
    pub(crate) fn check(self) -> R {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }

    /// Writes the result; NULL is an error.
    pub(crate) fn set(self, value: T) -> R {
        self.check()?;
        self.set_if(value);
        Ok(())
    }

    /// Writes the result unless the pointer is NULL.
    pub(crate) fn set_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not NULL, and by the type's contract valid for writing.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Writes a list of at most `capacity` results.
    pub(crate) fn set_all(self, values: impl IntoIterator<Item = T>, capacity: usize) -> R {
        self.check()?;
        for (i, v) in values.into_iter().take(capacity).enumerate() {
            // SAFETY: the C caller guarantees room for `capacity` values.
            unsafe { self.0.add(i).write_unaligned(v) };
        }
        Ok(())
    }

    /// A pointer from a C caller's list.
    pub(crate) fn from_addr(addr: u64) -> Out<T> {
        Out(addr as *mut T)
    }

    /// The same pointer for another type, for C functions whose result type depends on an argument.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// A pointer to an argument. Only C callers make it; their contract (cuda.h) says that it is NULL or valid for reading
/// as many `T` as the function takes.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> In<T> {
    pub(crate) const NULL: In<T> = In(std::ptr::null());
}

impl<T: Copy> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// A pointer from a C structure.
    pub(crate) fn from_addr(addr: u64) -> In<T> {
        In(addr as *const T)
    }

    pub(crate) fn addr(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn get(self) -> R<T> {
        self.at(0)
    }

    /// Element `i` of the list.
    pub(crate) fn at(self, i: usize) -> R<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not NULL, and by the type's contract valid for reading; callers of this method
        // stay within the length that the C function was given.
        Ok(unsafe { self.0.add(i).read_unaligned() })
    }

    /// The list as a vector; an empty one may be NULL.
    pub(crate) fn list(self, len: usize) -> R<Vec<T>> {
        (0..len).map(|i| self.at(i)).collect()
    }
}

impl In<u8> {
    /// The bytes, borrowed for the duration of the call.
    pub(crate) fn bytes<'a>(self, len: usize) -> R<&'a [u8]> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not NULL, and by the type's contract valid for reading `len` bytes; the result
        // is not kept beyond the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0, len) })
    }
}

impl In<c_char> {
    /// The text up to its NUL.
    pub(crate) fn text<'a>(self) -> R<&'a CStr> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not NULL, and by the type's contract a C string; not kept beyond the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }

    pub(crate) fn string(self) -> R<String> {
        Ok(self.text()?.to_string_lossy().into_owned())
    }
}

/// Runs the body of a function that needs no initialised driver.
pub(crate) fn plain(body: impl FnOnce() -> R) -> CUresult {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Runs the body of a function that needs the driver.
pub(crate) fn with(body: impl FnOnce(&'static Driver) -> R) -> CUresult {
    plain(|| {
        // Host functions may not call the driver.
        if callback::inside() {
            return Err(NOT_PERMITTED);
        }
        let _guest = down::enter()?;
        let driver = driver::get()?;
        let _inside = checkpoint::enter()?;
        body(driver)
    })
}

/// Defines exported functions that need the initialised driver: `name(args) |d| body`.
macro_rules! export {
    ($($(#[$m:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?) |$d:pat_param| $body:expr;)*) => {$(
        $(#[$m])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> $crate::code::CUresult {
            $crate::ffi::with(|$d| $body)
        }
    )*};
}

/// The same for functions on a stream, with their twin for the per-thread default stream: `name, name_ptsz(args;
/// stream) |d| body`. In the twin, stream 0 is the per-thread stream.
macro_rules! export_stream {
    ($($name:ident, $twin:ident($($arg:ident: $ty:ty),*; $stream:ident $(, $after:ident: $aty:ty)*) |$d:pat_param| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty,)* $stream: u64 $(, $after: $aty)*) -> $crate::code::CUresult {
            $crate::ffi::with(|$d| $body)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $twin($($arg: $ty,)* $stream: u64 $(, $after: $aty)*) -> $crate::code::CUresult {
            let $stream = $crate::stream::per_thread($stream);
            $crate::ffi::with(|$d| $body)
        }
    )*};
}

/// The same for functions that implicitly use the default stream: `name, name_ptds(args) |d, stream| body`.
macro_rules! export_sync {
    ($($name:ident, $twin:ident($($arg:ident: $ty:ty),* $(,)?) |$d:pat_param, $stream:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> $crate::code::CUresult {
            let $stream = $crate::stream::LEGACY;
            $crate::ffi::with(|$d| $body)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $twin($($arg: $ty),*) -> $crate::code::CUresult {
            let $stream = $crate::stream::PER_THREAD;
            $crate::ffi::with(|$d| $body)
        }
    )*};
}

pub(crate) use {export, export_stream, export_sync};
