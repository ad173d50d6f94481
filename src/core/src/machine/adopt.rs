//! A process that runs outside claims becomes one: what it holds already is no reason against it.

use super::claims::Claim;
use super::{Action, Machine, Now};
use crate::claim::{ClaimId, Request};
use crate::ledger::{GpuFacts, Ledger, Slice};
use crate::place;
use crate::reason;
use crate::units::Bytes;

/// A process that is to become a claim.
#[derive(Clone, Debug)]
pub(super) struct Adopting {
    pub(super) id: ClaimId,
    pub(super) request: Request,
    pub(super) held: Vec<(usize, Bytes)>,
}

impl Adopting {
    /// The ledger as it is without what the process holds outside claims.
    fn without(&self, ledger: &Ledger) -> Ledger {
        let mut ledger = ledger.clone();
        let less = |(gpu, facts): (usize, &GpuFacts)| {
            let held = self.held.iter().filter(|(g, _)| *g == gpu);
            let held = held.fold(Bytes::ZERO, |sum, (_, b)| sum.saturating_add(*b));
            GpuFacts {
                unclaimed: facts.unclaimed.saturating_sub(held),
                ..facts.clone()
            }
        };
        let facts = ledger.gpus().iter().enumerate().map(less).collect();
        ledger.set_gpus(facts);
        ledger
    }

    /// Whether it asks for more than it holds anywhere.
    fn grows(&self, ledger: &Ledger) -> bool {
        let wanted = |gpu: usize| {
            let of = ledger.gpus().get(gpu).and_then(GpuFacts::allocatable);
            Ledger::mem_wanted(&self.request, of.unwrap_or_default())
        };
        self.held.is_empty()
            || self.held.iter().any(|(gpu, bytes)| {
                wanted(*gpu) > bytes.saturating_add(Bytes(crate::ledger::GRANULARITY))
            })
    }

    /// What it has, where it is, whatever others are promised there; none of one that asks for more.
    fn where_it_is(&self, ledger: &Ledger) -> Option<Vec<Slice>> {
        let own = !self.grows(ledger) && self.held.len() == self.request.gpus as usize;
        let slice = |(gpu, _): &(usize, Bytes)| ledger.regardless(&self.request, *gpu);
        own.then(|| self.held.iter().map(slice).collect())?
    }
}

impl Machine {
    /// Decides on those who are to be adopted, once the charges are sure. One that asks for more than it holds
    /// comes after those who wait. One that has no room beside what others are promised is only counted: it has what it
    /// has, and nothing is promised to it.
    pub(super) fn adopt(&mut self, now: Now, actions: &mut Vec<Action>) {
        for adopting in std::mem::take(&mut self.adopting) {
            let ledger = adopting.without(&self.ledger);
            let (id, request) = (adopting.id, &adopting.request);
            let ahead = self.queue().next().map(|(id, _)| id);
            let ahead = ahead.filter(|_| adopting.grows(&ledger));
            let found = place::best_fit(&ledger, request, &[]);
            let there = adopting.where_it_is(&self.ledger);
            self.next_seq += 1;
            let claim = Claim::new(request.clone(), self.next_seq, now);
            actions.push(match (found, ahead, there) {
                (Some(slices), None, _) => {
                    // What it held outside claims it holds inside now.
                    self.ledger.set_gpus(ledger.gpus().to_vec());
                    self.grant(id, claim, slices)
                }
                (None, None, Some(slices)) => self.count(id, claim, slices),
                (_, ahead, _) => Action::Refuse {
                    id,
                    reason: reason::waits(&ledger, request, &[], ahead),
                    for_now: true,
                },
            });
        }
    }
}
