//! Checkpoints of processes: memory that leaves the GPUs, how long this takes, and injected faults.
//!
//! Source of the default rate: restoring 1.5, 16, 66 and 145 GB on a B200 with driver 595 took 0.9, 2.8, 8.1 and 17.9
//! s, which is 0.72 s plus 8.4 GB/s. Saving is assumed to cost the same.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Board, Slot};
use crate::error::BoardError;

const FIXED_NS: u64 = 720_000_000;
const BYTES_PER_S: u64 = 8_400_000_000;

/// Set once a process has reached the faulty step.
const MET: u64 = 1 << 63;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CheckpointStep {
    /// Stops calls.
    Lock = 1,
    /// Moves memory to the host.
    Checkpoint = 2,
    /// Moves memory back.
    Restore = 3,
    /// Lets calls go on.
    Unlock = 4,
}

/// Kinds of faults of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CheckpointHow {
    /// The driver refuses the step and changes nothing.
    Refused = 1,
    /// The step hangs until the fault is removed.
    Hangs = 2,
    /// The process is lost.
    Fails = 3,
    /// The process dies during the step.
    Dies = 4,
    /// The step hangs until the fault is removed, and then works.
    Waits = 5,
    /// Every request to the process, including queries of its state, hangs while another process is locked, as with
    /// processes that share an NCCL communicator (cuda-checkpoint issues 30 and 45).
    WaitsForPeers = 6,
}

/// An injected fault of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointFault {
    pub step: CheckpointStep,
    /// Kind of fault.
    pub how: CheckpointHow,
    /// The process; `None` for all.
    pub pid: Option<u32>,
}

impl CheckpointFault {
    fn word(self) -> u64 {
        let what = (self.step as u64) << 8 | self.how as u64;
        what << 32 | u64::from(self.pid.unwrap_or(0))
    }

    fn from_word(word: u64) -> Option<Self> {
        use CheckpointHow::{Dies, Fails, Hangs, Refused, Waits, WaitsForPeers};
        use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
        let step = [Lock, Checkpoint, Restore, Unlock];
        let how = [Refused, Hangs, Fails, Dies, Waits, WaitsForPeers];
        let pid = u32::try_from(word & u64::from(u32::MAX)).ok();
        let pid = pid.filter(|pid| *pid != 0);
        let fault = |step, how| Self { step, how, pid };
        let all = step.iter().flat_map(|s| how.iter().map(|h| fault(*s, *h)));
        all.into_iter().find(|f| f.word() == word)
    }
}

impl Board {
    /// Sets how long moving a process's memory takes: a fixed time plus a rate in bytes per second.
    pub fn set_checkpoint_rate(&self, fixed: Duration, bytes_per_s: u64) -> Result<(), BoardError> {
        let fixed = u64::try_from(fixed.as_nanos()).unwrap_or(u64::MAX);
        self.change(false, |s| {
            s.head.checkpoint = [fixed.max(1), bytes_per_s.max(1)];
            Ok(())
        })
    }

    /// Sets or clears the checkpoint fault.
    pub fn set_checkpoint_fault(&self, fault: Option<CheckpointFault>) -> Result<(), BoardError> {
        self.change(false, |s| {
            s.head.checkpoint_fault = fault.map_or(0, CheckpointFault::word);
            Ok(())
        })
    }

    /// The fault of this step in this process, if any. Records that the step was reached.
    #[must_use]
    pub fn checkpoint_fault(&self, step: CheckpointStep, pid: u32) -> Option<CheckpointHow> {
        let how = self.change(false, |s| {
            let Some(fault) = CheckpointFault::from_word(s.head.checkpoint_fault & !MET) else {
                return Ok(None);
            };
            let meant = fault.step == step && fault.pid.is_none_or(|one| one == pid);
            if meant {
                s.head.checkpoint_fault |= MET;
            }
            Ok(meant.then_some(fault.how))
        });
        how.ok().flatten()
    }

    /// Whether a process has reached the faulty step.
    #[must_use]
    pub fn checkpoint_fault_met(&self) -> bool {
        let word = self.change(false, |s| Ok(s.head.checkpoint_fault));
        word.is_ok_and(|word| word & MET != 0)
    }

    /// How long moving the memory of a process takes.
    #[must_use]
    pub fn checkpoint_time(&self, slot: Slot) -> Duration {
        let time = self.change(false, |s| {
            let [fixed, rate] = match s.head.checkpoint {
                [0, _] => [FIXED_NS, BYTES_PER_S],
                set => set,
            };
            let bytes = u128::from(s.bytes_of(slot.id));
            let moving = bytes * 1_000_000_000 / u128::from(rate.max(1));
            let moving = u64::try_from(moving).unwrap_or(u64::MAX);
            Ok(Duration::from_nanos(fixed.saturating_add(moving)))
        });
        time.unwrap_or_default()
    }

    /// Takes the memory of this process off its GPUs; returns its size in bytes.
    pub fn park(&self, slot: Slot) -> Result<u64, BoardError> {
        self.change(false, |s| s.park(slot.id))
    }

    /// Puts the memory of this process back, all of it or none. Pairs of GPUs say from where to where. The process's
    /// GPU numbers then mean the new GPUs.
    ///
    /// # Errors
    /// If a GPU is absent, lost, full or of another model, or the process is not on the board.
    pub fn unpark(&self, slot: Slot, pairs: &[(usize, usize)]) -> Result<u64, BoardError> {
        let to = |gpu: usize| {
            let pair = pairs.iter().find(|p| p.0 == gpu);
            pair.map_or(gpu, |p| p.1)
        };
        let bytes = self.change(true, |s| s.unpark(slot.id, to))?;
        for at in &self.at {
            at.store(to(at.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        Ok(bytes)
    }
}
