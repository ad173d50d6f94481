//! Predicts the end of a light claim's work, and its return: many programs pause for about as long each time; others
//! begin at a fixed beat, and pause less after longer work.

use super::{Arbiter, Claim, Holder, LATE_AT_MOST_NS, Process, Record, demand::used, sum_of};
use crate::{
    member::LATER_NS,
    rhythm::{APART, Rhythm},
};

/// Other pauses are not predicted: they are too short to matter, or too long to mean anything.
const FORESEEN_NS: std::ops::Range<u64> = 500_000..100_000_000;
/// Extra wait for a claim that is due, as a part of its pause.
const LATE_PART: u64 = 16;
/// After this many times in a row that its work ended as told, the next will.
const SURE: u8 = 4;
/// Delays beyond this are exceptions.
const MOST_OFF_NS: u64 = 500_000;

/// The pauses of a light claim.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pauses {
    /// Last start of its work.
    began_ns: Option<u64>,
    /// Since when it has no work.
    since_ns: Option<u64>,
    /// Time of that update, its GPU time by then, and what its launches take.
    looked_ns: u64,
    used_ns: u64,
    demand_ns: u64,
    /// Lengths of its pauses, and intervals between beginnings.
    pause: Rhythm,
    beat: Rhythm,
    /// What was expected of its work when it began.
    told: Option<Told>,
    /// When its end was seen, from [`MOST_OFF_NS`] before it was expected, and how often in a row about then.
    off: Rhythm,
    as_told: u8,
    /// Its expected end at the last look, and how often there was more work by then.
    until_ns: Option<u64>,
    went_on: u8,
}

/// Work of one process that was all launched when it began.
#[derive(Debug, Clone, Copy)]
struct Told {
    slot: usize,
    began_ns: u64,
    /// Its time with work by then.
    held_ns: u64,
    /// What it told of the end, and the end behind the work on the GPU.
    expected_ns: u64,
    over_ns: u64,
}

impl Pauses {
    /// Its work begins, and will be over at `expected_ns` as far as it tells.
    fn begin(&mut self, now: u64, claim: &Claim<'_>, expected_ns: Option<u64>, told: Option<Told>) {
        let before = std::mem::replace(&mut self.told, told);
        self.until_ns = expected_ns;
        if told.is_none() {
            self.as_told /= 2;
        }
        let Some(since) = self.since_ns.take() else {
            self.began_ns = Some(now);
            return;
        };
        let one = |before: &Told| {
            let others = claim.processes.iter().filter(|p| p.slot != before.slot);
            !{ others }.any(|p| p.busy)
        };
        let ns = if let Some(before) = before.filter(one) {
            let there = claim.processes.iter().find(|p| p.slot == before.slot);
            let worked_ns = there.map_or(0, |p| p.held_ns.saturating_sub(before.held_ns));
            let goes_on = |p: &Process| worked_ns >= p.said_ns.saturating_sub(before.began_ns);
            if there.is_some_and(|p| p.busy && goes_on(p)) {
                self.as_told = 0;
                return;
            }
            let seen_ns = before.began_ns.saturating_add(worked_ns).min(now);
            self.see_end(seen_ns, before.over_ns, told.is_some());
            now - seen_ns
        } else if held_by(now, claim).saturating_sub(self.used_ns)
            > now.saturating_sub(self.looked_ns) / 4
        {
            // Work that lasts longer than expected is not a pause.
            return;
        } else {
            now.saturating_sub(since)
        };
        let began = self.began_ns.replace(now);
        if !FORESEEN_NS.contains(&ns) {
            self.pause.forget();
            self.beat.forget();
            return;
        }
        self.pause.saw(ns);
        if let Some(began) = began {
            self.beat.saw(now.saturating_sub(began));
        }
    }

    /// The end of its last work was seen that was expected at `over_ns`.
    fn see_end(&mut self, seen_ns: u64, over_ns: u64, is_told: bool) {
        let off_ns = (seen_ns + MOST_OFF_NS).saturating_sub(over_ns);
        if off_ns == 0 || off_ns >= 2 * MOST_OFF_NS {
            self.as_told = 0;
            return;
        }
        if off_ns.abs_diff(self.off.mean_ns) > 2 * LATE_AT_MOST_NS {
            self.as_told = 0;
        } else if is_told {
            self.as_told = (self.as_told + 1).min(2 * SURE);
        }
        self.off.saw(off_ns);
    }

    /// Its work goes on until `expected_ns`, as far as it tells.
    fn see_more(&mut self, now: u64, expected_ns: Option<u64>) {
        let Some((expected_ns, before_ns)) = expected_ns.zip(self.until_ns) else {
            return;
        };
        if expected_ns > before_ns + LATER_NS {
            self.as_told = 0;
        }
        if now + LATE_AT_MOST_NS >= before_ns && expected_ns > before_ns {
            self.until_ns = Some(expected_ns);
            self.went_on = self.went_on.saturating_add(1);
        }
    }

    /// Whether there is mostly more work when it should end: the end itself is better told.
    pub(super) fn goes_on(&self) -> bool {
        self.went_on >= SURE
    }

    /// Whether its work ends when it tells at the beginning.
    pub(super) fn is_as_told(&self) -> bool {
        self.as_told >= SURE
    }

    /// The same of its present work.
    pub(super) fn is_sure(&self) -> bool {
        self.is_as_told() && self.told.is_some()
    }

    /// When its end will be seen at the latest that is expected then, if that is known: contexts change in between.
    pub(super) fn seen_ns(&self, over_ns: u64) -> Option<u64> {
        let seen_ns = seen_ns(over_ns, self.off.mean_ns + 2 * self.off.off_ns);
        self.is_as_told().then_some(seen_ns)
    }

    /// When it is seen on average.
    fn ended_ns(&self, over_ns: u64) -> u64 {
        match self.told.is_some() && self.off.is_seen() {
            true => seen_ns(over_ns, self.off.mean_ns),
            false => over_ns,
        }
    }

    /// How much later than expected it is seen on average.
    pub(super) fn late_ns(&self) -> u64 {
        match self.is_as_told() {
            true => self.off.mean_ns.saturating_sub(MOST_OFF_NS),
            false => 0,
        }
    }

    /// Window of its expected return by the better predictor so far; by its end the arbiter must have heard.
    fn expected(&self) -> Option<(u64, u64)> {
        let (since, began) = (self.since_ns?, self.began_ns.unwrap_or(0));
        let known = [(since, self.pause), (began, self.beat)].into_iter();
        let (from, rhythm) = known
            .filter(|(_, r)| r.is_known(self.pause.mean_ns))
            .min_by_key(|(_, r)| r.off_ns)?;
        let back = from + rhythm.mean_ns;
        // A thread that lost its processor comes a little later than ever before.
        let late = (2 * rhythm.off_ns).max(self.pause.mean_ns / LATE_PART) + LATE_AT_MOST_NS;
        Some((back - rhythm.off_ns, back + late))
    }
}

/// An end that was expected then and is seen that much later than [`MOST_OFF_NS`] before.
fn seen_ns(over_ns: u64, off_ns: u64) -> u64 {
    over_ns.saturating_add(off_ns).saturating_sub(MOST_OFF_NS)
}

/// Time with work so far.
fn held_by(now: u64, claim: &Claim<'_>) -> u64 {
    sum_of(claim, |p| used(now, p))
}

impl Arbiter {
    /// Light claims with work now; changes show how long they pause.
    pub(super) fn light_up(&mut self, now: u64, claims: &[Claim<'_>], before: &[u64]) {
        self.lit = self.light_at_work(now, claims, before);
        for claim in claims {
            let is_lit = self.lit.contains(&claim.id);
            let was_lit = before.contains(&claim.id);
            if !is_lit && !was_lit {
                continue;
            }
            let said = claim.processes.iter().map(|p| p.said_ns).max();
            let busy: Vec<&Process> = claim.processes.iter().filter(|p| p.busy).collect();
            let expected = busy.iter().map(|p| p.expected_ns).max();
            let over = busy.iter().map(|p| self.behind_ns(p)).max();
            let demand_ns = sum_of(claim, |p| p.demand_ns);
            let Some(Record { pauses, .. }) = self.record(claim.id) else {
                continue;
            };
            if is_lit && was_lit {
                pauses.see_more(now, expected);
                let other = |p: &&Process| pauses.told.is_some_and(|told| told.slot != p.slot);
                if busy.iter().any(other) {
                    pauses.told = None;
                }
            } else if is_lit {
                let launched_ns = demand_ns.saturating_sub(pauses.demand_ns);
                let most_ns = launched_ns.saturating_add(launched_ns / APART + LATER_NS);
                let told = match (&busy[..], over) {
                    ([p], Some(over_ns)) if p.expected_ns.saturating_sub(p.said_ns) <= most_ns => {
                        Some(Told {
                            slot: p.slot,
                            began_ns: p.said_ns,
                            held_ns: p.held_ns,
                            expected_ns: p.expected_ns,
                            over_ns,
                        })
                    }
                    _ => None,
                };
                pauses.begin(said.unwrap_or(now), claim, expected, told);
            } else {
                let until_ns = pauses.told.map(|told| told.expected_ns + LATER_NS);
                if expected
                    .zip(until_ns)
                    .is_some_and(|(ns, until)| ns <= until)
                {
                    pauses.went_on = 0;
                }
                let ended = over.map(|over| pauses.ended_ns(over));
                (pauses.since_ns, pauses.looked_ns) = (ended.or(said), now);
                (pauses.used_ns, pauses.demand_ns) = (held_by(now, claim), demand_ns);
            }
        }
    }

    /// Window in which a light claim is expected to come back beside a heavy claim's turn.
    pub(super) fn expected_back(&self, now: u64, holder: Holder) -> Option<(u64, u64)> {
        let light = self.records.iter().filter(|r| {
            !r.demand.heavy && !self.lit.contains(&r.id) && holder != Holder::Claim(r.id)
        });
        let back = light.filter_map(|r| r.pauses.expected());
        back.filter(|(_, until)| *until > now).min()
    }
}
