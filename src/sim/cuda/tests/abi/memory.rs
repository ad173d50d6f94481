//! Memory of all families: accounting on the board, and refusals. `tests/device` checks the calls themselves.

use std::ffi::c_void;

use gshare_sim_board::{MIB, Model};

use crate::support::{Context, alloc, download, workstation};
use crate::{cu, ok};

fn info() -> (usize, usize) {
    let (mut free, mut total) = (0usize, 0usize);
    ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    (free, total)
}

/// Bytes of this process on the GPU, as the board counts them.
fn on_board(gpu: usize) -> u64 {
    let seen = workstation().board.snapshot();
    let own = seen.gpus[gpu].processes.iter();
    own.filter(|p| p.pid == std::process::id())
        .map(|p| p.bytes)
        .sum()
}

/// Tests of accounting have a GPU each: 0 for this test, 2 for all others of this file.
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
    // The rest of the small block is still available.
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
fn managed_memory_is_not_the_devices() {
    let _c = Context::on(2);
    let before = on_board(2);
    let mut managed = 0u64;
    ok!(cuMemAllocManaged(&raw mut managed, 1usize << 40, 1u32));
    assert!(on_board(2) <= before + (600 << 20));
    // SAFETY: managed memory belongs to the process.
    unsafe { (managed as *mut u64).add(1000).write(42) };
    assert_eq!(download::<u64>(managed + 8000, 1), [42]);
    ok!(cuMemFree_v2(managed));
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
