//! A granted claim while it lives.

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

/// Time between SIGTERM and SIGKILL for processes that hold the GPU of a released claim.
pub(super) const TERM_GRACE: Duration = Duration::from_secs(10);

/// A claim's pages on one GPU.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) gpu: usize,
    pub(crate) limits: LimitsFile,
    /// Its use.
    pub(crate) usage: UsageMemfd,
    /// The arbiter's mapping; absent if no descriptor was left for it.
    pub(crate) turning: Option<Arc<Turning>>,
}

/// The end of a claim.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Cause, for the record and the screen.
    pub(crate) cause: String,
    /// When it began.
    pub(crate) since: Instant,
    /// When processes that still hold GPU memory are killed; `None`: they are waited for.
    pub(crate) kill_at: Option<Instant>,
    /// Kills have been reported.
    pub(crate) told: bool,
    /// All processes end, not only those that hold the GPU.
    pub(crate) all: bool,
    /// The processes keep the GPU until then, to save their state.
    pub(crate) saving: bool,
    /// While MPS ends the work of its clients: the time between the signals that follow.
    pub(crate) by_mps: Option<Duration>,
}

impl Ending {
    /// Processes that hold the GPU get SIGTERM now and SIGKILL after the grace time. With `all`, so do all other
    /// processes of the claim.
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

    /// The command has exited; processes that still hold the GPU are waited for.
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

/// Figures of a claim's ended processes.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Refusals at the cap.
    pub(crate) refusals: u64,
    pub(crate) launches: u64,
    /// Last launch of an ended process, by the monotonic clock.
    pub(crate) launch_ns: Option<u64>,
}

/// What an owner was last told about refusals at the cap.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) refusals: u64,
    /// Time of the notice.
    pub(crate) at: Option<Instant>,
}

/// One granted claim.
#[derive(Debug)]
pub(crate) struct Live {
    /// Its journaled record.
    pub(crate) record: ClaimRecord,
    /// Its pages.
    pub(crate) seats: Vec<Seat>,
    /// Its cgroup, where there are cgroups.
    pub(crate) cgroup: Option<ClaimCgroup>,
    /// The command is running.
    pub(crate) command_alive: bool,
    /// Its exit status, if the kernel reported it.
    pub(crate) exit: Option<std::process::ExitStatus>,
    /// Members lack a mount over the driver, and cannot open a GPU until it is restored.
    pub(crate) uncovered: bool,
    /// Set while it is being ended.
    pub(crate) ending: Option<Ending>,
    /// Processes that wait until it has its GPUs.
    pub(crate) wanting: Vec<Wanting>,
    /// What they were last told.
    pub(crate) told_wait: Option<Answer>,
    /// Registered processes that live, with a handle on each.
    pub(crate) members: BTreeMap<ProcessKey, Arc<PidFd>>,
    /// Figures of its ended processes.
    pub(crate) past: Past,
    /// Last launch of a living member, by the monotonic clock, at the last look.
    pub(crate) last_launch_ns: Option<u64>,
    /// The last notice about refusals.
    pub(crate) told: Told,
    /// Highest charge seen, summed over its GPUs.
    pub(crate) peak: u64,
}

impl Live {
    /// Whether it stays when its command has ended: until it is released, or because Jupyter may restart its kernel.
    pub(crate) fn stays_without_command(&self) -> bool {
        self.ending.is_none() && (self.record.terms.hold || self.record.origin.kernel.is_some())
    }

    /// A claim from its record, without pages or cgroup.
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
            members: BTreeMap::new(),
            past: Past::default(),
            last_launch_ns: None,
            told: Told::default(),
            peak: 0,
        }
    }
}
