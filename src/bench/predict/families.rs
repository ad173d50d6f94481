//! Families of runs that are made up: the same people start the same scripts again and again, with other numbers in
//! the arguments. It shares no code with what predicts them.
//!
//! What is taken from public data (each figure computed from the file named, on 2026-11-21):
//!
//! * How often things repeat: `openb_pod_list_default.csv` (hkust-adsl/kubernetes-scheduler-simulator, of the FGD paper,
//!   ATC'23): 7064 pods with a GPU in 135 shapes (what they ask for), half of the shapes with at most 7 pods, nine
//!   tenths with at most 106; 95 % of the pods came after three or more of their shape. Here: runs of a family are
//!   log-normal with median 7 and the spread that has its ninth decile at 106 ([`MEDIAN_RUNS`], [`SPREAD_RUNS`]).
//! * How much the peak of memory differs from one time to the next: `pod_gpu_memory_used_bytes_anon.csv` (alibaba/clusterdata,
//!   cluster-trace-v2026-GenAI, SoCC'25), 144 pods, peak of each hour against the hour before: 63 % differ by less than
//!   a tenth, and these with a standard deviation of 0.027 of the logarithm; the others by 0.225 in the median, a
//!   standard deviation of 0.16 ([`QUIET`], [`LOUD`], [`LOUD_PART`]). Here the two are kinds of families.
//! * How much run times differ: `summary_train.csv` (ml-energy/zeus, NSDI'23), epochs until the target of 94 configurations
//!   that were trained three times or more (and took eight epochs or more): standard deviation of the logarithm 0.06 in
//!   the median, 0.17 in the ninth decile ([`TIME`]).
//! * How long runs are: the openb list's median of 655 s ([`MEDIAN_RUN_S`]).
//!
//! Not from data, made up: that memory is a fixed part and a part that grows with the size of a batch, how large they
//! are, how many families have a batch that changes, and how a family changes for good (drift).
//!
//! All of these are drawn anew for each seed, within half to twice the figure.

use crate::bench::dice::Dice;

/// Median of the runs of a family.
const MEDIAN_RUNS: f64 = 7.0;
/// Standard deviation of their logarithm: ln(106 / 7) / 1.2816.
const SPREAD_RUNS: f64 = 2.12;
/// Most runs of a family.
const MOST_RUNS: usize = 200;
/// Standard deviation of the logarithm of a peak in families that repeat well ...
const QUIET: f64 = 0.027;
/// ... and in those that do not,
const LOUD: f64 = 0.16;
/// which are this part of all.
const LOUD_PART: f64 = 0.37;
/// Standard deviation of the logarithm of a run time.
const TIME: f64 = 0.06;
/// Median of run times, in seconds.
const MEDIAN_RUN_S: f64 = 655.0;
/// Sizes of a batch.
const BATCHES: [u32; 5] = [8, 16, 32, 64, 128];
const GIB: f64 = 1_073_741_824.0;
/// Seconds in which all runs begin: four weeks.
const HORIZON_S: f64 = 28.0 * 86_400.0;

/// What is drawn once for a seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    quiet: f64,
    loud: f64,
    loud_part: f64,
    time: f64,
    batch_part: f64,
}

/// How the families of a seed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Not at all.
    None,
    /// Each once, for good, after the sixth run.
    Once,
}

/// A family.
#[derive(Clone, Debug)]
pub(super) struct Family {
    pub(super) user: u32,
    script: String,
    /// GiB without any batch.
    base: f64,
    /// GiB for each sample of a batch.
    per_sample: f64,
    /// Standard deviation of the logarithm of the peak.
    pub(super) noise: f64,
    time: f64,
    run_s: f64,
    /// The batch changes.
    pub(super) batches: bool,
    /// Its memory is multiplied by this from a certain run on.
    change: Option<(usize, f64)>,
    data: u64,
}

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Index of its family.
    pub(super) family: usize,
    /// Which of the family it is, from 0.
    pub(super) number: usize,
    /// Seconds since the begin.
    pub(super) at_s: f64,
    pub(super) command: Vec<String>,
    /// Samples of a batch.
    pub(super) batch: u32,
    /// Peak of memory, in bytes.
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

    /// What half of its runs stay below, in bytes: the truth.
    pub(super) fn median(&self, batch: u32, number: usize) -> f64 {
        let factor = match self.change {
            Some((from, factor)) if number >= from => factor,
            _ => 1.0,
        };
        (self.base + self.per_sample * f64::from(batch)) * factor * GIB
    }

    /// The run from which on it is another.
    pub(super) fn changes_at(&self) -> Option<usize> {
        self.change.map(|(from, _)| from)
    }

    /// One run.
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

/// The families of a seed, and their runs in the order of time.
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
            // People keep a size for some runs.
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

/// One family that is run with batches of 16, then 32, three times each, and then once with 64.
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
