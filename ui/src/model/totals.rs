//! Figures of a claim over its GPUs: bytes and parts of GPUs add up, and what is not known on one GPU is not known.

use gshare_proto::{ClaimGpu, ClaimView, Figure, GpuView, Snapshot};

/// Bytes used: as the driver says, else as charged.
pub(crate) fn mem_used(claim: &ClaimView) -> Option<u64> {
    let used = |g: &ClaimGpu| g.mem_used.or(g.mem_charge);
    claim.gpus.iter().map(used).sum()
}

/// Bytes claimed.
pub(crate) fn mem_claimed(claim: &ClaimView) -> u64 {
    claim.gpus.iter().map(|g| g.mem_request).sum()
}

/// The parts of GPUs claimed, in percent of one.
pub(crate) fn claimed(claim: &ClaimView) -> f64 {
    claim.gpus.iter().map(|g| g.sm_request * 100.0).sum()
}

fn sum(claim: &ClaimView, of: impl Fn(&ClaimGpu) -> Option<Figure>) -> Option<Figure> {
    let figures: Vec<Figure> = claim.gpus.iter().map(of).collect::<Option<_>>()?;
    let first = figures.first()?;
    Some(Figure {
        value: figures.iter().map(|f| f.value).sum::<f64>(),
        source: first.source,
        estimate: figures.iter().any(|f| f.estimate),
    })
}

/// Percent of GPU time, all GPUs together.
pub(crate) fn time_busy(claim: &ClaimView) -> Option<Figure> {
    sum(claim, |g| g.time_busy.or(g.time_got))
}

/// Percent of the SMs, all GPUs together.
pub(crate) fn sm_active(claim: &ClaimView) -> Option<Figure> {
    sum(claim, |g| g.sm_active)
}

/// Percent of the warps, all GPUs together.
pub(crate) fn sm_occupancy(claim: &ClaimView) -> Option<Figure> {
    sum(claim, |g| g.sm_occupancy)
}

/// Percent of the SMs of a GPU: its own figure, else what the claims that are known use of it, which is the least.
pub(crate) fn sm_of_gpu(gpu: &GpuView, snapshot: &Snapshot) -> AtLeast {
    if gpu.sm_active.is_some() {
        return AtLeast::Known(gpu.sm_active);
    }
    let parts = snapshot.claims.iter().flat_map(|c| &c.gpus);
    least(parts.filter(|g| g.gpu == gpu.index).map(|g| g.sm_active))
}

/// A sum of which a part may not be known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AtLeast {
    /// All of it, or nothing.
    Known(Option<Figure>),
    /// So much is.
    Some(f64),
}

/// The sum of what is known.
pub(crate) fn least(figures: impl Iterator<Item = Option<Figure>>) -> AtLeast {
    let (mut sum, mut all): (Option<Figure>, bool) = (None, true);
    for figure in figures {
        match (figure, &mut sum) {
            (None, _) => all = false,
            (Some(f), None) => sum = Some(f),
            (Some(f), Some(s)) => {
                s.value += f.value;
                s.estimate |= f.estimate;
            }
        }
    }
    match sum {
        Some(s) if !all => AtLeast::Some(s.value),
        sum => AtLeast::Known(sum),
    }
}

/// Whether parts of a GPU are parts of its SMs, as with MPS and in an instance; in turns they are parts of its time.
pub(crate) fn is_by_sms(gpu: &GpuView) -> bool {
    gpu.is_instance() || matches!(gpu.mode.as_str(), "mps" | "mig")
}

/// What a claim uses of a GPU, in percent and of the kind that its size is in.
pub(crate) fn compute(part: &ClaimGpu, snapshot: &Snapshot) -> Option<Figure> {
    let gpu = snapshot.gpus.iter().find(|g| g.index == part.gpu);
    match gpu.is_some_and(is_by_sms) {
        true => part.sm_active,
        false => part.time_busy.or(part.time_got),
    }
}

/// The same of all its GPUs together.
pub(crate) fn compute_of(claim: &ClaimView, snapshot: &Snapshot) -> Option<Figure> {
    sum(claim, |g| compute(g, snapshot))
}

/// GPUs: used up to the size, unused, and burst on top. The first two are what is claimed, to the last digit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Split {
    /// Up to the size.
    pub(crate) used: f64,
    /// The rest of the size.
    pub(crate) unused: f64,
    /// Above it.
    pub(crate) burst: f64,
}

/// Of these claims; absent as soon as the use of one is.
pub(crate) fn split<'a>(
    claims: impl Iterator<Item = &'a ClaimView>,
    snapshot: &Snapshot,
) -> Option<Split> {
    let mut all = Split::default();
    for part in claims.filter(|c| !c.place.in_host()).flat_map(|c| &c.gpus) {
        let used = compute(part, snapshot)?.value / 100.0;
        all.used += used.min(part.sm_request);
        all.unused += (part.sm_request - used).max(0.0);
        all.burst += (used - part.sm_request).max(0.0);
    }
    Some(all)
}
