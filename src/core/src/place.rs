//! Where a claim goes: the ledger as the search sees it. Direct placement, plans and what is told to be claimable
//! all start from here, so that they cannot disagree.

use crate::claim::{Class, ModeWish, Request};
use crate::ledger::{Admission, GpuFacts, Held, Ledger, Sharing, Slice};
use crate::sched::solve::{Board, Item, MAX_GPUS, Mask, Need, Prefer};
use crate::units::Share;

/// GPUs (ledger indices) on which a request may run at all.
#[must_use]
pub fn candidates(ledger: &Ledger, request: &Request) -> Vec<usize> {
    open_to(ledger, request).collect()
}

/// The same, one by one: those about which the queue decides, or, where these are too few for it, those that let in
/// everybody.
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

/// GPUs on which a request may run, whatever decides about them.
pub(crate) fn named(ledger: &Ledger, request: &Request) -> impl Iterator<Item = usize> {
    (0..ledger.gpus().len()).filter(|&g| {
        let named = request.only_gpus.is_empty()
            || u32::try_from(g).is_ok_and(|g| request.only_gpus.contains(&g));
        let shared = |mode: ModeWish| mode.possible(ledger.gpus()[g].sharing);
        named && request.mode.is_none_or(shared)
    })
}

/// GPUs that look the same to a request are of one kind: of these each has its own part, so sizes tell.
fn kinds<'l, K: PartialEq>(ledger: &'l Ledger, looks: impl Fn(&'l GpuFacts) -> K) -> Vec<usize> {
    let mut seen: Vec<K> = Vec::new();
    let kind = |facts| {
        let looks = looks(facts);
        seen.iter().position(|s| *s == looks).unwrap_or_else(|| {
            seen.push(looks);
            seen.len() - 1
        })
    };
    ledger.gpus().iter().map(kind).collect()
}

/// The GPUs of a ledger and what they have left, as the search sees them: the first of them if there are more than
/// it can tell apart. Nobody on them may leave.
pub(crate) fn board(ledger: &Ledger) -> Board {
    let gpus = ledger.gpus().len().min(MAX_GPUS);
    let mut kind = kinds(ledger, |f| (&f.model, f.allocatable(), f.sharing));
    let mut model = kinds(ledger, |f| &f.model);
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

/// Whether a GPU takes anybody.
pub(crate) fn open(ledger: &Ledger, g: usize) -> bool {
    ledger.gpus()[g].healthy && !ledger.is_drained(g)
}

/// Whether claims that run elsewhere may be sent to a GPU.
pub(crate) fn takes_in(ledger: &Ledger, g: usize) -> bool {
    open(ledger, g) && ledger.admission(g) == Admission::Queue
}

/// A claim that is to be placed; `None` where it can be nowhere. GPUs in `blocked` are promised to others.
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
        // A claim shared through MPS is in nobody's way but that of other users.
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
        };
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

/// Where a claim starts without anybody being moved, by the search that also makes plans: where it is packed best,
/// or (`spread`) where it has most room to burst, idle GPUs first.
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
    // Most find no place at all.
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

/// The same, packed.
#[must_use]
pub fn best_fit(ledger: &Ledger, request: &Request, blocked: &[bool]) -> Option<Vec<Slice>> {
    choose(ledger, request, blocked, false)
}

/// The most of these GPUs that are of one model.
#[must_use]
pub fn of_one_model(ledger: &Ledger, gpus: impl IntoIterator<Item = usize>) -> usize {
    let mut count = std::collections::BTreeMap::<&str, usize>::new();
    for g in gpus {
        *count.entry(&ledger.gpus()[g].model).or_default() += 1;
    }
    count.into_values().max().unwrap_or(0)
}

/// How little a claim belongs on the GPU of `slice`, 0 for not at all badly: claims that can be offloaded and
/// claims that run through MPS are kept apart where that is possible, and so are claims of several GPUs and those with
/// which they would take turns, because a pause on one of its GPUs holds up a claim's work on the others. A GPU that only
/// one claim can have is left to those who ask for a whole one. Of instances the smallest goes first.
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
    (kind << 48) + size
}

#[cfg(test)]
mod tests;
