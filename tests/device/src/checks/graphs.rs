//! Graphs: their shape, instances and launches.

use super::support::{
    Gate, INVALID_VALUE, NOT_READY, PASS, alloc, context, download, event, function, module, param,
    stream,
};
use crate::{cu, need};
use std::ffi::c_void;

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Fill {
    pub addr: u64,
    pub pitch: usize,
    pub value: u32,
    pub element: u32,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    pub func: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: *const *const c_void,
    pub extra: *const c_void,
    pub kern: u64,
    pub ctx: u64,
}

pub(super) fn graph() -> u64 {
    let mut g = 0u64;
    need!(cuGraphCreate(&raw mut g, 0u32));
    g
}

pub(super) fn empty(g: u64, deps: &[u64]) -> u64 {
    let mut n = 0u64;
    need!(cuGraphAddEmptyNode(
        &raw mut n,
        g,
        deps.as_ptr(),
        deps.len()
    ));
    n
}

pub(super) fn fill_node(g: u64, deps: &[u64], ctx: u64, addr: u64, value: u32) -> u64 {
    let p = Fill {
        addr,
        value,
        element: 4,
        width: 16,
        height: 1,
        ..Fill::default()
    };
    let mut n = 0u64;
    need!(cuGraphAddMemsetNode(
        &raw mut n,
        g,
        deps.as_ptr(),
        deps.len(),
        &raw const p,
        ctx
    ));
    n
}

pub(super) fn kernel_params(func: u64, params: &[*const c_void]) -> Kernel {
    Kernel {
        func,
        grid: [1; 3],
        block: [32, 1, 1],
        shared: 0,
        params: params.as_ptr(),
        extra: std::ptr::null(),
        kern: 0,
        ctx: 0,
    }
}

pub(super) fn instance(g: u64) -> u64 {
    let mut e = 0u64;
    need!(cuGraphInstantiateWithFlags(&raw mut e, g, 0u64));
    e
}

/// The nodes of a graph, as the driver counts and lists them.
pub(super) fn nodes(g: u64) -> Vec<u64> {
    let mut n = 0usize;
    need!(cuGraphGetNodes(g, std::ptr::null_mut::<u64>(), &raw mut n));
    let mut list = vec![0u64; n];
    need!(cuGraphGetNodes(g, list.as_mut_ptr(), &raw mut n));
    list
}

pub(super) fn node_type(n: u64) -> u32 {
    let mut kind = 99u32;
    need!(cuGraphNodeGetType(n, &raw mut kind));
    kind
}

fn edges(g: u64) -> usize {
    let mut n = 0usize;
    let none = std::ptr::null_mut::<u64>();
    need!(cuGraphGetEdges(g, none, none, &raw mut n));
    n
}

super::list! {
    "graph.create", "Graph Management, cuGraphCreate: flags must be 0", |t| {
        context();
        let mut g = 0u64;
        t.code("flags", &[INVALID_VALUE], cu!(cuGraphCreate(&raw mut g, 1u32)));
        t.ok("create", cu!(cuGraphCreate(&raw mut g, 0u32)));
        t.same("no nodes", 0, nodes(g).len());
        t.ok("destroy", cu!(cuGraphDestroy(g)));
    }
    "graph.shape", "Graph Management, cuGraphGetNodes, GetRootNodes, GetEdges, AddDependencies", |t| {
        context();
        let g = graph();
        let a = empty(g, &[]);
        let b = empty(g, &[a]);
        let c = empty(g, &[a]);
        let d = empty(g, &[b, c]);
        t.same("nodes", 4, nodes(g).len());
        t.same("edges", 4, edges(g));
        let (mut roots, mut n) = ([0u64; 4], 4usize);
        t.ok("roots", cu!(cuGraphGetRootNodes(g, roots.as_mut_ptr(), &raw mut n)));
        t.same("one", (1, a), (n, roots[0]));
        let (mut deps, mut n) = ([0u64; 4], 4usize);
        t.ok("before d", cu!(cuGraphNodeGetDependencies(d, deps.as_mut_ptr(), &raw mut n)));
        t.same("two", 2, n);
        t.same("the rest is cleared", [0; 2], [deps[2], deps[3]]);
        t.ok("a to d", cu!(cuGraphAddDependencies(g, &raw const a, &raw const d, 1usize)));
        t.code("again", &[INVALID_VALUE], cu!(cuGraphAddDependencies(g, &raw const a, &raw const d, 1usize)));
        t.ok("and away", cu!(cuGraphRemoveDependencies(g, &raw const a, &raw const d, 1usize)));
        t.same("edges", 4, edges(g));
        t.ok("destroy a node", cu!(cuGraphDestroyNode(b)));
        t.same("its edges go", (3, 2), (nodes(g).len(), edges(g)));
    }
    "graph.dependencies", "Graph Management, cuGraphAddEmptyNode: no duplicates, only nodes of the graph", |t| {
        context();
        let (g, other) = (graph(), graph());
        let (a, far) = (empty(g, &[]), empty(other, &[]));
        let mut n = 0u64;
        let twice = [a, a];
        t.code("twice the same", &[INVALID_VALUE], cu!(cuGraphAddEmptyNode(&raw mut n, g, twice.as_ptr(), 2usize)));
        t.code("another graph's", &[INVALID_VALUE], cu!(cuGraphAddEmptyNode(&raw mut n, g, &raw const far, 1usize)));
    }
    "graph.circle", "Graph Management, cuGraphInstantiate: a graph with a circle is INVALID_VALUE", |t| {
        context();
        let g = graph();
        let a = empty(g, &[]);
        let b = empty(g, &[a]);
        let added = cu!(cuGraphAddDependencies(g, &raw const b, &raw const a, 1usize));
        if added == 0 {
            let mut e = 0u64;
            t.code("instance", &[INVALID_VALUE], cu!(cuGraphInstantiateWithFlags(&raw mut e, g, 0u64)));
        } else {
            t.code("the edge", &[INVALID_VALUE], added);
        }
    }
    "graph.launch", "Graph Management, cuGraphLaunch: nodes in the order of the edges, again at each launch", |t| {
        let c = context();
        let (g, p, s) = (graph(), alloc(64), stream(0));
        let add = function(module(super::support::PTX), "add");
        let a = fill_node(g, &[], c, p, 10);
        let (n, v) = (16u32, 5u32);
        let params = [param(&p), param(&n), param(&v)];
        let k = kernel_params(add, &params);
        let (mut b, mut d) = (0u64, 0u64);
        t.ok("kernel", cu!(cuGraphAddKernelNode_v2(&raw mut b, g, &raw const a, 1usize, &raw const k)));
        let called = Gate::new();
        let host: (super::support::HostFn, *const c_void) = (PASS, called.data());
        let host = [host.0 as usize, host.1.addr()];
        t.ok("host", cu!(cuGraphAddHostNode(&raw mut d, g, &raw const b, 1usize, host.as_ptr())));
        let e = instance(g);
        for round in 1..=3 {
            t.ok("launch", cu!(cuGraphLaunch(e, s)));
            t.ok("wait", cu!(cuStreamSynchronize(s)));
            t.same("values", vec![15u32; 16], download::<u32>(p, 16));
            t.same("calls", round, called.count());
        }
        t.same("types", vec![2, 0, 3], [a, b, d].map(node_type).to_vec());
        t.ok("the instance outlives the graph", cu!(cuGraphDestroy(g)));
        t.ok("launch", cu!(cuGraphLaunch(e, s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("calls", 4, called.count());
        t.ok("destroy", cu!(cuGraphExecDestroy(e)));
    }
    "graph.stream-order", "Graph Management, cuGraphLaunch: ordered in its stream", |t| {
        let c = context();
        let (g, p, s) = (graph(), alloc(64), stream(1));
        need!(cuMemsetD32_v2(p, 1u32, 16usize));
        need!(cuCtxSynchronize());
        fill_node(g, &[], c, p, 9);
        let e = instance(g);
        let gate = Gate::close(s);
        t.ok("launch", cu!(cuGraphLaunch(e, s)));
        t.code("held", &[NOT_READY], cu!(cuStreamQuery(s)));
        let (other, mut seen) = (stream(1), 0u32);
        need!(cuMemcpyDtoHAsync_v2(&raw mut seen, p, 4usize, other));
        need!(cuStreamSynchronize(other));
        t.same("not run yet", 1, seen);
        gate.open();
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("run", vec![9u32], download::<u32>(p, 1));
    }
    "graph.branches", "Graph Management: a node waits for all nodes before it", |t| {
        context();
        let (g, s) = (graph(), stream(1));
        let (slow, quick, last) = (Gate::new(), Gate::new(), Gate::new());
        let host = |f: super::support::HostFn, gate: &'static Gate, deps: &[u64]| {
            let p = [f as usize, gate.data().addr()];
            let mut n = 0u64;
            need!(cuGraphAddHostNode(&raw mut n, g, deps.as_ptr(), deps.len(), p.as_ptr()));
            n
        };
        let a = host(super::support::WAIT, slow, &[]);
        let b = host(PASS, quick, &[]);
        host(PASS, last, &[a, b]);
        let e = instance(g);
        t.ok("launch", cu!(cuGraphLaunch(e, s)));
        t.comes("the slow one is called", super::support::SOON, || slow.count() == 1);
        t.same("the last waits", 0, last.count());
        slow.open();
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("all are called", (1, 1, 1), (slow.count(), quick.count(), last.count()));
    }
    "graph.clone", "Graph Management, cuGraphClone, cuGraphNodeFindInClone", |t| {
        let c = context();
        let (g, p) = (graph(), alloc(64));
        let a = fill_node(g, &[], c, p, 3);
        let b = empty(g, &[a]);
        let (mut copy, mut found) = (0u64, 0u64);
        t.ok("clone", cu!(cuGraphClone(&raw mut copy, g)));
        t.same("nodes and edges", (2, 1), (nodes(copy).len(), edges(copy)));
        t.ok("find", cu!(cuGraphNodeFindInClone(&raw mut found, b, copy)));
        t.differ("another node", b, found);
        t.same("of the same kind", node_type(b), node_type(found));
        t.ok("the clone outlives the graph", cu!(cuGraphDestroy(g)));
        let s = stream(0);
        t.ok("launch", cu!(cuGraphLaunch(instance(copy), s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("values", vec![3u32], download::<u32>(p, 1));
    }
    "graph.child", "Graph Management, cuGraphAddChildGraphNode: a copy of the graph", |t| {
        let c = context();
        let (inner, outer, p, s) = (graph(), graph(), alloc(128), stream(0));
        fill_node(inner, &[], c, p, 6);
        let (mut n, mut inside) = (0u64, 0u64);
        let none = std::ptr::null::<u64>();
        t.ok("add", cu!(cuGraphAddChildGraphNode(&raw mut n, outer, none, 0usize, inner)));
        // The copy lacks nodes that are added later.
        fill_node(inner, &[], c, p + 64, 6);
        need!(cuMemsetD32_v2(p, 0u32, 32usize));
        t.ok("its graph", cu!(cuGraphChildGraphNodeGetGraph(n, &raw mut inside)));
        t.same("one node", 1, nodes(inside).len());
        t.ok("launch", cu!(cuGraphLaunch(instance(outer), s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        let seen = download::<u32>(p, 32);
        t.same("values", (6, 0), (seen[0], seen[16]));
    }
    "graph.events", "Graph Management, cuGraphAddEventRecordNode and EventWaitNode", |t| {
        context();
        let (g, s, other) = (graph(), stream(1), stream(1));
        let (start, end) = (event(2), event(2));
        let gate = Gate::close(other);
        need!(cuEventRecord(start, other));
        let (mut a, mut b) = (0u64, 0u64);
        let none = std::ptr::null::<u64>();
        t.ok("wait node", cu!(cuGraphAddEventWaitNode(&raw mut a, g, none, 0usize, start)));
        t.ok("record node", cu!(cuGraphAddEventRecordNode(&raw mut b, g, &raw const a, 1usize, end)));
        t.same("types", (6, 7), (node_type(a), node_type(b)));
        let mut seen = 0u64;
        t.ok("event", cu!(cuGraphEventRecordNodeGetEvent(b, &raw mut seen)));
        t.same("event", end, seen);
        t.ok("launch", cu!(cuGraphLaunch(instance(g), s)));
        t.code("held", &[NOT_READY], cu!(cuEventQuery(end)));
        gate.open();
        t.ok("wait", cu!(cuEventSynchronize(end)));
    }
    "graph.update", "Graph Management, cuGraphExecUpdate: same shape or GRAPH_EXEC_UPDATE_FAILURE", |t| {
        let c = context();
        let (p, s) = (alloc(64), stream(0));
        let make = |value: u32, more: bool| {
            let g = graph();
            let n = fill_node(g, &[], c, p, value);
            if more {
                empty(g, &[n]);
            }
            g
        };
        let e = instance(make(1, false));
        // Result, error node, and the node from which the error's edge comes.
        let mut info = [9u64; 3];
        t.ok("same shape", cu!(cuGraphExecUpdate_v2(e, make(2, false), info.as_mut_ptr())));
        t.same("result", 0, info[0] as u32);
        t.ok("launch", cu!(cuGraphLaunch(e, s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        t.same("the new value", vec![2u32], download::<u32>(p, 1));
        t.code("another node", &[910], cu!(cuGraphExecUpdate_v2(e, make(3, true), info.as_mut_ptr())));
        t.same("topology changed", 2, info[0] as u32);
        let g = graph();
        empty(g, &[]);
        t.code("another type", &[910], cu!(cuGraphExecUpdate_v2(e, g, info.as_mut_ptr())));
        t.same("node type changed", 3, info[0] as u32);
    }
    "graph.upload", "Graph Management, cuGraphUpload", |t| {
        let c = context();
        let (g, s) = (graph(), stream(0));
        fill_node(g, &[], c, alloc(64), 1);
        let e = instance(g);
        t.ok("upload", cu!(cuGraphUpload(e, s)));
        t.ok("launch", cu!(cuGraphLaunch(e, s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
    }
    "graph.with-params", "Graph Management, cuGraphInstantiateWithParams, cuGraphExecGetFlags", |t| {
        let c = context();
        let g = graph();
        fill_node(g, &[], c, alloc(64), 1);
        // Flags (use node priority), upload stream, error node, result.
        let mut params = [8u64, 0, 9, 9];
        let (mut e, mut flags) = (0u64, 0u64);
        t.ok("instance", cu!(cuGraphInstantiateWithParams(&raw mut e, g, params.as_mut_ptr())));
        t.same("result", 0, params[3] as u32);
        t.ok("flags", cu!(cuGraphExecGetFlags(e, &raw mut flags)));
        t.same("flags", 8, flags);
        t.code("unknown flags", &[INVALID_VALUE], cu!(cuGraphInstantiateWithFlags(&raw mut e, g, 1u64 << 40)));
    }
}
