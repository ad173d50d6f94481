//! What features are told. Closed: a feature knows nothing of another but what stands here and in the
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

/// What the processes of claims say in their pages, by claim and index of the GPU.
pub(crate) type Pages = BTreeMap<(ClaimId, usize), Vec<SlotView>>;

/// A look at what runs.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// What the pages of claims say.
    pub(crate) pages: Pages,
    /// What works beside claims, by index of the GPU.
    pub(crate) others: Vec<Others>,
}

/// What works on a GPU beside claims.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Others {
    /// A process that computes.
    pub(crate) compute: bool,
    /// A process that draws.
    pub(crate) draw: bool,
}

/// What is known of claims at a tick.
#[derive(Debug, Default)]
pub(crate) struct Tick {
    /// State of the kernel by its Jupyter server, and for how long it has done nothing.
    pub(crate) kernels: BTreeMap<ClaimId, (String, Option<Duration>)>,
    /// Why a claim can never be offloaded.
    pub(crate) fixed: BTreeMap<ClaimId, String>,
    /// The cgroups of claims on behalf.
    pub(crate) cgroups: BTreeMap<ClaimId, Found>,
}

/// A cgroup that gshare does not own, at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is the one that is in use.
    Same,
    /// It has appeared, or was removed and made again.
    Anew,
    /// There is none.
    Gone,
}

/// One step of the core.
#[derive(Debug)]
pub(crate) struct Decided {
    /// So long it took.
    pub(crate) took: Duration,
    /// Claims that it refused.
    pub(crate) refused: u64,
    /// Time limits that ended.
    pub(crate) leases_over: u64,
    /// Caps that it set.
    pub(crate) caps: u64,
}

/// Something that has happened.
#[derive(Debug)]
pub(crate) enum Fact {
    /// The service has found its GPUs and its claims again.
    Started {
        /// Errors of GPUs since the machine was started, oldest first.
        xids: Vec<XidRecord>,
    },
    /// It is known whose the processes of the newest look are.
    Owners {
        /// Those of them that serve MPS.
        servers: Vec<i32>,
    },
    /// A process may have come into another claim.
    MayHaveMoved,
    /// These processes outside claims are accounted as claims of their own.
    Accounted(BTreeSet<u32>),
    /// The GPUs have been looked at, and the pages at the same time.
    Sample(Look),
    /// The same where the driver has given no sample for a while.
    NoSample(Look),
    /// A process of a claim is gone, and its slot will be another's.
    Departed {
        /// Its claim.
        claim: ClaimId,
        /// Index.
        gpu: usize,
        /// What it said last.
        slot: Box<SlotView>,
    },
    /// Some time has passed.
    Tick(Tick),
    /// What the Jupyter servers of a user say of kernels.
    Notebooks {
        /// Whose.
        uid: u32,
        /// What.
        seen: Vec<Seen>,
    },
    /// A line of the service's is about to be written into the output of a kernel.
    NotebookLine {
        /// The kernel's process.
        pid: i32,
        /// When it started.
        start_ticks: u64,
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// It is known whether the connection file of a kernel that has ended is there.
    KernelSeen {
        /// Its claim.
        claim: ClaimId,
        /// The file is gone.
        shut_down: bool,
    },
    /// The core has made a step.
    Decided(Decided),
    /// A claim has got its GPU.
    Granted {
        /// After this time.
        waited: Duration,
    },
    /// A claim has ended.
    Ended {
        /// So many allocations were refused at its cap.
        refusals: u64,
    },
    /// A claim has come to its GPU just now.
    Arrived {
        /// Which.
        claim: ClaimId,
    },
    /// Its owner keeps a claim that idles.
    Kept {
        /// Which.
        claim: ClaimId,
    },
    /// What claims have used of processors and disks so far; absent where that cannot be read.
    Vitals(Vec<(ClaimId, Option<Vitals>)>),
    /// Of the claims that may be ended, as few as let somebody start.
    FewestToEnd(Vec<ClaimId>),
    /// The kernel's log has an error of a GPU.
    KernelXid {
        /// What it says.
        xid: KernelXid,
        /// The claim of the process that it names.
        claim: Option<ClaimId>,
    },
    /// A GPU that was let go is taken back, and may have been reset.
    TakenBack {
        /// Index.
        gpu: usize,
    },
    /// An administrator says that a GPU is mended.
    Mended {
        /// Index.
        gpu: usize,
    },
    /// Something was told on the screen.
    Told {
        /// The owner of the claim that it is about.
        owner: Option<u32>,
        /// What.
        notice: Notice,
    },
}
