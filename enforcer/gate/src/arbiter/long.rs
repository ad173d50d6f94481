//! Long kernels: a claim has few turns in two seconds then, and one that comes a little late is a kernel less.
//!
//! So the order of turns is kept as even as it can be. Kernels of one kind do not all take the same time; while the
//! claims' turns last about the same, each counts as the mean of all, and what it really took goes to an account
//! that fades. Only whoever is more than a turn off there pays for it at once. And of those who are due the one goes
//! first whose turn has to be over soonest, or of several nearly as soon the one that has waited longest.

use super::Arbiter;

/// Kernels are long where turns last this long on average.
const LONG_NS: u64 = 40_000_000;
/// The mean of a claim's turns is over about so many.
const TURNS: u64 = 16;
/// A turn that is further from the claim's usual ones than this part is of another kind.
const KIND: u64 = 4;
/// Claims whose usual turns are nearer to the mean of all than this part have the same kind of work.
const ALIKE: u64 = 10;
/// What turns really took fades over so many of them.
const FADES: f64 = 25.0;
/// So many turns off, a claim pays for it at once.
const PAYS: f64 = 1.5;
/// A claim is due this part of its own cycle before it is behind.
const DUE: f64 = 0.1;
/// Turns that have to be over within this part of a cycle of each other are equally urgent.
const EQUAL: f64 = 0.3;

/// What is known of a claim's turns.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usual {
    /// What one usually lasts.
    pub ns: u64,
    /// What they took beyond what was counted.
    owed_ns: f64,
}

/// A claim that could have the next turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub id: u64,
    /// Time used over share.
    pub ahead_ns: f64,
    pub share: f64,
    pub usual_ns: u64,
    /// When its last turn ended.
    pub last_ns: u64,
}

impl Candidate {
    /// Length of a cycle in which it has one turn.
    fn cycle_ns(&self) -> f64 {
        self.usual_ns as f64 / self.share.max(1e-3)
    }

    /// When its turn has to be over for it not to be behind.
    fn deadline_ns(&self) -> f64 {
        self.ahead_ns + self.cycle_ns()
    }
}

/// Who of several goes next; `None` where kernels are short.
pub(super) fn next(now: u64, claims: &[Candidate]) -> Option<u64> {
    let all: u64 = claims.iter().map(|c| c.usual_ns).sum();
    if claims.len() < 2 || all < LONG_NS * claims.len() as u64 {
        return None;
    }
    let shares: f64 = claims.iter().map(|c| c.share).sum();
    let middle = claims.iter().map(|c| c.share * c.ahead_ns).sum::<f64>() / shares.max(1e-9);
    let due = claims
        .iter()
        .filter(|c| c.ahead_ns <= middle + DUE * c.cycle_ns());
    let soonest = due.clone().map(Candidate::deadline_ns).reduce(f64::min)?;
    let waited = |c: &Candidate| now.saturating_sub(c.last_ns) as f64 / c.cycle_ns().max(1.0);
    due.filter(|c| c.deadline_ns() <= soonest + EQUAL * c.cycle_ns())
        .max_by(|a, b| waited(a).total_cmp(&waited(b)))
        .map(|c| c.id)
}

impl Arbiter {
    /// What a turn counts that has taken so long.
    pub(super) fn even_out(&mut self, id: u64, took_ns: u64) -> u64 {
        if let Some(record) = self.record(id) {
            let usual = &mut record.usual.ns;
            *usual = if took_ns.abs_diff(*usual) > *usual / KIND {
                took_ns
            } else {
                *usual - *usual / TURNS + took_ns / TURNS
            };
        }
        let wanting = self.records.iter().filter(|r| r.wants);
        let usual: Vec<u64> = wanting.map(|r| r.usual.ns).collect();
        let mean = usual.iter().sum::<u64>() / (usual.len() as u64).max(1);
        let near = |ns: u64, part: u64| ns.abs_diff(mean) <= mean / part;
        let even =
            mean >= LONG_NS && near(took_ns, KIND) && usual.iter().all(|ns| near(*ns, ALIKE));
        let Some(record) = self.record(id) else {
            return took_ns;
        };
        let owed = &mut record.usual.owed_ns;
        if !even {
            *owed = 0.0;
            return took_ns;
        }
        *owed += took_ns as f64 - mean as f64 - *owed / FADES;
        if owed.abs() < PAYS * mean as f64 {
            return mean;
        }
        let counted = (mean as f64 + std::mem::take(owed)).max(0.0);
        counted as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Turns of 200 ms for so long: how many each claim had in each ten of them.
    fn tens(shares: &[f64]) -> Vec<Vec<usize>> {
        let mut claims: Vec<Candidate> = (0..)
            .zip(shares)
            .map(|(id, share)| Candidate {
                id,
                ahead_ns: 0.0,
                share: *share,
                usual_ns: 200 * MS,
                last_ns: 0,
            })
            .collect();
        let mut turns = Vec::new();
        for turn in 1..=100 {
            let now = turn * 200 * MS;
            let next = next(now, &claims).unwrap_or(0);
            let claim = &mut claims[next as usize];
            claim.ahead_ns += 200e6 / claim.share;
            claim.last_ns = now;
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
        assert_eq!(next(0, &[]), None);
    }
}
