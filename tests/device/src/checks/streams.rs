//! Streams, the default streams, events, and host functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::support::{
    Gate, INVALID_HANDLE, INVALID_VALUE, NOT_READY, PASS, SOON, alloc, context, download, event,
    stream,
};
use crate::{cu, need};

fn fill(p: u64, value: u32, s: u64) {
    need!(cuMemsetD32Async(p, value, 16usize, s));
}

fn done(e: u64) -> bool {
    cu!(cuEventQuery(e)) == 0
}

fn recorded(s: u64) -> u64 {
    let e = event(2);
    need!(cuEventRecord(e, s));
    e
}

static STATUS: AtomicU32 = AtomicU32::new(99);
static STREAM: AtomicU64 = AtomicU64::new(0);
static INNER: AtomicU32 = AtomicU32::new(99);

extern "C" fn callback(s: u64, status: u32, data: *mut c_void) {
    STREAM.store(s, Ordering::SeqCst);
    STATUS.store(status + data as u32, Ordering::SeqCst);
}

extern "C" fn calls_back(_data: *mut c_void) {
    let mut p = 0u64;
    INNER.store(cu!(cuMemAlloc_v2(&raw mut p, 64usize)), Ordering::SeqCst);
}

super::list! {
    "stream.create", "Stream Management, cuStreamCreate, GetFlags, GetPriority, GetCtx", |t| {
        let c = context();
        let (mut s, mut flags, mut priority, mut ctx) = (0u64, 9u32, 9i32, 0u64);
        t.ok("non-blocking", cu!(cuStreamCreate(&raw mut s, 1u32)));
        t.ok("flags", cu!(cuStreamGetFlags(s, &raw mut flags)));
        t.same("flags", 1, flags);
        t.ok("context", cu!(cuStreamGetCtx(s, &raw mut ctx)));
        t.same("context", c, ctx);
        let (mut least, mut greatest) = (0i32, 0i32);
        need!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest));
        t.ok("with priority", cu!(cuStreamCreateWithPriority(&raw mut s, 0u32, greatest - 10)));
        t.ok("priority", cu!(cuStreamGetPriority(s, &raw mut priority)));
        t.same("clamped to the range", greatest, priority);
        t.code("unknown flags", &[INVALID_VALUE], cu!(cuStreamCreate(&raw mut s, 64u32)));
    }
    "stream.ids", "Stream Management, cuStreamGetId: unique; the legacy stream has one as well", |t| {
        context();
        let (mut a, mut b, mut c) = (0u64, 0u64, 0u64);
        t.ok("one", cu!(cuStreamGetId(stream(0), &raw mut a)));
        t.ok("another", cu!(cuStreamGetId(stream(0), &raw mut b)));
        t.ok("legacy", cu!(cuStreamGetId(0u64, &raw mut c)));
        t.differ("ids", a, b);
        t.differ("ids", a, c);
    }
    "stream.held", "Execution Control, cuLaunchHostFunc: blocks later work in the stream until it returns", |t| {
        context();
        let (s, p) = (stream(1), alloc(64));
        need!(cuMemsetD32_v2(p, 1u32, 16usize));
        need!(cuCtxSynchronize());
        let gate = Gate::close(s);
        fill(p, 2, s);
        let after = recorded(s);
        t.comes("the function is called", SOON, || gate.count() == 1);
        t.code("stream", &[NOT_READY], cu!(cuStreamQuery(s)));
        t.code("event behind it", &[NOT_READY], cu!(cuEventQuery(after)));
        t.ok("another stream goes on", cu!(cuStreamQuery(stream(1))));
        let (other, mut seen) = (stream(1), 0u32);
        need!(cuMemcpyDtoHAsync_v2(&raw mut seen, p, 4usize, other));
        need!(cuStreamSynchronize(other));
        t.same("the fill has not run", 1, seen);
        gate.open();
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("now it has", vec![2u32], download::<u32>(p, 1));
        t.same("called once", 1, gate.count());
    }
    "stream.host-order", "Execution Control, cuLaunchHostFunc: in the order of the stream", |t| {
        context();
        let s = stream(1);
        let first = Gate::close(s);
        let second = Gate::new();
        t.ok("second", cu!(cuLaunchHostFunc(s, PASS, second.data())));
        t.comes("first is called", SOON, || first.count() == 1);
        t.same("second is not", 0, second.count());
        first.open();
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("second is", 1, second.count());
        let none: Option<extern "C" fn(*mut c_void)> = None;
        t.code("no function", &[INVALID_VALUE], cu!(cuLaunchHostFunc(s, none, second.data())));
    }
    "stream.host-pageable", "API synchronization behavior: copies from pageable memory take the bytes before they return", |t| {
        context();
        let (s, p) = (stream(1), alloc(64));
        let mut bytes = [5u32; 16];
        let gate = Gate::new();
        // The gate opens by itself: a driver may wait for the stream in this call.
        let opener = std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            gate.open();
        });
        need!(cuLaunchHostFunc(s, super::support::WAIT, gate.data()));
        t.ok("copy", cu!(cuMemcpyHtoDAsync_v2(p, bytes.as_ptr(), 64usize, s)));
        bytes.fill(6);
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("what was copied", vec![5u32; 16], download::<u32>(p, 16));
        t.holds("opener", opener.join().is_ok(), "it panicked");
    }
    "stream.callback", "Stream Management, cuStreamAddCallback: gets stream, status and data", |t| {
        context();
        let s = stream(0);
        t.ok("add", cu!(cuStreamAddCallback(s, callback as extern "C" fn(u64, u32, *mut c_void), 7usize, 0u32)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("status and data", 7, STATUS.load(Ordering::SeqCst));
        t.same("stream", s, STREAM.load(Ordering::SeqCst));
        let code = cu!(cuStreamAddCallback(s, callback as extern "C" fn(u64, u32, *mut c_void), 7usize, 1u32));
        t.code("flags must be 0", &[INVALID_VALUE], code);
    }
    "stream.no-calls-inside", "Stream Management, cuStreamAddCallback; Execution Control, cuLaunchHostFunc: NOT_PERMITTED inside", |t| {
        context();
        let s = stream(0);
        let none = std::ptr::null::<c_void>();
        need!(cuLaunchHostFunc(s, calls_back as super::support::HostFn, none));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.code("cuMemAlloc inside", &[800], INNER.load(Ordering::SeqCst));
    }
    "stream.values", "Stream Memory Operations, cuStreamWaitValue32, cuStreamWriteValue32, cuStreamBatchMemOp", |t| {
        context();
        let (s, other, p) = (stream(1), stream(1), alloc(64));
        need!(cuMemsetD32_v2(p, 0u32, 16usize));
        need!(cuCtxSynchronize());
        t.ok("wait for 2 or more", cu!(cuStreamWaitValue32_v2(s, p, 2u32, 0u32)));
        let after = recorded(s);
        t.ok("write 1", cu!(cuStreamWriteValue32_v2(other, p, 1u32, 0u32)));
        need!(cuStreamSynchronize(other));
        t.code("it goes on waiting", &[NOT_READY], cu!(cuEventQuery(after)));
        t.ok("write 2", cu!(cuStreamWriteValue32_v2(other, p, 2u32, 0u32)));
        t.comes("it goes on", SOON, || done(after));
        // Type, address, value, flags: a write of 64 bits, then waits that hold already.
        let list = [
            [5u64, p + 8, 6, 0, 0, 0],
            [4, p + 8, 6, 1, 0, 0],
            [1, p + 8, 3, 2, 0, 0],
            [1, p + 12, 0, 3, 0, 0],
            [1, p, 0xffff_fff0, 0, 0, 0],
        ];
        t.ok("several", cu!(cuStreamBatchMemOp_v2(s, 5u32, list.as_ptr(), 0u32)));
        t.ok("all hold", cu!(cuStreamSynchronize(s)));
        t.same("written", vec![2u32, 0, 6, 0], download::<u32>(p, 4));
        for (what, code) in [
            ("alignment", cu!(cuStreamWaitValue32_v2(s, p + 2, 0u32, 0u32))),
            ("no allocation", cu!(cuStreamWriteValue32_v2(s, 64u64, 0u32, 0u32))),
            ("too many", cu!(cuStreamBatchMemOp_v2(s, 257u32, list.as_ptr(), 0u32))),
        ] {
            t.code(what, &[INVALID_VALUE], code);
        }
    }
    "stream.destroyed", "Stream Management, cuStreamDestroy: returns at once, the work goes on", |t| {
        context();
        let (s, p) = (stream(1), alloc(64));
        need!(cuMemsetD32_v2(p, 1u32, 16usize));
        need!(cuCtxSynchronize());
        let gate = Gate::close(s);
        fill(p, 3, s);
        t.ok("destroy", cu!(cuStreamDestroy_v2(s)));
        gate.open();
        t.ok("wait", cu!(cuCtxSynchronize()));
        t.same("filled", vec![3u32], download::<u32>(p, 1));
    }
    "default.waits-for-blocking", "Stream synchronization behavior: the legacy stream waits for blocking streams", |t| {
        context();
        let s = stream(0);
        let gate = Gate::close(s);
        let (p, e) = (alloc(64), event(2));
        need!(cuMemsetD32Async(p, 1u32, 16usize, 0u64));
        need!(cuEventRecord(e, 0u64));
        t.code("held", &[NOT_READY], cu!(cuEventQuery(e)));
        gate.open();
        t.comes("goes on", SOON, || done(e));
    }
    "default.holds-blocking", "Stream synchronization behavior: blocking streams wait for the legacy stream", |t| {
        context();
        let (blocking, free, p) = (stream(0), stream(1), alloc(64));
        let gate = Gate::close(0);
        fill(p, 1, blocking);
        let held = recorded(blocking);
        fill(p, 1, free);
        let not_held = recorded(free);
        t.comes("a non-blocking stream goes on", SOON, || done(not_held));
        t.code("a blocking one is held", &[NOT_READY], cu!(cuEventQuery(held)));
        gate.open();
        t.comes("until it is over", SOON, || done(held));
    }
    "default.ignores-non-blocking", "Stream synchronization behavior: the legacy stream does not wait for non-blocking streams", |t| {
        context();
        let gate = Gate::close(stream(1));
        let p = alloc(64);
        fill(p, 1, 0);
        let e = recorded(0);
        t.comes("goes on", SOON, || done(e));
        gate.open();
    }
    "default.names", "Stream Management, CU_STREAM_LEGACY: 0x1 is the stream that 0 is", |t| {
        context();
        let gate = Gate::close(1);
        t.code("0", &[NOT_READY], cu!(cuStreamQuery(0u64)));
        t.code("per thread", &[NOT_READY, 0], cu!(cuStreamQuery(2u64)));
        gate.open();
        t.ok("wait", cu!(cuStreamSynchronize(0u64)));
    }
    "default.per-thread", "Stream synchronization behavior: each thread has a default stream in the _ptsz functions", |t| {
        let c = context();
        let gate = Gate::new();
        need!(cuLaunchHostFunc_ptsz(0u64, super::support::WAIT, gate.data()));
        t.code("this thread's", &[NOT_READY], cu!(cuStreamQuery_ptsz(0u64)));
        t.code("by its name", &[NOT_READY], cu!(cuStreamQuery(2u64)));
        let other = std::thread::spawn(move || {
            need!(cuCtxSetCurrent(c));
            cu!(cuStreamQuery_ptsz(0u64))
        });
        t.ok("another thread's", other.join().unwrap_or(999));
        let e = recorded(0);
        t.code("the legacy stream waits for it", &[NOT_READY], cu!(cuEventQuery(e)));
        gate.open();
        t.comes("until it is over", SOON, || done(e));
    }
    "event.flags", "Event Management, cuEventCreate: interprocess only with timing disabled", |t| {
        context();
        let mut e = 0u64;
        t.ok("default", cu!(cuEventCreate(&raw mut e, 0u32)));
        t.ok("blocking sync", cu!(cuEventCreate(&raw mut e, 1u32)));
        t.code("interprocess with timing", &[INVALID_VALUE], cu!(cuEventCreate(&raw mut e, 4u32)));
        t.code("unknown flags", &[INVALID_VALUE], cu!(cuEventCreate(&raw mut e, 64u32)));
    }
    "event.new", "Event Management, cuEventQuery: success before cuEventRecord", |t| {
        context();
        let e = event(0);
        t.ok("query", cu!(cuEventQuery(e)));
        t.ok("synchronize", cu!(cuEventSynchronize(e)));
        t.ok("a stream's wait", cu!(cuStreamWaitEvent(stream(0), e, 0u32)));
    }
    "event.elapsed", "Event Management, cuEventElapsedTime: INVALID_HANDLE unrecorded or without timing, NOT_READY before its end", |t| {
        context();
        let s = stream(1);
        let (a, b, untimed) = (event(0), event(0), event(2));
        let mut ms = -1f32;
        t.code("unrecorded", &[INVALID_HANDLE], cu!(cuEventElapsedTime(&raw mut ms, a, b)));
        need!(cuEventRecord(a, s));
        need!(cuEventRecord(untimed, s));
        need!(cuStreamSynchronize(s));
        t.code("without timing", &[INVALID_HANDLE], cu!(cuEventElapsedTime(&raw mut ms, a, untimed)));
        let gate = Gate::close(s);
        need!(cuEventRecord(b, s));
        t.code("not over", &[NOT_READY], cu!(cuEventElapsedTime(&raw mut ms, a, b)));
        gate.open();
        need!(cuEventSynchronize(b));
        t.ok("over", cu!(cuEventElapsedTime(&raw mut ms, a, b)));
        t.holds("milliseconds", ms >= 0.0, ms);
    }
    "event.across", "Stream Management, cuStreamWaitEvent: a stream waits for another's work", |t| {
        context();
        let (a, b, p) = (stream(1), stream(1), alloc(64));
        let gate = Gate::close(a);
        fill(p, 4, a);
        let e = recorded(a);
        t.ok("wait", cu!(cuStreamWaitEvent(b, e, 0u32)));
        let mut seen = 0u32;
        let pinned = {
            let mut p = 0u64;
            need!(cuMemHostAlloc(&raw mut p, 64usize, 0u32));
            p
        };
        need!(cuMemcpyDtoHAsync_v2(pinned as *mut u32, p, 4usize, b));
        t.code("held", &[NOT_READY], cu!(cuStreamQuery(b)));
        gate.open();
        need!(cuStreamSynchronize(b));
        need!(cuMemcpy((&raw mut seen).addr() as u64, pinned, 4usize));
        t.same("sees the fill", 4, seen);
    }
    "event.again", "Event Management, cuEventRecord: a wait means the record before it", |t| {
        context();
        let (a, b) = (stream(1), stream(1));
        let e = recorded(a);
        need!(cuStreamWaitEvent(b, e, 0u32));
        let gate = Gate::close(a);
        need!(cuEventRecord(e, a));
        t.comes("the stream goes on", SOON, || cu!(cuStreamQuery(b)) == 0);
        t.code("the event is held", &[NOT_READY], cu!(cuEventQuery(e)));
        gate.open();
        t.ok("until it is over", cu!(cuEventSynchronize(e)));
    }
    "event.contexts", "Event Management, cuEventRecord: event and stream of one context", |t| {
        context();
        let s = stream(0);
        context();
        let e = event(0);
        t.code("another's stream", &[INVALID_HANDLE, 201], cu!(cuEventRecord(e, s)));
    }
    "context.waits-for-all", "Context Management, cuCtxSynchronize: for all streams of the context", |t| {
        context();
        let gate = Gate::close(stream(1));
        std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            gate.open();
        });
        t.ok("wait", cu!(cuCtxSynchronize()));
        t.same("the function has returned", 1, gate.count());
    }
}
