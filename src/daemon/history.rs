//! The history of the GPUs: a point each ten seconds, kept for a day, and on the screen for ten minutes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::journal::SampleRecord;
use super::service::Service;
use super::{millis, unix_ms};

/// Time that one point stands for.
const STEP: Duration = Duration::from_secs(10);
/// Points on the screen: ten minutes.
const POINTS: usize = 60;
/// How long points are kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// A point that is being made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    sum: f64,
    count: u32,
    since: Instant,
}

impl Default for Step {
    fn default() -> Self {
        Self {
            sum: 0.0,
            count: 0,
            since: Instant::now(),
        }
    }
}

impl Step {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    /// The mean once the time is over, absent if nothing was known; then the next point begins.
    fn finish(&mut self) -> Option<Option<f32>> {
        if self.since.elapsed() < STEP {
            return None;
        }
        let mean = (self.count > 0).then(|| (self.sum / f64::from(self.count)) as f32);
        *self = Self::default();
        Some(mean)
    }
}

impl Service {
    /// Adds the newest sample to the history.
    pub(crate) fn record_history(&mut self) {
        let mut points = Vec::new();
        for g in 0..self.gpus.len() {
            let reading = self.reading(g);
            let value = reading.and_then(|r| r.gpm.and_then(|x| x.sm_active).or(r.time_busy));
            let used_bytes = reading.and_then(|r| r.mem_used);
            let claimed_bytes = self.machine.ledger().mem_requested(g).0;
            let gpu = &mut self.gpus[g];
            gpu.step.add(value);
            if let Some(activity) = gpu.step.finish() {
                gpu.history.push_back(activity);
                while gpu.history.len() > POINTS {
                    gpu.history.pop_front();
                }
                points.push(SampleRecord {
                    at_ms: unix_ms(),
                    uuid: gpu.uuid.clone(),
                    activity,
                    used_bytes,
                    claimed_bytes,
                });
            }
        }
        if points.is_empty() {
            return;
        }
        let keep_from = unix_ms().saturating_sub(millis(KEPT));
        if let Err(error) = self.journal.add_samples(&points, keep_from) {
            tracing::warn!(%error, "a point of the history could not be written");
        }
    }

    /// Puts the last minutes on the screen again after a restart. Time without a service is unknown.
    pub(crate) fn load_history(&mut self) -> anyhow::Result<()> {
        let now = unix_ms();
        let from = now.saturating_sub(millis(STEP) * POINTS as u64);
        for gpu in &mut self.gpus {
            gpu.history = spread(&self.journal.activity_since(&gpu.uuid, from)?, now);
        }
        Ok(())
    }
}

/// Points at their places in time before `now`: where there was none, nothing is known.
fn spread(points: &[(u64, Option<f32>)], now: u64) -> VecDeque<Option<f32>> {
    let place =
        |at: u64| usize::try_from(now.saturating_sub(at) / millis(STEP)).unwrap_or(usize::MAX);
    let Some(longest) = points.iter().map(|(at, _)| place(*at)).max() else {
        return VecDeque::new();
    };
    let mut history: VecDeque<Option<f32>> = vec![None; (longest + 1).min(POINTS)].into();
    for (at, activity) in points {
        let last = history.len() - 1;
        if let Some(slot) = last
            .checked_sub(place(*at))
            .and_then(|i| history.get_mut(i))
        {
            *slot = *activity;
        }
    }
    history
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_return_to_their_places_and_gaps_are_unknown() {
        let points = [
            (1_000, Some(10.0)),
            (11_000, Some(20.0)),
            (41_000, Some(50.0)),
        ];
        let history: Vec<_> = spread(&points, 45_000).into();
        assert_eq!(history, [Some(10.0), Some(20.0), None, None, Some(50.0)]);
        assert!(spread(&[], 45_000).is_empty());
        assert_eq!(
            spread(&[(0, Some(1.0))], 3_600_000).len(),
            POINTS,
            "never longer than the screen"
        );
    }

    #[test]
    fn a_point_without_a_figure_is_unknown() {
        let mut step = Step {
            since: Instant::now().checked_sub(STEP).unwrap(),
            ..Step::default()
        };
        step.add(None);
        assert_eq!(step.finish(), Some(None));
        assert_eq!(step.finish(), None, "the next has just begun");
    }
}
