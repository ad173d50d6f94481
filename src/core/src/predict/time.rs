//! Predicts run times from earlier runs of the same program, or else of the same user with as many GPUs.

use std::time::Duration;

/// Times of earlier runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span(Vec<Duration>);

/// Minimum number of runs.
const FEW: usize = 3;

impl Span {
    /// From the times of runs; `None` if there are too few.
    #[must_use]
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        (times.len() >= FEW).then_some(Self(times))
    }

    #[must_use]
    pub const fn runs(&self) -> usize {
        self.0.len()
    }

    /// A fraction `q` of the runs was no longer than this.
    #[must_use]
    pub fn at(&self, q: f64) -> Duration {
        quantile(&self.0, q)
    }

    /// Remaining time of a run after `ran`: a fraction `q` of the runs that were longer had ended by then. `None` if no
    /// earlier run was as long.
    #[must_use]
    pub fn left(&self, ran: Duration, q: f64) -> Option<Duration> {
        let longer = &self.0[self.0.partition_point(|t| *t <= ran)..];
        (!longer.is_empty()).then(|| quantile(longer, q) - ran)
    }

    /// Probability that a run ends within a time after `ran`; `alone` is this probability for an average run. Few runs
    /// say little about a short time, so the result is at least the average probability until the run is twice as long.
    #[must_use]
    pub fn ends_within(&self, ran: Duration, within: Duration, alone: f64) -> f64 {
        let longer = |than: Duration| self.0.len() - self.0.partition_point(|t| *t <= than);
        let all = longer(ran);
        let part = |time| ((all - longer(ran + time)) as f64 + alone) / (all as f64 + 1.0);
        let often = match within < ran {
            true => part(ran) * within.as_secs_f64() / ran.as_secs_f64(),
            false => 0.0,
        };
        part(within).max(often)
    }
}

fn quantile(sorted: &[Duration], q: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * q).round() as usize]
}

/// Run times to predict from. `same` are earlier runs of the same program. If they are too few, `user`, the user's runs
/// with as many GPUs, is taken.
#[must_use]
pub fn duration(same: &[Duration], user: &[Duration]) -> Option<Span> {
    let runs = if same.len() >= FEW { same } else { user };
    Span::of(runs.to_vec())
}
