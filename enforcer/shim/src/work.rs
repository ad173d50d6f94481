//! A launch as described by its arguments: its key, and the part of the GPU that it fills.

use gshare_gate::{Key, Measure};

use crate::{cuda::Handle, gpu::Gpu, grid::Grid, process::Process};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) key: Key,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Blocks of this many threads, with this much dynamic shared memory.
    Grid(Grid),
    /// A graph, by its executable form, and the time of its kernels if it may wait in between.
    Graph(Handle, Option<u64>),
    /// A kernel whose shape is not in the call.
    Unknown,
    /// A copy or a fill: no SM works on it.
    Move,
}

impl Work {
    #[inline]
    pub(crate) fn grid(function: Handle, blocks: u64, threads: u64, shared: u32) -> Self {
        Self {
            key: Key::kernel(function, blocks, threads),
            kind: Kind::Grid(Grid {
                function,
                blocks,
                threads,
                shared,
            }),
        }
    }

    pub(crate) fn graph(exec: Handle, own_ns: Option<u64>) -> Self {
        Self {
            key: Key::graph(exec),
            kind: Kind::Graph(exec, own_ns),
        }
    }

    pub(crate) fn unknown(function: Handle, blocks: u64) -> Self {
        Self {
            key: Key::kernel(function, blocks, 0),
            kind: Kind::Unknown,
        }
    }

    pub(crate) fn moved(key: Key) -> Self {
        Self {
            key,
            kind: Kind::Move,
        }
    }

    /// Nanoseconds that its kernels take, if it may wait for something other than the GPU in between.
    pub(crate) fn own_ns(&self) -> Option<u64> {
        match self.kind {
            Kind::Graph(_, own_ns) => own_ns,
            _ => None,
        }
    }

    /// Bytes of local memory that each thread of its kernels needs; `None` if unknown.
    pub(crate) fn local_bytes(&self, process: &Process) -> Option<u64> {
        match self.kind {
            Kind::Grid(grid) => process.meet_kernel(grid.function),
            Kind::Graph(exec, _) => Some(process.graphs().of(exec)?.local),
            Kind::Unknown | Kind::Move => None,
        }
    }

    /// Makes sure that the tally knows the fill of such a launch: asked once. `false`: unknown.
    #[cold]
    pub(crate) fn meet(&self, process: &Process, gpu: &Gpu) -> bool {
        if let Some((fill, _)) = gpu.tally.known(self.key) {
            return fill.sms_milli > 0;
        }
        let fill = match self.kind {
            Kind::Grid(grid) => grid.fill(gpu),
            Kind::Graph(exec, _) => process.graphs().of(exec).and_then(|work| work.fill),
            Kind::Unknown | Kind::Move => None,
        };
        // An unknown fill is kept too: the driver is not asked again.
        gpu.tally.know(self.key, fill.unwrap_or_default());
        if let Some(ns) = self.own_ns() {
            gpu.tally.expect(self.key, ns, Measure::Rough);
        }
        fill.is_some()
    }
}
