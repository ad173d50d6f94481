//! Sizes from experience: what a run will need, said by runs of the same kind that ended before.
//!
//! Pure, and made to be explained: a prediction names the runs that it rests on, and how sure it is. It is looked for
//! from close to far: the same user, script and arguments ([`Level::Repeats`]); the same script with other numbers,
//! between and beyond the ones seen ([`Level::Scaled`]); the same script at all; the script as others ran it (where the
//! configuration shares that); the user's other runs; and without any, what the class says, which is a guess.
//!
//! The bound above the middle is conformal: the errors of earlier predictions of the same kind, each in units of the
//! spread that was expected of it, say how far up it has to lie so that at most a nominal part of the runs is above.

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
pub use shape::Shape;
pub use share::{BINS, Busy};
pub use time::{Span, duration};

use std::collections::VecDeque;

use crate::units::Bytes;

/// The part of the runs that may need more than the bound.
pub const NOMINAL: f64 = 0.01;
/// Runs that are looked at, at most: the newest.
pub const RUNS: usize = 64;
/// Scores that are looked at, at most: the newest.
pub const SCORES: usize = 1000;
/// What the bound is in units of the spread while there are few scores to tell.
const FIRST_SCORE: f64 = 3.5;
/// Further off than this many times the spread, it was another thing and no spread of the same: a change. Such runs do
/// not count for the bound.
const CHANGE: f64 = 8.0;
/// A repeat is not predicted to need more than this many times the highest that was seen of it, or its middle.
const FURTHEST: f64 = 1.5;
/// From so many runs on a prediction rests on many.
const MANY: usize = 6;
/// From how many runs on others than repeats count.
const FEW: usize = 3;

/// How near the runs are that a prediction rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Same user, script and arguments (as far as they matter).
    Repeats,
    /// Same user and script; the memory follows a number in the arguments.
    Scaled,
    /// Same user and script, other arguments.
    Script,
    /// The script, as others of the group run it.
    Shared,
    /// The user's other runs.
    User,
    /// None: what the class says.
    Prior,
}

impl Level {
    /// All, from near to far.
    pub const ALL: [Self; 6] = [
        Self::Repeats,
        Self::Scaled,
        Self::Script,
        Self::Shared,
        Self::User,
        Self::Prior,
    ];

    /// In a word.
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

    /// How sure a prediction from there is, in words.
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

/// A run that ended, as far as memory goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// Number of its record.
    pub id: u64,
    /// What was run.
    pub shape: Shape,
    /// Highest memory on one of its GPUs.
    pub peak: Bytes,
}

/// Errors of earlier predictions in units of their spread, newest first, with the numbers of the runs. Kept apart by how
/// much the predictions rested on, since those from few runs are off further.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores(pub [VecDeque<(u64, f64)>; 3]);

impl Scores {
    /// Which of the lists a prediction belongs to: far ones, near ones from few runs, near ones from more.
    #[must_use]
    pub const fn kind(level: Level, runs: usize) -> usize {
        match level {
            Level::Repeats | Level::Scaled if runs >= MANY => 2,
            Level::Repeats | Level::Scaled => 1,
            _ => 0,
        }
    }

    /// Takes over what came of a prediction for a run.
    pub fn push(&mut self, kind: usize, run: u64, score: f64) {
        let list = &mut self.0[kind.min(2)];
        list.push_front((run, score));
        list.truncate(SCORES);
    }

    /// Runs that turned out to be a change were no errors.
    pub fn forget(&mut self, runs: &[u64]) {
        for list in &mut self.0 {
            list.retain(|(run, _)| !runs.contains(run));
        }
    }

    /// How many spreads above the middle the bound lies.
    #[must_use]
    pub fn quantile(&self, kind: usize, nominal: f64) -> f64 {
        let scores = self.0[kind.min(2)].iter().map(|(_, s)| *s);
        let mut known: Vec<f64> = scores.filter(|s| s.abs() < CHANGE).collect();
        known.sort_by(f64::total_cmp);
        // The smallest score that at least 1 - nominal of all are below, the one to come counted as well.
        let rank = ((known.len() + 1) as f64 * (1.0 - nominal)).ceil() as usize;
        match known.get(rank.wrapping_sub(1)) {
            Some(score) => score.max(0.0),
            None => known.last().map_or(FIRST_SCORE, |s| s.max(FIRST_SCORE)),
        }
    }
}

/// What a run will need, and from which runs that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Where it is from.
    pub level: Level,
    /// Which errors of earlier predictions its bound is from, as [`Scores::kind`] says.
    pub kind: usize,
    /// Half of such runs stay below.
    pub middle: Bytes,
    /// All but a nominal part do.
    pub bound: Bytes,
    /// Spread: the standard deviation of the logarithm that is expected of such a prediction.
    pub spread: f64,
    /// The runs that it rests on, newest first.
    pub runs: Vec<Past>,
    /// Numbers in the arguments that memory follows.
    pub follows: Vec<String>,
    /// Numbers of all runs that were looked at, newest first.
    pub newest: Vec<u64>,
    /// The newest runs differ from the older ones: how many, and by what factor.
    pub changed: Option<(usize, f64)>,
}

impl Estimate {
    /// The error of this prediction in units of its spread, once it is known what was needed.
    #[must_use]
    pub fn score(&self, peak: Bytes) -> f64 {
        if self.spread <= 0.0 || peak == Bytes::ZERO || self.middle == Bytes::ZERO {
            return 0.0;
        }
        (peak.0 as f64 / self.middle.0 as f64).ln() / self.spread
    }

    /// The newest runs that are something else than the older ones: what was said of them was no error.
    #[must_use]
    pub fn new_ones(&self) -> Vec<u64> {
        let newest = self.changed.map_or(0, |(newest, _)| newest);
        self.newest.iter().take(newest).copied().collect()
    }

    /// How sure it is, in words.
    #[must_use]
    pub fn confidence(&self) -> &'static str {
        self.level.confidence(self.runs.len())
    }
}

/// The earlier runs that are looked at, newest first in each list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Earlier {
    /// Same user and script.
    pub script: Vec<Past>,
    /// The script as others ran it, where that is shared.
    pub shared: Vec<Past>,
    /// The user's other runs.
    pub user: Vec<Past>,
}

/// What a run will need. `None` without any earlier run: then the class says it, and that is a guess.
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
        // Runs that differ by much do not say how far the next one is from all of them: not further than this.
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
