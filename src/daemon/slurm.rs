//! GPUs that Slurm allocates: jobs get claims on behalf there, and no other claims are granted.

use gshare_core::{Admission, Bytes, ClaimId, GpuFacts, Request, Share};
use gshare_proto::{ErrorCode, SLURM_JOB, WireError};

use super::claims::Asked;
use super::journal::ClaimRecord;
use super::world::World;

/// The job of a claim. Only root names claims on behalf.
pub(crate) fn job_of(record: &ClaimRecord) -> Option<u32> {
    record.origin.behalf.as_ref()?;
    record
        .name
        .as_deref()?
        .strip_prefix(SLURM_JOB)?
        .parse()
        .ok()
}

/// Whether another scheduler allocates a GPU.
fn is_foreign(world: &World<'_>, gpu: u32) -> bool {
    world.machine.ledger().admission(gpu as usize) == Admission::Foreign
}

/// The GPUs that another scheduler has allocated to a claim on behalf: it starts at once.
pub(crate) fn given(world: &World<'_>, asked: &Asked) -> Option<Vec<usize>> {
    asked.record.origin.behalf.as_ref()?;
    let named = &asked.request.only_gpus;
    let all = !named.is_empty() && named.iter().all(|g| is_foreign(world, *g));
    all.then(|| named.iter().map(|g| *g as usize).collect())
}

/// Refuses a claim on behalf that does not name its GPUs of another scheduler.
pub(crate) fn names_its_gpus(world: &World<'_>, request: &Request) -> Result<(), WireError> {
    let named = &request.only_gpus;
    let foreign = named.iter().any(|g| is_foreign(world, *g));
    if !foreign || named.len() == request.gpus as usize {
        return Ok(());
    }
    let text = format!(
        "a claim on GPUs that Slurm gives out must name each of them: {} named, {} claimed",
        named.len(),
        request.gpus
    );
    Err(WireError::new(ErrorCode::Usage, text))
}

/// Refuses more memory of another scheduler's GPUs than the allocated part: the rest is for others.
pub(crate) fn stays_in_its_part(world: &World<'_>, request: &Request) -> Result<(), WireError> {
    let mut gpus = request.only_gpus.iter();
    let mem = request.mem;
    gpus.try_for_each(|gpu| has_room_for(world, *gpu, request.share, mem))
}

/// Refuses more memory than this part of a GPU that Slurm gives out has.
pub(crate) fn has_room_for(
    world: &World<'_>,
    gpu: u32,
    share: Share,
    mem: Option<Bytes>,
) -> Result<(), WireError> {
    let facts = world.machine.ledger().gpus().get(gpu as usize);
    let facts = facts.filter(|_| is_foreign(world, gpu));
    let part = facts.and_then(GpuFacts::capacity).map(|c| c.times(share));
    let Some((mem, part)) = mem.zip(part).filter(|(mem, part)| mem > part) else {
        return Ok(());
    };
    let text = format!(
        "{mem} is too much memory: the job's part of GPU {gpu} ({}) has {part}",
        share.short()
    );
    Err(WireError::new(ErrorCode::Usage, text))
}

/// The warning that Slurm has allocated this claim a GPU whose jobs together have more than the GPU.
pub(crate) fn given_twice(world: &World<'_>, id: ClaimId) -> Option<String> {
    let own = &world.claims.get(&id)?.record;
    own.origin.behalf.as_ref()?;
    let of = |record: &ClaimRecord, uuid: &str| {
        let slice = record.slices.iter().find(|s| s.uuid == uuid);
        slice.map(|s| Share::from_milli(s.sm_milli))
    };
    own.slices.iter().find_map(|slice| {
        let gpu = world.gpus.gpu_index(&slice.uuid)?;
        let others = world.claims.iter().filter(|(other, _)| **other != id);
        let others = others.filter_map(|(other, l)| Some((*other, of(&l.record, &slice.uuid)?)));
        let others: Vec<(ClaimId, Share)> = others.collect();
        let sum: u32 = others.iter().map(|(_, share)| share.milli()).sum();
        if !is_foreign(world, u32::try_from(gpu).ok()?) || sum + slice.sm_milli <= 1000 {
            return None;
        }
        let others = others.iter().map(|(other, share)| format!("{other} has {}", share.short()));
        let others = others.collect::<Vec<_>>().join(", ");
        Some(format!(
            "{id}: Slurm has given out more of GPU {gpu} than there is: this job has {}, {others}. The jobs keep their \
             limits, but the GPU's memory may not suffice for all",
            Share::from_milli(slice.sm_milli).short()
        ))
    })
}

/// The command to use instead of a claim on GPUs that Slurm allocates.
pub(crate) fn hint(world: &World<'_>, asked: &Asked) -> String {
    if asked.record.origin.behalf.is_some() {
        return "name the GPUs that it has: --gpu-ids 0".to_owned();
    }
    let gpus = world.machine.ledger().gpus();
    let capacity = gpus.iter().filter_map(GpuFacts::capacity).min();
    let what = size(&asked.request, capacity.map_or(0, |c| c.0));
    format!("claim through Slurm: srun --gres={what} COMMAND")
}

/// A size in Slurm's notation; `capacity` is the smallest GPU's, for sizes in bytes.
fn size(request: &Request, capacity: u64) -> String {
    let milli = match request.mem {
        Some(mem) if capacity > 0 => (mem.0.saturating_mul(1000)).div_ceil(capacity),
        _ => u64::from(request.share.milli()),
    };
    let milli = milli.max(u64::from(request.sm.unwrap_or_default().milli()));
    match (request.gpus, u32::try_from(milli)) {
        (1, Ok(milli @ ..1000)) => format!("gshare:{}", Share::from_milli(milli).short()),
        // Parts of several GPUs are not possible in Slurm, so round up.
        (gpus, _) => format!("gpu:{gpus}"),
    }
}

#[cfg(test)]
mod tests {
    use gshare_core::{Class, Size};

    use super::*;

    #[test]
    fn a_size_is_written_as_slurm_takes_it() {
        let of = |gpus, milli| {
            let each = Share::from_milli(milli);
            Request::of_size(Size { gpus, each }, Share::ONE, Class::Batch)
        };
        assert_eq!(size(&of(1, 500), 0), "gshare:0.5");
        assert_eq!(size(&of(2, 1000), 0), "gpu:2");
        assert_eq!(
            size(&of(2, 500), 0),
            "gpu:2",
            "a part of several is one step above"
        );
        let mut bytes = of(1, 250);
        bytes.mem = Some(Bytes::gib(6));
        assert_eq!(size(&bytes, Bytes::gib(20).0), "gshare:0.3");
        bytes.mem = Some(Bytes::gib(30));
        assert_eq!(size(&bytes, Bytes::gib(20).0), "gpu:1");
    }
}
