//! What each claim holds on which GPU, and what is left.
//!
//! Invariant of every grant, on each GPU: requested memory plus memory borrowed above requests stays within the
//! allocatable, and requested SMs stay within the whole.

mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use sums::Sums;

use crate::claim::{ClaimId, Class, ModeWish, Request};
use crate::units::{Bytes, Share};

/// How a GPU is shared between claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Claims take turns.
    #[default]
    Timeslice,
    /// Claims run side by side through MPS.
    Mps {
        /// Whether claims of several users may run at the same time.
        multi_user: bool,
    },
    /// One claim has it whole.
    Exclusive,
    /// MPS while all claims on the GPU are batch or inference of one owner, else in turns.
    Auto {
        /// Whether MPS works here, and if so, whether several users can share it.
        mps: Option<bool>,
    },
    /// A MIG instance, which one claim has whole.
    Instance {
        /// Its nominal part of the whole GPU's memory.
        mem: Share,
        /// Its part of the whole GPU's SMs.
        sm: Share,
    },
}

/// The scheduler that decides about claims on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// gshare's own queue.
    #[default]
    Queue,
    /// No scheduler: every claim is admitted and only counted.
    Pass,
    /// Another scheduler. gshare enforces its grants and decides nothing.
    Foreign,
}

/// How one claim holds its part of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// In turns with others.
    #[default]
    Timeslice,
    /// Side by side with others, through MPS.
    Mps,
    /// No other claim is on the GPU.
    Whole,
}

/// What the service knows about a GPU, refreshed each tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// `GPU-...`, the identity.
    pub uuid: String,
    /// Full product name.
    pub model: String,
    /// Bytes that programs can get from the driver: physical total less the driver's own reserve. `None` while the
    /// driver does not answer.
    pub usable: Option<Bytes>,
    /// Held back for safety (and for the desktop on a display GPU).
    pub reserve: Bytes,
    /// Used now by processes outside claims.
    pub unclaimed: Bytes,
    /// The GPU answers and may get new claims.
    pub healthy: bool,
    /// How it is shared.
    pub sharing: Sharing,
}

impl GpuFacts {
    /// What claims can divide now: `usable - reserve - unclaimed`.
    #[must_use]
    pub fn allocatable(&self) -> Option<Bytes> {
        self.usable.map(|u| {
            u.saturating_sub(self.reserve)
                .saturating_sub(self.unclaimed)
        })
    }

    /// What claims could divide if no process outside claims used the GPU.
    #[must_use]
    pub fn capacity(&self) -> Option<Bytes> {
        self.usable.map(|u| u.saturating_sub(self.reserve))
    }

    /// What processes outside claims use of the memory, in twentieths; 0 beside a desktop.
    #[must_use]
    pub fn outside(&self) -> u64 {
        let all = self.capacity().map_or(1, |all| all.0.max(1));
        self.unclaimed.0.min(all) * 20 / all
    }

    /// `mem` as a part of this GPU's memory.
    #[must_use]
    pub fn part(&self, mem: Bytes) -> Share {
        match self.capacity() {
            Some(Bytes(whole)) if whole > 0 => {
                let milli = u128::from(mem.0) * 1000 / u128::from(whole);
                Share::from_milli(u32::try_from(milli).unwrap_or(u32::MAX))
            }
            _ => Share::ZERO,
        }
    }

    /// The part of a whole GPU that this is: for an instance the larger of its parts of memory and SMs.
    #[must_use]
    pub fn of_a_gpu(&self) -> Share {
        match self.sharing {
            Sharing::Instance { mem, sm } => mem.max(sm),
            _ => Share::ONE,
        }
    }
}

/// A claim's part of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the GPU in the ledger.
    pub gpu: usize,
    /// Guaranteed bytes.
    pub mem: Bytes,
    /// Upper limit of the cap, in bytes.
    pub mem_limit: Bytes,
    /// Bytes it may have now: between `mem` and `mem_limit`, depending on what others leave free.
    pub mem_cap: Bytes,
    /// Bytes charged, by the last reading.
    pub charge: Bytes,
    /// Guaranteed SMs.
    pub sm: Share,
    /// Upper limit on SMs.
    pub sm_limit: Share,
    /// User id of the claim's owner.
    pub uid: u32,
    /// How the claim holds it.
    pub held: Held,
}

impl Slice {
    /// Bytes above the guarantee that are in use.
    #[must_use]
    pub fn borrowed(&self) -> Bytes {
        self.charge.saturating_sub(self.mem)
    }
}

/// Device memory is granted in multiples of this: the driver's allocation granularity.
pub const GRANULARITY: u64 = 2 << 20;

/// The ledger. Copies share what they do not change: a decision makes dozens of copies.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    gpus: Arc<[GpuFacts]>,
    /// The most memory that claims can divide on any one GPU.
    largest: Option<Bytes>,
    held: BTreeMap<ClaimId, Arc<[Slice]>>,
    /// Destinations of claims that move. They hold these as well.
    reserved: BTreeMap<ClaimId, Arc<[Slice]>>,
    /// UUIDs of GPUs that take no new claims.
    drained: BTreeSet<String>,
    /// The scheduler that decides about a GPU, by UUID; absent for gshare's queue.
    admission: BTreeMap<String, Admission>,
    /// Memory of processes outside claims that are counted as claims of their own. [`GpuFacts::unclaimed`] includes it.
    uncapped: Vec<(ClaimId, usize, Bytes)>,
    /// Held and reserved totals per GPU, cached: they are read far more often than they change.
    sums: Sums,
}

/// An auto-claim with less than this is not listed as a holder.
const IN_THE_WAY: Bytes = Bytes::mib(64);

impl Ledger {
    #[must_use]
    pub fn gpus(&self) -> &[GpuFacts] {
        &self.gpus
    }

    /// Whether a GPU is of the same kind as `others`, so that what ran on them can run on it.
    #[must_use]
    pub fn alike(&self, gpu: usize, others: &[usize]) -> bool {
        let kind = |g: usize| {
            let facts = self.gpus.get(g)?;
            let divided = matches!(facts.sharing, Sharing::Instance { .. });
            (!divided).then_some((&facts.model, facts.usable))
        };
        kind(gpu).is_some() && others.iter().all(|&o| kind(o) == kind(gpu))
    }

    /// Takes fresh facts. GPUs are matched by position: their number does not change while the service runs.
    pub fn set_gpus(&mut self, gpus: Vec<GpuFacts>) {
        self.largest = gpus.iter().filter_map(GpuFacts::capacity).max();
        self.gpus = gpus.into();
    }

    /// The most memory that claims can divide on any one GPU, if no process outside claims uses it.
    pub(crate) fn largest_gpu(&self) -> Option<Bytes> {
        self.largest
    }

    /// Closes a GPU (by its UUID) to new claims, or opens it again. Claims on it stay.
    pub fn set_drained(&mut self, uuid: &str, drained: bool) {
        if drained {
            self.drained.insert(uuid.to_owned());
        } else {
            self.drained.remove(uuid);
        }
    }

    /// Whether a GPU is closed to new claims.
    #[must_use]
    pub fn is_drained(&self, gpu: usize) -> bool {
        self.gpus
            .get(gpu)
            .is_some_and(|g| self.drained.contains(&g.uuid))
    }

    /// Sets who decides about claims on a GPU (by its UUID). Claims on it stay.
    pub fn set_admission(&mut self, uuid: &str, admission: Admission) {
        match admission {
            Admission::Queue => self.admission.remove(uuid),
            other => self.admission.insert(uuid.to_owned(), other),
        };
    }

    /// The scheduler that decides about claims on a GPU.
    #[must_use]
    pub fn admission(&self, gpu: usize) -> Admission {
        if self.admission.is_empty() {
            return Admission::Queue;
        }
        let by = self.gpus.get(gpu).and_then(|g| self.admission.get(&g.uuid));
        by.copied().unwrap_or_default()
    }

    pub(crate) fn all_queued(&self) -> bool {
        self.admission.is_empty()
    }

    /// Whether the queue decides about the GPUs of all `slices`.
    pub(crate) fn queued(&self, slices: &[Slice]) -> bool {
        slices
            .iter()
            .all(|s| self.admission(s.gpu) == Admission::Queue)
    }

    pub fn held(&self) -> impl Iterator<Item = (ClaimId, &[Slice])> {
        self.held.iter().map(|(id, s)| (*id, &**s))
    }

    /// A claim's slices.
    #[must_use]
    pub fn slices(&self, id: ClaimId) -> Option<&[Slice]> {
        self.held.get(&id).map(|s| &**s)
    }

    /// Enters a claim.
    pub fn insert(&mut self, id: ClaimId, slices: impl Into<Arc<[Slice]>>) {
        let slices = slices.into();
        self.sums.add(&slices);
        let before = self.held.insert(id, slices);
        self.sums.take(before.as_deref());
    }

    /// A copy in which claims hold what they use instead of what they requested.
    pub(crate) fn in_use(&self) -> Self {
        let mut used = self.clone();
        for (id, slices) in &self.held {
            let slices = slices.iter().map(|s| Slice {
                mem: s.charge,
                sm: Share::ZERO,
                ..s.clone()
            });
            used.insert(*id, slices.collect::<Arc<[Slice]>>());
        }
        used
    }

    /// Removes a claim; false if it held nothing.
    pub fn remove(&mut self, id: ClaimId) -> bool {
        self.unreserve(id);
        let before = self.held.remove(&id);
        self.sums.take(before.as_deref());
        before.is_some()
    }

    /// Reserves the destination of a claim, on GPUs that it does not hold.
    pub fn reserve(&mut self, id: ClaimId, slices: Vec<Slice>) {
        self.sums.add(&slices);
        let before = self.reserved.insert(id, slices.into());
        self.sums.take(before.as_deref());
    }

    /// Cancels the reservation of a claim's destination.
    pub fn unreserve(&mut self, id: ClaimId) -> Option<Arc<[Slice]>> {
        let before = self.reserved.remove(&id);
        self.sums.take(before.as_deref());
        before
    }

    /// The reserved destination of a claim.
    #[must_use]
    pub fn reserved(&self, id: ClaimId) -> Option<&[Slice]> {
        self.reserved.get(&id).map(|s| &**s)
    }

    /// Sets what the auto-claims hold.
    pub fn set_uncapped(&mut self, held: Vec<(ClaimId, usize, Bytes)>) {
        self.uncapped = held;
    }

    /// The auto-claims on a GPU, with the bytes that they hold there.
    pub fn uncapped(&self, gpu: usize) -> impl Iterator<Item = (ClaimId, Bytes)> {
        let there = self.uncapped.iter().filter(move |(_, g, _)| *g == gpu);
        there.map(|(id, _, bytes)| (*id, *bytes))
    }

    /// Sets a claim's charge on a GPU, as its pages report it.
    pub fn set_charge(&mut self, id: ClaimId, gpu: usize, charge: Bytes) {
        let held = self.held.get_mut(&id).map(Arc::make_mut);
        for slice in held.into_iter().flatten() {
            if slice.gpu == gpu {
                let before = slice.borrowed();
                slice.charge = charge;
                self.sums.lend(gpu, before, slice.borrowed());
            }
        }
    }

    pub(crate) fn on(&self, gpu: usize) -> impl Iterator<Item = (ClaimId, &Slice)> {
        self.held
            .iter()
            .chain(&self.reserved)
            .flat_map(move |(id, slices)| {
                slices
                    .iter()
                    .filter(move |s| s.gpu == gpu)
                    .map(move |s| (*id, s))
            })
    }

    /// The first claim that is on a GPU here but was not in `before`.
    pub(crate) fn comes(&self, before: &Ledger, gpu: usize) -> Option<ClaimId> {
        let mut now = self.on(gpu).map(|(id, _)| id);
        now.find(|id| before.on(gpu).all(|(there, _)| there != *id))
    }

    /// Owner of the first claim on a GPU. Single-user MPS admits only that user's claims.
    pub(crate) fn first_on(&self, gpu: usize) -> u32 {
        self.on(gpu).next().map_or(0, |(_, s)| s.uid)
    }

    /// Whether no claim holds or has reserved a part of a GPU.
    #[must_use]
    pub fn is_idle(&self, gpu: usize) -> bool {
        self.sums.slices(gpu) == 0
    }

    #[must_use]
    pub fn mem_requested(&self, gpu: usize) -> Bytes {
        self.sums.mem(gpu)
    }

    #[must_use]
    pub fn sm_requested(&self, gpu: usize) -> Share {
        self.sums.sm(gpu)
    }

    /// Bytes that a new claim can be guaranteed on a GPU now: 0 on a drained one, or if another scheduler decides.
    #[must_use]
    pub fn mem_free(&self, gpu: usize) -> Bytes {
        let Some(facts) = self.gpus.get(gpu).filter(|g| g.healthy) else {
            return Bytes::ZERO;
        };
        if self.is_drained(gpu) || self.admission(gpu) == Admission::Foreign {
            return Bytes::ZERO;
        }
        facts
            .allocatable()
            .unwrap_or_default()
            .saturating_sub(self.mem_taken(gpu))
    }

    /// Bytes on a GPU that are requested, or borrowed above requests.
    #[must_use]
    pub fn mem_taken(&self, gpu: usize) -> Bytes {
        self.sums.taken(gpu)
    }

    /// SMs that a new claim can be guaranteed on a GPU now.
    #[must_use]
    pub fn sm_free(&self, gpu: usize) -> Share {
        Share::ONE.saturating_sub(self.sm_requested(gpu))
    }

    /// Claims that hold a part of a GPU, auto-claims last.
    #[must_use]
    pub fn holders(&self, gpu: usize) -> Vec<ClaimId> {
        let uncapped = self.uncapped(gpu);
        let uncapped = uncapped.filter(|(_, bytes)| *bytes >= IN_THE_WAY);
        self.on(gpu)
            .map(|(id, _)| id)
            .chain(uncapped.map(|(id, _)| id))
            .collect()
    }

    /// Bytes that `request` needs on a GPU with `of` bytes to divide.
    pub(crate) fn mem_wanted(request: &Request, of: Bytes) -> Bytes {
        request
            .mem
            .unwrap_or_else(|| of.times(request.share).round_down(GRANULARITY))
    }

    /// Bytes that `request` needs on this GPU. On an instance, a part means a part of the *whole* GPU: an instance of
    /// nominally enough memory gives all of its memory, and a smaller one (`None`) cannot serve it.
    #[must_use]
    pub fn mem_needed(facts: &GpuFacts, request: &Request, of: Bytes) -> Option<Bytes> {
        let Sharing::Instance { mem, sm } = facts.sharing else {
            return Some(Self::mem_wanted(request, of));
        };
        let large_enough = request.gpus == 1
            && request.sm.is_none_or(|wanted| wanted <= sm)
            && (request.mem.is_some() || request.share <= mem);
        large_enough.then(|| request.mem.unwrap_or(of.round_down(GRANULARITY)))
    }

    /// The part of this GPU's SMs that `request` needs. A request for memory alone includes the same part of the SMs,
    /// within the limit, rounded down so that claims which fit by memory also fit by SMs.
    pub(crate) fn sm_needed(facts: &GpuFacts, request: &Request) -> Share {
        request.sm.unwrap_or_else(|| {
            let part = request.mem.map_or(request.share, |mem| facts.part(mem));
            part.max(Share::from_milli(1)).min(request.sm_limit)
        })
    }

    /// How `request` would hold `gpu` beside the claims that are there now; `None` if the GPU's mode forbids it.
    #[must_use]
    pub fn held_as(&self, request: &Request, gpu: usize) -> Option<Held> {
        let sharing = self.gpus.get(gpu)?.sharing;
        let held = self.held_in(sharing, request, gpu)?;
        let wish = request.mode;
        wish.is_none_or(|wish| wish.met(sharing, held))
            .then_some(held)
    }

    fn held_in(&self, sharing: Sharing, request: &Request, gpu: usize) -> Option<Held> {
        let of_one_user = || self.on(gpu).all(|(_, s)| s.uid == request.uid);
        match sharing {
            Sharing::Timeslice => Some(Held::Timeslice),
            Sharing::Exclusive | Sharing::Instance { .. } => {
                self.is_idle(gpu).then_some(Held::Whole)
            }
            Sharing::Mps { multi_user } => (multi_user || of_one_user()).then_some(Held::Mps),
            Sharing::Auto {
                mps: Some(multi_user),
            } if request.class != Class::Interactive
                && request.mode != Some(ModeWish::Timeslice)
                && self.on(gpu).all(|(_, s)| s.held == Held::Mps)
                && (multi_user || of_one_user()) =>
            {
                Some(Held::Mps)
            }
            Sharing::Auto { .. } => Some(Held::Timeslice),
        }
    }

    /// The slice that `request` would get on `gpu`, if it fits there now.
    #[must_use]
    pub fn fit(&self, request: &Request, gpu: usize) -> Option<Slice> {
        let facts = self.gpus.get(gpu)?;
        // Checked first: on a busy machine SMs are what is missing most often.
        if Self::sm_needed(facts, request) > self.sm_free(gpu) {
            return None;
        }
        let held = self.held_as(request, gpu)?;
        let of = facts.allocatable()?;
        let free = self.mem_free(gpu);
        let needed = Self::mem_needed(facts, request, of)?;
        let fits = needed > Bytes::ZERO && needed <= free;
        let whole = held == Held::Whole;
        let mem = if whole {
            free.round_down(GRANULARITY).max(needed)
        } else {
            needed
        };
        fits.then(|| Self::slice(facts, request, (gpu, held), (mem, of)))
    }

    /// The slice of `gpu` that `request` asks for, ignoring other claims and usage; `None` while the GPU does not
    /// answer.
    pub(crate) fn regardless(&self, request: &Request, gpu: usize) -> Option<Slice> {
        let facts = self.gpus.get(gpu)?;
        let whole = matches!(facts.sharing, Sharing::Exclusive | Sharing::Instance { .. });
        let otherwise = if whole { Held::Whole } else { Held::Timeslice };
        let held = self.held_as(request, gpu).unwrap_or(otherwise);
        let of = facts.capacity()?;
        let mem = Self::mem_needed(facts, request, of).filter(|mem| *mem > Bytes::ZERO)?;
        Some(Self::slice(facts, request, (gpu, held), (mem, of)))
    }

    /// A slice of `mem` bytes; parts of a GPU refer to `of` bytes.
    fn slice(
        facts: &GpuFacts,
        request: &Request,
        (gpu, held): (usize, Held),
        (mem, of): (Bytes, Bytes),
    ) -> Slice {
        let part = request.mem_limit_share;
        let most = request
            .mem_limit
            .or_else(|| part.map(|share| of.times(share).round_down(GRANULARITY)));
        let whole = held == Held::Whole;
        Slice {
            gpu,
            mem,
            mem_limit: if whole {
                mem
            } else {
                // A limit above the GPU's size limits nothing.
                let all = facts.capacity().unwrap_or(mem);
                most.unwrap_or(mem).min(all).max(mem)
            },
            mem_cap: mem,
            charge: Bytes::ZERO,
            sm: match whole {
                true => Share::ONE,
                false => Self::sm_needed(facts, request),
            },
            sm_limit: if whole { Share::ONE } else { request.sm_limit },
            uid: request.uid,
            held,
        }
    }

    /// Whether `request` could ever run on `gpu`, alone and without use outside claims.
    #[must_use]
    pub fn could_ever_fit(&self, request: &Request, gpu: usize) -> bool {
        let fits = |facts: &GpuFacts| {
            let cap = facts.capacity()?;
            let want = Self::mem_needed(facts, request, cap)?;
            Some(want > Bytes::ZERO && want <= cap)
        };
        self.gpus.get(gpu).and_then(fits).unwrap_or(false)
    }

    /// Largest share, in hundredths of a GPU, that fits on `gpu` now, as [`Self::fit`] decides.
    #[must_use]
    pub fn claimable(&self, gpu: usize) -> Share {
        let first = self.first_on(gpu);
        self.largest(gpu, |share| {
            self.fit(&Request::anybody(share, first), gpu).is_some()
        })
    }

    /// Largest share of `gpu` for which `fits` holds. `fits` must be monotonic: if it holds for a share, it holds for
    /// every smaller share.
    pub(crate) fn largest(&self, gpu: usize, fits: impl Fn(Share) -> bool) -> Share {
        match self.gpus.get(gpu).map(|g| g.sharing) {
            // One claim gets the whole instance, if it asks for no more than the instance's nominal part of a GPU.
            Some(Sharing::Instance { mem, sm }) => {
                Some(mem.min(sm)).filter(|s| fits(*s)).unwrap_or_default()
            }
            _ => largest_part(fits),
        }
    }

    /// Lowers caps to the guarantee, so that no charge can grow above it: charges read after the pages have these caps
    /// are upper bounds. Returns the slices that changed.
    pub fn freeze_caps(&mut self) -> Vec<(ClaimId, Slice)> {
        let caps = self
            .held()
            .flat_map(|(id, s)| s.iter().map(move |s| ((id, s.gpu), s.mem)))
            .collect();
        self.apply_caps(&caps)
    }

    /// Lowers a claim's caps to its limits in `target`. Returns the slices that changed.
    pub fn lower_caps(&mut self, id: ClaimId, target: &[Slice]) -> Vec<(ClaimId, Slice)> {
        let mut changed = Vec::new();
        let held = self.held.get_mut(&id).map(Arc::make_mut);
        for slice in held.into_iter().flatten() {
            let most = target.iter().find(|t| t.gpu == slice.gpu);
            if let Some(most) = most.map(|t| t.mem_limit).filter(|m| *m < slice.mem_cap) {
                slice.mem_cap = most;
                changed.push((id, slice.clone()));
            }
        }
        changed
    }

    /// Sets every cap to the guarantee plus what is borrowed already, plus (while `lend`) an equal part of what is
    /// left, up to the limit. The sum of the caps stays within the allocatable as long as the charges known here do.
    /// Returns the slices that changed.
    pub fn lend_caps(&mut self, lend: bool) -> Vec<(ClaimId, Slice)> {
        let caps = self.lent_caps(lend);
        self.apply_caps(&caps)
    }

    /// Whether [`Self::lend_caps`] would lower any cap, which needs a freeze first.
    #[must_use]
    pub fn lending_lowers(&self) -> bool {
        let caps = self.lent_caps(true);
        self.held().any(|(id, slices)| {
            slices
                .iter()
                .any(|s| caps.get(&(id, s.gpu)).is_some_and(|cap| *cap < s.mem_cap))
        })
    }

    fn lent_caps(&self, lend: bool) -> Caps {
        if !lend {
            let own = |s: &Slice| s.mem.saturating_add(s.borrowed()).min(s.mem_limit);
            let all = self.held().flat_map(|(id, slices)| {
                let known = slices.iter().filter(|s| s.gpu < self.gpus.len());
                known.map(move |s| ((id, s.gpu), own(s)))
            });
            return all.collect();
        }
        let mut on: Vec<Vec<(ClaimId, &Slice)>> = vec![Vec::new(); self.gpus.len()];
        for (id, slices) in self.held.iter().chain(&self.reserved) {
            for slice in slices.iter().filter(|s| s.gpu < self.gpus.len()) {
                on[slice.gpu].push((*id, slice));
            }
        }
        let mut caps = BTreeMap::new();
        for (gpu, on) in on.into_iter().enumerate() {
            let mut spare = self.gpus[gpu]
                .allocatable()
                .unwrap_or_default()
                .saturating_sub(self.mem_requested(gpu));
            let wants = on
                .iter()
                .map(|(id, s)| (*id, s.mem_limit.saturating_sub(s.mem)));
            let mut wants: Vec<(ClaimId, Bytes)> = wants.collect();
            let borrowed: BTreeMap<ClaimId, Bytes> =
                on.iter().map(|(id, s)| (*id, s.borrowed())).collect();
            let mut extra: BTreeMap<ClaimId, Bytes>;
            // A claim that borrows more than an equal part keeps it; the others divide the rest.
            loop {
                extra = water_fill(spare, &wants);
                let over = wants
                    .iter()
                    .position(|(id, _)| borrowed[id] > extra.get(id).copied().unwrap_or_default());
                let Some(over) = over else { break };
                let (id, _) = wants.swap_remove(over);
                spare = spare.saturating_sub(borrowed[&id]);
                caps.insert((id, gpu), borrowed[&id]);
            }
            caps.extend(
                wants
                    .iter()
                    .map(|(id, _)| ((*id, gpu), extra.get(id).copied().unwrap_or_default())),
            );
            for (id, s) in on {
                let cap = caps.entry((id, gpu)).or_default();
                *cap = s.mem.saturating_add(*cap).min(s.mem_limit);
            }
        }
        caps
    }

    fn apply_caps(&mut self, caps: &Caps) -> Vec<(ClaimId, Slice)> {
        let mut changed = Vec::new();
        for (id, slices) in &mut self.held {
            for slice in Arc::make_mut(slices) {
                let cap = caps.get(&(*id, slice.gpu)).copied().unwrap_or(slice.mem);
                if cap != slice.mem_cap {
                    slice.mem_cap = cap;
                    changed.push((*id, slice.clone()));
                }
            }
        }
        changed
    }
}

/// The largest share in hundredths of a GPU for which `fits` holds: of smaller ones it holds too.
pub(crate) fn largest_part(fits: impl Fn(Share) -> bool) -> Share {
    let part = |hundredths: u32| Share::from_milli(hundredths * 10);
    // On a machine in use there is mostly nothing.
    if !fits(part(1)) {
        return Share::ZERO;
    }
    let (mut low, mut high) = (1, 100);
    while low < high {
        let middle = u32::midpoint(low, high + 1);
        if fits(part(middle)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    part(low)
}

/// Caps by claim and GPU.
type Caps = BTreeMap<(ClaimId, usize), Bytes>;

/// Divides `spare` equally among `wants`, none getting more than it wants, in steps of the granularity.
fn water_fill(spare: Bytes, wants: &[(ClaimId, Bytes)]) -> BTreeMap<ClaimId, Bytes> {
    let mut order: Vec<_> = wants.iter().filter(|(_, w)| *w > Bytes::ZERO).collect();
    order.sort_by_key(|(_, want)| *want);
    let mut left = spare;
    let mut out = BTreeMap::new();
    for (i, (id, want)) in order.iter().enumerate() {
        let rest = (order.len() - i) as u64;
        let give = Bytes(left.0 / rest).round_down(GRANULARITY).min(*want);
        left = left.saturating_sub(give);
        out.insert(*id, give);
    }
    out
}

#[cfg(test)]
mod tests;
