//! Where a claim goes. First cut: best fit. The exact search of the real scheduler takes this seam.

use crate::claim::{Class, ModeWish, Request};
use crate::ledger::{Held, Ledger, Sharing, Slice};
use crate::units::{Bytes, Share};

/// GPUs (ledger indices) on which a request may run at all.
#[must_use]
pub fn candidates(ledger: &Ledger, request: &Request) -> Vec<usize> {
    (0..ledger.gpus().len())
        .filter(|&g| {
            let named = request.only_gpus.is_empty()
                || u32::try_from(g).is_ok_and(|g| request.only_gpus.contains(&g));
            let shared = |mode: ModeWish| mode.possible(ledger.gpus()[g].sharing);
            named && request.mode.is_none_or(shared)
        })
        .collect()
}

/// Where a claim starts: where it is packed best, or (`spread`) where it has most room to burst, idle GPUs first.
#[must_use]
pub fn choose(
    ledger: &Ledger,
    request: &Request,
    blocked: &[bool],
    spread: bool,
) -> Option<Vec<Slice>> {
    if !spread || request.gpus != 1 {
        return best_fit(ledger, request, blocked);
    }
    let open = candidates(ledger, request).into_iter();
    open.filter(|&g| !blocked.get(g).copied().unwrap_or(false))
        .filter_map(|g| ledger.fit(request, g))
        .min_by_key(|s| {
            (
                reluctance(ledger, request, s),
                ledger.sm_requested(s.gpu),
                spare(ledger, request, s),
                s.gpu,
            )
        })
        .map(|s| vec![s])
}

/// Best fit: the GPUs that are left with the least memory, ties by index; `None` if it does not fit now.
/// GPUs in `blocked` are promised to claims further ahead in the queue.
#[must_use]
pub fn best_fit(ledger: &Ledger, request: &Request, blocked: &[bool]) -> Option<Vec<Slice>> {
    let mut fits: Vec<Slice> = candidates(ledger, request)
        .into_iter()
        .filter(|&g| !blocked.get(g).copied().unwrap_or(false))
        .filter_map(|g| ledger.fit(request, g))
        .collect();
    fits.sort_by_key(|s| {
        (
            reluctance(ledger, request, s),
            spare(ledger, request, s),
            s.gpu,
        )
    });
    let count = usize::try_from(request.gpus).ok()?;
    if count == 0 {
        return None;
    }
    let kind = |s: &Slice| ledger.gpus()[s.gpu].model.as_str();
    let enough = |k: &str| fits.iter().filter(|s| kind(s) == k).count() >= count;
    // All of one model: the one that has the best place of those with enough.
    let model = fits.iter().map(kind).find(|k| enough(k))?;
    fits.retain(|s| kind(s) == model);
    fits.truncate(count);
    fits.sort_by_key(|s| s.gpu);
    Some(fits)
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

/// What a claim leaves unused of what it takes, or of the GPU that it shares.
fn spare(ledger: &Ledger, request: &Request, slice: &Slice) -> Bytes {
    let free = ledger.mem_free(slice.gpu);
    match (slice.held, request.mem) {
        (Held::Whole, Some(asked)) => slice.mem.saturating_sub(asked),
        (Held::Whole, None) => slice.mem,
        _ => free.saturating_sub(slice.mem),
    }
}

/// How little a claim belongs on the GPU of `slice`, 0 for not at all badly: claims that can be detached and
/// claims that run through MPS are kept apart where that is possible, and a GPU that only one claim can have
/// is left to those who ask for a whole one.
#[must_use]
pub fn reluctance(ledger: &Ledger, request: &Request, slice: &Slice) -> u32 {
    let others = || {
        ledger
            .held()
            .flat_map(|(_, slices)| slices)
            .filter(|s| s.gpu == slice.gpu)
    };
    let sharing = ledger
        .gpus()
        .get(slice.gpu)
        .map_or(Sharing::Timeslice, |g| g.sharing);
    match (sharing, slice.held) {
        (Sharing::Exclusive, _) if request.share < Share::ONE => 2,
        (Sharing::Mps { .. }, _) if request.class == Class::Interactive => 1,
        (_, held) if others().any(|s| s.held != held) => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
