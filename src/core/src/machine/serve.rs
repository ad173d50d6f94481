//! One decision: who of those that wait starts, comes back, gets another size, or keeps waiting and why.

use super::order::{FORESEEN, Round};
use super::plan::Future;
use super::{Action, Ask, Machine, Now, Waiting, caps};
use crate::claim::Request;
use crate::ledger::Slice;
use crate::place;
use crate::reason;
use crate::resize::{self, ResizeError};

impl Machine {
    pub(super) fn schedule(&mut self, now: Now, actions: &mut Vec<Action>) {
        // A machine that is started anew first hears of claims, and then what there is.
        if self.ledger.gpus().is_empty() {
            return;
        }
        self.forget_absent(now);
        self.order(now);
        self.foresee(now);
        let mut future = self.future(now);
        self.go_on_from_host(actions);
        let mut round = Round::new(&self.ledger);
        let mut still = Vec::new();
        let mut queue = std::mem::take(&mut self.queue).into_iter();
        while let Some(waiting) = queue.next() {
            match waiting.ask {
                Ask::Claim { .. } => {
                    let kept = {
                        let seen = (&mut round, &mut future);
                        self.try_claim(now, waiting, &still, seen, actions)
                    };
                    still.extend(kept);
                }
                Ask::Resize { .. } => match self.try_resize(now, waiting, &still, actions) {
                    Tried::Waits(waiting) => {
                        round.keep(now, &waiting);
                        still.push(waiting);
                    }
                    Tried::Refused => {}
                    // It may fail to be journaled: nothing else is decided before that is known.
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
        self.raise_shares(&future.ledger, actions);
        if self.carry_out(now, actions) {
            // Room was made at once: somebody starts in it.
            self.measure(actions);
        }
        future.retract(actions);
        // Who waits for no GPU keeps nobody from using what is free.
        let lend = self.queue.iter().all(|w| w.blocks.is_empty());
        actions.extend(caps(self.ledger.lend_caps(lend)));
    }

    /// Grants a claim, refuses it or keeps it waiting behind those who are `ahead`.
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
        let kept_back = round.blocked(now, request);
        if waiting.absent.is_some() {
            let planned = self.plan_of(id).is_some();
            if !planned || !self.make_room(now, &mut waiting, &kept_back, future, actions) {
                self.hold_back(now, &mut waiting, round);
            }
            return Some(waiting);
        }
        if self.rests(now, id) || self.between(id) {
            waiting.blocks = Vec::new();
            return Some(waiting);
        }
        let kept = self.kept_by_rule(id, request, waiting.entitled);
        future.make_way(id);
        if kept.is_none()
            && round.may_fit(&self.ledger, request, &kept_back)
            && let Some(slices) = self.place_now(request, &kept_back, future)
        {
            future.started(self, id, &slices);
            if self.comes_back(id) {
                self.unpark(id, slices.iter().map(|s| s.gpu), actions);
            } else {
                let ends = request.lease.map(|l| now.saturating_add(l));
                self.ledger.insert(id, slices.clone());
                self.set_lease(id, ends);
                actions.push(Action::Grant { id, slices, ends });
                self.note_grant(now, &waiting);
            }
            round.look(&self.ledger);
            return None;
        }
        let by_quota = kept.is_some();
        let reason = match (kept, &*told) {
            (Some(rule), _) => rule,
            // Far back in the queue what was told is true enough.
            (None, Some((_, reason))) if patient && ahead.len() >= FORESEEN => reason.clone(),
            (None, _) => {
                let ahead = ahead.last().map(|w| w.id());
                let blocked = future.block(request, &kept_back);
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
        if by_quota || !self.make_room(now, &mut waiting, &kept_back, future, actions) {
            self.hold_back(now, &mut waiting, round);
        }
        Some(waiting)
    }

    /// Where a claim starts at once: not on GPUs that are kept for others, nor where there will be no room for it.
    pub(super) fn place_now(
        &self,
        request: &Request,
        kept: &[bool],
        future: &Future,
    ) -> Option<Vec<Slice>> {
        let blocked = future.block(request, kept);
        place::choose(&self.ledger, request, &blocked, self.spreads(request))
    }

    /// Gives a claim its new size, refuses that or keeps it waiting behind those who are `ahead`.
    fn try_resize(
        &mut self,
        now: Now,
        mut waiting: Box<Waiting>,
        ahead: &[Box<Waiting>],
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
        let first = |gpu| {
            let waits = ahead.iter().find(|w| w.blocks.contains(&gpu));
            waits.map(|w| w.id())
        };
        let still = if self.on_its_way(id) {
            Err(ResizeError::OnItsWay { id })
        } else {
            Ok(())
        };
        let decided = still
            .and_then(|()| resize::target(&self.ledger, id, change))
            .and_then(|t| resize::check(&self.ledger, id, &t, change, first).map(|()| t))
            .and_then(|t| match self.quotas.keeps_from(&self.ledger, id, &t) {
                Some(over) => Err(ResizeError::Quota(over)),
                None => Ok(t),
            });
        match decided {
            Ok(slices) => {
                let before = self.ledger.slices(id).unwrap_or_default().to_vec();
                self.ledger.insert(id, slices.clone());
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
