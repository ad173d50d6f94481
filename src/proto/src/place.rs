//! Where claims that run are, what can be done to them, and what room is left.

use serde::{Deserialize, Serialize};

/// Where a claim is, and what can be done to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceView {
    /// `offloading`, `offloaded`, `suspending`, `suspended`, `restoring`, `moving`; absent on its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word: Option<String>,
    /// Whether it is on its way; absent from a service that does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_its_way: Option<bool>,
    /// Bytes that it has in host memory instead of on a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bytes: Option<u64>,
    /// Since when, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// The GPUs that it goes to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<u32>,
    /// Why it is not back on a GPU yet, where it wants to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// What can be done to it.
    #[serde(default)]
    pub levers: LeversView,
}

impl PlaceView {
    /// Whether the claim holds no GPU: what it had on one is in host memory.
    #[must_use]
    pub fn in_host(&self) -> bool {
        self.host_bytes.is_some() && self.to.is_empty()
    }
}

/// What can be done to a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeversView {
    /// Why it cannot be offloaded; absent where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_detachable: Option<String>,
    /// Why it cannot be moved to other GPUs; absent where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_movable: Option<String>,
}

/// For how long a claim does nothing, and what follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleView {
    /// Seconds since it launched something, or came to its GPU.
    pub gpu_s: u64,
    /// What its kernel does: `idle`, `busy`, `starting`; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Seconds since its kernel did something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_s: Option<u64>,
    /// The source of that: `Jupyter server`, or `processor time`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its owner has been warned.
    #[serde(default)]
    pub warned: bool,
    /// Its owner keeps it for now.
    #[serde(default)]
    pub kept: bool,
    /// Seconds until it is offloaded when somebody waits; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detach_in_s: Option<u64>,
    /// Seconds until it is offloaded although nobody waits; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub always_in_s: Option<u64>,
    /// What is done in its place, where it cannot be offloaded: `warn`, `shrink`, `release`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
    /// Seconds until its programs on the GPU are ended for somebody who waits; absent: not announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_in_s: Option<u64>,
}

/// What could be claimed of the GPUs of one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRoomView {
    /// The model.
    pub model: String,
    /// The largest part of one GPU, 0 to 1.
    pub largest: f64,
    /// Whole GPUs at a time.
    pub whole: u32,
}
