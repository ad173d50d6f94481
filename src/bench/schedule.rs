//! `bench schedule`: the live machine in virtual time over blocks of a list of claims, compared with baselines; the
//! search for places; and the duration of a step of the machine.

mod core_step;
mod placing;
mod published;
mod solver;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use gshare_core::play::cases::{self, Case, Goal, Sums, two_at_a_time};
use gshare_core::play::figures::mean;
use gshare_core::play::{Entry, Setup, gaming, list};
use serde_json::{Value, json};

use super::say;
use crate::command::args::BenchArgs;

/// Number of blocks of a full run. Rules may be tuned on the first half; goals are judged on the second half.
const BLOCKS: u32 = 20;
const QUICK_BLOCKS: u32 = 4;
const SEEDS_OF_WAYS: u64 = 10;

/// One list of claims and its blocks.
struct List {
    name: String,
    trace: Vec<Entry>,
}

impl List {
    /// Whether most claims are parts of a GPU.
    fn is_shared(&self) -> bool {
        self.name.contains("gpushare")
    }

    fn without_whole(&self) -> Vec<Entry> {
        let part = |e: &&Entry| (e.gpus as usize) < Setup::default().gpus;
        self.trace.iter().filter(part).copied().collect()
    }
}

/// Names of the parts that can run alone.
const CORE_STEP: &str = "core-step";
const GAMING: &str = "gaming";

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let lists = lists(args.traces.as_deref())?;
    let only = args.only.as_deref().or(args.gaming.then_some(GAMING));
    let (mut measured, mut goals) = (Vec::new(), Vec::new());
    match only {
        Some(CORE_STEP) => {
            let (figures, met) = core_step::run(args.quick);
            (measured, goals) = (vec![figures], met);
        }
        Some(GAMING) => play_ways(&lists, args, &mut measured, &mut goals),
        Some(part) => anyhow::bail!("--only {part}: only {CORE_STEP} is run alone, and --gaming"),
        None => {
            let blocks = args
                .runs
                .unwrap_or(if args.quick { QUICK_BLOCKS } else { BLOCKS });
            anyhow::ensure!(blocks > 0, "--runs 0 measures nothing");
            let published = args.traces.as_deref().map(published::run).transpose()?;
            if let Some((figures, met)) = published.flatten() {
                measured.push(figures);
                goals.extend(met);
            }
            for list in &lists {
                play_cases(list, blocks, args.quick, &mut measured, &mut goals);
            }
            for list in &lists {
                placing::run(list, blocks, args.quick, &mut measured, &mut goals);
            }
            if !args.quick {
                play_ways(&lists, args, &mut measured, &mut goals);
            }
            let (figures, met) = solver::run(&lists[0].trace, args.quick);
            measured.push(figures);
            goals.extend(met);
            let (figures, met) = core_step::run(args.quick);
            measured.push(figures);
            goals.extend(met);
        }
    }
    say("\ngoals");
    for goal in &goals {
        say(&goal.line());
    }
    let judged = !args.quick && args.traces.is_some();
    if !judged && only.is_none() {
        say("not judged: the goals hold for 20 blocks of the openb lists (--traces DIR)");
    }
    let goal = |g: &Goal| json!({ "name": g.name, "got": g.got, "goal": g.goal, "at_least": g.at_least, "met": g.met() });
    let mut line = json!({
        "bench": "schedule",
        "measured": measured,
        "goals": goals.iter().map(goal).collect::<Vec<Value>>(),
        "judged": judged,
        "ok": goals.iter().all(Goal::met),
    });
    if let Some(only) = only {
        line["only"] = only.into();
    }
    Ok(line)
}

/// The lists of a directory, or a synthetic one.
fn lists(dir: Option<&Path>) -> anyhow::Result<Vec<List>> {
    let Some(dir) = dir else {
        return Ok(vec![List {
            name: "made up".to_owned(),
            trace: list::synthetic(3000, 1),
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
        let trace = list::read(&text).with_context(|| path.display().to_string())?;
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

/// Plays the rows of one list: first the blocks on which rules were tuned, then the others.
fn play_cases(
    list: &List,
    blocks: u32,
    quick: bool,
    measured: &mut Vec<Value>,
    goals: &mut Vec<Goal>,
) {
    let claims = if quick { 300 } else { 1500 };
    let half = if quick { blocks } else { blocks.div_ceil(2) };
    let parts = [(0, half, "tuned on"), (half, blocks, "apart")];
    for (from, to, which) in parts.into_iter().filter(|(from, to, _)| from < to) {
        say(&format!(
            "\n{}, blocks {from} to {} ({which}): {claims} consecutive claims each, times between requests drawn to a load of\n\
             0.9, run times within 30 s and 6 h, four users of whom one brings 59 %, memory as large a part as the SMs; each\n\
             way to the host and back costs 2 s + memory / 4 GB/s. Claims of the whole machine are left out unless said.\n\
             A wait lasts until a claim has the run that lasts for the shortest time that claims may run",
            list.name,
            to - 1
        ));
        say(&cases::head());
        let mut rows: BTreeMap<String, Sums> = BTreeMap::new();
        for case in cases::cases(&list.trace, quick) {
            let case = Case { claims, ..case };
            let began = Instant::now();
            let seeds = u64::from(from)..u64::from(to);
            let played = two_at_a_time(seeds, |seed| case.play(&list.trace, seed));
            let sums = cases::sums(&case, &played);
            say(&format!(
                "{}  ({:.0} s)",
                sums.line(&case.name),
                began.elapsed().as_secs_f64()
            ));
            if let Some(told) = &sums.foreseen {
                say(&told.line("  expected starts"));
            }
            rows.insert(case.name, sums);
        }
        let name = format!("{}, blocks {from}-{}", list.name, to - 1);
        goals.extend(cases::goals(&name, list.is_shared(), &rows));
        let rows = rows
            .iter()
            .map(|(name, sums)| (name.clone(), figures(sums)));
        let rows: serde_json::Map<String, Value> = rows.collect();
        measured.push(json!({ "list": list.name, "from": from, "to": to - 1, "rows": rows }));
    }
}

fn figures(sums: &Sums) -> Value {
    json!({
        "wait_min": sums.wait_min,
        "wait_p95_min": sums.wait_p95_min,
        "completion_h": sums.jct_h,
        "use": sums.usage / 100.0,
        "suspensions": sums.suspensions,
        "moves": sums.moves,
        "stall": sums.stall / 100.0,
        "away_max_h": sums.away_h,
        "jain": sums.jain,
        "kept_idle": sums.kept / 100.0,
        "whole_max_h": sums.whole_h,
        "in_time": sums.in_time / 100.0,
        "late_p99_min": sums.late_p99_min,
        "short_loss_p95_min": sums.short_loss_p95_min,
        "unfinished": sums.unfinished,
    })
}

/// Plays tricks to get more than one's share, each compared with the honest request.
fn play_ways(lists: &[List], args: &BenchArgs, measured: &mut Vec<Value>, goals: &mut Vec<Goal>) {
    let claims = if args.quick { 150 } else { 600 };
    let seeds = if args.quick { 2 } else { SEEDS_OF_WAYS };
    for list in lists {
        say(&format!(
            "\n{}: a task of three hours on one GPU, asked for by the user who has most in the middle of {claims} claims at load\n\
             1.1, {seeds} blocks",
            list.name
        ));
        let trace = list.without_whole();
        let setup = Setup::default();
        let played = two_at_a_time(0..seeds, |seed| {
            gaming::play_ways(&trace, &setup, claims, seed)
        });
        let over = |way: usize, of: fn(&gaming::Gain) -> f64| {
            mean(&played.iter().map(|p| of(&p[way])).collect::<Vec<f64>>())
        };
        let honest = (over(0, |g| g.task_h), over(0, |g| g.others_min));
        let mut rows = Vec::new();
        for (i, (way, _)) in gaming::WAYS.iter().enumerate() {
            let (task_h, others_min) = (over(i, |g| g.task_h), over(i, |g| g.others_min));
            say(&format!(
                "{way:<42} done in {task_h:>6.2} h, others wait {others_min:>6.1} min"
            ));
            rows.push(json!({ "way": way, "task_h": task_h, "others_min": others_min }));
            if i > 0 {
                let gain = (honest.0 / task_h - 1.0) * 100.0;
                let name = format!("{}: {way}: gain, %", list.name);
                goals.push(Goal::most(name, gain, 5.0));
                let most = (honest.1 * 1.25).max(honest.1 + 1.0);
                let name = format!("{}: {way}: mean wait of others, min", list.name);
                goals.push(Goal::most(name, others_min, most));
            }
        }
        measured.push(json!({ "list": list.name, "gaming": rows }));
    }
}

/// Processor time of this thread in nanoseconds, not affected by other load.
fn cpu_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |t| {
        let ns = Duration::from(t).as_nanos();
        u64::try_from(ns).unwrap_or(u64::MAX)
    })
}
