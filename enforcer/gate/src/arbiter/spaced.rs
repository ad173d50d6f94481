//! A light claim that comes back within each of a heavy claim's turns: the heavy one leaves a space between its launches
//! instead. Neither calls the arbiter for each of them.

use super::{Arbiter, Claim, Holder, Phase, Process, demand::over, sum_of};
use crate::{PERIOD_NS, QUEUED_NS};

/// Lengths of the heavy claim's turns for which this is done: longer ones are few, shorter ones would be all space.
const TURNS_NS: std::ops::Range<u64> = 300_000..2 * QUEUED_NS;
/// After so many more such turns than others. The second half of them is the measure of what follows.
const SEEN: u32 = 20;
/// Changes of context and messages for a launch of the light claim take no longer.
const CHANGES_NS: u64 = 500_000;
/// The measure holds for this long.
const MEASURED_NS: u64 = 1_000_000_000;
/// The light claim is worse off if it launches less often than this part of before, over at least so long: its launches
/// wait for each other, and the heavy claim's get between. It is not tried again for a while.
const WORSE: f64 = 0.8;
const COMPARED_NS: u64 = 10 * PERIOD_NS;
const AGAIN_NS: u64 = 5_000_000_000;

/// The turns of a heavy claim between the work of a light one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spaced {
    /// The two claims, such turns, and about the shortest.
    heavy: u64,
    light: u64,
    turns: u32,
    least_ns: u64,
    /// When the measure began, the claims' launches and the heavy one's time by then, and the time since in which it made
    /// way.
    from_ns: u64,
    launches: (u64, u64),
    ran_ns: [u64; 2],
    way_ns: u64,
    not_before_ns: u64,
    /// How much of the heavy claim's work goes together, while there are spaces.
    ahead_ns: u64,
    since: Option<Since>,
}

#[derive(Debug, Clone, Copy)]
struct Since {
    /// Beginning, and the claims' launches by then.
    began_ns: u64,
    launches: (u64, u64),
    /// What each launch of the heavy claim took before, and how long it made way for each of the light one; how many of the
    /// latter there were in a nanosecond.
    each_ns: (f64, f64),
    rate: f64,
    /// Time of the last look, and what the light claim has been charged by then; how much of that is beyond its part.
    looked_ns: u64,
    way_ns: u64,
    owed_ns: f64,
    /// Time of the last comparison with before, its launches by then, and as many since as there would be.
    compared_ns: u64,
    compared: u64,
    expected: f64,
}

impl Spaced {
    fn saw(&mut self, now: u64, heavy: &Claim<'_>, light: &Claim<'_>, turn_ns: u64) {
        if (self.heavy, self.light) != (heavy.id, light.id) {
            *self = Spaced {
                heavy: heavy.id,
                light: light.id,
                least_ns: TURNS_NS.end,
                not_before_ns: self.not_before_ns,
                ..Spaced::default()
            };
        }
        if !TURNS_NS.contains(&turn_ns) {
            self.turns = self.turns.saturating_sub(1);
            return;
        }
        self.turns += 1;
        self.least_ns = turn_ns.min(self.least_ns + self.least_ns / 64);
        if self.turns == SEEN / 2 {
            self.measure(now, heavy, light);
        }
    }

    fn measure(&mut self, now: u64, heavy: &Claim<'_>, light: &Claim<'_>) {
        self.turns = SEEN / 2;
        (self.from_ns, self.ran_ns, self.way_ns) = (now, ran_by(now, heavy), 0);
        self.launches = (launches_of(heavy), launches_of(light));
    }

    /// The others made way for a light claim for this long.
    pub(super) fn made_way(&mut self, id: u64, ns: u64) {
        if self.light == id {
            self.way_ns += ns;
        }
    }

    /// The light claim, and how much of the heavy one's work goes together, while there are spaces.
    pub(super) fn told(&self) -> Option<(u64, u64)> {
        self.since.map(|_| (self.light, self.ahead_ns))
    }

    /// Of launches that are not much shorter than a turn, one goes at a time.
    fn one_ns(&self) -> u64 {
        self.least_ns / 4 * 3
    }

    fn most_ns(&self) -> u64 {
        self.one_ns().max(QUEUED_NS)
    }

    fn end(&mut self) {
        (self.since, self.turns) = (None, 0);
    }
}

impl Arbiter {
    /// A light claim has work after a turn of the heavy one. Whether that goes on by itself from now on.
    pub(super) fn is_spaced_from(
        &mut self,
        now: u64,
        heavy: u64,
        turn_ns: u64,
        claims: &[Claim<'_>],
    ) -> bool {
        let of = |id: u64| claims.iter().find(|c| c.id == id);
        let spaced = &mut self.spaced;
        let [id] = self.lit[..] else {
            spaced.turns = 0;
            return false;
        };
        let Some((light, heavy)) = of(id).zip(of(heavy)) else {
            return false;
        };
        spaced.saw(now, heavy, light, turn_ns);
        if spaced.turns < SEEN || now < spaced.not_before_ns {
            return false;
        }
        let lasted = now.saturating_sub(spaced.from_ns);
        let launched = launches_of(light).saturating_sub(spaced.launches.1);
        let others = launches_of(heavy).saturating_sub(spaced.launches.0);
        // Of shorter launches, the light claim would wait for several.
        let is_each = others > 0 && others.saturating_mul(spaced.one_ns()) <= lasted;
        if !is_each || launched == 0 {
            spaced.measure(now, heavy, light);
            return false;
        }
        // Changes of context take longer than the arbiter sees; but what the heavy claim tells does not count alone.
        let ran_ns = ran_by(now, heavy).into_iter().zip(spaced.ran_ns);
        let ran_ns = ran_ns.map(|(ns, before)| ns.saturating_sub(before)).min();
        let ran_ns = ran_ns.unwrap_or(0);
        let most_ns = spaced.way_ns + launched.saturating_mul(CHANGES_NS);
        let way_ns = lasted.saturating_sub(ran_ns).min(most_ns);
        let each = |ns: u64, count: u64| ns as f64 / count as f64;
        spaced.ahead_ns = spaced.ahead_ns.clamp(spaced.one_ns(), spaced.most_ns());
        spaced.since = Some(Since {
            began_ns: now,
            launches: (launches_of(heavy), launches_of(light)),
            each_ns: (each(ran_ns, others), each(way_ns, launched)),
            rate: launched as f64 / lasted as f64,
            looked_ns: now,
            way_ns: 0,
            owed_ns: 0.0,
            compared_ns: now,
            compared: launches_of(light),
            expected: 0.0,
        });
        self.stays_spaced(now, claims)
    }

    /// Charges the light claim for the time that the heavy one's launches have not taken, and for no more than its own
    /// launches took before. Where it takes more than its part, more of the heavy claim's work goes together, up to what may
    /// be queued; if that does not help, it is not light any more.
    pub(super) fn charge_spaced(&mut self, now: u64, claims: &[Claim<'_>]) {
        let Some(since) = self.spaced.since else {
            return;
        };
        let Spaced { heavy, light, .. } = self.spaced;
        let of = |id: u64| claims.iter().find(|c| c.id == id);
        let both = of(heavy).zip(of(light)).filter(|_| self.has_turn(heavy));
        let Some((first, claim)) = both else {
            self.spaced.end();
            return;
        };
        let lasted = now.saturating_sub(since.looked_ns);
        let all = |claim, before: u64| launches_of(claim).saturating_sub(before) as f64;
        let ran_ns = all(first, since.launches.0) * since.each_ns.0;
        let took_ns = all(claim, since.launches.1) * since.each_ns.1;
        let total_ns = now.saturating_sub(since.began_ns) as f64 - ran_ns;
        let total_ns = total_ns.min(took_ns).max(0.0) as u64;
        let way_ns = total_ns.saturating_sub(since.way_ns).min(lasted);
        let beside = std::mem::take(&mut self.beside);
        self.charge(now, Holder::Claim(light), way_ns, None, claims);
        self.beside = beside;
        if let Phase::Turn { began_ns, .. } = &mut self.phase {
            *began_ns = (*began_ns + way_ns).min(now);
        }
        let own = f64::from(claim.request_permille) / 1000.0;
        let owed_ns = since.owed_ns + way_ns as f64 - own * lasted as f64;
        if owed_ns > own * COMPARED_NS as f64
            && let Some(record) = self.record(light)
        {
            record.demand.heavy = true;
        }
        let spaced = &mut self.spaced;
        let fewer = spaced.one_ns() as f64 / spaced.ahead_ns as f64;
        spaced.since = Some(Since {
            looked_ns: now,
            way_ns: since.way_ns + way_ns,
            owed_ns: owed_ns.max(-own * COMPARED_NS as f64),
            expected: since.expected + since.rate * lasted as f64 * fewer,
            ..since
        });
        let ahead_ns = match owed_ns > 0.0 {
            true => spaced.ahead_ns * 2,
            false => spaced.ahead_ns / 2,
        };
        spaced.ahead_ns = ahead_ns.clamp(spaced.one_ns(), spaced.most_ns());
    }

    /// Whether there are spaces from now on.
    pub(super) fn stays_spaced(&mut self, now: u64, claims: &[Claim<'_>]) -> bool {
        let Some(since) = self.spaced.since else {
            return false;
        };
        let Spaced { heavy, light, .. } = self.spaced;
        let active = claims.iter().filter(|c| c.is_gated);
        let active: Vec<&Claim<'_>> = active.filter(|c| self.is_active(now, c.id)).collect();
        let both = match active[..] {
            [a, b] if (a.id, b.id) == (heavy, light) => Some((a, b)),
            [b, a] if (a.id, b.id) == (heavy, light) => Some((a, b)),
            _ => None,
        };
        let is_due = now >= since.compared_ns + COMPARED_NS;
        let launches = claims.iter().find(|c| c.id == light).map_or(0, launches_of);
        let launched = launches.saturating_sub(since.compared) as f64;
        let is_worse = is_due && launched < WORSE * since.expected;
        if is_worse || self.is_heavy(light) {
            self.spaced.not_before_ns = now + AGAIN_NS;
        }
        let is_long = |p: &Process| p.busy && p.expected_ns > p.said_ns + QUEUED_NS;
        let stays = both.is_some_and(|(first, second)| {
            let state = self.state(first);
            (state.waiting || state.busy)
                && first.limit_permille >= 1000
                && !active.iter().any(|c| c.has_many())
                && !second.processes.iter().any(|p| p.waiting || is_long(p))
        });
        let stays = stays
            && now < since.began_ns + MEASURED_NS
            && now >= self.spaced.not_before_ns
            && self.is_heavy(heavy);
        match &mut self.spaced.since {
            Some(since) if stays && is_due => {
                (since.compared_ns, since.compared, since.expected) = (now, launches, 0.0);
            }
            _ if stays => {}
            _ => self.spaced.end(),
        }
        stays
    }
}

/// Time that its work has run, others' slices in between included, and that its launches take alone.
fn ran_by(now: u64, claim: &Claim<'_>) -> [u64; 2] {
    let ran = |p: &Process| match p.busy {
        true => p.used_ns.saturating_add(now.saturating_sub(p.said_ns)),
        false => p.used_ns,
    };
    [sum_of(claim, ran), sum_of(claim, |p| over(now, p))]
}

fn launches_of(claim: &Claim<'_>) -> u64 {
    sum_of(claim, |p| p.launches)
}
