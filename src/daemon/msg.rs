//! What the task that owns the state is told by connections and threads, and what they say in it.

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

/// What the task that owns the state is told. Closed: nothing else can change the state.
#[derive(Debug)]
pub(crate) enum Msg {
    /// A request.
    Call {
        /// The caller.
        peer: Peer,
        /// What.
        call: Call,
        /// Where the answer goes.
        out: Sender,
        /// Given back once handled: until then the connection is not read.
        turn: Turn,
    },
    /// A process with the shim wants its pages.
    Register {
        /// The caller.
        peer: Peer,
        /// What it says of itself.
        register: Register,
        /// Where the answer goes.
        out: Sender,
        /// As for a request.
        turn: Turn,
    },
    /// The launcher is about to become a command.
    Launch {
        /// The caller.
        peer: Peer,
        /// For which claim.
        launch: Launch,
        /// Where the answer goes.
        out: Sender,
        /// As for a request.
        turn: Turn,
    },
    /// Claims that leave their GPUs and come back.
    Lever(LeverMsg),
    /// Files of the driver have changed.
    DriverFiles,
    /// Cgroups or sessions have come or gone.
    Places,
    /// A connection ended.
    Closed {
        /// Which.
        conn: ConnId,
        /// Whose it was.
        uid: u32,
    },
    /// A process that was watched has ended.
    Exited {
        /// The claim it belonged to.
        claim: ClaimId,
        /// The process.
        process: ProcessKey,
        /// How it ended, where the kernel says it.
        status: Option<std::process::ExitStatus>,
    },
    /// The metrics are scraped.
    Scrape(oneshot::Sender<String>),
    /// The thread of a GPU's MPS daemon has something to tell.
    Mps {
        /// Which GPU.
        gpu: usize,
        /// What.
        report: MpsReport,
    },
    /// More is known of users than before: the parties of their claims may be others.
    Accounts,
    /// A program without a claim was kept from a GPU.
    Refused(Box<Refused>),
    /// A GPU has been divided, or not.
    Divided {
        /// Index.
        gpu: usize,
        /// What to tell.
        result: Result<AdminDone, WireError>,
        /// Where the answer goes.
        out: Sender,
    },
    /// What an order for a stage needs to know was read.
    Stage {
        /// The administrator.
        peer: Peer,
        /// What.
        call: AdminCall,
        /// The last days.
        past: Result<Past, WireError>,
        /// Where the answer goes.
        out: Sender,
    },
    /// Something for the features alone.
    Fact(Fact),
    /// The kernel's log has an error of a GPU.
    KernelXid(KernelXid),
    /// The thread of the history has something to tell.
    History(Told),
    /// The observer has looked at the GPUs.
    Sample(Box<GpuSample>),
}

impl Msg {
    /// The client whose message it is; of one connection they stay in their order.
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

    /// Whether a process may come into another claim by it.
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

/// A program that was kept from a GPU.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) minor: Option<u32>,
    pub(crate) command: Vec<String>,
    pub(crate) terminal: Option<Terminal>,
}

/// What the task that owns the state is told about levers.
#[derive(Debug)]
pub(crate) enum LeverMsg {
    /// A member of an offloaded claim needs its memory.
    Want {
        /// The caller.
        peer: Peer,
        /// What it says.
        want: Want,
        /// Where the answer goes.
        out: Sender,
        /// Given back once handled.
        turn: Turn,
    },
    /// The checkpoint engine has started, or cannot.
    Engine(Result<(), String>),
    /// A claim is neither here nor there, and what it waits for is tried again.
    Stuck {
        /// The claim.
        id: ClaimId,
        /// Why.
        why: String,
    },
    /// A lever on a claim has been pulled.
    Done {
        /// The claim.
        id: ClaimId,
        /// What came of it.
        outcome: Outcome,
        /// Processes that the driver has lost, or does not answer for.
        unable: BTreeMap<i32, Unable>,
    },
}

/// Why the memory of a process stays on its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unable {
    /// It has NCCL loaded, in a claim of several GPUs.
    Nccl,
    /// While another process of the claim was locked the driver gave no answer for it.
    Silent,
    /// The driver has lost it (`FAILED`), in this function where that is known.
    Lost(Option<&'static str>),
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Done.
    Done,
    /// The claim is where it was.
    Failed(Failure, String),
}

/// What the thread of a GPU's MPS daemon tells.
#[derive(Debug)]
pub(crate) enum MpsReport {
    /// What has happened, and the servers there are now.
    Seen(Vec<MpsEvent>, Vec<Server>),
    /// The daemon could not be started.
    NotStarted(String),
    /// The daemon serves in a directory that nobody has used.
    Renewed,
    /// The clients of a claim that ends were ended on the GPU, or time ran out: they may be signalled.
    Terminated(ClaimId),
}
