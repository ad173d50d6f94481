//! The built library as its clients use it: loaded from a workstation's directory by nvml-wrapper.
#![allow(unsafe_code, reason = "one test changes the user of its own thread")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gshare_sim_board::{
    Board, BoardSpec, Fault, MIB, MODELS, MemoryKind, Model, ProcessInfo, Shape, Slot, Work,
};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use object::{Object, ObjectSymbol};

/// The shared object that cargo built for this test.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let name = "libgshare_sim_nvml.so";
    let places = exe.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    let found = places.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not beside {}", exe.display()))
}

/// A workstation in a directory of its own, so that tests do not collide.
struct Workstation {
    dir: tempfile::TempDir,
    board: Board,
}

impl Workstation {
    fn new(models: &[&str]) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::create_dir(dir.path().join("lib")).unwrap();
        std::fs::copy(library(), dir.path().join("lib/libnvidia-ml.so.1")).unwrap();
        let board = Board::create(&dir.path().join("board"), &BoardSpec::new(models)).unwrap();
        Self { dir, board }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The library, which finds the board by its own location, without any variable.
    fn nvml(&self) -> Nvml {
        let path = self.path().join("lib/libnvidia-ml.so.1");
        Nvml::builder().lib_path(path.as_os_str()).init().unwrap()
    }

    /// Registers this process with a context on each of the GPUs.
    fn process(&self, gpus: &[usize]) -> (Slot, Vec<u64>) {
        let slot = self.board.register(&ProcessInfo::current()).unwrap();
        (
            slot,
            gpus.iter()
                .map(|gpu| self.board.add_context(slot, *gpu).unwrap())
                .collect(),
        )
    }
}

/// The name of the call's error.
fn failure<T>(result: Result<T, NvmlError>) -> String {
    result
        .err()
        .map_or_else(|| "no error".to_owned(), |error| format!("{error:?}"))
}

fn model(slug: &str) -> &'static Model {
    Model::by_slug(slug).unwrap()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        std::thread::yield_now();
    }
}

/// Functions that nvtop, btop, gpustat, nvitop, all-smi and gshare itself call, at start and in steady state.
const ASKED: &str = "
    Init Init_v2 InitWithFlags Shutdown ErrorString SystemGetDriverVersion SystemGetCudaDriverVersion
    SystemGetCudaDriverVersion_v2 SystemGetNVMLVersion SystemGetProcessName DeviceGetCount DeviceGetCount_v2
    DeviceGetHandleByIndex DeviceGetHandleByIndex_v2 DeviceGetHandleByUUID DeviceGetHandleByPciBusId
    DeviceGetHandleByPciBusId_v2 DeviceGetHandleBySerial DeviceGetIndex DeviceGetName DeviceGetUUID
    DeviceGetPciInfo DeviceGetPciInfo_v2 DeviceGetPciInfo_v3 DeviceGetMemoryInfo DeviceGetMemoryInfo_v2
    DeviceGetUtilizationRates DeviceGetEncoderUtilization DeviceGetDecoderUtilization DeviceGetTemperature
    DeviceGetTemperatureV DeviceGetTemperatureThreshold DeviceGetPowerUsage DeviceGetPowerManagementLimit
    DeviceGetEnforcedPowerLimit DeviceGetPowerState DeviceGetPerformanceState DeviceGetPersistenceMode
    DeviceGetFanSpeed DeviceGetFanSpeed_v2 DeviceGetClock DeviceGetClockInfo DeviceGetMaxClockInfo
    DeviceGetPcieThroughput DeviceGetCurrPcieLinkGeneration DeviceGetCurrPcieLinkWidth
    DeviceGetMaxPcieLinkGeneration DeviceGetMaxPcieLinkWidth DeviceGetComputeMode DeviceGetDisplayActive
    DeviceGetDriverModel_v2 DeviceGetEccMode DeviceGetTotalEccErrors DeviceGetMigMode
    DeviceIsMigDeviceHandle DeviceGetMaxMigDeviceCount DeviceGetNvLinkState DeviceGetHostVgpuMode
    DeviceGetComputeRunningProcesses DeviceGetComputeRunningProcesses_v2 DeviceGetComputeRunningProcesses_v3
    DeviceGetGraphicsRunningProcesses DeviceGetGraphicsRunningProcesses_v2
    DeviceGetGraphicsRunningProcesses_v3 DeviceGetMPSComputeRunningProcesses_v3
    DeviceGetProcessUtilization DeviceGetProcessesUtilizationInfo DeviceGetNumGpuCores
    DeviceGetMinorNumber DeviceGetBrand DeviceGetSerial DeviceGetBoardId DeviceGetVbiosVersion
    DeviceGetMemoryBusWidth DeviceGetCudaComputeCapability DeviceGetFieldValues
    DeviceGetCurrentClocksEventReasons DeviceGetCurrentClocksThrottleReasons
    DeviceGetSupportedClocksEventReasons DeviceGetSupportedClocksThrottleReasons EventSetCreate EventSetFree
    DeviceRegisterEvents EventSetWait EventSetWait_v2 DeviceGetSupportedEventTypes
    GpmQueryDeviceSupport GpmSampleAlloc GpmSampleFree GpmSampleGet GpmMetricsGet DeviceGetBAR1MemoryInfo
";

#[test]
fn exports_all_names_that_clients_ask_for() {
    let data = std::fs::read(library()).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let exported: Vec<&str> = file
        .dynamic_symbols()
        .filter(ObjectSymbol::is_definition)
        .filter_map(|s| s.name().ok())
        .collect();
    for name in ASKED.split_whitespace() {
        assert!(
            exported.contains(&format!("nvml{name}").as_str()),
            "nvml{name} is missing"
        );
    }
    let foreign: Vec<_> = exported
        .iter()
        .filter(|name| !name.starts_with("nvml"))
        .collect();
    assert!(foreign.is_empty(), "exports other than NVML's: {foreign:?}");
    // The name is a string in .dynstr.
    assert!(
        data.windows(18)
            .any(|bytes| bytes == b"libnvidia-ml.so.1\0"),
        "no soname"
    );
}

#[test]
fn devices_are_those_of_the_board() {
    let slugs: Vec<&str> = MODELS.iter().map(|model| model.slug).collect();
    let workstation = Workstation::new(&slugs);
    let nvml = workstation.nvml();
    let snapshot = workstation.board.snapshot();
    assert_eq!(nvml.device_count().unwrap(), slugs.len() as u32);
    assert_eq!(
        nvml.sys_driver_version().unwrap(),
        snapshot.driver_version.clone()
    );
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    for (index, gpu) in snapshot.gpus.iter().enumerate() {
        let device = nvml.device_by_index(index as u32).unwrap();
        assert_eq!(device.index().unwrap(), index as u32);
        assert_eq!(device.name().unwrap(), gpu.model.name);
        assert_eq!(device.uuid().unwrap(), gpu.uuid.as_str());
        assert_eq!(device.minor_number().unwrap(), gpu.minor);
        assert_eq!(
            device.num_cores().unwrap(),
            gpu.model.sms * gpu.model.cores_per_sm
        );
        let capability = device.cuda_compute_capability().unwrap();
        let (major, minor) = gpu.model.compute_capability;
        assert_eq!(
            (capability.major as u32, capability.minor as u32),
            (major, minor)
        );
        let pci = device.pci_info().unwrap();
        assert_eq!(
            (pci.bus, pci.pci_device_id),
            (gpu.pci_bus, gpu.model.pci_device_id)
        );
        assert_eq!(
            nvml.device_by_uuid(gpu.uuid.as_str())
                .unwrap()
                .index()
                .unwrap(),
            index as u32
        );
        assert_eq!(
            nvml.device_by_pci_bus_id(pci.bus_id.as_str())
                .unwrap()
                .index()
                .unwrap(),
            index as u32
        );
        let memory = device.memory_info().unwrap();
        assert_eq!(
            (memory.total, memory.reserved, memory.used),
            (gpu.model.total, gpu.model.reserved, 0)
        );
        assert_eq!(device.utilization_rates().unwrap().gpu, 0);
        assert_eq!(device.power_usage().unwrap(), gpu.model.idle_power_mw);
        assert_eq!(device.running_compute_processes().unwrap(), vec![]);
        assert_eq!(
            device.max_clock_info(Clock::SM).unwrap(),
            gpu.model.sm_clock_mhz
        );
        assert!(device.clock_info(Clock::SM).unwrap() < gpu.model.sm_clock_mhz);
        assert_eq!(device.gpm_support().unwrap(), gpu.model.gpm);
        assert_eq!(device.mig_mode().is_ok(), gpu.model.mig);
    }
    assert_eq!(failure(nvml.device_by_index(99)), "InvalidArg");
    assert_eq!(failure(nvml.device_by_uuid("GPU-nothing")), "NotFound");
    assert_eq!(
        failure(nvml.device_by_pci_bus_id("0000:77:00.0")),
        "NotFound"
    );
}

#[test]
#[allow(deprecated, reason = "clients still look devices up by serial number")]
fn what_a_model_does_not_have_is_not_supported() {
    let workstation = Workstation::new(&["rtx4090", "h100"]);
    let nvml = workstation.nvml();
    let geforce = nvml.device_by_index(0).unwrap();
    assert_eq!(failure(geforce.is_ecc_enabled()), "NotSupported");
    assert_eq!(failure(geforce.serial()), "NotSupported");
    assert_eq!(failure(geforce.mig_mode()), "NotSupported");
    assert_eq!(failure(geforce.gpm_sample()), "NotSupported");
    assert!(geforce.fan_speed(0).unwrap() >= 30);
    let module = nvml.device_by_index(1).unwrap();
    assert!(module.is_ecc_enabled().unwrap().currently_enabled);
    assert_eq!(failure(module.fan_speed(0)), "NotSupported");
    let serial = module.serial().unwrap();
    assert_eq!(nvml.device_by_serial(serial).unwrap().index().unwrap(), 1);
    assert_eq!(failure(module.total_energy_consumption()), "NotSupported");
}

#[test]
fn memory_and_processes_come_from_the_board() {
    let workstation = Workstation::new(&["rtx4090", "h100"]);
    let nvml = workstation.nvml();
    let device = nvml.device_by_index(1).unwrap();
    let (slot, contexts) = workstation.process(&[1]);
    workstation
        .board
        .alloc(slot, 1, MemoryKind::ALL[0], 700 * MIB)
        .unwrap();
    let bytes = model("h100").context_overhead + 700 * MIB;
    assert_eq!(device.memory_info().unwrap().used, bytes);
    let processes = device.running_compute_processes().unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].pid, std::process::id());
    assert_eq!(processes[0].used_gpu_memory, UsedGpuMemory::Used(bytes));
    assert_eq!(processes[0].gpu_instance_id, None);
    assert_eq!(device.running_graphics_processes().unwrap(), vec![]);
    assert_eq!(
        nvml.device_by_index(0)
            .unwrap()
            .running_compute_processes()
            .unwrap(),
        vec![]
    );
    // A second copy of the driver's library in the same process.
    let (other, more) = workstation.process(&[1]);
    let processes = device.running_compute_processes().unwrap();
    let told: Vec<_> = processes
        .iter()
        .map(|p| p.used_gpu_memory.clone())
        .collect();
    let sum = bytes + model("h100").context_overhead;
    assert_eq!(told, vec![UsedGpuMemory::Used(sum)]);
    workstation.board.remove_context(other, 1, more[0]).unwrap();
    workstation.board.unregister(other).unwrap();
    let name = nvml.sys_process_name(std::process::id(), 1024).unwrap();
    assert!(name.contains("clients"), "{name}");
    workstation
        .board
        .remove_context(slot, 1, contexts[0])
        .unwrap();
    workstation.board.unregister(slot).unwrap();
    assert_eq!(device.running_compute_processes().unwrap(), vec![]);
    assert_eq!(device.memory_info().unwrap().used, 0);
}

#[test]
fn utilisation_follows_what_ran() {
    let workstation = Workstation::new(&["h100"]);
    let nvml = workstation.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let (slot, contexts) = workstation.process(&[0]);
    let before = device.gpm_sample().unwrap();
    // A quarter of the 132 SMs, a block of 8 warps each, for a minute.
    let shape = Shape {
        blocks: 33,
        threads: 256,
        regs: 32,
        shared: 0,
    };
    let work = Work {
        gpu: 0,
        context: contexts[0],
        shape: Some(shape),
        block_ns: 60_000_000_000,
        transfer: None,
        record: false,
        meeting: (0, 0),
        deps: Default::default(),
    };
    workstation.board.submit(slot, &work).unwrap();
    eventually("a window full of work", || {
        device.utilization_rates().is_ok_and(|rates| rates.gpu > 95)
    });
    let samples = device.process_utilization_stats(None).unwrap();
    assert_eq!((samples.len(), samples[0].pid), (1, std::process::id()));
    assert!(samples[0].sm_util > 95, "{samples:?}");
    assert!(device.temperature(TemperatureSensor::Gpu).unwrap() > 33);
    assert!(device.power_usage().unwrap() > model("h100").idle_power_mw);
    assert_eq!(
        device.clock_info(Clock::SM).unwrap(),
        model("h100").sm_clock_mhz
    );

    let from = device.gpm_sample().unwrap();
    eventually("time between two samples", || {
        let to = device.gpm_sample().unwrap();
        let ids = [
            GpmMetricId::GraphicsUtil,
            GpmMetricId::SmUtil,
            GpmMetricId::SmOccupancy,
            GpmMetricId::AnyTensorUtil,
        ];
        let metrics = gpm_metrics_get(&nvml, &from, &to, &ids).unwrap();
        let [
            Ok(graphics),
            Ok(sm),
            Ok(occupancy),
            Err(NvmlError::NotSupported),
        ] = &metrics[..]
        else {
            return false;
        };
        assert!((graphics.value - 100.0).abs() < 0.5, "{graphics:?}");
        assert!((sm.value - 25.0).abs() < 0.5, "{sm:?}");
        assert!(
            (occupancy.value - 25.0 * 8.0 / 64.0).abs() < 0.5,
            "{occupancy:?}"
        );
        assert_eq!(
            (
                sm.metric_info.short_name.as_str(),
                sm.metric_info.unit.as_str()
            ),
            ("sm_util", "%")
        );
        true
    });
    before.free().unwrap();
    from.free().unwrap();
}

#[test]
fn a_lost_gpu_says_so_and_its_events_arrive() {
    let workstation = Workstation::new(&["h100", "h100"]);
    let nvml = workstation.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let events = nvml.create_event_set().unwrap();
    let events = device
        .register_events(EventTypes::CRITICAL_XID_ERROR, events)
        .unwrap();
    assert_eq!(failure(events.wait(0)), "Timeout");
    workstation.board.raise_xid(0, 31).unwrap();
    workstation.board.raise_xid(1, 13).unwrap();
    let event = events.wait(5_000).unwrap();
    assert_eq!(event.event_data, Some(XidError::Value(31)));
    assert_eq!(event.device.index().unwrap(), 0);
    assert_eq!(failure(events.wait(0)), "Timeout");
    workstation.board.set_lost(0, true).unwrap();
    assert_eq!(
        events.wait(5_000).unwrap().event_data,
        Some(XidError::Value(79))
    );
    assert_eq!(failure(events.wait(5_000)), "GpuLost");
    assert_eq!(failure(device.memory_info()), "GpuLost");
    assert_eq!(failure(nvml.device_by_index(0)), "GpuLost");
    assert_eq!(nvml.device_count().unwrap(), 2);
    assert!(nvml.device_by_index(1).unwrap().memory_info().is_ok());
    workstation.board.set_lost(0, false).unwrap();
    assert!(device.memory_info().is_ok());
}

#[test]
fn calls_hang_while_the_driver_does() {
    let workstation = Workstation::new(&["rtx4090"]);
    let nvml = workstation.nvml();
    workstation.board.set_fault(Fault::NvmlHangs, true).unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| (nvml.device_count(), Instant::now()));
        let until = Instant::now() + Duration::from_millis(150);
        while Instant::now() < until {
            assert!(!call.is_finished());
            std::thread::yield_now();
        }
        let let_go = Instant::now();
        workstation
            .board
            .set_fault(Fault::NvmlHangs, false)
            .unwrap();
        let (count, answered) = call.join().unwrap();
        assert_eq!(count.unwrap(), 1);
        assert!(answered >= let_go);
    });
}

#[test]
fn a_device_whose_node_cannot_be_opened_gives_no_handle() {
    use std::os::unix::fs::PermissionsExt;
    let workstation = Workstation::new(&["rtx4090", "rtx4090"]);
    let dev = workstation.path().join("dev");
    std::fs::create_dir(&dev).unwrap();
    for (node, mode) in [("nvidiactl", 0o666), ("nvidia0", 0o666), ("nvidia1", 0o600)] {
        std::fs::write(dev.join(node), "").unwrap();
        std::fs::set_permissions(dev.join(node), PermissionsExt::from_mode(mode)).unwrap();
    }
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can open nodes as another user");
        return;
    }
    let blocked = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // SAFETY: the bare system call changes the user of this thread only, which then ends.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_534, -1) };
            assert_eq!(changed, 0);
            let nvml = workstation.nvml();
            assert_eq!(nvml.device_count().unwrap(), 2);
            assert!(nvml.device_by_index(0).is_ok());
            failure(nvml.device_by_index(1))
        });
        other.join().unwrap()
    });
    assert_eq!(blocked, "NoPermission");
    // A handle stays valid, as a descriptor does.
    let nvml = workstation.nvml();
    assert!(nvml.device_by_index(1).is_ok());
    std::fs::remove_file(dev.join("nvidia1")).unwrap();
    assert!(nvml.device_by_index(1).is_ok());
}

#[test]
fn without_a_board_there_is_no_driver() {
    let workstation = Workstation::new(&["rtx4090"]);
    std::fs::remove_file(workstation.path().join("board")).unwrap();
    let path = workstation.path().join("lib/libnvidia-ml.so.1");
    let result = Nvml::builder().lib_path(path.as_os_str()).init();
    assert!(
        matches!(result, Err(NvmlError::DriverNotLoaded)),
        "{:?}",
        result.err()
    );
}
