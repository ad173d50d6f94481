//! `gshare replay runs.jsonl`: recorded runs with their requested sizes, with sizes from experience, and with their
//! actual need.

use gshare_core::play::sizes::SizedRun;
use serde_json::{Value, json};

use super::args::sizes::ReplayArgs;
use super::failure::{self, Failure};
use super::table::{Align, Table};
use super::{Outcome, out};
use crate::daemon::history::runs::RunRecord;
use crate::records::{Memory, row_json, rows, stretch};

/// Whether a list contains run records.
pub(crate) fn is_records(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

pub(crate) fn run(args: &ReplayArgs, text: &str) -> Outcome {
    let mut records: Vec<RunRecord> = Vec::new();
    for (n, line) in text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty())
    {
        let record = serde_json::from_str(line).map_err(|e| {
            let text = format!(
                "{}:{}: no record of a run: {e}",
                args.trace.display(),
                n + 1
            );
            Failure::new(failure::USAGE, text).with_hint("gshare suggest --records > runs.jsonl")
        })?;
        records.push(record);
    }
    let begin = |r: &RunRecord| r.ended_ms as f64 / 1000.0 - r.ended.seconds;
    records.sort_by(|a, b| begin(a).total_cmp(&begin(b)));
    records.truncate(args.claims.unwrap_or(usize::MAX).max(1));
    let first = records.first().map_or(0.0, begin);
    let mut memory = Memory::default();
    let runs = records.iter().map(|r| {
        let said = memory.meet(r.uid, r.shape.clone(), r.used.peak as f64);
        let parts = r.used.parts.len() as u64;
        SizedRun {
            arrival_s: begin(r) - first,
            run_s: r.ended.seconds,
            asked: r.asked.mem,
            said: said.map(|(_, bound)| bound as u64),
            peak: r.used.peak,
            mean: r
                .used
                .parts
                .iter()
                .sum::<u64>()
                .checked_div(parts)
                .unwrap_or(r.used.peak),
        }
    });
    let mut runs: Vec<SizedRun> = runs.collect();
    if let Some(load) = args.load {
        stretch(&mut runs, usize::from(args.gpus), args.mem.0, load);
    }
    let rows = rows(&runs, usize::from(args.gpus), args.mem.0);
    if args.json {
        let rows: Vec<Value> = rows.iter().map(|(name, row)| row_json(name, row)).collect();
        out::json(&json!({ "runs": runs.len(), "gpus": args.gpus, "sizes": rows }))?;
        return Ok(0);
    }
    let mut table = Table::new(&[
        ("SIZES", Align::Left),
        ("USED OF ALLOCATED %", Align::Right),
        ("OUT OF MEMORY %", Align::Right),
        ("WAIT min", Align::Right),
    ]);
    for (name, row) in rows {
        table.row(vec![
            name.to_owned(),
            format!("{:.1}", row.used * 100.0),
            format!("{:.2}", row.refused * 100.0),
            format!("{:.1}", row.wait_s / 60.0),
        ]);
    }
    out::print(&table.text(None, false))?;
    Ok(0)
}
