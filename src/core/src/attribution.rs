//! Divides the activity of a GPU's SMs among the claims on it.
//!
//! The driver has no interface that says which process keeps the SMs busy. Each process of a claim reports sums over
//! its launches ([`Reading`]). A [`Meter`] turns these sums into figures for one interval, and [`attribute`] divides
//! the GPU's interval among its claims. If the GPU has counters of its own, the claims' figures are scaled to them, and
//! what no claim explains stays unattributed. All figures are estimates, except for a claim that is alone on the GPU
//! and gets the GPU's counters.
//!
//! Figures are fractions of one GPU from 0 to 1, times are nanoseconds of one clock.

/// Largest factor by which claims' figures are scaled up to the GPU's counters. Beyond it the estimate does not explain
/// the GPU's activity, and the rest stays unattributed.
const SCALED_BY: f64 = 1.5;
/// A process has no figure if more than this fraction of its launches could not be measured.
const UNMEASURED: f64 = 0.02;

/// Unused time that later intervals may use, and time that may be used in advance, in nanoseconds: processes report
/// work a little early or late.
const LEFT_NS: f64 = 1.5e8;
const AHEAD_NS: f64 = 1e8;

/// Time, SM time and warp time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Time in which a kernel runs; concurrent streams count separately.
    pub busy_ns: f64,
    /// Busy time multiplied by the SMs with a resident block.
    pub sm_ns: f64,
    /// Busy time multiplied by the resident warps.
    pub warp_ns: f64,
}

impl Times {
    fn plus(self, other: Self) -> Self {
        Self {
            busy_ns: self.busy_ns + other.busy_ns,
            sm_ns: self.sm_ns + other.sm_ns,
            warp_ns: self.warp_ns + other.warp_ns,
        }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            busy_ns: self.busy_ns * factor,
            sm_ns: self.sm_ns * factor,
            warp_ns: self.warp_ns * factor,
        }
    }
}

/// Work on the GPU whose end has not been seen yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running {
    /// Earliest possible start.
    pub since_ns: u64,
    /// Expected duration; absent for kernels that were never measured.
    pub expected_ns: Option<u64>,
    /// SMs in use.
    pub sms: f64,
    /// Resident warps.
    pub warps: f64,
}

/// Counters of a process at one moment, summed since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Finished work.
    pub done: Times,
    /// Unfinished work.
    pub running: Option<Running>,
    /// Kernels launched.
    pub launches: u64,
    /// Launches that are in no sum.
    pub unmeasured: u64,
}

/// What a process did in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grown {
    /// Work in the interval.
    pub times: Times,
    /// Too many launches could not be measured.
    pub incomplete: bool,
}

/// Turns the running sums of one process into intervals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// Sums counted so far; ahead of the readings where work was expected to be further than it is.
    told: Option<Told>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    at_ns: u64,
    times: Times,
    launches: u64,
    unmeasured: u64,
}

impl Meter {
    /// Work since the last reading. In the first reading, `born_ns` is the start of the first interval in which the
    /// process can have worked; sums too large for the time since then count from now on only.
    pub fn read(&mut self, now_ns: u64, born_ns: u64, reading: &Reading) -> Grown {
        let total = reading.done.plus(
            reading
                .running
                .map_or_else(Times::default, |r| r.so_far(now_ns)),
        );
        let before = self.told.unwrap_or_else(|| {
            // With more busy time than fits, the process is older than this service.
            let known = total.busy_ns <= now_ns.saturating_sub(born_ns) as f64 * 1.5;
            Told {
                at_ns: born_ns,
                times: if known { Times::default() } else { total },
                launches: 0,
                unmeasured: 0,
            }
        });
        let grown = |now: f64, then: f64| (now - then).max(0.0);
        let most = |now: f64, then: f64| now.max(then);
        let times = Times {
            busy_ns: grown(total.busy_ns, before.times.busy_ns),
            sm_ns: grown(total.sm_ns, before.times.sm_ns),
            warp_ns: grown(total.warp_ns, before.times.warp_ns),
        };
        let launches = reading.launches.saturating_sub(before.launches);
        let unmeasured = reading.unmeasured.saturating_sub(before.unmeasured);
        self.told = Some(Told {
            at_ns: now_ns.max(before.at_ns),
            times: Times {
                busy_ns: most(total.busy_ns, before.times.busy_ns),
                sm_ns: most(total.sm_ns, before.times.sm_ns),
                warp_ns: most(total.warp_ns, before.times.warp_ns),
            },
            launches: reading.launches,
            unmeasured: reading.unmeasured,
        });
        Grown {
            times,
            incomplete: unmeasured as f64 > UNMEASURED * launches as f64,
        }
    }
}

impl Running {
    /// Work until now, if it runs as long as expected.
    fn so_far(&self, now_ns: u64) -> Times {
        let since = now_ns.saturating_sub(self.since_ns);
        let ns = self.expected_ns.map_or(since, |whole| since.min(whole)) as f64;
        Times {
            busy_ns: ns,
            sm_ns: ns * self.sms,
            warp_ns: ns * self.warps,
        }
    }
}

/// What one claim did on a GPU in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// One entry for each process; `None` if nothing counts its work.
    pub processes: Vec<Option<Grown>>,
    /// Largest fraction of the SMs it can use, if limited by MPS.
    pub most: Option<f64>,
}

/// The GPU's own counters over an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// SM activity.
    pub sm_active: Option<f64>,
    pub sm_occupancy: Option<f64>,
}

/// A GPU over one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Length.
    pub ns: u64,
    /// SMs of the GPU.
    pub sms: u32,
    /// Maximum number of resident warps of an SM.
    pub warps_per_sm: u32,
    /// Processes run concurrently (MPS) instead of taking turns.
    pub side_by_side: bool,
    /// Factor by which the claims' times exceed the available time, at least 1: each process's time contains the turns
    /// of the others ([`Together`]).
    pub crowd: f64,
    /// Programs without a claim compute on the GPU, or may do so.
    pub outsiders: bool,
    /// Programs without a claim draw on the GPU.
    pub desktop: bool,
    /// A claim left the GPU recently, so the counters may contain its work ([`Present`]).
    pub left: bool,
    /// Counters of the GPU itself.
    pub counters: Option<Counters>,
}

/// Tracks which claims are on a GPU from one poll to the next.
#[derive(Clone, Debug)]
pub struct Present<Id> {
    were: Vec<Id>,
    /// Polls for which the GPU's counters may still contain work of a claim that left.
    looks: u8,
}

impl<Id> Default for Present<Id> {
    fn default() -> Self {
        Self {
            were: Vec::new(),
            looks: 0,
        }
    }
}

impl<Id: PartialEq> Present<Id> {
    /// Records the claims that are on the GPU now. Returns whether a claim left since the last poll or the one before:
    /// the counters cover a period that ends shortly before the poll.
    pub fn look(&mut self, here: Vec<Id>) -> bool {
        let left = self.were.iter().any(|id| !here.contains(id));
        self.looks = if left {
            2
        } else {
            self.looks.saturating_sub(1)
        };
        self.were = here;
        self.has_left()
    }

    /// The result of the last poll.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.looks > 0
    }
}

/// A claim's part of a GPU over an interval; unknown figures are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// SM activity caused by the claim.
    pub sm_active: Option<f64>,
    /// SM occupancy caused by the claim.
    pub sm_occupancy: Option<f64>,
    /// Fraction of the time in which its kernels ran.
    pub time_got: Option<f64>,
    /// The first two are the GPU's own counters, not estimates.
    pub measured: bool,
}

/// A GPU's interval, divided among its claims.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Division {
    /// The claims' parts, in the order of the input.
    pub parts: Vec<Part>,
    /// SM activity that no claim explains; absent without counters.
    pub sm_unattributed: Option<f64>,
    /// SM occupancy that no claim explains; absent without counters.
    pub occupancy_unattributed: Option<f64>,
    /// SM activity of all claims; absent while programs without a claim may be active.
    pub sm_total: Option<f64>,
    /// SM occupancy of all claims; absent while programs without a claim may be active.
    pub occupancy_total: Option<f64>,
}

/// One figure of all claims, scaled to the GPU's own counter if there is one.
struct Scaled {
    /// Factor that scales the claims down to one GPU.
    fit: f64,
    parts: Vec<Option<f64>>,
    rest: Option<f64>,
    total: Option<f64>,
}

fn scale(mut parts: Vec<Option<f64>>, interval: &Interval, counted: Option<f64>) -> Scaled {
    let all_known = !interval.outsiders && parts.iter().all(Option::is_some);
    // The default sum of no elements is -0.0.
    let sum = |parts: &[Option<f64>]| parts.iter().flatten().fold(0.0, |sum, part| sum + part);
    let claims = sum(&parts);
    let fit = if claims > 1.0 { 1.0 / claims } else { 1.0 };
    let factor = match counted {
        None => fit,
        Some(_) if claims <= 0.0 => 1.0,
        // Only these claims can have caused the counted activity.
        Some(counted) if all_known && !interval.desktop && !interval.left => {
            (counted / claims).min(SCALED_BY * fit)
        }
        Some(counted) => (counted / claims).min(1.0),
    };
    for part in parts.iter_mut().flatten() {
        *part *= factor;
    }
    let claims = sum(&parts);
    Scaled {
        fit,
        rest: counted.map(|counted| (counted - claims).max(0.0)),
        total: all_known.then_some(claims.min(1.0)),
        parts,
    }
}

/// Busy time of all processes, as a multiple of the interval.
fn time_of(ns: u64, claims: &[Work]) -> f64 {
    let ns = (ns as f64).max(1.0);
    let each = claims
        .iter()
        .flat_map(|claim| claim.processes.iter().flatten());
    each.map(|grown| (grown.times.busy_ns / ns).min(1.0)).sum()
}

/// Time that the claims use on a GPU together. It may exceed a single interval, because processes report work a little
/// early or late: time cut off in one interval would be missing in the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together {
    /// Unused time; negative if time was used in advance.
    left_ns: f64,
}

impl Together {
    /// Adds an interval. Returns the factor by which the claims' times exceed the available time, at least 1.
    pub fn crowd(&mut self, ns: u64, claims: &[Work]) -> f64 {
        let (wanted, ns) = (time_of(ns, claims) * ns as f64, ns as f64);
        let most = ns + self.left_ns + AHEAD_NS;
        let used = wanted.min(most);
        self.left_ns = (self.left_ns + ns - used).clamp(-AHEAD_NS, LEFT_NS);
        if wanted > most { wanted / most } else { 1.0 }
    }
}

/// Divides a GPU's interval among the claims on it.
#[must_use]
pub fn attribute(interval: &Interval, claims: &[Work]) -> Division {
    let ns = (interval.ns as f64).max(1.0);
    let sms = f64::from(interval.sms.max(1));
    let warps = sms * f64::from(interval.warps_per_sm.max(1));
    // Without MPS processes take turns, and each process's time contains the turns of the others.
    let turns = if interval.side_by_side {
        1.0
    } else {
        interval.crowd.max(1.0)
    };
    let raw = |claim: &Work| -> Option<Times> {
        let known = claim.processes.iter().map(|process| {
            let grown = process.as_ref().filter(|grown| !grown.incomplete)?;
            let busy = (grown.times.busy_ns / ns).max(1.0);
            // Concurrent streams of one process share one GPU as well.
            let fit = if grown.times.sm_ns > ns * sms {
                ns * sms / grown.times.sm_ns
            } else {
                1.0
            };
            let mut times = grown.times.times(fit / turns);
            times.busy_ns = grown.times.busy_ns / busy / turns;
            Some(times)
        });
        let times = known.sum::<Option<Sum>>()?.0;
        let most = claim.most.unwrap_or(1.0).min(1.0) * ns * sms;
        let fit = if times.sm_ns > most {
            most / times.sm_ns
        } else {
            1.0
        };
        Some(Times {
            busy_ns: times.busy_ns.min(ns),
            ..times.times(fit)
        })
    };
    let raw: Vec<Option<Times>> = claims.iter().map(raw).collect();
    let figures = |of: &dyn Fn(&Times) -> f64| -> Vec<Option<f64>> {
        raw.iter().map(|times| times.as_ref().map(of)).collect()
    };
    let counters = interval.counters;
    let active = scale(
        figures(&|times| times.sm_ns / (ns * sms)),
        interval,
        counters.and_then(|c| c.sm_active),
    );
    // If a claim's SMs are scaled down, its warps are too.
    let occupancy = scale(
        figures(&|times| times.warp_ns / (ns * warps) * active.fit),
        interval,
        counters.and_then(|c| c.sm_occupancy),
    );
    let at_work = |claim: &&Work| !claim.processes.is_empty();
    let others = interval.outsiders || interval.desktop || interval.left;
    let alone = claims.iter().filter(at_work).count() == 1 && !others;
    let parts = (0..claims.len()).map(|i| {
        let time_got = raw[i].map(|times| times.busy_ns / ns);
        match counters.filter(|_| alone && !claims[i].processes.is_empty()) {
            Some(counters) => Part {
                sm_active: counters.sm_active,
                sm_occupancy: counters.sm_occupancy,
                time_got,
                measured: true,
            },
            None => Part {
                sm_active: active.parts[i],
                sm_occupancy: occupancy.parts[i].map(|part| part.min(1.0)),
                time_got,
                measured: false,
            },
        }
    });
    Division {
        parts: parts.collect(),
        sm_unattributed: active.rest.filter(|_| !alone),
        occupancy_unattributed: occupancy.rest.filter(|_| !alone),
        sm_total: active.total,
        occupancy_total: occupancy.total,
    }
}

#[derive(Default)]
struct Sum(Times);

impl std::iter::Sum<Times> for Sum {
    fn sum<I: Iterator<Item = Times>>(times: I) -> Self {
        Self(times.fold(Times::default(), Times::plus))
    }
}

#[cfg(test)]
mod tests;
