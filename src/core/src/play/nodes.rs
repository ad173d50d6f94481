//! Simulates nodes under Slurm: jobs wait in one queue, and each gets parts of GPUs of one node. Run times are unknown.
//! A job that fits starts, unless the first in the queue has waited for a day.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::figures::{Outcome, Played};
use super::list::Entry;

/// Granularity of GPU allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Any part of the sum of all GPUs: an upper bound.
    Pooled,
    /// Thousandths of a GPU; a part is on one GPU.
    Exact,
    /// This many shards per GPU; all shards of a job are on one GPU.
    Shards(u32),
}

/// A cluster of equal nodes.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    pub nodes: usize,
    /// GPUs of each node.
    pub gpus: usize,
    /// Granularity of allocation.
    pub parts: Parts,
    /// Jobs share the unallocated part of their GPU, and can use all of it.
    pub burst: bool,
}

/// Number of waiting jobs that are considered: `bf_max_job_test`.
const DEPTH: usize = 100;
const PATIENCE_S: f64 = 86_400.0;

struct Run {
    /// Indexes into `free`.
    on: Vec<usize>,
    /// Units on each of them.
    need: u32,
    left_s: f64,
    speed: f64,
    since: f64,
    /// When the job ends if nothing changes.
    ends: f64,
}

struct Play<'a> {
    list: &'a [Entry],
    cluster: Cluster,
    /// Units of one place.
    whole: u32,
    free: Vec<u32>,
    /// Jobs on each GPU.
    on: Vec<Vec<usize>>,
    runs: Vec<Option<Run>>,
    /// Expected ends in microseconds, with the job.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    waiting: VecDeque<usize>,
    played: Played,
    /// Allocated GPU-seconds.
    given_s: f64,
}

/// Plays a list (in order of arrival). Also returns the allocated fraction of all GPU time until the last arrival.
#[must_use]
pub fn play(list: &[Entry], cluster: Cluster) -> (Played, f64) {
    let all = cluster.nodes * cluster.gpus;
    let (places, whole) = match cluster.parts {
        Parts::Pooled => (1, 1000 * all as u32),
        Parts::Exact => (all, 1000),
        Parts::Shards(shards) => (all, shards),
    };
    let mut play = Play {
        list,
        cluster,
        whole,
        free: vec![whole; places],
        on: vec![Vec::new(); places],
        runs: list.iter().map(|_| None).collect(),
        due: BinaryHeap::new(),
        waiting: VecDeque::new(),
        played: Played {
            claims: vec![Outcome::default(); list.len()],
            ..Played::default()
        },
        given_s: 0.0,
    };
    play.run();
    let time = all as f64 * list.last().map_or(1.0, |e| e.arrival_s.max(1.0));
    play.played.useful /= time;
    play.played.unfit /= time;
    (play.played, play.given_s / time)
}

impl Play<'_> {
    fn run(&mut self) {
        let last = self.list.last().map_or(0.0, |e| e.arrival_s);
        let (mut now, mut next) = (0.0, 0);
        loop {
            let arrival = self.list.get(next).map(|e| e.arrival_s);
            let ends = self.due.peek().map(|Reverse((at, _))| *at as f64 / 1e6);
            let Some(at) = [arrival, ends].into_iter().flatten().min_by(f64::total_cmp) else {
                break;
            };
            let counted = at.min(last) - f64::min(now, last);
            let gpus = (self.cluster.nodes * self.cluster.gpus) as f64;
            let units = f64::from(self.whole) * self.free.len() as f64;
            let free = self.free.iter().map(|f| f64::from(*f)).sum::<f64>() / units * gpus;
            self.given_s += (gpus - free) * counted;
            if !self.waiting.is_empty() {
                self.played.unfit += free * counted;
            }
            now = at;
            while self.list.get(next).is_some_and(|e| e.arrival_s <= now) {
                self.waiting.push_back(next);
                next += 1;
            }
            while let Some(Reverse((at, job))) = self.due.peek().copied()
                && at as f64 / 1e6 <= now
            {
                self.due.pop();
                if self.runs[job]
                    .as_ref()
                    .is_some_and(|run| micros(run.ends) == at)
                {
                    self.end(job, now, last);
                }
            }
            self.start_all(now);
        }
    }

    fn need(&self, job: usize) -> u32 {
        let entry = &self.list[job];
        match self.cluster.parts {
            Parts::Pooled => entry.milli * entry.gpus,
            Parts::Exact | Parts::Shards(_) => (entry.milli * self.whole).div_ceil(1000),
        }
    }

    fn start_all(&mut self, now: f64) {
        let waited = |job: &usize| now - self.list[*job].arrival_s;
        let depth = match self.waiting.front().map(waited) {
            Some(waited) if waited > PATIENCE_S => 1,
            _ => DEPTH,
        };
        let mut at = 0;
        while at < depth.min(self.waiting.len()) {
            let job = self.waiting[at];
            let Some(on) = self.place(self.list[job].gpus as usize, self.need(job)) else {
                at += 1;
                continue;
            };
            self.waiting.remove(at);
            self.start(job, on, now);
        }
    }

    /// The first node with room; for a part of a GPU the GPU there with the least left.
    fn place(&self, gpus: usize, need: u32) -> Option<Vec<usize>> {
        if self.cluster.parts == Parts::Pooled {
            return (self.free[0] >= need).then(|| vec![0]);
        }
        (0..self.cluster.nodes).find_map(|node| {
            let own = node * self.cluster.gpus..(node + 1) * self.cluster.gpus;
            let mut able: Vec<usize> = own.filter(|g| self.free[*g] >= need).collect();
            able.sort_by_key(|g| self.free[*g]);
            able.truncate(gpus);
            (able.len() == gpus).then_some(able)
        })
    }

    fn start(&mut self, job: usize, on: Vec<usize>, now: f64) {
        let (entry, need) = (&self.list[job], self.need(job));
        let claim = &mut self.played.claims[job];
        claim.asked_s = entry.arrival_s;
        claim.wait_s = Some(now - entry.arrival_s);
        for &g in &on {
            self.free[g] -= need;
            self.on[g].push(job);
        }
        self.runs[job] = Some(Run {
            on: on.clone(),
            need,
            left_s: entry.run_s,
            speed: 1.0,
            since: now,
            ends: now + entry.run_s,
        });
        self.due.push(Reverse((micros(now + entry.run_s), job)));
        self.share_out(&on, now);
    }

    fn end(&mut self, job: usize, now: f64, last: f64) {
        let Some(run) = self.runs[job].take() else {
            return;
        };
        for &g in &run.on {
            self.free[g] += run.need;
            self.on[g].retain(|other| *other != job);
        }
        let entry = &self.list[job];
        let claim = &mut self.played.claims[job];
        claim.done_s = Some(now - entry.arrival_s);
        claim.ran_s = entry.run_s;
        let began = entry.arrival_s + claim.wait_s.unwrap_or(0.0);
        let inside = (last.min(now) - began.min(last)) / (now - began).max(1e-9);
        self.played.useful += entry.size() * entry.run_s * inside;
        self.share_out(&run.on, now);
    }

    /// Divides the unallocated part of a GPU among its jobs, in proportion to their parts.
    fn share_out(&mut self, gpus: &[usize], now: f64) {
        let &[gpu] = gpus else { return };
        if !self.cluster.burst || self.cluster.parts == Parts::Pooled {
            return;
        }
        let given = f64::from(self.whole - self.free[gpu]);
        for job in self.on[gpu].clone() {
            let asked = self.list[job].size();
            let Some(run) = self.runs[job].as_mut().filter(|run| run.on.len() == 1) else {
                continue;
            };
            run.left_s -= (now - run.since) * run.speed;
            run.since = now;
            run.speed = f64::from(run.need) / given / asked;
            run.ends = now + run.left_s.max(0.0) / run.speed;
            self.due.push(Reverse((micros(run.ends), job)));
        }
    }
}

fn micros(s: f64) -> u64 {
    (s * 1e6).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(arrival_s: f64, milli: u32) -> Entry {
        Entry {
            arrival_s,
            run_s: 100.0,
            gpus: 1,
            milli,
            ..Entry::default()
        }
    }

    #[test]
    fn what_is_lost_to_whole_shards_and_to_one_gpu_is_counted() {
        let list = [job(0.0, 600), job(0.0, 600), job(0.0, 600), job(100.0, 1)];
        let of = |parts, burst| {
            let (nodes, gpus) = (2, 1);
            let (played, given) = play(
                &list,
                Cluster {
                    nodes,
                    gpus,
                    parts,
                    burst,
                },
            );
            let waits: Vec<f64> = played.waits().collect();
            let done: Vec<f64> = played.claims.iter().filter_map(|c| c.done_s).collect();
            (waits, done, given, played.unfit)
        };
        // The third job fits into the sum of two GPUs, but not into either.
        let (waits, _, given, unfit) = of(Parts::Pooled, false);
        assert_eq!((waits[2], given, unfit), (0.0, 0.9, 0.0));
        let (waits, _, given, unfit) = of(Parts::Exact, false);
        assert_eq!((waits[2], given, unfit), (100.0, 0.6, 0.4));
        // Three of four shards for each job.
        let (_, _, given, unfit) = of(Parts::Shards(4), false);
        assert_eq!((given, unfit), (0.75, 0.25));
        // Alone on its GPU, each job gets all of it.
        let (waits, done, ..) = of(Parts::Exact, true);
        let near = |a: f64, b: f64| (a - b).abs() < 0.1;
        assert!(
            near(done[0], 60.0) && near(waits[2], 60.0) && near(done[2], 120.0),
            "{done:?}"
        );
    }
}
