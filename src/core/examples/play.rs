//! The rows of `gshare bench schedule` that the live machine is judged by, without the rest of gshare: builds in seconds.
//!
//! `cargo run --release -p gshare-core --example play -- DIR [--blocks N] [--from N] [--row TEXT] [--list TEXT] [--full] [--gaming] [--steps] [--asks] [--blind] [--policy NAME ...]`
#![allow(clippy::print_stdout, reason = "it prints rows")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gshare_core::play::desk::{Desk, SIZES, Size};
use gshare_core::play::figures::mean;
use gshare_core::play::{Policy, Setup, cases, gaming, list};
use nix::time::{ClockId, clock_gettime};

struct Args {
    dir: PathBuf,
    blocks: u64,
    from: u64,
    row: String,
    list: String,
    policies: Vec<Policy>,
    full: bool,
    gaming: bool,
    steps: bool,
    asks: bool,
    blind: bool,
}

fn args() -> Args {
    let mut found = Args {
        dir: PathBuf::from("."),
        blocks: 4,
        from: 0,
        row: String::new(),
        list: String::new(),
        policies: Vec::new(),
        full: false,
        gaming: false,
        steps: false,
        asks: false,
        blind: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|n| n.parse().ok());
        match word.as_str() {
            "--blocks" => found.blocks = number().expect("a number of blocks"),
            "--from" => found.from = number().expect("the first block"),
            "--row" => found.row = words.next().expect("a part of a row's name"),
            "--list" => found.list = words.next().expect("default or gpushare100"),
            "--policy" => {
                let named = words.next().and_then(|name| Policy::named(&name));
                found.policies.push(*named.expect("a policy"));
            }
            "--full" => found.full = true,
            "--gaming" => found.gaming = true,
            "--steps" => found.steps = true,
            "--asks" => found.asks = true,
            "--blind" => found.blind = true,
            dir => found.dir = PathBuf::from(dir),
        }
    }
    found
}

/// Plays the blocks two at a time.
fn two_at_a_time<T: Send>(seeds: std::ops::Range<u64>, one: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let half = |odd: u64| {
        let own = seeds.clone().filter(|s| s % 2 == odd);
        own.map(&one).collect::<Vec<T>>()
    };
    std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        let mut all = half(0);
        all.extend(odd.join().expect("played"));
        all
    })
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    u64::try_from(Duration::from(time).as_nanos()).expect("less than centuries")
}

/// How long a step of the machine takes, and a look at it.
fn steps(size: Size) {
    let mut desk = Desk::new(size, 1, cpu_ns);
    let began = desk.steps_us.len();
    let mut looks: Vec<[f64; 2]> = Vec::new();
    for round in 0..size.rounds {
        desk.round();
        looks.extend((round % 3 == 0).then(|| desk.look()));
    }
    println!(
        "{} GPUs, {} claims: processor time in us, p50, p90, p99, at most",
        size.gpus, size.claims
    );
    let steps = desk.steps_us.split_off(began);
    let of = |i: usize| looks.iter().map(|l| l[i]).collect();
    let rows: [(&str, Vec<f64>); 3] = [
        ("a step", steps),
        ("claimable now", of(0)),
        ("expected starts", of(1)),
    ];
    for (name, mut us) in rows {
        us.sort_by(f64::total_cmp);
        let at = |q: f64| us[(q * (us.len() - 1) as f64).round() as usize];
        println!(
            "  {name:<16}{:>8.0}{:>8.0}{:>8.0}{:>8.0}",
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0)
        );
    }
    println!("  {} announced, {} done", desk.announced, desk.pulled);
}

fn main() {
    let args = args();
    if args.steps {
        let named = |size: &Size| size.gpus.to_string().contains(&args.row);
        SIZES.into_iter().filter(named).for_each(steps);
        return;
    }
    println!("{}", cases::head());
    let lists = [
        ("default", "openb_gpu_claims.csv"),
        ("gpushare100", "openb_pod_list_gpushare100.csv"),
    ];
    for (name, file) in lists.into_iter().filter(|(n, _)| n.contains(&args.list)) {
        let text = std::fs::read_to_string(args.dir.join(file)).expect("the list");
        let trace = list::read(&text).expect("a list");
        let mut rows = BTreeMap::new();
        let seeds = args.from..args.from + args.blocks;
        let rows_of = |full: bool| match args.policies.as_slice() {
            [] => cases::cases(!full),
            named => named.iter().map(|p| cases::Case::of(*p)).collect(),
        };
        for mut case in rows_of(args.full) {
            case.setup.asks = args.asks;
            case.setup.predicts = !args.blind;
            if !case.name.contains(&args.row) {
                continue;
            }
            let blocks = two_at_a_time(seeds.clone(), |seed| case.play(&trace, seed));
            let sums = cases::sums(&case, &blocks);
            let name = format!("{name}: {}", case.name);
            println!("{}", sums.line(&name));
            if args.asks {
                println!("{}", cases::Foreseen::of(&blocks).line(&name));
            }
            rows.insert(case.name, sums);
        }
        for goal in cases::goals(name, name != "default", &rows) {
            println!("{}", goal.line());
        }
        if args.gaming {
            let setup = Setup::default();
            let own = seeds.clone();
            let small: Vec<_> = trace.iter().copied().filter(|e| e.gpus < 8).collect();
            let played = two_at_a_time(own, |seed| gaming::play_ways(&small, &setup, 300, seed));
            for (i, (way, _)) in gaming::WAYS.iter().enumerate() {
                let of = |f: fn(&gaming::Gain) -> f64| {
                    mean(&played.iter().map(|p| f(&p[i])).collect::<Vec<_>>())
                };
                println!(
                    "{name}: {way:<42} done {:.2} h, others wait {:.1} min",
                    of(|g| g.task_h),
                    of(|g| g.others_min)
                );
            }
        }
    }
}
