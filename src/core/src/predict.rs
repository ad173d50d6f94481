//! Predicts the memory that a run will need from earlier runs of the same kind.
//!
//! Pure, and explainable: a prediction names the runs that it is based on, and its confidence. The search goes from
//! near to far: the same user, script and arguments ([`Level::Repeats`]); the same script with other numbers, between
//! and beyond those seen ([`Level::Scaled`]); the same script; the script as others ran it (if the configuration shares
//! that); the user's other runs. Without any of these the class gives a guess.
//!
//! The bound above the middle is conformal: it follows from the errors of earlier predictions of the same kind, in
//! units of their expected spread, so that at most a nominal fraction of the runs exceeds it.

mod fit;
mod next;
mod phases;
mod shape;
mod share;
#[cfg(test)]
mod tests;
mod time;

pub use fit::Found;
pub use next::{NOTHING, Need, Track};
pub use phases::{Phase, Place, phases};
pub use shape::{Shape, is_name};
pub use share::{BINS, Busy};
pub use time::{Span, duration};

use std::collections::VecDeque;

use crate::units::Bytes;

/// Fraction of runs that may need more than the bound.
pub const NOMINAL: f64 = 0.01;
/// Maximum number of runs considered, newest first.
pub const RUNS: usize = 64;
/// Maximum number of scores considered, newest first.
pub const SCORES: usize = 1000;
/// Bound in units of the spread while there are few scores.
const FIRST_SCORE: f64 = 3.5;
/// A run further off than this many spreads is a change, not a deviation. Such runs do not count for the bound.
const CHANGE: f64 = 8.0;
/// The bound of a repeat is at most this many times its highest peak or its middle, whichever is larger.
const FURTHEST: f64 = 1.5;
/// Number of runs from which on a prediction is based on many.
const MANY: usize = 6;
/// Minimum number of runs for [`Level::User`].
const FEW: usize = 3;

/// How similar the runs are that a prediction is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Same user, script and arguments (those that matter).
    Repeats,
    /// Same user and script; the memory follows a number in the arguments.
    Scaled,
    /// Same user and script, other arguments.
    Script,
    /// The script, as other members of the group run it.
    Shared,
    /// The user's other runs.
    User,
    /// No runs: the class's default.
    Prior,
}

impl Level {
    /// All levels, from near to far.
    pub const ALL: [Self; 6] = [
        Self::Repeats,
        Self::Scaled,
        Self::Script,
        Self::Shared,
        Self::User,
        Self::Prior,
    ];

    /// Short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Repeats => "repeats",
            Self::Scaled => "scaled",
            Self::Script => "script",
            Self::Shared => "shared",
            Self::User => "user",
            Self::Prior => "prior",
        }
    }

    /// The confidence of a prediction at this level, in words.
    #[must_use]
    pub const fn confidence(self, runs: usize) -> &'static str {
        match (self, runs) {
            (Self::Repeats, 8..) => "high",
            (Self::Repeats, 3..) | (Self::Scaled, 6..) => "good",
            (Self::Repeats | Self::Scaled, _) | (Self::Script | Self::Shared, 3..) => "fair",
            (Self::Script | Self::Shared | Self::User, _) => "low",
            (Self::Prior, _) => "guess",
        }
    }
}

/// A finished run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// Number of its record.
    pub id: u64,
    /// What was run.
    pub shape: Shape,
    /// Peak memory on one of its GPUs.
    pub peak: Bytes,
}

/// Errors of earlier predictions in units of their spread, newest first, with the runs' numbers. There are separate
/// lists by the basis of the prediction, because those from few runs have larger errors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores(pub [VecDeque<(u64, f64)>; 3]);

impl Scores {
    /// Index of the list for a prediction: far levels, near levels with few runs, near levels with many runs.
    #[must_use]
    pub const fn kind(level: Level, runs: usize) -> usize {
        match level {
            Level::Repeats | Level::Scaled if runs >= MANY => 2,
            Level::Repeats | Level::Scaled => 1,
            _ => 0,
        }
    }

    /// Adds the error of a prediction for a run.
    pub fn push(&mut self, kind: usize, run: u64, score: f64) {
        let list = &mut self.0[kind.min(2)];
        list.push_front((run, score));
        list.truncate(SCORES);
    }

    /// Removes runs that turned out to be a change.
    pub fn forget(&mut self, runs: &[u64]) {
        for list in &mut self.0 {
            list.retain(|(run, _)| !runs.contains(run));
        }
    }

    /// Number of spreads from the middle to the bound.
    #[must_use]
    pub fn quantile(&self, kind: usize, nominal: f64) -> f64 {
        let scores = self.0[kind.min(2)].iter().map(|(_, s)| *s);
        let mut known: Vec<f64> = scores.filter(|s| s.abs() < CHANGE).collect();
        known.sort_by(f64::total_cmp);
        // The smallest score that at least 1 - nominal of all scores do not exceed, with the next one counted.
        let rank = ((known.len() + 1) as f64 * (1.0 - nominal)).ceil() as usize;
        match known.get(rank.wrapping_sub(1)) {
            Some(score) => score.max(0.0),
            None => known.last().map_or(FIRST_SCORE, |s| s.max(FIRST_SCORE)),
        }
    }
}

/// A prediction, with the runs that it is based on.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Similarity of these runs.
    pub level: Level,
    /// The list of earlier errors that the bound is from, see [`Scores::kind`].
    pub kind: usize,
    /// Half of such runs need less.
    pub middle: Bytes,
    /// All but a nominal fraction need less.
    pub bound: Bytes,
    /// Expected standard deviation of the logarithm of the error.
    pub spread: f64,
    /// The runs that it is based on, newest first.
    pub runs: Vec<Past>,
    /// Numbers in the arguments that memory depends on.
    pub follows: Vec<String>,
    /// Numbers of all runs considered, newest first.
    pub newest: Vec<u64>,
    /// If the newest runs differ from the older ones: how many they are, and by what factor.
    pub changed: Option<(usize, f64)>,
}

impl Estimate {
    /// Error of this prediction in units of its spread, once the peak is known.
    #[must_use]
    pub fn score(&self, peak: Bytes) -> f64 {
        if self.spread <= 0.0 || peak == Bytes::ZERO || self.middle == Bytes::ZERO {
            return 0.0;
        }
        (peak.0 as f64 / self.middle.0 as f64).ln() / self.spread
    }

    /// Numbers of the newest runs if they are a change: their predictions were not errors.
    #[must_use]
    pub fn new_ones(&self) -> Vec<u64> {
        let newest = self.changed.map_or(0, |(newest, _)| newest);
        self.newest.iter().take(newest).copied().collect()
    }

    /// Confidence in words.
    #[must_use]
    pub fn confidence(&self) -> &'static str {
        self.level.confidence(self.runs.len())
    }
}

/// Earlier runs by similarity, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Earlier {
    /// Same user and script.
    pub script: Vec<Past>,
    /// The script as others ran it, if that is shared.
    pub shared: Vec<Past>,
    /// The user's other runs.
    pub user: Vec<Past>,
}

/// Predicts what a run will need. `None` without earlier runs: then the class gives a guess.
#[must_use]
pub fn estimate(
    shape: &Shape,
    earlier: &Earlier,
    scores: &Scores,
    nominal: f64,
) -> Option<Estimate> {
    let found = fit::near(shape, &earlier.script)
        .or_else(|| fit::far(Level::Script, &earlier.script, 1))
        .or_else(|| fit::near(shape, &earlier.shared).map(Found::shared))
        .or_else(|| fit::far(Level::Shared, &earlier.shared, 1))
        .or_else(|| fit::far(Level::User, &earlier.user, FEW))?;
    let kind = Scores::kind(found.level, found.known);
    let above = scores.quantile(kind, nominal) * found.spread;
    let of = |log: f64| Bytes(log.exp().round() as u64);
    let (middle, mut bound) = (of(found.log), of(found.log + above));
    if found.level == Level::Repeats {
        // If repeats vary a lot the spread says little about the next one, so the bound is limited.
        let highest = found
            .runs
            .iter()
            .map(|run| run.peak)
            .fold(middle, Bytes::max);
        bound = bound.min(Bytes((FURTHEST * highest.0 as f64).round() as u64));
    }
    Some(Estimate {
        level: found.level,
        kind,
        middle,
        bound,
        spread: found.spread,
        runs: found.runs,
        follows: found.follows,
        newest: found.newest,
        changed: found.changed,
    })
}
