//! The structures of `nvml.h`, byte for byte.

use std::ffi::{c_char, c_void};

macro_rules! layout {
    ($(#[$doc:meta] $name:ident = $size:literal { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        #[$doc]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name { $(pub(crate) $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

layout! {
    /// `nvmlPciInfo_v2_t` and earlier.
    PciInfoV2 = 52 {
        bus_id: [c_char; 16], domain: u32, bus: u32, device: u32, pci_device_id: u32,
        pci_subsystem_id: u32, reserved: [u32; 4],
    }
    /// `nvmlPciInfo_t`, version 3.
    PciInfo = 68 {
        bus_id_legacy: [c_char; 16], domain: u32, bus: u32, device: u32, pci_device_id: u32,
        pci_subsystem_id: u32, bus_id: [c_char; 32],
    }
    /// `nvmlPciInfoExt_v1_t`
    PciInfoExt = 64 {
        version: u32, domain: u32, bus: u32, device: u32, pci_device_id: u32, pci_subsystem_id: u32,
        base_class: u32, sub_class: u32, bus_id: [c_char; 32],
    }
    /// `nvmlDeviceAttributes_t`
    Attributes = 40 {
        sms: u32, copy_engines: u32, decoders: u32, encoders: u32, jpeg: u32, ofa: u32, gpu_slices: u32,
        compute_slices: u32, memory_mib: u64,
    }
    /// `nvmlGpuInstancePlacement_t` and `nvmlComputeInstancePlacement_t`
    Placement = 8 { start: u32, size: u32 }
    /// `nvmlGpuInstanceProfileInfo_t`
    GpuInstanceProfile = 48 {
        id: u32, p2p: u32, slices: u32, instances: u32, sms: u32, copy_engines: u32, decoders: u32,
        encoders: u32, jpeg: u32, ofa: u32, memory_mib: u64,
    }
    /// `nvmlGpuInstanceInfo_t`
    GpuInstanceInfo = 24 { device: *mut c_void, id: u32, profile: u32, placement: Placement }
    /// `nvmlComputeInstanceProfileInfo_t`
    ComputeProfile = 36 {
        id: u32, slices: u32, instances: u32, sms: u32, copy_engines: u32, decoders: u32, encoders: u32,
        jpeg: u32, ofa: u32,
    }
    /// `nvmlComputeInstanceInfo_t`
    ComputeInfo = 32 {
        device: *mut c_void, gpu_instance: *mut c_void, id: u32, profile: u32, placement: Placement,
    }
    /// `nvmlMemory_t`, bytes.
    Memory = 24 { total: u64, free: u64, used: u64 }
    /// `nvmlMemory_v2_t`, bytes.
    MemoryV2 = 40 { version: u32, total: u64, reserved: u64, free: u64, used: u64 }
    /// `nvmlBAR1Memory_t`, bytes.
    Bar1Memory = 24 { total: u64, free: u64, used: u64 }
    /// `nvmlUtilization_t`, percent.
    Utilization = 8 { gpu: u32, memory: u32 }
    /// `nvmlProcessInfo_v1_t`
    ProcessInfoV1 = 16 { pid: u32, used_gpu_memory: u64 }
    /// `nvmlProcessInfo_v2_t`, also version 3.
    ProcessInfo = 24 { pid: u32, used_gpu_memory: u64, gpu_instance: u32, compute_instance: u32 }
    /// `nvmlProcessDetail_v1_t`
    ProcessDetail = 32 {
        pid: u32, used_gpu_memory: u64, gpu_instance: u32, compute_instance: u32, protected_memory: u64,
    }
    /// `nvmlProcessDetailList_v1_t`
    ProcessDetailList = 24 { version: u32, mode: u32, count: u32, array: *mut ProcessDetail }
    /// `nvmlProcessUtilizationSample_t`: microseconds, percent.
    ProcessSample = 32 { pid: u32, time_stamp: u64, sm: u32, memory: u32, encoder: u32, decoder: u32 }
    /// `nvmlProcessUtilizationInfo_v1_t`
    ProcessUtilization = 40 {
        time_stamp: u64, pid: u32, sm: u32, memory: u32, encoder: u32, decoder: u32, jpeg: u32, ofa: u32,
    }
    /// `nvmlProcessesUtilizationInfo_v1_t`
    ProcessesUtilization = 24 { version: u32, count: u32, last_seen: u64, array: *mut ProcessUtilization }
    /// `nvmlFieldValue_t`
    FieldValue = 40 {
        field: u32, scope: u32, time_stamp: i64, latency_us: i64, value_type: u32, code: u32, value: u64,
    }
    /// `nvmlTemperature_v1_t`
    Temperature = 12 { version: u32, sensor: u32, temperature: i32 }
    /// `nvmlEventData_t`, first version.
    EventDataV1 = 24 { device: *mut c_void, event_type: u64, event_data: u64 }
    /// `nvmlEventData_t`
    EventData = 32 {
        device: *mut c_void, event_type: u64, event_data: u64, gpu_instance: u32, compute_instance: u32,
    }
    /// `nvmlGpmMetric_t` with its names.
    GpmMetric = 40 {
        metric: u32, code: u32, value: f64, short_name: *const c_char, long_name: *const c_char,
        unit: *const c_char,
    }
    /// `nvmlGpmMetricsGet_t` without the array at its end.
    GpmMetricsGet = 24 { version: u32, count: u32, sample1: *mut c_void, sample2: *mut c_void }
    /// `nvmlGpmSupport_t`
    GpmSupport = 8 { version: u32, supported: u32 }
}

/// The version word of a structure: number in the upper byte, size in the lower ones.
pub(crate) const fn version<T>(number: u32) -> u32 {
    number << 24 | size_of::<T>() as u32
}

/// An instance id without MIG.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;
