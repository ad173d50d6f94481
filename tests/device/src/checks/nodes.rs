//! Nodes of graphs: their parameters, and those that allocate memory.

use super::graphs::{Fill, Kernel, fill_node, graph, instance, kernel_params, node_type, nodes};
use super::support::{
    INVALID_VALUE, PTX, alloc, attribute, context, download, function, info, module, param, stream,
};
use crate::trial::skip;
use crate::{cu, need};

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
struct Alloc {
    alloc_type: u32,
    handles: u32,
    location: [u32; 2],
    rest: [u64; 9],
    access: u64,
    access_count: usize,
    size: usize,
    addr: u64,
}

fn alloc_params(size: usize) -> Alloc {
    Alloc {
        alloc_type: 1,
        handles: 0,
        location: [1, 0],
        rest: [0; 9],
        access: 0,
        access_count: 0,
        size,
        addr: 0,
    }
}

fn begin() -> u64 {
    let c = context();
    if attribute(115) == 0 {
        skip("the device has no memory pools");
    }
    c
}

fn alloc_node(g: u64, size: usize) -> (u64, u64) {
    let (mut n, mut p) = (0u64, alloc_params(size));
    let none = std::ptr::null::<u64>();
    need!(cuGraphAddMemAllocNode(
        &raw mut n, g, none, 0usize, &raw mut p
    ));
    (n, p.addr)
}

/// Bytes of graph memory: 0 used, 2 reserved.
fn graph_memory(which: u32) -> u64 {
    let mut v = 0u64;
    need!(cuDeviceGetGraphMemAttribute(0i32, which, &raw mut v));
    v
}

fn launched(e: u64, s: u64) -> u32 {
    match cu!(cuGraphLaunch(e, s)) {
        0 => cu!(cuStreamSynchronize(s)),
        code => code,
    }
}

super::list! {
    "node.memset", "Graph Management, cuGraphMemsetNodeGetParams and SetParams", |t| {
        let c = context();
        let (g, p) = (graph(), alloc(64));
        let n = fill_node(g, &[], c, p, 3);
        let mut seen = Fill::default();
        t.ok("get", cu!(cuGraphMemsetNodeGetParams(n, &raw mut seen)));
        t.same("value and width", (3, 4, 16), (seen.value, seen.element, seen.width));
        let new = Fill { value: 4, ..seen };
        t.ok("set", cu!(cuGraphMemsetNodeSetParams(n, &raw const new)));
        t.ok("launch", launched(instance(g), stream(0)));
        t.same("values", vec![4u32], download::<u32>(p, 1));
    }
    "node.kernel", "Graph Management, cuGraphKernelNodeGetParams: parameters are copied into the node", |t| {
        context();
        let (g, p) = (graph(), alloc(64));
        need!(cuMemsetD32_v2(p, 0u32, 16usize));
        let f = function(module(PTX), "add");
        let (n, mut v) = (16u32, 8u32);
        let mut node = 0u64;
        let none = std::ptr::null::<u64>();
        {
            let params = [param(&p), param(&n), param(&v)];
            let k = kernel_params(f, &params);
            t.ok("add", cu!(cuGraphAddKernelNode_v2(&raw mut node, g, none, 0usize, &raw const k)));
        }
        v = 1000;
        let mut seen = kernel_params(0, &[]);
        t.ok("get", cu!(cuGraphKernelNodeGetParams_v2(node, &raw mut seen)));
        t.same("function and block", (f, [32, 1, 1]), (seen.func, seen.block));
        // SAFETY: the driver returned a list of three pointers to the node's own values.
        let kept = unsafe { seen.params.add(2).read().cast::<u32>().read() };
        t.same("the value at that time", (8, 1000), (kept, v));
        t.ok("launch", launched(instance(g), stream(0)));
        t.same("values", vec![8u32; 16], download::<u32>(p, 16));
    }
    "node.exec-params", "Graph Management, cuGraphExecKernelNodeSetParams: the instance changes, the graph does not", |t| {
        context();
        let (g, p, s) = (graph(), alloc(64), stream(0));
        let f = function(module(PTX), "add");
        let n = 16u32;
        let with = |v: &u32, use_it: &dyn Fn(&Kernel) -> u32| {
            let params = [param(&p), param(&n), param(v)];
            use_it(&kernel_params(f, &params))
        };
        let mut node = 0u64;
        let none = std::ptr::null::<u64>();
        let place = &raw mut node;
        t.ok("add", with(&1, &|k| cu!(cuGraphAddKernelNode_v2(place, g, none, 0usize, std::ptr::from_ref(k)))));
        let e = instance(g);
        t.ok("set", with(&50, &|k| cu!(cuGraphExecKernelNodeSetParams_v2(e, node, std::ptr::from_ref(k)))));
        need!(cuMemsetD32_v2(p, 0u32, 16usize));
        t.ok("launch", launched(e, s));
        t.same("values", vec![50u32; 16], download::<u32>(p, 16));
        t.ok("launch the graph anew", launched(instance(g), s));
        t.same("values", vec![51u32; 16], download::<u32>(p, 16));
    }
    "node.enabled", "Graph Management, cuGraphNodeSetEnabled: a disabled node does nothing", |t| {
        let c = context();
        let (g, p, s) = (graph(), alloc(64), stream(0));
        need!(cuMemsetD32_v2(p, 1u32, 16usize));
        let n = fill_node(g, &[], c, p, 2);
        let e = instance(g);
        let mut on = 9u32;
        t.ok("get", cu!(cuGraphNodeGetEnabled(e, n, &raw mut on)));
        t.same("enabled", 1, on);
        t.ok("disable", cu!(cuGraphNodeSetEnabled(e, n, 0u32)));
        t.ok("launch", launched(e, s));
        t.same("unchanged", vec![1u32], download::<u32>(p, 1));
        t.ok("enable", cu!(cuGraphNodeSetEnabled(e, n, 1u32)));
        t.ok("launch", launched(e, s));
        t.same("changed", vec![2u32], download::<u32>(p, 1));
    }
    "node.generic", "Graph Management, cuGraphAddNode: CUgraphNodeParams of each type", |t| {
        let c = context();
        let (g, p) = (graph(), alloc(64));
        // Type, reserved, a union of 232 bytes that begins with the fill's parameters, reserved.
        let mut params = [0u64; 32];
        params[0] = 2;
        params[2] = p;
        params[4] = 7 | 4 << 32;
        params[5] = 16;
        params[6] = 1;
        params[7] = c;
        let mut n = 0u64;
        let (none, no_data) = (std::ptr::null::<u64>(), std::ptr::null::<u64>());
        t.ok("add", cu!(cuGraphAddNode_v2(&raw mut n, g, none, no_data, 0usize, params.as_mut_ptr())));
        t.same("type", 2, node_type(n));
        t.ok("launch", launched(instance(g), stream(0)));
        t.same("values", vec![7u32], download::<u32>(p, 1));
        params[0] = 9999;
        let code = cu!(cuGraphAddNode_v2(&raw mut n, g, none, no_data, 0usize, params.as_mut_ptr()));
        t.code("no such type", &[INVALID_VALUE, 801], code);
    }
    "node.memory", "Graph Management, cuGraphAddMemAllocNode: the address is known when the node is made", |t| {
        let c = begin();
        let (g, s) = (graph(), stream(0));
        let (n, p) = alloc_node(g, 4 << 20);
        t.holds("address", p != 0, p);
        let fill = fill_node(g, &[n], c, p, 12);
        let mut free = 0u64;
        t.ok("free node", cu!(cuGraphAddMemFreeNode(&raw mut free, g, &raw const fill, 1usize, p)));
        t.same("types", (10, 11), (node_type(n), node_type(free)));
        let e = instance(g);
        t.ok("launch", launched(e, s));
        t.ok("and again", launched(e, s));
        t.same("nothing is used", 0, graph_memory(0));
    }
    "node.memory-left", "Graph Management, cuGraphLaunch: memory left allocated forbids the next launch", |t| {
        let c = begin();
        let (g, s) = (graph(), stream(0));
        let (n, p) = alloc_node(g, 4 << 20);
        fill_node(g, &[n], c, p, 12);
        let e = instance(g);
        t.ok("launch", launched(e, s));
        t.same("usable after it", vec![12u32], download::<u32>(p, 1));
        t.holds("used", graph_memory(0) >= 4 << 20, graph_memory(0));
        t.code("launch again", &[INVALID_VALUE], launched(e, s));
        t.ok("free", cu!(cuMemFreeAsync(p, s)));
        t.ok("launch", launched(e, s));
        t.ok("cuMemFree frees it as well", cu!(cuMemFree_v2(p)));
    }
    "node.memory-auto", "Graph Management, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH", |t| {
        let c = begin();
        let (g, s) = (graph(), stream(0));
        let (n, p) = alloc_node(g, 4 << 20);
        fill_node(g, &[n], c, p, 12);
        let mut e = 0u64;
        t.ok("instance", cu!(cuGraphInstantiateWithFlags(&raw mut e, g, 1u64)));
        t.ok("launch", launched(e, s));
        t.ok("and again", launched(e, s));
    }
    "node.memory-trim", "Graph Management, cuDeviceGraphMemTrim: what is free goes back", |t| {
        let c = begin();
        let (g, s) = (graph(), stream(0));
        let before = info().0;
        let (n, p) = alloc_node(g, 64 << 20);
        let fill = fill_node(g, &[n], c, p, 1);
        let mut free = 0u64;
        need!(cuGraphAddMemFreeNode(&raw mut free, g, &raw const fill, 1usize, p));
        let e = instance(g);
        t.ok("launch", launched(e, s));
        t.holds("reserved", graph_memory(2) >= 64 << 20, graph_memory(2));
        t.holds("and taken", before - info().0 >= 64 << 20, before - info().0);
        t.ok("destroy", cu!(cuGraphExecDestroy(e)));
        t.ok("trim", cu!(cuDeviceGraphMemTrim(0i32)));
        t.same("reserved", 0, graph_memory(2));
        t.holds("given back", info().0 + (4 << 20) >= before, info().0);
    }
    "node.memory-rules", "Graph Management, cuGraphAddMemAllocNode: no clone, no deletion, one instance", |t| {
        begin();
        let g = graph();
        let (n, _) = alloc_node(g, 1 << 20);
        let mut other = 0u64;
        t.code("clone", &[INVALID_VALUE, 801], cu!(cuGraphClone(&raw mut other, g)));
        t.code("delete", &[INVALID_VALUE, 801], cu!(cuGraphDestroyNode(n)));
        instance(g);
        t.code("another instance", &[INVALID_VALUE, 801], cu!(cuGraphInstantiateWithFlags(&raw mut other, g, 0u64)));
        t.same("nodes", 1, nodes(g).len());
        let none = std::ptr::null::<u64>();
        let code = cu!(cuGraphAddMemFreeNode(&raw mut other, g, none, 0usize, alloc(64)));
        t.code("a free node for other memory", &[INVALID_VALUE], code);
    }
}
