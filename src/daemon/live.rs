//! A granted claim, as long as it lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_abi::host::{LimitsFile, UsageMemfd};
use gshare_abi::wire::{Answer, Register};
use gshare_enforcer::cgroup::ClaimCgroup;
use gshare_enforcer::proc::{PidFd, ProcessKey};

use super::arbiter::Turning;
use super::connection::Sender;
use super::journal::ClaimRecord;
use super::peer::Peer;

/// Between SIGTERM and SIGKILL to processes that hold the GPU of a released claim.
pub(super) const TERM_GRACE: Duration = Duration::from_secs(10);

/// A claim's pages on one GPU.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Index of the GPU.
    pub(crate) gpu: usize,
    /// What the claim may do.
    pub(crate) limits: LimitsFile,
    /// What it does.
    pub(crate) usage: UsageMemfd,
    /// The same for the arbiter; absent where there was no descriptor left for it.
    pub(crate) turning: Option<Arc<Turning>>,
}

/// A claim that ends.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Cause, for the record and the screen.
    pub(crate) cause: String,
    /// When it began.
    pub(crate) since: Instant,
    /// When processes that still hold GPU memory are killed; `None`: they are waited for.
    pub(crate) kill_at: Option<Instant>,
    /// That some were killed has been told.
    pub(crate) told: bool,
    /// All processes end with it, not only those that hold the GPU.
    pub(crate) all: bool,
    /// They have the GPU until then, to save what they have.
    pub(crate) saving: bool,
    /// While MPS ends the work of its clients: the time between the signals that follow.
    pub(crate) by_mps: Option<Duration>,
}

impl Ending {
    /// Those who hold the GPU get SIGTERM now and SIGKILL after the grace time.
    /// With `all`, so do all other processes of the claim.
    pub(crate) fn killing(cause: &str, all: bool) -> Self {
        Self {
            cause: cause.to_owned(),
            since: Instant::now(),
            kill_at: Some(Instant::now() + TERM_GRACE),
            told: false,
            all,
            saving: false,
            by_mps: None,
        }
    }

    /// The command has exited; those who still hold the GPU are waited for.
    pub(crate) fn waiting() -> Self {
        Self {
            cause: "command exited".to_owned(),
            since: Instant::now(),
            kill_at: None,
            told: false,
            all: false,
            saving: false,
            by_mps: None,
        }
    }
}

/// A process that waits for the grant of its claim.
#[derive(Debug)]
pub(crate) struct Wanting {
    pub(crate) peer: Peer,
    pub(super) register: Register,
    pub(super) out: Sender,
}

/// What processes of a claim did that are gone.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Refusals at the cap.
    pub(crate) refusals: u64,
    pub(crate) launches: u64,
    /// When one that ended launched something last, by the monotonic clock.
    pub(crate) launch_ns: Option<u64>,
}

/// What an owner was told of refusals at the cap.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// So many.
    pub(crate) refusals: u64,
    /// When that was.
    pub(crate) at: Option<Instant>,
}

/// One granted claim.
#[derive(Debug)]
pub(crate) struct Live {
    /// What the journal says.
    pub(crate) record: ClaimRecord,
    /// Its pages.
    pub(crate) seats: Vec<Seat>,
    /// Its cgroup, where there are cgroups.
    pub(crate) cgroup: Option<ClaimCgroup>,
    /// The command runs.
    pub(crate) command_alive: bool,
    /// How it ended, where the kernel said it.
    pub(crate) exit: Option<std::process::ExitStatus>,
    /// Members lack a mount over the driver, and it may open no GPU until they have it again.
    pub(crate) uncovered: bool,
    /// Being ended, and why.
    pub(crate) ending: Option<Ending>,
    /// Processes that wait until it has its GPUs.
    pub(crate) wanting: Vec<Wanting>,
    /// What they were told last.
    pub(crate) told_wait: Option<Answer>,
    /// When that was, if it did not say when they start.
    pub(crate) told_no_start: Option<Instant>,
    /// Registered processes that live, and the handles on them.
    pub(crate) members: BTreeMap<ProcessKey, Arc<PidFd>>,
    /// What processes that are gone did.
    pub(crate) past: Past,
    /// When a member that lives launched something last, by the monotonic clock, at the last look.
    pub(crate) last_launch_ns: Option<u64>,
    /// The refusals that were told.
    pub(crate) told: Told,
    /// Highest charge seen, summed over its GPUs.
    pub(crate) peak: u64,
}

impl Live {
    /// Whether it goes on without its command: until it is released, or because Jupyter may start its kernel again.
    pub(crate) fn stays_without_command(&self) -> bool {
        self.ending.is_none() && (self.record.terms.hold || self.record.origin.kernel.is_some())
    }

    /// A claim as the journal has it, with nothing set up yet.
    pub(crate) fn new(record: ClaimRecord) -> Self {
        Self {
            record,
            seats: Vec::new(),
            cgroup: None,
            command_alive: false,
            exit: None,
            uncovered: false,
            ending: None,
            wanting: Vec::new(),
            told_wait: None,
            told_no_start: None,
            members: BTreeMap::new(),
            past: Past::default(),
            last_launch_ns: None,
            told: Told::default(),
            peak: 0,
        }
    }
}
