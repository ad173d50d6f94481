//! Plans: which levers make room so that a waiting claim can start. They are announced, then carried out.
//!
//! A plan is kept from its announcement on, as long as it still leads to a start. Claims later in the queue see the
//! machine as it will be when the plan has been carried out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::board::Problem;
use super::claims::{Claim, PhaseKind};
use super::holding::settled_on;
use super::lever::{Cause, Lever};
use super::reserve::{Gone, Reserved, is_gone};
use super::{Action, Ask, Machine, Now, Waiting};
use crate::claim::{ClaimId, Request};
use crate::ledger::{Admission, Ledger, Sharing, Slice};
use crate::place;
use crate::sched::fair::level;
use crate::units::Share;

/// Steps that make room for a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The claim that starts; none if running claims are spread.
    pub waiter: Option<ClaimId>,
    /// The GPUs where it starts.
    pub at: Vec<usize>,
    /// Levers on other claims.
    pub steps: Vec<Step>,
    /// Earliest time of the steps.
    #[serde(rename = "due_ms", with = "crate::millis")]
    pub due: Now,
    /// The claim is within its owner's guarantee.
    pub entitled: bool,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The claim that it affects.
    pub id: ClaimId,
    pub lever: Lever,
    /// The claim's GPUs afterwards, if it moves.
    pub to: Vec<usize>,
    /// The claim's SMs afterwards, if its share is lowered.
    pub sm: Option<Share>,
    /// Progress.
    pub stage: Stage,
}

/// Progress of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Its owner has been notified.
    Announced,
    /// In progress.
    Underway,
    /// Done, or not needed any more.
    Done,
}

impl Plan {
    pub(super) fn cause(&self) -> Cause {
        Cause {
            waiter: self.waiter,
            entitled: self.entitled,
        }
    }
}

/// The machine as it will be when plans are carried out, and announced steps that may be unnecessary.
#[derive(Debug, Default)]
pub(super) struct Future {
    pub(super) ledger: Ledger,
    /// Waiting claims that have their place in it.
    pub(super) planned: Vec<ClaimId>,
    /// Claims that move via the host, with what they held.
    between: BTreeMap<ClaimId, Vec<Slice>>,
    /// Announced steps of abandoned plans.
    pub(super) stale: BTreeMap<ClaimId, (Lever, Now)>,
    /// The cached search problem; cleared on changes.
    pub(super) problem: Option<Box<Problem>>,
    /// Search steps so far.
    pub(super) steps: u32,
    /// Limit on search steps.
    most_steps: u32,
    /// No way was searched for a claim within a guarantee, because the steps were used up.
    pub(super) left_out: bool,
    /// Fingerprint of the search's inputs.
    pub(super) print: u64,
    /// It differs from the machine as it is now.
    pub(super) differs: bool,
    /// Earliest time of the difference: claims that end before it are in no plan's way.
    pub(super) from: Option<Now>,
    /// Known ends of granted claims, earliest first.
    pub(super) ends: Vec<(Now, ClaimId)>,
    /// The reservation for a claim without a plan.
    pub(super) reserved: Option<Reserved>,
}

impl Machine {
    /// The plan that makes room for a waiting claim.
    #[must_use]
    pub fn plan_of(&self, id: ClaimId) -> Option<&Plan> {
        self.reclaim.plans.iter().find(|p| p.waiter == Some(id))
    }

    /// What is announced for a running claim: the plan, and its step.
    #[must_use]
    pub fn announced(&self, id: ClaimId) -> Option<(&Plan, &Step)> {
        let step = |p: &'_ Plan| {
            p.steps
                .iter()
                .position(|s| s.id == id && s.stage != Stage::Done)
        };
        let plan = self.reclaim.plans.iter().find(|p| step(p).is_some())?;
        Some((plan, &plan.steps[step(plan)?]))
    }

    /// The machine after all transits and plans. Plans that do not lead to a start any more are abandoned.
    pub(super) fn future(&mut self, now: Now) -> Future {
        let mut future = self.all_arrived(now);
        let plans = std::mem::take(&mut self.reclaim.plans);
        for mut plan in plans {
            if self.leads_on(now, &mut plan) && self.holds(&mut future, &plan) {
                self.reclaim.plans.push(plan);
            } else {
                future.give_up(plan);
            }
        }
        future.print = self.fingerprint(now);
        future
    }

    /// Applies a plan to the future: its room is promised, even against claims earlier in the queue. False if the plan
    /// does not lead to a start any more.
    pub(super) fn holds(&self, future: &mut Future, plan: &Plan) -> bool {
        let waiting = self.queue.iter().find(|w| Some(w.id()) == plan.waiter);
        let who = waiting.and_then(|w| Who::of(w));
        plan.waiter.is_none() || who.is_some_and(|who| future.take(plan, who.request))
    }

    /// The machine after all transits, without plans.
    pub(super) fn all_arrived(&self, now: Now) -> Future {
        let mut future = Future {
            ledger: self.ledger.clone(),
            most_steps: self.most_steps(),
            differs: self.claims.moving().next().is_some(),
            ends: self.ends(now),
            between: self.all_between().collect(),
            ..Future::default()
        };
        for (id, phase) in self.claims.moving() {
            if phase.kind() == PhaseKind::Offloading {
                future.ledger.remove(id);
            } else if let Some(to) = future.ledger.unreserve(id) {
                future.ledger.insert(id, to);
            }
        }
        future
    }

    /// Updates the stages of a plan; false if it must be abandoned.
    fn leads_on(&self, now: Now, plan: &mut Plan) -> bool {
        let waiting = self.queue.iter().find(|w| Some(w.id()) == plan.waiter);
        let who = waiting.and_then(|w| Who::of(w));
        plan.entitled = who.is_some_and(|w| w.entitled);
        // Claims are spread only while the queue is empty.
        let waits = who.is_some() || (plan.waiter.is_none() && self.queue.is_empty());
        let mut sound = waits && self.reclaim.rules.enabled;
        // Nothing more is taken for a claim that gives up in this decision.
        if waiting.is_some_and(|w| !w.patient(now)) {
            sound &= plan.steps.iter().all(|s| s.stage != Stage::Announced);
        }
        for step in &mut plan.steps {
            let held = self.ledger.slices(step.id);
            let on_its_way = self.on_its_way(step.id);
            match (step.stage, held) {
                (Stage::Done, _) => {}
                (_, None) if self.can_go_on(now, step) => {}
                (_, None) => step.stage = Stage::Done,
                (Stage::Underway, Some(_)) if on_its_way => {}
                (Stage::Underway, Some(held)) => match step.lever {
                    Lever::Move | Lever::Suspend
                        if held.iter().all(|s| step.to.contains(&s.gpu)) =>
                    {
                        step.stage = Stage::Done;
                    }
                    // It was asked to end and will do so.
                    Lever::Requeue | Lever::Kill => {}
                    _ => sound = false,
                },
                (Stage::Announced, Some(held)) => {
                    let late = who.is_some_and(|who| who.late);
                    let spared = self.spared(now, step.id, step.lever)
                        && !(late && self.had_its_turn(now, step.id));
                    let ending = self.claims.get(step.id).is_some_and(|c| c.ending);
                    let there = |g: &usize| place::takes_in(&self.ledger, *g);
                    sound &= step.to.iter().all(there);
                    let may = step.lever == Lever::Move
                        || who.is_some_and(|who| self.may_still(&who, step, held));
                    sound &=
                        may && !spared && !ending && !on_its_way && self.can(step.id, step.lever);
                }
            }
        }
        let going = plan.steps.iter().any(|s| s.stage != Stage::Done);
        sound && (plan.waiter.is_some() || going)
    }

    /// Whether an announced step is still allowed: its owner may have ended another claim since.
    fn may_still(&self, who: &Who<'_>, step: &Step, held: &[Slice]) -> bool {
        let granted = self.claims.get(step.id);
        let idle = step.lever == Lever::Offload && granted.is_some_and(|g| g.run.levers.idle);
        idle || self.may_take(who, step.id, held)
    }

    /// Whether a lever works on a claim, and the queue decides about its GPUs.
    pub(super) fn can(&self, id: ClaimId, lever: Lever) -> bool {
        let Some(granted) = self.claims.get(id) else {
            return false;
        };
        // On other GPUs nothing is taken and no claim is moved.
        let held = || self.ledger.slices(id);
        if !self.ledger.all_queued() && held().is_some_and(|held| !self.ledger.queued(held)) {
            return false;
        }
        if granted.run.levers.left_alone {
            return lever == Lever::Caps;
        }
        match lever {
            Lever::Caps | Lever::Share => true,
            Lever::Offload | Lever::Suspend => granted.run.levers.park.is_ok(),
            Lever::Move => granted.request.movable && granted.run.levers.movable.is_ok(),
            Lever::Requeue => granted.run.levers.requeue && self.reclaim.rules.requeue,
            Lever::Kill => self.reclaim.rules.kill,
        }
    }

    pub(super) fn spared(&self, now: Now, id: ClaimId, lever: Lever) -> bool {
        let granted = self.claims.get(id);
        let until = granted.and_then(|g| g.run.spared.get(&lever));
        until.is_some_and(|until| *until > now)
    }

    /// Fingerprint of a search's inputs: places and sizes of claims, and which levers work on them.
    pub(super) fn fingerprint(&self, now: Now) -> u64 {
        let mut print = 0u64;
        let mut add = |n: u64| {
            print = (print.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        };
        for (g, facts) in self.ledger.gpus().iter().enumerate() {
            add(facts.allocatable().map_or(u64::MAX, |b| b.0 >> 26));
            let mode = match facts.sharing {
                Sharing::Timeslice => 0,
                Sharing::Exclusive => 1,
                Sharing::Instance { .. } => 2,
                Sharing::Mps { multi_user } => 3 + u64::from(multi_user),
                Sharing::Auto { mps } => 5 + mps.map_or(2, u64::from),
            };
            let by = match self.ledger.admission(g) {
                Admission::Queue => 0,
                Admission::Pass => 1,
                Admission::Foreign => 2,
            };
            let open = u64::from(facts.healthy) + 2 * u64::from(self.ledger.is_drained(g));
            add(open + 4 * mode + 64 * by);
        }
        for (id, slices) in self.ledger.held() {
            add(id.0);
            for s in slices {
                add((s.gpu as u64) << 32 | u64::from(s.sm.milli()));
                add(s.mem.max(s.charge).0 >> 26);
            }
            let granted = self.claims.get(id);
            add(granted.map_or(0, |g| {
                let able = [
                    g.run.levers.park.is_ok(),
                    g.run.levers.movable.is_ok(),
                    g.run.levers.idle,
                    g.run.levers.requeue,
                    g.run.levers.left_alone,
                ];
                let flags = able.iter().fold(1u64, |n, b| n * 2 + u64::from(*b));
                let spared = g.run.spared.values().filter(|until| **until > now).count() as u64;
                let settled = u64::from(self.settled(now, g));
                let turn = u64::from(self.had_its_turn(now, id));
                let owner = self.owner_level(id, g.request.uid);
                let levels = u64::from(self.level_of(id)) + 4 * u64::from(owner);
                flags + 64 * spared + 4096 * (settled + 2 * turn + 4 * levels)
            }));
            add(u64::from(granted.is_some_and(|c| c.borrower)));
        }
        add(self.claims.moving().count() as u64);
        add(self.host_room_beside_plans().0 >> 26);
        let rules = &self.reclaim.rules;
        add(u64::from(rules.enabled) + 2 * u64::from(rules.requeue) + 4 * u64::from(rules.kill));
        add(self.reclaim.plans.len() as u64);
        let mut held = self.ledger.held();
        let turns = held.any(|(id, _)| self.had_its_turn(now, id));
        for waiting in &self.queue {
            let standing = [turns && waiting.late, waiting.due, waiting.entitled];
            let standing = standing.iter().fold(0, |n, b| n * 2 + u64::from(*b));
            let levels = u64::from(waiting.level) + 4 * u64::from(level(waiting.had as f64 * 60.0));
            add(waiting.id().0 * 128 + standing * 16 + levels);
        }
        print
    }

    /// Whether a claim will have reached its minimum run time when a countdown that starts now ends.
    pub(super) fn settled(&self, now: Now, granted: &Claim) -> bool {
        self.asked_from(now, granted).is_none()
    }

    /// When a step against a claim below its minimum run time may be announced; `None` if now.
    pub(super) fn asked_from(&self, now: Now, granted: &Claim) -> Option<Now> {
        let countdown = self.reclaim.rules.countdown;
        let from = self.min_run_ends(granted).saturating_sub(countdown);
        (from > now).then_some(from)
    }

    /// End of a claim's minimum run time.
    pub(super) fn min_run_ends(&self, granted: &Claim) -> Now {
        let least = self.rules_of(granted.request.class).min_run;
        granted.run.since.saturating_add(least)
    }

    /// Makes room for a claim that does not fit, by its plan or a new one. False if there is no way.
    pub(super) fn make_room(
        &mut self,
        now: Now,
        waiting: &mut Waiting,
        future: &mut Future,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(who) = Who::of(waiting) else {
            return false;
        };
        let planned = self.plan_of(who.id).is_some();
        if !planned && !self.reclaim.rules.enabled {
            return false;
        }
        if !planned && future.searched_enough() {
            future.left_out |= who.is_sure();
            return false;
        }
        if !planned && self.ends_in_time(now, waiting, future) {
            return false;
        }
        let starts = now.saturating_add(self.reclaim.rules.countdown);
        let blocked = future.kept(who.request, self.gone(starts, who.id, who.request));
        let Some(plan) = self.plan_for(now, &who, &blocked, future, actions) else {
            let done = !future.searched_enough();
            future.left_out |= who.is_sure() && !done;
            waiting.searched = done.then(|| future.print_with(&blocked));
            return false;
        };
        waiting.searched = None;
        waiting.blocks.clone_from(&plan.at);
        for step in &plan.steps {
            waiting.blocks.extend(&step.to);
        }
        waiting.blocks.sort_unstable();
        waiting.blocks.dedup();
        waiting.expected = Some(plan.due.max(now));
        true
    }

    /// Whether known ends of other claims make room before a countdown would.
    fn ends_in_time(&self, now: Now, waiting: &Waiting, future: &Future) -> bool {
        let by = now.saturating_add(self.reclaim.rules.countdown);
        let soon = future.ends.first().is_some_and(|(at, _)| *at <= by);
        let reserved = || self.reserve(now, waiting, future);
        soon && future.reserved.is_none() && reserved().is_some_and(|r| r.at <= by)
    }

    /// The claim's plan, or a new one.
    fn plan_for(
        &mut self,
        now: Now,
        who: &Who<'_>,
        blocked: &[bool],
        future: &mut Future,
        actions: &mut Vec<Action>,
    ) -> Option<Plan> {
        let own = |p: &Plan| p.waiter == Some(who.id);
        if let Some(index) = self.reclaim.plans.iter().position(own) {
            // The future includes the plan's steps already; only the claim itself was taken out while its place was
            // searched.
            if future.take(&self.reclaim.plans[index], who.request) {
                return Some(self.reclaim.plans[index].clone());
            }
            future.give_up(self.reclaim.plans.remove(index));
        } else if who.searched == Some(future.print_with(blocked)) {
            return None;
        }
        let plan = self.search(now, who, blocked, future)?;
        if !future.take(&plan, who.request) {
            return None;
        }
        self.announce(&plan, future, actions);
        self.reclaim.plans.push(plan.clone());
        Some(plan)
    }

    pub(super) fn announce(&self, plan: &Plan, future: &mut Future, actions: &mut Vec<Action>) {
        for step in &plan.steps {
            let told = future.stale.remove(&step.id);
            if told == Some((step.lever, plan.due)) {
                continue;
            }
            actions.push(Action::Announce {
                id: step.id,
                lever: step.lever,
                to: step.to.clone(),
                at: plan.due,
                cause: plan.cause(),
            });
        }
    }
}

/// A waiting claim, for a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who<'a> {
    pub(super) id: ClaimId,
    pub(super) request: &'a Request,
    pub(super) entitled: bool,
    pub(super) over: bool,
    pub(super) due: bool,
    pub(super) level: u8,
    pub(super) owner: u8,
    pub(super) priority: u16,
    pub(super) late: bool,
    /// Inputs of the last search for it that found no plan.
    pub(super) searched: Option<u64>,
}

impl<'a> Who<'a> {
    /// It must get room: within its owner's guarantee, or its turn has come.
    pub(super) fn is_sure(&self) -> bool {
        self.entitled || self.due
    }

    #[cfg(test)]
    /// A claim ordered after all others, without a guarantee.
    pub(super) fn last(request: &'a Request) -> Self {
        Self {
            id: ClaimId(u64::MAX),
            request,
            entitled: false,
            over: false,
            due: false,
            level: 0,
            owner: 0,
            priority: 0,
            late: false,
            searched: None,
        }
    }

    /// A waiting claim; `None` for a wish to resize, which makes no plans.
    pub(super) fn of(waiting: &'a Waiting) -> Option<Self> {
        let Ask::Claim { id, request, .. } = &waiting.ask else {
            return None;
        };
        Some(Self {
            id: *id,
            request,
            entitled: waiting.entitled,
            over: waiting.over,
            due: waiting.due,
            level: waiting.level,
            owner: level(waiting.had as f64 * 60.0),
            priority: waiting.priority,
            late: waiting.late,
            searched: waiting.searched,
        })
    }
}

impl Future {
    /// GPUs on which a request that ends at `gone` may not start, because room there is promised to others.
    pub(super) fn block(&self, request: &Request, gone: Gone) -> Vec<bool> {
        let gpus = 0..self.ledger.gpus().len();
        gpus.map(|g| self.is_kept(request, gone, g)).collect()
    }

    /// GPUs on which it would delay the reservation.
    pub(super) fn kept(&self, request: &Request, gone: Gone) -> Vec<bool> {
        let reserved = self.reserved.as_ref().filter(|r| !r.lets_past(gone));
        let kept = |g| reserved.is_some_and(|r| r.ledger.fit(request, g).is_none());
        (0..self.ledger.gpus().len()).map(kept).collect()
    }

    /// Whether GPU `g` is one of those in [`Self::block`].
    pub(super) fn is_kept(&self, request: &Request, gone: Gone, g: usize) -> bool {
        let differs = self.differs && !self.from.is_some_and(|from| is_gone(gone.surely, from));
        let reserved = self.reserved.as_ref().filter(|r| !r.lets_past(gone));
        let full = |ledger: &Ledger| ledger.fit(request, g).is_none();
        (differs && full(&self.ledger)) || reserved.is_some_and(|r| full(&r.ledger))
    }

    /// The claim for which room on a GPU is promised.
    pub(super) fn comes(&self, here: &Ledger, g: usize) -> Option<ClaimId> {
        let reserved = self.reserved.as_ref().map(|r| &r.ledger);
        let mut later = std::iter::once(&self.ledger).chain(reserved);
        later.find_map(|ledger| ledger.comes(here, g))
    }

    /// Whether this decision has used up its search steps.
    pub(super) fn searched_enough(&self) -> bool {
        self.steps >= self.most_steps
    }

    /// Fingerprint of a search's inputs, including GPUs kept for others.
    fn print_with(&self, blocked: &[bool]) -> u64 {
        let bits = blocked
            .iter()
            .fold(1u64, |bits, b| bits << 1 | u64::from(*b));
        self.print ^ bits.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Applies a plan as if it had been carried out. Returns false and changes nothing if its claim would have no room.
    pub(super) fn take(&mut self, plan: &Plan, request: &Request) -> bool {
        let Some(later) = self.after(plan, request) else {
            return false;
        };
        let reserved = self.reserved.as_ref();
        let reserved = reserved.map(|r| self.carried_out(r.ledger.clone(), plan, request));
        if let (Some(kept), Some(ledger)) = (self.reserved.as_mut(), reserved) {
            let Some(ledger) = ledger else {
                return false;
            };
            kept.ledger = ledger;
        }
        self.planned.extend(plan.waiter);
        self.ledger = later;
        self.differs = true;
        self.from = Some(self.from.map_or(plan.due, |from| from.min(plan.due)));
        self.problem = None;
        true
    }

    /// The ledger after a plan; `None` if its claim would have no room. If necessary, claims that end before the plan
    /// is due count as gone.
    pub(super) fn after(&self, plan: &Plan, request: &Request) -> Option<Ledger> {
        let all = self.carried_out(self.ledger.clone(), plan, request);
        all.or_else(|| {
            let mut later = self.ledger.clone();
            let gone = self.ends.iter().take_while(|(at, _)| *at <= plan.due);
            gone.for_each(|(_, id)| {
                later.remove(*id);
            });
            self.carried_out(later, plan, request)
        })
    }

    fn carried_out(&self, mut later: Ledger, plan: &Plan, request: &Request) -> Option<Ledger> {
        // The plan may have been applied already.
        if let Some(id) = plan.waiter {
            later.remove(id);
        }
        for step in plan.steps.iter().filter(|s| s.stage != Stage::Done) {
            let between = self.between.get(&step.id).filter(|_| step.by_host());
            let held = later.slices(step.id).or(between.map(Vec::as_slice));
            let Some(held) = held.map(<[Slice]>::to_vec) else {
                continue;
            };
            let moves = step.lever == Lever::Move || step.by_host();
            match (moves, step.sm) {
                (true, _) => {
                    later.remove(step.id);
                    let to = settled_on(&held, step.to.iter().copied());
                    later.insert(step.id, to);
                }
                (_, Some(sm)) => {
                    let lower = |s: &Slice| Slice { sm, ..s.clone() };
                    later.insert(step.id, held.iter().map(lower).collect::<Vec<_>>());
                }
                _ => {
                    later.remove(step.id);
                }
            }
        }
        // Only destinations are checked: GPUs that were overfull before do not matter elsewhere.
        let mut to = plan.steps.iter().flat_map(|s| &s.to);
        if to.any(|g| place::overfull(&later, *g)) {
            return None;
        }
        if let Some(id) = plan.waiter {
            let fit = plan.at.iter().map(|g| later.fit(request, *g));
            let slices = fit.collect::<Option<Vec<Slice>>>()?;
            later.insert(id, slices);
        }
        Some(later)
    }

    fn give_up(&mut self, plan: Plan) {
        self.problem = None;
        let told = plan.steps.into_iter();
        let told = told.filter(|s| s.stage == Stage::Announced);
        self.stale.extend(told.map(|s| (s.id, (s.lever, plan.due))));
    }

    /// Removes a planned claim from the future while its place is searched.
    pub(super) fn make_way(&mut self, id: ClaimId) {
        if self.planned.contains(&id) {
            self.ledger.remove(id);
            self.problem = None;
        }
    }

    /// Records the start of a claim, whether or not its plan was completed.
    pub(super) fn started(
        &mut self,
        machine: &mut Machine,
        id: ClaimId,
        slices: &[Slice],
        gone: Gone,
    ) {
        if !self.from.is_some_and(|from| is_gone(gone.surely, from)) {
            self.ledger.insert(id, slices.to_vec());
        }
        if let Some(end) = gone.surely {
            let place = self.ends.partition_point(|e| *e < (end, id));
            self.ends.insert(place, (end, id));
        }
        if let Some(reserved) = self.reserved.as_mut().filter(|r| !r.lets_past(gone)) {
            reserved.ledger.insert(id, slices.to_vec());
        }
        self.problem = None;
        let plans = &mut machine.reclaim.plans;
        if let Some(index) = plans.iter().position(|p| p.waiter == Some(id)) {
            let plan = plans.remove(index);
            self.give_up(plan);
        }
    }

    /// Cancels announced steps that are not carried out.
    pub(super) fn retract(self, actions: &mut Vec<Action>) {
        let stale = self.stale.into_iter();
        actions.extend(stale.map(|(id, (lever, _))| Action::Retract { id, lever }));
    }
}
