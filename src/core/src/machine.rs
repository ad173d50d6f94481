//! The state machine behind the service: `step(now, event) -> actions`.
//!
//! First come, first served: a waiting claim blocks the GPUs it could run on for all that came later, so
//! nobody is overtaken on a GPU that he waits for.

mod adopt;

use std::time::Duration;

use crate::claim::{ClaimId, Request};
use crate::ledger::{GpuFacts, Ledger, Slice};
use crate::place;
use crate::quota::{Party, Quota, Quotas};
use crate::reason::{self, Reason};
use crate::resize::{self, Change, ResizeError};
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
    /// The owner of a granted claim wants it larger or smaller. A later one for the same claim replaces it.
    Resize {
        /// Number of this wish, given by the caller, never used before.
        ticket: u64,
        /// The claim.
        id: ClaimId,
        /// What changes.
        change: Change,
        /// How long it waits for room (`None` for ever, zero not at all).
        patience: Option<Duration>,
    },
    /// A wish to resize is taken back.
    Unwish {
        /// Its number.
        ticket: u64,
    },
    /// The charges of all claims as read from the pages, after the caps of the last actions took effect:
    /// the answer to one [`Action::Measure`].
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
    /// All quotas, anew.
    Quotas(Vec<Quota>),
    /// Whom a claim counts for; told before it is submitted or restored.
    Parties {
        /// The claim.
        id: ClaimId,
        /// Its owner, groups and project.
        parties: Vec<Party>,
    },
    /// An administrator takes a GPU out of service for new claims (`on`), or puts it back.
    Drain {
        /// UUID of the GPU.
        uuid: String,
        /// No new claims there.
        on: bool,
    },
    /// A process that runs outside claims is to become one, now or not at all.
    Adopt {
        /// Its id, given by the caller, never used before.
        id: ClaimId,
        /// What is claimed for it, on the GPUs that it uses.
        request: Request,
        /// What it has by GPU: in the facts as unclaimed.
        held: Vec<(usize, Bytes)>,
    },
    /// The auto-claims (processes outside claims that are accounted, without a cap): bytes by GPU.
    Uncapped(Vec<(ClaimId, usize, Bytes)>),
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
    /// Read all pages and answer with [`Event::Measured`], once for each of these: somebody waits.
    Measure,
    /// A claim has another size: journal it, then write the SMs and the request into its pages. Caps follow
    /// in actions of their own. If it cannot be journaled, [`Event::Restore`] with `before` undoes it.
    Resize {
        /// Number of the wish.
        ticket: u64,
        /// The claim.
        id: ClaimId,
        /// What it held.
        before: Vec<Slice>,
        /// What it holds now.
        slices: Vec<Slice>,
    },
    /// A wish to resize waits; sent when its place or reason changes.
    ResizeWaits {
        /// Number of the wish.
        ticket: u64,
        /// 1 is the head of the queue.
        position: usize,
        /// Why.
        error: ResizeError,
    },
    /// A wish to resize is refused; the claim keeps what it has.
    ResizeRefused {
        /// Number of the wish.
        ticket: u64,
        /// Why.
        error: ResizeError,
    },
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

/// Somebody who waits.
#[derive(Clone, Debug)]
struct Waiting {
    ask: Ask,
    deadline: Option<Now>,
}

#[derive(Clone, Debug)]
enum Ask {
    /// A claim wants to start.
    Claim {
        id: ClaimId,
        request: Request,
        told: Option<(usize, Reason)>,
    },
    /// A claim that is held wants another size.
    Resize {
        ticket: u64,
        id: ClaimId,
        change: Change,
        told: Option<(usize, ResizeError)>,
    },
}

impl Waiting {
    fn id(&self) -> ClaimId {
        match &self.ask {
            Ask::Claim { id, .. } | Ask::Resize { id, .. } => *id,
        }
    }

    /// GPUs on which it must not be overtaken.
    fn gpus(&self, ledger: &Ledger) -> Vec<usize> {
        match &self.ask {
            // Who is kept by a quota waits for no GPU.
            Ask::Claim {
                told: Some((_, Reason::Quota(_))),
                ..
            } => Vec::new(),
            Ask::Claim { request, .. } => place::candidates(ledger, request),
            Ask::Resize { id, .. } => {
                let held = ledger.slices(*id).unwrap_or_default();
                held.iter().map(|s| s.gpu).collect()
            }
        }
    }

    fn patient(&self, now: Now) -> bool {
        self.deadline.is_none_or(|d| d > now)
    }
}

/// Ledger, queue and leases.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    ledger: Ledger,
    queue: Vec<Waiting>,
    leases: Vec<(ClaimId, Now)>,
    quotas: Quotas,
    /// Measures asked for and not answered yet: only the last one saw the lowest caps.
    measuring: u32,
    /// Processes that are to become claims as soon as the charges are sure.
    adopting: Vec<adopt::Adopting>,
}

impl Machine {
    /// The ledger, for reading.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Waiting claims with their requests, head first.
    pub fn queue(&self) -> impl Iterator<Item = (ClaimId, &Request)> {
        self.queue.iter().filter_map(|w| match &w.ask {
            Ask::Claim { id, request, .. } => Some((*id, request)),
            Ask::Resize { .. } => None,
        })
    }

    /// The largest share of a GPU that a claim made now would get there at once: nothing where somebody
    /// waits already, since he comes first.
    #[must_use]
    pub fn claimable(&self, gpu: usize) -> Share {
        if self
            .queue
            .iter()
            .any(|w| w.gpus(&self.ledger).contains(&gpu))
        {
            return Share::ZERO;
        }
        self.ledger.claimable(gpu)
    }

    /// Why a waiting claim waits, as last told.
    #[must_use]
    pub fn reason(&self, id: ClaimId) -> Option<&Reason> {
        self.queue.iter().find_map(|w| match &w.ask {
            Ask::Claim {
                id: this,
                told: Some((_, reason)),
                ..
            } if *this == id => Some(reason),
            _ => None,
        })
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
                let above = self.quotas.never(&self.ledger, id, &request);
                let never = above.map(Reason::Quota);
                if let Some(reason) = never.or_else(|| reason::never(&self.ledger, &request)) {
                    self.quotas.leave(id);
                    actions.push(Action::Refuse {
                        id,
                        reason,
                        for_now: false,
                    });
                } else {
                    let deadline = patience.map(|p| now.saturating_add(p));
                    let ask = Ask::Claim {
                        id,
                        request,
                        told: None,
                    };
                    self.queue.push(Waiting { ask, deadline });
                    self.settle(&mut actions);
                }
            }
            Event::Resize {
                ticket,
                id,
                change,
                patience,
            } => {
                self.drop_wishes(id, &ResizeError::Replaced { id }, &mut actions);
                let ask = Ask::Resize {
                    ticket,
                    id,
                    change,
                    told: None,
                };
                let deadline = patience.map(|p| now.saturating_add(p));
                self.queue.push(Waiting { ask, deadline });
                self.settle(&mut actions);
            }
            Event::Unwish { ticket } => {
                self.queue
                    .retain(|w| !matches!(w.ask, Ask::Resize { ticket: t, .. } if t == ticket));
                self.settle(&mut actions);
            }
            Event::Measured(charges) => {
                for (id, gpu, charge) in charges {
                    self.ledger.set_charge(id, gpu, charge);
                }
                self.measuring = self.measuring.saturating_sub(1);
                if self.measuring == 0 {
                    self.adopt(now, &mut actions);
                    self.schedule(now, &mut actions);
                }
            }
            Event::Restore { id, slices, ends } => {
                self.ledger.insert(id, slices);
                self.set_lease(id, ends);
            }
            Event::Quotas(quotas) => {
                self.quotas.set(&quotas);
                self.settle(&mut actions);
            }
            Event::Parties { id, parties } => self.quotas.enter(id, parties),
            Event::Drain { uuid, on } => {
                self.ledger.set_drained(&uuid, on);
                self.settle(&mut actions);
            }
            Event::Gone { id } => {
                self.drop_wishes(id, &ResizeError::NotHeld { id }, &mut actions);
                self.queue.retain(|w| w.id() != id);
                self.set_lease(id, None);
                self.ledger.remove(id);
                self.quotas.leave(id);
                self.settle(&mut actions);
            }
            // Their bytes are part of the facts already; who holds them is for the reasons.
            Event::Adopt { id, request, held } => {
                self.adopting.push(adopt::Adopting { id, request, held });
                actions.extend(caps(self.ledger.freeze_caps()));
                self.lower_to_wishes(&mut actions);
                self.measure(&mut actions);
            }
            Event::Uncapped(held) => self.ledger.set_uncapped(held),
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

    fn drop_wishes(&mut self, id: ClaimId, error: &ResizeError, actions: &mut Vec<Action>) {
        self.queue.retain(|w| match w.ask {
            Ask::Resize {
                ticket, id: this, ..
            } if this == id => {
                let error = error.clone();
                actions.push(Action::ResizeRefused { ticket, error });
                false
            }
            _ => true,
        });
    }

    /// While nobody waits, what is free is lent. Before anybody is granted anything, or gets less, caps
    /// fall to the guarantee and the pages are read again: only then are the charges sure.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        if self.queue.is_empty() && !self.ledger.lending_lowers() {
            actions.extend(caps(self.ledger.lend_caps(true)));
        } else {
            actions.extend(caps(self.ledger.freeze_caps()));
            self.lower_to_wishes(actions);
            self.measure(actions);
        }
    }

    fn measure(&mut self, actions: &mut Vec<Action>) {
        self.measuring += 1;
        actions.push(Action::Measure);
    }

    /// Who wants a lower limit must not grow above it while that is decided.
    fn lower_to_wishes(&mut self, actions: &mut Vec<Action>) {
        for waiting in &self.queue {
            let Ask::Resize { id, change, .. } = &waiting.ask else {
                continue;
            };
            let Ok(target) = resize::target(&self.ledger, *id, change) else {
                continue;
            };
            actions.extend(caps(self.ledger.lower_caps(*id, &target)));
        }
    }

    fn schedule(&mut self, now: Now, actions: &mut Vec<Action>) {
        let mut still: Vec<Waiting> = Vec::new();
        let mut queue = std::mem::take(&mut self.queue).into_iter();
        while let Some(waiting) = queue.next() {
            match waiting.ask {
                Ask::Claim { .. } => {
                    let kept = self.try_claim(now, waiting, &still, actions);
                    still.extend(kept);
                }
                Ask::Resize { .. } => match self.try_resize(now, waiting, &still, actions) {
                    Tried::Waits(waiting) => still.push(*waiting),
                    Tried::Refused => {}
                    // It may fail to be journaled: nothing else is decided before that is known.
                    Tried::Done => {
                        still.extend(queue);
                        self.queue = still;
                        self.measure(actions);
                        return;
                    }
                },
            }
        }
        self.queue = still;
        actions.extend(caps(self.ledger.lend_caps(self.queue.is_empty())));
    }

    /// Grants a claim, refuses it or keeps it waiting behind those who are `ahead`.
    fn try_claim(
        &mut self,
        now: Now,
        mut waiting: Waiting,
        ahead: &[Waiting],
        actions: &mut Vec<Action>,
    ) -> Option<Waiting> {
        let patient = waiting.patient(now);
        let Ask::Claim { id, request, told } = &mut waiting.ask else {
            return Some(waiting);
        };
        let id = *id;
        let mut blocked = vec![false; self.ledger.gpus().len()];
        for gpu in ahead.iter().flat_map(|w| w.gpus(&self.ledger)) {
            blocked[gpu] = true;
        }
        let kept = self.quotas.keeps(&self.ledger, id, request);
        if kept.is_none()
            && let Some(slices) = place::best_fit(&self.ledger, request, &blocked)
        {
            let ends = request.lease.map(|l| now.saturating_add(l));
            self.ledger.insert(id, slices.clone());
            self.set_lease(id, ends);
            actions.push(Action::Grant { id, slices, ends });
            return None;
        }
        let reason = kept.map_or_else(
            || {
                let ahead = ahead.last().map(Waiting::id);
                reason::waits(&self.ledger, request, &blocked, ahead)
            },
            Reason::Quota,
        );
        if !patient {
            self.quotas.leave(id);
            actions.push(Action::Refuse {
                id,
                reason,
                for_now: true,
            });
            return None;
        }
        let now_told = (ahead.len() + 1, reason);
        if told.as_ref() != Some(&now_told) {
            let (position, reason) = now_told.clone();
            actions.push(Action::Wait {
                id,
                position,
                reason,
            });
            *told = Some(now_told);
        }
        Some(waiting)
    }

    /// Gives a claim its new size, refuses that or keeps it waiting behind those who are `ahead`.
    fn try_resize(
        &mut self,
        now: Now,
        mut waiting: Waiting,
        ahead: &[Waiting],
        actions: &mut Vec<Action>,
    ) -> Tried {
        let patient = waiting.patient(now);
        let Ask::Resize {
            ticket,
            id,
            change,
            told,
        } = &mut waiting.ask
        else {
            return Tried::Refused;
        };
        let (ticket, id) = (*ticket, *id);
        let first = |gpu| {
            let waits = |w: &&Waiting| w.gpus(&self.ledger).contains(&gpu);
            ahead.iter().find(waits).map(Waiting::id)
        };
        let decided = resize::target(&self.ledger, id, change)
            .and_then(|t| resize::check(&self.ledger, id, &t, change, first).map(|()| t))
            .and_then(|t| match self.quotas.keeps_from(&self.ledger, id, &t) {
                Some(over) => Err(ResizeError::Quota(over)),
                None => Ok(t),
            });
        match decided {
            Ok(slices) => {
                let before = self.ledger.slices(id).unwrap_or_default().to_vec();
                self.ledger.insert(id, slices.clone());
                actions.push(Action::Resize {
                    ticket,
                    id,
                    before,
                    slices,
                });
                Tried::Done
            }
            Err(error) if patient && error.for_now() => {
                let now_told = (ahead.len() + 1, error);
                if told.as_ref() != Some(&now_told) {
                    let (position, error) = now_told.clone();
                    actions.push(Action::ResizeWaits {
                        ticket,
                        position,
                        error,
                    });
                    *told = Some(now_told);
                }
                Tried::Waits(Box::new(waiting))
            }
            Err(error) => {
                actions.push(Action::ResizeRefused { ticket, error });
                Tried::Refused
            }
        }
    }
}

enum Tried {
    Done,
    Refused,
    Waits(Box<Waiting>),
}

fn caps(changed: Vec<(ClaimId, Slice)>) -> impl Iterator<Item = Action> {
    changed
        .into_iter()
        .map(|(id, slice)| Action::Cap { id, slice })
}

#[cfg(test)]
mod tests;
