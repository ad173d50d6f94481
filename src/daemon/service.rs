//! The state of the service and what each message does to it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gshare_abi::host::{LimitsFile, UsageMemfd};
use gshare_config::{Config, Mode, Paths};
use gshare_core::machine::{Action, Event};
use gshare_core::{Bytes, ClaimId, Machine, Request, Slice};
use gshare_enforcer::cgroup::{ClaimCgroup, ClaimTree, OwnTree, Parent};
use gshare_enforcer::device::{DeviceRules, Filters};
use gshare_enforcer::driver::{Library, Search};
use gshare_enforcer::gpu::{GpuSample, Observer, ObserverConfig};
use gshare_enforcer::nodes::Majors;
use gshare_enforcer::proc::{self, PidFd, ProcessKey};
use gshare_proto::{Call, ErrorCode, Notice, Queued, Reply, WireError};
use tokio::sync::mpsc;

use super::gpus::Gpu;
use super::journal::{ClaimRecord, Journal};
use super::server::{ConnId, Peer, Sender};
use super::{FIRST_LOOK, Msg, convert, unix_ms};

/// One granted claim.
#[derive(Debug)]
pub(crate) struct Live {
    /// What the journal says.
    pub(crate) record: ClaimRecord,
    /// Its pages.
    pub(crate) seats: Vec<Seat>,
    /// Its cgroup, where there are cgroups.
    pub(crate) cgroup: Option<ClaimCgroup>,
    /// The command runs.
    pub(crate) command_alive: bool,
    /// Being ended, and why.
    pub(crate) ending: Option<Ending>,
    /// Registered processes that live, and the handles on them.
    pub(crate) members: BTreeMap<ProcessKey, Arc<PidFd>>,
    /// Refusals at the cap by processes that are gone.
    pub(crate) past_refusals: u64,
    /// Launches by processes that are gone.
    pub(crate) past_launches: u64,
    /// Refusals that were already told.
    pub(crate) told_refusals: u64,
    /// Highest charge seen, summed over its GPUs.
    pub(crate) peak: u64,
}

/// A claim's pages on one GPU.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Index of the GPU.
    pub(crate) gpu: usize,
    /// What the claim may do.
    pub(crate) limits: LimitsFile,
    /// What it does.
    pub(crate) usage: UsageMemfd,
}

/// A claim that ends.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Cause, for the record and the screen.
    pub(crate) cause: String,
    /// When processes that still hold GPU memory are killed; `None`: they are waited for.
    pub(crate) kill_at: Option<Instant>,
}

/// One waiting claim: what the connection that waits for it needs.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) peer: Peer,
    pub(crate) out: Sender,
    pub(crate) record: ClaimRecord,
    pub(crate) since_ms: u64,
    pub(crate) request: Request,
}

#[derive(Debug)]
pub(crate) struct Watcher {
    out: Sender,
    least: Duration,
    last: Option<Instant>,
}

/// How many notices are kept.
const NOTICES: usize = 50;
/// Between SIGTERM and SIGKILL to processes that hold the GPU of a released claim.
const TERM_GRACE: Duration = Duration::from_secs(10);

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
    pub(crate) tree: Option<OwnTree>,
    pub(crate) no_tree: Option<String>,
    pub(crate) filters: Option<Filters>,
    pub(crate) no_filter: Option<String>,
    pub(crate) majors: Majors,
    pub(crate) libcuda: Result<PathBuf, String>,
    pub(crate) nvml_path: PathBuf,
    pub(crate) simulated: bool,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) sample: Option<GpuSample>,
    pub(crate) claims: BTreeMap<ClaimId, Live>,
    pub(crate) waiting: BTreeMap<ClaimId, Asked>,
    /// Cgroups of ended claims whose processes live on without a GPU.
    pub(crate) lingering: Vec<ClaimCgroup>,
    pub(crate) notices: VecDeque<Notice>,
    pub(crate) events: mpsc::UnboundedSender<Msg>,
    pub(crate) names: super::view::Names,
    watchers: HashMap<ConnId, Watcher>,
    origin: Instant,
    next_id: u64,
    dirty: bool,
}

impl Service {
    /// Finds the driver and the GPUs, opens the journal, finds claims again.
    ///
    /// # Errors
    /// When there is no driver, no GPU answers or the journal cannot be used.
    pub(crate) fn start(
        config: Config,
        mode: Mode,
        paths: Paths,
        events: mpsc::UnboundedSender<Msg>,
    ) -> anyhow::Result<Self> {
        let search = |configured: &Option<PathBuf>| Search {
            configured: configured.clone(),
            without: vec![paths.runtime_dir.join("lib")],
            ..Search::of_this_process()
        };
        let nvml_path = search(&config.driver.libnvidia_ml)
            .locate(Library::Nvml)
            .context("no NVIDIA driver\nhint: to try gshare without a GPU: gshare demo")?;
        let libcuda = search(&config.driver.libcuda)
            .locate(Library::Cuda)
            .map_err(|e| e.to_string());
        let journal = Journal::open(&paths.state_dir.join("gshare.db"))?;
        let epoch = journal
            .meta("epoch")?
            .and_then(|e| e.parse::<u64>().ok())
            .unwrap_or(0)
            + 1;
        journal.set_meta("epoch", &epoch.to_string())?;
        let sample_tx = events.clone();
        let observed = ObserverConfig {
            interval: config.service.tick,
            ..ObserverConfig::new(&nvml_path)
        };
        let observer = Observer::spawn(observed, move |sample| {
            let _ = sample_tx.send(Msg::Sample(Box::new(sample)));
        });
        let sample = observer
            .sample_now(FIRST_LOOK)
            .with_context(|| format!("cannot read the GPUs through {}", nvml_path.display()))?;
        anyhow::ensure!(
            !sample.gpus.is_empty(),
            "the driver answers but shows no GPU\nhint: nvidia-smi -L should list one"
        );

        let (tree, no_tree) = open_tree(&config, mode);
        let majors = majors(&config);
        let (filters, no_filter) = probe_filters(&config, tree.as_ref(), &majors);
        if let Ok(real) = &libcuda {
            gshare_artifacts::stage_shim(&paths.runtime_dir.join("lib"), real, &paths.socket)
                .context("cannot stage the CUDA shim")?;
        }
        let simulated = nvml_path
            .parent()
            .and_then(std::path::Path::parent)
            .is_some_and(|dir| dir.join("board").exists());
        let next_id = journal.next_id()?;
        let mut service = Self {
            config,
            mode,
            paths,
            started_ms: unix_ms(),
            epoch,
            machine: Machine::default(),
            journal,
            observer,
            tree,
            no_tree,
            filters,
            no_filter,
            majors,
            libcuda,
            nvml_path,
            simulated,
            gpus: Vec::new(),
            sample: None,
            claims: BTreeMap::new(),
            waiting: BTreeMap::new(),
            lingering: Vec::new(),
            notices: VecDeque::new(),
            events,
            names: super::view::Names::new(),
            watchers: HashMap::new(),
            origin: Instant::now(),
            next_id,
            dirty: true,
        };
        service.identify_gpus(&sample)?;
        service.load_overheads()?;
        // Facts first, without claims: what their members use must not count as unclaimed.
        service.sample = Some(sample);
        service.find_claims_again()?;
        service.refresh_facts();
        service.measure_overheads();
        Ok(service)
    }

    /// Time since the service started, the core's clock.
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
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
            Msg::Call { peer, call, out } => self.call(peer, call, &out),
            Msg::Register {
                peer,
                register,
                out,
            } => self.register(&peer, &register, &out),
            Msg::Closed { conn } => self.closed(conn),
            Msg::Exited { claim, process } => self.exited(claim, process),
            Msg::Sample(sample) => {
                self.sample = Some(*sample);
                self.record_history();
                self.refresh_facts();
                self.dirty = true;
            }
        }
    }

    /// Once a tick: leases, patience, endings, dead members that nobody told of.
    pub(crate) fn tick(&mut self) {
        self.drive(Event::Tick);
        self.watch_claims();
        self.tidy_lingering();
        self.dirty = true;
    }

    fn call(&mut self, peer: Peer, call: Call, out: &Sender) {
        let answer = match call {
            Call::Claim(spec) => {
                self.submit(peer, *spec, out.clone());
                return;
            }
            Call::Watch { min_interval_ms } => {
                let watcher = Watcher {
                    out: out.clone(),
                    least: Duration::from_millis(min_interval_ms),
                    last: None,
                };
                self.watchers.insert(peer.conn, watcher);
                self.dirty = true;
                return;
            }
            Call::Snapshot => Ok(Reply::Snapshot(Box::new(self.snapshot()))),
            Call::Doctor => Ok(Reply::Doctor {
                checks: self.doctor(),
            }),
            Call::Join { id, parent } => self.join(&peer, &id, parent),
            Call::Env { id } => self.env(&id),
            Call::Release { id } => self.release(&peer, &id),
            Call::ReleaseAll => self.release_all(&peer),
        };
        match answer {
            Ok(reply) => out.reply(&reply),
            Err(error) => out.error(error),
        }
        self.dirty = true;
    }

    fn submit(&mut self, peer: Peer, spec: gshare_proto::ClaimSpec, out: Sender) {
        // A client that lost its connection while the service restarted asks again: same process, same claim.
        let known = self.claims.iter().find(|(_, live)| {
            live.command_alive && live.record.process.map(convert::key) == peer.process
        });
        if let Some((id, _)) = known {
            let id = *id;
            out.reply(&self.granted(id, Vec::new()));
            return;
        }
        let asked = convert::request(self, &peer, &spec);
        let (request, patience, mut record) = match asked {
            Ok(asked) => asked,
            Err(error) => {
                out.error(error);
                return;
            }
        };
        let id = ClaimId(self.next_id);
        self.next_id += 1;
        record.id = id.0;
        let asked = Asked {
            peer,
            out,
            record,
            since_ms: unix_ms(),
            request: request.clone(),
        };
        self.waiting.insert(id, asked);
        self.drive(Event::Submit {
            id,
            request,
            patience,
        });
    }

    /// Gives the core an event and carries out what it decides.
    pub(crate) fn drive(&mut self, event: Event) {
        let mut todo = VecDeque::from([event]);
        while let Some(event) = todo.pop_front() {
            for action in self.machine.step(self.now(), event) {
                match action {
                    Action::Cap { id, slice } => self.write_cap(id, &slice),
                    Action::Measure => todo.push_back(Event::Measured(self.measure())),
                    Action::Grant { id, slices, ends } => {
                        if !self.grant(id, &slices, ends) {
                            todo.push_back(Event::Gone { id });
                        }
                        self.dirty = true;
                    }
                    Action::Wait {
                        id,
                        position,
                        reason,
                    } => {
                        if let Some(asked) = self.waiting.get(&id) {
                            asked.out.reply(&Reply::Queued(Queued {
                                id: id.to_string(),
                                position: u32::try_from(position).unwrap_or(u32::MAX),
                                reason: self.reason_text(&reason),
                                would_start: reason
                                    .would_start()
                                    .map(|s| format!("-g {}", convert::short_share(s))),
                            }));
                        }
                        self.dirty = true;
                    }
                    Action::Refuse {
                        id,
                        reason,
                        for_now,
                    } => {
                        if let Some(asked) = self.waiting.remove(&id) {
                            let code = if for_now {
                                ErrorCode::NotAvailable
                            } else {
                                ErrorCode::Usage
                            };
                            let mut error = WireError::new(code, self.reason_text(&reason));
                            if let Some(share) = reason.would_start() {
                                error = error.with_hint(format!(
                                    "-g {} starts now",
                                    convert::short_share(share)
                                ));
                            }
                            asked.out.error(error);
                        }
                        self.dirty = true;
                    }
                    Action::LeaseOver { id } => self.terminate(id, "lease ended"),
                }
            }
        }
    }

    fn write_cap(&self, id: ClaimId, slice: &Slice) {
        let seat = self
            .claims
            .get(&id)
            .and_then(|live| live.seats.iter().find(|s| s.gpu == slice.gpu));
        if let Some(seat) = seat {
            seat.limits.set_memory_cap(slice.mem_cap.0);
        }
    }

    fn measure(&self) -> Vec<(ClaimId, usize, Bytes)> {
        let mut charges = Vec::new();
        for (id, live) in &self.claims {
            for seat in &live.seats {
                let most = self.gpus[seat.gpu].total;
                charges.push((*id, seat.gpu, Bytes(seat.usage.charged_bytes(most))));
            }
        }
        charges
    }

    fn closed(&mut self, conn: ConnId) {
        self.watchers.remove(&conn);
        let withdrawn: Vec<ClaimId> = self
            .waiting
            .iter()
            .filter(|(_, a)| a.peer.conn == conn)
            .map(|(id, _)| *id)
            .collect();
        for id in withdrawn {
            self.waiting.remove(&id);
            self.drive(Event::Gone { id });
            self.dirty = true;
        }
    }

    /// Sends the newest snapshot to those who watch and have taken the last one.
    pub(crate) fn publish(&mut self) {
        if !self.dirty || self.watchers.is_empty() {
            return;
        }
        let now = Instant::now();
        let due = |w: &Watcher| {
            w.out.idle()
                && w.last
                    .is_none_or(|last| now.duration_since(last) >= w.least)
        };
        if !self.watchers.values().any(due) {
            return;
        }
        let snapshot = Reply::Snapshot(Box::new(self.snapshot()));
        for watcher in self.watchers.values_mut().filter(|w| due(w)) {
            watcher.out.reply(&snapshot);
            watcher.last = Some(now);
        }
        self.dirty = self.watchers.values().any(|w| w.last != Some(now));
    }

    /// Remembers something worth telling.
    pub(crate) fn notice(&mut self, claim: Option<ClaimId>, text: String) {
        tracing::info!(claim = claim.map(|c| c.to_string()), "{text}");
        self.notices.push_front(Notice {
            at_ms: unix_ms(),
            claim: claim.map(|c| c.to_string()),
            text,
        });
        self.notices.truncate(NOTICES);
        self.dirty = true;
    }

    /// Finds a claim by `c3`, `3` or its name, granted or waiting.
    pub(crate) fn find(&self, word: &str) -> Result<ClaimId, WireError> {
        if let Ok(id) = word.parse::<ClaimId>()
            && (self.claims.contains_key(&id) || self.waiting.contains_key(&id))
        {
            return Ok(id);
        }
        let named = |record: &ClaimRecord| record.name.as_deref() == Some(word);
        let mut found: Vec<ClaimId> = self
            .claims
            .iter()
            .filter(|(_, l)| named(&l.record))
            .map(|(id, _)| *id)
            .collect();
        found.extend(
            self.waiting
                .iter()
                .filter(|(_, a)| named(&a.record))
                .map(|(id, _)| *id),
        );
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

    fn may(&self, peer: &Peer, id: ClaimId, verb: &str) -> Result<(), WireError> {
        let owner = self
            .claims
            .get(&id)
            .map(|l| l.record.uid)
            .or_else(|| self.waiting.get(&id).map(|a| a.record.uid));
        if peer.uid == 0 || owner == Some(peer.uid) {
            return Ok(());
        }
        let whose = owner.map_or_else(|| "somebody else".to_owned(), |uid| self.names.user(uid));
        Err(WireError::new(
            ErrorCode::NotPermitted,
            format!("{id} belongs to {whose}; only {whose} and root can {verb} it"),
        )
        .with_hint(format!("ask {whose}")))
    }

    fn release(&mut self, peer: &Peer, word: &str) -> Result<Reply, WireError> {
        let id = self.find(word)?;
        self.may(peer, id, "release")?;
        Ok(Reply::Done {
            message: self.let_go(peer, id),
        })
    }

    fn release_all(&mut self, peer: &Peer) -> Result<Reply, WireError> {
        let mine: Vec<ClaimId> = self
            .claims
            .iter()
            .filter(|(_, l)| l.record.uid == peer.uid)
            .map(|(id, _)| *id)
            .chain(
                self.waiting
                    .iter()
                    .filter(|(_, a)| a.record.uid == peer.uid)
                    .map(|(id, _)| *id),
            )
            .collect();
        if mine.is_empty() {
            return Err(WireError::new(ErrorCode::NoClaim, "you hold no claims"));
        }
        let messages: Vec<String> = mine.into_iter().map(|id| self.let_go(peer, id)).collect();
        Ok(Reply::Done {
            message: messages.join("\n"),
        })
    }

    fn let_go(&mut self, peer: &Peer, id: ClaimId) -> String {
        if let Some(asked) = self.waiting.remove(&id) {
            asked.out.error(WireError::new(
                ErrorCode::Ended,
                format!("{id} was withdrawn while it waited"),
            ));
            self.drive(Event::Gone { id });
            return format!("{id} withdrawn");
        }
        let by = if peer.uid == 0 && self.claims.get(&id).is_some_and(|l| l.record.uid != 0) {
            "released by root".to_owned()
        } else {
            "released".to_owned()
        };
        self.terminate(id, &by);
        match self.claims.get(&id) {
            None => format!("{id} released"),
            Some(_) => format!(
                "{id} is being released: its processes on the GPU got SIGTERM, and SIGKILL in {} s",
                TERM_GRACE.as_secs()
            ),
        }
    }

    /// Ends a claim whose processes may still hold GPU memory: nothing more is granted to them, those
    /// that hold the GPU are asked to end, later made to. Others lose the GPU, not their lives.
    pub(crate) fn terminate(&mut self, id: ClaimId, cause: &str) {
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        for seat in &live.seats {
            seat.limits.set_state(gshare_abi::State::NotGranted);
        }
        if live.ending.as_ref().is_none_or(|e| e.kill_at.is_none()) {
            live.ending = Some(Ending {
                cause: cause.to_owned(),
                kill_at: Some(Instant::now() + TERM_GRACE),
            });
        }
        let holders = self.holders(id);
        self.signal(&holders, libc::SIGTERM);
        self.settle_ending(id);
        self.dirty = true;
    }

    /// Sends a signal to processes, each checked to be still the same.
    pub(crate) fn signal(&self, processes: &[ProcessKey], signal: i32) {
        for process in processes {
            let fd = PidFd::open(process.pid).ok().flatten();
            if let Some(fd) = fd
                && proc::key(process.pid) == Some(*process)
                && let Err(error) = fd.signal(signal)
            {
                tracing::warn!(pid = process.pid, %error, "cannot signal a member");
            }
        }
    }

    /// Device rules for the given GPUs.
    pub(crate) fn rules(&self, gpus: impl IntoIterator<Item = usize>) -> DeviceRules {
        let minors: Vec<u32> = gpus
            .into_iter()
            .filter_map(|g| self.gpus[g].minor)
            .collect();
        DeviceRules::gpus(self.majors.clone(), minors)
    }

    fn tidy_lingering(&mut self) {
        let Some(tree) = &self.tree else { return };
        self.lingering.retain(|cgroup| tree.remove(cgroup).is_err());
    }

    /// Marks the state as changed.
    pub(crate) fn touch(&mut self) {
        self.dirty = true;
    }
}

fn open_tree(config: &Config, mode: Mode) -> (Option<OwnTree>, Option<String>) {
    if !config.cgroup.enabled {
        return (
            None,
            Some("switched off in the config ([cgroup] enabled)".to_owned()),
        );
    }
    let parent = match mode {
        Mode::System => Parent::Top,
        Mode::User => Parent::Own,
    };
    match OwnTree::open(&parent, &config.cgroup.root) {
        Ok(tree) => (Some(tree), None),
        Err(error) => {
            tracing::warn!("no cgroups, members are known by descent: {error}");
            (None, Some(error.to_string()))
        }
    }
}

fn majors(config: &Config) -> Majors {
    let mut majors = Majors::of_this_machine().unwrap_or_else(|error| {
        tracing::warn!(%error, "device numbers are the usual ones");
        Majors::parse("")
    });
    if let Some(major) = config.devices.nvidia_major {
        majors.nvidia = major;
    }
    if config.devices.uvm_major.is_some() {
        majors.uvm = config.devices.uvm_major;
    }
    majors
}

fn probe_filters(
    config: &Config,
    tree: Option<&OwnTree>,
    majors: &Majors,
) -> (Option<Filters>, Option<String>) {
    if !config.devices.filter {
        return (
            None,
            Some("switched off in the config ([devices] filter)".to_owned()),
        );
    }
    if tree.is_none() {
        return (None, Some("needs cgroups".to_owned()));
    }
    let mut filters = Filters::default();
    match filters.preload(&DeviceRules::gpus(majors.clone(), [])) {
        Ok(()) => (Some(filters), None),
        Err(error) => {
            tracing::warn!("no device filter: {error}");
            (None, Some(error.to_string()))
        }
    }
}
