//! Long kernels: a claim then has few turns in two seconds, and a turn that comes a little late is a kernel less.
//!
//! So the order of turns is kept as even as possible. Kernels of one kind vary in duration; while the turns of all
//! claims last about the same, each counts as one turn, however long it was, and the order repeats itself. The actual
//! excess goes to an account that fades. A claim that is more than a turn off there pays for it, by a whole turn. Of
//! the claims that are due, the one with the earliest deadline goes first; among nearly equal deadlines, the one that
//! has waited longest.

use super::Arbiter;

/// Kernels are long where turns last this much longer, on average, than a claim's part of a cycle.
const LONGER_NS: u64 = 1_000_000;
/// The mean of a claim's turns covers about this many.
const TURNS: u64 = 64;
/// A turn that differs from the claim's usual ones by more than this part is of another kind.
const KIND: u64 = 4;
/// Claims have the same kind of work if their usual turns are nearer to the common mean than this part, plus the random
/// error of few turns.
const ALIKE: f64 = 0.01;
/// That error, for one turn.
const CHANCE: f64 = 0.15;
/// Factor on this tolerance for claims that were alike.
const STILL: f64 = 1.5;
/// Turns count equally if each is one kernel: they last longer than the longest turn given. The second value is the
/// threshold to stay so.
const ONE_KERNEL_NS: (f64, f64) = (65e6, 57e6);
/// The counted length changes when the mean is this much off.
const SAME: f64 = 0.1;
/// Number of turns over which the account of actual times fades.
const FADES: f64 = 50.0;
/// Part of the account that is paid at each turn while turns are not alike.
const LEAKS: f64 = 0.1;
/// Number of turns off at which a claim pays.
const PAYS: f64 = 1.5;
/// A claim is due this part of its own cycle before it is behind.
const DUE: f64 = 0.1;
/// Deadlines within this part of a cycle of each other are equally urgent.
const EQUAL: f64 = 0.3;

/// Figures of a claim's turns.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usual {
    /// Usual length of a turn.
    pub ns: u64,
    /// Number of turns in that mean.
    seen: u64,
    /// The last turn was of another kind.
    was_odd: bool,
    /// Its part of the GPU at its last turn.
    pub share: f64,
    /// Actual time beyond the counted time.
    pub owed_ns: f64,
    /// Number of its last turn.
    pub last: u64,
}

impl Usual {
    fn learn(&mut self, took_ns: u64) {
        if took_ns.abs_diff(self.ns) > self.ns / KIND {
            // One turn among others of one kind is an exception, for example one whose end was seen late.
            self.was_odd = !self.was_odd && self.seen > 0;
            if !self.was_odd {
                (self.ns, self.seen) = (took_ns, 1);
            }
            return;
        }
        self.was_odd = false;
        self.seen = (self.seen + 1).min(TURNS);
        self.ns = self.ns - self.ns / self.seen + took_ns / self.seen;
    }

    fn is_near(&self, mean: f64, was_near: bool) -> bool {
        let far = ALIKE + CHANCE / (self.seen.max(1) as f64).sqrt();
        let still = if was_near { STILL } else { 1.0 };
        (self.ns as f64 - mean).abs() <= far * still * mean
    }
}

/// A claim that could have the next turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub id: u64,
    /// Time used over share.
    pub ahead_ns: f64,
    pub share: f64,
    pub usual_ns: u64,
    /// Time since the end of its last turn.
    pub waited_ns: u64,
}

impl Candidate {
    /// Length of a cycle in which it has one turn.
    fn cycle_ns(&self) -> f64 {
        self.usual_ns as f64 / self.share.max(1e-3)
    }

    /// Its turn must end by then, or it falls behind.
    fn deadline_ns(&self) -> f64 {
        self.ahead_ns + self.cycle_ns()
    }
}

/// The claim that goes next; `None` for short kernels. `each_ns` is the length of a cycle of turns, per claim.
pub(super) fn next(claims: &[Candidate], each_ns: u64) -> Option<u64> {
    let all: u64 = claims.iter().map(|c| c.usual_ns).sum();
    if claims.len() < 2 || all < (each_ns + LONGER_NS) * claims.len() as u64 {
        return None;
    }
    let shares: f64 = claims.iter().map(|c| c.share).sum();
    let middle = claims.iter().map(|c| c.share * c.ahead_ns).sum::<f64>() / shares.max(1e-9);
    let due = claims
        .iter()
        .filter(|c| c.ahead_ns <= middle + DUE * c.cycle_ns());
    let soonest = due.clone().map(Candidate::deadline_ns).reduce(f64::min)?;
    let waited = |c: &Candidate| c.waited_ns as f64 / c.cycle_ns().max(1.0);
    due.filter(|c| c.deadline_ns() <= soonest + EQUAL * c.cycle_ns())
        .max_by(|a, b| waited(a).total_cmp(&waited(b)).then(b.id.cmp(&a.id)))
        .map(|c| c.id)
}

impl Arbiter {
    /// Counted length of a turn with this actual length.
    pub(super) fn even_out(&mut self, id: u64, took_ns: u64, crowded: bool) -> u64 {
        let even = self.even_ns;
        let Some(record) = self.record(id) else {
            return took_ns;
        };
        if !crowded {
            record.usual.learn(took_ns);
        }
        let owed = record.usual.owed_ns;
        let Some(even) = even else {
            let paid = (owed * LEAKS).max(-(took_ns as f64));
            self.owes(id, -paid);
            return (took_ns as f64 + paid) as u64;
        };
        let unit = even as f64;
        self.owes(id, took_ns as f64 - unit);
        let Some(record) = self.record(id) else {
            return took_ns;
        };
        let owed = &mut record.usual.owed_ns;
        *owed -= *owed / FADES;
        let turns = match *owed / unit {
            turns if turns >= PAYS => turns.floor(),
            turns if turns <= -PAYS => -1.0,
            _ => 0.0,
        };
        self.owes(id, -turns * unit);
        (unit + turns * unit) as u64
    }

    /// A claim has used this much beyond the counted time: it leads by that, and all fall behind by their parts of it.
    fn owes(&mut self, id: u64, ns: f64) {
        for r in self.records.iter_mut().filter(|r| r.wants) {
            r.usual.owed_ns -= ns * r.usual.share;
        }
        if let Some(record) = self.record(id) {
            record.usual.owed_ns += ns;
        }
    }

    /// Checks whether the claims' turns are alike, so that each counts as one.
    pub(super) fn see_whether_even(&mut self, now: u64) {
        let mean = self.mean_if_alike();
        if let (Some(even), Some(mean)) = (self.even_ns, mean) {
            let ratio = mean / even as f64;
            if (ratio - 1.0).abs() > SAME {
                let middle = self.middle();
                for r in &mut self.records {
                    r.ahead_ns = middle + (r.ahead_ns - middle) * ratio;
                }
                self.even_ns = Some(mean as u64);
            }
            return;
        }
        self.even_ns = None;
        let Some(mean) = mean else {
            return;
        };
        self.even_ns = Some(mean as u64);
        // From here on each claim's turns are spaced by its share; its actual position goes to its account.
        let middle = self.middle();
        let left = |r: &super::Record| {
            let cycle = mean / r.usual.share.max(1e-3);
            (cycle - now.saturating_sub(r.last_turn.0) as f64).max(0.0)
        };
        let wanting = || self.records.iter().filter(|r| r.wants);
        let shares: f64 = wanting().map(|r| r.usual.share).sum();
        let shift = wanting().map(|r| r.usual.share * left(r)).sum::<f64>() / shares.max(1e-9);
        for r in self.records.iter_mut().filter(|r| r.wants) {
            let ahead = middle - shift + left(r);
            let owed = r.usual.owed_ns + (r.ahead_ns - ahead) * r.usual.share;
            // More than a turn is paid now: the account would take it seconds later.
            r.usual.owed_ns = owed.clamp(-mean, mean);
            r.ahead_ns = ahead + (owed - r.usual.owed_ns) / r.usual.share;
        }
    }

    /// Mean position of the claims that want the GPU.
    pub(super) fn middle(&self) -> f64 {
        let wanting = || self.records.iter().filter(|r| r.wants);
        let shares: f64 = wanting().map(|r| r.usual.share).sum();
        wanting().map(|r| r.usual.share * r.ahead_ns).sum::<f64>() / shares.max(1e-9)
    }

    /// Length of a turn, if it is long and about the same for all that want one.
    fn mean_if_alike(&self) -> Option<f64> {
        let wanting = || self.records.iter().filter(|r| r.wants);
        let known = || wanting().map(|r| r.usual).filter(|usual| usual.seen > 0);
        let mean = known().map(|u| u.ns as f64).sum::<f64>() / known().count().max(1) as f64;
        let least = match self.even_ns {
            None => ONE_KERNEL_NS.0,
            Some(_) => ONE_KERNEL_NS.1,
        };
        let even = wanting().count() >= 2
            && mean >= least
            && wanting().all(|r| r.usual.share > 0.0)
            && known().all(|usual| usual.is_near(mean, self.even_ns.is_some()));
        even.then_some(mean)
    }
}

#[cfg(test)]
mod tests {
    use super::super::CYCLE_NS;
    use super::*;

    const MS: u64 = 1_000_000;

    /// Turns of 200 ms: the number that each claim had in each ten of them.
    fn tens(shares: &[f64]) -> Vec<Vec<usize>> {
        let mut claims: Vec<Candidate> = (0..)
            .zip(shares)
            .map(|(id, share)| Candidate {
                id,
                ahead_ns: 0.0,
                share: *share,
                usual_ns: 200 * MS,
                waited_ns: 0,
            })
            .collect();
        let mut turns = Vec::new();
        for _ in 0..100 {
            let next = next(&claims, CYCLE_NS).unwrap_or(0);
            for claim in &mut claims {
                claim.waited_ns += 200 * MS;
            }
            let claim = &mut claims[next as usize];
            claim.ahead_ns += 200e6 / claim.share;
            claim.waited_ns = 0;
            turns.push(next);
        }
        let count = |ten: &[u64], id| ten.iter().filter(|t| **t == id).count();
        let ids = 0..shares.len() as u64;
        turns
            .windows(10)
            .skip(10)
            .take(80)
            .map(|ten| ids.clone().map(|id| count(ten, id)).collect())
            .collect()
    }

    /// A claim with a tenth of the GPU, whose turn is just over when the turns are found to be alike.
    #[test]
    fn a_claim_that_has_just_had_its_turn_waits_for_its_cycle() {
        let mut arbiter = Arbiter::default();
        for (id, share, ended) in [(0, 0.1, 10_000 * MS), (1, 0.9, 9800 * MS)] {
            let mut record = super::super::Record::new(id, crate::Word::default());
            (record.wants, record.last_turn) = (true, (ended, 0.0));
            record.usual.learn(200 * MS);
            record.usual.share = share;
            arbiter.records.push(record);
        }
        arbiter.see_whether_even(10_000 * MS);
        assert_eq!(arbiter.even_ns, Some(200 * MS));
        let mut claims: Vec<Candidate> = (arbiter.records.iter().zip([0, 200 * MS]))
            .map(|(r, waited_ns)| Candidate {
                id: r.id,
                ahead_ns: r.ahead_ns,
                share: r.usual.share,
                usual_ns: 200 * MS,
                waited_ns,
            })
            .collect();
        let others = (0..20).take_while(|_| {
            let other = next(&claims, CYCLE_NS) == Some(1);
            claims[1].ahead_ns += 200e6 / 0.9;
            claims[0].waited_ns += 200 * MS;
            claims[1].waited_ns = 0;
            other
        });
        let others = others.count();
        assert!((8..=10).contains(&others), "{others} turns");
    }

    #[test]
    fn one_odd_turn_makes_no_other_kind() {
        let mut usual = Usual::default();
        for (took, expect) in [(14, 14), (19, 14), (14, 14), (19, 14), (19, 19)] {
            usual.learn(took * MS);
            assert_eq!(usual.ns, expect * MS);
        }
    }

    #[test]
    fn of_ten_turns_everybody_has_its_share_within_one() {
        for (shares, want) in [
            (&[0.2, 0.3, 0.5][..], &[2, 3, 5][..]),
            (&[0.1, 0.9], &[1, 9]),
            (&[0.3, 0.7], &[3, 7]),
            (&[0.5, 0.5], &[5, 5]),
        ] {
            let tens = tens(shares);
            for ten in &tens {
                let off = ten.iter().zip(want).map(|(had, due)| had.abs_diff(*due));
                assert!(off.max() <= Some(1), "{ten:?}, {shares:?}");
            }
            for (i, due) in want.iter().enumerate() {
                let had: usize = tens.iter().step_by(10).map(|ten| ten[i]).sum();
                assert!(had.abs_diff(8 * due) <= 1, "{had}, {shares:?}");
            }
        }
        assert_eq!(next(&[], CYCLE_NS), None);
    }

    #[test]
    fn turns_of_short_kernels_are_short_however_long_the_cycle_is() {
        let half = |id| Candidate {
            id,
            ahead_ns: 0.0,
            share: 0.5,
            usual_ns: 28 * MS,
            waited_ns: 0,
        };
        let claims = [half(1), half(2)];
        assert_eq!(next(&claims, 2 * CYCLE_NS), None);
        assert!(next(&claims, CYCLE_NS).is_some());
    }
}
