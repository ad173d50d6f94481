//! What a claim that runs will need in the next minutes: the highest of the last two hours and a tenth above. A
//! program that holds nothing now is between two lives, and what it needed before says nothing of when it comes back.
//!
//! Both constants are from the trace that `gshare bench predict` names: each of five folds of its programs chooses them
//! when it is left out (144 programs, 14,404 windows; 2.0 to 2.6 % of the windows held out are under, 27 to 31 % is over).

use std::collections::VecDeque;
use std::time::Duration;

/// Time that counts.
const BACK: Duration = Duration::from_secs(7200);
/// Above the highest.
const ABOVE: f64 = 1.11;
/// Less than this part of its highest is nothing.
pub const NOTHING: f64 = 0.02;

/// What a claim used lately.
#[derive(Clone, Debug)]
pub struct Track {
    back: Duration,
    /// When and how much, falling: only what no later one exceeds.
    falling: VecDeque<(Duration, f64)>,
    last: f64,
    highest: f64,
}

/// What it will need, in bytes or parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// Highest of the time that counts.
    pub highest: f64,
    /// With what is above.
    pub need: f64,
}

impl Default for Track {
    fn default() -> Self {
        Self::over(BACK)
    }
}

impl Track {
    /// With another time that counts.
    #[must_use]
    pub fn over(back: Duration) -> Self {
        Self {
            back,
            falling: VecDeque::new(),
            last: 0.0,
            highest: 0.0,
        }
    }

    /// Adds a look, later than all before it.
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

    /// What it will need. `None` before the first look.
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
