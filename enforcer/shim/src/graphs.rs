//! Executable graphs: how many kernels a launch runs, and the memory that the driver takes for
//! their allocation nodes. That memory belongs to the device's graph pool and is shared by graphs, so
//! what counts is the pool's own figure; before a launch the sum of the nodes is an upper bound.

use gshare_gate::Fill;

use crate::{cuda::Handle, map::Table};

/// What a graph does when it is launched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) kernels: u64,
    /// Bytes of its allocation nodes, rounded up; 0 without any on a GPU of the claim.
    pub(crate) bytes: u64,
    /// The claim's GPU on which they are.
    pub(crate) gpu: usize,
    /// Bytes of local memory of each thread, of the kernel that needs most.
    pub(crate) local: u64,
    /// What its kernels fill on average; absent where that cannot be told.
    pub(crate) fill: Option<Fill>,
}

/// Memory of one GPU for graphs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pool {
    pub(crate) charged: u64,
    /// Bytes charged for launches in flight, and the number of those.
    pub(crate) pending: u64,
    pub(crate) launches: u64,
    /// Steps with every change, so that an old figure is not taken for a new one.
    pub(crate) changes: u64,
}

#[derive(Debug)]
pub(crate) struct Graphs {
    execs: Table<Work>,
    pub(crate) pools: Vec<Pool>,
}

impl Graphs {
    pub(crate) fn new(gpus: usize) -> Self {
        Self {
            execs: Table::EMPTY,
            pools: vec![Pool::default(); gpus],
        }
    }

    pub(crate) fn note(&mut self, exec: Handle, work: Work) {
        if exec != 0 {
            self.execs.insert(exec as u64, work);
        }
    }

    pub(crate) fn of(&self, exec: Handle) -> Option<Work> {
        self.execs.get(exec as u64).copied()
    }

    /// Notes what a changed graph needs now, or at least needs where one node was changed; whether it is more than before.
    pub(crate) fn needs(&mut self, exec: Handle, local: u64, whole: bool) -> bool {
        let Some(work) = self.execs.get_mut(exec as u64) else {
            return false;
        };
        let before = work.local;
        work.local = if whole { local } else { local.max(before) };
        work.local > before
    }

    pub(crate) fn forget(&mut self, exec: Handle) -> Option<Work> {
        self.execs.remove(exec as u64)
    }
}
