//! Checkpoints of processes (`cuCheckpointProcess*`): the driver stops a process's calls, moves its device memory to
//! host memory of the process, and brings it back to the same GPUs or to others of the same model.
//!
//! As in the real driver, a thread of the process does the work. Its name in `/proc/PID/task/*/comm` says which file,
//! `/proc/PID/fd/N`, callers use; they need `ptrace` read access to the process. Here that file is a page of memory
//! with a request and its answer. The caller may die at any moment; a step that has begun is finished.

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
    /// States during a step, from CUDA 13.4 on.
    pub(super) const CHECKPOINTING: u32 = 4;
    pub(super) const RESTORING: u32 = 5;
}

/// CUDA versions that introduced these functions, the map of GPUs, and the states during a step.
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

/// Runs one of these functions. The caller needs a driver, but a checkpoint does not stop its own calls.
fn on(pid: i32, body: impl FnOnce(&Mailbox) -> R) -> CUresult {
    plain(|| {
        driver::get()?;
        if device::version() < SINCE {
            return Err(NOT_SUPPORTED);
        }
        body(&Mailbox::of(pid)?)
    })
}

/// The fault of communicators: a process hangs while another one is locked.
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
