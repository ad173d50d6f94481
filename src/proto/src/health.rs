//! Health of a GPU.

use serde::{Deserialize, Serialize};

/// Severity of a GPU's problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// No known problem.
    #[default]
    Good,
    /// A problem that deserves a check; claims continue, and new ones are accepted.
    Warned,
    /// It takes no new claims until it is repaired.
    Sick,
}

/// An error that the driver reported with a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidView {
    /// When, Unix milliseconds.
    pub at_ms: u64,
    pub code: u64,
    /// Its meaning, for display.
    pub text: String,
    /// What to do.
    pub tell: String,
    /// The process that it names, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// `nvml` or `kernel log`.
    pub source: String,
}

/// Rows of memory that the GPU has replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedView {
    /// After corrected errors.
    pub corrected: u64,
    /// After uncorrected errors.
    pub uncorrected: u64,
    /// A replacement waits for a reset of the GPU.
    pub pending: bool,
    /// A replacement failed: no spare row is left.
    pub failed: bool,
}

/// Health of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthView {
    /// In one word.
    pub grade: Grade,
    /// Why it is not `good`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tell: Option<String>,
    /// Recent errors reported by the driver, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<XidView>,
    /// Why its clocks are throttled, if that deserves a check; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Vec<String>>,
    /// Corrected memory errors since the driver was loaded; absent without ECC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<u64>,
    /// Uncorrected memory errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// Replaced rows; absent if the GPU does not support replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remapped: Option<RemappedView>,
    /// The driver's recommended action: `reset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<String>,
}
