//! The order of service of waiting claims.
//!
//! 1. Claims whose turn it is (they have waited for long, or need every GPU while all are free), by the time at which
//!    their turns came.
//! 2. Claims within their owner's guarantee; last among them those that come back with more memory than they asked for.
//!    A claim that comes back in its turn, if within the guarantee, precedes its owner's other claims, one at a time.
//! 3. Other claims.
//!
//! Ties go to the class of higher priority (for a claim's first hour), then, above the guarantee, to the owner with the
//! least recent use, then to the claim that has run for the shortest time (by levels), then to the first arrival. An
//! owner's guarantee is divided in the same order among their claims, granted or waiting.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::claims::Claim;
use super::lever::Lever;
use super::{Ask, Machine, Now, Waiting};
use crate::claim::{ClaimId, Class, Request};
use crate::class::Rules;
use crate::ledger::{Admission, GpuFacts, Ledger, Slice};
use crate::sched::fair::{History, LEVELS, guarantees, level};
use crate::units::{Bytes, Share};
use crate::{place, reason};

/// Starvation guard: claims queued longer than this go first, regardless of their guarantee.
pub const DUE: Duration = Duration::from_secs(3600);
/// The same for a parked claim. After such a wait a reservation may rest on guessed ends.
pub(super) const AWAY: Duration = Duration::from_secs(12 * 3600);
/// The same for a parked claim that needs every GPU: while others come and go it comes back only in its turn, and
/// leaves no gaps that others could use.
const WHOLE_AWAY: Duration = Duration::from_secs(6 * 3600);
/// Longest time for which a claim that comes back in its turn is safe from levers.
const SLOT: Duration = Duration::from_secs(3600);
/// Divided among the claims whose turn it is to start: claims within a guarantee wait this long.
const STARTS: Duration = Duration::from_secs(1800);
/// The turns of an owner's parked claims together, so that none is away much longer than until its turn. No turn is
/// shorter than the minimum.
const TURNS: Duration = Duration::from_secs(6 * 3600);
pub(super) const LEAST_SLOT: Duration = Duration::from_secs(600);
/// Level of a claim that has run for an hour.
const LONG: u8 = 2;
/// Weight of use while the queue was empty: it cost others nothing.
const IDLE_WEIGHT: f64 = 0.5;
/// Number of claims at the head of the queue whose reason and earliest start every decision updates.
pub(super) const FORESEEN: usize = 16;

/// Past use of owners.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    by_owner: BTreeMap<u32, History>,
    at: Now,
}

/// A claim that waits.
struct Asks {
    id: ClaimId,
    /// Index in the queue.
    place: usize,
    seq: u64,
    owner: Owner,
    priority: u16,
    level: u8,
    /// GPUs that it asks for.
    size: f64,
    /// Its turn, once it has come, and the duration of that turn.
    turn: Option<(Turn, Duration)>,
}

/// The turn of a claim that has waited for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Every claim makes room for it.
    OfAll,
    /// It precedes its owner's other claims.
    OfItsOwner,
}

/// A granted or waiting claim in its owner's order.
struct Demand {
    rank: (bool, Reverse<u16>, u8, u64, ClaimId),
    size: f64,
    /// Index in the queue, if it waits.
    waits: Option<usize>,
}

/// Whose guarantee serves a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// A user without an entry: an equal part of what entries leave.
    User(u32),
    /// A user, group or project with an entry, by the entry's index.
    Entry(usize),
}

/// Size of a request in GPUs: the larger of its parts of memory and SMs, times its number of GPUs.
fn size(most: Option<Bytes>, request: &Request) -> f64 {
    let memory = match (request.mem, most) {
        (Some(Bytes(mem)), Some(Bytes(most))) if most > 0 => mem as f64 / most as f64,
        (Some(_), _) => 0.0,
        (None, _) => request.share.as_f64(),
    };
    memory.max(request.sm.map_or(0.0, Share::as_f64)) * f64::from(request.gpus)
}

impl Past {
    /// Time of the last event.
    pub(super) fn at(&self) -> Now {
        self.at
    }

    /// Past use of owners: GPU-seconds, and the time in seconds to which they refer.
    pub(super) fn parts(&self) -> BTreeMap<u32, (f64, f64)> {
        let parts = self.by_owner.iter();
        parts.map(|(uid, h)| (*uid, h.parts())).collect()
    }

    pub(super) fn from_parts(parts: BTreeMap<u32, (f64, f64)>, at: Now) -> Self {
        let history = |(uid, (sum, at_s))| (uid, History::from_parts(sum, at_s));
        Self {
            by_owner: parts.into_iter().map(history).collect(),
            at,
        }
    }
}

impl Machine {
    /// Whether the owner of a granted claim is above the guarantee.
    pub(super) fn borrows(&self, id: ClaimId) -> bool {
        let slice = self.ledger.slices(id).and_then(|s| s.first());
        let Some(owner) = slice.map(|s| self.owner(id, s.uid)) else {
            return false;
        };
        let of = |gpus: BTreeMap<Owner, f64>| gpus.get(&owner).copied().unwrap_or(0.0);
        let sure = self.guaranteed(&self.asks());
        of(self.held_by(|id, uid| self.owner(id, uid))) > of(sure) + 1e-9
    }

    /// Whose guarantee serves a claim.
    fn owner(&self, id: ClaimId, uid: u32) -> Owner {
        match self.quotas.guarantee(id) {
            Some((entry, Some(_), _)) => Owner::Entry(entry),
            _ => Owner::User(uid),
        }
    }

    /// GPUs held now by owner, without GPUs that the queue does not decide about.
    pub(super) fn held_by<K: Ord>(&self, of: impl Fn(ClaimId, u32) -> K) -> BTreeMap<K, f64> {
        self.held_on(of, |gpu| self.ledger.admission(gpu) == Admission::Queue)
    }

    fn held_on<K: Ord>(
        &self,
        of: impl Fn(ClaimId, u32) -> K,
        counts: impl Fn(usize) -> bool,
    ) -> BTreeMap<K, f64> {
        let mut held: BTreeMap<K, f64> = BTreeMap::new();
        for (id, slices) in self.ledger.held() {
            for slice in slices.iter().filter(|s| counts(s.gpu)) {
                let facts = self.ledger.gpus().get(slice.gpu);
                let memory = match facts.and_then(GpuFacts::capacity) {
                    Some(Bytes(whole)) if whole > 0 => slice.mem.0 as f64 / whole as f64,
                    _ => 0.0,
                };
                let of_a_gpu = facts.map_or(Share::ONE, GpuFacts::of_a_gpu).as_f64();
                *held.entry(of(id, slice.uid)).or_default() +=
                    memory.max(slice.sm.as_f64()) * of_a_gpu;
            }
        }
        held
    }

    /// Adds use since the last call to the owners' past.
    pub(super) fn account(&mut self, now: Now) {
        if now <= self.past.at {
            return;
        }
        let weight = if self.queue.is_empty() {
            IDLE_WEIGHT
        } else {
            1.0
        };
        let passed = now.saturating_sub(self.past.at).as_secs_f64();
        for (id, gpus) in self.held_on(|id, _| id, |_| true) {
            if let Some(granted) = self.claims.get_mut(id) {
                granted.run.attained_s += gpus * passed;
            }
        }
        let held = self.held_by(|_, uid| uid);
        for uid in held.keys() {
            let since = self.past.at.as_secs_f64();
            let history = self.past.by_owner.entry(*uid).or_default();
            history.hold(since, 0.0, 0.0);
        }
        for (uid, history) in &mut self.past.by_owner {
            let gpus = held.get(uid).copied().unwrap_or(0.0);
            history.hold(now.as_secs_f64(), gpus, weight);
        }
        // An owner who holds part of a GPU has less than a GPU-second after the first second.
        let counts = |uid: &u32, h: &History| held.contains_key(uid) || h.gpu_seconds() > 1.0;
        self.past.by_owner.retain(|uid, h| counts(uid, h));
        self.past.at = now;
    }

    /// GPU-seconds that an owner has used lately, with exponential decay.
    #[must_use]
    pub fn past(&self, uid: u32) -> f64 {
        let history = self.past.by_owner.get(&uid);
        history.map_or(0.0, History::gpu_seconds)
    }

    /// Restores an owner's past use after a restart.
    pub(super) fn remember(&mut self, uid: u32, gpu_seconds: u64) {
        let history = self.past.by_owner.entry(uid).or_default();
        history.add(gpu_seconds as f64);
    }

    /// Queued demand in arrival order, without claims whose class may not start at this hour and claims for another
    /// scheduler's GPUs.
    fn asks(&self) -> Vec<Asks> {
        let most = self.ledger.largest_gpu();
        let queue = self.queue.iter().enumerate();
        let mut asks: Vec<Asks> = Vec::with_capacity(self.queue.len());
        asks.extend(queue.filter_map(|(place, waiting)| match &waiting.ask {
            Ask::Claim { id, request, .. }
                if !self.waits_for_hours(*id, request)
                    && reason::foreign(&self.ledger, request).is_none() =>
            {
                let level = self.level_of(*id);
                Some(Asks {
                    id: *id,
                    place,
                    seq: waiting.seq,
                    owner: self.owner(*id, request.uid),
                    priority: self.priority_at(level, request.class),
                    level,
                    size: size(most, request),
                    turn: None,
                })
            }
            _ => None,
        }));
        asks.sort_unstable_by_key(|a| (a.seq, a.place));
        asks
    }

    /// GPUs that each owner is guaranteed now: entries as configured, and an equal part of the rest for other users who
    /// hold or wait. Guarantees of absent owners are not kept free.
    fn guaranteed(&self, asks: &[Asks]) -> BTreeMap<Owner, f64> {
        let held = self.held_by(|id, uid| self.owner(id, uid));
        let waits = asks.iter().map(|ask| ask.owner);
        let owners: BTreeSet<Owner> = held.into_keys().chain(waits).collect();
        let quota = |owner: &Owner| match owner {
            Owner::User(_) => None,
            Owner::Entry(entry) => self.quotas.guaranteed(*entry).map(Share::as_f64),
        };
        let quotas: Vec<Option<f64>> = owners.iter().map(quota).collect();
        let queued = |g: usize| self.ledger.admission(g) == Admission::Queue;
        let all = self.ledger.gpus().iter().enumerate();
        let able = all.filter(|(g, f)| f.healthy && f.allocatable().is_some() && queued(*g));
        let gpus = able.map(|(_, facts)| facts.of_a_gpu().as_f64()).sum();
        owners.into_iter().zip(guarantees(gpus, &quotas)).collect()
    }

    /// Divides each owner's guarantee among their granted and waiting claims: first claims from which nothing can be
    /// taken now and claims that come back in their turn, then by priority, least run time and arrival. Granted claims
    /// that do not fit are on loan. Returns the queue indices of waiting claims that fit.
    fn divide(&mut self, now: Now, asks: &[Asks], sure: &BTreeMap<Owner, f64>) -> BTreeSet<usize> {
        let mut all: BTreeMap<Owner, Vec<Demand>> = BTreeMap::new();
        for ((id, uid), size) in self.held_by(|id, uid| (id, uid)) {
            let granted = self.claims.get(id);
            let level = granted.map_or(0, |g| level(self.ran_of(g).as_secs_f64()));
            let priority = granted.map_or(0, |g| self.priority_at(level, g.request.class));
            let seq = granted.map_or(0, |g| g.run.seq);
            let stays = self.is_fixed(id) || self.has_slot(now, id);
            let rank = (!stays, Reverse(priority), level, seq, id);
            let own = all.entry(self.owner(id, uid)).or_default();
            own.push(Demand {
                rank,
                size,
                waits: None,
            });
        }
        for ask in asks {
            let waits = !matches!(ask.turn, Some((Turn::OfItsOwner, _)));
            let rank = (waits, Reverse(ask.priority), ask.level, ask.seq, ask.id);
            let (size, waits) = (ask.size, Some(ask.place));
            all.entry(ask.owner)
                .or_default()
                .push(Demand { rank, size, waits });
        }
        let (mut within, mut borrowers) = (BTreeSet::new(), BTreeSet::new());
        for (owner, mut own) in all {
            let most = sure.get(&owner).copied().unwrap_or(0.0) + 1e-9;
            let mut left = most;
            own.sort_unstable_by_key(|s| s.rank);
            for share in own {
                let fits = share.size <= left;
                // A waiting claim that could fit later keeps its part, so that its owner's later claims do not overtake
                // it.
                if fits || (share.waits.is_some() && share.size <= most) {
                    left -= share.size;
                }
                match share.waits {
                    Some(place) if fits => {
                        within.insert(place);
                    }
                    None if !fits => {
                        borrowers.insert(share.rank.4);
                    }
                    _ => {}
                }
            }
        }
        for (id, claim) in self.claims.iter_mut() {
            claim.borrower = borrowers.contains(&id);
        }
        within
    }

    /// Run time of a claim.
    pub(super) fn ran(&self, id: ClaimId) -> Duration {
        let granted = self.claims.get(id);
        granted.map_or(Duration::ZERO, |g| self.ran_of(g))
    }

    fn ran_of(&self, granted: &Claim) -> Duration {
        let size = size(self.ledger.largest_gpu(), &granted.request);
        Duration::try_from_secs_f64(granted.run.attained_s / size).unwrap_or_default()
    }

    /// Level of a claim's run time, which does not depend on the claim's size.
    pub(super) fn level_of(&self, id: ClaimId) -> u8 {
        level(self.ran(id).as_secs_f64())
    }

    /// Priority of a claim: its class's in its first hour, then at most that of batch. So a long job gains little from
    /// choosing another class.
    pub(super) fn priority_of(&self, id: ClaimId, class: Class) -> u16 {
        self.priority_at(self.level_of(id), class)
    }

    fn priority_at(&self, level: u8, class: Class) -> u16 {
        let priority = self.rules_of(class).priority;
        match level < LONG {
            true => priority,
            false => priority.min(self.rules_of(Class::Batch).priority),
        }
    }

    /// Time until a running claim reaches the next level; none at the highest.
    pub(super) fn left_in_level(&self, granted: &Claim) -> Option<Duration> {
        let ran = self.ran_of(granted);
        let next = LEVELS.into_iter().find(|bound| *bound > ran);
        next.map(|bound| bound - ran)
    }

    /// Finds claims whose turn it is. Parked claims of one owner have their turns one after the other. Within the
    /// owner's guarantee they only precede the owner's other claims, so that many of them do not take from the
    /// guarantees of others.
    fn take_turns(&self, now: Now, asks: &mut [Asks], sure: &BTreeMap<Owner, f64>) {
        let held = self.ledger.held();
        let slots = held.filter(|(id, _)| self.has_slot(now, *id));
        let owner = |(id, slices): (ClaimId, &[Slice])| Some(self.owner(id, slices.first()?.uid));
        let mut served: BTreeSet<Owner> = slots.filter_map(owner).collect();
        let since = |ask: &Asks| self.queue[ask.place].since;
        let mut away: BTreeMap<Owner, u32> = BTreeMap::new();
        for (id, slices) in self.claims.come_back() {
            if let Some(slice) = slices.first() {
                *away.entry(self.owner(id, slice.uid)).or_default() += 1;
            }
        }
        let mut come: Vec<&mut Asks> = asks.iter_mut().collect();
        come.retain(|ask| now >= self.turn_of(&self.queue[ask.place]));
        come.sort_by_key(|ask| (since(ask), ask.id));
        let starting = come.iter().filter(|ask| !self.comes_back(ask.id)).count();
        for ask in come {
            let fits = ask.size <= sure.get(&ask.owner).copied().unwrap_or(0.0) + 1e-9;
            let comes_back = self.comes_back(ask.id);
            let slot = match comes_back {
                true => TURNS / away.get(&ask.owner).copied().unwrap_or(1).max(1),
                false => STARTS / u32::try_from(starting).unwrap_or(u32::MAX).max(1),
            };
            let slot = slot.clamp(LEAST_SLOT, SLOT);
            ask.turn = match comes_back {
                true if !served.insert(ask.owner) => None,
                true if fits => Some((Turn::OfItsOwner, slot)),
                _ => Some((Turn::OfAll, slot)),
            };
        }
    }

    /// Whether a claim runs in its turn: it is spared suspension but not offload, while other causes spare it both.
    pub(super) fn has_slot(&self, now: Now, id: ClaimId) -> bool {
        self.spared(now, id, Lever::Suspend) && !self.spared(now, id, Lever::Offload)
    }

    /// When a claim of several GPUs that is in its turn has had the shortest one. From then on it gives way to claims
    /// that are [`Waiting::late`]. A claim of every GPU has its whole turn, because to make all GPUs free again costs too
    /// much, and so has a claim of one, because it keeps little from others.
    pub(super) fn shortest_turn_ends(&self, now: Now, id: ClaimId) -> Option<Now> {
        let gpus = self.ledger.slices(id).map_or(0, <[Slice]>::len);
        let several = (2..self.ledger.gpus().len()).contains(&gpus);
        let granted = self.claims.get(id);
        let granted = granted.filter(|_| several && self.has_slot(now, id))?;
        Some(granted.run.since.saturating_add(LEAST_SLOT))
    }

    /// Whether a claim goes on in its turn after the shortest one.
    pub(super) fn had_its_turn(&self, now: Now, id: ClaimId) -> bool {
        let ends = self.shortest_turn_ends(now, id);
        ends.is_some_and(|ends| now >= ends)
    }

    /// When a waiting claim's turn comes. A claim of every GPU that finds all of them free counts as if it had waited for
    /// half a day, so those that wait start one after the other.
    pub(super) fn turn_of(&self, waiting: &Waiting) -> Now {
        let gpus = self.ledger.gpus().len();
        // Two claims of less than half of each GPU run beside each other.
        let most = || self.ledger.largest_gpu();
        let whole = matches!(&waiting.ask, Ask::Claim { request, .. }
            if request.gpus as usize >= gpus && 2.0 * size(most(), request) > gpus as f64);
        let most = match self.comes_back(waiting.id()) {
            true if whole => WHOLE_AWAY,
            true => AWAY,
            // To make the GPUs free again would cost others more than its run does now.
            false if whole && gpus > 1 && self.ledger.held().next().is_none() => {
                return waiting.since.saturating_sub(AWAY);
            }
            false => DUE,
        };
        waiting.since.saturating_add(most)
    }

    /// Whether a granted claim is above its owner's guarantee.
    pub(super) fn is_on_loan(&mut self, now: Now, id: ClaimId) -> bool {
        let asks = self.asks();
        let sure = self.guaranteed(&asks);
        self.divide(now, &asks, &sure);
        self.claims.get(id).is_some_and(|c| c.borrower)
    }

    /// Sorts the queue into the order of service.
    pub(super) fn order(&mut self, now: Now) {
        let mut asks = self.asks();
        let sure = self.guaranteed(&asks);
        self.take_turns(now, &mut asks, &sure);
        let within = self.divide(now, &asks, &sure);
        let mut queue = std::mem::take(&mut self.queue);
        for waiting in &mut queue {
            (waiting.due, waiting.turn) = (false, None);
            waiting.entitled = false;
            waiting.late = false;
            if let Ask::Resize { .. } = &waiting.ask {
                waiting.due = now >= self.turn_of(waiting);
                // A wish to grow never counts as within the guarantee; it is ordered by its owner's past use.
                waiting.had = self.had_by_wish(&waiting.ask);
                waiting.priority = Rules::of(Class::Batch).priority;
            }
        }
        for ask in asks {
            let waiting = &mut queue[ask.place];
            let Ask::Claim { id, request, .. } = &waiting.ask else {
                continue;
            };
            // A claim that borrowed memory comes back after the claim that needed it.
            let back = self.claims.offloaded(*id);
            waiting.over =
                back.is_some_and(|p| p.slices.iter().any(|s| s.borrowed() > Bytes::ZERO));
            waiting.due = matches!(ask.turn, Some((Turn::OfAll, _)));
            waiting.turn = ask.turn.map(|(_, slot)| slot);
            waiting.priority = ask.priority;
            waiting.level = ask.level;
            waiting.entitled = within.contains(&ask.place);
            waiting.late = waiting.entitled && now >= waiting.since.saturating_add(LEAST_SLOT);
            // Within a guarantee, past use does not count.
            waiting.had = match waiting.entitled {
                true => 0,
                false => self.had(*id, request.uid),
            };
        }
        // Most of the queue is still sorted from last time.
        queue.sort_by_cached_key(|w| {
            (
                // By the time at which their turns came, so that later turns do not delay earlier ones.
                Reverse(w.due.then(|| Reverse(self.turn_of(w)))),
                !w.entitled,
                w.over,
                Reverse(w.priority),
                w.had,
                w.level,
                w.seq,
            )
        });
        self.queue = queue;
    }

    /// Level of the recent use of a claim's owner. It decides between claims of several owners, so that splitting
    /// claims gains nothing.
    pub(super) fn owner_level(&self, id: ClaimId, uid: u32) -> u8 {
        level(self.had_s(id, uid))
    }

    /// Recent use of a claim's owner divided by the owner's weight, in GPU-minutes.
    fn had(&self, id: ClaimId, uid: u32) -> u64 {
        (self.had_s(id, uid) / 60.0) as u64
    }

    /// The same, in seconds.
    pub(super) fn had_s(&self, id: ClaimId, uid: u32) -> f64 {
        let guarantee = self.quotas.guarantee(id);
        let weight = guarantee.map_or(1000, |(_, _, w)| w.max(1));
        self.past(uid) * 1000.0 / f64::from(weight)
    }

    /// The same for the owner of a claim to be resized.
    fn had_by_wish(&self, ask: &Ask) -> u64 {
        let Ask::Resize { id, .. } = ask else {
            return 0;
        };
        let slice = self.ledger.slices(*id).and_then(|s| s.first());
        slice.map_or(0, |s| self.had(*id, s.uid))
    }

    /// Earliest starts of the claims at the head of the queue, by known ends only.
    pub(super) fn foresee(&mut self, now: Now) {
        for waiting in &mut self.queue {
            waiting.expected = None;
        }
        if self.queue.is_empty() {
            return;
        }
        let ends = self.ends(now);
        // A claim kept by a rule does not start in any of these places.
        let kept = |w: &Waiting| match &w.ask {
            Ask::Claim { id, request, .. } => self.kept_by_rule(*id, request, w.entitled).is_some(),
            Ask::Resize { .. } => true,
        };
        let ruled: Vec<bool> = self.queue.iter().take(FORESEEN).map(|w| kept(w)).collect();
        let mut later = self.ledger.clone();
        for (at, ended) in ends.into_iter().take(FORESEEN) {
            later.remove(ended);
            let round = Round::new(&later);
            for (waiting, ruled) in self.queue.iter_mut().zip(&ruled) {
                let Ask::Claim { id, request, .. } = &waiting.ask else {
                    continue;
                };
                if !*ruled
                    && waiting.expected.is_none()
                    && round.may_fit(&later, request, &[])
                    && let Some(slices) = place::best_fit(&later, request, &[])
                {
                    later.insert(*id, slices);
                    waiting.expected = Some(at);
                }
            }
        }
    }

    /// Earliest start of a waiting claim, by the leases of granted claims.
    #[must_use]
    pub fn expected_start(&self, id: ClaimId) -> Option<Now> {
        self.queue.iter().find(|w| w.asks_for(id))?.expected
    }

    /// Whether a waiting claim is within its owner's guarantee.
    #[must_use]
    pub fn is_entitled(&self, id: ClaimId) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|w| w.asks_for(id) && w.entitled)
    }
}

/// Free room per GPU, cached for one pass over the queue.
#[derive(Debug)]
pub(super) struct Round {
    rooms: Vec<(Bytes, Share)>,
}

impl Round {
    pub(super) fn new(ledger: &Ledger) -> Self {
        let gpus = 0..ledger.gpus().len();
        let rooms = gpus.map(|g| (ledger.mem_free(g), ledger.sm_free(g)));
        Self {
            rooms: rooms.collect(),
        }
    }

    /// Whether a request can start, by totals alone: a cheap test that most waiting claims fail.
    pub(super) fn may_fit(&self, ledger: &Ledger, request: &Request, blocked: &[bool]) -> bool {
        let able = place::open_to(ledger, request).filter(|&g| {
            let (free, sms) = self.rooms[g];
            let facts = &ledger.gpus()[g];
            let needed = || {
                let of = facts.allocatable().unwrap_or_default();
                Ledger::mem_needed(facts, request, of)
            };
            !blocked.get(g).copied().unwrap_or(false)
                && Ledger::sm_needed(facts, request) <= sms
                && needed().is_some_and(|n| n <= free)
        });
        able.count() >= request.gpus as usize
    }
}

#[cfg(test)]
mod rules;
#[cfg(test)]
mod tests;
