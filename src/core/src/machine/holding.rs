//! Where granted claims are, and what the answers to levers and the wishes of people change about that.
//!
//! A claim on its way holds both sides until the answer comes, so that it can always stay where it was.

use std::collections::BTreeMap;

use super::lever::{Failure, Holding, Lever, Levers, Parked, ParkedBy, Wish};
use super::{Action, Ask, Machine, Now, Waiting};
use crate::claim::{ClaimId, Request};
use crate::ledger::Slice;
use crate::units::{Bytes, Share};

/// What is known of a granted claim beside what it holds.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    /// What it asked for.
    pub(super) request: Request,
    /// Its place among those who asked.
    pub(super) seq: u64,
    /// Since when it runs where it is.
    pub(super) since: Now,
    /// GPU-seconds that it has had.
    pub(super) attained_s: f64,
    /// What can be done to it.
    pub(super) levers: Levers,
    /// Nothing is taken from it until then: its owner said so, or it did not work.
    pub(super) spared: BTreeMap<Lever, Now>,
    /// How often levers did not work on it.
    pub(super) failures: u32,
    /// For whom its owner has kept it already.
    pub(super) kept_for: Vec<Option<ClaimId>>,
}

/// A claim on its way.
#[derive(Clone, Debug)]
pub(super) enum Transit {
    Parking {
        freeze: bool,
        by: ParkedBy,
        /// A member needs the GPU already.
        wanted: bool,
    },
    Unparking(Parked),
    Moving,
}

impl Granted {
    pub(super) fn new(request: Request, seq: u64, since: Now) -> Self {
        Self {
            request,
            seq,
            since,
            attained_s: 0.0,
            levers: Levers::default(),
            spared: BTreeMap::new(),
            failures: 0,
            kept_for: Vec::new(),
        }
    }
}

/// What a parked claim asks for: what it held, on the GPUs where it can be.
fn wish_to_come_back(granted: Option<&Granted>, parked: &Parked, gpus: Vec<u32>) -> Request {
    let first = parked.slices.first();
    let mem = |s: &Slice| s.mem.max(s.charge);
    let most = parked.slices.iter().map(mem).max().unwrap_or_default();
    let sm = first.map_or(Share::ZERO, |s| s.sm);
    let known = granted.map(|g| &g.request);
    Request {
        gpus: u32::try_from(parked.slices.len()).unwrap_or(u32::MAX),
        share: sm,
        mem: Some(most),
        mem_limit: first.map(|s| s.mem_limit.max(most)),
        sm,
        sm_limit: first.map_or(sm, |s| s.sm_limit),
        only_gpus: gpus,
        lease: None,
        uid: first.map_or(0, |s| s.uid),
        ..known.cloned().unwrap_or_else(|| Request::nothing(sm))
    }
}

impl Machine {
    /// Where a granted claim is.
    #[must_use]
    pub fn holding(&self, id: ClaimId) -> Option<Holding> {
        if let Some(parked) = self.reclaim.parked.get(&id) {
            return Some(Holding::Parked(parked.clone()));
        }
        let slices = self.ledger.slices(id)?.to_vec();
        Some(match self.reclaim.transit.get(&id) {
            None => Holding::Here(slices),
            Some(Transit::Parking { freeze, by, .. }) => Holding::Parking {
                slices,
                freeze: *freeze,
                by: *by,
            },
            Some(Transit::Unparking(parked)) => Holding::Unparking {
                to: slices,
                parked: parked.clone(),
            },
            Some(Transit::Moving) => Holding::Moving {
                from: slices,
                to: self.ledger.reserved(id).unwrap_or_default().to_vec(),
            },
        })
    }

    /// Whether it is on its way to the host, back, or to other GPUs.
    #[must_use]
    pub fn on_its_way(&self, id: ClaimId) -> bool {
        self.reclaim.transit.contains_key(&id)
    }

    /// All granted claims and where they are.
    #[must_use]
    pub fn holdings(&self) -> BTreeMap<ClaimId, Holding> {
        let held = self.ledger.held().map(|(id, _)| id);
        held.chain(self.reclaim.parked.keys().copied())
            .filter_map(|id| Some((id, self.holding(id)?)))
            .collect()
    }

    /// What a granted claim asked for.
    #[must_use]
    pub fn request_of(&self, id: ClaimId) -> Option<&Request> {
        self.reclaim.granted.get(&id).map(|g| &g.request)
    }

    /// Host memory that parked claims have, or are about to have.
    #[must_use]
    pub fn host_taken(&self) -> Bytes {
        let parked = self.reclaim.parked.values().map(|p| p.host);
        let on_their_way = self.reclaim.transit.iter().map(|(id, t)| match t {
            Transit::Unparking(parked) => parked.host,
            Transit::Parking { .. } | Transit::Moving => self.bytes_of(*id),
        });
        parked
            .chain(on_their_way)
            .fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Bytes that a claim has on its GPUs, by the last reading.
    pub(super) fn bytes_of(&self, id: ClaimId) -> Bytes {
        let slices = self.ledger.slices(id).unwrap_or_default();
        slices
            .iter()
            .fold(Bytes::ZERO, |sum, s| sum.saturating_add(s.charge))
    }

    /// A claim found again after a restart.
    pub(super) fn restore(
        &mut self,
        now: Now,
        id: ClaimId,
        request: Option<Box<Request>>,
        holding: Holding,
    ) {
        if let Some(request) = request {
            let slices = holding.slices();
            let sm = slices.first().map_or(request.sm, |s| s.sm);
            if sm < request.sm {
                self.reclaim.lowered.insert(id, request.sm);
            }
            self.next_seq += 1;
            let granted = Granted::new(*request, self.next_seq, now);
            self.reclaim.granted.insert(id, granted);
        }
        self.reclaim.parked.remove(&id);
        self.reclaim.transit.remove(&id);
        self.ledger.remove(id);
        self.queue.retain(|w| !w.asks_for(id));
        match holding {
            Holding::Here(slices) => self.ledger.insert(id, slices),
            Holding::Parking { slices, freeze, by } => {
                self.ledger.insert(id, slices);
                self.set_out(
                    id,
                    Transit::Parking {
                        freeze,
                        by,
                        wanted: false,
                    },
                );
            }
            Holding::Parked(parked) => self.park(now, id, parked),
            Holding::Unparking { to, parked } => {
                self.ledger.insert(id, to);
                self.set_out(id, Transit::Unparking(parked));
            }
            Holding::Moving { from, to } => {
                self.ledger.insert(id, from);
                self.ledger.reserve(id, to);
                self.set_out(id, Transit::Moving);
            }
        }
    }

    pub(super) fn set_out(&mut self, id: ClaimId, transit: Transit) {
        self.reclaim.transit.insert(id, transit);
    }

    /// A claim lies in the host from now on.
    fn park(&mut self, now: Now, id: ClaimId, parked: Parked) {
        self.ledger.remove(id);
        let back = parked.back;
        self.reclaim.parked.insert(id, parked);
        if back {
            self.ask_back(now, id);
        }
    }

    /// A parked claim waits for room.
    fn ask_back(&mut self, now: Now, id: ClaimId) {
        let Some(parked) = self.reclaim.parked.get_mut(&id) else {
            return;
        };
        parked.back = true;
        let parked = parked.clone();
        if self.queue.iter().any(|w| w.asks_for(id)) {
            return;
        }
        let gpus = self.gpus_for(id, &parked);
        let granted = self.reclaim.granted.get(&id);
        let ask = Ask::Claim {
            id,
            request: wish_to_come_back(granted, &parked, gpus),
            told: None,
        };
        let seq = granted.map(|g| g.seq);
        self.enqueue(now, ask, None);
        if let (Some(last), Some(seq)) = (self.queue.last_mut(), seq) {
            last.seq = seq;
        }
    }

    /// GPUs on which a parked claim can be: those that it left, and, if it is movable, others like them.
    fn gpus_for(&self, id: ClaimId, parked: &Parked) -> Vec<u32> {
        let own: Vec<usize> = parked.slices.iter().map(|s| s.gpu).collect();
        let granted = self.reclaim.granted.get(&id);
        let movable = granted.is_some_and(|g| g.levers.movable.is_ok());
        let only = granted.map(|g| g.request.only_gpus.clone());
        let only = only.unwrap_or_default();
        let allowed = |g: usize| {
            let named = only.is_empty() || u32::try_from(g).is_ok_and(|g| only.contains(&g));
            own.contains(&g) || (movable && named && self.ledger.alike(g, &own))
        };
        let known = self.ledger.gpus().len();
        // Before the facts are there only its own are known to be like it.
        let gpus: Vec<usize> = if known == 0 {
            own.clone()
        } else {
            (0..known).filter(|&g| allowed(g)).collect()
        };
        gpus.into_iter()
            .filter_map(|g| u32::try_from(g).ok())
            .collect()
    }

    /// Parked claims that wait look again where they can be: what is known of GPUs and claims has changed.
    pub(super) fn widen_ways_back(&mut self) {
        for place in 0..self.queue.len() {
            let Ask::Claim { id, .. } = &self.queue[place].ask else {
                continue;
            };
            let Some(parked) = self.reclaim.parked.get(id) else {
                continue;
            };
            let gpus = self.gpus_for(*id, parked);
            if let Ask::Claim { request, .. } = &mut self.queue[place].ask {
                request.only_gpus = gpus;
            }
        }
    }

    /// What a parked claim holds on the GPUs that were found for it.
    pub(super) fn unpark(
        &mut self,
        id: ClaimId,
        found: impl Iterator<Item = usize>,
        actions: &mut Vec<Action>,
    ) {
        let Some(parked) = self.reclaim.parked.remove(&id) else {
            return;
        };
        let to = settled_on(&parked.slices, found);
        self.ledger.insert(id, to.clone());
        self.set_out(id, Transit::Unparking(parked));
        actions.push(Action::Unpark { id, to });
    }

    /// Its last way back failed a moment ago.
    pub(super) fn rests(&self, now: Now, id: ClaimId) -> bool {
        let granted = self.reclaim.granted.get(&id);
        self.comes_back(id)
            && granted.is_some_and(|g| {
                g.spared
                    .get(&Lever::Detach)
                    .is_some_and(|until| *until > now)
            })
    }

    /// Whether a claim is parked and waits to come back.
    pub(super) fn comes_back(&self, id: ClaimId) -> bool {
        self.reclaim.parked.contains_key(&id)
    }

    /// A person wants something of a claim.
    pub(super) fn wish(&mut self, now: Now, id: ClaimId, wish: Wish, actions: &mut Vec<Action>) {
        let freeze = match wish {
            Wish::Keep => {
                self.keep(now, id);
                return;
            }
            Wish::Attach | Wish::Resume => {
                if let Some(granted) = self.reclaim.granted.get_mut(&id) {
                    granted.spared.remove(&Lever::Detach);
                }
                return self.wanted(now, id);
            }
            Wish::Detach => false,
            Wish::Suspend => true,
        };
        let by = ParkedBy::Person;
        if let Some(parked) = self.reclaim.parked.get_mut(&id) {
            parked.by = by;
            parked.back = false;
            self.queue.retain(|w| !w.asks_for(id));
            self.goes_on(id, actions);
        } else if self.ledger.slices(id).is_some() && !self.on_its_way(id) {
            self.set_out(
                id,
                Transit::Parking {
                    freeze,
                    by,
                    wanted: false,
                },
            );
            actions.push(Action::Park { id, freeze, by });
        }
    }

    /// A claim needs its GPU again.
    pub(super) fn wanted(&mut self, now: Now, id: ClaimId) {
        match self.reclaim.transit.get_mut(&id) {
            Some(Transit::Parking { wanted, .. }) => *wanted = true,
            Some(_) => {}
            None => self.ask_back(now, id),
        }
    }

    /// Nobody needs its GPU any more. Where it was taken for others it comes back all the same.
    pub(super) fn unwanted(&mut self, id: ClaimId) {
        let parked = self.reclaim.parked.get_mut(&id);
        if let Some(parked) = parked.filter(|p| p.back && p.by != ParkedBy::Reclaim) {
            parked.back = false;
            self.queue.retain(|w| !w.asks_for(id));
        }
    }

    /// The claim's memory is in the host.
    pub(super) fn parked(&mut self, now: Now, id: ClaimId, host: Bytes) {
        let Some(Transit::Parking { freeze, by, wanted }) = self.reclaim.transit.remove(&id) else {
            return;
        };
        if let Some(granted) = self.reclaim.granted.get_mut(&id) {
            // That it did not work before keeps nobody from coming back.
            granted.spared.remove(&Lever::Detach);
        }
        let mut slices = self.ledger.slices(id).unwrap_or_default().to_vec();
        // What is in the host was on the GPUs, whatever was read last.
        let each = Bytes(host.0.div_ceil(slices.len().max(1) as u64));
        if self.bytes_of(id) < host {
            for slice in &mut slices {
                slice.charge = slice.charge.max(each);
            }
        }
        let parked = Parked {
            slices,
            host,
            frozen: freeze,
            by,
            since: now,
            back: wanted || by == ParkedBy::Reclaim,
        };
        self.park(now, id, parked);
    }

    /// The claim is back.
    pub(super) fn unparked(&mut self, now: Now, id: ClaimId, actions: &mut Vec<Action>) {
        if matches!(self.reclaim.transit.get(&id), Some(Transit::Unparking(_))) {
            self.arrived(now, id, actions);
        }
    }

    /// The claim is where it was to go.
    pub(super) fn moved(&mut self, now: Now, id: ClaimId, actions: &mut Vec<Action>) {
        if matches!(self.reclaim.transit.get(&id), Some(Transit::Moving)) {
            if let Some(to) = self.ledger.unreserve(id) {
                self.bind_to(id, &to);
                self.ledger.insert(id, to);
            }
            self.arrived(now, id, actions);
        }
    }

    fn arrived(&mut self, now: Now, id: ClaimId, actions: &mut Vec<Action>) {
        self.reclaim.transit.remove(&id);
        self.goes_on(id, actions);
        if let Some(granted) = self.reclaim.granted.get_mut(&id) {
            granted.since = now;
            granted.failures = 0;
        }
    }

    /// A lever did not work: the claim is where it was, and the same is not tried again for a while.
    pub(super) fn lever_failed(
        &mut self,
        now: Now,
        id: ClaimId,
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        let lever = match self.reclaim.transit.remove(&id) {
            None => return,
            Some(Transit::Parking { freeze, .. }) if freeze => Lever::Suspend,
            Some(Transit::Parking { .. }) => Lever::Detach,
            Some(Transit::Moving) => {
                self.ledger.unreserve(id);
                Lever::Move
            }
            Some(Transit::Unparking(parked)) => {
                self.ledger.remove(id);
                let back = parked.back;
                self.reclaim.parked.insert(id, parked);
                if back || failure != Failure::Lost {
                    self.ask_back(now, id);
                }
                Lever::Detach
            }
        };
        if !self.reclaim.parked.contains_key(&id) {
            self.goes_on(id, actions);
        }
        let until = now.saturating_add(self.reclaim.rules.again_after(failure));
        if let Some(granted) = self.reclaim.granted.get_mut(&id) {
            granted.failures += 1;
            granted.spared.insert(lever, until);
            // Detached and suspended are the same to the driver.
            if matches!(lever, Lever::Detach | Lever::Suspend) {
                granted.spared.insert(Lever::Detach, until);
                granted.spared.insert(Lever::Suspend, until);
            }
        }
    }

    /// Forgets a claim.
    pub(super) fn forget(&mut self, id: ClaimId) {
        self.reclaim.parked.remove(&id);
        self.reclaim.transit.remove(&id);
        self.reclaim.granted.remove(&id);
        self.reclaim.lowered.remove(&id);
        self.reclaim.borrowers.remove(&id);
        self.run_times.remove(&id);
        self.away.remove(&id);
    }

    /// A claim was granted.
    pub(super) fn note_grant(&mut self, now: Now, waiting: &Waiting) {
        if let Ask::Claim { id, request, .. } = &waiting.ask {
            let granted = Granted::new(request.clone(), waiting.seq, now);
            self.reclaim.granted.insert(*id, granted);
        }
    }
}

/// The same slices on other GPUs.
pub(super) fn settled_on(slices: &[Slice], gpus: impl Iterator<Item = usize>) -> Vec<Slice> {
    let on = |(slice, gpu): (&Slice, usize)| Slice {
        gpu,
        mem_cap: slice.mem.max(slice.charge).min(slice.mem_limit),
        ..slice.clone()
    };
    slices.iter().zip(gpus).map(on).collect()
}

#[cfg(test)]
mod tests;
