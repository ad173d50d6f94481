//! Making graphs, and queries of their nodes and edges.

use super::{Edge, Node, fill_list};
use crate::code::{INVALID_VALUE, LOSSY_QUERY, NOT_SUPPORTED, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{In, Out, export};
use crate::op::Op;

impl Op {
    /// `CUgraphNodeType`.
    pub(crate) fn node_type(&self) -> u32 {
        match self {
            Op::Kernel(_) | Op::Timed(_) => 0,
            Op::Copy(..) => 1,
            Op::Fill(_) => 2,
            Op::Host(_) => 3,
            Op::Child(_) => 4,
            Op::Empty => 5,
            Op::Wait(_) => 6,
            Op::Record(_) => 7,
            Op::Alloc(_) => 10,
            Op::Free(_) => 11,
        }
    }
}

type EdgeList = Vec<(u64, u64, Edge)>;

/// Writes the edges' data. A query without room for data fails if an edge has any.
fn edge_data(edges: &EdgeList, data: Out<Edge>, room: usize) -> R {
    if data.is_null() {
        if edges.iter().any(|e| e.2 != Edge::default()) {
            return Err(LOSSY_QUERY);
        }
        return Ok(());
    }
    data.set_all(edges.iter().map(|e| e.2), room)
}

fn get_edges(
    d: &Driver,
    graph: u64,
    from: Out<u64>,
    to: Out<u64>,
    data: Out<Edge>,
    count: Out<usize>,
) -> R {
    let t = d.tables();
    let edges = &t.graph(graph)?.edges;
    if from.is_null() != to.is_null() {
        return Err(INVALID_VALUE);
    }
    let heads: Vec<u64> = edges.iter().map(|e| e.0).collect();
    let tails: Vec<u64> = edges.iter().map(|e| e.1).collect();
    if from.is_null() {
        return fill_list(from, count, &heads).map(drop);
    }
    let room = In::<usize>::from_addr(count.addr()).get()?;
    edge_data(edges, data, room)?;
    let padded = tails.into_iter().chain(std::iter::repeat(0));
    to.set_all(padded.take(room), room)?;
    fill_list(from, count, &heads).map(drop)
}

fn dependencies(d: &Driver, node: u64, out: Out<u64>, data: Out<Edge>, count: Out<usize>) -> R {
    let t = d.tables();
    let g = t.graph(t.node(node)?.graph)?;
    let edges: EdgeList = g.edges.iter().filter(|e| e.1 == node).copied().collect();
    let far: Vec<u64> = edges.iter().map(|e| e.0).collect();
    if !out.is_null() {
        edge_data(&edges, data, In::<usize>::from_addr(count.addr()).get()?)?;
    }
    fill_list(out, count, &far).map(drop)
}

/// Arguments for adding and removing edges.
struct Pairs {
    from: In<u64>,
    to: In<u64>,
    data: In<Edge>,
    count: usize,
}

impl Pairs {
    fn list(&self, t: &Tables, graph: u64) -> R<EdgeList> {
        t.graph(graph)?;
        let mut list = Vec::new();
        for i in 0..self.count {
            let (a, b) = (self.from.at(i)?, self.to.at(i)?);
            if t.node(a)?.graph != graph || t.node(b)?.graph != graph || a == b {
                return Err(INVALID_VALUE);
            }
            let data = if self.data.is_null() {
                Edge::default()
            } else {
                self.data.at(i)?
            };
            if data.kind != 0 || data.to_port != 0 || data.from_port > 2 {
                return Err(NOT_SUPPORTED);
            }
            list.push((a, b, data));
        }
        Ok(list)
    }

    fn add(&self, t: &mut Tables, graph: u64) -> R {
        let list = self.list(t, graph)?;
        let g = t.graph_mut(graph)?;
        let known = |e: &(u64, u64, Edge)| g.edges.iter().any(|k| (k.0, k.1) == (e.0, e.1));
        if list.iter().any(known) {
            return Err(INVALID_VALUE);
        }
        g.edges.extend(list);
        Ok(())
    }

    fn remove(&self, t: &mut Tables, graph: u64) -> R {
        let list = self.list(t, graph)?;
        // Graphs with memory nodes keep their edges and nodes.
        if t.has_memory(graph) {
            return Err(NOT_SUPPORTED);
        }
        let g = t.graph_mut(graph)?;
        let place = |e: &(u64, u64, Edge)| (e.0, e.1);
        if !list
            .iter()
            .all(|e| g.edges.iter().any(|k| place(k) == place(e)))
        {
            return Err(INVALID_VALUE);
        }
        g.edges
            .retain(|k| !list.iter().any(|e| place(k) == place(e)));
        Ok(())
    }
}

export! {
    cuGraphCreate(out: Out<u64>, flags: u32) |d| {
        out.check()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        out.set(d.tables().new_graph())
    };
    cuGraphDestroy(graph: u64) |d| {
        let mut t = d.tables();
        if t.graph(graph)?.is_child {
            return Err(INVALID_VALUE);
        }
        t.destroy_graph(graph);
        Ok(())
    };
    cuGraphClone(out: Out<u64>, graph: u64) |d| {
        out.check()?;
        let mut t = d.tables();
        t.graph(graph)?;
        if t.has_memory(graph) {
            return Err(NOT_SUPPORTED);
        }
        out.set(t.clone_graph(graph)?)
    };
    cuGraphNodeFindInClone(out: Out<u64>, node: u64, graph: u64) |d| {
        out.check()?;
        let t = d.tables();
        t.node(node)?;
        let nodes = &t.graph(graph)?.nodes;
        let found = nodes.iter().find(|n| t.node(**n).is_ok_and(|n| n.origin == node));
        out.set(*found.ok_or(INVALID_VALUE)?)
    };
    cuGraphNodeGetType(node: u64, out: Out<u32>) |d| {
        out.check()?;
        out.set(d.tables().node(node)?.op.node_type())
    };
    cuGraphGetNodes(graph: u64, out: Out<u64>, count: Out<usize>) |d| {
        fill_list(out, count, &d.tables().graph(graph)?.nodes).map(drop)
    };
    cuGraphGetRootNodes(graph: u64, out: Out<u64>, count: Out<usize>) |d| {
        let t = d.tables();
        let g = t.graph(graph)?;
        let roots = g.nodes.iter().copied().filter(|n| g.before(*n).next().is_none());
        fill_list(out, count, &roots.collect::<Vec<u64>>()).map(drop)
    };
    cuGraphGetEdges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) |d| {
        get_edges(d, graph, from, to, Out::NULL, count)
    };
    cuGraphGetEdges_v2(
        graph: u64, from: Out<u64>, to: Out<u64>, data: Out<Edge>, count: Out<usize>,
    ) |d| get_edges(d, graph, from, to, data, count);
    cuGraphNodeGetDependencies(node: u64, out: Out<u64>, count: Out<usize>) |d| {
        dependencies(d, node, out, Out::NULL, count)
    };
    cuGraphNodeGetDependencies_v2(
        node: u64, out: Out<u64>, data: Out<Edge>, count: Out<usize>,
    ) |d| dependencies(d, node, out, data, count);
    cuGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) |d| {
        Pairs { from, to, data: In::NULL, count }.add(&mut d.tables(), graph)
    };
    cuGraphAddDependencies_v2(
        graph: u64, from: In<u64>, to: In<u64>, data: In<Edge>, count: usize,
    ) |d| Pairs { from, to, data, count }.add(&mut d.tables(), graph);
    cuGraphRemoveDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) |d| {
        Pairs { from, to, data: In::NULL, count }.remove(&mut d.tables(), graph)
    };
    cuGraphRemoveDependencies_v2(
        graph: u64, from: In<u64>, to: In<u64>, data: In<Edge>, count: usize,
    ) |d| Pairs { from, to, data, count }.remove(&mut d.tables(), graph);
    cuGraphDestroyNode(node: u64) |d| {
        let mut t = d.tables();
        let graph = t.node(node)?.graph;
        if t.has_memory(graph) {
            return Err(NOT_SUPPORTED);
        }
        let g = t.graph_mut(graph)?;
        g.nodes.retain(|n| *n != node);
        g.edges.retain(|e| e.0 != node && e.1 != node);
        if let Some(Node { op: Op::Child(inner), .. }) = t.graphs.nodes.remove(&node) {
            t.destroy_graph(inner);
        }
        Ok(())
    };
}
