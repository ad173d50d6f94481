//! Whose SMs are busy: the claims' own counters, held against what the GPU as a whole is known to do.
//!
//! No interface of the driver says which process keeps the SMs busy. The members of a claim say what their launches
//! have come to ([`Reading`]); a [`Meter`] makes of that what came to pass in an interval, and [`attribute`] divides
//! a GPU's interval among its claims. Where the GPU has counters of its own the claims' figures are scaled to them,
//! and what no claim accounts for stays unattributed. All of it is an estimate, except for a claim that has the
//! GPU's counters to itself.
//!
//! Figures are parts of one GPU from 0 to 1, times are nanoseconds of one clock.

/// Furthest that the claims' figures are scaled towards the GPU's own: beyond it the estimate does not explain what
/// the GPU does, and the rest is nobody's.
const SCALED_BY: f64 = 1.5;
/// A claim with more launches than this part that could not be measured has no figure.
const UNMEASURED: f64 = 0.02;

/// Time that was left over and may be used later, and time that may be used before it is there, in nanoseconds: work is
/// told a little early or late.
const LEFT_NS: f64 = 1.5e8;
const AHEAD_NS: f64 = 1e8;

/// Time, SM time and warp time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Some kernel runs; streams that run side by side count each.
    pub busy_ns: f64,
    /// The same times the SMs with a block.
    pub sm_ns: f64,
    /// The same times the resident warps.
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

/// Work on the GPU whose end was not seen yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running {
    /// When it began at the earliest.
    pub since_ns: u64,
    /// How long it is expected to last; absent for what was never seen.
    pub expected_ns: Option<u64>,
    /// SMs that it fills.
    pub sms: f64,
    /// Warps that it has resident.
    pub warps: f64,
}

/// What a process says at one moment: sums since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// What its work that is over has come to.
    pub done: Times,
    /// What runs.
    pub running: Option<Running>,
    /// Kernels launched.
    pub launches: u64,
    /// Those of them that are in no sum.
    pub unmeasured: u64,
}

/// What a process did in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grown {
    /// What its work came to.
    pub times: Times,
    /// Too many of its launches could not be measured.
    pub incomplete: bool,
}

/// Makes intervals of the sums of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// What was told so far; ahead of the sums where work was expected to be further than it is.
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
    /// What the process did since the last reading. Of one that is met now, `born_ns` being the start of the first
    /// interval it can have worked in, only as much as fits into that.
    pub fn read(&mut self, now_ns: u64, born_ns: u64, reading: &Reading) -> Grown {
        let total = reading.done.plus(
            reading
                .running
                .map_or_else(Times::default, |r| r.so_far(now_ns)),
        );
        let before = self.told.unwrap_or_else(|| {
            // A process that says more than it had time for was there before this service was.
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
    /// What it came to until now, if it goes on as expected.
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
    /// Each of its processes; `None` for one of which nothing is counted.
    pub processes: Vec<Option<Grown>>,
    /// Part of the SMs that it can have at most, where it has some of its own (MPS).
    pub most: Option<f64>,
}

/// The GPU's own counters over an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// SM activity.
    pub sm_active: Option<f64>,
    /// SM occupancy.
    pub sm_occupancy: Option<f64>,
}

/// A GPU over one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// How long it was.
    pub ns: u64,
    /// SMs of the GPU.
    pub sms: u32,
    /// Warps that an SM can have resident.
    pub warps_per_sm: u32,
    /// Processes run side by side (MPS) and do not take turns.
    pub side_by_side: bool,
    /// By so much the claims' times come to more than there was, 1 for not at all: what each saw contains the others'
    /// ([`Together`]).
    pub crowd: f64,
    /// Programs outside the claims compute there, or may do so.
    pub outsiders: bool,
    /// Programs outside the claims draw there.
    pub desktop: bool,
    /// A claim has left the GPU of late: what the GPU counted may contain its work ([`Present`]).
    pub left: bool,
    /// What the GPU itself counted.
    pub counters: Option<Counters>,
}

/// The claims on a GPU, from look to look.
#[derive(Clone, Debug)]
pub struct Present<Id> {
    were: Vec<Id>,
    /// Looks for which the GPU's counters may still contain somebody who has left.
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
    /// Takes in who is there now. Whether somebody has left since the last look or the one before: the counters are of
    /// a time that ends somewhat before a look.
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

    /// What the last look has found.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.looks > 0
    }
}

/// A claim's part of a GPU over an interval; absent what cannot be known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// SM activity through the claim.
    pub sm_active: Option<f64>,
    /// SM occupancy through the claim.
    pub sm_occupancy: Option<f64>,
    /// Part of the time in which its kernels ran.
    pub time_got: Option<f64>,
    /// The first two are the GPU's own counters.
    pub measured: bool,
}

/// A GPU's interval, divided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Division {
    /// The claims' parts, in the order in which they were given.
    pub parts: Vec<Part>,
    /// The part of the SMs' activity that no claim accounts for; absent without counters.
    pub sm_unattributed: Option<f64>,
    /// The same of the occupancy.
    pub occupancy_unattributed: Option<f64>,
    /// What the claims come to together; absent while somebody else may be at work.
    pub sm_total: Option<f64>,
    /// The same of the occupancy.
    pub occupancy_total: Option<f64>,
}

/// One figure of all claims, scaled to the GPU's own where there is one.
struct Scaled {
    /// By so much the claims had to be scaled down to be no more than there is.
    fit: f64,
    parts: Vec<Option<f64>>,
    rest: Option<f64>,
    total: Option<f64>,
}

fn scale(mut parts: Vec<Option<f64>>, interval: &Interval, counted: Option<f64>) -> Scaled {
    let all_known = !interval.outsiders && parts.iter().all(Option::is_some);
    // The sum of nothing would be a negative zero.
    let sum = |parts: &[Option<f64>]| parts.iter().flatten().fold(0.0, |sum, part| sum + part);
    let claims = sum(&parts);
    let fit = if claims > 1.0 { 1.0 / claims } else { 1.0 };
    let factor = match counted {
        None => fit,
        Some(_) if claims <= 0.0 => 1.0,
        // No other process can have done the rest.
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

/// The claims' times on a GPU over an interval, added up.
fn time_of(ns: u64, claims: &[Work]) -> f64 {
    let ns = (ns as f64).max(1.0);
    let each = claims
        .iter()
        .flat_map(|claim| claim.processes.iter().flatten());
    each.map(|grown| (grown.times.busy_ns / ns).min(1.0)).sum()
}

/// The time that claims have on a GPU together. In a single interval theirs may come to more because work is told a
/// little early or late: what is cut off then would be missing in the next one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together {
    /// Time that is left over; below 0 where it was used before it was there.
    left_ns: f64,
}

impl Together {
    /// Takes in an interval; gives by how much the claims' times come to more than there was, at least 1.
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
    // Processes that take turns have one GPU together: what each saw contains the others' turns.
    let turns = if interval.side_by_side {
        1.0
    } else {
        interval.crowd.max(1.0)
    };
    let raw = |claim: &Work| -> Option<Times> {
        let known = claim.processes.iter().map(|process| {
            let grown = process.as_ref().filter(|grown| !grown.incomplete)?;
            let busy = (grown.times.busy_ns / ns).max(1.0);
            // Streams of one process that overlap have one GPU together as well.
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
    // A claim with fewer SMs than it seemed to have has fewer warps as well.
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

/// A sum of times.
#[derive(Default)]
struct Sum(Times);

impl std::iter::Sum<Times> for Sum {
    fn sum<I: Iterator<Item = Times>>(times: I) -> Self {
        Self(times.fold(Times::default(), Times::plus))
    }
}

#[cfg(test)]
mod tests;
