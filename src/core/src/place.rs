//! Where a claim goes: the ledger as the search sees it. Direct placement, plans and the reported claimable sizes all
//! use this, so they cannot disagree.

use crate::claim::{Class, ModeWish, Request};
use crate::ledger::{Admission, GpuFacts, Held, Ledger, Sharing, Slice};
use crate::sched::solve::{Board, Item, MAX_GPUS, Mask, Need, Prefer};
use crate::units::Share;

/// GPUs (ledger indices) open to a request: those that the queue decides about or, if these are too few, those that
/// admit every claim.
#[must_use]
pub fn candidates(ledger: &Ledger, request: &Request) -> Vec<usize> {
    open_to(ledger, request).collect()
}

/// [`candidates`] as an iterator.
pub(crate) fn open_to(ledger: &Ledger, request: &Request) -> impl Iterator<Item = usize> {
    let all = ledger.all_queued();
    let of = |by| named(ledger, request).filter(move |g| all || ledger.admission(*g) == by);
    let enough = |by| of(by).count() >= request.gpus.max(1) as usize;
    let passes = !all && !enough(Admission::Queue) && enough(Admission::Pass);
    of(if passes {
        Admission::Pass
    } else {
        Admission::Queue
    })
}

/// GPUs that a request allows by index and mode, whoever decides about them.
pub(crate) fn named(ledger: &Ledger, request: &Request) -> impl Iterator<Item = usize> {
    (0..ledger.gpus().len()).filter(|&g| {
        let named = request.only_gpus.is_empty()
            || u32::try_from(g).is_ok_and(|g| request.only_gpus.contains(&g));
        let shared = |mode: ModeWish| mode.possible(ledger.gpus()[g].sharing);
        named && request.mode.is_none_or(shared)
    })
}

/// Numbers GPUs so that those with equal `looks` have equal numbers.
fn kinds<'l, K: PartialEq>(
    ledger: &'l Ledger,
    looks: impl Fn(usize, &'l GpuFacts) -> K,
) -> Vec<usize> {
    let mut seen: Vec<K> = Vec::new();
    let kind = |(g, facts)| {
        let looks = looks(g, facts);
        seen.iter().position(|s| *s == looks).unwrap_or_else(|| {
            seen.push(looks);
            seen.len() - 1
        })
    };
    ledger.gpus().iter().enumerate().map(kind).collect()
}

/// The first GPUs of a ledger, up to the maximum of the search, and what they have left. No claim on them may leave.
pub(crate) fn board(ledger: &Ledger) -> Board {
    let gpus = ledger.gpus().len().min(MAX_GPUS);
    // An overfull GPU is a kind of its own: claims that come need more there than they hold.
    let mut kind = kinds(ledger, |g, f| {
        let overfull = overfull(ledger, g).then_some(g);
        (&f.model, f.allocatable(), f.sharing, overfull)
    });
    let mut model = kinds(ledger, |_, f| &f.model);
    kind.truncate(gpus);
    model.truncate(gpus);
    let free = |g| Need {
        sm: ledger.sm_free(g).milli(),
        mem: ledger.mem_free(g).0,
    };
    Board {
        kind,
        model,
        free: (0..gpus).map(free).collect(),
        items: Vec::new(),
    }
}

/// What claims hold of a GPU beyond what it has, because facts have changed. A claim that comes needs this too.
pub(crate) fn excess(ledger: &Ledger, g: usize) -> Need {
    let over = |all| Need {
        sm: ledger.sm_requested(g).saturating_sub(Share::ONE).milli(),
        mem: ledger.mem_taken(g).saturating_sub(all).0,
    };
    ledger.gpus()[g].allocatable().map_or(Need::default(), over)
}

/// Whether claims hold more of a GPU than it has.
pub(crate) fn overfull(ledger: &Ledger, g: usize) -> bool {
    excess(ledger, g) != Need::default()
}

/// Whether a GPU accepts new claims.
pub(crate) fn open(ledger: &Ledger, g: usize) -> bool {
    ledger.gpus()[g].healthy && !ledger.is_drained(g)
}

/// Whether claims that run elsewhere may be moved to a GPU.
pub(crate) fn takes_in(ledger: &Ledger, g: usize) -> bool {
    open(ledger, g) && ledger.admission(g) == Admission::Queue
}

/// A claim to be placed; `None` if no GPU suits it. GPUs in `blocked` are promised to others.
pub(crate) fn item(
    ledger: &Ledger,
    board: &Board,
    request: &Request,
    blocked: &[bool],
) -> Option<Item> {
    let kinds = board.kind.iter().max().map_or(0, |k| k + 1);
    let mut needs = vec![Need::NEVER; kinds];
    let mut mask: Mask = 0;
    let known = |g: &usize| *g < board.kind.len();
    for g in open_to(ledger, request).filter(known) {
        let facts = &ledger.gpus()[g];
        let Some(of) = facts.allocatable() else {
            continue;
        };
        let whole = matches!(facts.sharing, Sharing::Exclusive | Sharing::Instance { .. });
        // An MPS claim excludes only other users.
        let mixes = whole || ledger.held_as(request, g).is_some();
        let Some(mem) = Ledger::mem_needed(facts, request, of).filter(|m| m.0 > 0) else {
            continue;
        };
        if !open(ledger, g) || blocked.get(g).copied().unwrap_or(false) || !mixes {
            continue;
        }
        mask |= 1 << g;
        needs[board.kind[g]] = Need {
            sm: match whole {
                true => Share::ONE,
                false => Ledger::sm_needed(facts, request),
            }
            .milli(),
            mem: mem.0,
        }
        .plus(excess(ledger, g));
    }
    (mask != 0 && request.gpus > 0).then_some(Item {
        need: needs,
        parts: request.gpus,
        mask,
        at: Vec::new(),
        move_cost: None,
        drop_cost: None,
    })
}

/// Where a claim starts if nothing is moved, by the same search that makes plans: the tightest fit, or with `spread`
/// the most room to burst, idle GPUs first.
#[must_use]
pub fn choose(
    ledger: &Ledger,
    request: &Request,
    blocked: &[bool],
    spread: bool,
) -> Option<Vec<Slice>> {
    let gpus = ledger.gpus().len().min(MAX_GPUS);
    let mut slices: Vec<Option<Slice>> = vec![None; gpus];
    let named = open_to(ledger, request).take_while(|g| *g < gpus);
    for g in named.filter(|g| !blocked.get(*g).copied().unwrap_or(false)) {
        slices[g] = ledger.fit(request, g);
    }
    // Checked early because most requests find no place at all.
    if slices.iter().flatten().count() < (request.gpus as usize).max(1) {
        return None;
    }
    let board = board(ledger);
    let mut item = item(ledger, &board, request, blocked)?;
    slices
        .iter_mut()
        .enumerate()
        .filter(|(g, _)| item.mask & (1 << g) == 0)
        .for_each(|(_, slice)| *slice = None);
    let fits = |(g, slice): (usize, &Option<Slice>)| slice.as_ref().map(|_| 1 << g);
    item.mask = slices.iter().enumerate().filter_map(fits).sum();
    let prefer = if spread && request.gpus == 1 {
        Prefer::Spread
    } else {
        Prefer::Pack
    };
    let reluctance = |g: usize| {
        let slice = slices[g].as_ref();
        slice.map_or(u64::MAX, |s| reluctance(ledger, request, s))
    };
    let at = board.direct(&item, prefer, reluctance)?;
    at.into_iter().map(|g| slices[g].clone()).collect()
}

/// The tightest fit.
#[must_use]
pub fn best_fit(ledger: &Ledger, request: &Request, blocked: &[bool]) -> Option<Vec<Slice>> {
    choose(ledger, request, blocked, false)
}

/// The largest number of these GPUs that share a model.
#[must_use]
pub fn of_one_model(ledger: &Ledger, gpus: impl IntoIterator<Item = usize>) -> usize {
    let mut count = std::collections::BTreeMap::<&str, usize>::new();
    for g in gpus {
        *count.entry(&ledger.gpus()[g].model).or_default() += 1;
    }
    count.into_values().max().unwrap_or(0)
}

/// Penalty for placing a claim on the GPU of `slice`; 0 is a good match. Claims that can be offloaded and MPS claims
/// stay apart if possible. So do claims of several GPUs and claims that would take turns with them, because a pause on
/// one GPU delays the work on the others. Exclusive GPUs are left to requests for whole GPUs. Then goes the GPU whose
/// memory programs without a claim use least, since nothing limits those, and the smallest suitable instance.
fn reluctance(ledger: &Ledger, request: &Request, slice: &Slice) -> u64 {
    let others = || {
        let all = ledger
            .held()
            .flat_map(|(_, own)| own.iter().map(|s| (s, own.len() > 1)));
        all.filter(|(s, _)| s.gpu == slice.gpu)
    };
    let in_turns =
        |(s, spans): (&Slice, bool)| s.held == Held::Timeslice && (spans || request.gpus > 1);
    let sharing = ledger
        .gpus()
        .get(slice.gpu)
        .map_or(Sharing::Timeslice, |g| g.sharing);
    let kind: u64 = match (sharing, slice.held) {
        (Sharing::Exclusive, _) if request.share < Share::ONE => 2,
        (Sharing::Mps { .. }, _) if request.class == Class::Interactive => 1,
        (_, held) if others().any(|(s, _)| s.held != held) => 1,
        (_, Held::Timeslice) if others().any(in_turns) => 1,
        _ => 0,
    };
    let size = if slice.held == Held::Whole && request.mem.is_none() {
        slice.mem.0 >> 20
    } else {
        0
    };
    let outside = ledger.gpus().get(slice.gpu).map_or(0, GpuFacts::outside);
    (kind << 48) + (outside << 40) + size
}

#[cfg(test)]
mod tests;
