//! A GPU as the service knows it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use gshare_config::GpuMode;
use gshare_core::{Held, Share};
use serde::{Deserialize, Serialize};

/// Time that one point on the screen stands for.
pub(crate) const STEP: Duration = Duration::from_secs(10);

/// How long the service waits for the first look at the GPUs.
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
    /// Bytes that a context costs here: measured, else learnt before, else [`UNKNOWN_OVERHEAD`].
    pub(crate) overhead: u64,
    /// The overhead was measured under this driver.
    pub(crate) overhead_known: bool,
    /// What gshare's own probe measured under this driver.
    pub(crate) overhead_probed: Option<u64>,
    /// The same for clients of MPS, whose server has a part of it; absent until one was seen.
    pub(crate) overhead_mps: Option<u64>,
    /// Mean SM activity (or time busy) of the last ten minutes' points, percent, oldest first.
    pub(crate) history: VecDeque<Option<f32>>,
    /// Bytes that processes outside claims used when that was last known, less what is held back for those that
    /// draw.
    pub(crate) unclaimed: u64,
    /// The point of the history that is being made.
    pub(crate) step: Step,
    /// Minors of the capabilities that an instance needs; empty for a whole GPU.
    pub(crate) caps: Vec<u32>,
    /// Parts that an instance is of its GPU.
    pub(crate) part: Option<Part>,
    /// For a MIG instance: the index of the GPU that it is a part of.
    pub(crate) parent: Option<usize>,
    /// Profile and first memory slice of an instance: `2g.20gb@4`; absent where the driver does not tell.
    pub(crate) place: Option<String>,
    /// An instance that was removed.
    pub(crate) gone: bool,
    /// How it is shared.
    pub(crate) modes: Modes,
}

impl Gpu {
    /// One of which nothing is known but what the driver calls it.
    pub(crate) fn new(uuid: String, model: String) -> Self {
        Self {
            uuid,
            model,
            minor: None,
            total: u64::MAX,
            overhead: UNKNOWN_OVERHEAD,
            overhead_known: false,
            overhead_probed: None,
            overhead_mps: None,
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
    /// Bytes that a context costs a claim that has the GPU in this way.
    pub(crate) fn context_cost(&self, held: Held) -> u64 {
        match (held, self.overhead_mps) {
            (Held::Mps, Some(bytes)) => bytes,
            _ => self.overhead,
        }
    }

    /// What a member that has nothing but a context may teach: its page is its own word, which counts little against the
    /// probe's, so that nobody makes the contexts of others free or too dear to have.
    pub(crate) fn believable(&self, held: Held) -> std::ops::RangeInclusive<u64> {
        match (held, self.overhead_probed) {
            (Held::Mps, _) => self.overhead / 4..=self.overhead,
            (_, Some(probed)) => probed - probed / 4..=probed,
            (_, None) => UNKNOWN_OVERHEAD / 8..=UNKNOWN_OVERHEAD,
        }
    }

    /// Whether that was measured.
    pub(crate) fn context_cost_known(&self, held: Held) -> bool {
        match held {
            Held::Mps => self.overhead_mps.is_some(),
            _ => self.overhead_known,
        }
    }
}

/// What a context is taken to cost before it was measured: above what is seen on any current GPU.
pub(crate) const UNKNOWN_OVERHEAD: u64 = 512 << 20;

/// A point that is being made.
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

    /// The mean once the time is over, absent if nothing was known; then the next point begins.
    pub(crate) fn finish(&mut self) -> Option<Option<f32>> {
        if self.since.elapsed() < STEP {
            return None;
        }
        let mean = (self.count > 0).then(|| (self.sum / f64::from(self.count)) as f32);
        *self = Self::default();
        Some(mean)
    }
}

/// The parts that an instance is of its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Of the memory: nominal, in eighths, as the profiles are named.
    pub(crate) mem: Share,
    /// Of the compute slices.
    pub(crate) sm: Share,
}

/// What is kept of a GPU's mode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Modes {
    /// In force.
    pub(crate) now: GpuMode,
    /// Wanted once nobody holds a part of the GPU.
    pub(crate) next: Option<GpuMode>,
}

/// What the driver says of a claim's processes on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DriverUse {
    /// Processes.
    pub(crate) processes: usize,
    /// Bytes.
    pub(crate) bytes: Option<u64>,
    /// Percent of the time.
    pub(crate) busy: Option<f64>,
}

/// A GPU that was let go, with what has to be known of it while nobody may ask the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Released {
    pub(super) index: usize,
    pub(super) uuid: String,
    pub(super) model: String,
    pub(super) minor: Option<u32>,
    pub(super) total: u64,
    /// Name of the administrator.
    pub(super) by: String,
    /// When gshare takes it back by itself, Unix milliseconds; `None`: when it is told to.
    pub(super) until_ms: Option<u64>,
    /// After a boot it is as all others.
    pub(super) boot: String,
}

/// GPUs that were let go, by index.
pub(crate) type ReleasedGpus = BTreeMap<usize, Released>;

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
        (gpu.overhead, gpu.overhead_probed) = (388 * MIB, Some(388 * MIB));
        let probed = gpu.believable(Held::Timeslice);
        assert!(probed.contains(&(300 * MIB)) && !probed.contains(&(200 * MIB)));
        // What was lowered once lowers no further bound.
        gpu.overhead = 300 * MIB;
        assert_eq!(gpu.believable(Held::Timeslice), probed);
        let mps = gpu.believable(Held::Mps);
        assert!(mps.contains(&(100 * MIB)) && !mps.contains(&(12 << 30)));
    }
}
