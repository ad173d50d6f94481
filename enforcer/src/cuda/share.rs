//! Memory and events shared with other processes, for tests of state that cannot be checkpointed.

#![allow(
    unsafe_code,
    reason = "calls into libcuda; every block states why it is sound"
)]

use std::ffi::{c_int, c_uint};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use super::CudaError;
use super::sys::{Buffer, Context, Handle, functions, symbol};

functions! {
    memory: "cuIpcGetMemHandle", fn(*mut [u64; 8], u64);
    multicast: "cuMulticastCreate", fn(*mut u64, *const MulticastProp);
    import: "cuImportExternalMemory", fn(*mut u64, *const ExternalMemory);
}

/// `CUmulticastObjectProp`.
#[repr(C)]
struct MulticastProp {
    devices: c_uint,
    size: usize,
    handle_types: u64,
    flags: u64,
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC` with a descriptor.
#[repr(C)]
struct ExternalMemory {
    kind: c_uint,
    handle: [u64; 2],
    size: u64,
    flags: c_uint,
    reserved: [c_uint; 16],
}

/// Size of the object, in bytes.
const SIZE: usize = 2 << 20;

/// The shareable objects of a context.
#[derive(Debug)]
pub struct Sharing<'a> {
    context: &'a Context,
    functions: Functions,
}

impl<'a> Sharing<'a> {
    /// Looks up the functions.
    pub fn of(context: &'a Context) -> Result<Self, CudaError> {
        Ok(Self {
            context,
            functions: Functions::find(context.library())?,
        })
    }

    /// Makes a handle with which other processes can open a buffer (legacy CUDA IPC).
    pub fn memory(&self, buffer: Buffer) -> Result<[u64; 8], CudaError> {
        let mut handle = [0; 8];
        // SAFETY: the out pointer is valid for the 64 bytes of a handle; the driver checks the address.
        let code = unsafe { (self.functions.memory)(&raw mut handle, buffer.address) };
        self.context.check("cuIpcGetMemHandle", code)?;
        Ok(handle)
    }

    /// Makes a multicast object of one GPU, as NCCL does for all its GPUs.
    ///
    /// # Errors
    /// If the driver fails, or the GPUs are not joined so.
    pub fn multicast(&self) -> Result<(), CudaError> {
        let prop = MulticastProp {
            devices: 1,
            size: SIZE,
            handle_types: 0,
            flags: 0,
        };
        let mut handle = 0;
        // SAFETY: both pointers are valid, and the structure is the driver's.
        let code = unsafe { (self.functions.multicast)(&raw mut handle, &raw const prop) };
        self.context.check("cuMulticastCreate", code)
    }

    /// Imports the memory behind a descriptor, as from another driver.
    pub fn import(&self, memory: OwnedFd) -> Result<(), CudaError> {
        let described = ExternalMemory {
            kind: 1,
            handle: [u64::from(memory.as_raw_fd().cast_unsigned()), 0],
            size: SIZE as u64,
            flags: 0,
            reserved: [0; 16],
        };
        let mut handle = 0;
        // SAFETY: both pointers are valid, and the structure is the driver's.
        let code = unsafe { (self.functions.import)(&raw mut handle, &raw const described) };
        self.context.check("cuImportExternalMemory", code)?;
        // The driver owns it from here on.
        let _ = memory.into_raw_fd();
        Ok(())
    }
}
