//! Place of running claims, possible actions on them, and free room.

use serde::{Deserialize, Serialize};

/// A claim's place, and possible actions on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceView {
    /// `offloading`, `offloaded`, `suspending`, `suspended`, `restoring`, `moving`; absent on its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word: Option<String>,
    /// It is on its way; absent from an older service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_its_way: Option<bool>,
    /// Its bytes in host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bytes: Option<u64>,
    /// Since when, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Its destination GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<u32>,
    /// Why it is not back on a GPU yet, if it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// Possible actions on it.
    #[serde(default)]
    pub levers: LeversView,
}

impl PlaceView {
    /// Whether the claim holds no GPU because its memory is in the host.
    #[must_use]
    pub fn in_host(&self) -> bool {
        self.host_bytes.is_some() && self.to.is_empty()
    }
}

/// Possible actions on a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeversView {
    /// Why it cannot be offloaded; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_detachable: Option<String>,
    /// Why it cannot be moved to other GPUs; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_movable: Option<String>,
}

/// For how long a claim has been idle, and the consequences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleView {
    /// Seconds since its last launch, or since it came to its GPU.
    pub gpu_s: u64,
    /// State of its kernel: `idle`, `busy`, `starting`; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Seconds since the last activity of its kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_s: Option<u64>,
    /// Source of that: `Jupyter server`, or `processor time`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its owner has been warned.
    #[serde(default)]
    pub warned: bool,
    /// Its owner keeps it for now.
    #[serde(default)]
    pub kept: bool,
    /// Seconds until it is offloaded if another claim waits; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detach_in_s: Option<u64>,
    /// Seconds until it is offloaded even if no claim waits; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub always_in_s: Option<u64>,
    /// Action if it cannot be offloaded: `warn`, `shrink`, `release`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
    /// Seconds until its programs on the GPU are ended for a waiting claim; absent: not announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_in_s: Option<u64>,
}

/// Free room on the GPUs of one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRoomView {
    pub model: String,
    /// The largest free part of one GPU, 0 to 1.
    pub largest: f64,
    /// Number of free whole GPUs that no program without a claim uses.
    pub whole: u32,
}
