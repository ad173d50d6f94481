//! Processes without a claim, accounted as claims of their own: an owner, a number, no cap. Such an account ends with
//! its process, or when the process leaves the GPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

use gshare_config::Unclaimed;
use gshare_core::ClaimId;
use gshare_enforcer::gpu::GpuProcess;
use gshare_enforcer::proc::{self, PidFd, ProcessKey};
use gshare_proto::{Caps, ClaimGpu, ClaimState, ClaimView, Figure, ProcessView, Source};

use super::super::convert;
use super::super::gpu::DriverUse;
use super::super::journal::{ClaimRecord, OriginRecord};
use super::super::outside::{AutoClaim, Change, Seen};
use super::super::whose::Whose;
use crate::clock::unix_ms;
use crate::daemon::features::Features;
use crate::daemon::stage;
use crate::daemon::whose;
use crate::daemon::world::World;
use crate::{figures, identity};

/// Why an auto-claim ends.
pub(crate) const EXITED: &str = "process ended";

/// Processes to account by the newest sample, and the accounts that begin and end. `next` is the number of the first
/// new one.
pub(crate) fn changes(world: &World<'_>, next: ClaimId) -> (Seen, Vec<Change>) {
    let autos = &world.policy.auto;
    if stage::unclaimed_policy(world) == Unclaimed::Observe {
        let cause = "no longer accounted as a claim";
        let end = |id: &ClaimId| Change::End(*id, cause.to_owned());
        return (Seen::new(), autos.keys().map(end).collect());
    }
    let seen = outside_now(world);
    let is_known = |process: &ProcessKey| autos.values().any(|a| a.process() == *process);
    let new = seen.iter().filter(|(process, _)| !is_known(process));
    let mut changes: Vec<Change> = Vec::new();
    for (process, uses) in new {
        let id = ClaimId(next.0 + changes.len() as u64);
        changes.extend(begin(world, id, *process, uses));
    }
    for (id, auto) in autos.iter() {
        let gone = !seen.contains_key(&auto.process());
        let cause = gone.then(|| end_of(world, auto)).flatten();
        changes.extend(cause.map(|cause| Change::End(*id, cause)));
    }
    (seen, changes)
}

fn begin(
    world: &World<'_>,
    id: ClaimId,
    process: ProcessKey,
    uses: &BTreeMap<usize, DriverUse>,
) -> Option<Change> {
    let uid = proc::uids(process.pid)?.real;
    let pidfd = PidFd::open(process.pid).ok().flatten()?;
    let record = ClaimRecord {
        id: id.0,
        uid,
        project: convert::project(world, uid, None).ok()?,
        class: gshare_core::Class::default().name().to_owned(),
        command: convert::command_line(process.pid).into(),
        granted_ms: unix_ms(),
        process: Some(process),
        origin: OriginRecord {
            uncapped: true,
            place: super::deny::cgroup_of(process.pid).map(|p| p.display().to_string()),
            ..OriginRecord::default()
        },
        ..ClaimRecord::default()
    };
    // The facts are about this process only if it is still the same.
    if proc::key(process.pid) != Some(process) || pidfd.has_exited() {
        return None;
    }
    let text = format!(
        "{id}: {} of {} (pid {}) uses {} without a claim; gshare counts it as {id}, without a limit",
        figures::public(&record.command),
        world.host.names.user(uid),
        process.pid,
        figures::gpus(uses.keys()),
    );
    Some(Change::Begin {
        record: Box::new(record),
        process,
        pidfd: Arc::new(pidfd),
        text,
    })
}

/// Whether a process without a claim is accounted to its owner: neither graphics nor gshare's own.
fn is_adoptable(world: &World<'_>, process: &GpuProcess) -> bool {
    !process.graphics && !whose::is_own_process(world, process.pid)
}

/// Accounted processes without a claim, and their use by GPU.
fn outside_now(world: &World<'_>) -> Seen {
    let mut found = Seen::new();
    let mut known: BTreeMap<i32, Option<ProcessKey>> = BTreeMap::new();
    for g in 0..world.gpus.len() {
        let Some(reading) = world.gpus.reading(g) else {
            continue;
        };
        for process in reading.processes.iter().flatten() {
            if world.whose(process.pid) != Whose::Outside {
                continue;
            }
            let key = *known.entry(process.pid).or_insert_with(|| {
                let adoptable = is_adoptable(world, process);
                adoptable.then(|| proc::key(process.pid)).flatten()
            });
            if let Some(key) = key {
                let used = DriverUse {
                    processes: 1,
                    bytes: process.bytes,
                    busy: process.time_busy,
                };
                found.entry(key).or_default().insert(g, used);
            }
        }
    }
    found
}

/// Why an account ends: its process has a claim, has left the GPUs, or cannot be seen now.
fn end_of(world: &World<'_>, auto: &AutoClaim) -> Option<String> {
    let process = auto.process();
    if let Some(claim) = whose::claim_of(world, process.pid) {
        return Some(format!("now in {claim}"));
    }
    if proc::key(process.pid) != Some(process) {
        return Some(EXITED.to_owned());
    }
    let listed = |g: &usize| {
        let reading = world.gpus.reading(*g);
        reading.is_some_and(|r| r.processes.is_some())
    };
    let left = match auto.uses().is_empty() {
        true => (0..world.gpus.len()).all(|g| listed(&g)),
        false => auto.uses().keys().all(listed),
    };
    left.then(|| "left the GPU".to_owned())
}

/// An account of an earlier run of the service, with a handle on its process; `None` if that has ended.
pub(crate) fn restored(record: &ClaimRecord) -> Option<(ProcessKey, PidFd)> {
    let process = record.process?;
    let fd = PidFd::open(process.pid).ok().flatten()?;
    (proc::key(process.pid) == Some(process) && !fd.has_exited()).then_some((process, fd))
}

fn auto_view(world: &World<'_>, features: &Features, id: ClaimId, auto: &AutoClaim) -> ClaimView {
    let record = auto.record();
    let pid = auto.pid().cast_unsigned();
    let identity = features.identity.process(auto.process());
    let notebook = identity::notebook_name(&identity);
    let containers = identity::containers(&identity);
    let what = convert::what_in(&containers, notebook, &record.command);
    let number = |g: usize| u32::try_from(g).unwrap_or(u32::MAX);
    let part = |(g, used): (&usize, &DriverUse)| ClaimGpu {
        gpu: number(*g),
        uuid: world.gpus[*g].uuid.clone(),
        sm_limit: 1.0,
        mem_request: used.bytes.unwrap_or(0),
        mem_limit: world.gpus[*g].total,
        mem_used: used.bytes,
        time_busy: used.busy.map(|value| Figure {
            value,
            source: Source::TimeBusy,
            estimate: false,
        }),
        ..ClaimGpu::default()
    };
    let process = |(g, used): (&usize, &DriverUse)| ProcessView {
        pid,
        gpu: number(*g),
        mem_used: used.bytes,
        time_busy: used.busy,
        what: what.clone(),
    };
    ClaimView {
        id: id.to_string(),
        uid: record.uid,
        user: world.host.names.user(record.uid),
        project: record.project.clone(),
        class: record.class.clone(),
        what: what.clone(),
        command: record.command.to_vec(),
        containers,
        pid: Some(pid),
        caps: Caps::None,
        adopted: true,
        state: ClaimState::Running,
        state_text: "no claim".to_owned(),
        since_ms: record.granted_ms,
        gpus: auto.uses().iter().map(part).collect(),
        members: vec![pid],
        processes: auto.uses().iter().map(process).collect(),
        identity,
        ..ClaimView::default()
    }
}

/// The accounts for the screen.
pub(crate) fn auto_views(world: &World<'_>, features: &Features) -> Vec<ClaimView> {
    let view = |(id, auto): (&ClaimId, &AutoClaim)| auto_view(world, features, *id, auto);
    world.policy.auto.iter().map(view).collect()
}
