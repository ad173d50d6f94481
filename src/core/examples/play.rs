//! Rows of `gshare bench schedule` for the live machine, without the rest of gshare: builds in seconds.
//!
//! `cargo run --release -p gshare-core --example play -- DIR [--blocks N] [--from N] [--row TEXT|TEXT] [--list TEXT]
//! [--full] [--gaming] [--bounds] [--late]`
#![allow(clippy::print_stdout, reason = "it prints rows")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use gshare_core::machine::Obstacle;
use gshare_core::play::figures::{Played, jain, mean};
use gshare_core::play::ideal::{First, Knows, Room, ideal, long_take};
use gshare_core::play::simple::{self, Order, Patience, Placing, Rank};
use gshare_core::play::{Entry, Setup, cases, gaming, list, policy};

struct Args {
    dir: PathBuf,
    blocks: u64,
    from: u64,
    row: String,
    list: String,
    full: bool,
    gaming: bool,
    bounds: bool,
    late: bool,
}

fn args() -> Args {
    let mut found = Args {
        dir: PathBuf::from("."),
        blocks: 4,
        from: 0,
        row: String::new(),
        list: String::new(),
        full: false,
        gaming: false,
        bounds: false,
        late: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|n| n.parse().ok());
        match word.as_str() {
            "--blocks" => found.blocks = number().expect("a number of blocks"),
            "--from" => found.from = number().expect("the first block"),
            "--row" => found.row = words.next().expect("a part of a row's name"),
            "--list" => found.list = words.next().expect("default or gpushare100"),
            "--full" => found.full = true,
            "--gaming" => found.gaming = true,
            "--bounds" => found.bounds = true,
            "--late" => found.late = true,
            dir => found.dir = PathBuf::from(dir),
        }
    }
    found
}

/// A block's claims and their results.
type Of<'b> = (&'b [Entry], Played);

/// Mean wait, mean completion time, Jain's index of users' speeds, the slowest user's speed, and each block's longest
/// time away, for the played blocks and for ideal schedulers.
fn bounds(name: &str, blocks: &[cases::Block], setup: &Setup) {
    let room = room(setup);
    let told = |what: &str, of: &dyn Fn(&cases::Block) -> Played| {
        let played: Vec<Of<'_>> = blocks.iter().map(|b| (&*b.list, of(b))).collect();
        let over = |f: &dyn Fn(&Of<'_>) -> f64| mean(&played.iter().map(f).collect::<Vec<_>>());
        let slowest = |(list, p): &Of<'_>, nth: usize| {
            let mut speeds = p.speeds(list);
            speeds.sort_by(f64::total_cmp);
            speeds.get(nth).copied().unwrap_or(1.0)
        };
        println!(
            "{name}: {what:<60} mean wait {:.1} min, done {:.2} h, Jain {:.3}, slowest user {:.3}, next {:.3}",
            over(&|(_, p)| mean(&p.waits().collect::<Vec<_>>()) / 60.0),
            over(&|(list, p)| p.figures(list).jct_mean_s / 3600.0),
            over(&|(list, p)| jain(&p.speeds(list))),
            over(&|p| slowest(p, 0)),
            over(&|p| slowest(p, 1)),
        );
        let longest = |(_, p): &Of<'_>| {
            let away = p.claims.iter().map(|c| c.away_s);
            format!(" {:.1}", away.fold(0.0, f64::max) / 3600.0)
        };
        let longest: String = played.iter().map(longest).collect();
        println!("{name}: {what:<60} longest away, h, by block:{longest}");
    };
    told("as played", &|b| b.played.clone());
    for (who, knows) in [
        ("all run times known", Knows::Everything),
        ("spread of run times known", Knows::Spread),
        ("nothing known", Knows::Nothing),
    ] {
        for (order, first) in [
            ("others first", First::Others),
            ("guarantees, then the largest user first", First::Guarantee),
            ("guarantees, then all alike", First::Within),
            ("all alike", First::Nobody),
        ] {
            told(&format!("{who}, {order}"), &|b| Played {
                claims: ideal(&b.list, room, knows, first),
                ..Played::default()
            });
        }
    }
}

/// EASY with other ways to choose GPUs, over EASY: how much mean waits differ between schedulers that know the same.
fn like_easy(name: &str, blocks: &[cases::Block], setup: &Setup) {
    let waits = |placing| {
        let wait = |b: &cases::Block| {
            let played = simple::play(&b.list, setup, Order::Backfill, placing, &mut |_| {}).played;
            mean(&played.waits().collect::<Vec<_>>())
        };
        blocks.iter().map(wait).collect::<Vec<f64>>()
    };
    let easy = waits(Placing::BestFit);
    for placing in [
        Placing::FirstFit,
        Placing::Fgd,
        Placing::Exact,
        Placing::Pooled,
    ] {
        let other = waits(placing);
        let over: Vec<f64> = other
            .iter()
            .zip(&easy)
            .map(|(o, e)| o / e.max(1e-9))
            .collect();
        println!(
            "{name}: EASY, {placing:?}: mean wait over EASY {:.3}, worst block {:.3}",
            mean(&other) / mean(&easy).max(1e-9),
            over.iter().copied().fold(0.0, f64::max)
        );
    }
}

/// What is taken for the end of a claim, and of one that is let past: its run time, or parts of the runs of its size.
const GUESSES: [(Option<f64>, f64); 4] = [
    (None, 0.0),
    (Some(0.5), 0.9),
    (Some(0.9), 0.9),
    (Some(0.9), 1.0),
];

/// Mean wait, use, and the longest wait for every GPU of schedulers that stop nothing: first EASY with guesses, then,
/// on GPUs without borders, by how long claims of every GPU let others past.
fn patient(name: &str, blocks: &[cases::Block], setup: &Setup) {
    let told = |placing, patience: Patience| {
        let played: Vec<Of<'_>> = blocks
            .iter()
            .map(|b| (&*b.list, simple::patient(&b.list, setup, placing, patience)))
            .collect();
        let over = |f: &dyn Fn(&Of<'_>) -> f64| mean(&played.iter().map(f).collect::<Vec<_>>());
        let all = played
            .iter()
            .flat_map(|(list, p)| list.iter().zip(&p.claims));
        let whole = all.filter(|(e, _)| e.gpus as usize >= setup.gpus);
        let longest = whole.filter_map(|(_, c)| c.wait_s).fold(0.0, f64::max);
        println!(
            "{name}: {placing:?} {patience:?}: mean wait {:.1} min, use {:.1} %, longest for every GPU {:.1} h",
            over(&|(_, p)| mean(&p.waits().collect::<Vec<_>>()) / 60.0),
            over(&|(_, p)| p.useful * 100.0),
            longest / 3600.0,
        );
    };
    for (ends, past) in GUESSES {
        let with = |rank, hours: u32| Patience {
            after_s: f64::from(hours) * 3600.0,
            ends,
            past,
            rank,
        };
        told(Placing::BestFit, with(Rank::Arrival, 0));
        for rank in [Rank::Arrival, Rank::Size, Rank::Work] {
            for hours in [0, 1, 3, 6, 12, 24, 48, 96, 1000] {
                told(Placing::Pooled, with(rank, hours));
            }
        }
    }
}

fn room(setup: &Setup) -> Room {
    Room {
        gpus: setup.gpus as f64,
        host: setup.host.0 as f64 / setup.mem.0 as f64,
    }
}

/// Obstacles of claims within their owner's guarantee that started late, with the most affected sizes.
fn late(name: &str, blocks: &[cases::Block]) {
    let all = || {
        blocks
            .iter()
            .flat_map(|b| b.list.iter().zip(&b.played.claims))
    };
    let within = all().filter(|(_, c)| c.guaranteed_wait_s.is_some()).count();
    let mut late: BTreeMap<Obstacle, BTreeMap<(u32, u32), usize>> = BTreeMap::new();
    for (e, claim) in all() {
        if let (Some(obstacle), Some(_)) = (claim.obstacle, claim.guaranteed_wait_s) {
            let sizes = late.entry(obstacle).or_default();
            *sizes.entry((e.gpus, e.milli)).or_default() += 1;
        }
    }
    for (obstacle, sizes) in late {
        let count: usize = sizes.values().sum();
        let mut sizes: Vec<_> = sizes.into_iter().map(|(size, n)| (n, size)).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let most = sizes.iter().take(8);
        let most = most.map(|(n, (gpus, milli))| format!(" {n} of {gpus}x{milli}"));
        println!(
            "{name}: late by {obstacle:?}: {count} of {within}, {:.2} %;{}",
            count as f64 / within.max(1) as f64 * 100.0,
            most.collect::<String>()
        );
    }
}

fn main() {
    let args = args();
    println!("{}", cases::head());
    let lists = [
        ("default", "openb_gpu_claims.csv"),
        ("gpushare100", "openb_pod_list_gpushare100.csv"),
        ("made up", ""),
    ];
    for (name, file) in lists.into_iter().filter(|(n, _)| n.contains(&args.list)) {
        let read = |file| std::fs::read_to_string(args.dir.join(file)).expect("the list");
        let trace = match file {
            "" => list::synthetic(3000, 1),
            file => list::read(&read(file)).expect("a list"),
        };
        let mut rows = BTreeMap::new();
        let seeds = args.from..args.from + args.blocks;
        for case in cases::cases(&trace, !args.full) {
            if !args.row.split('|').any(|row| case.name.contains(row)) {
                continue;
            }
            let blocks = cases::two_at_a_time(seeds.clone(), |seed| case.play(&trace, seed));
            let sums = cases::sums(&case, &blocks);
            let name = format!("{name}: {}", case.name);
            println!("{}", sums.line(&name));
            if let Some(told) = &sums.foreseen {
                println!("{}", told.line(&name));
            }
            if args.late {
                late(&name, &blocks);
            }
            if args.bounds && case.policy == policy::EASY {
                like_easy(&name, &blocks, &case.setup);
                if case.whole != cases::Whole::Out {
                    patient(&name, &blocks, &case.setup);
                }
            } else if args.bounds {
                bounds(&name, &blocks, &case.setup);
            }
            rows.insert(case.name, sums);
        }
        for goal in cases::goals(name, name == "gpushare100", &rows) {
            println!("{}", goal.line());
        }
        if args.gaming {
            let setup = Setup::default();
            let own = seeds.clone();
            let small: Vec<_> = trace.iter().copied().filter(|e| e.gpus < 8).collect();
            if args.bounds {
                let take = seeds.clone().map(|seed| {
                    let block = gaming::block(&small, &setup, 300, seed);
                    long_take(&block, room(&setup))
                });
                println!(
                    "{name}: a claim of the user that runs for three hours or more takes at least {:.2} times as long on average",
                    mean(&take.collect::<Vec<_>>())
                );
            }
            let played =
                cases::two_at_a_time(own, |seed| gaming::play_ways(&small, &setup, 300, seed));
            for (i, (way, _)) in gaming::WAYS.iter().enumerate() {
                let of = |f: fn(&gaming::Gain) -> f64| {
                    mean(&played.iter().map(|p| f(&p[i])).collect::<Vec<_>>())
                };
                println!(
                    "{name}: {way:<42} done {:.2} h, others wait {:.1} min; mean completion of the user's other claims {:.3} h, of others' {:.3} h",
                    of(|g| g.task_h),
                    of(|g| g.others_min),
                    of(|g| g.own_h),
                    of(|g| g.others_h)
                );
            }
        }
    }
}
