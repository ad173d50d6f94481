//! Where a claim goes. First cut: best fit. The exact search of the real scheduler takes this seam.

use crate::claim::{Class, Request};
use crate::ledger::{Held, Ledger, Sharing, Slice};
use crate::units::{Bytes, Share};

/// GPUs (ledger indices) on which a request may run at all.
#[must_use]
pub fn candidates(ledger: &Ledger, request: &Request) -> Vec<usize> {
    (0..ledger.gpus().len())
        .filter(|&g| {
            request.only_gpus.is_empty()
                || u32::try_from(g).is_ok_and(|g| request.only_gpus.contains(&g))
        })
        .collect()
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
    if fits.len() < count || count == 0 {
        return None;
    }
    fits.truncate(count);
    fits.sort_by_key(|s| s.gpu);
    Some(fits)
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
