//! `bench shim`: time that the proxy adds to a driver call. The driver does nothing, so that nothing hides the proxy.
//! Direct and proxied rounds alternate in one process, a member of a claim with a limit, three neighbours and all
//! counters on.

mod child;
mod desk;

use std::process::{Command, Stdio};

use anyhow::Context;
use serde_json::{Map, Value, json};

use self::child::{Figures, Plan, Scene, THREADS};
use self::desk::Desk;
use super::{say, takes};
use crate::command::args::BenchArgs;

pub(crate) use self::child::run as child;

/// First argument of the measuring process.
pub(crate) const CHILD_ARGUMENT: &str = "__bench-shim";

/// Key of a row, its label, and the goal for the added nanoseconds.
const ROWS: &[(&str, &str, Option<f64>)] = &[
    ("launch", "cuLaunchKernel", Some(12.0)),
    ("launch_ptsz", "cuLaunchKernel_ptsz", Some(12.0)),
    ("launch_two_gpus", "cuLaunchKernel, claim of 2 GPUs", None),
    (
        "launch_shared",
        "cuLaunchKernel, GPU shared, 9 of 10",
        Some(12.0),
    ),
    ("trampoline", "cuStreamQuery (not hooked)", Some(2.0)),
    ("mem_info", "cuMemGetInfo", Some(15.0)),
    ("alloc_free_0", "alloc+free 2 MiB, 0 live", Some(200.0)),
    (
        "alloc_free_1000",
        "alloc+free 2 MiB, 1,000 live",
        Some(200.0),
    ),
    (
        "alloc_free_10000",
        "alloc+free 2 MiB, 10,000 live",
        Some(200.0),
    ),
    ("small_0", "alloc+free 1 KiB, 0 live", Some(200.0)),
    ("small_1000", "alloc+free 1 KiB, 1,000 live", Some(200.0)),
    ("small_10000", "alloc+free 1 KiB, 10,000 live", Some(200.0)),
    ("async_pair", "cuMemAllocAsync+FreeAsync", Some(200.0)),
];

/// Key of an operation by several threads at once, its label, and the goal for the time per core with eight threads,
/// relative to one thread.
const CROWDS: &[(&str, &str, f64)] = &[
    ("launch", "cuLaunchKernel", 3.0),
    ("alloc_free", "alloc+free 2 MiB", 3.0),
];

/// Runs of the launch measurement on a shared GPU, 5 s or more each; one run in ten may exceed the goal.
const SHARED_RUNS: usize = 10;

/// Duration of a round in a release build on two idle cores.
const ROUND_SECONDS: f64 = 0.07;

/// Minimum number of rounds for judging a median.
const FEWEST: u32 = 31;

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let rounds = args.runs.unwrap_or(if args.quick { 7 } else { 101 });
    anyhow::ensure!(rounds > 0, "--runs 0 measures nothing");
    let plan = Plan {
        rounds,
        crowd_rounds: if args.quick { 3 } else { rounds.min(FEWEST) },
        scale: if args.quick { 10 } else { 1 },
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runs = if args.quick { 1 } else { SHARED_RUNS };
    say(&format!(
        "a driver that does nothing, bare and behind the proxy, {rounds} rounds of each; {cores} cores; {}",
        takes(ROUND_SECONDS * f64::from(rounds) / f64::from(plan.scale) * (1 + runs) as f64)
    ));
    let mut figures = measure(&plan, Scene::Alone)?;
    figures.rows.extend(measure(&plan, Scene::TwoGpus)?.rows);
    say("  claims of one and of two GPUs: measured");
    let mut shared = Vec::new();
    for run in 1..=runs {
        let rows = measure(&plan, Scene::Shared)?.rows;
        let added = rows.first().map_or(f64::NAN, |row| row.added);
        say(&format!(
            "  GPU shared, run {run} of {runs}: {added:.1} ns added"
        ));
        shared.extend(rows);
    }
    figures.rows.extend(nine_of_ten(shared));

    let judged = !args.quick && rounds >= FEWEST;
    print_rows(&figures, judged);
    print_crowds(&figures, judged);
    if cores < THREADS {
        say(&format!(
            "  {THREADS} threads share {cores} cores here: how they get into each other's way shows in part only"
        ));
    }
    let line = json!({
        "bench": "shim",
        "rounds": rounds,
        "cores": cores,
        "measured": { "added_ns": added(&figures), "eight_threads_ratio": ratios(&figures, |c| c.shim_ratio) },
        "baseline": { "bare_ns": bare(&figures), "eight_threads_ratio": ratios(&figures, |c| c.bare_ratio) },
        "goals": { "added_ns": goals(), "eight_threads_ratio": crowd_goals() },
        "judged": judged,
        "ok": within(&figures),
    });
    Ok(line)
}

/// The 90th percentile of the runs.
fn nine_of_ten(mut runs: Vec<child::Row>) -> Option<child::Row> {
    runs.sort_by(|a, b| a.added.total_cmp(&b.added));
    runs.truncate((runs.len() * 9).div_ceil(10));
    runs.pop()
}

/// Runs the child in a claim.
fn measure(plan: &Plan, scene: Scene) -> anyhow::Result<Figures> {
    let desk = Desk::open(scene)?;
    let own = std::env::current_exe().context("cannot find the program itself")?;
    let output = Command::new(own)
        .arg(CHILD_ARGUMENT)
        .arg(desk.driver())
        .arg(desk.shim())
        .args(plan.arguments(scene))
        .env_remove("GSHARE_CLAIM_ID")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the process that makes the calls")?;
    anyhow::ensure!(
        output.status.success(),
        "the process that makes the calls failed: {}",
        output.status
    );
    let figures: Figures =
        serde_json::from_slice(&output.stdout).context("the figures are garbled")?;
    desk.check(figures.launches, figures.allocations)?;
    Ok(figures)
}

/// Verdict on a figure above its goal; with few rounds it means nothing.
fn verdict(missed: bool, judged: bool) -> &'static str {
    match (missed, judged) {
        (_, false) => "  not judged",
        (true, true) => "  missed",
        (false, true) => "",
    }
}

fn print_rows(figures: &Figures, judged: bool) {
    say(&format!(
        "\n{:<34} {:>9} {:>9} {:>9} {:>9}",
        "ns per call or pair, medians", "bare", "proxied", "added", "goal"
    ));
    for (key, name, goal) in ROWS {
        let Some(row) = figures.rows.iter().find(|row| row.key == *key) else {
            continue;
        };
        let goal_text = goal.map_or_else(|| "-".to_owned(), |goal| format!("{goal:.0}"));
        let missed = goal.is_some_and(|goal| row.added > goal);
        say(&format!(
            "  {name:<32} {:>9.1} {:>9.1} {:>9.1} {goal_text:>9}{}",
            row.bare,
            row.shim,
            row.added,
            verdict(missed, judged)
        ));
    }
}

fn print_crowds(figures: &Figures, judged: bool) {
    say(&format!(
        "\n{:<34} {:>9} {:>9} {:>9} {:>9} {:>9}",
        format!("ns per call and core, {THREADS} threads"),
        "one",
        "eight",
        "bare",
        "ratio",
        "goal"
    ));
    for (key, name, goal) in CROWDS {
        if let Some(crowd) = figures.crowds.iter().find(|crowd| crowd.key == *key) {
            let missed = crowd.shim_ratio > *goal;
            say(&format!(
                "  {name:<32} {:>9.1} {:>9.1} {:>9.2} {:>9.2} {goal:>9.1}{}",
                crowd.shim_one,
                crowd.shim_eight,
                crowd.bare_ratio,
                crowd.shim_ratio,
                verdict(missed, judged)
            ));
        }
    }
}

fn added(figures: &Figures) -> Value {
    let rows = figures.rows.iter();
    Value::Object(
        rows.map(|row| (row.key.clone(), json!(row.added)))
            .collect(),
    )
}

fn bare(figures: &Figures) -> Value {
    let rows = figures.rows.iter();
    Value::Object(rows.map(|row| (row.key.clone(), json!(row.bare))).collect())
}

fn ratios(figures: &Figures, which: impl Fn(&child::Crowd) -> f64) -> Value {
    let crowds = figures.crowds.iter();
    Value::Object(
        crowds
            .map(|crowd| (crowd.key.clone(), json!(which(crowd))))
            .collect(),
    )
}

fn goals() -> Value {
    let mut list = Map::new();
    for (key, _, goal) in ROWS {
        if let Some(goal) = goal {
            list.insert((*key).to_owned(), json!(goal));
        }
    }
    Value::Object(list)
}

fn crowd_goals() -> Value {
    let goals = CROWDS.iter();
    Value::Object(
        goals
            .map(|(key, _, goal)| ((*key).to_owned(), json!(goal)))
            .collect(),
    )
}

/// Whether every goal was measured and met.
fn within(figures: &Figures) -> bool {
    let rows = ROWS.iter().all(|(key, _, goal)| {
        goal.is_none_or(|goal| {
            let row = figures.rows.iter().find(|row| row.key == *key);
            row.is_some_and(|row| row.added <= goal)
        })
    });
    let crowds = CROWDS.iter().all(|(key, _, goal)| {
        let crowd = figures.crowds.iter().find(|crowd| crowd.key == *key);
        crowd.is_some_and(|crowd| crowd.shim_ratio <= *goal)
    });
    rows && crowds
}

#[cfg(test)]
mod tests {
    use super::child::{Crowd, Row};
    use super::*;

    fn figures(added: f64, ratio: f64) -> Figures {
        let row = |key: &str| Row {
            key: key.to_owned(),
            bare: 1.0,
            shim: 1.0 + added,
            added,
        };
        let crowd = |key: &str| Crowd {
            key: key.to_owned(),
            shim_one: 1.0,
            shim_eight: ratio,
            shim_ratio: ratio,
            bare_ratio: 1.0,
        };
        Figures {
            rows: ROWS.iter().map(|(key, ..)| row(key)).collect(),
            crowds: CROWDS.iter().map(|(key, ..)| crowd(key)).collect(),
            launches: 0,
            allocations: 0,
        }
    }

    #[test]
    fn one_run_of_ten_may_be_slow_and_not_two() {
        let runs = |slow: usize| -> Vec<Row> {
            let added = (0..10).map(|at| if at < slow { 20.0 } else { 5.0 });
            let all = added.flat_map(|added| figures(added, 1.0).rows);
            all.filter(|row| row.key == "launch_shared").collect()
        };
        assert_eq!(nine_of_ten(runs(1)).map(|row| row.added), Some(5.0));
        assert_eq!(nine_of_ten(runs(2)).map(|row| row.added), Some(20.0));
        assert_eq!(
            nine_of_ten(runs(10)[..1].to_vec()).map(|r| r.added),
            Some(20.0)
        );
    }

    #[test]
    fn every_goal_has_to_be_measured_and_met() {
        assert!(within(&figures(2.0, 3.0)));
        assert!(!within(&figures(2.1, 3.0)), "the trampoline's goal is 2");
        assert!(!within(&figures(2.0, 3.1)));
        let mut lacking = figures(0.0, 1.0);
        lacking.rows.retain(|row| row.key != "mem_info");
        assert!(!within(&lacking));
        lacking = figures(0.0, 1.0);
        lacking.crowds.pop();
        assert!(!within(&lacking));
    }
}
