//! What the service counts about itself since it started, for the metrics.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gshare_core::machine::{Action, Event};
use gshare_core::play::recording::Recording;

use super::metrics::{Exporter, Histogram};
use super::service::Service;

/// Bounds of waiting times in seconds: from at once to a day.
const WAITS: &[f64] = &[
    0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 86_400.0,
];
/// Bounds of times to decide in seconds.
const DECISIONS: &[f64] = &[0.000_01, 0.000_1, 0.001, 0.01, 0.1, 1.0];
/// Bounds of times to answer in seconds.
const ANSWERS: &[f64] = &[
    0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.5, 2.0,
];
/// Users of whom times to answer are kept.
const USERS: usize = 256;

/// Time from the receipt of a line to the first line that is sent back, by the user's number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers(Arc<Mutex<BTreeMap<u32, Histogram>>>);

impl Answers {
    /// A line of this user has been answered after this time.
    pub(crate) fn note(&self, uid: u32, took: Duration) {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() < USERS || users.contains_key(&uid) {
            let histogram = users.entry(uid).or_insert_with(|| Histogram::new(ANSWERS));
            histogram.observe(took.as_secs_f64());
        }
    }

    /// All of them.
    pub(crate) fn by_user(&self) -> BTreeMap<u32, Histogram> {
        let users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        users.clone()
    }
}

/// Counters and histograms.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Steps of the core: each is a decision.
    pub(crate) decisions: Histogram,
    /// Time between the question and the grant.
    pub(crate) waits: Histogram,
    /// Time between a line and its answer.
    pub(crate) answers: Answers,
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
    /// All steps of the core so far, and where what comes of playing them again is written.
    recording: Option<(PathBuf, Recording)>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            decisions: Histogram::new(DECISIONS),
            waits: Histogram::new(WAITS),
            answers: Answers::default(),
            granted: 0,
            refused: 0,
            leases_over: 0,
            caps: 0,
            ended: 0,
            past_refusals: 0,
            exporter: Ok(None),
            recording: recording(),
        }
    }
}

/// For tests: where `GSHARE_RECORD` names a directory, all that the core is told and decides is kept, and played again at
/// the end.
fn recording() -> Option<(PathBuf, Recording)> {
    let dir = std::env::var_os("GSHARE_RECORD")?;
    let file = PathBuf::from(dir).join(std::process::id().to_string());
    Some((file, Recording::default()))
}

impl Service {
    /// One step of the core, counted.
    pub(crate) fn decide(&mut self, event: Event) -> Vec<Action> {
        let now = self.now();
        let noted = self.stats.recording.as_ref().map(|_| event.clone());
        let started = Instant::now();
        let actions = self.machine.step(now, event);
        self.stats.step(started.elapsed(), &actions);
        if let (Some((_, recording)), Some(event)) = (&mut self.stats.recording, noted) {
            recording.note(now, event, &actions);
        }
        actions
    }
}

impl Stats {
    /// Writes down whether what was told leads to what was decided, also without this service.
    pub(crate) fn end_recording(&self) {
        let Some((file, recording)) = &self.recording else {
            return;
        };
        let text = match recording.play() {
            Ok((steps, decided)) => format!("same: {steps} steps, {decided} decided\n"),
            Err(differs) => format!("differs: {differs:?}\n"),
        };
        if let Err(error) = std::fs::write(file, text) {
            tracing::error!(%error, "what was recorded could not be written");
        }
    }

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
