//! As much of the driver's C interface as the proxy touches. Handles are pointers that the proxy
//! never follows.

use std::ffi::c_void;

pub(crate) type CuResult = i32;
pub(crate) type Device = i32;
pub(crate) type DevicePtr = u64;
/// Context, stream, pool, function, graph: opaque pointers.
pub(crate) type Handle = usize;

pub(crate) const SUCCESS: CuResult = 0;
pub(crate) const OUT_OF_MEMORY: CuResult = 2;
pub(crate) const NOT_FOUND: CuResult = 500;
pub(crate) const NOT_PERMITTED: CuResult = 800;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`: bytes that a pool holds of the device.
pub(crate) const POOL_RESERVED_NOW: i32 = 5;

const LOCATION_DEVICE: i32 = 1;
const LOCATION_DEVICE_PART: i32 = 6;

/// The common start of `CUmemAllocationProp` and `CUmemPoolProps`: kind, handle types, location.
#[repr(C)]
pub struct PlacedProps {
    kind: i32,
    handle_types: i32,
    location_kind: i32,
    location_id: i32,
}

impl PlacedProps {
    /// The device on which the memory is to lie; `None` for host memory.
    pub(crate) fn device(&self) -> Option<Device> {
        match self.location_kind {
            LOCATION_DEVICE => Some(self.location_id),
            LOCATION_DEVICE_PART => Some(self.location_id & 0xff),
            _ => None,
        }
    }
}

/// What the proxy calls without hooking it; absent where the driver is too old.
#[derive(Default)]
pub(crate) struct Helpers {
    pub(crate) ctx_get_current: Option<unsafe extern "C" fn(*mut Handle) -> CuResult>,
    pub(crate) ctx_get_device: Option<unsafe extern "C" fn(*mut Device) -> CuResult>,
    pub(crate) device_get_count: Option<unsafe extern "C" fn(*mut i32) -> CuResult>,
    pub(crate) device_get: Option<unsafe extern "C" fn(*mut Device, i32) -> CuResult>,
    pub(crate) device_get_uuid: Option<unsafe extern "C" fn(*mut [u8; 16], Device) -> CuResult>,
    pub(crate) primary_state: Option<unsafe extern "C" fn(Device, *mut u32, *mut i32) -> CuResult>,
    pub(crate) device_pool: Option<unsafe extern "C" fn(*mut Handle, Device) -> CuResult>,
    pub(crate) default_pool: Option<unsafe extern "C" fn(*mut Handle, Device) -> CuResult>,
    pub(crate) pool_attribute: Option<unsafe extern "C" fn(Handle, i32, *mut c_void) -> CuResult>,
    pub(crate) pool_trim: Option<unsafe extern "C" fn(Handle, usize) -> CuResult>,
    pub(crate) stream_device: Option<unsafe extern "C" fn(Handle, *mut Device) -> CuResult>,
    pub(crate) mem_free: Option<unsafe extern "C" fn(DevicePtr) -> CuResult>,
    pub(crate) mem_free_async: Option<unsafe extern "C" fn(DevicePtr, Handle) -> CuResult>,
}
