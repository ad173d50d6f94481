//! What the service counts about itself since it started, for the metrics.

use std::time::{Duration, Instant};

use gshare_core::machine::{Action, Event};

use super::metrics::{Exporter, Histogram};
use super::service::Service;

/// Bounds of waiting times in seconds: from at once to a day.
const WAITS: &[f64] = &[
    0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 86_400.0,
];
/// Bounds of times to decide in seconds.
const DECISIONS: &[f64] = &[0.000_01, 0.000_1, 0.001, 0.01, 0.1, 1.0];

/// Counters and histograms.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Steps of the core: each is a decision.
    pub(crate) decisions: Histogram,
    /// Time between the question and the grant.
    pub(crate) waits: Histogram,
    /// Claims granted.
    pub(crate) granted: u64,
    /// Claims refused.
    pub(crate) refused: u64,
    /// Leases that ended.
    pub(crate) leases_over: u64,
    /// Caps written into pages.
    pub(crate) caps: u64,
    /// Claims that ended, by whatever cause.
    pub(crate) ended: u64,
    /// Refusals at the cap by claims that have ended.
    pub(crate) past_refusals: u64,
    /// Where all this can be scraped.
    pub(crate) exporter: Exporter,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            decisions: Histogram::new(DECISIONS),
            waits: Histogram::new(WAITS),
            granted: 0,
            refused: 0,
            leases_over: 0,
            caps: 0,
            ended: 0,
            past_refusals: 0,
            exporter: Ok(None),
        }
    }
}

impl Service {
    /// One step of the core, counted.
    pub(crate) fn decide(&mut self, event: Event) -> Vec<Action> {
        let started = Instant::now();
        let actions = self.machine.step(self.now(), event);
        self.stats.step(started.elapsed(), &actions);
        actions
    }
}

impl Stats {
    /// One step of the core took this long and led to these actions. Grants are counted when they are done.
    pub(crate) fn step(&mut self, took: Duration, actions: &[Action]) {
        self.decisions.observe(took.as_secs_f64());
        for action in actions {
            match action {
                Action::Refuse { .. } => self.refused += 1,
                Action::LeaseOver { .. } => self.leases_over += 1,
                Action::Cap { .. } => self.caps += 1,
                _ => {}
            }
        }
    }

    /// A claim was granted after this time.
    pub(crate) fn granted_after(&mut self, waited: Duration) {
        self.granted += 1;
        self.waits.observe(waited.as_secs_f64());
    }
}
