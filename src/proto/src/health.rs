//! How a GPU is doing, beside its load.

use serde::{Deserialize, Serialize};

/// How sick a GPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Nothing is known against it.
    #[default]
    Good,
    /// Something is worth a look; claims go on and new ones come.
    Warned,
    /// It takes no new claims until it is mended.
    Sick,
}

/// An error that the driver reported by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidView {
    /// When, Unix milliseconds.
    pub at_ms: u64,
    /// The number.
    pub code: u64,
    /// What it means, for people.
    pub text: String,
    /// What to do.
    pub tell: String,
    /// The process that it names, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// `nvml` or `kernel log`.
    pub source: String,
}

/// Rows of memory that the GPU has replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedView {
    /// After errors that were corrected.
    pub corrected: u64,
    /// After errors that were not.
    pub uncorrected: u64,
    /// A replacement waits for a reset of the GPU.
    pub pending: bool,
    /// A replacement failed: no spare row is left.
    pub failed: bool,
}

/// How a GPU is doing.
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
    /// Errors that the driver reported lately, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<XidView>,
    /// Why its clocks are held down, where that is worth a look; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Vec<String>>,
    /// Memory errors that were corrected, since the driver was loaded; absent without ECC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<u64>,
    /// Memory errors that were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// Replaced rows; absent where the GPU has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remapped: Option<RemappedView>,
    /// What the driver says that the GPU needs: `reset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<String>,
}
