//! The rows of `gshare bench schedule` that the live machine is judged by, without the rest of gshare: builds in seconds.
//!
//! `cargo run --release -p gshare-core --example play -- DIR [--blocks N] [--from N] [--row TEXT] [--list TEXT]`
#![allow(clippy::print_stdout, reason = "it prints rows")]

use std::path::PathBuf;
use std::time::Instant;

use gshare_core::Bytes;
use gshare_core::play::list::{self, Cut, Entry};
use gshare_core::play::{Setup, carry_s, play};

struct Args {
    dir: PathBuf,
    blocks: u64,
    from: u64,
    row: String,
    list: String,
}

fn args() -> Args {
    let mut found = Args {
        dir: PathBuf::from("."),
        blocks: 4,
        from: 0,
        row: String::new(),
        list: String::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|n| n.parse().ok());
        match word.as_str() {
            "--blocks" => found.blocks = number().expect("a number of blocks"),
            "--from" => found.from = number().expect("the first block"),
            "--row" => found.row = words.next().expect("a part of a row's name"),
            "--list" => found.list = words.next().expect("default or gpushare100"),
            dir => found.dir = PathBuf::from(dir),
        }
    }
    found
}

/// A row: which claims of the list, on which machine, under which rules.
struct Row {
    name: &'static str,
    whole: Whole,
    setup: Setup,
}

/// What becomes of the claims of the whole machine.
#[derive(Clone, Copy, PartialEq)]
enum Whole {
    Out,
    In,
    /// Each fiftieth claim is one.
    Every50,
}

fn rows() -> Vec<Row> {
    let shipped = Setup::default();
    let equal = Setup {
        guaranteed: 4,
        ..Setup::default()
    };
    let row = |name, whole, setup: &Setup| Row {
        name,
        whole,
        setup: setup.clone(),
    };
    vec![
        row("equal", Whole::Out, &equal),
        row("shipped", Whole::Out, &shipped),
        row("shipped, whole in", Whole::In, &shipped),
        row("shipped, every 50th", Whole::Every50, &shipped),
        row("equal, whole in", Whole::In, &equal),
        row(
            "none",
            Whole::Out,
            &Setup {
                offload: false,
                ..shipped.clone()
            },
        ),
        row(
            "no move",
            Whole::Out,
            &Setup {
                moves: false,
                ..shipped.clone()
            },
        ),
        row(
            "host 128",
            Whole::Out,
            &Setup {
                host: Bytes::gib(128),
                ..shipped.clone()
            },
        ),
        row(
            "host 32",
            Whole::Out,
            &Setup {
                host: Bytes::gib(32),
                ..shipped.clone()
            },
        ),
    ]
}

fn block(trace: &[Entry], whole: Whole, gpus: usize, seed: u64) -> Vec<Entry> {
    let cut = Cut {
        gpus,
        ..Cut::default()
    };
    let part = |e: &&Entry| whole == Whole::In || (e.gpus as usize) < gpus;
    let trace: Vec<Entry> = trace.iter().filter(part).copied().collect();
    let mut block = list::block(&trace, &cut, seed);
    if whole == Whole::Every50 {
        for e in block.iter_mut().skip(25).step_by(50) {
            (e.gpus, e.milli) = (gpus as u32, 1000);
        }
        list::stretch(&mut block, gpus, cut.load);
    }
    block
}

fn main() {
    let args = args();
    println!(
        "{:<28} {:>8} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6} {:>7} {:>7} {:>6} {:>6}",
        "row",
        "wait min",
        "p95",
        "jct h",
        "use %",
        "susp",
        "moves",
        "stall%",
        "away h",
        "jain",
        "kept %",
        "whole h",
        "intime",
        "s"
    );
    for (name, file) in [
        ("default", "openb_gpu_claims.csv"),
        ("gpushare100", "openb_pod_list_gpushare100.csv"),
    ] {
        if !name.contains(&args.list) {
            continue;
        }
        let text = std::fs::read_to_string(args.dir.join(file)).expect("the list");
        let trace = list::read(&text).expect("a list");
        for row in rows() {
            if !row.name.contains(&args.row) {
                continue;
            }
            let began = Instant::now();
            let seeds: Vec<u64> = (args.from..args.from + args.blocks).collect();
            let one = |seed: u64| {
                let list = block(&trace, row.whole, row.setup.gpus, seed);
                let played = play(&list, &row.setup);
                (list, played)
            };
            let (a, b): (Vec<u64>, Vec<u64>) = seeds.iter().partition(|s| **s % 2 == 0);
            let done = std::thread::scope(|scope| {
                let b = scope.spawn(|| b.iter().map(|s| one(*s)).collect::<Vec<_>>());
                let mut all: Vec<_> = a.iter().map(|s| one(*s)).collect();
                all.extend(b.join().expect("played"));
                all
            });
            let n = done.len() as f64;
            let over = |of: &dyn Fn(&[Entry], &gshare_core::play::Played) -> f64| {
                done.iter().map(|(l, p)| of(l, p)).sum::<f64>() / n
            };
            let whole = done
                .iter()
                .flat_map(|(l, p)| l.iter().zip(&p.claims))
                .filter(|(e, _)| e.gpus as usize == row.setup.gpus);
            let whole = whole
                .map(|(_, c)| c.wait_s.unwrap_or(f64::INFINITY))
                .fold(0.0, f64::max);
            let due = secs_in_time(&row.setup);
            let waited: Vec<f64> = done
                .iter()
                .flat_map(|(_, p)| p.claims.iter().filter_map(|c| c.guaranteed_wait_s))
                .collect();
            let in_time =
                waited.iter().filter(|w| **w <= due).count() as f64 / waited.len().max(1) as f64;
            let claims = over(&|l, _| l.len() as f64);
            let unfinished: usize = done.iter().map(|(_, p)| p.unfinished()).sum();
            println!(
                "{:<28} {:>8.1} {:>8.1} {:>6.2} {:>6.1} {:>6.2} {:>6.2} {:>6.2} {:>7.1} {:>6.3} {:>7.2} {:>7.1} {:>6.1} {:>6.1}{}",
                format!("{name}: {}", row.name),
                over(&|l, p| p.figures(l).wait_mean_s / 60.0),
                over(&|l, p| p.figures(l).wait_p95_s / 60.0),
                over(&|l, p| p.figures(l).jct_mean_s / 3600.0),
                over(&|_, p| p.useful * 100.0),
                over(&|l, p| f64::from(p.figures(l).suspensions)) / claims,
                over(&|l, p| f64::from(p.figures(l).moves)) / claims,
                over(&|_, p| p.claims.iter().map(|c| c.stall_s).sum::<f64>()
                    / p.claims.iter().map(|c| c.ran_s).sum::<f64>()
                    * 100.0),
                done.iter()
                    .map(|(l, p)| p.figures(l).away_max_s / 3600.0)
                    .fold(0.0, f64::max),
                over(&|l, p| p.figures(l).jain),
                over(&|_, p| p.kept_idle * 100.0),
                whole / 3600.0,
                in_time * 100.0,
                began.elapsed().as_secs_f64(),
                if unfinished > 0 {
                    format!(" {unfinished} did not end")
                } else {
                    String::new()
                }
            );
        }
    }
}

/// Within the guarantee: the shortest run, the countdown and two ways to the host.
fn secs_in_time(setup: &Setup) -> f64 {
    60.0 + setup.rules.countdown.as_secs_f64() + 2.0 * carry_s(setup.mem)
}
