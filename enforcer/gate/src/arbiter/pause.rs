//! Predicts the return of a light claim: many programs pause for about as long each time; others begin at a fixed beat,
//! and pause less after longer work.

use super::{Arbiter, Claim, Holder, LATE_AT_MOST_NS, Record, demand::used};
use crate::{member::LATER_NS, rhythm::Rhythm};

/// Other pauses are not predicted: they are too short to matter, or too long to mean anything.
const FORESEEN_NS: std::ops::Range<u64> = 500_000..100_000_000;
/// Extra wait for a claim that is due, as a part of its pause.
const LATE_PART: u64 = 16;
/// After this many times in a row that its work ended as told, the next will.
const SURE: u8 = 4;

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
    /// Expected end of its work when it began, if all of it was launched then, and how often in a row it ended then.
    told_ns: Option<u64>,
    as_told: u8,
    /// Its expected end at the last look, and how often there was more work by then.
    until_ns: Option<u64>,
    went_on: u8,
}

impl Pauses {
    fn ended(&mut self, now: u64, used_ns: u64) {
        let Some(since) = self.since_ns.take() else {
            self.began_ns = Some(now);
            return;
        };
        // Work that lasts longer than expected is not a pause.
        if used_ns.saturating_sub(self.used_ns) > now.saturating_sub(self.looked_ns) / 4 {
            self.as_told = 0;
            return;
        }
        let ns = now.saturating_sub(since);
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

    /// Its work begins; all that will be over at `over_ns` is launched, or not.
    fn see_beginning(&mut self, over_ns: Option<u64>, is_launched: bool) {
        self.until_ns = over_ns;
        self.told_ns = over_ns.filter(|_| is_launched);
    }

    /// It is over, or will be at `over_ns`, which is soon.
    fn see_end(&mut self, over_ns: Option<u64>, said_ns: Option<u64>) {
        let Some(until_ns) = self.told_ns.map(|told_ns| told_ns + LATER_NS) else {
            return;
        };
        if over_ns.or(said_ns).is_some_and(|end_ns| end_ns > until_ns) {
            self.as_told = 0;
        } else if over_ns.is_some() {
            self.as_told = self.as_told.saturating_add(1);
            self.went_on = 0;
        }
    }

    fn see_more(&mut self, now: u64, over_ns: Option<u64>) {
        let Some((over_ns, before_ns)) = over_ns.zip(self.until_ns) else {
            return;
        };
        if over_ns > before_ns + LATER_NS {
            self.as_told = 0;
        }
        if now + LATE_AT_MOST_NS >= before_ns && over_ns > before_ns {
            self.until_ns = Some(over_ns);
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
        self.is_as_told() && self.told_ns.is_some()
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

impl Arbiter {
    /// Light claims with work now; changes show how long they pause.
    pub(super) fn light_up(&mut self, now: u64, claims: &[Claim<'_>], before: &[u64]) {
        self.lit = self.light_at_work(now, claims);
        for claim in claims {
            let is_lit = self.lit.contains(&claim.id);
            let was_lit = before.contains(&claim.id);
            if !is_lit && !was_lit {
                continue;
            }
            let said = claim.processes.iter().map(|p| p.said_ns).max();
            let over = claim.processes.iter().filter(|p| p.busy);
            let over = over.map(|p| p.expected_ns).max();
            let used_ns = claim.processes.iter().map(|p| used(now, p)).sum();
            let demand_ns: u64 = claim.processes.iter().map(|p| p.demand_ns).sum();
            if let Some(Record { pauses, .. }) = self.record(claim.id) {
                if is_lit && was_lit {
                    pauses.see_more(now, over);
                } else if is_lit {
                    pauses.ended(said.unwrap_or(now), used_ns);
                    let lasts_ns = over.zip(said).map(|(over, said)| over.saturating_sub(said));
                    let launched_ns = demand_ns.saturating_sub(pauses.demand_ns) + LATER_NS;
                    pauses.see_beginning(over, lasts_ns.is_some_and(|ns| ns <= launched_ns));
                } else {
                    pauses.see_end(over, said);
                    (pauses.since_ns, pauses.looked_ns) = (over.or(said), now);
                    (pauses.used_ns, pauses.demand_ns) = (used_ns, demand_ns);
                }
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
