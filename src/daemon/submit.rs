//! Requests for claims, up to the core's decision, and the messages to their callers until then.

use std::time::Duration;

use gshare_core::Request;
use gshare_core::machine::Event;
use gshare_proto::{ClaimSpec, ErrorCode, Reply, WireError};

use super::admin::{quota, rights};
use super::claims::Asked;
use super::command::{ClaimCommand, Command};
use super::connection::Sender;
use super::effects::Effects;
use super::features::Features;
use super::journal::{ClaimRecord, HoldingRecord};
use super::peer::Peer;
use super::policy::adopt;
use super::reasons;
use super::world::{World, world_of};
use super::{
    act, claim_for, container, convert, grant, lazy, members, reclaim, resize, stage, story,
    waiting,
};
use gshare_core::ClaimId;
use gshare_core::Slice;
use gshare_core::machine::Now;

/// Carries out a command about what is asked for.
pub(crate) fn carry_out(
    with: &mut Effects,
    features: &Features,
    command: ClaimCommand,
) -> Vec<Command> {
    match command {
        ClaimCommand::Submit(mut asked, patience) => {
            let (core, journal) = (&with.core, &mut with.journal);
            let (id, since_ms) = with.claims.number_of(core, journal, &asked.record);
            (asked.record.id, asked.since_ms) = (id.0, since_ms);
            return carry_out(with, features, ClaimCommand::Ask(id, asked, patience));
        }
        ClaimCommand::Ask(id, asked, patience) => {
            let event = waiting::event(&with.world(), id, &asked, patience);
            let parties = quota::parties(&with.world(), id, &asked.record);
            let record = Box::new(asked.record.clone());
            let run_time = Command::AskRunTime(id, record, asked.request.gpus);
            with.claims.waiting.insert(id, *asked);
            return vec![run_time, Command::Events(vec![parties, event])];
        }
        ClaimCommand::Adopt(mut adoption) => {
            let id = with.journal.take_id();
            let (asked, event) = adoption.numbered(id);
            with.claims.waiting.insert(id, asked);
            let adopted = Command::Claims(ClaimCommand::Adopted(id, adoption));
            return vec![Command::Core(event), adopted];
        }
        ClaimCommand::Adopted(id, adoption) => return adopt::done(*adoption, &with.world(), id),
        ClaimCommand::Place {
            id,
            position,
            reason,
        } => {
            let asked = with.claims.waiting.get_mut(&id);
            if asked.is_some_and(|asked| !std::mem::replace(&mut asked.told, true)) {
                let told = with.journal.set_meta("told", &id.0.to_string());
                let claims = &mut with.claims;
                match told {
                    // A claim that cannot be journaled is refused.
                    Err(error)
                        if !claims.contains_key(&id)
                            && !claims.remembered.waiting.contains(&id) =>
                    {
                        act::refuse(claims, id, rights::unwritten(&error));
                        return vec![Command::Core(Event::Gone { id })];
                    }
                    Err(error) => tracing::warn!(%id, %error, "cannot write to the journal"),
                    Ok(()) => {}
                }
                let text = reasons::waits_text(&with.world(), features, id, &reason);
                let text = format!("waits: {text}");
                story::write_down(&world_of!(with), &mut with.journal, id, &text);
            }
            let levers = (features, &with.levers);
            let start = act::tell_place(&with.world(), levers, (id, position), &reason);
            return start.into_iter().collect();
        }
        ClaimCommand::TellStart {
            id,
            position,
            reason,
            start,
        } => {
            act::tell_start(with, features, (id, position), &reason, start.as_deref());
        }
        // The start is still unknown.
        ClaimCommand::NoStart(id) => {
            if let Some(asked) = with.claims.waiting.get_mut(&id) {
                asked.told_no_start = Some(std::time::Instant::now());
            }
        }
        ClaimCommand::Refuse(id, error) => act::refuse(&mut with.claims, id, error),
        ClaimCommand::Grant {
            id,
            slices,
            ends,
            counted,
        } => return grant(with, id, &slices, ends, counted),
        ClaimCommand::Enter(id) => {
            return grant::enter(with, id).unwrap_or_else(|error| {
                tracing::error!(%id, "cannot set up the cgroup of a claim made with claim-for yet: {error:#}");
                Vec::new()
            });
        }
        ClaimCommand::IntoSlice(id) => {
            if let Err(error) = container::into_slice(with, id) {
                tracing::warn!(%id, "it cannot have containers in a slice of systemd: {error:#}");
            }
        }
        ClaimCommand::WatchExit(id, process, fd) => with.host.watch_exit(id, process, fd),
        ClaimCommand::Resize(asked) => {
            let (wish, change, patience) = *asked;
            let event = with.claims.wishes.ask(wish, change, patience);
            return vec![Command::Core(event)];
        }
        ClaimCommand::Resized(action) => return resize::decided(with, action),
        ClaimCommand::Share(id, slices) => {
            let told = reclaim::share(with, id, &slices);
            return told.into_iter().collect();
        }
        ClaimCommand::Shrink(id) => {
            let Some(shrink) = resize::shrink(&with.world(), id) else {
                return Vec::new();
            };
            let event = shrink.event(with.claims.wishes.ticket());
            let shrunk = Command::Claims(ClaimCommand::Shrunk(Box::new(shrink)));
            return vec![Command::Core(event), shrunk];
        }
        ClaimCommand::Shrunk(shrink) => {
            return resize::shrunk(&shrink, &with.world()).into_iter().collect();
        }
    }
    Vec::new()
}

/// Whether the service chooses the size: earlier runs are looked up first.
pub(crate) fn is_to_be_sized(world: &World<'_>, peer: &Peer, spec: &ClaimSpec) -> bool {
    spec.auto && spec.mem.is_none() && claim_for::joins_behalf(world, peer).is_none()
}

/// Handles a request; the answer comes when it is decided.
pub(crate) fn submit(
    with: &mut Effects,
    peer: Peer,
    spec: ClaimSpec,
    out: &Sender,
) -> Vec<Command> {
    match submitted(with, peer, spec, out) {
        Ok(commands) => commands,
        Err(error) => vec![Command::Reply(out.clone(), Err(error))],
    }
}

/// What a caller asks for, in a claim and in its dry run.
pub(crate) fn request(
    world: &World<'_>,
    peer: &Peer,
    spec: &ClaimSpec,
) -> Result<(Request, Option<Duration>, ClaimRecord), WireError> {
    let (mut request, patience, record) = convert::request(world, peer, spec)?;
    // Root of a container has no claims here, not even one that moves nothing.
    let contained = peer.process.filter(|_| peer.uid == 0 && !peer.on_machine);
    // gshare neither moves nor starts their programs.
    let observed = stage::observes(world, peer.uid);
    if let Some(process) = record.process.or(contained).filter(|_| !observed) {
        world.host.fences.may_leave(process.pid, peer.uid)?;
    }
    // No command would end it.
    if spec.hold && spec.command.is_empty() && !spec.lazy && !observed {
        request.lease = request.lease.or(world.config.claims.held_limit);
    }
    Ok((request, patience, record))
}

fn submitted(
    with: &mut Effects,
    peer: Peer,
    spec: ClaimSpec,
    out: &Sender,
) -> Result<Vec<Command>, WireError> {
    let answer = |reply: Reply| vec![Command::Reply(out.clone(), Ok(reply))];
    if let Some(joined) = claim_for::joins_behalf(&with.world(), &peer) {
        return joined.map(answer);
    }
    // A client that lost its connection during a restart of the service asks again: same process, same claim. A
    // different request (a claim within a claim) is a new claim.
    let (request, patience, mut record) = request(&with.world(), &peer, &spec)?;
    let observed = stage::observes(&with.world(), peer.uid);
    let known = with.claims.iter().find(|(_, live)| {
        live.command_alive && live.ending.is_none() && live.record.asks_as(&record)
    });
    if let Some((&id, live)) = known {
        // The previous service may have ended between the journal and the move.
        members::adopt_again(live, &peer)?;
        return Ok(answer(grant::granted(&with.world(), id)));
    }
    if let Some(again) = lazy::kernel_again(with, &peer, &spec) {
        let mut out = answer(again?);
        out.push(Command::Publish);
        return Ok(out);
    }
    match (observed, spec.no_library) {
        (true, _) => {}
        (false, true) if !with.config.claims.no_library => {
            return Err(WireError::new(
                ErrorCode::NotPermitted,
                "--no-library is forbidden here (no-library in [claims])",
            ));
        }
        (false, true) => with.host.driver.strict.may_go_without_library(&request)?,
        (false, false) => with.host.driver.strict.may_launch(&peer)?,
    }
    with.claims.room_for(&peer)?;
    let (id, since_ms) = (with.claims).number_of(&with.core, &mut with.journal, &record);
    record.id = id.0;
    if spec.lazy && !observed {
        return Ok(lazy::lay_by(with, id, &peer, spec, record, out));
    }
    let asked = Asked {
        peer,
        out: out.clone(),
        record,
        since_ms,
        request,
        told: false,
        told_no_start: None,
    };
    let ask = ClaimCommand::Ask(id, Box::new(asked), patience);
    Ok(vec![Command::Claims(ask)])
}

/// Carries out a grant. If it fails the claim holds nothing.
fn grant(
    with: &mut Effects,
    id: ClaimId,
    slices: &[Slice],
    ends: Option<Now>,
    counted: bool,
) -> Vec<Command> {
    let holding = match counted {
        true => HoldingRecord::Counted,
        false => HoldingRecord::Here,
    };
    let granted = if let Some(live) = with.claims.get_mut(&id) {
        match std::mem::replace(&mut live.record.holding, holding) {
            HoldingRecord::Counted => Ok(grant::booked(with, id)),
            _ => lazy::grant(with, id, slices, ends),
        }
    } else if let Some(mut asked) = with.claims.waiting.remove(&id) {
        asked.record.holding = holding;
        grant::grant_asked(with, id, &asked, slices, ends)
    } else {
        Err(Vec::new())
    };
    if granted.is_err() {
        with.core.then(Event::Gone { id });
    } else if let Some(live) = with.claims.get(&id) {
        let size = grant::size_text(&with.world(), &live.record).unwrap_or_default();
        let text = format!("granted: {size}");
        with.journal.note(live.record.uid, id, &text);
    }
    granted.unwrap_or_else(|commands| commands)
}
