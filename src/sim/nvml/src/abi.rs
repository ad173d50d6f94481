//! Pointers from C callers, and the frame of every exported function.

use std::ffi::{c_char, c_void};

use crate::code::Code;

/// A pointer for a result.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    fn ready(self) -> Result<*mut T, Code> {
        if self.0.is_null() {
            Err(Code::INVALID_ARGUMENT)
        } else {
            Ok(self.0)
        }
    }

    pub(crate) fn set(self, value: T) -> Result<(), Code> {
        let at = self.ready()?;
        // SAFETY: not null, and the caller of NVML guarantees a writable T there.
        unsafe { at.write_unaligned(value) };
        Ok(())
    }

    pub(crate) fn get(self) -> Result<T, Code> {
        let at = self.ready()?;
        // SAFETY: not null, and the caller of NVML guarantees a readable T there.
        Ok(unsafe { at.read_unaligned() })
    }

    /// Writes the values to the array that begins here.
    pub(crate) fn fill(self, values: &[T]) -> Result<(), Code> {
        let at = self.ready()?;
        for (i, value) in values.iter().enumerate() {
            // SAFETY: the caller's own count says that the array has this many elements.
            unsafe { at.add(i).write_unaligned(*value) };
        }
        Ok(())
    }

    pub(crate) fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// The address after this structure.
    pub(crate) fn behind<U>(self) -> Out<U> {
        Out(self.0.wrapping_add(1).cast())
    }

    pub(crate) fn from_raw(at: *mut T) -> Self {
        Self(at)
    }
}

/// A string buffer of the caller; another argument has its length.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text(*mut c_char);

impl Text {
    /// Writes the text and its NUL if they fit into `length` bytes.
    pub(crate) fn set(self, length: u32, text: &str) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let bytes = text.as_bytes();
        if (length as usize) <= bytes.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        let out = Out(self.0.cast::<u8>());
        out.fill(bytes)?;
        out.at(bytes.len()).set(0)
    }
}

/// A string from the caller.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CText(*const c_char);

impl CText {
    pub(crate) fn get(self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller of NVML guarantees a terminated string.
        let text = unsafe { std::ffi::CStr::from_ptr(self.0) };
        text.to_str()
            .map(str::to_owned)
            .map_err(|_| Code::INVALID_ARGUMENT)
    }
}

/// A handle: an address that only this library interprets.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Handle(pub(crate) *mut c_void);

/// The frame of every call: no panic leaves the library.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Code>) -> Code {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => Code::UNKNOWN,
    }
}

/// Exports functions under their C names.
macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[doc = concat!("`", stringify!($name), "` of nvml.h.")]
        // SAFETY: nvml.h has this name, and the types have its layout.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the C interface is given")]
        extern "C" fn $name($($arg: $ty),*) -> $crate::code::Code {
            $crate::abi::call(|| $body)
        }
    )*};
}
pub(crate) use export;
