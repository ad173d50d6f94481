//! `bench density`: one list of jobs on one simulated GPU, three times: a whole GPU for each job, parts of it
//! in turns, parts of it side by side through MPS.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use gshare_sim_board::Board;
use serde_json::{Value, json};

use super::gate::run::WORKER_ARGUMENT;
use super::gate::worker;
use super::say;
use crate::command::args::BenchArgs;
use crate::station::{Options, Station};

/// Jobs: steps of 4 ms on a quarter of the SMs, and between steps as long on the processor.
const BLOCKS: u32 = 33;
const THINK_US: u64 = 4000;
/// A job that runs at least this fast, of its speed alone, counts as undisturbed.
const UNDISTURBED: f64 = 0.9;
const PATIENCE: Duration = Duration::from_secs(300);

struct Way {
    name: &'static str,
    share: &'static str,
    config: &'static str,
}

const WAYS: &[Way] = &[
    Way {
        name: "whole GPU",
        share: "1",
        config: "",
    },
    Way {
        name: "timeslice",
        share: "0.25",
        config: "",
    },
    Way {
        name: "mps",
        share: "0.25",
        config: "[gpu.all]\nmode = \"mps\"\n",
    },
];

/// What a way came to.
struct Outcome {
    makespan: f64,
    /// Seconds of each job's steps.
    jobs: Vec<f64>,
    sm_activity: f64,
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Value> {
    let (jobs, steps) = if args.quick { (4, 40) } else { (8, 250) };
    say(&format!(
        "{jobs} jobs of {steps} steps (4 ms on a quarter of the SMs, 4 ms on the processor) on one GPU; a simulation"
    ));
    say(
        "  way         makespan   jobs at >= 90 % of solo speed   mean SM activity   times the whole GPU",
    );
    let mut lines: Vec<Value> = Vec::new();
    let (mut whole, mut solo) = (None, None);
    for way in WAYS {
        let outcome = match one(way, jobs, steps) {
            Ok(outcome) => outcome,
            Err(error) => {
                say(&format!("  {:<11} did not run: {error:#}", way.name));
                lines.push(json!({ "way": way.name, "error": format!("{error:#}") }));
                continue;
            }
        };
        let mean = outcome.jobs.iter().sum::<f64>() / outcome.jobs.len().max(1) as f64;
        // Alone is how the jobs run that have the GPU to themselves.
        let solo = *solo.get_or_insert(mean);
        let whole = *whole.get_or_insert(outcome.makespan);
        let fast = outcome
            .jobs
            .iter()
            .filter(|s| solo / **s >= UNDISTURBED)
            .count();
        let multiple = whole / outcome.makespan;
        say(&format!(
            "  {:<11} {:>6.1} s {fast:>20} of {jobs} {:>26.1} % {multiple:>17.2}",
            way.name,
            outcome.makespan,
            outcome.sm_activity * 100.0
        ));
        lines.push(json!({
            "way": way.name,
            "makespan_s": outcome.makespan,
            "jobs": jobs,
            "undisturbed": fast,
            "mean_job_s": mean,
            "sm_activity": outcome.sm_activity,
            "multiple": multiple,
        }));
    }
    let ok = lines.iter().all(|l| l["error"].is_null());
    let line = json!({
        "bench": "density",
        "device": "sim",
        "measured": lines,
        "judged": false,
        "ok": ok,
    });
    Ok(line)
}

fn one(way: &Way, jobs: usize, steps: u64) -> anyhow::Result<Outcome> {
    let station = Station::start(&Options {
        gpus: vec!["h100".to_owned()],
        costs: worker::costs(),
        config: way.config.to_owned(),
        ..Options::new(std::env::current_exe().context("cannot find the program itself")?)
    })?;
    let board = Board::open(&station.sim_dir().join("board"))?;
    let sm_ns = || board.snapshot().gpus[0].sm_ns;
    let before = sm_ns();
    let began = Instant::now();
    let mut running: Vec<Child> = Vec::new();
    for job in 0..jobs {
        let mut command = station.command();
        command
            .args(["claim", "-q", "-g", way.share, "--"])
            .arg(station.program())
            .args([WORKER_ARGUMENT, "job", "spin_4ms"])
            .args([BLOCKS.to_string(), steps.to_string(), THINK_US.to_string()])
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(station.dir().join(job.to_string()))?);
        running.push(command.spawn().context("cannot start a job")?);
    }
    let ended = wait(&mut running, began + PATIENCE);
    let makespan = began.elapsed();
    if ended.is_err() {
        for child in &mut running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
    ended?;
    let sms = f64::from(board.snapshot().gpus[0].model.sms);
    let mut times = Vec::new();
    for job in 0..jobs {
        let text = std::fs::read_to_string(station.dir().join(job.to_string()))?;
        let us: f64 = text.trim().parse().context("a job did not finish")?;
        times.push(us / 1e6);
    }
    Ok(Outcome {
        makespan: makespan.as_secs_f64(),
        jobs: times,
        sm_activity: sm_ns().saturating_sub(before) as f64 / sms / makespan.as_nanos() as f64,
    })
}

fn wait(jobs: &mut [Child], until: Instant) -> anyhow::Result<()> {
    loop {
        let mut left = 0;
        for job in jobs.iter_mut() {
            match job.try_wait()? {
                Some(status) => anyhow::ensure!(status.success(), "a job failed: {status}"),
                None => left += 1,
            }
        }
        if left == 0 {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < until, "the jobs do not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}
