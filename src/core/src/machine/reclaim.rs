//! Taking capacity back: the rules and the pending plans.

use std::time::Duration;

use super::Now;
use super::lever::Failure;
use super::plan::Plan;
use crate::units::Bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimRules {
    /// Capacity may be taken from running claims.
    pub enabled: bool,
    /// Claims that can burst spread to idle GPUs.
    pub spread: bool,
    /// Quiet time without arrivals or departures before claims are spread.
    pub quiet: Duration,
    /// Time between the announcement and the action.
    pub countdown: Duration,
    /// How long a postponed lever is not used on the claim.
    pub keep: Duration,
    /// Commands claimed with permission for it may be ended and queued again.
    pub requeue: bool,
    /// Claims on which no other lever works may be ended.
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
    /// Delay before a failed lever may be tried again on the same claim.
    pub(super) fn again_after(&self, failure: Failure) -> Duration {
        match failure {
            Failure::Busy | Failure::TimedOut | Failure::HostRam => self.keep.min(AGAIN),
            Failure::Refused | Failure::Lost => self.keep.max(AGAIN),
        }
    }
}

/// Retry delay after a temporary failure.
const AGAIN: Duration = Duration::from_secs(60);

/// State of taking capacity back.
#[derive(Clone, Debug)]
pub(super) struct Reclaim {
    pub(super) rules: ReclaimRules,
    /// Host memory for all parked claims together.
    pub(super) host_ram: Bytes,
    /// Pending plans, in the order of their decisions.
    pub(super) plans: Vec<Plan>,
    /// Since when no claim came, left or moved.
    pub(super) quiet_since: Now,
    /// The last decision had no time to search for a claim within a guarantee: the next goes on soon.
    pub(super) left_out: bool,
}

impl Default for Reclaim {
    fn default() -> Self {
        Self {
            rules: ReclaimRules::default(),
            host_ram: Bytes(u64::MAX),
            plans: Vec::new(),
            quiet_since: Now::ZERO,
            left_out: false,
        }
    }
}

impl super::Machine {
    /// Whether a claim would move to an idle GPU: it can use more than it asks for.
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
