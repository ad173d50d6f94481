//! Figures of a claim over its GPUs: bytes add up, percentages are averaged, and what is not known on
//! one GPU is not known.

use gshare_proto::{ClaimGpu, ClaimView, Figure};

/// Bytes used: as the driver says, else as charged.
pub(crate) fn mem_used(claim: &ClaimView) -> Option<u64> {
    let used = |g: &ClaimGpu| g.mem_used.or(g.mem_charge);
    claim.gpus.iter().map(used).sum()
}

/// The cap in bytes.
pub(crate) fn mem_cap(claim: &ClaimView) -> u64 {
    claim.gpus.iter().map(|g| g.mem_limit).sum()
}

fn mean(claim: &ClaimView, of: impl Fn(&ClaimGpu) -> Option<Figure>) -> Option<Figure> {
    let figures: Vec<Figure> = claim.gpus.iter().map(of).collect::<Option<_>>()?;
    let first = figures.first()?;
    Some(Figure {
        value: figures.iter().map(|f| f.value).sum::<f64>() / figures.len() as f64,
        source: first.source,
        estimate: figures.iter().any(|f| f.estimate),
    })
}

/// Percent of the time of its GPUs.
pub(crate) fn time_busy(claim: &ClaimView) -> Option<Figure> {
    mean(claim, |g| g.time_busy.or(g.time_got))
}

/// Percent of the SMs of its GPUs.
pub(crate) fn sm_active(claim: &ClaimView) -> Option<Figure> {
    mean(claim, |g| g.sm_active)
}

/// Percent of the warps of its GPUs.
pub(crate) fn sm_occupancy(claim: &ClaimView) -> Option<Figure> {
    mean(claim, |g| g.sm_occupancy)
}
