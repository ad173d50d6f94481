//! The proxies of libcuda and libnvidia-ml and the launcher. An installed program has them as files beside itself; a
//! program of a clone contains them (feature `carried`) and the simulated driver, so that nothing has to be installed
//! for it. Both write them, patched, to a directory under the libraries' names.

#![forbid(unsafe_code)]

#[cfg(feature = "carried")]
mod carried;
mod names;
mod parts;
mod patch;
mod stage;

#[cfg(feature = "carried")]
pub use carried::{NOOP_CUDA, NVML_PROXY, SHIM, lay_out, stage_sim};
pub use names::unknown_names;
pub use parts::{BESIDE, Part, beside};
pub use stage::{Mode, stage_shim, stage_shim_for};
