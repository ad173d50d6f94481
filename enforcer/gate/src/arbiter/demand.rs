//! How much of the GPU the claims need.
//!
//! While nobody is held back, a claim's need is the time that its launches take alone on the GPU. While some are held
//! back, it is the work that ran over the time in which the claim was not held back: a claim that always waits needs as
//! much as possible.

use super::{Arbiter, Claim, Phase, Process};

/// Window over which demand is measured.
const WINDOW_NS: u64 = 100_000_000;
/// The same while demand is so low that the GPU would not stay scarce, and no claim is held back: a flood calls the
/// arbiter.
const IDLE_NS: u64 = 200_000_000;
/// The same when claims have just met.
const FIRST_NS: u64 = 25_000_000;
/// The GPU becomes scarce above this load, and stops being scarce after this long below it. Changes of context take part
/// of its time while all launch: above the lower load it is scarce, too, if without the others the claims would together
/// need more than the higher one.
const SCARCE: f64 = 0.9;
const ENOUGH: f64 = 0.75;
const ENOUGH_NS: u64 = 500_000_000;
/// Part of its guarantee above which a claim is heavy while all launch at once, and below which it is light again.
const HEAVY: f64 = 0.9;
/// A claim with this much work on the GPU uses whatever it can get.
const BACKLOG_NS: u64 = 2_000_000;
/// So does a claim with a launch on the GPU for this long, whatever its expected duration. A stream that waits for
/// something other than the GPU is recognised by then.
const LONG_NS: u64 = 40_000_000;

/// A claim's need of the GPU.
#[derive(Debug, Clone, Default)]
pub(super) struct Demand {
    /// Its processes' figures at the last update.
    before: Vec<Process>,
    /// Part of each GPU's time that its launches would take alone, in the last window.
    pub ran: Vec<f64>,
    /// It needs more than it is guaranteed.
    pub heavy: bool,
    /// Time since the last update in which the others made way for it, and what the way back took them.
    way_ns: u64,
    back_ns: u64,
}

impl Demand {
    /// The others made way for this long, and the way back took them about `back_ns`; by what they tell, they have lost no
    /// more than `lost_ns` since the last update. A light claim that fills its whole part of a window at once is not light
    /// any more.
    pub(super) fn had_way(&mut self, ns: u64, back_ns: u64, lost_ns: u64, request_permille: u32) {
        self.way_ns += ns;
        self.back_ns += back_ns;
        let back_ns = self.back_ns.min(lost_ns.saturating_sub(self.way_ns));
        self.heavy |= self.way_ns + back_ns > WINDOW_NS / 1000 * u64::from(request_permille);
    }

    fn begin(&mut self, now: u64, processes: &[Process]) {
        self.before = processes
            .iter()
            .map(|p| Process {
                demand_ns: over(now, p),
                held_ns: used(now, p),
                waited_ns: waited(now, p),
                ..*p
            })
            .collect();
        (self.way_ns, self.back_ns) = (0, 0);
    }

    /// It was held back nearly all the time: it needs as much as possible where it waits, also with kernels of unknown
    /// duration.
    fn wait(&mut self, processes: &[Process], absent: &[(usize, u64)]) {
        let Demand { before, ran, .. } = self;
        let is_known = |p: &&Process| before.iter().any(|b| b.slot == p.slot);
        let is_there = |p: &&Process| absent.iter().all(|(slot, _)| *slot != p.slot);
        let waiting = processes.iter().filter(|p| p.waiting);
        for p in waiting.filter(is_known).filter(is_there) {
            ran.resize(ran.len().max(p.gpu + 1), 0.0);
            ran[p.gpu] = 1.0;
        }
    }

    /// For a window that ends now, on each GPU: the part that its launches took, the part of the time in which it had work
    /// there, and the part that it would need without the others. `None` if unknown.
    fn over_window(
        &self,
        now: u64,
        processes: &[Process],
        window_ns: u64,
    ) -> Option<[Vec<f64>; 3]> {
        let gpus = processes.iter().map(|p| p.gpu + 1).max().unwrap_or(0);
        let mut sums = [vec![0.0; gpus], vec![0.0; gpus], vec![0.0; gpus]];
        let mut is_known = false;
        for process in processes {
            if let Some(parts) = self.since(now, process, window_ns) {
                is_known = true;
                for (sum, part) in sums.iter_mut().zip(parts) {
                    sum[process.gpu] += part;
                }
            }
        }
        is_known.then_some(sums)
    }

    /// The need of a claim before it reports on its new GPUs, each of which belonged to another arbiter or none: from
    /// what was known of it there.
    pub(super) fn regrouped(id: u64, before: &[Option<(&Arbiter, usize)>]) -> Demand {
        let of = |place: &Option<(&Arbiter, usize)>| {
            let (arbiter, gpu) = (*place)?;
            let record = arbiter.find(id)?;
            let part = record.demand.ran.get(gpu).copied();
            Some((part.unwrap_or(0.0), record.demand.heavy))
        };
        Demand {
            ran: before
                .iter()
                .map(|p| of(p).map_or(0.0, |it| it.0))
                .collect(),
            heavy: before.iter().filter_map(of).any(|(_, heavy)| heavy),
            ..Demand::default()
        }
    }

    /// Its need on the GPU that it needs most.
    fn part(&self) -> f64 {
        most(self.ran.iter().copied())
    }

    fn since(&self, at: u64, now: &Process, window_ns: u64) -> Option<[f64; 3]> {
        let before = self.before.iter().find(|p| p.slot == now.slot)?;
        let waited = waited(at, now).saturating_sub(before.waited_ns);
        let open = window_ns.saturating_sub(waited) as f64;
        let used = used(at, now).saturating_sub(before.held_ns) as f64;
        let ran = over(at, now).saturating_sub(before.demand_ns) as f64;
        // Held back nearly all the time: no information.
        if open < window_ns as f64 / 10.0 {
            return None;
        }
        // Without the others it would finish earlier, and be idle for as long.
        let idle = (open - used).max(1.0);
        Some([ran / open, used / open, ran / (ran + idle)].map(|part| part.min(1.0)))
    }
}

fn most(parts: impl Iterator<Item = f64>) -> f64 {
    parts.fold(0.0, f64::max)
}

/// Time that a process's launches take alone, without the expected rest of running work.
pub(super) fn over(now: u64, process: &Process) -> u64 {
    let left = if process.busy {
        process.expected_ns.saturating_sub(now)
    } else {
        0
    };
    process.demand_ns.saturating_sub(left)
}

/// GPU time used so far, including hand-overs.
pub(super) fn used(now: u64, process: &Process) -> u64 {
    let since = if process.busy {
        now.saturating_sub(process.said_ns)
    } else {
        0
    };
    process.held_ns.saturating_add(since)
}

/// Time held back so far.
fn waited(now: u64, process: &Process) -> u64 {
    let since = if process.waiting && !process.busy {
        now.saturating_sub(process.said_ns)
    } else {
        0
    };
    process.waited_ns.saturating_add(since)
}

impl Arbiter {
    /// Time since the last update in which no work of heavy claims ran, as far as they tell. On several GPUs all of it: one
    /// may have run while the other did not.
    pub(super) fn lost_ns(&self, now: u64, claims: &[Claim<'_>]) -> u64 {
        let mut ran_ns: u64 = 0;
        let is_set = claims.iter().any(Claim::has_many);
        for claim in claims.iter().filter(|c| c.is_gated && !is_set) {
            let Some(record) = self.find(claim.id).filter(|r| r.demand.heavy) else {
                continue;
            };
            for p in claim.processes {
                let mut before = record.demand.before.iter();
                let before = before.find(|b| b.slot == p.slot);
                ran_ns += before.map_or(0, |b| p.used_ns.saturating_sub(b.used_ns));
            }
        }
        now.saturating_sub(self.looked_ns).saturating_sub(ran_ns)
    }

    /// Time of the next update while all launch.
    pub(super) fn next_look_ns(&self, claims: &[Claim<'_>]) -> u64 {
        self.looked_ns + self.window_ns(claims)
    }

    fn window_ns(&self, claims: &[Claim<'_>]) -> u64 {
        let mut processes = claims.iter().flat_map(|c| c.processes);
        if self.low_since_ns == u64::MAX {
            FIRST_NS
        } else if self.is_far && !self.is_scarce && !processes.any(|p| p.waiting) {
            IDLE_NS
        } else {
            WINDOW_NS
        }
    }

    /// Restarts the measurement of demand.
    pub(super) fn count_demand_from(&mut self, now: u64, claims: &[Claim<'_>]) {
        (self.looked_ns, self.low_since_ns) = (now, u64::MAX);
        for claim in claims {
            if let Some(record) = self.record(claim.id) {
                record.demand = Demand::default();
                record.demand.begin(now, claim.processes);
            }
        }
    }

    /// A claim joins a claim that had the GPU to itself: the need of the latter tells at once whether the GPU is
    /// scarce.
    pub(super) fn see_newcomer(&mut self, now: u64, open: Option<u64>, claims: &[Claim<'_>]) {
        let window = now.saturating_sub(self.looked_ns);
        let alone = claims.iter().find(|c| Some(c.id) == open);
        let record = open.and_then(|id| self.find(id));
        let (part, backlog) = alone.zip(record).map_or((0.0, false), |(claim, record)| {
            let part = record.demand.over_window(now, claim.processes, window);
            let backlog = |p: &Process| p.busy && p.expected_ns > now + BACKLOG_NS;
            let backlog = claim.processes.iter().any(backlog);
            let part = part.map_or(0.0, |[ran, ..]| most(ran.into_iter()));
            (part, backlog)
        });
        self.count_demand_from(now, claims);
        if window >= FIRST_NS && part >= SCARCE && backlog {
            self.is_scarce = true;
            self.low_since_ns = now;
            if let Some(record) = open.and_then(|id| self.record(id)) {
                record.demand.heavy = true;
                record.demand.ran = vec![1.0];
            }
        }
    }

    /// Checks once in a while whether there is enough for all.
    pub(super) fn look_at_demand(&mut self, now: u64, claims: &[Claim<'_>]) {
        let window = now.saturating_sub(self.looked_ns);
        if window < self.window_ns(claims)
            || matches!(self.phase, Phase::Quiet { since_ns, .. } if since_ns != u64::MAX)
        {
            return;
        }
        let is_first = self.low_since_ns == u64::MAX;
        let is_long = |p: &Process| p.busy && p.since_ns > 0 && now >= p.since_ns + LONG_NS;
        let has_long = |c: &Claim<'_>, gpu| c.processes.iter().any(|p| p.gpu == gpu && is_long(p));
        let (mut takes_more, mut at_limit) = (false, false);
        // What the claims need on each GPU, and what they would need without each other.
        let mut sums: Vec<[f64; 2]> = Vec::new();
        let mut add = |needs: &[f64], alone: &[f64]| {
            sums.resize(sums.len().max(needs.len()), [0.0; 2]);
            for (sum, (need, alone)) in sums.iter_mut().zip(needs.iter().zip(alone)) {
                sum[0] += need;
                sum[1] += alone;
            }
        };
        for claim in claims.iter().filter(|c| c.is_gated) {
            let takes_turns = self.is_scarce && !matches!(self.phase, Phase::Plenty);
            let Some(record) = self.record(claim.id) else {
                continue;
            };
            let demand = &mut record.demand;
            let parts = demand.over_window(now, claim.processes, window);
            let is_new = demand.before.is_empty();
            if parts.is_none() && (is_new || claim.processes.iter().any(|p| p.waiting)) {
                demand.wait(claim.processes, &record.absent);
                demand.begin(now, claim.processes);
                takes_more |= demand.heavy;
                add(&demand.ran, &demand.ran);
                continue;
            }
            let [ran, used, alone] = parts.unwrap_or_default();
            let [most_used, most_alone] = [&used, &alone].map(|parts| most(parts.iter().copied()));
            let earlier = std::mem::replace(&mut demand.ran, ran);
            let mean = |(gpu, now): (usize, &f64)| {
                let earlier = earlier.get(gpu).copied().unwrap_or(0.0);
                f64::midpoint(*now, if is_first { *now } else { earlier }).min(1.0)
            };
            let mut needs: Vec<f64> = demand.ran.iter().enumerate().map(mean).collect();
            let part = most(needs.iter().copied());
            let own = f64::from(claim.request_permille) / 1000.0;
            if takes_turns {
                // A claim that others' work holds back below its guarantee is not light.
                demand.heavy = demand.heavy && most_used > own * HEAVY || most_alone > own * HEAVY;
            } else {
                let backlog = |p: &Process| p.busy && p.expected_ns > now + BACKLOG_NS;
                // A new burst is a backlog for a moment; a flood always has work.
                let flood =
                    most_used >= HEAVY && claim.processes.iter().any(|p| backlog(p) || is_long(p));
                demand.heavy = part >= own * HEAVY || flood;
                // It would take the time lost while the others' kernels wait for other GPUs.
                let loses = flood && claims.iter().any(|c| c.elsewhere_ns.is_some());
                for p in claim.processes.iter().filter(|p| loses && backlog(p)) {
                    if let Some(part) = needs.get_mut(p.gpu) {
                        *part = 1.0;
                    }
                }
            }
            demand.begin(now, claim.processes);
            // The duration of such work is not known yet; its claims have the whole GPU.
            for p in claim.processes.iter().filter(|p| is_long(p)) {
                let with = claims.iter().filter(|c| has_long(c, p.gpu)).count();
                if let Some(part) = needs.get_mut(p.gpu) {
                    *part = part.max(1.0 / with.max(1) as f64);
                }
            }
            takes_more |= demand.heavy || most_alone >= own * HEAVY;
            at_limit |= claim.limit_permille < 1000
                && part >= f64::from(claim.limit_permille) / 1000.0 * HEAVY;
            add(&needs, &alone);
        }
        let sum = most(sums.iter().map(|sum| sum[0]));
        // Kernels that wait for another GPU are work, but nobody's need.
        let is_set = claims.iter().any(Claim::has_many);
        let is_full = |[need, alone]: &[f64; 2]| {
            *need >= SCARCE || !is_set && *need >= ENOUGH && *alone >= SCARCE
        };
        let has_full = sums.iter().any(is_full);
        self.looked_ns = now;
        self.is_far = sum < ENOUGH && !at_limit;
        if is_first {
            self.low_since_ns = now;
        }
        let is_high = if self.is_scarce {
            sum >= ENOUGH
        } else {
            has_full
        };
        if is_high || at_limit {
            self.low_since_ns = now;
        }
        if !self.is_scarce && ((has_full && takes_more) || at_limit) {
            self.is_scarce = true;
            self.charge_open(window, claims);
        } else if self.is_scarce && now.saturating_sub(self.low_since_ns) >= ENOUGH_NS {
            self.is_scarce = false;
        }
    }

    /// Charges the time that claims used while all launched at once, when that ends.
    fn charge_open(&mut self, window_ns: u64, claims: &[Claim<'_>]) {
        let gated: Vec<&Claim<'_>> = claims.iter().filter(|c| c.is_gated).collect();
        let shares = super::divide(&gated);
        let parts = gated
            .iter()
            .map(|c| self.record(c.id).map_or(0.0, |r| r.demand.part()));
        let sum = parts.sum::<f64>().max(1.0);
        for (claim, share) in gated.iter().zip(&shares.claims) {
            if let Some(record) = self.record(claim.id) {
                let took = record.demand.part() / sum * window_ns as f64;
                record.ahead_ns += took / share.max(1e-3);
            }
        }
    }
}
