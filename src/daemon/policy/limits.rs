//! Limits by the driver itself, where it limits the memory of cgroups (release 615 and later): every claim's cgroup
//! has its size as the soft and its limit as the hard limit.

use std::path::PathBuf;

use gshare_core::ClaimId;
use gshare_core::units::many;
use gshare_enforcer::gpu::{LimitError, LimitOrder, Observer};
use gshare_proto::Check;

use super::super::doctor::row::check;
use super::super::journal::SliceRecord;
use super::super::live::Live;
use super::super::outside::{Limit, PATIENCE};
use crate::daemon::off;
use crate::daemon::world::World;

/// Queries the driver through NVML.
pub(crate) fn asking(
    observer: &Observer,
) -> impl Fn(usize, LimitOrder) -> Result<(), LimitError> + '_ {
    |gpu, order| {
        let index = u32::try_from(gpu).unwrap_or(u32::MAX);
        observer.limit(index, order, PATIENCE)
    }
}

/// GPUs on which the driver's support is unknown, and the cgroup to try it with.
pub(crate) fn unknown(world: &World<'_>) -> Vec<(usize, PathBuf)> {
    let gpus = (0..world.gpus.len()).filter(|g| !world.policy.limits.is_known(*g));
    gpus.filter_map(|g| Some((g, tree_for(world, g)?)))
        .collect()
}

/// The cgroup of claims, if limits on a GPU can be tried with it.
fn tree_for(world: &World<'_>, gpu: usize) -> Option<PathBuf> {
    let tree = world.host.fences.tree.as_ref()?;
    let answers = world.gpus.reading(gpu).is_some() || world.policy.limits.is_known(gpu);
    let whole = world.gpus[gpu].uuid.starts_with("GPU-");
    (answers && whole).then(|| tree.dir().to_owned())
}

/// The driver's limits for a claim.
pub(crate) fn of(world: &World<'_>, id: ClaimId) -> Vec<Limit> {
    let live = world.claims.get(&id);
    let live = live.filter(|_| !off::is_unlimited(world, id));
    let Some((live, cgroup)) = live.and_then(|live| Some((live, live.cgroup.as_ref()?))) else {
        return Vec::new();
    };
    let limit = |slice: &SliceRecord| {
        let gpu = world.gpus.gpu_index(&slice.uuid)?;
        Some(Limit {
            gpu,
            tree: tree_for(world, gpu)?,
            order: LimitOrder::Set {
                cgroup: cgroup.dir().to_owned(),
                soft: slice.mem,
                hard: slice.mem_limit.max(slice.mem),
            },
        })
    };
    live.record.slices.iter().filter_map(limit).collect()
}

/// Gives a claim processor time in proportion to its size, if the kernel can; the default of 100 if nothing limits
/// it.
pub(crate) fn weigh(world: &World<'_>, id: ClaimId) {
    let cgroup = world
        .claims
        .get(&id)
        .and_then(|live| Some((live, live.cgroup.as_ref()?)));
    let (Some(tree), Some((live, cgroup))) = (&world.host.fences.tree, cgroup) else {
        return;
    };
    let size = live.record.slices.iter().map(|s| s.sm_milli);
    let weight = match off::is_unlimited(world, id) {
        true => 100,
        false => size.fold(0, u32::saturating_add),
    };
    if let Err(error) = tree.weigh(cgroup, weight) {
        tracing::warn!(%id, %error, "the CPU time of the claim's cgroup cannot be set in proportion to the claim's size");
    }
}

pub(super) fn limits_row(world: &World<'_>) -> Check {
    let name = "memory limits (driver)";
    let (there, not, why) = world.policy.limits.count();
    match (there, not) {
        (0, 0) => check(
            name,
            "missing",
            "needs cgroups, root and a GPU that answers",
        ),
        (0, _) => check(name, "missing", why.unwrap_or_default()),
        (some, others) => check(
            name,
            if others == 0 { "ok" } else { "limited" },
            format!(
                "on {some} of {} the driver itself enforces memory: each claim always gets its size, and its \
                 limit is the maximum",
                many(some + others, "GPU")
            ),
        ),
    }
}

/// Removes a claim's limits before its cgroup: a soft limit would stay reserved.
pub(crate) fn unlimit_memory(world: &World<'_>, observer: &Observer, live: &Live) {
    let Some(cgroup) = live.cgroup.as_ref().map(|c| c.dir().to_owned()) else {
        return;
    };
    for slice in &live.record.slices {
        let gpu = world.gpus.gpu_index(&slice.uuid);
        let Some(gpu) = gpu.filter(|g| world.policy.limits.is_there(*g)) else {
            continue;
        };
        let order = LimitOrder::Clear {
            cgroup: cgroup.clone(),
        };
        let index = u32::try_from(gpu).unwrap_or(u32::MAX);
        if let Err(error) = observer.limit(index, order, PATIENCE) {
            tracing::warn!(claim = live.record.id, %error, "the driver's limit stays until the cgroup is removed");
        }
    }
}
