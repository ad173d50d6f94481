//! Synthetic families of runs: the same users start the same scripts repeatedly, with other numbers in the arguments.
//! It shares no code with the prediction.
//!
//! Figures from public data (each computed from the named file on 2026-11-21):
//!
//! * Repetition: `openb_pod_list_default.csv` (hkust-adsl/kubernetes-scheduler-simulator, of the FGD paper, ATC'23):
//!   7064 pods with a GPU in 135 shapes (requested sizes). Half of the shapes have at most 7 pods, nine tenths at most
//!   106; 95 % of the pods came after three or more of their shape. Here the number of runs of a family is log-normal
//!   with median 7 and ninth decile 106 ([`MEDIAN_RUNS`], [`SPREAD_RUNS`]).
//! * Variation of peak memory: `pod_gpu_memory_used_bytes_anon.csv` (alibaba/clusterdata, cluster-trace-v2026-GenAI,
//!   SoCC'25), 144 pods, peak of each hour compared with the previous hour: 63 % differ by less than a tenth, with a
//!   standard deviation of 0.027 of the logarithm; the others by 0.225 in the median, a standard deviation of 0.16
//!   ([`QUIET`], [`LOUD`], [`LOUD_PART`]). Here these are two kinds of families.
//! * Variation of run times: `summary_train.csv` (ml-energy/zeus, NSDI'23), epochs until the target of 94
//!   configurations with three or more trainings of eight or more epochs: standard deviation of the logarithm 0.06 in
//!   the median, 0.17 in the ninth decile ([`TIME`]).
//! * Length of runs: the openb list's median of 655 s ([`MEDIAN_RUN_S`]).
//!
//! Assumptions without data: memory is a fixed part plus a part proportional to the batch size; the sizes of both; the
//! fraction of families with varying batches; and how a family changes for good (drift).
//!
//! All figures are drawn for each seed, from half to twice the value.

use crate::bench::dice::Dice;

/// Median number of runs of a family.
const MEDIAN_RUNS: f64 = 7.0;
/// Standard deviation of the logarithm of this number: ln(106 / 7) / 1.2816.
const SPREAD_RUNS: f64 = 2.12;
/// Maximum number of runs of a family.
const MOST_RUNS: usize = 200;
/// Standard deviation of the logarithm of the peak, in families with little variation.
const QUIET: f64 = 0.027;
/// Standard deviation of the logarithm of the peak, in all other families.
const LOUD: f64 = 0.16;
/// Fraction of these other families.
const LOUD_PART: f64 = 0.37;
/// Standard deviation of the logarithm of a run time.
const TIME: f64 = 0.06;
/// Median of run times, in seconds.
const MEDIAN_RUN_S: f64 = 655.0;
/// Batch sizes.
const BATCHES: [u32; 5] = [8, 16, 32, 64, 128];
const GIB: f64 = 1_073_741_824.0;
/// Period in which all runs start: four weeks, in seconds.
const HORIZON_S: f64 = 28.0 * 86_400.0;

/// Parameters drawn once per seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    quiet: f64,
    loud: f64,
    loud_part: f64,
    time: f64,
    batch_part: f64,
}

/// How the families change over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Each family once, permanently, after its sixth run.
    Once,
}

#[derive(Clone, Debug)]
pub(super) struct Family {
    pub(super) user: u32,
    script: String,
    /// GiB without a batch.
    base: f64,
    /// GiB per sample of a batch.
    per_sample: f64,
    /// Standard deviation of the logarithm of the peak.
    pub(super) noise: f64,
    time: f64,
    run_s: f64,
    /// The batch size varies.
    pub(super) batches: bool,
    /// Index of the first changed run, and factor of its memory.
    change: Option<(usize, f64)>,
    data: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) family: usize,
    /// Index of the run in its family, from 0.
    pub(super) number: usize,
    /// Start in seconds.
    pub(super) at_s: f64,
    pub(super) command: Vec<String>,
    /// Batch size.
    pub(super) batch: u32,
    /// Peak memory in bytes.
    pub(super) peak: u64,
    pub(super) run_s: f64,
}

impl World {
    /// Draws the parameters of a seed.
    pub(super) fn draw(dice: &mut Dice) -> Self {
        let mut about = |figure: f64| dice.scale(figure / 2.0, figure * 2.0);
        Self {
            quiet: about(QUIET),
            loud: about(LOUD),
            loud_part: about(LOUD_PART).min(0.74),
            time: about(TIME),
            batch_part: about(0.4),
        }
    }
}

impl Family {
    fn draw(dice: &mut Dice, world: &World, number: usize, change: Change) -> Self {
        let loud = dice.unit() < world.loud_part;
        let level = if loud { world.loud } else { world.quiet };
        let factor = if dice.below(2) == 0 {
            dice.scale(1.3, 2.5)
        } else {
            dice.scale(0.4, 0.75)
        };
        Self {
            user: 1000 + dice.below(8) as u32,
            script: format!("train_{number}.py"),
            base: dice.scale(0.8, 8.0),
            per_sample: dice.scale(0.01, 0.2),
            noise: level * dice.scale(0.7, 1.4),
            time: world.time * dice.scale(0.5, 2.8),
            run_s: MEDIAN_RUN_S * (1.5 * dice.normal()).exp(),
            batches: dice.unit() < world.batch_part,
            change: (change == Change::Once).then_some((6, factor)),
            data: dice.below(1 << 20),
        }
    }

    /// The true median of its peaks, in bytes.
    pub(super) fn median(&self, batch: u32, number: usize) -> f64 {
        let factor = match self.change {
            Some((from, factor)) if number >= from => factor,
            _ => 1.0,
        };
        (self.base + self.per_sample * f64::from(batch)) * factor * GIB
    }

    /// Index of the first changed run.
    pub(super) fn changes_at(&self) -> Option<usize> {
        self.change.map(|(from, _)| from)
    }

    pub(super) fn run(
        &self,
        dice: &mut Dice,
        family: usize,
        number: usize,
        batch: u32,
        at_s: f64,
    ) -> Run {
        let peak = self.median(batch, number) * (self.noise * dice.normal()).exp();
        let words = [
            "python".to_owned(),
            format!("/home/u{}/{}", self.user, self.script),
            "--batch-size".to_owned(),
            batch.to_string(),
            format!("--lr={:.4}", dice.scale(1e-4, 1e-1)),
            "--seed".to_owned(),
            dice.below(100_000).to_string(),
            format!("--data=/data/set{}/part-{}.bin", self.data, dice.below(50)),
        ];
        Run {
            family,
            number,
            at_s,
            command: words.to_vec(),
            batch,
            peak: peak as u64,
            run_s: self.run_s * (self.time * dice.normal()).exp(),
        }
    }
}

/// The families of a seed, and their runs sorted by time.
pub(super) fn draw(seed: u64, many: usize, change: Change) -> (Vec<Family>, Vec<Run>) {
    let mut dice = Dice::new(seed);
    let world = World::draw(&mut dice);
    let mut families = Vec::new();
    let mut runs = Vec::new();
    for f in 0..many {
        let family = Family::draw(&mut dice, &world, f, change);
        let count = match change {
            Change::None => {
                let wide = MEDIAN_RUNS * (SPREAD_RUNS * dice.normal()).exp();
                (wide.round() as usize).clamp(1, MOST_RUNS)
            }
            Change::Once => 12,
        };
        let mut batch = dice.one(&BATCHES);
        for number in 0..count {
            // Users keep a batch size for some runs.
            if family.batches && dice.below(3) == 0 {
                batch = dice.one(&BATCHES);
            }
            let at = HORIZON_S * (number as f64 + dice.unit()) / count as f64;
            runs.push(family.run(&mut dice, f, number, batch, at));
        }
        families.push(family);
    }
    runs.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    (families, runs)
}

/// A family with three runs each with batches of 16 and 32, and then one with 64.
pub(super) fn scaling(dice: &mut Dice, number: usize) -> (Family, Vec<Run>) {
    let world = World::draw(dice);
    let mut family = Family::draw(dice, &world, number, Change::None);
    family.batches = true;
    let batches = [16, 16, 16, 32, 32, 32, 64];
    let runs = batches.iter().enumerate().map(|(n, batch)| {
        let at = 3600.0 * n as f64;
        family.run(dice, number, n, *batch, at)
    });
    let runs = runs.collect();
    (family, runs)
}
