//! What can happen, and what the service must do.

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
    /// A claim is asked for; `patience` is how long the caller waits (`None` for ever, zero not at all).
    Submit {
        /// Its id, given by the caller, larger than all before.
        id: ClaimId,
        /// What it asks.
        request: Request,
        /// How long it waits.
        patience: Option<Duration>,
    },
    /// The owner of a granted claim wants it larger or smaller. A later one for the same claim replaces it.
    Resize {
        /// Number of this wish, given by the caller, never used before.
        ticket: u64,
        /// The claim.
        id: ClaimId,
        /// What changes.
        change: Change,
        /// How long it waits for room (`None` for ever, zero not at all).
        patience: Option<Duration>,
    },
    /// A wish to resize is taken back.
    Unwish {
        /// Its number.
        ticket: u64,
    },
    /// The charges of all claims as read from the pages, after the caps of the last actions took effect:
    /// the answer to one [`Action::Measure`].
    Measured(Vec<(ClaimId, usize, Bytes)>),
    /// A claim found again after a restart.
    Restore {
        /// Its id.
        id: ClaimId,
        /// What it asked for; `None` leaves what is known.
        request: Option<Box<Request>>,
        /// Where it is.
        holding: Holding,
        /// When its lease ends.
        ends: Option<Now>,
    },
    /// What the machine before this one knew beside that; told once, after all claims were restored.
    Recall(Box<super::Memory>),
    /// The claim holds nothing any more, or the waiting claim was withdrawn.
    Gone {
        /// Its id.
        id: ClaimId,
    },
    /// A granted claim is being ended: its programs are asked to stop, and it is gone soon.
    Ending {
        /// The claim.
        id: ClaimId,
    },
    /// All quotas, anew.
    Quotas(Vec<Quota>),
    /// The parties that a claim counts for; told before it is submitted or restored.
    Parties {
        /// The claim.
        id: ClaimId,
        /// Its owner, groups and project.
        parties: Vec<Party>,
    },
    /// How long runs such as this claim's took before; told before it is submitted or restored, and when more is known.
    RunTime {
        /// The claim.
        id: ClaimId,
        /// Quantiles of whole runs.
        span: Span,
    },
    /// An administrator takes a GPU out of service for new claims (`on`), or puts it back.
    Drain {
        /// UUID of the GPU.
        uuid: String,
        /// No new claims there.
        on: bool,
    },
    /// What decides about claims on a GPU from now on; after a restart told before the facts. Claims that run there go on
    /// as they are.
    Admission {
        /// UUID of the GPU.
        uuid: String,
        /// What decides.
        by: Admission,
    },
    /// Another scheduler has given these GPUs to a claim, or (where everybody is let in) somebody runs there already: it is
    /// granted at once, also where the books say that there is no room.
    OnBehalf {
        /// Its id, given by the caller, never used before.
        id: ClaimId,
        /// Its size.
        request: Request,
        /// The GPUs, each once.
        gpus: Vec<usize>,
    },
    /// A process that runs outside claims is to become one, now or not at all. A claim that was adopted and is only counted,
    /// because the books had no room, is to be booked.
    Adopt {
        /// Its id, given by the caller, never used before by another.
        id: ClaimId,
        /// What is claimed for it, on the GPUs that it uses.
        request: Request,
        /// What it has by GPU: in the facts as unclaimed.
        held: Vec<(usize, Bytes)>,
    },
    /// The auto-claims (processes outside claims that are accounted, without a cap): bytes by GPU.
    Uncapped(Vec<(ClaimId, usize, Bytes)>),
    /// What owners had before this machine was started, in GPU-seconds that are still remembered.
    Remember(Vec<(u32, u64)>),
    /// What can be done to a claim has changed.
    Levers {
        /// The claim.
        id: ClaimId,
        /// All of it.
        levers: Levers,
    },
    /// Rules of taking capacity back.
    Reclaim(super::ReclaimRules),
    /// Host memory that parked claims may take together.
    HostRam(Bytes),
    /// An owner wants something of a claim: at once, without a countdown.
    Wish {
        /// The claim.
        id: ClaimId,
        /// What.
        wish: Wish,
    },
    /// A person wants a claim on these GPUs, at once.
    MoveTo {
        /// The claim.
        id: ClaimId,
        /// One for each that it has.
        gpus: Vec<usize>,
    },
    /// A member of an offloaded claim needs the GPU.
    Wanted {
        /// The claim.
        id: ClaimId,
    },
    /// No member of an offloaded claim needs the GPU any more: the calls that waited were interrupted.
    Unwanted {
        /// The claim.
        id: ClaimId,
    },
    /// [`Action::Park`] is done: nothing of the claim is on a GPU.
    Parked {
        /// The claim.
        id: ClaimId,
        /// Host memory that it takes.
        host: Bytes,
    },
    /// [`Action::Unpark`] is done.
    Unparked {
        /// The claim.
        id: ClaimId,
    },
    /// [`Action::Move`] is done: nothing of the claim is on the GPUs that it left.
    Moved {
        /// The claim.
        id: ClaimId,
    },
    /// A lever did not work; the claim is where it was.
    LeverFailed {
        /// The claim.
        id: ClaimId,
        /// Why, for what is tried next.
        failure: Failure,
        /// Why, in words.
        why: String,
    },
    /// How long before a lease ends its owner is told.
    LeaseWarning(Duration),
    /// The lease of a claim that is held ends at another time.
    Lease {
        /// The claim.
        id: ClaimId,
        /// When; never, if `None`.
        ends: Option<Now>,
    },
    /// The rules of all classes, anew.
    Classes(Classes),
    /// The local time of the machine, in minutes from midnight: rules may hold by the hour.
    Minute(u16),
    /// Time passes.
    Tick,
}

impl Event {
    /// Whether a claim comes, goes, is moved or gets another size. What is told again as time passes or after a restart is
    /// none of it: rules, the time of day, which GPUs are drained.
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
        /// The claim.
        id: ClaimId,
        /// The slice with its new `mem_cap`.
        slice: Slice,
    },
    /// Read all pages and answer with [`Event::Measured`], once for each of these: somebody waits.
    Measure,
    /// A claim has another size: journal it, then write the SMs and the request into its pages. Caps follow
    /// in actions of their own. If it cannot be journaled, [`Event::Restore`] with `before` undoes
    /// it.
    Resize {
        /// Number of the wish.
        ticket: u64,
        /// The claim.
        id: ClaimId,
        /// What it held.
        before: Vec<Slice>,
        /// What it holds now.
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
    /// A wish to resize is refused; the claim keeps what it has.
    ResizeRefused {
        /// Number of the wish.
        ticket: u64,
        /// Why.
        error: ResizeError,
    },
    /// The claim is granted.
    Grant {
        /// The claim.
        id: ClaimId,
        /// What it holds.
        slices: Vec<Slice>,
        /// When its lease ends.
        ends: Option<Now>,
        /// It is only counted, without caps.
        counted: bool,
    },
    /// The claim waits; sent when its place or reason changes.
    Wait {
        /// The claim.
        id: ClaimId,
        /// 1 is the head.
        position: usize,
        /// Why.
        reason: Reason,
    },
    /// The claim is refused for good.
    Refuse {
        /// The claim.
        id: ClaimId,
        /// Why.
        reason: Reason,
        /// It could run another time: only its patience is over.
        for_now: bool,
    },
    /// Something is taken from a claim at `at` unless things change: tell its owner.
    Announce {
        /// The claim.
        id: ClaimId,
        /// What is done.
        lever: Lever,
        /// The GPUs it goes to, where it moves.
        to: Vec<usize>,
        /// When.
        at: Now,
        /// For whom.
        cause: Cause,
    },
    /// What was announced is not done.
    Retract {
        /// The claim.
        id: ClaimId,
        /// What was announced.
        lever: Lever,
    },
    /// The claim's memory goes to the host; answered by [`Event::Parked`] or [`Event::LeverFailed`].
    Park {
        /// The claim.
        id: ClaimId,
        /// Its processes are frozen as well.
        freeze: bool,
        /// The one who wants it.
        by: ParkedBy,
    },
    /// The claim comes back; answered by [`Event::Unparked`] or [`Event::LeverFailed`].
    Unpark {
        /// The claim.
        id: ClaimId,
        /// What it holds then.
        to: Vec<Slice>,
    },
    /// The claim goes to other GPUs; answered by [`Event::Moved`] or [`Event::LeverFailed`].
    Move {
        /// The claim.
        id: ClaimId,
        /// What it holds.
        from: Vec<Slice>,
        /// What it holds then.
        to: Vec<Slice>,
    },
    /// A claim that was to be moved by [`Event::MoveTo`] stays where it is.
    MoveRefused {
        /// The claim.
        id: ClaimId,
        /// Why.
        why: String,
    },
    /// A claim's share of the SMs is another for a while: journal it and write it into its pages.
    Share {
        /// The claim.
        id: ClaimId,
        /// What it holds now.
        slices: Vec<Slice>,
    },
    /// The claim's command is ended, to be started anew when there is room.
    Requeue {
        /// The claim.
        id: ClaimId,
        /// For whom.
        cause: Cause,
    },
    /// The claim is ended.
    Kill {
        /// The claim.
        id: ClaimId,
        /// For whom.
        cause: Cause,
    },
    /// An answer came late, or something was wanted of a claim that it cannot do where it is: nothing is done.
    Late(super::Illegal),
    /// The lease of a claim ends soon: its owner should know.
    LeaseWarning {
        /// The claim.
        id: ClaimId,
        /// When it ends.
        at: Now,
    },
    /// The lease of a claim ends later: it stood still while the claim's memory was away for others.
    LeaseMoved {
        /// The claim.
        id: ClaimId,
        /// When it ends.
        ends: Now,
    },
    /// The lease of a claim is over.
    LeaseOver {
        /// The claim.
        id: ClaimId,
    },
}
