//! What a feature may look at: a shared borrow of what holds now. Nothing here has an effect.

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_config::{Config, Mode};
use gshare_core::{ClaimId, Machine};
use gshare_enforcer::gpu::{GpuProcess, GpuReading, GpuSample};

use super::gpu::{DriverUse, Gpu};
use super::live::Live;
use super::owners::{Owners, Whose};
use crate::clock;

/// A reading older than this says nothing about now.
const STALE: Duration = Duration::from_secs(10);

/// Everything that all features share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World<'a> {
    /// The configuration in force.
    pub(crate) config: &'a Config,
    /// Of the machine or of one user.
    pub(crate) mode: Mode,
    /// GPUs and their instances, by index.
    pub(crate) gpus: &'a [Gpu],
    /// Granted claims.
    pub(crate) claims: &'a BTreeMap<ClaimId, Live>,
    /// The newest look at the GPUs.
    pub(crate) sample: Option<&'a GpuSample>,
    /// The core: who waits for what, and what it has announced.
    pub(crate) machine: &'a Machine,
    /// Whose the processes of the newest look are.
    pub(crate) owners: &'a Owners,
    /// When it is.
    pub(crate) now: Now,
}

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
    /// This one.
    pub(crate) fn read(core: Duration) -> Self {
        Self {
            unix_ms: clock::unix_ms(),
            mono_ns: gshare_abi::monotonic_ns(),
            core,
        }
    }
}

/// See [`World::reading`].
pub(crate) fn is_fresh(reading: &&GpuReading) -> bool {
    reading.age().is_some_and(|age| age < STALE)
}

/// See [`World::last_reading`].
pub(crate) fn last_reading<'a>(
    gpus: &[Gpu],
    sample: Option<&'a GpuSample>,
    gpu: usize,
) -> Option<&'a GpuReading> {
    let known = &gpus.get(gpu)?.uuid;
    let reading = sample?.gpus.get(gpu)?;
    let same = reading.uuid.as_ref().is_none_or(|uuid| uuid == known);
    same.then_some(reading)
}

impl<'a> World<'a> {
    /// A reading that is fresh enough to speak of now.
    pub(crate) fn reading(&self, gpu: usize) -> Option<&'a GpuReading> {
        self.last_reading(gpu).filter(is_fresh)
    }

    /// The last reading of a GPU however old it is; none if another GPU has taken its number.
    pub(crate) fn last_reading(&self, gpu: usize) -> Option<&'a GpuReading> {
        last_reading(self.gpus, self.sample, gpu)
    }

    /// A name for a GPU that outlives the making of instances: of an instance its GPU's UUID, profile and place.
    pub(crate) fn lasting_name(&self, gpu: usize) -> String {
        let gpu = &self.gpus[gpu];
        match (gpu.parent, &gpu.place) {
            (Some(parent), Some(place)) => format!("{}/{place}", self.gpus[parent].uuid),
            _ => gpu.uuid.clone(),
        }
    }

    /// The index of a GPU by its UUID or its lasting name.
    pub(crate) fn gpu_index(&self, uuid: &str) -> Option<usize> {
        let found = self.gpus.iter().position(|g| g.uuid == uuid);
        found.or_else(|| {
            let named = uuid.contains('/').then_some(0..self.gpus.len())?;
            named.into_iter().find(|g| self.lasting_name(*g) == uuid)
        })
    }

    /// Claims that have a part of a GPU or of an instance of it.
    pub(crate) fn holders_of(&self, gpu: usize) -> Vec<ClaimId> {
        let on = |live: &Live| {
            live.record.slices.iter().any(|s| {
                let at = self.gpu_index(&s.uuid);
                at == Some(gpu) || at.is_some_and(|at| self.gpus[at].parent == Some(gpu))
            })
        };
        let holding = self.claims.iter().filter(|(_, live)| on(live));
        holding.map(|(id, _)| *id).collect()
    }

    /// Whose a process of the newest sample is.
    pub(crate) fn whose(&self, pid: i32) -> Whose {
        self.owners.whose(pid, |id| self.claims.contains_key(id))
    }

    /// The processes on the GPUs by the newest look, with the index of their GPU.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u32, &'a GpuProcess)> + use<'a> {
        let world = *self;
        (0..self.gpus.len())
            .filter_map(move |g| Some((u32::try_from(g).ok()?, world.reading(g)?)))
            .flat_map(|(g, r)| r.processes.iter().flatten().map(move |p| (g, p)))
    }

    /// Bytes and time of the claims' processes on a GPU, by claim.
    pub(crate) fn driver_use(&self, gpu: usize) -> BTreeMap<ClaimId, DriverUse> {
        let mut by_claim: BTreeMap<_, DriverUse> = BTreeMap::new();
        for process in self
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

/// What a test says of the world: GPUs that answer, and claims on them.
#[cfg(test)]
pub(crate) mod scene {
    use std::time::Instant;

    use super::super::journal::{ClaimRecord, SliceRecord};
    use super::{
        BTreeMap, ClaimId, Config, Duration, Gpu, GpuReading, GpuSample, Live, Machine, Mode, Now,
        Owners, World,
    };

    /// Owns what a [`World`] borrows.
    #[derive(Debug)]
    pub(crate) struct Scene {
        pub(crate) config: Config,
        pub(crate) gpus: Vec<Gpu>,
        pub(crate) claims: BTreeMap<ClaimId, Live>,
        pub(crate) sample: GpuSample,
        pub(crate) machine: Machine,
        pub(crate) owners: Owners,
        pub(crate) now: Now,
    }

    impl Scene {
        /// GPUs of 24 GiB with nothing on them.
        pub(crate) fn of(gpus: u32) -> Self {
            let reading = |g| GpuReading {
                taken: Some(Instant::now()),
                processes: Some(Vec::new()),
                ..GpuReading::unread(g)
            };
            let gpu = |g| Gpu::new(format!("GPU-{g}"), "a GPU".to_owned());
            Self {
                config: Config::default(),
                gpus: (0..gpus).map(gpu).collect(),
                claims: BTreeMap::new(),
                sample: GpuSample {
                    taken: Instant::now(),
                    driver_version: None,
                    cuda_version: None,
                    gpus: (0..gpus).map(reading).collect(),
                },
                machine: Machine::default(),
                owners: Owners::default(),
                now: Now {
                    unix_ms: 1_000_000,
                    mono_ns: 1 << 40,
                    core: Duration::ZERO,
                },
            }
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

        /// What features see of it.
        pub(crate) fn world(&self) -> World<'_> {
            World {
                config: &self.config,
                mode: Mode::System,
                gpus: &self.gpus,
                claims: &self.claims,
                sample: Some(&self.sample),
                machine: &self.machine,
                owners: &self.owners,
                now: self.now,
            }
        }
    }
}
