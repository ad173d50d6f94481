//! One decision: which waiting claims start, come back or are resized, and why the others wait.

use super::claims::Claim;
use super::lever::Lever;
use super::order::{FORESEEN, Round};
use super::plan::{Future, Plan, Stage};
use super::reserve::Gone;
use super::{Action, Ask, Machine, Now, Waiting, caps};
use crate::claim::{ClaimId, Request};
use crate::ledger::{Ledger, Slice};
use crate::place;
use crate::reason;
use crate::resize::{self, ResizeError};

/// Called at a claim's turn in a decision. If it returns true, the claim neither starts nor has room made.
pub(super) type Look<'a> = dyn FnMut(&Machine, &Waiting, &Future) -> bool + 'a;

impl Machine {
    pub(super) fn schedule(&mut self, now: Now, actions: &mut Vec<Action>) {
        // After a restart, claims are restored before the facts come.
        if self.ledger.gpus().is_empty() {
            return;
        }
        self.forget_absent(now);
        self.order(now);
        self.foresee(now);
        self.serve(now, &mut |_, _, _| false, actions);
    }

    pub(super) fn serve(&mut self, now: Now, look: &mut Look<'_>, actions: &mut Vec<Action>) {
        let mut future = self.future(now);
        self.go_on_from_host(actions);
        let mut round = Round::new(&self.ledger);
        let mut still = Vec::with_capacity(self.queue.len());
        let mut queue = std::mem::take(&mut self.queue).into_iter();
        while let Some(waiting) = queue.next() {
            if look(self, &waiting, &future) {
                // After its turn, only resizes and due changes of SM shares can still make room for it in this
                // decision.
                let mut behind = queue.as_slice().iter();
                let resizes = behind.any(|w| matches!(w.ask, Ask::Resize { .. }));
                if !resizes && !self.shares_at_once(now) {
                    return;
                }
                still.push(waiting);
                continue;
            }
            match waiting.ask {
                Ask::Claim { .. } => {
                    let kept = {
                        let seen = (&mut round, &mut future);
                        self.try_claim(now, waiting, &still, seen, actions)
                    };
                    still.extend(kept);
                }
                Ask::Resize { .. } => match self.try_resize(now, waiting, &still, &future, actions)
                {
                    Tried::Waits(mut waiting) => {
                        self.hold(now, &mut waiting, &mut future);
                        still.push(waiting);
                    }
                    Tried::Refused => {}
                    // Journaling may fail: nothing else is decided until that is known.
                    Tried::Done => {
                        still.extend(queue);
                        self.queue = still;
                        future.retract(actions);
                        self.measure(actions);
                        return;
                    }
                },
            }
        }
        self.queue = still;
        self.reclaim.left_out = future.left_out;
        self.raise_shares(&future.ledger, actions);
        if self.carry_out(now, actions) {
            // Room was made at once: a claim starts in it.
            self.measure(actions);
        }
        future.retract(actions);
        // Claims that wait for no GPU do not stop lending.
        let lend = self.queue.iter().all(|w| w.by_rule() || w.rests);
        actions.extend(caps(self.ledger.lend_caps(lend)));
    }

    /// Grants or refuses a claim, or lets it wait behind the claims `ahead`.
    fn try_claim(
        &mut self,
        now: Now,
        mut waiting: Box<Waiting>,
        ahead: &[Box<Waiting>],
        (round, future): (&mut Round, &mut Future),
        actions: &mut Vec<Action>,
    ) -> Option<Box<Waiting>> {
        let patient = waiting.patient(now);
        let Ask::Claim { id, request, told } = &mut waiting.ask else {
            return Some(waiting);
        };
        let id = *id;
        waiting.blocks = Vec::new();
        if waiting.absent.is_some() {
            let planned = self.plan_of(id).is_some();
            if !planned || !self.make_room(now, &mut waiting, future, actions) {
                self.hold(now, &mut waiting, future);
            }
            return Some(waiting);
        }
        waiting.rests = self.rests(now, id) || self.between(id);
        if waiting.rests {
            return Some(waiting);
        }
        if let Some(gpus) = self.kept_for(id) {
            self.unpark(id, gpus.into_iter(), actions);
            return None;
        }
        let kept = self.kept_by_rule(id, request, waiting.entitled);
        future.make_way(id);
        let lets_in = !self.comes_back(id) && self.lets_in(request);
        if lets_in
            && kept.is_none()
            && let Some(slices) = self.let_in_of_queue(now, request)
        {
            let claim = Claim::new(request.clone(), waiting.seq, now);
            actions.push(self.count(id, claim, slices));
            return None;
        }
        if !lets_in
            && kept.is_none()
            && round.may_fit(&self.ledger, request, &[])
            && let gone = self.gone(now, id, request)
            && let Some(slices) = self.place_now(request, gone, future)
            && self.needs_no_plan(now, id, request, &slices)
        {
            future.started(self, id, &slices, gone);
            let turn = waiting.turn;
            // If a claim whose turn it is waits ahead, this turn ends no later than those in progress, so that it adds
            // no delay.
            let behind = ahead.iter().any(|w| w.due);
            let most = behind.then(|| self.turns_end(now));
            if self.comes_back(id) {
                self.unpark(id, slices.iter().map(|s| s.gpu), actions);
            } else {
                let claim = Claim::new(request.clone(), waiting.seq, now);
                actions.push(self.grant(id, claim, slices));
            }
            if let (Some(granted), Some(slot)) = (self.claims.get_mut(id), turn) {
                let until = now.saturating_add(slot).min(most.unwrap_or(Now::MAX));
                let taken = [Lever::Suspend, Lever::Requeue, Lever::Kill];
                granted.run.spared.extend(taken.map(|lever| (lever, until)));
            }
            *round = Round::new(&self.ledger);
            return None;
        }
        let by_quota = kept.is_some();
        let reason = match (kept, &*told) {
            (Some(rule), _) => rule,
            // Far back in the queue the last reported reason is accurate enough.
            (None, Some((_, reason))) if patient && ahead.len() >= FORESEEN => reason.clone(),
            (None, _) => {
                let ahead = ahead.last().map(|w| w.id());
                let blocked = future.block(request, self.gone(now, id, request));
                reason::waits(&self.ledger, request, &blocked, ahead)
            }
        };
        if !patient {
            self.quotas.leave(id);
            actions.push(Action::Refuse {
                id,
                reason,
                for_now: true,
            });
            return None;
        }
        let now_told = (ahead.len() + 1, reason);
        if told.as_ref() != Some(&now_told) {
            let (position, reason) = now_told.clone();
            actions.push(Action::Wait {
                id,
                position,
                reason,
            });
            *told = Some(now_told);
        }
        if !by_quota && !self.make_room(now, &mut waiting, future, actions) {
            self.hold(now, &mut waiting, future);
        }
        Some(waiting)
    }

    /// End of the turns of granted claims.
    fn turns_end(&self, now: Now) -> Now {
        let held = self.ledger.held().map(|(id, _)| id);
        let turns = held.filter(|id| self.has_slot(now, *id));
        let until = turns.filter_map(|id| self.claims.get(id)?.run.spared.get(&Lever::Suspend));
        until.copied().max().unwrap_or(now)
    }

    /// Whether a claim can start here without completing its plan: other plans may rely on the steps of this one.
    fn needs_no_plan(&self, now: Now, id: ClaimId, request: &Request, at: &[Slice]) -> bool {
        let undone = |p: &Plan| p.steps.iter().any(|s| s.stage != Stage::Done);
        if !self.plan_of(id).is_some_and(undone) {
            return true;
        }
        let mut others = self.all_arrived(now);
        let mut plans = self.reclaim.plans.iter().filter(|p| p.waiter != Some(id));
        plans.all(|plan| self.holds(&mut others, plan))
            && at
                .iter()
                .all(|s| others.ledger.fit(request, s.gpu).is_some())
    }

    /// Reserves room for the first claim that waits without a plan, at the earliest time that known ends allow.
    fn hold(&self, now: Now, waiting: &mut Waiting, future: &mut Future) {
        if future.reserved.is_some() {
            return;
        }
        future.reserved = self.reserve(now, waiting, future);
        if let Some(reserved) = &future.reserved {
            waiting.blocks.clone_from(&reserved.gpus);
            waiting.expected = Some(reserved.at);
        }
    }

    /// Where a claim can start at once, without GPUs that are kept for others.
    pub(super) fn place_now(
        &self,
        request: &Request,
        gone: Gone,
        future: &Future,
    ) -> Option<Vec<Slice>> {
        let blocked = future.block(request, gone);
        place::choose(&self.ledger, request, &blocked, self.spreads(request))
    }

    /// Resizes a claim or refuses that, or lets the wish wait behind the claims `ahead`.
    fn try_resize(
        &mut self,
        now: Now,
        mut waiting: Box<Waiting>,
        ahead: &[Box<Waiting>],
        future: &Future,
        actions: &mut Vec<Action>,
    ) -> Tried {
        let patient = waiting.patient(now);
        let Ask::Resize {
            ticket,
            id,
            change,
            told,
        } = &mut waiting.ask
        else {
            return Tried::Refused;
        };
        let (ticket, id) = (*ticket, *id);
        let still = if self.on_its_way(id) {
            Err(ResizeError::OnItsWay { id })
        } else {
            Ok(())
        };
        let decided = still
            .and_then(|()| resize::target(&self.ledger, id, change))
            .and_then(|t| {
                // A claim ahead is in the way only if the new size would take room promised to it. A claim that is to
                // make room still counts as present for plans that come before that.
                let fits = |l: &Ledger| resize::check(l, id, &t, change, |_| None).is_ok();
                let ends = |l: &Ledger| l.slices(id).is_none();
                let reserved = future.reserved.as_ref().map(|r| &r.ledger);
                let beside = fits(&future.ledger) && reserved.is_none_or(|l| ends(l) || fits(l));
                let first = |gpu| {
                    let mut ahead = ahead.iter().filter(|_| !beside);
                    ahead.find(|w| w.blocks.contains(&gpu)).map(|w| w.id())
                };
                resize::check(&self.ledger, id, &t, change, first).map(|()| t)
            })
            .and_then(|t| match self.quotas.keeps_from(&self.ledger, id, &t) {
                Some(over) => Err(ResizeError::Quota(over)),
                None => Ok(t),
            });
        match decided {
            Ok(slices) => {
                let before = self.ledger.slices(id).unwrap_or_default().to_vec();
                self.ledger.insert(id, slices.clone());
                if let Some(claim) = self.claims.get_mut(id) {
                    claim.is_resized(&slices);
                }
                actions.push(Action::Resize {
                    ticket,
                    id,
                    before,
                    slices,
                });
                Tried::Done
            }
            Err(error) if patient && error.for_now() => {
                let now_told = (ahead.len() + 1, error);
                if told.as_ref() != Some(&now_told) {
                    let (position, error) = now_told.clone();
                    actions.push(Action::ResizeWaits {
                        ticket,
                        position,
                        error,
                    });
                    *told = Some(now_told);
                }
                Tried::Waits(waiting)
            }
            Err(error) => {
                actions.push(Action::ResizeRefused { ticket, error });
                Tried::Refused
            }
        }
    }
}

enum Tried {
    Done,
    Refused,
    Waits(Box<Waiting>),
}
