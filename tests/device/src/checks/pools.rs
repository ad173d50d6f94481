//! The stream-ordered allocator.

use super::support::{INVALID_VALUE, attribute, context, download, stream};
use crate::trial::skip;
use crate::{cu, need};

/// `CUmemPoolProps` of a pool on the first device.
#[repr(C)]
struct Props {
    alloc_type: u32,
    handle_types: u32,
    location: [u32; 2],
    win32: u64,
    rest: [u64; 8],
}

const THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const USED: u32 = 7;

fn props() -> Props {
    Props {
        alloc_type: 1,
        handle_types: 0,
        location: [1, 0],
        win32: 0,
        rest: [0; 8],
    }
}

fn begin() -> u64 {
    context();
    if attribute(115) == 0 {
        skip("the device has no memory pools");
    }
    stream(1)
}

fn new_pool() -> u64 {
    let (mut pool, props) = (0u64, props());
    need!(cuMemPoolCreate(&raw mut pool, &raw const props));
    pool
}

fn get(pool: u64, which: u32) -> u64 {
    let mut v = 0u64;
    need!(cuMemPoolGetAttribute(pool, which, &raw mut v));
    v
}

fn take(bytes: usize, pool: u64, s: u64) -> u64 {
    let mut p = 0u64;
    need!(cuMemAllocFromPoolAsync(&raw mut p, bytes, pool, s));
    p
}

const MIB: u64 = 1 << 20;

super::list! {
    "pool.default", "Stream Ordered Memory Allocator, cuDeviceGetDefaultMemPool, cuDeviceGetMemPool", |t| {
        begin();
        let (mut a, mut b) = (0u64, 1u64);
        t.ok("default", cu!(cuDeviceGetDefaultMemPool(&raw mut a, 0i32)));
        t.ok("current", cu!(cuDeviceGetMemPool(&raw mut b, 0i32)));
        t.same("equal at first", a, b);
        t.same("release threshold", 0, get(a, THRESHOLD));
        t.code("destroying it", &[INVALID_VALUE], cu!(cuMemPoolDestroy(a)));
    }
    "pool.current", "Stream Ordered Memory Allocator, cuDeviceSetMemPool; cuMemPoolDestroy: back to the default", |t| {
        begin();
        let pool = new_pool();
        let (mut first, mut now) = (0u64, 0u64);
        need!(cuDeviceGetDefaultMemPool(&raw mut first, 0i32));
        t.ok("set", cu!(cuDeviceSetMemPool(0i32, pool)));
        need!(cuDeviceGetMemPool(&raw mut now, 0i32));
        t.same("current", pool, now);
        t.ok("destroy", cu!(cuMemPoolDestroy(pool)));
        need!(cuDeviceGetMemPool(&raw mut now, 0i32));
        t.same("current", first, now);
    }
    "pool.attributes", "Stream Ordered Memory Allocator, cuMemPoolGetAttribute and SetAttribute", |t| {
        begin();
        let pool = new_pool();
        t.same("nothing reserved", 0, get(pool, RESERVED));
        let keep = 64 * MIB;
        t.ok("set", cu!(cuMemPoolSetAttribute(pool, THRESHOLD, &raw const keep)));
        t.same("threshold", keep, get(pool, THRESHOLD));
        let mut v = 0u64;
        t.code("attribute 99", &[INVALID_VALUE], cu!(cuMemPoolGetAttribute(pool, 99u32, &raw mut v)));
    }
    "pool.props", "Stream Ordered Memory Allocator, cuMemPoolCreate: only pinned memory", |t| {
        begin();
        let bad = Props { alloc_type: 0, ..props() };
        let mut pool = 0u64;
        t.code("no allocation type", &[INVALID_VALUE], cu!(cuMemPoolCreate(&raw mut pool, &raw const bad)));
    }
    "pool.counts", "Stream Ordered Memory Allocator, CU_MEMPOOL_ATTR_USED_MEM_CURRENT and RESERVED", |t| {
        let s = begin();
        let pool = new_pool();
        let p = take(10 << 20, pool, s);
        t.holds("used", get(pool, USED) >= 10 * MIB, get(pool, USED));
        t.holds("reserved", get(pool, RESERVED) >= get(pool, USED), get(pool, RESERVED));
        need!(cuMemFreeAsync(p, s));
        need!(cuStreamSynchronize(s));
        t.same("used after the free", 0, get(pool, USED));
        t.same("reserved after a wait, threshold 0", 0, get(pool, RESERVED));
    }
    "pool.keeps", "Stream Ordered Memory Allocator, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cuMemPoolTrimTo", |t| {
        let s = begin();
        let pool = new_pool();
        let all = u64::MAX;
        need!(cuMemPoolSetAttribute(pool, THRESHOLD, &raw const all));
        let p = take(32 << 20, pool, s);
        need!(cuMemFreeAsync(p, s));
        need!(cuStreamSynchronize(s));
        t.holds("kept", get(pool, RESERVED) >= 32 * MIB, get(pool, RESERVED));
        t.ok("trim", cu!(cuMemPoolTrimTo(pool, 0usize)));
        t.same("given back", 0, get(pool, RESERVED));
    }
    "pool.order", "Stream Ordered Memory Allocator: usable in stream order, reused in the same stream", |t| {
        let s = begin();
        let mut p = 0u64;
        t.ok("alloc", cu!(cuMemAllocAsync(&raw mut p, 4usize << 20, s)));
        t.ok("fill", cu!(cuMemsetD32Async(p, 5u32, 1usize << 20, s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("filled", vec![5u32; 2], download::<u32>(p + (4 << 20) - 8, 2));
        t.ok("free", cu!(cuMemFreeAsync(p, s)));
        let mut again = 0u64;
        t.ok("alloc", cu!(cuMemAllocAsync(&raw mut again, 4usize << 20, s)));
        t.ok("fill", cu!(cuMemsetD32Async(again, 6u32, 1usize << 20, s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.ok("free", cu!(cuMemFreeAsync(again, s)));
    }
    "pool.pointer", "Unified Addressing, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE", |t| {
        let s = begin();
        let pool = new_pool();
        let p = take(1 << 20, pool, s);
        need!(cuStreamSynchronize(s));
        let mut seen = 0u64;
        t.ok("call", cu!(cuPointerGetAttribute(&raw mut seen, 17u32, p)));
        t.same("the pool", pool, seen);
    }
    "pool.too-large", "Stream Ordered Memory Allocator, cuMemAllocAsync: OUT_OF_MEMORY", |t| {
        let s = begin();
        let mut p = 0u64;
        t.code("1 TiB", &[2], cu!(cuMemAllocAsync(&raw mut p, 1usize << 40, s)));
        t.ok("the stream still works", cu!(cuMemAllocAsync(&raw mut p, 1usize << 20, s)));
    }
    "pool.free-refused", "Stream Ordered Memory Allocator, cuMemFreeAsync: INVALID_VALUE for no allocation", |t| {
        let s = begin();
        t.code("a bogus address", &[INVALID_VALUE], cu!(cuMemFreeAsync(0x1234_5600u64, s)));
    }
}
