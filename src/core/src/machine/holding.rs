//! Where granted claims are, and how answers to levers and wishes of users change that.
//!
//! A claim in transit holds both sides until the answer comes, so that it can always stay where it was.

use std::collections::BTreeMap;

use super::claims::{Claim, Illegal, Phase, PhaseKind};
use super::lever::{Failure, Holding, Lever, Levers, Parked, ParkedBy, Wish};
use super::{Action, Ask, Machine, Now};
use crate::claim::{ClaimId, Request};
use crate::ledger::{Admission, Slice};
use crate::units::{Bytes, Share};

/// The request of a parked claim: what it held, on the GPUs open to it.
fn wish_to_come_back(granted: Option<&Claim>, parked: &Parked, gpus: Vec<u32>) -> Request {
    let first = parked.slices.first();
    let mem = |s: &Slice| s.mem.max(s.charge);
    let most = parked.slices.iter().map(mem).max().unwrap_or_default();
    let sm = first.map_or(Share::ZERO, |s| s.sm);
    let known = granted.map(|g| &g.request);
    Request {
        gpus: u32::try_from(parked.slices.len()).unwrap_or(u32::MAX),
        share: sm,
        mem: Some(most),
        mem_limit: first.map(|s| s.mem_limit.max(most)),
        sm: Some(sm),
        sm_limit: first.map_or(sm, |s| s.sm_limit),
        only_gpus: gpus,
        lease: None,
        uid: first.map_or(0, |s| s.uid),
        ..known.cloned().unwrap_or_else(|| Request::nothing(sm))
    }
}

impl Machine {
    /// Where a granted claim is.
    #[must_use]
    pub fn holding(&self, id: ClaimId) -> Option<Holding> {
        let phase = self.claims.phase(id)?.clone();
        let slices = |of: Option<&[Slice]>| of.unwrap_or_default().to_vec();
        Some(Holding {
            phase,
            at: slices(self.ledger.slices(id)),
            to: slices(self.ledger.reserved(id)),
        })
    }

    /// Whether it is on its way to the host, back, or to other GPUs.
    #[must_use]
    pub fn on_its_way(&self, id: ClaimId) -> bool {
        let phase = self.claims.phase(id).map(Phase::kind);
        phase.is_some_and(PhaseKind::is_on_its_way)
    }

    /// All granted claims and where they are.
    #[must_use]
    pub fn holdings(&self) -> BTreeMap<ClaimId, Holding> {
        let all = self.claims.iter();
        all.filter_map(|(id, _)| Some((id, self.holding(id)?)))
            .collect()
    }

    /// The request of a granted claim.
    #[must_use]
    pub fn request_of(&self, id: ClaimId) -> Option<&Request> {
        self.claims.get(id).map(|g| &g.request)
    }

    /// The levers that work on a granted claim, as last reported.
    #[must_use]
    pub fn levers(&self, id: ClaimId) -> Option<&Levers> {
        self.claims.get(id).map(|c| &c.run.levers)
    }

    /// Host memory that parked claims use or are about to use.
    #[must_use]
    pub fn host_taken(&self) -> Bytes {
        let bytes = |(id, phase): (ClaimId, &Phase)| match phase {
            Phase::Offloaded(parked) | Phase::Restoring(parked) => parked.host,
            _ => self.bytes_of(id),
        };
        let all = self.claims.elsewhere().map(bytes);
        all.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Bytes that a claim uses on its GPUs, by the last reading.
    pub(super) fn bytes_of(&self, id: ClaimId) -> Bytes {
        let slices = self.ledger.slices(id).unwrap_or_default();
        slices
            .iter()
            .fold(Bytes::ZERO, |sum, s| sum.saturating_add(s.charge))
    }

    /// Enters a claim that was found again after a restart.
    pub(super) fn restore(
        &mut self,
        now: Now,
        id: ClaimId,
        request: Option<Box<Request>>,
        holding: Holding,
    ) {
        let known = self.claims.remove(id);
        self.ledger.remove(id);
        self.queue.retain(|w| !w.asks_for(id));
        let claim = match request {
            Some(request) => {
                let first = holding.slices().first();
                let full = request
                    .sm
                    .filter(|full| first.is_some_and(|s| s.sm < *full));
                self.next_seq += 1;
                let mut claim = Claim::new(*request, self.next_seq, now);
                claim.lowered_from = full;
                Some(claim)
            }
            None => known.map(|mut claim| {
                claim.is_resized(holding.slices());
                claim
            }),
        };
        let Some(claim) = claim else { return };
        let Holding { phase, at, to } = holding;
        if !matches!(phase.kind(), PhaseKind::Offloaded | PhaseKind::Counted) {
            self.ledger.insert(id, at);
        }
        if !to.is_empty() {
            self.ledger.reserve(id, to);
        }
        self.claims.enter(id, claim, phase);
        if self.claims.offloaded(id).is_some_and(|p| p.back) {
            self.ask_back(now, id);
        }
    }

    /// Moves a claim from its GPUs into phase `to`; false if that is illegal.
    pub(super) fn set_out(&mut self, id: ClaimId, to: Phase, actions: &mut Vec<Action>) -> bool {
        let gone = self.claims.go(id, PhaseKind::Granted, to);
        gone.map_err(|e| actions.push(Action::Late(e))).is_ok()
    }

    /// Queues a parked claim for room.
    fn ask_back(&mut self, now: Now, id: ClaimId) {
        let Some(parked) = self.claims.offloaded_mut(id) else {
            return;
        };
        parked.back = true;
        let parked = parked.clone();
        if self.queue.iter().any(|w| w.asks_for(id)) {
            return;
        }
        let gpus = self.gpus_for(id, &parked);
        let granted = self.claims.get(id);
        let ask = Ask::Claim {
            id,
            request: wish_to_come_back(granted, &parked, gpus),
            told: None,
        };
        let seq = granted.map(|g| g.run.seq);
        self.enqueue(now, ask, None);
        if let (Some(last), Some(seq)) = (self.queue.last_mut(), seq) {
            last.seq = seq;
        }
    }

    /// GPUs open to a parked claim: those that it left and, if it is movable, others like them.
    fn gpus_for(&self, id: ClaimId, parked: &Parked) -> Vec<u32> {
        let own: Vec<usize> = parked.slices.iter().map(|s| s.gpu).collect();
        let granted = self.claims.get(id);
        let movable = granted.is_some_and(|g| g.run.levers.movable.is_ok());
        let only = granted.map(|g| g.request.only_gpus.clone());
        let only = only.unwrap_or_default();
        let allowed = |g: usize| {
            let named = only.is_empty() || u32::try_from(g).is_ok_and(|g| only.contains(&g));
            own.contains(&g) || (movable && named && self.ledger.alike(g, &own))
        };
        let known = self.ledger.gpus().len();
        // Without facts only its own GPUs are known to be suitable.
        let gpus: Vec<usize> = if known == 0 {
            own.clone()
        } else {
            (0..known).filter(|&g| allowed(g)).collect()
        };
        gpus.into_iter()
            .filter_map(|g| u32::try_from(g).ok())
            .collect()
    }

    /// Updates the GPUs open to parked claims that wait, after facts or claims have changed.
    pub(super) fn widen_ways_back(&mut self) {
        for place in 0..self.queue.len() {
            let Ask::Claim { id, .. } = &self.queue[place].ask else {
                continue;
            };
            let Some(parked) = self.claims.offloaded(*id) else {
                continue;
            };
            let gpus = self.gpus_for(*id, parked);
            if let Ask::Claim { request, .. } = &mut self.queue[place].ask {
                request.only_gpus = gpus;
            }
        }
    }

    /// Brings a parked claim to the GPUs that were found for it.
    pub(super) fn unpark(
        &mut self,
        id: ClaimId,
        found: impl Iterator<Item = usize>,
        actions: &mut Vec<Action>,
    ) {
        let Some(parked) = self.claims.offloaded(id).cloned() else {
            return;
        };
        let to = settled_on(&parked.slices, found);
        let gone = self
            .claims
            .go(id, PhaseKind::Offloaded, Phase::Restoring(parked));
        if gone.map_err(|e| actions.push(Action::Late(e))).is_ok() {
            self.ledger.insert(id, to.clone());
            actions.push(Action::Unpark { id, to });
        }
    }

    /// Whether its last restore failed a moment ago.
    pub(super) fn rests(&self, now: Now, id: ClaimId) -> bool {
        let granted = self.claims.get(id);
        self.comes_back(id)
            && granted.is_some_and(|g| {
                g.run
                    .spared
                    .get(&Lever::Offload)
                    .is_some_and(|until| *until > now)
            })
    }

    /// The GPUs that another scheduler has kept for a parked claim.
    pub(super) fn kept_for(&self, id: ClaimId) -> Option<Vec<usize>> {
        let parked = self.claims.offloaded(id);
        let parked = parked.filter(|p| p.by == ParkedBy::Scheduler)?;
        let gpus: Vec<usize> = parked.slices.iter().map(|s| s.gpu).collect();
        let foreign = |g: &usize| self.ledger.admission(*g) == Admission::Foreign;
        gpus.iter().all(foreign).then_some(gpus)
    }

    /// Whether a claim is parked and waits to come back.
    pub(super) fn comes_back(&self, id: ClaimId) -> bool {
        self.claims.offloaded(id).is_some()
    }

    pub(super) fn wish(&mut self, now: Now, id: ClaimId, wish: Wish, actions: &mut Vec<Action>) {
        let parked = self.claims.offloaded(id);
        if parked.is_some_and(|p| p.by == ParkedBy::Scheduler || wish == Wish::Yield) {
            // Processes that another scheduler has stopped cannot be restored.
            return;
        }
        let freeze = match wish {
            Wish::Keep => {
                self.keep(now, id);
                return;
            }
            Wish::Restore | Wish::Resume => {
                if let Some(granted) = self.claims.get_mut(id) {
                    granted.run.spared.remove(&Lever::Offload);
                }
                return self.wanted(now, id);
            }
            Wish::Offload | Wish::Yield => false,
            Wish::Suspend => true,
        };
        let by = match wish {
            Wish::Yield => ParkedBy::Scheduler,
            _ => ParkedBy::Person,
        };
        if let Some(parked) = self.claims.offloaded_mut(id) {
            parked.by = by;
            parked.back = false;
            self.queue.retain(|w| !w.asks_for(id));
            self.goes_on(id, actions);
        } else if self.ledger.slices(id).is_some() && !self.on_its_way(id) {
            // If another scheduler decides, claims are parked on its wish only, not on their owner's.
            let mut held = self.ledger.slices(id).unwrap_or_default().iter();
            let yields = by == ParkedBy::Scheduler;
            let is_for = |s: &Slice| (self.ledger.admission(s.gpu) == Admission::Foreign) == yields;
            if !held.all(is_for) {
                let (is, to) = (Some(PhaseKind::Granted), PhaseKind::Offloading);
                actions.push(Action::Late(Illegal { id, is, to }));
                return;
            }
            let wanted = false;
            if self.set_out(id, Phase::Offloading { freeze, by, wanted }, actions) {
                actions.push(Action::Park { id, freeze, by });
            }
        }
    }

    pub(super) fn wanted(&mut self, now: Now, id: ClaimId) {
        if !self.claims.want(id) {
            self.ask_back(now, id);
        }
    }

    /// Its GPU is not needed any more. If the GPU was taken for others, the claim comes back all the same.
    pub(super) fn unwanted(&mut self, id: ClaimId) {
        let parked = self.claims.offloaded_mut(id);
        if let Some(parked) = parked.filter(|p| p.back && p.by != ParkedBy::Reclaim) {
            parked.back = false;
            self.queue.retain(|w| !w.asks_for(id));
        }
    }

    /// The claim's memory has arrived in the host.
    pub(super) fn parked(&mut self, now: Now, id: ClaimId, host: Bytes) -> Result<(), Illegal> {
        let mut slices = self.ledger.slices(id).unwrap_or_default().to_vec();
        // Bytes in the host were on the GPUs, whatever the last reading was.
        let each = Bytes(host.0.div_ceil(slices.len().max(1) as u64));
        if self.bytes_of(id) < host {
            for slice in &mut slices {
                slice.charge = slice.charge.max(each);
            }
        }
        let back = self.claims.offload(now, id, host, slices)?;
        if let Some(granted) = self.claims.get_mut(id) {
            // Earlier failures do not count against a restore.
            granted.run.spared.remove(&Lever::Offload);
        }
        self.ledger.remove(id);
        if back {
            self.ask_back(now, id);
        }
        Ok(())
    }

    /// The claim has come back, or reached its destination.
    pub(super) fn arrived(
        &mut self,
        now: Now,
        id: ClaimId,
        from: PhaseKind,
        actions: &mut Vec<Action>,
    ) -> Result<(), Illegal> {
        self.claims.go(id, from, Phase::Granted)?;
        if let Some(to) = self.ledger.unreserve(id) {
            self.bind_to(id, &to);
            self.ledger.insert(id, to);
        }
        self.goes_on(id, actions);
        if let Some(granted) = self.claims.get_mut(id) {
            granted.run.since = now;
            granted.run.failures = 0;
        }
        Ok(())
    }

    /// A lever failed: the claim is where it was, and the lever is not tried again for a while.
    pub(super) fn lever_failed(
        &mut self,
        now: Now,
        id: ClaimId,
        failure: Failure,
        actions: &mut Vec<Action>,
    ) -> Result<(), Illegal> {
        let (lever, parked) = match self.claims.fail(id)? {
            Phase::Offloading { freeze: true, .. } => (Lever::Suspend, None),
            Phase::Moving => (Lever::Move, None),
            Phase::Restoring(parked) => (Lever::Offload, Some(parked.back)),
            _ => (Lever::Offload, None),
        };
        match parked {
            Some(back) => {
                self.ledger.remove(id);
                if back || failure != Failure::Lost {
                    self.ask_back(now, id);
                }
            }
            None => {
                self.ledger.unreserve(id);
                self.goes_on(id, actions);
            }
        }
        let until = now.saturating_add(self.reclaim.rules.again_after(failure));
        if let Some(granted) = self.claims.get_mut(id) {
            granted.run.failures += 1;
            granted.run.spared.insert(lever, until);
            // Offload and suspend are the same to the driver.
            if matches!(lever, Lever::Offload | Lever::Suspend) {
                granted.run.spared.insert(Lever::Offload, until);
                granted.run.spared.insert(Lever::Suspend, until);
            }
        }
        Ok(())
    }

    pub(super) fn forget(&mut self, id: ClaimId) {
        self.claims.remove(id);
        self.run_times.remove(&id);
    }

    /// Enters a granted claim with these slices, and its lease.
    pub(super) fn grant(&mut self, id: ClaimId, claim: Claim, slices: Vec<Slice>) -> Action {
        let lease = claim.request.lease;
        let ends = lease.map(|l| claim.run.since.saturating_add(l));
        self.ledger.insert(id, slices.clone());
        self.claims.enter(id, claim, Phase::Granted);
        self.set_lease(id, ends);
        Action::Grant {
            id,
            slices,
            ends,
            counted: false,
        }
    }
}

/// The same slices on other GPUs.
pub(super) fn settled_on(slices: &[Slice], gpus: impl Iterator<Item = usize>) -> Vec<Slice> {
    let on = |(slice, gpu): (&Slice, usize)| Slice {
        gpu,
        mem_cap: slice.mem.max(slice.charge).min(slice.mem_limit),
        ..slice.clone()
    };
    slices.iter().zip(gpus).map(on).collect()
}

#[cfg(test)]
mod tests;
