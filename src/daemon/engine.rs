//! The process that asks the driver to offload and restore claims, and what is remembered of those that are on their way.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_enforcer::checkpoint::Engine;
use tokio::sync::mpsc::UnboundedSender;

use super::connection::Sender;
use super::msg::{LeverMsg, Msg, Unable};
use super::world::World;

/// First argument of the process that talks to the driver.
pub const ENGINE_ARGUMENT: &str = "__checkpoint-engine";

/// What the levers need of the service.
#[derive(Debug)]
pub(crate) struct LeverState {
    /// `None` where there is no driver to ask.
    pub(super) engine: Option<Arc<Engine>>,
    /// Whether the driver can do it; `None` before that is known.
    pub(crate) usable: Option<Result<(), String>>,
    pub(super) claims: BTreeMap<ClaimId, Lever>,
}

/// What is remembered of a claim.
#[derive(Debug, Default)]
pub(super) struct Lever {
    /// Since when a lever is being pulled.
    since: Option<Instant>,
    /// Processes whose memory stays on its GPU.
    pub(super) unable: BTreeMap<i32, Unable>,
    /// Those who wait for what they asked.
    pub(super) waiters: Vec<Sender>,
    /// When a call of the offloaded claim last said that it waits.
    pub(super) wanted: Option<Instant>,
}

impl LeverState {
    /// A claim that is on its way from or to a GPU.
    pub(crate) fn under_way(&self) -> Option<ClaimId> {
        let mut all = self.claims.iter();
        all.find_map(|(id, lever)| lever.since.map(|_| *id))
    }

    /// A lever on a claim is being pulled from now on.
    pub(crate) fn begun(&mut self, id: ClaimId) {
        self.claims.entry(id).or_default().since = Some(Instant::now());
    }

    /// It has been; how long that took.
    pub(crate) fn ended(&mut self, id: ClaimId) -> Option<Duration> {
        let since = self.claims.get_mut(&id)?.since.take();
        since.map(|at| at.elapsed())
    }

    /// Starts the engine, so that nobody waits for `cuInit` later.
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
