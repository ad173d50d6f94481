//! The state machine behind the service: `step(now, event) -> actions`.
//!
//! `order` ranks the waiting claims. `reserve` keeps room for the first of them that cannot start, and `plan` takes
//! room from other claims for it.

mod board;
mod carry;
mod claims;
mod holding;
pub mod lever;
mod memory;
mod moves;
mod order;
mod plan;
mod reclaim;
mod reserve;
mod search;
mod serve;
mod swap;

pub use alone::{Alone, LeftAlone, Obstacle};
pub use claimable::{Caller, Claimable, ModelRoom};
pub use claims::{Illegal, Phase, PhaseKind, Run};
pub use event::{Action, Event};
pub use foresee::{Expected, Until, carry};
pub use memory::{ABSENCE, Kept, Memory};
pub use moves::rebind;
pub use order::DUE;
pub use plan::{Plan, Stage, Step};
pub use reclaim::ReclaimRules;
pub use rehearse::{Rehearsal, Taking};

mod admission;
mod adopt;
mod alone;
mod claimable;
mod classes;
mod event;
mod foresee;
mod lease;
mod rehearse;
mod wake;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::claim::{ClaimId, Request};
use crate::class::Clocked;
use crate::ledger::{Ledger, Slice};
use crate::place;
use crate::predict::Span;
use crate::quota::Quotas;
use crate::reason::{self, Reason};
use crate::resize::{self, Change, ResizeError};
use crate::units::Bytes;
#[cfg(test)]
use crate::units::Share;

/// Virtual or real time since an origin that the caller chooses.
pub type Now = Duration;

#[derive(Clone, Debug)]
struct Waiting {
    ask: Ask,
    deadline: Option<Now>,
    /// Arrival order.
    seq: u64,
    since: Now,
    /// It has waited so long that every claim makes room for it.
    due: bool,
    /// Set when it has waited for long: nothing is taken from it for this time after it starts.
    turn: Option<Duration>,
    priority: u16,
    /// Level of the claim's own past use.
    level: u8,
    /// Its owner's recent use divided by the owner's weight, in GPU-minutes.
    had: u64,
    /// It fits into its owner's guarantee. A resize counts as if it did.
    entitled: bool,
    /// It has waited for the shortest turn and is within its owner's guarantee.
    late: bool,
    /// It was parked with more memory than it asked for, and needs all of it back.
    over: bool,
    /// GPUs on which room is promised to it.
    blocks: Vec<usize>,
    /// Its restore has just failed, or a plan has a step that restores it.
    rests: bool,
    /// Earliest expected start.
    expected: Option<Now>,
    /// Inputs of the last search that found no plan for it.
    searched: Option<u64>,
    /// It waited before a restart and its client is not back yet; its place is kept until then.
    absent: Option<Now>,
}

#[derive(Clone, Debug)]
enum Ask {
    Claim {
        id: ClaimId,
        request: Request,
        told: Option<(usize, Reason)>,
    },
    /// A granted claim wants another size.
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

    /// Whether `claim` waits here to start or to come back (not to be resized).
    fn asks_for(&self, claim: ClaimId) -> bool {
        matches!(self.ask, Ask::Claim { id, .. } if id == claim)
    }

    /// GPUs on which it must not be overtaken.
    fn gpus(&self, ledger: &Ledger) -> Vec<usize> {
        match &self.ask {
            Ask::Claim { .. } if self.by_rule() => Vec::new(),
            Ask::Claim { request, .. } => place::candidates(ledger, request),
            Ask::Resize { id, .. } => {
                let held = ledger.slices(*id).unwrap_or_default();
                held.iter().map(|s| s.gpu).collect()
            }
        }
    }

    /// True if a quota or a rule of its class keeps the claim waiting, not a GPU.
    fn by_rule(&self) -> bool {
        matches!(&self.ask, Ask::Claim { told: Some((_, reason)), .. } if reason.is_rule())
    }

    fn patient(&self, now: Now) -> bool {
        self.deadline.is_none_or(|d| d > now)
    }
}

/// Ledger, claims and queue.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    ledger: Ledger,
    claims: claims::Claims,
    #[allow(
        clippy::vec_box,
        reason = "hundreds of them are sorted and passed on at every decision"
    )]
    queue: Vec<Box<Waiting>>,
    /// Owners are warned this long before their leases end.
    lease_warning: Duration,
    quotas: Quotas,
    clocked: Clocked,
    /// Unanswered requests to read the charges. Only the last of them saw the lowest caps.
    measuring: u32,
    /// Processes that become claims as soon as the charges are known.
    adopting: Vec<adopt::Adopting>,
    next_seq: u64,
    past: order::Past,
    reclaim: reclaim::Reclaim,
    /// Past run times of the same command, by claim.
    run_times: BTreeMap<ClaimId, Span>,
}

impl Machine {
    /// The ledger, read-only.
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

    /// Why a claim waits, as last reported.
    #[must_use]
    pub fn reason(&self, id: ClaimId) -> Option<&Reason> {
        self.place(id).map(|(_, reason)| reason)
    }

    /// Its place in the queue and why it waits, as last reported.
    #[must_use]
    pub fn place(&self, id: ClaimId) -> Option<(usize, &Reason)> {
        self.queue.iter().find_map(|w| match &w.ask {
            Ask::Claim {
                id: this,
                told: Some((position, reason)),
                ..
            } if *this == id => Some((*position, reason)),
            _ => None,
        })
    }

    /// Handles one event.
    pub fn step(&mut self, now: Now, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.is_outside_the_books(now, &event, &mut actions) {
            return actions;
        }
        self.account(now);
        if event.stirs() {
            self.reclaim.quiet_since = now;
        }
        match event {
            Event::Gpus(gpus) => {
                self.ledger.set_gpus(gpus);
                self.widen_ways_back();
                self.settle(&mut actions);
            }
            Event::Submit {
                id,
                request,
                patience,
            } => {
                let deadline = patience.map(|p| now.saturating_add(p));
                // A claim that waited before a restart keeps waiting, even if it can use no GPU now.
                if self.is_back(id, &request, deadline) {
                    self.settle(&mut actions);
                    return actions;
                }
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
                    let ask = Ask::Claim {
                        id,
                        request,
                        told: None,
                    };
                    self.enqueue(now, ask, patience);
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
                self.enqueue(now, ask, patience);
                self.settle(&mut actions);
            }
            Event::Unwish { ticket } => {
                self.queue
                    .retain(|w| !matches!(w.ask, Ask::Resize { ticket: t, .. } if t == ticket));
                self.settle(&mut actions);
            }
            Event::Measured(charges) => {
                self.charge(charges);
                self.measuring = self.measuring.saturating_sub(1);
                if self.measuring == 0 {
                    self.adopt(now, &mut actions);
                    self.schedule(now, &mut actions);
                }
            }
            Event::Restore {
                id,
                request,
                holding,
                ends,
            } => {
                let left = self.left_for_others(now, id, &holding);
                self.restore(now, id, request, holding);
                self.set_lease(id, ends);
                if let Some(claim) = self.claims.get_mut(id) {
                    claim.away = left;
                }
            }
            Event::Recall(memory) => {
                self.recall(now, *memory);
                self.settle(&mut actions);
            }
            Event::Reclaim(rules) => {
                self.reclaim.rules = rules;
                self.settle(&mut actions);
            }
            Event::HostRam(most) => {
                self.reclaim.host_ram = most;
                self.settle(&mut actions);
            }
            Event::Levers { id, levers } => {
                if let Some(granted) = self.claims.get_mut(id) {
                    granted.run.levers = levers;
                }
                self.widen_ways_back();
                self.settle(&mut actions);
            }
            Event::Wish { id, wish } => {
                self.wish(now, id, wish, &mut actions);
                self.settle(&mut actions);
            }
            Event::MoveTo { id, gpus } => {
                self.move_to(id, &gpus, &mut actions);
                self.settle(&mut actions);
            }
            Event::Wanted { id } => {
                self.wanted(now, id);
                self.settle(&mut actions);
            }
            Event::Unwanted { id } => {
                self.unwanted(id);
                self.settle(&mut actions);
            }
            Event::Parked { id, host } => {
                let done = self.parked(now, id, host);
                self.answered(done, &mut actions);
            }
            Event::Unparked { id } => {
                let done = self.arrived(now, id, PhaseKind::Restoring, &mut actions);
                self.answered(done, &mut actions);
            }
            Event::Moved { id } => {
                let done = self.arrived(now, id, PhaseKind::Moving, &mut actions);
                self.answered(done, &mut actions);
            }
            Event::LeverFailed { id, failure, .. } => {
                let done = self.lever_failed(now, id, failure, &mut actions);
                self.answered(done, &mut actions);
            }
            Event::Quotas(quotas) => {
                self.quotas.set(&quotas);
                self.settle(&mut actions);
            }
            Event::LeaseWarning(before) => self.lease_warning = before,
            Event::Lease { id, ends } => {
                self.set_lease(id, ends);
                self.settle(&mut actions);
            }
            Event::Classes(classes) => {
                self.clocked.classes = classes;
                self.settle(&mut actions);
            }
            Event::Minute(minute) => {
                self.clocked.minute = minute;
                self.settle(&mut actions);
            }
            Event::Parties { id, parties } => self.quotas.enter(id, parties),
            Event::RunTime { id, span } => {
                self.run_times.insert(id, span);
                let known =
                    self.ledger.slices(id).is_some() || self.queue.iter().any(|w| w.id() == id);
                if known && !self.queue.is_empty() {
                    self.settle(&mut actions);
                }
            }
            Event::Drain { uuid, on } => {
                self.ledger.set_drained(&uuid, on);
                self.settle(&mut actions);
            }
            Event::Admission { uuid, by } => {
                self.ledger.set_admission(&uuid, by);
                for waiting in &mut self.queue {
                    if let Ask::Claim { told, .. } = &mut waiting.ask {
                        *told = None;
                    }
                }
                self.settle(&mut actions);
            }
            Event::OnBehalf { id, request, gpus } => {
                self.on_behalf(now, id, request, &gpus, &mut actions);
                self.settle(&mut actions);
            }
            Event::Gone { id } => {
                self.drop_wishes(id, &ResizeError::NotHeld { id }, &mut actions);
                self.queue.retain(|w| w.id() != id);
                self.ledger.remove(id);
                self.forget(id);
                self.quotas.leave(id);
                self.settle(&mut actions);
            }
            Event::Ending { id } => {
                self.is_ending(id);
                self.settle(&mut actions);
            }
            Event::Remember(past) => {
                for (uid, gpu_seconds) in past {
                    self.remember(uid, gpu_seconds);
                }
            }
            // The facts include their bytes already; who holds them is kept for the reasons shown to users.
            Event::Adopt { id, request, held } => {
                let adopting = adopt::Adopting { id, request, held };
                if self.is_to_be_adopted(&adopting) {
                    self.adopting.push(adopting);
                    actions.extend(caps(self.ledger.freeze_caps()));
                    self.lower_to_wishes(&mut actions);
                    self.measure(&mut actions);
                }
            }
            Event::Uncapped(held) => self.ledger.set_uncapped(held),
            Event::Tick => {
                self.look_at_leases(now, &mut actions);
                self.spread_out(now, &mut actions);
                self.settle(&mut actions);
            }
        }
        actions
    }

    fn enqueue(&mut self, now: Now, ask: Ask, patience: Option<Duration>) {
        self.next_seq += 1;
        let waiting = Waiting {
            entitled: false,
            late: false,
            over: false,
            ask,
            deadline: patience.map(|p| now.saturating_add(p)),
            seq: self.next_seq,
            since: now,
            due: false,
            turn: None,
            priority: 0,
            level: 0,
            had: 0,
            blocks: Vec::new(),
            rests: false,
            expected: None,
            searched: None,
            absent: None,
        };
        self.queue.push(Box::new(waiting));
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

    fn answered(&mut self, done: Result<(), Illegal>, actions: &mut Vec<Action>) {
        actions.extend(done.err().map(Action::Late));
        self.settle(actions);
    }

    /// Free memory is lent only while the queue is empty. Before a grant or a cut, caps fall to the guarantee and the
    /// pages are read again: only then are the charges exact.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        let nothing = self.queue.is_empty()
            && self.reclaim.plans.is_empty()
            && self.claims.lowered().next().is_none();
        if nothing && !self.ledger.lending_lowers() {
            actions.extend(caps(self.ledger.lend_caps(true)));
        } else {
            actions.extend(caps(self.ledger.freeze_caps()));
            self.lower_to_wishes(actions);
            self.measure(actions);
        }
    }

    fn charge(&mut self, charges: Vec<(ClaimId, usize, Bytes)>) {
        for (id, gpu, charge) in charges {
            // A claim in transit keeps its charge until it arrives.
            if !self.on_its_way(id) {
                self.ledger.set_charge(id, gpu, charge);
            }
        }
    }

    fn measure(&mut self, actions: &mut Vec<Action>) {
        self.measuring += 1;
        actions.push(Action::Measure);
    }

    /// A claim that asks for a lower limit must not grow above that limit before the decision.
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
}

fn caps(changed: Vec<(ClaimId, Slice)>) -> impl Iterator<Item = Action> {
    changed
        .into_iter()
        .map(|(id, slice)| Action::Cap { id, slice })
}

#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;
