//! The parts of `nvml.h` that the proxy uses, byte for byte.

use std::ffi::c_void;

pub(crate) type Code = i32;
pub(crate) type Handle = *mut c_void;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_ARGUMENT: Code = 2;
pub(crate) const NOT_SUPPORTED: Code = 3;
pub(crate) const NO_PERMISSION: Code = 4;
pub(crate) const NOT_FOUND: Code = 6;
pub(crate) const INSUFFICIENT_SIZE: Code = 7;
pub(crate) const FUNCTION_NOT_FOUND: Code = 13;

/// Memory of a device in bytes.
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// The same, second version.
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: u32,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// A process on a device, with its bytes.
pub(crate) trait Entry: Copy {
    const EMPTY: Self;
    fn pid(&self) -> u32;
    fn set_bytes(&mut self, _bytes: u64) {}
}

macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* } = $bytes:literal;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type),*
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

entries! {
    /// `nvmlProcessInfo_v1_t`
    ProcessV1 { pid: u32, bytes: u64 } = 16;
    /// `nvmlProcessInfo_t`
    Process { pid: u32, bytes: u64, gpu_instance: u32, compute_instance: u32 } = 24;
    /// `nvmlProcessDetail_v1_t`
    Detail {
        pid: u32, bytes: u64, gpu_instance: u32, compute_instance: u32, protected_bytes: u64
    } = 32;
    /// `nvmlProcessDetailList_v1_t`
    DetailList { version: u32, mode: u32, count: u32, array: *mut Detail } = 24;
    /// `nvmlProcessUtilizationSample_t`
    Sample { pid: u32, time: u64, sm: u32, memory: u32, encoder: u32, decoder: u32 } = 32;
    /// `nvmlProcessUtilizationInfo_v1_t`
    Utilization {
        time: u64, pid: u32, sm: u32, memory: u32, encoder: u32, decoder: u32, jpeg: u32, ofa: u32
    } = 40;
    /// `nvmlProcessesUtilizationInfo_v1_t`
    UtilizationList { version: u32, count: u32, since: u64, array: *mut Utilization } = 24;
}

impl Entry for ProcessV1 {
    const EMPTY: Self = Self { pid: 0, bytes: 0 };

    fn pid(&self) -> u32 {
        self.pid
    }

    fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }
}

impl Entry for Process {
    const EMPTY: Self = Self {
        pid: 0,
        bytes: 0,
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
    };

    fn pid(&self) -> u32 {
        self.pid
    }

    fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }
}

impl Entry for Detail {
    const EMPTY: Self = Self {
        pid: 0,
        bytes: 0,
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
        protected_bytes: 0,
    };

    fn pid(&self) -> u32 {
        self.pid
    }

    fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }
}

macro_rules! by_pid {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl Entry for $name {
            const EMPTY: Self = Self { $($field: 0),* };

            fn pid(&self) -> u32 {
                self.pid
            }
        }
    )*};
}

by_pid! {
    Sample { pid, time, sm, memory, encoder, decoder }
    Utilization { time, pid, sm, memory, encoder, decoder, jpeg, ofa }
}
