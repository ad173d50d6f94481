//! A service in this process, for tests: real calls, decisions and answers; GPUs and programs with made-up figures, and
//! a clock that the test moves.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_config::{Config, Mode, Stage};
use gshare_core::ClaimId;
use gshare_enforcer::checkpoint::Engine;
use gshare_enforcer::gpu::{GpuProcess, GpuReading, GpuSample, GpuState, Observer, ObserverConfig};
use gshare_enforcer::proc;
use gshare_proto::{Call, Reply};
use tokio::sync::{Semaphore, mpsc};

use super::admin::quota;
use super::claims::Claims;
use super::command::{Command, RuleCommand};
use super::connection::{Out, Sender, Turn};
use super::effects::Effects;
use super::engine::LeverState;
use super::fact::Fact;
use super::features::Features;
use super::gpu::Gpus;
use super::history::History;
use super::host::Host;
use super::journal::Journal;
use super::msg::Msg;
use super::names::{Account, Names};
use super::outside::Policy;
use super::owners::{Owners, Whose};
use super::peer::Peer;
use super::service::{Service, look_at_pages};
use super::watch::Screens;
use crate::clock;

/// A program on a GPU: of a claim or without one, with its bytes and its percent of the time.
pub(crate) struct Program {
    pub(crate) gpu: usize,
    pub(crate) claim: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) busy: f64,
}

pub(crate) struct Here {
    service: Service,
    events: mpsc::UnboundedReceiver<Msg>,
    /// A claim whose caller has left is not granted.
    callers: Vec<mpsc::UnboundedReceiver<Out>>,
    sample: GpuSample,
    _dir: tempfile::TempDir,
}

impl Drop for Here {
    fn drop(&mut self) {
        clock::SET.set(None);
    }
}

impl Here {
    /// With GPUs of these models and GiB.
    pub(crate) fn of(gpus: &[(&str, u64)], users: &[(u32, &str)]) -> Self {
        clock::SET.set(Some((Instant::now(), clock::unix_ms())));
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config::default();
        config.service.runtime_dir = Some(dir.path().to_owned());
        config.service.state_dir = Some(dir.path().to_owned());
        std::fs::create_dir(dir.path().join("claims")).expect("made");
        let (events_tx, events) = mpsc::unbounded_channel();
        let users = users.iter().map(|(uid, name)| (*uid, (*name).to_owned()));
        let host = Host {
            paths: config.paths(Mode::System),
            events: events_tx,
            names: Names::over(users.collect(), |_| Account::default(), None),
            ..Host::none()
        };
        let reading = |(i, (model, gib)): (usize, &(&str, u64))| GpuReading {
            state: GpuState::Ok,
            uuid: Some(format!("GPU-{i:08}-0000-0000-0000-000000000000")),
            name: Some((*model).to_owned()),
            sm_count: Some(128),
            mem_total: Some(gib << 30),
            mem_reserved: Some(512 << 20),
            ..GpuReading::unread(i as u32)
        };
        let sample = GpuSample {
            taken: Instant::now(),
            driver_version: Some("580.95.05".to_owned()),
            cuda_version: None,
            gpus: gpus.iter().enumerate().map(reading).collect(),
        };
        let observed = ObserverConfig {
            interval: Duration::from_secs(3600),
            retry: Duration::from_secs(3600),
            ..ObserverConfig::new(dir.path().join("none"))
        };
        let mut effects = Effects {
            config: config.into(),
            host,
            core: super::core::Core::default(),
            journal: Journal::begin(&dir.path().join("db")).expect("opened"),
            observer: Observer::spawn(observed, |_| {}),
            gpus: Gpus::default(),
            claims: Claims::default(),
            policy: Policy::default(),
            levers: LeverState {
                // Not asked: the claims have no processes.
                engine: Some(Arc::new(Engine::new(Vec::<OsString>::new()))),
                usable: Some(Ok(())),
                claims: Default::default(),
            },
        };
        effects.config.stages.machine = Stage::Reclaim;
        effects.gpus.identify(&sample).expect("GPUs");
        let mut here = Self {
            service: Service {
                effects,
                history: History::default(),
                sizes: super::tracks::Sizes::default(),
                features: Features::default(),
                screens: Screens::default(),
            },
            events,
            callers: Vec::new(),
            sample,
            _dir: dir,
        };
        here.look(&[]);
        here.service.drive_all(quota::anew(&here.service.world()));
        let rules = [RuleCommand::Rules, RuleCommand::Admission];
        here.service.execute(rules.map(Command::Rules).into());
        here
    }

    /// The answer to a user's call, or the first of several; none if that comes later.
    pub(crate) fn call(&mut self, uid: u32, call: Call) -> Option<Reply> {
        let (out_tx, mut out_rx) = mpsc::unbounded_channel();
        let turns = Arc::new(Semaphore::new(1));
        let own = proc::key(std::process::id().cast_signed());
        self.service.handle(Msg::Call {
            peer: Peer {
                uid,
                process: own,
                ..Peer::root()
            },
            call,
            out: Sender {
                out: out_tx,
                unsent: Arc::default(),
                older: false,
            },
            turn: Turn {
                received: Instant::now(),
                _connection: turns.try_acquire_owned().expect("free"),
                _user: None,
            },
        });
        let said = out_rx.try_recv().ok();
        self.callers.push(out_rx);
        said.map(|said| serde_json::from_slice(&said.line).expect("a reply"))
    }

    /// These programs run on the GPUs.
    pub(crate) fn look(&mut self, programs: &[Program]) {
        let mut of = HashMap::new();
        let pid = |at: usize| 5_000_000 + at as i32;
        self.sample.taken = Instant::now();
        for (g, gpu) in self.sample.gpus.iter_mut().enumerate() {
            let here = programs.iter().enumerate().filter(|(_, p)| p.gpu == g);
            let process = |(at, p): (usize, &Program)| GpuProcess {
                pid: pid(at),
                bytes: Some(p.bytes),
                compute: true,
                graphics: false,
                mps: false,
                time_busy: Some(p.busy),
            };
            let processes: Vec<GpuProcess> = here.map(process).collect();
            gpu.taken = Some(Instant::now());
            gpu.mem_used = processes.iter().map(|p| p.bytes).sum();
            gpu.time_busy = Some(processes.iter().filter_map(|p| p.time_busy).sum());
            gpu.processes = Some(processes);
        }
        for (at, program) in programs.iter().enumerate() {
            let claim = program.claim.map(|id| Whose::Claim(ClaimId(id)));
            of.insert(pid(at), claim.unwrap_or(Whose::Outside));
        }
        let gpus = &mut self.service.effects.gpus;
        gpus.sample = Some(self.sample.clone());
        gpus.owners = Owners {
            of,
            ended: HashSet::new(),
            ..Owners::default()
        };
        let look = look_at_pages(&self.service.world(), &self.service.features);
        self.service.tell(Fact::Sample(look));
        self.service.refresh();
    }

    /// Time passes. What is being offloaded, restored or moved when it begins is done at once.
    pub(crate) fn pass(&mut self, time: Duration) {
        while self.service.effects.levers.under_way().is_some() {
            let msg = self
                .events
                .blocking_recv()
                .expect("the service has a sender");
            self.service.handle(msg);
        }
        let (from, unix) = clock::SET.get().expect("set");
        let end = from + time;
        let at = |at: Instant| {
            let since = at.saturating_duration_since(from);
            clock::SET.set(Some((at, unix + clock::millis(since))));
        };
        // Not for ever: a lever that is under way keeps the core awake.
        for _ in 0..1000 {
            let wake = self.service.effects.core.next_wake();
            let Some(wake) = wake.filter(|wake| *wake < end) else {
                break;
            };
            at(wake);
            self.service.wake();
        }
        at(end);
        self.service.tick();
        while let Ok(msg) = self.events.try_recv() {
            self.service.handle(msg);
        }
    }
}
