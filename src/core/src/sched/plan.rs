//! Which claims run now: the order of service, and whom it costs a suspension or a move.
//!
//! Entitled claims come first: those that fit into what their owner is guaranteed, the one with the least
//! attained service first. What is left goes to the others by attained service. A claim takes what is free;
//! if that does not do, others are moved; then borrowers are suspended, as few as do, and only such as come
//! later in the order. An entitled claim is never suspended for one that is not, and nobody before his
//! minimum run time is over. Whoever cannot be suspended or moved (the caller says so, claim by claim) stays.

use super::fair::{Party, guarantees, level};
use super::solve::{Answer, Board, Budget, Fit, Item, Need, Prefer};

/// A claim, waiting or running.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// Whom it counts for: an index into the parties.
    pub party: usize,
    /// What it needs; `at` is where it runs, empty while it waits. Costs say whether it can be moved and
    /// suspended at all.
    pub item: Item,
    /// What it prefers.
    pub prefer: Prefer,
    /// Its size in GPUs: the larger of its parts of SMs and memory.
    pub size: f64,
    /// Smaller goes first, before attained service (classes).
    pub rank: u8,
    /// When it was asked for, in seconds.
    pub arrival_s: f64,
    /// GPU-seconds that it has had.
    pub attained_s: f64,
    /// Since when it runs, or waits.
    pub since_s: f64,
}

impl Job {
    fn runs(&self) -> bool {
        !self.item.at.is_empty()
    }
}

/// Rules of service.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Quotas count: claims within what their owner is guaranteed are entitled.
    pub quota: bool,
    /// Attained service orders the claims; else the time at which they were asked for.
    pub attained: bool,
    /// Nobody is overtaken: the first that does not fit keeps the rest waiting.
    pub strict: bool,
    /// Shortest run before a claim may be suspended or moved, in seconds.
    pub min_run_s: f64,
    /// Who has waited for longer than this comes first among those over quota.
    pub patience_s: f64,
    /// Bounds of each search.
    pub budget: Budget,
    /// Searches in one decision; claims after that take only what is free.
    pub searches: u32,
}

impl Rules {
    /// Quota first, then attained service.
    pub const DEFAULT: Self = Self {
        quota: true,
        attained: true,
        strict: false,
        min_run_s: 60.0,
        patience_s: 12.0 * 3600.0,
        budget: Budget {
            steps: 3000,
            moves: 5,
            least: 0,
            drops: 8,
        },
        searches: 6,
    };
}

impl Default for Rules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A running claim is suspended.
    Suspend(usize),
    /// A running claim goes to other GPUs.
    Move(usize, Vec<usize>),
    /// A waiting claim starts.
    Start(usize, Vec<usize>),
}

/// What is decided; indices are those of the jobs given.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Changes, in an order in which they can be carried out if suspensions and moves park in host memory.
    pub steps: Vec<Step>,
    /// Which jobs are entitled.
    pub entitled: Vec<bool>,
    /// Waiting jobs that keep waiting, in the order of service.
    pub waiting: Vec<usize>,
    /// Searches that ended without a proof.
    pub unproven: u32,
    /// Searches in all.
    pub searches: u32,
}

/// A greedy baseline in the place of the search: among the GPU sets that fit, the one to take.
pub type Chooser<'a> = dyn Fn(&Board, &Item) -> Option<Vec<usize>> + 'a;

/// GPUs: their kind and what each can give in all.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Kind (model) of each GPU.
    pub kind: Vec<usize>,
    /// What claims can divide.
    pub capacity: Vec<Need>,
}

/// Which jobs are within what their owner is guaranteed: the owner's jobs in the order of service, each that
/// still fits beside the ones before it.
#[must_use]
pub fn entitled(gpus: usize, jobs: &[Job], parties: &[Party], rules: &Rules) -> Vec<bool> {
    let mut entitled = vec![false; jobs.len()];
    if !rules.quota {
        return entitled;
    }
    let sure = guarantees(gpus as f64, parties);
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|&a, &b| key(&jobs[a], rules).total_cmp(&key(&jobs[b], rules)));
    let mut held = vec![0.0; parties.len()];
    for i in order {
        let job = &jobs[i];
        let Some(held) = held.get_mut(job.party) else {
            continue;
        };
        if *held + job.size <= sure[job.party] + 1e-9 {
            *held += job.size;
            entitled[i] = true;
        }
    }
    entitled
}

/// Order among the same standing: class, level of attained service, arrival.
#[derive(Clone, Copy, PartialEq)]
struct Key(u8, u8, f64, u64);

impl Key {
    fn total_cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1)
            .cmp(&(other.0, other.1))
            .then(self.2.total_cmp(&other.2))
            .then(self.3.cmp(&other.3))
    }
}

fn key(job: &Job, rules: &Rules) -> Key {
    let level = if rules.attained {
        level(job.attained_s)
    } else {
        0
    };
    Key(job.rank, level, job.arrival_s, job.id)
}

/// Whether `new` may take the place of `old`, which runs.
fn outranks(new: &Job, new_entitled: bool, old: &Job, old_entitled: bool) -> bool {
    match (new_entitled, old_entitled) {
        (true, false) => true,
        (false, false) => (new.rank, level(new.attained_s)) < (old.rank, level(old.attained_s)),
        _ => false,
    }
}

/// Decides who runs. `choose` replaces the search by a greedy rule (for comparison); `blocked` GPUs take
/// nobody new.
#[must_use]
pub fn plan(
    machine: &Machine,
    jobs: &[Job],
    parties: &[Party],
    rules: &Rules,
    now_s: f64,
    choose: Option<&Chooser<'_>>,
) -> Plan {
    let entitled = entitled(machine.kind.len(), jobs, parties, rules);
    let aged =
        |i: usize| !jobs[i].runs() && !entitled[i] && now_s - jobs[i].since_s >= rules.patience_s;
    let mut order: Vec<usize> = (0..jobs.len()).filter(|&i| !jobs[i].runs()).collect();
    order.sort_by(|&a, &b| {
        let standing = |i: usize| (!entitled[i], !aged(i));
        let keys = || key(&jobs[a], rules).total_cmp(&key(&jobs[b], rules));
        standing(a).cmp(&standing(b)).then_with(keys)
    });
    let mut round = Round {
        machine,
        jobs,
        rules,
        now_s,
        board: Board {
            kind: machine.kind.clone(),
            model: machine.kind.clone(),
            free: machine.capacity.clone(),
            items: Vec::new(),
        },
        who: Vec::new(),
        plan: Plan {
            entitled,
            ..Plan::default()
        },
    };
    for (i, job) in jobs.iter().enumerate().filter(|(_, j)| j.runs()) {
        round.put(i, job.item.at.clone());
    }
    round.serve(order, choose);
    round.plan
}

struct Round<'a> {
    machine: &'a Machine,
    jobs: &'a [Job],
    rules: &'a Rules,
    now_s: f64,
    board: Board,
    /// Which job an item of the board is.
    who: Vec<usize>,
    plan: Plan,
}

impl Round<'_> {
    fn put(&mut self, job: usize, at: Vec<usize>) {
        let mut item = self.jobs[job].item.clone();
        for &g in &at {
            self.board.free[g] = self.board.free[g].less(item.need[self.board.kind[g]]);
        }
        item.at = at;
        self.board.items.push(item);
        self.who.push(job);
    }

    fn take(&mut self, index: usize) -> usize {
        let item = self.board.items.swap_remove(index);
        for &g in &item.at {
            self.board.free[g] = self.board.free[g].plus(item.need[self.board.kind[g]]);
        }
        self.who.swap_remove(index)
    }

    fn serve(&mut self, mut order: Vec<usize>, choose: Option<&Chooser<'_>>) {
        order.reverse();
        while let Some(job) = order.pop() {
            let fit = match choose {
                Some(choose) => self.chosen(job, choose),
                None => self.search(job),
            };
            let Some(fit) = fit else {
                self.plan.waiting.push(job);
                if self.rules.strict {
                    order.reverse();
                    self.plan.waiting.append(&mut order);
                    break;
                }
                continue;
            };
            self.apply(job, fit, &mut order);
        }
    }

    fn apply(&mut self, job: usize, fit: Fit, order: &mut Vec<usize>) {
        for (index, at) in &fit.moves {
            let item = &mut self.board.items[*index];
            for &g in &item.at {
                let kind = self.board.kind[g];
                self.board.free[g] = self.board.free[g].plus(item.need[kind]);
            }
            item.at.clone_from(at);
            for &g in at {
                let kind = self.board.kind[g];
                self.board.free[g] = self.board.free[g].less(item.need[kind]);
            }
            self.moved(self.who[*index], at.clone());
        }
        let mut drops = fit.drops;
        drops.sort_unstable_by(|a, b| b.cmp(a));
        for index in drops {
            let dropped = self.take(index);
            self.dropped(dropped);
            // It comes later in the order, and may still find another place.
            let at = order.partition_point(|&o| self.after(o, dropped));
            order.insert(at, dropped);
        }
        let was = self.jobs[job].item.at.clone();
        self.put(job, fit.at.clone());
        if let Some(i) = self
            .plan
            .steps
            .iter()
            .position(|s| *s == Step::Suspend(job))
        {
            // Suspended in this round and placed again: it moves, or stays where it was.
            self.plan.steps.remove(i);
            if was != fit.at {
                self.plan.steps.push(Step::Move(job, fit.at));
            }
            return;
        }
        self.plan.steps.push(Step::Start(job, fit.at));
    }

    /// Whether `a` comes after `b` in the order (which is kept reversed).
    fn after(&self, a: usize, b: usize) -> bool {
        let standing = |i: usize| !self.plan.entitled[i];
        let keys = || key(&self.jobs[a], self.rules).total_cmp(&key(&self.jobs[b], self.rules));
        standing(a).cmp(&standing(b)).then_with(keys).is_gt()
    }

    fn moved(&mut self, job: usize, at: Vec<usize>) {
        let own = |s: &Step| matches!(s, Step::Move(j, _) | Step::Start(j, _) if *j == job);
        match self.plan.steps.iter_mut().find(|s| own(s)) {
            Some(Step::Move(_, to) | Step::Start(_, to)) => *to = at,
            _ => self.plan.steps.push(Step::Move(job, at)),
        }
        let back =
            |s: &Step| matches!(s, Step::Move(j, to) if *j == job && *to == self.jobs[job].item.at);
        self.plan.steps.retain(|s| !back(s));
    }

    fn dropped(&mut self, job: usize) {
        let own = |s: &Step| matches!(s, Step::Move(j, _) | Step::Start(j, _) if *j == job);
        self.plan.steps.retain(|s| !own(s));
        if self.jobs[job].runs() {
            self.plan.steps.push(Step::Suspend(job));
        }
    }

    fn chosen(&mut self, job: usize, choose: &Chooser<'_>) -> Option<Fit> {
        let item = &self.jobs[job].item;
        if let Some(at) = choose(&self.board, item) {
            return Some(Fit {
                at,
                moves: Vec::new(),
                drops: Vec::new(),
                optimal: true,
            });
        }
        self.allow(job, false);
        self.cleared(item)
    }

    fn search(&mut self, job: usize) -> Option<Fit> {
        let j = &self.jobs[job];
        if let Some(at) = self.board.direct(&j.item, j.prefer, |_| 0) {
            return Some(Fit {
                at,
                moves: Vec::new(),
                drops: Vec::new(),
                optimal: true,
            });
        }
        if self.plan.searches >= self.rules.searches {
            return None;
        }
        let drops = self.allow(job, true);
        if !self.worth(&j.item) {
            return None;
        }
        let budget = Budget {
            drops: drops.min(self.rules.budget.drops),
            ..self.rules.budget
        };
        self.plan.searches += 1;
        match self.board.place(&j.item, j.prefer, |_| 0, budget) {
            Answer::Fits(fit) => {
                self.plan.unproven += u32::from(!fit.optimal);
                Some(fit)
            }
            Answer::No if drops <= self.rules.budget.drops => None,
            answer => {
                self.plan.unproven += u32::from(answer == Answer::Unknown);
                self.cleared(&j.item)
            }
        }
    }

    /// Whether there would be room if everybody left who may: most that wait are ruled out by this.
    fn worth(&self, item: &Item) -> bool {
        let able = (0..self.board.free.len()).filter(|&g| {
            let kind = self.board.kind[g];
            let leave =
                self.board.items.iter().filter(|i| {
                    (i.move_cost.is_some() || i.drop_cost.is_some()) && i.at.contains(&g)
                });
            let most = leave.fold(self.board.free[g], |f, i| f.plus(i.need[kind]));
            item.mask & (1 << g) != 0 && item.need[kind].fits(most)
        });
        if able.count() < item.parts as usize {
            return false;
        }
        if self.board.kind.iter().any(|k| *k != self.board.kind[0]) {
            return true;
        }
        let drops = self.board.items.iter().filter(|i| i.drop_cost.is_some());
        let dropped = drops.fold(0, |sum: u64, i| sum + u64::from(i.need[0].sm * i.parts));
        let free: u64 = self.board.free.iter().map(|f| u64::from(f.sm)).sum();
        u64::from(item.need[0].sm * item.parts) <= free + dropped
    }

    /// Says of every placed claim whether it may be moved or suspended for this one; how many can be
    /// suspended.
    fn allow(&mut self, job: usize, moves: bool) -> u32 {
        let (new, mine) = (&self.jobs[job], self.plan.entitled[job]);
        let mut count = 0;
        for (index, item) in self.board.items.iter_mut().enumerate() {
            let which = self.who[index];
            let old = &self.jobs[which];
            let settled = old.runs() && self.now_s - old.since_s >= self.rules.min_run_s;
            item.move_cost = old.item.move_cost.filter(|_| moves && settled);
            let may = settled && outranks(new, mine, old, self.plan.entitled[which]);
            // Who had most goes first.
            let had = 3 - u64::from(level(old.attained_s));
            item.drop_cost = old
                .item
                .drop_cost
                .filter(|_| may)
                .map(|bytes| (had << 32) + (bytes >> 20));
            count += u32::from(item.drop_cost.is_some());
        }
        count
    }

    /// The GPUs that are cheapest to clear for a claim by suspensions alone; not proven to be the fewest.
    fn cleared(&self, item: &Item) -> Option<Fit> {
        let mut ways: Vec<(u64, usize, Vec<usize>)> = Vec::new();
        for g in 0..self.board.free.len() {
            let need = item.need[self.board.kind[g]];
            let mut here: Vec<usize> = (0..self.board.items.len())
                .filter(|&i| self.board.items[i].at.contains(&g))
                .filter(|&i| self.board.items[i].drop_cost.is_some())
                .collect();
            here.sort_by_key(|&i| self.board.items[i].drop_cost);
            let (mut free, mut cost, mut set) = (self.board.free[g], 0u64, Vec::new());
            let mut rest = here.into_iter();
            while !need.fits(free) {
                let Some(i) = rest.next() else { break };
                free = free.plus(self.board.items[i].need[self.board.kind[g]]);
                cost = cost.saturating_add(self.board.items[i].drop_cost.unwrap_or(0));
                set.push(i);
            }
            if need.fits(free) && item.mask & (1 << g) != 0 {
                ways.push((cost, g, set));
            }
        }
        ways.sort();
        let kinds: Vec<usize> = ways.iter().map(|(_, g, _)| self.machine.kind[*g]).collect();
        let parts = item.parts as usize;
        let kind = kinds
            .iter()
            .find(|k| kinds.iter().filter(|o| o == k).count() >= parts)?;
        let of_kind = ways
            .iter()
            .filter(|(_, g, _)| self.machine.kind[*g] == *kind);
        let (mut at, mut drops) = (Vec::new(), Vec::new());
        for (_, g, set) in of_kind.take(parts) {
            at.push(*g);
            drops.extend(set.iter().copied());
        }
        at.sort_unstable();
        drops.sort_unstable();
        drops.dedup();
        Some(Fit {
            at,
            moves: Vec::new(),
            drops,
            optimal: false,
        })
    }
}
