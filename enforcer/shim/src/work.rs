//! What a launch is, as far as its arguments say: by what it is known again, and how much of the GPU it fills.

use std::sync::atomic::Ordering;

use gshare_gate::{Fill, Key};

use crate::{
    cuda::{Handle, SUCCESS},
    driver,
    gpu::Gpu,
    process::Process,
};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const SMS: i32 = 16;

/// A launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) key: Key,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Blocks of so many threads with so many bytes of dynamic shared memory.
    Grid(Grid),
    /// A graph, by its executable form.
    Graph(Handle),
    /// A kernel whose shape is not in the call.
    Unknown,
    /// A copy or a fill: no SM works on it.
    Move,
}

/// A grid of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) function: Handle,
    pub(crate) blocks: u64,
    pub(crate) threads: u64,
    pub(crate) shared: u32,
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

    pub(crate) fn graph(exec: Handle) -> Self {
        Self {
            key: Key::graph(exec),
            kind: Kind::Graph(exec),
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

    /// Whether SMs work on it.
    #[inline]
    pub(crate) fn counts(&self) -> bool {
        !matches!(self.kind, Kind::Move)
    }

    /// Sees to it that the tally knows what such a launch fills: asked once. `false`: nobody can say.
    #[cold]
    pub(crate) fn meet(&self, process: &Process, gpu: &Gpu) -> bool {
        if let Some((fill, _)) = gpu.tally.known(self.key) {
            return fill.sms_milli > 0;
        }
        let fill = match self.kind {
            Kind::Grid(grid) => grid.fill(gpu),
            Kind::Graph(exec) => process.graphs().of(exec).and_then(|work| work.fill),
            Kind::Unknown | Kind::Move => None,
        };
        // Also that nobody can say is kept: the driver is not asked again.
        gpu.tally.know(self.key, fill.unwrap_or_default());
        fill.is_some()
    }
}

impl Grid {
    /// What the grid fills of the GPU of the calling thread's context.
    pub(crate) fn fill(&self, gpu: &Gpu) -> Option<Fill> {
        let threads = i32::try_from(self.threads).ok().filter(|n| *n > 0)?;
        let sms = sms_of(gpu)?;
        let mut resident = 0;
        // SAFETY: a valid place for the result, and the caller's own function.
        let result = unsafe {
            driver::helpers().occupancy?(
                &raw mut resident,
                self.function,
                threads,
                self.shared as usize,
            )
        };
        let resident = u32::try_from(resident).ok().filter(|n| *n > 0)?;
        let warps = threads.cast_unsigned().div_ceil(32);
        (result == SUCCESS).then(|| Fill::of_grid(sms, resident, self.blocks, warps))
    }
}

/// SMs that the driver shows of the GPU of the calling thread's context, asked once.
fn sms_of(gpu: &Gpu) -> Option<u32> {
    let known = gpu.sms.load(Ordering::Relaxed);
    if known > 0 {
        return Some(known);
    }
    let helpers = driver::helpers();
    let (mut device, mut sms) = (-1, 0);
    // SAFETY: valid places for the results.
    let result = unsafe {
        if helpers.ctx_get_device?(&raw mut device) != SUCCESS {
            return None;
        }
        helpers.device_attribute?(&raw mut sms, SMS, device)
    };
    let sms = u32::try_from(sms)
        .ok()
        .filter(|n| result == SUCCESS && *n > 0)?;
    gpu.sms.store(sms, Ordering::Relaxed);
    Some(sms)
}
