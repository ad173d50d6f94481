//! Older names whose ABI is that of the newer function.

use crate::code::CUresult;
use crate::ffi::Out;

macro_rules! same {
    ($($old:ident = $new:ident($($arg:ident: $ty:ty),*);)*) => {
        mod newer {
            use super::{CUresult, Out};
            unsafe extern "C" {
                $(pub(super) fn $new($($arg: $ty),*) -> CUresult;)*
            }
        }
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $old($($arg: $ty),*) -> CUresult {
                // SAFETY: the function is this object's own, with the same arguments.
                unsafe { newer::$new($($arg),*) }
            }
        )*
    };
}

same! {
    cuCtxDestroy = cuCtxDestroy_v2(context: u64);
    cuCtxPushCurrent = cuCtxPushCurrent_v2(context: u64);
    cuCtxPopCurrent = cuCtxPopCurrent_v2(out: Out<u64>);
    cuStreamDestroy = cuStreamDestroy_v2(stream: u64);
    cuEventDestroy = cuEventDestroy_v2(event: u64);
    cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2(device: i32);
    cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset_v2(device: i32);
    cuDevicePrimaryCtxSetFlags = cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32);
    cuMemHostRegister = cuMemHostRegister_v2(addr: u64, size: usize, flags: u32);
}
