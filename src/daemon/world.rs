//! What a feature may read: a shared borrow of the present state. Nothing here has an effect.

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_core::{ClaimId, Machine};
use gshare_enforcer::gpu::GpuProcess;

use super::claims::Claims;
use super::gpu::{DriverUse, Gpus};
use super::host::Host;
use super::live::Live;
use super::outside::Policy;
use super::owners::Whose;
use super::settings::Settings;
use crate::clock;
use gshare_core::Bytes;

/// Everything that all features share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World<'a> {
    /// The configuration in force.
    pub(crate) config: &'a Settings,
    /// The service's surroundings.
    pub(crate) host: &'a Host,
    /// GPUs and their instances, by index.
    pub(crate) gpus: &'a Gpus,
    pub(crate) claims: &'a Claims,
    /// The core: who waits for what, and what it has announced.
    pub(crate) machine: &'a Machine,
    /// State about use without a claim and above claims.
    pub(crate) policy: &'a Policy,
    /// The present moment.
    pub(crate) now: Now,
}

/// What a service's features may read while another part of it changes.
macro_rules! world_of {
    ($service:expr) => {
        $crate::daemon::world::World {
            config: &$service.config,
            host: &$service.host,
            gpus: &$service.gpus,
            claims: &$service.claims,
            machine: &$service.core,
            policy: &$service.policy,
            now: $service.core.moment(),
        }
    };
}
pub(crate) use world_of;

/// A moment, by three clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Unix milliseconds.
    pub(crate) unix_ms: u64,
    /// The clock of launches: nanoseconds of CLOCK_MONOTONIC.
    pub(crate) mono_ns: u64,
    /// The core's clock.
    pub(crate) core: Duration,
}

impl Now {
    /// The present moment.
    pub(crate) fn read(core: Duration) -> Self {
        Self {
            unix_ms: clock::unix_ms(),
            mono_ns: gshare_abi::monotonic_ns(),
            core,
        }
    }

    /// Unix milliseconds of a moment of the core's clock, including past ones.
    pub(crate) fn unix_at(self, at: Duration) -> u64 {
        self.unix_ms
            .saturating_add(clock::millis(at.saturating_sub(self.core)))
            .saturating_sub(clock::millis(self.core.saturating_sub(at)))
    }

    /// The moment of the core's clock at this Unix time.
    pub(crate) fn at_unix(self, ms: u64) -> Duration {
        let ahead = Duration::from_millis(ms.saturating_sub(self.unix_ms));
        let ago = Duration::from_millis(self.unix_ms.saturating_sub(ms));
        self.core.saturating_add(ahead).saturating_sub(ago)
    }
}

impl<'a> World<'a> {
    /// Claims with a part of a GPU or of an instance of it.
    pub(crate) fn holders_of(&self, gpu: usize) -> Vec<ClaimId> {
        let on = |live: &Live| {
            live.record.slices.iter().any(|s| {
                let at = self.gpus.gpu_index(&s.uuid);
                at == Some(gpu) || at.is_some_and(|at| self.gpus[at].parent == Some(gpu))
            })
        };
        let holding = self.claims.iter().filter(|(_, live)| on(live));
        holding.map(|(id, _)| *id).collect()
    }

    /// Owner of a claim: granted, waiting (`claims.waiting`), or an account of a program without one.
    pub(crate) fn uid_of(&self, id: ClaimId) -> Option<u32> {
        let held = self.claims.get(&id).map(|live| live.record.uid);
        let waits = || Some(self.claims.waiting.get(&id)?.record.uid);
        let auto = || Some(self.policy.auto.get(&id)?.uid());
        held.or_else(waits).or_else(auto)
    }

    /// Owner of a process in the newest sample.
    pub(crate) fn whose(&self, pid: i32) -> Whose {
        self.gpus
            .owners
            .whose(pid, |id| self.claims.contains_key(id))
    }

    /// The claims' charges: claim, index of the GPU, bytes.
    pub(crate) fn charges(&self) -> Vec<(ClaimId, usize, Bytes)> {
        let mut charges = Vec::new();
        for (id, live) in self.claims.iter() {
            for seat in &live.seats {
                // The charge counts up to the cap: a member that writes more into its page must not block others.
                let uuid = &self.gpus[seat.gpu].uuid;
                let slice = live.record.slices.iter().find(|s| s.uuid == *uuid);
                let most = slice.map_or(self.gpus[seat.gpu].total, |s| s.mem_limit);
                let charge = seat.usage.most_charged_bytes(most);
                let charge = charge
                    .saturating_add(self.policy.driver_bytes(*id, seat.gpu))
                    .min(most);
                charges.push((*id, seat.gpu, Bytes(charge)));
            }
        }
        charges
    }

    /// The processes on the GPUs by the newest look, with the index of their GPU.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u32, &'a GpuProcess)> + use<'a> {
        let world = *self;
        (0..self.gpus.len())
            .filter_map(move |g| Some((u32::try_from(g).ok()?, world.gpus.reading(g)?)))
            .flat_map(|(g, r)| r.processes.iter().flatten().map(move |p| (g, p)))
    }

    /// Bytes and time of the claims' processes on a GPU, by claim.
    pub(crate) fn driver_use(&self, gpu: usize) -> BTreeMap<ClaimId, DriverUse> {
        let mut by_claim: BTreeMap<_, DriverUse> = BTreeMap::new();
        for process in self
            .gpus
            .reading(gpu)
            .iter()
            .flat_map(|r| r.processes.iter().flatten())
        {
            let Whose::Claim(id) = self.whose(process.pid) else {
                continue;
            };
            let entry = by_claim.entry(id).or_default();
            entry.processes += 1;
            entry.bytes = add(entry.bytes, process.bytes);
            entry.busy = match (entry.busy, process.time_busy) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            };
        }
        by_claim
    }
}

fn add(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}

/// Test scenes: GPUs that answer, and claims on them.
#[cfg(test)]
pub(crate) mod scene {
    use std::time::Instant;

    use super::super::gpu::Gpu;
    use super::super::journal::{ClaimRecord, SliceRecord};
    use super::{
        ClaimId, Claims, Duration, Gpus, Host, Live, Machine, Now, Policy, Settings, World,
    };
    use gshare_core::machine::{Action, Event};
    use gshare_core::{Bytes, Class, GpuFacts, Request, Share, Sharing};
    use gshare_enforcer::gpu::{GpuReading, GpuSample};

    /// Owns what a [`World`] borrows.
    #[derive(Debug)]
    pub(crate) struct Scene {
        pub(crate) config: Settings,
        pub(crate) host: Host,
        pub(crate) gpus: Gpus,
        pub(crate) claims: Claims,
        pub(crate) machine: Machine,
        pub(crate) policy: Policy,
        pub(crate) now: Now,
    }

    impl Scene {
        /// Empty GPUs of 24 GiB.
        pub(crate) fn of(gpus: u32) -> Self {
            let reading = |g| GpuReading {
                taken: Some(Instant::now()),
                processes: Some(Vec::new()),
                ..GpuReading::unread(g)
            };
            let gpu = |g| Gpu::new(format!("GPU-{g}"), "a GPU".to_owned());
            let mut all: Gpus = (0..gpus).map(gpu).collect();
            all.sample = Some(GpuSample {
                taken: Instant::now(),
                driver_version: None,
                cuda_version: None,
                gpus: (0..gpus).map(reading).collect(),
            });
            Self {
                config: Settings::default(),
                host: Host::none(),
                gpus: all,
                claims: Claims::default(),
                machine: Machine::default(),
                policy: Policy::default(),
                now: Now {
                    unix_ms: 1_000_000,
                    mono_ns: 1 << 40,
                    core: Duration::ZERO,
                },
            }
        }

        /// The sample of a look at the GPUs.
        pub(crate) fn sample(&mut self) -> &mut GpuSample {
            self.gpus.sample.as_mut().expect("they were looked at")
        }

        /// A quarter of a GPU for a claim.
        pub(crate) fn claim(&mut self, id: u64, gpu: usize) -> &mut Live {
            let slice = SliceRecord {
                uuid: self.gpus[gpu].uuid.clone(),
                token: 0,
                mem: 6 << 30,
                mem_limit: 6 << 30,
                sm_milli: 250,
                sm_limit_milli: 250,
                held: gshare_core::Held::default(),
            };
            let record = ClaimRecord {
                id,
                slices: vec![slice],
                ..ClaimRecord::default()
            };
            let live = self.claims.entry(ClaimId(id));
            live.or_insert_with(|| Live::new(record))
        }

        /// Has the core grant half a GPU to claim 1, perhaps for this time.
        pub(crate) fn grant_half(&mut self, lease: Option<Duration>) {
            let facts = |gpu: &Gpu| GpuFacts {
                uuid: gpu.uuid.clone(),
                model: String::new(),
                usable: Some(Bytes::gib(24)),
                reserve: Bytes::ZERO,
                unclaimed: Bytes::ZERO,
                healthy: true,
                sharing: Sharing::Timeslice,
            };
            let half = Share::from_milli(500);
            let request = Request::from_gpus(half, half, Class::Batch).expect("valid");
            let submit = Event::Submit {
                id: ClaimId(1),
                request: Request { lease, ..request },
                patience: None,
            };
            let mut events = vec![submit, Event::Gpus(self.gpus.iter().map(facts).collect())];
            while let Some(event) = events.pop() {
                let actions = self.machine.step(self.now.core, event);
                let asks = |action: &&Action| matches!(action, Action::Measure);
                events.extend((actions.iter().filter(asks)).map(|_| Event::Measured(Vec::new())));
            }
        }

        pub(crate) fn world(&self) -> World<'_> {
            World {
                config: &self.config,
                host: &self.host,
                gpus: &self.gpus,
                claims: &self.claims,
                machine: &self.machine,
                policy: &self.policy,
                now: self.now,
            }
        }
    }
}
