//! Runs a decoded kernel, one block after the other, each as warps of 32 lanes.
//!
//! A warp keeps its lanes in *fragments*: sets of lanes that stand at the same instruction with the
//! same calls behind them. A branch that splits a fragment makes two; the deepest call and then the
//! lowest address runs first, so the sides of a branch meet again where they join. Barriers stop a
//! fragment until all live fragments of the block stand at the same one.

mod call;
mod lanes;
mod memory;
mod warp;

use crate::error::Trap;
use crate::ir::{Function, WARP};
use crate::memory::DeviceMemory;
use crate::module::{LaunchConfig, LaunchStats};
use warp::{Stop, Warp};

/// What all warps of a launch share.
pub(crate) struct Launch<'a> {
    pub(crate) functions: &'a [Function],
    pub(crate) defined: &'a [bool],
    pub(crate) global_names: &'a dyn Fn(u32) -> String,
    /// Address of each module variable, where bound.
    pub(crate) globals: &'a [Option<u64>],
    pub(crate) config: &'a LaunchConfig<'a>,
    /// Bytes of static shared memory; dynamic memory follows.
    pub(crate) static_shared: u32,
    pub(crate) memory: &'a mut dyn DeviceMemory,
    pub(crate) shared: Vec<u8>,
    pub(crate) block: [u32; 3],
    /// Index of the block in the grid.
    pub(crate) block_index: u64,
    pub(crate) stats: LaunchStats,
}

/// Most bytes of shared memory of a block.
const SHARED_MAX: u32 = 227 << 10;

pub(crate) fn run(mut launch: Launch<'_>, entry: u32) -> Result<LaunchStats, Trap> {
    let config = launch.config;
    let invalid = |why: String| Err(Trap::InvalidLaunch(why));
    let threads = config
        .block
        .iter()
        .try_fold(1u32, |all, n| all.checked_mul(*n))
        .unwrap_or(u32::MAX);
    if threads == 0 || threads > 1024 || config.block[2] > 64 {
        return invalid(format!("a block cannot have {:?} threads", config.block));
    }
    if config.grid.contains(&0)
        || config.grid[0] > i32::MAX as u32
        || config.grid[1..].iter().any(|n| *n > 65535)
    {
        return invalid(format!("a grid cannot have {:?} blocks", config.grid));
    }
    let shared = launch
        .static_shared
        .next_multiple_of(16)
        .saturating_add(config.dynamic_shared);
    if shared > SHARED_MAX {
        return invalid(format!(
            "{shared} bytes of shared memory are more than a block can have"
        ));
    }
    launch.shared = vec![0; shared as usize];
    let warps = (threads as usize).div_ceil(WARP);
    // Only barriers need all warps of a block to be kept; otherwise one is used again and again.
    let together = launch.functions.iter().any(|f| f.has_barrier);
    let mut pool: Vec<Warp> = (0..if together { warps } else { 1 })
        .map(|_| Warp::default())
        .collect();
    let [nx, ny, nz] = config.grid;
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                launch.block = [x, y, z];
                launch.block_index =
                    u64::from(x) + u64::from(nx) * (u64::from(y) + u64::from(ny) * u64::from(z));
                launch.shared.fill(0);
                if together {
                    run_together(&mut launch, entry, &mut pool, threads)?;
                } else {
                    for index in 0..warps {
                        pool[0].start(&launch, entry, index, threads);
                        pool[0].run(&mut launch)?;
                    }
                }
            }
        }
    }
    Ok(launch.stats)
}

/// A block whose warps meet at barriers.
fn run_together(
    launch: &mut Launch<'_>,
    entry: u32,
    warps: &mut [Warp],
    threads: u32,
) -> Result<(), Trap> {
    for (index, warp) in warps.iter_mut().enumerate() {
        warp.start(launch, entry, index, threads);
    }
    loop {
        let mut waiting = None;
        for warp in warps.iter_mut() {
            match warp.run(launch)? {
                Stop::Done => {}
                Stop::Barrier { id, line } => match waiting {
                    None => waiting = Some(id),
                    Some(other) if other == id => {}
                    Some(other) => {
                        let text = format!("warps of a block at barriers {other} and {id} at once");
                        return Err(Trap::Unsupported { line, text });
                    }
                },
            }
        }
        if waiting.is_none() {
            return Ok(());
        }
        for warp in warps.iter_mut() {
            warp.release();
        }
    }
}
