//! Claims that change places: where each needs the room of another, one of them waits in the host until the others have
//! gone. It keeps its place meanwhile: nobody starts in it, and it goes on to where it was planned as soon as that is
//! free, whoever is before it in the queue. Where the plan is given up it is a parked claim like others, and comes back
//! wherever there is room.

use super::holding::settled_on;
use super::lever::Lever;
use super::plan::{Plan, Stage, Step};
use super::{Action, Ask, Machine, Now};
use crate::claim::{ClaimId, Request};
use crate::ledger::{Ledger, Slice};
use crate::place;
use crate::units::Bytes;

impl Step {
    /// It goes to its GPUs by the host: on its way there, in it, or on its way back.
    pub(super) fn by_host(&self) -> bool {
        self.lever == Lever::Suspend && self.stage == Stage::Underway && !self.to.is_empty()
    }
}

/// Whether there is room for these beside what is held.
fn fits(ledger: &Ledger, slices: &[Slice]) -> bool {
    slices.iter().all(|s| {
        let mem = s.mem.max(s.charge) <= ledger.mem_free(s.gpu);
        mem && s.sm <= ledger.sm_free(s.gpu)
    })
}

impl Machine {
    /// Where claims wait for each other's places, one of them goes to the host first. Where that may be done to none of
    /// them, none is moved for a while, and the plan is given up.
    pub(super) fn untie(&mut self, now: Now, plan: &mut Plan) -> Option<ClaimId> {
        let left: Vec<&Step> = plan
            .steps
            .iter()
            .filter(|s| s.stage == Stage::Announced)
            .collect();
        // A claim is not offloaded only to be spread.
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

    /// Whether a claim that is to be moved may be parked on its way: one within its owner's guarantee not for
    /// somebody who is not entitled.
    fn may_wait_in_host(&self, id: ClaimId, entitled: bool) -> bool {
        let may = entitled || self.claims.get(id).is_some_and(|c| c.borrower);
        may && self.can(id, Lever::Suspend)
    }

    /// Of those who cannot move the one that waits in the host: the smallest of those that let somebody go by that.
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

    /// Whether steps can be taken one after the other, so that each finds the room that it needs, on GPUs and in the
    /// host.
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
                // What moves lies in the host for a moment.
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

    /// What a claim that moves has afterwards, if there is room for it beside what is there.
    pub(super) fn way(&self, ledger: &Ledger, step: &Step) -> Option<Vec<Slice>> {
        let from = ledger.slices(step.id)?;
        let to = settled_on(from, step.to.iter().copied());
        let apart = from.iter().all(|s| !step.to.contains(&s.gpu));
        (apart && fits(ledger, &to)).then_some(to)
    }

    /// Whether a step is one whose claim lies in the host until there is room where it goes.
    pub(super) fn waits_in_host(&self, step: &Step) -> bool {
        let parked = self.claims.offloaded(step.id);
        step.by_host() && parked.is_some_and(|p| p.back)
    }

    /// Whether a claim lies in the host as a step of a plan.
    pub(super) fn between(&self, id: ClaimId) -> bool {
        let mut steps = self.reclaim.plans.iter().flat_map(|p| &p.steps);
        steps.any(|s| s.id == id && self.waits_in_host(s))
    }

    /// Whether such a claim can still go on to its GPUs: they are open to it, and its last try has not just failed.
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

    /// Those who wait in the host on their way go on where there is room now.
    pub(super) fn go_on_from_host(&mut self, actions: &mut Vec<Action>) {
        let steps = self.reclaim.plans.iter().flat_map(|p| &p.steps);
        let waits: Vec<(ClaimId, Vec<usize>)> = steps
            .filter(|s| self.waits_in_host(s))
            .map(|s| (s.id, s.to.clone()))
            .collect();
        for (id, to) in waits {
            let room = |request: &Request| {
                let all = to.iter().all(|g| self.ledger.fit(request, *g).is_some());
                // What it is guaranteed was checked when it was granted; a quota's maximum may have been used since.
                all && self.kept_by_rule(id, request, true).is_none()
            };
            if self.asked_back(id).is_some_and(room) {
                self.queue.retain(|w| !w.asks_for(id));
                self.unpark(id, to.into_iter(), actions);
            }
        }
    }

    /// What those hold, or held, who go by the host for one of the plans.
    pub(super) fn all_between(&self) -> impl Iterator<Item = (ClaimId, Vec<Slice>)> {
        let steps = self.reclaim.plans.iter().flat_map(|p| &p.steps);
        steps.filter(|s| s.by_host()).filter_map(|s| {
            let parked = self.claims.offloaded(s.id).map(|p| p.slices.as_slice());
            let slices = parked.or_else(|| self.ledger.slices(s.id))?;
            Some((s.id, slices.to_vec()))
        })
    }

    /// Host memory that is left for parked claims.
    pub(super) fn host_room(&self) -> Bytes {
        self.reclaim.host_ram.saturating_sub(self.host_taken())
    }

    /// The same beside what is announced to be parked: what another plan may count on.
    pub(super) fn host_room_beside_plans(&self) -> Bytes {
        let steps = self.reclaim.plans.iter().flat_map(|p| &p.steps);
        let parks = |s: &&Step| matches!(s.lever, Lever::Offload | Lever::Suspend);
        let announced = steps.filter(|s| s.stage == Stage::Announced).filter(parks);
        announced.fold(self.host_room(), |room, s| {
            room.saturating_sub(self.bytes_of(s.id))
        })
    }
}
