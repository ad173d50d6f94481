//! Where a claim goes. First cut: best fit. The exact search of the real scheduler takes this seam.

use crate::claim::Request;
use crate::ledger::{Ledger, Slice};

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
    fits.sort_by_key(|s| (ledger.mem_free(s.gpu).saturating_sub(s.mem), s.gpu));
    let count = usize::try_from(request.gpus).ok()?;
    if fits.len() < count || count == 0 {
        return None;
    }
    fits.truncate(count);
    fits.sort_by_key(|s| s.gpu);
    Some(fits)
}
