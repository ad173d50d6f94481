//! Tricks to get more than one's share: the heaviest user of a busy machine has a task of three hours, and asks for it
//! honestly or with one of these tricks.

use super::figures::mean;
use super::list::{self, Cut, Entry};
use super::{Setup, play};
use crate::claim::Class;

/// Run time of the task on one GPU, in seconds.
const TASK_S: f64 = 3.0 * 3600.0;

/// The task as an honest user requests it.
fn honest(from: f64) -> Entry {
    Entry {
        arrival_s: from,
        run_s: TASK_S,
        gpus: 1,
        milli: 1000,
        ..Entry::default()
    }
}

/// Name of a trick, and its claims from a given time on. The user's additional accounts have numbers from the second
/// argument on.
pub type Way = (&'static str, fn(f64, usize) -> Vec<Entry>);

/// All tricks; the first is the honest request.
pub const WAYS: [Way; 11] = [
    ("honest", |at, _| vec![honest(at)]),
    ("100 claims of 0.01", |at, others| {
        parts(at, others, 100, false)
    }),
    ("two halves", |at, others| parts(at, others, 2, false)),
    ("four accounts", |at, others| parts(at, others, 4, true)),
    ("20 pieces of 9 min, one after the other", |at, others| {
        pieces(at, others, 20, 1)
    }),
    ("180 pieces of 1 min, one after the other", |at, others| {
        pieces(at, others, 180, 1)
    }),
    (
        "20 pieces of 9 min of four accounts in turn",
        |at, others| pieces(at, others, 20, 4),
    ),
    ("class interactive", |at, _| {
        let class = Class::Interactive;
        vec![Entry {
            class,
            ..honest(at)
        }]
    }),
    ("class inference", |at, _| {
        let class = Class::Inference;
        vec![Entry {
            class,
            ..honest(at)
        }]
    }),
    ("keeps whatever is announced", |at, _| {
        vec![Entry {
            keeps: true,
            ..honest(at)
        }]
    }),
    ("a short time limit, extended", |at, _| {
        vec![Entry {
            limit_s: Some(600.0),
            extends: true,
            ..honest(at)
        }]
    }),
];

/// The user's own account is 0, additional ones start at `others`.
fn account(n: u32, others: usize) -> usize {
    match n {
        0 => 0,
        n => others + n as usize - 1,
    }
}

/// `count` claims at the same time, each of a part of the GPU.
fn parts(at: f64, others: usize, count: u32, accounts: bool) -> Vec<Entry> {
    let part = |n: u32| Entry {
        milli: 1000 / count,
        user: if accounts { account(n, others) } else { 0 },
        ..honest(at)
    };
    (0..count).map(part).collect()
}

/// Short consecutive claims of a whole GPU, with `accounts` used in turn.
fn pieces(at: f64, others: usize, count: u32, accounts: u32) -> Vec<Entry> {
    let piece = |n: u32| Entry {
        run_s: TASK_S / f64::from(count),
        after: (n > 0).then_some(1),
        user: account(n % accounts, others),
        ..honest(at)
    };
    (0..count).map(piece).collect()
}

/// Effect of a trick.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gain {
    /// Time from the request to the end of the whole task, in hours.
    pub task_h: f64,
    /// Mean wait of other users, in minutes.
    pub others_min: f64,
    /// Mean completion time of the same user's other claims, in hours.
    pub own_h: f64,
    /// Mean completion time of all other users' claims, in hours.
    pub others_h: f64,
}

/// The claims around the task.
#[must_use]
pub fn block(trace: &[Entry], setup: &Setup, claims: usize, seed: u64) -> Vec<Entry> {
    let cut = Cut {
        claims,
        gpus: setup.gpus,
        // Busy enough that a trick is worthwhile.
        load: 1.1,
        ..Cut::default()
    };
    list::block(trace, &cut, seed)
}

/// Plays the block of a seed with the task in the middle, once for each trick.
#[must_use]
pub fn play_ways(trace: &[Entry], setup: &Setup, claims: usize, seed: u64) -> Vec<Gain> {
    let block = block(trace, setup, claims, seed);
    let users = block.iter().map(|e| e.user + 1).max().unwrap_or(0);
    let at = block.get(block.len() / 2).map_or(0.0, |e| e.arrival_s);
    let one = |(_, way): &Way| {
        let own = way(at, users);
        let from = block.partition_point(|e| e.arrival_s < at);
        let mut list = block.clone();
        let count = own.len();
        list.splice(from..from, own);
        let played = play(&list, setup);
        let own = from..from + count;
        let ends = own.clone().map(|i| {
            let claim = &played.claims[i];
            // A task that was cut short has no result.
            let done = claim.done_s.filter(|_| !claim.cut_short);
            done.map_or(f64::INFINITY, |done| claim.asked_s + done)
        });
        let task_s = ends.fold(0.0, f64::max) - at;
        let others = list.iter().zip(&played.claims).enumerate();
        let others = others.filter(|(i, _)| !own.contains(i)).map(|(_, of)| of);
        let waits: Vec<f64> = others.clone().filter_map(|(_, c)| c.wait_s).collect();
        let done = |same: bool| {
            let of = others.clone().filter(|(e, _)| (e.user == 0) == same);
            mean(&of.filter_map(|(_, c)| c.done_s).collect::<Vec<_>>()) / 3600.0
        };
        Gain {
            task_h: task_s / 3600.0,
            others_min: mean(&waits) / 60.0,
            own_h: done(true),
            others_h: done(false),
        }
    };
    WAYS.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_task_that_is_ended_before_its_time_is_not_done() {
        // The warning comes too late for the owner to extend the time limit.
        let setup = Setup {
            gpus: 2,
            warning: Duration::ZERO,
            ..Setup::default()
        };
        let gains = play_ways(&list::synthetic(200, 1), &setup, 40, 1);
        let of = |name: &str| {
            let at = WAYS.iter().position(|(way, _)| *way == name);
            gains[at.expect("a way")].task_h
        };
        assert!(of("honest").is_finite());
        assert!(of("a short time limit, extended").is_infinite());
    }
}
