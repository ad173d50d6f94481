//! Reads one GPU through NVML: the calls, and the meaning of their errors.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::{Device, Nvml};

use super::health::Watch;
use super::listed::{self, Kind, named};
use super::{
    CounterSource, CudaVersion, Gpm, GpuProcess, GpuReading, GpuState, MigReading, cores_per_sm,
    sys,
};

/// Samples closer together than this give no counters.
const GPM_APART: Duration = Duration::from_millis(100);

/// How much of a GPU to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Memory and processes: fresh figures for a grant.
    Memory,
    All,
}

/// The initialised NVML, and machine-wide figures.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) nvml: Nvml,
    pub(super) gpus: u32,
    pub(super) driver_version: Option<String>,
    pub(super) cuda_version: Option<CudaVersion>,
}

/// Loads and initialises the library. Without attaching to GPUs, as one bad GPU must not fail the rest.
pub(super) fn load(library: &Path) -> Result<Machine, String> {
    let init = |flags| {
        Nvml::builder()
            .lib_path(OsStr::new(library))
            .flags(flags)
            .init()
    };
    let nvml = match init(InitFlags::NO_GPUS | InitFlags::NO_ATTACH) {
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::InvalidArg) => init(InitFlags::empty()),
        other => other,
    }
    .map_err(|e| explain(library, &e))?;
    let gpus = nvml.device_count().map_err(|e| explain(library, &e))?;
    let driver_version = nvml.sys_driver_version().ok().map(|text| named(&text));
    let cuda_version = nvml.sys_cuda_driver_version().ok().map(|v| CudaVersion {
        major: v / 1000,
        minor: v % 1000 / 10,
    });
    Ok(Machine {
        nvml,
        gpus,
        driver_version,
        cuda_version,
    })
}

fn explain(library: &Path, error: &NvmlError) -> String {
    let hint = match error {
        NvmlError::LibRmVersionMismatch => {
            "\nhint: the driver was updated while it was in use; reload its kernel modules, or restart the machine"
        }
        NvmlError::DriverNotLoaded => "\nhint: load the driver (modprobe nvidia)",
        _ => "",
    };
    format!("{}: {error}{hint}", library.display())
}

/// One GPU and its state between readings.
pub(super) struct Eye<'nvml> {
    nvml: &'nvml Nvml,
    index: u32,
    device: Option<Device<'nvml>>,
    /// The last reading, on which the next is based.
    reading: GpuReading,
    counters: Option<(Instant, GpmSample<'nvml>)>,
    health: Watch<'nvml>,
    /// The same for instances, by the number of the GPU instance.
    instance_counters: BTreeMap<u32, (Instant, GpmSample<'nvml>)>,
    /// Time stamps of the processes' samples.
    samples: listed::Stamps,
}

/// A reading, and whether NVML as a whole has to be initialised again.
pub(super) struct Look {
    pub(super) reading: GpuReading,
    pub(super) reload: bool,
}

/// Faults found in one reading.
#[derive(Default)]
struct Faults {
    lost: bool,
    reload: bool,
}

impl Faults {
    /// The value; a failure is noted as a fault of the GPU.
    fn value<T>(&mut self, result: Result<T, NvmlError>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(NvmlError::GpuLost) => self.lost = true,
            Err(
                NvmlError::Uninitialized
                | NvmlError::DriverNotLoaded
                | NvmlError::LibRmVersionMismatch,
            ) => self.reload = true,
            Err(_) => {}
        }
        None
    }

    /// Like [`Faults::value`], for calls that fail with "unknown" only when the GPU is lost.
    fn vital<T>(&mut self, result: Result<T, NvmlError>) -> Option<T> {
        self.lost |= matches!(result, Err(NvmlError::Unknown));
        self.value(result)
    }
}

/// Microseconds since 1970, like the driver's sample times.
fn wall_us() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_epoch.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(0))
}

impl<'nvml> Eye<'nvml> {
    pub(super) fn new(nvml: &'nvml Nvml, index: u32) -> Self {
        Self {
            nvml,
            index,
            device: None,
            reading: GpuReading::unread(index),
            counters: None,
            health: Watch::default(),
            instance_counters: BTreeMap::new(),
            samples: listed::Stamps::new(wall_us()),
        }
    }

    /// Carries out an order for memory limits.
    pub(super) fn limit(
        &mut self,
        library: &Path,
        order: &super::LimitOrder,
    ) -> Result<(), super::LimitError> {
        if self.device.is_none() {
            self.device = self.nvml.device_by_index(self.index).ok();
        }
        match &self.device {
            Some(device) => super::limits::obey(library, device, order),
            None => Err(super::LimitError::NoAnswer { gpu: self.index }),
        }
    }

    /// Carries out a step of dividing the GPU.
    pub(super) fn divide(
        &mut self,
        order: super::MigOrder,
    ) -> Result<super::MigState, super::MigError> {
        let done = self.divide_once(order);
        if done != Err(super::MigError::Lost) {
            return done;
        }
        // A change of mode may reset the GPU, which invalidates the handle. Every step may be repeated.
        self.device = None;
        self.divide_once(order)
    }

    fn divide_once(&mut self, order: super::MigOrder) -> Result<super::MigState, super::MigError> {
        if self.device.is_none() {
            self.device = self.nvml.device_by_index(self.index).ok();
        }
        match &self.device {
            Some(device) => super::mig::obey(device, order),
            None => Err(super::MigError::NoAnswer { gpu: self.index }),
        }
    }

    pub(super) fn look(&mut self, scope: Scope) -> Look {
        let mut faults = Faults::default();
        if self.device.is_none() {
            self.device = faults.vital(self.nvml.device_by_index(self.index));
        }
        // Taken out during the calls: a lost device is looked up again next time.
        if let Some(device) = self.device.take() {
            if self.reading.uuid.is_none() {
                self.identify(&device, &mut faults);
            }
            self.memory(&device, &mut faults);
            if scope == Scope::All {
                self.activity(&device, &mut faults);
                self.health
                    .look(self.nvml, &device, &mut self.reading.health);
            }
            if !faults.lost && !faults.reload {
                self.device = Some(device);
            }
        }
        let reading = &mut self.reading;
        reading.taken = Some(Instant::now());
        let was_lost = reading.state == GpuState::Lost;
        reading.state = GpuState::Ok;
        if self.device.is_none() {
            self.counters = None;
            self.health.reset();
            self.instance_counters.clear();
            reading.forget_figures();
            if !faults.reload {
                reading.state = GpuState::Lost;
                reading.losses += u32::from(!was_lost);
            }
        }
        Look {
            reading: reading.clone(),
            reload: faults.reload,
        }
    }

    /// Properties that are fixed while the driver is loaded.
    fn identify(&mut self, device: &Device<'nvml>, faults: &mut Faults) {
        let r = &mut self.reading;
        r.uuid = faults.value(device.uuid()).map(|text| named(&text));
        r.minor = faults.value(device.minor_number());
        r.name = faults.value(device.name()).map(|text| named(&text));
        r.pci_bus_id = faults
            .value(device.pci_info())
            .map(|pci| named(&pci.bus_id));
        r.compute_capability = faults
            .value(device.cuda_compute_capability())
            .map(|c| (c.major, c.minor));
        let cores = faults.value(device.num_cores());
        r.sm_count = r
            .compute_capability
            .and_then(cores_per_sm)
            .and_then(|per_sm| Some(cores? / per_sm));
        r.gpm_supported = faults.value(device.gpm_support());
        r.display_active = faults.value(device.is_display_active());
    }

    fn memory(&mut self, device: &Device<'nvml>, faults: &mut Faults) {
        let memory = faults.vital(device.memory_info());
        let r = &mut self.reading;
        r.mem_used = memory.as_ref().map(|m| m.used);
        if let Some(memory) = memory {
            r.mem_total = Some(memory.total);
            r.mem_reserved = Some(memory.reserved);
        }
        let before = r.processes.take();
        r.processes = processes(device, faults);
        r.mig_enabled = match device.mig_mode() {
            Err(NvmlError::NotSupported) => Some(false),
            other => faults.value(other).map(|mode| mode.current != 0),
        };
        let instances_before = std::mem::take(&mut r.instances);
        r.instances = if r.mig_enabled == Some(true) {
            instances(device, faults)
        } else {
            Vec::new()
        };
        for instance in &mut r.instances {
            let known = instances_before
                .iter()
                .find(|known| known.uuid == instance.uuid);
            instance.gpm = known.and_then(|known| known.gpm);
        }
        // The share of time is read at ticks only; in between a process keeps its last one.
        for process in r.processes.iter_mut().flatten() {
            let known = before.iter().flatten().find(|p| p.pid == process.pid);
            process.time_busy = known.and_then(|p| p.time_busy);
        }
    }

    fn activity(&mut self, device: &Device<'nvml>, faults: &mut Faults) {
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
        let gpm = self.gpm(device, faults);
        let busy = self.time_busy(device, faults);
        let r = &mut self.reading;
        r.gpm = gpm;
        r.time_busy = faults
            .value(device.utilization_rates())
            .map(|rates| f64::from(rates.gpu));
        r.temperature = faults.value(device.temperature(TemperatureSensor::Gpu));
        r.power_w = faults.value(device.power_usage()).map(watts);
        r.power_limit_w = faults.value(device.enforced_power_limit()).map(watts);
        for process in r.processes.iter_mut().flatten() {
            process.time_busy = busy.get(&process.pid).copied();
        }
    }

    fn gpm(&mut self, device: &Device<'nvml>, faults: &mut Faults) -> Option<Gpm> {
        if self.reading.gpm_supported != Some(true) {
            return None;
        }
        for instance in 0..self.reading.instances.len() {
            let gi = self.reading.instances[instance].gi;
            let sample = faults.value(device.gpm_mig_sample(gi));
            let before = self.instance_counters.remove(&gi);
            let known = self.reading.instances[instance].gpm;
            let (kept, gpm) = counted(self.nvml, before, sample, known, faults);
            self.instance_counters.extend(kept.map(|kept| (gi, kept)));
            self.reading.instances[instance].gpm = gpm;
        }
        let sample = faults.value(device.gpm_sample());
        let (kept, gpm) = counted(
            self.nvml,
            self.counters.take(),
            sample,
            self.reading.gpm,
            faults,
        );
        self.counters = kept;
        gpm
    }

    /// Share of time in percent by pid since the last call, if the samples contain it.
    fn time_busy(&mut self, device: &Device<'nvml>, faults: &mut Faults) -> BTreeMap<i32, f64> {
        let now_us = wall_us();
        let samples = device.process_utilization_stats(self.samples.since());
        let samples = match samples {
            // Nothing ran since the last poll.
            Err(NvmlError::NotFound) => Vec::new(),
            other => faults.value(other).unwrap_or_default(),
        };
        let samples = samples.iter().map(|s| (s.pid, s.timestamp, s.sm_util));
        self.samples.shares(now_us, samples)
    }
}

/// A sample that the next one is compared with, and its time.
type Base<'nvml> = Option<(Instant, GpmSample<'nvml>)>;

/// Counters between two samples, and the newer sample.
fn counted<'nvml>(
    nvml: &'nvml Nvml,
    before: Base<'nvml>,
    after: Option<GpmSample<'nvml>>,
    known: Option<Gpm>,
    faults: &mut Faults,
) -> (Base<'nvml>, Option<Gpm>) {
    const MIB: f64 = 1_048_576.0;
    let now = Instant::now();
    let Some(after) = after else {
        return (None, None);
    };
    let Some((then, before)) = before else {
        return (Some((now, after)), None);
    };
    if now.duration_since(then) < GPM_APART {
        return (Some((then, before)), known);
    }
    let wanted = [
        GpmMetricId::SmUtil,
        GpmMetricId::SmOccupancy,
        GpmMetricId::AnyTensorUtil,
        GpmMetricId::DramBwUtil,
        GpmMetricId::PcieRxPerSec,
        GpmMetricId::PcieTxPerSec,
        GpmMetricId::NvlinkTotalRxPerSec,
        GpmMetricId::NvlinkTotalTxPerSec,
    ];
    let metrics = faults.value(gpm_metrics_get(nvml, &before, &after, &wanted));
    let gpm = metrics.map(|metrics| {
        let value = |id: GpmMetricId| {
            let mut found = metrics.iter().flatten();
            let metric = found.find(|metric| metric.metric_id == id)?;
            metric.value.is_finite().then_some(metric.value)
        };
        // Traffic is in MiB a second (nvml.h, nvmlGpmMetricId_t).
        let bytes = |id| value(id).map(|mib| mib * MIB);
        Gpm {
            source: CounterSource::Gpm,
            sm_active: value(GpmMetricId::SmUtil),
            sm_occupancy: value(GpmMetricId::SmOccupancy),
            tensor_active: value(GpmMetricId::AnyTensorUtil),
            dram_active: value(GpmMetricId::DramBwUtil),
            pcie_rx: bytes(GpmMetricId::PcieRxPerSec),
            pcie_tx: bytes(GpmMetricId::PcieTxPerSec),
            nvlink_rx: bytes(GpmMetricId::NvlinkTotalRxPerSec),
            nvlink_tx: bytes(GpmMetricId::NvlinkTotalTxPerSec),
        }
    });
    (Some((now, after)), gpm)
}

fn processes(device: &Device<'_>, faults: &mut Faults) -> Option<Vec<GpuProcess>> {
    let compute = faults.value(device.running_compute_processes());
    let mps = faults.value(device.mps_running_compute_processes());
    let graphics = faults.value(device.running_graphics_processes());
    if compute.is_none() && graphics.is_none() {
        return None;
    }
    let lists = [
        (compute, Kind::Compute),
        (mps, Kind::Mps),
        (graphics, Kind::Graphics),
    ];
    let all = lists.into_iter().flat_map(|(list, kind)| {
        let list = list.into_iter().flatten();
        list.map(move |process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => (process.pid, Some(bytes), kind),
            UsedGpuMemory::Unavailable => (process.pid, None, kind),
        })
    });
    Some(listed::processes(all))
}

/// The instances of a divided GPU. NVML's places may be empty, in any order.
fn instances(device: &Device<'_>, faults: &mut Faults) -> Vec<MigReading> {
    let most = device.mig_device_count().unwrap_or(0);
    let at = |index| device.mig_device_by_index(index).ok();
    (0..most)
        .filter_map(at)
        .filter_map(|instance| {
            let memory = faults.value(instance.memory_info());
            let attributes = faults.value(instance.attributes());
            let gi = sys::gpu_instance(device, &instance)?;
            Some(MigReading {
                uuid: faults.value(instance.uuid()).map(|text| named(&text))?,
                name: faults.value(instance.name()).map(|text| named(&text)),
                gi,
                start: sys::start_of(device, gi),
                ci: sys::compute_instance(device, &instance)?,
                sm_count: attributes.as_ref().map(|a| a.multiprocessor_count),
                slices: attributes
                    .as_ref()
                    .map(|a| (a.gpu_instance_slice_count, most)),
                mem_total: memory.as_ref().map(|m| m.total),
                mem_reserved: memory.as_ref().map(|m| m.reserved),
                mem_used: memory.as_ref().map(|m| m.used),
                gpm: None,
                processes: processes(&instance, faults),
            })
        })
        .collect()
}
