//! The state of the service and what each message does to it.

use std::collections::BTreeMap;
use std::time::Instant;

use gshare_abi::wire::Answer;
use gshare_config::{Config, ConfigError};
use gshare_core::ClaimId;
use gshare_core::machine::Event;
use gshare_core::machine::lever::{Failure, Wish};
use gshare_enforcer::gpu::Observer;
use gshare_proto::{AdminCall, Call, ErrorCode, Notice, Reply, WireError, messages};

use super::admin::quota;
pub(crate) use super::claims::{Asked, Claims};
use super::command::Command;
use super::connection::{ConnId, Sender, Turn};
use super::core::Core;
use super::engine::LeverState;
use super::fact::{Fact, Look, Others, Pages, Tick};
use super::features::Features;
use super::gpu::{FIRST_LOOK, Gpus};
use super::history::vitals::Vitals;
use super::history::worker::Told;
use super::history::{Ask, History};
use super::host::Host;
use super::journal::Journal;
use super::levers::{facts, wishes};
pub(crate) use super::live::{Ending, Live, Seat};
use super::msg::{LeverMsg, Msg};
use super::order::Order;
use super::outside::Policy;
use super::peer::Peer;
use super::policy::{adopt, auto, deny, limits, overuse, places};
use super::release::Wait;
use super::settings::Settings;
use super::watch::Screens;
use super::world::{World, world_of};
use super::{
    act, admin, claim_for, container, cover, die, doctor, ending, gpus, grant, health, launch,
    lazy, lease, levers, members, mig, mps, off, policy, reclaim, release, resize, rules, signal,
    stage, story, tell, turns, view, waiting, watch, whose,
};
use crate::clock::{nanos, unix_ms};

/// Whether a call gives or changes what the journal must know of.
fn promises(call: &Call) -> bool {
    matches!(
        call,
        Call::Claim(_)
            | Call::Resize(_)
            | Call::Adopt { .. }
            | Call::Lever { .. }
            | Call::Move { .. }
            | Call::Extend { .. }
            | Call::Admin(_)
    )
}

/// Everything the service knows.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) config: Settings,
    pub(crate) host: Host,
    pub(crate) core: Core,
    pub(crate) journal: Journal,
    pub(crate) observer: Observer,
    pub(crate) gpus: Gpus,
    pub(crate) claims: Claims,
    /// What was claimed and used.
    pub(crate) history: History,
    /// What is learnt of sizes.
    pub(crate) sizes: super::tracks::Sizes,
    /// What has a state of its own.
    pub(crate) features: Features,
    pub(crate) policy: Policy,
    /// Offloading, restoring, moving.
    pub(crate) levers: LeverState,
    pub(crate) screens: Screens,
}

impl Service {
    /// What features may look at.
    pub(crate) fn world(&self) -> World<'_> {
        world_of!(self)
    }

    /// Tells the features what has happened, does what they want, tells them what comes of that, until it is quiet.
    pub(crate) fn tell(&mut self, fact: Fact) {
        if !self.features.round.begin(fact) {
            return;
        }
        while let Some(facts) = self.features.round.turn() {
            for fact in facts {
                let mut commands = Vec::new();
                self.features.on(&world_of!(self), &fact, &mut commands);
                self.execute(commands);
            }
        }
    }

    /// Does what features want, the journal first.
    pub(crate) fn execute(&mut self, commands: Vec<Command>) {
        let mut stored = Vec::new();
        let mut rest = Vec::new();
        for command in commands {
            match command {
                Command::Store(store) => stored.push(store),
                command => rest.push(command),
            }
        }
        if !stored.is_empty()
            && let Err(error) = self.journal.store(&health::boot_id(), &stored)
        {
            tracing::warn!(%error, ?stored, "not written down");
        }
        for command in rest {
            self.carry_out(command);
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Store(store) => tracing::error!(?store, "not written down"),
            Command::Core(event) => self.drive(event),
            Command::Tell(fact) => self.tell(fact),
            Command::Refresh => self.refresh(),
            Command::TendMps => {
                let changes = mps::changes(&self.world());
                self.gpus.mps.change(changes);
            }
            Command::RenewMps => {
                let anew = mps::to_renew(&self.world());
                if !anew.is_empty() {
                    self.gpus.mps.renew(&anew);
                    self.refresh();
                }
            }
            Command::LetIntoMps { gpu, uid } => mps::let_in(&self.world(), gpu, uid),
            Command::Reply(out, answer) => match answer {
                Ok(reply) => out.reply(&reply),
                Err(error) => out.error(error),
            },
            Command::Drain(drain) => {
                let event = self.gpus.drain(drain);
                self.drive(event);
            }
            Command::Undrain(name) => {
                let event = self.gpus.undrain(&name);
                self.drive(event);
            }
            Command::NextMode(g, next) => self.gpus[g].modes.next = next,
            Command::ChangeModes => {
                let modes = self.gpus.change_modes(&self.core);
                self.execute(modes);
            }
            Command::LetGo(let_go) => {
                self.gpus.released.clone_from(&let_go.next);
                // Of all that were let go, also before.
                let mut waits: Vec<Wait> =
                    (let_go.gpus.iter().flat_map(|g| self.close_gpu(*g))).collect();
                waits.push(Wait {
                    what: "a call of NVML",
                    ended: self.observer.release(self.gpus.released_indices()),
                });
                let_go.answer(waits);
            }
            Command::TakeBack(next) => {
                self.gpus.released = next;
                // Not waited for: a GPU takes claims when it answers.
                drop(self.observer.release(self.gpus.released_indices()));
                drop(levers::restrict_engine(&self.world(), &self.levers));
            }
            Command::Divide(dividing) => {
                die::at("mig-journaled");
                // No program may start there from now on, and what gshare itself has open goes; NVML's own handle is needed.
                let g = dividing.gpu;
                self.gpus.dividing.insert(g);
                let waits = self.close_gpu(g);
                if !dividing.start(waits, self.host.events.clone()) {
                    self.gpus.dividing.remove(&g);
                }
            }
            Command::Divided(g) => {
                self.gpus.dividing.remove(&g);
                drop(levers::restrict_engine(&self.world(), &self.levers));
                if let Ok(sample) = self.observer.sample_now(FIRST_LOOK) {
                    self.handle(Msg::Sample(Box::new(sample)));
                }
                if let Err(error) = self.gpus.load_overheads(&self.journal) {
                    tracing::warn!(
                        "the memory of a CUDA context on new instances is unknown: {error:#}"
                    );
                }
            }
            Command::SetQuota(party, quota) => {
                self.config.set_quota(party, quota);
                self.drive_all(quota::anew(&self.world()));
            }
            Command::Quotas => self.drive_all(quota::anew(&self.world())),
            Command::SetConformance(found) => self.config.conformance = Some(found),
            Command::FollowOff => {
                let line = off::line_now(&self.world());
                let follows = self.config.follow_off(line);
                self.execute(follows);
            }
            Command::ReadStages => {
                let stages = stage::read_stages(&self.world());
                self.carry_out(Command::FollowStages(Box::new(stages)));
            }
            Command::FollowStages(stages) => {
                self.config.stages = *stages;
                self.carry_out(Command::Admission);
                let lowered = stage::lowered(&self.world());
                self.claims.lower(&self.journal, &lowered);
                self.execute(stage::follows(&lowered));
                self.screens.touch();
            }
            Command::Admission => self.drive_all(stage::admission(&self.world())),
            Command::Rules => self.drive_all(rules::all(&self.world(), &self.levers)),
            Command::ReclaimRules => self.drive_all(reclaim::rules(&self.world(), &self.levers)),
            Command::LookAtLevers => {
                let levers = self.levers.look(&world_of!(self), &self.features);
                self.drive_all(levers);
            }
            Command::CallBack(which) => {
                let back = self.config.call_back(&self.claims, which);
                self.drive_all(back);
            }
            Command::LimitsAnew(id) => {
                act::write_caps(&self.world(), id);
                match self.claims.get(&id) {
                    Some(live) if off::is_unlimited(&self.world(), id) => {
                        limits::unlimit_memory(&self.world(), &self.observer, live);
                    }
                    _ => self.carry_out(Command::LimitMemory(id)),
                }
            }
            Command::AllLimitsAnew => {
                let all = self.claims.keys().copied();
                self.execute(all.map(Command::LimitsAnew).collect());
            }
            Command::LookUpOwners => {
                self.gpus.owners = whose::look_up_all(&self.world());
                let servers = whose::servers(&self.world());
                self.tell(Fact::Owners { servers });
            }
            Command::DoubtOwners => {
                self.gpus.owners.trusted = 0;
                self.tell(Fact::MayHaveMoved);
            }
            Command::Uncover(id) => {
                self.claims.set_uncovered(id, true);
                let rules = gpus::rules(&self.world(), None, []);
                let cgroup = self.claims.get(&id).and_then(|live| live.cgroup.as_ref());
                if let Err(error) = self.host.fences.set(cgroup, &rules) {
                    tracing::error!(%id, %error, "cannot stop new programs of the claim from opening its GPUs");
                }
                self.tell_owner(id, &cover::uncovered_text(id));
            }
            Command::Cover(id) => {
                if self.claims.set_uncovered(id, false) && self.open_again(id) {
                    self.tell_owner(id, &cover::covered_text(id));
                }
            }
            Command::Remount { id, bare, expected } => {
                if cover::remount(&self.world(), id, &bare, &expected) {
                    self.carry_out(Command::Cover(id));
                }
            }
            Command::Signalled { id, due, again } => {
                self.claims.signalled(&self.journal, id, due, again);
            }
            Command::Withdraw { id, text } => {
                if let Some(asked) = self.claims.waiting.remove(&id) {
                    asked.out.error(WireError::new(ErrorCode::Ended, text));
                    self.drive(Event::Gone { id });
                }
            }
            Command::EndAll { id, cause, grace } => {
                let ends = ending::end_all(&self.world(), id, &cause, grace);
                self.execute(ends);
            }
            Command::SetStates(id, state) => self.claims.set_states(id, state),
            Command::BeginEnd(id, ending) => {
                if self.claims.begin_end(&self.journal, id, *ending) {
                    self.core.then(Event::Ending { id });
                }
            }
            Command::AskToEnd(id) => ending::ask_to_end(&self.world(), id),
            Command::AskAllToEnd(id, grace) => {
                if ending::ask_all_to_end(&self.world(), id) {
                    self.claims.wait_for_mps(id, grace);
                }
            }
            Command::SettleEnd(id) => {
                if self.claims.end_saving(id) {
                    // Clients of MPS are ended on the GPU first; the signals follow when that is done.
                    mps::terminate_clients(&self.world(), id);
                }
                let settled = ending::settle(&self.world(), id);
                self.execute(settled);
            }
            Command::KeepGpu(id) => self.claims.keep_gpu(id),
            Command::KillMembers(id, members) => {
                ending::kill_members(&self.world(), id, &members);
            }
            Command::Killed(id) => self.claims.killed(id),
            Command::Dismantle { id, cause } => self.dismantle(id, &cause),
            Command::EndBehalf { id, cause } => self.end_behalf(id, &cause),
            Command::RefuseWanting(id) => {
                let error = WireError::new(ErrorCode::Ended, format!("{id} was released"));
                self.claims.refuse_wanting(id, &error);
                if self.claims.waiting.remove(&id).is_some() {
                    self.drive(Event::Gone { id });
                }
            }
            Command::Requeued(id) => self.claims.requeued(id),
            Command::MoveLease(id, ends_ms) => {
                self.claims.move_lease(&mut self.journal, id, ends_ms);
            }
            Command::LeaseEnded { id, stopped, told } => {
                self.claims.lease_ended(id, stopped, told);
            }
            Command::WriteCap(id, slice) => act::write_cap(&self.world(), id, &slice),
            Command::Measure => {
                let measured = act::measure(&self.world());
                self.core.then(Event::Measured(measured));
            }
            Command::Grant {
                id,
                slices,
                ends,
                counted,
            } => {
                self.claims.note_counted(id, counted);
                if !self.grant(id, &slices, ends) {
                    self.core.then(Event::Gone { id });
                } else if let Some(live) = self.claims.get(&id) {
                    let size = grant::size_text(&self.world(), &live.record).unwrap_or_default();
                    let text = format!("granted: {size}");
                    story::write_down(&world_of!(self), &mut self.journal, id, &text);
                }
            }
            Command::Adopt(mut adoption) => {
                let id = self.journal.take_id();
                let (asked, event) = adoption.numbered(id);
                self.claims.waiting.insert(id, asked);
                self.drive(event);
                let done = adoption.done(&self.world(), id);
                self.execute(done);
            }
            Command::Submit(mut asked, patience) => {
                let journal = &mut self.journal;
                let (id, since_ms) = self.claims.number_of(&self.core, journal, &asked.record);
                (asked.record.id, asked.since_ms) = (id.0, since_ms);
                self.carry_out(Command::Ask(id, asked, patience));
            }
            Command::Ask(id, asked, patience) => {
                let event = waiting::event(&self.world(), id, &asked, patience);
                let parties = quota::parties(&self.world(), id, &asked.record);
                let (history, gpus) = (&self.history, asked.request.gpus);
                (self.sizes).ask_run_time(&self.config, history, id, &asked.record, gpus);
                self.claims.waiting.insert(id, *asked);
                self.drive_all([parties, event]);
            }
            Command::Place {
                id,
                position,
                reason,
            } => {
                if self.claims.note_told(id) {
                    if let Err(error) = self.journal.set_meta("told", &id.0.to_string()) {
                        tracing::warn!(%id, %error, "after a restart, the service may reuse this claim id");
                    }
                    let text = story::waits_text(&self.world(), &self.features, id, &reason);
                    let text = format!("waits: {text}");
                    story::write_down(&world_of!(self), &mut self.journal, id, &text);
                }
                let with = (&self.features, &self.levers);
                let start = act::tell_place(&self.world(), with, (id, position), &reason);
                self.execute(start.into_iter().collect());
            }
            Command::TellStart {
                id,
                position,
                reason,
                start,
            } => {
                let (world, place) = (self.world(), (id, position));
                let start = start.as_deref();
                let answer = lazy::place(&world, &self.features, place, &reason, start);
                self.claims.tell_wanting(id, answer, start.is_some());
            }
            Command::NoStart(id) => self.claims.no_start(id),
            Command::Refuse(id, error) => self.claims.refuse(id, error),
            Command::Resize(asked) => {
                let (wish, change, patience) = *asked;
                let event = self.claims.wishes.ask(wish, change, patience);
                self.drive(event);
            }
            Command::Resized {
                ticket,
                id,
                before,
                slices,
            } => {
                let wish = self.claims.wishes.open.remove(&ticket);
                self.sizes.followed(ticket);
                let Some(record) = resize::record(&self.world(), id, &slices) else {
                    return;
                };
                let follows = match self.journal.put(&record) {
                    Err(error) => resize::not_resized(&self.world(), id, before, wish, error),
                    Ok(()) => {
                        let old = self.claims.resize(record, &slices);
                        self.carry_out(Command::LimitMemory(id));
                        old.map_or_else(Vec::new, |old| {
                            resize::resized(&self.world(), &old, &slices, wish)
                        })
                    }
                };
                self.execute(follows);
            }
            Command::ResizeWaits {
                ticket,
                position,
                error,
            } => resize::resize_waits(&self.world(), ticket, position, &error),
            Command::ResizeRefused { ticket, error } => {
                self.sizes.followed(ticket);
                resize::resize_refused(&self.world(), ticket, &error);
                self.claims.wishes.open.remove(&ticket);
            }
            Command::RefuseLever(id, why) => self.levers.answer(id, Err(&why)),
            Command::Share(id, slices) => {
                let told = (self.claims).share(&mut self.journal, &self.gpus, id, &slices);
                self.execute(told.into_iter().collect());
            }
            Command::Pull(action) => {
                let Some(id) = levers::target(&action) else {
                    return;
                };
                let (world, levers) = (world_of!(self), &self.levers);
                let pulled = levers::pulled(&world, &self.features, levers, id, action);
                let journal = &mut self.journal;
                let written = pulled.and_then(|holding| {
                    let kept = self.claims.set_holding(journal, id, holding);
                    kept.map_err(|e| (Failure::Refused, e.to_string()))
                });
                let next = match written {
                    Ok(()) => {
                        die::at("lever-journaled");
                        Command::BeginLever { id, again: false }
                    }
                    Err((failure, why)) => Command::LeverFailed { id, failure, why },
                };
                self.carry_out(next);
            }
            Command::BeginLever { id, again } => {
                let begun = levers::begin(&self.world(), &self.levers, id, again);
                self.execute(begun);
            }
            Command::StartLever(prepared) => {
                let failed = prepared.start(&world_of!(self), &mut self.levers);
                self.execute(failed.into_iter().collect());
            }
            Command::LeverDone(id, outcome) => {
                let took = self.levers.ended(id);
                let follows = levers::done(&self.world(), id, outcome, took);
                self.execute(follows);
            }
            Command::LeverFailed { id, failure, why } => {
                self.levers.answer(id, Err(&why));
                self.drive(Event::LeverFailed { id, failure, why });
                self.screens.touch();
            }
            Command::AwaitLever(id, out) => self.levers.wait(id, out),
            Command::TellQueued(id, out) => {
                let queued = wishes::queued(&self.world(), &self.features, id);
                queued
                    .into_iter()
                    .for_each(|q| out.reply(&Reply::Queued(q)));
            }
            Command::TellLever(id, text) => {
                if self.levers.is_awaited(id) {
                    self.notice(Some(id), text.clone());
                } else {
                    // It was not asked for on a command line.
                    self.tell_owner(id, &text);
                }
                self.levers.answer(id, Ok(&text));
            }
            Command::Wanted { id, asked } => self.levers.wanted(id, asked),
            Command::AnswerWanted(id, out) => {
                let message = wishes::wanted_text(&self.world(), &self.features, id);
                out.member(&Answer::Wanted { message });
            }
            Command::KeepHolding(id, holding) => {
                self.claims.keep_holding(&mut self.journal, id, *holding);
            }
            Command::NowOn { id, to, only } => {
                self.claims.now_on(&mut self.journal, id, to, only);
            }
            Command::Relabel(id) => self.claims.relabel(&self.host, &self.gpus, id),
            Command::OpenAgain(id) => drop(self.open_again(id)),
            Command::Freeze(id, frozen) => self.claims.set_frozen(id, frozen),
            Command::EndWaits(id) => self.claims.end_waits(id),
            Command::CrashPoint(step) => die::at(step),
            Command::Deny => {
                let wanted = deny::wanted(&self.world());
                let events = &self.host.events;
                let told = (self.policy.denial).follow(
                    wanted,
                    |dirs| places::watch(dirs, events.clone()),
                    |refusals| policy::follow(refusals, events.clone()),
                );
                self.execute(told);
            }
            Command::FiltersAnew => {
                let rules = gpus::all_rules(&self.world());
                self.host.fences.set_all(&self.claims, rules);
                self.carry_out(Command::Deny);
            }
            Command::Account => {
                let (seen, changes) = auto::changes(&self.world(), self.journal.next_id());
                let told = (self.policy.auto).follow(&mut self.journal, seen, changes);
                self.execute(told);
            }
            Command::Reconcile => {
                let counted = self.policy.over.count(&self.claims, &self.gpus);
                let untold = overuse::untold(&self.world(), &counted);
                self.policy.over.note_untold(untold);
                let looks = overuse::look_at_all(&self.world(), &counted);
                let (now, rules) = (self.core.now(), self.config.overuse_rules());
                let acts = self.policy.over.judge(now, &rules, &looks);
                let told = overuse::follows(&self.world(), acts);
                self.execute(told);
            }
            Command::ProbeLimits => {
                let unknown = limits::unknown(&self.world());
                let ask = limits::asking(&self.observer);
                if self.policy.limits.probe(unknown, ask) {
                    let all = self.claims.keys().copied();
                    self.execute(all.map(Command::LimitMemory).collect());
                }
            }
            Command::LimitMemory(id) => {
                let limits = limits::of(&self.world(), id);
                let ask = limits::asking(&self.observer);
                let told = self.policy.limits.set(id, limits, ask);
                self.execute(told);
            }
            Command::WriteCaps(id, gpu) => overuse::write_caps_of(&self.world(), id, gpu),
            Command::Relearn(id, gpu, bytes) => {
                let seen = (id, gpu, bytes.0);
                (self.gpus).relearn(&mut self.journal, &self.claims, seen);
            }
            Command::WatchExit(id, process, fd) => self.host.watch_exit(id, process, fd),
            Command::Signal(processes, signal) => {
                ending::signal(&self.world(), &processes, signal);
            }
            Command::SignalEnd(id) => {
                self.claims.mps_has_ended(id);
                ending::clients_ended(&self.world(), id);
                self.carry_out(Command::SettleEnd(id));
            }
            Command::Requeue { id, why } => {
                let ends = reclaim::requeue(&self.world(), id, &why);
                self.execute(ends);
            }
            Command::Hold(id) => self.claims.hold(&self.journal, id),
            Command::Offload(id) => {
                let wish = Wish::Offload;
                self.drive(Event::Wish { id, wish });
            }
            Command::Shrink(id) => {
                if let Some(shrink) = resize::shrink(&self.world(), id) {
                    let ticket = self.claims.wishes.ticket();
                    self.drive(shrink.event(ticket));
                    let told = shrink.told(&self.world());
                    self.execute(told.into_iter().collect());
                }
            }
            Command::Enter(id) => {
                if let Err(error) = self.enter(id) {
                    tracing::error!(%id, "cannot set up the cgroup of a claim-for claim yet: {error:#}");
                }
            }
            Command::End { id, cause } => {
                let ends = ending::end(&self.world(), id, &cause);
                self.execute(ends);
            }
            Command::FewestToEnd(of) => {
                let fewest =
                    self.core
                        .fewest_to_end(self.core.now(), &of, &act::measure(&self.world()));
                self.tell(Fact::FewestToEnd(fewest));
            }
            Command::ReadVitals(ids) => {
                let read = |id: ClaimId| (id, self.claims.get(&id).and_then(Vitals::read));
                let vitals = ids.into_iter().map(read).collect();
                self.tell(Fact::Vitals(vitals));
            }
            Command::LookUpGroups(uid) => self.host.look_up_groups(uid),
            Command::AskServers => self.host.helpers.look(&self.claims, &self.host.events),
            Command::LookFor(id, uid, path) => {
                (self.host.helpers).look_for(id, uid, path, &self.host.events);
            }
            Command::ShareAnew => {
                self.carry_out(Command::TendMps);
                self.refresh();
            }
            Command::Publish => self.screens.touch(),
            Command::Say(terminal, line) => {
                if let Err(error) = terminal.say(&line) {
                    tracing::debug!(%error, "cannot write to the terminal of a program without a claim");
                }
            }
            Command::Notice(text) => self.notice(None, text),
            Command::NoticeOf { id, text } => self.notice(Some(id), text),
            Command::TellUser(uid, text) => self.notice_for(Some(uid), None, text),
            Command::TellOwner { id, text } => self.tell_owner(id, &text),
        }
    }

    /// What a caller has asked for: written down, done and answered, or nothing of it.
    fn ordered(&mut self, peer: &Peer, order: Result<Order, WireError>, out: &Sender) {
        let done = order.and_then(|order| {
            if order.is_kept() {
                let (acts, stores) = (order.acts, &order.stores);
                self.journal.audit(&self.host.names, peer, acts, stores)?;
            }
            order.file.map_or(Ok(()), |write| write())?;
            self.execute(order.then);
            Ok(order.answer)
        });
        match done {
            Ok(None) => {}
            Ok(Some(answer)) => match answer(&self.world(), &self.features) {
                Ok(reply) => out.reply(&reply),
                Err(error) => out.error(error),
            },
            Err(error) => out.error(error),
        }
        self.screens.touch();
    }

    /// Takes a configuration that was read again.
    pub(crate) fn reload(&mut self, read: Result<Config, ConfigError>) {
        let follows = self.config.reload(read);
        if let Some(units) = self.host.fences.tree.as_ref().and_then(|t| t.units()) {
            units.refresh_caps();
        }
        self.execute(follows);
    }

    /// Ends what has a GPU open beside NVML's handle: its MPS daemon and the engine.
    fn close_gpu(&mut self, g: usize) -> Vec<Wait> {
        let engine = levers::restrict_engine(&self.world(), &self.levers);
        let ended = [
            ("the MPS control daemon", self.gpus.mps.end(g)),
            ("the process that offloads claims", engine),
        ];
        let waits = ended.into_iter();
        waits
            .filter_map(|(what, ended)| ended.map(|ended| Wait { what, ended }))
            .collect()
    }

    /// The core hears what the last sample says of the GPUs.
    pub(crate) fn refresh(&mut self) {
        let left = gpus::unclaimed(&self.world());
        self.gpus.note_unclaimed(left);
        let facts = gpus::all_facts(&self.world(), &self.features);
        self.drive(Event::Gpus(facts));
    }

    /// Gives the core an event and carries out what it decides. What happens meanwhile waits until that is
    /// done: actions of two decisions never mix.
    pub(crate) fn drive(&mut self, event: Event) {
        self.drive_all([event]);
    }

    /// Several, and what they come to is written down once.
    pub(crate) fn drive_all(&mut self, events: impl IntoIterator<Item = Event>) {
        if !self.core.begin(events) {
            return;
        }
        while let Some((actions, decided)) = self.core.step() {
            self.tell(Fact::Decided(decided));
            self.sizes.decided();
            for action in actions {
                let (world, levers) = (world_of!(self), &self.levers);
                let commands = act::commands(&world, &self.features, levers, action);
                self.execute(commands);
            }
        }
        (self.claims).remember(&self.core, &self.gpus, &mut self.journal);
    }

    /// Tells everybody on the screen, and writes it down if it is about a claim.
    pub(crate) fn notice(&mut self, claim: Option<ClaimId>, text: String) {
        let owner = claim.and_then(|id| story::uid_of(&self.world(), id));
        self.notice_for(owner, claim, text);
    }

    /// The same of a claim that has gone.
    pub(crate) fn notice_for(&mut self, owner: Option<u32>, claim: Option<ClaimId>, text: String) {
        tracing::info!(claim = claim.map(|c| c.to_string()), "{text}");
        if let Some(id) = claim {
            self.journal.note(owner.unwrap_or(0), id, &text);
        }
        let notice = Notice {
            at_ms: unix_ms(),
            claim: claim.map(|c| c.to_string()),
            text,
        };
        self.tell(Fact::Told { owner, notice });
        self.screens.touch();
    }

    /// A notice, and the same in the owner's notebook and on their terminals.
    pub(crate) fn tell_owner(&mut self, id: ClaimId, text: &str) {
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        self.host.helpers.say(live, text, &self.host.events);
        tell::write_to_terminals(&self.world(), id, text);
        self.notice(Some(id), text.to_owned());
    }

    /// Sends the newest snapshot to those who watch and have taken the last one.
    pub(crate) fn publish(&mut self) {
        if self.screens.next().is_none_or(|at| at > Instant::now()) {
            return;
        }
        let snapshot = view::snapshot(self);
        let mut screens = std::mem::take(&mut self.screens);
        screens.publish(|viewer| view::seen_by(self, viewer, snapshot.clone()));
        self.screens = screens;
    }

    /// The core hears of the time.
    pub(crate) fn wake(&mut self) {
        self.drive(Event::Tick);
        self.tell_arbiter();
    }

    /// Tells the arbiter who is where, if that has changed.
    fn tell_arbiter(&mut self) {
        let table = turns::gate_table(&self.world());
        if let Some(gates) = &mut self.host.gates {
            gates.tell(table);
        }
    }

    /// Handles one message.
    pub(crate) fn handle(&mut self, msg: Msg) {
        match msg {
            Msg::Call {
                peer,
                call,
                out,
                turn,
            } => {
                self.call(whose::standing(&self.world(), peer), call, &out, turn);
            }
            Msg::Register {
                peer,
                register,
                out,
                turn,
            } => {
                self.register(&whose::standing(&self.world(), peer), &register, &out);
                drop(turn);
            }
            Msg::Launch {
                peer,
                launch,
                out,
                turn,
            } => {
                let world = self.world();
                launch::launch(&world, &whose::standing(&world, peer), &launch, &out);
                drop(turn);
            }
            Msg::Lever(LeverMsg::Want {
                peer,
                want,
                out,
                turn,
            }) => {
                let peer = whose::standing(&self.world(), peer);
                let wants = wishes::wants(&self.world(), &peer, &want, &out);
                self.execute(wants);
                drop(turn);
            }
            Msg::Lever(LeverMsg::Engine(usable)) => {
                if let Err(why) = &usable {
                    tracing::warn!("claims cannot be offloaded: {why}");
                }
                self.levers.usable = Some(usable);
                self.execute(vec![Command::LookAtLevers, Command::ReclaimRules]);
            }
            Msg::Lever(LeverMsg::Stuck { id, why }) => {
                let text =
                    format!("{id} is only partly offloaded or restored; gshare tries again: {why}");
                self.tell_owner(id, &text);
            }
            Msg::Lever(LeverMsg::Done {
                id,
                outcome,
                unable,
            }) => {
                for text in self.levers.note_unable(id, &outcome, unable) {
                    self.tell_owner(id, &text);
                }
                self.carry_out(Command::LeverDone(id, outcome));
            }
            Msg::DriverFiles => {
                let (driver, socket) = (&mut self.host.driver, &self.host.paths.socket);
                if let Some(expected) = driver.files_changed(&self.config, socket) {
                    let looked = cover::look(&self.world(), &expected);
                    self.execute(looked);
                }
            }
            Msg::Places => self.carry_out(Command::Deny),
            Msg::Closed { conn, .. } => self.closed(conn),
            Msg::Exited {
                claim,
                process,
                status,
            } => {
                self.gpus.owners.ended.insert(process.pid);
                if (self.policy.auto).end(&mut self.journal, claim, auto::EXITED) {
                    self.screens.touch();
                } else {
                    let follows = self.claims.exited(&self.gpus, claim, process, status);
                    self.execute(follows);
                }
            }
            Msg::Scrape(out) => {
                // The caller may have gone.
                let _ = out.send(view::metrics_page(self));
            }
            Msg::Mps { gpu, report } => {
                let news = self.gpus.mps.note(gpu, &report);
                let told = mps::follows(&self.world(), gpu, report, news);
                self.execute(told);
            }
            Msg::History(told) => {
                match told {
                    Told::Day(day) => self.history.day = Some(day),
                    Told::Claims(claims) => self.history.remember(claims),
                    Told::Learned(id, told) => {
                        let time = self.sizes.learned(ClaimId(id), told);
                        self.drive_all(time);
                    }
                    Told::Sized(mut sized) => {
                        if self.sizes.size(&world_of!(self), &mut sized) {
                            self.submit(sized.peer, sized.spec, sized.out, sized.turn);
                        }
                    }
                }
                self.screens.touch();
            }
            Msg::Divided { gpu, result, out } => self.execute(mig::divided(gpu, result, out)),
            Msg::Stage {
                peer,
                call,
                past,
                out,
            } => {
                let order = past.and_then(|past| stage::order(&self.world(), call, &past));
                self.ordered(&peer, order, &out);
            }
            Msg::Refused(refused) => self.execute(refused.told(&self.world())),
            Msg::Fact(fact) => self.tell(fact),
            Msg::KernelXid(xid) => {
                let claim = xid
                    .pid
                    .and_then(|pid| members::claim_of(&self.world(), pid.cast_signed()));
                self.tell(Fact::KernelXid { xid, claim });
                self.refresh();
            }
            Msg::Sample(sample) => {
                // One that lay in the queue while instances were made knows nothing of them.
                let known = self.gpus.sample.as_ref().map(|s| s.taken);
                if known.is_none_or(|known| known <= sample.taken) {
                    self.gpus.sample = Some(*sample);
                }
                if self.host.fences.read_majors(&self.config, false) {
                    self.carry_out(Command::FiltersAnew);
                }
                let drained = self.gpus.meet_instances(&self.config, &self.claims);
                self.drive_all(drained);
                self.gpus.meet();
                self.carry_out(Command::LookUpOwners);
                self.policy.looks += 1;
                self.execute(policy::after_a_sample());
                let look = look_at_pages(&self.world(), &self.features);
                self.tell(Fact::Sample(look));
                self.gpus.add_points();
                (self.history).look(&world_of!(self), &self.features, &mut self.sizes);
                let wishes = self.sizes.follow(&self.config.sizes, &mut self.claims);
                self.drive_all(wishes);
                self.refresh();
                for g in 0..self.gpus.len() {
                    let strays = mps::strays(&self.world(), g);
                    let new = self.gpus.mps.note_beside(g, strays).into_iter();
                    self.execute(new.map(|stray| mps::stray_text(g, stray)).collect());
                }
                self.screens.touch();
            }
        }
        self.tell_arbiter();
    }

    /// Once a tick: leases, patience, endings, dead members that nobody told of.
    pub(crate) fn tick(&mut self) {
        self.carry_out(Command::FollowOff);
        let due = stage::due(&self.world());
        self.execute(due);
        self.carry_out(Command::Admission);
        let back = release::take_in_time(&self.world());
        self.execute(back);
        self.execute(vec![
            Command::ChangeModes,
            Command::TendMps,
            Command::RenewMps,
        ]);
        self.drive_all(rules::minute(&self.core).into_iter().chain([Event::Tick]));
        let used = members::programs_use(&self.world());
        let watched = (self.claims).watch_all(self.core.ledger(), &self.gpus, &used);
        self.execute(watched);
        let tick = tick_of_claims(&self.world(), &self.features, &self.levers);
        self.tell(Fact::Tick(tick));
        let starts = lazy::starts(&self.world(), &self.features, &self.sizes);
        self.execute(starts);
        let signals = signal::due(&self.world());
        self.execute(signals);
        self.carry_out(Command::LookAtLevers);
        for dir in self.claims.tidy_lingering(self.host.fences.tree.as_ref()) {
            ending::give_back_lodging(&self.world(), &dir);
        }
        self.journal.write_ends();
        self.journal.forget_past();
        let (tick, at) = (self.config.service.tick, self.features.attribution.at_ns());
        if gshare_abi::monotonic_ns().saturating_sub(at) > 2 * nanos(tick) {
            let look = look_at_pages(&self.world(), &self.features);
            self.tell(Fact::NoSample(look));
        }
        self.tell_arbiter();
        self.screens.touch();
    }

    /// `turn` is given back once it is answered.
    fn call(&mut self, peer: Peer, call: Call, out: &Sender, turn: Turn) {
        if let (Some(why), true) = (self.journal.newer(), promises(&call)) {
            out.error(
                WireError::new(ErrorCode::NotAvailable, why)
                    .with_hint("ask the administrator to start the newer gshared"),
            );
            return;
        }
        let answer = match call {
            Call::Claim(spec) => {
                die::at("claim-asked");
                self.submit(peer, *spec, out.clone(), turn);
                return;
            }
            Call::Resize(spec) => {
                let order = resize::order(&self.world(), &peer, &spec, out);
                return self.ordered(&peer, order, out);
            }
            Call::Adopt { pid, spec } => {
                let order = adopt::order(&self.world(), &peer, pid, *spec, out);
                return self.ordered(&peer, order, out);
            }
            Call::Lever { id, wish } => {
                let order = wishes::wish(&self.world(), &self.levers, &peer, (&id, wish), out);
                return self.ordered(&peer, order, out);
            }
            Call::Move { id, gpus } => {
                let (world, with) = (self.world(), (&self.features, &self.levers));
                let order = wishes::move_to(&world, with, &peer, &id, &gpus, out);
                return self.ordered(&peer, order, out);
            }
            Call::Watch { min_interval_ms } => {
                let viewer = watch::viewer(&self.world(), &peer);
                (self.screens).watch(&peer, viewer, out.clone(), min_interval_ms);
                return;
            }
            Call::Snapshot => {
                let snapshot = view::seen_by(
                    self,
                    watch::viewer(&self.world(), &peer),
                    view::snapshot(self),
                );
                Ok(Reply::Snapshot(Box::new(snapshot)))
            }
            Call::History(spec) => {
                let (world, ask) = (world_of!(self), Ask::History(spec));
                return (self.history).ask(&world, &self.features, &peer, ask, out, turn);
            }
            Call::Report(spec) => {
                let (world, ask) = (world_of!(self), Ask::Report(spec));
                return (self.history).ask(&world, &self.features, &peer, ask, out, turn);
            }
            Call::Suggest(spec) => {
                let world = world_of!(self);
                return (self.sizes).suggest(&world, &self.history, &peer, spec, out, turn);
            }
            Call::Stored { after } => {
                let (world, ask) = (world_of!(self), Ask::Stored(after));
                return (self.history).ask(&world, &self.features, &peer, ask, out, turn);
            }
            Call::Doctor => Ok(Reply::Doctor {
                checks: doctor::doctor(self, watch::viewer(&self.world(), &peer)),
            }),
            Call::Join { id, parent } => self.join(&peer, &id, parent),
            Call::Env { id } => grant::env(&self.world(), &peer, &id),
            Call::Try(spec) => story::try_claim(&self.world(), &self.features, &peer, &spec),
            Call::Log { id } => story::log(&self.world(), &self.journal, &peer, &id),
            Call::Keep { id } => {
                let order = reclaim::keep(&self.world(), &self.features, &peer, &id);
                return self.ordered(&peer, order, out);
            }
            Call::Extend { id, by_s } => {
                let order = lease::extended(&self.world(), &peer, &id, by_s).and_then(|record| {
                    let id = ClaimId(record.id);
                    self.journal
                        .put(&record)
                        .map_err(|error| lease::not_extended(id, error))?;
                    self.claims.record(record);
                    Ok(lease::extend(&self.world(), id, by_s))
                });
                return self.ordered(&peer, order, out);
            }
            Call::Lease { pid, start_ticks } => Ok(lease::lease_of(
                &self.world(),
                &self.journal,
                &peer,
                pid,
                start_ticks,
            )),
            Call::Release { id } => {
                let order = ending::release(&self.world(), &peer, &id);
                return self.ordered(&peer, order, out);
            }
            Call::ReleaseAll => {
                let order = ending::release_all(&self.world(), &peer);
                return self.ordered(&peer, order, out);
            }
            Call::Admin(AdminCall::Release { gpus, for_ms }) => {
                let world = self.world();
                let order = release::order(&world, &self.levers, &peer, &gpus, for_ms, out);
                return self.ordered(&peer, order, out);
            }
            Call::Admin(AdminCall::Mig {
                gpu,
                layout,
                dry_run,
            }) => {
                let (world, with) = (self.world(), (&self.observer, &self.levers));
                let order = mig::order(&world, with, &peer, (&gpu, &layout), dry_run, out);
                return self.ordered(&peer, order, out);
            }
            Call::Admin(AdminCall::ClaimFor(asked)) => {
                let order = claim_for::order(&self.world(), &peer, *asked, out);
                return self.ordered(&peer, order, out);
            }
            Call::Admin(call @ AdminCall::Stage { .. }) => {
                self.journal.write_ends();
                return stage::look_back(&self.world(), peer, call, out);
            }
            // What is guaranteed to whom is no secret.
            Call::Admin(AdminCall::QuotaList) => Ok(self.config.quota_list()),
            Call::Admin(AdminCall::Log { last }) => {
                admin::log(&self.world(), &self.journal, &peer, last)
            }
            Call::Admin(call) => {
                let order = admin::order(&self.world(), &self.features, &peer, call);
                return self.ordered(&peer, order, out);
            }
            Call::Container { id } => {
                if self.host.fences.read_majors(&self.config, true) {
                    self.carry_out(Command::FiltersAnew);
                }
                container::place(&self.world(), &peer, &id)
            }
        };
        match answer {
            Ok(reply) => out.reply(&reply),
            Err(error) => out.error(error),
        }
        self.screens.touch();
    }

    fn closed(&mut self, conn: ConnId) {
        self.screens.close(conn);
        self.sizes.asking.remove(&conn);
        let mut gone = self.claims.wishes.closed(conn);
        gone.extend(self.claims.closed(conn));
        if !gone.is_empty() {
            self.screens.touch();
        }
        self.drive_all(gone);
    }
}

/// Finds a claim by `c3`, `3` or its name, granted or waiting. Of several with that name the caller's own
/// is meant.
pub(crate) fn find(world: &World<'_>, peer: &Peer, word: &str) -> Result<ClaimId, WireError> {
    if let Ok(id) = word.parse::<ClaimId>()
        && (world.claims.contains_key(&id) || world.claims.waiting.contains_key(&id))
    {
        return Ok(id);
    }
    let auto = word.parse().ok().and_then(|id| world.policy.auto.get(&id));
    if let Some(auto) = auto {
        return Err(policy::is_auto(world, word, auto));
    }
    let held = world.claims.iter().map(|(id, l)| (*id, &l.record));
    let waiting = world.claims.waiting.iter().map(|(id, a)| (*id, &a.record));
    let named: Vec<(ClaimId, u32)> = held
        .chain(waiting)
        .filter(|(_, record)| record.name.as_deref() == Some(word))
        .map(|(id, record)| (id, record.uid))
        .collect();
    let own = named.iter().filter(|(_, uid)| *uid == peer.uid);
    let mut found: Vec<ClaimId> = own.map(|(id, _)| *id).collect();
    if found.is_empty() {
        found = named.into_iter().map(|(id, _)| id).collect();
    }
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(WireError::new(ErrorCode::NoClaim, messages::no_claim(word))
            .with_hint(messages::claims_are_listed())),
        _ => Err(WireError::new(
            ErrorCode::NoClaim,
            format!("several claims are named `{word}`"),
        )
        .with_hint("use the id, as gshare ps shows it")),
    }
}

/// One line for the log.
pub(crate) fn summary(world: &World<'_>) -> String {
    format!(
        "{} GPUs, {} claims; cgroups {}, device filter {}, shim {}",
        world.gpus.len(),
        world.claims.len(),
        if world.host.fences.tree.is_some() {
            "on"
        } else {
            "off"
        },
        if world.host.fences.filters.is_some() {
            "on"
        } else {
            "off"
        },
        if world.host.driver.libcuda.is_ok() {
            "on"
        } else {
            "off"
        },
    )
}

/// What the processes of claims say in their pages, and who works beside them.
fn look_at_pages(world: &World<'_>, features: &Features) -> Look {
    let mut pages = Pages::new();
    for (id, live) in world.claims.iter() {
        for seat in &live.seats {
            let slots = seat.usage.read_slots(world.gpus[seat.gpu].total);
            pages.insert((*id, seat.gpu), slots);
        }
    }
    let others = |g: usize| {
        let mut here = features
            .identity
            .outside()
            .iter()
            .filter(|u| u.gpu as usize == g);
        Others {
            draw: here.clone().any(|u| u.graphics),
            compute: world.policy.auto.any_on(g) || here.any(|u| !u.graphics),
        }
    };
    let others = (0..world.gpus.len()).map(others).collect();
    Look { pages, others }
}

/// What is known of claims at a tick.
fn tick_of_claims(world: &World<'_>, features: &Features, levers: &LeverState) -> Tick {
    let ids = || world.claims.keys().copied();
    let kernel = |id| Some((id, features.notebooks.kernel(world, id)?));
    let fixed = |id| Some((id, facts::may_park(world, levers, id).err()?));
    Tick {
        cgroups: claim_for::cgroups_of_others(world),
        kernels: ids().filter_map(kernel).collect(),
        fixed: match levers.usable {
            Some(_) => ids().filter_map(fixed).collect(),
            None => BTreeMap::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_part_is_documented() {
        let page = include_str!("../../docs/internals.md");
        let table = page.split("| field | what it is |").nth(1);
        let table = table.and_then(|t| t.split("\n\n").next()).expect("a table");
        let code = include_str!("service.rs")
            .split("struct Service {")
            .nth(1)
            .and_then(|code| code.split("\n}").next());
        let parts = code.expect("it is there").lines().filter_map(|line| {
            let (name, _) = line.trim().strip_prefix("pub(crate) ")?.split_once(':')?;
            Some(name)
        });
        let parts: Vec<&str> = parts.collect();
        assert!((8..=13).contains(&parts.len()), "{parts:?}");
        for part in parts {
            assert!(table.contains(&format!("`{part}`")), "{part} is missing");
        }
    }
}
