//! The state of the service, and the handling of each message.

use std::collections::BTreeMap;
use std::time::Instant;

use gshare_config::{Config, ConfigError};
use gshare_core::ClaimId;
use gshare_core::machine::lever::Wish;
use gshare_core::machine::{Action, Event};
use gshare_core::units::many;
use gshare_enforcer::gpu::GpuSample;
use gshare_proto::{AdminCall, Call, ErrorCode, Notice, Reply, WireError};

use super::command::{ClaimCommand, Command, GpuCommand, LeverCommand, LimitCommand, RuleCommand};
use super::connection::{ConnId, Sender, Turn};
use super::effects::Effects;
use super::engine::LeverState;
use super::fact::{Fact, Look, Others, Pages, Tick};
use super::features::Features;
use super::history::vitals::Vitals;
use super::history::worker::Told;
use super::history::{Ask, History};
use super::levers::{facts, wishes};
use super::msg::{LeverMsg, Msg};
use super::order::Order;
use super::peer::Peer;
use super::policy::{adopt, auto};
use super::watch::Screens;
use super::world::{World, world_of};
use super::{
    act, admin, claim_for, container, cover, die, doctor, effects, ending, gpus, grant, launch,
    lazy, lease, levers, members, mig, mps, policy, reclaim, record, release, resize, rules,
    signal, stage, story, submit, tell, turns, view, watch, whose,
};
use crate::clock::{nanos, unix_ms};

/// Whether a call grants or changes something that must be journaled.
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

#[derive(Debug)]
pub(crate) struct Service {
    /// State on which commands are carried out.
    pub(crate) effects: Effects,
    pub(crate) history: History,
    /// Experience for sizes.
    pub(crate) sizes: super::tracks::Sizes,
    /// Features with their private state.
    pub(crate) features: Features,
    pub(crate) screens: Screens,
}

impl Service {
    /// What features may read.
    pub(crate) fn world(&self) -> World<'_> {
        world_of!(self.effects)
    }

    fn state(&self) -> view::State<'_> {
        view::State {
            effects: &self.effects,
            features: &self.features,
            history: &self.history,
            sizes: &self.sizes,
        }
    }

    /// Tells the features a fact, carries out their commands, and continues with the facts that follow until there
    /// are none.
    pub(crate) fn tell(&mut self, fact: Fact) {
        if !self.features.round.begin(fact) {
            return;
        }
        while let Some(facts) = self.features.round.turn() {
            for fact in facts {
                let mut commands = Vec::new();
                self.features
                    .on(&world_of!(self.effects), &fact, &mut commands);
                self.execute(commands);
            }
        }
    }

    /// Carries out commands, the journal first: if that fails, none of them.
    pub(crate) fn execute(&mut self, commands: Vec<Command>) {
        for command in effects::written(&self.effects.journal, commands) {
            self.carry_out(command);
        }
    }

    fn carry_out(&mut self, command: Command) {
        let effects = &mut self.effects;
        let follows = match command {
            Command::Store(store) => return tracing::error!(?store, "not written down"),
            Command::Core(event) => return self.drive(event),
            Command::Events(events) => return self.drive_all(events),
            Command::Tell(fact) => return self.tell(fact),
            Command::Refresh => return self.refresh(),
            Command::Sample(sample) => return self.sample(*sample),
            Command::Reply(out, answer) => return out.answer(answer),
            Command::RunEnded(live, cause) => {
                let world = world_of!(effects);
                return (self.sizes).end_run(&world, &self.history, &live, &cause);
            }
            Command::AskRunTime(id, record, gpus) => {
                let (config, history) = (&effects.config, &self.history);
                return (self.sizes).ask_run_time(config, history, id, &record, gpus);
            }
            Command::FewestToEnd(of) => {
                let charges = effects.world().charges();
                let fewest = effects
                    .core
                    .fewest_to_end(effects.core.now(), &of, &charges);
                return self.tell(Fact::FewestToEnd(fewest));
            }
            Command::ReadVitals(ids) => {
                let read = |id: ClaimId| (id, effects.claims.get(&id).and_then(Vitals::read));
                let vitals = ids.into_iter().map(read).collect();
                return self.tell(Fact::Vitals(vitals));
            }
            Command::AskServers => {
                let host = &mut effects.host;
                return host.helpers.look(&effects.claims, &host.events);
            }
            Command::LookFor(id, uid, path) => {
                let host = &mut effects.host;
                let account = host.names.account(uid);
                return host
                    .helpers
                    .look_for(id, (uid, &account), path, &host.events);
            }
            Command::CrashPoint(step) => return die::at(step),
            Command::Publish => return self.screens.touch(),
            Command::Say(terminal, line) => {
                if let Err(error) = terminal.say(&line) {
                    tracing::debug!(%error, "cannot write to the terminal of a program without a claim");
                }
                return;
            }
            Command::Notice(text) => return self.notice(None, None, text),
            Command::NoticeOf { id, text } => {
                let owner = effects.world().uid_of(id);
                return self.notice(owner, Some(id), text);
            }
            Command::TellUser(uid, id, text) => return self.notice(Some(uid), id, text),
            Command::TellOwner { id, text } => return self.tell_owner(id, text),
            Command::Gpus(command) => gpus::carry_out(effects, command),
            Command::Rules(command) => rules::carry_out(effects, &self.features, command),
            Command::Ends(command) => ending::carry_out(effects, command),
            Command::Claims(command) => {
                if let ClaimCommand::Resized(Action::Resize { .. }) = command {
                    // Use until now counts for the old size.
                    (self.history).look(&world_of!(effects), &self.features, &mut self.sizes);
                }
                submit::carry_out(effects, &self.features, command)
            }
            Command::Levers(command) => levers::carry_out(effects, &self.features, command),
            Command::Limits(command) => policy::carry_out(effects, command),
        };
        self.execute(follows);
    }

    /// A caller's order: journaled, carried out and answered, or nothing of it.
    fn ordered(&mut self, peer: &Peer, order: Result<Order, WireError>, out: &Sender) {
        let done = order.and_then(|order| {
            if order.is_kept() {
                let (acts, stores) = (order.acts, &order.stores);
                self.effects
                    .journal
                    .audit(&self.effects.host.names, peer, acts, stores)?;
            }
            order.file.map_or(Ok(()), |write| write())?;
            self.execute(order.then);
            Ok(order.answer)
        });
        match done {
            Ok(None) => {}
            Ok(Some(answer)) => out.answer(answer(&self.world(), &self.features)),
            Err(error) => out.error(error),
        }
        self.screens.touch();
    }

    /// Applies a configuration that was read again.
    pub(crate) fn reload(&mut self, read: Result<Config, ConfigError>) {
        let follows = self.effects.config.reload(read);
        let tree = self.effects.host.fences.tree.as_ref();
        if let Some(units) = tree.and_then(|tree| tree.units()) {
            units.refresh_caps();
        }
        self.execute(follows);
    }

    /// Tells the core the GPUs' state in the last sample.
    pub(crate) fn refresh(&mut self) {
        let left = gpus::unclaimed(&self.world());
        gpus::note_unclaimed(&mut self.effects.gpus, left);
        let facts = gpus::all_facts(&self.world(), &self.features);
        self.drive(Event::Gpus(facts));
    }

    /// Gives the core an event and carries out its decision. Events meanwhile wait until that is done, so that
    /// actions of two decisions never mix.
    pub(crate) fn drive(&mut self, event: Event) {
        self.drive_all([event]);
    }

    /// Gives it several events; the result is saved once.
    pub(crate) fn drive_all(&mut self, events: impl IntoIterator<Item = Event>) {
        if !self.effects.core.begin(events) {
            return;
        }
        while let Some((actions, decided)) = self.effects.core.step() {
            self.tell(Fact::Decided(decided));
            self.sizes.decided(&actions);
            for action in actions {
                let (world, levers) = (world_of!(self.effects), &self.effects.levers);
                let commands = act::commands(&world, &self.features, levers, action);
                self.execute(commands);
            }
        }
        (self.effects.claims).remember(
            &self.effects.core,
            &self.effects.gpus,
            &mut self.effects.journal,
        );
    }

    /// Shows a notice to everybody on the screen, and logs it if it is about a claim, even an ended one.
    fn notice(&mut self, owner: Option<u32>, claim: Option<ClaimId>, text: String) {
        tracing::info!(claim = claim.map(|c| c.to_string()), "{text}");
        if let Some(id) = claim {
            self.effects.journal.note(owner.unwrap_or(0), id, &text);
        }
        let notice = Notice {
            at_ms: unix_ms(),
            claim: claim.map(|c| c.to_string()),
            text,
        };
        self.tell(Fact::Told { owner, notice });
        self.screens.touch();
    }

    /// A notice that also goes to the owner's notebook and terminals.
    fn tell_owner(&mut self, id: ClaimId, text: String) {
        let host = &mut self.effects.host;
        let Some(live) = self.effects.claims.get(&id) else {
            return;
        };
        host.helpers.say(live, &text, &host.events);
        tell::write_to_terminals(&self.world(), id, &text);
        self.notice(Some(live.record.uid), Some(id), text);
    }

    /// Sends the newest snapshot to watching clients that have read the last one.
    pub(crate) fn publish(&mut self) {
        if self.screens.next().is_none_or(|at| at > Instant::now()) {
            return;
        }
        let snapshot = view::snapshot(&self.state());
        let mut screens = std::mem::take(&mut self.screens);
        screens.publish(|viewer| view::seen_by(&self.state(), viewer, snapshot.clone()));
        self.screens = screens;
    }

    /// Tells the core the time.
    pub(crate) fn wake(&mut self) {
        self.drive(Event::Tick);
        self.tell_arbiter();
    }

    /// Tells the arbiter the claims on each GPU, if they have changed.
    fn tell_arbiter(&mut self) {
        let table = turns::gate_table(&self.world());
        if let Some(gates) = &mut self.effects.host.gates {
            gates.tell(table);
        }
    }

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
                let peer = whose::standing(&self.world(), peer);
                let follows = members::register(&mut self.effects, &peer, &register, &out);
                self.execute(follows);
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
                self.effects.levers.usable = Some(usable);
                self.execute(vec![
                    Command::Rules(RuleCommand::LookAtLevers),
                    Command::Rules(RuleCommand::ReclaimRules),
                ]);
            }
            Msg::Lever(LeverMsg::Stuck { id, why }) => {
                let text =
                    format!("{id} is only partly offloaded or restored; gshare tries again: {why}");
                self.tell_owner(id, text);
            }
            Msg::Lever(LeverMsg::Suspended(id, false)) => self.effects.levers.ask_again(id, false),
            Msg::Lever(LeverMsg::Suspended(id, true)) => {
                let wish = Wish::Yield;
                self.carry_out(Command::Core(Event::Wish { id, wish }));
            }
            Msg::Lever(LeverMsg::Done {
                id,
                outcome,
                unable,
            }) => {
                for text in self.effects.levers.note_unable(id, &outcome, unable) {
                    self.tell_owner(id, text);
                }
                self.carry_out(Command::Levers(LeverCommand::LeverDone(id, outcome)));
            }
            Msg::DriverFiles => {
                let (driver, socket) = (
                    &mut self.effects.host.driver,
                    &self.effects.host.paths.socket,
                );
                if let Some(expected) = driver.files_changed(&self.effects.config, socket) {
                    let looked = cover::look(&self.world(), &expected);
                    self.execute(looked);
                }
            }
            Msg::Places => self.carry_out(Command::Limits(LimitCommand::Deny)),
            Msg::Closed { conn, .. } => self.closed(conn),
            Msg::Exited {
                claim,
                process,
                status,
            } => {
                self.effects.gpus.owners.ended.insert(process.pid);
                if (self.effects.policy.auto).end(&mut self.effects.journal, claim, auto::EXITED) {
                    self.screens.touch();
                } else {
                    let follows =
                        self.effects
                            .claims
                            .exited(&self.effects.gpus, claim, process, status);
                    self.execute(follows);
                }
            }
            Msg::Scrape(out) => {
                // The caller may have gone.
                let _ = out.send(view::metrics_page(&self.state()));
            }
            Msg::Mps { gpu, report } => {
                let news = self.effects.gpus.mps.note(gpu, &report);
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
                        if self.sizes.size(&world_of!(self.effects), &mut sized) {
                            let (effects, asked) = (&mut self.effects, *sized);
                            let follows =
                                submit::submit(effects, asked.peer, asked.spec, &asked.out);
                            self.execute(follows);
                            drop(asked.turn);
                        }
                    }
                }
                self.screens.touch();
            }
            Msg::Divided { gpu, result, out } => {
                self.execute(mig::order::divided(gpu, result, out));
            }
            Msg::Stage {
                peer,
                call,
                past,
                out,
            } => {
                let order = past.and_then(|past| stage::order(&self.world(), call, &past));
                self.ordered(&peer, order, &out);
            }
            Msg::Refused(refused) => self.execute(policy::told(*refused, &self.world())),
            Msg::Fact(fact) => self.tell(fact),
            Msg::Accounts => self.carry_out(Command::Rules(RuleCommand::Quotas)),
            Msg::KernelXid(xid) => {
                let claim = xid
                    .pid
                    .and_then(|pid| whose::claim_of(&self.world(), pid.cast_signed()));
                self.tell(Fact::KernelXid { xid, claim });
                self.refresh();
            }
            Msg::Sample(sample) => self.sample(*sample),
        }
        self.tell_arbiter();
    }

    /// The observer has looked at the GPUs.
    fn sample(&mut self, sample: GpuSample) {
        // A sample from before instances were made does not contain them.
        let known = self.effects.gpus.sample.as_ref().map(|s| s.taken);
        if known.is_none_or(|known| known <= sample.taken) {
            self.effects.gpus.sample = Some(sample);
        }
        if self
            .effects
            .host
            .fences
            .read_majors(&self.effects.config, false)
        {
            self.carry_out(Command::Limits(LimitCommand::FiltersAnew));
        }
        let drained = self
            .effects
            .gpus
            .meet_instances(&self.effects.config, &self.effects.claims);
        self.drive_all(drained);
        self.effects.gpus.meet();
        self.carry_out(Command::Gpus(GpuCommand::LookUpOwners));
        self.effects.policy.looks += 1;
        self.execute(policy::after_a_sample());
        let look = look_at_pages(&self.world(), &self.features);
        self.tell(Fact::Sample(look));
        record::add_points(&mut self.effects.gpus);
        (self.history).look(&world_of!(self.effects), &self.features, &mut self.sizes);
        let wishes = self
            .sizes
            .follow(&self.effects.config.sizes, &mut self.effects.claims);
        self.drive_all(wishes);
        self.refresh();
        for g in 0..self.effects.gpus.len() {
            let strays = mps::strays(&self.world(), g);
            let new = self.effects.gpus.mps.note_beside(g, strays).into_iter();
            self.execute(new.map(|stray| mps::stray_text(g, stray)).collect());
        }
        self.screens.touch();
    }

    /// Once per tick: time limits, patience, endings, members that ended unnoticed.
    pub(crate) fn tick(&mut self) {
        self.carry_out(Command::Rules(RuleCommand::FollowOff));
        let due = stage::due(&self.world());
        self.execute(due);
        self.carry_out(Command::Rules(RuleCommand::Admission));
        let booked = adopt::with_room(&self.world());
        self.execute(booked);
        let back = release::take_in_time(&self.world());
        self.execute(back);
        self.execute(vec![
            Command::Gpus(GpuCommand::ChangeModes),
            Command::Gpus(GpuCommand::TendMps),
            Command::Gpus(GpuCommand::RenewMps),
        ]);
        self.drive_all(
            rules::minute(&self.effects.core)
                .into_iter()
                .chain([Event::Tick]),
        );
        let watched = members::watch(&mut self.effects);
        self.execute(watched);
        let tick = tick_of_claims(&self.world(), &self.features, &self.effects.levers);
        self.tell(Fact::Tick(tick));
        let starts = lazy::starts(&self.world(), &self.features, &self.sizes);
        self.execute(starts);
        let signals = signal::due(&self.world());
        self.execute(signals);
        self.carry_out(Command::Rules(RuleCommand::LookAtLevers));
        ending::tidy_lingering(&mut self.effects);
        self.effects.journal.write_ends();
        self.effects.journal.forget_past();
        self.effects.journal.fold();
        let (tick, at) = (
            self.effects.config.service.tick,
            self.features.attribution.at_ns(),
        );
        if gshare_abi::monotonic_ns().saturating_sub(at) > 2 * nanos(tick) {
            let look = look_at_pages(&self.world(), &self.features);
            self.tell(Fact::NoSample(look));
            self.screens.touch();
        }
        self.tell_arbiter();
    }

    /// `turn` is returned once it is answered.
    fn call(&mut self, peer: Peer, call: Call, out: &Sender, turn: Turn) {
        if let (Some(why), true) = (self.effects.journal.newer(), promises(&call)) {
            out.error(
                WireError::new(ErrorCode::NotAvailable, why)
                    .with_hint("ask the administrator to start the newer gshared"),
            );
            return;
        }
        // Both depend on what can be done to the claims, which may have changed since the last tick.
        if matches!(call, Call::Claim(_) | Call::Try(_)) {
            self.carry_out(Command::Rules(RuleCommand::LookAtLevers));
        }
        let answer = match call {
            Call::Claim(spec) => {
                die::at("claim-asked");
                let spec = *spec;
                if submit::is_to_be_sized(&self.world(), &peer, &spec) {
                    let (config, history) = (&self.effects.config, &self.history);
                    let out = out.clone();
                    let sized = self.sizes.ask(config, history, peer, spec, out, turn);
                    let sized = sized.map(|sized| Msg::History(Told::Sized(sized)));
                    return sized.into_iter().for_each(|msg| self.handle(msg));
                }
                let follows = submit::submit(&mut self.effects, peer, spec, out);
                return self.execute(follows);
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
                let order =
                    wishes::wish(&self.world(), &self.effects.levers, &peer, (&id, wish), out);
                return self.ordered(&peer, order, out);
            }
            Call::Move { id, gpus } => {
                let (world, with) = (self.world(), (&self.features, &self.effects.levers));
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
                    &self.state(),
                    watch::viewer(&self.world(), &peer),
                    view::snapshot(&self.state()),
                );
                Ok(Reply::Snapshot(Box::new(snapshot)))
            }
            Call::History(spec) => {
                let (world, ask) = (world_of!(self.effects), Ask::History(spec));
                return (self.history).ask(&world, &self.features, &peer, ask, out, turn);
            }
            Call::Report(spec) => {
                let (world, ask) = (world_of!(self.effects), Ask::Report(spec));
                return (self.history).ask(&world, &self.features, &peer, ask, out, turn);
            }
            Call::Suggest(spec) => {
                let world = world_of!(self.effects);
                return (self.sizes).suggest(&world, &self.history, &peer, spec, out, turn);
            }
            Call::Stored { after } => {
                let (world, ask) = (world_of!(self.effects), Ask::Stored(after));
                return (self.history).ask(&world, &self.features, &peer, ask, out, turn);
            }
            Call::Doctor => Ok(Reply::Doctor {
                checks: doctor::doctor(
                    &self.effects,
                    &self.features,
                    &self.history,
                    watch::viewer(&self.world(), &peer),
                ),
            }),
            Call::Join { id, parent } => grant::join(&mut self.effects, &peer, &id, parent),
            Call::Env { id } => grant::env(&self.world(), &peer, &id),
            Call::Try(spec) => story::try_claim(&self.world(), &self.features, &peer, &spec),
            Call::Log { id: Some(id) } => {
                story::log(&self.world(), &self.effects.journal, &peer, &id)
            }
            Call::Log { id: None } => story::logs(&self.world(), &self.effects.journal, &peer),
            Call::Keep { id } => {
                let order = reclaim::keep(&self.world(), &self.features, &peer, &id);
                return self.ordered(&peer, order, out);
            }
            Call::Extend { id, by_s } => {
                let order = lease::extended(&self.world(), &peer, &id, by_s).and_then(|record| {
                    let id = ClaimId(record.id);
                    self.effects
                        .journal
                        .put(&record)
                        .map_err(|error| lease::not_extended(id, error))?;
                    self.effects.claims.record(record);
                    Ok(lease::extend(&self.world(), id, by_s))
                });
                return self.ordered(&peer, order, out);
            }
            Call::Lease { pid, start_ticks } => Ok(lease::lease_of(
                &self.world(),
                &self.effects.journal,
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
                let order = release::order(&world, &self.effects.levers, &peer, &gpus, for_ms, out);
                return self.ordered(&peer, order, out);
            }
            Call::Admin(AdminCall::Mig {
                gpu,
                layout,
                dry_run,
            }) => {
                let (world, with) = (self.world(), (&self.effects.observer, &self.effects.levers));
                let order = mig::order::order(&world, with, &peer, (&gpu, &layout), dry_run, out);
                return self.ordered(&peer, order, out);
            }
            Call::Admin(AdminCall::ClaimFor(asked)) => {
                let order = claim_for::order(&self.world(), &peer, *asked, out);
                return self.ordered(&peer, order, out);
            }
            Call::Admin(call @ AdminCall::Stage { .. }) => {
                self.effects.journal.write_ends();
                return stage::look_back(&self.world(), peer, call, out);
            }
            // Guarantees are public.
            Call::Admin(AdminCall::QuotaList) => Ok(self.effects.config.quota_list()),
            Call::Admin(AdminCall::Log { last }) => {
                admin::log(&self.world(), &self.effects.journal, &peer, last)
            }
            Call::Admin(call) => {
                let order = admin::order(&self.world(), &self.features, &peer, call);
                return self.ordered(&peer, order, out);
            }
            Call::Container { id, slice, hook } => {
                if self
                    .effects
                    .host
                    .fences
                    .read_majors(&self.effects.config, true)
                {
                    self.carry_out(Command::Limits(LimitCommand::FiltersAnew));
                }
                let order = container::order(&self.world(), &peer, &id, slice, hook);
                return self.ordered(&peer, order, out);
            }
        };
        out.answer(answer);
        self.screens.touch();
    }

    fn closed(&mut self, conn: ConnId) {
        self.screens.close(conn);
        self.sizes.asking.remove(&conn);
        let mut gone = self.effects.claims.wishes.closed(conn);
        gone.extend(self.effects.claims.closed(conn));
        if !gone.is_empty() {
            self.screens.touch();
        }
        self.drive_all(gone);
    }
}

/// One line for the log.
pub(crate) fn summary(world: &World<'_>) -> String {
    format!(
        "{}, {}; cgroups {}, device filter {}, library {}",
        many(world.gpus.len(), "GPU"),
        many(world.claims.len(), "claim"),
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

/// The reports in the claims' pages, and use by processes without a claim.
pub(super) fn look_at_pages(world: &World<'_>, features: &Features) -> Look {
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

/// State of claims at a tick.
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
        let parts_of = |code: &'static str, of: &str| -> Vec<&str> {
            let code = code.split(of).nth(1).and_then(|c| c.split("\n}").next());
            let name =
                |line: &'static str| line.trim().strip_prefix("pub(crate) ")?.split(':').next();
            code.expect("it is there")
                .lines()
                .filter_map(name)
                .collect()
        };
        let service = parts_of(include_str!("service.rs"), "struct Service {");
        let effects = parts_of(include_str!("effects.rs"), "struct Effects {");
        assert!((4..=12).contains(&service.len()), "{service:?}");
        assert!((4..=12).contains(&effects.len()), "{effects:?}");
        for part in service.iter().chain(&effects) {
            assert!(table.contains(&format!("`{part}`")), "{part} is missing");
        }
    }
}
