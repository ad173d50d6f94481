//! Sizes from experience: questions and answers.

use crate::bounds::{CommandLine, Text};
use serde::{Deserialize, Serialize};

/// What is to be sized.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuggestSpec {
    /// A command line. Empty with neither `running` nor `records`: what the caller ran last.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub command: CommandLine,
    /// The caller's claims that run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub running: bool,
    /// The caller's records themselves, as lines of JSON.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub records: bool,
    /// Class, where no earlier run says a size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Text<32>>,
}

/// A size, and why. Bytes on each GPU, parts of a GPU from 0 to 1, seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Suggestion {
    /// The claim, of one that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What runs: `train.py`.
    pub what: String,
    /// Guaranteed memory that is suggested.
    pub mem: u64,
    /// Guaranteed part of the SMs; absent where nothing says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm: Option<f64>,
    /// Half of such runs need no more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub middle: Option<u64>,
    /// `repeats`, `scaled`, `script`, `shared`, `user` or `prior`.
    pub level: String,
    /// `high`, `good`, `fair`, `low` or `guess`.
    pub confidence: String,
    /// Why, each a sentence.
    pub reasons: Vec<String>,
    /// Records that it rests on, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<u64>,
    /// What is asked now, or was asked last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_mem: Option<u64>,
    /// The same of SMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_sm: Option<f64>,
    /// What others could have then; less than nothing: what is lacking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees_mem: Option<i64>,
    /// The same of SMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees_sm: Option<f64>,
    /// What it will need in the next minutes, of a claim that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_mem: Option<u64>,
    /// The same of SMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_sm: Option<f64>,
    /// How long such runs take: a tenth less, half, nine tenths less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<[f64; 3]>,
    /// What one would type.
    pub command: String,
}

/// Answer to a question for sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SuggestView {
    /// Sizes.
    #[serde(default)]
    pub suggestions: Vec<Suggestion>,
    /// Records, each a line of JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<String>,
}
