//! The shared objects that the program carries inside itself: the preloaded proxy of libcuda and
//! the simulated driver. They are written to a directory under the names by which programs look
//! for them; nothing has to be installed for that.

#![forbid(unsafe_code)]

mod names;
mod patch;
mod stage;

pub use names::unknown_names;
pub use stage::{Mode, stage_shim, stage_shim_for, stage_sim};

/// The proxy, not yet told where the real driver and the service are.
pub const SHIM: &[u8] = include_bytes!(env!("GSHARE_SHIM_SO"));
/// The proxy of libnvidia-ml, likewise.
pub const NVML_PROXY: &[u8] = include_bytes!(env!("GSHARE_NVML_PROXY_SO"));
/// The simulated libcuda.
pub const SIM_CUDA: &[u8] = include_bytes!(env!("GSHARE_SIM_CUDA_SO"));
/// The simulated libnvidia-ml.
pub const SIM_NVML: &[u8] = include_bytes!(env!("GSHARE_SIM_NVML_SO"));
/// The launcher, `gshare-exec`.
pub const EXEC: &[u8] = include_bytes!(env!("GSHARE_EXEC"));
/// A libcuda that does nothing, before which the proxy's own cost is measured.
pub const NOOP_CUDA: &[u8] = include_bytes!(env!("GSHARE_SIM_NOOP_SO"));

/// Changes whenever one of the shared objects does.
pub fn build_id() -> &'static str {
    env!("GSHARE_ARTIFACTS_ID")
}
