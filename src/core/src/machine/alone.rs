//! Claims that would give way to somebody who waits and are left alone all the same, and why: `gshare why` says so.

use super::board::Rank;
use super::lever::{Lever, Levers};
use super::plan::Who;
use super::{Machine, Now};
use crate::claim::ClaimId;
use crate::place;
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

    /// See [`LeftAlone`].
    #[must_use]
    pub fn left_alone(&self, now: Now) -> LeftAlone {
        // With nobody who waits there is nobody to tell.
        let asked = self.reclaim.rules.enabled && !self.queue.is_empty();
        let held = self.ledger.held().filter(|_| asked);
        let host = self.host_room();
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
