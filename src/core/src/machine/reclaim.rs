//! Taking capacity back: what may be done to whom, and when.

use std::time::Duration;

use super::Now;
use super::lever::Failure;
use super::plan::Plan;
use crate::units::Bytes;

/// The rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimRules {
    /// Anything is taken from claims that run.
    pub enabled: bool,
    /// Claims that can burst go to idle GPUs.
    pub spread: bool,
    /// For this long no claim must have come or gone before those that run are spread anew.
    pub quiet: Duration,
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
            spread: false,
            quiet: Duration::from_secs(60),
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
            Failure::Busy | Failure::TimedOut | Failure::HostRam => self.keep.min(AGAIN),
            Failure::Refused | Failure::Lost => self.keep.max(AGAIN),
        }
    }
}

/// What did not work because of the moment is tried again after this.
const AGAIN: Duration = Duration::from_secs(60);

/// What is known for taking back.
#[derive(Clone, Debug)]
pub(super) struct Reclaim {
    pub(super) rules: ReclaimRules,
    /// Host memory that parked claims may take together.
    pub(super) host_ram: Bytes,
    /// What is to happen, in the order in which it was decided.
    pub(super) plans: Vec<Plan>,
    /// Since when nobody came, went or was moved.
    pub(super) quiet_since: Now,
}

impl Default for Reclaim {
    fn default() -> Self {
        Self {
            rules: ReclaimRules::default(),
            host_ram: Bytes(u64::MAX),
            plans: Vec::new(),
            quiet_since: Now::ZERO,
        }
    }
}

impl super::Machine {
    /// Whether a claim goes to an idle GPU if there is one: it could use more than it asks for.
    pub(super) fn spreads(&self, request: &crate::Request) -> bool {
        let rules = &self.reclaim.rules;
        let bursts = request.sm.is_none_or(|sm| request.sm_limit > sm)
            || request
                .mem_limit
                .is_some_and(|most| Some(most) > request.mem);
        rules.enabled && rules.spread && bursts
    }
}

#[cfg(test)]
mod alone;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod free;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod idle;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod surprises;
#[cfg(test)]
mod swaps;
#[cfg(test)]
pub(in crate::machine) mod tests;
#[cfg(test)]
mod turns;
#[cfg(test)]
mod wakes;
