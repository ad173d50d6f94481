//! Leases: when claims end by themselves, when their owners are warned, and which claims may be extended.

use std::time::Duration;

use super::claims::{Claim, Phase};
use super::lever::{Holding, ParkedBy};
use super::{Action, Machine, Now};
use crate::claim::ClaimId;

impl Machine {
    /// End of a granted claim's lease.
    #[must_use]
    pub fn lease_end(&self, id: ClaimId) -> Option<Now> {
        let ends = self.claims.get(id)?.ends?;
        Some(ends.saturating_add(self.stood_still(id)))
    }

    /// How long a claim's time limit has stood still since its memory left for others.
    #[must_use]
    pub fn stood_still(&self, id: ClaimId) -> Duration {
        let since = self.claims.get(id).and_then(|c| c.away);
        since.map_or(Duration::ZERO, |since| self.past.at().saturating_sub(since))
    }

    /// A claim's memory leaves for others: its time limit stands still.
    pub(super) fn stands_still(&mut self, id: ClaimId) {
        let now = self.past.at();
        if let Some(claim) = self.claims.get_mut(id) {
            claim.away.get_or_insert(now);
        }
    }

    /// The time limit of a claim continues: the claim can run again, or is away by its owner's wish.
    pub(super) fn goes_on(&mut self, id: ClaimId, actions: &mut Vec<Action>) {
        let ends = self.lease_end(id);
        let Some(claim) = self.claims.get_mut(id) else {
            return;
        };
        if claim.away.take().is_some()
            && let Some(ends) = ends
        {
            let told = claim.warn_at.is_none();
            self.set_lease(id, Some(ends));
            if told {
                self.is_warned(id);
            }
            actions.push(Action::LeaseMoved { id, ends });
        }
    }

    /// Records that the owner was warned of the end.
    pub(super) fn is_warned(&mut self, id: ClaimId) {
        if let Some(claim) = self.claims.get_mut(id) {
            claim.warn_at = None;
        }
    }

    /// Since when a restored claim is away for others. A claim that was on its way when the service ended left only
    /// now.
    pub(super) fn left_for_others(&self, now: Now, id: ClaimId, holding: &Holding) -> Option<Now> {
        match &holding.phase {
            Phase::Offloaded(parked) | Phase::Restoring(parked) => {
                (parked.by != ParkedBy::Person).then_some(parked.since)
            }
            Phase::Offloading { by, .. } => (*by != ParkedBy::Person).then_some(now),
            Phase::Moving => self.claims.get(id)?.away,
            Phase::Granted | Phase::Counted(_) => None,
        }
    }

    /// Sets the end of a claim's lease. The warning for a short lease comes in its last quarter.
    pub(super) fn set_lease(&mut self, id: ClaimId, ends: Option<Now>) {
        let (now, warning) = (self.past.at(), self.lease_warning);
        let Some(claim) = self.claims.get_mut(id) else {
            return;
        };
        claim.ends = ends;
        claim.ending = false;
        claim.warn_at = ends.and_then(|at| {
            let before = warning.min(at.saturating_sub(now) / 4);
            (before > Duration::ZERO).then(|| at.saturating_sub(before))
        });
        if ends.is_some() && claim.away.is_some() {
            claim.away = Some(now);
        }
    }

    /// A claim will be gone soon; its lease has no end any more.
    pub(super) fn is_ending(&mut self, id: ClaimId) {
        self.set_lease(id, None);
        if let Some(claim) = self.claims.get_mut(id) {
            claim.ending = true;
        }
    }

    /// Reports leases that end soon or have ended.
    pub(super) fn look_at_leases(&mut self, now: Now, actions: &mut Vec<Action>) {
        let due = |at: &dyn Fn(&Claim) -> Option<Now>| -> Vec<ClaimId> {
            let all = self.claims.iter().filter(|(_, c)| c.away.is_none());
            let due = all.filter(|(_, c)| at(c).is_some_and(|at| at <= now));
            due.map(|(id, _)| id).collect()
        };
        let (over, soon) = (due(&|c| c.ends), due(&|c| c.warn_at));
        for id in over {
            self.is_ending(id);
            actions.push(Action::LeaseOver { id });
        }
        for id in soon {
            self.is_warned(id);
            if let Some(at) = self.lease_end(id) {
                actions.push(Action::LeaseWarning { id, at });
            }
        }
    }

    /// Whether a claim may be extended. Not if its owner is above the guarantee, and a claim that is within a
    /// guarantee, or whose turn it is, waits for one of its GPUs.
    ///
    /// # Errors The claim that waits.
    pub fn may_extend(&self, id: ClaimId) -> Result<(), ClaimId> {
        let held = self.ledger.slices(id).unwrap_or_default();
        let gpu = |g: usize| held.iter().any(|s| s.gpu == g);
        let waits = self
            .queue
            .iter()
            .find(|w| (w.due || w.entitled) && w.gpus(&self.ledger).into_iter().any(gpu));
        match waits {
            Some(ahead) if self.borrows(id) => Err(ahead.id()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;
    use super::super::{Action, Event};
    use super::*;
    use crate::claim::{Class, Request};
    use crate::units::Share;

    fn leased(w: &mut World, id: u64, milli: u32, uid: u32, lease: Option<u64>) {
        let mut r = Request::from_gpus(Share::from_milli(milli), Share::ONE, Class::Batch).unwrap();
        r.uid = uid;
        r.lease = lease.map(Duration::from_secs);
        w.submit_request(id, r, None);
    }

    fn at(w: &mut World, seconds: u64) -> Vec<Action> {
        w.now = Duration::from_secs(seconds);
        let before = w.log.len();
        w.send(Event::Tick);
        let lease =
            |a: &&Action| matches!(a, Action::LeaseWarning { .. } | Action::LeaseOver { .. });
        w.log[before..].iter().filter(lease).cloned().collect()
    }

    #[test]
    fn the_owner_is_told_once_before_the_end_and_again_if_it_was_put_off() {
        let id = ClaimId(1);
        let mut w = World::new(&[24]);
        w.send(Event::LeaseWarning(Duration::from_secs(600)));
        leased(&mut w, 1, 500, 7, Some(3600));
        assert_eq!(at(&mut w, 2999), []);
        let end = Duration::from_secs(3600);
        assert_eq!(at(&mut w, 3000), [Action::LeaseWarning { id, at: end }]);
        assert_eq!(at(&mut w, 3100), []);
        let end = Duration::from_secs(7200);
        w.send(Event::Lease {
            id,
            ends: Some(end),
        });
        assert_eq!(w.machine.lease_end(id), Some(end));
        assert_eq!(at(&mut w, 3600), []);
        assert_eq!(at(&mut w, 6600), [Action::LeaseWarning { id, at: end }]);
        assert_eq!(at(&mut w, 7200), [Action::LeaseOver { id }]);
        assert_eq!(at(&mut w, 7201), []);
    }

    #[test]
    fn of_a_short_lease_the_owner_is_told_in_its_last_quarter_and_never_if_nobody_wants_that() {
        let id = ClaimId(1);
        let mut w = World::new(&[24]);
        w.send(Event::LeaseWarning(Duration::from_secs(600)));
        leased(&mut w, 1, 500, 7, Some(100));
        assert_eq!(at(&mut w, 74), []);
        let end = Duration::from_secs(100);
        assert_eq!(at(&mut w, 75), [Action::LeaseWarning { id, at: end }]);
        w.send(Event::LeaseWarning(Duration::ZERO));
        leased(&mut w, 2, 500, 7, Some(100));
        let id = ClaimId(2);
        assert_eq!(at(&mut w, 174), [Action::LeaseOver { id: ClaimId(1) }]);
        assert_eq!(at(&mut w, 175), [Action::LeaseOver { id }]);
    }

    #[test]
    fn a_borrower_gets_no_more_time_while_an_entitled_claim_waits_for_his_gpu() {
        let mut w = World::new(&[24]);
        leased(&mut w, 1, 750, 7, Some(600));
        assert_eq!(w.machine.may_extend(ClaimId(1)), Ok(()));
        // Two users are guaranteed half a GPU each; the first holds three quarters.
        leased(&mut w, 2, 500, 8, None);
        assert!(w.machine.is_entitled(ClaimId(2)));
        assert_eq!(w.machine.may_extend(ClaimId(1)), Err(ClaimId(2)));
        w.send(Event::Gone { id: ClaimId(2) });
        assert_eq!(w.machine.may_extend(ClaimId(1)), Ok(()));
        // An owner within the guarantee may extend.
        let mut w = World::new(&[24]);
        leased(&mut w, 1, 500, 7, Some(600));
        leased(&mut w, 2, 333, 9, Some(600));
        leased(&mut w, 3, 333, 8, None);
        assert!(w.machine.is_entitled(ClaimId(3)));
        assert_eq!(w.machine.may_extend(ClaimId(1)), Err(ClaimId(3)));
        assert_eq!(w.machine.may_extend(ClaimId(2)), Ok(()));
    }
}
