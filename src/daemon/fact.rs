//! Facts: what features are told. Closed: a feature knows of other features only through these and the
//! [`World`](super::world::World).

mod xid;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gshare_abi::host::SlotView;
use gshare_core::ClaimId;
use gshare_proto::Notice;

use super::history::vitals::Vitals;
use super::journal::XidRecord;
use crate::kernel::seen::Seen;

pub(crate) use self::xid::{KernelXid, Pci};

/// Reports of the claims' processes in their pages, by claim and index of the GPU.
pub(crate) type Pages = BTreeMap<(ClaimId, usize), Vec<SlotView>>;

/// One look at the GPUs.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) pages: Pages,
    /// Use without a claim, by index of the GPU.
    pub(crate) others: Vec<Others>,
}

/// Use of a GPU without a claim.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Others {
    /// A compute process runs.
    pub(crate) compute: bool,
    /// A graphics process runs.
    pub(crate) draw: bool,
}

/// State of claims at a tick.
#[derive(Debug, Default)]
pub(crate) struct Tick {
    /// State of each kernel by its Jupyter server, and for how long it has been idle.
    pub(crate) kernels: BTreeMap<ClaimId, (String, Option<Duration>)>,
    /// Why a claim can never be offloaded.
    pub(crate) fixed: BTreeMap<ClaimId, String>,
    /// The cgroups of claims on behalf.
    pub(crate) cgroups: BTreeMap<ClaimId, Found>,
}

/// A cgroup that gshare does not own, at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is unchanged.
    Same,
    /// It has appeared, or was removed and made again.
    Anew,
    /// It does not exist.
    Gone,
}

/// One step of the core.
#[derive(Debug)]
pub(crate) struct Decided {
    /// Duration of the step.
    pub(crate) took: Duration,
    /// Number of refused claims.
    pub(crate) refused: u64,
    /// Number of time limits that ended.
    pub(crate) leases_over: u64,
    /// Number of caps that it set.
    pub(crate) caps: u64,
}

/// Something that has happened.
#[derive(Debug)]
pub(crate) enum Fact {
    /// The service has found its GPUs and its claims.
    Started {
        /// Errors of GPUs since the machine started, oldest first.
        xids: Vec<XidRecord>,
    },
    /// The owners of the processes in the newest look are known.
    Owners {
        /// Processes that serve MPS.
        servers: Vec<i32>,
    },
    /// A process may have changed its claim.
    MayHaveMoved,
    /// These processes without a claim are accounted as claims of their own.
    Accounted(BTreeSet<u32>),
    /// The GPUs and the pages have been looked at.
    Sample(Look),
    /// The pages have been looked at; the driver has given no sample for a while.
    NoSample(Look),
    /// A process of a claim has ended, and its slot will be reused.
    Departed {
        claim: ClaimId,
        gpu: usize,
        /// Its last report.
        slot: Box<SlotView>,
    },
    /// Time has passed.
    Tick(Tick),
    /// Answers of a user's Jupyter servers about kernels.
    Notebooks { uid: u32, seen: Vec<Seen> },
    /// The service is about to write a line into the output of a kernel.
    NotebookLine {
        pid: i32,
        /// When it started.
        start_ticks: u64,
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// Whether the connection file of a kernel that has ended still exists.
    KernelSeen {
        claim: ClaimId,
        /// The file is gone.
        shut_down: bool,
    },
    /// The core has made a step.
    Decided(Decided),
    /// A claim has got its GPU.
    Granted { waited: Duration },
    /// A claim has ended.
    Ended {
        /// Allocations refused at its cap.
        refusals: u64,
    },
    /// A claim has just arrived on its GPU.
    Arrived { claim: ClaimId },
    /// Its owner keeps an idle claim.
    Kept { claim: ClaimId },
    /// Total use of processors and disks by claims; absent if it cannot be read.
    Vitals(Vec<(ClaimId, Option<Vitals>)>),
    /// The smallest subset of the claims that may be ended whose end lets a waiting claim start.
    FewestToEnd(Vec<ClaimId>),
    /// The kernel's log reports an error of a GPU.
    KernelXid {
        xid: KernelXid,
        /// The claim of the process that it names.
        claim: Option<ClaimId>,
    },
    /// A released GPU is taken back; it may have been reset.
    TakenBack { gpu: usize },
    /// An administrator reports that a GPU is repaired.
    Mended { gpu: usize },
    /// A notice was shown on the screen.
    Told {
        /// The owner of the claim that it is about.
        owner: Option<u32>,
        notice: Notice,
    },
}
