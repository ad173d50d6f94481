//! Replays synthetic runs in the order of time, and compares each prediction with the truth.

use std::collections::HashMap;
use std::time::Duration;

use gshare_core::play::sizes::SizedRun;
use gshare_core::predict::{RUNS, Shape, Span, duration};
use serde_json::{Value, json};

use super::families::{self, Change, Family, Run};
use crate::bench::dice::Dice;
use crate::bench::stats::Times;
use crate::records::Memory;

/// The 99 % quantile of the standard normal distribution (all but the nominal 1 %).
const NORMAL_99: f64 = 2.326;

/// Errors for one kind of runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Errors {
    gshare: Vec<f64>,
    oracle: Vec<f64>,
    last: Vec<f64>,
    highest: Vec<f64>,
    user: Vec<f64>,
    under: u32,
    oracle_under: u32,
    simple_under: u32,
    over: Vec<f64>,
    oracle_over: Vec<f64>,
    simple_over: Vec<f64>,
}

/// Summary of the errors, in percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge {
    runs: usize,
    pub(super) gshare: f64,
    oracle: f64,
    pub(super) last: f64,
    pub(super) highest: f64,
    pub(super) user: f64,
    pub(super) under: f64,
    oracle_under: f64,
    pub(super) simple_under: f64,
    over: f64,
    oracle_over: f64,
    simple_over: f64,
}

impl Errors {
    fn add(&mut self, truth: f64, said: &Said) {
        let off = |guess: f64| (guess - truth).abs() / truth * 100.0;
        let above = |bound: f64| (bound - truth).max(0.0) / truth * 100.0;
        self.gshare.push(off(said.middle));
        self.oracle.push(off(said.oracle));
        self.last.push(off(said.last));
        self.highest.push(off(said.highest));
        self.user.push(off(said.user));
        self.under += u32::from(said.bound < truth);
        self.oracle_under += u32::from(said.oracle_bound < truth);
        self.over.push(above(said.bound));
        self.oracle_over.push(above(said.oracle_bound));
        let simple = simple(said.highest);
        self.simple_under += u32::from(simple < truth);
        self.simple_over.push(above(simple));
    }

    pub(super) fn judge(&self) -> Judge {
        let median = |v: &[f64]| Times::new(v.to_vec()).median().unwrap_or(f64::NAN);
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
        let runs = self.gshare.len();
        let part = |n: u32| 100.0 * f64::from(n) / runs.max(1) as f64;
        Judge {
            runs,
            gshare: median(&self.gshare),
            oracle: median(&self.oracle),
            last: median(&self.last),
            highest: median(&self.highest),
            user: median(&self.user),
            under: part(self.under),
            oracle_under: part(self.oracle_under),
            over: mean(&self.over),
            oracle_over: mean(&self.oracle_over),
            simple_under: part(self.simple_under),
            simple_over: mean(&self.simple_over),
        }
    }
}

impl Judge {
    /// Error relative to the oracle's.
    pub(super) fn ratio(&self) -> f64 {
        self.gshare / self.oracle.max(f64::MIN_POSITIVE)
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{:>6} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} | {:>7.2} {:>9.1} {:>7.2} {:>9.1} {:>7.2} {:>9.1}",
            self.runs,
            self.gshare,
            self.oracle,
            self.last,
            self.highest,
            self.user,
            self.under,
            self.over,
            self.oracle_under,
            self.oracle_over,
            self.simple_under,
            self.simple_over,
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "runs": self.runs, "error_percent": self.gshare, "oracle_percent": self.oracle,
            "of_oracle": self.ratio(), "last_percent": self.last, "highest_percent": self.highest,
            "user_median_percent": self.user, "under_percent": self.under, "over_percent": self.over,
            "oracle_under_percent": self.oracle_under, "oracle_over_percent": self.oracle_over,
            "simple_under_percent": self.simple_under, "simple_over_percent": self.simple_over,
        })
    }
}

/// Highest peak of the last [`RUNS`] runs of the program.
fn highest(own: &[f64]) -> f64 {
    own.iter().rev().take(RUNS).copied().fold(0.0, f64::max)
}

/// The size that the simple rule without a model requests.
fn simple(highest: f64) -> f64 {
    1.2 * highest
}

/// Predictions for a run.
struct Said {
    middle: f64,
    bound: f64,
    oracle: f64,
    oracle_bound: f64,
    last: f64,
    highest: f64,
    user: f64,
}

fn play(
    families: &[Family],
    runs: &[Run],
    memory: &mut Memory,
    mut each: impl FnMut(&Run, &Family, Said),
) {
    let mut seen: Vec<Vec<f64>> = vec![Vec::new(); families.len()];
    let mut of_user: HashMap<u32, Vec<f64>> = HashMap::new();
    for run in runs {
        let family = &families[run.family];
        let peak = run.peak as f64;
        let said = memory.meet(family.user, Shape::of(&run.command), peak);
        let own = &mut seen[run.family];
        let user = of_user.entry(family.user).or_default();
        if let (Some((middle, bound)), Some(last)) = (said, own.last()) {
            let oracle = family.median(run.batch, run.number);
            let said = Said {
                middle,
                bound,
                oracle,
                oracle_bound: oracle * (NORMAL_99 * family.noise).exp(),
                last: *last,
                highest: highest(own),
                user: Times::new(user.clone()).median().unwrap_or(*last),
            };
            each(run, family, said);
        }
        own.push(peak);
        user.push(peak);
    }
}

/// Families without a change.
pub(super) fn stationary(seed: u64, many: usize, errors: &mut Errors) {
    let (families, runs) = families::draw(seed, many, Change::None);
    play(&families, &runs, &mut Memory::default(), |run, _, said| {
        if run.number >= 3 {
            errors.add(run.peak as f64, &said);
        }
    });
}

/// Errors of predicted run times, as logarithms of factors: `said` for gshare's median, `of_user` for the median of all
/// the user's runs.
pub(super) fn durations(seed: u64, many: usize, said: &mut Vec<f64>, of_user: &mut Vec<f64>) {
    let (families, runs) = families::draw(seed, many, Change::None);
    let mut own: Vec<Vec<Duration>> = vec![Vec::new(); families.len()];
    let mut users: HashMap<u32, Vec<Duration>> = HashMap::new();
    for run in &runs {
        let truth = Duration::from_secs_f64(run.run_s);
        let user = users.entry(families[run.family].user).or_default();
        let newest = |list: &[Duration]| -> Vec<Duration> {
            list.iter().rev().take(RUNS).copied().collect()
        };
        let off = |span: Span| (span.at(0.5).as_secs_f64() / run.run_s).ln().abs();
        if let Some(span) = duration(&newest(&own[run.family]), &newest(user)) {
            said.push(off(span));
        }
        if let Some(span) = duration(&[], &newest(user)) {
            of_user.push(off(span));
        }
        own[run.family].push(truth);
        user.push(truth);
    }
}

/// The runs of a seed with requested sizes: the family's need times 1.2 to 2.5 (an assumption) in quarters of a GPU.
/// The second list has the sizes of the simple rule as learned sizes.
pub(super) fn sized(seed: u64, many: usize, mem: u64) -> [Vec<SizedRun>; 2] {
    let (families, runs) = families::draw(seed, many, Change::None);
    let mut dice = Dice::new(seed ^ 0x5125);
    let factors: Vec<f64> = families.iter().map(|_| dice.scale(1.2, 2.5)).collect();
    let mut memory = Memory::default();
    let mut seen: Vec<Vec<f64>> = vec![Vec::new(); families.len()];
    let all = runs.iter().map(|run| {
        let family = &families[run.family];
        let peak = run.peak.min(mem);
        let said = memory.meet(family.user, Shape::of(&run.command), peak as f64);
        let guess = family.median(run.batch, run.number) * factors[run.family];
        let quarters = (guess * 4.0 / mem as f64).ceil().clamp(1.0, 4.0);
        let own = &mut seen[run.family];
        let rule = (!own.is_empty()).then(|| simple(highest(own)) as u64);
        own.push(peak as f64);
        let learnt = SizedRun {
            arrival_s: run.at_s,
            run_s: run.run_s,
            asked: (quarters * mem as f64 / 4.0) as u64,
            said: said.map(|(_, bound)| bound as u64),
            peak,
            mean: peak,
        };
        let simple = SizedRun {
            said: rule,
            ..learnt
        };
        (learnt, simple)
    });
    let (learnt, simple) = all.unzip();
    [learnt, simple]
}

/// Families that change once. `errors` are by position: the run before the change, the first one after it, and so on.
pub(super) fn drifting(seed: u64, many: usize, errors: &mut [Errors]) {
    let (families, runs) = families::draw(seed, many, Change::Once);
    play(
        &families,
        &runs,
        &mut Memory::default(),
        |run, family, said| {
            let after = family
                .changes_at()
                .map(|at| (run.number + 1).checked_sub(at));
            if let Some(errors) = after.flatten().and_then(|n| errors.get_mut(n)) {
                errors.add(run.peak as f64, &said);
            }
        },
    );
}

/// Three runs each with batches of 16 and 32, then 64.
pub(super) fn scaling(seed: u64, many: usize, errors: &mut Errors) {
    let mut dice = Dice::new(seed);
    let mut memory = Memory::default();
    for number in 0..many {
        let (family, mut runs) = families::scaling(&mut dice, number);
        for run in &mut runs {
            run.family = 0;
        }
        play(&[family], &runs, &mut memory, |run, _, said| {
            if run.batch == 64 {
                errors.add(run.peak as f64, &said);
            }
        });
    }
}
