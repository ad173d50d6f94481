//! What features want to be done. Closed. The commands of one fact are collected while all features see it, and then
//! carried out by the service, the journal first.

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
    /// Write it into the journal, in one transaction with the others of the same fact. If that fails nothing else of the
    /// batch is done; see [`effects::written`](super::effects::written).
    Store(Store),
    /// The core hears of something.
    Core(Event),
    /// Of all this, and what it comes to is written down once.
    Events(Vec<Event>),
    /// All features hear of something.
    Tell(Fact),
    /// The core hears what the GPUs are like now.
    Refresh,
    /// Answer a caller.
    Reply(Sender, Result<Reply, WireError>),
    /// The GPUs have been looked at.
    Sample(Box<GpuSample>),
    /// A test may end the service here.
    CrashPoint(&'static str),
    /// Find out which of these to end: as few as let somebody start.
    FewestToEnd(Vec<ClaimId>),
    /// Read what these claims have used of processors and disks.
    ReadVitals(Vec<ClaimId>),
    /// Ask the Jupyter servers of all kernels.
    AskServers,
    /// Look, as the owner of a claim, whether its kernel's connection file is there.
    LookFor(ClaimId, u32, PathBuf),
    /// What is shown has changed.
    Publish,
    /// Tell everybody on the screen.
    Notice(String),
    /// Tell on the screen what is about a claim, and write it down.
    NoticeOf {
        /// Which.
        id: ClaimId,
        /// What.
        text: String,
    },
    /// Write a line to the terminal of a program without a claim.
    Say(Terminal, String),
    /// Tell a user on the screen; with a claim, which may have ended, it is written down as well.
    TellUser(u32, Option<ClaimId>, String),
    /// A claim has ended for this cause: its run is recorded.
    RunEnded(Box<Live>, String),
    /// How long a claim will run is looked up, by its record and the number of its GPUs.
    AskRunTime(ClaimId, Box<ClaimRecord>, u32),
    /// Tell the owner of a claim, also on its terminals and in its notebook.
    TellOwner {
        /// Which.
        id: ClaimId,
        /// What.
        text: String,
    },
    /// `gpus.rs` carries it out.
    Gpus(GpuCommand),
    /// `rules.rs` carries it out.
    Rules(RuleCommand),
    /// `ending.rs` carries it out.
    Ends(EndCommand),
    /// `submit.rs` carries it out.
    Claims(ClaimCommand),
    /// `levers.rs` carries it out.
    Levers(LeverCommand),
    /// `policy.rs` carries it out.
    Limits(LimitCommand),
}

/// Commands about GPUs and their processes.
#[derive(Debug)]
pub(crate) enum GpuCommand {
    /// Start the MPS daemons that are wanted, and let the others go.
    TendMps,
    /// Give MPS daemons a new directory whose user has gone.
    RenewMps,
    /// Let a user through to the MPS daemon of a GPU.
    LetIntoMps {
        /// Index.
        gpu: usize,
        /// The user.
        uid: u32,
    },
    /// A GPU takes no new claims.
    Drain(DrainRecord),
    /// It does again, by its lasting name.
    Undrain(String),
    /// The mode that a GPU gets when it is empty.
    NextMode(usize, Option<GpuMode>),
    /// Modes that were waited for come into force on GPUs that are empty.
    ChangeModes,
    /// A GPU is in this mode from now on.
    SetMode(usize, GpuMode),
    /// Let go of GPUs, and answer when nothing has them open any more.
    LetGo(Box<LetGo>),
    /// These GPUs are let go, and no others.
    TakeBack(ReleasedGpus),
    /// Divide a GPU.
    Divide(Box<Dividing>),
    /// A GPU has been divided, or not: look at it.
    Divided(usize),
    /// What a context costs on the GPUs and instances that there are now.
    Overheads,
    /// Look up whose the processes of the newest sample are.
    LookUpOwners,
    /// A process may have come into another claim: all are looked up at the next look.
    DoubtOwners,
    /// A member of a claim that has nothing but a context uses so much of a GPU.
    Relearn(ClaimId, usize, Bytes),
    /// GPUs are shared in another way: MPS follows, and the core is told.
    ShareAnew,
}

/// Commands about the rules in force.
#[derive(Debug)]
pub(crate) enum RuleCommand {
    /// A quota that an administrator has set; absent if it was removed.
    SetQuota(Party, Option<Quota>),
    /// The core hears of all quotas, and whom claims count for.
    Quotas,
    /// What the checks of the driver found.
    SetConformance(Conformance),
    /// Follow the line in the state directory that says whether gshare is off.
    FollowOff,
    /// Take the stages into force that are written down.
    ReadStages,
    /// Take stages into force.
    FollowStages(Box<Stages>),
    /// The core hears who decides about claims on each GPU.
    Admission,
    /// The core hears of the rules of the configuration.
    Rules,
    /// The core hears of those about making room.
    ReclaimRules,
    /// The core hears what has changed in what can be done to claims.
    LookAtLevers,
    /// Claims in the host come back where their memory fits.
    CallBack(Which),
}

/// Which claims come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All of them.
    All,
    /// Those of stages 1 and 2.
    Observed,
}

/// Commands about the end of claims.
#[derive(Debug)]
pub(crate) enum EndCommand {
    /// The programs of a claim got their signal before its end, or the end was put off.
    Signalled {
        /// Which.
        id: ClaimId,
        /// They got it.
        due: bool,
        /// Its command is started again afterwards.
        again: bool,
    },
    /// Withdraw a claim that waits.
    Withdraw {
        /// Which.
        id: ClaimId,
        /// What its caller is told.
        text: String,
    },
    /// End a claim with all its processes: SIGTERM now, SIGKILL later.
    EndAll {
        /// Which.
        id: ClaimId,
        /// Why.
        cause: String,
        /// The time between the two.
        grace: Duration,
    },
    /// Set the state that a claim's pages show.
    SetStates(ClaimId, State),
    /// From now on a claim ends.
    BeginEnd(ClaimId, Box<Ending>),
    /// Ask the processes of a claim that hold the GPU to end.
    AskToEnd(ClaimId),
    /// Ask all processes of a claim to end; they have this time.
    AskAllToEnd(ClaimId, Duration),
    /// See whether a claim that ends is over.
    SettleEnd(ClaimId),
    /// Until it is killed a claim that is ended for others keeps the GPU.
    KeepGpu(ClaimId),
    /// Kill these processes of a claim, and what else is in its cgroup.
    KillMembers(ClaimId, Vec<ProcessKey>),
    /// What did not end was killed.
    Killed(ClaimId),
    /// Take a claim apart.
    Dismantle {
        /// Which.
        id: ClaimId,
        /// Why it ended.
        cause: String,
    },
    /// End a claim whose processes live on without it.
    EndBehalf {
        /// Which.
        id: ClaimId,
        /// Why.
        cause: String,
    },
    /// Those who wait for the GPU of a claim that was released get nothing.
    RefuseWanting(ClaimId),
    /// The command of a claim that ends is to start anew.
    Requeued(ClaimId),
    /// The time limit of a claim ends at another time, in Unix milliseconds, or never.
    MoveLease(ClaimId, Option<u64>),
    /// It has ended.
    LeaseEnded {
        /// Which.
        id: ClaimId,
        /// That stops its command.
        stopped: bool,
        /// Its programs on the GPU were told.
        told: bool,
    },
    /// Send a signal to processes of claims.
    Signal(Vec<ProcessKey>, i32),
    /// MPS has ended the work of a claim that ends: its processes are signalled.
    SignalEnd(ClaimId),
    /// End the command of a claim and queue it again.
    Requeue {
        /// Which.
        id: ClaimId,
        /// Why.
        why: String,
    },
    /// Keep a claim when its command has ended.
    Hold(ClaimId),
    /// End a claim.
    End {
        /// Which.
        id: ClaimId,
        /// Why.
        cause: Cow<'static, str>,
    },
}

/// Commands about what is asked for, granted and resized.
#[derive(Debug)]
pub(crate) enum ClaimCommand {
    /// A claim gets its GPUs.
    Grant {
        /// Which.
        id: ClaimId,
        /// Its parts.
        slices: Vec<Slice>,
        /// When its time limit ends.
        ends: Option<Now>,
        /// Nothing is booked for it.
        counted: bool,
    },
    /// Make a process a claim.
    Adopt(Box<Adoption>),
    /// The core has decided about it.
    Adopted(ClaimId, Box<Adoption>),
    /// A claim gets its number and is put before the core, which has this long for it.
    Submit(Box<Asked>, Option<Duration>),
    /// A claim is put before the core, which has this long for it.
    Ask(ClaimId, Box<Asked>, Option<Duration>),
    /// Tell those who wait for a claim where it stands.
    Place {
        /// Which.
        id: ClaimId,
        /// From the front.
        position: usize,
        /// Why it waits.
        reason: Reason,
    },
    /// Tell programs that wait for the GPU of their claim where that stands, and when they start.
    TellStart {
        /// Which.
        id: ClaimId,
        /// From the front.
        position: usize,
        /// Why it waits.
        reason: Reason,
        /// When, as far as that is known.
        start: Option<String>,
    },
    /// It is not known yet when they start.
    NoStart(ClaimId),
    /// Refuse a claim that waits.
    Refuse(ClaimId, WireError),
    /// Ask the core for another size.
    Resize(Box<(Wish, Change, Option<Duration>)>),
    /// What the core has decided about another size.
    Resized(Action),
    /// A claim's share of the SMs is another for a while.
    Share(ClaimId, Vec<Slice>),
    /// Tell the end of a process, which belongs to this claim.
    WatchExit(ClaimId, ProcessKey, Arc<PidFd>),
    /// Guarantee to a claim no more than it uses.
    Shrink(ClaimId),
    /// The core has decided about that.
    Shrunk(Box<Shrink>),
    /// Use the cgroup of a claim on behalf that has appeared.
    Enter(ClaimId),
    /// Move a claim into a slice of systemd's.
    IntoSlice(ClaimId),
}

/// Commands about claims that leave their GPUs and come back.
#[derive(Debug)]
pub(crate) enum LeverCommand {
    /// What was asked of a claim is not done.
    RefuseLever(ClaimId, String),
    /// Have a claim leave its GPUs, come back or move, as the core has decided.
    Pull(Action),
    /// Begin, or go on with, what the journal says is under way for a claim.
    BeginLever {
        /// Which.
        id: ClaimId,
        /// It goes on where the service before died.
        again: bool,
    },
    /// Go on with what was under way when the service before died.
    Resume(ClaimId),
    /// Have the checkpoint engine do it.
    StartLever(Box<Prepared>),
    /// It has done its part.
    LeverDone(ClaimId, Outcome),
    /// A caller waits for what they asked of a claim.
    AwaitLever(ClaimId, Sender),
    /// Tell them where it stands in the queue.
    TellQueued(ClaimId, Sender),
    /// What was to be done to a claim has been done: tell those who wait for it, or its owner.
    TellLever(ClaimId, String),
    /// A call of an offloaded claim waits for its memory.
    Wanted {
        /// Which.
        id: ClaimId,
        /// A person has asked for it already.
        asked: bool,
    },
    /// Say what it waits for.
    AnswerWanted(ClaimId, Sender),
    /// Write down where the memory of a claim is.
    KeepHolding(ClaimId, Box<HoldingRecord>),
    /// A claim is on these GPUs from now on.
    NowOn {
        /// Which.
        id: ClaimId,
        /// Its parts.
        to: Vec<SliceRecord>,
        /// The GPUs that it is bound to.
        only: Vec<String>,
    },
    /// Write which GPUs a claim has into its pages.
    Relabel(ClaimId),
    /// Have the filter of a claim open its GPUs.
    OpenAgain(ClaimId),
    /// Have all processes of a claim stand still, or run again.
    Freeze(ClaimId, bool),
    /// The calls of a claim that is on its GPU wait no longer.
    EndWaits(ClaimId),
    /// What the core wanted done to a claim is not done.
    LeverFailed {
        /// Which.
        id: ClaimId,
        /// How.
        failure: Failure,
        /// Why.
        why: String,
    },
    /// Offload a claim although nobody waits.
    Offload(ClaimId),
}

/// Commands about filters and limits.
#[derive(Debug)]
pub(crate) enum LimitCommand {
    /// Write the limits of a claim as they are to be now, in its pages and with the driver.
    LimitsAnew(ClaimId),
    /// Those of all claims.
    AllLimitsAnew,
    /// Members of a claim lack a mount over the driver: it may open no GPU.
    Uncover(ClaimId),
    /// They have it again.
    Cover(ClaimId),
    /// Make the mounts again of these members of a claim.
    Remount {
        /// Which.
        id: ClaimId,
        /// Members that lack a mount.
        bare: Vec<i32>,
        /// The mounts.
        expected: Vec<Bind>,
    },
    /// Write the cap of a claim on a GPU into its page.
    WriteCap(ClaimId, Slice),
    /// The core hears what claims have been charged.
    Measure,
    /// Bring the filter that keeps programs outside claims from GPUs to where it belongs.
    Deny,
    /// Make the filters of all claims, of what is left of ended ones, and of programs without a claim anew.
    FiltersAnew,
    /// Account processes outside claims by the newest sample.
    Account,
    /// Compare the newest sample with what claims may have.
    Reconcile,
    /// Find out on which GPUs the driver itself can limit memory.
    ProbeLimits,
    /// Have the driver hold a claim to its size.
    LimitMemory(ClaimId),
    /// Write the caps of a claim on a GPU into its page.
    WriteCaps(ClaimId, usize),
}
