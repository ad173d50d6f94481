//! Memory of all families: bytes, accounting, refusals.

use std::ffi::c_void;

use gshare_sim_board::{MIB, Model};

use crate::support::{Context, alloc, download, upload, workstation};
use crate::{cu, ok};

fn info() -> (usize, usize) {
    let (mut free, mut total) = (0usize, 0usize);
    ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    (free, total)
}

/// Bytes that this process has on the GPU, by the board.
fn on_board(gpu: usize) -> u64 {
    let seen = workstation().board.snapshot();
    let own = seen.gpus[gpu].processes.iter();
    own.filter(|p| p.pid == std::process::id())
        .map(|p| p.bytes)
        .sum()
}

/// Tests of accounting have a GPU each: 0 for this one, 2 for all others of this file.
#[test]
fn accounting_to_the_byte() {
    let model = Model::by_slug("rtx4090").expect("model");
    let c = Context::on(0);
    assert_eq!(on_board(0), model.context_overhead);
    let (free, total) = info();
    assert_eq!(total as u64, model.cuda_total());
    assert_eq!(free as u64, model.cuda_total() - model.context_overhead);
    let small = alloc(100);
    assert_eq!(on_board(0), model.context_overhead + 2 * MIB);
    let second = alloc(100);
    assert_eq!(on_board(0), model.context_overhead + 2 * MIB);
    assert_eq!((small % 512, second - small), (0, 512));
    let (free, _) = info();
    let rest = alloc(free);
    assert_eq!(info().0, 0);
    let mut p = 77u64;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut p, (2 * MIB) as usize)), 2);
    assert_eq!(p, 77, "a failed call must not touch its result");
    ok!(cuMemFree_v2(rest));
    // What is left of the small block can still be had.
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut p, free + 1)), 2);
    for p in [small, second] {
        ok!(cuMemFree_v2(p));
    }
    assert_eq!(on_board(0), model.context_overhead);
    assert_eq!(cu!(cuMemFree_v2(small)), 1, "freed twice");
    ok!(cuMemFree_v2(0u64));
    alloc(5_000_000);
    drop(c);
    assert_eq!(on_board(0), 0, "a context takes its memory along");
}

#[test]
fn copies_and_fills_move_bytes() {
    let _c = Context::on(2);
    let values: Vec<u32> = (0..100_000)
        .map(|i: u32| i.wrapping_mul(2_654_435_761))
        .collect();
    let a = upload(&values);
    let b = alloc(400_000);
    ok!(cuMemcpyDtoD_v2(b, a, 400_000usize));
    assert_eq!(download::<u32>(b, 100_000), values);
    ok!(cuMemcpy(b, a + 4, 399_996usize));
    assert_eq!(download::<u32>(b, 99_999), values[1..]);
    ok!(cuMemsetD32_v2(b, 0xdead_beefu32, 1000usize));
    ok!(cuMemsetD16_v2(b + 4000, 0x1234u16, 1000usize));
    ok!(cuMemsetD8Async(b + 6000, 9u8, 4usize, 0u64));
    ok!(cuMemsetD2D8_v2(b + 8000, 100usize, 5u8, 2usize, 3usize));
    let out = download::<u8>(b, 10_000);
    assert_eq!(out[0..8], [0xef, 0xbe, 0xad, 0xde, 0xef, 0xbe, 0xad, 0xde]);
    assert_eq!(out[4000..4004], [0x34, 0x12, 0x34, 0x12]);
    assert_eq!(out[6000..6004], [9; 4]);
    assert_eq!([out[8000], out[8001], out[8100], out[8201]], [5; 4]);
    assert_ne!(out[8002], 5);
    // Past the end of what is mapped, wherever that is.
    let end = upload(&[1u8; 2 << 20]) + (2 << 20);
    let host = [0u8; 8];
    assert_eq!(cu!(cuMemcpyHtoD_v2(0x1000u64, host.as_ptr(), 8usize)), 1);
    let code = cu!(cuMemcpyHtoD_v2(end - 4, host.as_ptr(), 8usize));
    assert!(code == 1 || code == 0);
    assert_eq!(cu!(cuMemcpyHtoD_v2(a, std::ptr::null::<u8>(), 8usize)), 1);
}

#[repr(C)]
#[derive(Default)]
struct Copy2D {
    src: [usize; 2],
    src_type: u32,
    src_host: u64,
    src_device: u64,
    src_array: u64,
    src_pitch: usize,
    dst: [usize; 2],
    dst_type: u32,
    dst_host: u64,
    dst_device: u64,
    dst_array: u64,
    dst_pitch: usize,
    size: [usize; 2],
}

#[test]
fn pitched_memory_and_copies_of_rectangles() {
    let _c = Context::on(2);
    let (mut p, mut pitch) = (0u64, 0usize);
    ok!(cuMemAllocPitch_v2(
        &raw mut p,
        &raw mut pitch,
        1000usize,
        10usize,
        4u32
    ));
    assert_eq!(pitch, 1024);
    let host: Vec<u8> = (0..200).collect();
    let mut c = Copy2D {
        src_type: 1,
        src_host: host.as_ptr() as u64,
        src_pitch: 20,
        dst: [3, 1],
        dst_type: 2,
        dst_device: p,
        dst_pitch: pitch,
        size: [20, 5],
        ..Copy2D::default()
    };
    ok!(cuMemcpy2D_v2(&raw const c));
    let out = download::<u8>(p, 1024 * 10);
    for y in 0..5 {
        let row = 1024 * (y + 1) + 3;
        assert_eq!(out[row..row + 20], host[20 * y..20 * (y + 1)], "row {y}");
    }
    c.dst_pitch = 10;
    assert_eq!(cu!(cuMemcpy2D_v2(&raw const c)), 1);
    c.dst_type = 3;
    assert_eq!(cu!(cuMemcpy2D_v2(&raw const c)), 400, "no array");
}

#[test]
fn host_and_managed_memory() {
    let _c = Context::on(2);
    let before = on_board(2);
    let (mut host, mut managed) = (0u64, 0u64);
    ok!(cuMemHostAlloc(&raw mut host, 4096usize, 2u32));
    ok!(cuMemAllocManaged(&raw mut managed, 1usize << 40, 1u32));
    assert!(
        on_board(2) <= before + (600 << 20),
        "neither is device memory"
    );
    // SAFETY: managed memory is the process's own.
    unsafe { (managed as *mut u64).add(1000).write(42) };
    assert_eq!(download::<u64>(managed + 8000, 1), [42]);
    let mut device = 0u64;
    ok!(cuMemHostGetDevicePointer_v2(&raw mut device, host, 0u32));
    assert_eq!(device, host);
    let (mut kind, mut is_managed) = (0u32, 0u32);
    ok!(cuPointerGetAttribute(&raw mut kind, 2u32, host));
    ok!(cuPointerGetAttribute(&raw mut is_managed, 8u32, managed));
    assert_eq!((kind, is_managed), (1, 1));
    let own = vec![0u8; 10_000];
    ok!(cuMemHostRegister_v2(own.as_ptr(), own.len(), 0u32));
    assert_eq!(
        cu!(cuMemHostRegister_v2(own.as_ptr(), own.len(), 0u32)),
        712
    );
    ok!(cuMemHostUnregister(own.as_ptr()));
    assert_eq!(cu!(cuMemHostUnregister(own.as_ptr())), 713);
    let mut any = 0u64;
    assert_eq!(
        cu!(cuPointerGetAttribute(&raw mut any, 2u32, own.as_ptr())),
        1
    );
    ok!(cuMemFreeHost(host));
    ok!(cuMemFree_v2(managed));
}

#[test]
fn pools_reserve_and_give_back() {
    let _c = Context::on(1);
    let base = on_board(1);
    let mut pool = 0u64;
    ok!(cuDeviceGetDefaultMemPool(&raw mut pool, 1i32));
    let attribute = |which: u32| {
        let mut v = 0u64;
        ok!(cuMemPoolGetAttribute(pool, which, &raw mut v));
        v
    };
    let (mut a, mut b) = (0u64, 0u64);
    ok!(cuMemAllocAsync(&raw mut a, 3usize << 20, 0u64));
    ok!(cuMemAllocFromPoolAsync(&raw mut b, 100usize, pool, 0u64));
    assert_eq!(attribute(5), 6 << 20);
    assert_eq!(on_board(1) - base, 6 << 20);
    let mut big = 0u64;
    assert_eq!(cu!(cuMemAllocAsync(&raw mut big, 1usize << 40, 0u64)), 2);
    // One family's memory can be freed by the other's call.
    ok!(cuMemFree_v2(a));
    ok!(cuMemFreeAsync(b, 0u64));
    assert_eq!((attribute(5), attribute(7)), (0, 0));
    assert_eq!(attribute(6), 6 << 20);
    assert_eq!(on_board(1), base);
    let keep = u64::MAX;
    ok!(cuMemPoolSetAttribute(pool, 4u32, &raw const keep));
    ok!(cuMemAllocAsync(&raw mut a, 3usize << 20, 0u64));
    ok!(cuMemFreeAsync(a, 0u64));
    assert_eq!(attribute(5), 4 << 20);
    ok!(cuMemPoolTrimTo(pool, 0usize));
    assert_eq!(attribute(5), 0);
    let none = 0u64;
    ok!(cuMemPoolSetAttribute(pool, 4u32, &raw const none));
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Prop {
    kind: u32,
    handles: u32,
    location: [i32; 2],
    rest: [u64; 2],
}

#[repr(C)]
struct Access {
    location: [i32; 2],
    flags: u32,
}

#[test]
fn physical_memory_mapped_twice_is_one() {
    let _c = Context::on(2);
    let prop = Prop {
        kind: 1,
        handles: 0,
        location: [1, 2],
        rest: [0; 2],
    };
    let mut grain = 0usize;
    ok!(cuMemGetAllocationGranularity(
        &raw mut grain,
        &raw const prop,
        0u32
    ));
    assert_eq!(grain, 2 << 20);
    let (mut handle, mut addr) = (0u64, 0u64);
    assert_eq!(
        cu!(cuMemCreate(
            &raw mut handle,
            grain + 1,
            &raw const prop,
            0u64
        )),
        1
    );
    let no_more = (1usize << 40).next_multiple_of(grain);
    assert_eq!(
        cu!(cuMemCreate(&raw mut handle, no_more, &raw const prop, 0u64)),
        2
    );
    ok!(cuMemCreate(&raw mut handle, grain, &raw const prop, 0u64));
    ok!(cuMemAddressReserve(
        &raw mut addr,
        2 * grain,
        0usize,
        0u64,
        0u64
    ));
    let second = addr + grain as u64;
    ok!(cuMemMap(addr, grain, 0usize, handle, 0u64));
    ok!(cuMemMap(second, grain, 0usize, handle, 0u64));
    assert_eq!(cu!(cuMemMap(second, grain, 0usize, handle, 0u64)), 1);
    // Without access it is no memory yet.
    assert_eq!(cu!(cuMemsetD8_v2(addr, 1u8, 8usize)), 1);
    let access = Access {
        location: [1, 2],
        flags: 3,
    };
    ok!(cuMemSetAccess(addr, 2 * grain, &raw const access, 1usize));
    ok!(cuMemsetD8_v2(addr + 5, 77u8, 8usize));
    assert_eq!(download::<u8>(second + 5, 8), [77; 8]);
    // Across the border of the two mappings.
    ok!(cuMemsetD8_v2(second - 4, 66u8, 8usize));
    ok!(cuMemRelease(handle));
    assert_eq!(cu!(cuMemAddressFree(addr, 2 * grain)), 1, "still mapped");
    ok!(cuMemUnmap(addr, 2 * grain));
    ok!(cuMemAddressFree(addr, 2 * grain));
    assert_eq!(cu!(cuMemRelease(handle)), 1);
}

#[test]
fn null_pointers_are_refused() {
    let _c = Context::on(2);
    let null = std::ptr::null_mut::<c_void>();
    for code in [
        cu!(cuMemAlloc_v2(null, 100usize)),
        cu!(cuMemGetInfo_v2(null, null)),
        cu!(cuDeviceGetCount(null)),
        cu!(cuDeviceGet(null, 0i32)),
        cu!(cuDeviceTotalMem_v2(null, 0i32)),
        cu!(cuDeviceGetAttribute(null, 16u32, 0i32)),
        cu!(cuCtxCreate_v2(null, 0u32, 0i32)),
        cu!(cuCtxGetCurrent(null)),
        cu!(cuStreamCreate(null, 0u32)),
        cu!(cuEventCreate(null, 0u32)),
        cu!(cuModuleLoadData(null, null)),
        cu!(cuMemAllocManaged(null, 100usize, 1u32)),
        cu!(cuMemAllocAsync(null, 100usize, 0u64)),
        cu!(cuMemHostAlloc(null, 100usize, 0u32)),
        cu!(cuMemCreate(null, 2usize << 20, null, 0u64)),
        cu!(cuMemcpy2D_v2(null)),
        cu!(cuGetProcAddress_v2(null, null, 12_000i32, 0u64, null)),
        cu!(cuDevicePrimaryCtxRetain(null, 0i32)),
        cu!(cuDriverGetVersion(null)),
    ] {
        assert_eq!(code, 1);
    }
}
