//! `bench attribution`: errors of the claims' SM activity and occupancy against the truth of a simulation. The
//! simulation has blocks in waves and tails, limited memory bandwidth, shared caches, and time slices that take time to
//! change. All parameters are drawn from seeds that are printed. It shares no code with the estimate.

mod mix;
mod program;

use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use gshare_sim_board::{ImaginedBoard, Model, Preset};
use serde_json::{Value, json};

use self::mix::{Error, Sharing};
use super::stats::Times;
use super::{dice, say, takes};
use crate::command::args::BenchArgs;

/// GPU models: two without counters of their own, two with.
const MODELS: [&str; 4] = ["rtx4090", "a100-80gb", "h100", "h200"];
/// Maximum number of claims in a mix.
const CLAIMS: usize = 6;
/// Goals for the error of a mean over ten seconds, in percentage points: SM activity, occupancy.
const GOALS: [f64; 2] = [3.0, 5.0];

/// Maximum fraction of claims above a goal in some window.
const OVER_MOST: f64 = 0.01;

/// Mean processor time of a window of a mix in a release build, in seconds.
const WINDOW_SECONDS: f64 = 0.75;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Default first seed if the commit is unknown.
const FIRST_SEED: u64 = 1000;

/// First seed, derived from the commit of the sources, so that nobody can tune to the mixes beforehand. `None` if git
/// does not know the commit, or the sources differ from it.
fn seed_of_commit() -> Option<u64> {
    let git = |words: &[&str]| {
        let output = std::process::Command::new("git")
            .arg("-C")
            .arg(env!("CARGO_MANIFEST_DIR"))
            .args(words)
            .output()
            .ok()?;
        output.status.success().then_some(output.stdout)
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let hash = String::from_utf8(git(&["rev-parse", "HEAD"])?).ok()?;
    let start = u64::from_str_radix(hash.get(..8)?, 16).ok()?;
    changed.is_empty().then_some(start)
}

/// Results for one model and one way of sharing.
struct Row {
    model: &'static Model,
    sharing: Sharing,
    errors: Vec<Error>,
    /// The worst mix: error, claims, seed.
    worst: (f64, usize, u64),
    /// Number of mixes, and of mixes with a claim above a goal in some window.
    mixes: usize,
    over: Vec<u64>,
    /// Number of claims in all mixes, and of claims above a goal in some window.
    claims: usize,
    claims_over: usize,
}

impl Error {
    fn is_over(&self) -> bool {
        [self.alone, self.device]
            .iter()
            .any(|e| e[0] > GOALS[0] || e[1] > GOALS[1])
    }
}

/// Number of claims in the mix of a seed; all numbers are equally frequent.
fn claims_of(seed: u64) -> usize {
    (seed + 2) as usize % CLAIMS + 1
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let runs = args.runs.unwrap_or(if args.quick { 1 } else { 4 });
    anyhow::ensure!(runs > 0, "--runs 0 measures nothing");
    let commit = seed_of_commit().filter(|_| args.seeds.is_none() && !args.quick);
    let first = commit.unwrap_or(FIRST_SEED);
    let last = first + u64::from(runs) * CLAIMS as u64 - 1;
    let (from, to) = args.seeds.unwrap_or((first, last));
    let name = args.preset.as_deref().unwrap_or("real");
    let preset = Preset::by_name(name).context("there is no such preset")?;
    let windows = if args.quick { 1 } else { 3 };
    let wanted = |slug: &str, sharing: Sharing| {
        let name = format!("{slug} {}", sharing.name());
        args.only.as_ref().is_none_or(|text| name.contains(text))
    };
    let ways = [Sharing::Turns, Sharing::Mps, Sharing::Overlapping];
    let all = MODELS.iter().flat_map(|slug| ways.map(|way| (*slug, way)));
    let chosen: Vec<_> = all.filter(|(slug, way)| wanted(slug, *way)).collect();
    anyhow::ensure!(
        !chosen.is_empty(),
        "--only {}: there are the models {} and the ways {}",
        args.only.as_deref().unwrap_or_default(),
        MODELS.join(", "),
        ways.map(Sharing::name).join("; ")
    );
    say(&format!(
        "simulation, no GPU: per model and way of sharing {} mixes of 1 to {CLAIMS} claims, {windows} windows of 10 s of virtual time; {};\n\
         long and short kernels, small and large grids, memory-bound ones, bursts, graphs, two streams; seeds {from} to {to}{}; the driver costs what `{name}` says",
        to - from + 1,
        takes(
            WINDOW_SECONDS * (chosen.len() as u64 * (to - from + 1) * windows) as f64
                / cores() as f64
        ),
        if commit.is_some() {
            ", from the hash of the commit"
        } else {
            ""
        }
    ));
    say("error of a claim's mean over 10 s, in points of a percent: nine in ten below, largest");
    say(&format!(
        "{:<14} {:<20} {:>15} {:>15} {:>15} {:>15} {:>15}  mixes over  worst mix",
        "model", "by", "SM", "SM with GPM", "occupancy", "occ. with GPM", "naive SM"
    ));
    let mut rows = Vec::new();
    for (slug, sharing) in chosen {
        let row = measure(slug, sharing, from..=to, windows, preset)?;
        print_row(&row);
        rows.push(row);
    }
    let largest = |of: fn(&Error) -> f64| {
        let judged = rows
            .iter()
            .filter(|row| row.sharing != Sharing::Overlapping);
        let all = judged.flat_map(|row| row.errors.iter().map(of));
        all.fold(0.0, f64::max)
    };
    let measured = [
        largest(|e| e.alone[0]),
        largest(|e| e.device[0]),
        largest(|e| e.alone[1]),
        largest(|e| e.device[1]),
    ];
    say(
        "shares of MPS that overlap are not judged: who had to wait for SMs is not seen there, only that all together have one GPU",
    );
    let naive = largest(|e| e.naive);
    let [sm, sm_device, occupancy, occupancy_device] = measured;
    let judged = rows
        .iter()
        .filter(|row| row.sharing != Sharing::Overlapping);
    let (mixes, over) = judged.fold((0, 0), |(mixes, over), row| {
        (mixes + row.mixes, over + row.over.len())
    });
    let judged = rows
        .iter()
        .filter(|row| row.sharing != Sharing::Overlapping);
    let (claims, claims_over) = judged.fold((0, 0), |(claims, over), row| {
        (claims + row.claims, over + row.claims_over)
    });
    let part = claims_over as f64 / claims.max(1) as f64;
    let ok = part <= OVER_MOST && naive > GOALS[0];
    say(&format!(
        "{over} of {mixes} mixes that are judged have a claim over a goal in some window; {claims_over} of {claims} claims are ({:.2} %)",
        part * 100.0
    ));
    Ok(json!({
        "bench": "attribution",
        "simulation": true,
        "seeds": [from, to],
        "only": args.only,
        "mixes": mixes,
        "mixes_over": over,
        "claims": claims,
        "claims_over": claims_over,
        "preset": name,
        "seeds_of_commit": commit.is_some(),
        "not_judged": "MPS with shares that overlap",
        "windows": rows.iter().map(|row| row.errors.len()).sum::<usize>(),
        "measured": { "sm_points": sm, "sm_points_with_device": sm_device,
            "occupancy_points": occupancy, "occupancy_points_with_device": occupancy_device },
        "baseline": { "naive_sm_points": naive },
        "goals": { "sm_points": GOALS[0], "occupancy_points": GOALS[1], "claims_over": OVER_MOST, "naive_fails": true },
        "judged": commit.is_some() && args.only.is_none(),
        "ok": ok,
    }))
}

fn measure(
    slug: &'static str,
    sharing: Sharing,
    seeds: std::ops::RangeInclusive<u64>,
    windows: u64,
    preset: Preset,
) -> anyhow::Result<Row> {
    let mut row = Row {
        model: ImaginedBoard::new(slug, 0, Preset::KIND)?.model(),
        sharing,
        errors: Vec::new(),
        worst: (0.0, 0, 0),
        mixes: 0,
        over: Vec::new(),
        claims: 0,
        claims_over: 0,
    };
    let next = Mutex::new(seeds.clone());
    let mixes = std::thread::scope(|scope| {
        let work = || {
            let mut mixes = Vec::new();
            let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(seed) = take() {
                let errors = mix::run(slug, sharing, claims_of(seed), seed, windows, preset)?;
                mixes.push((seed, errors));
            }
            anyhow::Ok(mixes)
        };
        let workers: Vec<_> = (0..cores()).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| {
            let mixes = worker.join();
            mixes.unwrap_or_else(|_| Err(anyhow::anyhow!("a mix panicked")))
        });
        joined.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let mut mixes: Vec<_> = mixes.into_iter().flatten().collect();
    mixes.sort_unstable_by_key(|(seed, _)| *seed);
    for (seed, errors) in mixes {
        let many = claims_of(seed);
        let worst = errors.iter().map(|e| e.alone[0].max(e.device[0]));
        let worst = worst.fold(0.0, f64::max);
        if worst >= row.worst.0 {
            row.worst = (worst, many, seed);
        }
        row.mixes += 1;
        row.claims += many;
        let over = |claim: &usize| errors.iter().any(|e| e.claim == *claim && e.is_over());
        row.claims_over += (0..many).filter(over).count();
        if errors.iter().any(Error::is_over) {
            row.over.push(seed);
        }
        row.errors.extend(errors);
    }
    Ok(row)
}

fn print_row(row: &Row) {
    let both = |of: fn(&Error) -> f64| {
        let times = Times::new(row.errors.iter().map(of).collect());
        let at = |q| times.quantile(q).unwrap_or(f64::NAN);
        format!("{:>7.1} {:>7.1}", at(0.9), at(1.0))
    };
    let (error, many, seed) = row.worst;
    say(&format!(
        "{:<14} {:<20} {} {} {} {} {}  {:>3} of {:<3}  {many} claims, seed {seed}: {error:.1}",
        crate::figures::short_name(row.model.name),
        row.sharing.name(),
        both(|e| e.alone[0]),
        both(|e| e.device[0]),
        both(|e| e.alone[1]),
        both(|e| e.device[1]),
        both(|e| e.naive),
        row.over.len(),
        row.mixes,
    ));
    if !row.over.is_empty() {
        let seeds: Vec<String> = row.over.iter().map(u64::to_string).collect();
        say(&format!(
            "{:<35} over a goal: seeds {}",
            "",
            seeds.join(", ")
        ));
    }
}
