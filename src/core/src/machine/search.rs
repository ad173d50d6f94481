//! Looking for the gentlest way to make room: lower the shares of borrowers, detach who is idle, move, suspend
//! borrowers, end those that may be started anew, and last (where the administrator lets it) end others.

use super::board::{Costs, Problem};
use super::lever::Lever;
use super::plan::{Future, Plan, Stage, Step, Who};
use super::{Machine, Now};
use crate::claim::{ClaimId, Class};
use crate::ledger::{Ledger, Slice};
use crate::place;
use crate::sched::solve::{Answer, Budget, Fit, Prefer};
use crate::units::{Bytes, Share};

/// Bounds of one search.
const BUDGET: Budget = Budget {
    steps: 3000,
    moves: 5,
    drops: 8,
};
/// Searches in one decision: claims after that are looked at in the next.
pub(super) const SEARCHES: u32 = 4;
/// When its share is lowered a borrower gives at most one in so many of its SMs.
const LEAST_SHARE: u32 = 2;

impl Machine {
    /// The gentlest way to make room.
    pub(super) fn search(
        &self,
        now: Now,
        who: &Who<'_>,
        blocked: &[bool],
        future: &mut Future,
    ) -> Option<Plan> {
        // Most are behind those for whom all that they could use is kept.
        let free = |g: &usize| !blocked.get(*g).copied().unwrap_or(false);
        if !place::candidates(&future.ledger, who.request)
            .iter()
            .any(free)
        {
            return None;
        }
        if let Some(plan) = self.lower_shares(now, who, blocked, future) {
            return Some(plan);
        }
        if future.searches >= SEARCHES {
            return None;
        }
        let ways = [
            (Lever::Detach, 0),
            (Lever::Suspend, BUDGET.moves),
            (Lever::Requeue, BUDGET.moves),
            (Lever::Kill, BUDGET.moves),
        ];
        for (strongest, moves) in ways {
            let costs = |id, slices: &[Slice]| self.costs(now, who, id, slices, strongest, future);
            let problem = Problem::new(self, &future.ledger, blocked, costs)?;
            let drops = problem.board.items.iter().filter(|i| i.drop_cost.is_some());
            let drops = u32::try_from(drops.count()).unwrap_or(u32::MAX);
            // Nobody more may be asked than in the way before.
            let needless = match strongest {
                Lever::Detach => drops == 0,
                Lever::Suspend => problem.board.items.is_empty(),
                _ => !self.anybody(now, strongest, &problem.who),
            };
            if needless || future.searches >= SEARCHES {
                continue;
            }
            let item = problem.item(&future.ledger, who.request, blocked)?;
            let budget = Budget {
                drops: drops.min(BUDGET.drops),
                moves,
                ..BUDGET
            };
            future.searches += 1;
            if let Answer::Fits(fit) = problem.board.place(&item, Prefer::Pack, |_| 0, budget)
                && let Some(plan) = self.plan_from(now, who, &problem, (fit, strongest), future)
            {
                return Some(plan);
            }
        }
        None
    }

    /// Whether the strongest lever of this way is of use on anybody.
    fn anybody(&self, now: Now, strongest: Lever, who: &[ClaimId]) -> bool {
        who.iter()
            .any(|id| self.taking(now, *id, strongest) == Some(strongest))
    }

    /// How all is taken from a claim, with no lever stronger than `strongest`: a notebook's processes live on, a
    /// batch job stops where it is.
    fn taking(&self, now: Now, id: ClaimId, strongest: Lever) -> Option<Lever> {
        let granted = self.reclaim.granted.get(&id)?;
        let works = |lever| self.can(id, lever) && !self.spared(now, id, lever);
        let room = self.host_room() >= self.bytes_of(id);
        if room && works(Lever::Suspend) {
            let gentle = granted.levers.idle || granted.request.class != Class::Batch;
            return Some(if gentle {
                Lever::Detach
            } else {
                Lever::Suspend
            });
        }
        let hard = [Lever::Requeue, Lever::Kill].into_iter();
        hard.filter(|l| *l <= strongest).find(|l| works(*l))
    }

    /// What it costs to move a claim, or to take all from it, for `who`.
    fn costs(
        &self,
        now: Now,
        who: &Who<'_>,
        id: ClaimId,
        slices: &[Slice],
        strongest: Lever,
        future: &Future,
    ) -> Costs {
        let Some(granted) = self.reclaim.granted.get(&id) else {
            return Costs::default();
        };
        let busy = self.reclaim.transit.contains_key(&id)
            || future.planned.contains(&id)
            || self.announced(id).is_some()
            || !self.settled(now, granted);
        if busy || id == who.id {
            return Costs::default();
        }
        let bytes = slices
            .iter()
            .fold(Bytes::ZERO, |sum, s| sum.saturating_add(s.charge));
        let room = self.host_room() >= bytes;
        let works = |lever| self.can(id, lever) && !self.spared(now, id, lever);
        let moved =
            (strongest != Lever::Detach && room && works(Lever::Move)).then_some(bytes.0.max(1));
        let mut dropped = None;
        let taking = self.taking(now, id, strongest);
        if granted.levers.idle && taking == Some(Lever::Detach) {
            dropped = Some(bytes.0 >> 20);
        } else if strongest != Lever::Detach && self.may_take(who, id, slices) {
            let harm = taking.map(|lever| match lever {
                Lever::Kill => 1u64 << 20,
                Lever::Requeue => 1 << 16,
                _ => 1,
            });
            // Who has had most goes first, then who has least to carry.
            let had = 4 - u64::from(self.level_of(id).min(3));
            let entitled = u64::from(!self.reclaim.borrowers.contains(&id)) << 24;
            dropped = harm.map(|h| ((entitled + h * 8 + had) << 32) + (bytes.0 >> 20));
        }
        Costs { moved, dropped }
    }

    /// Whether all may be taken from a claim that runs so that another can start. Borrowers make room for those who
    /// are entitled, whatever their class; for another borrower if his class has priority, or if he is somebody
    /// else and his claim has had less, or has waited for very long. Who uses more memory than was guaranteed to him
    /// is a borrower of that.
    pub(super) fn may_take(&self, who: &Who<'_>, id: ClaimId, slices: &[Slice]) -> bool {
        let (Some(granted), Some(first)) = (self.reclaim.granted.get(&id), slices.first()) else {
            return false;
        };
        let rules = self.rules_of(granted.request.class);
        if !rules.preemptible {
            return false;
        }
        if !self.reclaim.borrowers.contains(&id) {
            let over = slices.iter().any(|s| s.borrowed() > Bytes::ZERO);
            return who.entitled && over;
        }
        if who.entitled || who.priority > rules.priority {
            return true;
        }
        let less = who.level < self.level_of(id) || who.due;
        who.priority == rules.priority && first.uid != who.request.uid && less
    }

    /// Host memory that is left for parked claims.
    pub(super) fn host_room(&self) -> Bytes {
        self.reclaim.host_ram.saturating_sub(self.host_taken())
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
            Some(step(id, self.taking(now, id, strongest)?, Vec::new()))
        });
        let mut steps: Vec<Step> = drops.collect::<Option<_>>()?;
        let parked = steps
            .iter()
            .filter(|s| matches!(s.lever, Lever::Detach | Lever::Suspend))
            .fold(Bytes::ZERO, |sum, s| {
                sum.saturating_add(self.bytes_of(s.id))
            });
        if parked > self.host_room() {
            return None;
        }
        let moves = fit.moves.into_iter();
        steps.extend(moves.map(|(i, to)| step(problem.who[i], Lever::Move, to)));
        if !self.can_be_ordered(&future.ledger, &steps, who.entitled) {
            return None;
        }
        Some(self.dated(now, who, fit.at, steps, future))
    }

    /// With the moment from which it may be carried out. What was announced already keeps its moment.
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

    /// Room by lowering the shares of borrowers, where memory is there and only SMs lack.
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
        let give = |(id, slices): (ClaimId, &[Slice])| {
            if !self.reclaim.borrowers.contains(&id) {
                return None;
            }
            let granted = self.reclaim.granted.get(&id)?;
            let slice = slices.first().filter(|_| slices.len() == 1)?;
            let still = !self.reclaim.transit.contains_key(&id) && self.announced(id).is_none();
            let may = self.may_take(who, id, slices);
            let most = Share::from_milli(slice.sm.milli() / LEAST_SHARE);
            let lowered = self.reclaim.lowered.contains_key(&id);
            let able = still && may && !lowered && self.settled(now, granted);
            (able && !self.spared(now, id, Lever::Share)).then_some((id, slice.gpu, slice.sm, most))
        };
        let givers: Vec<_> = ledger.held().filter_map(give).collect();
        if givers.is_empty() {
            return None;
        }
        let item = Problem::new(self, ledger, blocked, |_, _| Costs::default())?;
        let item = item.item(ledger, who.request, blocked)?;
        let ways = (0..ledger.gpus().len()).filter_map(|g| {
            if item.mask & (1 << g) == 0 {
                return None;
            }
            let facts = &ledger.gpus()[g];
            let of = facts.allocatable()?;
            let fits = Ledger::mem_needed(facts, who.request, of)? <= ledger.mem_free(g);
            let mut lacks = who.request.sm.saturating_sub(ledger.sm_free(g));
            let mut steps = Vec::new();
            for (id, _, sm, most) in givers.iter().filter(|(_, at, ..)| *at == g) {
                let less = lacks.min(*most);
                lacks = lacks.saturating_sub(less);
                if less > Share::ZERO {
                    steps.push((*id, sm.saturating_sub(less)));
                }
            }
            let done = fits && lacks == Share::ZERO && !steps.is_empty();
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
