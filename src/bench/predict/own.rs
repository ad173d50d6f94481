//! Replays gshare's own records: `gshare suggest --records > runs.jsonl`. Each run is predicted from those before it.

use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

use crate::bench::say;
use crate::bench::stats::Times;
use crate::daemon::history::runs::RunRecord;
use crate::records::Memory;

pub(super) fn run(path: &Path, text: &str) -> anyhow::Result<Value> {
    let mut records: Vec<RunRecord> = Vec::new();
    for (n, line) in text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty())
    {
        let record = serde_json::from_str(line)
            .with_context(|| format!("{}:{}: no record of a run", path.display(), n + 1))?;
        records.push(record);
    }
    records.sort_by_key(|r| r.ended_ms);
    let mut memory = Memory::default();
    let (mut errors, mut under, mut over, mut said) = (Vec::new(), 0u32, 0.0, 0u32);
    for record in &records {
        if let Some((middle, bound)) =
            memory.meet(record.uid, record.shape.clone(), record.used.peak as f64)
        {
            let truth = record.used.peak as f64;
            if truth > 0.0 {
                said += 1;
                errors.push(100.0 * (middle - truth).abs() / truth);
                under += u32::from(bound < truth);
                over += 100.0 * (bound - truth).max(0.0) / truth;
            }
        }
    }
    let n = f64::from(said.max(1));
    let median = Times::new(errors).median();
    say(&format!(
        "{}: {} runs, {said} of them predicted: median error {} %, under {:.2} %, over {:.1} %",
        path.display(),
        records.len(),
        median.map_or_else(|| "—".to_owned(), |m| format!("{m:.1}")),
        100.0 * f64::from(under) / n,
        over / n
    ));
    Ok(json!({
        "file": path.display().to_string(), "runs": records.len(), "predicted": said,
        "error_percent": median, "under_percent": 100.0 * f64::from(under) / n, "over_percent": over / n,
    }))
}
