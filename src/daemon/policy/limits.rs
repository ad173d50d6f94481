//! Rung M1: where the driver itself limits the memory of control groups (release 615 and later), every claim's group
//! has its request as the soft and its limit as the hard limit.

use std::time::Duration;

use gshare_core::ClaimId;
use gshare_enforcer::gpu::{LimitError, LimitOrder};
use gshare_proto::Check;

use super::super::doctor::check;
use super::super::gpu::Gpus;
use super::super::host::Host;
use super::super::outside::Policy;
use super::super::service::{Live, Service};
use crate::daemon::off;
use crate::daemon::world::World;
use gshare_enforcer::gpu::Observer;

/// How long the service waits for NVML: an answer takes well below a millisecond where nothing is wrong.
const PATIENCE: Duration = Duration::from_millis(300);

impl Policy {
    /// Finds out on which GPUs the driver has such limits, once each. True if there are new ones.
    pub(super) fn probe_limits(&mut self, observer: &Observer, host: &Host, gpus: &Gpus) -> bool {
        let mut found = false;
        for g in 0..gpus.len() {
            found |= !self.limits.contains_key(&g) && self.has_limits(observer, host, gpus, g);
        }
        found
    }

    /// Whether the driver limits memory on a GPU; asks it if that is not known.
    fn has_limits(&mut self, observer: &Observer, host: &Host, gpus: &Gpus, gpu: usize) -> bool {
        if let Some(known) = self.limits.get(&gpu) {
            return known.is_ok();
        }
        let (Some(tree), Ok(index)) = (&host.fences.tree, u32::try_from(gpu)) else {
            return false;
        };
        if !gpus[gpu].uuid.starts_with("GPU-") || gpus.reading(gpu).is_none() {
            return false;
        }
        let cgroup = tree.dir().to_owned();
        match observer.limit(index, LimitOrder::Probe { cgroup }, PATIENCE) {
            // Asked again at the next look.
            Err(LimitError::NoAnswer { .. }) => false,
            answer => {
                let known = answer.map_err(|e| e.to_string());
                let has = known.is_ok();
                self.limits.insert(gpu, known);
                has
            }
        }
    }
}

impl Service {
    /// Has the driver hold a claim to its size.
    pub(crate) fn limit_memory(&mut self, id: ClaimId) {
        if off::is_unlimited(&self.world(), id) {
            return;
        }
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let Some(cgroup) = live.cgroup.as_ref().map(|c| c.dir().to_owned()) else {
            return;
        };
        let slices = live.record.slices.clone();
        for slice in slices {
            let (observer, gpus) = (&self.observer, &self.gpus);
            let Some(gpu) = gpus.gpu_index(&slice.uuid) else {
                continue;
            };
            if !self.policy.has_limits(observer, &self.host, gpus, gpu) {
                continue;
            }
            let order = LimitOrder::Set {
                cgroup: cgroup.clone(),
                soft: slice.mem,
                hard: slice.mem_limit.max(slice.mem),
            };
            let index = u32::try_from(gpu).unwrap_or(u32::MAX);
            if let Err(error) = self.observer.limit(index, order, PATIENCE) {
                let text = format!(
                    "{id}: the driver does not enforce its memory limit on GPU {gpu}: {error}"
                );
                self.notice(Some(id), text);
            }
        }
    }
}

pub(super) fn limits_row(world: &World<'_>) -> Check {
    let name = "memory limits (driver)";
    let count = |wanted: bool| {
        world
            .policy
            .limits
            .values()
            .filter(|k| k.is_ok() == wanted)
            .count()
    };
    let why = world.policy.limits.values().find_map(|k| k.as_ref().err());
    match (count(true), count(false)) {
        (0, 0) => check(
            name,
            "missing",
            "needs cgroups, root and a GPU that answers",
        ),
        (0, _) => check(name, "missing", why.cloned().unwrap_or_default()),
        (some, others) => check(
            name,
            if others == 0 { "ok" } else { "limited" },
            format!(
                "the driver enforces memory on {some} of {} GPUs: the size is guaranteed, the limit is the most",
                some + others
            ),
        ),
    }
}

/// Takes the limits of a claim off before its control group goes: a soft limit would stay reserved.
pub(crate) fn unlimit_memory(world: &World<'_>, observer: &Observer, live: &Live) {
    let Some(cgroup) = live.cgroup.as_ref().map(|c| c.dir().to_owned()) else {
        return;
    };
    for slice in &live.record.slices {
        let gpu = world.gpus.gpu_index(&slice.uuid);
        let Some(gpu) = gpu.filter(|g| world.policy.limits.get(g).is_some_and(Result::is_ok))
        else {
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
