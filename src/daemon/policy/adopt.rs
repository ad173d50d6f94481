//! `gshare adopt PID`: turns a running process into a claim. It is counted and moved at once; nothing that it has
//! open is taken, and a program without the library gets no cap.

use std::sync::Arc;

use gshare_core::ledger::{Admission, GRANULARITY};
use gshare_core::machine::Event;
use gshare_core::{Bytes, ClaimId, GpuFacts, Ledger, Request};
use gshare_enforcer::proc::{self, PidFd, ProcessKey};
use gshare_proto::{ClaimSpec, ErrorCode, WireError, messages};

use super::super::claims::{Adoption, Asked};
use super::super::convert;
use super::super::journal::{ClaimRecord, SliceRecord};
use super::super::peer::Peer;
use crate::clock::unix_ms;
use crate::daemon::command::{ClaimCommand, Command, GpuCommand, LimitCommand};
use crate::daemon::connection::Sender;
use crate::daemon::gpu::Gpus;
use crate::daemon::live::Live;
use crate::daemon::order::{Act, Order};
use crate::daemon::whose;
use crate::daemon::world::World;
use crate::figures;

/// The process's use of a GPU: bytes, if the driver reports them.
type Held = Vec<(usize, Option<u64>)>;

/// Commands once it is a claim.
pub(crate) fn done(adoption: Adoption, world: &World<'_>, id: ClaimId) -> Vec<Command> {
    if !world.claims.contains_key(&id) {
        return Vec::new();
    }
    let (process, uid) = (adoption.process, adoption.asked.record.uid);
    move_descendants(world, id, process, uid);
    let told = adoption.by.map(|who| {
        let text = format!("{who} turned process {} into claim {id}", process.pid);
        Command::TellOwner { id, text }
    });
    let then = [
        Command::Gpus(GpuCommand::LookUpOwners),
        Command::Limits(LimitCommand::Account),
        Command::Refresh,
    ];
    told.into_iter().chain(then).collect()
}

/// `gshare adopt`; the answer comes when the core has decided.
pub(crate) fn order(
    world: &World<'_>,
    peer: &Peer,
    pid: u32,
    spec: ClaimSpec,
    out: &Sender,
) -> Result<Order, WireError> {
    let pid = pid.cast_signed();
    let (process, pidfd, uid) = adoptable(world, peer, pid)?;
    world.host.fences.may_leave(pid, uid)?;
    let held = held_by(world.gpus, pid);
    let spec = adopt_spec(pid, spec, &held)?;
    // Requested in the name of its owner, whoever calls.
    let owner = Peer {
        conn: peer.conn,
        uid,
        gids: world.host.names.account(uid).gids().into(),
        process: Some(process),
        pidfd: Some(Arc::new(pidfd)),
        on_machine: peer.on_machine,
        was_root: false,
    };
    let (request, _, mut record) = convert::request(world, &owner, &spec)?;
    has_room_for_it(world, pid, &request, &held)?;
    world.claims.room_for(&owner)?;
    let by = (peer.uid != uid).then(|| world.host.names.user(peer.uid));
    let act = Act {
        action: "adopt",
        target: format!("process {pid} of {}", world.host.names.user(uid)),
        before: "outside claims".to_owned(),
        after: "a claim".to_owned(),
        reason: None,
    };
    record.origin.adopted = true;
    record.terms.hold = false;
    record.process = Some(process);
    record.origin.place = super::deny::cgroup_of(pid).map(|p| p.display().to_string());
    let held = held.iter().filter_map(|(g, b)| Some((*g, Bytes((*b)?))));
    let adoption = Adoption {
        process,
        held: held.collect(),
        asked: Asked {
            peer: owner,
            out: out.clone(),
            record,
            since_ms: unix_ms(),
            request,
            told: false,
            told_no_start: None,
        },
        by: by.clone(),
    };
    Ok(Order {
        acts: by.map(|_| act).into_iter().collect(),
        then: vec![Command::Claims(ClaimCommand::Adopt(Box::new(adoption)))],
        ..Order::default()
    })
}

/// The default request: the process's memory on its GPUs.
fn adopt_spec(pid: i32, mut spec: ClaimSpec, held: &Held) -> Result<ClaimSpec, WireError> {
    spec.command = convert::command_line(pid).into();
    spec.hold = false;
    if spec.gpu_ids.is_empty() {
        spec.gpu_ids = held.iter().map(|(g, _)| g.to_string()).collect();
    }
    if spec.gpus_milli.is_some() || spec.mem.is_some() {
        return Ok(spec);
    }
    let size = |message: String| {
        WireError::new(ErrorCode::Usage, message)
            .with_hint(format!("give it a size: gshare adopt {pid} -g 0.25"))
    };
    let most = held
        .iter()
        .map(|(_, bytes)| *bytes)
        .collect::<Option<Vec<u64>>>();
    let most = most.ok_or_else(|| {
        size(format!(
            "the driver does not report the memory of process {pid}"
        ))
    })?;
    let Some(most) = most.into_iter().max().filter(|b| *b > 0) else {
        return Err(size(format!("process {pid} does not use a GPU yet")));
    };
    spec.mem = Some(most.next_multiple_of(GRANULARITY));
    spec.gpu_count = u32::try_from(held.len()).ok();
    Ok(spec)
}

/// The notice about a claim that the ledger had no room for when its process was adopted, while that lasts.
pub(crate) fn over_limit(world: &World<'_>, id: ClaimId) -> Option<String> {
    let adopted = world.claims.is_counted(id) && !world.config.is_off();
    let record = &world
        .claims
        .get(&id)
        .filter(|l| l.record.origin.adopted && adopted)?
        .record;
    let ledger = world.machine.ledger();
    let lacks = |s: &SliceRecord| {
        let g = world.gpus.gpu_index(&s.uuid)?;
        // Its own use counts as use without a claim.
        let own = world.driver_use(g).get(&id).and_then(|u| u.bytes);
        let free = ledger.mem_free(g).saturating_add(Bytes(own.unwrap_or(0)));
        let queued = ledger.admission(g) == Admission::Queue;
        (queued && (s.mem > free.0 || s.sm_milli > ledger.sm_free(g).milli())).then_some(g)
    };
    let gpu = record.slices.iter().find_map(lacks)?;
    Some(format!(
        "other claims hold all of GPU {gpu}: {id} keeps what it has there, but nothing there is kept for it"
    ))
}

/// Books adopted claims that the ledger had no room for, once it has.
pub(crate) fn with_room(world: &World<'_>) -> Vec<Command> {
    let event = |(&id, live): (&ClaimId, &Live)| {
        let record = &live.record;
        let unbooked = record.origin.adopted && world.claims.is_counted(id);
        let acts = !world.config.is_off() && !record.is_observed() && live.ending.is_none();
        if !unbooked || !acts || over_limit(world, id).is_some() {
            return None;
        }
        let held = record.slices.iter().map(|s| {
            let g = world.gpus.gpu_index(&s.uuid)?;
            let queued = world.machine.ledger().admission(g) == Admission::Queue;
            queued.then_some((g, Bytes(world.driver_use(g).get(&id)?.bytes?)))
        });
        let held = held.collect::<Option<Vec<_>>>()?;
        let mut request = world.machine.request_of(id)?.clone();
        let gpus = held.iter().map(|(g, _)| u32::try_from(*g));
        request.only_gpus = gpus.collect::<Result<_, _>>().ok()?;
        Some(Command::Core(Event::Adopt { id, request, held }))
    };
    world.claims.iter().filter_map(event).collect()
}

/// The process, if this user may adopt it.
fn adoptable(
    world: &World<'_>,
    peer: &Peer,
    pid: i32,
) -> Result<(ProcessKey, PidFd, u32), WireError> {
    let gone = || {
        WireError::new(
            ErrorCode::NotAvailable,
            format!("there is no process {pid}"),
        )
    };
    let pidfd = PidFd::open(pid).ok().flatten().ok_or_else(gone)?;
    let process = proc::key(pid).ok_or_else(gone)?;
    let uids = proc::uids(pid).ok_or_else(gone)?;
    let own = uids.real == peer.uid && uids.effective == peer.uid;
    if !own && !peer.is_root() {
        let whose = world.host.names.user(uids.real);
        return Err(WireError::new(
            ErrorCode::NotPermitted,
            messages::only_owner(format!("process {pid}"), whose, "adopt"),
        ));
    }
    if let Some(id) = whose::claim_of(world, pid) {
        let text = format!("process {pid} is already in {id}");
        return Err(WireError::new(ErrorCode::Usage, text));
    }
    if whose::is_own_process(world, pid) || pid == 1 {
        let text = format!("process {pid} belongs to the system or to gshare itself");
        return Err(WireError::new(ErrorCode::Usage, text));
    }
    // The facts are about this process: it lived when its handle was taken, and still lives.
    if pidfd.has_exited() {
        return Err(gone());
    }
    Ok((process, pidfd, uids.real))
}

/// The answer about the new claim: what applies from now on, and what does not.
pub(crate) fn adopted_text(world: &World<'_>, record: &ClaimRecord, size: &str) -> String {
    let id = ClaimId(record.id);
    let pid = record.process.map_or(0, |p| p.pid);
    let what = figures::what(None, &record.command);
    let opens = match (&world.host.fences.tree, &world.host.fences.filters) {
        (Some(_), Some(_)) => {
            "it cannot open other GPUs from now on; those it has open stay usable until it exits"
        }
        (Some(_), None) => "not restricted: there is no device filter here",
        (None, _) => "not restricted: there are no cgroups here",
    };
    format!(
        "{id}: {what} (pid {pid}) has a claim now: {size}\n  \
         counted: its memory and GPU time, from now on; what it starts belongs to {id}\n  \
         GPUs: {opens}\n  \
         limit: none while it runs. To limit it, start it again in a claim: gshare claim ... -- {what}\n  \
         over-use: gshare warns you if it uses more than the size of {id}\n  \
         end: {id} ends when the process exits; gshare release {id} ends the process, too",
    )
}

/// A claim smaller than its process's use would be in over-use at once.
fn has_room_for_it(
    world: &World<'_>,
    pid: i32,
    request: &Request,
    held: &Held,
) -> Result<(), WireError> {
    for (gpu, bytes) in held {
        let has = Bytes(bytes.unwrap_or(0));
        let needed = |facts: &GpuFacts| {
            let of = facts.allocatable().unwrap_or_default();
            Ledger::mem_needed(facts, request, of.saturating_add(has))
        };
        let facts = world.machine.ledger().gpus().get(*gpu);
        if facts.and_then(needed).is_some_and(|bytes| bytes < has) {
            return Err(WireError::new(
                ErrorCode::Usage,
                format!("process {pid} has {has} on GPU {gpu}, more than is claimed for it"),
            )
            .with_hint(format!(
                "without -g and --gpu-mem the claim is as large as the current use: gshare adopt {pid}"
            )));
        }
    }
    Ok(())
}

/// Its descendants move too, if they are its owner's and in no claim.
fn move_descendants(world: &World<'_>, id: ClaimId, process: ProcessKey, uid: u32) {
    let Some(cgroup) = world.claims.get(&id).and_then(|l| l.cgroup.as_ref()) else {
        return;
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    for pid in pids {
        let Ok(Some(pidfd)) = PidFd::open(pid) else {
            continue;
        };
        let own = proc::uids(pid).is_some_and(|u| u.real == uid && u.effective == uid);
        let mut line = proc::ancestors(pid).into_iter().skip(1);
        if own
            && line.any(|a| a.key() == process)
            && whose::claim_of(world, pid).is_none()
            && let Err(error) = cgroup.move_process(pid, Some(&pidfd))
        {
            tracing::debug!(pid, %error, "a descendant of an adopted process was not moved");
        }
    }
}

fn held_by(gpus: &Gpus, pid: i32) -> Held {
    let on = |g: usize| {
        let processes = gpus.reading(g)?.processes.as_ref()?;
        let process = processes.iter().find(|p| p.pid == pid)?;
        Some((g, process.bytes))
    };
    (0..gpus.len()).filter_map(on).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    #[test]
    fn a_process_is_adopted_once_and_with_what_it_has() {
        let mut scene = Scene::of(1);
        let own = std::process::id();
        let (out, peer) = (Sender::closed(), Peer::root());
        let adopt = |scene: &Scene, pid: u32, gpus_milli| {
            let spec = ClaimSpec {
                gpus_milli,
                ..ClaimSpec::default()
            };
            order(&scene.world(), &peer, pid, spec, &out)
        };
        let gone = adopt(&scene, u32::MAX / 2, Some(500)).expect_err("there is none");
        assert!(gone.message.contains("there is no process"), "{gone:?}");
        let idle = adopt(&scene, 1, Some(500)).expect_err("it is the system's");
        assert!(idle.message.contains("belongs to the system"), "{idle:?}");
        let itself = adopt(&scene, own, Some(500)).expect_err("it is the service's own");
        assert!(itself.message.contains("gshare itself"), "{itself:?}");
        let process = proc::key(own.cast_signed()).expect("it lives");
        scene.claim(1, 0).record.process = Some(process);
        let again = adopt(&scene, own, Some(500)).expect_err("it is in a claim");
        assert!(again.message.contains("already in c1"), "{again:?}");
    }
}
