//! Carries out announced plans, and gives back what was taken.

use super::claims::Phase;
use super::lever::{Cause, Lever, ParkedBy};
use super::plan::{Future, Plan, Stage, Step};
use super::{Action, Machine, Now};
use crate::claim::ClaimId;
use crate::ledger::{Ledger, Slice};
use crate::place;
use crate::units::{Bytes, Share};

impl Machine {
    /// Carries out steps that are due and possible now. True if that made room at once.
    pub(super) fn carry_out(&mut self, now: Now, actions: &mut Vec<Action>) -> bool {
        let mut room = false;
        // An earlier plan is not done yet.
        let mut before = false;
        let mut plans = std::mem::take(&mut self.reclaim.plans);
        for plan in plans.iter_mut() {
            if plan.due > now || self.is_absent(plan.waiter) {
                before = true;
                continue;
            }
            let cause = plan.cause();
            for step in plan.steps.iter_mut() {
                if step.stage == Stage::Announced && self.pull(step, cause, actions) {
                    let at_once = step.lever == Lever::Share;
                    room |= at_once;
                    step.stage = if at_once {
                        Stage::Done
                    } else {
                        Stage::Underway
                    };
                }
            }
            let left = plan.steps.iter().any(|s| s.stage == Stage::Announced);
            let waits = plan.steps.iter().any(|s| self.waits_in_host(s));
            let going = |s: &Step| s.stage == Stage::Underway && !self.waits_in_host(s);
            let going = plan.steps.iter().any(going);
            let still = !going && !room && !before && self.claims.moving().next().is_none();
            if left && still {
                if let Some(id) = self.untie(now, plan) {
                    self.send_to_host(id, true, ParkedBy::Reclaim, actions);
                }
            } else if waits && still {
                // All others have left and its own destination has no room: it is restored wherever there is some.
                for step in plan.steps.iter_mut().filter(|s| s.by_host()) {
                    step.stage = Stage::Done;
                }
            }
            before |= going || left || waits;
        }
        self.reclaim.plans = plans;
        room
    }

    /// Whether carrying out due steps may make room at once.
    pub(super) fn shares_at_once(&self, now: Now) -> bool {
        let due = self.reclaim.plans.iter().filter(|p| p.due <= now);
        let lowers = |s: &Step| s.lever == Lever::Share && s.stage == Stage::Announced;
        due.flat_map(|p| &p.steps).any(lowers)
    }

    /// Carries out one step if possible now.
    fn pull(&mut self, step: &Step, cause: Cause, actions: &mut Vec<Action>) -> bool {
        let id = step.id;
        match step.lever {
            Lever::Caps => false,
            Lever::Share => {
                let Some(sm) = step.sm else { return false };
                self.set_share(id, sm, actions);
                true
            }
            Lever::Offload | Lever::Suspend => {
                if self.host_room() < self.bytes_of(id) {
                    return false;
                }
                let idle = self.claims.get(id).is_some_and(|g| g.run.levers.idle);
                let by = if idle {
                    ParkedBy::Idle
                } else {
                    ParkedBy::Reclaim
                };
                self.send_to_host(id, step.lever == Lever::Suspend, by, actions)
            }
            Lever::Move => {
                let from = self.ledger.slices(id).unwrap_or_default().to_vec();
                let Some(to) = self.way(&self.ledger, step) else {
                    return false;
                };
                if self.host_room() < self.bytes_of(id) {
                    return false;
                }
                if !self.set_out(id, Phase::Moving, actions) {
                    return false;
                }
                self.ledger.reserve(id, to.clone());
                self.stands_still(id);
                actions.push(Action::Move { id, from, to });
                true
            }
            Lever::Requeue => {
                actions.push(Action::Requeue { id, cause });
                true
            }
            Lever::Kill => {
                actions.push(Action::Kill { id, cause });
                true
            }
        }
    }

    fn send_to_host(
        &mut self,
        id: ClaimId,
        freeze: bool,
        by: ParkedBy,
        actions: &mut Vec<Action>,
    ) -> bool {
        let wanted = false;
        let goes = self.set_out(id, Phase::Offloading { freeze, by, wanted }, actions);
        if goes {
            self.stands_still(id);
            actions.push(Action::Park { id, freeze, by });
        }
        goes
    }

    /// Changes a claim's share of the SMs for a while.
    fn set_share(&mut self, id: ClaimId, sm: Share, actions: &mut Vec<Action>) {
        let Some(held) = self.ledger.slices(id).map(<[Slice]>::to_vec) else {
            return;
        };
        let before = held.first().map_or(sm, |s| s.sm);
        if let Some(claim) = self.claims.get_mut(id) {
            let full = claim.lowered_from.unwrap_or(before);
            claim.lowered_from = (sm < full).then_some(full);
        }
        let slices: Vec<Slice> = held.into_iter().map(|s| Slice { sm, ..s }).collect();
        self.ledger.insert(id, slices.clone());
        actions.push(Action::Share { id, slices });
    }

    /// Restores lowered shares as far as no other claim needs the SMs.
    pub(super) fn raise_shares(&mut self, future: &Ledger, actions: &mut Vec<Action>) {
        for (id, full) in self.claims.lowered().collect::<Vec<_>>() {
            let Some(slice) = self.ledger.slices(id).and_then(|s| s.first()) else {
                if let Some(claim) = self.claims.get_mut(id) {
                    claim.lowered_from = None;
                }
                continue;
            };
            let free = self
                .ledger
                .sm_free(slice.gpu)
                .min(future.sm_free(slice.gpu));
            let sm = full.min(slice.sm.saturating_add(free));
            if sm > slice.sm && !self.on_its_way(id) {
                self.set_share(id, sm, actions);
            }
        }
    }

    /// The owner postpones an announced step for a while; possible once for each waiting claim.
    pub(super) fn keep(&mut self, now: Now, id: ClaimId) -> bool {
        let found = self.announced(id).map(|(p, s)| (p.waiter, s.stage));
        let Some((waiter, Stage::Announced)) = found else {
            return false;
        };
        let until = now.saturating_add(self.reclaim.rules.keep);
        let Some(granted) = self.claims.get_mut(id) else {
            return false;
        };
        if granted.run.kept_for.contains(&waiter) {
            return false;
        }
        granted.run.kept_for.push(waiter);
        let all = [
            Lever::Share,
            Lever::Offload,
            Lever::Move,
            Lever::Suspend,
            Lever::Requeue,
            Lever::Kill,
        ];
        granted.run.spared.extend(all.map(|lever| (lever, until)));
        true
    }

    /// Spreads claims that share a GPU while a similar GPU is idle: one of them moves there, so that both can burst.
    pub(super) fn spread_out(&mut self, now: Now, actions: &mut Vec<Action>) {
        let rules = &self.reclaim.rules;
        let quiet = self.queue.is_empty()
            && self.reclaim.plans.is_empty()
            && self.claims.elsewhere().next().is_none();
        if !rules.enabled || !rules.spread || !quiet {
            self.reclaim.quiet_since = now;
            return;
        }
        if now.saturating_sub(self.reclaim.quiet_since) < rules.quiet {
            return;
        }
        let ledger = &self.ledger;
        let idle = (0..ledger.gpus().len())
            .filter(|&g| place::takes_in(ledger, g))
            .filter(|&g| ledger.holders(g).is_empty() && ledger.mem_free(g) > Bytes::ZERO);
        let mut ways: Vec<(Bytes, ClaimId, usize)> = Vec::new();
        for to in idle {
            for (id, slices) in ledger.held() {
                let [slice] = slices else { continue };
                let Some(granted) = self.claims.get(id).filter(|c| !c.ending) else {
                    continue;
                };
                let only = &granted.request.only_gpus;
                let named = only.is_empty() || u32::try_from(to).is_ok_and(|g| only.contains(&g));
                let bursts = slice.sm_limit > slice.sm || slice.mem_limit > slice.mem;
                let shared = ledger.holders(slice.gpu).len() > 1;
                let fits = slice.mem.max(slice.charge) <= ledger.mem_free(to);
                let able = self.can(id, Lever::Move)
                    && !self.spared(now, id, Lever::Move)
                    && self.settled(now, granted)
                    && self.host_room() >= slice.charge;
                if named && bursts && shared && fits && able && ledger.alike(to, &[slice.gpu]) {
                    ways.push((slice.charge, id, to));
                }
            }
        }
        let Some((_, id, to)) = ways.into_iter().min() else {
            return;
        };
        let plan = Plan {
            waiter: None,
            at: Vec::new(),
            steps: vec![Step {
                id,
                lever: Lever::Move,
                to: vec![to],
                sm: None,
                stage: Stage::Announced,
            }],
            due: now.saturating_add(self.reclaim.rules.countdown),
            entitled: false,
        };
        self.announce(&plan, &mut Future::default(), actions);
        self.reclaim.plans.push(plan);
    }
}
