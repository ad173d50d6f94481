//! Duration of a query with 100,000 records of runs, through the service's own file.

use std::time::Instant;

use serde_json::{Value, json};

use crate::bench::dice::Dice;
use crate::bench::say;
use crate::bench::stats::Times;
use crate::daemon::history::runs::{AskedByRun, EndOfRun, RunRecord, UsedByRun, Whose, put_runs};
use crate::daemon::history::store::Store;
use crate::daemon::line::key;

const GOAL_MS: f64 = 20.0;

pub(super) fn run(quick: bool) -> anyhow::Result<Value> {
    let many: u64 = if quick { 10_000 } else { 100_000 };
    let dir = tempfile::tempdir()?;
    let store = Store::open(&dir.path().join("history.db"), 1 << 30)?;
    let mut dice = Dice::new(7);
    let command = |dice: &mut Dice| -> Vec<String> {
        let text = format!(
            "python train_{}.py --batch-size {} --seed {} --data /d/{}/x.bin",
            dice.below(400),
            8 << dice.below(4),
            dice.below(9999),
            dice.below(99)
        );
        text.split(' ').map(str::to_owned).collect()
    };
    let mut records = Vec::new();
    for n in 0..many {
        let shape = key(&command(&mut dice));
        let batch = shape.number("batch-size").unwrap_or(8.0);
        records.push(RunRecord {
            ended_ms: 1_700_000_000_000 + n * 1000,
            uid: 1000 + dice.below(8) as u32,
            shape,
            asked: AskedByRun {
                gpus: 1,
                gpu_model: "NVIDIA GeForce RTX 4090".to_owned(),
                ..AskedByRun::default()
            },
            used: UsedByRun {
                peak: ((2.0 + 0.1 * batch) * (0.03 * dice.normal()).exp() * f64::from(1 << 30))
                    as u64,
                parts: vec![1 << 30; 32],
                ..UsedByRun::default()
            },
            ended: EndOfRun {
                seconds: 600.0,
                cause: "command exited".to_owned(),
                ..EndOfRun::default()
            },
            ..RunRecord::default()
        });
    }
    put_runs(&store, &records)?;
    let mut times = Vec::new();
    for n in 0..200u32 {
        let whose = Whose {
            uid: 1000 + n % 8,
            group: false,
            all: n % 2 == 0,
        };
        let shape = key(&command(&mut dice));
        let begin = Instant::now();
        let told = store.told(&whose, &shape, 1)?;
        times.push(begin.elapsed().as_secs_f64() * 1000.0);
        anyhow::ensure!(told.estimate.is_some(), "no answer from {many} records");
    }
    let times = Times::new(times);
    let (median, p99) = (
        times.median().unwrap_or(f64::NAN),
        times.p99().unwrap_or(f64::NAN),
    );
    say(&format!(
        "suggest with {many} records: {median:.1} ms in the median, {p99:.1} ms at the 99th percentile (goal {GOAL_MS})"
    ));
    Ok(
        json!({ "records": many, "median_ms": median, "p99_ms": p99, "goal_ms": GOAL_MS, "ok": p99 <= GOAL_MS }),
    )
}
