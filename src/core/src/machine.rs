//! The state machine behind the service: `step(now, event) -> actions`.
//!
//! First come, first served: a waiting claim blocks the GPUs it could run on for all that came later, so
//! nobody is overtaken on a GPU that he waits for.

use std::time::Duration;

use crate::claim::{ClaimId, Request};
use crate::ledger::{GpuFacts, Ledger, Slice};
use crate::place;
use crate::reason::{self, Reason};
use crate::units::{Bytes, Share};

/// Virtual or real time since an origin that the caller chooses.
pub type Now = Duration;

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Fresh facts about all GPUs.
    Gpus(Vec<GpuFacts>),
    /// Somebody asks; `patience` is how long he waits (`None` for ever, zero not at all).
    Submit {
        /// Its id, given by the caller, never used before.
        id: ClaimId,
        /// What it asks.
        request: Request,
        /// How long it waits.
        patience: Option<Duration>,
    },
    /// The charges of all claims as read from the pages, after the caps of the last actions took effect.
    Measured(Vec<(ClaimId, usize, Bytes)>),
    /// A claim found again after a restart.
    Restore {
        /// Its id.
        id: ClaimId,
        /// What it holds.
        slices: Vec<Slice>,
        /// When its lease ends.
        ends: Option<Now>,
    },
    /// The claim holds nothing any more, or the waiting claim was withdrawn.
    Gone {
        /// Its id.
        id: ClaimId,
    },
    /// An administrator takes a GPU out of service for new claims (`on`), or puts it back.
    Drain {
        /// UUID of the GPU.
        uuid: String,
        /// No new claims there.
        on: bool,
    },
    /// Time passes.
    Tick,
}

/// What the service must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write this cap into the claim's page.
    Cap {
        /// The claim.
        id: ClaimId,
        /// The slice with its new `mem_cap`.
        slice: Slice,
    },
    /// Read all pages and answer with [`Event::Measured`]: somebody waits.
    Measure,
    /// The claim is granted.
    Grant {
        /// The claim.
        id: ClaimId,
        /// What it holds.
        slices: Vec<Slice>,
        /// When its lease ends.
        ends: Option<Now>,
    },
    /// The claim waits; sent when its place or reason changes.
    Wait {
        /// The claim.
        id: ClaimId,
        /// 1 is the head.
        position: usize,
        /// Why.
        reason: Reason,
    },
    /// The claim is refused for good.
    Refuse {
        /// The claim.
        id: ClaimId,
        /// Why.
        reason: Reason,
        /// It could run another time: only its patience is over.
        for_now: bool,
    },
    /// The lease of a claim is over.
    LeaseOver {
        /// The claim.
        id: ClaimId,
    },
}

#[derive(Clone, Debug)]
struct Waiting {
    id: ClaimId,
    request: Request,
    deadline: Option<Now>,
    told: Option<(usize, Reason)>,
}

/// Ledger, queue and leases.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    ledger: Ledger,
    queue: Vec<Waiting>,
    leases: Vec<(ClaimId, Now)>,
}

impl Machine {
    /// The ledger, for reading.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Waiting claims with their requests, head first.
    pub fn queue(&self) -> impl Iterator<Item = (ClaimId, &Request)> {
        self.queue.iter().map(|w| (w.id, &w.request))
    }

    /// The largest share of a GPU that a claim made now would get there at once: nothing where somebody
    /// waits already, since he comes first.
    #[must_use]
    pub fn claimable(&self, gpu: usize) -> Share {
        if self
            .queue
            .iter()
            .any(|w| place::candidates(&self.ledger, &w.request).contains(&gpu))
        {
            return Share::ZERO;
        }
        self.ledger.claimable(gpu)
    }

    /// Why a waiting claim waits, as last told.
    #[must_use]
    pub fn reason(&self, id: ClaimId) -> Option<&Reason> {
        self.queue
            .iter()
            .find(|w| w.id == id)?
            .told
            .as_ref()
            .map(|(_, r)| r)
    }

    /// When a granted claim's lease ends.
    #[must_use]
    pub fn lease_end(&self, id: ClaimId) -> Option<Now> {
        self.leases
            .iter()
            .find(|(l, _)| *l == id)
            .map(|(_, at)| *at)
    }

    /// Moves a claim's lease end.
    pub fn set_lease(&mut self, id: ClaimId, ends: Option<Now>) {
        self.leases.retain(|(l, _)| *l != id);
        self.leases.extend(ends.map(|at| (id, at)));
    }

    /// Handles one event.
    pub fn step(&mut self, now: Now, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Gpus(gpus) => {
                self.ledger.set_gpus(gpus);
                self.settle(&mut actions);
            }
            Event::Submit {
                id,
                request,
                patience,
            } => {
                if let Some(reason) = reason::never(&self.ledger, &request) {
                    actions.push(Action::Refuse {
                        id,
                        reason,
                        for_now: false,
                    });
                } else {
                    let deadline = patience.map(|p| now.saturating_add(p));
                    self.queue.push(Waiting {
                        id,
                        request,
                        deadline,
                        told: None,
                    });
                    self.settle(&mut actions);
                }
            }
            Event::Measured(charges) => {
                for (id, gpu, charge) in charges {
                    self.ledger.set_charge(id, gpu, charge);
                }
                self.schedule(now, &mut actions);
            }
            Event::Restore { id, slices, ends } => {
                self.ledger.insert(id, slices);
                self.set_lease(id, ends);
            }
            Event::Drain { uuid, on } => {
                self.ledger.set_drained(&uuid, on);
                self.settle(&mut actions);
            }
            Event::Gone { id } => {
                self.queue.retain(|w| w.id != id);
                self.set_lease(id, None);
                self.ledger.remove(id);
                self.settle(&mut actions);
            }
            Event::Tick => {
                let over: Vec<ClaimId> = self
                    .leases
                    .iter()
                    .filter(|(_, at)| *at <= now)
                    .map(|(id, _)| *id)
                    .collect();
                for id in over {
                    self.set_lease(id, None);
                    actions.push(Action::LeaseOver { id });
                }
                self.settle(&mut actions);
            }
        }
        actions
    }

    /// While nobody waits, what is free is lent. Before anybody is granted anything, or gets less, caps
    /// fall to the guarantee and the pages are read again: only then are the charges sure.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        if self.queue.is_empty() && !self.ledger.lending_lowers() {
            actions.extend(caps(self.ledger.lend_caps(true)));
        } else {
            actions.extend(caps(self.ledger.freeze_caps()));
            actions.push(Action::Measure);
        }
    }

    fn schedule(&mut self, now: Now, actions: &mut Vec<Action>) {
        let mut blocked = vec![false; self.ledger.gpus().len()];
        let mut still = Vec::new();
        for mut waiting in std::mem::take(&mut self.queue) {
            if let Some(slices) = place::best_fit(&self.ledger, &waiting.request, &blocked) {
                let ends = waiting.request.lease.map(|l| now.saturating_add(l));
                self.ledger.insert(waiting.id, slices.clone());
                self.set_lease(waiting.id, ends);
                actions.push(Action::Grant {
                    id: waiting.id,
                    slices,
                    ends,
                });
                continue;
            }
            let ahead = still.last().map(|w: &Waiting| w.id);
            let reason = reason::waits(&self.ledger, &waiting.request, &blocked, ahead);
            if waiting.deadline.is_some_and(|d| d <= now) {
                actions.push(Action::Refuse {
                    id: waiting.id,
                    reason,
                    for_now: true,
                });
                continue;
            }
            for gpu in place::candidates(&self.ledger, &waiting.request) {
                blocked[gpu] = true;
            }
            let told = (still.len() + 1, reason);
            if waiting.told.as_ref() != Some(&told) {
                let (position, reason) = told.clone();
                actions.push(Action::Wait {
                    id: waiting.id,
                    position,
                    reason,
                });
                waiting.told = Some(told);
            }
            still.push(waiting);
        }
        self.queue = still;
        actions.extend(caps(self.ledger.lend_caps(self.queue.is_empty())));
    }
}

fn caps(changed: Vec<(ClaimId, Slice)>) -> impl Iterator<Item = Action> {
    changed
        .into_iter()
        .map(|(id, slice)| Action::Cap { id, slice })
}

#[cfg(test)]
mod tests;
