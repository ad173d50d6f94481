//! Sizes from experience: queries and answers.

use crate::bounds::{CommandLine, Text};
use serde::{Deserialize, Serialize};

/// The commands to be sized.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuggestSpec {
    /// A command line. Empty with neither `running` nor `records`: the caller's last commands.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub command: CommandLine,
    /// The caller's running claims.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub running: bool,
    /// The caller's records themselves, as lines of JSON.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub records: bool,
    /// Class, used without experience from earlier runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Text<32>>,
}

/// A size with its reasons. Bytes on each GPU, fractions of a GPU from 0 to 1, seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Suggestion {
    /// The claim, if it is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The program: `train.py`.
    pub what: String,
    /// Suggested memory.
    pub mem: u64,
    /// Suggested fraction of the SMs; absent without experience.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm: Option<f64>,
    /// Median need of such runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub middle: Option<u64>,
    /// `repeats`, `scaled`, `script`, `shared`, `user` or `prior`.
    pub level: String,
    /// `high`, `good`, `fair`, `low` or `guess`.
    pub confidence: String,
    /// Reasons, one sentence each.
    pub reasons: Vec<String>,
    /// Records that it is based on, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<u64>,
    /// Present or last size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_mem: Option<u64>,
    /// The same for SMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_sm: Option<f64>,
    /// Memory that others could then use; negative: memory that is lacking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees_mem: Option<i64>,
    /// The same for SMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees_sm: Option<f64>,
    /// Expected need of a running claim in the next minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_mem: Option<u64>,
    /// The same for SMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_sm: Option<f64>,
    /// Duration of such runs: 10th, 50th and 90th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<[f64; 3]>,
    /// The command to type.
    pub command: String,
}

/// Answer to a query for sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SuggestView {
    /// Sizes.
    #[serde(default)]
    pub suggestions: Vec<Suggestion>,
    /// Records, each a line of JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<String>,
}
