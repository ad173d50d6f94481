//! `bench history`: five simulated weeks with eight users on four GPUs, through the service's own code of the history
//! (looks once a second of virtual time), and then the report against what was made up, the size of the file and the
//! time of the questions that the screen and the report ask.

mod weeks;

use std::time::Instant;

use anyhow::Context;
use gshare_proto::history::{HistoryBy, HistorySpec, ReportSpec, ReportView};
use serde_json::{Value, json};

use super::say;
use crate::command::args::BenchArgs;
use crate::daemon::history::Names;
use crate::daemon::history::answer::Place;
use crate::daemon::history::store::Store;
use crate::daemon::history::sum::{Collector, Step};
use weeks::{GPUS, Truth, Weeks};

/// Most points of percent between the report and the truth.
const GOAL_POINTS: f64 = 1.0;
const GOAL_BYTES: u64 = 200 << 20;
const GOAL_MS: f64 = 200.0;
const DAY: u64 = 86_400;

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let days = if args.quick { 3 } else { 35 };
    let seed = 20_261_120;
    say(&format!(
        "{days} simulated days, 8 users, {GPUS} GPUs, a look a second, seed {seed}; virtual time, the real file"
    ));
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("history.db");
    let mut store = Store::open(&path, 2 * GOAL_BYTES).context("cannot open the history")?;
    let began = Instant::now();
    let (weeks, end) = play(&mut store, days, seed)?;
    let played = began.elapsed();
    let place = Place {
        gpus: (0..GPUS).map(weeks::uuid).collect(),
        now_ms: end * 1000,
    };
    let names = Names::new();
    let from_ms = weeks.begin * 1000;
    let spec = ReportSpec {
        from_ms,
        ..ReportSpec::default()
    };
    let report = store
        .report(&spec, &place, &names)
        .map_err(|e| anyhow::anyhow!(e.message))?;
    let (worst, rows) = compare(&report, &weeks.truth(end));
    let times = questions(&store, &place, &names, from_ms)?;
    let slowest = times.iter().map(|(_, ms)| *ms).fold(0.0, f64::max);
    let bytes = size(&path);
    say(&format!(
        "  largest difference of an average {worst:.3} points (goal {GOAL_POINTS}); file {:.1} MiB (goal {}); slowest question {slowest:.1} ms (goal {GOAL_MS})",
        bytes as f64 / f64::from(1 << 20),
        GOAL_BYTES >> 20
    ));
    let ok = worst <= GOAL_POINTS && bytes < GOAL_BYTES && slowest < GOAL_MS;
    let line = json!({
        "bench": "history",
        "device": "none: made-up use",
        "days": days,
        "seed": seed,
        "users": rows,
        "largest_difference_points": worst,
        "goal_points": GOAL_POINTS,
        "file_bytes": bytes,
        "goal_bytes": GOAL_BYTES,
        "questions_ms": times.iter().map(|(name, ms)| json!({ "question": name, "ms": ms })).collect::<Vec<_>>(),
        "goal_ms": GOAL_MS,
        "played_s": played.as_secs_f64(),
        "ok": ok,
    });
    Ok(line)
}

/// Plays the weeks into the file; their truth, and the moment at which they end in Unix seconds.
fn play(store: &mut Store, days: u64, seed: u64) -> anyhow::Result<(Weeks, u64)> {
    let weeks = Weeks::new(seed, days);
    let end = weeks.begin + days * DAY;
    let mut collector = Collector::default();
    let mut steps: Vec<Step> = Vec::new();
    let mut now = weeks.begin;
    let mut cast = weeks.cast();
    while now <= end {
        // A look is at what holds in the second that ends with it, wherever in the second things changed.
        let facts = cast.facts(now);
        for mut step in collector.look(now * 1000, 5_000, &facts) {
            for (key, sum) in &mut step.rows {
                if let Some(cause) = weeks.cause(key, step.at) {
                    sum.because(cause);
                }
            }
            steps.push(step);
        }
        if steps.len() >= 360 {
            store.add_all(&steps)?;
            steps.clear();
        }
        now += 1;
    }
    steps.extend(collector.take());
    store.add_all(&steps)?;
    Ok((weeks, end))
}

/// The largest difference of an average in points, and a row per user.
fn compare(report: &ReportView, truth: &[Truth]) -> (f64, Vec<Value>) {
    say(
        "  user   claimed h (truth)      avg use % (truth)    idle h: off / kernel / CPU / IO (truth)",
    );
    let (mut worst, mut rows) = (0.0_f64, Vec::new());
    for truth in truth {
        let found = report.users.iter().find(|u| u.uid == truth.uid);
        let usage = found.map(|u| u.usage).unwrap_or_default();
        let average = usage.average_use();
        let differs = match (average, truth.average()) {
            (Some(a), Some(b)) => (a - b).abs(),
            (None, None) => 0.0,
            // One knows what the other does not.
            _ => 100.0,
        };
        // Shares of the claimed time, so that all are points of percent.
        let part = |h: f64| 100.0 * h / truth.claimed.max(1e-9);
        let idle = [
            usage.idle.off_hours,
            usage.idle.kernel,
            usage.idle.cpu,
            usage.idle.io,
        ];
        let by_cause = idle
            .iter()
            .zip(truth.idle)
            .map(|(a, b)| (part(*a) - part(b)).abs());
        let claimed = (part(usage.claimed_gpu_s) - 100.0).abs();
        let waited = (part(usage.waited_gpu_s) - part(truth.waited)).abs();
        let borrowed = (part(usage.borrowed_gpu_s) - part(truth.borrowed)).abs();
        let all = by_cause
            .chain([differs, claimed, waited, borrowed])
            .fold(0.0, f64::max);
        worst = worst.max(all);
        let hours = |s: f64| s / 3600.0;
        let shown = |p: Option<f64>| p.map_or_else(|| "\u{2014}".to_owned(), |p| format!("{p:.2}"));
        say(&format!(
            "  {:>5}  {:>9.1} ({:>9.1})  {:>9} ({:>6})    {} ({})",
            truth.uid,
            hours(usage.claimed_gpu_s),
            hours(truth.claimed),
            shown(average),
            shown(truth.average()),
            idle.map(|s| format!("{:.1}", hours(s))).join(" / "),
            truth.idle.map(|s| format!("{:.1}", hours(s))).join(" / "),
        ));
        rows.push(json!({
            "uid": truth.uid,
            "average_percent": average,
            "truth_percent": truth.average(),
            "largest_difference_points": all,
        }));
    }
    (worst, rows)
}

/// Median milliseconds of the questions of the screen and of the report.
fn questions(
    store: &Store,
    place: &Place,
    names: &Names,
    from_ms: u64,
) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let back = |s: u64| place.now_ms.saturating_sub(s * 1000);
    let mut times = Vec::new();
    for (name, from) in [
        ("screen, hour", back(3600)),
        ("screen, day", back(DAY)),
        ("screen, week", back(7 * DAY)),
        ("screen, all", from_ms),
    ] {
        let spec = HistorySpec {
            from_ms: from.max(from_ms),
            by: HistoryBy::User,
            ..HistorySpec::default()
        };
        times.push((
            name,
            median(|| store.history(&spec, place, names).map(|_| ()))?,
        ));
    }
    let spec = ReportSpec {
        from_ms,
        ..ReportSpec::default()
    };
    times.push((
        "report, all",
        median(|| store.report(&spec, place, names).map(|_| ()))?,
    ));
    for (name, ms) in &times {
        say(&format!("  {name:<14} {ms:>7.1} ms"));
    }
    Ok(times)
}

fn median(question: impl Fn() -> Result<(), gshare_proto::WireError>) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..9 {
        let began = Instant::now();
        question().map_err(|e| anyhow::anyhow!(e.message))?;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Bytes of the file and what lies beside it.
fn size(path: &std::path::Path) -> u64 {
    ["", "-wal"]
        .iter()
        .filter_map(|end| {
            let mut name = path.as_os_str().to_owned();
            name.push(end);
            std::fs::metadata(name).ok()
        })
        .map(|m| m.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_day_and_a_half_is_reported_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(&dir.path().join("h.db"), GOAL_BYTES).unwrap();
        let (weeks, end) = play(&mut store, 1, 7).unwrap();
        let place = Place {
            gpus: (0..GPUS).map(weeks::uuid).collect(),
            now_ms: end * 1000,
        };
        let spec = ReportSpec {
            from_ms: weeks.begin * 1000,
            ..ReportSpec::default()
        };
        let report = store.report(&spec, &place, &Names::new()).unwrap();
        let (worst, rows) = compare(&report, &weeks.truth(end));
        assert_eq!(rows.len(), 8);
        assert!(worst <= GOAL_POINTS, "{worst} points");
        // A truth that is another one is told apart.
        let other = Weeks::new(8, 1).truth(end);
        assert!(compare(&report, &other).0 > GOAL_POINTS);
    }
}
