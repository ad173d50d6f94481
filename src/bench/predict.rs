//! `bench predict`: how well sizes are predicted from earlier runs. The runs are synthetic (see [`families`]), so that
//! the best possible prediction (the oracle) is known; simpler rules are compared as well. `--traces FILE` (repeatable,
//! also a directory) adds gshare's own records and lists of programs' memory over time.

mod asked;
mod families;
mod next;
mod own;
mod play;

use gshare_core::play::sizes::Sized;
use gshare_core::predict::NOMINAL;
use serde_json::{Value, json};

use self::play::{Errors, Judge};
use super::say;
use super::stats::Times;
use crate::command::args::BenchArgs;
use crate::records::{row_json, rows, stretch};

/// Number of families per seed.
const FAMILIES: usize = 120;
/// Maximum median error relative to the oracle's.
const GOAL_ERROR: f64 = 1.3;
/// Maximum percentage points by which the runs above the bound exceed the nominal rate.
const GOAL_UNDER: f64 = 0.5;
/// Minimum use of the allocated memory, relative to the use with known peaks.
const GOAL_USED: f64 = 0.85;
/// Maximum fraction of runs that run out of memory.
const GOAL_REFUSED: f64 = 0.01;
/// Number of runs after which a change must be recognized.
const GOAL_DRIFT: usize = 3;

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let seeds = args.runs.unwrap_or(if args.quick { 2 } else { 10 });
    anyhow::ensure!(seeds > 0, "--runs 0 measures nothing");
    say(&format!(
        "made-up families of runs, no GPU: {FAMILIES} families for each of the seeds 1 to {seeds}; rates of repeats and of noise \
         are those of public data (src/bench/predict/families.rs)"
    ));
    say(&format!(
        "{:<34} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} | {:>7} {:>9} {:>7} {:>9} {:>7} {:>9}",
        "error of the peak, median, %",
        "runs",
        "gshare",
        "oracle",
        "last",
        "highest",
        "user's",
        "under %",
        "over %",
        "oracle",
        "over %",
        "simple",
        "over %"
    ));
    let mut repeated = Errors::default();
    let mut drifted = vec![Errors::default(); 6];
    let mut scaled = Errors::default();
    let (mut times, mut of_user) = (Vec::new(), Vec::new());
    for seed in 1..=u64::from(seeds) {
        play::stationary(seed, FAMILIES, &mut repeated);
        play::drifting(seed, FAMILIES, &mut drifted);
        play::scaling(seed, FAMILIES, &mut scaled);
        play::durations(seed, FAMILIES, &mut times, &mut of_user);
    }
    let row = |name: &str, errors: &Errors| -> Judge {
        let judge = errors.judge();
        say(&format!("{name:<34} {}", judge.line()));
        judge
    };
    let all = row("after 3 or more runs", &repeated);
    let scale = row("batch 16, 32 three times, then 64", &scaled);
    let mut drift = Vec::new();
    for (n, errors) in drifted.iter().enumerate() {
        let name = match n {
            0 => "the run before a change".to_owned(),
            1 => "the first run after it".to_owned(),
            n => format!("run {n} after it"),
        };
        drift.push(row(&name, errors));
    }
    // The first run from which on predictions are about as good as before the change.
    let well = |judge: &Judge| judge.gshare <= GOAL_ERROR * drift[0].gshare;
    let recovered = drift.iter().rposition(|j| !well(j)).unwrap_or(0);
    say(&format!(
        "goals: error <= {GOAL_ERROR} x the oracle's: {:.2}; under <= {:.1} + {GOAL_UNDER} %: {:.2}; runs after a change until the error is within {GOAL_ERROR} x that before it, <= {GOAL_DRIFT}: {recovered}",
        all.ratio(),
        NOMINAL * 100.0,
        all.under
    ));
    let mut ok = all.ratio() <= GOAL_ERROR
        && all.under <= NOMINAL * 100.0 + GOAL_UNDER
        && scale.gshare < scale.last.min(scale.highest).min(scale.user)
        && scale.under < scale.simple_under
        && recovered <= GOAL_DRIFT;
    let median = |v: Vec<f64>| {
        Times::new(v)
            .median()
            .map_or(f64::NAN, |m| m.exp() * 100.0 - 100.0)
    };
    let (times, of_user) = (median(times), median(of_user));
    say(&format!(
        "run time, median error: {times:.0} %; the median of all runs of the user: {of_user:.0} %"
    ));
    let sized = sizes(seeds);
    let [asked_for, learnt, peaks, simple] = sized;
    ok &= learnt.used >= peaks.used * GOAL_USED && learnt.refused <= GOAL_REFUSED;
    let mut files = Vec::new();
    for path in paths(args)? {
        let text = std::fs::read_to_string(&path)?;
        let found = if next::is_list(&text) {
            next::run(&path, &text)
        } else {
            own::run(&path, &text)
        }?;
        ok &= found["ok"].as_bool().unwrap_or(true);
        files.push(found);
    }
    let asked = asked::run(args.quick)?;
    ok &= asked["ok"].as_bool().unwrap_or(false);
    Ok(json!({
        "bench": "predict",
        "made_up": true,
        "seeds": seeds,
        "families": FAMILIES,
        "measured": {
            "repeated": all.json(), "scaled": scale.json(),
            "drift": drift.iter().map(Judge::json).collect::<Vec<_>>(),
            "drift_runs": recovered, "run_time_percent": times, "run_time_of_user_percent": of_user, "suggest": asked, "files": files,
            "replay": [row_json("asked", &asked_for), row_json("learnt", &learnt), row_json("peaks", &peaks), row_json("simple", &simple)],
        },
        "goals": { "error_of_oracle": GOAL_ERROR, "under_percent": NOMINAL * 100.0 + GOAL_UNDER, "drift_runs": GOAL_DRIFT },
        "judged": !args.quick,
        "ok": ok,
    }))
}

/// The same runs with requested, learned and true sizes and with the simple rule (highest of the program's last runs
/// plus a fifth), on four GPUs of 48 GiB at up to 90 % load.
fn sizes(seeds: u32) -> [Sized; 4] {
    let mem = 48 << 30;
    let mut sums = [Sized::default(); 4];
    for seed in 1..=u64::from(seeds) {
        let [mut runs, mut simple] = play::sized(seed, FAMILIES, mem);
        stretch(&mut runs, 4, mem, 0.9);
        stretch(&mut simple, 4, mem, 0.9);
        let simple = rows(&simple, 4, mem).into_iter().skip(1).take(1);
        for (sum, (_, row)) in sums
            .iter_mut()
            .zip(rows(&runs, 4, mem).into_iter().chain(simple))
        {
            sum.used += row.used / f64::from(seeds);
            sum.refused += row.refused / f64::from(seeds);
            sum.wait_s += row.wait_s / f64::from(seeds);
        }
    }
    for (name, row) in ["asked for", "learnt", "peaks", "simple"].iter().zip(&sums) {
        say(&format!(
            "replayed with sizes {name:<10} used of allocated {:.1} %, out of memory {:.2} % of runs, wait {:.1} min",
            row.used * 100.0,
            row.refused * 100.0,
            row.wait_s / 60.0
        ));
    }
    sums
}

/// The named files, and the files in named directories.
fn paths(args: &BenchArgs) -> anyhow::Result<Vec<std::path::PathBuf>> {
    let Some(path) = &args.traces else {
        return Ok(Vec::new());
    };
    if !path.is_dir() {
        return Ok(vec![path.clone()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "csv" || e == "jsonl") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
