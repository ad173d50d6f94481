//! Turns a process outside claims into a claim. What it holds already does not count against it.

use super::claims::Claim;
use super::{Action, Machine, Now};
use crate::claim::{ClaimId, Request};
use crate::ledger::{GpuFacts, Ledger, Slice};
use crate::place;
use crate::reason;
use crate::units::Bytes;

#[derive(Clone, Debug)]
pub(super) struct Adopting {
    pub(super) id: ClaimId,
    pub(super) request: Request,
    pub(super) held: Vec<(usize, Bytes)>,
}

impl Adopting {
    /// The ledger without the process's memory outside claims.
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

    /// Whether it asks for more than it holds on any GPU.
    fn grows(&self, ledger: &Ledger) -> bool {
        let needed = |gpu: usize| {
            let facts = ledger.gpus().get(gpu)?;
            Ledger::mem_needed(
                facts,
                &self.request,
                facts.allocatable().unwrap_or_default(),
            )
        };
        let grows = |(gpu, bytes): &(usize, Bytes)| {
            let most = bytes.saturating_add(Bytes(crate::ledger::GRANULARITY));
            needed(*gpu).is_none_or(|needed| needed > most)
        };
        self.held.is_empty() || self.held.iter().any(grows)
    }

    /// Its place where it runs, whatever is promised to others there; none if it asks for more than it holds.
    fn where_it_is(&self, ledger: &Ledger) -> Option<Vec<Slice>> {
        let own = !self.grows(ledger) && self.held.len() == self.request.gpus as usize;
        let slice = |(gpu, _): &(usize, Bytes)| ledger.regardless(&self.request, *gpu);
        own.then(|| self.held.iter().map(slice).collect())?
    }
}

impl Machine {
    /// Its place in the ledger, or else the claim ahead of it.
    fn room_for(
        &self,
        adopting: &Adopting,
        ledger: &Ledger,
    ) -> Result<Vec<Slice>, Option<ClaimId>> {
        let ahead = self.queue().next().map(|(id, _)| id);
        match ahead.filter(|_| adopting.grows(ledger)) {
            Some(ahead) => Err(Some(ahead)),
            None => place::best_fit(ledger, &adopting.request, &[]).ok_or(None),
        }
    }

    /// Whether an adoption is to be decided now: a process that is counted already stays so until there is room.
    pub(super) fn is_to_be_adopted(&self, adopting: &Adopting) -> bool {
        let ledger = adopting.without(&self.ledger);
        self.claims.get(adopting.id).is_none() || self.room_for(adopting, &ledger).is_ok()
    }

    /// Decides adoptions once the charges are exact. A process that asks for more than it holds comes after the queue.
    /// One without room beside what others are promised is only counted: it keeps running, without a guarantee, until
    /// there is room.
    pub(super) fn adopt(&mut self, now: Now, actions: &mut Vec<Action>) {
        for adopting in std::mem::take(&mut self.adopting) {
            let ledger = adopting.without(&self.ledger);
            let (id, request) = (adopting.id, &adopting.request);
            let there = adopting.where_it_is(&self.ledger);
            let counted = self.claims.get(id).cloned();
            actions.push(match (self.room_for(&adopting, &ledger), there) {
                (Ok(slices), _) => {
                    // Memory that it held outside claims now belongs to its claim.
                    self.ledger.set_gpus(ledger.gpus().to_vec());
                    let claim = counted.unwrap_or_else(|| self.adopted(now, request));
                    self.grant(id, claim, slices)
                }
                (Err(_), _) if counted.is_some() => continue,
                (Err(None), Some(slices)) => {
                    let claim = self.adopted(now, request);
                    self.count(id, claim, slices)
                }
                (Err(ahead), _) => Action::Refuse {
                    id,
                    reason: reason::waits(&ledger, request, &[], ahead),
                    for_now: true,
                },
            });
        }
    }

    fn adopted(&mut self, now: Now, request: &Request) -> Claim {
        self.next_seq += 1;
        Claim::new(request.clone(), self.next_seq, now)
    }
}
