//! The processes that use a device, with their memory and their share of its time.

use std::time::{SystemTime, UNIX_EPOCH};

use gshare_sim_board::{Fault, GpuSnapshot};

use crate::abi::{Handle, Out, export};
use crate::code::Code;
use crate::figures::percent;
use crate::layout::{
    NO_INSTANCE, ProcessDetail, ProcessDetailList, ProcessInfo, ProcessInfoV1, ProcessSample,
    ProcessUtilization, ProcessesUtilization, version,
};
use crate::session::device;

/// Programs with graphics, by name: a display server has a graphics context only (type G), a desktop both (C+G). The
/// simulation has no graphics; compute contexts of these programs stand for it.
const SERVERS: [&str; 2] = ["Xorg", "Xwayland"];
const DESKTOPS: [&str; 2] = ["gnome-shell", "kwin_wayland"];

/// A process's row in NVML: one per process, even if several copies of the driver's library have the GPU open
/// (gpuFindClientInfoWithPidIterator of open-gpu-kernel-modules adds up all clients of a pid).
struct Row {
    pid: u32,
    bytes: u64,
    mps: bool,
    computes: bool,
    draws: bool,
    /// Busy part of about the last second.
    busy: f64,
}

fn rows(gpu: &GpuSnapshot) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for p in gpu.processes.iter().filter(|p| p.contexts > 0) {
        let name = p.name.as_str();
        let recent = p.recent.as_ref();
        let row = Row {
            pid: p.pid,
            bytes: p.bytes,
            mps: p.mps.is_some(),
            computes: !SERVERS.contains(&name),
            draws: SERVERS.contains(&name) || DESKTOPS.contains(&name),
            busy: recent.map_or(0.0, |r| r.busy_ns / r.span_ns as f64),
        };
        match rows.iter_mut().find(|known| known.pid == row.pid) {
            None => rows.push(row),
            Some(known) => {
                known.bytes += row.bytes;
                known.busy += row.busy;
            }
        }
    }
    rows
}

/// Fills the caller's array, or returns the needed length.
fn list<T: Copy>(items: &[T], count: Out<u32>, array: Out<T>) -> Result<(), Code> {
    let room = count.get()?;
    count.set(items.len() as u32)?;
    if items.is_empty() {
        return Ok(());
    }
    if (room as usize) < items.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    array.fill(items)
}

/// Kinds of processes that a query lists.
#[derive(Clone, Copy)]
enum Kind {
    Compute,
    Graphics,
    /// Clients of MPS.
    Clients,
}

fn of_kind(gpu: &GpuSnapshot, kind: Kind) -> Vec<Row> {
    let mut rows = rows(gpu);
    rows.retain(|row| match kind {
        Kind::Compute => row.computes,
        Kind::Graphics => row.draws,
        Kind::Clients => row.computes && row.mps,
    });
    rows
}

fn list_v1(
    handle: Handle,
    kind: Kind,
    count: Out<u32>,
    array: Out<ProcessInfoV1>,
) -> Result<(), Code> {
    let device = device(handle)?;
    let infos: Vec<_> = of_kind(device.gpu(), kind)
        .into_iter()
        .map(|p| ProcessInfoV1 {
            pid: p.pid,
            used_gpu_memory: p.bytes,
        })
        .collect();
    list(&infos, count, array)
}

fn list_v2(
    handle: Handle,
    kind: Kind,
    count: Out<u32>,
    array: Out<ProcessInfo>,
) -> Result<(), Code> {
    let device = device(handle)?;
    let infos: Vec<_> = of_kind(device.gpu(), kind)
        .into_iter()
        .map(|p| ProcessInfo {
            pid: p.pid,
            used_gpu_memory: p.bytes,
            gpu_instance: device.gpu().instance.map_or(NO_INSTANCE, |i| i.gi),
            compute_instance: device.gpu().instance.map_or(NO_INSTANCE, |i| i.ci),
        })
        .collect();
    list(&infos, count, array)
}

/// Microseconds since 1970, as in the driver's samples.
pub(super) fn wall_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_micros() as u64)
}

/// Pid and busy percentage of each process with recent work.
fn active(gpu: &GpuSnapshot) -> Vec<(u32, u32)> {
    let rows = of_kind(gpu, Kind::Compute);
    let percents = rows.iter().map(|row| (row.pid, percent(row.busy)));
    percents.filter(|(_, busy)| *busy > 0).collect()
}

/// Time in microseconds between two samples of a faulty driver, and the number of samples that it keeps.
const SAMPLE_US: u64 = 20_000;
const KEPT: u64 = 50;
/// A garbage percentage of such a driver (DCGM issue 83), and one in how many samples has it.
const GARBAGE: (u32, u64) = (2_147_483_632, 200);

/// Samples of a faulty driver. Each names one process that was on the GPU at the time (ctrl2080perf.h of
/// open-gpu-kernel-modules) with the load of the whole GPU. One is seconds old whatever the request (go-nvml issue 51).
fn sampled(active: &[(u32, u32)], now_us: u64, last_seen: u64) -> Vec<ProcessSample> {
    let all: u32 = active.iter().map(|(_, percent)| percent).sum();
    let sample = |pid, time_stamp, sm| ProcessSample {
        pid,
        time_stamp,
        sm,
        memory: 0,
        encoder: 0,
        decoder: 0,
    };
    let newest = now_us / SAMPLE_US * SAMPLE_US;
    let at = |back: u64| {
        let stamp = newest.checked_sub(back * SAMPLE_US)?;
        let drawn = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let mut place = (drawn % u64::from(all.max(1))) as u32;
        let on_it = active.iter().find(|(_, percent)| {
            let here = place < *percent;
            place = place.saturating_sub(*percent);
            here
        });
        let sm = match drawn % GARBAGE.1 {
            0 => GARBAGE.0,
            _ => all.min(100),
        };
        Some(sample(on_it?.0, stamp, sm))
    };
    let stale = active
        .first()
        .map(|(pid, _)| sample(*pid, now_us.saturating_sub(3_000_000), 100));
    let fresh = (0..KEPT)
        .filter_map(at)
        .filter(|s| s.time_stamp > last_seen);
    fresh.chain(stale).collect()
}

export! {
    fn nvmlDeviceGetComputeRunningProcesses(handle: Handle, count: Out<u32>, array: Out<ProcessInfoV1>) {
        list_v1(handle, Kind::Compute, count, array)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(handle: Handle, count: Out<u32>, array: Out<ProcessInfo>) {
        list_v2(handle, Kind::Compute, count, array)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(handle: Handle, count: Out<u32>, array: Out<ProcessInfo>) {
        list_v2(handle, Kind::Compute, count, array)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(handle: Handle, count: Out<u32>, array: Out<ProcessInfoV1>) {
        list_v1(handle, Kind::Graphics, count, array)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(handle: Handle, count: Out<u32>, array: Out<ProcessInfo>) {
        list_v2(handle, Kind::Graphics, count, array)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(handle: Handle, count: Out<u32>, array: Out<ProcessInfo>) {
        list_v2(handle, Kind::Graphics, count, array)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses(handle: Handle, count: Out<u32>, array: Out<ProcessInfoV1>) {
        list_v1(handle, Kind::Clients, count, array)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(handle: Handle, count: Out<u32>, array: Out<ProcessInfo>) {
        list_v2(handle, Kind::Clients, count, array)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(handle: Handle, count: Out<u32>, array: Out<ProcessInfo>) {
        list_v2(handle, Kind::Clients, count, array)
    }
    fn nvmlDeviceGetRunningProcessDetailList(handle: Handle, list: Out<ProcessDetailList>) {
        let asked = list.get()?;
        if asked.version != version::<ProcessDetailList>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let device = device(handle)?;
        let details: Vec<_> = match asked.mode {
            0 => of_kind(device.gpu(), Kind::Compute)
                .into_iter()
                .map(|p| ProcessDetail {
                    pid: p.pid,
                    used_gpu_memory: p.bytes,
                    gpu_instance: NO_INSTANCE,
                    compute_instance: NO_INSTANCE,
                    protected_memory: 0,
                })
                .collect(),
            1 | 2 => Vec::new(),
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        list.set(ProcessDetailList { count: details.len() as u32, ..asked })?;
        if details.is_empty() {
            return Ok(());
        }
        if (asked.count as usize) < details.len() || asked.array.is_null() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        Out::from_raw(asked.array).fill(&details)
    }
    /// One sample for each process that ran in about the last second.
    fn nvmlDeviceGetProcessUtilization(
        handle: Handle, samples: Out<ProcessSample>, count: Out<u32>, last_seen: u64,
    ) {
        let device = device(handle)?;
        let time_stamp = wall_us();
        let active = active(device.gpu());
        let found: Vec<_> = match device.snapshot.preset.has(Fault::NvmlSamples) {
            true => sampled(&active, time_stamp, last_seen),
            false => active
                .into_iter()
                .filter(|_| time_stamp > last_seen)
                .map(|(pid, sm)| ProcessSample { pid, time_stamp, sm, memory: sm.div_ceil(2), encoder: 0, decoder: 0 })
                .collect(),
        };
        let room = count.get()?;
        if samples.is_null() || (room as usize) < found.len() {
            count.set(found.len().max(1) as u32)?;
            return Err(Code::INSUFFICIENT_SIZE);
        }
        count.set(found.len() as u32)?;
        if found.is_empty() {
            return Err(Code::NOT_FOUND);
        }
        samples.fill(&found)
    }
    fn nvmlDeviceGetProcessesUtilizationInfo(handle: Handle, info: Out<ProcessesUtilization>) {
        let asked = info.get()?;
        if asked.version != version::<ProcessesUtilization>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let device = device(handle)?;
        let time_stamp = wall_us();
        let found: Vec<_> = active(device.gpu())
            .into_iter()
            .filter(|_| time_stamp > asked.last_seen)
            .map(|(pid, sm)| ProcessUtilization {
                time_stamp, pid, sm, memory: sm.div_ceil(2), encoder: 0, decoder: 0, jpeg: 0, ofa: 0,
            })
            .collect();
        if asked.array.is_null() || (asked.count as usize) < found.len() {
            info.set(ProcessesUtilization { count: found.len().max(1) as u32, ..asked })?;
            return Err(Code::INSUFFICIENT_SIZE);
        }
        info.set(ProcessesUtilization { count: found.len() as u32, ..asked })?;
        if found.is_empty() {
            return Err(Code::NOT_FOUND);
        }
        Out::from_raw(asked.array).fill(&found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unkind_driver_names_one_process_a_sample_and_lies_now_and_then() {
        let (now, second) = (1_795_440_000_000_000, 1_000_000);
        let mut all = Vec::new();
        for i in 1..=100 {
            let samples = sampled(
                &[(7, 60), (8, 30)],
                now + i * second,
                now + (i - 1) * second,
            );
            let (stale, fresh) = samples.split_last().expect("some");
            assert_eq!(stale.time_stamp, now + i * second - 3 * second);
            let stamps: Vec<u64> = fresh.iter().map(|s| s.time_stamp).collect();
            assert!(
                stamps.windows(2).all(|w| w[0] - w[1] == SAMPLE_US),
                "{stamps:?}"
            );
            all.extend(fresh.iter().map(|s| (s.pid, s.sm)));
        }
        let part = |of: &dyn Fn(&(u32, u32)) -> bool| {
            all.iter().filter(|s| of(s)).count() as f64 / all.len() as f64
        };
        assert!((part(&|s| s.0 == 7) - 2.0 / 3.0).abs() < 0.05);
        assert!((part(&|s| s.1 > 100) - 0.005).abs() < 0.004);
        assert!(all.iter().all(|s| s.1 == 90 || s.1 == GARBAGE.0));
    }
}
