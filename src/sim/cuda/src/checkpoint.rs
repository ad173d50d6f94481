//! Checkpoints of processes (`cuCheckpointProcess*`): calls of a process are stopped, its device memory goes to
//! memory of its own on the host and comes back, on the same GPUs or on others of the same model.
//!
//! As in the real driver a thread of the process that is named in `/proc/PID/task/*/comm` does the work, and whoever
//! may look into the process (`ptrace` read access) reaches it through one of its files, `/proc/PID/fd/N`: here a page
//! of memory with a request and its answer. The caller may die at any moment; what was begun is finished.

mod calls;
mod handler;
mod mailbox;
mod save;

pub(crate) use calls::enter;
pub(crate) use handler::{hangs, shares, start};

use std::time::Duration;

use gshare_sim_board::{CheckpointHow, CheckpointStep};

use crate::code::{CUresult, INVALID_VALUE, NOT_SUPPORTED, R};
use crate::device;
use crate::driver;
use crate::ffi::{In, Out, plain};
use mailbox::{Mailbox, Pair, Request};

/// `CUprocessState`.
mod state {
    pub(super) const RUNNING: u32 = 0;
    pub(super) const LOCKED: u32 = 1;
    pub(super) const CHECKPOINTED: u32 = 2;
    pub(super) const FAILED: u32 = 3;
    /// While a step is under way, from CUDA 13.4 on.
    pub(super) const CHECKPOINTING: u32 = 4;
    pub(super) const RESTORING: u32 = 5;
}

/// The CUDA version that brought these functions, that of the map of GPUs, and that of the states in between.
const SINCE: i32 = 12_080;
const MAP_SINCE: i32 = 13_000;
const BETWEEN_SINCE: i32 = 13_040;

/// `CUcheckpointLockArgs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LockArgs {
    timeout_ms: u32,
    reserved0: u32,
    reserved1: [u64; 7],
}

/// `CUcheckpointCheckpointArgs` and `CUcheckpointUnlockArgs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NoArgs {
    reserved: [u64; 8],
}

/// `CUcheckpointRestoreArgs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RestoreArgs {
    pairs: u64,
    count: u32,
    padding: u32,
    reserved: [u64; 6],
}

const _: () = assert!(size_of::<LockArgs>() == 64);
const _: () = assert!(size_of::<NoArgs>() == 64);
const _: () = assert!(size_of::<RestoreArgs>() == 64);

/// Runs one of these functions: the caller has a driver, but its own calls are not stopped by a checkpoint.
fn on(pid: i32, body: impl FnOnce(&Mailbox) -> R) -> CUresult {
    plain(|| {
        driver::get()?;
        if device::version() < SINCE {
            return Err(NOT_SUPPORTED);
        }
        body(&Mailbox::of(pid)?)
    })
}

/// The fault of communicators: a process waits while another one is locked.
fn wait_for_peers(pid: i32) {
    let Ok(d) = driver::get() else { return };
    let faulty = || {
        let how = d
            .board
            .checkpoint_fault(CheckpointStep::Lock, pid.cast_unsigned());
        how == Some(CheckpointHow::WaitsForPeers)
    };
    let another_is_locked = || {
        let seen = d.board.snapshot();
        let mut pids = seen
            .gpus
            .iter()
            .flat_map(|g| &g.processes)
            .map(|p| p.pid.cast_signed());
        pids.any(|other| {
            other != pid && Mailbox::of(other).is_ok_and(|m| m.state() == state::LOCKED)
        })
    };
    while faulty() && another_is_locked() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn zero(words: &[u64]) -> R {
    match words.iter().all(|w| *w == 0) {
        true => Ok(()),
        false => Err(INVALID_VALUE),
    }
}

fn no_args(args: In<NoArgs>) -> R {
    match args.is_null() {
        true => Ok(()),
        false => zero(&args.get()?.reserved),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuCheckpointProcessGetRestoreThreadId(pid: i32, tid: Out<i32>) -> CUresult {
    on(pid, |m| tid.set(m.thread()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCheckpointProcessGetState(pid: i32, state: Out<u32>) -> CUresult {
    on(pid, |m| {
        wait_for_peers(pid);
        state.set(m.state())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCheckpointProcessLock(pid: i32, args: In<LockArgs>) -> CUresult {
    on(pid, |m| {
        let mut timeout_ms = 0;
        if !args.is_null() {
            let a = args.get()?;
            zero(&a.reserved1)?;
            zero(&[u64::from(a.reserved0)])?;
            timeout_ms = a.timeout_ms;
        }
        m.ask(&Request::Lock { timeout_ms })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCheckpointProcessCheckpoint(pid: i32, args: In<NoArgs>) -> CUresult {
    on(pid, |m| {
        no_args(args)?;
        m.ask(&Request::Checkpoint)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCheckpointProcessRestore(pid: i32, args: In<RestoreArgs>) -> CUresult {
    on(pid, |m| {
        let mut pairs = Vec::new();
        if !args.is_null() {
            let a = args.get()?;
            zero(&a.reserved)?;
            zero(&[u64::from(a.padding)])?;
            if a.count > 0 && device::version() < MAP_SINCE {
                return Err(INVALID_VALUE);
            }
            if a.count as usize > mailbox::MOST_PAIRS {
                return Err(INVALID_VALUE);
            }
            pairs = In::<Pair>::from_addr(a.pairs).list(a.count as usize)?;
        }
        m.ask(&Request::Restore { pairs })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCheckpointProcessUnlock(pid: i32, args: In<NoArgs>) -> CUresult {
    on(pid, |m| {
        no_args(args)?;
        m.ask(&Request::Unlock)
    })
}
