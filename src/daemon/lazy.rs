//! Claims that hold nothing until a program needs the GPU: `gshare claim --lazy`, and notebook kernels.
//!
//! Such a claim is journaled and has a cgroup that opens no GPU. The first process that initialises the driver
//! requests its GPUs from the core; its registration, and all that follow, are answered when the GPU is granted.
//! Until then they are told their place.

pub(crate) mod places;

use std::time::Duration;

use gshare_abi::wire::{Answer, Register};
use gshare_core::machine::{Event, Now};
use gshare_core::{ClaimId, Slice};
use gshare_proto::{ClaimSpec, ErrorCode, Reply, WireError, messages};

use super::claims;
use super::claims::{Asked, Claims};
use super::connection::UNREAD_PLACES;
use super::connection::{ConnId, Sender};
use super::effects::Effects;
use super::fact::Fact;
use super::features::Features;
use super::gpus;
use super::journal::ClaimRecord;
use super::live::{Live, Wanting};
use super::peer::Peer;
use super::tracks::Sizes;
use super::world::World;
use super::{convert, ending, grant, members, policy, reclaim, stage};
use crate::clock::unix_ms;
use crate::daemon::command::{ClaimCommand, Command, LimitCommand};

/// Shortest time between two lines about the queue to a waiting program.
const HEARD: Duration = Duration::from_secs(3);

/// Maximum number of pending registrations per process.
const COPIES: usize = 16;

/// Makes a lazy claim: everything but GPUs.
pub(crate) fn lay_by(
    with: &mut Effects,
    id: ClaimId,
    peer: &Peer,
    spec: ClaimSpec,
    mut record: ClaimRecord,
    out: &Sender,
) -> Vec<Command> {
    record.granted_ms = unix_ms();
    record.runs.strict = with.host.driver.strict.on;
    record.terms.ask_later(spec);
    let uid = record.uid;
    let mut done = Vec::new();
    match try_lay_by(with, id, peer, record) {
        Ok(()) => {
            let text = "made: holds no GPU until its first CUDA call";
            with.journal.note(uid, id, text);
            out.reply(&grant::granted(&with.world(), id));
        }
        Err(error) => {
            let text = format!("{id} could not be made: {error:#}");
            out.error(WireError::new(ErrorCode::Internal, text.clone()));
            done.push(Command::TellUser(uid, Some(id), text));
            done.extend(ending::dismantle(with, id, "could not be made"));
        }
    }
    done.push(Command::Publish);
    done
}

fn try_lay_by(
    with: &mut Effects,
    id: ClaimId,
    peer: &Peer,
    record: ClaimRecord,
) -> anyhow::Result<()> {
    with.journal.put(&record)?;
    with.claims.insert(id, Live::new(record));
    grant::make_cgroup(with, id)?;
    gpus::open_gpus(with, id)?;
    grant::adopt_command(with, id, peer)
}

/// A restarted kernel becomes the command of its notebook's claim.
pub(crate) fn kernel_again(
    with: &mut Effects,
    peer: &Peer,
    spec: &ClaimSpec,
) -> Option<Result<Reply, WireError>> {
    let kernel = spec.kernel.as_ref()?;
    let of_it = |live: &Live| {
        let known = live.record.origin.kernel.as_ref();
        live.record.uid == peer.uid
            && live.ending.is_none()
            && known.is_some_and(|k| *k.id == *kernel.id)
    };
    let (&id, live) = with.claims.iter().find(|(_, live)| of_it(live))?;
    let (mut record, alive) = (live.record.clone(), live.command_alive);
    record.process = peer.process;
    record.origin.kernel = Some(kernel.clone().into());
    let adopted = grant::adopt_command(with, id, peer);
    let adopted = adopted.and_then(|()| Ok(with.journal.put(&record)?));
    let live = with.claims.get_mut(&id)?;
    if let Err(error) = adopted {
        // It still waits for a kernel that can be moved into it.
        live.command_alive = alive;
        let text =
            format!("{id}: could not put its restarted kernel back into the claim: {error:#}");
        return Some(Err(WireError::new(ErrorCode::Internal, text)));
    }
    live.record = record;
    let text = "its kernel was started again";
    with.journal.note(peer.uid, id, text);
    Some(Ok(grant::granted(&with.world(), id)))
}

/// A process needs the GPU of a claim that has none.
pub(crate) fn want(
    with: &mut Effects,
    id: ClaimId,
    peer: &Peer,
    register: &Register,
    out: &Sender,
) -> Vec<Command> {
    let Some(live) = with.claims.get_mut(&id) else {
        return Vec::new();
    };
    // A process registers once per copy of the library, and has few copies; more would only be answered late.
    let of = |w: &&Wanting| w.peer.process == peer.process;
    let own: Vec<&Wanting> = live.wanting.iter().filter(of).collect();
    if own.iter().any(|w| w.peer.conn == peer.conn) {
        return Vec::new();
    }
    if own.len() >= COPIES {
        let why = format!("this process already has {COPIES} requests waiting for the GPU of {id}");
        out.refuse_member("not_available", why);
        return Vec::new();
    }
    live.wanting.push(Wanting {
        peer: peer.clone(),
        register: register.clone(),
        out: out.clone(),
    });
    if with.claims.waiting.contains_key(&id) {
        // Its place is sent again with the next change; send the first now.
        if let Some(answer) = with.claims.get(&id).and_then(|l| l.told_wait.as_ref()) {
            out.member(answer);
        }
        return Vec::new();
    }
    let asked = match with.journal.newer() {
        Some(why) => Err(WireError::new(ErrorCode::NotAvailable, why)),
        None => asked_for(&with.world(), id, peer, out),
    };
    let asked = asked.inspect_err(|error| claims::refuse_wanting(&mut with.claims, id, error));
    asked.unwrap_or_default().into_iter().collect()
}

/// The core has found room: the claim gets its GPUs, and the waiting processes their pages. If that fails, it holds
/// nothing, as before.
pub(crate) fn grant(
    with: &mut Effects,
    id: ClaimId,
    slices: &[Slice],
    ends: Option<Now>,
) -> Result<Vec<Command>, Vec<Command>> {
    let asked = with.claims.waiting.remove(&id).ok_or_else(Vec::new)?;
    let wanted = |live: &&Live| live.ending.is_none() && live.wanting.iter().any(|w| !w.out.gone());
    with.claims.get(&id).filter(wanted).ok_or_else(Vec::new)?;
    let mut done = try_grant(with, id, slices, ends).map_err(|error| {
        let text = messages::not_granted(id, format_args!("{error:#}"));
        empty_handed(with, id);
        let error = WireError::new(ErrorCode::Internal, text.clone());
        claims::refuse_wanting(&mut with.claims, id, &error);
        vec![Command::NoticeOf { id, text }]
    })?;
    let waited = unix_ms().saturating_sub(asked.since_ms);
    let waited = Duration::from_millis(waited);
    done.push(Command::Tell(Fact::Granted { waited }));
    let live = with.claims.get(&id).ok_or_else(Vec::new)?;
    if let Some(size) = grant::size_text(&with.world(), &live.record) {
        let host = &mut with.host;
        host.helpers
            .say(live, &format!("{id} has {size}"), &host.events);
    }
    let live = with.claims.get_mut(&id).ok_or_else(Vec::new)?;
    live.told_wait = None;
    for wanting in std::mem::take(&mut live.wanting) {
        let (peer, asked) = (&wanting.peer, &wanting.register);
        done.extend(members::register(with, peer, asked, &wanting.out));
    }
    Ok(done)
}

fn try_grant(
    with: &mut Effects,
    id: ClaimId,
    slices: &[Slice],
    ends: Option<Now>,
) -> anyhow::Result<Vec<Command>> {
    let ends_ms = ends.map(|at| with.core.moment().unix_at(at));
    let slices_of = with.gpus.slice_records(slices);
    let Some(uid) = with.claims.get(&id).map(|live| live.record.uid) else {
        return Ok(Vec::new());
    };
    let uuids = slices_of.iter().map(|s| s.uuid.as_str());
    let stage = stage::stage_of(&with.world(), uid, uuids);
    let Some(live) = with.claims.get_mut(&id) else {
        return Ok(Vec::new());
    };
    live.record.runs.stage = stage;
    live.record.terms.ends_ms = ends_ms;
    live.record.slices = slices_of;
    with.journal.put(&live.record)?;
    gpus::open_gpus(with, id)?;
    grant::make_seats(with, id, slices)?;
    let mut done = vec![Command::Tell(Fact::Arrived { claim: id })];
    done.extend(policy::carry_out(with, LimitCommand::LimitMemory(id)));
    Ok(done)
}

/// Undoes a grant that failed.
fn empty_handed(with: &mut Effects, id: ClaimId) {
    let Some(live) = with.claims.get_mut(&id) else {
        return;
    };
    live.seats.clear();
    live.record.terms.ends_ms = None;
    for slice in std::mem::take(&mut live.record.slices) {
        if let Some(gpu) = with.gpus.gpu_index(&slice.uuid) {
            let _ = std::fs::remove_file(with.host.limits_path(&with.gpus, id, gpu));
        }
    }
    with.journal
        .keep(&live.record, "that a claim holds nothing");
    if let Err(error) = gpus::open_gpus(with, id) {
        tracing::error!(%id, "a claim got no GPU, but its programs may still open some: {error}");
    }
}

/// A lazy claim that requests its GPUs now.
fn asked_for(
    world: &World<'_>,
    id: ClaimId,
    peer: &Peer,
    out: &Sender,
) -> Result<Option<Command>, WireError> {
    let Some(live) = world.claims.get(&id) else {
        return Ok(None);
    };
    let record = live.record.clone();
    let owner = Peer {
        uid: record.uid,
        ..peer.clone()
    };
    let spec = record.terms.lazy.as_deref().cloned().unwrap_or_default();
    let (request, patience, _) = convert::request(world, &owner, &spec)?;
    let asked = Asked {
        peer: peer.clone(),
        out: out.clone(),
        record,
        since_ms: unix_ms(),
        request,
        told: false,
        told_no_start: None,
    };
    Ok(Some(Command::Claims(ClaimCommand::Ask(
        id,
        Box::new(asked),
        patience,
    ))))
}

/// Tells the callers of waiting claims that know no start theirs, as soon as it is known.
pub(crate) fn starts(world: &World<'_>, features: &Features, sizes: &Sizes) -> Vec<Command> {
    let untold = |asked: &Asked| asked.told_no_start.is_some_and(|at| at.elapsed() >= HEARD);
    let untold = world
        .claims
        .waiting
        .iter()
        .filter(|(_, asked)| untold(asked));
    let told = untold.filter_map(|(&id, _)| {
        let (position, reason) = world.machine.place(id)?;
        let known = reclaim::start_known(world, features, id, reason);
        let start = known.or_else(|| reclaim::start_expected(world, sizes, id));
        let reason = reason.clone();
        Some(match start {
            Some(_) => Command::Claims(ClaimCommand::TellStart {
                id,
                position,
                reason,
                start,
            }),
            None => Command::Claims(ClaimCommand::NoStart(id)),
        })
    });
    told.collect()
}

/// Tells the processes that wait for the GPU of a claim their place.
pub(crate) fn tell_wanting(claims: &mut Claims, id: ClaimId, position: u32, reason: String) {
    let Some(live) = claims.get_mut(&id) else {
        return;
    };
    let answer = Answer::Wait {
        claim: id.0,
        position,
        reason,
    };
    for wanting in &live.wanting {
        if wanting.out.unsent() < UNREAD_PLACES {
            wanting.out.member(&answer);
        }
    }
    live.told_wait = Some(answer);
}

impl Claims {
    /// A connection has ended: its requests for claims are withdrawn, and its processes no longer wait.
    pub(crate) fn closed(&mut self, conn: ConnId) -> Vec<Event> {
        let mut gone: Vec<ClaimId> = Vec::new();
        for (id, live) in self.iter_mut() {
            let before = live.wanting.len();
            live.wanting.retain(|w| w.peer.conn != conn);
            if before > 0 && live.wanting.is_empty() {
                live.told_wait = None;
                gone.push(*id);
            }
        }
        let asked = self.waiting.iter().filter(|(_, a)| a.peer.conn == conn);
        let asked = asked.map(|(id, _)| *id).filter(|id| !self.contains_key(id));
        gone.extend(asked);
        gone.retain(|id| self.waiting.remove(id).is_some());
        gone.into_iter().map(|id| Event::Gone { id }).collect()
    }

    /// Whether a claim has requested no GPU yet, or not got it.
    pub(crate) fn is_without(&self, id: ClaimId) -> bool {
        let live = self.get(&id);
        live.is_some_and(|l| {
            l.record.terms.lazy.is_some() && l.record.slices.is_empty() && l.ending.is_none()
        })
    }
}

/// The answer about a claim without GPUs to a process that does not request them.
pub(crate) fn later(claims: &Claims, id: ClaimId) -> Answer {
    let spec = claims.get(&id).and_then(|l| l.record.terms.lazy.as_deref());
    Answer::Later {
        claim: id.0,
        gpus: places::count(spec),
    }
}
