//! Instances of graphs: creation, updates and launches.

use std::sync::Arc;

use super::memory::GraphVa;
use super::params::{KernelParams, KernelParams2, NodeParams};
use crate::code::{GRAPH_EXEC_UPDATE_FAILURE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{In, Out, export, export_stream};
use crate::op::{Op, Place};

const AUTO_FREE: u64 = 1;
const DEVICE_LAUNCH: u64 = 4;
const FLAGS: u64 = 15;

#[derive(Debug)]
pub(crate) struct GraphExec {
    flags: u64,
    source: u64,
    nodes: Arc<Vec<ExecNode>>,
    has_memory: bool,
    /// Number of kernels, and the context of the first.
    kernels: (u64, u64),
    /// The work of its last launch.
    last: u64,
}

#[derive(Debug, Clone)]
struct ExecNode {
    /// The node of the graph that it was made from.
    node: u64,
    op: ExecOp,
    /// Indices of the nodes before it.
    before: Vec<usize>,
    is_enabled: bool,
}

#[derive(Debug, Clone)]
enum ExecOp {
    Plain(Box<Op>),
    Child(Arc<Vec<ExecNode>>),
}

impl ExecOp {
    fn node_type(&self) -> u32 {
        match self {
            ExecOp::Plain(op) => op.node_type(),
            ExecOp::Child(_) => 4,
        }
    }
}

/// Calls `f` for all operations, including those of graphs inside nodes.
fn each(nodes: &[ExecNode], f: &mut dyn FnMut(&Op)) {
    for n in nodes {
        match &n.op {
            ExecOp::Plain(op) => f(op),
            ExecOp::Child(inner) => each(inner, f),
        }
    }
}

impl Tables {
    fn exec_nodes(&self, graph: u64) -> R<Vec<ExecNode>> {
        let g = self.graph(graph)?;
        let sorted = g.sorted().ok_or(INVALID_VALUE)?;
        let index = |n: u64| sorted.iter().position(|s| *s == n);
        let mut list = Vec::with_capacity(sorted.len());
        for &node in &sorted {
            let op = match &self.node(node)?.op {
                Op::Child(inner) => ExecOp::Child(Arc::new(self.exec_nodes(*inner)?)),
                op => ExecOp::Plain(Box::new(op.clone())),
            };
            let mut before: Vec<usize> = g.before(node).filter_map(index).collect();
            before.sort_unstable();
            list.push(ExecNode {
                node,
                op,
                before,
                is_enabled: true,
            });
        }
        Ok(list)
    }

    /// A graph of an instance's operations, for a node in another graph.
    fn graph_of(&mut self, nodes: &[ExecNode]) -> R<u64> {
        let graph = self.new_graph();
        let mut made = Vec::new();
        for n in nodes {
            let op = match &n.op {
                ExecOp::Plain(op) => (**op).clone(),
                ExecOp::Child(inner) => Op::Child(self.graph_of(inner)?),
            };
            let deps: Vec<u64> = n.before.iter().map(|i| made[*i]).collect();
            made.push(self.add_node(graph, &deps, op)?);
        }
        self.graph_mut(graph)?.is_child = true;
        Ok(graph)
    }

    fn exec(&mut self, exec: u64) -> R<&mut GraphExec> {
        self.graphs.execs.get_mut(&exec).ok_or(INVALID_VALUE)
    }
}

/// Why an update was refused: `CUgraphExecUpdateResult`, and the node.
type Mismatch = (u32, u64);

fn compare(old: &[ExecNode], new: &[ExecNode]) -> Result<(), Mismatch> {
    if old.len() != new.len() {
        return Err((2, 0));
    }
    for (a, b) in old.iter().zip(new) {
        if a.op.node_type() != b.op.node_type() {
            return Err((3, b.node));
        }
        if a.before != b.before {
            return Err((2, b.node));
        }
        let (x, y) = match (&a.op, &b.op) {
            (ExecOp::Child(x), ExecOp::Child(y)) => {
                compare(x, y)?;
                continue;
            }
            (ExecOp::Plain(x), ExecOp::Plain(y)) => (&**x, &**y),
            _ => continue,
        };
        match (x, y) {
            (Op::Kernel(x), Op::Kernel(y)) if x.context != y.context => return Err((4, b.node)),
            (Op::Copy(x, _), Op::Copy(y, _))
                if (x.src_type, x.dst_type) != (y.src_type, y.dst_type) =>
            {
                return Err((5, b.node));
            }
            (Op::Alloc(x), Op::Alloc(y)) if x.addr != y.addr => return Err((6, b.node)),
            _ => {}
        }
    }
    Ok(())
}

/// Replaces an instance's operations by a graph's; its nodes keep their handles.
fn take_ops(old: &[ExecNode], new: &[ExecNode]) -> Vec<ExecNode> {
    let both = old.iter().zip(new);
    both.map(|(a, b)| ExecNode {
        op: match (&a.op, &b.op) {
            (ExecOp::Child(x), ExecOp::Child(y)) => ExecOp::Child(Arc::new(take_ops(x, y))),
            (_, op) => op.clone(),
        },
        ..a.clone()
    })
    .collect()
}

impl Driver {
    fn instantiate(&self, out: Out<u64>, graph: u64, flags: u64) -> R {
        out.check()?;
        let mut t = self.tables();
        t.graph(graph)?;
        if flags & !FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        if flags & DEVICE_LAUNCH != 0 {
            return Err(NOT_SUPPORTED);
        }
        let nodes = Arc::new(t.exec_nodes(graph)?);
        let has_memory = t.has_memory(graph);
        let mut kernels = (0, 0);
        each(&nodes, &mut |op| {
            if let Op::Kernel(k) = op {
                let context = if kernels.0 == 0 { k.context } else { kernels.1 };
                kernels = (kernels.0 + 1, context);
            }
        });
        if kernels.0 > 0 {
            self.hide(&mut t, kernels.1, |hidden| {
                hidden.graph_kernels += kernels.0;
            })?;
        }
        let handle = t.handle();
        let g = t.graph_mut(graph)?;
        if has_memory && g.instances > 0 {
            return Err(NOT_SUPPORTED);
        }
        g.instances += 1;
        let exec = GraphExec {
            flags,
            source: graph,
            nodes,
            has_memory,
            kernels,
            last: 0,
        };
        t.graphs.execs.insert(handle, exec);
        out.set(handle)
    }

    fn launch_graph(&self, exec: u64, stream: u64) -> R {
        let s = self.op_stream(stream)?;
        let nodes = Arc::clone(&self.tables().exec(exec)?.nodes);
        let is_capturing = self.tables().stream(s)?.capture.is_some();
        if is_capturing {
            if self.tables().exec(exec)?.has_memory {
                return Err(NOT_SUPPORTED);
            }
            let inner = self.tables().graph_of(&nodes)?;
            return self.captured(s, &Op::Child(inner)).map(drop);
        }
        let context = self.tables().stream(s)?.context;
        let mut grown = Ok(());
        each(&nodes, &mut |op| {
            if let (Op::Kernel(kernel), Ok(())) = (op, grown) {
                grown = self.grow_stack(kernel);
            }
        });
        grown?;
        self.take_memory(exec, &nodes, context)?;
        let start = {
            let mut t = self.tables();
            let last = t.exec(exec)?.last;
            let mut start = t.before(s)?;
            start.push(last);
            t.unfinished(start)
        };
        let ends = self.run_nodes(&nodes, context, &start)?;
        let end = self.join(&Place::After {
            context,
            deps: &ends,
        })?;
        let mut t = self.tables();
        if end != 0
            && let Some(s) = t.streams.get_mut(&s)
        {
            s.last = end;
        }
        if let Some(e) = t.graphs.execs.get_mut(&exec) {
            e.last = end;
        }
        Ok(())
    }

    /// Takes the memory for a launch's allocations.
    fn take_memory(&self, exec: u64, nodes: &[ExecNode], context: u64) -> R {
        let mut t = self.tables();
        let e = t.exec(exec)?;
        if !e.has_memory {
            return Ok(());
        }
        let (auto_free, last) = (e.flags & AUTO_FREE != 0, e.last);
        let mut allocs: Vec<Arc<GraphVa>> = Vec::new();
        let mut freed = Vec::new();
        each(nodes, &mut |op| match op {
            Op::Alloc(va) => allocs.push(Arc::clone(va)),
            Op::Free(addr) => freed.push(*addr),
            _ => {}
        });
        for va in &allocs {
            if !t.memory.allocs.contains_key(&va.addr) {
                continue;
            }
            if auto_free {
                self.graph_free(&mut t, va.addr, va.device);
            } else if !(freed.contains(&va.addr) && t.is_unfinished(last)) {
                // The last launch's allocations have not been freed.
                return Err(INVALID_VALUE);
            }
        }
        let mut taken: Vec<&Arc<GraphVa>> = Vec::new();
        for va in &allocs {
            if t.memory.allocs.contains_key(&va.addr) {
                continue;
            }
            if let Err(code) = self.graph_alloc(&mut t, va, context) {
                for va in taken {
                    self.graph_free(&mut t, va.addr, va.device);
                }
                return Err(code);
            }
            taken.push(va);
        }
        Ok(())
    }

    /// Runs the operations of a graph after the work in `start`; returns the work at its ends.
    fn run_nodes(&self, nodes: &[ExecNode], context: u64, start: &[u64]) -> R<Vec<u64>> {
        let mut work: Vec<Vec<u64>> = Vec::with_capacity(nodes.len());
        let mut is_end = vec![true; nodes.len()];
        for n in nodes {
            let mut deps: Vec<u64> = Vec::new();
            for &b in &n.before {
                deps.extend(&work[b]);
                is_end[b] = false;
            }
            if n.before.is_empty() {
                deps.extend(start);
            }
            deps.sort_unstable();
            deps.dedup();
            work.push(if n.is_enabled {
                self.run_node(n, context, deps)?
            } else {
                deps
            });
        }
        let ends = work.into_iter().zip(is_end).filter(|(_, end)| *end);
        let mut ends: Vec<u64> = ends.flat_map(|(w, _)| w).collect();
        if nodes.is_empty() {
            ends.extend(start);
        }
        Ok(ends)
    }

    fn run_node(&self, n: &ExecNode, context: u64, mut deps: Vec<u64>) -> R<Vec<u64>> {
        let op = match &n.op {
            ExecOp::Child(inner) => return self.run_nodes(inner, context, &deps),
            ExecOp::Plain(op) => &**op,
        };
        match op {
            Op::Empty | Op::Alloc(_) | Op::Child(_) => Ok(deps),
            Op::Record(event) => {
                let place = Place::After {
                    context,
                    deps: &deps,
                };
                let id = self.join(&place)?;
                let mut t = self.tables();
                let now = t.gpu_now();
                t.set_event(*event, id, now)?;
                Ok(vec![id])
            }
            Op::Wait(event) => {
                deps.extend(self.event_work(&mut self.tables(), *event)?);
                Ok(deps)
            }
            op => {
                let context = match op {
                    Op::Kernel(k) => k.context,
                    _ => context,
                };
                let place = Place::After {
                    context,
                    deps: &deps,
                };
                Ok(vec![self.push(&place, op.clone())?])
            }
        }
    }

    fn update(&self, exec: u64, graph: u64) -> R<Mismatch> {
        let mut t = self.tables();
        let new = t.exec_nodes(graph)?;
        let e = t.exec(exec)?;
        if let Err(mismatch) = compare(&e.nodes, &new) {
            return Ok(mismatch);
        }
        e.nodes = Arc::new(take_ops(&e.nodes, &new));
        Ok((0, 0))
    }

    /// Changes a node of an instance; `check` gets the old and the new operation.
    fn set_op(&self, exec: u64, node: u64, op: R<Op>) -> R {
        let mut t = self.tables();
        let e = t.exec(exec)?;
        let place = e.nodes.iter().position(|n| n.node == node);
        let place = place.ok_or(INVALID_VALUE)?;
        drop(t);
        let op = op?;
        let mut t = self.tables();
        let child = match &op {
            Op::Child(inner) => Some(t.exec_nodes(*inner)?),
            _ => None,
        };
        let e = t.exec(exec)?;
        let n = &mut Arc::make_mut(&mut e.nodes)[place];
        let new = match (child, &n.op) {
            (Some(new), ExecOp::Child(old)) => {
                compare(old, &new).map_err(|_| INVALID_VALUE)?;
                ExecOp::Child(Arc::new(take_ops(old, &new)))
            }
            _ => ExecOp::Plain(Box::new(op)),
        };
        let both = [ExecNode {
            op: new,
            ..n.clone()
        }];
        compare(std::slice::from_ref(n), &both).map_err(|_| INVALID_VALUE)?;
        let [changed] = both;
        *n = changed;
        Ok(())
    }

    fn on_exec_node<T>(&self, exec: u64, node: u64, f: impl FnOnce(&mut ExecNode) -> R<T>) -> R<T> {
        let mut t = self.tables();
        let e = t.exec(exec)?;
        let found = Arc::make_mut(&mut e.nodes)
            .iter_mut()
            .find(|n| n.node == node);
        f(found.ok_or(INVALID_VALUE)?)
    }
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
struct InstantiateParams {
    flags: u64,
    stream: u64,
    error_node: u64,
    result: u32,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
struct UpdateInfo {
    result: u32,
    node: u64,
    from: u64,
}

fn with_params(d: &Driver, out: Out<u64>, graph: u64, p: Out<InstantiateParams>) -> R {
    p.check()?;
    let mut given = In::<InstantiateParams>::from_addr(p.addr()).get()?;
    let made = d.instantiate(out, graph, given.flags);
    given.error_node = 0;
    given.result = match made {
        Ok(()) => 0,
        Err(NOT_SUPPORTED) => 3,
        Err(INVALID_VALUE) => 2,
        Err(_) => 1,
    };
    p.set(given)?;
    made
}

fn update_v1(d: &Driver, exec: u64, graph: u64, node: Out<u64>, result: Out<u32>) -> R {
    result.check()?;
    let (why, at) = d.update(exec, graph)?;
    node.set_if(at);
    result.set(why)?;
    if why == 0 {
        Ok(())
    } else {
        Err(GRAPH_EXEC_UPDATE_FAILURE)
    }
}

fn destroy_exec(d: &Driver, exec: u64) -> R {
    let mut t = d.tables();
    let e = t.graphs.execs.remove(&exec).ok_or(INVALID_VALUE)?;
    if let Ok(g) = t.graph_mut(e.source) {
        g.instances = g.instances.saturating_sub(1);
    }
    let (kernels, context) = e.kernels;
    let _ = d.hide(&mut t, context, |hidden| {
        hidden.graph_kernels = hidden.graph_kernels.saturating_sub(kernels);
    });
    Ok(())
}

fn old_instantiate(
    d: &Driver,
    out: Out<u64>,
    graph: u64,
    node: Out<u64>,
    log: Out<u8>,
    room: usize,
) -> R {
    let made = d.instantiate(out, graph, 0);
    node.set_if(0);
    if !log.is_null() && room > 0 {
        log.set_all([0], 1)?;
    }
    made
}

export! {
    cuGraphInstantiate(
        out: Out<u64>, graph: u64, node: Out<u64>, log: Out<u8>, room: usize,
    ) |d| old_instantiate(d, out, graph, node, log, room);
    cuGraphInstantiate_v2(
        out: Out<u64>, graph: u64, node: Out<u64>, log: Out<u8>, room: usize,
    ) |d| old_instantiate(d, out, graph, node, log, room);
    cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, flags: u64) |d| {
        d.instantiate(out, graph, flags)
    };
    cuGraphInstantiateWithParams(out: Out<u64>, graph: u64, p: Out<InstantiateParams>) |d| {
        with_params(d, out, graph, p)
    };
    cuGraphInstantiateWithParams_ptsz(out: Out<u64>, graph: u64, p: Out<InstantiateParams>) |d| {
        with_params(d, out, graph, p)
    };
    cuGraphExecDestroy(exec: u64) |d| destroy_exec(d, exec);
    cuGraphExecGetFlags(exec: u64, out: Out<u64>) |d| out.set(d.tables().exec(exec)?.flags);
    cuGraphExecUpdate(exec: u64, graph: u64, node: Out<u64>, result: Out<u32>) |d| {
        update_v1(d, exec, graph, node, result)
    };
    cuGraphExecUpdate_v2(exec: u64, graph: u64, info: Out<UpdateInfo>) |d| {
        info.check()?;
        let (result, node) = d.update(exec, graph)?;
        info.set(UpdateInfo { result, node, from: 0 })?;
        if result == 0 { Ok(()) } else { Err(GRAPH_EXEC_UPDATE_FAILURE) }
    };
    cuGraphExecKernelNodeSetParams(exec: u64, node: u64, p: In<KernelParams>) |d| {
        let p = p.get().map(|first| KernelParams2 { first, kern: 0, ctx: 0 });
        d.set_op(exec, node, p.and_then(|p| d.kernel_op(&p)))
    };
    cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, p: In<KernelParams2>) |d| {
        d.set_op(exec, node, p.get().and_then(|p| d.kernel_op(&p)))
    };
    cuGraphExecChildGraphNodeSetParams(exec: u64, node: u64, child: u64) |d| {
        d.tables().graph(child)?;
        d.set_op(exec, node, Ok(Op::Child(child)))
    };
    cuGraphExecNodeSetParams(exec: u64, node: u64, p: Out<NodeParams>) |d| {
        d.set_op(exec, node, d.any_op(p))
    };
    cuGraphNodeSetEnabled(exec: u64, node: u64, on: u32) |d| {
        d.on_exec_node(exec, node, |n| match n.op.node_type() {
            0..=2 => {
                n.is_enabled = on != 0;
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        })
    };
    cuGraphNodeGetEnabled(exec: u64, node: u64, out: Out<u32>) |d| {
        out.check()?;
        d.on_exec_node(exec, node, |n| match n.op.node_type() {
            0..=2 => out.set(u32::from(n.is_enabled)),
            _ => Err(INVALID_VALUE),
        })
    };
}

export_stream! {
    cuGraphLaunch, cuGraphLaunch_ptsz(exec: u64; stream) |d| d.launch_graph(exec, stream);
    cuGraphUpload, cuGraphUpload_ptsz(exec: u64; stream) |d| {
        let s = d.op_stream(stream)?;
        d.forbid_capture(s)?;
        d.tables().exec(exec).map(drop)?;
        d.tables().streams.get(&s).map(drop).ok_or(INVALID_HANDLE)
    };
}
