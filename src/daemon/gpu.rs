//! State of a GPU.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use gshare_config::GpuMode;
use gshare_core::{Held, Share};
use gshare_enforcer::gpu::{GpuReading, GpuSample};
use serde::{Deserialize, Serialize};

use super::journal::DrainRecord;
use super::mps_daemon::Daemons;
use super::owners::Owners;

/// Time per point on the screen.
pub(crate) const STEP: Duration = Duration::from_secs(10);

/// Longest wait for the first look at the GPUs.
pub(crate) const FIRST_LOOK: Duration = Duration::from_secs(15);

/// A GPU for as long as the service runs.
#[derive(Debug)]
pub(crate) struct Gpu {
    /// `GPU-...`.
    pub(crate) uuid: String,
    /// Full product name.
    pub(crate) model: String,
    /// N of `/dev/nvidia<N>`.
    pub(crate) minor: Option<u32>,
    /// Physical bytes.
    pub(crate) total: u64,
    /// Memory cost of a context.
    pub(crate) overhead: Overhead,
    /// Mean SM activity (or time busy) of the last ten minutes' points, percent, oldest first.
    pub(crate) history: VecDeque<Option<f32>>,
    /// Bytes last seen in use without a claim, minus the room that is reserved for graphics.
    pub(crate) unclaimed: u64,
    /// The current, incomplete point of the history.
    pub(crate) step: Step,
    /// Minor numbers of the capabilities that an instance needs; empty for a whole GPU.
    pub(crate) caps: Vec<u32>,
    /// The fractions of its GPU that an instance has.
    pub(crate) part: Option<Part>,
    /// For a MIG instance: the index of its GPU.
    pub(crate) parent: Option<usize>,
    /// Profile and first memory slice of an instance: `2g.20gb@4`; absent if the driver does not report them.
    pub(crate) place: Option<String>,
    /// An instance that was removed.
    pub(crate) gone: bool,
    /// How it is shared.
    pub(crate) modes: Modes,
}

/// Memory cost of a context on a GPU.
#[derive(Debug)]
pub(crate) struct Overhead {
    /// Measured, otherwise learnt, otherwise [`UNKNOWN_OVERHEAD`].
    pub(crate) bytes: u64,
    /// It was measured under this driver.
    pub(crate) known: bool,
    /// Result of gshare's own probe under this driver.
    pub(crate) probed: Option<u64>,
    /// The same for clients of MPS, whose server holds a part of it; absent until a client was seen.
    pub(crate) mps: Option<u64>,
}

impl Gpu {
    /// A GPU of which only the driver's names are known.
    pub(crate) fn new(uuid: String, model: String) -> Self {
        Self {
            uuid,
            model,
            minor: None,
            total: u64::MAX,
            overhead: Overhead {
                bytes: UNKNOWN_OVERHEAD,
                known: false,
                probed: None,
                mps: None,
            },
            history: VecDeque::new(),
            unclaimed: 0,
            step: Step::default(),
            caps: Vec::new(),
            part: None,
            parent: None,
            place: None,
            gone: false,
            modes: Modes::default(),
        }
    }
}

impl Gpu {
    /// Bytes that a context costs a claim that holds the GPU in this way.
    pub(crate) fn context_cost(&self, held: Held) -> u64 {
        match (held, self.overhead.mps) {
            (Held::Mps, Some(bytes)) => bytes,
            _ => self.overhead.bytes,
        }
    }

    /// Range of values that a member with nothing but a context may teach. Its page is untrusted, so the range stays
    /// close to the probe's value: no member can make others' contexts free or very expensive.
    pub(crate) fn believable(&self, held: Held) -> std::ops::RangeInclusive<u64> {
        match (held, self.overhead.probed) {
            (Held::Mps, _) => self.overhead.bytes / 4..=self.overhead.bytes,
            (_, Some(probed)) => probed - probed / 4..=probed,
            (_, None) => UNKNOWN_OVERHEAD / 8..=UNKNOWN_OVERHEAD,
        }
    }

    /// Whether that cost was measured.
    pub(crate) fn context_cost_known(&self, held: Held) -> bool {
        match held {
            Held::Mps => self.overhead.mps.is_some(),
            _ => self.overhead.known,
        }
    }
}

/// Assumed cost of a context before it is measured: above the cost on any current GPU.
pub(crate) const UNKNOWN_OVERHEAD: u64 = 512 << 20;

/// An incomplete point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    sum: f64,
    count: u32,
    since: Instant,
}

impl Default for Step {
    fn default() -> Self {
        Self {
            sum: 0.0,
            count: 0,
            since: Instant::now(),
        }
    }
}

impl Step {
    pub(crate) fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    /// Ends the point once its time is over: its mean, or absent if nothing was known.
    pub(crate) fn finish(&mut self) -> Option<Option<f32>> {
        if self.since.elapsed() < STEP {
            return None;
        }
        let mean = (self.count > 0).then(|| (self.sum / f64::from(self.count)) as f32);
        *self = Self::default();
        Some(mean)
    }
}

/// The fractions of its GPU that an instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Of the memory: nominal, in eighths, as the profiles are named.
    pub(crate) mem: Share,
    /// Of the compute slices.
    pub(crate) sm: Share,
}

/// Modes of a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Modes {
    /// In force.
    pub(crate) now: GpuMode,
    /// Pending until no claim holds a part of the GPU.
    pub(crate) next: Option<GpuMode>,
}

/// The driver's figures for a claim's processes on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DriverUse {
    pub(crate) processes: usize,
    pub(crate) bytes: Option<u64>,
    /// Percent of the time.
    pub(crate) busy: Option<f64>,
}

/// A released GPU, with the facts that are needed while the driver must not be queried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Released {
    pub(super) index: usize,
    pub(super) uuid: String,
    pub(super) model: String,
    pub(super) minor: Option<u32>,
    pub(super) total: u64,
    /// Name of the administrator.
    pub(super) by: String,
    /// When gshare takes it back, Unix milliseconds; `None`: on command only.
    pub(super) until_ms: Option<u64>,
    /// The boot in which it was released; another boot ends the release.
    pub(super) boot: String,
}

pub(crate) type ReleasedGpus = BTreeMap<usize, Released>;

/// A reading older than this is not current.
const STALE: Duration = Duration::from_secs(10);

/// The GPUs and their instances: as a list, by index.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    all: Vec<Gpu>,
    /// The newest sample.
    pub(crate) sample: Option<GpuSample>,
    /// Owners of the processes in that sample.
    pub(crate) owners: Owners,
    /// Drained GPUs, by UUID.
    pub(crate) drains: BTreeMap<String, DrainRecord>,
    /// GPUs whose instances are being made or removed.
    pub(crate) dividing: BTreeSet<usize>,
    pub(crate) released: ReleasedGpus,
    pub(crate) mps: Daemons,
}

impl Gpus {
    /// Whether any GPU is divided into instances.
    pub(crate) fn have_instances(&self) -> bool {
        self.iter().any(|g| g.parent.is_some())
    }

    /// All except removed instances, whose numbers are kept for reuse.
    pub(crate) fn present(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|g| !self[*g].gone)
    }

    /// A current reading.
    pub(crate) fn reading(&self, gpu: usize) -> Option<&GpuReading> {
        let fresh = |r: &&GpuReading| r.age().is_some_and(|age| age < STALE);
        self.last_reading(gpu).filter(fresh)
    }

    /// The last reading of a GPU, however old; `None` if another GPU has taken its number.
    pub(crate) fn last_reading(&self, gpu: usize) -> Option<&GpuReading> {
        let known = &self.get(gpu)?.uuid;
        let reading = self.sample.as_ref()?.gpus.get(gpu)?;
        let same = reading.uuid.as_ref().is_none_or(|uuid| uuid == known);
        same.then_some(reading)
    }

    /// A name that outlives the making of instances: for an instance, its GPU's UUID, profile and place.
    pub(crate) fn lasting_name(&self, gpu: usize) -> String {
        let gpu = &self[gpu];
        match (gpu.parent, &gpu.place) {
            (Some(parent), Some(place)) => format!("{}/{place}", self[parent].uuid),
            _ => gpu.uuid.clone(),
        }
    }

    /// The index of a GPU by its UUID or lasting name.
    pub(crate) fn gpu_index(&self, uuid: &str) -> Option<usize> {
        let found = self.iter().position(|g| g.uuid == uuid);
        found.or_else(|| {
            let named = uuid.contains('/').then_some(0..self.len())?;
            named.into_iter().find(|g| self.lasting_name(*g) == uuid)
        })
    }

    /// Takes the GPUs' identities from the first sample.
    pub(crate) fn identify(&mut self, sample: &GpuSample) -> anyhow::Result<()> {
        for reading in &sample.gpus {
            let uuid = reading.uuid.clone().unwrap_or_else(|| {
                tracing::warn!(
                    "GPU {} does not report a UUID and cannot be claimed",
                    reading.index
                );
                format!("unknown-{}", reading.index)
            });
            let name = reading.name.clone();
            let model = name.unwrap_or_else(|| "unknown GPU".to_owned());
            self.all.push(Gpu {
                minor: reading.minor,
                total: reading.mem_total.unwrap_or(u64::MAX),
                ..Gpu::new(uuid, model)
            });
        }
        anyhow::ensure!(
            self.all.iter().any(|g| g.uuid.starts_with("GPU-")),
            "the driver lists GPUs but none of them answers\nhint: check nvidia-smi and dmesg; a lost GPU needs a \
             restart of the machine"
        );
        Ok(())
    }

    /// Identifies GPUs that did not answer when the service started.
    pub(crate) fn meet(&mut self) {
        let Some(sample) = &self.sample else {
            return;
        };
        let whole = |(gpu, _): &(&mut Gpu, &GpuReading)| gpu.parent.is_none();
        for (gpu, reading) in self.all.iter_mut().zip(&sample.gpus).filter(whole) {
            if let (Some(uuid), false) = (&reading.uuid, gpu.uuid.starts_with("GPU-")) {
                tracing::info!("GPU {} answers now", reading.index);
                gpu.uuid.clone_from(uuid);
                gpu.model = reading.name.clone().unwrap_or_default();
                gpu.minor = reading.minor;
                gpu.total = reading.mem_total.unwrap_or(u64::MAX);
            }
        }
    }
}

impl Deref for Gpus {
    type Target = Vec<Gpu>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl DerefMut for Gpus {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.all
    }
}

impl FromIterator<Gpu> for Gpus {
    fn from_iter<T: IntoIterator<Item = Gpu>>(gpus: T) -> Self {
        Self {
            all: gpus.into_iter().collect(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_without_a_figure_is_unknown() {
        let mut step = Step {
            since: Instant::now().checked_sub(STEP).unwrap(),
            ..Step::default()
        };
        step.add(None);
        assert_eq!(step.finish(), Some(None));
        assert_eq!(step.finish(), None, "the next has just begun");
    }

    #[test]
    fn a_members_page_is_believed_little_against_the_probe() {
        const MIB: u64 = 1 << 20;
        let mut gpu = Gpu::new("GPU-0".to_owned(), "H100".to_owned());
        let guess = gpu.believable(Held::Timeslice);
        assert!(
            guess.contains(&(388 * MIB)) && !guess.contains(&(12 << 30)) && !guess.contains(&MIB)
        );
        (gpu.overhead.bytes, gpu.overhead.probed) = (388 * MIB, Some(388 * MIB));
        let probed = gpu.believable(Held::Timeslice);
        assert!(probed.contains(&(300 * MIB)) && !probed.contains(&(200 * MIB)));
        // A bound that was lowered once is not lowered further.
        gpu.overhead.bytes = 300 * MIB;
        assert_eq!(gpu.believable(Held::Timeslice), probed);
        let mps = gpu.believable(Held::Mps);
        assert!(mps.contains(&(100 * MIB)) && !mps.contains(&(12 << 30)));
    }
}
