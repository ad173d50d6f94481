//! Contexts and each thread's stack of them.

use super::support::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_VALUE, context};
use crate::{cu, need};

fn current() -> u64 {
    let mut c = 7u64;
    need!(cuCtxGetCurrent(&raw mut c));
    c
}

fn state() -> (u32, i32) {
    let (mut flags, mut active) = (9u32, 9i32);
    need!(cuDevicePrimaryCtxGetState(
        0i32,
        &raw mut flags,
        &raw mut active
    ));
    (flags, active)
}

super::list! {
    "context.none", "Context Management: calls that need a context give INVALID_CONTEXT without one", |t| {
        need!(cuInit(0u32));
        let mut p = 0u64;
        t.same("current", 0, current());
        t.code("cuMemAlloc", &[INVALID_CONTEXT], cu!(cuMemAlloc_v2(&raw mut p, 64usize)));
        t.code("cuStreamCreate", &[INVALID_CONTEXT], cu!(cuStreamCreate(&raw mut p, 0u32)));
        t.code("cuEventCreate", &[INVALID_CONTEXT], cu!(cuEventCreate(&raw mut p, 0u32)));
        t.code("cuCtxSynchronize", &[INVALID_CONTEXT], cu!(cuCtxSynchronize()));
        t.code("cuCtxPopCurrent", &[INVALID_CONTEXT], cu!(cuCtxPopCurrent_v2(&raw mut p)));
    }
    "context.primary", "Primary Context Management, cuDevicePrimaryCtxRetain and Release: counted", |t| {
        need!(cuInit(0u32));
        t.same("inactive at first", 0, state().1);
        let (mut a, mut b) = (0u64, 0u64);
        t.ok("retain", cu!(cuDevicePrimaryCtxRetain(&raw mut a, 0i32)));
        t.ok("retain", cu!(cuDevicePrimaryCtxRetain(&raw mut b, 0i32)));
        t.same("the same", a, b);
        t.same("not made current", 0, current());
        t.ok("release", cu!(cuDevicePrimaryCtxRelease_v2(0i32)));
        t.same("still active", 1, state().1);
        t.ok("release", cu!(cuDevicePrimaryCtxRelease_v2(0i32)));
        t.same("inactive", 0, state().1);
        t.code("once too often", &[INVALID_CONTEXT], cu!(cuDevicePrimaryCtxRelease_v2(0i32)));
    }
    "context.primary-gone", "cuda.h, CUDA_ERROR_CONTEXT_IS_DESTROYED: the current context is a primary one that is not initialised", |t| {
        need!(cuInit(0u32));
        let (mut a, mut p) = (0u64, 0u64);
        need!(cuDevicePrimaryCtxRetain(&raw mut a, 0i32));
        need!(cuCtxSetCurrent(a));
        need!(cuDevicePrimaryCtxRelease_v2(0i32));
        t.same("inactive", 0, state().1);
        t.code("cuMemAlloc", &[CONTEXT_IS_DESTROYED], cu!(cuMemAlloc_v2(&raw mut p, 64usize)));
        t.code("cuStreamCreate", &[CONTEXT_IS_DESTROYED], cu!(cuStreamCreate(&raw mut p, 0u32)));
        t.code("cuCtxSynchronize", &[CONTEXT_IS_DESTROYED], cu!(cuCtxSynchronize()));
        t.ok("retain again", cu!(cuDevicePrimaryCtxRetain(&raw mut a, 0i32)));
        t.ok("set current", cu!(cuCtxSetCurrent(a)));
        t.ok("and it works", cu!(cuMemAlloc_v2(&raw mut p, 64usize)));
    }
    "context.primary-flags", "Primary Context Management, cuDevicePrimaryCtxSetFlags and GetState", |t| {
        need!(cuInit(0u32));
        t.ok("set CU_CTX_SCHED_BLOCKING_SYNC", cu!(cuDevicePrimaryCtxSetFlags_v2(0i32, 4u32)));
        t.same("flags", 4, state().0 & 7);
    }
    "context.stack", "Context Management, cuCtxPushCurrent, PopCurrent, SetCurrent", |t| {
        let a = context();
        let b = context();
        t.same("a new context is current", b, current());
        let mut popped = 0u64;
        t.ok("pop", cu!(cuCtxPopCurrent_v2(&raw mut popped)));
        t.same("what was popped", b, popped);
        t.same("what was below", a, current());
        t.ok("push", cu!(cuCtxPushCurrent_v2(b)));
        t.ok("set", cu!(cuCtxSetCurrent(a)));
        t.same("replaces the top", a, current());
        t.ok("set NULL", cu!(cuCtxSetCurrent(0u64)));
        t.same("pops", a, current());
    }
    "context.threads", "Context Management: each thread has a stack of its own", |t| {
        let c = context();
        let other = std::thread::spawn(|| {
            let none = current();
            let mut p = 0u64;
            (none, cu!(cuMemAlloc_v2(&raw mut p, 64usize)))
        });
        let seen = other.join().unwrap_or((1, 1));
        t.same("a new thread", (0, INVALID_CONTEXT), seen);
        let shared = std::thread::spawn(move || cu!(cuCtxSetCurrent(c)));
        t.ok("a context may be current in two threads", shared.join().unwrap_or(1));
    }
    "context.device", "Context Management, cuCtxGetDevice, cuCtxGetFlags", |t| {
        context();
        let (mut d, mut flags) = (9i32, 0u32);
        t.ok("device", cu!(cuCtxGetDevice(&raw mut d)));
        t.same("ordinal", 0, d);
        t.ok("flags", cu!(cuCtxGetFlags(&raw mut flags)));
        let mut c = 0u64;
        t.code("unknown flags", &[INVALID_VALUE], cu!(cuCtxCreate_v2(&raw mut c, 0x8000_0000u32, 0i32)));
    }
    "context.ids", "Context Management, cuCtxGetId: unique in the process", |t| {
        let (a, b) = (context(), context());
        let (mut x, mut y) = (0u64, 0u64);
        t.ok("first", cu!(cuCtxGetId(a, &raw mut x)));
        t.ok("second", cu!(cuCtxGetId(b, &raw mut y)));
        t.differ("ids", x, y);
    }
    "context.limits", "Context Management, cuCtxGetLimit and cuCtxSetLimit: UNSUPPORTED_LIMIT for unknown ones", |t| {
        context();
        let mut v = 0usize;
        t.ok("stack", cu!(cuCtxGetLimit(&raw mut v, 0u32)));
        t.holds("of some bytes", v >= 512, v);
        t.ok("heap of 16 MiB", cu!(cuCtxSetLimit(2u32, 16usize << 20)));
        t.ok("heap", cu!(cuCtxGetLimit(&raw mut v, 2u32)));
        t.holds("at least as set", v >= 16 << 20, v);
        t.code("limit 99", &[215, INVALID_VALUE], cu!(cuCtxGetLimit(&raw mut v, 99u32)));
    }
    "context.priorities", "Context Management, cuCtxGetStreamPriorityRange: greatest priority is the least number", |t| {
        context();
        let (mut least, mut greatest) = (9i32, 9i32);
        t.ok("call", cu!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)));
        t.same("least", 0, least);
        t.holds("greatest", (-10..=0).contains(&greatest), greatest);
    }
    "context.cache", "Context Management, cuCtxSetCacheConfig", |t| {
        context();
        let mut v = 9u32;
        t.ok("prefer L1", cu!(cuCtxSetCacheConfig(2u32)));
        t.ok("get", cu!(cuCtxGetCacheConfig(&raw mut v)));
        t.holds("a known one", v <= 3, v);
    }
    "context.destroy", "Context Management, cuCtxDestroy: the current one is popped", |t| {
        let a = context();
        let b = context();
        t.ok("destroy", cu!(cuCtxDestroy_v2(b)));
        t.same("what is current", a, current());
        let mut p = 0u64;
        t.ok("and works", cu!(cuMemAlloc_v2(&raw mut p, 64usize)));
    }
}
