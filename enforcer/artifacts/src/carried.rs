//! The files that a program of a clone contains.

use std::{fs, io, path::Path};

use crate::{
    parts::Part,
    stage::{link, make_directory, place},
};

/// The proxy of libcuda, before the paths of the driver and the service are written into it.
pub const SHIM: &[u8] = include_bytes!(env!("GSHARE_SHIM_SO"));
/// The proxy of libnvidia-ml, likewise.
pub const NVML_PROXY: &[u8] = include_bytes!(env!("GSHARE_NVML_PROXY_SO"));
pub(crate) const EXEC: &[u8] = include_bytes!(env!("GSHARE_EXEC"));
pub(crate) const SIM_CUDA: &[u8] = include_bytes!(env!("GSHARE_SIM_CUDA_SO"));
const SIM_NVML: &[u8] = include_bytes!(env!("GSHARE_SIM_NVML_SO"));
/// A libcuda that does nothing, for measuring the proxy's own cost.
pub const NOOP_CUDA: &[u8] = include_bytes!(env!("GSHARE_SIM_NOOP_SO"));

/// Fills `<simdir>/lib` with the simulated driver: `libcuda.so.1`, `libcuda.so`,
/// `libnvidia-ml.so.1`, `libnvidia-ml.so`.
pub fn stage_sim(simdir: &Path) -> io::Result<()> {
    let directory = simdir.join("lib");
    make_directory(&directory)?;
    place(&directory, "libcuda.so.1", SIM_CUDA)?;
    link(&directory, "libcuda.so", "libcuda.so.1")?;
    place(&directory, "libnvidia-ml.so.1", SIM_NVML)?;
    link(&directory, "libnvidia-ml.so", "libnvidia-ml.so.1")
}

/// Writes the parts into a directory, as in an installation.
pub fn lay_out(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for part in Part::ALL {
        place(directory, part.file(), part.carried())?;
    }
    Ok(())
}
