//! Claims that would give way to somebody who waits and are left alone all the same, and why: `gshare why` says so.

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
    /// It has not run for as long as its class lets every claim; from then on it may be asked.
    Young {
        /// When.
        until: Now,
    },
    /// Its owner has put that off, or it did not work.
    PutOff {
        /// Until when.
        until: Now,
    },
    /// The driver can do nothing to it; in words.
    Fixed(String),
    /// The host has no room for so much.
    NoHostRam(Bytes),
}

/// Why a claim within its owner's guarantee waits though others would make room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// It has no place beside claims within guarantees, however all of these are placed: guarantees add up in GPUs, and
    /// parts of GPUs may need more.
    Guarantees,
    /// It would have one but for claims that run in their turn.
    Turns,
    /// It would have one but for claims that have not run for long enough.
    MinRuns,
    /// No way to such a place was found yet, or it is being made.
    Ways,
}

/// All claims that nothing can be taken from now, for all who wait.
#[derive(Debug)]
pub struct LeftAlone(Vec<(ClaimId, Rank, Alone)>);

impl Machine {
    /// Whether all that a claim has cannot be taken from it by any lever. Nothing of the kind is said of one of which
    /// nothing is known yet, nor of one that was put off for a while.
    pub(super) fn is_fixed(&self, id: ClaimId) -> bool {
        let Some(granted) = self.claims.get(id) else {
            return false;
        };
        let taken = [Lever::Suspend, Lever::Requeue, Lever::Kill];
        let able = taken.into_iter().any(|lever| self.can(id, lever));
        let known = || granted.run.levers != Levers::default();
        !self.rules_of(granted.request.class).preemptible || (!able && known())
    }

    /// What is in the way of a claim that waits within its owner's guarantee; `None` of any other.
    #[must_use]
    pub fn obstacle(&self, now: Now, id: ClaimId) -> Option<Obstacle> {
        let waiting = self.queue.iter().find(|w| w.asks_for(id) && w.entitled)?;
        let who = Who::of(waiting)?;
        let turn = |id: ClaimId, _: &Claim| self.has_slot(now, id);
        let young = |_: ClaimId, claim: &Claim| !self.settled(now, claim);
        let fits = |stays: &dyn Fn(ClaimId, &Claim) -> bool| {
            let mut ledger = self.ledger.clone();
            for (id, claim) in self.claims.iter() {
                if claim.borrower && !stays(id, claim) {
                    ledger.remove(id);
                }
            }
            let moves = |_, _: &[Slice]| Leaves {
                moved: Some(1),
                ..Leaves::default()
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
        Some(if !fits(&|_, _| false) {
            Obstacle::Guarantees
        } else if !fits(&turn) {
            Obstacle::Turns
        } else if !fits(&|id, claim| turn(id, claim) || young(id, claim)) {
            Obstacle::MinRuns
        } else {
            Obstacle::Ways
        })
    }

    /// See [`LeftAlone`].
    #[must_use]
    pub fn left_alone(&self, now: Now) -> LeftAlone {
        // With nobody who waits there is nobody to tell.
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
                (Some(_), _) => Alone::Young {
                    until: self.asked_from(now, granted)?,
                },
                (None, Err(why)) => Alone::Fixed(why.clone()),
                (None, Ok(())) if !room => Alone::NoHostRam(bytes),
                (None, Ok(())) => Alone::PutOff {
                    until: *granted.run.spared.get(&Lever::Suspend)?,
                },
            };
            Some((id, rank, alone))
        });
        LeftAlone(alone.collect())
    }
}

impl LeftAlone {
    /// The first of these that hold a GPU which somebody may use who waits without a plan, and would give way to that claim.
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
