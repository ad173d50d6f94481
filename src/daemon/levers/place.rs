//! Which GPUs a moving claim may open, how its processes are mapped from one to another, and which pages belong to
//! which GPU.

use gshare_abi::GpuUuid;
use gshare_abi::host::LimitsFile;
use gshare_core::ClaimId;

use super::job::{Maps, Pairs};
use crate::daemon::effects::Effects;
use crate::daemon::gpu::Gpus;
use crate::daemon::journal::{ClaimRecord, HoldingRecord};
use crate::daemon::world::World;

/// The GPUs of a claim, and those that it is moving to.
pub(crate) fn gpus_of(gpus: &Gpus, record: &ClaimRecord) -> Vec<usize> {
    let to = match &record.holding {
        HoldingRecord::Unparking { to, .. } | HoldingRecord::Moving { to } => to.as_slice(),
        _ => &[],
    };
    let all = record.slices.iter().chain(to);
    all.filter_map(|s| gpus.gpu_index(&s.uuid)).collect()
}

/// Assigns the pages of a claim to the GPUs of its record, in that order; members keep their mappings.
pub(crate) fn relabel(with: &mut Effects, id: ClaimId) {
    let (host, gpus) = (&with.host, &with.gpus);
    let Some(live) = with.claims.get_mut(&id) else {
        return;
    };
    let places = live.record.slices.iter().map(|slice| {
        let gpu = gpus.gpu_index(&slice.uuid)?;
        let uuid = gpus[gpu].uuid.parse::<GpuUuid>().ok()?;
        Some((gpu, uuid, host.limits_path(gpus, id, gpu)))
    });
    let mut pages = Vec::new();
    for (seat, place) in live.seats.iter_mut().zip(places) {
        let Some((gpu, uuid, path)) = place else {
            continue;
        };
        seat.usage.relabel(uuid);
        seat.limits.set_gpu_index(u32::try_from(gpu).ok());
        seat.limits.set_context_overhead(gpus[gpu].overhead.bytes);
        seat.gpu = gpu;
        pages.push((&mut seat.limits, uuid, path));
    }
    if let Err(error) = LimitsFile::relabel(&mut pages) {
        tracing::error!(%id, %error, "cannot rename the limits files of a moved claim");
    }
}

/// Maps that bring processes from some GPUs to others: of the claim's GPUs alone, as its members see them behind the
/// device filter; and of all GPUs of the machine, for processes that see all.
pub(super) fn maps(world: &World<'_>, from: &[String], to: &[String]) -> Maps {
    let pair = |(from, to): (&String, &String)| (from.clone(), to.clone());
    let own: Pairs = from.iter().zip(to).map(pair).collect();
    // A GPU that the claim moves to maps, in turn, to one that the claim leaves.
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
    // Processes that have already arrived.
    maps.push(to.iter().zip(to).map(pair).collect());
    Maps(maps)
}
