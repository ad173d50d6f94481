//! The process that asks the driver to offload and restore claims, and the state of claims that are being offloaded
//! or restored.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_enforcer::checkpoint::Engine;
use tokio::sync::mpsc::UnboundedSender;

use super::connection::Sender;
use super::msg::{LeverMsg, Msg, Outcome, Unable};
use super::world::World;

/// Hidden first argument of that process.
pub const ENGINE_ARGUMENT: &str = "__checkpoint-engine";

#[derive(Debug)]
pub(crate) struct LeverState {
    /// `None` without a driver.
    pub(super) engine: Option<Arc<Engine>>,
    /// Whether the driver supports it; `None` until that is known.
    pub(crate) usable: Option<Result<(), String>>,
    pub(super) claims: BTreeMap<ClaimId, Lever>,
}

/// State of one claim.
#[derive(Debug, Default)]
pub(super) struct Lever {
    /// When the running lever began.
    since: Option<Instant>,
    /// Processes whose memory cannot leave the GPU.
    pub(super) unable: BTreeMap<i32, Unable>,
    /// Callers that wait for the result.
    pub(super) waiters: Vec<Sender>,
    /// When a call of the offloaded claim last reported that it waits.
    pub(super) wanted: Option<Instant>,
    /// Set while the programs of this job of Slurm are stopped.
    pub(super) stopped: Option<Stopped>,
}

/// A job whose programs are stopped, with its memory on GPUs.
#[derive(Debug)]
pub(super) struct Stopped {
    /// When Slurm is asked whether it has suspended the job, if its memory has not left by then.
    pub(super) again: Instant,
    /// The pause before the question after that.
    pub(super) pause: Duration,
    /// Why the memory stays there.
    pub(super) stays: Option<String>,
}

impl LeverState {
    /// A claim that is being offloaded, restored or moved.
    pub(crate) fn under_way(&self) -> Option<ClaimId> {
        let mut all = self.claims.iter();
        all.find_map(|(id, lever)| lever.since.map(|_| *id))
    }

    /// A lever on a claim has begun.
    pub(crate) fn begun(&mut self, id: ClaimId) {
        self.claims.entry(id).or_default().since = Some(Instant::now());
    }

    /// The lever has ended; returns how long it took.
    pub(crate) fn ended(&mut self, id: ClaimId, outcome: &Outcome) -> Option<Duration> {
        let lever = self.claims.get_mut(&id)?;
        if matches!(outcome, Outcome::Done) {
            // A job that Slurm suspends again is another.
            lever.stopped = None;
        }
        lever.since.take().map(|at| at.elapsed())
    }

    /// Starts the engine early, because `cuInit` is slow.
    pub(crate) fn start(libcuda: Option<&Path>, events: &UnboundedSender<Msg>) -> Self {
        let own = std::env::current_exe().ok();
        let engine = libcuda.zip(own).map(|(libcuda, own)| {
            let command = [own.into_os_string(), ENGINE_ARGUMENT.into(), libcuda.into()];
            Arc::new(Engine::new(command))
        });
        if let Some(engine) = &engine {
            let (engine, events) = (Arc::clone(engine), events.clone());
            let started = std::thread::Builder::new().name("engine".to_owned());
            let _ = started.spawn(move || {
                let usable = engine.start().map_err(|e| e.to_string());
                let _ = events.send(Msg::Lever(LeverMsg::Engine(usable)));
            });
        }
        Self {
            usable: match engine {
                Some(_) => None,
                None => Some(Err("no libcuda was found".to_owned())),
            },
            engine,
            claims: BTreeMap::new(),
        }
    }
}

/// Keeps the engine from GPUs that are released. A running engine is ended; the result tells when it has.
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
        // Start early because `cuInit` is slow. An error here means that no GPU is left for it, which is known.
        let _ = engine.start();
    });
    if let Err(error) = ending {
        tracing::error!(%error, "cannot start the thread that ends the checkpoint engine: the engine keeps its GPUs open");
    }
    Some(ended_rx)
}
