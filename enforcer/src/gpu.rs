//! The GPUs according to NVML.
//!
//! NVML can hang for good (a GPU that fell off the bus, a driver in trouble), so only the observer's own threads call
//! it: one thread per GPU, and a coordinator that waits for them with a deadline. A GPU whose call does not return is
//! reported as [`GpuState::Hung`] while the others go on. Every figure that could not be read is absent, never 0.

pub mod counters;
mod health;
mod limits;
mod listed;
mod mig;
mod nvml;
mod observer;
mod sys;

use std::time::{Duration, Instant};

pub use counters::CounterSource;
pub use health::{Remapped, Seen, Xid};
pub use limits::{LimitError, LimitOrder};
pub use listed::GpuProcess;
pub use mig::{MigError, MigInstance, MigOrder, MigSize, MigState};
pub use observer::{Divider, Health, Observer, ObserverConfig};

/// Errors of a request for a reading.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    #[error("no reading of the GPUs: {reason}")]
    Unavailable { reason: String },
    #[error("the GPU observer gave no reading within {waited:?}")]
    Timeout { waited: Duration },
    #[error("the GPU observer has stopped")]
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuState {
    /// It answers.
    Ok,
    /// The driver reports it as lost (or gives only unknown errors for it): no new claims; its figures are absent.
    Lost,
    /// A call on it has not returned for a long time; its figures are absent.
    Hung,
    /// This process does not have it open, so that it can be reset: see [`Observer::release`]. Its figures are absent.
    Released,
}

/// The CUDA version of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// 13 of 13.5.
    pub major: i32,
    /// 5 of 13.5.
    pub minor: i32,
}

/// All GPUs at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuSample {
    /// Time of the sample.
    pub taken: Instant,
    /// Version of the driver, such as `580.65.06`.
    pub driver_version: Option<String>,
    /// CUDA version of the driver.
    pub cuda_version: Option<CudaVersion>,
    /// One reading per GPU, by NVML index.
    pub gpus: Vec<GpuReading>,
}

/// Hardware counters, averaged since the previous sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpm {
    pub source: CounterSource,
    /// SM activity in percent.
    pub sm_active: Option<f64>,
    /// SM occupancy in percent.
    pub sm_occupancy: Option<f64>,
    /// Time with any tensor core active, in percent.
    pub tensor_active: Option<f64>,
    /// Used memory bandwidth in percent.
    pub dram_active: Option<f64>,
    /// Bytes a second over PCIe into the GPU.
    pub pcie_rx: Option<f64>,
    /// Bytes a second over PCIe out of the GPU.
    pub pcie_tx: Option<f64>,
    /// Bytes a second over all NVLinks into the GPU.
    pub nvlink_rx: Option<f64>,
    /// Bytes a second over all NVLinks out of the GPU.
    pub nvlink_tx: Option<f64>,
}

/// One GPU at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuReading {
    /// NVML index.
    pub index: u32,
    /// Time of the reading; `None` if never read. Figures older than a few intervals are stale.
    pub taken: Option<Instant>,
    /// How it is doing.
    pub state: GpuState,
    /// Times it was lost since NVML was initialised; a reset invalidates a reader's handle.
    pub losses: u32,
    /// `GPU-xxxxxxxx-xxxx-...`.
    pub uuid: Option<String>,
    /// N of `/dev/nvidia<N>`; may differ from the index.
    pub minor: Option<u32>,
    /// Product name.
    pub name: Option<String>,
    /// PCI bus id in NVML's form, `00000000:3B:00.0`.
    pub pci_bus_id: Option<String>,
    /// Compute capability, major and minor.
    pub compute_capability: Option<(i32, i32)>,
    pub sm_count: Option<u32>,
    pub gpm_supported: Option<bool>,
    /// Whether a screen is connected.
    pub display_active: Option<bool>,
    /// Whether it is divided into MIG instances.
    pub mig_enabled: Option<bool>,
    /// Total device memory in bytes.
    pub mem_total: Option<u64>,
    /// Bytes reserved by the driver; not in `mem_used`.
    pub mem_reserved: Option<u64>,
    /// Bytes used by processes (and their contexts).
    pub mem_used: Option<u64>,
    /// Time in percent with any kernel resident: what nvidia-smi calls GPU-Util.
    pub time_busy: Option<f64>,
    /// Hardware counters, if the GPU has them and two samples exist.
    pub gpm: Option<Gpm>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Power draw in watts.
    pub power_w: Option<f64>,
    /// Power limit in force, in watts.
    pub power_limit_w: Option<f64>,
    /// Its MIG instances, in NVML's order.
    pub instances: Vec<MigReading>,
    /// Errors and repairs, and reasons for reduced clocks.
    pub health: Seen,
    /// Processes on the GPU; absent if the list could not be read (an empty list is known).
    pub processes: Option<Vec<GpuProcess>>,
}

/// One instance of a divided GPU at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct MigReading {
    /// `MIG-xxxxxxxx-...`.
    pub uuid: String,
    /// Product name with the profile.
    pub name: Option<String>,
    /// Number of the GPU instance.
    pub gi: u32,
    /// Number of the compute instance in it.
    pub ci: u32,
    /// Its first memory slice; `None` if this process may not ask.
    pub start: Option<u32>,
    pub sm_count: Option<u32>,
    /// Compute slices, of it and of the whole GPU.
    pub slices: Option<(u32, u32)>,
    /// Total device memory in bytes.
    pub mem_total: Option<u64>,
    /// Bytes reserved by the driver.
    pub mem_reserved: Option<u64>,
    /// Bytes used by processes.
    pub mem_used: Option<u64>,
    /// Hardware counters of the instance, if it has them and two samples exist.
    pub gpm: Option<Gpm>,
    /// Processes; absent if the list could not be read.
    pub processes: Option<Vec<GpuProcess>>,
}

impl GpuReading {
    /// A GPU before the first reading.
    #[must_use]
    pub fn unread(index: u32) -> Self {
        Self {
            index,
            taken: None,
            state: GpuState::Ok,
            losses: 0,
            uuid: None,
            minor: None,
            name: None,
            pci_bus_id: None,
            compute_capability: None,
            sm_count: None,
            gpm_supported: None,
            display_active: None,
            mig_enabled: None,
            mem_total: None,
            mem_reserved: None,
            mem_used: None,
            time_busy: None,
            gpm: None,
            temperature: None,
            power_w: None,
            power_limit_w: None,
            processes: None,
            instances: Vec::new(),
            health: Seen::default(),
        }
    }

    /// Drops the measurements of a GPU that does not answer any more, and keeps its properties.
    fn forget_figures(&mut self) {
        self.mem_used = None;
        self.time_busy = None;
        self.gpm = None;
        self.temperature = None;
        self.power_w = None;
        self.processes = None;
        self.health.forget();
        for instance in &mut self.instances {
            instance.mem_used = None;
            instance.gpm = None;
            instance.processes = None;
        }
    }

    /// Age of the figures; `None` without figures.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.taken.map(|taken| taken.elapsed())
    }
}

/// Maximum resident warps of an SM by compute capability (CUDA C Programming Guide, table of technical specifications);
/// `None` for generations whose number is unknown.
#[must_use]
pub fn warps_per_sm(capability: (i32, i32)) -> Option<u32> {
    match capability {
        (5 | 6, _) | (7, 0 | 2) | (8, 0) | (9 | 10, _) => Some(64),
        (7, 5) => Some(32),
        (8 | 11 | 12, _) => Some(48),
        _ => None,
    }
}

/// CUDA cores per SM by compute capability, for generations whose number is known.
fn cores_per_sm(capability: (i32, i32)) -> Option<u32> {
    match capability {
        (5, _) | (6, 1 | 2) => Some(128),
        (6, 0) | (7, _) | (8, 0) => Some(64),
        (8..=12, _) => Some(128),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sm_counts_of_known_products() {
        let check = |name: &str, cores: u32, capability, sms: u32| {
            let found = cores_per_sm(capability).map(|per_sm| cores / per_sm);
            assert_eq!(found, Some(sms), "{name}");
        };
        check("V100", 5120, (7, 0), 80);
        check("RTX 2080 Ti", 4352, (7, 5), 68);
        check("A100", 6912, (8, 0), 108);
        check("RTX A6000", 10752, (8, 6), 84);
        check("RTX 4090", 16384, (8, 9), 128);
        check("H100", 16896, (9, 0), 132);
        check("B200", 18944, (10, 0), 148);
        check("RTX PRO 6000", 24064, (12, 0), 188);
        assert_eq!(cores_per_sm((99, 0)), None);
        for (capability, warps) in [((8, 0), 64), ((8, 6), 48), ((8, 9), 48), ((9, 0), 64)] {
            assert_eq!(warps_per_sm(capability), Some(warps), "{capability:?}");
        }
        assert_eq!(warps_per_sm((99, 0)), None);
    }
}
