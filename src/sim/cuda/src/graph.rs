//! Graphs: operations and their order, for repeated launches.

mod exec;
mod memory;
mod node;
mod params;
mod shape;

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::code::{INVALID_VALUE, R};
use crate::driver::Tables;
use crate::op::Op;

pub(crate) use exec::GraphExec;
pub(crate) use memory::{GraphMemory, GraphVa};

/// `CUgraphEdgeData`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Edge {
    pub from_port: u8,
    pub to_port: u8,
    pub kind: u8,
    reserved: [u8; 5],
}

/// All graphs of the process.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    pub graphs: HashMap<u64, Graph>,
    pub nodes: HashMap<u64, Node>,
    pub execs: HashMap<u64, GraphExec>,
    /// Memory of graph nodes, by device.
    pub memory: BTreeMap<usize, GraphMemory>,
}

#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// In the order of their addition.
    pub nodes: Vec<u64>,
    /// From, to, and the edge's data.
    pub edges: Vec<(u64, u64, Edge)>,
    /// It is inside a node of another graph.
    pub is_child: bool,
    /// Number of instances while it has memory nodes, which allow only one.
    pub instances: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub graph: u64,
    pub op: Op,
    /// The node that it was cloned from.
    pub origin: u64,
}

impl Graph {
    pub(crate) fn before(&self, node: u64) -> impl Iterator<Item = u64> {
        let edges = self.edges.iter();
        edges.filter(move |e| e.1 == node).map(|e| e.0)
    }

    /// The nodes in a topological order; `None` if the edges form a cycle.
    pub(crate) fn sorted(&self) -> Option<Vec<u64>> {
        let mut done = HashSet::new();
        let mut list = Vec::with_capacity(self.nodes.len());
        let mut left = self.nodes.clone();
        while !left.is_empty() {
            let found = left.len();
            left.retain(|n| {
                let ready = self.before(*n).all(|b| done.contains(&b));
                if ready {
                    done.insert(*n);
                    list.push(*n);
                }
                !ready
            });
            if left.len() == found {
                return None;
            }
        }
        Some(list)
    }
}

impl Tables {
    pub(crate) fn new_graph(&mut self) -> u64 {
        let handle = self.handle();
        self.graphs.graphs.insert(handle, Graph::default());
        handle
    }

    pub(crate) fn graph(&self, handle: u64) -> R<&Graph> {
        self.graphs.graphs.get(&handle).ok_or(INVALID_VALUE)
    }

    fn graph_mut(&mut self, handle: u64) -> R<&mut Graph> {
        self.graphs.graphs.get_mut(&handle).ok_or(INVALID_VALUE)
    }

    pub(crate) fn node(&self, handle: u64) -> R<&Node> {
        self.graphs.nodes.get(&handle).ok_or(INVALID_VALUE)
    }

    fn node_mut(&mut self, handle: u64) -> R<&mut Node> {
        self.graphs.nodes.get_mut(&handle).ok_or(INVALID_VALUE)
    }

    /// Checks that all of these are nodes of the graph, each named once.
    pub(crate) fn check_nodes(&self, graph: u64, nodes: &[u64]) -> R {
        self.graph(graph)?;
        let mut seen = HashSet::new();
        for n in nodes {
            if self.node(*n)?.graph != graph || !seen.insert(*n) {
                return Err(INVALID_VALUE);
            }
        }
        Ok(())
    }

    pub(crate) fn dependencies_of(&self, graph: u64, node: u64) -> Vec<u64> {
        let g = self.graphs.graphs.get(&graph);
        g.map_or_else(Vec::new, |g| g.before(node).collect())
    }

    /// Adds a node that depends on `deps`.
    pub(crate) fn add_node(&mut self, graph: u64, deps: &[u64], op: Op) -> R<u64> {
        self.check_nodes(graph, deps)?;
        let handle = self.handle();
        let g = self.graph_mut(graph)?;
        g.nodes.push(handle);
        g.edges
            .extend(deps.iter().map(|d| (*d, handle, Edge::default())));
        let node = Node {
            graph,
            op,
            origin: 0,
        };
        self.graphs.nodes.insert(handle, node);
        Ok(handle)
    }

    /// Copies a graph and the graphs inside its nodes.
    fn clone_graph(&mut self, graph: u64) -> R<u64> {
        let (nodes, edges) = {
            let g = self.graph(graph)?;
            (g.nodes.clone(), g.edges.clone())
        };
        let copy = self.new_graph();
        let mut names = HashMap::new();
        for n in nodes {
            let mut op = self.node(n)?.op.clone();
            if let Op::Child(inner) = op {
                let inner = self.clone_graph(inner)?;
                self.graph_mut(inner)?.is_child = true;
                op = Op::Child(inner);
            }
            let made = self.add_node(copy, &[], op)?;
            self.node_mut(made)?.origin = n;
            names.insert(n, made);
        }
        let renamed = edges.iter().map(|(a, b, e)| (names[a], names[b], *e));
        self.graph_mut(copy)?.edges = renamed.collect();
        Ok(copy)
    }

    /// Destroys a graph and the graphs inside its nodes.
    pub(crate) fn destroy_graph(&mut self, graph: u64) {
        let Some(g) = self.graphs.graphs.remove(&graph) else {
            return;
        };
        for n in g.nodes {
            if let Some(Node {
                op: Op::Child(inner),
                ..
            }) = self.graphs.nodes.remove(&n)
            {
                self.destroy_graph(inner);
            }
        }
    }

    /// Whether a graph, or a graph inside it, has nodes that allocate or free memory.
    fn has_memory(&self, graph: u64) -> bool {
        let Ok(g) = self.graph(graph) else {
            return false;
        };
        g.nodes.iter().any(|n| match self.node(*n).map(|n| &n.op) {
            Ok(Op::Alloc(_) | Op::Free(_)) => true,
            Ok(Op::Child(inner)) => self.has_memory(*inner),
            _ => false,
        })
    }
}

/// Fills a list or returns its length, as `cuGraphGetNodes` documents.
fn fill_list(out: crate::ffi::Out<u64>, count: crate::ffi::Out<usize>, found: &[u64]) -> R<usize> {
    count.check()?;
    if out.is_null() {
        count.set(found.len())?;
        return Ok(0);
    }
    let room = crate::ffi::In::<usize>::from_addr(count.addr()).get()?;
    let padded = found.iter().copied().chain(std::iter::repeat(0));
    out.set_all(padded.take(room), room)?;
    count.set(found.len().min(room))?;
    Ok(room)
}
