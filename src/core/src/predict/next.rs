//! Predicts what a running claim will need in the next minutes: the highest value of the last two hours plus a tenth. A
//! program that holds nothing now is between two phases, and its earlier use does not predict the next one.
//!
//! Both constants are from the trace that `gshare bench predict` names. They were chosen by cross-validation over five
//! folds of its programs (144 programs, 14,404 windows; of the held-out windows 2.0 to 2.6 % are too low, 27 to 31 %
//! too high).

use std::collections::VecDeque;
use std::time::Duration;

/// Length of the window.
const BACK: Duration = Duration::from_secs(7200);
/// Factor above the highest value.
const ABOVE: f64 = 1.11;
/// Below this fraction of its peak a claim counts as holding nothing.
pub const NOTHING: f64 = 0.02;

/// Recent use of a claim.
#[derive(Clone, Debug)]
pub struct Track {
    back: Duration,
    /// Time and value, descending: only values that no later one exceeds.
    falling: VecDeque<(Duration, f64)>,
    last: f64,
    highest: f64,
}

/// Prediction, in bytes or fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// Highest value in the window.
    pub highest: f64,
    /// The prediction: the highest value with the margin.
    pub need: f64,
}

impl Default for Track {
    fn default() -> Self {
        Self::over(BACK)
    }
}

impl Track {
    /// With another window length.
    #[must_use]
    pub fn over(back: Duration) -> Self {
        Self {
            back,
            falling: VecDeque::new(),
            last: 0.0,
            highest: 0.0,
        }
    }

    /// Adds a value; times must increase.
    pub fn look(&mut self, at: Duration, value: f64) {
        while self.falling.back().is_some_and(|(_, v)| *v <= value) {
            self.falling.pop_back();
        }
        self.falling.push_back((at, value));
        self.last = value;
        self.highest = self.highest.max(value);
        let from = at.saturating_sub(self.back);
        while self.falling.front().is_some_and(|(when, _)| *when < from) {
            self.falling.pop_front();
        }
    }

    /// The prediction. `None` without values.
    #[must_use]
    pub fn need(&self) -> Option<Need> {
        let (_, highest) = *self.falling.front()?;
        let highest = if self.last < NOTHING * self.highest {
            self.last
        } else {
            highest
        };
        Some(Need {
            highest,
            need: highest * ABOVE,
        })
    }
}
