//! The parts of the driver's C interface that the proxy uses. Handles are pointers that the proxy never follows.

use std::ffi::{c_char, c_void};

pub(crate) type CuResult = i32;
pub(crate) type Device = i32;
pub(crate) type DevicePtr = u64;
/// Context, stream, pool, function, graph: opaque pointers.
pub(crate) type Handle = usize;

/// A size or an address, of 32 bits in the first versions of the driver's functions.
pub(crate) trait Width: Copy {
    fn wide(self) -> u64;
    /// The greatest one if it does not fit.
    fn narrow(wide: u64) -> Self;
}

macro_rules! widths {
    ($($t:ty),*) => {$(
        impl Width for $t {
            fn wide(self) -> u64 {
                self as u64
            }
            fn narrow(wide: u64) -> Self {
                Self::try_from(wide).unwrap_or(Self::MAX)
            }
        }
    )*};
}

widths!(u32, u64, usize);

pub(crate) const SUCCESS: CuResult = 0;
pub(crate) const OUT_OF_MEMORY: CuResult = 2;
pub(crate) const INVALID_DEVICE: CuResult = 101;
pub(crate) const NOT_FOUND: CuResult = 500;
pub(crate) const NO_DEVICE: CuResult = 100;
pub(crate) const NOT_READY: CuResult = 600;
pub(crate) const NOT_PERMITTED: CuResult = 800;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`: bytes that a pool holds of the device.
pub(crate) const POOL_RESERVED_NOW: i32 = 5;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT` and `..._RESERVED_MEM_CURRENT`.
pub(crate) const GRAPH_USED_NOW: i32 = 0;
pub(crate) const GRAPH_RESERVED_NOW: i32 = 2;

/// `CU_GRAPH_NODE_TYPE_KERNEL`, `..._GRAPH`, `..._MEM_ALLOC`.
pub(crate) const NODE_KERNEL: i32 = 0;
pub(crate) const NODE_GRAPH: i32 = 4;
pub(crate) const NODE_ALLOC: i32 = 10;
/// Nodes that may wait for something other than the GPU: host functions, waits for events and for external semaphores,
/// operations on values in memory.
pub(crate) const NODES_THAT_WAIT: [i32; 4] = [3, 6, 9, 12];
/// Nodes that take no time: empty ones, records of events, signals of external semaphores, frees.
pub(crate) const NODES_OF_NO_TIME: [i32; 4] = [5, 7, 8, 11];

const LOCATION_DEVICE: i32 = 1;
const LOCATION_DEVICE_PART: i32 = 6;

/// The common start of `CUmemAllocationProp` and `CUmemPoolProps`: kind, handle types, location.
#[repr(C)]
#[derive(Debug, Default)]
pub struct PlacedProps {
    kind: i32,
    handle_types: i32,
    location_kind: i32,
    location_id: i32,
}

impl PlacedProps {
    /// Device of the memory; `None` for host memory.
    pub(crate) fn device(&self) -> Option<Device> {
        match self.location_kind {
            LOCATION_DEVICE => Some(self.location_id),
            LOCATION_DEVICE_PART => Some(self.location_id & 0xff),
            _ => None,
        }
    }
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, with room for additions of later versions.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct AllocNode {
    pub(crate) props: PlacedProps,
    rest_of_props: [u64; 9],
    access: usize,
    access_count: usize,
    pub(crate) bytes: u64,
    address: u64,
    room: [u64; 16],
}

const _: () = assert!(std::mem::offset_of!(AllocNode, access) == 88);

/// `CUDA_KERNEL_NODE_PARAMS_v2`, with room for additions of later versions.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct KernelNode {
    function: Handle,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    params: usize,
    extra: usize,
    kernel: Handle,
    context: Handle,
    room: [u64; 16],
}

const _: () = assert!(std::mem::offset_of!(KernelNode, kernel) == 56);

impl KernelNode {
    /// The function, or the library's kernel it was made from.
    pub(crate) fn function(&self) -> Handle {
        if self.function == 0 {
            self.kernel
        } else {
            self.function
        }
    }
}

/// Driver functions that the proxy calls without hooking them; `None` if the driver is too old.
#[derive(Default)]
pub(crate) struct Helpers {
    pub(crate) ctx_get_current: Option<unsafe extern "C" fn(*mut Handle) -> CuResult>,
    pub(crate) ctx_get_device: Option<unsafe extern "C" fn(*mut Device) -> CuResult>,
    pub(crate) device_get_count: Option<unsafe extern "C" fn(*mut i32) -> CuResult>,
    pub(crate) device_get: Option<unsafe extern "C" fn(*mut Device, i32) -> CuResult>,
    pub(crate) device_attribute: Option<unsafe extern "C" fn(*mut i32, i32, Device) -> CuResult>,
    pub(crate) device_get_uuid: Option<unsafe extern "C" fn(*mut [u8; 16], Device) -> CuResult>,
    pub(crate) total_mem: Option<unsafe extern "C" fn(*mut usize, Device) -> CuResult>,
    pub(crate) primary_retain: Option<unsafe extern "C" fn(*mut Handle, Device) -> CuResult>,
    pub(crate) primary_release: Option<unsafe extern "C" fn(Device) -> CuResult>,
    pub(crate) primary_state: Option<unsafe extern "C" fn(Device, *mut u32, *mut i32) -> CuResult>,
    pub(crate) device_pool: Option<unsafe extern "C" fn(*mut Handle, Device) -> CuResult>,
    pub(crate) default_pool: Option<unsafe extern "C" fn(*mut Handle, Device) -> CuResult>,
    pub(crate) pool_attribute: Option<unsafe extern "C" fn(Handle, i32, *mut c_void) -> CuResult>,
    pub(crate) pool_trim: Option<unsafe extern "C" fn(Handle, usize) -> CuResult>,
    pub(crate) stream_context: Option<unsafe extern "C" fn(Handle, *mut Handle) -> CuResult>,
    pub(crate) stream_contexts:
        Option<unsafe extern "C" fn(Handle, *mut Handle, *mut Handle) -> CuResult>,
    pub(crate) stream_green: Option<unsafe extern "C" fn(Handle, *mut Handle) -> CuResult>,
    pub(crate) green_as_context: Option<unsafe extern "C" fn(*mut Handle, Handle) -> CuResult>,
    pub(crate) stream_device: Option<unsafe extern "C" fn(Handle, *mut Device) -> CuResult>,
    pub(crate) stream_is_capturing: Option<unsafe extern "C" fn(Handle, *mut i32) -> CuResult>,
    pub(crate) graph_nodes:
        Option<unsafe extern "C" fn(Handle, *mut Handle, *mut usize) -> CuResult>,
    pub(crate) node_kind: Option<unsafe extern "C" fn(Handle, *mut i32) -> CuResult>,
    pub(crate) alloc_node: Option<unsafe extern "C" fn(Handle, *mut AllocNode) -> CuResult>,
    pub(crate) child_graph: Option<unsafe extern "C" fn(Handle, *mut Handle) -> CuResult>,
    pub(crate) graph_attribute: Option<unsafe extern "C" fn(Device, i32, *mut c_void) -> CuResult>,
    pub(crate) graph_trim: Option<unsafe extern "C" fn(Device) -> CuResult>,
    pub(crate) ctx_set_current: Option<unsafe extern "C" fn(Handle) -> CuResult>,
    pub(crate) exchange_capture_mode: Option<unsafe extern "C" fn(*mut i32) -> CuResult>,
    pub(crate) event_create: Option<unsafe extern "C" fn(*mut Handle, u32) -> CuResult>,
    pub(crate) event_destroy: Option<unsafe extern "C" fn(Handle) -> CuResult>,
    pub(crate) event_record: Option<unsafe extern "C" fn(Handle, Handle) -> CuResult>,
    pub(crate) event_query: Option<unsafe extern "C" fn(Handle) -> CuResult>,
    pub(crate) event_sync: Option<unsafe extern "C" fn(Handle) -> CuResult>,
    pub(crate) event_elapsed: Option<unsafe extern "C" fn(*mut f32, Handle, Handle) -> CuResult>,
    pub(crate) occupancy: Option<unsafe extern "C" fn(*mut i32, Handle, i32, usize) -> CuResult>,
    pub(crate) pointer_attribute:
        Option<unsafe extern "C" fn(*mut c_void, i32, DevicePtr) -> CuResult>,
    pub(crate) func_attribute: Option<unsafe extern "C" fn(*mut i32, i32, Handle) -> CuResult>,
    pub(crate) func_module: Option<unsafe extern "C" fn(*mut Handle, Handle) -> CuResult>,
    pub(crate) module_global:
        Option<unsafe extern "C" fn(*mut DevicePtr, *mut usize, Handle, *const c_char) -> CuResult>,
    pub(crate) library_global:
        Option<unsafe extern "C" fn(*mut DevicePtr, *mut usize, Handle, *const c_char) -> CuResult>,
    pub(crate) kernel_count: Option<unsafe extern "C" fn(*mut u32, Handle) -> CuResult>,
    pub(crate) kernel_attribute:
        Option<unsafe extern "C" fn(*mut i32, i32, Handle, Device) -> CuResult>,
    pub(crate) kernel_node: Option<unsafe extern "C" fn(Handle, *mut KernelNode) -> CuResult>,
    pub(crate) mem_free: Option<unsafe extern "C" fn(DevicePtr) -> CuResult>,
    pub(crate) mem_free_async: Option<unsafe extern "C" fn(DevicePtr, Handle) -> CuResult>,
    pub(crate) mem_release: Option<unsafe extern "C" fn(u64) -> CuResult>,
    pub(crate) array_destroy: Option<unsafe extern "C" fn(u64) -> CuResult>,
    pub(crate) levels_destroy: Option<unsafe extern "C" fn(u64) -> CuResult>,
    pub(crate) init: Option<unsafe extern "C" fn(u32) -> CuResult>,
}
