//! Replays runs with requested sizes, learned sizes, and known peaks: how much of the allocated memory is used, how
//! many runs run out of memory, and how long runs wait. Memory only; first come, first served, but a run that fits does
//! not wait for earlier ones that do not.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizedRun {
    /// Arrival in seconds.
    pub arrival_s: f64,
    /// Run time in seconds.
    pub run_s: f64,
    /// Bytes requested by the user.
    pub asked: u64,
    /// Bytes predicted from earlier runs; `None` without a prediction.
    pub said: Option<u64>,
    /// Peak bytes.
    pub peak: u64,
    /// Mean bytes in use.
    pub mean: u64,
}

/// Source of the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// User requests.
    Asked,
    /// Predictions; the request follows the use, as with `auto-shrink = "request"`.
    Learnt,
    /// The true peak of each run.
    Peaks,
}

/// Results of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sized {
    /// Used fraction of the allocated memory, over time.
    pub used: f64,
    /// Fraction of runs that ran out of memory.
    pub refused: f64,
    /// Mean wait in seconds.
    pub wait_s: f64,
}

/// Seconds until a run reaches its peak.
const RAMP_S: f64 = 20.0;
/// Seconds after which the request follows the peak, and the factor above it.
const LOOK_S: f64 = 60.0;
const ABOVE: f64 = 1.11;
const STEP: u64 = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    End,
    Arrive,
    Ramp,
    Look,
}

struct Machine {
    free: Vec<u64>,
    /// GPU and bytes of each active run, and since when it has them.
    held: Vec<Option<(usize, u64, f64)>>,
    allocated: f64,
}

impl Machine {
    /// Sets the size of a run; 0 frees everything.
    fn set(&mut self, run: usize, bytes: u64, now: f64) {
        if let Some((gpu, had, since)) = self.held[run] {
            self.allocated += had as f64 * (now - since);
            self.free[gpu] = self.free[gpu] + had - bytes;
            self.held[run] = (bytes > 0).then_some((gpu, bytes, now));
        }
    }

    fn start(&mut self, run: usize, bytes: u64, now: f64) -> bool {
        let fitting = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, free)| **free >= bytes);
        let Some((gpu, _)) = fitting.min_by_key(|(_, free)| **free) else {
            return false;
        };
        self.free[gpu] -= bytes;
        self.held[run] = Some((gpu, bytes, now));
        true
    }
}

/// Replays runs, in the order of arrival, on `gpus` GPUs of `mem` bytes.
#[must_use]
pub fn replay(runs: &[SizedRun], gpus: usize, mem: u64, sizing: Sizing) -> Sized {
    let step =
        |bytes: f64| (((bytes / STEP as f64).ceil() as u64) * STEP).clamp(STEP, mem / STEP * STEP);
    let wanted = |run: &SizedRun| match sizing {
        Sizing::Asked => step(run.asked as f64),
        Sizing::Learnt => step(run.said.unwrap_or(mem / 2) as f64),
        Sizing::Peaks => step(run.peak as f64),
    };
    let mut machine = Machine {
        free: vec![mem; gpus],
        held: vec![None; runs.len()],
        allocated: 0.0,
    };
    let micros = |s: f64| (s * 1e6) as u64;
    let mut events: BinaryHeap<Reverse<(u64, What, usize)>> = runs
        .iter()
        .enumerate()
        .map(|(n, run)| Reverse((micros(run.arrival_s), What::Arrive, n)))
        .collect();
    let mut waiting: VecDeque<usize> = VecDeque::new();
    let (mut used, mut refused, mut waited) = (0.0, 0u32, 0.0);
    while let Some(Reverse((at, what, n))) = events.pop() {
        let (now, run) = (at as f64 / 1e6, &runs[n]);
        match what {
            What::Arrive => waiting.push_back(n),
            What::End => {
                if machine.held[n].is_some() {
                    used += run.mean as f64 * run.run_s;
                    machine.set(n, 0, now);
                }
            }
            What::Ramp => {
                let Some((gpu, has, _)) = machine.held[n] else {
                    continue;
                };
                let needs = step(run.peak as f64);
                if needs <= has {
                    continue;
                }
                // Only learned sizes may burst into free memory.
                if sizing == Sizing::Learnt && machine.free[gpu] >= needs - has {
                    machine.set(n, needs, now);
                } else {
                    refused += 1;
                    machine.set(n, 0, now);
                }
            }
            What::Look => {
                if let Some((gpu, has, _)) = machine.held[n] {
                    let fits = step(run.peak as f64 * ABOVE).min(has + machine.free[gpu]);
                    machine.set(n, fits, now);
                }
            }
        }
        let mut left = VecDeque::new();
        while let Some(next) = waiting.pop_front() {
            let run = &runs[next];
            if !machine.start(next, wanted(run), now) {
                left.push_back(next);
                continue;
            }
            waited += now - run.arrival_s;
            let ramp = RAMP_S.min(run.run_s / 4.0);
            events.push(Reverse((micros(now + ramp), What::Ramp, next)));
            if sizing == Sizing::Learnt && run.run_s > LOOK_S {
                events.push(Reverse((micros(now + LOOK_S), What::Look, next)));
            }
            events.push(Reverse((micros(now + run.run_s), What::End, next)));
        }
        waiting = left;
    }
    let many = runs.len().max(1) as f64;
    Sized {
        used: used / machine.allocated.max(f64::MIN_POSITIVE),
        refused: f64::from(refused) / many,
        wait_s: waited / many,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn run(arrival_s: f64, asked: u64, said: Option<u64>, peak: u64) -> SizedRun {
        SizedRun {
            arrival_s,
            run_s: 1000.0,
            asked: asked * GIB,
            said: said.map(|s| s * GIB),
            peak: peak * GIB,
            mean: peak * GIB,
        }
    }

    #[test]
    fn what_is_asked_for_too_much_makes_others_wait() {
        let runs = [run(0.0, 20, Some(5), 4), run(1.0, 20, Some(5), 4)];
        let asked = replay(&runs, 1, 24 * GIB, Sizing::Asked);
        assert!(
            (asked.used - 0.2).abs() < 1e-9 && (asked.wait_s - 499.5).abs() < 1e-3,
            "{asked:?}"
        );
        let learnt = replay(&runs, 1, 24 * GIB, Sizing::Learnt);
        assert!(
            learnt.used > 0.85 && learnt.wait_s == 0.0 && learnt.refused == 0.0,
            "{learnt:?}"
        );
        let peaks = replay(&runs, 1, 24 * GIB, Sizing::Peaks);
        assert!((peaks.used - 1.0).abs() < 1e-9, "{peaks:?}");
    }

    #[test]
    fn a_run_that_needs_more_than_was_said_grows_where_there_is_room() {
        let alone = replay(&[run(0.0, 8, Some(4), 6)], 1, 24 * GIB, Sizing::Learnt);
        assert!(alone.refused == 0.0, "{alone:?}");
        let tight = [run(0.0, 8, Some(20), 20), run(1.0, 8, Some(4), 6)];
        let tight = replay(&tight, 1, 24 * GIB, Sizing::Learnt);
        assert!((tight.refused - 0.5).abs() < 1e-9, "{tight:?}");
        let asked = replay(&[run(0.0, 4, None, 6)], 1, 24 * GIB, Sizing::Asked);
        assert!(
            (asked.refused - 1.0).abs() < 1e-9,
            "what was asked for is a cap: {asked:?}"
        );
    }
}
