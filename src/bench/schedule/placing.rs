//! Benefit of exact placement in strict arrival order, where only places differ, and duration of the search.

use gshare_core::play::figures::mean;
use gshare_core::play::list::{self, Cut};
use gshare_core::play::simple::{Order, Placing, Simply, play};
use gshare_core::play::{Entry, Setup};
use serde_json::{Value, json};

use super::{Goal, List, cpu_ns, two_at_a_time};
use crate::bench::say;
use crate::bench::stats::Times;

struct Row {
    blocks: Vec<(Vec<Entry>, Simply)>,
    decisions_us: Times,
}

impl Row {
    fn play(trace: &[Entry], cut: &Cut, placing: Placing, blocks: u32) -> Self {
        let setup = Setup {
            gpus: cut.gpus,
            ..Setup::default()
        };
        let played = two_at_a_time(0..u64::from(blocks), |seed| {
            let block = list::block(trace, cut, seed);
            let (mut took, mut from) = (Vec::new(), 0);
            let played = play(&block, &setup, Order::Arrival, placing, &mut |done| {
                if done {
                    took.push(cpu_ns().saturating_sub(from) as f64 / 1e3);
                } else {
                    from = cpu_ns();
                }
            });
            ((block, played), took)
        });
        let (blocks, took): (Vec<_>, Vec<Vec<f64>>) = played.into_iter().unzip();
        Self {
            blocks,
            decisions_us: Times::new(took.concat()),
        }
    }

    fn over(&self, of: impl Fn(&[Entry], &Simply) -> f64) -> f64 {
        mean(
            &self
                .blocks
                .iter()
                .map(|(l, p)| of(l, p))
                .collect::<Vec<_>>(),
        )
    }

    fn wait_min(&self) -> f64 {
        self.over(|l, p| p.played.figures(l).wait_mean_s / 60.0)
    }

    fn usage(&self) -> f64 {
        self.over(|_, p| p.played.useful * 100.0)
    }

    fn stall(&self) -> f64 {
        self.over(|l, p| {
            let ran: f64 = l.iter().map(|e| e.run_s).sum();
            p.played.claims.iter().map(|c| c.stall_s).sum::<f64>() / ran * 100.0
        })
    }

    fn moves(&self) -> f64 {
        self.over(|l, p| f64::from(p.played.figures(l).moves) / l.len() as f64)
    }
}

/// Fraction of blocks in which the first row has the shorter mean wait.
fn wins(a: &Row, b: &Row) -> f64 {
    let wait = |(l, p): &(Vec<Entry>, Simply)| p.played.figures(l).wait_mean_s;
    let pairs = a.blocks.iter().zip(&b.blocks);
    pairs.filter(|(a, b)| wait(a) < wait(b)).count() as f64 / a.blocks.len().max(1) as f64
}

pub(super) fn run(
    list: &List,
    blocks: u32,
    quick: bool,
    measured: &mut Vec<Value>,
    goals: &mut Vec<Goal>,
) {
    let cut = Cut {
        claims: if quick { 300 } else { 1500 },
        ..Cut::default()
    };
    let trace = list.without_whole();
    say(&format!(
        "\n{}, first come, first served: mean wait min, use %, moves a claim",
        list.name
    ));
    let names = [
        ("exclusive", Placing::Exclusive),
        ("first-fit", Placing::FirstFit),
        ("best-fit", Placing::BestFit),
        ("fgd", Placing::Fgd),
        ("exact", Placing::Exact),
        ("pooled", Placing::Pooled),
    ];
    let rows = names.map(|(name, placing)| {
        let row = Row::play(&trace, &cut, placing, blocks);
        let (wait, usage, moves) = (row.wait_min(), row.usage(), row.moves());
        say(&format!("{name:<12} {wait:>8.1} {usage:>6.1} {moves:>6.3}"));
        row
    });
    let figures = names.iter().zip(&rows).map(|((name, _), r)| {
        let figures = json!({ "wait_min": r.wait_min(), "use": r.usage() / 100.0, "moves": r.moves(), "stall": r.stall() / 100.0 });
        ((*name).to_owned(), figures)
    });
    let figures: serde_json::Map<String, Value> = figures.collect();
    measured.push(json!({ "list": list.name, "arrival_order": figures }));
    let [_, _, _, fgd, exact, pooled] = &rows;
    let (wait, points) = if list.is_shared() {
        (0.75, 4.5)
    } else {
        (0.91, 1.2)
    };
    let name = &list.name;
    let least = fgd.wait_min().max(1e-9);
    goals.extend([
        Goal::most(
            format!(
                "{name}: exact placement, mean wait over that of fgd (bound {:.3})",
                pooled.wait_min() / least
            ),
            exact.wait_min() / least,
            wait,
        ),
        Goal::least(
            format!(
                "{name}: exact placement, use above fgd, points (bound {:.2})",
                pooled.usage() - fgd.usage()
            ),
            exact.usage() - fgd.usage(),
            points,
        ),
        Goal::least(
            format!("{name}: exact placement, blocks with a shorter mean wait than fgd"),
            wins(exact, fgd),
            0.95,
        ),
        Goal::most(
            format!("{name}: exact placement, stall, % of run time"),
            exact.stall(),
            0.2,
        ),
        Goal::most(
            format!("{name}: exact placement, moves per claim"),
            exact.moves(),
            0.2,
        ),
    ]);
    for (gpus, goal_us) in [(8, 1000.0), (16, 5000.0)] {
        let cut = Cut { gpus, ..cut };
        let row = Row::play(&trace, &cut, Placing::Exact, blocks.min(5));
        let sum = |of: fn(&Simply) -> u32| row.blocks.iter().map(|(_, p)| of(p)).sum::<u32>();
        let (all, open) = (sum(|p| p.searches.0), sum(|p| p.searches.1));
        goals.extend([
            Goal::most(
                format!("{name}, {gpus} GPUs: decision with the search p99, us of processor time"),
                row.decisions_us.p99().unwrap_or(0.0),
                goal_us,
            ),
            Goal::least(
                format!("{name}, {gpus} GPUs: searches with a proof, of {all}"),
                1.0 - f64::from(open) / f64::from(all.max(1)),
                0.99,
            ),
        ]);
    }
}
