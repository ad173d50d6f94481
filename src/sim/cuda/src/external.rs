//! Memory of other drivers (Vulkan, a camera): programs can import it but not map it. It is here for its effect on
//! checkpoints.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::checkpoint;
use crate::code::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::ffi::{In, Out, export};

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Desc {
    kind: u32,
    /// A union of two words that begins with the descriptor.
    handle: [u64; 2],
    size: u64,
    flags: u32,
    reserved: [u32; 16],
}

const _: () = assert!(size_of::<Desc>() == 104);

/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`.
const OPAQUE_FD: u32 = 1;

export! {
    cuImportExternalMemory(out: Out<u64>, desc: In<Desc>) |d| {
        out.check()?;
        let desc = desc.get()?;
        let mut t = d.tables();
        d.current(&t)?;
        if desc.kind != OPAQUE_FD {
            return Err(NOT_SUPPORTED);
        }
        let file = desc.handle[0] as i32;
        // SAFETY: only asks about a descriptor.
        let is_open = unsafe { libc::fcntl(file, libc::F_GETFD) } >= 0;
        if !is_open || desc.size == 0 || desc.flags > 1 {
            return Err(INVALID_VALUE);
        }
        let handle = t.handle();
        // SAFETY: the descriptor is open, and the caller gives it up with this call.
        t.external.insert(handle, unsafe { OwnedFd::from_raw_fd(file) });
        checkpoint::shares();
        out.set(handle)
    };
    cuDestroyExternalMemory(handle: u64) |d| {
        d.tables().external.remove(&handle).map(drop).ok_or(INVALID_HANDLE)
    };
}
