//! The occupancy calculators, by the rules of the board's cost model.

use gshare_sim_board::{Fault, Model, Shape, resident_blocks};

use crate::code::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, R};
use crate::driver::Driver;
use crate::ffi::{Out, export};
use crate::function::Function;

type SharedForBlock = extern "C" fn(i32) -> usize;

fn resident(f: &Function, model: &Model, threads: i32, dynamic: usize) -> u32 {
    let (Ok(threads), Ok(dynamic)) = (u32::try_from(threads), u32::try_from(dynamic)) else {
        return 0;
    };
    if threads > f.facts.max_threads {
        return 0;
    }
    let shape = Shape {
        blocks: 1,
        threads,
        regs: f.facts.regs,
        shared: f.facts.shared.saturating_add(dynamic),
    };
    resident_blocks(model, &shape)
}

impl Driver {
    fn facts(&self, function: u64) -> R<(Function, &'static Model)> {
        if self.preset.has(Fault::NoOccupancy) {
            return Err(NOT_SUPPORTED);
        }
        let mut t = self.tables();
        let handle = self.function_handle(&mut t, function)?;
        let f = t.functions.get(&handle).ok_or(INVALID_HANDLE)?;
        Ok((f.clone(), self.model_of(&t, f)?))
    }

    fn max_blocks(&self, out: Out<i32>, function: u64, threads: i32, dynamic: usize) -> R {
        out.check()?;
        let (f, model) = self.facts(function)?;
        if threads <= 0 {
            return Err(INVALID_VALUE);
        }
        out.set(resident(&f, model, threads, dynamic).cast_signed())
    }

    /// The block size with most resident threads; the largest among equals.
    fn best_block(
        &self,
        grid: Out<i32>,
        block: Out<i32>,
        function: u64,
        shared_for: Option<SharedForBlock>,
        dynamic: usize,
        limit: i32,
    ) -> R {
        grid.check()?;
        block.check()?;
        let (f, model) = self.facts(function)?;
        let most = f.facts.max_threads.cast_signed();
        let limit = if limit <= 0 { most } else { limit.min(most) };
        let mut best = (0, 0, 0);
        let mut sizes: Vec<i32> = (1..=limit / 32).map(|w| w * 32).collect();
        if limit % 32 != 0 {
            sizes.push(limit);
        }
        for threads in sizes {
            let dynamic = shared_for.map_or(dynamic, |s| s(threads));
            let blocks = resident(&f, model, threads, dynamic);
            let total = blocks * threads.cast_unsigned();
            if total > 0 && total >= best.0 {
                best = (total, threads, blocks);
            }
        }
        if best.0 == 0 {
            return Err(INVALID_VALUE);
        }
        grid.set((best.2 * model.sms).cast_signed())?;
        block.set(best.1)
    }
}

export! {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: Out<i32>, function: u64, threads: i32, dynamic: usize,
    ) |d| d.max_blocks(out, function, threads, dynamic);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<i32>, function: u64, threads: i32, dynamic: usize, flags: u32,
    ) |d| {
        if flags & !1 != 0 {
            return Err(INVALID_VALUE);
        }
        d.max_blocks(out, function, threads, dynamic)
    };
    cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: u64, shared_for: Option<SharedForBlock>,
        dynamic: usize, limit: i32,
    ) |d| d.best_block(grid, block, function, shared_for, dynamic, limit);
    cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, function: u64, shared_for: Option<SharedForBlock>,
        dynamic: usize, limit: i32, flags: u32,
    ) |d| {
        if flags & !1 != 0 {
            return Err(INVALID_VALUE);
        }
        d.best_block(grid, block, function, shared_for, dynamic, limit)
    };
    cuOccupancyAvailableDynamicSMemPerBlock(
        out: Out<usize>, function: u64, blocks: i32, threads: i32,
    ) |d| {
        out.check()?;
        let (f, model) = d.facts(function)?;
        let Ok(blocks) = u32::try_from(blocks) else {
            return Err(INVALID_VALUE);
        };
        if blocks == 0 || threads <= 0 || resident(&f, model, threads, 0) < blocks {
            return Err(INVALID_VALUE);
        }
        // The driver reserves 1 KiB per block, and sizes go in steps of 128 bytes.
        let each = model.shared_per_sm / blocks / 128 * 128;
        let most = each.saturating_sub(1024 + f.facts.shared).min(model.shared_optin);
        out.set(most as usize)
    };
}
