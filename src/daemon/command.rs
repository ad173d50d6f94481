//! What features want to be done. Closed. The commands of one fact are collected while all features see it, and then
//! carried out by the service, the journal first.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gshare_abi::State;
use gshare_abi::wire::Bind;
use gshare_config::GpuMode;
use gshare_core::machine::Event;
use gshare_core::machine::lever::Failure;
use gshare_core::{Bytes, ClaimId, Party, Quota};
use gshare_enforcer::proc::{PidFd, ProcessKey, Terminal};
use gshare_proto::{Reply, WireError};

use super::conformance::Conformance;
use super::connection::Sender;
use super::fact::Fact;
use super::gpu::ReleasedGpus;
use super::journal::{DrainRecord, Store};
use super::live::Ending;
use super::mig::Dividing;
use super::off::Which;
use super::release::LetGo;
use crate::stage::Stages;

/// Something to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Write it into the journal, in one transaction with the others of the same fact. A full disk loses it, and nothing
    /// else.
    Store(Store),
    /// The core hears of something.
    Core(Event),
    /// All features hear of something.
    Tell(Fact),
    /// The core hears what the GPUs are like now.
    Refresh,
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
    /// Answer a caller.
    Reply(Sender, Result<Reply, WireError>),
    /// A GPU takes no new claims.
    Drain(DrainRecord),
    /// It does again, by its lasting name.
    Undrain(String),
    /// The mode that a GPU gets when it is empty.
    NextMode(usize, Option<GpuMode>),
    /// Modes that were waited for come into force on GPUs that are empty.
    ChangeModes,
    /// Let go of GPUs, and answer when nothing has them open any more.
    LetGo(Box<LetGo>),
    /// These GPUs are let go, and no others.
    TakeBack(ReleasedGpus),
    /// Divide a GPU.
    Divide(Box<Dividing>),
    /// A GPU has been divided, or not: look at it.
    Divided(usize),
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
    /// Write the limits of a claim as they are to be now, in its pages and with the driver.
    LimitsAnew(ClaimId),
    /// Those of all claims.
    AllLimitsAnew,
    /// Look up whose the processes of the newest sample are.
    LookUpOwners,
    /// A process may have come into another claim: all are looked up at the next look.
    DoubtOwners,
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
    /// What the core wanted done to a claim is not done.
    LeverFailed {
        /// Which.
        id: ClaimId,
        /// How.
        failure: Failure,
        /// Why.
        why: String,
    },
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
    /// A member of a claim that has nothing but a context uses so much of a GPU.
    Relearn(ClaimId, usize, Bytes),
    /// Tell the end of a process, which belongs to this claim.
    WatchExit(ClaimId, ProcessKey, Arc<PidFd>),
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
    /// Offload a claim although nobody waits.
    Offload(ClaimId),
    /// Guarantee to a claim no more than it uses.
    Shrink(ClaimId),
    /// End a claim.
    End {
        /// Which.
        id: ClaimId,
        /// Why.
        cause: Cow<'static, str>,
    },
    /// Use the cgroup of a claim on behalf that has appeared.
    Enter(ClaimId),
    /// Find out which of these to end: as few as let somebody start.
    FewestToEnd(Vec<ClaimId>),
    /// Read what these claims have used of processors and disks.
    ReadVitals(Vec<ClaimId>),
    /// Look up the groups of a user.
    LookUpGroups(u32),
    /// Ask the Jupyter servers of all kernels.
    AskServers,
    /// Look, as the owner of a claim, whether its kernel's connection file is there.
    LookFor(ClaimId, u32, PathBuf),
    /// GPUs are shared in another way: MPS follows, and the core is told.
    ShareAnew,
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
    /// Tell a user on the screen.
    TellUser(u32, String),
    /// Tell the owner of a claim, also on its terminals and in its notebook.
    TellOwner {
        /// Which.
        id: ClaimId,
        /// What.
        text: String,
    },
}
