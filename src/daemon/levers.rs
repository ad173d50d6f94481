//! Carries out the core's decisions to offload, restore and move running claims.
//!
//! The journal says what is under way before anything is done, and the driver says how far each process is. So a
//! restarted service continues where the previous one ended ([`resumed`]).

pub(crate) mod facts;
pub(crate) mod job;
mod lost;
pub(crate) mod place;
mod stopped;
mod suspended;
pub(crate) mod wishes;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use gshare_abi::State;
use gshare_abi::wire::Answer;
use gshare_core::machine::lever::{Failure, ParkedBy, Wish};
use gshare_core::machine::{Action, Event};
use gshare_core::{Bytes, ClaimId, Slice};
use gshare_enforcer::proc;
use gshare_proto::Reply;

use job::{Job, Kind, Maps, Members, Patience, Prepared};
use suspended::Suspended;

use super::claims::Claims;
use super::command::{Command, EndCommand, LeverCommand, LimitCommand};
use super::effects::Effects;
use super::engine::LeverState;
use super::fact::Fact;
use super::features::Features;
use super::gpu::Gpus;
use super::gpus;
use super::journal::{ClaimRecord, HoldingRecord, JournalError, ParkedRecord, SliceRecord};
use super::live::Live;
use super::msg::{LeverMsg, Msg, Outcome, Unable};
use super::world::{World, world_of};
use super::{die, whose};
use crate::clock::unix_ms;
use crate::figures;

impl LeverState {
    /// Notes whether a process that starts CUDA has NCCL loaded, as frameworks have by then. NCCL's communicators
    /// cannot be checkpointed, and only the loaded library announces them. On one GPU there are none.
    pub(crate) fn look_for_nccl(&mut self, id: ClaimId, pid: i32) {
        if proc::has_mapped(pid, |file| file.starts_with("libnccl.so")) {
            let lever = self.claims.entry(id).or_default();
            lever.unable.insert(pid, Unable::Nccl);
        }
    }
}

pub(crate) fn carry_out(
    with: &mut Effects,
    features: &Features,
    command: LeverCommand,
) -> Vec<Command> {
    match command {
        LeverCommand::RefuseLever(id, why) => with.levers.answer(id, Err(&why)),
        LeverCommand::Pull(action) => return pull(with, features, action),
        LeverCommand::BeginLever { id, again } => {
            return begin(&with.world(), &with.levers, id, again);
        }
        LeverCommand::Resume(id) => return resumed(&with.world(), id),
        LeverCommand::StartLever(prepared) => {
            let failed = start(*prepared, &world_of!(with), &mut with.levers);
            return failed.into_iter().collect();
        }
        LeverCommand::LeverDone(id, outcome) => {
            let took = with.levers.ended(id, &outcome);
            return done(&with.world(), id, outcome, took);
        }
        LeverCommand::LeverFailed { id, failure, why } => {
            with.levers.answer(id, Err(&why));
            with.levers.note_stays(id, failure, &why);
            let failed = Event::LeverFailed { id, failure, why };
            return vec![Command::Core(failed), Command::Publish];
        }
        LeverCommand::AwaitLever(id, out) => with.levers.wait(id, out),
        LeverCommand::TellQueued(id, out) => {
            let queued = wishes::queued(&with.world(), features, id);
            queued
                .into_iter()
                .for_each(|q| out.reply(&Reply::Queued(q)));
        }
        LeverCommand::TellLever(id, text) => {
            let asked = with.levers.is_awaited(id);
            with.levers.answer(id, Ok(&text));
            return vec![match asked {
                true => Command::NoticeOf { id, text },
                // It was not requested on a command line.
                false => Command::TellOwner { id, text },
            }];
        }
        LeverCommand::Wanted { id, asked } => with.levers.wanted(id, asked),
        LeverCommand::AnswerWanted(id, out) => {
            let message = wishes::wanted_text(&with.world(), features, id);
            out.member(&Answer::Wanted { message });
        }
        LeverCommand::KeepHolding(id, holding) => keep_holding(with, id, *holding),
        LeverCommand::NowOn { id, to, only } => {
            if let Some(live) = with.claims.get_mut(&id) {
                (live.record.slices, live.record.terms.only) = (to, only);
                keep_holding(with, id, HoldingRecord::Here);
            }
        }
        LeverCommand::Relabel(id) => place::relabel(with, id),
        LeverCommand::OpenAgain(id) => drop(gpus::open_again(with, id)),
        LeverCommand::Freeze(id, frozen) => with.claims.set_frozen(id, frozen),
        // The calls of a claim that is on its GPU continue.
        LeverCommand::EndWaits(id) => {
            for seat in with.claims.get(&id).into_iter().flat_map(|l| &l.seats) {
                if seat.limits.page().state() as u32 >= gshare_abi::WAITS_FROM {
                    seat.limits.set_state(State::Granted);
                }
            }
        }
        LeverCommand::Offload(id) => {
            let wish = Wish::Offload;
            return vec![Command::Core(Event::Wish { id, wish })];
        }
    }
    Vec::new()
}

/// Offloads, restores or moves a claim: journaled, then begun.
fn pull(with: &mut Effects, features: &Features, action: Action) -> Vec<Command> {
    let Some(id) = target(&action) else {
        return Vec::new();
    };
    let pulled = pulled(&with.world(), features, &with.levers, id, action);
    let written = pulled.and_then(|holding| {
        let kept = set_holding(with, id, holding);
        kept.map_err(|e| (Failure::Refused, e.to_string()))
    });
    vec![Command::Levers(match written {
        Ok(()) => {
            die::at("lever-journaled");
            LeverCommand::BeginLever { id, again: false }
        }
        Err((failure, why)) => LeverCommand::LeverFailed { id, failure, why },
    })]
}

/// Journals where the memory of a claim is, or is moving to.
fn set_holding(
    with: &mut Effects,
    id: ClaimId,
    holding: HoldingRecord,
) -> Result<(), JournalError> {
    let Some(live) = with.claims.get_mut(&id) else {
        return Ok(());
    };
    let before = std::mem::replace(&mut live.record.holding, holding);
    let kept = with.journal.put(&live.record);
    if kept.is_err() {
        live.record.holding = before;
    }
    kept
}

/// It has happened even if the disk is full; the next change is journaled with it.
fn keep_holding(with: &mut Effects, id: ClaimId, holding: HoldingRecord) {
    if let Some(live) = with.claims.get_mut(&id) {
        live.record.holding = holding;
        with.journal
            .keep(&live.record, "where the claim's memory is");
    }
}

/// The same parts of a claim on other GPUs.
fn on_gpus(gpus: &Gpus, slices: &[SliceRecord], to: &[Slice]) -> Vec<SliceRecord> {
    let part = |(record, slice): (&SliceRecord, &Slice)| SliceRecord {
        uuid: gpus[slice.gpu].uuid.clone(),
        ..record.clone()
    };
    slices.iter().zip(to).map(part).collect()
}

fn uuids(slices: &[SliceRecord]) -> Vec<String> {
    slices.iter().map(|s| s.uuid.clone()).collect()
}

/// The claim to be offloaded, restored or moved.
fn target(action: &Action) -> Option<ClaimId> {
    match action {
        Action::Park { id, .. } | Action::Unpark { id, .. } | Action::Move { id, .. } => Some(*id),
        _ => None,
    }
}

/// The journal entry before a decision of the core is carried out, or why there cannot be one.
fn pulled(
    world: &World<'_>,
    features: &Features,
    levers: &LeverState,
    id: ClaimId,
    action: Action,
) -> Result<HoldingRecord, (Failure, String)> {
    let refused = |why: &str| (Failure::Refused, why.to_owned());
    let can = facts::levers_of(world, features, levers, id);
    let live = world.claims.get(&id).filter(|live| live.ending.is_none());
    let live = live.ok_or_else(|| refused("the claim ends"))?;
    match (action, &live.record.holding) {
        (Action::Park { freeze, by, .. }, HoldingRecord::Here) => {
            let able = match by {
                ParkedBy::Scheduler => facts::is_able(world, levers, id, live),
                _ => facts::may_park(world, levers, id),
            };
            let thawed = able.and_then(|()| match by {
                ParkedBy::Scheduler => stopped::to_thaw(live),
                _ => Ok(Vec::new()),
            });
            let thawed = thawed.map_err(|why| (Failure::Refused, why))?;
            Ok(HoldingRecord::Parking { freeze, by, thawed })
        }
        (Action::Move { to, .. }, HoldingRecord::Here) => {
            can.movable.map_err(|why| (Failure::Refused, why))?;
            let to = on_gpus(world.gpus, &live.record.slices, &to);
            Ok(HoldingRecord::Moving { to })
        }
        (Action::Unpark { to, .. }, HoldingRecord::Parked(parked)) => {
            Ok(HoldingRecord::Unparking {
                to: on_gpus(world.gpus, &live.record.slices, &to),
                parked: parked.clone(),
            })
        }
        _ => Err(refused(
            "the claim is already being offloaded, restored or moved",
        )),
    }
}

/// The command that follows if it could not be begun.
fn not_begun(id: ClaimId, again: bool, why: String) -> Command {
    let failure = Failure::Refused;
    match again {
        true => Command::Levers(LeverCommand::LeverDone(id, Outcome::Failed(failure, why))),
        false => Command::Levers(LeverCommand::LeverFailed { id, failure, why }),
    }
}

/// Starts it in a thread, which reports the result.
fn start(prepared: Prepared, world: &World<'_>, levers: &mut LeverState) -> Option<Command> {
    let (id, again) = (prepared.id, prepared.again);
    let job = job(world, levers, prepared)?;
    let events = world.host.events.clone();
    levers.begun(id);
    let started = std::thread::Builder::new()
        .name(format!("lever-{id}"))
        .spawn(move || {
            let (outcome, unable) = job.run();
            die::at("lever-worked");
            let _ = events.send(Msg::Lever(LeverMsg::Done {
                id,
                outcome,
                unable,
            }));
        });
    let error = started.err()?;
    Some(not_begun(id, again, error.to_string()))
}

/// Begins, or continues (`again`), what the journal says is under way.
fn begin(world: &World<'_>, levers: &LeverState, id: ClaimId, again: bool) -> Vec<Command> {
    let Some(kind) = world
        .claims
        .get(&id)
        .and_then(|live| kind_of(world, live, again))
    else {
        return Vec::new();
    };
    if levers.engine.is_none() {
        return vec![not_begun(id, again, "no libcuda was found".to_owned())];
    }
    let parks = !matches!(kind, Kind::Unpark(_));
    let opens = !parks || matches!(kind, Kind::Move { .. });
    let state = match parks {
        true => State::Detaching,
        false => State::Detached,
    };
    let mut out = vec![Command::Ends(EndCommand::SetStates(id, state))];
    out.extend(opens.then_some(Command::Levers(LeverCommand::OpenAgain(id))));
    out.push(Command::Levers(LeverCommand::Freeze(id, false)));
    let prepared = Prepared { id, again, kind };
    out.push(Command::Levers(LeverCommand::StartLever(Box::new(
        prepared,
    ))));
    out
}

/// The job that the journal's state of a claim requires.
fn kind_of(world: &World<'_>, live: &Live, again: bool) -> Option<Kind> {
    let here = uuids(&live.record.slices);
    Some(match &live.record.holding {
        HoldingRecord::Here | HoldingRecord::Parked(_) | HoldingRecord::Counted => return None,
        HoldingRecord::Parking { .. } => Kind::Park,
        HoldingRecord::Unparking { to, .. } => {
            let to = uuids(to);
            Kind::Unpark((to != here).then(|| place::maps(world, &here, &to)))
        }
        HoldingRecord::Moving { to } => {
            let to = uuids(to);
            let new: Vec<&String> = to.iter().filter(|uuid| !here.contains(uuid)).collect();
            let there = world.processes().filter(|(gpu, _)| {
                // Valid only right after the first look of a restarted service.
                let uuid = &world.gpus[*gpu as usize].uuid;
                again && new.contains(&uuid)
            });
            Kind::Move {
                arrived: there.map(|(_, p)| p.pid).collect::<BTreeSet<i32>>(),
                there: place::maps(world, &here, &to),
                back: Maps(
                    [
                        place::maps(world, &to, &here).0,
                        place::maps(world, &here, &here).0,
                    ]
                    .concat(),
                ),
            }
        }
    })
}

fn job(world: &World<'_>, levers: &LeverState, prepared: Prepared) -> Option<Job> {
    let Prepared { id, kind, again } = prepared;
    let live = world.claims.get(&id)?;
    let marks = live.seats.first().and_then(|seat| {
        let slots = seat.usage.owners().map(|(slot, pid, _)| (slot.slot, pid));
        Some((seat.usage.watch_gates().ok()?, slots.collect()))
    });
    let bytes = match &live.record.holding {
        HoldingRecord::Unparking { parked, .. } => parked.host,
        _ => bytes_of(world, live),
    };
    let keys = &world.config.detach;
    Some(Job {
        kind,
        engine: levers.engine.clone()?,
        members: match &live.cgroup {
            Some(cgroup) => Members::Cgroup(cgroup.dir().to_owned()),
            None => {
                let (socket, tree) = (&world.host.paths.socket, &world.host.fences.tree);
                let members = whose::members_of(live, socket, tree.as_ref());
                Members::Known(members.iter().map(|m| m.pid).collect())
            }
        },
        marks,
        bytes,
        suspended: Suspended::of(world, live, !again),
        patience: Patience {
            drain: keys.drain,
            step: keys.timeout,
            host_reserve: keys.host_reserve.0,
        },
        tell: world.host.teller(id),
        unable: RefCell::default(),
        unsure: RefCell::default(),
    })
}

/// Commands when the engine has finished, with the duration.
fn done(world: &World<'_>, id: ClaimId, outcome: Outcome, took: Option<Duration>) -> Vec<Command> {
    let Some(live) = world.claims.get(&id) else {
        return Vec::new();
    };
    if live.ending.is_some() {
        // An ending claim must be able to run; ending.rs does the rest.
        return vec![Command::Ends(EndCommand::SetStates(id, State::NotGranted))];
    }
    let took = took.map_or_else(String::new, |t| format!(" in {:.1} s", t.as_secs_f64()));
    let mut out = match (outcome, live.record.holding.clone()) {
        (Outcome::Done, HoldingRecord::Parking { freeze, by, .. }) => {
            now_parked(world, live, (freeze, by), &took)
        }
        (Outcome::Done, HoldingRecord::Unparking { to, parked }) => {
            let done = if parked.frozen { "resumed" } else { "restored" };
            let mut out = now_on(id, to, live.record.terms.only.clone());
            out.extend([
                Command::Tell(Fact::Arrived { claim: id }),
                Command::Core(Event::Unparked { id }),
                Command::Levers(LeverCommand::TellLever(id, format!("{id} {done}{took}"))),
            ]);
            out
        }
        (Outcome::Done, HoldingRecord::Moving { to }) => {
            let gpus = to.iter().filter_map(|s| world.gpus.gpu_index(&s.uuid));
            let gpus = figures::gpus(gpus);
            let (only, bound) = bound_to(world.gpus, &live.record, &to);
            let mut out = now_on(id, to, only);
            out.extend([
                Command::Core(Event::Moved { id }),
                Command::Levers(LeverCommand::TellLever(
                    id,
                    format!("{id} moved to {gpus}{took}{bound}"),
                )),
            ]);
            out
        }
        (Outcome::Failed(failure, why), holding) => failed(id, holding, failure, why),
        (
            Outcome::Done,
            HoldingRecord::Here | HoldingRecord::Parked(_) | HoldingRecord::Counted,
        ) => Vec::new(),
    };
    out.push(Command::Publish);
    out
}

/// A claim stays where it was.
fn failed(id: ClaimId, holding: HoldingRecord, failure: Failure, why: String) -> Vec<Command> {
    let (verb, holding, state) = match holding {
        HoldingRecord::Unparking { parked, .. } => {
            ("restored", HoldingRecord::Parked(parked), State::Detached)
        }
        HoldingRecord::Moving { .. } => ("moved", HoldingRecord::Here, State::Granted),
        _ => ("offloaded", HoldingRecord::Here, State::Granted),
    };
    let frozen = matches!(&holding, HoldingRecord::Parked(parked) if parked.frozen);
    let text = format!("{id} could not be {verb}: {why}");
    vec![
        Command::Levers(LeverCommand::KeepHolding(id, Box::new(holding))),
        Command::Levers(LeverCommand::OpenAgain(id)),
        Command::Ends(EndCommand::SetStates(id, state)),
        Command::Levers(LeverCommand::Freeze(id, frozen)),
        Command::NoticeOf { id, text },
        Command::Levers(LeverCommand::LeverFailed { id, failure, why }),
    ]
}

fn now_parked(
    world: &World<'_>,
    live: &Live,
    (freeze, by): (bool, ParkedBy),
    took: &str,
) -> Vec<Command> {
    let id = ClaimId(live.record.id);
    let seats = live.seats.iter();
    let charges: Vec<u64> = seats
        .map(|seat| seat.usage.charged_bytes(world.gpus[seat.gpu].total))
        .collect();
    let host = charges.iter().fold(0, |sum: u64, c| sum.saturating_add(*c));
    let parked = ParkedRecord {
        host,
        charges,
        frozen: freeze,
        by,
        since_ms: unix_ms(),
        back: by == ParkedBy::Reclaim,
    };
    let what = if freeze { "suspended" } else { "offloaded" };
    let host = Bytes(host);
    vec![
        Command::Ends(EndCommand::SetStates(id, State::Detached)),
        Command::Levers(LeverCommand::Freeze(id, freeze)),
        Command::CrashPoint("lever-parked"),
        Command::Levers(LeverCommand::KeepHolding(
            id,
            Box::new(HoldingRecord::Parked(parked)),
        )),
        Command::CrashPoint("lever-settled"),
        Command::Core(Event::Parked { id, host }),
        Command::Levers(LeverCommand::TellLever(
            id,
            format!("{id} {what}, {host} to host memory{took}"),
        )),
    ]
}

/// Records that the claim is on these GPUs: journal, pages, filter, then its calls continue.
fn now_on(id: ClaimId, to: Vec<SliceRecord>, only: Vec<String>) -> Vec<Command> {
    vec![
        Command::Levers(LeverCommand::NowOn { id, to, only }),
        Command::CrashPoint("lever-settled"),
        Command::Levers(LeverCommand::Relabel(id)),
        Command::Levers(LeverCommand::OpenAgain(id)),
        Command::Limits(LimitCommand::LimitMemory(id)),
        Command::Ends(EndCommand::SetStates(id, State::Granted)),
    ]
}

/// The GPUs that a claim is bound to after a move, with a text if they changed.
fn bound_to(gpus: &Gpus, record: &ClaimRecord, to: &[SliceRecord]) -> (Vec<String>, String) {
    let mut only = record.terms.only.clone();
    let pairs = record.slices.iter().zip(to);
    let pairs = pairs.map(|(from, to)| (from.uuid.clone(), to.uuid.clone()));
    if !gshare_core::machine::rebind(&mut only, pairs.collect()) {
        return (only, String::new());
    }
    let gpus = figures::gpus(only.iter().filter_map(|uuid| gpus.gpu_index(uuid)));
    let text = format!("; the claim is now bound to {gpus}");
    (only, text)
}

/// Continues what was under way when the previous service ended.
fn resumed(world: &World<'_>, id: ClaimId) -> Vec<Command> {
    let Some(live) = world.claims.get(&id) else {
        return Vec::new();
    };
    match &live.record.holding {
        // Frozen processes must run again to be able to end.
        HoldingRecord::Here | HoldingRecord::Parked(_) if live.ending.is_some() => {
            vec![Command::Levers(LeverCommand::Freeze(id, false))]
        }
        // The previous service may have ended between the journal and the pages.
        HoldingRecord::Here => vec![
            Command::Levers(LeverCommand::Freeze(id, false)),
            Command::Levers(LeverCommand::EndWaits(id)),
        ],
        HoldingRecord::Parked(parked) => vec![
            Command::Ends(EndCommand::SetStates(id, State::Detached)),
            Command::Levers(LeverCommand::Freeze(id, parked.frozen)),
        ],
        _ => vec![Command::Levers(LeverCommand::BeginLever {
            id,
            again: true,
        })],
    }
}

/// Bytes of a claim on its GPUs: by its ledger, or by the driver if that is more.
fn bytes_of(world: &World<'_>, live: &Live) -> u64 {
    let id = ClaimId(live.record.id);
    let charged = live.seats.iter().map(|seat| {
        let total = world.gpus[seat.gpu].total;
        let seen = world.driver_use(seat.gpu).get(&id).and_then(|u| u.bytes);
        seat.usage.charged_bytes(total).max(seen.unwrap_or(0))
    });
    charged.fold(0, u64::saturating_add)
}

impl Claims {
    /// Freezes all processes of a claim, or lets them run. The kernel does so when it can; the service does not wait
    /// for it.
    pub(crate) fn set_frozen(&self, id: ClaimId, frozen: bool) {
        let live = self
            .get(&id)
            .filter(|live| live.record.origin.behalf.is_none());
        if let Some(cgroup) = live.and_then(|live| live.cgroup.as_ref())
            && let Err(error) = cgroup.ask_frozen(frozen)
            && !error.is_gone()
        {
            tracing::warn!(%id, %error, frozen, "could not suspend or resume the processes of a claim");
        }
    }

    pub(crate) fn set_states(&self, id: ClaimId, state: State) {
        for seat in self.get(&id).into_iter().flat_map(|l| &l.seats) {
            seat.limits.set_state(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    /// Claim 1 on the first of two GPUs, on its way in this state.
    fn on_its_way(holding: HoldingRecord) -> Scene {
        let mut scene = Scene::of(2);
        scene.claim(1, 0).record.holding = holding;
        scene
    }

    fn parked(frozen: bool) -> ParkedRecord {
        ParkedRecord {
            host: 5 << 30,
            charges: vec![5 << 30],
            frozen,
            by: ParkedBy::Person,
            since_ms: 0,
            back: false,
        }
    }

    fn to(scene: &Scene, gpu: usize) -> Vec<SliceRecord> {
        let slices = &scene.claims[&ClaimId(1)].record.slices;
        let uuid = scene.gpus[gpu].uuid.clone();
        let moved = |slice: &SliceRecord| SliceRecord {
            uuid: uuid.clone(),
            ..slice.clone()
        };
        slices.iter().map(moved).collect()
    }

    #[test]
    fn memory_that_came_to_the_host_is_written_down_before_the_core_gives_its_place_away() {
        let by = ParkedBy::Reclaim;
        let scene = on_its_way(HoldingRecord::Parking {
            freeze: true,
            by,
            thawed: Vec::new(),
        });
        let took = Some(Duration::from_millis(1500));
        let follows = done(&scene.world(), ClaimId(1), Outcome::Done, took);
        let kept = follows.iter().position(|c| {
            matches!(c, Command::Levers(LeverCommand::KeepHolding(_, holding))
            if matches!(&**holding, HoldingRecord::Parked(p) if p.frozen && p.back))
        });
        let told = |c: &Command| matches!(c, Command::Core(Event::Parked { .. }));
        let told = follows.iter().position(told);
        assert!(kept.is_some() && kept < told, "{follows:?}");
        let text = format!("{follows:?}");
        assert!(
            text.contains("c1 suspended, 0 B to host memory in 1.5 s"),
            "{text}"
        );
    }

    #[test]
    fn a_claim_that_could_not_be_moved_stays_and_one_that_could_not_come_back_stays_away() {
        let mut scene = on_its_way(HoldingRecord::Here);
        let there = to(&scene, 1);
        for (holding, before, says) in [
            (
                HoldingRecord::Moving { to: there.clone() },
                HoldingRecord::Here,
                "be moved",
            ),
            (
                HoldingRecord::Unparking {
                    to: there,
                    parked: parked(true),
                },
                HoldingRecord::Parked(parked(true)),
                "be restored",
            ),
        ] {
            scene.claim(1, 0).record.holding = holding;
            let outcome = Outcome::Failed(Failure::Refused, "no room".to_owned());
            let follows = done(&scene.world(), ClaimId(1), outcome, None);
            let kept = |c: &Command| matches!(c, Command::Levers(LeverCommand::KeepHolding(_, kept)) if **kept == before);
            assert!(follows.iter().any(kept), "{follows:?}");
            let text = format!("{follows:?}");
            assert!(
                text.contains(says) && text.contains("LeverFailed"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_move_binds_a_claim_to_its_new_gpu_if_it_was_bound_to_the_old_one() {
        let mut scene = on_its_way(HoldingRecord::Here);
        let there = to(&scene, 1);
        let holding = HoldingRecord::Moving { to: there };
        for (only, now, says) in [
            (Vec::new(), Vec::new(), "moved to GPU 1\""),
            (
                vec!["GPU-0".to_owned()],
                vec!["GPU-1".to_owned()],
                "the claim is now bound to GPU 1",
            ),
        ] {
            let record = &mut scene.claim(1, 0).record;
            (record.holding, record.terms.only) = (holding.clone(), only);
            let follows = done(&scene.world(), ClaimId(1), Outcome::Done, None);
            let bound = |c: &Command| matches!(c, Command::Levers(LeverCommand::NowOn { only, .. }) if *only == now);
            assert!(follows.iter().any(bound), "{follows:?}");
            let text = format!("{follows:?}");
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn a_service_goes_on_with_what_the_journal_says() {
        let id = ClaimId(1);
        let scene = on_its_way(HoldingRecord::Parked(parked(true)));
        let goes_on = resumed(&scene.world(), id);
        assert!(
            matches!(
                goes_on[..],
                [
                    Command::Ends(EndCommand::SetStates(_, State::Detached)),
                    Command::Levers(LeverCommand::Freeze(_, true))
                ]
            ),
            "{goes_on:?}"
        );
        let mut scene = on_its_way(HoldingRecord::Parking {
            freeze: false,
            by: ParkedBy::Person,
            thawed: Vec::new(),
        });
        let goes_on = resumed(&scene.world(), id);
        assert!(
            matches!(
                goes_on[..],
                [Command::Levers(LeverCommand::BeginLever {
                    again: true,
                    ..
                })]
            ),
            "{goes_on:?}"
        );
        // Without an engine it behaves as if it had been tried.
        let levers = LeverState::start(None, &scene.host.events);
        let begun = begin(&scene.world(), &levers, id, true);
        assert!(
            matches!(
                &begun[..],
                [Command::Levers(LeverCommand::LeverDone(
                    _,
                    Outcome::Failed(..)
                ))]
            ),
            "{begun:?}"
        );
        let live = scene.claim(1, 0);
        live.record.holding = HoldingRecord::Parked(parked(true));
        live.ending = Some(crate::daemon::live::Ending::waiting());
        let goes_on = resumed(&scene.world(), id);
        assert!(
            matches!(
                goes_on[..],
                [Command::Levers(LeverCommand::Freeze(_, false))]
            ),
            "{goes_on:?}"
        );
    }
}
