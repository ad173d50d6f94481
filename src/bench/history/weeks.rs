//! Weeks that are made up: who claims what from when to when, and what is used of it. The truth is integrated from the
//! list itself; it shares no code with the history.

use std::sync::Arc;

use chrono::{Local, TimeZone, Timelike};

use crate::bench::dice::Dice;
use crate::daemon::history::sum::{Cause, Fact, Key};

pub(super) const GPUS: usize = 4;
const USERS: u32 = 8;
/// This user's use cannot be known: no counters, no shim.
const UNKNOWN: u32 = 5007;
const DAY: f64 = 86_400.0;
const GIB: f64 = 1_073_741_824.0;

/// UUID of a GPU.
pub(super) fn uuid(gpu: usize) -> String {
    format!("GPU-{gpu:08x}-0000-0000-0000-000000000000")
}

/// A stretch of a claim with one use: until when, what part of the GPU, and why if none.
#[derive(Clone, Debug)]
struct Stretch {
    until: f64,
    used: f64,
    cause: Option<Cause>,
}

#[derive(Clone, Debug)]
struct Claim {
    id: u64,
    uid: u32,
    gpu: usize,
    share: f64,
    asked: f64,
    from: f64,
    until: f64,
    stretches: Vec<Stretch>,
}

/// What really was, of one user, in GPU seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Truth {
    pub(super) uid: u32,
    pub(super) claimed: f64,
    pub(super) used: Option<f64>,
    pub(super) borrowed: f64,
    pub(super) waited: f64,
    /// Off hours, kernel, CPU, IO.
    pub(super) idle: [f64; 4],
}

impl Truth {
    /// Average use in percent.
    pub(super) fn average(&self) -> Option<f64> {
        Some(100.0 * self.used? / self.claimed).filter(|p| p.is_finite())
    }
}

/// The list.
#[derive(Debug)]
pub(super) struct Weeks {
    /// Unix seconds, the begin of an hour.
    pub(super) begin: u64,
    claims: Vec<Claim>,
}

fn at_work(at: f64) -> bool {
    let local = Local.timestamp_opt(at as i64, 0).single();
    local.is_some_and(|t| (8..20).contains(&t.hour()))
}

impl Weeks {
    /// Makes up `days` days.
    pub(super) fn new(seed: u64, days: u64) -> Self {
        let mut dice = Dice::new(seed);
        // Weeks that ended at a full hour of a day long ago, so that every table has its part.
        let begin = 1_780_000_000 / 3600 * 3600;
        let mut claims = Vec::new();
        for day in 0..days {
            for user in 0..USERS {
                let begin = begin as f64 + day as f64 * DAY;
                // Notebooks in the morning, jobs over night, some days nothing.
                for _ in 0..3 {
                    let asked = begin + dice.between(0.0, DAY * 0.9);
                    let waits = if dice.unit() < 0.4 {
                        dice.between(1.0, 2400.0)
                    } else {
                        0.0
                    };
                    let from = asked + waits;
                    let until = (from + dice.between(5.0, 9.0 * 3600.0)).min(begin + DAY);
                    if until <= from {
                        continue;
                    }
                    let share = [0.125, 0.25, 0.5, 1.0][(dice.unit() * 4.0) as usize];
                    let stretches = stretches(&mut dice, from, until, share);
                    claims.push(Claim {
                        id: claims.len() as u64 + 1,
                        uid: 5000 + user,
                        gpu: (dice.unit() * GPUS as f64) as usize,
                        share,
                        asked,
                        from,
                        until,
                        stretches,
                    });
                }
            }
        }
        claims.sort_by(|a, b| a.asked.total_cmp(&b.asked));
        Self {
            begin: begin as u64,
            claims,
        }
    }

    /// What really was until a moment.
    pub(super) fn truth(&self, end: u64) -> Vec<Truth> {
        let end = end as f64;
        let mut truth: Vec<Truth> = (0..USERS)
            .map(|user| Truth {
                uid: 5000 + user,
                used: (5000 + user != UNKNOWN).then_some(0.0),
                ..Truth::default()
            })
            .collect();
        for claim in &self.claims {
            let own = &mut truth[(claim.uid - 5000) as usize];
            own.claimed += claim.share * (claim.until.min(end) - claim.from.min(end));
            own.waited += claim.share * (claim.from.min(end) - claim.asked.min(end));
            let mut from = claim.from;
            for stretch in &claim.stretches {
                let seconds = stretch.until.min(end) - from.min(end);
                from = stretch.until;
                if let Some(used) = &mut own.used {
                    *used += stretch.used * seconds;
                }
                own.borrowed += (stretch.used - claim.share).max(0.0) * seconds;
                let place = match stretch.cause {
                    Some(Cause::OffHours) => 0,
                    Some(Cause::Kernel) => 1,
                    Some(Cause::Cpu) => 2,
                    Some(Cause::Io) => 3,
                    Some(Cause::Other) | None => continue,
                };
                own.idle[place] += claim.share * seconds;
            }
        }
        truth
    }

    /// Why a claim idles at a moment.
    pub(super) fn cause(&self, key: &Key, at: i64) -> Option<Cause> {
        let Key::Claim { claim, .. } = key else {
            return None;
        };
        let middle = at as f64 + 5.0;
        let claim = self.claims.iter().find(|c| c.id == *claim)?;
        let idle = |s: &&Stretch| s.cause.is_some();
        let now = claim.stretches.iter().find(|s| s.until > middle);
        // At the edge of a stretch the idle neighbour is meant.
        now.filter(idle)
            .or_else(|| {
                claim.stretches.iter().filter(idle).min_by(|a, b| {
                    (a.until - middle)
                        .abs()
                        .total_cmp(&(b.until - middle).abs())
                })
            })
            .and_then(|s| s.cause)
    }

    /// The actors at a moment; asked for one moment after the other.
    pub(super) fn cast(&self) -> Cast<'_> {
        Cast {
            weeks: self,
            next: 0,
            on: Vec::new(),
            names: (0..GPUS).map(|g| uuid(g).into()).collect(),
        }
    }
}

/// Stretches of work and idleness that fill a claim.
fn stretches(dice: &mut Dice, from: f64, until: f64, share: f64) -> Vec<Stretch> {
    let mut all = Vec::new();
    let mut at = from;
    while at < until {
        let end = (at + dice.between(3.0, 1800.0)).min(until);
        let kind = dice.unit();
        let (used, cause) = if kind < 0.55 {
            (dice.between(0.02, (share * 1.6).min(1.0)), None)
        } else if kind < 0.65 {
            (0.0, Some(Cause::Cpu))
        } else if kind < 0.72 {
            (0.0, Some(Cause::Io))
        } else if at_work(at) {
            (0.0, Some(Cause::Kernel))
        } else {
            (0.0, Some(Cause::OffHours))
        };
        all.push(Stretch {
            until: end,
            used,
            cause,
        });
        at = end;
    }
    all
}

/// The actors at a moment.
pub(super) struct Cast<'w> {
    weeks: &'w Weeks,
    next: usize,
    /// Claims that have asked and not ended, each with the stretch that it is in.
    on: Vec<(&'w Claim, usize)>,
    names: Vec<Arc<str>>,
}

impl Cast<'_> {
    /// What a look at this second sees: the middle of the second that it ends.
    pub(super) fn facts(&mut self, now: u64) -> Vec<(Key, Fact)> {
        let middle = now as f64 - 0.5;
        while let Some(claim) = self
            .weeks
            .claims
            .get(self.next)
            .filter(|c| c.asked <= middle)
        {
            self.on.push((claim, 0));
            self.next += 1;
        }
        self.on.retain(|(claim, _)| claim.until > middle);
        let machine = Fact {
            claimed: GPUS as f64,
            ..Fact::default()
        };
        let mut facts = vec![(Key::Machine, machine)];
        let mut waiting = [0.0; USERS as usize];
        let mut devices = [(0.0, 0.0); GPUS];
        for (claim, place) in &mut self.on {
            if claim.from > middle {
                waiting[(claim.uid - 5000) as usize] += claim.share;
                continue;
            }
            while claim
                .stretches
                .get(*place)
                .is_some_and(|s| s.until <= middle)
            {
                *place += 1;
            }
            let Some(stretch) = claim.stretches.get(*place) else {
                continue;
            };
            devices[claim.gpu].0 += claim.share;
            devices[claim.gpu].1 += stretch.used;
            let known = claim.uid != UNKNOWN;
            let fact = Fact {
                claimed: claim.share,
                used: known.then_some(stretch.used),
                estimate: true,
                mem_claimed: claim.share * 24.0 * GIB,
                mem_used: Some(claim.share * 12.0 * GIB),
                borrowed: (stretch.used - claim.share).max(0.0),
                idle: stretch.cause.is_some(),
                ..Fact::default()
            };
            let key = Key::Claim {
                claim: claim.id,
                uid: claim.uid,
                gpu: Arc::clone(&self.names[claim.gpu]),
            };
            facts.push((key, fact));
        }
        for (name, (claimed, used)) in self.names.iter().zip(devices) {
            let fact = Fact {
                claimed,
                used: Some(used),
                ..Fact::default()
            };
            facts.push((Key::Gpu(Arc::clone(name)), fact));
        }
        for (uid, waited) in (5000..).zip(waiting).filter(|(_, w)| *w > 0.0) {
            let fact = Fact {
                waited,
                ..Fact::default()
            };
            facts.push((Key::Wait(uid), fact));
        }
        facts
    }
}
