//! The block-level cost model: how many blocks fit on an SM, and how a grid runs in waves.
//!
//! A grid of `B` blocks, with `R` resident per SM, runs on `S` SMs in `ceil(B / (S * R))` waves of equal length. All
//! waves but the last fill the GPU. The last wave (the tail) spreads its blocks over up to as many SMs as it has
//! blocks.

use crate::models::Model;
use crate::room::Room;

/// Size of a kernel's grid, and what one block needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of the grid.
    pub blocks: u64,
    /// Threads per block.
    pub threads: u32,
    /// Registers per thread.
    pub regs: u32,
    /// Shared memory per block in bytes, static and dynamic.
    pub shared: u32,
}

impl Shape {
    /// Warps per block.
    #[must_use]
    pub fn warps(&self) -> u32 {
        self.threads.div_ceil(32).max(1)
    }

    /// Registers of a warp: they are allocated in units of 256.
    pub(crate) fn regs_per_warp(&self) -> u32 {
        (self.regs.max(1) * 32).next_multiple_of(256)
    }
}

/// Path of a copy. Each route is a queue of its own beside the SMs; concurrent copies on a route share it evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Route {
    /// Over PCI Express to the device.
    HostToDevice = 1,
    /// Over PCI Express from the device.
    DeviceToHost = 2,
    /// Within the device's memory, including fills.
    OnDevice = 3,
}

impl Route {
    /// Bytes per second for one copy alone. PCI Express 4 and 5 with 16 lanes: 25 and 50 GB/s, which programs reach out
    /// of 31.5 and 63. On the device: half of the memory's peak, because each byte is read and written.
    #[must_use]
    pub fn bytes_per_second(self, model: &Model) -> u64 {
        match self {
            Route::HostToDevice | Route::DeviceToHost => match model.pcie_generation {
                ..=3 => 12_500_000_000,
                4 => 25_000_000_000,
                5.. => 50_000_000_000,
            },
            Route::OnDevice => {
                u64::from(model.mem_clock_mhz) * 1_000_000 * 2 * u64::from(model.bus_bits) / 8 / 2
            }
        }
    }
}

/// A copy or a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Its path.
    pub route: Route,
    /// Bytes to move.
    pub bytes: u64,
    /// Duration in nanoseconds without other copies.
    pub ns: u64,
}

/// Resident blocks of this shape per SM; 0 if the block does not fit.
#[must_use]
pub fn resident_blocks(model: &Model, shape: &Shape) -> u32 {
    let Some(block) = Room::of_block(model, shape) else {
        return 0;
    };
    // Warps get registers in groups of four.
    let by_regs = (model.regs_per_sm / shape.regs_per_warp()) / 4 * 4 / shape.warps();
    Room::of_sm(model).holds(block).min(by_regs)
}

/// A part of a kernel's run with constant demand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// Resident blocks when the kernel has all SMs that it wants.
    pub blocks: u64,
    /// Length in nanoseconds when the kernel has all SMs that it wants.
    pub ns: f64,
}

/// Splits a grid into its full waves and its tail; either may have length 0.
#[must_use]
pub fn phases(sms: u32, resident: u32, blocks: u64, block_ns: u64) -> [Phase; 2] {
    let wave = u64::from(sms) * u64::from(resident.max(1));
    let waves = blocks.div_ceil(wave);
    let full = if blocks.is_multiple_of(wave) {
        waves
    } else {
        waves - 1
    };
    let tail = blocks - full * wave;
    let t = block_ns as f64;
    [
        Phase {
            blocks: if full > 0 { wave } else { 0 },
            ns: full as f64 * t,
        },
        Phase {
            blocks: tail,
            ns: if tail > 0 { t } else { 0.0 },
        },
    ]
}

/// Duration in nanoseconds of one block whose grid executed `instructions` thread instructions.
///
/// Co-resident blocks share an SM's issue slots: two warp instructions per cycle.
#[must_use]
pub fn block_ns_from_instructions(model: &Model, shape: &Shape, instructions: u64) -> u64 {
    let per_block = instructions / shape.blocks.max(1);
    let spread = shape.blocks.div_ceil(u64::from(model.sms));
    let co_resident = u64::from(resident_blocks(model, shape).max(1)).min(spread.max(1));
    let cycles = (per_block / 32) * co_resident / 2;
    1_000 + cycles * 1_000 / u64::from(model.sm_clock_mhz)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(slug: &str) -> &'static Model {
        Model::by_slug(slug).expect("model")
    }

    #[test]
    fn resident_blocks_by_hand() {
        // (model, threads, regs, shared) -> blocks per SM
        for (slug, threads, regs, shared, expect) in [
            ("h100", 256, 32, 0, 8),       // 2048 / 256
            ("h100", 1024, 32, 0, 2),      // 2048 / 1024
            ("rtx4090", 1024, 32, 0, 1),   // 1536 / 1024
            ("h100", 32, 32, 0, 32),       // block limit
            ("rtx4090", 32, 32, 0, 24),    // block limit
            ("h100", 256, 128, 0, 2),      // 65536 / (128 * 256)
            ("h100", 128, 32, 98_304, 2),  // 233472 / 99328
            ("h100", 128, 32, 232_448, 1), // the opt-in maximum
            ("h100", 128, 32, 232_449, 0), // beyond it
            ("h100", 2048, 32, 0, 0),      // no such block
            ("rtx4090", 200, 40, 0, 6),    // 7 warps of 1280 regs: 51 -> 48 warps / 7 = 6
        ] {
            let shape = Shape {
                blocks: 1,
                threads,
                regs,
                shared,
            };
            assert_eq!(
                resident_blocks(model(slug), &shape),
                expect,
                "{slug} {shape:?}"
            );
        }
    }

    #[test]
    fn waves_and_tails_by_hand() {
        // (sms, resident, blocks) at 10 ns a block -> full blocks, full ns, tail blocks, tail ns
        for (sms, resident, blocks, full, full_ns, tail, tail_ns) in [
            (4, 2, 8, 8, 10.0, 0, 0.0),  // exactly one wave
            (4, 2, 9, 8, 10.0, 1, 10.0), // one block more
            (4, 2, 3, 0, 0.0, 3, 10.0),  // only a tail
            (4, 2, 24, 8, 30.0, 0, 0.0), // three waves
            (4, 2, 30, 8, 30.0, 6, 10.0),
            (132, 8, 2112, 1056, 20.0, 0, 0.0),
        ] {
            let [a, b] = phases(sms, resident, blocks, 10);
            assert_eq!(
                (a.blocks, a.ns, b.blocks, b.ns),
                (full, full_ns, tail, tail_ns),
                "{sms} SMs, {resident} resident, {blocks} blocks"
            );
        }
    }
}
