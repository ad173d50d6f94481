//! The smallest fraction of a GPU's SMs (or time) that would not have slowed a run by more than 5 %.

/// Number of bins: each is a twentieth of a GPU.
pub const BINS: usize = 20;
/// A run counts as slowed above this multiple of its time.
const SLOWER: f64 = 1.05;

/// Histogram of a run's demand: seconds by twentieths of a GPU; the last bin ends at the whole GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy(pub [f64; BINS]);

impl Busy {
    /// Adds a period in which the run used a fraction (0 to 1) of the GPU and was throttled for a fraction of the time.
    pub fn add(&mut self, seconds: f64, used: f64, held_back: f64) {
        // What it would have used without throttling.
        let wanted = used / (1.0 - held_back.clamp(0.0, 0.95));
        let place = (wanted.clamp(0.0, 1.0) * BINS as f64).ceil() as usize;
        self.0[place.saturating_sub(1).min(BINS - 1)] += seconds;
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// Total seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Run time with this part of the GPU, relative to the actual one: 1 means no slowdown.
    #[must_use]
    pub fn slowed(&self, part: f64) -> f64 {
        let seconds = self.seconds();
        if seconds <= 0.0 {
            return 1.0;
        }
        let with: f64 = self
            .0
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let wanted = (i + 1) as f64 / BINS as f64;
                s * (wanted / part.max(1e-6)).max(1.0)
            })
            .sum();
        with / seconds
    }

    /// The smallest part, in twentieths, that would not have slowed the run by more than 5 %. `None` without data.
    #[must_use]
    pub fn enough(&self) -> Option<f64> {
        if self.seconds() <= 0.0 {
            return None;
        }
        let parts = (1..=BINS).map(|n| n as f64 / BINS as f64);
        parts.into_iter().find(|part| self.slowed(*part) <= SLOWER)
    }

    /// The largest part used, in twentieths.
    #[must_use]
    pub fn most(&self) -> Option<f64> {
        let last = self.0.iter().rposition(|s| *s > 0.0)?;
        Some((last + 1) as f64 / BINS as f64)
    }
}
