//! The claim's share according to its pages.

use std::{
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use gshare_abi::{
    GpuUuid, LimitsMap, UsageMap, move_fd_up,
    wire::{Answer, register},
};

use crate::paths;

/// Longest wait for the service.
const WAIT: Duration = Duration::from_secs(2);
/// Shortest time between two attempts to find a restarted service.
const PAUSE: Duration = Duration::from_secs(1);

/// One GPU of the claim, or an instance of a divided one.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) uuid: GpuUuid,
    /// Its GPU, once the driver has reported it.
    pub(crate) gpu: OnceLock<GpuUuid>,
    limits: LimitsMap,
    usage: UsageMap,
    epoch: u64,
}

impl Part {
    /// Maximum bytes of the claim.
    pub(crate) fn cap(&self) -> u64 {
        self.limits.page().memory_cap_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn charged(&self) -> u64 {
        self.usage.page().charged_bytes()
    }

    /// Bytes charged to a process; `None` if it is not the claim's.
    pub(crate) fn of_process(&self, pid: u32) -> Option<u64> {
        let page = self.usage.page();
        let slots = page.slots[..page.high_water()].iter();
        let mut own = slots.filter(|slot| slot.owner() == Some(pid));
        own.next().map(|slot| slot.charge.load(Ordering::Relaxed))
    }

    fn is_stale(&self) -> bool {
        self.limits.page().epoch.load(Ordering::Relaxed) != self.epoch
    }
}

#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) parts: Vec<Part>,
    /// Number of GPUs that it will have, if it has none yet.
    pub(crate) later: Option<u32>,
}

#[derive(Debug)]
struct Known {
    share: Option<Arc<Share>>,
    tried: Option<Instant>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    share: None,
    tried: None,
});

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fetches the claim's share; called after NVML's initialisation.
pub(crate) fn join() {
    if known().share.is_none() {
        renew();
    }
}

/// The claim's share, if this process is in a claim.
pub(crate) fn current() -> Option<Arc<Share>> {
    let share = known().share.clone()?;
    if share.later.is_some() || share.parts.iter().any(Part::is_stale) {
        renew();
        return known().share.clone();
    }
    Some(share)
}

fn renew() {
    {
        let mut known = known();
        if known.tried.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        known.tried = Some(Instant::now());
    }
    // The lock is not held while the service is asked.
    if let Some(share) = ask() {
        known().share = Some(Arc::new(share));
    }
}

fn ask() -> Option<Share> {
    if paths::socket().is_empty() {
        return None;
    }
    let hint = std::env::var("GSHARE_CLAIM_ID").ok();
    let hint = hint.and_then(|text| text.trim_start_matches('c').parse().ok());
    let (answer, fds) = register(paths::socket(), hint, WAIT, None).ok()?;
    let gpus = match answer {
        Answer::Member { gpus, .. } => gpus,
        Answer::Later { gpus, .. } => {
            return Some(Share {
                parts: Vec::new(),
                later: Some(gpus),
            });
        }
        Answer::Wait { .. } | Answer::Wanted { .. } | Answer::Refused { .. } => return None,
    };
    let mut fds = fds.into_iter().map(move_fd_up);
    let parts = gpus.into_iter().map(|gpu| {
        let (limits, usage) = (fds.next()?, fds.next()?);
        let limits = LimitsMap::new(limits.as_fd()).ok()?;
        let epoch = limits.page().epoch.load(Ordering::Relaxed);
        Some(Part {
            uuid: gpu.uuid,
            gpu: OnceLock::new(),
            limits,
            usage: UsageMap::new(usage).ok()?,
            epoch,
        })
    });
    parts
        .collect::<Option<Vec<Part>>>()
        .map(|parts| Share { parts, later: None })
}
