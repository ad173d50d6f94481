//! What would happen to a claim submitted now, and to others because of it. A copy of the machine receives the claim,
//! and its actions are the answer, so that it agrees with the real decision.

use super::alone::Alone;
use super::claimable::NOBODY;
use super::lever::Lever;
use std::collections::BTreeSet;

use super::foresee::Expected;
use super::{Action, Event, Machine, Now, Stage};
use crate::claim::{ClaimId, Request};
use crate::ledger::Slice;
use crate::quota::Party;
use crate::reason::Reason;
use crate::units::Bytes;

/// A lever that would be used on another claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taking {
    pub id: ClaimId,
    pub lever: Lever,
    /// Its destination GPUs, if it would move.
    pub to: Vec<usize>,
    pub at: Now,
}

/// What would happen to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rehearsal {
    /// It would start at once.
    Starts {
        slices: Vec<Slice>,
        /// It is within its owner's guarantee.
        entitled: bool,
    },
    /// It would wait.
    Waits {
        /// Its place in the queue; 1 is the head.
        position: usize,
        reason: Reason,
        /// It is within its owner's guarantee.
        entitled: bool,
        /// Earliest start, if known.
        expected: Option<Now>,
        /// Range of the predicted start.
        likely: Option<Expected>,
        /// Levers that would be used for it.
        takings: Vec<Taking>,
        /// Claims that would give way but are left alone.
        alone: Vec<(ClaimId, Alone)>,
    },
    /// It could never run here.
    Refused(Reason),
}

/// More rounds than any decision takes.
const ROUNDS: usize = 64;

impl Machine {
    /// The fate of a claim that is submitted now and waits, with the current charges.
    #[must_use]
    pub fn rehearse(
        &self,
        now: Now,
        request: Request,
        parties: Vec<Party>,
        charges: &[(ClaimId, usize, Bytes)],
    ) -> Rehearsal {
        let (mut copy, id, told) = self.asked(now, request, parties, charges);
        let (mut waits, mut end) = (None, None);
        for action in told {
            match action {
                Action::Grant { id: i, slices, .. } if i == id => {
                    let entitled = !copy.is_on_loan(now, id);
                    end = Some(Rehearsal::Starts { slices, entitled });
                }
                Action::Refuse { id: i, reason, .. } if i == id => {
                    end = Some(Rehearsal::Refused(reason));
                }
                Action::Wait {
                    id: i,
                    position,
                    reason,
                } if i == id => waits = Some((position, reason)),
                _ => {}
            }
        }
        end.unwrap_or_else(|| {
            let (position, reason) = waits.unwrap_or((1, Reason::NoGpu));
            let plan = copy.plan_of(id).into_iter();
            let steps = plan.flat_map(|plan| plan.steps.iter().map(|step| (plan.due, step)));
            let open = steps.filter(|(_, step)| step.stage != Stage::Done);
            Rehearsal::Waits {
                position,
                reason,
                entitled: copy.is_entitled(id),
                expected: copy.expected_start(id),
                likely: copy
                    .expected_starts(now, &BTreeSet::from([id]), charges)
                    .remove(&id),
                takings: open
                    .map(|(at, step)| Taking {
                        id: step.id,
                        lever: step.lever,
                        to: step.to.clone(),
                        at,
                    })
                    .collect(),
                alone: copy.left_alone(now).by(&copy, id),
            }
        })
    }
}

impl Machine {
    /// A copy of this machine after the claim was submitted and waits, the claim's id, and the actions.
    fn asked(
        &self,
        now: Now,
        request: Request,
        parties: Vec<Party>,
        charges: &[(ClaimId, usize, Bytes)],
    ) -> (Self, ClaimId, Vec<Action>) {
        let mut copy = self.clone();
        let id = NOBODY;
        let submit = Event::Submit {
            id,
            request,
            patience: None,
        };
        let told = copy.play(now, vec![Event::Parties { id, parties }, submit], charges);
        (copy, id, told)
    }

    /// The fewest of these claims whose end would let a waiting claim start now; empty if all of them are not enough.
    /// Earlier entries are preferred.
    #[must_use]
    pub fn fewest_to_end(
        &self,
        now: Now,
        candidates: &[ClaimId],
        charges: &[(ClaimId, usize, Bytes)],
    ) -> Vec<ClaimId> {
        let alone = |id: &&ClaimId| self.lets_somebody_start(now, &[**id], charges);
        if let Some(id) = candidates.iter().find(alone) {
            return vec![*id];
        }
        let mut all = candidates.to_vec();
        if !self.lets_somebody_start(now, &all, charges) {
            return Vec::new();
        }
        for id in candidates.iter().rev() {
            let without: Vec<ClaimId> = all.iter().copied().filter(|i| i != id).collect();
            if self.lets_somebody_start(now, &without, charges) {
                all = without;
            }
        }
        all
    }

    fn lets_somebody_start(
        &self,
        now: Now,
        ended: &[ClaimId],
        charges: &[(ClaimId, usize, Bytes)],
    ) -> bool {
        let mut copy = self.clone();
        let left = charges.iter().filter(|(id, ..)| !ended.contains(id));
        let left: Vec<_> = left.copied().collect();
        let events = ended.iter().map(|id| Event::Gone { id: *id }).collect();
        let starts = |a: &Action| matches!(a, Action::Grant { .. } | Action::Unpark { .. });
        copy.play(now, events, &left).iter().any(starts)
    }

    /// Actions after these events in order, with these charges.
    fn play(
        &mut self,
        now: Now,
        mut events: Vec<Event>,
        charges: &[(ClaimId, usize, Bytes)],
    ) -> Vec<Action> {
        let mut told = Vec::new();
        events.reverse();
        for _ in 0..ROUNDS {
            let Some(event) = events.pop() else { break };
            for action in self.step(now, event) {
                if action == Action::Measure {
                    events.push(Event::Measured(charges.to_vec()));
                }
                told.push(action);
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::World;
    use super::*;
    use crate::claim::Class;
    use crate::units::Share;

    fn request(milli: u32, uid: u32) -> Request {
        let mut r = Request::from_gpus(Share::from_milli(milli), Share::ONE, Class::Batch).unwrap();
        r.uid = uid;
        r
    }

    #[test]
    fn what_it_says_is_what_happens_and_nothing_changes() {
        let mut w = World::new(&[24, 24]);
        let rehearse =
            |w: &World, r: &Request| w.machine.rehearse(w.now, r.clone(), Vec::new(), &[]);
        let before = format!("{:?}", w.machine);
        let Rehearsal::Starts { slices, .. } = rehearse(&w, &request(750, 7)) else {
            panic!("it starts");
        };
        assert_eq!(format!("{:?}", w.machine), before, "nothing has changed");
        w.submit_request(1, request(750, 7), None);
        assert_eq!(w.granted(1), Some(slices.iter().map(|s| s.gpu).collect()));
        let mut leased = request(1000, 7);
        leased.lease = Some(Duration::from_secs(600));
        w.submit_request(2, leased, None);
        let Rehearsal::Waits {
            position,
            reason,
            entitled,
            expected,
            ..
        } = rehearse(&w, &request(500, 8))
        else {
            panic!("it waits");
        };
        assert_eq!((position, entitled), (1, true));
        assert_eq!(expected, Some(Duration::from_secs(600)));
        w.submit_request(3, request(500, 8), None);
        assert_eq!(w.machine.reason(ClaimId(3)), Some(&reason));
        assert_eq!(w.machine.expected_start(ClaimId(3)), expected);
        assert!(matches!(
            rehearse(&w, &request(3000, 8)),
            Rehearsal::Refused(Reason::TooManyGpus { .. })
        ));
    }

    #[test]
    fn only_those_are_ended_who_make_room() {
        let mut w = World::new(&[24, 24]);
        w.submit_request(1, request(500, 7), None);
        w.submit_request(2, request(500, 8), None);
        w.submit_request(3, request(1000, 9), None);
        let id = ClaimId;
        let fewest = |w: &World, of: &[u64]| {
            let of: Vec<ClaimId> = of.iter().map(|n| id(*n)).collect();
            w.machine.fewest_to_end(w.now, &of, &[])
        };
        let all = [1, 2, 3];
        assert_eq!(fewest(&w, &all), [], "nobody waits");
        let same = w.granted(1) == w.granted(2);
        w.submit_request(4, request(1000, 7), None);
        assert!(same && w.granted(4).is_none());
        assert_eq!(fewest(&w, &[1]), [], "half a GPU is of no use to it");
        assert_eq!(fewest(&w, &[1, 2]), [id(1), id(2)], "both together are");
        assert_eq!(fewest(&w, &all), [id(3)], "one alone is enough");
        w.submit_request(5, request(2000, 7), None);
        w.send(Event::Gone { id: id(4) });
        assert_eq!(fewest(&w, &[1, 2]), []);
        assert_eq!(fewest(&w, &all), [id(1), id(2), id(3)]);
        let before = format!("{:?}", w.machine);
        let _ = fewest(&w, &all);
        assert_eq!(format!("{:?}", w.machine), before, "nothing has changed");
    }

    #[test]
    fn quotas_count_in_a_rehearsal() {
        use crate::quota::Quota;
        let mut w = World::new(&[24]);
        let lab = Party::Group("lab".into());
        w.send(Event::Quotas(vec![Quota {
            party: lab.clone(),
            gpus: None,
            weight_milli: None,
            max: Some(Share::from_milli(300)),
        }]));
        let told = w
            .machine
            .rehearse(w.now, request(500, 7), vec![lab.clone()], &[]);
        assert!(matches!(told, Rehearsal::Refused(Reason::Quota(_))));
        let told = w.machine.rehearse(w.now, request(250, 7), vec![lab], &[]);
        assert!(matches!(told, Rehearsal::Starts { .. }));
    }

    #[test]
    fn a_start_above_the_guarantee_is_on_loan() {
        let mut w = World::new(&[24, 24]);
        w.submit_request(1, request(250, 8), None);
        let starts =
            |w: &World, milli| match w
                .machine
                .rehearse(w.now, request(milli, 7), Vec::new(), &[])
            {
                Rehearsal::Starts { entitled, .. } => Some(entitled),
                _ => None,
            };
        // Two users with two GPUs are guaranteed one GPU each.
        assert_eq!(starts(&w, 1000), Some(true));
        w.submit_request(2, request(750, 7), None);
        assert_eq!(starts(&w, 250), Some(true));
        assert_eq!(starts(&w, 500), Some(false));
    }
}
