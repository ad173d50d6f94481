//! Levers on claims that run: the core's decisions to park, bring back and move them, carried out.
//!
//! The journal says what is under way before anything is done for it, and how far each process is says the driver: so
//! a service that is killed anywhere in between goes on where the last one ended ([`Service::resume_lever`]).

pub(crate) mod facts;
mod job;
mod lost;
pub(crate) mod place;
mod wishes;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use gshare_abi::State;
use gshare_core::machine::lever::{Failure, ParkedBy};
use gshare_core::machine::{Action, Event};
use gshare_core::{Bytes, ClaimId, Slice};
use gshare_enforcer::proc;

use job::{Job, Kind, Maps, Members, Patience};

use super::claims::Claims;
use super::engine::LeverState;
use super::fact::Fact;
use super::gpu::Gpus;
use super::journal::{HoldingRecord, Journal, JournalError, ParkedRecord, SliceRecord};
use super::msg::{LeverMsg, Msg, Outcome, Unable};
use super::service::{Live, Service};
use super::world::{World, world_of};
use super::{reclaim, restore, whose};
use crate::clock::unix_ms;
use crate::daemon::command::Command;

impl LeverState {
    /// Notes whether a process that begins with CUDA has NCCL loaded, as frameworks have by then. Its communicators
    /// cannot be checkpointed, and nothing but its library tells of them before they are made. On one GPU there are none.
    pub(crate) fn look_for_nccl(&mut self, id: ClaimId, pid: i32) {
        if proc::has_mapped(pid, |file| file.starts_with("libnccl.so")) {
            self.unable.entry(id).or_default().insert(pid, Unable::Nccl);
        }
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

impl Service {
    /// Handles one message.
    pub(crate) fn lever_msg(&mut self, msg: LeverMsg) {
        match msg {
            LeverMsg::Want {
                peer,
                want,
                out,
                turn,
            } => {
                self.member_wants(&whose::standing(&self.world(), peer), &want, &out);
                drop(turn);
            }
            LeverMsg::Engine(usable) => {
                if let Err(why) = &usable {
                    tracing::warn!("claims cannot be offloaded: {why}");
                }
                self.levers.usable = Some(usable);
                let levers = self.levers.look(&world_of!(self), &self.features);
                self.drive_all(levers);
                self.drive_all(reclaim::rules(&self.world(), &self.levers));
            }
            LeverMsg::Stuck { id, why } => {
                let text =
                    format!("{id} is only partly offloaded or restored; gshare tries again: {why}");
                self.tell_owner(id, &text);
            }
            LeverMsg::Done {
                id,
                outcome,
                unable,
            } => {
                for text in self.levers.note_unable(id, &outcome, unable) {
                    self.tell_owner(id, &text);
                }
                self.lever_done(id, outcome);
            }
        }
    }

    /// Carries out a lever; the core is told what came of it.
    pub(crate) fn pull(&mut self, action: Action) {
        let (Action::Park { id, .. } | Action::Unpark { id, .. } | Action::Move { id, .. }) =
            action
        else {
            return;
        };
        if let Err((failure, why)) = self.try_pull(id, action) {
            self.drive_failed(id, failure, why);
        }
    }

    pub(crate) fn drive_failed(&mut self, id: ClaimId, failure: Failure, why: String) {
        self.levers.answer(id, Err(&why));
        self.drive(Event::LeverFailed { id, failure, why });
        self.screens.touch();
    }

    fn try_pull(&mut self, id: ClaimId, action: Action) -> Result<(), (Failure, String)> {
        let refused = |why: &str| (Failure::Refused, why.to_owned());
        let levers = facts::levers_of(&self.world(), &self.features, &self.levers, id);
        let live = self
            .claims
            .get(&id)
            .filter(|live| live.ending.is_none())
            .ok_or_else(|| refused("the claim ends"))?;
        let holding = match (action, &live.record.holding) {
            (Action::Park { freeze, by, .. }, HoldingRecord::Here) => {
                facts::may_park(&self.world(), &self.levers, id)
                    .map_err(|why| (Failure::Refused, why))?;
                HoldingRecord::Parking { freeze, by }
            }
            (Action::Move { to, .. }, HoldingRecord::Here) => {
                levers.movable.map_err(|why| (Failure::Refused, why))?;
                let to = on_gpus(&self.gpus, &live.record.slices, &to);
                HoldingRecord::Moving { to }
            }
            (Action::Unpark { to, .. }, HoldingRecord::Parked(parked)) => {
                HoldingRecord::Unparking {
                    to: on_gpus(&self.gpus, &live.record.slices, &to),
                    parked: parked.clone(),
                }
            }
            _ => {
                return Err(refused(
                    "the claim is already being offloaded, restored or moved",
                ));
            }
        };
        self.claims
            .set_holding(&mut self.journal, id, holding)
            .map_err(|e| (Failure::Refused, format!("{e}")))?;
        super::die::at("lever-journaled");
        self.begin_lever(id, false)
    }

    /// Begins, or goes on with (`again`), what the journal says is under way.
    fn begin_lever(&mut self, id: ClaimId, again: bool) -> Result<(), (Failure, String)> {
        let failed = |why: String| (Failure::Refused, why);
        let Some(live) = self.claims.get(&id) else {
            return Ok(());
        };
        let here = uuids(&live.record.slices);
        let kind = match &live.record.holding {
            HoldingRecord::Here | HoldingRecord::Parked(_) | HoldingRecord::Counted => {
                return Ok(());
            }
            HoldingRecord::Parking { .. } => Kind::Park,
            HoldingRecord::Unparking { to, .. } => {
                let to = uuids(to);
                Kind::Unpark((to != here).then(|| place::maps(&self.world(), &here, &to)))
            }
            HoldingRecord::Moving { to } => {
                let to = uuids(to);
                let new: Vec<&String> = to.iter().filter(|uuid| !here.contains(uuid)).collect();
                let there = self.world().processes().filter(|(gpu, _)| {
                    // Only a service that has just looked for the first time knows this for now.
                    let uuid = &self.gpus[*gpu as usize].uuid;
                    again && new.contains(&uuid)
                });
                Kind::Move {
                    arrived: there.map(|(_, p)| p.pid).collect::<BTreeSet<i32>>(),
                    there: place::maps(&self.world(), &here, &to),
                    back: Maps(
                        [
                            place::maps(&self.world(), &to, &here).0,
                            place::maps(&self.world(), &here, &here).0,
                        ]
                        .concat(),
                    ),
                }
            }
        };
        let engine = self.levers.engine.clone();
        let engine = engine.ok_or_else(|| failed("no libcuda was found".to_owned()))?;
        let parks = !matches!(kind, Kind::Unpark(_));
        self.claims.set_states(
            id,
            if parks {
                State::Detaching
            } else {
                State::Detached
            },
        );
        if !parks || matches!(kind, Kind::Move { .. }) {
            self.open_again(id);
        }
        self.claims.set_frozen(id, false);
        let Some(live) = self.claims.get(&id) else {
            return Ok(());
        };
        let marks = live.seats.first().and_then(|seat| {
            let slots = seat.usage.owners().map(|(slot, pid, _)| (slot.slot, pid));
            Some((seat.usage.watch_gates().ok()?, slots.collect()))
        });
        let bytes = match &live.record.holding {
            HoldingRecord::Unparking { parked, .. } => parked.host,
            _ => bytes_of(&self.world(), live),
        };
        let keys = &self.config.detach;
        let job = Job {
            kind,
            engine,
            members: match &live.cgroup {
                Some(cgroup) => Members::Cgroup(cgroup.dir().to_owned()),
                None => {
                    let members = restore::members_of(
                        live,
                        &self.host.paths.socket,
                        self.host.fences.tree.as_ref(),
                    );
                    Members::Known(members.iter().map(|m| m.pid).collect())
                }
            },
            marks,
            bytes,
            patience: Patience {
                drain: keys.drain,
                step: keys.timeout,
                host_reserve: keys.host_reserve.0,
            },
            tell: self.host.teller(id),
            unable: RefCell::default(),
            unsure: RefCell::default(),
        };
        let events = self.host.events.clone();
        self.levers.since.insert(id, Instant::now());
        std::thread::Builder::new()
            .name(format!("lever-{id}"))
            .spawn(move || {
                let (outcome, unable) = job.run();
                super::die::at("lever-worked");
                let _ = events.send(Msg::Lever(LeverMsg::Done {
                    id,
                    outcome,
                    unable,
                }));
            })
            .map(drop)
            .map_err(|e| failed(e.to_string()))
    }

    /// A lever has been pulled.
    fn lever_done(&mut self, id: ClaimId, outcome: Outcome) {
        let took = self.levers.since.remove(&id).map(|at| at.elapsed());
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let (ending, holding) = (live.ending.is_some(), live.record.holding.clone());
        if ending {
            // A claim that is to end must be able to run; the rest is the end's.
            self.claims.set_states(id, State::NotGranted);
            return;
        }
        let took = took.map_or_else(String::new, |t| format!(" in {:.1} s", t.as_secs_f64()));
        match (outcome, holding) {
            (Outcome::Done, HoldingRecord::Parking { freeze, by }) => {
                self.now_parked(id, freeze, by, &took);
            }
            (Outcome::Done, HoldingRecord::Unparking { to, parked }) => {
                self.now_on(id, to);
                self.tell(Fact::Arrived { claim: id });
                self.drive(Event::Unparked { id });
                let done = if parked.frozen { "resumed" } else { "restored" };
                self.tell_lever(id, &format!("{done}{took}"));
            }
            (Outcome::Done, HoldingRecord::Moving { to }) => {
                let gpus = self.gpus.gpus_text(&to);
                let bound = self.claims.rebind(&self.gpus, id, &to);
                self.now_on(id, to);
                self.drive(Event::Moved { id });
                self.tell_lever(id, &format!("moved to {gpus}{took}{bound}"));
            }
            (Outcome::Failed(failure, why), holding) => {
                let (verb, holding, state) = match holding {
                    HoldingRecord::Unparking { parked, .. } => {
                        ("restored", HoldingRecord::Parked(parked), State::Detached)
                    }
                    HoldingRecord::Moving { .. } => ("moved", HoldingRecord::Here, State::Granted),
                    _ => ("offloaded", HoldingRecord::Here, State::Granted),
                };
                let frozen = matches!(&holding, HoldingRecord::Parked(parked) if parked.frozen);
                (self.claims).keep_holding(&mut self.journal, id, holding);
                self.open_again(id);
                self.claims.set_states(id, state);
                self.claims.set_frozen(id, frozen);
                self.notice(Some(id), format!("{id} could not be {verb}: {why}"));
                self.drive_failed(id, failure, why);
            }
            (
                Outcome::Done,
                HoldingRecord::Here | HoldingRecord::Parked(_) | HoldingRecord::Counted,
            ) => {}
        }
        self.screens.touch();
    }

    fn now_parked(&mut self, id: ClaimId, freeze: bool, by: ParkedBy, took: &str) {
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let charges: Vec<u64> = live
            .seats
            .iter()
            .map(|seat| seat.usage.charged_bytes(self.gpus[seat.gpu].total))
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
        self.claims.set_states(id, State::Detached);
        self.claims.set_frozen(id, freeze);
        super::die::at("lever-parked");
        self.claims
            .keep_holding(&mut self.journal, id, HoldingRecord::Parked(parked));
        super::die::at("lever-settled");
        self.drive(Event::Parked {
            id,
            host: Bytes(host),
        });
        let what = if freeze { "suspended" } else { "offloaded" };
        self.tell_lever(id, &format!("{what}, {} to host memory{took}", Bytes(host)));
    }

    /// The claim is on these GPUs from now on: journal, pages, filter, then its calls go through.
    fn now_on(&mut self, id: ClaimId, to: Vec<SliceRecord>) {
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        live.record.slices = to;
        self.claims
            .keep_holding(&mut self.journal, id, HoldingRecord::Here);
        super::die::at("lever-settled");
        self.claims.relabel(&self.host, &self.gpus, id);
        self.open_again(id);
        self.execute(vec![Command::LimitMemory(id)]);
        self.claims.set_states(id, State::Granted);
    }

    /// Goes on with what was under way when the service before died.
    pub(crate) fn resume_lever(&mut self, id: ClaimId) {
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        match &live.record.holding {
            // What stood still runs again, to be able to end.
            HoldingRecord::Here | HoldingRecord::Parked(_) if live.ending.is_some() => {
                self.claims.set_frozen(id, false);
            }
            // The service may have died between the journal and the pages.
            HoldingRecord::Here => {
                self.claims.set_frozen(id, false);
                let waits = |seat: &&super::service::Seat| {
                    seat.limits.page().state() as u32 >= gshare_abi::WAITS_FROM
                };
                for seat in live.seats.iter().filter(waits) {
                    seat.limits.set_state(State::Granted);
                }
            }
            HoldingRecord::Parked(parked) => {
                let frozen = parked.frozen;
                self.claims.set_states(id, State::Detached);
                self.claims.set_frozen(id, frozen);
            }
            _ => {
                if let Err((failure, why)) = self.begin_lever(id, true) {
                    self.lever_done(id, Outcome::Failed(failure, why));
                }
            }
        }
    }
}

/// Bytes that a claim has on its GPUs: by its ledger, or by the driver where that knows of more.
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
    fn set_holding(
        &mut self,
        journal: &mut Journal,
        id: ClaimId,
        holding: HoldingRecord,
    ) -> Result<(), JournalError> {
        let Some(live) = self.get_mut(&id) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut live.record.holding, holding);
        if let Err(error) = journal.put(&live.record) {
            live.record.holding = before;
            return Err(error);
        }
        Ok(())
    }

    /// What has happened has happened, also where the disk is full: the next change is journaled with it.
    fn keep_holding(&mut self, journal: &mut Journal, id: ClaimId, holding: HoldingRecord) {
        if let Err(error) = self.set_holding(journal, id, holding.clone()) {
            tracing::error!(%id, "could not record in the journal where the claim's memory is: {error}");
            if let Some(live) = self.get_mut(&id) {
                live.record.holding = holding;
            }
        }
    }

    /// A claim that is bound to some GPUs has come to others: from now on to these. In words, what it is bound to then.
    fn rebind(&mut self, gpus: &Gpus, id: ClaimId, to: &[SliceRecord]) -> String {
        let Some(live) = self.get_mut(&id) else {
            return String::new();
        };
        let record = &mut live.record;
        let pairs = record.slices.iter().zip(to);
        let pairs = pairs.map(|(from, to)| (from.uuid.clone(), to.uuid.clone()));
        if !gshare_core::machine::rebind(&mut record.only, pairs.collect()) {
            return String::new();
        }
        let found = record.only.iter().filter_map(|uuid| gpus.gpu_index(uuid));
        let gpus = found.map(|g| g.to_string()).collect::<Vec<_>>().join(",");
        format!("; it stays there: it is bound to GPU {gpus} now")
    }

    /// Has all processes of a claim stand still, or run again. The kernel does so when it can; nobody waits for it.
    pub(crate) fn set_frozen(&self, id: ClaimId, frozen: bool) {
        let live = self.get(&id).filter(|live| live.record.behalf.is_none());
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

impl Gpus {
    /// `GPU 1`, `GPUs 0,2`.
    fn gpus_text(&self, slices: &[SliceRecord]) -> String {
        let gpus: Vec<String> = slices
            .iter()
            .filter_map(|s| self.gpu_index(&s.uuid))
            .map(|g| g.to_string())
            .collect();
        match gpus.as_slice() {
            [one] => format!("GPU {one}"),
            several => format!("GPUs {}", several.join(",")),
        }
    }
}

/// The engine opens no GPU that was let go. An engine that runs is ended; says when it has.
pub(crate) fn restrict_engine(
    world: &World<'_>,
    levers: &LeverState,
) -> Option<std::sync::mpsc::Receiver<()>> {
    let engine = Arc::clone(levers.engine.as_ref()?);
    let open = |g: &usize| {
        let gpu = &world.gpus[*g];
        gpu.parent.is_none()
            && !world.gpus.is_released(*g)
            && !world.gpus.dividing.contains(g)
            && !world.gpus.is_divided(*g)
    };
    let gpus = (0..world.gpus.len()).filter(open);
    let uuids: Vec<&str> = gpus.map(|g| world.gpus[g].uuid.as_str()).collect();
    let all = world.gpus.released.is_empty() && world.gpus.dividing.is_empty();
    let only = (!all).then(|| uuids.join(","));
    let (ended_tx, ended_rx) = std::sync::mpsc::channel();
    // It may be busy with its start.
    let started = std::thread::Builder::new().name("engine".to_owned());
    let ending = started.spawn(move || {
        engine.restrict(only);
        let _ = ended_tx.send(());
        // So that nobody waits for `cuInit` later; that there is no GPU left for it is no news.
        let _ = engine.start();
    });
    if let Err(error) = ending {
        tracing::error!(%error, "cannot start the thread that ends the checkpoint engine: the engine keeps its GPUs open");
    }
    Some(ended_rx)
}
