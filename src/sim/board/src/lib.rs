//! The simulated workstation: GPUs, processes, memory and time in one file that all processes share.
//!
//! [`Board::create`] makes a board, [`Board::open`] joins it. The simulated driver registers each process, takes memory
//! and queues kernels; the simulated NVML takes [`Board::snapshot`]s. Time is fluid and lazy: nothing runs between two
//! reads, and each read advances the board to now. File locks show when a process has died, and the next read removes
//! what it had.

mod board;
mod clock;
mod cost;
mod costs;
mod error;
mod hidden;
mod imagined;
mod limits;
mod models;
mod nature;
mod presets;
mod process;
mod room;
mod slots;
mod snapshot;
mod state;
mod store;

pub use board::{Board, BoardSpec, CheckpointFault, CheckpointHow, CheckpointStep, Finished, Slot};
pub use clock::now_ns;
pub use cost::{
    Phase, Route, Shape, Transfer, block_ns_from_instructions, phases, resident_blocks,
};
pub use costs::{Costs, Takes};
pub use error::BoardError;
pub use hidden::Hidden;
pub use imagined::{ImaginedBoard, Integrals};
pub use limits::MemoryLimit;
pub use models::{GRANULARITY, MIB, MODELS, MigProfile, Model, instances, profiles};
pub use presets::{Fault, Preset, Range};
pub use process::ProcessInfo;
pub use slots::Opener;
pub use snapshot::{
    BoardSnapshot, GpuSnapshot, Health, Instance, ProcessSnapshot, Recent, Xid, uuid_text,
};
pub use state::{
    MAX_DEPS, MAX_GPUS, MAX_KERNELS, MAX_PENDING, MAX_PROCS, MAX_USES, MemoryKind, Work, XIDS,
};

/// Length in nanoseconds of a real GPU's time slice.
pub const SLICE_NS: u64 = 2_000_000;

/// A well-mixed number from a counter (the finaliser of splitmix64).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
