//! Adding nodes and changing their parameters.

use super::params::{AllocParams, HostParams, KernelParams, KernelParams2, NodeParams, host_op};
use crate::code::{INVALID_VALUE, R};
use crate::copy::{Copy3D, Fill};
use crate::driver::Driver;
use crate::ffi::{In, Out, export};
use crate::graph::Edge;
use crate::op::Op;

/// Where a new node goes, and where to write its handle.
struct Place {
    out: Out<u64>,
    graph: u64,
    deps: In<u64>,
    count: usize,
}

impl Place {
    fn add(&self, d: &Driver, op: R<Op>) -> R {
        self.out.check()?;
        d.tables().graph(self.graph)?;
        let deps = self.deps.list(self.count)?;
        let op = op?;
        let node = d.tables().add_node(self.graph, &deps, op)?;
        self.out.set(node)
    }
}

fn plain(p: KernelParams) -> KernelParams2 {
    KernelParams2 {
        first: p,
        kern: 0,
        ctx: 0,
    }
}

/// Returns a value from a node's operation.
fn ask<T>(d: &Driver, node: u64, out: Out<T>, f: impl FnOnce(&Op) -> Option<T>) -> R {
    out.check()?;
    let t = d.tables();
    out.set(f(&t.node(node)?.op).ok_or(INVALID_VALUE)?)
}

/// Replaces a node's operation by another of the same kind.
fn replace(d: &Driver, node: u64, op: R<Op>) -> R {
    let kind = d.tables().node(node)?.op.node_type();
    let op = op?;
    if op.node_type() != kind {
        return Err(INVALID_VALUE);
    }
    let mut t = d.tables();
    t.node_mut(node)?.op = op;
    Ok(())
}

fn kernel_of(op: &Op) -> Option<KernelParams2> {
    match op {
        Op::Kernel(k) => Some(k.node_params()),
        _ => None,
    }
}

export! {
    cuGraphAddKernelNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, p: In<KernelParams>,
    ) |d| {
        let op = p.get().and_then(|p| d.kernel_op(&plain(p)));
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddKernelNode_v2(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, p: In<KernelParams2>,
    ) |d| {
        let op = p.get().and_then(|p| d.kernel_op(&p));
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddMemcpyNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, c: In<Copy3D>, ctx: u64,
    ) |d| {
        d.tables().context(ctx)?;
        let op = c.get().and_then(|c| d.copy_op(c));
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddMemsetNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, f: In<Fill>, ctx: u64,
    ) |d| {
        d.tables().context(ctx)?;
        let op = f.get().and_then(|f| d.fill_op(f));
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddHostNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, p: In<HostParams>,
    ) |d| {
        let op = p.get().and_then(|p| host_op(&p));
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddChildGraphNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, child: u64,
    ) |d| {
        let op = d.child_op(child);
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddEmptyNode(out: Out<u64>, graph: u64, deps: In<u64>, count: usize) |d| {
        Place { out, graph, deps, count }.add(d, Ok(Op::Empty))
    };
    cuGraphAddEventRecordNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, event: u64,
    ) |d| {
        let op = d.event_op(event, true);
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddEventWaitNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, event: u64,
    ) |d| {
        let op = d.event_op(event, false);
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddMemAllocNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, p: Out<AllocParams>,
    ) |d| {
        p.check()?;
        let given = In::<AllocParams>::from_addr(p.addr()).get()?;
        let op = d.alloc_op(&given)?;
        let addr = match &op {
            Op::Alloc(va) => va.addr,
            _ => 0,
        };
        Place { out, graph, deps, count }.add(d, Ok(op))?;
        p.set(given.at(addr))
    };
    cuGraphAddMemFreeNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, addr: u64,
    ) |d| {
        let op = d.free_op(addr);
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddNode(
        out: Out<u64>, graph: u64, deps: In<u64>, count: usize, p: Out<NodeParams>,
    ) |d| {
        let op = d.any_op(p);
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphAddNode_v2(
        out: Out<u64>, graph: u64, deps: In<u64>, _edges: In<Edge>, count: usize,
        p: Out<NodeParams>,
    ) |d| {
        let op = d.any_op(p);
        Place { out, graph, deps, count }.add(d, op)
    };
    cuGraphNodeSetParams(node: u64, p: Out<NodeParams>) |d| replace(d, node, d.any_op(p));
    cuGraphKernelNodeGetParams(node: u64, out: Out<KernelParams>) |d| {
        ask(d, node, out, |op| kernel_of(op).map(|k| k.first))
    };
    cuGraphKernelNodeGetParams_v2(node: u64, out: Out<KernelParams2>) |d| {
        ask(d, node, out, kernel_of)
    };
    cuGraphMemsetNodeGetParams(node: u64, out: Out<Fill>) |d| {
        ask(d, node, out, |op| if let Op::Fill(f) = op { Some(*f) } else { None })
    };
    cuGraphMemsetNodeSetParams(node: u64, f: In<Fill>) |d| {
        replace(d, node, f.get().and_then(|f| d.fill_op(f)))
    };
    cuGraphChildGraphNodeGetGraph(node: u64, out: Out<u64>) |d| {
        ask(d, node, out, |op| if let Op::Child(g) = op { Some(*g) } else { None })
    };
    cuGraphEventRecordNodeGetEvent(node: u64, out: Out<u64>) |d| {
        ask(d, node, out, |op| if let Op::Record(e) = op { Some(*e) } else { None })
    };
    cuGraphMemAllocNodeGetParams(node: u64, out: Out<AllocParams>) |d| {
        ask(d, node, out, |op| if let Op::Alloc(va) = op { Some(va.node_params()) } else { None })
    };
}
