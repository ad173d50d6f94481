//! Results of a played list.

use crate::machine::Obstacle;

/// Result of one claim. Times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Time of the request.
    pub asked_s: f64,
    /// Time until the first run that lasted for the minimum run time; `None` without such a run.
    pub wait_s: Option<f64>,
    /// Time until it ended; `None` if it never did.
    pub done_s: Option<f64>,
    /// Run time.
    pub ran_s: f64,
    /// Longest time between two runs.
    pub away_s: f64,
    /// Time that it stood still while moving between GPUs, or to and from the host.
    pub stall_s: f64,
    /// Number of offloads to the host.
    pub suspensions: u32,
    pub moves: u32,
    /// It ended early: its time limit was over, or another claim took its place.
    pub cut_short: bool,
    /// Expected start, as told while it waited: from, to (if known), and whether it was certain.
    pub expected: Option<(f64, Option<f64>, bool)>,
    /// Time until it was granted.
    pub granted_s: Option<f64>,
    /// Time from fitting into its owner's guarantee to its start; `None` if it never waited within the guarantee.
    pub guaranteed_wait_s: Option<f64>,
    /// What delayed it, if it took longer than a minimum run, a countdown and two offloads: what was last in its way in
    /// the minimum run time after it fitted.
    pub obstacle: Option<Obstacle>,
    /// For a claim of the whole machine without preemption: delay of its start, counted from the last holder's actual
    /// end or an hour after the last known end when it came, or when the ones that came before it had started, whichever
    /// is later.
    pub whole_late_s: Option<f64>,
}

/// Results of a list.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// One per claim, in the order of the list.
    pub claims: Vec<Outcome>,
    /// Fraction of the machine's GPU time that did useful work until the last arrival.
    pub useful: f64,
    /// GPU time until the last arrival that was free while a claim that would fit was waiting.
    pub kept_idle: f64,
    /// On several machines: GPU time until the last arrival that was free while any claim was waiting.
    pub unfit: f64,
    /// Failed suspensions and moves.
    pub failed: u32,
}

/// Figures of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Mean wait, in seconds.
    pub wait_mean_s: f64,
    /// 95th percentile of the wait, in seconds.
    pub wait_p95_s: f64,
    /// Mean time from the request to the end.
    pub jct_mean_s: f64,
    /// Fraction of the machine's GPU time that did useful work until the last arrival.
    pub usage: f64,
    pub moves: u32,
    pub suspensions: u32,
    /// Longest time between two runs of a claim.
    pub away_max_s: f64,
    /// Jain's index of the speeds of users: run time over the time from request to end.
    pub jain: f64,
}

/// The value below which a fraction `q` of the values lies.
#[must_use]
pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = (last as f64 * q).ceil() as usize;
    values.get(at.min(last)).copied().unwrap_or(0.0)
}

/// The mean; 0 for no values.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Jain's index of fairness: 1 if all values are equal, 1/n if one of n has everything.
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
    /// Waits of the claims that started.
    pub fn waits(&self) -> impl Iterator<Item = f64> {
        self.claims.iter().filter_map(|c| c.wait_s)
    }

    /// Claims that did not finish.
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

    /// The figures of a policy that was played.
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
