//! Messages from connections and threads to the state's task.

use std::collections::BTreeMap;

use gshare_abi::wire::{Launch, Register, Want};
use gshare_core::ClaimId;
use gshare_core::machine::lever::Failure;
use gshare_enforcer::gpu::GpuSample;
use gshare_enforcer::mps::{MpsEvent, Server};
use gshare_enforcer::proc::{ProcessKey, Terminal};
use gshare_proto::{AdminCall, AdminDone, Call, WireError};
use tokio::sync::oneshot;

use super::connection::{ConnId, Sender, Turn};
use super::fact::{Fact, KernelXid};
use super::history::worker::Told;
use super::peer::Peer;
use super::stage::past::Past;

/// Messages to the state's task. Closed: nothing else can change the state.
#[derive(Debug)]
pub(crate) enum Msg {
    /// A request.
    Call {
        peer: Peer,
        call: Call,
        /// Where the answer goes.
        out: Sender,
        /// Returned once handled: until then the connection is not read.
        turn: Turn,
    },
    /// A process with the library requests its pages.
    Register {
        peer: Peer,
        register: Register,
        /// Where the answer goes.
        out: Sender,
        /// As for a request.
        turn: Turn,
    },
    /// The launcher is about to execute a command.
    Launch {
        peer: Peer,
        launch: Launch,
        /// Where the answer goes.
        out: Sender,
        /// As for a request.
        turn: Turn,
    },
    /// About offloading, restoring and moving claims.
    Lever(LeverMsg),
    /// The driver's files have changed.
    DriverFiles,
    /// Cgroups or sessions have appeared or vanished.
    Places,
    /// A connection ended.
    Closed { conn: ConnId, uid: u32 },
    /// A watched process has ended.
    Exited {
        /// The claim it belonged to.
        claim: ClaimId,
        process: ProcessKey,
        /// Its exit status, if the kernel reports it.
        status: Option<std::process::ExitStatus>,
    },
    /// The metrics are scraped.
    Scrape(oneshot::Sender<String>),
    /// A report of the thread of a GPU's MPS daemon.
    Mps { gpu: usize, report: MpsReport },
    /// More is known of users: the parties of their claims may have changed.
    Accounts,
    /// A program without a claim was denied a GPU.
    Refused(Box<Refused>),
    /// A GPU has been divided, or not.
    Divided {
        gpu: usize,
        /// Answer for the caller.
        result: Result<AdminDone, WireError>,
        /// Where the answer goes.
        out: Sender,
    },
    /// The data that an order for a stage needs were read.
    Stage {
        /// The administrator.
        peer: Peer,
        call: AdminCall,
        /// Runs of the last days.
        past: Result<Past, WireError>,
        /// Where the answer goes.
        out: Sender,
    },
    /// A fact for the features.
    Fact(Fact),
    /// The kernel's log reports an error of a GPU.
    KernelXid(KernelXid),
    /// A report of the history's thread.
    History(Told),
    /// The observer has looked at the GPUs.
    Sample(Box<GpuSample>),
}

impl Msg {
    /// The client that sent it; messages of one connection keep their order.
    pub(super) fn owner(&self) -> Option<u32> {
        match self {
            Self::Call { peer, .. }
            | Self::Register { peer, .. }
            | Self::Launch { peer, .. }
            | Self::Lever(LeverMsg::Want { peer, .. }) => Some(peer.uid),
            Self::Closed { uid, .. } => Some(*uid),
            _ => None,
        }
    }

    /// Whether it can move a process into another claim.
    pub(super) fn may_move(&self) -> bool {
        match self {
            Self::Call { call, .. } => !matches!(
                call,
                Call::Watch { .. }
                    | Call::Snapshot
                    | Call::Doctor
                    | Call::History(_)
                    | Call::Report(_)
                    | Call::Stored { .. }
                    | Call::Try(_)
                    | Call::Env { .. }
                    | Call::Log { .. }
                    | Call::Lease { .. }
            ),
            Self::Register { .. } | Self::Launch { .. } | Self::Lever(_) => true,
            _ => false,
        }
    }
}

/// A program that was denied a GPU.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) minor: Option<u32>,
    pub(crate) command: Vec<String>,
    pub(crate) terminal: Option<Terminal>,
}

/// Messages to the state's task about levers.
#[derive(Debug)]
pub(crate) enum LeverMsg {
    /// A member of an offloaded claim needs its memory.
    Want {
        peer: Peer,
        want: Want,
        /// Where the answer goes.
        out: Sender,
        /// Returned once handled.
        turn: Turn,
    },
    /// The checkpoint engine has started, or cannot.
    Engine(Result<(), String>),
    /// Whether Slurm has suspended the job of a claim; false also if Slurm does not answer.
    Suspended(ClaimId, bool),
    /// A claim is between GPU and host, and the step that failed is repeated.
    Stuck { id: ClaimId, why: String },
    /// A lever on a claim has ended.
    Done {
        id: ClaimId,
        outcome: Outcome,
        /// Processes that the driver has lost, or does not answer for.
        unable: BTreeMap<i32, Unable>,
    },
}

/// Why the memory of a process cannot leave its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unable {
    /// It has NCCL loaded, in a claim with several GPUs.
    Nccl,
    /// While another process of the claim was locked, the driver gave no answer for it.
    Silent,
    /// The driver has lost it (`FAILED`), in this function if known.
    Lost(Option<&'static str>),
}

/// Result of a lever.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    /// The claim is where it was.
    Failed(Failure, String),
}

/// Reports of the thread of a GPU's MPS daemon.
#[derive(Debug)]
pub(crate) enum MpsReport {
    /// New events, and the present servers.
    Seen(Vec<MpsEvent>, Vec<Server>),
    /// The daemon could not be started.
    NotStarted(String),
    /// The daemon serves in an unused directory.
    Renewed,
    /// The clients of an ending claim were ended on the GPU, or time ran out: they may be signalled.
    Terminated(ClaimId),
}
