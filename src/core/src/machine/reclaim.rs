//! Taking capacity back: what may be done to whom, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use super::holding::{Granted, Transit};
use super::lever::{Failure, Parked};
use super::{Action, Machine, Now};
use crate::claim::ClaimId;
use crate::units::Bytes;

/// The rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimRules {
    /// Anything is taken from claims that run.
    pub enabled: bool,
    /// Claims that can burst go to idle GPUs.
    pub spread: bool,
    /// A claim runs at least so long where it is before anything is taken from it.
    pub min_run: Duration,
    /// Between the announcement and the deed.
    pub countdown: Duration,
    /// What its owner has kept is not taken for so long.
    pub keep: Duration,
    /// Commands that were claimed so may be ended and queued again.
    pub requeue: bool,
    /// Claims to which nothing else can be done may be ended.
    pub kill: bool,
}

impl Default for ReclaimRules {
    fn default() -> Self {
        Self {
            enabled: true,
            spread: true,
            min_run: Duration::from_secs(60),
            countdown: Duration::from_secs(30),
            keep: Duration::from_secs(600),
            requeue: true,
            kill: false,
        }
    }
}

impl ReclaimRules {
    /// When a lever that did not work may be tried again on the same claim.
    pub(super) fn again_after(&self, failure: Failure) -> Duration {
        match failure {
            Failure::Busy | Failure::TimedOut => self.min_run.max(Duration::from_secs(60)),
            Failure::HostRam => Duration::from_secs(60),
            Failure::Refused | Failure::Lost => Duration::from_secs(600),
        }
    }
}

/// What is known for taking back.
#[derive(Clone, Debug)]
pub(super) struct Reclaim {
    pub(super) rules: ReclaimRules,
    pub(super) granted: BTreeMap<ClaimId, Granted>,
    pub(super) parked: BTreeMap<ClaimId, Parked>,
    pub(super) transit: BTreeMap<ClaimId, Transit>,
    /// Host memory that parked claims may take together.
    pub(super) host_ram: Bytes,
}

impl Default for Reclaim {
    fn default() -> Self {
        Self {
            rules: ReclaimRules::default(),
            granted: BTreeMap::new(),
            parked: BTreeMap::new(),
            transit: BTreeMap::new(),
            host_ram: Bytes(u64::MAX),
        }
    }
}

impl Machine {
    /// Its owner keeps what was announced.
    pub(super) fn keep(&mut self, _now: Now, _id: ClaimId, _actions: &mut Vec<Action>) {}
}
