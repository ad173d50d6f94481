//! GPU performance metrics: SM activity and occupancy between two samples, on models that support them.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use crate::abi::{Handle, Out, export};
use crate::code::Code;
use crate::layout::{GpmMetric, GpmMetricsGet, GpmSupport};
use crate::session::{self, device};

/// The integrals of a device at one moment, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Sample {
    device: usize,
    at: u64,
    busy: u64,
    sm: u64,
    warp: u64,
}

/// Allocated samples by handle; `None` until filled.
static SAMPLES: Mutex<Option<HashMap<usize, Option<Sample>>>> = Mutex::new(None);

fn with_samples<R>(f: impl FnOnce(&mut HashMap<usize, Option<Sample>>) -> R) -> R {
    let mut samples = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
    f(samples.get_or_insert_default())
}

fn sample(handle: Handle) -> Result<Sample, Code> {
    with_samples(|samples| samples.get(&(handle.0 as usize)).copied().flatten())
        .ok_or(Code::INVALID_ARGUMENT)
}

/// Fills an allocated sample.
fn keep(into: Handle, taken: Sample) -> Result<(), Code> {
    with_samples(|samples| match samples.get_mut(&(into.0 as usize)) {
        Some(sample) => {
            *sample = Some(taken);
            Ok(())
        }
        None => Err(Code::INVALID_ARGUMENT),
    })
}

/// Names and unit of a metric.
type Names = [&'static CStr; 3];

/// Value in percent and names of a metric, if the simulation has it.
fn metric(
    id: u32,
    first: &Sample,
    last: &Sample,
    sms: u32,
    warps_per_sm: u32,
) -> Result<(f64, Names), Code> {
    let span = last.at.saturating_sub(first.at) as f64;
    if span <= 0.0 {
        return Err(Code::NO_DATA);
    }
    let percent =
        |grown: u64, units: f64| (100.0 * grown as f64 / (span * units)).clamp(0.0, 100.0);
    let sms = f64::from(sms);
    Ok(match id {
        1 => {
            let value = percent(last.busy.saturating_sub(first.busy), 1.0);
            (value, [c"graphics_util", c"Graphics Utilization", c"%"])
        }
        2 => {
            let value = percent(last.sm.saturating_sub(first.sm), sms);
            (value, [c"sm_util", c"SM Utilization", c"%"])
        }
        3 => {
            let units = sms * f64::from(warps_per_sm);
            let value = percent(last.warp.saturating_sub(first.warp), units);
            (value, [c"sm_occupancy", c"SM Occupancy", c"%"])
        }
        _ => return Err(Code::NOT_SUPPORTED),
    })
}

export! {
    fn nvmlGpmQueryDeviceSupport(handle: Handle, out: Out<GpmSupport>) {
        let asked = out.get()?;
        if asked.version != 1 {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let supported = u32::from(device(handle)?.gpu().model.gpm);
        out.set(GpmSupport { supported, ..asked })
    }
    fn nvmlGpmSampleAlloc(out: Out<Handle>) {
        session::board()?;
        if out.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // The handle is the address of a byte that the caller owns until it frees the sample.
        let address = Box::into_raw(Box::new(0u8));
        with_samples(|samples| samples.insert(address as usize, None));
        out.set(Handle(address.cast()))
    }
    fn nvmlGpmSampleFree(handle: Handle) {
        if handle.0.is_null() {
            return Ok(());
        }
        with_samples(|samples| samples.remove(&(handle.0 as usize))).ok_or(Code::INVALID_ARGUMENT)?;
        // SAFETY: the table contained it, so nvmlGpmSampleAlloc made it and it was not freed.
        drop(unsafe { Box::from_raw(handle.0.cast::<u8>()) });
        Ok(())
    }
    fn nvmlGpmSampleGet(handle: Handle, into: Handle) {
        let device = device(handle)?;
        let gpu = device.gpu();
        if !gpu.model.gpm {
            return Err(Code::NOT_SUPPORTED);
        }
        let taken = Sample {
            device: device.index,
            at: device.snapshot.now_ns,
            busy: gpu.busy_ns,
            sm: gpu.sm_ns,
            warp: gpu.warp_ns,
        };
        keep(into, taken)
    }
    fn nvmlGpmMigSampleGet(handle: Handle, instance: u32, into: Handle) {
        let device = device(handle)?;
        if !device.gpu().model.gpm {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut parts = device.snapshot.gpus.iter().enumerate();
        let own = |gpu: &&gshare_sim_board::GpuSnapshot| {
            gpu.instance.is_some_and(|i| i.parent == device.index && i.gi == instance)
        };
        let (index, gpu) = parts.find(|(_, g)| own(g)).ok_or(Code::NOT_FOUND)?;
        keep(into, Sample {
            device: index,
            at: device.snapshot.now_ns,
            busy: gpu.busy_ns,
            sm: gpu.sm_ns,
            warp: gpu.warp_ns,
        })
    }
    fn nvmlGpmMetricsGet(out: Out<GpmMetricsGet>) {
        let asked = out.get()?;
        if asked.version != 1 {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let (first, last) = (sample(Handle(asked.sample1))?, sample(Handle(asked.sample2))?);
        if first.device != last.device {
            return Err(Code::INVALID_ARGUMENT);
        }
        let snapshot = session::snapshot()?;
        let model = snapshot.gpus.get(first.device).ok_or(Code::INVALID_ARGUMENT)?.model;
        let metrics: Out<GpmMetric> = out.behind();
        for at in (0..asked.count as usize).map(|i| metrics.at(i)) {
            let wanted = at.get()?;
            let filled = match metric(wanted.metric, &first, &last, model.sms, model.warps_per_sm()) {
                Ok((value, [short, long, unit])) => GpmMetric {
                    metric: wanted.metric,
                    code: Code::SUCCESS.0,
                    value,
                    short_name: short.as_ptr(),
                    long_name: long.as_ptr(),
                    unit: unit.as_ptr(),
                },
                Err(code) => GpmMetric { code: code.0, value: f64::NAN, ..wanted },
            };
            at.set(filled)?;
        }
        Ok(())
    }
    fn nvmlGpmQueryIfStreamingEnabled(handle: Handle, out: Out<u32>) {
        if !device(handle)?.gpu().model.gpm {
            return Err(Code::NOT_SUPPORTED);
        }
        out.set(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_growth_over_capacity() {
        let first = Sample {
            device: 0,
            at: 1_000,
            busy: 500,
            sm: 10_000,
            warp: 64_000,
        };
        let last = Sample {
            device: 0,
            at: 2_000,
            busy: 1_250,
            sm: 30_000,
            warp: 384_000,
        };
        let value = |id| metric(id, &first, &last, 40, 64).map(|(value, _)| value);
        assert_eq!(value(1), Ok(75.0));
        assert_eq!(value(2), Ok(50.0));
        assert_eq!(value(3), Ok(12.5));
        assert_eq!(value(10), Err(Code::NOT_SUPPORTED));
        let same = metric(2, &first, &first, 40, 64).map(|(value, _)| value);
        assert_eq!(same, Err(Code::NO_DATA));
    }
}
