//! Replaying a list of claims in virtual time under a policy: the what-if tool and the benchmark.

use super::fair::{Party, level};
use super::plan::{Job, Machine, Rules, Step, plan};
use super::solve::{Board, Item, Mask, Need, Prefer};
use crate::play::list::Entry;

/// A machine of equal GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// GPUs.
    pub gpus: usize,
    /// Memory of each, in bytes: what a claim of all of it moves.
    pub mem: u64,
    /// Users among whom it is divided.
    pub users: usize,
}

/// How claims are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// Each claim has whole GPUs.
    Exclusive,
    /// Each user has a fixed part of the machine; whole GPUs are counted out to him.
    Static,
    /// The first GPU with room.
    FirstFit,
    /// The GPU with least left.
    BestFit,
    /// The GPU whose fragmentation grows least.
    Fgd,
    /// The exact search, packing.
    Exact,
    /// The exact search, spreading while there is room.
    Spread,
    /// No GPUs, only a sum: a bound.
    Pooled,
}

/// A policy: who goes first, where he goes, and what may be done to others for him.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Its name in tables.
    pub name: &'static str,
    /// Where claims go.
    pub placing: Placing,
    /// Order of service.
    pub rules: Rules,
    /// Running claims may be moved.
    pub moves: bool,
    /// Running claims may be suspended.
    pub suspends: bool,
}

const FIFO: Rules = Rules {
    quota: false,
    attained: false,
    strict: true,
    ..Rules::DEFAULT
};
const QUOTA_FIFO: Rules = Rules {
    attained: false,
    ..Rules::DEFAULT
};

const fn policy(name: &'static str, placing: Placing, rules: Rules) -> Policy {
    let exact = matches!(placing, Placing::Exact | Placing::Spread);
    Policy {
        name,
        placing,
        rules,
        moves: exact,
        suspends: rules.quota,
    }
}

/// Every policy that can be replayed. The name says the placing, then the order of service; `gshare` is what the
/// service does where claims can be moved and suspended, `gshare-held` what it does where they cannot.
pub const POLICIES: [Policy; 14] = [
    policy("exclusive", Placing::Exclusive, FIFO),
    policy("static", Placing::Static, FIFO),
    policy("first-fit", Placing::FirstFit, FIFO),
    policy("best-fit", Placing::BestFit, FIFO),
    policy("fgd", Placing::Fgd, FIFO),
    policy("exact", Placing::Exact, FIFO),
    policy("spread", Placing::Spread, FIFO),
    policy("pooled", Placing::Pooled, FIFO),
    policy("exact+quota", Placing::Exact, QUOTA_FIFO),
    policy("best-fit+service", Placing::BestFit, Rules::DEFAULT),
    policy("fgd+service", Placing::Fgd, Rules::DEFAULT),
    policy("exact+service", Placing::Exact, Rules::DEFAULT),
    policy("gshare", Placing::Spread, Rules::DEFAULT),
    Policy {
        name: "gshare-held",
        placing: Placing::Exact,
        rules: Rules::DEFAULT,
        moves: false,
        suspends: false,
    },
];

impl Policy {
    /// The policy with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        POLICIES.iter().find(|p| p.name == name)
    }

    /// What it may do to claims that run.
    #[must_use]
    pub fn rights(&self) -> &'static str {
        match (self.moves, self.suspends) {
            (false, false) => "-",
            (true, false) => "move",
            (false, true) => "suspend",
            (true, true) => "move, suspend",
        }
    }
}

/// What came out. Times in seconds, parts from 0 to 1.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From the request to the first start, by claim.
    pub wait_s: Vec<f64>,
    /// From the request to the end, by claim.
    pub turnaround_s: Vec<f64>,
    /// Requested part of the machine that ran, time average until the last request.
    pub allocation: f64,
    /// The same without the time that moves and resumes cost, until the last request.
    pub useful: f64,
    /// Moves.
    pub moves: u32,
    /// Suspensions.
    pub suspensions: u32,
    /// Time that moves and resumes cost, in parts of all run time.
    pub stall: f64,
    /// Free part of a running claim's own GPU, average over claims and time until the last request.
    pub headroom: f64,
    /// Starts of claims that were entitled while they waited, and how many of them came in time.
    pub entitled: (u32, u32),
    /// Searches, and those that ended without a proof.
    pub searches: (u32, u32),
}

/// Seconds that it costs to park a claim's memory and to bring it back.
#[must_use]
pub fn stall_s(mem: u64) -> f64 {
    2.0 * (2.0 + mem as f64 / 4e9)
}

#[derive(Clone)]
struct Live {
    entry: usize,
    job: Job,
    left_s: f64,
    stall_s: f64,
    started: bool,
    entitled_since: Option<f64>,
}

struct World<'a> {
    node: Node,
    policy: &'a Policy,
    machine: Machine,
    shapes: Vec<(u32, u32, f64)>,
    live: Vec<Live>,
    now: f64,
    out: Outcome,
}

/// Plays `trace` (in order of arrival) on `node` under `policy`. `clock` is read around every decision and
/// the differences are given to `took`, in nanoseconds.
pub fn replay(
    trace: &[Entry],
    node: Node,
    policy: &Policy,
    clock: &dyn Fn() -> u64,
    took: &mut Vec<u64>,
) -> Outcome {
    let machines = match policy.placing {
        Placing::Pooled => 1,
        _ => node.gpus,
    };
    let scale = if policy.placing == Placing::Pooled {
        node.gpus
    } else {
        1
    };
    let capacity = Need {
        sm: 1000 * scale as u32,
        mem: node.mem * scale as u64,
    };
    let mut shapes: Vec<(u32, u32, f64)> = Vec::new();
    for e in trace {
        match shapes.iter_mut().find(|s| (s.0, s.1) == (e.gpus, e.milli)) {
            Some(s) => s.2 += 1.0,
            None => shapes.push((e.gpus, e.milli, 1.0)),
        }
    }
    for s in &mut shapes {
        s.2 /= trace.len() as f64;
    }
    let mut world = World {
        node,
        policy,
        machine: Machine {
            kind: vec![0; machines],
            capacity: vec![capacity; machines],
        },
        shapes,
        live: Vec::new(),
        now: 0.0,
        out: Outcome {
            wait_s: vec![0.0; trace.len()],
            turnaround_s: vec![0.0; trace.len()],
            ..Outcome::default()
        },
    };
    world.run(trace, clock, took);
    world.out
}

impl World<'_> {
    fn run(&mut self, trace: &[Entry], clock: &dyn Fn() -> u64, took: &mut Vec<u64>) {
        let last = trace.last().map_or(0.0, |e| e.arrival_s);
        let (mut next, mut run_all, mut stall_all, mut claims_time) = (0, 0.0, 0.0, 0.0);
        loop {
            let waits = self.live.iter().any(|l| l.job.item.at.is_empty());
            let mut at = trace.get(next).map_or(f64::INFINITY, |e| e.arrival_s);
            for l in self.live.iter().filter(|l| !l.job.item.at.is_empty()) {
                at = at.min(self.now + l.left_s + l.stall_s);
                if waits && (self.policy.suspends || self.policy.moves) {
                    at = at.min(self.boundary(l));
                }
            }
            if at.is_infinite() {
                break;
            }
            let at = at.max(self.now);
            let inside = (at.min(last) - self.now.min(last)).max(0.0);
            let (run, stall) = self.pass(at - self.now, inside, &mut claims_time);
            run_all += run;
            stall_all += stall;
            self.now = at;
            while trace.get(next).is_some_and(|e| e.arrival_s <= at) {
                self.arrive(next, &trace[next]);
                next += 1;
            }
            let ended: Vec<usize> = (0..self.live.len())
                .rev()
                .filter(|&i| {
                    let l = &self.live[i];
                    !l.job.item.at.is_empty() && l.left_s + l.stall_s <= 1e-6
                })
                .collect();
            for i in ended {
                let l = self.live.swap_remove(i);
                self.out.turnaround_s[l.entry] = at - trace[l.entry].arrival_s;
            }
            let started = clock();
            self.decide(trace);
            took.push(clock().saturating_sub(started));
        }
        let whole = self.node.gpus as f64 * last.max(1e-9);
        self.out.allocation /= whole;
        self.out.useful /= whole;
        self.out.stall = stall_all / f64::max(run_all, 1e-9);
        self.out.headroom /= f64::max(claims_time, 1e-9);
    }

    /// When something about a running claim changes that decisions rest on.
    fn boundary(&self, l: &Live) -> f64 {
        let settled = l.job.since_s + self.policy.rules.min_run_s;
        let mut at = if settled > self.now + 1e-6 {
            settled
        } else {
            f64::INFINITY
        };
        if self.policy.rules.attained {
            let next = super::fair::LEVELS.get(usize::from(level(l.job.attained_s)));
            if let Some(next) = next {
                let left = next.as_secs_f64() - l.job.attained_s;
                at = at.min(self.now + left / l.job.size + 1e-6);
            }
        }
        at
    }

    fn pass(&mut self, dt: f64, inside: f64, claims_time: &mut f64) -> (f64, f64) {
        let mut free: Vec<f64> = self
            .machine
            .capacity
            .iter()
            .map(|c| f64::from(c.sm))
            .collect();
        for l in &self.live {
            for &g in &l.job.item.at {
                free[g] -= f64::from(l.job.item.need[0].sm);
            }
        }
        let (mut run_all, mut stall_all) = (0.0, 0.0);
        for l in self.live.iter_mut().filter(|l| !l.job.item.at.is_empty()) {
            let stall = l.stall_s.min(dt);
            let run = dt - stall;
            l.stall_s -= stall;
            l.left_s -= run;
            l.job.attained_s += l.job.size * dt;
            run_all += dt;
            stall_all += stall;
            self.out.allocation += l.job.size * inside;
            self.out.useful += l.job.size * (inside - stall.min(inside));
            let own = l
                .job
                .item
                .at
                .iter()
                .map(|&g| free[g])
                .fold(f64::INFINITY, f64::min);
            self.out.headroom += own / 1000.0 * inside;
            *claims_time += inside;
        }
        (run_all, stall_all)
    }

    fn arrive(&mut self, index: usize, e: &Entry) {
        let whole = self.policy.placing == Placing::Exclusive;
        let pooled = self.policy.placing == Placing::Pooled;
        let milli = if whole { 1000 } else { e.milli };
        let mem = self.node.mem / 1000 * u64::from(e.milli);
        let (parts, sm, need_mem) = if pooled {
            (
                1,
                milli * e.gpus,
                self.node.mem / 1000 * u64::from(milli * e.gpus),
            )
        } else {
            (e.gpus, milli, self.node.mem / 1000 * u64::from(milli))
        };
        let (mask, parts, run_s) = if self.policy.placing == Placing::Static {
            let each = (self.node.gpus / self.node.users.max(1)).max(1) as u32;
            let own: Mask = (1 << each) - 1;
            let places = (self.node.gpus as u32 / each).max(1);
            let mask = own << (each * (e.user as u32 % places));
            // More GPUs than he has: on those he has, for longer.
            let longer = f64::from(e.gpus) / f64::from(e.gpus.min(each));
            (mask, parts.min(each), e.run_s * longer)
        } else {
            (Mask::MAX, parts, e.run_s)
        };
        let all = mem * u64::from(e.gpus);
        let item = Item {
            need: vec![Need { sm, mem: need_mem }],
            parts,
            mask,
            at: Vec::new(),
            move_cost: self.policy.moves.then_some(all),
            drop_cost: self.policy.suspends.then_some(all),
        };
        let prefer = if self.policy.placing == Placing::Spread {
            Prefer::Spread
        } else {
            Prefer::Pack
        };
        self.live.push(Live {
            entry: index,
            job: Job {
                id: index as u64,
                party: e.user,
                item,
                prefer,
                size: e.size(),
                rank: 0,
                arrival_s: e.arrival_s,
                attained_s: 0.0,
                since_s: e.arrival_s,
            },
            left_s: run_s,
            stall_s: 0.0,
            started: false,
            entitled_since: None,
        });
    }

    fn decide(&mut self, trace: &[Entry]) {
        let jobs: Vec<Job> = self.live.iter().map(|l| l.job.clone()).collect();
        let parties: Vec<Party> = (0..self.node.users)
            .map(|_| Party {
                quota: Some(self.node.gpus as f64 / self.node.users as f64),
                weight: 1.0,
                max: None,
                demand: 0.0,
            })
            .collect();
        let shapes = &self.shapes;
        let fgd = |board: &Board, item: &Item| fgd(board, item, shapes);
        let first = |board: &Board, item: &Item| {
            let fits: Vec<usize> = (0..board.free.len())
                .filter(|&g| item.mask & (1 << g) != 0 && item.need[0].fits(board.free[g]))
                .take(item.parts as usize)
                .collect();
            (fits.len() == item.parts as usize).then_some(fits)
        };
        let best = |board: &Board, item: &Item| board.direct(item, Prefer::Pack, |_| 0);
        let choose: Option<&super::plan::Chooser<'_>> = match self.policy.placing {
            Placing::FirstFit => Some(&first),
            Placing::BestFit | Placing::Exclusive | Placing::Static | Placing::Pooled => {
                Some(&best)
            }
            Placing::Fgd => Some(&fgd),
            Placing::Exact | Placing::Spread => None,
        };
        let by_user = self.policy.placing == Placing::Static;
        let plans: Vec<(Vec<usize>, super::plan::Plan)> = if by_user {
            // Each user has a queue of his own.
            (0..self.node.users)
                .map(|u| {
                    let own: Vec<usize> = (0..jobs.len()).filter(|&i| jobs[i].party == u).collect();
                    let his: Vec<Job> = own.iter().map(|&i| jobs[i].clone()).collect();
                    let rules = &self.policy.rules;
                    let p = plan(&self.machine, &his, &parties, rules, self.now, choose);
                    (own, p)
                })
                .collect()
        } else {
            let p = plan(
                &self.machine,
                &jobs,
                &parties,
                &self.policy.rules,
                self.now,
                choose,
            );
            vec![((0..jobs.len()).collect(), p)]
        };
        for (index, p) in plans {
            self.out.searches.0 += p.searches;
            self.out.searches.1 += p.unproven;
            for (i, entitled) in p.entitled.iter().enumerate() {
                let l = &mut self.live[index[i]];
                let waits = *entitled && l.job.item.at.is_empty();
                l.entitled_since = waits.then(|| l.entitled_since.unwrap_or(self.now));
            }
            for step in p.steps {
                self.carry_out(step, &index, trace);
            }
        }
    }

    fn carry_out(&mut self, step: Step, index: &[usize], trace: &[Entry]) {
        match step {
            Step::Suspend(i) => {
                let l = &mut self.live[index[i]];
                l.job.item.at.clear();
                l.job.since_s = self.now;
                self.out.suspensions += 1;
            }
            Step::Move(i, at) => {
                let mem = self.mem(index[i]);
                let l = &mut self.live[index[i]];
                l.job.item.at = at;
                l.stall_s += stall_s(mem);
                self.out.moves += 1;
            }
            Step::Start(i, at) => {
                let mem = self.mem(index[i]);
                let l = &mut self.live[index[i]];
                l.job.item.at = at;
                l.job.since_s = self.now;
                if l.started {
                    l.stall_s += stall_s(mem);
                } else {
                    l.started = true;
                    self.out.wait_s[l.entry] = self.now - trace[l.entry].arrival_s;
                }
                if let Some(since) = l.entitled_since.take() {
                    // The victims' minimum run time, their suspension and this one's resume.
                    let most = self.policy.rules.min_run_s + 2.0 * stall_s(self.node.mem);
                    self.out.entitled.0 += 1;
                    self.out.entitled.1 += u32::from(self.now - since <= most);
                }
            }
        }
    }

    fn mem(&self, live: usize) -> u64 {
        let item = &self.live[live].job.item;
        item.move_cost.or(item.drop_cost).unwrap_or(0) / u64::from(item.parts.max(1))
    }
}

/// Fragmentation gradient descent (Weng et al., ATC'23) on one node: the GPUs that add least to the expected
/// share which no typical claim could use.
fn fgd(board: &Board, item: &Item, shapes: &[(u32, u32, f64)]) -> Option<Vec<usize>> {
    let free: Vec<u32> = board.free.iter().map(|f| f.sm).collect();
    if item.parts > 1 {
        return board.direct(item, Prefer::Pack, |_| 0);
    }
    let before = fragmentation(&free, shapes);
    let mut best: Option<(f64, usize)> = None;
    for g in 0..free.len() {
        if item.mask & (1 << g) == 0 || !item.need[0].fits(board.free[g]) {
            continue;
        }
        let mut after = free.clone();
        after[g] -= item.need[0].sm;
        let grows = fragmentation(&after, shapes) - before;
        if best.is_none_or(|(b, _)| grows < b - 1e-9) {
            best = Some((grows, g));
        }
    }
    best.map(|(_, g)| vec![g])
}

fn fragmentation(free: &[u32], shapes: &[(u32, u32, f64)]) -> f64 {
    let all: u32 = free.iter().sum();
    shapes
        .iter()
        .map(|(gpus, milli, part)| {
            let able = free.iter().filter(|f| *f >= milli).count();
            let lost = if able < *gpus as usize {
                all
            } else {
                free.iter().filter(|f| *f < milli).sum()
            };
            part * f64::from(lost)
        })
        .sum()
}
