//! Modules, launches, occupancy.

use std::ffi::{CStr, c_char, c_void};

use super::support::{
    INVALID_VALUE, PTX, alloc, attribute, context, download, function, kernel, launch, module,
    param, stream, upload,
};
use crate::trial::skip;
use crate::{cu, need};

const NOT_FOUND: u32 = 500;
const ILLEGAL_ADDRESS: u32 = 700;

fn func_attribute(f: u64, which: u32) -> i32 {
    let mut v = 0i32;
    need!(cuFuncGetAttribute(&raw mut v, which, f));
    v
}

fn shaped(f: u64, grid: [u32; 3], block: [u32; 3], shared: u32) -> u32 {
    let (p, n, v) = (0u64, 0u32, 0u32);
    let params = [param(&p), param(&n), param(&v)];
    let none = std::ptr::null::<*const c_void>();
    cu!(cuLaunchKernel(
        f,
        grid[0],
        grid[1],
        grid[2],
        block[0],
        block[1],
        block[2],
        shared,
        0u64,
        params.as_ptr(),
        none
    ))
}

/// Resident blocks of a kernel per SM.
fn resident(f: u64, threads: i32) -> i32 {
    let mut n = -1i32;
    need!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &raw mut n, f, threads, 0usize
    ));
    n
}

super::list! {
    "module.names", "Module Management, cuModuleGetFunction, cuModuleGetGlobal: NOT_FOUND", |t| {
        context();
        let m = module(PTX);
        let (mut f, mut p, mut size) = (0u64, 0u64, 0usize);
        t.ok("a kernel", cu!(cuModuleGetFunction(&raw mut f, m, c"add".as_ptr())));
        t.code("no kernel", &[NOT_FOUND], cu!(cuModuleGetFunction(&raw mut f, m, c"nothing".as_ptr())));
        t.ok("a variable", cu!(cuModuleGetGlobal_v2(&raw mut p, &raw mut size, m, c"table".as_ptr())));
        t.same("its size", 16, size);
        t.same("its value", vec![11u32, 22, 33, 44], download::<u32>(p, 4));
        t.code("no variable", &[NOT_FOUND], cu!(cuModuleGetGlobal_v2(&raw mut p, &raw mut size, m, c"add".as_ptr())));
        t.code("no freeing of it", &[INVALID_VALUE], cu!(cuMemFree_v2(p)));
    }
    "module.bad-image", "Module Management, cuModuleLoadData: no program, PTX with a mistake", |t| {
        context();
        let mut m = 0u64;
        let code = cu!(cuModuleLoadData(&raw mut m, c"this is no program".as_ptr()));
        t.code("text", &[200, 209, 218, 300], code);
        let bad = c".version 6.4\n.target sm_60\n.address_size 64\n.visible .entry f() { nonsense; }\n";
        t.code("PTX", &[218], cu!(cuModuleLoadData(&raw mut m, bad.as_ptr())));
    }
    "module.missing-file", "Module Management, cuModuleLoad: FILE_NOT_FOUND", |t| {
        context();
        let mut m = 0u64;
        t.code("call", &[301], cu!(cuModuleLoad(&raw mut m, c"/nonexistent.cubin".as_ptr())));
    }
    "library.kernels", "Library Management, cuLibraryLoadData, cuLibraryGetKernel; launched as a function", |t| {
        context();
        let text = std::ffi::CString::new(PTX).unwrap_or_default();
        let (mut l, mut k) = (0u64, 0u64);
        let none = std::ptr::null::<u32>();
        t.ok("load", cu!(cuLibraryLoadData(&raw mut l, text.as_ptr(), none, none, 0u32, none, none, 0u32)));
        t.ok("kernel", cu!(cuLibraryGetKernel(&raw mut k, l, c"add".as_ptr())));
        t.code("no kernel", &[NOT_FOUND], cu!(cuLibraryGetKernel(&raw mut k, l, c"nothing".as_ptr())));
        let (p, n, v) = (alloc(64), 16u32, 5u32);
        need!(cuMemsetD32_v2(p, 1u32, 16usize));
        t.ok("launch", launch(k, 1, 32, 0, &[param(&p), param(&n), param(&v)]));
        t.same("values", vec![6u32; 16], download::<u32>(p, 16));
    }
    "function.attributes", "Execution Control, cuFuncGetAttribute", |t| {
        context();
        let m = module(PTX);
        let (add, sum) = (function(m, "add"), function(m, "sum"));
        t.same("threads per block", 1024, func_attribute(add, 0));
        t.same("static shared memory", (0, 1024), (func_attribute(add, 1), func_attribute(sum, 1)));
        t.holds("registers", (1..=255).contains(&func_attribute(add, 4)), func_attribute(add, 4));
        t.holds("PTX version", func_attribute(add, 5) >= 60, func_attribute(add, 5));
        let mut v = 0i32;
        t.code("attribute 999", &[INVALID_VALUE], cu!(cuFuncGetAttribute(&raw mut v, 999u32, add)));
    }
    "function.shared", "Execution Control, cuFuncSetAttribute: dynamic shared memory up to the opt-in limit", |t| {
        context();
        let f = kernel("add");
        let most = attribute(97);
        t.ok("the most", cu!(cuFuncSetAttribute(f, 8u32, most)));
        t.code("more", &[INVALID_VALUE], cu!(cuFuncSetAttribute(f, 8u32, most + 1)));
        t.code("a constant one", &[INVALID_VALUE], cu!(cuFuncSetAttribute(f, 4u32, 32i32)));
    }
    "function.parameters", "Execution Control, cuFuncGetParamInfo: offsets and sizes, INVALID_VALUE after the last", |t| {
        context();
        let f = kernel("add");
        let mut seen = Vec::new();
        let (mut offset, mut size) = (0usize, 0usize);
        for i in 0..3usize {
            t.ok("parameter", cu!(cuFuncGetParamInfo(f, i, &raw mut offset, &raw mut size)));
            seen.push((offset, size));
        }
        t.same("offset and size", vec![(0, 8), (8, 4), (12, 4)], seen);
        t.code("after the last", &[INVALID_VALUE], cu!(cuFuncGetParamInfo(f, 3usize, &raw mut offset, &raw mut size)));
    }
    "function.name", "Execution Control, cuFuncGetName", |t| {
        context();
        let f = kernel("sum");
        let mut p: *const c_char = std::ptr::null();
        t.ok("call", cu!(cuFuncGetName(&raw mut p, f)));
        // SAFETY: the driver returned a C string that lives as long as the function.
        t.same("name", c"sum", unsafe { CStr::from_ptr(p) });
    }
    "launch.values", "Execution Control, cuLaunchKernel: parameters by pointers and by a packed buffer", |t| {
        context();
        let f = kernel("add");
        let (p, n, v) = (alloc(4000), 1000u32, 7u32);
        upload(p, &(0..1000u32).collect::<Vec<u32>>());
        t.ok("pointers", launch(f, 4, 256, 0, &[param(&p), param(&n), param(&v)]));
        let mut packed = [0u8; 16];
        packed[..8].copy_from_slice(&p.to_le_bytes());
        packed[8..12].copy_from_slice(&n.to_le_bytes());
        packed[12..].copy_from_slice(&100u32.to_le_bytes());
        let size = packed.len();
        let extra = [1usize, packed.as_ptr().addr(), 2, (&raw const size).addr(), 0];
        let none = std::ptr::null::<*const c_void>();
        let one = 1u32;
        let code = cu!(cuLaunchKernel(f, 4u32, one, one, 256u32, one, one, 0u32, 0u64, none, extra.as_ptr()));
        t.ok("packed", code);
        let want: Vec<u32> = (0..1000).map(|i| i + 107).collect();
        t.holds("values", download::<u32>(p, 1000) == want, "other values");
    }
    "launch.refused", "Execution Control, cuLaunchKernel: grids and blocks of wrong sizes", |t| {
        context();
        let f = kernel("add");
        t.code("no blocks", &[INVALID_VALUE], shaped(f, [0, 1, 1], [32, 1, 1], 0));
        t.code("no threads", &[INVALID_VALUE], shaped(f, [1, 1, 1], [0, 1, 1], 0));
        t.code("too many threads", &[INVALID_VALUE], shaped(f, [1, 1, 1], [1025, 1, 1], 0));
        t.code("too deep", &[INVALID_VALUE], shaped(f, [1, 1, 1], [1, 1, 65], 0));
        t.code("too many rows", &[INVALID_VALUE], shaped(f, [1, 65_536, 1], [1, 1, 1], 0));
        t.code("too much shared memory", &[INVALID_VALUE], shaped(f, [1, 1, 1], [1, 1, 1], 1 << 20));
        t.ok("a right one", shaped(f, [1, 1, 1], [1, 1, 1], 0));
    }
    "launch.reduction", "PTX ISA: bar.sync, shared memory, red.global.add", |t| {
        context();
        let f = kernel("sum");
        let n = 100_003u32;
        let values: Vec<u32> = (0..n).map(|i| i.wrapping_mul(48_271)).collect();
        let want = values.iter().fold(0u32, |a, b| a.wrapping_add(*b));
        let (src, out) = (alloc(values.len() * 4), alloc(4));
        upload(src, &values);
        need!(cuMemsetD32_v2(out, 0u32, 1usize));
        t.ok("launch", launch(f, n.div_ceil(256), 256, 0, &[param(&out), param(&src), param(&n)]));
        t.same("sum", vec![want], download::<u32>(out, 1));
    }
    "launch.votes", "PTX ISA: shfl.sync.down, vote.sync.ballot", |t| {
        context();
        let out = alloc(8);
        t.ok("launch", launch(kernel("votes"), 1, 32, 0, &[param(&out)]));
        t.same("sum of 0..32 and the ballot", vec![496u32, 31], download::<u32>(out, 2));
    }
    "launch.illegal", "Execution Control: ILLEGAL_ADDRESS stays with the context", |t| {
        context();
        let (f, p) = (kernel("wild"), 0x10u64);
        let code = launch(f, 1, 1, 0, &[param(&p)]);
        t.code("the launch itself", &[0], code);
        t.code("the wait", &[ILLEGAL_ADDRESS], cu!(cuCtxSynchronize()));
        t.code("the next wait", &[ILLEGAL_ADDRESS], cu!(cuCtxSynchronize()));
        let mut q = 0u64;
        t.code("an allocation", &[ILLEGAL_ADDRESS], cu!(cuMemAlloc_v2(&raw mut q, 64usize)));
    }
    "launch.cooperative", "Execution Control, cuLaunchCooperativeKernel: COOPERATIVE_LAUNCH_TOO_LARGE", |t| {
        context();
        if attribute(95) == 0 {
            skip("no cooperative launches");
        }
        let f = kernel("add");
        let fits = (resident(f, 256) * attribute(16)) as u32;
        let (p, n, v) = (alloc(64), 16u32, 3u32);
        need!(cuMemsetD32_v2(p, 0u32, 16usize));
        let params = [param(&p), param(&n), param(&v)];
        let (one, s) = (1u32, stream(0));
        let coop = |blocks: u32| {
            let list = params.as_ptr();
            cu!(cuLaunchCooperativeKernel(f, blocks, one, one, 256u32, one, one, 0u32, s, list))
        };
        t.ok("as many as fit", coop(fits));
        t.code("one more", &[720], coop(fits + 1));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("values", vec![3u32; 16], download::<u32>(p, 16));
    }
    "occupancy.blocks", "Occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor", |t| {
        context();
        let f = kernel("add");
        let limit = attribute(39);
        for threads in [32, 64, 256, 512, 1024] {
            let n = resident(f, threads);
            t.holds(&format!("{threads} threads"), n >= 1 && n * threads <= limit, n);
        }
        let all = resident(f, 1024) * 1024;
        t.holds("a small kernel fills at least half", all * 2 >= limit, all);
        let mut n = 0i32;
        let code = cu!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut n, f, 0i32, 0usize));
        t.code("no threads", &[INVALID_VALUE], code);
    }
    "occupancy.block-size", "Occupancy, cuOccupancyMaxPotentialBlockSize", |t| {
        context();
        let f = kernel("add");
        let (mut grid, mut block) = (0i32, 0i32);
        let none: Option<extern "C" fn(i32) -> usize> = None;
        let code = cu!(cuOccupancyMaxPotentialBlockSize(&raw mut grid, &raw mut block, f, none, 0usize, 0i32));
        t.ok("call", code);
        t.holds("block: whole warps", block % 32 == 0 && (32..=1024).contains(&block), block);
        t.same("grid: all SMs", resident(f, block) * attribute(16), grid);
    }
    "occupancy.shared", "Occupancy, cuOccupancyAvailableDynamicSMemPerBlock", |t| {
        context();
        let f = kernel("add");
        let (mut one, mut two) = (0usize, 0usize);
        t.ok("1 block", cu!(cuOccupancyAvailableDynamicSMemPerBlock(&raw mut one, f, 1i32, 128i32)));
        t.ok("8 blocks", cu!(cuOccupancyAvailableDynamicSMemPerBlock(&raw mut two, f, 8i32, 128i32)));
        t.holds("less for each of more", two < one && two > 0, format!("{two} of {one}"));
    }
}
