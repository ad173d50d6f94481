//! All granted claims with their phases. Only [`Claims::go`] changes a phase.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Now;
use super::lever::{Lever, Levers, Parked, ParkedBy};
use crate::claim::{ClaimId, Request};
use crate::ledger::Slice;
use crate::units::{Bytes, Share};

/// Phase of a granted claim. The ledger has what it holds on GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// On its GPUs.
    Granted,
    /// Going to the host; it keeps its GPUs until that is confirmed.
    Offloading {
        /// Its processes will be frozen as well.
        freeze: bool,
        /// Why.
        by: ParkedBy,
        /// A member already needs the GPU again.
        wanted: bool,
    },
    /// In the host.
    Offloaded(Parked),
    /// Coming back; until that is confirmed it is in the host as well.
    Restoring(Parked),
    /// Moving to other GPUs, which the ledger reserves for it.
    Moving,
    /// Only counted: on these GPUs, without a part in the ledger and safe from all levers.
    Counted(Vec<Slice>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// On its GPUs.
    Granted,
    /// Going to the host.
    Offloading,
    /// In the host.
    Offloaded,
    /// Coming back.
    Restoring,
    /// Moving to other GPUs.
    Moving,
    /// Only counted.
    Counted,
}

impl PhaseKind {
    /// Not on its GPUs, or about to leave them.
    fn is_elsewhere(self) -> bool {
        !matches!(self, Self::Granted | Self::Counted)
    }

    /// Going to the host, coming back or moving.
    pub(super) fn is_on_its_way(self) -> bool {
        self.is_elsewhere() && self != Self::Offloaded
    }

    /// Whether the transition from this phase to `to` is legal.
    fn leads_to(self, to: Self) -> bool {
        use PhaseKind::{Granted, Moving, Offloaded, Offloading, Restoring};
        matches!(
            (self, to),
            (Granted, Offloading | Moving)
                | (Offloading, Offloaded | Granted)
                | (Offloaded, Restoring)
                | (Restoring, Granted | Offloaded)
                | (Moving, Granted)
        )
    }
}

impl Phase {
    pub(super) fn kind(&self) -> PhaseKind {
        match self {
            Self::Granted => PhaseKind::Granted,
            Self::Offloading { .. } => PhaseKind::Offloading,
            Self::Offloaded(_) => PhaseKind::Offloaded,
            Self::Restoring(_) => PhaseKind::Restoring,
            Self::Moving => PhaseKind::Moving,
            Self::Counted(_) => PhaseKind::Counted,
        }
    }
}

/// A transition that is not legal from the claim's phase: a late answer or a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{id} cannot change from {is:?} to {to:?}")]
pub struct Illegal {
    pub id: ClaimId,
    /// Its phase; none if it is not granted.
    pub is: Option<PhaseKind>,
    /// The phase that was requested.
    pub to: PhaseKind,
}

/// History of a granted claim, and what its owner knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Arrival order.
    pub seq: u64,
    /// Start of its run in its present place.
    #[serde(rename = "since_ms", with = "crate::millis")]
    pub since: Now,
    /// GPU-seconds used so far.
    pub attained_s: f64,
    /// Which levers work on it, as far as known.
    #[serde(flatten)]
    pub levers: Levers,
    /// Levers that are not used before these times, because its owner postponed them or they failed.
    #[serde(with = "crate::millis")]
    pub spared: BTreeMap<Lever, Now>,
    /// Number of failed levers.
    pub failures: u32,
    /// Waiting claims for which its owner has already postponed a step.
    pub kept_for: Vec<Option<ClaimId>>,
}

/// A granted claim. The ledger has what it holds on GPUs.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) request: Request,
    phase: Phase,
    pub(super) run: Run,
    /// End of its time limit.
    pub(super) ends: Option<Now>,
    /// When its owner is warned of that.
    pub(super) warn_at: Option<Now>,
    /// Its time limit is over or it is being ended: it will be gone soon, and no lever is used on it.
    pub(super) ending: bool,
    /// Since when its memory is away for others. The time limit stands still until the claim can run again.
    pub(super) away: Option<Now>,
    /// As of the last decision, its owner is above the guarantee and this claim is part of the excess.
    pub(super) borrower: bool,
    /// Its full share of the SMs, while the share is lowered.
    pub(super) lowered_from: Option<Share>,
}

impl Claim {
    pub(super) fn new(request: Request, seq: u64, since: Now) -> Self {
        Self {
            request,
            phase: Phase::Granted,
            run: Run {
                seq,
                since,
                attained_s: 0.0,
                levers: Levers::default(),
                spared: BTreeMap::new(),
                failures: 0,
                kept_for: Vec::new(),
            },
            ends: None,
            warn_at: None,
            ending: false,
            away: None,
            borrower: false,
            lowered_from: None,
        }
    }

    /// Takes new sizes.
    pub(super) fn is_resized(&mut self, slices: &[Slice]) {
        if let (Some(first), None) = (slices.first(), self.lowered_from) {
            self.request.mem = Some(first.mem);
            self.request.sm = Some(first.sm);
        }
    }

    /// Not on its GPUs, or about to leave them.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.phase.kind().is_elsewhere()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    all: BTreeMap<ClaimId, Claim>,
    /// Claims that are not on their GPUs, indexed because every decision reads these few.
    elsewhere: BTreeSet<ClaimId>,
}

impl Claims {
    /// Enters a claim that is granted, or found again in this phase.
    pub(super) fn enter(&mut self, id: ClaimId, claim: Claim, phase: Phase) {
        self.index(id, phase.kind());
        self.all.insert(id, Claim { phase, ..claim });
    }

    /// Changes a claim's phase and returns the previous one.
    ///
    /// # Errors The transition is not legal from the claim's phase, for example if an answer comes late.
    pub(super) fn go(
        &mut self,
        id: ClaimId,
        from: PhaseKind,
        phase: Phase,
    ) -> Result<Phase, Illegal> {
        let to = phase.kind();
        let claim = self.all.get_mut(&id);
        let is = claim.as_ref().map(|c| c.phase.kind());
        match claim {
            Some(claim) if is == Some(from) && from.leads_to(to) => {
                let before = std::mem::replace(&mut claim.phase, phase);
                self.index(id, to);
                Ok(before)
            }
            _ => Err(Illegal { id, is, to }),
        }
    }

    fn index(&mut self, id: ClaimId, kind: PhaseKind) {
        match kind.is_elsewhere() {
            true => self.elsewhere.insert(id),
            false => self.elsewhere.remove(&id),
        };
    }

    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Claim> {
        self.elsewhere.remove(&id);
        self.all.remove(&id)
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<&Claim> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ClaimId) -> Option<&mut Claim> {
        self.all.get_mut(&id)
    }

    pub(super) fn phase(&self, id: ClaimId) -> Option<&Phase> {
        self.all.get(&id).map(|c| &c.phase)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (ClaimId, &Claim)> {
        self.all.iter().map(|(id, c)| (*id, c))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ClaimId, &mut Claim)> {
        self.all.iter_mut().map(|(id, c)| (*id, c))
    }

    /// Claims with a lowered share of the SMs, and their full shares.
    pub(super) fn lowered(&self) -> impl Iterator<Item = (ClaimId, Share)> {
        self.iter()
            .filter_map(|(id, claim)| Some((id, claim.lowered_from?)))
    }

    /// Claims that are not on their GPUs.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = (ClaimId, &Phase)> {
        let phase = |id: &ClaimId| Some((*id, self.phase(*id)?));
        self.elsewhere.iter().filter_map(phase)
    }

    /// Claims in transit.
    pub(super) fn moving(&self) -> impl Iterator<Item = (ClaimId, &Phase)> {
        self.elsewhere().filter(|(_, p)| p.kind().is_on_its_way())
    }

    /// Claims in the host that wait to come back, with what they held.
    pub(super) fn come_back(&self) -> impl Iterator<Item = (ClaimId, &[Slice])> {
        self.elsewhere().filter_map(|(id, phase)| match phase {
            Phase::Offloaded(parked) if parked.back => Some((id, parked.slices.as_slice())),
            _ => None,
        })
    }

    /// A claim in the host.
    pub(super) fn offloaded(&self, id: ClaimId) -> Option<&Parked> {
        match self.phase(id)? {
            Phase::Offloaded(parked) => Some(parked),
            _ => None,
        }
    }

    pub(super) fn offloaded_mut(&mut self, id: ClaimId) -> Option<&mut Parked> {
        match &mut self.all.get_mut(&id)?.phase {
            Phase::Offloaded(parked) => Some(parked),
            _ => None,
        }
    }

    /// A member needs the GPU of a claim that goes to the host; false in other phases.
    pub(super) fn want(&mut self, id: ClaimId) -> bool {
        let phase = self.all.get_mut(&id).map(|c| &mut c.phase);
        if let Some(Phase::Offloading { wanted, .. }) = phase {
            *wanted = true;
            return true;
        }
        false
    }

    /// A claim going to the host has arrived there with these bytes. Returns whether it waits to come back.
    pub(super) fn offload(
        &mut self,
        now: Now,
        id: ClaimId,
        host: Bytes,
        slices: Vec<Slice>,
    ) -> Result<bool, Illegal> {
        let (frozen, by, wanted) = match self.phase(id) {
            Some(Phase::Offloading { freeze, by, wanted }) => (*freeze, *by, *wanted),
            other => {
                let is = other.map(Phase::kind);
                return Err(Illegal {
                    id,
                    is,
                    to: PhaseKind::Offloaded,
                });
            }
        };
        let parked = Parked {
            slices,
            host,
            frozen,
            by,
            since: now,
            back: wanted || by == ParkedBy::Reclaim,
        };
        let back = parked.back;
        self.go(id, PhaseKind::Offloading, Phase::Offloaded(parked))?;
        Ok(back)
    }

    /// A transition failed: the claim is back where it was. Returns the failed phase.
    pub(super) fn fail(&mut self, id: ClaimId) -> Result<Phase, Illegal> {
        let (from, to) = match self.phase(id) {
            Some(Phase::Restoring(parked)) => {
                (PhaseKind::Restoring, Phase::Offloaded(parked.clone()))
            }
            other => (
                other.map_or(PhaseKind::Granted, Phase::kind),
                Phase::Granted,
            ),
        };
        self.go(id, from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::reclaim::tests::{Bench, s};
    use super::super::{Action, Event};
    use super::*;
    use crate::claim::Class;

    fn phases() -> [Phase; 5] {
        let parked = Parked {
            slices: Vec::new(),
            host: Bytes::ZERO,
            frozen: false,
            by: ParkedBy::Idle,
            since: Now::ZERO,
            back: false,
        };
        [
            Phase::Granted,
            Phase::Offloading {
                freeze: false,
                by: ParkedBy::Idle,
                wanted: false,
            },
            Phase::Offloaded(parked.clone()),
            Phase::Restoring(parked),
            Phase::Moving,
        ]
    }

    #[test]
    fn a_claim_goes_these_ways_and_no_other() {
        // Rows: phase before. Columns: phase after. Both in the order of `Phase`.
        let legal = [
            [0, 1, 0, 0, 1],
            [1, 0, 1, 0, 0],
            [0, 0, 0, 1, 0],
            [1, 0, 1, 0, 0],
            [1, 0, 0, 0, 0],
        ];
        let id = ClaimId(1);
        for (from, row) in phases().into_iter().zip(legal) {
            for (to, legal) in phases().into_iter().zip(row) {
                let mut claims = Claims::default();
                let claim = Claim::new(Request::nothing(Share::ONE), 1, Now::ZERO);
                claims.enter(id, claim, from.clone());
                let (is, next) = (from.kind(), to.kind());
                let went = claims.go(id, is, to.clone()).map(|p| p.kind());
                let refused = Illegal {
                    id,
                    is: Some(is),
                    to: next,
                };
                let (then, result) = match legal == 1 {
                    true => (next, Ok(is)),
                    false => (is, Err(refused)),
                };
                assert_eq!(went, result);
                assert_eq!(claims.phase(id).map(Phase::kind), Some(then));
                let elsewhere = claims.elsewhere().count();
                assert_eq!(elsewhere, usize::from(then != PhaseKind::Granted));
                // A transition from another phase than the claim's is refused.
                let elsewhere = phases().into_iter().map(|p| p.kind());
                for wrong in elsewhere.filter(|k| *k != then) {
                    assert!(claims.go(id, wrong, to.clone()).is_err());
                }
            }
        }
    }

    #[test]
    fn an_answer_that_comes_late_changes_nothing_and_is_told() {
        let mut b = Bench::new(1);
        b.claim(1, 500, 1, Class::Batch, 4);
        let late = |b: &mut Bench, id: u64, is: Option<PhaseKind>| {
            let id = ClaimId(id);
            let before = b.w.machine.holding(id);
            let host = Bytes::gib(1);
            let answers = [
                (Event::Parked { id, host }, PhaseKind::Offloaded),
                (Event::Unparked { id }, PhaseKind::Granted),
                (Event::Moved { id }, PhaseKind::Granted),
            ];
            for (answer, to) in answers {
                let from = b.w.log.len();
                b.send(answer);
                let told = Action::Late(Illegal { id, is, to });
                assert!(b.w.log[from..].contains(&told), "{:?}", &b.w.log[from..]);
                assert_eq!(b.w.machine.holding(id), before);
            }
        };
        late(&mut b, 1, Some(PhaseKind::Granted));
        late(&mut b, 2, None);
        b.send(Event::Gone { id: ClaimId(1) });
        late(&mut b, 1, None);
        b.pass(s(1));
    }
}
