//! The rows of `gshare bench schedule` that the live machine is judged by, without the rest of gshare: builds in seconds.
//!
//! `cargo run --release -p gshare-core --example play -- DIR [--blocks N] [--from N] [--row TEXT|TEXT] [--list TEXT]
//! [--full] [--gaming] [--bounds] [--late] [--policy NAME ...]`
#![allow(clippy::print_stdout, reason = "it prints rows")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use gshare_core::machine::Obstacle;
use gshare_core::play::figures::{Outcome, Played, jain, mean};
use gshare_core::play::{Entry, Policy, Setup, cases, gaming, list};
use gshare_core::sched::fair::level;

struct Args {
    dir: PathBuf,
    blocks: u64,
    from: u64,
    row: String,
    list: String,
    policies: Vec<Policy>,
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
        policies: Vec::new(),
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
            "--policy" => {
                let named = words.next().and_then(|name| Policy::named(&name));
                found.policies.push(*named.expect("a policy"));
            }
            "--full" => found.full = true,
            "--gaming" => found.gaming = true,
            "--bounds" => found.bounds = true,
            "--late" => found.late = true,
            dir => found.dir = PathBuf::from(dir),
        }
    }
    found
}

/// What the order of an ideal scheduler goes by.
#[derive(Clone, Copy, PartialEq)]
enum Knows {
    /// How long each claim will run: the one with the least left goes first.
    Everything,
    /// How run times of the block spread, by size: the one most likely to end soon for the time that this takes goes
    /// first (Gittins index).
    Spread,
    /// How long each claim has run: levels, then arrival.
    Nothing,
}

/// Run times after which claims are put in order again, in seconds.
const LOOKS: [f64; 6] = [60.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0];

/// How many ends a second can be had at best from a claim that has run for so long, by the sorted run times of others.
fn gittins(times: &[f64], ran: f64) -> f64 {
    let longer = &times[times.partition_point(|t| *t <= ran + 1e-6)..];
    let (mut before, mut best) = (0.0, 0.0_f64);
    for (ended, time) in longer.iter().enumerate() {
        let spent = before + (time - ran) * (longer.len() - ended) as f64;
        best = best.max((ended + 1) as f64 / spent);
        before += time - ran;
    }
    best
}

/// The order of the claims of a block for a scheduler that knows so much: smaller goes first.
fn order_of(list: &[Entry], knows: Knows) -> impl FnMut(usize, f64) -> f64 + use<'_> {
    let mut times: BTreeMap<Option<(u32, u32)>, Vec<f64>> = BTreeMap::new();
    for e in list {
        for size in [Some((e.gpus, e.milli)), None] {
            times.entry(size).or_default().push(e.run_s);
        }
    }
    times.values_mut().for_each(|t| t.sort_by(f64::total_cmp));
    // A size that is rare says nothing by itself.
    times.retain(|size, times| size.is_none() || times.len() >= 10);
    let mut known = vec![(-1.0, 0.0); list.len()];
    move |i, left| {
        let e = &list[i];
        let ran = e.run_s - left;
        match knows {
            Knows::Everything => left,
            Knows::Nothing => f64::from(level(ran + 1e-6)),
            Knows::Spread => {
                let looked = LOOKS.into_iter().filter(|t| *t <= ran + 1e-6);
                let ran = looked.fold(0.0, f64::max);
                if known[i].0 != ran {
                    let own = times.get(&Some((e.gpus, e.milli)));
                    known[i] = (ran, -gittins(own.unwrap_or(&times[&None]), ran));
                }
                known[i].1
            }
        }
    }
}

/// A claim of a GPU shares it with none of at least so many thousandths if it is larger than the rest. So it counts as the
/// whole of the GPU where smaller ones count as nothing (a dual feasible function of bin packing): sums by each of these
/// stay within the machine.
const PACKED: [u32; 5] = [0, 190, 200, 350, 500];

/// What a part of a GPU counts for, in thousandths, where less than `least` counts as nothing.
fn packed(milli: u32, least: u32) -> u32 {
    match milli {
        m if m > 1000 - least => 1000,
        m if m < least => 0,
        m => m,
    }
}

/// A machine for an ideal scheduler, in GPUs.
#[derive(Clone, Copy)]
struct Room {
    gpus: f64,
    /// Memory beside that of its GPUs.
    host: f64,
    /// A claim runs on all that it asks for or not at all, as the memory that it has leaves it no choice.
    whole: bool,
}

impl Room {
    /// The part of each claim that runs, where those that `begun` says are served in this order; and what of them is in the
    /// host then.
    fn serve(self, list: &[Entry], order: &[(usize, f64)], begun: &[bool]) -> (Vec<f64>, f64) {
        let mut free = PACKED.map(|_| self.gpus);
        let mut away = 0.0;
        let runs = order.iter().zip(begun).map(|((i, _), begun)| {
            if !begun {
                return 0.0;
            }
            let takes = PACKED
                .map(|least| f64::from(list[*i].gpus * packed(list[*i].milli, least)) / 1000.0);
            let fits = free
                .iter()
                .zip(takes)
                .map(|(f, t)| if t > 0.0 { f / t } else { 1.0 });
            let part = match fits.fold(1.0, f64::min).max(0.0) {
                part if self.whole && part < 1.0 - 1e-9 => 0.0,
                part => part,
            };
            free.iter_mut().zip(takes).for_each(|(f, t)| *f -= part * t);
            away += (1.0 - part) * list[*i].size();
            part
        });
        let runs = runs.collect();
        (runs, away)
    }
}

/// Time from request to start and to end of each claim, and the longest from one run to the next, on a machine without
/// borders between GPUs on which stopping costs nothing: claims of all users but the first before the others (if
/// `shielded`), then by what the scheduler `knows`. A claim starts if the host has room for those that do not run then.
fn ideal(list: &[Entry], room: Room, knows: Knows, shielded: bool) -> Vec<Outcome> {
    let mut out = vec![Outcome::default(); list.len()];
    let mut ran_until = vec![None; list.len()];
    let mut order = order_of(list, knows);
    let mut active: Vec<(usize, f64)> = Vec::new();
    let (mut now, mut next) = (0.0, 0);
    while next < list.len() || !active.is_empty() {
        let mut keyed: Vec<(bool, f64, (usize, f64))> = active
            .iter()
            .map(|c| (shielded && list[c.0].user == 0, order(c.0, c.1), *c))
            .collect();
        keyed.sort_by(|a, b| {
            (a.0.cmp(&b.0))
                .then(a.1.total_cmp(&b.1))
                .then(a.2.0.cmp(&b.2.0))
        });
        active = keyed.into_iter().map(|(.., c)| c).collect();
        let mut begun: Vec<bool> = active
            .iter()
            .map(|(i, _)| out[*i].wait_s.is_some())
            .collect();
        for n in 0..active.len() {
            if begun[n] {
                continue;
            }
            begun[n] = true;
            let (runs, away) = room.serve(list, &active, &begun);
            begun[n] = runs[n] > 1e-9 && away <= room.host + 1e-9;
            if begun[n] {
                let i = active[n].0;
                out[i].wait_s = Some(now - list[i].arrival_s);
            }
        }
        let (rates, _) = room.serve(list, &active, &begun);
        for ((i, _), rate) in active.iter().zip(&rates) {
            // One that starts only now was not away.
            let before = ran_until[*i].filter(|_| *rate > 0.0);
            let away = before.map_or(0.0, |at| now - at);
            out[*i].away_s = out[*i].away_s.max(away);
        }
        // Until somebody ends, or has run for so long that the order may be another.
        let ends = active.iter().zip(&rates).map(|((i, left), rate)| {
            let ran = list[*i].run_s - left;
            let look = LOOKS.into_iter().find(|t| *t > ran + 1e-6);
            let look = look.filter(|_| knows != Knows::Everything);
            now + look.map_or(*left, |t| left.min(t - ran)) / rate
        });
        let arrives = list.get(next).map_or(f64::INFINITY, |e| e.arrival_s);
        let at = ends.fold(arrives, f64::min);
        for ((i, left), rate) in active.iter_mut().zip(&rates) {
            *left -= (at - now) * rate;
            if *rate > 0.0 {
                ran_until[*i] = Some(at);
            }
        }
        now = at;
        active.retain(|(i, left)| {
            if *left <= 1e-6 {
                out[*i].done_s = Some(now - list[*i].arrival_s);
            }
            *left > 1e-6
        });
        while list.get(next).is_some_and(|e| e.arrival_s <= now) {
            active.push((next, list[next].run_s));
            next += 1;
        }
    }
    out
}

/// GPU time that was free while somebody waited, and how large a claim that waits is on average.
fn idle(name: &str, blocks: &[cases::Block]) {
    let over = |of: &dyn Fn(&cases::Block) -> f64| mean(&blocks.iter().map(of).collect::<Vec<_>>());
    let size = |b: &cases::Block| {
        let waits = b.list.iter().zip(b.played.claims.iter());
        let waits = waits.filter_map(|(e, c)| Some((e.size(), c.wait_s?)));
        let (sizes, all) = waits.fold((0.0, 0.0), |(sizes, all), (size, wait)| {
            (sizes + size * wait, all + wait)
        });
        sizes / all.max(1e-9)
    };
    println!(
        "{name}: free while somebody waits {:.1} % of GPU time; a claim that waits is of {:.2} GPUs on average",
        over(&|b| b.played.unfit * 100.0),
        over(&size)
    );
}

/// A block's claims, and what came of them.
type Of<'b> = (&'b [Entry], Played);

/// The mean wait, the mean completion, Jain's index of users' speeds, the speed of the slowest, and each block's longest time away, for the
/// played blocks and for ideal schedulers: with claims that run on any part of what they ask for, and with claims that run on
/// all of it or not at all.
fn bounds(name: &str, blocks: &[cases::Block], setup: &Setup) {
    let room = Room {
        gpus: setup.gpus as f64,
        host: setup.host.0 as f64 / setup.mem.0 as f64,
        whole: false,
    };
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
    idle(name, blocks);
    for whole in [false, true] {
        let how = if whole {
            "whole or not at all"
        } else {
            "in parts"
        };
        for (who, knows) in [
            ("all run times known", Knows::Everything),
            ("spread of run times known", Knows::Spread),
            ("nothing known", Knows::Nothing),
        ] {
            for (first, shielded) in [("others first", true), ("all alike", false)] {
                told(&format!("{how}, {who}, {first}"), &|b| Played {
                    claims: ideal(&b.list, Room { whole, ..room }, knows, shielded),
                    ..Played::default()
                });
            }
        }
    }
}

/// What was in the way of claims that started late within their owner's guarantee, with the sizes that this met most.
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
        let rows_of = |full: bool| match args.policies.as_slice() {
            [] => cases::cases(&trace, !full),
            named => named.iter().map(|p| cases::Case::of(*p)).collect(),
        };
        for case in rows_of(args.full) {
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
            if args.bounds {
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
