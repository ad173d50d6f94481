//! Searches for the gentlest way to make room: lower the shares of borrowers, offload idle claims, move, suspend
//! borrowers, end claims that may be started anew, and last, if the administrator allows it, end other claims.

use super::board::{Leaves, Problem, Rank};
use super::claims::Claim;
use super::lever::Lever;
use super::plan::{Future, Plan, Stage, Step, Who};
use super::{Machine, Now};
use crate::claim::{ClaimId, Class};
use crate::ledger::{Ledger, Slice};
use crate::place;
use crate::sched::solve::{Answer, Budget, Fit, Item, Prefer};
use crate::units::{Bytes, Share};

/// Limits of one search.
const BUDGET: Budget = Budget {
    steps: 3000,
    moves: 5,
    least: 0,
    drops: 8,
};
/// Search steps in one decision; remaining claims are searched for in the next. In a long queue each waiting claim
/// costs time as well, counted as this many steps. Each GPU adds a minimum.
const STEPS: u32 = 12_000;
const FEW: usize = 50;
const STEPS_A_WAITING: u32 = 25;
const STEPS_A_GPU: u32 = 300;
/// Cost of examining all running claims, in steps, whatever the result.
const LOOK: u32 = 150;
/// Strongest lever of each attempt, gentlest first.
const WAYS: [Lever; 5] = [
    Lever::Offload,
    Lever::Move,
    Lever::Suspend,
    Lever::Requeue,
    Lever::Kill,
];
/// A borrower whose share is lowered gives up at most one in this many of its SMs.
const LEAST_SHARE: u32 = 2;

impl Machine {
    /// Step limit of a decision: bounds its time, however many claims wait.
    pub(super) fn most_steps(&self) -> u32 {
        let times = |steps: u32, count: usize| {
            steps.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
        };
        let waiting = times(STEPS_A_WAITING, self.queue.len().saturating_sub(FEW));
        let least = times(STEPS_A_GPU, self.ledger.gpus().len());
        STEPS.saturating_sub(waiting).max(least)
    }

    /// The gentlest way to make room.
    pub(super) fn search(
        &self,
        now: Now,
        who: &Who<'_>,
        blocked: &[bool],
        future: &mut Future,
    ) -> Option<Plan> {
        // Most claims queue behind one for which all GPUs that they could use are kept.
        let free = |g: &usize| !blocked.get(*g).copied().unwrap_or(false);
        if !place::open_to(&future.ledger, who.request).any(|g| free(&g)) {
            return None;
        }
        future.steps += LOOK;
        if let Some(plan) = self.lower_shares(now, who, blocked, future) {
            return Some(plan);
        }
        let known = future.problem.take();
        let mut problem = known.unwrap_or_else(|| Box::new(self.problem(now, future)));
        let plan = self.search_in(now, who, blocked, &mut problem, future);
        future.problem = Some(problem);
        plan
    }

    fn search_in(
        &self,
        now: Now,
        who: &Who<'_>,
        blocked: &[bool],
        problem: &mut Problem,
        future: &mut Future,
    ) -> Option<Plan> {
        problem.asked_by(who, blocked);
        let item = problem.item(&future.ledger, who.request, blocked)?;
        if !problem.anybody() {
            return None;
        }
        // Room that transits in progress will make anyway.
        if let Some(at) = problem.board.direct(&item, Prefer::Pack, |_| 0) {
            return Some(self.dated(now, who, at, Vec::new(), future));
        }
        // For most claims even all levers together are not enough.
        problem.allow(Lever::Kill);
        if !problem.board.able(&item) {
            return None;
        }
        for strongest in WAYS {
            if future.searched_enough() {
                break;
            }
            problem.allow(strongest);
            if strongest == Lever::Move {
                let (found, steps) = self.by_moves(now, who, problem, &item, future);
                future.steps += steps;
                if found.is_some() {
                    return found;
                }
                continue;
            }
            let drops = problem.drops();
            // Skip an attempt that adds no claims to the previous one.
            let more = match strongest {
                Lever::Offload | Lever::Suspend => drops > 0,
                _ => problem.any(strongest),
            };
            if !more {
                continue;
            }
            let budget = Budget {
                drops: drops.min(BUDGET.drops),
                least: 1,
                moves: if strongest == Lever::Offload {
                    0
                } else {
                    BUDGET.moves
                },
                ..BUDGET
            };
            let (answer, steps) = problem.board.rearrange(&item, budget);
            future.steps += steps;
            let found = match answer {
                Answer::Fits(fit) => Some(fit),
                Answer::No => None,
                // If few claims are not enough, or were not found, as many as necessary. Moves beyond the search are
                // for claims within guarantees only.
                Answer::Unknown => {
                    let sure = u32::from(who.is_sure());
                    problem.board.clear(&item, BUDGET.steps * sure)
                }
            };
            if let Some(fit) = found
                && let Some(plan) = self.plan_from(now, who, problem, (fit, strongest), future)
            {
                return Some(plan);
            }
        }
        None
    }

    /// The machine as it will be, and the claims that may leave.
    pub(super) fn problem(&self, now: Now, future: &Future) -> Problem {
        let room = self.host_room_beside_plans();
        let leaves = |id, slices: &[Slice]| self.leaves(now, id, slices, (future, room));
        Problem::new(self, &future.ledger, leaves)
    }

    /// A way by moves alone, as `problem` allows them: no claim loses anything but its place. Reported claimable sizes
    /// use this too. Also returns the steps taken.
    pub(super) fn by_moves(
        &self,
        now: Now,
        who: &Who<'_>,
        problem: &Problem,
        item: &Item,
        future: &Future,
    ) -> (Option<Plan>, u32) {
        let budget = Budget { drops: 0, ..BUDGET };
        let (answer, steps) = problem.board.rearrange(item, budget);
        let plan = match answer {
            Answer::Fits(fit) => self.plan_from(now, who, problem, (fit, Lever::Move), future),
            Answer::No | Answer::Unknown => None,
        };
        (plan, steps)
    }

    /// The gentlest lever that takes all of a claim: a notebook's processes live on, a batch job stops where it is.
    pub(super) fn taking(
        &self,
        now: Now,
        id: ClaimId,
        granted: &Claim,
        room: bool,
    ) -> Option<Lever> {
        let turn = self.had_its_turn(now, id);
        let works = |lever| self.can(id, lever) && (turn || !self.spared(now, id, lever));
        if room && works(Lever::Suspend) {
            let gentle = granted.run.levers.idle || granted.request.class != Class::Batch;
            return Some(if gentle {
                Lever::Offload
            } else {
                Lever::Suspend
            });
        }
        [Lever::Requeue, Lever::Kill]
            .into_iter()
            .find(|l| works(*l))
    }

    /// Cost to move a claim or to take all of it, while the host has room for it.
    fn leaves(
        &self,
        now: Now,
        id: ClaimId,
        slices: &[Slice],
        (future, room): (&Future, Bytes),
    ) -> Leaves {
        let Some(granted) = self.claims.get(id) else {
            return Leaves::default();
        };
        let busy = granted.ending
            || self.on_its_way(id)
            || future.planned.contains(&id)
            || self.promised(id)
            || !self.settled(now, granted);
        if busy {
            return Leaves::default();
        }
        let bytes = slices
            .iter()
            .fold(Bytes::ZERO, |sum, s| sum.saturating_add(s.charge));
        let room = room >= bytes;
        let movable = room && self.can(id, Lever::Move) && !self.spared(now, id, Lever::Move);
        let mut leaves = Leaves {
            moved: movable.then_some(bytes.0.max(1)),
            ..Leaves::default()
        };
        let Some(lever) = self.taking(now, id, granted, room) else {
            return leaves;
        };
        if granted.run.levers.idle && lever == Lever::Offload {
            leaves.idle = Some(bytes.0 >> 20);
        } else if let Some(rank) = self.rank(id, slices) {
            let harm = match lever {
                Lever::Kill => 1u64 << 20,
                Lever::Requeue => 1 << 16,
                _ => 1,
            };
            // Claims with the most use go first, then those with the least memory to copy.
            let had = 4 - u64::from(rank.level.min(3));
            let entitled = u64::from(!rank.borrower) << 24;
            leaves.taken = Some((lever, ((entitled + harm * 8 + had) << 32) + (bytes.0 >> 20)));
            leaves.rank = rank;
            leaves.turn = self.had_its_turn(now, id);
        }
        leaves
    }

    /// Decides to which claims a running claim gives way.
    pub(super) fn rank(&self, id: ClaimId, slices: &[Slice]) -> Option<Rank> {
        let granted = self.claims.get(id)?;
        let rules = self.rules_of(granted.request.class);
        Some(Rank {
            preemptible: rules.preemptible,
            borrower: granted.borrower,
            over: slices.iter().any(|s| s.borrowed() > Bytes::ZERO),
            priority: self.priority_of(id, granted.request.class),
            level: self.level_of(id),
            uid: slices.first()?.uid,
            owner: self.owner_level(id, slices.first()?.uid),
        })
    }

    /// Whether a plan for a waiting claim has a step for this claim. Spreading does not count while claims wait.
    pub(super) fn promised(&self, id: ClaimId) -> bool {
        let plans = self.reclaim.plans.iter().filter(|p| p.waiter.is_some());
        let mut steps = plans.flat_map(|p| &p.steps);
        steps.any(|s| s.id == id && s.stage != Stage::Done)
    }

    /// Whether all of a running claim may be taken so that another can start.
    pub(super) fn may_take(&self, who: &Who<'_>, id: ClaimId, slices: &[Slice]) -> bool {
        self.rank(id, slices).is_some_and(|r| r.gives_way(who))
    }

    fn plan_from(
        &self,
        now: Now,
        who: &Who<'_>,
        problem: &Problem,
        (fit, strongest): (Fit, Lever),
        future: &Future,
    ) -> Option<Plan> {
        let step = |id, lever, to| Step {
            id,
            lever,
            to,
            sm: None,
            stage: Stage::Announced,
        };
        let drops = fit.drops.iter().map(|i| {
            let id = problem.who[*i];
            Some(step(id, problem.taking(*i, strongest)?, Vec::new()))
        });
        let mut steps: Vec<Step> = drops.collect::<Option<_>>()?;
        let parked = steps
            .iter()
            .filter(|s| matches!(s.lever, Lever::Offload | Lever::Suspend))
            .fold(Bytes::ZERO, |sum, s| {
                sum.saturating_add(self.bytes_of(s.id))
            });
        if parked > self.host_room_beside_plans() {
            return None;
        }
        let moves = fit.moves.into_iter();
        steps.extend(moves.map(|(i, to)| step(problem.who[i], Lever::Move, to)));
        if !self.can_be_ordered(&future.ledger, &steps, who.is_sure()) {
            return None;
        }
        Some(self.dated(now, who, fit.at, steps, future))
    }

    /// Sets the time of a plan. Steps that were announced already keep their time.
    fn dated(
        &self,
        now: Now,
        who: &Who<'_>,
        at: Vec<usize>,
        steps: Vec<Step>,
        future: &Future,
    ) -> Plan {
        let fresh = now.saturating_add(self.reclaim.rules.countdown);
        let told = |s: &Step| match future.stale.get(&s.id) {
            Some((lever, due)) if *lever == s.lever => *due,
            _ => fresh,
        };
        Plan {
            waiter: Some(who.id),
            at,
            due: steps.iter().map(told).max().unwrap_or(now),
            steps,
            entitled: who.entitled,
        }
    }

    /// Makes room by lowering the shares of borrowers, if only SMs are missing.
    fn lower_shares(
        &self,
        now: Now,
        who: &Who<'_>,
        blocked: &[bool],
        future: &Future,
    ) -> Option<Plan> {
        if who.request.gpus != 1 {
            return None;
        }
        let ledger = &future.ledger;
        // GPUs with enough memory but too few SMs: usually none.
        let lacks = |g: usize| {
            let facts = &ledger.gpus()[g];
            let fits = Ledger::mem_needed(facts, who.request, facts.allocatable()?)?;
            let lacks = Ledger::sm_needed(facts, who.request).saturating_sub(ledger.sm_free(g));
            let kept = blocked.get(g).copied().unwrap_or(false);
            (!kept && fits <= ledger.mem_free(g) && lacks > Share::ZERO).then_some((g, lacks))
        };
        let places: Vec<(usize, Share)> = place::open_to(ledger, who.request)
            .filter_map(lacks)
            .collect();
        if places.is_empty() {
            return None;
        }
        let give = |(id, slices): (ClaimId, &[Slice])| {
            let [slice] = slices else { return None };
            let here = places.iter().any(|(g, _)| *g == slice.gpu);
            let granted = self.claims.get(id).filter(|c| here && c.borrower)?;
            let still = !granted.ending && !self.on_its_way(id) && !self.promised(id);
            let may = self.can(id, Lever::Share) && self.may_take(who, id, slices);
            let most = Share::from_milli(slice.sm.milli() / LEAST_SHARE);
            let able = still && may && granted.lowered_from.is_none() && self.settled(now, granted);
            (able && !self.spared(now, id, Lever::Share)).then_some((id, slice.gpu, slice.sm, most))
        };
        let givers: Vec<_> = ledger.held().filter_map(give).collect();
        if givers.is_empty() {
            return None;
        }
        let item = place::item(ledger, &place::board(ledger), who.request, blocked)?;
        let open = places
            .into_iter()
            .filter(|(g, _)| item.mask & (1 << g) != 0);
        let ways = open.filter_map(|(g, mut lacks)| {
            let mut steps = Vec::new();
            for (id, _, sm, most) in givers.iter().filter(|(_, at, ..)| *at == g) {
                let less = lacks.min(*most);
                lacks = lacks.saturating_sub(less);
                if less > Share::ZERO {
                    steps.push((*id, sm.saturating_sub(less)));
                }
            }
            let done = lacks == Share::ZERO && !steps.is_empty();
            done.then_some((steps.len(), g, steps))
        });
        let (_, g, steps) = ways.min()?;
        let step = |(id, sm)| Step {
            id,
            lever: Lever::Share,
            to: Vec::new(),
            sm: Some(sm),
            stage: Stage::Announced,
        };
        let steps = steps.into_iter().map(step).collect();
        Some(self.dated(now, who, vec![g], steps, future))
    }
}
