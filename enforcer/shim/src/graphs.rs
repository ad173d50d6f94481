//! Executable graphs: the number of kernels in a launch, and the memory that the driver takes for their allocation
//! nodes. That memory belongs to the device's graph pool and graphs share it, so the pool's own figure is charged;
//! before a launch the sum of the nodes is an upper bound.

use gshare_gate::Fill;

use crate::{
    cuda::Handle,
    map::{Table, table},
};

/// The work of a graph's launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) kernels: u64,
    /// Bytes of its allocation nodes, rounded up; 0 if none is on a GPU of the claim.
    pub(crate) bytes: u64,
    /// Their GPU in the claim.
    pub(crate) gpu: usize,
    /// Bytes of local memory per thread of the kernel that needs the most.
    pub(crate) local: u64,
    /// Average fill of its kernels; `None` if unknown.
    pub(crate) fill: Option<Fill>,
    /// Nanoseconds that its kernels take, of a graph that may wait for something other than the GPU in between; `None`
    /// if unknown.
    pub(crate) own_ns: Option<u64>,
}

/// A GPU's memory for graphs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pool {
    pub(crate) charged: u64,
    /// Bytes charged for launches in flight, and the number of these launches.
    pub(crate) pending: u64,
    pub(crate) launches: u64,
    /// Changes with every change of the figures, to detect outdated ones.
    pub(crate) changes: u64,
}

#[derive(Debug)]
pub(crate) struct Graphs {
    execs: Table<Handle, Work>,
    pub(crate) pools: Vec<Pool>,
}

impl Graphs {
    pub(crate) fn new(gpus: usize) -> Self {
        Self {
            execs: table(),
            pools: vec![Pool::default(); gpus],
        }
    }

    pub(crate) fn note(&mut self, exec: Handle, work: Work) {
        if exec != 0 {
            self.execs.insert(exec, work);
        }
    }

    pub(crate) fn of(&self, exec: Handle) -> Option<Work> {
        self.execs.get(&exec).copied()
    }

    /// Notes the need of a changed graph, or its least need if one node was changed; returns whether it has grown.
    pub(crate) fn needs(&mut self, exec: Handle, local: u64, whole: bool) -> bool {
        let Some(work) = self.execs.get_mut(&exec) else {
            return false;
        };
        let before = work.local;
        work.local = if whole { local } else { local.max(before) };
        work.own_ns = None;
        work.local > before
    }

    pub(crate) fn forget(&mut self, exec: Handle) -> Option<Work> {
        self.execs.remove(&exec)
    }
}
