//! `gshare replay`: a list of claims in virtual time, decided by the machine that the service decides with.

use gshare_core::play::list::{self, Entry};
use gshare_core::play::{POLICIES, Policy, Setup};
use serde_json::json;

use super::args::sizes::ReplayArgs;
use super::failure::{self, Failure};
use super::table::{Align, Table};
use super::{Outcome as Exit, out, replay_sizes};

/// What is compared unless something else is asked.
const DEFAULT: [&str; 3] = ["gshare", "gshare-no-offload", "fgd"];

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
            let text = "records of runs are replayed to compare sizes, not policies";
            let hint = "--policy is for lists of claims (CSV)";
            return Err(usage(text.to_owned()).with_hint(hint));
        }
        return replay_sizes::run(args, &text);
    }
    let policies = policies(&args.policy)?;
    let list = entries(args, &text)?;
    let setup = Setup {
        gpus: usize::from(args.gpus),
        mem: args.mem,
        ..Setup::default()
    };
    let mut table = Table::new(&[
        ("POLICY", Align::Left),
        ("MAY", Align::Left),
        ("WAIT min", Align::Right),
        ("P95", Align::Right),
        ("DONE h", Align::Right),
        ("USE %", Align::Right),
        ("MOVES", Align::Right),
        ("OFFLOADED", Align::Right),
        ("AWAY h", Align::Right),
        ("JAIN", Align::Right),
    ]);
    let mut rows = Vec::new();
    for policy in policies {
        let row = policy.play(&list, &setup).figures(&list);
        table.row(vec![
            policy.name.to_owned(),
            policy.rights().to_owned(),
            format!("{:.1}", row.wait_mean_s / 60.0),
            format!("{:.1}", row.wait_p95_s / 60.0),
            format!("{:.2}", row.jct_mean_s / 3600.0),
            format!("{:.1}", row.usage * 100.0),
            row.moves.to_string(),
            row.suspensions.to_string(),
            format!("{:.1}", row.away_max_s / 3600.0),
            format!("{:.2}", row.jain),
        ]);
        rows.push(json!({
            "policy": policy.name,
            "wait_mean_s": row.wait_mean_s,
            "wait_p95_s": row.wait_p95_s,
            "jct_mean_s": row.jct_mean_s,
            "use": row.usage,
            "moves": row.moves,
            "suspensions": row.suspensions,
            "away_max_s": row.away_max_s,
            "jain": row.jain,
        }));
    }
    if args.json {
        out::json(&json!({ "claims": list.len(), "gpus": args.gpus, "policies": rows }))?;
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
    let mut list = list::read(text).map_err(|e| usage(format!("{path}: {e}")))?;
    list.truncate(args.claims.unwrap_or(usize::MAX).max(1));
    let start = list.first().map_or(0.0, |e| e.arrival_s);
    for e in &mut list {
        e.arrival_s -= start;
        e.gpus = e.gpus.min(u32::from(args.gpus));
    }
    if let Some(load) = args.load {
        list::stretch(&mut list, usize::from(args.gpus), load);
    }
    Ok(list)
}
