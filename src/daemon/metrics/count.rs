//! Answer times by user, recorded by the threads that serve connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::page::Histogram;

/// Bounds of answer times in seconds.
const ANSWERS: &[f64] = &[
    0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.5, 2.0,
];
/// Maximum number of users with answer times.
const USERS: usize = 256;

/// Time from the receipt of a line to the first line of the answer, by uid.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers(Arc<Mutex<BTreeMap<u32, Histogram>>>);

impl Answers {
    /// Records an answer to this user.
    pub(crate) fn note(&self, uid: u32, took: Duration) {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() < USERS || users.contains_key(&uid) {
            let histogram = users.entry(uid).or_insert_with(|| Histogram::new(ANSWERS));
            histogram.observe(took.as_secs_f64());
        }
    }

    pub(crate) fn by_user(&self) -> BTreeMap<u32, Histogram> {
        let users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        users.clone()
    }
}
