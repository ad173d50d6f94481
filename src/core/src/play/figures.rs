//! What came of a list that was played.

use crate::machine::Obstacle;

/// What came of one claim. Times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// When it was asked for.
    pub asked_s: f64,
    /// Until it began the run that lasted for the shortest time that claims may run; none if it never had that.
    pub wait_s: Option<f64>,
    /// Until it ended; none if it never did.
    pub done_s: Option<f64>,
    /// What it ran.
    pub ran_s: f64,
    /// The longest time from one run to the next.
    pub away_s: f64,
    /// What it stood still on its way to and from the host and between GPUs.
    pub stall_s: f64,
    /// How often it was sent to the host.
    pub suspensions: u32,
    /// How often it was moved.
    pub moves: u32,
    /// It was ended before it was done: its time limit was over, or somebody else came first.
    pub cut_short: bool,
    /// When it was said that it starts, once it waited: from and to (if that was known), and whether that was certain.
    pub expected: Option<(f64, Option<f64>, bool)>,
    /// Until it was granted.
    pub granted_s: Option<f64>,
    /// From the moment at which it was within its owner's guarantee until it began to run; none if it never waited so.
    pub guaranteed_wait_s: Option<f64>,
    /// What was in its way then, where that took longer than a minimum run, a countdown and two offloads.
    pub obstacle: Option<Obstacle>,
    /// A claim of the whole machine, where nothing can be taken from those that hold: how much later it started than an
    /// hour after the last of them was to end, or ended, since it was first in the queue.
    pub whole_late_s: Option<f64>,
}

/// A list that was played.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// By claim, in the order of the list.
    pub claims: Vec<Outcome>,
    /// GPU time that did useful work until the last arrival, in parts of the machine.
    pub useful: f64,
    /// GPU time until the last arrival in which there was room for somebody who waited.
    pub kept_idle: f64,
    /// GPU time until the last arrival that was free while somebody waited, whether anybody fitted there or not.
    pub unfit: f64,
    /// Suspensions and moves that did not work.
    pub failed: u32,
}

/// The figures of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Mean of what claims waited, in seconds.
    pub wait_mean_s: f64,
    /// 95 of 100 waited for less.
    pub wait_p95_s: f64,
    /// Mean time from the request to the end.
    pub jct_mean_s: f64,
    /// GPU time that did useful work until the last arrival, in parts of the machine.
    pub usage: f64,
    /// Moves.
    pub moves: u32,
    /// Suspensions.
    pub suspensions: u32,
    /// The longest time from one run of a claim to its next.
    pub away_max_s: f64,
    /// Jain's index of the speeds of users: run time over the time from request to end.
    pub jain: f64,
}

/// The value below which a part `q` of all lies.
#[must_use]
pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = (last as f64 * q).ceil() as usize;
    values.get(at.min(last)).copied().unwrap_or(0.0)
}

/// The mean; 0 of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Jain's index of fairness: 1 where all have the same, one over their number where one has all.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|v| v * v).sum();
    if squares > 0.0 {
        sum * sum / (values.len() as f64 * squares)
    } else {
        1.0
    }
}

impl Played {
    /// What claims waited, of those that ever started.
    pub fn waits(&self) -> impl Iterator<Item = f64> {
        self.claims.iter().filter_map(|c| c.wait_s)
    }

    /// Claims that did not come to their end.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        let open = |c: &&Outcome| c.done_s.is_none() || c.cut_short;
        self.claims.iter().filter(open).count()
    }

    /// Run time over the time from request to end, by user.
    #[must_use]
    pub fn speeds(&self, list: &[super::Entry]) -> Vec<f64> {
        let users = list.iter().map(|e| e.user + 1).max().unwrap_or(0);
        let (mut ran, mut took) = (vec![0.0; users], vec![0.0; users]);
        for (entry, claim) in list.iter().zip(&self.claims) {
            if let Some(done) = claim.done_s {
                ran[entry.user] += entry.run_s;
                took[entry.user] += done;
            }
        }
        let of = ran.iter().zip(&took).filter(|(_, t)| **t > 0.0);
        of.map(|(r, t)| r / t).collect()
    }

    /// The figures of the policy that was played.
    #[must_use]
    pub fn figures(&self, list: &[super::Entry]) -> Figures {
        let mut waits: Vec<f64> = self.waits().collect();
        let done: Vec<f64> = self.claims.iter().filter_map(|c| c.done_s).collect();
        Figures {
            wait_mean_s: mean(&waits),
            wait_p95_s: quantile(&mut waits, 0.95),
            jct_mean_s: mean(&done),
            usage: self.useful,
            moves: self.claims.iter().map(|c| c.moves).sum(),
            suspensions: self.claims.iter().map(|c| c.suspensions).sum(),
            away_max_s: self.claims.iter().map(|c| c.away_s).fold(0.0, f64::max),
            jain: jain(&self.speeds(list)),
        }
    }
}
