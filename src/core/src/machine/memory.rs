//! What is known beside where claims are, so that a machine that is started anew goes on as the one before it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::claims::{Kind, Phase, Run};
use super::lever::{Lever, Levers};
use super::order::Past;
use super::plan::Plan;
use super::{Ask, Machine, Now};
use crate::claim::{ClaimId, Request};

/// For so long a claim that waited when the machine ended keeps its place and what was planned for it.
pub const ABSENCE: Duration = Duration::from_secs(10);

/// What a granted claim has had, and what its owner was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Its place among those who asked.
    pub seq: u64,
    /// Since when it runs where it is.
    pub since: Now,
    /// GPU-seconds that it has had.
    pub attained_s: f64,
    /// What can be done to it, as far as was known.
    pub levers: Levers,
    /// Until when which lever is not pulled.
    pub spared: BTreeMap<Lever, Now>,
    /// How often levers did not work on it.
    pub failures: u32,
    /// For whom its owner has kept it already.
    pub kept_for: Vec<Option<ClaimId>>,
}

/// A claim that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The claim.
    pub id: ClaimId,
    /// What it asks.
    pub request: Request,
    /// Its place among those who asked.
    pub seq: u64,
    /// Since when it waits.
    pub since: Now,
    /// Until when.
    pub deadline: Option<Now>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Claims that are held or parked.
    pub claims: BTreeMap<ClaimId, Standing>,
    /// Claims that wait, those among them that wait to come back.
    pub queue: Vec<Kept>,
    /// What was announced, and how far it is.
    pub plans: Vec<Plan>,
    /// What owners have had: GPU-seconds as of the second time, in seconds.
    pub past: BTreeMap<u32, (f64, f64)>,
    /// Up to when that is counted.
    pub past_at: Now,
    /// Places given to those who asked.
    pub seq: u64,
    /// Since when nobody came, went or was moved.
    pub quiet_since: Now,
    /// Claims on their way to the host of which a member needs the GPU already.
    pub wanted: BTreeSet<ClaimId>,
    /// Claims whose owners know that their leases end soon.
    pub warned: BTreeSet<ClaimId>,
    /// Claims whose lease is over and that are still there.
    pub over: BTreeSet<ClaimId>,
    /// Claims whose time limit stands still, and since when.
    pub away: BTreeMap<ClaimId, Now>,
}

impl Machine {
    /// What a machine that is started anew must be told with [`super::Event::Recall`].
    #[must_use]
    pub fn memory(&self) -> Memory {
        let standing = |(id, g): (ClaimId, &Run)| {
            let standing = Standing {
                seq: g.seq,
                since: g.since,
                attained_s: g.attained_s,
                levers: g.levers.clone(),
                spared: g.spared.clone(),
                failures: g.failures,
                kept_for: g.kept_for.clone(),
            };
            (id, standing)
        };
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
        let wanted = self.claims.elsewhere();
        let wanted = wanted.filter(|(_, p)| matches!(p, Phase::Offloading { wanted: true, .. }));
        let leased = self.leases.iter().map(|(id, _)| *id);
        Memory {
            claims: self.claims.iter().map(standing).collect(),
            queue: queue.collect(),
            plans: self.reclaim.plans.clone(),
            past: self.past.parts(),
            past_at: self.past.at(),
            seq: self.next_seq,
            quiet_since: self.reclaim.quiet_since,
            wanted: wanted.map(|(id, _)| id).collect(),
            warned: leased.filter(|id| !self.warn_at.contains_key(id)).collect(),
            over: self.over.clone(),
            away: self.away.clone(),
        }
    }

    /// Goes on as the machine of which this is the memory; the claims were restored before. Claims that
    /// waited are waited for, as far as they are not parked here.
    pub(super) fn recall(&mut self, now: Now, memory: Memory) {
        for (id, standing) in memory.claims {
            let Some(granted) = self.claims.get_mut(id) else {
                continue;
            };
            granted.seq = standing.seq;
            granted.since = standing.since;
            granted.attained_s = standing.attained_s;
            granted.levers = standing.levers;
            granted.spared = standing.spared;
            granted.failures = standing.failures;
            granted.kept_for = standing.kept_for;
        }
        for kept in memory.queue {
            let known = self.queue.iter().position(|w| w.asks_for(kept.id));
            let granted = self.holding(kept.id).is_some();
            let index = match known {
                Some(index) => index,
                // It was granted or has come back, and only that was written down.
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
        self.warn_at.retain(|id, _| !memory.warned.contains(id));
        for id in memory.over {
            if self.holding(id).is_some() {
                self.set_lease(id, None);
                self.over.insert(id);
            }
        }
        let elsewhere = |id| self.claims.phase(id).map_or(Kind::Granted, Phase::kind);
        let away = memory.away.into_iter();
        let away = away.filter(|(id, _)| elsewhere(*id) != Kind::Granted);
        self.away.extend(away);
        self.past = Past::from_parts(memory.past, memory.past_at);
        self.next_seq = self.next_seq.max(memory.seq);
        self.reclaim.plans = memory.plans;
        self.reclaim.quiet_since = memory.quiet_since;
    }

    /// Whether a claim that waited with this number is waited for; from now on it is here.
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

    /// Nobody waits for ever for those who do not come back.
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

    /// Whether a plan is for somebody who is not back yet.
    pub(super) fn is_absent(&self, id: Option<ClaimId>) -> bool {
        self.queue
            .iter()
            .find(|w| Some(w.id()) == id)
            .is_some_and(|w| w.absent.is_some())
    }
}
