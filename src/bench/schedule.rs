//! `bench schedule`: what the order of service, exact placement and reclaim are worth, replayed in virtual
//! time over blocks of a list of claims. Every row says what the policy may do to claims that run; the bound is
//! the same order of service on one pool without GPUs.

mod core_step;
mod published;
mod rows;
mod solver;

use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use gshare_core::play::Entry;
use gshare_core::play::list::{self as trace, Cut, Draw};
use gshare_core::sched::plan::Rules;
use gshare_core::sched::replay::{Node, Placing, Policy, replay};
use serde_json::{Value, json};

use super::say;
use super::stats::Times;
use crate::cli::args::BenchArgs;
use rows::{Row, mean};

/// The machine that is replayed: like the measurements that the goals come from.
const NODE: Node = Node {
    gpus: 8,
    mem: 24 << 30,
    users: 4,
};
const BLOCKS: u32 = 20;

/// One list of claims and its blocks.
struct List {
    name: String,
    trace: Vec<Entry>,
}

/// The part that can be run alone.
const CORE_STEP: &str = "core-step";

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<i32> {
    if let Some(part) = &args.only {
        anyhow::ensure!(
            part == CORE_STEP,
            "--only {part}: only {CORE_STEP} is run alone"
        );
        let (figures, goals) = core_step::run(args.quick);
        finish(0, Some(part), vec![figures], &goals, !args.quick);
        return Ok(0);
    }
    let blocks = args.runs.unwrap_or(if args.quick { 2 } else { BLOCKS });
    anyhow::ensure!(blocks > 0, "--runs 0 measures nothing");
    let lists = lists(args.traces.as_deref())?;
    let published = args.traces.as_deref().map(published::run).transpose()?;
    let claims = if args.quick { 300 } else { 1500 };
    say(&format!(
        "{blocks} paired blocks of {claims} consecutive claims on {} GPUs; times between requests drawn to a load, run times\n\
         within 30 s and 6 h; four users drawn, one with 59 % of the claims; memory as large a part as the SMs;\n\
         a move or a suspension with its resume costs 2 x (2 s + memory / 4 GB/s)",
        NODE.gpus
    ));
    let mut results = Vec::new();
    let mut goals = Vec::new();
    if let Some((figures, met)) = published.flatten() {
        results.push(figures);
        goals.extend(met);
    }
    for list in &lists {
        let shared = list.name.contains("gpushare");
        let small = without_whole(&list.trace);
        say(&format!(
            "\n{}: {} claims; {} of the whole machine are left out, because strict order would measure only how long\n\
             the machine takes to drain for them",
            list.name,
            list.trace.len(),
            list.trace.len() - small.len()
        ));
        let cut = Cut {
            claims,
            draw: Draw::Poisson,
            ..Cut::default()
        };
        // B1 and B2.
        let names = [
            "exclusive",
            "static",
            "first-fit",
            "best-fit",
            "fgd",
            "exact",
            "spread",
            "pooled",
        ];
        let fifo = table(
            "first come, first served, load 0.9",
            &small,
            &cut,
            blocks,
            &names,
        );
        goals.extend(rows::fifo_goals(&list.name, shared, &fifo));
        // B3.
        let half = Cut { load: 0.5, ..cut };
        let spread = table(
            "the same, load 0.5",
            &small,
            &half,
            blocks,
            &["best-fit", "exact", "spread"],
        );
        goals.extend(rows::spread_goals(&list.name, &spread));
        // B4 and B5.
        let names = [
            "static",
            "fgd",
            "exact+quota",
            "best-fit+service",
            "fgd+service",
            "exact+service",
            "gshare",
            "gshare-held",
        ];
        let quota = table(
            "quota of a quarter each, then attained service, load 0.9",
            &small,
            &cut,
            blocks,
            &names,
        );
        if !shared {
            goals.extend(rows::quota_goals(&list.name, &quota, &small, &cut, blocks));
        }
        if list.trace.len() != small.len() && !args.quick {
            let whole = table(
                "with the claims of the whole machine, load 0.9",
                &list.trace,
                &cut,
                blocks,
                &["fgd", "exact", "pooled", "fgd+service", "gshare"],
            );
            results.push(json!({ "list": list.name, "with_whole_machine": rows::figures(&whole) }));
        }
        results.push(json!({
            "list": list.name,
            "fifo": rows::figures(&fifo),
            "half_load": rows::figures(&spread),
            "quota": rows::figures(&quota),
        }));
    }
    // B6 and B7.
    let small = without_whole(&lists[0].trace);
    let cut = Cut {
        claims,
        draw: Draw::Poisson,
        ..Cut::default()
    };
    say("\nthe search in decisions of first come, first served; processor time");
    for (gpus, goal_us) in [(8, 1000.0), (16, 5000.0)] {
        let cut = Cut { gpus, ..cut };
        let row = Policy::named("exact").map(|p| play(p, &small, &cut, blocks.min(5)));
        goals.extend(
            row.iter()
                .flat_map(|r| rows::search_goals(gpus, goal_us, r)),
        );
    }
    let (figures, solver) = solver::run(&lists[0].trace, args.quick);
    goals.extend(solver);
    results.push(figures);
    let (figures, steps) = core_step::run(args.quick);
    goals.extend(steps);
    results.push(figures);
    let judged = !args.quick && args.traces.is_some();
    finish(blocks, None, results, &goals, judged);
    Ok(0)
}

/// The goals and the last line.
fn finish(
    blocks: u32,
    only: Option<&str>,
    measured: Vec<Value>,
    goals: &[rows::Goal],
    judged: bool,
) {
    say("\ngoals");
    for goal in goals {
        say(&goal.line());
    }
    if !judged && only.is_none() {
        say("not judged: the goals hold for 20 blocks of the openb lists (--traces DIR)");
    }
    let mut line = json!({
        "bench": "schedule",
        "blocks": blocks,
        "measured": measured,
        "goals": goals.iter().map(rows::Goal::json).collect::<Vec<Value>>(),
        "judged": judged,
        "ok": goals.iter().all(|g| g.met),
    });
    if let Some(only) = only {
        line["only"] = only.into();
    }
    say(&line.to_string());
}

/// The lists of a directory, or one that is made up.
fn lists(dir: Option<&Path>) -> anyhow::Result<Vec<List>> {
    let Some(dir) = dir else {
        return Ok(vec![List {
            name: "made up".to_owned(),
            trace: trace::synthetic(3000, 1),
        }]);
    };
    let mut found = Vec::new();
    for (name, file) in [
        ("default", "openb_gpu_claims.csv"),
        ("gpushare100", "openb_pod_list_gpushare100.csv"),
    ] {
        let path = dir.join(file);
        if !path.exists() {
            continue;
        }
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let trace = trace::read(&text).with_context(|| path.display().to_string())?;
        found.push(List {
            name: name.to_owned(),
            trace,
        });
    }
    anyhow::ensure!(
        !found.is_empty(),
        "{} has neither openb_gpu_claims.csv nor openb_pod_list_gpushare100.csv",
        dir.display()
    );
    Ok(found)
}

fn without_whole(trace: &[Entry]) -> Vec<Entry> {
    let part = |e: &&Entry| (e.gpus as usize) < NODE.gpus;
    trace.iter().filter(part).copied().collect()
}

/// Replays the same blocks under each policy and prints a row for each.
fn table(title: &str, trace: &[Entry], cut: &Cut, blocks: u32, names: &[&str]) -> Vec<Row> {
    say(&format!("\n{title}"));
    say(&rows::head());
    names
        .iter()
        .filter_map(|name| {
            let policy = Policy::named(name)?;
            let row = play(policy, trace, cut, blocks);
            say(&row.line());
            Some(row)
        })
        .collect()
}

/// Says on a terminal how far a row is.
struct Progress {
    name: &'static str,
    of: u32,
    done: AtomicU32,
    shown: bool,
}

impl Progress {
    fn of(name: &'static str, of: u32) -> Self {
        Self {
            name,
            of,
            done: AtomicU32::new(0),
            shown: std::io::stderr().is_terminal(),
        }
    }

    fn another(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if self.shown {
            eprint!("\r{}: block {done} of {}\x1b[K", self.name, self.of);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// Processor time of this thread in nanoseconds: what others run here meanwhile does not count.
fn cpu_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |t| {
        let ns = Duration::from(t).as_nanos();
        u64::try_from(ns).unwrap_or(u64::MAX)
    })
}

fn play(policy: &'static Policy, trace: &[Entry], cut: &Cut, blocks: u32) -> Row {
    let node = Node {
        gpus: cut.gpus,
        ..NODE
    };
    let one = |seed: u32| {
        let mut took = Vec::new();
        let block = trace::block(trace, cut, u64::from(seed));
        let outcome = replay(&block, node, policy, &cpu_ns, &mut took);
        (outcome, took)
    };
    let progress = Progress::of(policy.name, blocks);
    // Two at a time: the blocks do not depend on one another.
    let half = |first: u32| {
        let seeds = (first..blocks).step_by(2);
        let play = |seed| {
            let played = one(seed);
            progress.another();
            played
        };
        seeds.map(play).collect::<Vec<_>>()
    };
    let (even, odd) = std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        (half(0), odd.join().unwrap_or_default())
    });
    let (mut outcomes, mut took) = (Vec::new(), Vec::new());
    let mut odd = odd.into_iter();
    for (outcome, times) in even
        .into_iter()
        .flat_map(|e| [Some(e), odd.next()])
        .flatten()
    {
        outcomes.push(outcome);
        took.extend(times);
    }
    drop(progress);
    let steps = Times::new(took.iter().map(|ns| *ns as f64 / 1e3).collect());
    Row::new(policy, outcomes, &steps)
}

/// Percent of the machine that could be in use by the last request if nothing were lost: the same order of
/// service on one pool.
fn play_bound(trace: &[Entry], cut: &Cut, blocks: u32) -> f64 {
    static BOUND: Policy = Policy {
        name: "pooled+service",
        placing: Placing::Pooled,
        rules: Rules::DEFAULT,
        moves: true,
        suspends: true,
    };
    let row = play(&BOUND, trace, cut, blocks);
    let useful: Vec<f64> = row.outcomes.iter().map(|o| o.allocation * 100.0).collect();
    mean(&useful)
}

/// Mean completion by user, in seconds, over all blocks.
fn by_user(row: &Row, trace: &[Entry], cut: &Cut) -> Vec<f64> {
    let mut times = vec![Vec::new(); NODE.users];
    for (seed, outcome) in row.outcomes.iter().enumerate() {
        let block = trace::block(trace, cut, seed as u64);
        for (e, t) in block.iter().zip(&outcome.turnaround_s) {
            times[e.user].push(*t);
        }
    }
    times.iter().map(|t| mean(t)).collect()
}
