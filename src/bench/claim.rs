//! `bench claim`: cost of `gshare claim -g 0.1 -- true` above `true`, cold (runs 300 ms apart, so that the kernel's
//! cgroup locks have gone to sleep) and back to back, for both ways of enforcing limits.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use super::say;
use super::stats::Times;
use crate::command::args::BenchArgs;
use crate::station::{Options, Station};

/// Goals in milliseconds: median and 99th percentile.
const COLD: (f64, f64) = (15.0, 40.0);
const WARM: (f64, f64) = (10.0, 25.0);
/// Additional time for a strict launch: one more program, one more request, a mount namespace.
const STRICT_MS: f64 = 5.0;
const GAP: Duration = Duration::from_millis(300);

/// Measurements of one series, in milliseconds.
struct Series {
    above: Times,
    claim: Times,
    bare: Times,
    phases: Vec<(String, Times)>,
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let runs = args.runs.unwrap_or(if args.quick { 20 } else { 200 });
    anyhow::ensure!(runs > 0, "--runs 0 measures nothing");
    let program = std::env::current_exe().context("cannot find the program itself")?;
    let judged = !args.quick;
    let preload = both(&Options::new(program.clone()), runs)?;
    let ok = preload.within(0.0);
    let mut line = preload.json(runs);
    line["judged"] = json!(judged);
    let strict = nix::unistd::Uid::effective().is_root().then(|| {
        let options = Options {
            strict: true,
            ..Options::new(program)
        };
        both(&options, runs)
    });
    match strict.transpose()? {
        Some(strict) => {
            print_beside(&preload, &strict);
            line["ok"] = json!(ok && strict.within(STRICT_MS));
            line["strict"] = strict.json(runs);
        }
        None => {
            say("strict launches need root: not measured");
            line["ok"] = json!(ok);
            line["strict"] = Value::Null;
        }
    }
    Ok(line)
}

/// Measurements for one way of enforcing limits.
struct Measured {
    cgroups: bool,
    device_filter: bool,
    cold: Series,
    warm: Series,
    above_goal_ms: f64,
}

fn both(options: &Options, runs: u32) -> anyhow::Result<Measured> {
    let station = Station::start(options)?;
    let snapshot = station.snapshot()?;
    let service = snapshot.service.unwrap_or_default();
    say(&format!(
        "\ngshare claim -g 0.1 -- true, {runs} runs, {}; cgroups {}, device filter {}",
        if options.strict { "strict" } else { "preload" },
        on(service.cgroups),
        on(service.device_filter)
    ));
    anyhow::ensure!(
        !options.strict || snapshot.caps == gshare_proto::Caps::Strict,
        "the launcher cannot be used here: gshare doctor"
    );
    // Warm up, so that the programs are in the page cache.
    measure(&station, 3, Duration::ZERO)?;
    say(&format!(
        "cold: {} ms between runs, about {:.0} s ...",
        GAP.as_millis(),
        f64::from(runs) * 0.64
    ));
    let cold = measure(&station, runs, GAP)?;
    let warm = measure(&station, runs, Duration::ZERO)?;
    print_series("cold", &cold);
    print_series("back to back", &warm);
    Ok(Measured {
        cgroups: service.cgroups,
        device_filter: service.device_filter,
        cold,
        warm,
        above_goal_ms: if options.strict { STRICT_MS } else { 0.0 },
    })
}

impl Measured {
    fn within(&self, more: f64) -> bool {
        let raised = |(median, p99): (f64, f64)| (median + more, p99 + more);
        within(&self.cold, raised(COLD)) && within(&self.warm, raised(WARM))
    }

    fn json(&self, runs: u32) -> Value {
        let more = self.above_goal_ms;
        json!({
            "bench": "claim",
            "runs": runs,
            "cgroups": self.cgroups,
            "device_filter": self.device_filter,
            "measured": { "cold": figures(&self.cold), "back_to_back": figures(&self.warm) },
            "baseline": { "cold": bare(&self.cold), "back_to_back": bare(&self.warm) },
            "goals": {
                "cold": { "median_ms": COLD.0 + more, "p99_ms": COLD.1 + more },
                "back_to_back": { "median_ms": WARM.0 + more, "p99_ms": WARM.1 + more }
            },
        })
    }
}

/// Both ways side by side, in milliseconds above `true`.
fn print_beside(preload: &Measured, strict: &Measured) {
    say("\nabove true              preload ms   strict ms");
    let rows = [
        (
            "cold, median",
            preload.cold.above.median(),
            strict.cold.above.median(),
        ),
        (
            "cold, p99",
            preload.cold.above.p99(),
            strict.cold.above.p99(),
        ),
        (
            "back to back, median",
            preload.warm.above.median(),
            strict.warm.above.median(),
        ),
        (
            "back to back, p99",
            preload.warm.above.p99(),
            strict.warm.above.p99(),
        ),
    ];
    for (label, preload, strict) in rows {
        let ms = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:8.3}"));
        say(&format!(
            "  {label:<20}  {:>9}   {:>9}",
            ms(preload),
            ms(strict)
        ));
    }
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

/// Run time of a process in milliseconds.
fn timed(command: &mut Command) -> anyhow::Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let status = command.status().context("cannot start a program")?;
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    anyhow::ensure!(status.success(), "a run failed: {status}");
    Ok(ms)
}

/// Phases of one run in milliseconds: spawn, arguments, socket, service, answer, exec.
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
