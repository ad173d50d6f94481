//! What slows the viewer, and what is wasted most: an answer of a few words each.

use std::iter::once;

use gshare_proto::{ClaimState, ClaimView, GpuView};

use crate::model::{slowed_by, split, throttled};
use crate::text::{parts, percent, share};
use crate::view::View;

/// Less than this part of a GPU is no waste.
const WASTE: f64 = 0.05;

/// Of the viewer's claims the one that is throttled most, and the claim behind it.
pub(super) fn slows(view: &View<'_>) -> String {
    let claims = view.snapshot.claims.iter();
    let mine = || claims.clone().filter(|c| c.uid == view.model.viewer.uid);
    let slowed = mine().filter_map(|c| Some((throttled(c)?, c)));
    let Some((most, claim)) = slowed.max_by(|a, b| a.0.total_cmp(&b.0)) else {
        let counted = |c: &ClaimView| c.gpus.iter().any(|g| g.throttled.is_some());
        let runs = |c: &&ClaimView| c.state == ClaimState::Running && !c.place.in_host();
        return match mine().filter(runs).all(counted) {
            true => "nobody".to_owned(),
            false => "not known".to_owned(),
        };
    };
    let by = slowed_by(claim, view.snapshot);
    let by = by.map_or("its own size".to_owned(), |by| {
        format!("{} {}", by.id, by.user)
    });
    format!("{by}: {} throttled {} %", claim.id, percent(most))
}

/// The claim of whose size most is unused. Where nobody claims: the GPU of whose time its programs use least.
pub(super) fn wasted(view: &View<'_>) -> String {
    let snapshot = view.snapshot;
    let unused = |c: &ClaimView| split(once(c), snapshot).map(|split| split.unused);
    let claims = || snapshot.claims.iter().filter(|c| !c.adopted);
    let known = claims().filter_map(|c| Some((unused(c)?, c)));
    if let Some((unused, claim)) = known.max_by(|a, b| a.0.total_cmp(&b.0)) {
        if unused < WASTE {
            return "nothing".to_owned();
        }
        let size: f64 = claim.gpus.iter().map(|g| g.sm_request).sum();
        let (unused, size) = (parts(unused), parts(size));
        return format!("{} {}: {unused} of {size} unused", claim.id, claim.user);
    }
    let programs = |gpu: &GpuView| {
        let all = snapshot.unclaimed.iter();
        let here = all.filter(|u| u.gpu == gpu.index && !u.graphics);
        let users = here.map(|u| u.user.as_deref().unwrap_or("unknown user"));
        users.collect::<std::collections::BTreeSet<_>>()
    };
    let held = || snapshot.gpus.iter().filter(|g| !programs(g).is_empty());
    let known = held().filter_map(|g| Some((1.0 - g.time_busy?.value / 100.0, g)));
    match known.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((unused, gpu)) if unused >= WASTE => {
            let users = Vec::from_iter(programs(gpu)).join(", ");
            let unused = share(unused);
            format!("GPU {} ({users}): {unused} of its time", gpu.index)
        }
        Some(_) => "nothing".to_owned(),
        None if claims().next().is_none() && held().next().is_none() => "nothing".to_owned(),
        None => "not known".to_owned(),
    }
}
