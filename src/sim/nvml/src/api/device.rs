//! Load, temperature, power, clocks and modes of a device.

use gshare_sim_board::GpuSnapshot;

use crate::abi::{Handle, Out, export};
use crate::api::processes::wall_us;
use crate::code::Code;
use crate::figures::{
    clock_mhz, is_awake, load, max_clock_mhz, percent, power_mw, temperature_c, traits,
};
use crate::layout::{FieldValue, Temperature, Utilization, version};
use crate::session::device;

/// Sampling period that the driver reports for its encoders, in microseconds.
const SAMPLING_US: u32 = 167_000;

fn give<T: Copy>(
    handle: Handle,
    out: Out<T>,
    get: impl FnOnce(&GpuSnapshot) -> Result<T, Code>,
) -> Result<(), Code> {
    let device = device(handle)?;
    out.set(get(device.gpu())?)
}

fn give_two(
    handle: Handle,
    first: Out<u32>,
    second: Out<u32>,
    values: (u32, u32),
) -> Result<(), Code> {
    device(handle)?;
    first.set(values.0)?;
    second.set(values.1)
}

fn fan_percent(gpu: &GpuSnapshot) -> Result<u32, Code> {
    if traits(gpu.model).fans == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(30 + (temperature_c(gpu)? - 33))
}

fn ecc_is_on(gpu: &GpuSnapshot) -> Result<bool, Code> {
    if traits(gpu.model).ecc {
        Ok(gpu.model.ecc)
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

fn pcie_generation(gpu: &GpuSnapshot) -> u32 {
    if is_awake(gpu) {
        gpu.model.pcie_generation
    } else {
        1
    }
}

fn performance_state(gpu: &GpuSnapshot) -> u32 {
    if is_awake(gpu) { 0 } else { 8 }
}

/// Bit 0: idle. Other reasons are injected only.
fn clock_reasons(gpu: &GpuSnapshot) -> u64 {
    u64::from(!is_awake(gpu)) | gpu.health.clock_reasons
}

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: u32 = 230;

/// Memory errors of a kind: 0 corrected, 1 uncorrected.
fn ecc_errors(gpu: &GpuSnapshot, kind: u32) -> u64 {
    if kind == 0 {
        gpu.health.ecc_corrected
    } else {
        gpu.health.ecc_uncorrected
    }
}

/// One entry of `nvmlDeviceGetFieldValues`: type, value.
fn field(gpu: &GpuSnapshot, id: u32) -> Result<(u32, u64), Code> {
    const UINT: u32 = 1;
    const ULONG_LONG: u32 = 3;
    Ok(match id {
        1 | 2 => (UINT, u64::from(ecc_is_on(gpu)?)),
        3 | 5 if ecc_is_on(gpu)? => (ULONG_LONG, gpu.health.ecc_corrected),
        4 | 6 if ecc_is_on(gpu)? => (ULONG_LONG, gpu.health.ecc_uncorrected),
        RECOVERY_ACTION => (UINT, gpu.health.recovery),
        // Power: average, instant.
        185 | 186 => (UINT, power_mw(gpu)?.into()),
        _ => return Err(Code::NOT_SUPPORTED),
    })
}

fn link(handle: Handle, link: u32) -> Result<(), Code> {
    let links = traits(device(handle)?.gpu().model).links;
    match link {
        _ if links == 0 => Err(Code::NOT_SUPPORTED),
        link if link >= links => Err(Code::INVALID_ARGUMENT),
        _ => Ok(()),
    }
}

export! {
    /// `gpu` is the busy time; `memory` is half of that, as the board has no memory traffic.
    fn nvmlDeviceGetUtilizationRates(handle: Handle, out: Out<Utilization>) {
        give(handle, out, |gpu| {
            let busy = load(gpu)?.busy;
            Ok(Utilization { gpu: percent(busy), memory: percent(busy / 2.0) })
        })
    }
    fn nvmlDeviceGetEncoderUtilization(handle: Handle, out: Out<u32>, period_us: Out<u32>) {
        give_two(handle, out, period_us, (0, SAMPLING_US))
    }
    fn nvmlDeviceGetDecoderUtilization(handle: Handle, out: Out<u32>, period_us: Out<u32>) {
        give_two(handle, out, period_us, (0, SAMPLING_US))
    }
    fn nvmlDeviceGetJpgUtilization(handle: Handle, out: Out<u32>, period_us: Out<u32>) {
        give_two(handle, out, period_us, (0, SAMPLING_US))
    }
    fn nvmlDeviceGetOfaUtilization(handle: Handle, out: Out<u32>, period_us: Out<u32>) {
        give_two(handle, out, period_us, (0, SAMPLING_US))
    }
    fn nvmlDeviceGetTemperature(handle: Handle, sensor: u32, out: Out<u32>) {
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        give(handle, out, temperature_c)
    }
    fn nvmlDeviceGetTemperatureV(handle: Handle, out: Out<Temperature>) {
        let asked = out.get()?;
        if asked.version != version::<Temperature>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        if asked.sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        give(handle, out, |gpu| {
            Ok(Temperature { temperature: temperature_c(gpu)?.cast_signed(), ..asked })
        })
    }
    /// Thresholds in degrees Celsius: shutdown, slowdown, memory, GPU.
    fn nvmlDeviceGetTemperatureThreshold(handle: Handle, kind: u32, out: Out<u32>) {
        give(handle, out, |gpu| match kind {
            0 => Ok(95),
            1 => Ok(92),
            2 if gpu.model.mig => Ok(95),
            3 => Ok(87),
            2 | 4.. => Err(Code::NOT_SUPPORTED),
        })
    }
    fn nvmlDeviceGetPowerUsage(handle: Handle, out: Out<u32>) { give(handle, out, power_mw) }
    fn nvmlDeviceGetPowerManagementMode(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(1)) }
    fn nvmlDeviceGetPowerManagementLimit(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(gpu.model.power_limit_mw))
    }
    fn nvmlDeviceGetPowerManagementDefaultLimit(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(gpu.model.power_limit_mw))
    }
    fn nvmlDeviceGetEnforcedPowerLimit(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(gpu.model.power_limit_mw))
    }
    fn nvmlDeviceGetPowerManagementLimitConstraints(handle: Handle, least: Out<u32>, most: Out<u32>) {
        let limit = device(handle)?.gpu().model.power_limit_mw;
        least.set(limit / 2)?;
        most.set(limit)
    }
    fn nvmlDeviceGetPowerState(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(performance_state(gpu)))
    }
    fn nvmlDeviceGetPerformanceState(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(performance_state(gpu)))
    }
    fn nvmlDeviceGetClockInfo(handle: Handle, domain: u32, out: Out<u32>) {
        give(handle, out, |gpu| clock_mhz(gpu, domain))
    }
    fn nvmlDeviceGetMaxClockInfo(handle: Handle, domain: u32, out: Out<u32>) {
        give(handle, out, |gpu| max_clock_mhz(gpu.model, domain))
    }
    fn nvmlDeviceGetClock(handle: Handle, domain: u32, which: u32, out: Out<u32>) {
        give(handle, out, |gpu| match which {
            0 => clock_mhz(gpu, domain),
            3 => max_clock_mhz(gpu.model, domain),
            _ => Err(Code::NOT_SUPPORTED),
        })
    }
    fn nvmlDeviceGetMaxCustomerBoostClock(handle: Handle, domain: u32, out: Out<u32>) {
        give(handle, out, |gpu| max_clock_mhz(gpu.model, domain))
    }
    fn nvmlDeviceGetCurrentClocksEventReasons(handle: Handle, out: Out<u64>) {
        give(handle, out, |gpu| Ok(clock_reasons(gpu)))
    }
    fn nvmlDeviceGetCurrentClocksThrottleReasons(handle: Handle, out: Out<u64>) {
        give(handle, out, |gpu| Ok(clock_reasons(gpu)))
    }
    fn nvmlDeviceGetSupportedClocksEventReasons(handle: Handle, out: Out<u64>) {
        give(handle, out, |_| Ok(0x1ff))
    }
    fn nvmlDeviceGetSupportedClocksThrottleReasons(handle: Handle, out: Out<u64>) {
        give(handle, out, |_| Ok(0x1ff))
    }
    fn nvmlDeviceGetPersistenceMode(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(1)) }
    fn nvmlDeviceGetComputeMode(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(0)) }
    fn nvmlDeviceGetAccountingMode(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(0)) }
    fn nvmlDeviceGetDisplayMode(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(0)) }
    fn nvmlDeviceGetDisplayActive(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(0)) }
    fn nvmlDeviceGetVirtualizationMode(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(0)) }
    fn nvmlDeviceGetNumFans(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(traits(gpu.model).fans))
    }
    fn nvmlDeviceGetFanSpeed(handle: Handle, out: Out<u32>) { give(handle, out, fan_percent) }
    fn nvmlDeviceGetFanSpeed_v2(handle: Handle, fan: u32, out: Out<u32>) {
        give(handle, out, |gpu| match fan {
            fan if traits(gpu.model).fans > 0 && fan >= traits(gpu.model).fans => Err(Code::INVALID_ARGUMENT),
            _ => fan_percent(gpu),
        })
    }
    fn nvmlDeviceGetEccMode(handle: Handle, current: Out<u32>, pending: Out<u32>) {
        let on = u32::from(ecc_is_on(device(handle)?.gpu())?);
        current.set(on)?;
        pending.set(on)
    }
    fn nvmlDeviceGetDefaultEccMode(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| ecc_is_on(gpu).map(u32::from))
    }
    /// Errors of the simulation's memory are injected only; without ECC the counters are not supported.
    fn nvmlDeviceGetTotalEccErrors(handle: Handle, kind: u32, counter: u32, out: Out<u64>) {
        give(handle, out, |gpu| match (kind, counter) {
            (0 | 1, 0 | 1) if ecc_is_on(gpu)? => Ok(ecc_errors(gpu, kind)),
            (0 | 1, 0 | 1) => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        })
    }
    fn nvmlDeviceGetMemoryErrorCounter(
        handle: Handle, kind: u32, counter: u32, _location: u32, out: Out<u64>,
    ) {
        give(handle, out, |gpu| match (kind, counter) {
            (0 | 1, 0 | 1) if ecc_is_on(gpu)? => Ok(ecc_errors(gpu, kind)),
            (0 | 1, 0 | 1) => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        })
    }
    /// GeForce has no spare rows.
    fn nvmlDeviceGetRemappedRows(
        handle: Handle, corrected: Out<u32>, uncorrected: Out<u32>, pending: Out<u32>, failed: Out<u32>,
    ) {
        let device = device(handle)?;
        let gpu = device.gpu();
        if !traits(gpu.model).ecc || gpu.instance.is_some() {
            return Err(Code::NOT_SUPPORTED);
        }
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        corrected.set(small(gpu.health.remapped_corrected))?;
        uncorrected.set(small(gpu.health.remapped_uncorrected))?;
        pending.set(gpu.health.remap_pending.into())?;
        failed.set(gpu.health.remap_failed.into())
    }
    fn nvmlDeviceGetCurrPcieLinkGeneration(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(pcie_generation(gpu)))
    }
    fn nvmlDeviceGetMaxPcieLinkGeneration(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(gpu.model.pcie_generation))
    }
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(gpu.model.pcie_generation))
    }
    fn nvmlDeviceGetCurrPcieLinkWidth(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(16)) }
    fn nvmlDeviceGetMaxPcieLinkWidth(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(16)) }
    fn nvmlDeviceGetPcieReplayCounter(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(0)) }
    /// The simulated links have no remote end.
    fn nvmlDeviceGetNvLinkState(handle: Handle, number: u32, out: Out<u32>) {
        link(handle, number)?;
        out.set(0)
    }
    fn nvmlDeviceGetFieldValues(handle: Handle, count: i32, values: Out<FieldValue>) {
        let device = device(handle)?;
        let count = usize::try_from(count).map_err(|_| Code::INVALID_ARGUMENT)?;
        for at in (0..count).map(|i| values.at(i)) {
            let asked = at.get()?;
            let (value_type, value, code) = match field(device.gpu(), asked.field) {
                Ok((value_type, value)) => (value_type, value, Code::SUCCESS),
                Err(code) => (asked.value_type, asked.value, code),
            };
            let time_stamp = wall_us().cast_signed();
            at.set(FieldValue { time_stamp, latency_us: 0, value_type, value, code: code.0, ..asked })?;
        }
        Ok(())
    }
}
