//! Ways to take GPU capacity back from claims that run, what can come of them, and where a claim is meanwhile.

use serde::{Deserialize, Serialize};

use crate::claim::ClaimId;
use crate::ledger::Slice;
use crate::machine::{Now, Phase};
use crate::units::Bytes;

/// A way to take capacity back, the gentlest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lever {
    /// What is lent above the requests is lent no more.
    Caps,
    /// A borrower's request of SMs is lowered for a while.
    Share,
    /// The GPU memory of a claim goes to the host, its processes live on. Written as releases before 0.2 know it.
    #[serde(rename = "detach", alias = "offload")]
    Offload,
    /// A claim goes to other GPUs with all that it has.
    Move,
    /// Offloaded, and its processes frozen.
    Suspend,
    /// Its command is ended and starts anew when there is room.
    Requeue,
    /// Its processes are ended for good.
    Kill,
}

impl Lever {
    /// What is done to the claim, after its number: `c3 moves to another GPU`.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Caps => "gets nothing above its request",
            Self::Share => "gets a smaller share of compute",
            Self::Offload => "is offloaded",
            Self::Move => "moves to another GPU",
            Self::Suspend => "is suspended",
            Self::Requeue => "is ended and queued again",
            Self::Kill => "is ended",
        }
    }
}

/// Why a lever did not work. The claim is where it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The driver or the claim cannot do that.
    Refused,
    /// It took too long and was undone.
    TimedOut,
    /// A thread was in a call of the driver that did not end.
    Busy,
    /// Too little host memory for what it has.
    HostRam,
    /// A process died in the middle: the claim ends.
    Lost,
}

/// What can be done to a claim, as far as the service knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levers {
    /// Its memory can go to the host and back; else why not.
    pub park: Result<(), String>,
    /// It can go to other GPUs of the same model; else why not.
    pub movable: Result<(), String>,
    /// Its command may be ended and started anew.
    pub requeue: bool,
    /// Nothing is taken from it for others, whatever else is said here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_alone: bool,
    /// It has run nothing for so long that it is offloaded when somebody waits.
    pub idle: bool,
}

impl Default for Levers {
    fn default() -> Self {
        let unknown = || Err("nothing is known of its processes yet".to_owned());
        Self {
            park: unknown(),
            movable: unknown(),
            requeue: false,
            left_alone: false,
            idle: false,
        }
    }
}

/// The cause why a claim was parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkedBy {
    /// Its owner or an administrator: it comes back when asked, or (not frozen) when a member needs the GPU.
    Person,
    /// It ran nothing and somebody waited: it comes back when a member needs the GPU.
    Idle,
    /// Others came first: it comes back as soon as there is room.
    Reclaim,
}

/// A claim whose memory lies in the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// What it held, each with the bytes that lie in the host as its charge. It wants the same back.
    pub slices: Vec<Slice>,
    /// Host memory that it takes.
    pub host: Bytes,
    /// Its processes are frozen.
    pub frozen: bool,
    /// The cause.
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
    /// What it holds on GPUs: nothing in the host, nor of what is only counted.
    pub at: Vec<Slice>,
    /// Where it moves.
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

    /// What it holds, or wants back.
    #[must_use]
    pub fn slices(&self) -> &[Slice] {
        match &self.phase {
            Phase::Offloaded(parked) => &parked.slices,
            Phase::Counted(slices) => slices,
            _ => &self.at,
        }
    }
}

/// What an owner wants of a claim.
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
    /// What was announced is not done this time.
    Keep,
}

/// For whom something is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The claim that waits; none where it is for the burst of those who run.
    pub waiter: Option<ClaimId>,
    /// That one is within what its owner is guaranteed.
    pub entitled: bool,
}
