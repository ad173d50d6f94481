//! Sums of claims' figures over their GPUs, for every command and screen: bytes and fractions of GPUs add up, and a
//! sum with an unknown term is unknown. Percentages are of one GPU, so those of several may exceed 100.

use std::collections::BTreeSet;
use std::iter::once;

use crate::figures::{measured, parts, percent, percent_of};
use crate::{ClaimGpu, ClaimState, ClaimView, Figure, GpuView, Snapshot, Source};

/// Bytes used: by the driver, otherwise as charged.
#[must_use]
pub fn mem_used(claim: &ClaimView) -> Option<u64> {
    let used = |g: &ClaimGpu| g.mem_used.or(g.mem_charge);
    claim.gpus.iter().map(used).sum()
}

/// Bytes claimed.
#[must_use]
pub fn mem_claimed(claim: &ClaimView) -> u64 {
    claim.gpus.iter().map(|g| g.mem_request).sum()
}

/// Claimed fractions of GPUs, in percent of one.
#[must_use]
pub fn claimed(claim: &ClaimView) -> f64 {
    claim.gpus.iter().map(|g| g.sm_request * 100.0).sum()
}

/// A figure of a part. Without memory on the GPU it is known to be zero.
fn known(part: &ClaimGpu, figure: Option<Figure>) -> Option<Figure> {
    let nothing = || {
        (part.mem_used == Some(0)).then_some(Figure {
            value: 0.0,
            source: Source::Nvml,
            estimate: false,
        })
    };
    figure.or_else(nothing)
}

fn sum(claim: &ClaimView, of: impl Fn(&ClaimGpu) -> Option<Figure>) -> Option<Figure> {
    let mut figures = claim.gpus.iter().map(of);
    let first = figures.next()??;
    figures.try_fold(first, |sum, figure| {
        let figure = figure?;
        Some(Figure {
            value: sum.value + figure.value,
            estimate: sum.estimate || figure.estimate,
            ..sum
        })
    })
}

/// Percent of GPU time, all GPUs together.
#[must_use]
pub fn time_busy(claim: &ClaimView) -> Option<Figure> {
    sum(claim, |g| known(g, g.time_busy.or(g.time_got)))
}

/// Percent of the SMs, all GPUs together.
#[must_use]
pub fn sm_active(claim: &ClaimView) -> Option<Figure> {
    sum(claim, |g| known(g, g.sm_active))
}

/// Percent of the warps, all GPUs together.
#[must_use]
pub fn sm_occupancy(claim: &ClaimView) -> Option<Figure> {
    sum(claim, |g| known(g, g.sm_occupancy))
}

/// Percent of the SMs of a GPU: its own figure, otherwise the known use by claims as a lower bound.
#[must_use]
pub fn sm_of_gpu(gpu: &GpuView, snapshot: &Snapshot) -> AtLeast {
    if gpu.sm_active.is_some() {
        return AtLeast::Known(gpu.sm_active);
    }
    let parts = snapshot.claims.iter().flat_map(|c| &c.gpus);
    least(parts.filter(|g| g.gpu == gpu.index).map(|g| g.sm_active))
}

/// A sum with possibly unknown terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AtLeast {
    /// The sum, or unknown.
    Known(Option<Figure>),
    /// A lower bound.
    Some(f64),
}

impl AtLeast {
    /// `61`, `~61`, `≥15` with this sign for a lower bound, or `unknown`.
    #[must_use]
    pub fn text(self, unknown: &str, sign: &str) -> String {
        match self {
            Self::Known(known) => measured(known, unknown),
            Self::Some(sum) => format!("{sign}{}", percent(sum)),
        }
    }
}

/// The sum of the known terms.
#[must_use]
pub fn least(figures: impl Iterator<Item = Option<Figure>>) -> AtLeast {
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

/// Whether sizes on a GPU are fractions of its SMs, as with MPS and in an instance; in turns they are fractions of
/// its time.
#[must_use]
pub fn is_by_sms(gpu: &GpuView) -> bool {
    gpu.is_instance() || matches!(gpu.mode.as_str(), "mps" | "mig")
}

/// A claim's use of a GPU, in percent and in the unit of its size.
#[must_use]
pub fn compute(part: &ClaimGpu, snapshot: &Snapshot) -> Option<Figure> {
    let gpu = snapshot.gpus.iter().find(|g| g.index == part.gpu);
    known(
        part,
        match gpu.is_some_and(is_by_sms) {
            true => part.sm_active,
            false => part.time_busy.or(part.time_got),
        },
    )
}

/// Weight of a part: 1 on a whole GPU, on an instance its fraction of the GPU's SMs.
fn weight(part: &ClaimGpu, snapshot: &Snapshot) -> f64 {
    let gpu = snapshot.gpus.iter().find(|g| g.index == part.gpu);
    gpu.map_or(1.0, GpuView::part_of_a_gpu)
}

/// A sum in which an instance counts as its fraction of a GPU.
fn weighed(
    claim: &ClaimView,
    snapshot: &Snapshot,
    of: impl Fn(&ClaimGpu) -> Option<Figure>,
) -> Option<Figure> {
    sum(claim, |g| {
        of(g).map(|f| Figure {
            value: f.value * weight(g, snapshot),
            ..f
        })
    })
}

/// The same over all its GPUs.
#[must_use]
pub fn compute_of(claim: &ClaimView, snapshot: &Snapshot) -> Option<Figure> {
    sum(claim, |g| compute(g, snapshot))
}

/// Sums of claims' use and sizes on GPUs; an instance counts as its fraction of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sums {
    /// In the unit of sizes, percent of one GPU.
    pub compute: AtLeast,
    /// Sizes, percent of one GPU.
    pub claimed: f64,
    /// SM activity, percent of one GPU.
    pub sm: AtLeast,
    /// Bytes in use.
    pub mem_used: Option<u64>,
    /// Bytes claimed.
    pub mem_claimed: u64,
}

/// Sums over those of these claims that are on GPUs.
#[must_use]
pub fn sums<'a>(claims: impl Iterator<Item = &'a ClaimView>, snapshot: &Snapshot) -> Sums {
    let held: Vec<&ClaimView> = claims.filter(|c| !c.place.in_host()).collect();
    Sums {
        compute: least(
            held.iter()
                .map(|c| weighed(c, snapshot, |g| compute(g, snapshot))),
        ),
        claimed: held
            .iter()
            .flat_map(|c| &c.gpus)
            .map(|g| g.sm_request * 100.0 * weight(g, snapshot))
            .sum(),
        sm: least(
            held.iter()
                .map(|c| weighed(c, snapshot, |g| known(g, g.sm_active))),
        ),
        mem_used: held.iter().map(|c| mem_used(c)).sum(),
        mem_claimed: held.iter().map(|c| mem_claimed(c)).sum(),
    }
}

/// Use in GPUs: up to the size, unused, and burst. The first two add up to claimed, to the last digit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Split {
    /// Up to the size.
    pub used: f64,
    /// The rest of the size.
    pub unused: f64,
    /// Above it.
    pub burst: f64,
}

/// Over these claims; absent if the use of one is unknown.
#[must_use]
pub fn split<'a>(
    claims: impl Iterator<Item = &'a ClaimView>,
    snapshot: &Snapshot,
) -> Option<Split> {
    let mut all = Split::default();
    for part in claims.filter(|c| !c.place.in_host()).flat_map(|c| &c.gpus) {
        let used = compute(part, snapshot)?.value / 100.0;
        let of_a_gpu = weight(part, snapshot);
        all.used += used.min(part.sm_request) * of_a_gpu;
        all.unused += (part.sm_request - used).max(0.0) * of_a_gpu;
        all.burst += (used - part.sm_request).max(0.0) * of_a_gpu;
    }
    Some(all)
}

/// Sizes of claims that are on their GPUs, in GPUs.
pub fn size_of<'a>(claims: impl Iterator<Item = &'a ClaimView>, snapshot: &Snapshot) -> f64 {
    let here = claims.filter(|c| !c.place.in_host()).flat_map(|c| &c.gpus);
    here.map(|g| g.sm_request * weight(g, snapshot)).sum()
}

/// A smaller fraction of a GPU is not called waste.
const WASTE: f64 = 0.05;

/// A claim with this percentage of throttled time counts as throttled.
const THROTTLED: f64 = 5.0;

/// Throttled time in percent on the claim's most throttled GPU.
#[must_use]
pub fn throttled(claim: &ClaimView) -> Option<f64> {
    let figures = claim.gpus.iter().filter_map(|g| g.throttled);
    let most = figures.map(|f| f.value).fold(0.0, f64::max);
    (most >= THROTTLED).then_some(most)
}

/// Use this far above the size counts as burst, in percent of a GPU.
const BURST: f64 = 3.0;

/// Whether a claim uses more than its size.
#[must_use]
pub fn bursts(claim: &ClaimView, snapshot: &Snapshot) -> bool {
    let used = compute_of(claim, snapshot);
    !claim.adopted && used.is_some_and(|u| u.value > claimed(claim) + BURST)
}

/// The claim that slows a throttled one: on its most throttled GPU, the claim with the largest use above its size;
/// none if all others stay within theirs.
#[must_use]
pub fn slowed_by<'a>(claim: &ClaimView, snapshot: &'a Snapshot) -> Option<&'a ClaimView> {
    let held = |g: &&ClaimGpu| g.throttled.map_or(0.0, |f| f.value);
    let gpus = claim.gpus.iter();
    let gpu = gpus.max_by(|a, b| held(a).total_cmp(&held(b)))?.gpu;
    let above = |c: &ClaimView| {
        let part = c.gpus.iter().find(|g| g.gpu == gpu)?;
        let used = compute(part, snapshot)?.value;
        Some(used - part.sm_request * 100.0).filter(|above| *above > BURST)
    };
    let others = snapshot.claims.iter().filter(|c| c.id != claim.id);
    let others = others.filter(|c| !c.place.in_host());
    let others = others.filter_map(|c| Some((above(c)?, c)));
    let most = others.max_by(|a, b| a.0.total_cmp(&b.0));
    most.map(|(_, claim)| claim)
}

/// What slows a throttled claim if no other bursts: its own size if that is used up, otherwise the others within theirs.
#[must_use]
pub fn slowed_within(claim: &ClaimView, snapshot: &Snapshot) -> &'static str {
    let used = compute_of(claim, snapshot);
    let is_full = used.is_some_and(|u| u.value + BURST >= claimed(claim));
    if is_full { "its own size" } else { "others" }
}

/// The most throttled of a user's claims, and the claim that slows it.
#[must_use]
pub fn slows(snapshot: &Snapshot, uid: u32) -> String {
    let mine = || snapshot.claims.iter().filter(|c| c.uid == uid);
    let slowed = mine().filter(|c| !bursts(c, snapshot));
    let slowed = slowed.filter_map(|c| Some((throttled(c)?, c)));
    let Some((most, claim)) = slowed.max_by(|a, b| a.0.total_cmp(&b.0)) else {
        let counted = |c: &ClaimView| c.gpus.iter().any(|g| g.throttled.is_some());
        let runs = |c: &&ClaimView| c.state == ClaimState::Running && !c.place.in_host();
        return match mine().filter(runs).all(counted) {
            true => "nobody".to_owned(),
            false => "not known".to_owned(),
        };
    };
    let by = slowed_by(claim, snapshot);
    let by = by.map_or_else(
        || slowed_within(claim, snapshot).to_owned(),
        |by| format!("{} {}", by.id, by.user),
    );
    format!("{by}: {} throttled {} %", claim.id, percent(most))
}

/// The claim with the largest unused size; a throttled one does not count. Without claims: the GPU whose time its
/// programs use least.
#[must_use]
pub fn wasted(snapshot: &Snapshot) -> String {
    let unused = |c: &ClaimView| match throttled(c) {
        Some(_) => Some(0.0),
        None => split(once(c), snapshot).map(|split| split.unused),
    };
    let claims = || snapshot.claims.iter().filter(|c| !c.adopted);
    let known = claims().filter_map(|c| Some((unused(c)?, c)));
    if let Some((unused, claim)) = known.max_by(|a, b| a.0.total_cmp(&b.0)) {
        if unused < WASTE {
            return "nothing".to_owned();
        }
        let (unused, size) = (parts(unused), parts(size_of(once(claim), snapshot)));
        return format!("{} {}: {unused} of {size} unused", claim.id, claim.user);
    }
    let programs = |gpu: &GpuView| {
        let all = snapshot.unclaimed.iter();
        let here = all.filter(|u| u.gpu == gpu.index && !u.graphics);
        let users = here.map(|u| u.user.as_deref().unwrap_or("unknown user"));
        users.collect::<BTreeSet<_>>()
    };
    let held = || snapshot.gpus.iter().filter(|g| !programs(g).is_empty());
    let known = held().filter_map(|g| Some((1.0 - g.time_busy?.value / 100.0, g)));
    match known.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((unused, gpu)) if unused >= WASTE => {
            let users = Vec::from_iter(programs(gpu)).join(", ");
            let unused = percent_of(unused);
            format!("GPU {} ({users}): {unused} of its time unused", gpu.index)
        }
        Some(_) => "nothing".to_owned(),
        None if claims().next().is_none() && held().next().is_none() => "nothing".to_owned(),
        None => "not known".to_owned(),
    }
}
