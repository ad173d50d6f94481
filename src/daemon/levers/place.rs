//! Which GPUs a claim on its way may open, how its processes come from one to another, and whose pages are whose.

use gshare_abi::GpuUuid;
use gshare_abi::host::LimitsFile;
use gshare_core::ClaimId;

use super::job::{Maps, Pairs};
use super::uuids;
use crate::daemon::journal::HoldingRecord;
use crate::daemon::service::Service;
use crate::daemon::world::World;
use crate::daemon::{gpus, grant};

impl Service {
    pub(super) fn narrow(&mut self, id: ClaimId) {
        let slices = self.claims.get(&id).map(|l| uuids(&l.record.slices));
        self.filter_to(id, &slices.unwrap_or_default());
    }

    /// The GPUs of a claim can be opened, and those that it comes to while it is on its way. False if that failed.
    pub(crate) fn widen(&mut self, id: ClaimId) -> bool {
        let Some(live) = self.claims.get(&id) else {
            return false;
        };
        let mut gpus = uuids(&live.record.slices);
        if let HoldingRecord::Unparking { to, .. } | HoldingRecord::Moving { to } =
            &live.record.holding
        {
            gpus.extend(uuids(to));
        }
        self.filter_to(id, &gpus)
    }

    fn filter_to(&mut self, id: ClaimId, uuids: &[String]) -> bool {
        let gpus: Vec<usize> = uuids
            .iter()
            .filter_map(|u| self.gpus.gpu_index(u))
            .collect();
        let rules = gpus::rules(&self.world(), self.claims.get(&id).map(|l| &l.record), gpus);
        if let (Some(filters), Some(live)) = (&mut self.host.fences.filters, self.claims.get(&id))
            && let Some(cgroup) = &live.cgroup
            && !live.uncovered
            && let Err(error) = filters.set(cgroup, &rules)
        {
            tracing::error!(%id, %error, "cannot change the device filter of a claim");
            return false;
        }
        true
    }

    /// The pages of a claim belong to the GPUs that its record names, in that order; members keep them.
    pub(crate) fn relabel(&mut self, id: ClaimId) {
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let places: Vec<Option<usize>> = live
            .record
            .slices
            .iter()
            .map(|s| self.gpus.gpu_index(&s.uuid))
            .collect();
        let place = |gpu: Option<usize>| {
            let uuid = self.gpus[gpu?].uuid.parse::<GpuUuid>().ok()?;
            Some((gpu?, uuid, grant::limits_path(&self.world(), id, gpu?)))
        };
        let places: Vec<_> = places.into_iter().map(place).collect();
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        let mut pages = Vec::new();
        for (seat, place) in live.seats.iter_mut().zip(places) {
            let Some((gpu, uuid, path)) = place else {
                continue;
            };
            seat.usage.relabel(uuid);
            seat.limits.set_gpu_index(u32::try_from(gpu).ok());
            seat.limits.set_context_overhead(self.gpus[gpu].overhead);
            seat.gpu = gpu;
            pages.push((&mut seat.limits, uuid, path));
        }
        if let Err(error) = LimitsFile::relabel(&mut pages) {
            tracing::error!(%id, %error, "cannot rename the limits files of a moved claim");
        }
    }
}

/// The maps by which processes that are on some GPUs come onto others: of the claim's GPUs alone, as its members
/// see them behind the device filter; and of all GPUs of the machine, for those that see all.
pub(super) fn maps(world: &World<'_>, from: &[String], to: &[String]) -> Maps {
    let pair = |(from, to): (&String, &String)| (from.clone(), to.clone());
    let own: Pairs = from.iter().zip(to).map(pair).collect();
    // A claim on its way out makes room for one that was there.
    let mut left = from.iter().filter(|uuid| !to.contains(uuid));
    let whole = world.gpus.iter().filter(|g| g.uuid.starts_with("GPU-"));
    let all: Pairs = whole
        .map(|gpu| {
            let uuid = &gpu.uuid;
            let new = match from.iter().position(|f| f == uuid) {
                Some(at) => Some(&to[at]),
                None if to.contains(uuid) => left.next(),
                None => Some(uuid),
            };
            (uuid.clone(), new.unwrap_or(uuid).clone())
        })
        .collect();
    let mut maps = vec![own];
    if world.host.fences.filters.is_none() {
        maps.push(all);
    }
    // Those that are there already.
    maps.push(to.iter().zip(to).map(pair).collect());
    Maps(maps)
}
