//! `gshare replay`: a list of claims in virtual time, decided by the same core as the service's.

use gshare_core::play::list::{self, Cut, Entry};
use gshare_core::play::nodes::{self, Cluster, Parts};
use gshare_core::play::{POLICIES, Policy, Setup};
use serde_json::json;

use super::args::sizes::ReplayArgs;
use super::failure::{self, Failure};
use super::table::{Align, Table, UNKNOWN};
use super::{Outcome as Exit, out, replay_sizes};

/// Default schedulers to compare.
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
    if let Some(nodes) = args.nodes {
        return on_nodes(args, usize::from(nodes), &text);
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

/// Longest run that is replayed on nodes: a few that last for months would take most of the GPU time.
const LONGEST_S: f64 = 86_400.0;

fn on_nodes(args: &ReplayArgs, nodes: usize, text: &str) -> Exit {
    let gpus = usize::from(args.gpus);
    let list = read(args, text)?;
    let cut = Cut {
        claims: args.claims.unwrap_or(list.len()),
        gpus,
        load: 1.0,
        run_s: (1.0, LONGEST_S),
    };
    let mut list = list::block(&list, &cut, 1);
    list::stretch(&mut list, nodes * gpus, args.load.unwrap_or(0.9));
    let mut table = Table::new(&[
        ("GPUS GIVEN OUT", Align::Left),
        ("WAIT min", Align::Right),
        ("P95", Align::Right),
        ("DONE h", Align::Right),
        ("USE %", Align::Right),
        ("ROUNDED %", Align::Right),
        ("UNFIT %", Align::Right),
    ]);
    let mut rows = Vec::new();
    for (name, parts, burst) in [
        ("all GPUs as one", Parts::Pooled, false),
        ("any part of one GPU", Parts::Exact, false),
        ("100 shards", Parts::Shards(100), false),
        ("8 shards", Parts::Shards(8), false),
        ("4 shards", Parts::Shards(4), false),
        ("whole", Parts::Shards(1), false),
        ("100 shards, burst", Parts::Shards(100), true),
        ("4 shards, burst", Parts::Shards(4), true),
    ] {
        let cluster = Cluster {
            nodes,
            gpus,
            parts,
            burst,
        };
        let (played, given) = nodes::play(&list, cluster);
        let row = played.figures(&list);
        // With burst, jobs end earlier than their sizes alone allow.
        let rounded = (!burst).then_some(given - row.usage);
        let cells = [
            row.wait_mean_s / 60.0,
            row.wait_p95_s / 60.0,
            row.jct_mean_s / 3600.0,
            row.usage * 100.0,
        ];
        let mut words = vec![name.to_owned()];
        words.extend(cells.map(|cell| format!("{cell:.1}")));
        words.push(
            rounded.map_or_else(|| UNKNOWN.to_owned(), |part| format!("{:.1}", part * 100.0)),
        );
        words.push(format!("{:.1}", played.unfit * 100.0));
        table.row(words);
        rows.push(json!({
            "given_out": name,
            "wait_mean_s": row.wait_mean_s,
            "wait_p95_s": row.wait_p95_s,
            "jct_mean_s": row.jct_mean_s,
            "use": row.usage,
            "rounded": rounded,
            "unfit": played.unfit,
        }));
    }
    if args.json {
        out::json(
            &json!({ "claims": list.len(), "nodes": nodes, "gpus": args.gpus, "ways": rows }),
        )?;
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

fn read(args: &ReplayArgs, text: &str) -> Result<Vec<Entry>, Failure> {
    let path = args.trace.display();
    list::read(text).map_err(|e| usage(format!("{path}: {e}")))
}

fn entries(args: &ReplayArgs, text: &str) -> Result<Vec<Entry>, Failure> {
    let mut list = read(args, text)?;
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
