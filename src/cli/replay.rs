//! `gshare replay`: the decisions of the core in virtual time over a list of claims.

use gshare_core::play::list::{self as trace, Entry};
use gshare_core::sched::replay::{Node, Outcome, POLICIES, Policy, replay};
use serde_json::json;

use super::args::sizes::ReplayArgs;
use super::failure::{self, Failure};
use super::table::{Align, Table};
use super::{Outcome as Exit, out, replay_sizes};

/// What is compared unless something else is asked.
const DEFAULT: [&str; 3] = ["gshare", "gshare-held", "fgd"];

pub(crate) fn run(args: &ReplayArgs) -> Exit {
    if let Some(load) = args.load
        && !(0.01..=100.0).contains(&load)
    {
        return Err(usage(format!("--load {load} is not between 0.01 and 100")));
    }
    let text = std::fs::read_to_string(&args.trace)
        .map_err(|e| usage(format!("cannot read {}: {e}", args.trace.display())))?;
    if replay_sizes::is_records(&text) {
        if !args.policy.is_empty() {
            let text = "records of runs are replayed with sizes, not with policies";
            let hint = "--policy is for lists of claims (CSV)";
            return Err(usage(text.to_owned()).with_hint(hint));
        }
        return replay_sizes::run(args, &text);
    }
    let policies = policies(&args.policy)?;
    let trace = entries(args, &text)?;
    let node = Node {
        gpus: usize::from(args.gpus),
        mem: args.mem.0,
        users: trace.iter().map(|e| e.user + 1).max().unwrap_or(1),
    };
    let mut table = Table::new(&[
        ("POLICY", Align::Left),
        ("MAY", Align::Left),
        ("WAIT min", Align::Right),
        ("MEDIAN", Align::Right),
        ("P95", Align::Right),
        ("DONE h", Align::Right),
        ("ALLOC %", Align::Right),
        ("MOVES", Align::Right),
        ("SUSPENDED", Align::Right),
    ]);
    let mut rows = Vec::new();
    for policy in policies {
        let outcome = replay(&trace, node, policy, &|| 0, &mut Vec::new());
        let row = Figures::of(&outcome);
        table.row(vec![
            policy.name.to_owned(),
            policy.rights().to_owned(),
            format!("{:.1}", row.wait / 60.0),
            format!("{:.1}", row.median / 60.0),
            format!("{:.1}", row.p95 / 60.0),
            format!("{:.2}", row.done / 3600.0),
            format!("{:.1}", outcome.allocation * 100.0),
            outcome.moves.to_string(),
            outcome.suspensions.to_string(),
        ]);
        rows.push(json!({
            "policy": policy.name,
            "may": policy.rights(),
            "wait_mean_s": row.wait,
            "wait_median_s": row.median,
            "wait_p95_s": row.p95,
            "completion_mean_s": row.done,
            "allocation": outcome.allocation,
            "moves": outcome.moves,
            "suspensions": outcome.suspensions,
        }));
    }
    if args.json {
        out::json(&json!({ "claims": trace.len(), "gpus": args.gpus, "policies": rows }))?;
    } else {
        out::print(&table.text(None, false))?;
    }
    Ok(0)
}

fn usage(text: String) -> Failure {
    Failure::new(failure::USAGE, text)
}

fn policies(names: &[String]) -> Result<Vec<&'static Policy>, Failure> {
    let named = |name: &str| {
        Policy::named(name).ok_or_else(|| {
            let known: Vec<&str> = POLICIES.iter().map(|p| p.name).collect();
            usage(format!("there is no policy `{name}`"))
                .with_hint(format!("one of {}", known.join(", ")))
        })
    };
    if names.is_empty() {
        return DEFAULT.iter().map(|n| named(n)).collect();
    }
    names.iter().map(|n| named(n)).collect()
}

fn entries(args: &ReplayArgs, text: &str) -> Result<Vec<Entry>, Failure> {
    let path = args.trace.display();
    let mut trace = trace::read(text).map_err(|e| usage(format!("{path}: {e}")))?;
    trace.truncate(args.claims.unwrap_or(usize::MAX).max(1));
    let start = trace.first().map_or(0.0, |e| e.arrival_s);
    for e in &mut trace {
        e.arrival_s -= start;
        e.gpus = e.gpus.min(u32::from(args.gpus));
    }
    if let Some(load) = args.load {
        let work: f64 = trace.iter().map(|e| e.size() * e.run_s).sum();
        let span = trace.last().map_or(1.0, |e| e.arrival_s).max(1.0);
        let stretch = work / (f64::from(args.gpus) * load * span);
        for e in &mut trace {
            e.arrival_s *= stretch;
        }
    }
    Ok(trace)
}

struct Figures {
    wait: f64,
    median: f64,
    p95: f64,
    done: f64,
}

impl Figures {
    fn of(outcome: &Outcome) -> Self {
        let mut waits = outcome.wait_s.clone();
        waits.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let last = waits.len().saturating_sub(1);
            waits
                .get((last as f64 * q).round() as usize)
                .copied()
                .unwrap_or(0.0)
        };
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
        Self {
            wait: mean(&outcome.wait_s),
            median: at(0.5),
            p95: at(0.95),
            done: mean(&outcome.turnaround_s),
        }
    }
}
