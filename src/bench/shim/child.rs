//! The measuring process: loads the driver directly and behind the proxy, and times both.

use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::Context;
use gshare_sim_noop::Calls;
use serde::{Deserialize, Serialize};

use super::desk::CAP;
use crate::bench::stats::Times;

/// Number of threads for [`Crowd`].
pub(super) const THREADS: usize = 8;

const LARGE: usize = 2 << 20;
const SMALL: usize = 1 << 10;
const LIVE: [usize; 3] = [0, 1_000, 10_000];

/// Kind of claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scene {
    /// On one GPU that it has to itself.
    Alone,
    /// On two.
    TwoGpus,
    /// On a GPU shared with idle claims: launches pass the gate.
    Shared,
}

impl Scene {
    const ALL: [Self; 3] = [Self::Alone, Self::TwoGpus, Self::Shared];

    /// Number of GPUs.
    pub(super) fn gpus(self) -> u8 {
        match self {
            Self::TwoGpus => 2,
            Self::Alone | Self::Shared => 1,
        }
    }
}

/// Amount of measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rounds with one thread.
    pub(super) rounds: u32,
    /// Rounds with several threads.
    pub(super) crowd_rounds: u32,
    /// Divisor for the number of calls in a round.
    pub(super) scale: u32,
}

impl Plan {
    /// Arguments of the child, after the two libraries.
    pub(super) fn arguments(&self, scene: Scene) -> [String; 4] {
        let Self {
            rounds,
            crowd_rounds,
            scale,
        } = self;
        [scene as u32, *rounds, *crowd_rounds, *scale].map(|number| number.to_string())
    }
}

/// One operation: medians over the rounds, in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) key: String,
    pub(super) bare: f64,
    pub(super) shim: f64,
    /// Median of the rounds' differences.
    pub(super) added: f64,
}

/// One operation by one thread and by several: nanoseconds of a core, and the median ratio of the rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Crowd {
    pub(super) key: String,
    pub(super) shim_one: f64,
    pub(super) shim_eight: f64,
    pub(super) shim_ratio: f64,
    pub(super) bare_ratio: f64,
}

/// Results of the child.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) rows: Vec<Row>,
    pub(super) crowds: Vec<Crowd>,
    /// Launches made through the proxy.
    pub(super) launches: u64,
    /// Allocations held through the proxy at the end.
    pub(super) allocations: u64,
}

/// Live allocations on one side; the oldest is freed for each new one.
#[derive(Default)]
struct Held {
    pointers: Vec<u64>,
    oldest: usize,
}

impl Held {
    /// Adds an allocation and returns the one to be freed.
    #[inline]
    fn turn(&mut self, new: u64) -> u64 {
        let Some(place) = self.pointers.get_mut(self.oldest) else {
            return new;
        };
        self.oldest += 1;
        let old = std::mem::replace(place, new);
        if self.oldest == self.pointers.len() {
            self.oldest = 0;
        }
        old
    }
}

#[inline]
fn pair(calls: &Calls, held: &mut Held, bytes: usize) -> bool {
    match calls.alloc(bytes) {
        Ok(pointer) => calls.free(held.turn(pointer)) == 0,
        Err(_) => false,
    }
}

#[inline]
fn pair_async(calls: &Calls) -> bool {
    match calls.alloc_async(LARGE) {
        Ok(pointer) => calls.free_async(pointer) == 0,
        Err(_) => false,
    }
}

struct Bench {
    bare: Calls,
    shim: Calls,
    plan: Plan,
    figures: Figures,
}

/// Runs the child; returns its figures as one line of JSON.
pub(crate) fn run(args: &[String]) -> anyhow::Result<String> {
    let [driver, shim, numbers @ ..] = args else {
        anyhow::bail!("two libraries are needed");
    };
    let numbers: Vec<u32> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
    let [scene, rounds, crowd_rounds, scale] = numbers[..] else {
        anyhow::bail!("four numbers are needed");
    };
    let bare = Calls::load(Path::new(driver))?;
    let shim = Calls::load(Path::new(shim))?;
    let scene = Scene::ALL.into_iter().find(|known| *known as u32 == scene);
    let scene = scene.context("an unknown scene")?;
    anyhow::ensure!(
        shim.begin(i32::from(scene.gpus())) == 0,
        "the proxied driver does not start"
    );
    let total = shim.mem_info().1;
    anyhow::ensure!(
        total as u64 == CAP,
        "the proxy shows {total} bytes instead of the cap: it is not a member of the claim"
    );
    let mut bench = Bench {
        bare,
        shim,
        plan: Plan {
            rounds,
            crowd_rounds,
            scale: scale.max(1),
        },
        figures: Figures::default(),
    };
    match scene {
        Scene::Alone => bench.all()?,
        Scene::TwoGpus => bench.launches("launch_two_gpus", Calls::launch)?,
        // A run of 5 s or more.
        Scene::Shared => bench.launches_of("launch_shared", 3_000_000, Calls::launch)?,
    }
    Ok(serde_json::to_string(&bench.figures)?)
}

impl Bench {
    fn all(&mut self) -> anyhow::Result<()> {
        self.launches("launch", Calls::launch)?;
        self.launches("launch_ptsz", Calls::launch_ptsz)?;
        self.row("trampoline", 20_000, |calls, _| calls.stream_query() == 0)?;
        self.row("mem_info", 20_000, |calls, _| calls.mem_info().1 > 0)?;
        for (name, bytes) in [("alloc_free", LARGE), ("small", SMALL)] {
            for live in LIVE {
                let key = format!("{name}_{live}");
                self.row_with(&key, 2_000, live, bytes, |calls, held| {
                    pair(calls, held, bytes)
                })?;
            }
        }
        self.row("async_pair", 2_000, |calls, _| pair_async(calls))?;
        let launches = self.crowd("launch", 200_000, |calls| calls.launch() == 0)?;
        self.figures.launches += launches;
        self.crowd("alloc_free", 10_000, |calls| {
            pair(calls, &mut Held::default(), LARGE)
        })?;
        Ok(())
    }

    fn launches(&mut self, key: &str, launch: fn(&Calls) -> i32) -> anyhow::Result<()> {
        self.launches_of(key, 20_000, launch)
    }

    fn launches_of(
        &mut self,
        key: &str,
        calls: u32,
        launch: fn(&Calls) -> i32,
    ) -> anyhow::Result<()> {
        let calls = self.row(key, calls, |calls, _| launch(calls) == 0)?;
        self.figures.launches += calls;
        Ok(())
    }

    fn row(
        &mut self,
        key: &str,
        calls: u32,
        op: impl FnMut(&Calls, &mut Held) -> bool,
    ) -> anyhow::Result<u64> {
        self.row_with(key, calls, 0, 0, op)
    }

    /// Times an operation on both sides, with this many live allocations on each. Returns the number of calls on each
    /// side.
    fn row_with(
        &mut self,
        key: &str,
        calls: u32,
        live: usize,
        bytes: usize,
        mut op: impl FnMut(&Calls, &mut Held) -> bool,
    ) -> anyhow::Result<u64> {
        let calls = (calls / self.plan.scale).max(1);
        let sides = [self.bare, self.shim];
        let mut held = [Held::default(), Held::default()];
        for (side, held) in sides.iter().zip(&mut held) {
            for _ in 0..live {
                let pointer = side.alloc(bytes);
                held.pointers.push(
                    pointer.map_err(|code| anyhow::anyhow!("{key}: cuMemAlloc gave {code}"))?,
                );
            }
        }
        let (mut bare, mut shim, mut added) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=self.plan.rounds {
            let mut ns = [0.0; 2];
            // The order alternates, so that being first affects both sides equally.
            for side in [round as usize % 2, (round as usize + 1) % 2] {
                let started = Instant::now();
                let mut good = true;
                for _ in 0..calls {
                    good &= op(&sides[side], &mut held[side]);
                }
                ns[side] = started.elapsed().as_nanos() as f64 / f64::from(calls);
                anyhow::ensure!(good, "{key}: a call failed");
            }
            // The first round loads code and data into the caches.
            if round > 0 {
                bare.push(ns[0]);
                shim.push(ns[1]);
                added.push(ns[1] - ns[0]);
            }
        }
        for (side, held) in sides.iter().zip(&held) {
            for pointer in &held.pointers {
                anyhow::ensure!(side.free(*pointer) == 0, "{key}: cuMemFree failed");
            }
        }
        self.figures.rows.push(Row {
            key: key.to_owned(),
            bare: median(bare),
            shim: median(shim),
            added: median(added),
        });
        Ok(u64::from(calls) * (u64::from(self.plan.rounds) + 1))
    }

    /// Times an operation by one thread and by several; returns the number of calls through the proxy.
    fn crowd(
        &mut self,
        key: &str,
        calls: u32,
        op: impl Fn(&Calls) -> bool + Sync,
    ) -> anyhow::Result<u64> {
        let calls = (calls / self.plan.scale).max(1);
        let (mut ones, mut eights) = (Vec::new(), Vec::new());
        let (mut shim, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..self.plan.crowd_rounds {
            for (side, ratios) in [(&self.bare, &mut bare), (&self.shim, &mut shim)] {
                let one = crowd_ns(side, 1, calls, &op)
                    .with_context(|| format!("{key} by one thread"))?;
                let eight = crowd_ns(side, THREADS, calls, &op)
                    .with_context(|| format!("{key} by {THREADS} threads"))?;
                ratios.push(eight / one);
                ones.push(one);
                eights.push(eight);
            }
        }
        // Direct and proxied results alternate, direct first.
        let proxied = |all: Vec<f64>| median(all.into_iter().skip(1).step_by(2).collect());
        self.figures.crowds.push(Crowd {
            key: key.to_owned(),
            shim_one: proxied(ones),
            shim_eight: proxied(eights),
            shim_ratio: median(shim),
            bare_ratio: median(bare),
        });
        let threads = THREADS as u64 + 1;
        Ok(u64::from(calls) * threads * u64::from(self.plan.crowd_rounds))
    }
}

/// Core time per call in nanoseconds while this many threads make calls at once. With fewer cores than threads the
/// cores are shared. A thread that sleeps at a lock counts as well.
fn crowd_ns(
    calls: &Calls,
    threads: usize,
    count: u32,
    op: &(impl Fn(&Calls) -> bool + Sync),
) -> anyhow::Result<f64> {
    let gate = Barrier::new(threads);
    let spans = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut good = calls.enter() == 0;
                    gate.wait();
                    let started = Instant::now();
                    for _ in 0..count {
                        good &= op(calls);
                    }
                    (good, started, Instant::now())
                })
            })
            .collect();
        let joined: Vec<_> = workers.into_iter().map(|w| w.join().ok()).collect();
        joined
    });
    let spans: Option<Vec<_>> = spans.into_iter().collect();
    let spans = spans.context("a thread panicked")?;
    anyhow::ensure!(spans.iter().all(|span| span.0), "a call failed");
    let started = spans.iter().map(|span| span.1).min();
    let ended = spans.iter().map(|span| span.2).max();
    let (Some(started), Some(ended)) = (started, ended) else {
        anyhow::bail!("no thread ran");
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wall = ended.duration_since(started).as_nanos() as f64;
    Ok(wall * cores.min(threads) as f64 / (threads as f64 * f64::from(count)))
}

fn median(times: Vec<f64>) -> f64 {
    Times::new(times).median().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first() {
        let mut none = Held::default();
        assert_eq!(none.turn(7), 7);
        let mut held = Held {
            pointers: vec![1, 2],
            oldest: 0,
        };
        let freed: Vec<u64> = (3..8).map(|new| held.turn(new)).collect();
        assert_eq!(freed, [1, 2, 3, 4, 5]);
    }
}
