//! Stream capture.

use super::graphs::{instance, node_type, nodes};
use super::support::{
    Gate, INVALID_VALUE, PASS, alloc, attribute, context, download, event, kernel, launch, param,
    stream,
};
use crate::trial::{Trial, skip};
use crate::{cu, need};

const ILLEGAL_STATE: u32 = 401;
const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const MERGE: u32 = 902;
const UNMATCHED: u32 = 903;
const UNJOINED: u32 = 904;
const ISOLATION: u32 = 905;
const IMPLICIT: u32 = 906;
const CAPTURED_EVENT: u32 = 907;
const WRONG_THREAD: u32 = 908;

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

fn begin(s: u64, mode: u32) {
    need!(cuStreamBeginCapture_v2(s, mode));
}

fn end(s: u64) -> (u32, u64) {
    let mut g = 7u64;
    (cu!(cuStreamEndCapture(s, &raw mut g)), g)
}

/// 0 for none, 1 for active, 2 for invalidated.
fn status(s: u64) -> u32 {
    let mut v = 9u32;
    need!(cuStreamIsCapturing(s, &raw mut v));
    v
}

fn fill(p: u64, value: u32, s: u64) -> u32 {
    cu!(cuMemsetD32Async(p, value, 16usize, s))
}

/// Checks that the capture is invalid and ends as such.
fn spoilt(t: &mut Trial, s: u64) {
    t.same("invalidated", 2, status(s));
    t.code(
        "further work",
        &[INVALIDATED],
        cu!(cuLaunchHostFunc(s, PASS, Gate::new().data())),
    );
    t.same("its end: the error and no graph", (INVALIDATED, 0), end(s));
    t.same("and the stream works again", 0, status(s));
}

super::list! {
    "capture.line", "Stream Management, cuStreamBeginCapture: work becomes nodes and is not done", |t| {
        context();
        let (s, p) = (stream(0), alloc(64));
        need!(cuMemsetD32_v2(p, 1u32, 16usize));
        let f = kernel("add");
        need!(cuCtxSynchronize());
        t.same("before", 0, status(s));
        begin(s, GLOBAL);
        t.same("active", 1, status(s));
        t.ok("fill", fill(p, 10, s));
        let (n, v) = (16u32, 4u32);
        t.ok("kernel", launch(f, 1, 32, s, &[param(&p), param(&n), param(&v)]));
        let called = Gate::new();
        t.ok("host function", cu!(cuLaunchHostFunc(s, PASS, called.data())));
        let (code, g) = end(s);
        t.ok("end", code);
        t.same("after", 0, status(s));
        t.same("nothing was done", (vec![1u32], 0), (download::<u32>(p, 1), called.count()));
        let mut kinds: Vec<u32> = nodes(g).into_iter().map(node_type).collect();
        kinds.sort_unstable();
        t.same("types", vec![0, 2, 3], kinds);
        t.ok("launch", cu!(cuGraphLaunch(instance(g), s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("done in order", (vec![14u32; 16], 1), (download::<u32>(p, 16), called.count()));
    }
    "capture.empty", "Stream Management, cuStreamEndCapture: a graph without nodes", |t| {
        context();
        let s = stream(1);
        begin(s, GLOBAL);
        let (code, g) = end(s);
        t.ok("end", code);
        t.same("nodes", 0, nodes(g).len());
    }
    "capture.info", "Stream Management, cuStreamGetCaptureInfo: status, id, graph, and the nodes before the next", |t| {
        context();
        let (s, p) = (stream(1), alloc(64));
        let (mut state, mut id, mut g) = (9u32, 0u64, 0u64);
        let (mut deps, mut count): (*const u64, usize) = (std::ptr::null(), 9);
        let ask = |state: *mut u32, id: *mut u64, g: *mut u64, deps: *mut *const u64, n: *mut usize| {
            cu!(cuStreamGetCaptureInfo_v2(s, state, id, g, deps, n))
        };
        t.ok("outside", ask(&raw mut state, &raw mut id, &raw mut g, &raw mut deps, &raw mut count));
        t.same("status", 0, state);
        begin(s, THREAD_LOCAL);
        need!(cuMemsetD32Async(p, 1u32, 16usize, s));
        t.ok("inside", ask(&raw mut state, &raw mut id, &raw mut g, &raw mut deps, &raw mut count));
        t.same("status and number of nodes", (1, 1), (state, count));
        // SAFETY: the driver returned a list of `count` nodes, valid until the stream's next call.
        let node = unsafe { deps.read() };
        t.same("the node", (2, vec![node]), (node_type(node), nodes(g)));
        let first = id;
        t.same("end", (0, g), end(s));
        begin(s, THREAD_LOCAL);
        t.ok("another", ask(&raw mut state, &raw mut id, &raw mut g, &raw mut deps, &raw mut count));
        t.differ("ids", first, id);
    }
    "capture.fork", "CUDA C++ guide, cross-stream dependencies and events: fork and join by events", |t| {
        context();
        let (a, b, p) = (stream(1), stream(1), alloc(128));
        let (fork, join) = (event(2), event(2));
        begin(a, GLOBAL);
        t.ok("fill", fill(p, 1, a));
        t.ok("record", cu!(cuEventRecord(fork, a)));
        t.ok("wait draws the stream in", cu!(cuStreamWaitEvent(b, fork, 0u32)));
        t.same("it captures", 1, status(b));
        t.ok("fill there", fill(p + 64, 2, b));
        t.ok("record", cu!(cuEventRecord(join, b)));
        t.ok("fill here", fill(p, 3, a));
        t.ok("join", cu!(cuStreamWaitEvent(a, join, 0u32)));
        t.ok("fill after both", fill(p + 64, 4, a));
        let (code, g) = end(a);
        t.ok("end", code);
        t.same("the other works again", 0, status(b));
        let mut edges = 0usize;
        let none = std::ptr::null_mut::<u64>();
        t.ok("edges", cu!(cuGraphGetEdges(g, none, none, &raw mut edges)));
        t.same("nodes and edges", (4, 4), (nodes(g).len(), edges));
        t.ok("launch", cu!(cuGraphLaunch(instance(g), a)));
        t.ok("wait", cu!(cuStreamSynchronize(a)));
        t.same("values", (vec![3u32], vec![4u32]), (download(p, 1), download(p + 64, 1)));
    }
    "capture.branch-gone", "observed (cuda.core relies on it): a joined branch's stream may be destroyed", |t| {
        context();
        let (a, b, p) = (stream(1), stream(1), alloc(64));
        let (fork, join) = (event(2), event(2));
        begin(a, RELAXED);
        need!(cuEventRecord(fork, a));
        need!(cuStreamWaitEvent(b, fork, 0u32));
        need!(cuMemsetD32Async(p, 2u32, 16usize, b));
        need!(cuEventRecord(join, b));
        need!(cuStreamWaitEvent(a, join, 0u32));
        t.ok("destroy", cu!(cuStreamDestroy_v2(b)));
        t.same("still active", 1, status(a));
        let (code, g) = end(a);
        t.ok("end", code);
        t.same("nodes", 1, nodes(g).len());
    }
    "capture.unjoined", "Stream Management: STREAM_CAPTURE_UNJOINED", |t| {
        context();
        let (a, b, p, e) = (stream(1), stream(1), alloc(64), event(2));
        begin(a, GLOBAL);
        need!(cuEventRecord(e, a));
        need!(cuStreamWaitEvent(b, e, 0u32));
        need!(cuMemsetD32Async(p, 2u32, 16usize, b));
        t.code("end", &[UNJOINED], end(a).0);
        t.same("no stream captures", (0, 0), (status(a), status(b)));
    }
    "capture.unmatched", "Stream Management, cuStreamEndCapture: STREAM_CAPTURE_UNMATCHED in another stream", |t| {
        context();
        let (a, b, e) = (stream(1), stream(1), event(2));
        begin(a, GLOBAL);
        need!(cuEventRecord(e, a));
        need!(cuStreamWaitEvent(b, e, 0u32));
        t.code("end there", &[UNMATCHED], end(b).0);
    }
    "capture.thread", "Stream Management, cuStreamEndCapture: STREAM_CAPTURE_WRONG_THREAD unless relaxed", |t| {
        let c = context();
        let s = stream(1);
        let elsewhere = move || {
            let ended = std::thread::spawn(move || {
                need!(cuCtxSetCurrent(c));
                end(s).0
            });
            ended.join().unwrap_or(999)
        };
        begin(s, RELAXED);
        t.ok("relaxed", elsewhere());
        begin(s, GLOBAL);
        t.code("global", &[WRONG_THREAD], elsewhere());
    }
    "capture.begin-refused", "Stream Management, cuStreamBeginCapture: not the legacy stream, not twice", |t| {
        context();
        let s = stream(1);
        t.code("legacy", &[UNSUPPORTED], cu!(cuStreamBeginCapture_v2(0u64, GLOBAL)));
        t.code("no such mode", &[INVALID_VALUE], cu!(cuStreamBeginCapture_v2(s, 9u32)));
        begin(s, GLOBAL);
        t.code("twice", &[ILLEGAL_STATE, INVALID_VALUE], cu!(cuStreamBeginCapture_v2(s, GLOBAL)));
        t.ok("end", end(s).0);
        t.code("an end without a beginning", &[ILLEGAL_STATE, INVALID_VALUE], end(s).0);
    }
    "capture.per-thread", "Stream Management, cuStreamBeginCapture: the per-thread default stream can be captured", |t| {
        context();
        t.ok("begin", cu!(cuStreamBeginCapture_v2(2u64, THREAD_LOCAL)));
        t.same("by its other name", 1, {
            let mut v = 9u32;
            need!(cuStreamIsCapturing_ptsz(0u64, &raw mut v));
            v
        });
        t.ok("end", end(2).0);
    }
    "capture.query", "CUDA C++ guide, prohibited operations: no query or wait of a capturing stream", |t| {
        context();
        let s = stream(1);
        begin(s, RELAXED);
        t.code("query", &[UNSUPPORTED], cu!(cuStreamQuery(s)));
        spoilt(t, s);
        begin(s, RELAXED);
        t.code("wait", &[UNSUPPORTED], cu!(cuStreamSynchronize(s)));
        spoilt(t, s);
    }
    "capture.event", "CUDA C++ guide, prohibited operations: CAPTURED_EVENT for an event recorded in a capture", |t| {
        context();
        let (s, e) = (stream(1), event(2));
        begin(s, RELAXED);
        need!(cuEventRecord(e, s));
        t.code("query", &[CAPTURED_EVENT], cu!(cuEventQuery(e)));
        end(s);
        begin(s, RELAXED);
        need!(cuEventRecord(e, s));
        t.code("wait", &[CAPTURED_EVENT], cu!(cuEventSynchronize(e)));
    }
    "capture.legacy", "Stream Management, cuStreamIsCapturing: STREAM_CAPTURE_IMPLICIT for the legacy stream, not invalidating", |t| {
        context();
        let (s, p, mut v) = (stream(0), alloc(64), 0u32);
        begin(s, RELAXED);
        t.code("asking the legacy stream", &[IMPLICIT], cu!(cuStreamIsCapturing(0u64, &raw mut v)));
        t.same("still active", 1, status(s));
        t.code("work there", &[IMPLICIT], fill(p, 1, 0));
        spoilt(t, s);
    }
    "capture.legacy-free", "CUDA C++ guide: the legacy stream is free while a non-blocking stream captures", |t| {
        context();
        let (s, p, mut v) = (stream(1), alloc(64), 9u32);
        begin(s, RELAXED);
        t.ok("asking", cu!(cuStreamIsCapturing(0u64, &raw mut v)));
        t.ok("work", fill(p, 1, 0));
        t.ok("end", end(s).0);
    }
    "capture.modes", "Stream Management, cuThreadExchangeStreamCaptureMode: unsafe calls by the modes", |t| {
        let c = context();
        let s = stream(1);
        let mut p = 0u64;
        begin(s, RELAXED);
        t.ok("relaxed: cuMemAlloc", cu!(cuMemAlloc_v2(&raw mut p, 64usize)));
        t.ok("end", end(s).0);
        begin(s, THREAD_LOCAL);
        let other = std::thread::spawn(move || {
            need!(cuCtxSetCurrent(c));
            let mut p = 0u64;
            cu!(cuMemAlloc_v2(&raw mut p, 64usize))
        });
        t.ok("thread-local: another thread", other.join().unwrap_or(999));
        t.code("thread-local: this thread", &[UNSUPPORTED], cu!(cuMemAlloc_v2(&raw mut p, 64usize)));
        spoilt(t, s);
        begin(s, GLOBAL);
        let other = std::thread::spawn(move || {
            need!(cuCtxSetCurrent(c));
            let mut p = 0u64;
            let mut mode = RELAXED;
            need!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
            let relaxed = cu!(cuMemAlloc_v2(&raw mut p, 64usize));
            need!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
            (relaxed, cu!(cuMemAlloc_v2(&raw mut p, 64usize)))
        });
        t.same("global: another thread, relaxed and not", (0, UNSUPPORTED), other.join().unwrap_or((9, 9)));
        spoilt(t, s);
    }
    "capture.exchange", "Stream Management, cuThreadExchangeStreamCaptureMode: gives the old mode", |t| {
        context();
        let mut mode = RELAXED;
        t.ok("first", cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode)));
        t.same("global at first", GLOBAL, mode);
        t.ok("second", cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode)));
        t.same("what was set", RELAXED, mode);
        mode = 9;
        t.code("no such mode", &[INVALID_VALUE], cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode)));
    }
    "capture.isolation", "Stream Management: STREAM_CAPTURE_ISOLATION, a wait for an event from outside", |t| {
        context();
        let (s, other, e) = (stream(1), stream(1), event(2));
        need!(cuEventRecord(e, other));
        begin(s, RELAXED);
        t.code("wait", &[ISOLATION], cu!(cuStreamWaitEvent(s, e, 0u32)));
        spoilt(t, s);
    }
    "capture.merge", "Stream Management: STREAM_CAPTURE_MERGE, two captures cannot meet", |t| {
        context();
        let (a, b, e) = (stream(1), stream(1), event(2));
        begin(a, RELAXED);
        begin(b, RELAXED);
        need!(cuEventRecord(e, a));
        t.code("wait", &[MERGE], cu!(cuStreamWaitEvent(b, e, 0u32)));
    }
    "capture.callback", "Stream Management, cuStreamAddCallback: not supported in a capture", |t| {
        extern "C" fn nothing(_s: u64, _status: u32, _data: *mut std::ffi::c_void) {}
        context();
        let s = stream(1);
        begin(s, RELAXED);
        let f: extern "C" fn(u64, u32, *mut std::ffi::c_void) = nothing;
        t.code("add", &[UNSUPPORTED], cu!(cuStreamAddCallback(s, f, 0usize, 0u32)));
        spoilt(t, s);
    }
    "capture.memory", "Stream Ordered Memory Allocator, cuMemAllocAsync: a node in a capture", |t| {
        context();
        if attribute(115) == 0 {
            skip("the device has no memory pools");
        }
        let s = stream(1);
        begin(s, RELAXED);
        let mut p = 0u64;
        t.ok("alloc", cu!(cuMemAllocAsync(&raw mut p, 1usize << 20, s)));
        t.ok("fill", fill(p, 1, s));
        t.ok("free", cu!(cuMemFreeAsync(p, s)));
        let (code, g) = end(s);
        t.ok("end", code);
        let kinds: Vec<u32> = nodes(g).into_iter().map(node_type).collect();
        t.holds("types", kinds.contains(&10) && kinds.contains(&11), format!("{kinds:?}"));
        t.ok("launch", cu!(cuGraphLaunch(instance(g), s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
    }
    "capture.into-graph", "Stream Management, cuStreamBeginCaptureToGraph: nodes are added to the program's graph", |t| {
        context();
        let (s, p) = (stream(1), alloc(64));
        let g = super::graphs::graph();
        let first = super::graphs::empty(g, &[]);
        let no_data = std::ptr::null::<u64>();
        let code = cu!(cuStreamBeginCaptureToGraph(s, g, &raw const first, no_data, 1usize, RELAXED));
        t.ok("begin", code);
        t.ok("fill", fill(p, 5, s));
        t.same("end", (0, g), end(s));
        t.same("nodes", 2, nodes(g).len());
        let mut deps = 0usize;
        let none = std::ptr::null_mut::<u64>();
        let fill_node = nodes(g).into_iter().find(|n| *n != first).unwrap_or(0);
        t.ok("before the new one", cu!(cuGraphNodeGetDependencies(fill_node, none, &raw mut deps)));
        t.same("the given one", 1, deps);
    }
    "capture.launch", "Graph Management, cuGraphLaunch: a child graph in a capture", |t| {
        let c = context();
        let (s, p) = (stream(1), alloc(64));
        let inner = super::graphs::graph();
        super::graphs::fill_node(inner, &[], c, p, 8);
        let e = instance(inner);
        begin(s, RELAXED);
        t.ok("launch into it", cu!(cuGraphLaunch(e, s)));
        let (code, g) = end(s);
        t.ok("end", code);
        t.same("type: graph", vec![4], nodes(g).into_iter().map(node_type).collect::<Vec<u32>>());
        t.ok("launch", cu!(cuGraphLaunch(instance(g), s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("values", vec![8u32], download::<u32>(p, 1));
    }
}
