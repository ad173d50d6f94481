//! How long a run takes: the median of what the same user ran on as many GPUs, which is hard to beat.

use std::time::Duration;

/// Quantiles of run times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// A tenth is shorter.
    pub short: Duration,
    /// Half is.
    pub median: Duration,
    /// Nine tenths are.
    pub long: Duration,
    /// Of so many runs.
    pub runs: usize,
}

/// Fewer runs say nothing.
const FEW: usize = 3;

/// The quantiles of run times of the same user with as many GPUs, newest first. `same` are those of the same script: they
/// are taken alone where they are enough.
#[must_use]
pub fn duration(same: &[Duration], user: &[Duration]) -> Option<Span> {
    let runs = if same.len() >= FEW { same } else { user };
    if runs.len() < FEW {
        return None;
    }
    let mut sorted = runs.to_vec();
    sorted.sort();
    let at = |q: f64| sorted[((sorted.len() - 1) as f64 * q).round() as usize];
    Some(Span {
        short: at(0.1),
        median: at(0.5),
        long: at(0.9),
        runs: sorted.len(),
    })
}
