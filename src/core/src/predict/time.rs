//! How long a run takes: as long as the last runs of the same program, else of the same user on as many GPUs.

use std::time::Duration;

/// Run times of earlier runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span(Vec<Duration>);

/// Fewer runs say nothing.
const FEW: usize = 3;

impl Span {
    /// From the times of runs; none where they are too few to say anything.
    #[must_use]
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        (times.len() >= FEW).then_some(Self(times))
    }

    /// How many runs.
    #[must_use]
    pub const fn runs(&self) -> usize {
        self.0.len()
    }

    /// A part `q` of the runs was no longer.
    #[must_use]
    pub fn at(&self, q: f64) -> Duration {
        quantile(&self.0, q)
    }

    /// How much longer a run goes on that has gone on for `ran`, by those that went on for longer: a part `q` of them
    /// had ended by then. None where no run ever was as long.
    #[must_use]
    pub fn left(&self, ran: Duration, q: f64) -> Option<Duration> {
        let longer = &self.0[self.0.partition_point(|t| *t <= ran)..];
        (!longer.is_empty()).then(|| quantile(longer, q) - ran)
    }

    /// How probable it is that a run that has gone on for `ran` ends within some time, where `alone` is how probable that
    /// is of any run. Few runs say little of a short time, so it is at least as probable as on average until the run is
    /// twice as long.
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

/// How long a run takes. `same` are earlier runs of the same program: they are taken alone where they are enough, else
/// those of the user on as many GPUs.
#[must_use]
pub fn duration(same: &[Duration], user: &[Duration]) -> Option<Span> {
    let runs = if same.len() >= FEW { same } else { user };
    Span::of(runs.to_vec())
}
