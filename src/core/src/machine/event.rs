//! Events and actions of the machine.

use std::time::Duration;

use super::Now;
use super::lever::{Cause, Failure, Holding, Lever, Levers, ParkedBy, Wish};
use crate::claim::{ClaimId, Request};
use crate::class::Classes;
use crate::ledger::{Admission, GpuFacts, Slice};
use crate::predict::Span;
use crate::quota::{Party, Quota};
use crate::reason::Reason;
use crate::resize::{Change, ResizeError};
use crate::units::Bytes;

/// What can happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Fresh facts about all GPUs.
    Gpus(Vec<GpuFacts>),
    /// A claim is submitted.
    Submit {
        /// Its id, chosen by the caller and larger than all earlier ids.
        id: ClaimId,
        request: Request,
        /// How long the caller waits: `None` without limit, zero not at all.
        patience: Option<Duration>,
    },
    /// The owner of a granted claim wants another size. A later wish for the same claim replaces this one.
    Resize {
        /// Unique number of the wish, chosen by the caller.
        ticket: u64,
        id: ClaimId,
        change: Change,
        /// How long it waits for room: `None` without limit, zero not at all.
        patience: Option<Duration>,
    },
    /// A wish to resize is withdrawn.
    Unwish {
        /// Number of the wish.
        ticket: u64,
    },
    /// Answers one [`Action::Measure`]: the charges of all claims, read from the pages after the caps of the last
    /// actions took effect.
    Measured(Vec<(ClaimId, usize, Bytes)>),
    /// A claim found again after a restart.
    Restore {
        id: ClaimId,
        /// Its request; `None` keeps the known one.
        request: Option<Box<Request>>,
        /// Where it is.
        holding: Holding,
        /// End of its lease.
        ends: Option<Now>,
    },
    /// What the previous machine knew besides; sent once, after all claims were restored.
    Recall(Box<super::Memory>),
    /// A claim has ended, or a waiting claim was withdrawn.
    Gone { id: ClaimId },
    /// A granted claim is being ended: its programs were asked to stop, and it will be gone soon.
    Ending { id: ClaimId },
    /// All quotas, replacing the previous ones.
    Quotas(Vec<Quota>),
    /// The parties that a claim counts for; sent before it is submitted or restored.
    Parties {
        id: ClaimId,
        /// Its owner, groups and project.
        parties: Vec<Party>,
    },
    /// Past run times of the same command as this claim's; sent before it is submitted or restored, and when more is
    /// known.
    RunTime {
        id: ClaimId,
        /// Quantiles of whole runs.
        span: Span,
    },
    /// An administrator closes a GPU to new claims (`on`), or opens it again.
    Drain {
        uuid: String,
        /// No new claims there.
        on: bool,
    },
    /// Sets who decides about claims on a GPU; after a restart sent before the facts. Claims that run there continue.
    Admission {
        uuid: String,
        /// The scheduler that decides.
        by: Admission,
    },
    /// Another scheduler has given these GPUs to a claim, or a program already runs on a GPU that admits every claim.
    /// The claim is granted at once, even if the ledger has no room.
    OnBehalf {
        /// Its id, chosen by the caller and never used before.
        id: ClaimId,
        /// Its size.
        request: Request,
        /// The GPUs, each once.
        gpus: Vec<usize>,
    },
    /// A process outside claims is to become a claim, now or not at all. Also sent to book a claim that was adopted and
    /// only counted because the ledger had no room.
    Adopt {
        /// Its id, chosen by the caller and never used for another claim.
        id: ClaimId,
        /// The request to grant it, on the GPUs that it uses.
        request: Request,
        /// Its bytes by GPU; the facts include them as unclaimed.
        held: Vec<(usize, Bytes)>,
    },
    /// The auto-claims (processes outside claims that are accounted, without a cap): bytes by GPU.
    Uncapped(Vec<(ClaimId, usize, Bytes)>),
    /// Past use of owners before this machine started: user ids, and GPU-seconds that still count.
    Remember(Vec<(u32, u64)>),
    /// The levers that work on a claim have changed.
    Levers { id: ClaimId, levers: Levers },
    /// Rules for taking capacity back.
    Reclaim(super::ReclaimRules),
    /// Host memory for all parked claims together.
    HostRam(Bytes),
    /// An owner wants an action on a claim, at once and without a countdown.
    Wish {
        id: ClaimId,
        /// The action.
        wish: Wish,
    },
    /// A user moves a claim to these GPUs, at once.
    MoveTo {
        id: ClaimId,
        /// One for each GPU that it holds.
        gpus: Vec<usize>,
    },
    /// A member of an offloaded claim needs the GPU.
    Wanted { id: ClaimId },
    /// No member of an offloaded claim needs the GPU any more: the waiting calls were interrupted.
    Unwanted { id: ClaimId },
    /// [`Action::Park`] is done: the claim has nothing on any GPU.
    Parked {
        id: ClaimId,
        /// Host memory that it takes.
        host: Bytes,
    },
    /// [`Action::Unpark`] is done.
    Unparked { id: ClaimId },
    /// [`Action::Move`] is done: the claim has nothing on the GPUs that it left.
    Moved { id: ClaimId },
    /// A lever failed; the claim is where it was.
    LeverFailed {
        id: ClaimId,
        /// The kind of failure, which decides what is tried next.
        failure: Failure,
        /// Why, in words.
        why: String,
    },
    /// Owners are warned this long before a lease ends.
    LeaseWarning(Duration),
    /// The end of a granted claim's lease changes.
    Lease {
        id: ClaimId,
        /// The new end; `None` for no end.
        ends: Option<Now>,
    },
    /// The rules of all classes, replacing the previous ones.
    Classes(Classes),
    /// Local time in minutes from midnight, for rules by the hour.
    Minute(u16),
    /// Time passes.
    Tick,
}

impl Event {
    /// True for events that change placement. False for those that repeat as time passes or after a restart: rules, the
    /// time of day, drained GPUs.
    pub(super) fn stirs(&self) -> bool {
        match self {
            Self::Submit { .. }
            | Self::Resize { .. }
            | Self::Gone { .. }
            | Self::Ending { .. }
            | Self::Adopt { .. }
            | Self::OnBehalf { .. }
            | Self::Wish { .. }
            | Self::MoveTo { .. }
            | Self::Wanted { .. }
            | Self::Unwanted { .. }
            | Self::Parked { .. }
            | Self::Unparked { .. }
            | Self::Moved { .. }
            | Self::LeverFailed { .. } => true,
            Self::Gpus(_)
            | Self::Unwish { .. }
            | Self::Measured(_)
            | Self::Restore { .. }
            | Self::Recall(_)
            | Self::Quotas(_)
            | Self::Parties { .. }
            | Self::RunTime { .. }
            | Self::Drain { .. }
            | Self::Admission { .. }
            | Self::Uncapped(_)
            | Self::Remember(_)
            | Self::Levers { .. }
            | Self::Reclaim(_)
            | Self::HostRam(_)
            | Self::LeaseWarning(_)
            | Self::Lease { .. }
            | Self::Classes(_)
            | Self::Minute(_)
            | Self::Tick => false,
        }
    }
}

/// What the service must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write this cap into the claim's page.
    Cap {
        id: ClaimId,
        /// The slice with its new `mem_cap`.
        slice: Slice,
    },
    /// Read all pages and answer with [`Event::Measured`], once for each of these actions: a claim waits.
    Measure,
    /// A claim has another size: journal it, then write the SMs and the request into its pages. Caps follow as separate
    /// actions. If journaling fails, [`Event::Restore`] with `before` undoes it.
    Resize {
        /// Number of the wish.
        ticket: u64,
        id: ClaimId,
        /// Its previous slices.
        before: Vec<Slice>,
        /// Its new slices.
        slices: Vec<Slice>,
    },
    /// A wish to resize waits; sent when its place or reason changes.
    ResizeWaits {
        /// Number of the wish.
        ticket: u64,
        /// 1 is the head of the queue.
        position: usize,
        /// Why.
        error: ResizeError,
    },
    /// A wish to resize is refused; the claim keeps its size.
    ResizeRefused {
        /// Number of the wish.
        ticket: u64,
        /// Why.
        error: ResizeError,
    },
    /// The claim is granted.
    Grant {
        id: ClaimId,
        slices: Vec<Slice>,
        /// End of its lease.
        ends: Option<Now>,
        /// The claim is only counted, without caps.
        counted: bool,
    },
    /// The claim waits; sent when its place or reason changes.
    Wait {
        id: ClaimId,
        /// 1 is the head of the queue.
        position: usize,
        reason: Reason,
    },
    /// The claim is refused for good.
    Refuse {
        id: ClaimId,
        reason: Reason,
        /// It may run at another time: only its patience is over.
        for_now: bool,
    },
    /// A lever will be used on a claim at `at` unless things change: warn its owner.
    Announce {
        id: ClaimId,
        lever: Lever,
        /// Its destination GPUs, if it moves.
        to: Vec<usize>,
        at: Now,
        /// The claim that needs the room.
        cause: Cause,
    },
    /// An announced lever is cancelled.
    Retract { id: ClaimId, lever: Lever },
    /// Move the claim's memory to the host; answered by [`Event::Parked`] or [`Event::LeverFailed`].
    Park {
        id: ClaimId,
        /// Also freeze its processes.
        freeze: bool,
        /// Why.
        by: ParkedBy,
    },
    /// Bring the claim back to GPUs; answered by [`Event::Unparked`] or [`Event::LeverFailed`].
    Unpark {
        id: ClaimId,
        /// Its slices there.
        to: Vec<Slice>,
    },
    /// Move the claim to other GPUs; answered by [`Event::Moved`] or [`Event::LeverFailed`].
    Move {
        id: ClaimId,
        /// Its present slices.
        from: Vec<Slice>,
        /// Its slices there.
        to: Vec<Slice>,
    },
    /// A claim stays where it is, against [`Event::MoveTo`].
    MoveRefused { id: ClaimId, why: String },
    /// A claim's share of the SMs changes for a while: journal it and write it into its pages.
    Share {
        id: ClaimId,
        /// Its slices now.
        slices: Vec<Slice>,
    },
    /// End the claim's command; it starts anew when there is room.
    Requeue {
        id: ClaimId,
        /// The claim that needs the room.
        cause: Cause,
    },
    /// End the claim.
    Kill {
        id: ClaimId,
        /// The claim that needs the room.
        cause: Cause,
    },
    /// An answer came late, or a wish does not suit the claim's phase: nothing is done.
    Late(super::Illegal),
    /// The lease of a claim ends soon: warn its owner.
    LeaseWarning {
        id: ClaimId,
        /// When it ends.
        at: Now,
    },
    /// The lease of a claim ends later: it stood still while the claim's memory was away for others.
    LeaseMoved {
        id: ClaimId,
        /// When it ends.
        ends: Now,
    },
    /// The lease of a claim is over.
    LeaseOver { id: ClaimId },
}
