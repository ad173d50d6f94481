//! `bench claim`: what `gshare claim -g 0.1 -- true` costs above `true`, cold (runs 300 ms apart, so that
//! the kernel's cgroup locks have gone to sleep) and back to back.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use super::say;
use super::stats::Times;
use crate::cli::args::BenchArgs;
use crate::station::{Options, Station};

/// Goals in milliseconds: median and 99th percentile.
const COLD: (f64, f64) = (15.0, 40.0);
const WARM: (f64, f64) = (10.0, 25.0);
const GAP: Duration = Duration::from_millis(300);

/// What one series measured, in milliseconds.
struct Series {
    above: Times,
    claim: Times,
    bare: Times,
    phases: Vec<(String, Times)>,
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<i32> {
    let runs = args.runs.unwrap_or(if args.quick { 20 } else { 200 });
    anyhow::ensure!(runs > 0, "--runs 0 measures nothing");
    let station = Station::start(&Options::new(
        std::env::current_exe().context("cannot find the program itself")?,
    ))?;
    let snapshot = station.snapshot()?;
    let service = snapshot.service.unwrap_or_default();
    say(&format!(
        "gshare claim -g 0.1 -- true, {runs} runs; cgroups {}, device filter {}",
        on(service.cgroups),
        on(service.device_filter)
    ));
    // One of each first, so that the programs are in the page cache.
    measure(&station, 3, Duration::ZERO)?;
    say(&format!(
        "cold: {} ms between runs, about {:.0} s ...",
        GAP.as_millis(),
        f64::from(runs) * 0.32
    ));
    let cold = measure(&station, runs, GAP)?;
    let warm = measure(&station, runs, Duration::ZERO)?;
    print_series("cold", &cold);
    print_series("back to back", &warm);
    let judged = !args.quick;
    let ok = within(&cold, COLD) && within(&warm, WARM);
    let line = json!({
        "bench": "claim",
        "runs": runs,
        "cgroups": service.cgroups,
        "device_filter": service.device_filter,
        "measured": { "cold": figures(&cold), "back_to_back": figures(&warm) },
        "baseline": { "cold": bare(&cold), "back_to_back": bare(&warm) },
        "goals": {
            "cold": { "median_ms": COLD.0, "p99_ms": COLD.1 },
            "back_to_back": { "median_ms": WARM.0, "p99_ms": WARM.1 }
        },
        "judged": judged,
        "ok": ok,
    });
    say(&line.to_string());
    Ok(0)
}

fn on(yes: bool) -> &'static str {
    if yes { "on" } else { "off" }
}

fn measure(station: &Station, runs: u32, gap: Duration) -> anyhow::Result<Series> {
    let file = station.dir().join("phases");
    let (mut above, mut claims, mut bares) = (Vec::new(), Vec::new(), Vec::new());
    let mut phases: Vec<(String, Vec<f64>)> = Vec::new();
    for _ in 0..runs {
        std::thread::sleep(gap);
        let bare = timed(&mut Command::new("true"))?;
        std::thread::sleep(gap);
        let _ = std::fs::remove_file(&file);
        let mut command = station.command();
        command
            .args(["claim", "-q", "-g", "0.1", "--phases"])
            .arg(&file)
            .args(["--", "true"]);
        let spawned = gshare_abi::monotonic_ns();
        let claim = timed(&mut command)?;
        above.push(claim - bare);
        claims.push(claim);
        bares.push(bare);
        for (name, ms) in read_phases(&file, spawned)? {
            match phases.iter_mut().find(|(n, _)| *n == name) {
                Some((_, list)) => list.push(ms),
                None => phases.push((name, vec![ms])),
            }
        }
    }
    Ok(Series {
        above: Times::new(above),
        claim: Times::new(claims),
        bare: Times::new(bares),
        phases: phases
            .into_iter()
            .map(|(name, ms)| (name, Times::new(ms)))
            .collect(),
    })
}

/// Milliseconds from the start of a process to its end.
fn timed(command: &mut Command) -> anyhow::Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let status = command.status().context("cannot start a program")?;
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    anyhow::ensure!(status.success(), "a run failed: {status}");
    Ok(ms)
}

/// The phases of one run in milliseconds: spawn, arguments, socket, the service's own, answer, exec.
fn read_phases(file: &Path, spawned_ns: u64) -> anyhow::Result<Vec<(String, f64)>> {
    let text = std::fs::read_to_string(file).context("the claim wrote no phases")?;
    let seen: Value = serde_json::from_str(text.trim()).context("the phases are garbled")?;
    let at = |name: &str| {
        seen[name]
            .as_u64()
            .with_context(|| format!("the phases lack {name}"))
    };
    let span = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let (main, parsed, connected) = (at("main_ns")?, at("parsed_ns")?, at("connected_ns")?);
    let (granted, exec) = (at("granted_ns")?, at("exec_ns")?);
    let mut phases = vec![
        ("spawn".to_owned(), span(spawned_ns, main)),
        ("arguments".to_owned(), span(main, parsed)),
        ("socket".to_owned(), span(parsed, connected)),
    ];
    let mut served = 0.0;
    for pair in seen["service_us"].as_array().into_iter().flatten() {
        if let (Some(name), Some(us)) = (pair[0].as_str(), pair[1].as_u64()) {
            let ms = us as f64 / 1000.0;
            served += ms;
            phases.push((name.to_owned(), ms));
        }
    }
    phases.push((
        "rest of the answer".to_owned(),
        (span(connected, granted) - served).max(0.0),
    ));
    phases.push(("exec prepared".to_owned(), span(granted, exec)));
    Ok(phases)
}

fn print_series(name: &str, series: &Series) {
    let ms = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:8.3}"));
    say(&format!("\n{name:<22}   median ms    p99 ms"));
    let rows = [
        ("above true", &series.above),
        ("gshare claim", &series.claim),
        ("true", &series.bare),
    ];
    for (label, times) in rows {
        say(&format!(
            "  {label:<20}  {:>9}  {:>9}",
            ms(times.median()),
            ms(times.p99())
        ));
    }
    for (label, times) in &series.phases {
        say(&format!(
            "    {label:<18}  {:>9}  {:>9}",
            ms(times.median()),
            ms(times.p99())
        ));
    }
}

fn figures(series: &Series) -> Value {
    let phases: serde_json::Map<String, Value> = series
        .phases
        .iter()
        .map(|(name, t)| {
            (
                name.clone(),
                json!({ "median_ms": t.median(), "p99_ms": t.p99() }),
            )
        })
        .collect();
    json!({ "median_ms": series.above.median(), "p99_ms": series.above.p99(), "phases": phases })
}

fn bare(series: &Series) -> Value {
    json!({ "true_median_ms": series.bare.median(), "true_p99_ms": series.bare.p99() })
}

fn within(series: &Series, (median, p99): (f64, f64)) -> bool {
    series.above.median().is_some_and(|m| m <= median)
        && series.above.p99().is_some_and(|p| p <= p99)
}
