//! The state of the service and what each message does to it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gshare_config::{Config, Mode, Paths};
use gshare_core::machine::Event;
use gshare_core::machine::lever::Wish;
use gshare_core::{ClaimId, Machine, Party, Quota};
use gshare_enforcer::cgroup::{ClaimCgroup, Tree};
use gshare_enforcer::device::Filters;
use gshare_enforcer::gpu::{GpuSample, Observer};
use gshare_enforcer::nodes::Majors;
use gshare_enforcer::proc;
use gshare_proto::{AdminCall, Call, ErrorCode, Reply, WireError};
use tokio::sync::mpsc;

use super::arbiter::Gates;
pub(crate) use super::asked::{Asked, Wishes};
use super::command::Command;
use super::connection::{ConnId, Sender, Turn};
use super::fact::{Fact, Look, Others, Pages, Tick};
use super::features::{Features, Round};
use super::gpu::Gpu;
use super::history::vitals::Vitals;
use super::history::{Ask, History};
use super::journal::{DrainRecord, Journal};
pub(crate) use super::live::{Ended, Ending, Live, Seat};
use super::msg::Msg;
use super::notebooks::helpers::Helpers;
use super::outside::Policy;
use super::owners::Owners;
use super::peer::Peer;
use super::strict::{LibDirs, Strict};
use super::viewer::Watcher;
use super::world::{Now, World};
use super::{die, health};
use crate::clock::nanos;

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

/// What features may look at, of a service whose features are told something at the same time.
macro_rules! world {
    ($service:ident) => {
        World {
            config: &$service.config,
            mode: $service.mode,
            gpus: &$service.gpus,
            claims: &$service.claims,
            sample: $service.sample.as_ref(),
            machine: &$service.machine,
            owners: &$service.owners,
            now: Now::read($service.now()),
        }
    };
}

/// Everything the service knows.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) mode: Mode,
    pub(crate) paths: Paths,
    pub(crate) started_ms: u64,
    pub(crate) epoch: u64,
    pub(crate) machine: Machine,
    pub(crate) journal: Journal,
    pub(crate) observer: Observer,
    pub(crate) tree: Option<Tree>,
    pub(crate) no_tree: Option<String>,
    pub(crate) filters: Option<Filters>,
    pub(crate) no_filter: Option<String>,
    pub(crate) majors: Majors,
    pub(crate) libcuda: Result<PathBuf, String>,
    pub(crate) nvml_path: PathBuf,
    pub(crate) lib_dirs: LibDirs,
    pub(crate) strict: Strict,
    pub(crate) simulated: bool,
    pub(crate) gpus: Vec<Gpu>,
    /// MPS daemons by GPU.
    pub(crate) mps: super::mps_daemon::Daemons,
    pub(crate) sample: Option<GpuSample>,
    pub(crate) claims: BTreeMap<ClaimId, Live>,
    pub(crate) waiting: BTreeMap<ClaimId, Asked>,
    pub(crate) remembered: super::asked::Remembered,
    pub(crate) wishes: Wishes,
    /// Cgroups of ended claims whose processes live on without a GPU.
    pub(crate) lingering: Vec<ClaimCgroup>,
    /// GPUs that take no new claims, by UUID.
    pub(crate) drains: BTreeMap<String, DrainRecord>,
    /// GPUs whose instances are being made or removed.
    pub(crate) dividing: std::collections::BTreeSet<usize>,
    /// GPUs that were let go.
    pub(crate) released: super::gpu::ReleasedGpus,
    /// Quotas set by administrators.
    pub(crate) quotas: BTreeMap<Party, Quota>,
    pub(crate) recorder: super::recorder::Recorder,
    pub(crate) events: mpsc::UnboundedSender<Msg>,
    pub(crate) names: super::names::Names,
    pub(crate) owners: Owners,
    /// What was claimed and used.
    pub(crate) history: History,
    /// What is learnt of sizes.
    pub(crate) sizes: super::tracks::Sizes,
    /// What has a state of its own.
    pub(crate) features: Features,
    /// What they have not been told yet.
    pub(super) round: Round,
    pub(crate) policy: Policy,
    /// Whether it acts at all.
    pub(crate) off: crate::off::Off,
    /// How much it does.
    pub(crate) stages: crate::stage::Stages,
    /// Offloading, restoring, moving.
    pub(crate) levers: super::engine::LeverState,
    /// The processes that ask Jupyter.
    pub(crate) helpers: Helpers,
    /// Shares of GPU time.
    pub(crate) gates: Option<Gates>,
    /// Ended claims that the journal does not know of yet: a full disk.
    pub(crate) unwritten: Vec<Ended>,
    pub(crate) watchers: HashMap<ConnId, Watcher>,
    /// What the core must still be told, in order.
    pub(crate) todo: VecDeque<Event>,
    pub(crate) driving: bool,
    /// When the journal forgets what is old, Unix milliseconds.
    pub(crate) forget_ms: u64,
    pub(super) origin: Instant,
    pub(crate) next_id: u64,
    pub(crate) dirty: bool,
}

impl Service {
    /// What features may look at.
    pub(crate) fn world(&self) -> World<'_> {
        world!(self)
    }

    /// Tells the features what has happened, does what they want, tells them what comes of that, until it is quiet.
    pub(crate) fn tell(&mut self, fact: Fact) {
        if !self.round.begin(fact) {
            return;
        }
        while let Some(facts) = self.round.turn() {
            for fact in facts {
                let mut commands = Vec::new();
                self.features.on(&world!(self), &fact, &mut commands);
                self.execute(commands);
            }
        }
    }

    /// Does what features want, the journal first.
    fn execute(&mut self, commands: Vec<Command>) {
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
            match command {
                Command::Store(_) => {}
                Command::Offload(id) => {
                    let wish = Wish::Offload;
                    self.drive(Event::Wish { id, wish });
                }
                Command::Shrink(id) => self.shrink_to_use(id),
                Command::Enter(id) => self.enter_now(id),
                Command::End { id, cause } => self.terminate(id, cause),
                Command::FewestToEnd(of) => {
                    let fewest = self.machine.fewest_to_end(self.now(), &of, &self.measure());
                    self.tell(Fact::FewestToEnd(fewest));
                }
                Command::ReadVitals(ids) => {
                    let read = |id: ClaimId| (id, self.claims.get(&id).and_then(Vitals::read));
                    let vitals = ids.into_iter().map(read).collect();
                    self.tell(Fact::Vitals(vitals));
                }
                Command::LookUpGroups(uid) => {
                    let groups = proc::groups_of(uid).unwrap_or_default();
                    let names = groups.into_iter().filter_map(proc::group_name).collect();
                    self.tell(Fact::Groups { uid, names });
                }
                Command::AskServers => self.helpers.look(&self.claims, &self.events),
                Command::Publish => self.touch(),
                Command::Notice(text) => self.notice(None, text),
                Command::TellOwner { id, text } => self.tell_owner(id, &text),
            }
        }
    }

    /// What is known of claims at a tick.
    fn tick_of_claims(&self) -> Tick {
        let ids = || self.claims.keys().copied();
        let world = self.world();
        let kernel = |id| Some((id, self.features.notebooks.kernel(&world, id)?));
        let fixed = |id| Some((id, self.may_park(id).err()?));
        Tick {
            cgroups: self.cgroups_of_others(),
            kernels: ids().filter_map(kernel).collect(),
            fixed: match self.levers.usable {
                Some(_) => ids().filter_map(fixed).collect(),
                None => BTreeMap::new(),
            },
        }
    }

    /// What the processes of claims say in their pages, and who works beside them.
    fn look_at_pages(&self) -> Look {
        let mut pages = Pages::new();
        for (id, live) in &self.claims {
            for seat in &live.seats {
                let slots = seat.usage.read_slots(self.gpus[seat.gpu].total);
                pages.insert((*id, seat.gpu), slots);
            }
        }
        let others = |g: usize| {
            let mut here = self
                .features
                .identity
                .outside()
                .iter()
                .filter(|u| u.gpu as usize == g);
            Others {
                draw: here.clone().any(|u| u.graphics),
                compute: self.auto_on(g) || here.any(|u| !u.graphics),
            }
        };
        let others = (0..self.gpus.len()).map(others).collect();
        Look { pages, others }
    }

    /// The core's clock: time since the service started, and a while before that, so that it can be told of it.
    pub(crate) fn now(&self) -> Duration {
        super::asked::BEFORE + self.origin.elapsed()
    }

    /// When the core wants to hear of the time, also between two ticks.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let now = self.now();
        let at = self.machine.next_wake(now)?;
        Instant::now().checked_add(at.saturating_sub(now))
    }

    /// The core hears of the time.
    pub(crate) fn wake(&mut self) {
        self.drive(Event::Tick);
        self.tell_arbiter();
    }

    /// One line for the log.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} GPUs, {} claims; cgroups {}, device filter {}, shim {}",
            self.gpus.len(),
            self.claims.len(),
            if self.tree.is_some() { "on" } else { "off" },
            if self.filters.is_some() { "on" } else { "off" },
            if self.libcuda.is_ok() { "on" } else { "off" },
        )
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
                self.call(self.standing(peer), call, &out, turn);
            }
            Msg::Register {
                peer,
                register,
                out,
                turn,
            } => {
                self.register(&self.standing(peer), &register, &out);
                drop(turn);
            }
            Msg::Launch {
                peer,
                launch,
                out,
                turn,
            } => {
                self.launch(&self.standing(peer), &launch, &out);
                drop(turn);
            }
            Msg::KernelSeen { claim, shut_down } => self.kernel_seen(claim, shut_down),
            Msg::Lever(msg) => self.lever_msg(msg),
            Msg::DriverFiles => self.driver_files_changed(),
            Msg::Places => self.places_changed(),
            Msg::Closed { conn, .. } => self.closed(conn),
            Msg::Exited {
                claim,
                process,
                status,
            } => self.exited(claim, process, status),
            Msg::Scrape(out) => {
                // The caller may have gone.
                let _ = out.send(self.metrics_page());
            }
            Msg::Mps { gpu, report } => self.mps_report(gpu, report),
            Msg::History(told) => self.history_told(told),
            Msg::Divided { gpu, result, out } => self.divided(gpu, result, &out),
            Msg::Fact(fact) => self.tell(fact),
            Msg::KernelXid(xid) => {
                let claim = xid.pid.and_then(|pid| self.claim_of(pid.cast_signed()));
                self.tell(Fact::KernelXid { xid, claim });
                self.refresh_facts();
            }
            Msg::Sample(sample) => {
                // One that lay in the queue while instances were made knows nothing of them.
                let known = self.sample.as_ref().map(|s| s.taken);
                if known.is_none_or(|known| known <= sample.taken) {
                    self.sample = Some(*sample);
                }
                self.follow_majors(false);
                self.meet_instances();
                self.meet_gpus();
                self.look_up_owners();
                self.apply_policy();
                let look = self.look_at_pages();
                self.tell(Fact::Sample(look));
                self.record_history();
                self.follow_needs();
                self.refresh_facts();
                self.look_beside_mps();
                self.dirty = true;
            }
        }
        self.tell_arbiter();
    }

    /// Once a tick: leases, patience, endings, dead members that nobody told of.
    pub(crate) fn tick(&mut self) {
        self.follow_off();
        self.tell_admission();
        self.take_back_in_time();
        self.change_modes();
        self.tend_mps();
        self.renew_mps();
        self.tell_minute();
        self.drive(Event::Tick);
        self.watch_claims();
        let tick = self.tick_of_claims();
        self.tell(Fact::Tick(tick));
        self.tell_starts();
        self.tell_levers();
        self.tidy_lingering();
        self.write_ends();
        self.forget_past();
        let (tick, at) = (self.config.service.tick, self.features.attribution.at_ns());
        if gshare_abi::monotonic_ns().saturating_sub(at) > 2 * nanos(tick) {
            let look = self.look_at_pages();
            self.tell(Fact::NoSample(look));
        }
        self.tell_arbiter();
        self.dirty = true;
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
                self.submit(peer, *spec, out.clone());
                return;
            }
            Call::Resize(spec) => {
                self.resize(peer, &spec, out);
                return;
            }
            Call::Adopt { pid, spec } => {
                self.adopt(&peer, pid, *spec, out);
                self.dirty = true;
                return;
            }
            call @ (Call::Lever { .. } | Call::Move { .. }) => {
                self.lever_call(&peer, call, out);
                return;
            }
            Call::Watch { min_interval_ms } => {
                self.watch(&peer, out.clone(), min_interval_ms);
                return;
            }
            Call::Snapshot => {
                let viewer = self.viewer(&peer);
                let snapshot = self.with_room(viewer.uid(), self.snapshot());
                Ok(Reply::Snapshot(Box::new(viewer.sees(snapshot))))
            }
            Call::History(spec) => {
                self.ask_history(Ask::History(spec), out, turn);
                return;
            }
            Call::Suggest(spec) => {
                self.suggest(&peer, spec, out, turn);
                return;
            }
            Call::Report(spec) => {
                self.ask_history(Ask::Report(spec), out, turn);
                return;
            }
            Call::Doctor => Ok(Reply::Doctor {
                checks: self.doctor(),
            }),
            Call::Join { id, parent } => self.join(&peer, &id, parent),
            Call::Env { id } => self.env(&peer, &id),
            Call::Try(spec) => self.try_claim(&peer, &spec),
            Call::Log { id } => self.log(&peer, &id),
            Call::Keep { id } => self.keep_claim(&peer, &id),
            Call::Extend { id, by_s } => self.extend(&peer, &id, by_s),
            Call::Lease { pid, start_ticks } => Ok(self.lease_of(&peer, pid, start_ticks)),
            Call::Release { id } => self.release(&peer, &id),
            Call::ReleaseAll => self.release_all(&peer),
            Call::Admin(AdminCall::Release { gpus, for_ms }) => {
                self.release_gpus(&peer, &gpus, for_ms, out);
                self.dirty = true;
                return;
            }
            Call::Admin(AdminCall::Mig {
                gpu,
                layout,
                dry_run,
            }) => {
                self.admin_mig(&peer, &gpu, &layout, dry_run, out);
                self.dirty = true;
                return;
            }
            Call::Admin(AdminCall::ClaimFor(asked)) => {
                self.claim_for(&peer, *asked, out);
                return;
            }
            Call::Admin(call) => self.admin(&peer, call),
            Call::Container { id } => {
                self.follow_majors(true);
                self.container(&peer, &id)
            }
        };
        match answer {
            Ok(reply) => out.reply(&reply),
            Err(error) => out.error(error),
        }
        self.dirty = true;
    }

    fn closed(&mut self, conn: ConnId) {
        self.watchers.remove(&conn);
        self.unwish(conn);
        self.unasked(conn);
        self.unwant(conn);
        let withdrawn: Vec<ClaimId> = self
            .waiting
            .iter()
            .filter(|(id, a)| a.peer.conn == conn && !self.claims.contains_key(id))
            .map(|(id, _)| *id)
            .collect();
        if !withdrawn.is_empty() {
            self.dirty = true;
        }
        for id in &withdrawn {
            self.waiting.remove(id);
        }
        self.drive_all(withdrawn.into_iter().map(|id| Event::Gone { id }));
    }

    /// Finds a claim by `c3`, `3` or its name, granted or waiting. Of several with that name the caller's own
    /// is meant.
    pub(crate) fn find(&self, peer: &Peer, word: &str) -> Result<ClaimId, WireError> {
        if let Ok(id) = word.parse::<ClaimId>()
            && (self.claims.contains_key(&id) || self.waiting.contains_key(&id))
        {
            return Ok(id);
        }
        let auto = word.parse().ok().and_then(|id| self.policy.auto.get(&id));
        if let Some(auto) = auto {
            return Err(self.is_auto(word, auto));
        }
        let held = self.claims.iter().map(|(id, l)| (*id, &l.record));
        let waiting = self.waiting.iter().map(|(id, a)| (*id, &a.record));
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
            [] => Err(
                WireError::new(ErrorCode::NoClaim, format!("there is no claim `{word}`"))
                    .with_hint("gshare ps lists the claims"),
            ),
            _ => Err(WireError::new(
                ErrorCode::NoClaim,
                format!("several claims are named `{word}`"),
            )
            .with_hint("use the id, as gshare ps shows it")),
        }
    }

    /// Marks the state as changed.
    pub(crate) fn touch(&mut self) {
        self.dirty = true;
    }
}
