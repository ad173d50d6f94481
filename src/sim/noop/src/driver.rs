//! The driver: two GPUs, one context, memory that is addresses only. No function reads a handle, and none takes longer
//! than a few stores.

#![allow(
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the functions carry the names and rules of the C interface"
)]

use std::{
    cell::Cell,
    ffi::c_void,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// GPUs that the driver shows.
pub const DEVICES: i32 = 2;
/// Memory of each GPU in bytes, all of it free.
pub const TOTAL_BYTES: u64 = 1 << 43;

/// SMs of a GPU; also the answer for every other attribute.
const SMS: i32 = 132;

/// UUID of a GPU.
#[must_use]
pub fn uuid(device: u8) -> [u8; 16] {
    [0x11 + device; 16]
}

const SUCCESS: i32 = 0;
const INVALID_VALUE: i32 = 1;
/// Handle of the context. Pools have this plus a number.
pub(crate) const HANDLE: usize = 0x1000;
/// Granularity of allocations in bytes, and of small ones, which share a block.
const BLOCK: u64 = 2 << 20;
const UNIT: u64 = 512;
/// Bytes that a pool reports as reserved.
const POOL_BYTES: u64 = 64 << 20;
const POOL_RESERVED_NOW: i32 = 5;
const POOL_RESERVED_HIGH: i32 = 6;
/// Bytes of addresses per thread, after which they overlap the next thread's.
const ARENA: u64 = 1 << 43;
const ARENAS: u64 = 1 << 12;

static ACTIVE: AtomicBool = AtomicBool::new(false);
static NEXT_ARENA: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Next large and next small address. Threads share no addresses, so that the driver costs eight threads no more
    /// than one.
    static NEXT: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

fn address(bytes: u64) -> u64 {
    NEXT.with(|next| {
        let (mut large, mut small) = next.get();
        if large == 0 {
            let arena = NEXT_ARENA.fetch_add(1, Ordering::Relaxed) % ARENAS;
            large = (arena + 1) * ARENA;
            small = large + ARENA / 2;
        }
        let found = if bytes < BLOCK {
            let found = small;
            small += bytes.next_multiple_of(UNIT);
            found
        } else {
            let found = large;
            large += bytes.next_multiple_of(BLOCK);
            found
        };
        next.set((large, small));
        found
    })
}

/// Writes a result unless `to` is NULL.
///
/// # Safety
/// `to` is NULL or valid for one `T`.
unsafe fn give<T>(to: *mut T, value: T) -> i32 {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: as the caller promises.
    unsafe { to.write(value) };
    SUCCESS
}

macro_rules! driver {
    ($($name:ident($($arg:ident: $kind:ty),*) $body:expr;)*) => {
        $(
            /// The driver's function of this name.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($arg: $kind),*) -> i32 {
                // SAFETY: by the C interface the caller is responsible for its pointers.
                #[allow(unused_unsafe, reason = "most bodies write through the caller's pointer")]
                unsafe { $body }
            }
        )*
    };
}

driver! {
    gshare_noop_driver() SUCCESS;
    cuInit(_flags: u32) SUCCESS;
    cuDriverGetVersion(version: *mut i32) give(version, 13_000);
    cuDeviceGetCount(count: *mut i32) give(count, DEVICES);
    cuDeviceGet(device: *mut i32, index: i32) give(device, index);
    cuDeviceGetUuid(to: *mut [u8; 16], device: i32) give(to, uuid(device as u8));
    cuDeviceGetUuid_v2(to: *mut [u8; 16], device: i32) give(to, uuid(device as u8));
    cuDeviceTotalMem_v2(bytes: *mut usize, _device: i32) give(bytes, TOTAL_BYTES as usize);
    cuDevicePrimaryCtxRetain(context: *mut usize, _device: i32) {
        ACTIVE.store(true, Ordering::Relaxed);
        give(context, HANDLE)
    };
    cuDevicePrimaryCtxGetState(_device: i32, flags: *mut u32, active: *mut i32) {
        give(flags, 0);
        give(active, i32::from(ACTIVE.load(Ordering::Relaxed)))
    };
    cuCtxSetCurrent(_context: usize) SUCCESS;
    cuCtxGetCurrent(context: *mut usize) give(context, HANDLE);
    cuCtxGetDevice(device: *mut i32) give(device, 0);
    cuDeviceGetAttribute(value: *mut i32, _attribute: i32, _device: i32) give(value, SMS);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut i32, _function: usize, _threads: i32, _shared: usize
    ) give(blocks, 8);
    cuCtxSynchronize() SUCCESS;
    cuStreamGetDevice(_stream: usize, device: *mut i32) give(device, 0);
    cuStreamQuery(_stream: usize) SUCCESS;
    cuEventCreate(event: *mut usize, _flags: u32) give(event, HANDLE + 100);
    cuEventDestroy_v2(_event: usize) SUCCESS;
    cuEventRecord(_event: usize, _stream: usize) SUCCESS;
    cuEventQuery(_event: usize) SUCCESS;
    cuEventSynchronize(_event: usize) SUCCESS;
    cuEventElapsedTime(ms: *mut f32, _start: usize, _end: usize) give(ms, 0.0005);
    cuStreamQuery_ptsz(_stream: usize) SUCCESS;
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        give(free, TOTAL_BYTES as usize);
        give(total, TOTAL_BYTES as usize)
    };
    cuMemAlloc_v2(pointer: *mut u64, bytes: usize) give(pointer, address(bytes as u64));
    cuMemFree_v2(_pointer: u64) SUCCESS;
    cuMemAllocAsync(pointer: *mut u64, bytes: usize, _stream: usize) {
        give(pointer, address(bytes as u64))
    };
    cuMemFreeAsync(_pointer: u64, _stream: usize) SUCCESS;
    cuDeviceGetMemPool(pool: *mut usize, device: i32) give(pool, HANDLE + 1 + device as usize);
    cuDeviceGetDefaultMemPool(pool: *mut usize, device: i32) {
        give(pool, HANDLE + 1 + device as usize)
    };
    cuMemPoolGetAttribute(_pool: usize, attribute: i32, value: *mut c_void) {
        let holds = matches!(attribute, POOL_RESERVED_NOW | POOL_RESERVED_HIGH);
        give(value.cast::<u64>(), if holds { POOL_BYTES } else { 0 })
    };
    cuMemPoolTrimTo(_pool: usize, _keep: usize) SUCCESS;
    cuLaunchKernel(
        _function: usize, _grid_x: u32, _grid_y: u32, _grid_z: u32, _block_x: u32, _block_y: u32,
        _block_z: u32, _shared: u32, _stream: usize, _params: *mut c_void, _extra: *mut c_void
    ) SUCCESS;
    cuLaunchKernel_ptsz(
        _function: usize, _grid_x: u32, _grid_y: u32, _grid_z: u32, _block_x: u32, _block_y: u32,
        _block_z: u32, _shared: u32, _stream: usize, _params: *mut c_void, _extra: *mut c_void
    ) SUCCESS;
}
