//! `bench llm_and_vision`: a steady client and a bursty one share a simulated GPU half and half. How long
//! their requests take alone, with the other idle, with both busy, and with both busy but no gate.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::gate::run::{How, Part, Running};
use super::gate::worker;
use super::say;
use super::stats::Times;
use crate::command::args::BenchArgs;
use crate::station::{Options, Station};

/// Steady: a request of four kernels of 1 ms, then 6 ms of pause: 40 % of the GPU.
const LLM: &str = "requests spin_1ms 4 6000 1 0";
/// Bursts: 40 requests of 20 kernels of 1 ms without pause, then half a second of rest.
const VISION: &str = "requests spin_1ms 20 0 40 500000";
/// The bursty client when it only holds its claim: one short request in ten minutes.
const IDLE: &str = "requests spin_1ms 1 0 1 600000000";

/// The clients of a scene: name and program; not measured where the program is the idle one.
type Scene = (&'static str, &'static [(&'static str, &'static str)], bool);

const SCENES: &[Scene] = &[
    ("llm alone", &[("llm", LLM)], true),
    ("vision alone", &[("vision", VISION)], true),
    ("llm, vision idle", &[("llm", LLM), ("vision", IDLE)], true),
    (
        "vision, llm idle",
        &[("llm", IDLE), ("vision", VISION)],
        true,
    ),
    ("both busy", &[("llm", LLM), ("vision", VISION)], true),
    (
        "both busy, no gate",
        &[("llm", LLM), ("vision", VISION)],
        false,
    ),
];

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let station = Station::start(&Options {
        gpus: vec!["h100".to_owned()],
        costs: worker::costs(),
        ..Options::new(std::env::current_exe().context("cannot find the program itself")?)
    })?;
    let length = Duration::from_secs(if args.quick { 2 } else { 10 });
    say(
        "a steady and a bursty client with half of a simulated GPU each; milliseconds of a request",
    );
    say("  scene                 client    median      p99    worst   part of the GPU   cpu");
    let mut lines = Vec::new();
    for (name, clients, gated) in SCENES {
        for line in scene(&station, name, clients, *gated, length)? {
            lines.push(line);
        }
    }
    let p99 = |scene: &str, client: &str| {
        let row = lines
            .iter()
            .find(|l| l["scene"] == scene && l["client"] == client);
        row.and_then(|l| l["p99_ms"].as_f64())
    };
    // An idle neighbour costs nothing; a busy one costs its half, not more.
    let flows = p99("llm, vision idle", "llm")
        .zip(p99("llm alone", "llm"))
        .is_some_and(|(with, alone)| with <= alone * 1.5 + 2.0);
    let keeps = p99("both busy", "llm")
        .zip(p99("llm alone", "llm"))
        .is_some_and(|(with, alone)| with <= alone + 40.0);
    let word = |ok: bool| match (ok, args.quick) {
        (_, true) => "not judged",
        (true, _) => "ok",
        (false, _) => "MISSED",
    };
    say(&format!(
        "  goals: an idle neighbour's share flows (p99 within 1.5 x alone + 2 ms): {}; a busy one takes its half and no more \
         (p99 within alone + 40 ms): {}",
        word(flows),
        word(keeps)
    ));
    let line = json!({
        "bench": "llm_and_vision",
        "device": "sim",
        "measured": lines,
        "goals": { "idle_neighbour_p99": "1.5 x alone + 2 ms", "busy_neighbour_p99": "alone + 40 ms" },
        "judged": !args.quick,
        "ok": flows && keeps,
    });
    Ok(line)
}

fn scene(
    station: &Station,
    name: &str,
    clients: &[(&str, &str)],
    gated: bool,
    length: Duration,
) -> anyhow::Result<Vec<Value>> {
    let out = |client: &str| -> PathBuf { station.dir().join(format!("{client}.requests")) };
    let parts: Vec<Part> = clients
        .iter()
        .map(|(client, program)| Part {
            share: 500,
            program: program.split(' ').map(str::to_owned).collect(),
            out: Some(out(client)),
        })
        .collect();
    let running = Running::start(station, &parts, How::simulated(gated))?;
    std::thread::sleep(Duration::from_millis(700));
    let before: Vec<usize> = clients
        .iter()
        .map(|(client, _)| requests(&out(client)).map(|r| r.len()))
        .collect::<anyhow::Result<_>>()?;
    let outcome = running.watch(station, &vec![0.5; clients.len()], length)?;
    drop(running);
    let mut lines = Vec::new();
    for (at, (client, program)) in clients.iter().enumerate() {
        if *program == IDLE {
            continue;
        }
        let taken = requests(&out(client))?.split_off(before[at]);
        let count = taken.len();
        let times = Times::new(taken);
        let ms = |q| times.quantile(q).unwrap_or(f64::NAN);
        let part = outcome.got[at] * outcome.total;
        say(&format!(
            "  {name:<21} {client:<7} {:>8.1} {:>8.1} {:>8.1} {:>15.1} % {:>4.0} %",
            ms(0.5),
            ms(0.99),
            ms(1.0),
            part * 100.0,
            outcome.cpu * 100.0
        ));
        lines.push(json!({
            "scene": name,
            "client": client,
            "requests": count,
            "median_ms": times.median(),
            "p99_ms": times.p99(),
            "worst_ms": times.quantile(1.0),
            "part_of_gpu": part,
            "cpu": outcome.cpu,
        }));
    }
    Ok(lines)
}

/// Milliseconds of the requests so far.
fn requests(path: &PathBuf) -> anyhow::Result<Vec<f64>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let us = whole.lines().filter_map(|l| l.parse::<f64>().ok());
    Ok(us.map(|us| us / 1000.0).collect())
}
