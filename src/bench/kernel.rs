//! `bench kernel`: time that `gshare kernel exec` adds to a notebook kernel, from the start of the process to its end,
//! with a kernel that does nothing.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};

use super::say;
use super::stats::Times;
use crate::command::args::BenchArgs;
use crate::station::{Options, Station};

/// Goal for the median of the added time, in milliseconds.
const GOAL_MS: f64 = 20.0;

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let runs = args.runs.unwrap_or(if args.quick { 20 } else { 200 });
    anyhow::ensure!(runs > 0, "--runs 0 measures nothing");
    let program = std::env::current_exe().context("cannot find the program itself")?;
    let station = Station::start(&Options::new(program))?;
    let (mut above, mut wrapped, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs + 3 {
        let file = station.dir().join(format!("kernel-{run}.json"));
        let alone = timed(Command::new("true").arg(&file))?;
        let mut command = station.command();
        command
            .args(["kernel", "exec", "-g", "0.25", "--", "true"])
            .arg(&file);
        let with = timed(&mut command)?;
        // The first runs load the programs from disk.
        if run >= 3 {
            above.push(with - alone);
            wrapped.push(with);
            bare.push(alone);
        }
    }
    let [above, wrapped, bare] = [above, wrapped, bare].map(Times::new);
    let ms = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
    let ratio = wrapped.median().zip(bare.median()).map(|(w, b)| w / b);
    say(&format!(
        "\nkernel exec, {runs} runs      median ms    p99 ms"
    ));
    for (label, times) in [
        ("added", &above),
        ("with gshare", &wrapped),
        ("without", &bare),
    ] {
        say(&format!(
            "  {label:<20}  {:>9}  {:>9}",
            ms(times.median()),
            ms(times.p99())
        ));
    }
    say(&format!("  with / without        {:>9}", ms(ratio)));
    let ok = above.median().is_some_and(|m| m <= GOAL_MS);
    let line = json!({
        "bench": "kernel",
        "runs": runs,
        "measured": { "added_ms": { "median": above.median(), "p99": above.p99() },
            "with_ms": wrapped.median(), "ratio": ratio },
        "baseline": { "without_ms": bare.median() },
        "goals": { "added_median_ms": GOAL_MS },
        "judged": !args.quick,
        "ok": ok,
    });
    Ok(line)
}

/// Run time of a process in milliseconds.
fn timed(command: &mut Command) -> anyhow::Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let status = command.status().context("cannot start a program")?;
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    anyhow::ensure!(status.success(), "a run failed: {status}");
    Ok(ms)
}
