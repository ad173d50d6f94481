//! The order of service of claims that wait, and what each of them keeps from those that come later.
//!
//! First come claims that are *due* (they have waited for long), then entitled ones: those that fit beside what
//! their owner holds into what he is guaranteed (of those last who come back with more memory than they asked for).
//! Among the same standing goes the class of higher priority, then the claim that has had the least itself (by
//! levels; nothing while it has not run), then the owner who has had the least of the machine lately, then the one
//! who asked first. A claim that cannot start keeps others from starting where that would delay it: a due or
//! entitled one on every GPU it could use, another on those alone where it lacks the least. A later claim whose
//! lease ends before the earlier one could start is in nobody's way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Ask, Machine, Now, Waiting};
use crate::claim::{ClaimId, Class, Request};
use crate::class::Rules;
use crate::ledger::{GpuFacts, Ledger};
use crate::place;
use crate::sched::fair::{History, Party, guarantees, level};
use crate::units::{Bytes, Share};

/// Who has waited for longer comes first whatever his standing, so that nobody waits for ever.
pub const DUE: Duration = Duration::from_secs(4 * 3600);
/// What was held while nobody waited counts for this part: it cost nobody anything.
const IDLE_WEIGHT: f64 = 0.5;
/// For so many of the first in the queue the reason and the earliest start are worked out at every decision.
pub(super) const FORESEEN: usize = 16;

/// Shares of the machine in the past, by owner.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    by_owner: BTreeMap<u32, History>,
    at: Now,
}

/// A claim that waits.
struct Asks {
    /// Its place in the queue.
    place: usize,
    seq: u64,
    owner: Owner,
    /// GPUs that it wants.
    size: f64,
}

/// From whose guarantee claims are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// A user without an entry of his own: an equal part of what entries leave.
    User(u32),
    /// A user, group or project with an entry, by its number.
    Entry(usize),
}

/// Of claims that come one after the other those that hold and have no place in what is guaranteed.
fn above(claims: &[(u64, Option<ClaimId>, f64)], most: f64) -> Vec<ClaimId> {
    let mut sum = 0.0;
    let mut above = Vec::new();
    for (_, id, size) in claims {
        if sum + size <= most + 1e-9 {
            sum += size;
        } else {
            above.extend(id);
        }
    }
    above
}

/// Parts of a GPU that a request is: the larger of its parts of memory and SMs, times its GPUs.
fn size(most: Option<Bytes>, request: &Request) -> f64 {
    let memory = match (request.mem, most) {
        (Some(Bytes(mem)), Some(Bytes(most))) if most > 0 => mem as f64 / most as f64,
        (Some(_), _) => 0.0,
        (None, _) => request.share.as_f64(),
    };
    memory.max(request.sm.as_f64()) * f64::from(request.gpus)
}

fn largest(ledger: &Ledger) -> Option<Bytes> {
    ledger.gpus().iter().filter_map(GpuFacts::capacity).max()
}

impl Past {
    /// The time of the last event.
    pub(super) fn at(&self) -> Now {
        self.at
    }

    /// What owners have had, each as of the time beside it.
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
    /// Whether the owner of a claim that is held has more than he is guaranteed.
    pub(super) fn borrows(&self, id: ClaimId) -> bool {
        let slice = self.ledger.slices(id).and_then(|s| s.first());
        let Some(owner) = slice.map(|s| self.owner(id, s.uid)) else {
            return false;
        };
        let of = |gpus: BTreeMap<Owner, f64>| gpus.get(&owner).copied().unwrap_or(0.0);
        let sure = self.guaranteed(&self.asks());
        of(self.held_by(|id, uid| self.owner(id, uid))) > of(sure) + 1e-9
    }

    /// From whose guarantee a claim is served.
    fn owner(&self, id: ClaimId, uid: u32) -> Owner {
        match self.quotas.guarantee(id) {
            Some((entry, Some(_), _)) => Owner::Entry(entry),
            _ => Owner::User(uid),
        }
    }

    /// GPUs held now, by owner.
    pub(super) fn held_by<K: Ord>(&self, of: impl Fn(ClaimId, u32) -> K) -> BTreeMap<K, f64> {
        let mut held: BTreeMap<K, f64> = BTreeMap::new();
        for (id, slices) in self.ledger.held() {
            for slice in slices {
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

    /// Adds what was held since the last call to the owners' past.
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
        for (id, gpus) in self.held_by(|id, _| id) {
            if let Some(granted) = self.reclaim.granted.get_mut(&id) {
                granted.attained_s += gpus * passed;
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
        // Who holds a part of a GPU has less than that in the first second.
        let counts = |uid: &u32, h: &History| held.contains_key(uid) || h.gpu_seconds() > 1.0;
        self.past.by_owner.retain(|uid, h| counts(uid, h));
        self.past.at = now;
    }

    /// GPU-seconds that an owner has had lately, forgotten by halves.
    #[must_use]
    pub fn past(&self, uid: u32) -> f64 {
        let history = self.past.by_owner.get(&uid);
        history.map_or(0.0, History::gpu_seconds)
    }

    /// Remembers what an owner had before this machine was started.
    pub(super) fn remember(&mut self, uid: u32, gpu_seconds: u64) {
        let history = self.past.by_owner.entry(uid).or_default();
        history.add(gpu_seconds as f64);
    }

    /// Who waits for how much, in the order in which they asked. Who waits for an hour asks for nothing yet.
    fn asks(&self) -> Vec<Asks> {
        let most = largest(&self.ledger);
        let queue = self.queue.iter().enumerate();
        let mut asks: Vec<Asks> = queue
            .filter_map(|(place, waiting)| match &waiting.ask {
                Ask::Claim { id, request, .. } if !self.waits_for_hours(*id, request) => {
                    Some(Asks {
                        place,
                        seq: waiting.seq,
                        owner: self.owner(*id, request.uid),
                        size: size(most, request),
                    })
                }
                _ => None,
            })
            .collect();
        asks.sort_unstable_by_key(|a| (a.seq, a.place));
        asks
    }

    /// GPUs that each owner is guaranteed now: what an administrator has said, and equal parts of the rest for
    /// the others who hold or wait. What is guaranteed to somebody who wants nothing now is not kept free.
    fn guaranteed(&self, asks: &[Asks]) -> BTreeMap<Owner, f64> {
        let mut demand = self.held_by(|id, uid| self.owner(id, uid));
        for ask in asks {
            *demand.entry(ask.owner).or_default() += ask.size;
        }
        let quota = |owner: &Owner| match owner {
            Owner::User(_) => None,
            Owner::Entry(entry) => self.quotas.guaranteed(*entry).map(Share::as_f64),
        };
        let parties: Vec<Party> = demand
            .iter()
            .map(|(owner, demand)| Party {
                quota: quota(owner),
                weight: 1.0,
                max: None,
                demand: *demand,
            })
            .collect();
        let able = |g: &&GpuFacts| g.healthy && g.allocatable().is_some();
        let able = self.ledger.gpus().iter().filter(able);
        let gpus = able.map(|g| g.of_a_gpu().as_f64()).sum();
        demand.into_keys().zip(guarantees(gpus, &parties)).collect()
    }

    /// What each owner's claims hold, in the order in which they were asked for.
    fn held_in_order(&self) -> BTreeMap<Owner, Vec<(u64, ClaimId, f64)>> {
        let mut held: BTreeMap<Owner, Vec<(u64, ClaimId, f64)>> = BTreeMap::new();
        for ((id, uid), size) in self.held_by(|id, uid| (id, uid)) {
            let seq = self.reclaim.granted.get(&id).map_or(0, |g| g.seq);
            let own = held.entry(self.owner(id, uid)).or_default();
            own.push((seq, id, size));
        }
        for own in held.values_mut() {
            own.sort_unstable_by_key(|(seq, id, _)| (*seq, *id));
        }
        held
    }

    /// Says anew who borrows.
    pub(super) fn borrowers_now(&mut self) {
        let asks = self.asks();
        let sure = self.guaranteed(&asks);
        self.find_borrowers(&asks, &sure, &self.held_in_order());
    }

    /// Of each owner's claims that are held, those are above what he is guaranteed for which there is no place in
    /// it beside those that he asked for before, whether these hold or wait. Where nothing can be taken from one of
    /// them, such claims fill his guarantee first, and others of his are above it.
    fn find_borrowers(
        &mut self,
        asks: &[Asks],
        sure: &BTreeMap<Owner, f64>,
        held: &BTreeMap<Owner, Vec<(u64, ClaimId, f64)>>,
    ) {
        let mut waits: BTreeMap<Owner, Vec<(u64, f64)>> = BTreeMap::new();
        for ask in asks {
            waits
                .entry(ask.owner)
                .or_default()
                .push((ask.seq, ask.size));
        }
        let mut borrowers = BTreeSet::new();
        for (owner, held) in held {
            let most = sure.get(owner).copied().unwrap_or(0.0);
            let held = held.iter().map(|&(seq, id, size)| (seq, Some(id), size));
            let waits = waits.remove(owner).unwrap_or_default().into_iter();
            let mut all: Vec<_> = held
                .chain(waits.map(|(seq, size)| (seq, None, size)))
                .collect();
            all.sort_by_key(|(seq, id, _)| (*seq, *id));
            let mut above = above(&all, most);
            if above.iter().any(|id| self.is_fixed(*id)) {
                let fixed = |id: &Option<ClaimId>| id.is_some_and(|id| self.is_fixed(id));
                // The order is kept among each of both.
                all.sort_by_cached_key(|(_, id, _)| !fixed(id));
                // A part of the SMs may be asked of it all the same.
                above.retain(|id| self.is_fixed(*id));
                above.extend(self::above(&all, most));
            }
            borrowers.extend(above);
        }
        self.reclaim.borrowers = borrowers;
    }

    /// Level of what a claim has had itself.
    pub(super) fn level_of(&self, id: ClaimId) -> u8 {
        let granted = self.reclaim.granted.get(&id);
        granted.map_or(0, |g| level(g.attained_s))
    }

    /// Puts the queue in the order of service.
    pub(super) fn order(&mut self, now: Now) {
        let asks = self.asks();
        let sure = self.guaranteed(&asks);
        let held = self.held_in_order();
        self.find_borrowers(&asks, &sure, &held);
        let mut queue = std::mem::take(&mut self.queue);
        for waiting in &mut queue {
            waiting.due = now.saturating_sub(waiting.since) >= DUE;
            waiting.entitled = false;
            if let Ask::Resize { .. } = &waiting.ask {
                // A wish to grow overtakes nobody by its owner's guarantee, only by what he has had lately.
                waiting.had = self.had_by_wish(&waiting.ask);
                waiting.priority = Rules::of(Class::Batch).priority;
            }
        }
        let mut asked: BTreeMap<Owner, f64> = BTreeMap::new();
        for Asks {
            place, owner, size, ..
        } in asks
        {
            let waiting = &mut queue[place];
            let Ask::Claim { id, request, .. } = &waiting.ask else {
                continue;
            };
            waiting.priority = self.rules_of(request.class).priority;
            waiting.level = self.level_of(*id);
            waiting.had = self.had(*id, request.uid);
            let sure = sure.get(&owner).copied().unwrap_or(0.0);
            // Nobody is overtaken by later claims of his own, unless he asks for more than he is guaranteed: what
            // was asked for later does not count against this one, though it may have been let past.
            // One that comes back made room in the place of those that cannot.
            let back = self.reclaim.parked.get(id);
            let counts = |seq: u64, id| seq < waiting.seq || (back.is_some() && self.is_fixed(id));
            let own = held.get(&owner).into_iter().flatten();
            let held: f64 = own
                .filter(|(seq, id, _)| counts(*seq, *id))
                .map(|(.., size)| size)
                .sum();
            let asked = asked.entry(owner).or_default();
            // Or it would come before the one for whom it had to go.
            waiting.over =
                back.is_some_and(|p| p.slices.iter().any(|s| s.borrowed() > Bytes::ZERO));
            waiting.entitled = held + *asked + size <= sure + 1e-9;
            if size <= sure + 1e-9 {
                *asked += size;
            }
        }
        let first = std::cmp::Reverse::<u16>;
        // Most are in this order since the last time.
        queue.sort_by_cached_key(|w| {
            (
                !w.due,
                !w.entitled,
                w.over,
                first(w.priority),
                w.level,
                w.had,
                w.seq,
            )
        });
        self.queue = queue;
    }

    /// How much of the machine the owner of a claim has had lately, by his weight: GPU-minutes.
    fn had(&self, id: ClaimId, uid: u32) -> u64 {
        let guarantee = self.quotas.guarantee(id);
        let weight = guarantee.map_or(1000, |(_, _, w)| w.max(1));
        (self.past(uid) * 1000.0 / f64::from(weight) / 60.0) as u64
    }

    /// The same of the owner whose claim is to be resized.
    fn had_by_wish(&self, ask: &Ask) -> u64 {
        let Ask::Resize { id, .. } = ask else {
            return 0;
        };
        let slice = self.ledger.slices(*id).and_then(|s| s.first());
        slice.map_or(0, |s| self.had(*id, s.uid))
    }

    /// What a claim that cannot start keeps from later ones.
    pub(super) fn hold_back(&self, now: Now, waiting: &mut Waiting, round: &mut Round) {
        let all = waiting.due || waiting.entitled || waiting.by_rule();
        waiting.blocks = match &waiting.ask {
            Ask::Claim { request, .. } if !all => self.nearest(request, round),
            _ => waiting.gpus(&self.ledger),
        };
        round.keep(now, waiting);
    }

    /// When the first in the queue could start at the earliest: when leases have ended, and those ahead have
    /// started. Nothing is said where that needs claims to end of which nobody knows when.
    pub(super) fn foresee(&mut self, now: Now) {
        for waiting in &mut self.queue {
            waiting.expected = None;
        }
        if (self.leases.is_empty() && self.over.is_empty()) || self.queue.is_empty() {
            return;
        }
        let leases = self.leases.iter().map(|(id, at)| (*at, *id));
        let over = self.over.iter().map(|id| (now, *id));
        let mut ends: Vec<(Now, ClaimId)> = leases.chain(over).collect();
        ends.sort_unstable();
        // Whom a rule keeps starts in none of these places.
        let kept = |w: &Waiting| match &w.ask {
            Ask::Claim { id, request, .. } => self.kept_by_rule(*id, request, w.entitled).is_some(),
            Ask::Resize { .. } => false,
        };
        let ruled: Vec<bool> = self.queue.iter().take(FORESEEN).map(|w| kept(w)).collect();
        let mut later = self.ledger.clone();
        for (at, ended) in ends.into_iter().take(FORESEEN) {
            later.remove(ended);
            let round = Round::new(&later);
            // Who comes later starts in no place that an earlier one waits for, here as when it is decided.
            let mut kept = vec![false; later.gpus().len()];
            for (waiting, ruled) in self.queue.iter_mut().zip(&ruled) {
                let Ask::Claim { id, request, .. } = &waiting.ask else {
                    continue;
                };
                if *ruled || waiting.expected.is_some() {
                    continue;
                }
                if round.may_fit(&later, request, &kept)
                    && let Some(slices) = place::best_fit(&later, request, &kept)
                {
                    later.insert(*id, slices);
                    waiting.expected = Some(at.max(now));
                    continue;
                }
                for &g in &waiting.blocks {
                    kept[g] = true;
                }
            }
        }
    }

    /// When a waiting claim could start at the earliest, by the leases of those who hold.
    #[must_use]
    pub fn expected_start(&self, id: ClaimId) -> Option<Now> {
        self.queue.iter().find(|w| w.asks_for(id))?.expected
    }

    /// Whether a waiting claim is within what its owner is guaranteed.
    #[must_use]
    pub fn is_entitled(&self, id: ClaimId) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|w| w.asks_for(id) && w.entitled)
    }
}

impl Machine {
    /// The GPUs on which a request lacks the least, as many as it wants.
    fn nearest(&self, request: &Request, round: &mut Round) -> Vec<usize> {
        if !request.only_gpus.is_empty() || request.mode.is_some() {
            return self.near(request, round);
        }
        let shape = (request.gpus, request.share, request.sm, request.mem);
        if let Some(known) = round.near.get(&shape) {
            return known.clone();
        }
        let found = self.near(request, round);
        round.near.insert(shape, found.clone());
        found
    }

    fn near(&self, request: &Request, round: &Round) -> Vec<usize> {
        let ledger = &self.ledger;
        let lacks = |g: usize| {
            let of = ledger.gpus()[g].allocatable().unwrap_or_default();
            let (free, sms) = round.rooms[g];
            let mem = Ledger::mem_wanted(request, of).saturating_sub(free);
            let sm = request.sm.saturating_sub(sms);
            let part = if of == Bytes::ZERO {
                Share::ONE.milli()
            } else {
                // In MiB: what is lacking is of a GPU, and the product stays narrow.
                let part = (mem.0 >> 20).saturating_mul(1000) / (of.0 >> 20).max(1);
                u32::try_from(part).unwrap_or(u32::MAX)
            };
            (part.max(sm.milli()), g)
        };
        let able = place::open_to(ledger, request)
            .filter(|&g| ledger.gpus()[g].healthy && ledger.could_ever_fit(request, g));
        let count = request.gpus as usize;
        if count == 1 {
            return able.min_by_key(|&g| lacks(g)).into_iter().collect();
        }
        let mut able: Vec<usize> = able.collect();
        able.sort_by_cached_key(|&g| lacks(g));
        let kind = |g: usize| ledger.gpus()[g].model.as_str();
        // Of one model: the one where it lacks the least of those with enough GPUs.
        let enough = |k: &str| able.iter().filter(|g| kind(**g) == k).count() >= count;
        if let Some(model) = able.iter().map(|&g| kind(g)).find(|k| enough(k)) {
            able.retain(|g| kind(*g) == model);
        }
        able.truncate(count);
        able
    }
}

/// One walk through the queue: what is free, and what is kept for those that came before. Without it each
/// waiting claim would add up all that is held anew.
#[derive(Debug)]
pub(super) struct Round {
    rooms: Vec<(Bytes, Share)>,
    kept: Vec<Kept>,
    /// Where claims of some sizes lack the least.
    near: BTreeMap<Shape, Vec<usize>>,
}

/// What is kept of a GPU for those who came before.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    /// For somebody of whom it is not known when he starts.
    unforeseen: bool,
    /// When the others start at the earliest: the first and the last of them.
    foreseen: Option<(Now, Now)>,
}

impl Kept {
    /// Whether somebody who has gone by then is in nobody's way.
    fn lets_past(self, gone: Option<Now>) -> bool {
        match (self.unforeseen, self.foreseen) {
            (true, _) => false,
            (_, None) => true,
            (_, Some((first, _))) => gone.is_some_and(|gone| gone <= first),
        }
    }
}

/// Size of a claim that may run anywhere: GPUs, parts of memory and SMs, bytes.
type Shape = (u32, Share, Share, Option<Bytes>);

impl Round {
    pub(super) fn new(ledger: &Ledger) -> Self {
        let mut round = Self {
            rooms: Vec::new(),
            kept: vec![Kept::default(); ledger.gpus().len()],
            near: BTreeMap::new(),
        };
        round.look(ledger);
        round
    }

    /// Somebody has started: looks again at what is free.
    pub(super) fn look(&mut self, ledger: &Ledger) {
        let gpus = 0..ledger.gpus().len();
        self.rooms = gpus
            .map(|g| (ledger.mem_free(g), ledger.sm_free(g)))
            .collect();
        self.near.clear();
    }

    /// Keeps what a waiting claim keeps.
    pub(super) fn keep(&mut self, now: Now, waiting: &Waiting) {
        let gone = match &waiting.ask {
            Ask::Claim { request, .. } => request.lease.map(|l| now.saturating_add(l)),
            Ask::Resize { .. } => Some(Now::ZERO),
        };
        for &g in &waiting.blocks {
            let Some(kept) = self.kept.get_mut(g) else {
                continue;
            };
            // Of which nobody knows when it starts starts nowhere before those who are ahead of it there, unless it would
            // be let past them itself.
            let ahead = kept.foreseen.map(|(_, last)| last);
            let behind = ahead.filter(|start| gone.is_none_or(|gone| gone > *start));
            match waiting.expected.or(behind) {
                None => kept.unforeseen = true,
                Some(start) => {
                    let (first, last) = kept.foreseen.unwrap_or((start, start));
                    kept.foreseen = Some((first.min(start), last.max(start)));
                }
            }
        }
    }

    /// GPUs that are kept from a request.
    pub(super) fn blocked(&self, now: Now, request: &Request) -> Vec<bool> {
        let gone = request.lease.map(|l| now.saturating_add(l));
        let kept = self.kept.iter();
        kept.map(|kept| !kept.lets_past(gone)).collect()
    }

    /// Whether a request could start, by sums alone: most that wait could not.
    pub(super) fn may_fit(&self, ledger: &Ledger, request: &Request, blocked: &[bool]) -> bool {
        let able = place::open_to(ledger, request).filter(|&g| {
            let (free, sms) = self.rooms[g];
            let needed = || {
                let facts = &ledger.gpus()[g];
                let of = facts.allocatable().unwrap_or_default();
                Ledger::mem_needed(facts, request, of)
            };
            !blocked[g] && request.sm <= sms && needed().is_some_and(|n| n <= free)
        });
        able.count() >= request.gpus as usize
    }
}

#[cfg(test)]
mod rules;
#[cfg(test)]
mod tests;
