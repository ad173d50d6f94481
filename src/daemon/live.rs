//! A granted claim, as long as it lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use gshare_enforcer::cgroup::ClaimCgroup;
use gshare_enforcer::proc::{PidFd, ProcessKey};

use super::journal::ClaimRecord;
use super::service::{Ending, Seat};

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
    pub(crate) wanting: Vec<super::lazy::Wanting>,
    /// What they were told last.
    pub(crate) told_wait: Option<String>,
    /// When that was, if it did not say when they start.
    pub(crate) told_no_start: Option<Instant>,
    /// Its kernel has ended and may be started again.
    pub(crate) gap: Option<super::lazy::Gap>,
    /// Registered processes that live, and the handles on them.
    pub(crate) members: BTreeMap<ProcessKey, Arc<PidFd>>,
    /// Refusals at the cap by processes that are gone.
    pub(crate) past_refusals: u64,
    /// Launches by processes that are gone.
    pub(crate) past_launches: u64,
    /// When a member that has ended launched something last, by the monotonic clock.
    pub(crate) past_launch_ns: Option<u64>,
    /// When a member that lives launched something last, by the monotonic clock, at the last look.
    pub(crate) last_launch_ns: Option<u64>,
    /// Refusals that were already told.
    pub(crate) told_refusals: u64,
    /// When that was.
    pub(crate) told_at: Option<Instant>,
    /// Highest charge seen, summed over its GPUs.
    pub(crate) peak: u64,
}

impl Live {
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
            gap: None,
            members: BTreeMap::new(),
            past_refusals: 0,
            past_launches: 0,
            past_launch_ns: None,
            last_launch_ns: None,
            told_refusals: 0,
            told_at: None,
            peak: 0,
        }
    }
}
