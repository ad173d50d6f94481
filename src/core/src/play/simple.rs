//! Baselines for the machine: small players that never preempt, each with an order of service and a rule for choosing
//! GPUs. They know the run time of each claim, except where [`Patience`] says otherwise.

use super::figures::{Outcome, Played};
use super::ideal::Spread;
use super::list::Entry;
use super::{Setup, carry_s};
use crate::sched::solve::{Answer, Board, Budget, Fit, Item, Mask, Need, Prefer};

/// Order of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By arrival, without overtaking.
    Arrival,
    /// By arrival, but a claim may overtake if this does not delay the first in the queue (EASY backfill).
    Backfill,
    /// Claims within an equal part of the machine first, then by arrival; every claim that fits starts.
    Quota,
}

/// Choice of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// Each claim gets whole GPUs.
    Exclusive,
    /// Each user has a fixed part of the machine, in whole GPUs.
    Static,
    /// The first GPU with room.
    FirstFit,
    /// The GPU with the least left.
    BestFit,
    /// The GPU whose fragmentation grows least (FGD; Weng et al., ATC'23).
    Fgd,
    /// The exact search, which moves other claims.
    Exact,
    /// One pool instead of GPUs: an upper bound.
    Pooled,
}

/// What a scheduler that stops nothing does for a claim of every GPU.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// It lets all others past for this long, in seconds. Then GPUs are kept for it.
    pub after_s: f64,
    /// Claims are taken to end when this part of the runs of their size has ended, of those that ran for as long;
    /// `None` if their run times are known.
    pub ends: Option<f64>,
    /// The same for a claim that is let past it.
    pub past: f64,
    /// Which of the others go first.
    pub rank: Rank,
}

/// Which claims go first, of those that stop nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The first that came.
    Arrival,
    /// The smallest.
    Size,
    /// The least GPU time, as far as it is known: of this claim, or of all of its size.
    Work,
}

#[derive(Clone, Debug)]
struct Job {
    index: usize,
    item: Item,
    left_s: f64,
    stall_s: f64,
}

struct Simple<'a> {
    list: &'a [Entry],
    setup: &'a Setup,
    order: Order,
    placing: Placing,
    users: usize,
    shapes: Vec<(u32, u32, f64)>,
    board: Board,
    /// Running claims, in the order of the board's items.
    running: Vec<Job>,
    waiting: Vec<Job>,
    now: f64,
    last: f64,
    useful_s: f64,
    claims: Vec<Outcome>,
    /// Called before and after each decision.
    took: &'a mut dyn FnMut(bool),
    searches: (u32, u32),
    patience: Option<(Patience, Spread)>,
}

/// Results of a simple player.
#[derive(Clone, Debug, Default)]
pub struct Simply {
    /// The played list.
    pub played: Played,
    /// Number of searches, and of those without a proof.
    pub searches: (u32, u32),
}

/// Plays `list` (in order of arrival). `took` is called before (`false`) and after (`true`) each decision.
pub fn play(
    list: &[Entry],
    setup: &Setup,
    order: Order,
    placing: Placing,
    took: &mut dyn FnMut(bool),
) -> Simply {
    play_with(list, setup, order, placing, took, None)
}

/// Plays `list` as EASY does, but for claims of every GPU and with guesses in place of run times.
pub fn patient(list: &[Entry], setup: &Setup, placing: Placing, patience: Patience) -> Played {
    let order = Order::Backfill;
    play_with(list, setup, order, placing, &mut |_| {}, Some(patience)).played
}

fn play_with(
    list: &[Entry],
    setup: &Setup,
    order: Order,
    placing: Placing,
    took: &mut dyn FnMut(bool),
    patience: Option<Patience>,
) -> Simply {
    let pooled = placing == Placing::Pooled;
    let gpus = if pooled { 1 } else { setup.gpus };
    let scale = if pooled { setup.gpus } else { 1 };
    let capacity = Need {
        sm: 1000 * scale as u32,
        mem: setup.mem.0 * scale as u64,
    };
    let mut simple = Simple {
        list,
        setup,
        order,
        placing,
        users: list.iter().map(|e| e.user + 1).max().unwrap_or(1),
        shapes: shapes(list),
        board: Board {
            kind: vec![0; gpus],
            model: vec![0; gpus],
            free: vec![capacity; gpus],
            items: Vec::new(),
        },
        running: Vec::new(),
        waiting: Vec::new(),
        now: 0.0,
        last: list.last().map_or(0.0, |e| e.arrival_s),
        useful_s: 0.0,
        claims: vec![Outcome::default(); list.len()],
        took,
        searches: (0, 0),
        patience: patience.map(|p| (p, Spread::of(list))),
    };
    simple.run();
    let whole = setup.gpus as f64 * simple.last.max(1e-9);
    Simply {
        played: Played {
            useful: simple.useful_s / whole,
            claims: simple.claims,
            ..Played::default()
        },
        searches: simple.searches,
    }
}

/// Sizes with their frequencies in the list.
fn shapes(list: &[Entry]) -> Vec<(u32, u32, f64)> {
    let mut shapes: Vec<(u32, u32, f64)> = Vec::new();
    for e in list {
        match shapes.iter_mut().find(|s| (s.0, s.1) == (e.gpus, e.milli)) {
            Some(s) => s.2 += 1.0,
            None => shapes.push((e.gpus, e.milli, 1.0)),
        }
    }
    for s in &mut shapes {
        s.2 /= list.len() as f64;
    }
    shapes
}

impl Simple<'_> {
    fn run(&mut self) {
        let mut next = 0;
        loop {
            let arrival = self.list.get(next).map(|e| e.arrival_s);
            let ends = self.running.iter().map(|j| self.now + j.left_s + j.stall_s);
            let Some(at) = ends.chain(arrival).min_by(f64::total_cmp) else {
                break;
            };
            self.pass(at.max(self.now));
            while self.list.get(next).is_some_and(|e| e.arrival_s <= self.now) {
                let job = self.job(next);
                self.waiting.push(job);
                next += 1;
            }
            for i in (0..self.running.len()).rev() {
                if self.running[i].left_s + self.running[i].stall_s <= 1e-6 {
                    self.end(i);
                }
            }
            (self.took)(false);
            self.decide();
            (self.took)(true);
        }
    }

    fn pass(&mut self, to: f64) {
        let dt = to - self.now;
        for job in &mut self.running {
            let stall = job.stall_s.min(dt);
            job.stall_s -= stall;
            job.left_s -= dt - stall;
            let begins = self.now + stall;
            let inside = (to.min(self.last) - begins.min(self.last)).max(0.0);
            self.useful_s += inside * self.list[job.index].size();
        }
        self.now = to;
    }

    fn job(&self, index: usize) -> Job {
        let e = &self.list[index];
        let each = u64::from(e.milli);
        let (mut parts, mut sm, mut mem) = (e.gpus, e.milli, self.setup.mem.0 / 1000 * each);
        let mut mask = Mask::MAX;
        let mut run_s = e.run_s;
        match self.placing {
            Placing::Exclusive => sm = 1000,
            Placing::Pooled => {
                (parts, sm, mem) = (1, sm * parts, mem * u64::from(parts));
            }
            Placing::Static => {
                let own = (self.setup.gpus / self.users).max(1);
                let places = (self.setup.gpus / own).max(1);
                mask = ((1 << own) - 1) << (own * (e.user % places));
                // The claim needs more GPUs than its owner has: it runs longer on those.
                run_s *= f64::from(parts) / f64::from(parts.min(own as u32));
                parts = parts.min(own as u32);
            }
            _ => {}
        }
        let moves = self.placing == Placing::Exact;
        Job {
            index,
            item: Item {
                need: vec![Need { sm, mem }],
                parts,
                mask,
                at: Vec::new(),
                move_cost: moves.then_some(mem * u64::from(parts)),
                drop_cost: None,
            },
            left_s: run_s,
            stall_s: 0.0,
        }
    }

    fn take(&mut self, at: &[usize], need: Need) {
        for &g in at {
            self.board.free[g] = self.board.free[g].less(need);
        }
    }

    fn give(&mut self, at: &[usize], need: Need) {
        for &g in at {
            self.board.free[g] = self.board.free[g].plus(need);
        }
    }

    fn end(&mut self, i: usize) {
        let job = self.running.swap_remove(i);
        let item = self.board.items.swap_remove(i);
        self.give(&item.at, item.need[0]);
        let entry = &self.list[job.index];
        let claim = &mut self.claims[job.index];
        claim.done_s = Some(self.now - entry.arrival_s);
        claim.ran_s = entry.run_s;
    }

    fn start(&mut self, job: Job, fit: Fit) {
        // Claims may swap places, so all leave before any arrives.
        for (index, _) in &fit.moves {
            let item = self.board.items[*index].clone();
            self.give(&item.at, item.need[0]);
        }
        for (index, at) in fit.moves {
            let need = self.board.items[index].need[0];
            self.take(&at, need);
            self.board.items[index].at = at;
            let moved = &mut self.running[index];
            let stall = 2.0 * carry_s(crate::units::Bytes(need.mem));
            moved.stall_s += stall;
            self.claims[moved.index].stall_s += stall;
            self.claims[moved.index].moves += 1;
        }
        self.take(&fit.at, job.item.need[0]);
        let item = Item {
            at: fit.at,
            ..job.item.clone()
        };
        self.board.items.push(item);
        let asked = self.list[job.index].arrival_s;
        let waited = self.now - asked;
        self.claims[job.index].asked_s = asked;
        self.claims[job.index].wait_s = Some(waited.max(0.0));
        self.running.push(job);
    }

    fn decide(&mut self) {
        let order = self.in_order();
        let mut started = vec![false; self.waiting.len()];
        // The first claim of each queue that does not fit, with the machine at its start.
        let mut held: Vec<Option<(f64, Board, Item)>> = vec![None; self.users];
        let mut stopped = vec![false; self.users];
        for i in order {
            let job = self.waiting[i].clone();
            let queue = match self.placing {
                Placing::Static => self.list[job.index].user,
                _ => 0,
            };
            if stopped[queue] {
                continue;
            }
            let Some(fit) = self.place(&job.item) else {
                match self.order {
                    Order::Arrival => stopped[queue] = true,
                    Order::Backfill if held[queue].is_none() && self.keeps_for(&job) => {
                        held[queue] = self.shadow(&job.item);
                    }
                    _ => {}
                }
                continue;
            };
            if let Some((at, later, first)) = &mut held[queue] {
                let past = self.now + self.lasts(&job, |p| p.past) > *at + 1e-6;
                if past {
                    let mut beside = later.clone();
                    for &g in &fit.at {
                        beside.free[g] = beside.free[g].less(job.item.need[0]);
                    }
                    if beside.direct(first, Prefer::Pack, |_| 0).is_none() {
                        continue;
                    }
                    *later = beside;
                }
            }
            started[i] = true;
            self.start(job, fit);
        }
        let mut started = started.into_iter();
        self.waiting.retain(|_| !started.next().unwrap_or(false));
    }

    fn is_whole(&self, job: &Job) -> bool {
        self.list[job.index].gpus as usize >= self.setup.gpus
    }

    /// Whether room is kept for the claim.
    fn keeps_for(&self, job: &Job) -> bool {
        let waited = self.now - self.list[job.index].arrival_s;
        let due = |(p, _): &(Patience, Spread)| waited >= p.after_s;
        !self.is_whole(job) || self.patience.as_ref().is_none_or(due)
    }

    /// How long a claim is taken to run from now on.
    fn lasts(&self, job: &Job, part: impl Fn(&Patience) -> f64) -> f64 {
        match &self.patience {
            Some((p, spread)) if p.ends.is_some() => {
                let e = &self.list[job.index];
                let ran = e.run_s - job.left_s;
                spread.left(e, ran, part(p))
            }
            _ => job.left_s + job.stall_s,
        }
    }

    /// Waiting claims in the order of service.
    fn in_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        if let Some((patience, spread)) = &self.patience {
            // Once all GPUs are free, all that need them start one after the other.
            let empty = self.running.is_empty();
            order.sort_by_cached_key(|i| {
                let job = &self.waiting[*i];
                let entry = &self.list[job.index];
                let due = patience.rank != Rank::Arrival && self.keeps_for(job);
                let rank = match (patience.rank, patience.ends) {
                    (Rank::Arrival, _) => 0.0,
                    (Rank::Size, _) => entry.size(),
                    (Rank::Work, None) => entry.size() * job.left_s,
                    (Rank::Work, Some(_)) => entry.size() * spread.mean(entry),
                };
                let first = self.is_whole(job) && (empty || due);
                (!first, (rank * 1000.0) as u64)
            });
        }
        if self.order != Order::Quota {
            return order;
        }
        let sure = self.setup.gpus as f64 / self.users as f64;
        let mut held = vec![0.0; self.users];
        for job in &self.running {
            held[self.list[job.index].user] += self.list[job.index].size();
        }
        let within = |job: &Job| {
            let e = &self.list[job.index];
            let within = held[e.user] + e.size() <= sure + 1e-9;
            if within {
                held[e.user] += e.size();
            }
            within
        };
        let within: Vec<bool> = self.waiting.iter().map(within).collect();
        order.sort_by_key(|i| (!within[*i], *i));
        order
    }

    /// When there is room for the first claim in the queue, and the board at that time.
    fn shadow(&self, first: &Item) -> Option<(f64, Board, Item)> {
        let ends = |p: &Patience| p.ends.unwrap_or_default();
        let lasts: Vec<f64> = self.running.iter().map(|j| self.lasts(j, ends)).collect();
        let end = |i: &usize| lasts[*i];
        let mut order: Vec<usize> = (0..self.running.len()).collect();
        order.sort_by(|a, b| end(a).total_cmp(&end(b)));
        let mut later = self.board.clone();
        for i in order {
            let item = &self.board.items[i];
            for &g in &item.at {
                later.free[g] = later.free[g].plus(item.need[0]);
            }
            if later.direct(first, Prefer::Pack, |_| 0).is_some() {
                return Some((self.now + end(&i), later, first.clone()));
            }
        }
        None
    }

    fn place(&mut self, item: &Item) -> Option<Fit> {
        let at = match self.placing {
            Placing::FirstFit => {
                let free = &self.board.free;
                let fits = (0..free.len()).filter(|&g| item.need[0].fits(free[g]));
                let fits: Vec<usize> = fits.take(item.parts as usize).collect();
                (fits.len() == item.parts as usize).then_some(fits)
            }
            Placing::Fgd => fgd(&self.board, item, &self.shapes),
            _ => self.board.direct(item, Prefer::Pack, |_| 0),
        };
        if at.is_some() || self.placing != Placing::Exact {
            return at.map(|at| Fit {
                at,
                moves: Vec::new(),
                drops: Vec::new(),
                optimal: true,
            });
        }
        self.searches.0 += 1;
        let (answer, _) = self.board.rearrange(item, Budget::default());
        match answer {
            Answer::Fits(fit) => {
                self.searches.1 += u32::from(!fit.optimal);
                Some(fit)
            }
            Answer::No => None,
            Answer::Unknown => {
                self.searches.1 += 1;
                None
            }
        }
    }
}

/// The GPU with the least growth of the expected part that no typical claim can use.
fn fgd(board: &Board, item: &Item, shapes: &[(u32, u32, f64)]) -> Option<Vec<usize>> {
    if item.parts > 1 {
        return board.direct(item, Prefer::Pack, |_| 0);
    }
    let free: Vec<u32> = board.free.iter().map(|f| f.sm).collect();
    let before = fragmentation(&free, shapes);
    let mut best: Option<(f64, usize)> = None;
    for g in (0..free.len()).filter(|&g| item.need[0].fits(board.free[g])) {
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
    let lost = |(gpus, milli, part): &(u32, u32, f64)| {
        let able = free.iter().filter(|f| *f >= milli).count();
        let lost = if able < *gpus as usize {
            all
        } else {
            free.iter().filter(|f| *f < milli).sum()
        };
        part * f64::from(lost)
    };
    shapes.iter().map(lost).sum()
}
