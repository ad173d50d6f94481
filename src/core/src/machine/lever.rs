//! Ways to take GPU capacity back from running claims, how they can fail, and where a claim is meanwhile.

use serde::{Deserialize, Serialize};

use crate::claim::ClaimId;
use crate::ledger::Slice;
use crate::machine::{Now, Phase};
use crate::units::Bytes;

/// A way to take capacity back, the gentlest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lever {
    /// Lending above the requests stops.
    Caps,
    /// A borrower's SM request is lowered for a while.
    Share,
    /// The GPU memory of a claim goes to the host, its processes live on. Releases before 0.2 write it as `detach`.
    #[serde(rename = "detach", alias = "offload")]
    Offload,
    /// A claim moves to other GPUs with all its memory.
    Move,
    /// Offloaded, and its processes frozen.
    Suspend,
    /// Its command is ended and starts anew when there is room.
    Requeue,
    /// Its processes are ended for good.
    Kill,
}

impl Lever {
    /// The verb after the claim's name in a sentence: `c3 moves to another GPU`.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Caps => "gets nothing above its size",
            Self::Share => "gets a smaller share of compute",
            Self::Offload => "is offloaded",
            Self::Move => "moves to another GPU",
            Self::Suspend => "is suspended",
            Self::Requeue => "is ended and queued again",
            Self::Kill => "is ended",
        }
    }
}

/// Why a lever failed. The claim is where it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The driver or the claim does not support it.
    Refused,
    /// It timed out and was undone.
    TimedOut,
    /// A thread was in a driver call that did not end.
    Busy,
    /// Not enough host memory.
    HostRam,
    /// A process died meanwhile: the claim ends.
    Lost,
}

/// The levers that work on a claim, as far as the service knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levers {
    /// Whether its memory can go to the host and back; else why not.
    pub park: Result<(), String>,
    /// Whether it can move to other GPUs of the same model; else why not.
    pub movable: Result<(), String>,
    /// Its command may be ended and started anew.
    pub requeue: bool,
    /// Nothing is taken from it for others, whatever else is set here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_alone: bool,
    /// It has been idle so long that it is offloaded when another claim waits.
    pub idle: bool,
}

impl Default for Levers {
    fn default() -> Self {
        let unknown = || Err("the checkpoint engine is starting".to_owned());
        Self {
            park: unknown(),
            movable: unknown(),
            requeue: false,
            left_alone: false,
            idle: false,
        }
    }
}

/// Why a claim was parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkedBy {
    /// By its owner or an administrator. It comes back on request or, if not frozen, when a member needs the GPU.
    Person,
    /// It was idle and another claim waited. It comes back when a member needs the GPU.
    Idle,
    /// For other claims. It comes back as soon as there is room.
    Reclaim,
    /// The scheduler that allocates its GPUs has suspended it, and keeps them for it. It comes back only when a member
    /// needs the GPU.
    Scheduler,
}

/// A claim whose memory is in the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// What it held and needs back; each charge is the bytes in the host.
    pub slices: Vec<Slice>,
    /// Host memory that it uses.
    pub host: Bytes,
    /// Its processes are frozen.
    pub frozen: bool,
    /// Why it was parked.
    pub by: ParkedBy,
    /// Since when.
    pub since: Now,
    /// It waits to come back.
    pub back: bool,
}

/// Where a granted claim is, and what it holds there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Where it is.
    pub phase: Phase,
    /// What it holds on GPUs; nothing while it is in the host or only counted.
    pub at: Vec<Slice>,
    /// Its destination, while it moves.
    pub to: Vec<Slice>,
}

impl Holding {
    /// On its GPUs.
    #[must_use]
    pub fn here(at: Vec<Slice>) -> Self {
        Self {
            phase: Phase::Granted,
            at,
            to: Vec::new(),
        }
    }

    /// What it holds, or needs back.
    #[must_use]
    pub fn slices(&self) -> &[Slice] {
        match &self.phase {
            Phase::Offloaded(parked) => &parked.slices,
            Phase::Counted(slices) => slices,
            _ => &self.at,
        }
    }
}

/// An owner's wish for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Memory to the host, processes live on.
    Offload,
    /// Back onto a GPU.
    Restore,
    /// Memory to the host, processes frozen.
    Suspend,
    /// Back onto a GPU, processes run again.
    Resume,
    /// Postpone what was announced.
    Keep,
    /// By the scheduler that allocates its GPUs, which has stopped its processes: memory to the host.
    Yield,
}

/// Why something is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The claim that waits; none if claims are spread so that they can burst.
    pub waiter: Option<ClaimId>,
    /// The waiting claim is within its owner's guarantee.
    pub entitled: bool,
}
