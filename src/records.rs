//! Replay of run records: the prediction that would have been made before each, and the effect of three ways to
//! request memory. For `gshare replay` and `gshare bench predict`.

use std::collections::HashMap;

use gshare_core::Bytes;
use gshare_core::play::sizes::{Sized, SizedRun, Sizing, replay};
use gshare_core::predict::{Earlier, NOMINAL, Past, RUNS, Scores, Shape, estimate};
use serde_json::{Value, json};

/// Experience of a machine.
#[derive(Default)]
pub(crate) struct Memory {
    scripts: HashMap<(u32, String), Vec<Past>>,
    users: HashMap<u32, Vec<Past>>,
    scores: Scores,
    ids: u64,
}

impl Memory {
    fn earlier(&self, user: u32, shape: &Shape) -> Earlier {
        let newest = |list: Option<&Vec<Past>>| -> Vec<Past> {
            list.map_or_else(Vec::new, |l| l.iter().rev().take(RUNS).cloned().collect())
        };
        Earlier {
            script: newest(self.scripts.get(&(user, shape.script.clone()))),
            shared: Vec::new(),
            user: newest(self.users.get(&user)),
        }
    }

    /// Predicts its need, then learns its actual need.
    pub(crate) fn meet(&mut self, user: u32, shape: Shape, peak: f64) -> Option<(f64, f64)> {
        let earlier = self.earlier(user, &shape);
        let said = estimate(&shape, &earlier, &self.scores, NOMINAL);
        let peak = Bytes(peak as u64);
        self.ids += 1;
        if let Some(said) = &said {
            self.scores.forget(&said.new_ones());
            self.scores.push(said.kind, self.ids, said.score(peak));
        }
        let past = Past {
            id: self.ids,
            shape: shape.clone(),
            peak,
        };
        self.users.entry(user).or_default().push(past.clone());
        let script = self.scripts.entry((user, shape.script));
        script.or_default().push(past);
        said.map(|s| (s.middle.0 as f64, s.bound.0 as f64))
    }
}

/// Stretches the times between runs until this fraction of the memory is requested.
pub(crate) fn stretch(runs: &mut [SizedRun], gpus: usize, mem: u64, load: f64) {
    let work: f64 = runs.iter().map(|r| r.asked as f64 * r.run_s).sum();
    let span = runs.last().map_or(1.0, |r| r.arrival_s).max(1.0);
    let factor = work / (gpus as f64 * mem as f64 * load.max(0.01) * span);
    for run in runs {
        run.arrival_s *= factor;
    }
}

/// The three ways.
pub(crate) fn rows(runs: &[SizedRun], gpus: usize, mem: u64) -> [(&'static str, Sized); 3] {
    [
        ("asked", replay(runs, gpus, mem, Sizing::Asked)),
        ("learnt", replay(runs, gpus, mem, Sizing::Learnt)),
        ("peaks", replay(runs, gpus, mem, Sizing::Peaks)),
    ]
}

pub(crate) fn row_json(name: &str, row: &Sized) -> Value {
    json!({ "sizes": name, "used_of_allocated": row.used, "out_of_memory": row.refused, "wait_mean_s": row.wait_s })
}
