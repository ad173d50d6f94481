//! `bench gate`: real processes in claims share one GPU, simulated or (`--device real`) the machine's first one. Every
//! mix runs with and without the proxy, several times in turn. Without it 10:90 must miss by more than 20 points, or the
//! run proves nothing.

mod account;
mod light;
mod real;
pub(in crate::bench) mod run;
pub(in crate::bench) mod worker;

use std::time::Duration;

use anyhow::Context;
use gshare_sim_board::{Board, Preset};
use serde_json::{Value, json};

use self::run::{How, Outcome, Part, Running, arbiter_ns};
use super::stats::Times;
use super::{say, takes};
use crate::command::args::BenchArgs;
use crate::station::{Options, Station};

pub(crate) use self::run::WORKER_ARGUMENT;
pub(crate) use self::worker::run as program;

/// Processor load above which goals are not judged: programs and simulation lack processor time then.
const CPU_MOST: f64 = 0.6;
const POINTS: f64 = 2.0;
/// One kernel too few in a window is just allowed: what is off by less than this is rounding, 20 us of 2 s.
const ROUNDED: f64 = 1e-3;
const TOTAL: f64 = 0.97;
const STALL_MS: f64 = 20.0;
const ARBITER: f64 = 0.01;
/// In seconds: time before a mix is watched, its length without the gate, and the time to start and end a program.
const SETTLE: u64 = 1;
const BARE: u64 = 1;
const START: f64 = 0.5;
/// Number of pairs of runs with gshare and without; of floods that are watched for long; and of floods, with processors
/// idle enough, for a verdict.
const PAIRS: usize = 7;
const LONG_PAIRS: usize = 5;
const PAIRS_LEAST: usize = 5;
/// A mix that is watched for this long, in seconds, also has its share over the whole time.
const LONG: u64 = 20;
/// Duration of the measurements after the mixes, in seconds.
const AT_THE_END: f64 = 14.0;
/// Points by which 10:90 must miss without the gate.
const UNGATED: f64 = 20.0;

struct Mix {
    name: &'static str,
    shares: &'static [u32],
    kind: &'static str,
    kernel: &'static str,
    /// Additional arguments of the program.
    more: &'static [&'static str],
    seconds: u64,
    quick: bool,
}

const fn mix(
    name: &'static str,
    shares: &'static [u32],
    kernel: &'static str,
    seconds: u64,
) -> Mix {
    Mix {
        name,
        shares,
        kind: "flood",
        kernel,
        more: &[],
        seconds,
        quick: false,
    }
}

impl Mix {
    /// Length of the measurement in seconds.
    fn watched(&self, gated: bool, quick: bool) -> u64 {
        match (gated, quick) {
            (true, true) => 3,
            (true, false) => self.seconds,
            // The run without the gate only needs the total.
            (false, _) => BARE,
        }
    }

    fn pairs(&self, quick: bool) -> usize {
        match quick {
            true => 1,
            false if self.seconds >= LONG => LONG_PAIRS,
            false => PAIRS,
        }
    }

    /// Duration of everything in seconds.
    fn takes(&self, quick: bool) -> f64 {
        let arm = |gated| (SETTLE + self.watched(gated, quick)) as f64 + START;
        let alone = if self.kind == "copy" { arm(false) } else { 0.0 };
        self.pairs(quick) as f64 * (arm(true) + arm(false) + alone)
    }

    /// One of its programs with the whole GPU.
    fn alone(&self) -> Mix {
        Mix {
            shares: &[1000],
            ..*self
        }
    }
}

const MIXES: &[Mix] = &[
    Mix {
        quick: true,
        ..mix("10:90, 1 ms", &[100, 900], "spin_1ms", 3)
    },
    mix("10:90, 10 us", &[100, 900], "spin_10us", 3),
    mix("10:90, 20 ms", &[100, 900], "spin_20ms", 4),
    mix("10:90, 200 ms", &[100, 900], "spin_200ms", 22),
    mix("30:70, 10 us", &[300, 700], "spin_10us", 3),
    mix("30:70, 1 ms", &[300, 700], "spin_1ms", 3),
    mix("30:70, 20 ms", &[300, 700], "spin_20ms", 4),
    mix("30:70, 200 ms", &[300, 700], "spin_200ms", 22),
    Mix {
        quick: true,
        ..mix("50:50, 1 ms", &[500, 500], "spin_1ms", 3)
    },
    mix("50:50, 20 ms", &[500, 500], "spin_20ms", 4),
    mix("20:30:50, 1 ms", &[200, 300, 500], "spin_1ms", 3),
    mix("0.2/0.5/0.3, 20 ms", &[200, 500, 300], "spin_20ms", 4),
    mix("8 x 12.5 %, 1 ms", &[125; 8], "spin_1ms", 3),
    Mix {
        kind: "graph",
        ..mix("30:70, graphs of 10 x 1 ms", &[300, 700], "spin_1ms", 3)
    },
    Mix {
        more: &["4"],
        ..mix("30:70, 4 streams of 1 ms", &[300, 700], "spin_1ms", 3)
    },
    Mix {
        kind: "copy",
        ..mix(
            "30:70, copies of 4 MiB and 1 ms",
            &[300, 700],
            "spin_1ms",
            3,
        )
    },
];

/// Environment of a run.
struct Place {
    station: Station,
    /// On a real GPU: loop iterations of the kernel per millisecond.
    rounds: Option<u64>,
}

impl Place {
    /// Sets the costs of the simulated driver.
    fn take_preset(&self, name: &str) -> anyhow::Result<()> {
        if self.rounds.is_some() {
            return Ok(());
        }
        let preset = Preset::by_name(name).context("there is no such preset")?;
        Board::open(&self.station.sim_dir().join("board"))?.set_preset(preset)?;
        Ok(())
    }
}

fn simulated() -> anyhow::Result<Place> {
    let station = Station::start(&Options {
        gpus: vec!["h100".to_owned(); 2],
        costs: worker::costs(),
        // Programs without a claim are the baseline; they must not reduce the room of claims.
        config: "[policy]\nunclaimed = \"observe\"\n".to_owned(),
        ..Options::new(std::env::current_exe().context("cannot find the program itself")?)
    })?;
    Ok(Place {
        station,
        rounds: None,
    })
}

/// Copy rate of the simulated GPU in bytes per second.
fn copy_rate() -> u64 {
    let model = gshare_sim_board::Model::by_slug("h100");
    model.map_or(0, |m| {
        gshare_sim_board::Route::HostToDevice.bytes_per_second(m)
    })
}

/// Sum over the floods.
struct Sum {
    lines: Vec<Value>,
    ok: bool,
    void: bool,
}

impl Default for Sum {
    fn default() -> Self {
        Self {
            lines: Vec::new(),
            ok: true,
            void: false,
        }
    }
}

/// Driver costs to measure with, at both ends of the range, so that nothing is tuned to the middle.
fn presets(args: &BenchArgs) -> Vec<&str> {
    match &args.preset {
        Some(one) => vec![one],
        None if args.device == "real" || args.quick => vec!["real"],
        None => vec!["real:low", "real:high"],
    }
}

/// Runs of a mix with and without the gate, one after the other.
struct Pair {
    gated: Outcome,
    bare: Outcome,
    /// Of a mix with copies: one of its programs with the whole GPU.
    alone: Option<Outcome>,
}

impl Pair {
    fn of_bare(&self) -> f64 {
        self.gated.done / self.bare.done.max(1e-9)
    }

    fn run(place: &Place, mix: &Mix, at: usize, quick: bool) -> anyhow::Result<Pair> {
        // The order alternates, so that drift affects both.
        let gated_first = at % 2 == 1;
        let first = one(place, mix, gated_first, quick)?;
        let second = one(place, mix, !gated_first, quick)?;
        let (gated, bare) = if gated_first {
            (first, second)
        } else {
            (second, first)
        };
        let alone = (mix.kind == "copy")
            .then(|| one(place, &mix.alone(), false, quick))
            .transpose()?;
        Ok(Pair { gated, bare, alone })
    }
}

/// Measures one mix of floods with and without the gate.
fn flood(place: &Place, mix: &Mix, preset: &str, quick: bool, sum: &mut Sum) -> anyhow::Result<()> {
    let mut pairs = (0..mix.pairs(quick))
        .map(|at| Pair::run(place, mix, at, quick))
        .collect::<anyhow::Result<Vec<Pair>>>()?;
    let is_idle = |pair: &&Pair| pair.gated.cpu < CPU_MOST;
    let judged = !quick && pairs.iter().filter(is_idle).count() >= PAIRS_LEAST;
    if judged {
        pairs.retain(|pair| is_idle(&pair));
    }
    if std::ptr::eq(mix, &raw const MIXES[0]) {
        let least = pairs.iter().map(|pair| miss(&pair.bare, mix));
        let void = least.fold(f64::INFINITY, f64::min) <= UNGATED;
        let missed = if void { "VOID" } else { "misses, as it has to" };
        let name = format!("{} (no gate)", mix.name);
        let bare: Vec<&Outcome> = pairs.iter().map(|pair| &pair.bare).collect();
        row(&name, mix, &bare, &Times::new(vec![1.0]), missed);
        sum.void |= void;
    }
    let gated: Vec<&Outcome> = pairs.iter().map(|pair| &pair.gated).collect();
    let of_bare = Times::new(pairs.iter().map(Pair::of_bare).collect());
    let done = of_bare.median().unwrap_or(0.0);
    let met = done >= TOTAL && gated.iter().all(|outcome| met(outcome, mix));
    row(mix.name, mix, &gated, &of_bare, verdict(met, judged, quick));
    sum.ok &= met || !judged;
    let each = |figure: fn(&Outcome) -> Value| -> Vec<Value> {
        gated.iter().map(|outcome| figure(outcome)).collect()
    };
    let mut line = json!({
        "mix": mix.name,
        "preset": preset,
        "asked": wanted(mix),
        "got": each(|o| json!(o.got)),
        "got_ungated": pairs.iter().map(|pair| &pair.bare.got).collect::<Vec<_>>(),
        "worst_window_points": each(|o| json!(o.worst_window)),
        "worst_stall_ms": each(|o| json!(o.worst_stall_ms)),
        "total": each(|o| json!(o.total)),
        "throughput_of_bare": { "median": done, "least": of_bare.quantile(0.0), "most": of_bare.quantile(1.0) },
        "cpu": each(|o| json!(o.cpu)),
        "arbiter": each(|o| json!(o.arbiter)),
        "judged": judged,
        "met": met,
    });
    if let Some(alone) = of_alone(&pairs) {
        line["alone"] = alone;
    }
    sum.lines.push(line);
    Ok(())
}

/// The claims' work and that of one of their programs with the whole GPU: the maximum with turns. Without the gate claims
/// can exceed it, because copies of one run while kernels of the other do.
fn of_alone(pairs: &[Pair]) -> Option<Value> {
    let median = |part: fn(&Pair, &Outcome) -> f64| {
        let with = |pair: &Pair| Some(part(pair, pair.alone.as_ref()?));
        Times::new(pairs.iter().filter_map(with).collect()).median()
    };
    let of_bare = median(|pair, alone| alone.done / pair.bare.done)?;
    let gated = median(|pair, alone| pair.gated.done / alone.done)?;
    say(&format!(
        "    one of its programs alone on the GPU does {:.1} % of bare; the claims in turns {:.1} % of that",
        of_bare * 100.0,
        gated * 100.0
    ));
    Some(json!({ "of_bare": of_bare, "gated_of_alone": gated }))
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let is_real = args.device == "real";
    let place = if is_real {
        real::place()?
    } else {
        simulated()?
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let chosen = args.only.as_deref();
    let mixes = MIXES
        .iter()
        .filter(|m| m.quick || !args.quick)
        .filter(|m| chosen.is_none_or(|text| m.name.contains(text)));
    if let Some(text) = chosen {
        anyhow::ensure!(
            mixes.clone().next().is_some() || light::has(text),
            "no mix has `{text}` in its name"
        );
    }
    let seconds: f64 = mixes.clone().map(|mix| mix.takes(args.quick)).sum();
    let seconds = seconds + light::takes(&place, args.quick, chosen);
    say(&format!(
        "claims share one {} GPU; {cores} cores; several pairs of runs with the gate and without: the worst, and the median \
         of bare; got and worst window in points of the GPU's time; {}",
        if is_real { "real" } else { "simulated" },
        takes(seconds * presets(args).len() as f64 + AT_THE_END)
    ));
    let mut sum = Sum::default();
    let mut light_rows = Vec::new();
    for preset in presets(args) {
        place.take_preset(preset)?;
        if !is_real {
            say(&format!("the simulated driver costs what `{preset}` says"));
        }
        let mixes = || mixes.clone();
        if mixes().next().is_some() {
            say(
                "  mix                              asked          got            worst 2 s  stall ms  of bare          cpu  arbiter  goals",
            );
        }
        for mix in mixes() {
            flood(&place, mix, preset, args.quick, &mut sum)?;
        }
        let light = light::run(&place, preset, args.quick, chosen)?;
        sum.ok &= light.ok;
        light_rows.extend(light.rows);
    }
    let Sum {
        lines,
        mut ok,
        void,
    } = sum;
    if let Some(text) = chosen {
        let line = json!({
            "bench": "gate", "only": text, "measured": lines, "light": light_rows, "judged": false, "ok": ok
        });
        return Ok(line);
    }
    let idle = uncontended(&place)?;
    let silent = silent(place)?;
    ok &= silent.1 && idle["arbiter_ns"] == 0;
    let idle_ok = idle["arbiter_ns"] == 0;
    let word = |ok: bool| if ok { "ok" } else { "MISSED" };
    say(&format!(
        "  goals besides: arbiter without contention 0 ns: {}; service killed, nobody above its request: {}",
        word(idle_ok),
        word(silent.1)
    ));
    if void {
        say("  void: without the gate 10:90 does not miss by more than 20 points");
    }
    let line = json!({
        "bench": "gate",
        "device": args.device,
        "cores": cores,
        "measured": lines,
        "light": light_rows,
        "uncontended": idle,
        "service_killed": silent.0,
        "goals": {
            "points": POINTS, "total_of_bare": TOTAL, "stall_ms_at_50_50_of_1_ms": STALL_MS,
            "arbiter": ARBITER, "arbiter_uncontended_ns": 0, "cpu_below": CPU_MOST, "ungated_misses_by": UNGATED
        },
        "void": void,
        "judged": !args.quick,
        "ok": ok && !void,
    });
    Ok(line)
}

fn wanted(mix: &Mix) -> Vec<f64> {
    mix.shares.iter().map(|s| f64::from(*s) / 1000.0).collect()
}

fn parts(mix: &Mix) -> Vec<Part> {
    let program: Vec<String> = [mix.kind, mix.kernel]
        .iter()
        .chain(mix.more)
        .map(|w| (*w).to_owned())
        .collect();
    let part = |share: &u32| Part {
        share: *share,
        program: program.clone(),
        out: None,
    };
    mix.shares.iter().map(part).collect()
}

impl Place {
    fn how(&self, gated: bool, kernel: &str) -> How {
        How {
            gated,
            rounds: self.rounds,
            kernel_ns: worker::kernel_ns(kernel).unwrap_or(0),
            rate: copy_rate(),
        }
    }
}

fn one(place: &Place, mix: &Mix, gated: bool, quick: bool) -> anyhow::Result<Outcome> {
    let running = Running::start(&place.station, &parts(mix), place.how(gated, mix.kernel))?;
    // Goals apply this long after the last start.
    std::thread::sleep(Duration::from_secs(SETTLE));
    let seconds = mix.watched(gated, quick);
    running.watch(&place.station, &wanted(mix), Duration::from_secs(seconds))
}

/// Points by which the first claim's part differs from its request.
fn miss(outcome: &Outcome, mix: &Mix) -> f64 {
    let got = outcome.got.first().copied().unwrap_or(0.0);
    (got - f64::from(mix.shares[0]) / 1000.0).abs() * 100.0
}

/// Whether a run of the claims meets the goals for their shares.
fn met(gated: &Outcome, mix: &Mix) -> bool {
    let ms = worker::kernel_ns(mix.kernel).unwrap_or(0) as f64 / 1e6;
    // Over 20 s one long kernel more or less is no excuse.
    let long_run = mix.seconds < LONG
        || wanted(mix)
            .iter()
            .zip(&gated.got)
            .all(|(wanted, got)| (wanted - got).abs() * 100.0 <= POINTS);
    let stall = mix.shares != [500, 500] || ms != 1.0 || gated.worst_stall_ms <= STALL_MS;
    gated.beyond <= ROUNDED && long_run && stall && gated.arbiter <= ARBITER
}

/// Verdict on the goals of a row.
fn verdict(met: bool, judged: bool, quick: bool) -> &'static str {
    match (met, judged, quick) {
        (_, _, true) => "not judged",
        (true, _, _) => "ok",
        (false, true, _) => "MISSED",
        (false, false, _) => "not judged: processors busy",
    }
}

fn percents(parts: impl IntoIterator<Item = f64>) -> String {
    let words: Vec<String> = parts
        .into_iter()
        .map(|p| format!("{:.1}", p * 100.0))
        .collect();
    if words.len() > 3 {
        let few: Vec<&str> = words.iter().take(2).map(String::as_str).collect();
        return format!("{}:..", few.join(":"));
    }
    words.join(":")
}

/// Prints the worst of all runs, and their median throughput with the least and the most.
fn row(name: &str, mix: &Mix, runs: &[&Outcome], of_bare: &Times, verdict: &str) {
    let asked = percents(wanted(mix));
    let most = |figure: fn(&Outcome) -> f64| runs.iter().map(|o| figure(o)).fold(0.0, f64::max);
    let window = most(|o| o.worst_window);
    let worst = runs.iter().find(|o| o.worst_window >= window);
    let got = percents(worst.map(|o| o.got.clone()).unwrap_or_default());
    let done = |q| of_bare.quantile(q).unwrap_or(0.0) * 100.0;
    say(&format!(
        "  {name:<32} {asked:<14} {got:<14} {window:>9.2} {:>9.1} {:>5.1} ({:.0}..{:.0}) % {:>3.0} % {:>5.2} %  {verdict}",
        most(|o| o.worst_stall_ms),
        done(0.5),
        done(0.0),
        done(1.0),
        most(|o| o.cpu) * 100.0,
        most(|o| o.arbiter) * 100.0
    ));
}

fn floods(shares: &[u32]) -> Vec<Part> {
    let program: Vec<String> = ["flood", "spin_1ms"].map(str::to_owned).to_vec();
    let part = |share: &u32| Part {
        share: *share,
        program: program.clone(),
        out: None,
    };
    shares.iter().map(part).collect()
}

/// Processor time of the arbiter while one claim works and another is idle.
fn uncontended(place: &Place) -> anyhow::Result<Value> {
    let mut parts = floods(&[500, 500]);
    // One launch in ten minutes.
    parts[1].program = ["requests", "spin_1ms", "1", "0", "1", "600000000"]
        .map(str::to_owned)
        .to_vec();
    let running = Running::start(&place.station, &parts, place.how(true, "spin_1ms"))?;
    std::thread::sleep(Duration::from_secs(1));
    let before = arbiter_ns(&place.station);
    let outcome = running.watch(&place.station, &[1.0, 0.0], Duration::from_secs(3))?;
    let arbiter = arbiter_ns(&place.station).saturating_sub(before);
    say(&format!(
        "  one claim works, another holds its half: arbiter {arbiter} ns in 3 s, GPU in use {:.1} %",
        outcome.total * 100.0
    ));
    Ok(json!({ "arbiter_ns": arbiter, "total": outcome.total, "cpu": outcome.cpu }))
}

/// The service dies under a mix of 20:30, and under claims of which one works. From five periods on no claim may use
/// more than its request.
fn silent(mut place: Place) -> anyhow::Result<(Value, bool)> {
    let mut values = Vec::new();
    let mut all_within = true;
    for (name, idle) in [
        ("requests of 20 and 30 %", false),
        ("one of 20 % at work", true),
    ] {
        let mut parts = floods(&[200, 300]);
        if idle {
            parts[1].program = ["requests", "spin_1ms", "1", "0", "1", "600000000"]
                .map(str::to_owned)
                .to_vec();
        }
        let how = place.how(true, "spin_1ms");
        let running = Running::start(&place.station, &parts, how)?;
        std::thread::sleep(Duration::from_millis(700));
        place
            .station
            .stop_service(nix::sys::signal::Signal::SIGKILL)?;
        std::thread::sleep(Duration::from_nanos(gshare_gate::SILENCE_NS));
        let outcome = running.watch(&place.station, &[0.4, 0.6], Duration::from_secs(3))?;
        let used: Vec<f64> = outcome.got.iter().map(|g| g * outcome.total).collect();
        let part = |used: f64, most: f64| used < most + 0.03 && used > most / 2.0;
        let within = part(used[0], 0.2) && (idle || part(used[1], 0.3));
        all_within &= within;
        say(&format!(
            "  service killed, {name}: {:.1} and {:.1} % of the GPU's time from 5 periods on",
            used[0] * 100.0,
            used[1] * 100.0
        ));
        values.push(json!({
            "requests": [0.2, 0.3], "idle": idle, "used": used, "within": within, "cpu": outcome.cpu
        }));
        drop(running);
        place.station.start_service()?;
    }
    Ok((Value::Array(values), all_within))
}
