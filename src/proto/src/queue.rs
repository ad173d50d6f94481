//! Waiting claims.

use std::time::Duration;

use gshare_core::units::show_duration;
use serde::{Deserialize, Serialize};

use crate::messages;

/// A waiting claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueView {
    /// `c22`.
    pub id: String,
    /// Name given by the user.
    pub name: Option<String>,
    pub uid: u32,
    pub user: String,
    pub project: String,
    pub class: String,
    /// Its program.
    pub what: String,
    /// How many GPUs.
    pub gpus: u32,
    /// Requested part of each GPU, 0 to 1.
    pub share: f64,
    /// Most SMs, 0 to 1.
    pub sm_limit: f64,
    /// Bytes needed on each GPU, if that is one number.
    pub mem_request: Option<u64>,
    /// Waiting since, Unix milliseconds.
    pub since_ms: u64,
    /// 1 is the head.
    pub position: u32,
    /// Why it does not fit, with the holders of the room.
    pub reason: String,
    /// Arguments that would start now: `-g 0.2`.
    pub would_start: Option<String>,
    /// It is within its owner's guarantee.
    #[serde(default)]
    pub entitled: bool,
    /// The party with that guarantee, if not the owner: `project vision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub party: Option<String>,
    /// Earliest start by the time limits of the holders, or by the hours of its class, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// The start is set by the hours of its class.
    #[serde(default)]
    pub by_hours: bool,
    /// Expected start by run times, announcements and earlier runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedView>,
    /// How it gets its room: the announced actions, and when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Why others that could give way to it do not, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alone: Vec<String>,
}

/// Expected start of a waiting claim, relative to the time of the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedView {
    /// Earliest, in seconds.
    pub low_s: u64,
    /// Probably by then, in seconds; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_s: Option<u64>,
    /// Both are the same, whatever running programs do.
    pub certain: bool,
    /// What it waits for: `minimum run time of c3`.
    pub cause: String,
}

impl QueueView {
    /// When it starts, as a sentence that may begin with its subject: `it starts in 54s (minimum run time of c3)`.
    #[must_use]
    pub fn starts_in_full(&self, subject: &str, now_ms: u64) -> String {
        let (made, expected) = (self.plan.is_some(), self.expected.as_ref());
        match starts_when(now_ms, self.expected_ms, expected, (self.by_hours, made)) {
            Some(when) => format!("{subject}starts {when}"),
            None if made => format!("{subject}starts when the others have made room"),
            None if !self.alone.is_empty() => "start time unknown".to_owned(),
            None => messages::start_unknown(),
        }
    }

    /// When it starts: `now`, `in 12m`, `in 5m to 12m`; none if unknown.
    #[must_use]
    pub fn starts(&self, now_ms: u64) -> Option<String> {
        match (self.expected_ms, &self.expected) {
            (Some(at), _) if at <= now_ms => Some("now".to_owned()),
            (_, Some(expected)) if !self.by_hours => Some(expected.when()),
            (at, _) => at.map(|at| format!("in {}", crate::figures::until(now_ms, at))),
        }
    }
}

/// When a claim starts, with what that depends on: `in 54s (minimum run time of c3)`, `in 5m at the earliest`; absent
/// if unknown. `made` is whether others make room for it.
#[must_use]
pub fn starts_when(
    now_ms: u64,
    at_ms: Option<u64>,
    expected: Option<&ExpectedView>,
    (by_hours, made): (bool, bool),
) -> Option<String> {
    let left = |at: u64| crate::figures::until(now_ms, at);
    Some(match (at_ms, expected) {
        (Some(at), _) if at <= now_ms => "any moment now".to_owned(),
        (Some(at), _) if by_hours => format!("in {} at the earliest", left(at)),
        (Some(at), None) if made => {
            format!("in {}, once the other claims have made room", left(at))
        }
        (_, Some(expected)) => expected.text(),
        (Some(at), None) => format!(
            "in {} at the earliest, when running claims reach their time limits",
            left(at)
        ),
        (None, None) => return None,
    })
}

impl ExpectedView {
    /// `in 54s`, `in 5m to 12m`, `within 23s`, `in 5m or later`, `at any time`.
    #[must_use]
    pub fn when(&self) -> String {
        let span = |s| show_duration(Duration::from_secs(s));
        let low = span(self.low_s);
        match (self.low_s, self.high_s) {
            (_, Some(high)) if span(high) == low => format!("in {low}"),
            (0, Some(high)) => format!("within {}", span(high)),
            (_, Some(high)) => format!("in {low} to {}", span(high)),
            (0, None) => "at any time".to_owned(),
            (_, None) => format!("in {low} or later"),
        }
    }

    /// The same with its cause: `in 54s (minimum run time of c3)`.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} ({})", self.when(), self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_may_come_at_once_has_no_zero() {
        let when = |low_s, high_s| {
            let expected = ExpectedView {
                low_s,
                high_s,
                ..ExpectedView::default()
            };
            expected.when()
        };
        assert_eq!(when(54, Some(54)), "in 54s");
        assert_eq!(when(300, Some(720)), "in 5m to 12m");
        assert_eq!(when(300, None), "in 5m or later");
        assert_eq!(when(0, Some(23)), "within 23s");
        assert_eq!(when(0, None), "at any time");
    }
}
