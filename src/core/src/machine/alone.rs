//! Claims that would give way to a waiting claim and are left alone, with the reason that `gshare why` shows.

use super::board::{Leaves, Problem, Rank};
use super::claims::Claim;
use super::lever::{Lever, Levers};
use super::plan::Who;
use super::{Machine, Now};
use crate::claim::ClaimId;
use crate::ledger::Slice;
use crate::place;
use crate::sched::solve::{Answer, Budget, Prefer};
use crate::units::Bytes;

/// Maximum number of claims left alone that a waiting user is shown.
const TOLD: usize = 3;

/// Why nothing is taken from a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alone {
    /// It has not reached the minimum run time of its class.
    Young {
        /// End of the minimum run time.
        until: Now,
    },
    /// Its owner postponed it, or it failed before.
    PutOff {
        /// End of the delay.
        until: Now,
    },
    /// The driver cannot move or offload it, for this reason.
    Fixed(String),
    /// Host memory is too small for this many bytes.
    NoHostRam(Bytes),
}

/// Why a claim within its owner's guarantee waits although others would make room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// There is no place for it beside claims within guarantees, however these are placed: guarantees are sums, and
    /// parts of GPUs do not always fit together.
    Guarantees,
    /// Only claims from which nothing can be taken now are in its way: they run in their turn, have not reached their
    /// minimum run time, or are being moved.
    Spared,
    /// No plan was found yet, or one is being carried out.
    Ways,
}

/// Claims from which nothing can be taken now, for all waiting claims.
#[derive(Debug)]
pub struct LeftAlone(Vec<(ClaimId, Rank, Alone)>);

impl Machine {
    /// Whether no lever can take all that a claim holds. False if nothing is known about the claim yet, or if it was
    /// only postponed.
    pub(super) fn is_fixed(&self, id: ClaimId) -> bool {
        let Some(granted) = self.claims.get(id) else {
            return false;
        };
        let taken = [Lever::Suspend, Lever::Requeue, Lever::Kill];
        let able = taken.into_iter().any(|lever| self.can(id, lever));
        let known = || granted.run.levers != Levers::default();
        !self.rules_of(granted.request.class).preemptible || (!able && known())
    }

    /// What blocks a claim that waits within its owner's guarantee and has no plan; `None` for other claims.
    #[must_use]
    pub fn obstacle(&self, now: Now, id: ClaimId) -> Option<Obstacle> {
        let waiting = self.queue.iter().find(|w| w.asks_for(id) && w.entitled)?;
        let who = Who::of(waiting).filter(|_| self.plan_of(id).is_none())?;
        let mut future = self.all_arrived(now);
        for plan in self.reclaim.plans.iter().filter(|p| p.entitled) {
            self.holds(&mut future, plan);
        }
        let spared = |id: ClaimId, claim: &Claim| {
            let fixed = self.has_slot(now, id) || !self.settled(now, claim);
            fixed || self.on_its_way(id) || self.promised(id)
        };
        let fits = |beside_spared: bool| {
            let mut ledger = future.ledger.clone();
            for (id, claim) in self.claims.iter() {
                if claim.borrower && !(beside_spared && spared(id, claim)) {
                    ledger.remove(id);
                }
            }
            let moves = |id, _: &[Slice]| {
                let fixed = || self.claims.get(id).is_none_or(|c| spared(id, c));
                Leaves {
                    moved: (!beside_spared || !fixed()).then_some(1),
                    ..Leaves::default()
                }
            };
            let mut problem = Problem::new(self, &ledger, moves);
            problem.asked_by(&who, &[]);
            let budget = Budget {
                steps: 200_000,
                moves: u32::MAX,
                least: 0,
                drops: 0,
            };
            let item = problem.item(&ledger, who.request, &[]);
            item.is_some_and(|item| {
                let answer = problem.board.place(&item, Prefer::Pack, |_| 0, budget);
                !matches!(answer, Answer::No)
            })
        };
        Some(if !fits(false) {
            Obstacle::Guarantees
        } else if !fits(true) {
            Obstacle::Spared
        } else {
            Obstacle::Ways
        })
    }

    /// Builds [`LeftAlone`].
    #[must_use]
    pub fn left_alone(&self, now: Now) -> LeftAlone {
        // Only waiting claims need it.
        let asked = self.reclaim.rules.enabled && !self.queue.is_empty();
        let held = self.ledger.held().filter(|_| asked);
        let host = self.host_room_beside_plans();
        let alone = held.filter_map(|(id, slices)| {
            let granted = self.claims.get(id)?;
            let rank = self.rank(id, slices)?;
            if self.on_its_way(id) || self.promised(id) {
                return None;
            }
            let bytes = slices
                .iter()
                .fold(Bytes::ZERO, |sum, s| sum.saturating_add(s.charge));
            let room = host >= bytes;
            let alone = match (
                self.taking(now, id, granted, room),
                &granted.run.levers.park,
            ) {
                (Some(_), _) if !self.had_its_turn(now, id) => Alone::Young {
                    until: self.asked_from(now, granted)?,
                },
                (None, Err(why)) => Alone::Fixed(why.clone()),
                (None, Ok(())) if !room => Alone::NoHostRam(bytes),
                _ => Alone::PutOff {
                    until: *granted.run.spared.get(&Lever::Suspend)?,
                },
            };
            Some((id, rank, alone))
        });
        LeftAlone(alone.collect())
    }
}

impl LeftAlone {
    /// The first of these claims that would give way to `id` and are on a GPU that it may use; none while `id` has a
    /// plan.
    #[must_use]
    pub fn by(&self, machine: &Machine, id: ClaimId) -> Vec<(ClaimId, Alone)> {
        let waiting = machine.queue.iter().find(|w| w.asks_for(id));
        let who = waiting
            .and_then(|w| Who::of(w))
            .filter(|_| machine.plan_of(id).is_none());
        let Some(who) = who.filter(|_| !self.0.is_empty()) else {
            return Vec::new();
        };
        let open = place::candidates(&machine.ledger, who.request);
        let there = |id: ClaimId| {
            let slices = machine.ledger.slices(id).unwrap_or_default();
            slices.iter().any(|s| open.contains(&s.gpu))
        };
        let stands = self
            .0
            .iter()
            .filter(|(id, rank, _)| rank.gives_way(&who) && there(*id));
        stands
            .take(TOLD)
            .map(|(id, _, alone)| (*id, alone.clone()))
            .collect()
    }
}
