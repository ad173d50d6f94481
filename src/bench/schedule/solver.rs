//! The search alone: its duration, how often its answer is proven, and how full the machine gets.

use gshare_core::play::list::Dice;
use gshare_core::play::list::Entry;
use gshare_core::sched::solve::{Answer, Board, Budget, Fit, Item, Mask, Need, Prefer};
use serde_json::{Value, json};

use crate::bench::say;
use crate::bench::stats::Times;
use gshare_core::play::cases::Goal;
use gshare_core::play::figures::mean;

struct Filled {
    board: Board,
    took_us: Vec<f64>,
    unproven: u32,
    searches: u32,
}

impl Filled {
    fn new(gpus: usize) -> Self {
        Self {
            board: Board {
                kind: vec![0; gpus],
                model: vec![0; gpus],
                free: vec![
                    Need {
                        sm: 1000,
                        mem: 1000
                    };
                    gpus
                ],
                items: Vec::new(),
            },
            took_us: Vec::new(),
            unproven: 0,
            searches: 0,
        }
    }

    /// Tries to place a claim; returns false if it does not fit.
    fn place(&mut self, item: Item) -> bool {
        let started = super::cpu_ns();
        let answer = self
            .board
            .place(&item, Prefer::Pack, |_| 0, Budget::default());
        self.took_us
            .push(super::cpu_ns().saturating_sub(started) as f64 / 1e3);
        self.searches += 1;
        match answer {
            Answer::Fits(fit) => {
                self.unproven += u32::from(!fit.optimal);
                self.apply(item, fit);
                true
            }
            Answer::No => false,
            Answer::Unknown => {
                self.unproven += 1;
                false
            }
        }
    }

    fn apply(&mut self, mut item: Item, fit: Fit) {
        for (index, at) in fit.moves {
            let need = self.board.items[index].need[0];
            for g in std::mem::take(&mut self.board.items[index].at) {
                self.board.free[g] = self.board.free[g].plus(need);
            }
            for &g in &at {
                self.board.free[g] = self.board.free[g].less(need);
            }
            self.board.items[index].at = at;
        }
        for &g in &fit.at {
            self.board.free[g] = self.board.free[g].less(item.need[0]);
        }
        item.at = fit.at;
        self.board.items.push(item);
    }

    fn leave(&mut self, index: usize) {
        let item = self.board.items.swap_remove(index);
        for &g in &item.at {
            self.board.free[g] = self.board.free[g].plus(item.need[0]);
        }
    }

    fn allocation(&self) -> f64 {
        let free: u32 = self.board.free.iter().map(|f| f.sm).sum();
        1.0 - f64::from(free) / 1000.0 / self.board.free.len() as f64
    }
}

fn item(e: &Entry, mem: u64) -> Item {
    Item {
        need: vec![Need { sm: e.milli, mem }],
        parts: e.gpus,
        mask: Mask::MAX,
        at: Vec::new(),
        move_cost: Some(u64::from(e.milli)),
        drop_cost: None,
    }
}

/// Claims arrive and leave on a machine that is kept full; with `two` dimensions memory is independent of SMs.
fn churn(trace: &[Entry], gpus: usize, two: bool, rounds: u32) -> Filled {
    let mut filled = Filled::new(gpus);
    let mut dice = Dice::new(gpus as u64 + u64::from(two));
    for _ in 0..rounds {
        let e = trace[dice.below(trace.len())];
        let mem = if two {
            100 * (1 + dice.below(10) as u64)
        } else {
            u64::from(e.milli)
        };
        if e.gpus as usize >= gpus || filled.place(item(&e, mem)) {
            continue;
        }
        let leaving = dice.below(filled.board.items.len());
        filled.leave(leaving);
    }
    filled
}

/// Claims arrive until they request 1.3 times the machine; none leaves.
fn saturate(trace: &[Entry], gpus: usize, seeds: u64) -> f64 {
    let once = |seed| {
        let mut filled = Filled::new(gpus);
        let mut dice = Dice::new(seed);
        let mut asked = 0.0;
        while asked < 1.3 * gpus as f64 {
            let e = trace[dice.below(trace.len())];
            asked += e.size();
            filled.place(item(&e, u64::from(e.milli)));
        }
        filled.allocation()
    };
    mean(&(0..seeds).map(once).collect::<Vec<f64>>()) * 100.0
}

pub(super) fn run(trace: &[Entry], quick: bool) -> (Value, Vec<Goal>) {
    say(
        "\nthe search alone on a machine that is kept full, the hardest case: one placement, processor time",
    );
    let mut goals = Vec::new();
    let mut figures = Vec::new();
    let rounds = if quick { 300 } else { 20_000 };
    for gpus in [8, 16] {
        for two in [false, true] {
            let filled = churn(trace, gpus, two, rounds);
            let times = Times::new(filled.took_us.clone());
            let (p50, p99) = (times.median().unwrap_or(0.0), times.p99().unwrap_or(0.0));
            let proven = 1.0 - f64::from(filled.unproven) / f64::from(filled.searches.max(1));
            let dims = if two { "memory apart" } else { "one size" };
            say(&format!(
                "{gpus:>2} GPUs, {dims:<12}: p50 {p50:.1} us, p99 {p99:.1} us, proven {:.2} % of {}",
                proven * 100.0,
                filled.searches
            ));
            figures.push(json!({ "gpus": gpus, "dimensions": if two { 2 } else { 1 }, "p50_us": p50, "p99_us": p99, "proven": proven }));
        }
    }
    let seeds = if quick { 5 } else { 200 };
    for (gpus, goal) in [(8, 92.0), (16, 94.3)] {
        let full = saturate(trace, gpus, seeds);
        goals.push(Goal::least(
            format!("B7 {gpus} GPUs: allocation, % when 1.3 of it was asked, nobody suspended"),
            full,
            goal,
        ));
        figures.push(json!({ "gpus": gpus, "saturated": full }));
    }
    (json!({ "search": figures }), goals)
}
