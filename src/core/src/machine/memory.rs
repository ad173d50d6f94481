//! What the machine knows besides where claims are, so that a new machine continues as the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claims::{Phase, Run};
use super::order::Past;
use super::plan::Plan;
use super::{Ask, Machine, Now};
use crate::claim::{ClaimId, Request};

/// How long a claim that waited before a restart keeps its place and its plan.
pub const ABSENCE: Duration = Duration::from_secs(10);

/// A claim that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub id: ClaimId,
    pub request: Request,
    /// Arrival order.
    pub seq: u64,
    /// Start of its wait.
    #[serde(rename = "since_ms", with = "crate::millis")]
    pub since: Now,
    /// End of its patience.
    #[serde(rename = "deadline_ms", with = "crate::millis")]
    pub deadline: Option<Now>,
}

/// All of it. The serialized form has times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// UUIDs of the GPUs in the order of their indices, if known when it was saved.
    pub gpus: Vec<String>,
    /// Claims that are granted or parked.
    pub claims: BTreeMap<ClaimId, Run>,
    /// Waiting claims, including those that wait to come back.
    #[serde(skip)]
    pub queue: Vec<Kept>,
    /// Announced plans and their progress.
    pub plans: Vec<Plan>,
    /// Past use of owners: GPU-seconds as of a time in seconds.
    pub past: BTreeMap<u32, (f64, f64)>,
    /// End of the time that `past` includes.
    #[serde(rename = "past_ms", with = "crate::millis")]
    pub past_at: Now,
    /// Last arrival number.
    pub seq: u64,
    /// Since when no claim came, left or moved.
    #[serde(rename = "quiet_ms", with = "crate::millis")]
    pub quiet_since: Now,
    /// Claims going to the host whose members already need the GPU again.
    pub wanted: BTreeSet<ClaimId>,
    /// Claims whose owners were warned of the end of their leases.
    pub warned: BTreeSet<ClaimId>,
    /// Claims whose lease is over and that have not ended yet.
    pub over: BTreeSet<ClaimId>,
    /// Claims whose time limit stands still, and since when.
    #[serde(default, rename = "away_ms", with = "crate::millis")]
    pub away: BTreeMap<ClaimId, Now>,
}

impl Kept {
    /// The same, with all times converted to another clock.
    #[must_use]
    pub fn by(mut self, clock: impl Fn(Now) -> Now) -> Self {
        let times = std::iter::once(&mut self.since).chain(&mut self.deadline);
        times.for_each(|at| *at = clock(*at));
        self
    }
}

impl Memory {
    /// The same, with all times converted to another clock.
    #[must_use]
    pub fn by(mut self, clock: impl Fn(Now) -> Now) -> Self {
        let claims = self.claims.values_mut();
        let claims = claims.flat_map(|run| run.spared.values_mut().chain([&mut run.since]));
        let plans = self.plans.iter_mut().map(|plan| &mut plan.due);
        let times = claims.chain(plans).chain(self.away.values_mut());
        let times = times.chain([&mut self.past_at, &mut self.quiet_since]);
        times.for_each(|at| *at = clock(*at));
        for (_, at_s) in self.past.values_mut() {
            let at = Duration::try_from_secs_f64(*at_s).unwrap_or_default();
            *at_s = clock(at).as_secs_f64();
        }
        let queue = std::mem::take(&mut self.queue).into_iter();
        self.queue = queue.map(|kept| kept.by(&clock)).collect();
        self
    }
}

impl Machine {
    /// The state to pass to a new machine with [`super::Event::Recall`].
    #[must_use]
    pub fn memory(&self) -> Memory {
        let queue = self.queue.iter().filter_map(|w| match &w.ask {
            Ask::Claim { id, request, .. } => Some(Kept {
                id: *id,
                request: request.clone(),
                seq: w.seq,
                since: w.since,
                deadline: w.deadline,
            }),
            Ask::Resize { .. } => None,
        });
        let claims = || self.claims.iter();
        let wanted = self.claims.elsewhere();
        let wanted = wanted.filter(|(_, p)| matches!(p, Phase::Offloading { wanted: true, .. }));
        let warned = claims().filter(|(_, c)| c.ends.is_some() && c.warn_at.is_none());
        let over = claims().filter(|(_, c)| c.ending);
        let away = claims().filter_map(|(id, c)| Some((id, c.away?)));
        Memory {
            gpus: Vec::new(),
            claims: claims().map(|(id, c)| (id, c.run.clone())).collect(),
            queue: queue.collect(),
            plans: self.reclaim.plans.clone(),
            past: self.past.parts(),
            past_at: self.past.at(),
            seq: self.next_seq,
            quiet_since: self.reclaim.quiet_since,
            wanted: wanted.map(|(id, _)| id).collect(),
            warned: warned.map(|(id, _)| id).collect(),
            over: over.map(|(id, _)| id).collect(),
            away: away.collect(),
        }
    }

    /// Restores queue and plans from a saved state; call after all claims are restored. Waiting claims that are not
    /// parked keep their places until their clients return.
    pub(super) fn recall(&mut self, now: Now, memory: Memory) {
        for (id, run) in memory.claims {
            if let Some(claim) = self.claims.get_mut(id) {
                claim.run = run;
            }
        }
        for kept in memory.queue {
            let known = self.queue.iter().position(|w| w.asks_for(kept.id));
            let granted = self.holding(kept.id).is_some();
            let index = match known {
                Some(index) => index,
                // It was granted or came back after the state was saved.
                None if granted => continue,
                None => {
                    let ask = Ask::Claim {
                        id: kept.id,
                        request: kept.request.clone(),
                        told: None,
                    };
                    self.enqueue(now, ask, None);
                    let last = self.queue.len() - 1;
                    self.queue[last].absent = Some(now.saturating_add(ABSENCE));
                    self.queue[last].deadline = kept.deadline;
                    last
                }
            };
            let waiting = &mut self.queue[index];
            waiting.seq = kept.seq;
            waiting.since = kept.since;
            if let (Ask::Claim { request, .. }, true) = (&mut waiting.ask, granted) {
                *request = kept.request;
            }
        }
        for id in memory.wanted {
            self.claims.want(id);
        }
        memory.warned.into_iter().for_each(|id| self.is_warned(id));
        memory.over.into_iter().for_each(|id| self.is_ending(id));
        for (id, since) in memory.away {
            let claim = self.claims.get_mut(id);
            if let Some(claim) = claim.filter(|c| c.is_elsewhere()) {
                claim.away = Some(since);
            }
        }
        self.past = Past::from_parts(memory.past, memory.past_at);
        self.next_seq = self.next_seq.max(memory.seq);
        self.reclaim.plans = memory.plans;
        self.reclaim.quiet_since = memory.quiet_since;
    }

    /// Whether a claim with this number waited before the restart; from now on it is present.
    pub(super) fn is_back(&mut self, id: ClaimId, asks: &Request, deadline: Option<Now>) -> bool {
        let mut queue = self.queue.iter_mut();
        let Some(waiting) = queue.find(|w| w.id() == id && w.absent.is_some()) else {
            return false;
        };
        waiting.absent = None;
        waiting.deadline = deadline;
        if let Ask::Claim { request, told, .. } = &mut waiting.ask {
            request.clone_from(asks);
            *told = None;
        }
        true
    }

    /// Stops waiting for clients that did not return.
    pub(super) fn forget_absent(&mut self, now: Now) {
        let gone = |w: &super::Waiting| w.absent.is_some_and(|until| until <= now);
        let ids: Vec<ClaimId> = self
            .queue
            .iter()
            .filter(|w| gone(w))
            .map(|w| w.id())
            .collect();
        for id in ids {
            self.queue.retain(|w| w.id() != id);
            self.quotas.leave(id);
        }
    }

    /// Whether a plan is for a claim whose client has not returned yet.
    pub(super) fn is_absent(&self, id: Option<ClaimId>) -> bool {
        self.queue
            .iter()
            .find(|w| Some(w.id()) == id)
            .is_some_and(|w| w.absent.is_some())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_the_version_before_wrote_is_read_and_written_the_same() {
        let standing = json!({
            "seq": 7, "since_ms": 1_800_000_000_500_u64, "attained_s": 12.5, "park": {"Ok": null},
            "movable": {"Err": "it has no copy engine"}, "requeue": true, "idle": false,
            "spared": [["detach", 1_800_000_060_000_u64], ["kill", 1_800_000_090_000_u64]],
            "failures": 2, "kept_for": [null, 9],
        });
        let step = |lever: &str, stage: &str| json!({"id": 3, "lever": lever, "to": [1], "sm": 250, "stage": stage});
        let memory = json!({
            "gpus": ["GPU-a", "GPU-b"], "claims": {"3": standing},
            "plans": [{
                "waiter": 9, "at": [0], "steps": [step("move", "announced"), step("share", "underway")],
                "due_ms": 1_800_000_030_000_u64, "entitled": true,
            }],
            "past": {"1000": [42.5, 1_800_000_000.0]}, "past_ms": 1_800_000_000_000_u64, "seq": 8,
            "quiet_ms": 1_799_999_999_000_u64, "wanted": [3], "warned": [3], "over": [],
            "away_ms": {"3": 1_800_000_000_000_u64},
        });
        let kept = json!({
            "id": 9, "seq": 8, "since_ms": 1_800_000_001_000_u64, "deadline_ms": null,
            "request": {
                "gpus": 2, "share": 500, "mem": 1_073_741_824_u64, "mem_limit": null, "mem_limit_share": 900,
                "sm": 500, "sm_limit": 1000, "only": [1], "mode": "timeslice", "movable": true,
                "lease_ms": 3_600_000, "class": "inference", "uid": 1000,
            },
        });
        let again = |at: Now| at + Duration::from_secs(5);
        let back = |at: Now| at - Duration::from_secs(5);
        let read: Memory = serde_json::from_value(memory.clone()).unwrap();
        let key = ClaimId(3);
        assert_eq!(read.claims[&key].spared.len(), 2);
        assert_eq!(read.away[&key], Duration::from_secs(1_800_000_000));
        let written = serde_json::to_value(read.by(again).by(back)).unwrap();
        assert_eq!(written, memory);
        let read: Kept = serde_json::from_value(kept.clone()).unwrap();
        assert_eq!(read.request.lease, Some(Duration::from_secs(3600)));
        let written: Value = serde_json::to_value(read.by(again).by(back)).unwrap();
        assert_eq!(written, kept);
    }
}
