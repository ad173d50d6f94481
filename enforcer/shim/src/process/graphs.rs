//! The work of a member's graphs, read from their nodes, and the charge of their memory.

use std::sync::{MutexGuard, PoisonError, atomic::Ordering};

use gshare_gate::{Kernels, Key};

use super::Process;
use crate::{
    cuda::{
        AllocNode, CuResult, GRAPH_RESERVED_NOW, GRAPH_USED_NOW, Handle, KernelNode, NODE_ALLOC,
        NODE_GRAPH, NODE_KERNEL, NODES_OF_NO_TIME, NODES_THAT_WAIT, SUCCESS,
    },
    driver,
    graphs::{Graphs, Work},
    grid::Grid,
    ledger::Refusal,
    reservation::Reservation,
};

/// What a graph's nodes say.
#[derive(Debug, Default)]
struct Nodes {
    kernels: Kernels,
    /// Some may wait for something other than the GPU, and some that are no kernels take time.
    waits: bool,
    more: bool,
}

/// Maximum nesting of graphs that is followed.
const DEEPEST: u32 = 16;

impl Work {
    pub(crate) fn of(process: &Process, graph: Handle) -> Self {
        let mut work = Self::default();
        let mut seen = Nodes::default();
        work.add(process, graph, DEEPEST, &mut seen);
        work.fill = seen.kernels.fill();
        let known = seen.waits && !seen.more;
        work.own_ns = seen.kernels.busy_ns().filter(|_| known);
        work
    }

    fn add(&mut self, process: &Process, graph: Handle, deeper: u32, seen: &mut Nodes) {
        let helpers = driver::helpers();
        let (Some(nodes_of), Some(kind_of)) = (helpers.graph_nodes, helpers.node_kind) else {
            return;
        };
        let mut count = 0;
        // SAFETY: without a place for nodes the driver gives their number.
        if unsafe { nodes_of(graph, std::ptr::null_mut(), &raw mut count) } != SUCCESS {
            return;
        }
        let mut nodes = vec![0; count];
        // SAFETY: room for `count` nodes.
        if count == 0 || unsafe { nodes_of(graph, nodes.as_mut_ptr(), &raw mut count) } != SUCCESS {
            return;
        }
        nodes.truncate(count);
        for node in nodes {
            let mut kind = -1;
            // SAFETY: a node that the driver named, and a valid place for the result.
            if unsafe { kind_of(node, &raw mut kind) } != SUCCESS {
                continue;
            }
            match kind {
                NODE_KERNEL => {
                    self.kernels += 1;
                    let mut params = KernelNode::default();
                    let ask = helpers.kernel_node;
                    // SAFETY: a kernel node, and room for more than its parameters.
                    let told =
                        ask.is_some_and(|ask| unsafe { ask(node, &raw mut params) } == SUCCESS);
                    let params = told.then_some(params);
                    let local = params
                        .as_ref()
                        .and_then(|p| process.meet_kernel(p.function()));
                    self.local = self.local.max(local.unwrap_or(0));
                    seen.add(process, params);
                }
                NODE_ALLOC => self.add_memory(process, node),
                NODE_GRAPH if deeper > 0 => {
                    let mut inner = 0;
                    let ask = helpers.child_graph;
                    // SAFETY: as above.
                    if ask.is_some_and(|ask| unsafe { ask(node, &raw mut inner) } == SUCCESS) {
                        self.add(process, inner, deeper - 1, seen);
                    }
                }
                kind if NODES_THAT_WAIT.contains(&kind) => seen.waits = true,
                kind if NODES_OF_NO_TIME.contains(&kind) => {}
                _ => seen.more = true,
            }
        }
    }

    fn add_memory(&mut self, process: &Process, node: Handle) {
        let mut params = AllocNode::default();
        let ask = driver::helpers().alloc_node;
        // SAFETY: an allocation node, and room for more than its parameters.
        if ask.is_none_or(|ask| unsafe { ask(node, &raw mut params) } != SUCCESS) {
            return;
        }
        let index = params
            .props
            .device()
            .and_then(|device| process.gpu_of_device(device));
        if let Some(gpu) = index.and_then(|index| process.gpus.get(index)) {
            self.gpu = index.unwrap_or(0);
            self.bytes = self.bytes.saturating_add(gpu.rounded(params.bytes));
        }
    }
}

impl Nodes {
    /// Adds a kernel with its measured duration outside graphs, else with its rounds of blocks.
    fn add(&mut self, process: &Process, params: Option<KernelNode>) {
        let gpu = match process.gpus.as_slice() {
            [gpu] => Some(gpu),
            gpus => process.here().and_then(|(gpu, _)| gpus.get(gpu)),
        };
        let Some((gpu, params)) = gpu.zip(params) else {
            self.kernels.add_unknown();
            return;
        };
        let volume = |of: [u32; 3]| {
            of.iter()
                .fold(1, |v: u64, n| v.saturating_mul(u64::from(*n)))
        };
        let grid = Grid {
            function: params.function(),
            blocks: volume(params.grid),
            threads: volume(params.block),
            shared: params.shared,
        };
        let key = Key::kernel(grid.function, grid.blocks, grid.threads);
        let known = gpu.tally.known(key).map(|(fill, _)| fill);
        let known = known.filter(|fill| fill.warps_milli > 0);
        let Some(fill) = known.or_else(|| grid.fill(gpu)) else {
            self.kernels.add_unknown();
            return;
        };
        let warps = grid.threads.div_ceil(32).saturating_mul(grid.blocks);
        let sms = gpu.sms.load(Ordering::Relaxed);
        self.kernels.add(fill, warps, gpu.tally.needs(key), sms);
    }
}

impl Process {
    pub(crate) fn graphs(&self) -> MutexGuard<'_, Graphs> {
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the driver's figures about a GPU's memory for graphs, in bytes.
    fn graph_memory(&self, gpu: usize, attribute: i32) -> Option<u64> {
        let device = self.device_of_gpu(gpu)?;
        let mut bytes: u64 = 0;
        // SAFETY: these attributes are 64-bit numbers, and `bytes` is valid for one.
        let result = unsafe {
            driver::helpers().graph_attribute?(device, attribute, (&raw mut bytes).cast())
        };
        (result == SUCCESS).then_some(bytes)
    }

    /// Charges a launch as if the driver had to take all of the graph's memory anew; if the cap forbids that, the
    /// driver's unused memory counts. An error is the program's code.
    pub(crate) fn reserve_graph_memory(&'static self, work: Work) -> Result<Reservation, CuResult> {
        self.keep_up();
        let Some(gpu) = self.gpus.get(work.gpu) else {
            return Ok(Reservation::default());
        };
        let reserve = |bytes: u64, unused: u64| {
            let mut graphs = self.graphs();
            let pool = &mut graphs.pools[work.gpu];
            let spare = if pool.pending == 0 { unused } else { 0 };
            let bytes = bytes.saturating_sub(spare);
            let charged = Reservation::charge(gpu, bytes)?;
            pool.pending += bytes;
            pool.launches += 1;
            pool.changes += 1;
            Ok(charged)
        };
        let refusal = match reserve(work.bytes, 0) {
            Ok(charged) => return Ok(charged),
            Err(refusal @ Refusal::SeatLost) => refusal,
            Err(Refusal::AtCap { .. }) => {
                self.squeeze_pools(work.gpu);
                let used = self.graph_memory(work.gpu, GRAPH_USED_NOW);
                let held = self.graph_memory(work.gpu, GRAPH_RESERVED_NOW);
                let unused = match (held, used) {
                    (Some(held), Some(used)) => held.saturating_sub(used),
                    _ => 0,
                };
                match reserve(work.bytes, unused) {
                    Ok(charged) => return Ok(charged),
                    Err(refusal) => refusal,
                }
            }
        };
        Err(self.refuse(work.gpu, refusal, work.bytes))
    }

    /// The driver has decided on a launch with this charge.
    pub(crate) fn settle_graph_memory(&self, gpu: usize, mut charged: Reservation) {
        let bytes = charged.keep();
        {
            let mut graphs = self.graphs();
            let pool = &mut graphs.pools[gpu];
            pool.pending = pool.pending.saturating_sub(bytes);
            pool.launches = pool.launches.saturating_sub(1);
            pool.charged = pool.charged.saturating_add(bytes);
            pool.changes += 1;
        }
        self.refresh_graph_memory(gpu);
    }

    /// Charges the memory that the driver holds for graphs on a GPU now. While a launch is in flight the charge stays
    /// an upper bound, and the last one to settle makes it exact.
    pub(crate) fn refresh_graph_memory(&self, gpu: usize) {
        let (changes, charged) = match self.graphs().pools.get(gpu) {
            Some(pool) => (pool.changes, pool.charged),
            None => return,
        };
        if charged == 0 {
            return;
        }
        let Some(now) = self.graph_memory(gpu, GRAPH_RESERVED_NOW) else {
            return;
        };
        let mut graphs = self.graphs();
        let (Some(pool), Some(gpu)) = (graphs.pools.get_mut(gpu), self.gpus.get(gpu)) else {
            return;
        };
        if pool.launches > 0 || pool.changes != changes {
            return;
        }
        let holds = gpu.rounded(now);
        let mut ledger = gpu.ledger();
        if holds > pool.charged {
            ledger.force(holds - pool.charged);
        } else {
            ledger.shrink(pool.charged - holds);
        }
        pool.charged = holds;
    }

    /// Makes the driver release unused graph memory.
    pub(crate) fn squeeze_graphs(&self, gpu: usize) {
        let charged = self.graphs().pools.get(gpu).map_or(0, |pool| pool.charged);
        let (Some(trim), Some(device)) = (driver::helpers().graph_trim, self.device_of_gpu(gpu))
        else {
            return;
        };
        if charged > 0 {
            // SAFETY: a device that the driver numbered.
            unsafe { trim(device) };
            self.refresh_graph_memory(gpu);
        }
    }
}
