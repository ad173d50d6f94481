//! Commands: what features want done. Closed. The service collects the commands of one fact from all features, then
//! carries them out, the journal first.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gshare_abi::State;
use gshare_abi::wire::Bind;
use gshare_config::GpuMode;
use gshare_core::machine::lever::Failure;
use gshare_core::machine::{Action, Event, Now};
use gshare_core::{Bytes, Change, ClaimId, Party, Quota, Reason, Slice};
use gshare_enforcer::gpu::GpuSample;
use gshare_enforcer::proc::{PidFd, ProcessKey, Terminal};
use gshare_proto::{Reply, WireError};

use super::claims::{Adoption, Asked, Shrink, Wish};
use super::connection::Sender;
use super::fact::Fact;
use super::gpu::ReleasedGpus;
use super::journal::{ClaimRecord, DrainRecord, HoldingRecord, SliceRecord, Store};
use super::levers::job::Prepared;
use super::live::{Ending, Live};
use super::mig::divide::Dividing;
use super::msg::Outcome;
use super::release::letting_go::LetGo;
use super::settings::Conformance;
use crate::stage::Stages;

/// Something to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Write it into the journal, in one transaction with the others of the same fact. If that fails, the rest of the
    /// batch is dropped; see [`effects::written`](super::effects::written).
    Store(Store),
    /// Give the core an event.
    Core(Event),
    /// Give the core several events; the result is saved once.
    Events(Vec<Event>),
    /// Tell all features a fact.
    Tell(Fact),
    /// Give the core the present state of the GPUs.
    Refresh,
    /// Answer a caller.
    Reply(Sender, Result<Reply, WireError>),
    /// Handle a new sample of the GPUs.
    Sample(Box<GpuSample>),
    /// A point where a test may kill the service.
    CrashPoint(&'static str),
    /// Find the smallest subset of these claims whose end lets a waiting claim start.
    FewestToEnd(Vec<ClaimId>),
    /// Read what these claims have used of processors and disks.
    ReadVitals(Vec<ClaimId>),
    /// Query the Jupyter servers of all kernels.
    AskServers,
    /// Check, with the rights of the claim's owner, whether its kernel's connection file exists.
    LookFor(ClaimId, u32, PathBuf),
    /// Send new snapshots.
    Publish,
    /// Show a notice to everybody on the screen.
    Notice(String),
    /// Show a notice about a claim on the screen, and log it for the claim.
    NoticeOf { id: ClaimId, text: String },
    /// Write a line to the terminal of a program without a claim.
    Say(Terminal, String),
    /// Notify a user on the screen; if it is about a claim, log it there too, even if the claim has ended.
    TellUser(u32, Option<ClaimId>, String),
    /// Record the run of a claim that has ended for this cause.
    RunEnded(Box<Live>, String),
    /// Look up how long a claim will run, by its record and the number of its GPUs.
    AskRunTime(ClaimId, Box<ClaimRecord>, u32),
    /// Notify the owner of a claim, also on its terminals and in its notebook.
    TellOwner { id: ClaimId, text: String },
    /// Carried out by `gpus.rs`.
    Gpus(GpuCommand),
    /// Carried out by `rules.rs`.
    Rules(RuleCommand),
    /// Carried out by `ending.rs`.
    Ends(EndCommand),
    /// Carried out by `submit.rs`.
    Claims(ClaimCommand),
    /// Carried out by `levers.rs`.
    Levers(LeverCommand),
    /// Carried out by `policy.rs`.
    Limits(LimitCommand),
}

/// Commands about GPUs and their processes.
#[derive(Debug)]
pub(crate) enum GpuCommand {
    /// Start the MPS daemons that are needed, and release the others.
    TendMps,
    /// Give MPS daemons whose user has left a new directory.
    RenewMps,
    /// Give a user access to the MPS daemon of a GPU.
    LetIntoMps { gpu: usize, uid: u32 },
    /// Drain a GPU.
    Drain(DrainRecord),
    /// End the drain of a GPU, named by its lasting name.
    Undrain(String),
    /// Set the mode that a GPU gets when it is empty.
    NextMode(usize, Option<GpuMode>),
    /// Apply pending modes on GPUs that are empty.
    ChangeModes,
    /// Change the mode of a GPU.
    SetMode(usize, GpuMode),
    /// Release GPUs, and answer when no process of gshare has them open any more.
    LetGo(Box<LetGo>),
    /// Make these the released GPUs.
    TakeBack(ReleasedGpus),
    /// Divide a GPU.
    Divide(Box<Dividing>),
    /// Handle the result of dividing a GPU.
    Divided(usize),
    /// Measure the cost of a context on the present GPUs and instances.
    Overheads,
    /// Look up the owners of the processes in the newest sample.
    LookUpOwners,
    /// Look up all owners again at the next look, because a process may have changed its claim.
    DoubtOwners,
    /// Learn the cost of a context from a member that has nothing else.
    Relearn(ClaimId, usize, Bytes),
    /// Follow a change of how GPUs are shared: MPS and the core.
    ShareAnew,
}

/// Commands about the rules in force.
#[derive(Debug)]
pub(crate) enum RuleCommand {
    /// Set the guarantee of a party; `None` removes it.
    SetQuota(Party, Option<Quota>),
    /// Give the core all guarantees, and the parties that claims count for.
    Quotas,
    /// Set the result of the checks of the driver.
    SetConformance(Conformance),
    /// Follow the line in the state directory that says whether gshare is off.
    FollowOff,
    /// Apply the stages from the state directory.
    ReadStages,
    /// Apply stages.
    FollowStages(Box<Stages>),
    /// Tell the core who decides about claims on each GPU.
    Admission,
    /// Give the core the rules of the configuration.
    Rules,
    /// Give the core the rules about making room.
    ReclaimRules,
    /// Tell the core which levers on claims have changed.
    LookAtLevers,
    /// Restore offloaded claims whose memory fits.
    CallBack(Which),
}

/// Which claims are restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// Those of stages 1 and 2.
    Observed,
}

/// Commands about the end of claims.
#[derive(Debug)]
pub(crate) enum EndCommand {
    /// Record that the programs of a claim got the signal before its end, or that the end was postponed.
    Signalled {
        id: ClaimId,
        /// They got it.
        due: bool,
        /// Its command is started again afterwards.
        again: bool,
    },
    /// Withdraw a waiting claim.
    Withdraw {
        id: ClaimId,
        /// Text for its caller.
        text: String,
    },
    /// End a claim with all its processes: SIGTERM now, SIGKILL later.
    EndAll {
        id: ClaimId,
        cause: String,
        /// Time between the two signals.
        grace: Duration,
    },
    /// Set the state in a claim's pages.
    SetStates(ClaimId, State),
    /// Begin the end of a claim.
    BeginEnd(ClaimId, Box<Ending>),
    /// Ask the processes of a claim that hold the GPU to end.
    AskToEnd(ClaimId),
    /// Ask all processes of a claim to end within this time.
    AskAllToEnd(ClaimId, Duration),
    /// Check whether the end of a claim is complete.
    SettleEnd(ClaimId),
    /// Let a claim that is ended for others keep the GPU until it is killed.
    KeepGpu(ClaimId),
    /// Kill these processes of a claim, and everything else in its cgroup.
    KillMembers(ClaimId, Vec<ProcessKey>),
    /// Record that the remaining processes were killed.
    Killed(ClaimId),
    /// Remove a claim's pages, filter and cgroup.
    Dismantle { id: ClaimId, cause: String },
    /// End a claim whose processes live on without it.
    EndBehalf { id: ClaimId, cause: String },
    /// Refuse the processes that wait for the GPU of a released claim.
    RefuseWanting(ClaimId),
    /// Mark the command of an ending claim to be started again.
    Requeued(ClaimId),
    /// Move the end of a claim's time limit: Unix milliseconds, or never.
    MoveLease(ClaimId, Option<u64>),
    /// Record that the time limit has ended.
    LeaseEnded {
        id: ClaimId,
        /// Its command is stopped by that.
        stopped: bool,
        /// Its programs on the GPU were signalled.
        told: bool,
    },
    /// Send a signal to processes of claims.
    Signal(Vec<ProcessKey>, i32),
    /// Signal the processes of an ending claim after MPS has ended their work.
    SignalEnd(ClaimId),
    /// End the command of a claim and queue it again.
    Requeue { id: ClaimId, why: String },
    /// Keep a claim whose command has ended.
    Hold(ClaimId),
    End {
        id: ClaimId,
        cause: Cow<'static, str>,
    },
}

/// Commands about requests, grants and sizes.
#[derive(Debug)]
pub(crate) enum ClaimCommand {
    /// Grant a claim its GPUs.
    Grant {
        id: ClaimId,
        slices: Vec<Slice>,
        /// End of its time limit.
        ends: Option<Now>,
        /// The ledger books nothing for it.
        counted: bool,
    },
    /// Adopt a process as a claim.
    Adopt(Box<Adoption>),
    /// Handle the core's decision about an adoption.
    Adopted(ClaimId, Box<Adoption>),
    /// Number a claim and give it to the core, which has this long for it.
    Submit(Box<Asked>, Option<Duration>),
    /// Give a claim to the core, which has this long for it.
    Ask(ClaimId, Box<Asked>, Option<Duration>),
    /// Tell the callers of a waiting claim its place.
    Place {
        id: ClaimId,
        /// Place in the queue, from the front.
        position: usize,
        reason: Reason,
    },
    /// Tell programs that wait for the GPU of their claim its place and the expected start.
    TellStart {
        id: ClaimId,
        /// Place in the queue, from the front.
        position: usize,
        reason: Reason,
        /// Expected start, if known.
        start: Option<String>,
    },
    /// Tell them that the start is not known yet.
    NoStart(ClaimId),
    /// Refuse a waiting claim.
    Refuse(ClaimId, WireError),
    /// Ask the core for another size.
    Resize(Box<(Wish, Change, Option<Duration>)>),
    /// Handle the core's decision about another size.
    Resized(Action),
    /// Change a claim's share of the SMs for a while.
    Share(ClaimId, Vec<Slice>),
    /// Watch a process of this claim for its end.
    WatchExit(ClaimId, ProcessKey, Arc<PidFd>),
    /// Reduce a claim's size to its use.
    Shrink(ClaimId),
    /// Handle the core's decision about that.
    Shrunk(Box<Shrink>),
    /// Use the cgroup of a claim on behalf that has appeared.
    Enter(ClaimId),
    /// Move a claim into a systemd slice.
    IntoSlice(ClaimId),
}

/// Commands about offloading, restoring and moving claims.
#[derive(Debug)]
pub(crate) enum LeverCommand {
    /// Refuse a request to offload, restore or move a claim.
    RefuseLever(ClaimId, String),
    /// Offload, restore or move a claim, as the core has decided.
    Pull(Action),
    /// Begin, or continue, what the journal says is under way for a claim.
    BeginLever {
        id: ClaimId,
        /// It continues what the previous service began.
        again: bool,
    },
    /// Continue what was under way when the previous service ended.
    Resume(ClaimId),
    /// Start the job in the checkpoint engine.
    StartLever(Box<Prepared>),
    /// Handle the engine's result.
    LeverDone(ClaimId, Outcome),
    /// Add a caller who waits for the result.
    AwaitLever(ClaimId, Sender),
    /// Tell them their place in the queue.
    TellQueued(ClaimId, Sender),
    /// Report that a lever is done to its callers, or to the claim's owner.
    TellLever(ClaimId, String),
    /// A call of an offloaded claim waits for its memory.
    Wanted {
        id: ClaimId,
        /// A person has asked for it already.
        asked: bool,
    },
    /// Answer what it waits for.
    AnswerWanted(ClaimId, Sender),
    /// Journal where the memory of a claim is.
    KeepHolding(ClaimId, Box<HoldingRecord>),
    /// Record that a claim is on these GPUs.
    NowOn {
        id: ClaimId,
        to: Vec<SliceRecord>,
        /// GPUs that it is bound to.
        only: Vec<String>,
    },
    /// Write a claim's GPUs into its pages.
    Relabel(ClaimId),
    /// Open the GPUs of a claim in its device filter.
    OpenAgain(ClaimId),
    /// Freeze all processes of a claim, or let them run.
    Freeze(ClaimId, bool),
    /// Let the waiting calls of a claim continue.
    EndWaits(ClaimId),
    /// Report that a lever of the core's failed.
    LeverFailed {
        id: ClaimId,
        failure: Failure,
        why: String,
    },
    /// Offload a claim although nobody waits for its room.
    Offload(ClaimId),
}

/// Commands about filters and limits.
#[derive(Debug)]
pub(crate) enum LimitCommand {
    /// Write the present limits of a claim into its pages and to the driver.
    LimitsAnew(ClaimId),
    /// Write the limits of all claims.
    AllLimitsAnew,
    /// Close the GPUs of a claim whose members lack a mount over the driver.
    Uncover(ClaimId),
    /// Open them again.
    Cover(ClaimId),
    /// Mount again for these members of a claim.
    Remount {
        id: ClaimId,
        /// Members that lack a mount.
        bare: Vec<i32>,
        /// The expected mounts.
        expected: Vec<Bind>,
    },
    /// Write the cap of a claim on a GPU into its page.
    WriteCap(ClaimId, Slice),
    /// Tell the core what claims are charged.
    Measure,
    /// Place the filter that keeps programs without a claim from GPUs.
    Deny,
    /// Set the filters of all claims, of the remains of ended ones, and of programs without a claim again.
    FiltersAnew,
    /// Account processes without a claim by the newest sample.
    Account,
    /// Compare the newest sample with the claims' limits.
    Reconcile,
    /// Find out on which GPUs the driver itself can limit memory.
    ProbeLimits,
    /// Have the driver limit a claim's memory.
    LimitMemory(ClaimId),
    /// Write the caps of a claim on a GPU into its page.
    WriteCaps(ClaimId, usize),
}
