//! A small client of the CUDA driver API, loaded at run time: it measures the size of a context ([`measure_context`])
//! and runs the jobs of `gshare demo`, which are independent of gshare.

mod share;
mod streams;
mod sys;

use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;

pub use share::Sharing;
pub use streams::{Event, Graph, Pinned, Stream, Streams};
pub use sys::{Buffer, Context, Driver, Function};

/// Why a call to the driver failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    #[error("cannot load {}: {why}", library.display())]
    Load { library: PathBuf, why: String },
    #[error("the driver has no {0}")]
    Missing(&'static str),
    #[error("{call} failed: {name} ({code})")]
    Call {
        call: &'static str,
        code: i32,
        name: String,
    },
    #[error("the driver shows no GPU {0}")]
    NoGpu(String),
    #[error("cannot ask NVML for this process's memory")]
    Nvml(#[source] nvml_wrapper::error::NvmlError),
    #[error("NVML does not report what a process uses on {0}")]
    Untold(String),
}

impl CudaError {
    /// Whether the driver (or the claim's cap) refused memory.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { code: 2, .. })
    }
}

/// Makes a context on the GPU `uuid` in this process and returns its bytes according to NVML. The process should do
/// nothing else with CUDA.
///
/// # Errors
/// If the driver, the GPU or NVML cannot be used.
pub fn measure_context(libcuda: &Path, nvml: &Path, uuid: &str) -> Result<u64, CudaError> {
    let driver = Driver::load(libcuda)?;
    // An instance is the only visible device, with its own UUID or its GPU's.
    let instance = uuid.starts_with("MIG-");
    let index = (0..driver.device_count()?)
        .find(|i| instance || driver.uuid(*i).is_ok_and(|found| found == uuid))
        .ok_or_else(|| CudaError::NoGpu(uuid.to_owned()))?;
    let _context = driver.context(index)?;
    let nvml = Nvml::builder()
        .lib_path(nvml.as_os_str())
        .init()
        .map_err(CudaError::Nvml)?;
    let device = nvml.device_by_uuid(uuid).map_err(CudaError::Nvml)?;
    let own = std::process::id();
    let processes = device
        .running_compute_processes()
        .map_err(CudaError::Nvml)?;
    processes
        .iter()
        .find(|p| p.pid == own)
        .and_then(|p| match p.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        })
        .ok_or_else(|| CudaError::Untold(uuid.to_owned()))
}
