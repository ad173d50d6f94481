//! Claims that change places. If each needs the room of another, one of them waits in the host until the others have
//! moved. No other claim may take its planned place. It moves on as soon as that place is free, whatever the order of
//! the queue. If the plan is abandoned, it is an ordinary parked claim and comes back wherever there is room.

use super::holding::settled_on;
use super::lever::Lever;
use super::plan::{Plan, Stage, Step};
use super::{Action, Ask, Machine, Now};
use crate::claim::{ClaimId, Request};
use crate::ledger::{Ledger, Slice};
use crate::place;
use crate::units::Bytes;

impl Step {
    /// It moves via the host: on its way there, in it, or on its way back.
    pub(super) fn by_host(&self) -> bool {
        self.lever == Lever::Suspend && self.stage == Stage::Underway && !self.to.is_empty()
    }
}

/// Whether these fit beside what is held.
fn fits(ledger: &Ledger, slices: &[Slice]) -> bool {
    slices.iter().all(|s| {
        let mem = s.mem.max(s.charge) <= ledger.mem_free(s.gpu);
        mem && s.sm <= ledger.sm_free(s.gpu)
    })
}

impl Machine {
    /// Breaks a cyclic move by staging one claim in host memory. If none of them may be staged, the plan is abandoned
    /// and none is moved for a while.
    pub(super) fn untie(&mut self, now: Now, plan: &mut Plan) -> Option<ClaimId> {
        let left: Vec<&Step> = plan
            .steps
            .iter()
            .filter(|s| s.stage == Stage::Announced)
            .collect();
        // A claim is never offloaded only to spread claims.
        let due = self
            .queue
            .iter()
            .any(|w| w.due && Some(w.id()) == plan.waiter);
        let may = |id| {
            let room = self.host_room() >= self.bytes_of(id);
            plan.waiter.is_some() && room && self.may_wait_in_host(id, plan.entitled || due)
        };
        let waits = self.who_waits(&self.ledger, &left, may).map(|i| left[i].id);
        if let Some(id) = waits {
            for step in plan.steps.iter_mut().filter(|s| s.id == id) {
                step.lever = Lever::Suspend;
                step.stage = Stage::Underway;
            }
            return Some(id);
        }
        let until = now.saturating_add(
            self.reclaim
                .rules
                .again_after(super::lever::Failure::HostRam),
        );
        for step in plan.steps.iter().filter(|s| s.stage == Stage::Announced) {
            if let Some(granted) = self.claims.get_mut(step.id) {
                granted.run.spared.insert(step.lever, until);
            }
        }
        None
    }

    /// Whether a moving claim may be staged in the host. A claim within its owner's guarantee may not, for a waiting
    /// claim that is not entitled.
    fn may_wait_in_host(&self, id: ClaimId, entitled: bool) -> bool {
        let may = entitled || self.claims.get(id).is_some_and(|c| c.borrower);
        may && self.can(id, Lever::Suspend)
    }

    /// The claim to stage in the host: the smallest of those that unblock another one.
    fn who_waits(
        &self,
        ledger: &Ledger,
        left: &[&Step],
        may: impl Fn(ClaimId) -> bool,
    ) -> Option<usize> {
        let key = |(i, step): (usize, &&Step)| {
            if step.lever != Lever::Move || !may(step.id) {
                return None;
            }
            let mut later = ledger.clone();
            let from = later.slices(step.id)?.to_vec();
            later.remove(step.id);
            let goes = |s: &&Step| s.lever == Lever::Move && self.way(&later, s).is_some();
            let itself = fits(&later, &settled_on(&from, step.to.iter().copied()));
            let lets = itself || left.iter().any(goes);
            Some((!lets, self.bytes_of(step.id), i))
        };
        let (.., index) = left.iter().enumerate().filter_map(key).min()?;
        Some(index)
    }

    /// Whether the steps have an order in which each finds the room that it needs, on GPUs and in the host.
    pub(super) fn can_be_ordered(&self, ledger: &Ledger, steps: &[Step], entitled: bool) -> bool {
        let waits = |id| self.may_wait_in_host(id, entitled);
        let mut later = ledger.clone();
        let mut room = self.host_room_beside_plans();
        let mut left: Vec<&Step> = steps.iter().collect();
        let mut between: Vec<(&Step, Vec<Slice>)> = Vec::new();
        loop {
            while let Some(i) = between.iter().position(|(_, to)| fits(&later, to)) {
                let (step, to) = between.remove(i);
                room = room.saturating_add(self.bytes_of(step.id));
                later.insert(step.id, to);
            }
            if left.is_empty() {
                return between.is_empty();
            }
            let goes = |s: &&Step| match s.lever {
                // A move passes through host memory.
                Lever::Move => self.bytes_of(s.id) <= room && self.way(&later, s).is_some(),
                Lever::Offload | Lever::Suspend => self.bytes_of(s.id) <= room,
                _ => true,
            };
            if let Some(step) = left.iter().position(goes).map(|i| left.remove(i)) {
                let to = (step.lever == Lever::Move)
                    .then(|| self.way(&later, step))
                    .flatten();
                later.remove(step.id);
                match (to, step.lever) {
                    (Some(to), _) => later.insert(step.id, to),
                    (None, Lever::Offload | Lever::Suspend) => {
                        room = room.saturating_sub(self.bytes_of(step.id));
                    }
                    _ => {}
                }
                continue;
            }
            let may = |id| waits(id) && self.bytes_of(id) <= room;
            let Some(step) = self.who_waits(&later, &left, may).map(|i| left.remove(i)) else {
                return false;
            };
            let from = later.slices(step.id).unwrap_or_default().to_vec();
            later.remove(step.id);
            room = room.saturating_sub(self.bytes_of(step.id));
            between.push((step, settled_on(&from, step.to.iter().copied())));
        }
    }

    /// A moving claim's slices afterwards, if there is room for them.
    pub(super) fn way(&self, ledger: &Ledger, step: &Step) -> Option<Vec<Slice>> {
        let from = ledger.slices(step.id)?;
        let to = settled_on(from, step.to.iter().copied());
        let apart = from.iter().all(|s| !step.to.contains(&s.gpu));
        (apart && fits(ledger, &to)).then_some(to)
    }

    /// Whether the claim of a step is in the host until its destination is free.
    pub(super) fn waits_in_host(&self, step: &Step) -> bool {
        let parked = self.claims.offloaded(step.id);
        step.by_host() && parked.is_some_and(|p| p.back)
    }

    /// Whether a claim is in the host as a step of a plan.
    pub(super) fn between(&self, id: ClaimId) -> bool {
        let mut steps = self.reclaim.plans.iter().flat_map(|p| &p.steps);
        steps.any(|s| s.id == id && self.waits_in_host(s))
    }

    /// Whether such a claim can still move on: its GPUs are open to it, and its last attempt did not just fail.
    pub(super) fn can_go_on(&self, now: Now, step: &Step) -> bool {
        let open = |request: &Request| {
            let named = |g: &usize| place::open_to(&self.ledger, request).any(|o| o == *g);
            step.to
                .iter()
                .all(|g| named(g) && place::takes_in(&self.ledger, *g))
        };
        let request = self.asked_back(step.id);
        self.waits_in_host(step) && !self.rests(now, step.id) && request.is_some_and(open)
    }

    fn asked_back(&self, id: ClaimId) -> Option<&Request> {
        let waiting = self.queue.iter().find(|w| w.asks_for(id))?;
        match &waiting.ask {
            Ask::Claim { request, .. } => Some(request),
            Ask::Resize { .. } => None,
        }
    }

    /// Brings back staged claims whose destinations are free now.
    pub(super) fn go_on_from_host(&mut self, actions: &mut Vec<Action>) {
        let steps = self.reclaim.plans.iter().flat_map(|p| &p.steps);
        let waits: Vec<(ClaimId, Vec<usize>)> = steps
            .filter(|s| self.waits_in_host(s))
            .map(|s| (s.id, s.to.clone()))
            .collect();
        for (id, to) in waits {
            let room = |request: &Request| {
                let all = to.iter().all(|g| self.ledger.fit(request, *g).is_some());
                // The guarantee was checked at the grant; the maximum of a quota may have been used up since.
                all && self.kept_by_rule(id, request, true).is_none()
            };
            if self.asked_back(id).is_some_and(room) {
                self.queue.retain(|w| !w.asks_for(id));
                self.unpark(id, to.into_iter(), actions);
            }
        }
    }

    /// Slices of all claims that move via the host for a plan, as held now or before.
    pub(super) fn all_between(&self) -> impl Iterator<Item = (ClaimId, Vec<Slice>)> {
        let steps = self.reclaim.plans.iter().flat_map(|p| &p.steps);
        steps.filter(|s| s.by_host()).filter_map(|s| {
            let parked = self.claims.offloaded(s.id).map(|p| p.slices.as_slice());
            let slices = parked.or_else(|| self.ledger.slices(s.id))?;
            Some((s.id, slices.to_vec()))
        })
    }

    /// Host memory left for parked claims.
    pub(super) fn host_room(&self) -> Bytes {
        self.reclaim.host_ram.saturating_sub(self.host_taken())
    }

    /// The same less announced steps: what another plan may use.
    pub(super) fn host_room_beside_plans(&self) -> Bytes {
        let steps = self.reclaim.plans.iter().flat_map(|p| &p.steps);
        let parks = |s: &&Step| matches!(s.lever, Lever::Offload | Lever::Suspend);
        let announced = steps.filter(|s| s.stage == Stage::Announced).filter(parks);
        announced.fold(self.host_room(), |room, s| {
            room.saturating_sub(self.bytes_of(s.id))
        })
    }
}
