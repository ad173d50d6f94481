//! Figures derived from the model and the load.
//!
//! Utilisation is measured on the board. Temperature, power, fan and clocks are simple monotonic functions of the last
//! second's load.

use gshare_sim_board::{GpuSnapshot, Model, Recent};

use crate::code::Code;

/// Load of a GPU over about the last second, each from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// Fraction of time with a kernel resident.
    pub(crate) busy: f64,
    /// Fraction of SMs with a block, averaged over time.
    pub(crate) sm: f64,
}

fn ratio(growth: f64, recent: &Recent, units: u32) -> f64 {
    (growth / (recent.span_ns as f64 * f64::from(units))).clamp(0.0, 1.0)
}

/// The load, if the board has enough samples (or nothing ever ran).
pub(crate) fn load(gpu: &GpuSnapshot) -> Result<Load, Code> {
    match &gpu.recent {
        Some(recent) => Ok(Load {
            busy: ratio(recent.busy_ns, recent, 1),
            sm: ratio(recent.sm_ns, recent, gpu.model.sms),
        }),
        None if gpu.busy_ns == 0 => Ok(Load { busy: 0.0, sm: 0.0 }),
        None => Err(Code::NO_DATA),
    }
}

/// Percent, rounded; anything above 0 is at least 1.
pub(crate) fn percent(fraction: f64) -> u32 {
    if fraction > 0.0 {
        ((fraction * 100.0).round() as u32).clamp(1, 100)
    } else {
        0
    }
}

/// Power in milliwatts: a busy GPU draws a third of its range, and its active SMs most of the rest.
pub(crate) fn power_mw(gpu: &GpuSnapshot) -> Result<u32, Code> {
    let load = load(gpu)?;
    let range = f64::from(gpu.model.power_limit_mw - gpu.model.idle_power_mw);
    Ok(gpu.model.idle_power_mw + (range * (0.33 * load.busy + 0.62 * load.sm)) as u32)
}

/// Temperature in degrees Celsius: from 33 when idle to 79 at the power limit.
pub(crate) fn temperature_c(gpu: &GpuSnapshot) -> Result<u32, Code> {
    let model = gpu.model;
    let above = f64::from(power_mw(gpu)? - model.idle_power_mw);
    let range = f64::from(model.power_limit_mw - model.idle_power_mw);
    Ok(33 + (46.0 * above / range) as u32)
}

/// Whether the clocks are up: a kernel runs, or a context waits for work.
pub(crate) fn is_awake(gpu: &GpuSnapshot) -> bool {
    gpu.processes.iter().any(|process| process.contexts > 0)
        || load(gpu).is_ok_and(|load| load.busy > 0.0)
}

/// Current clock of a domain (`nvmlClockType_t`) in MHz.
pub(crate) fn clock_mhz(gpu: &GpuSnapshot, domain: u32) -> Result<u32, Code> {
    let max = max_clock_mhz(gpu.model, domain)?;
    Ok(match (is_awake(gpu), domain) {
        (true, _) => max,
        (false, 2) => 405.min(max),
        (false, _) => 210,
    })
}

/// Maximum clock of a domain in MHz: graphics, SM, memory, video.
pub(crate) fn max_clock_mhz(model: &Model, domain: u32) -> Result<u32, Code> {
    match domain {
        0 | 1 => Ok(model.sm_clock_mhz),
        2 => Ok(model.mem_clock_mhz),
        3 => Ok(model.sm_clock_mhz * 9 / 10),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Properties of a model that the catalogue lacks.
pub(crate) struct Traits {
    /// `nvmlBrandType_t`
    pub(crate) brand: u32,
    /// `nvmlDeviceArchitecture_t`
    pub(crate) architecture: u32,
    /// Fans that NVML reports; modules are cooled by their chassis.
    pub(crate) fans: u32,
    /// NVLink connections.
    pub(crate) links: u32,
    /// ECC can be switched.
    pub(crate) ecc: bool,
    pub(crate) serial: bool,
}

pub(crate) fn traits(model: &Model) -> Traits {
    let geforce = model.name.contains("GeForce");
    let rtx = model.name.contains("RTX");
    let (brand, fans) = match (geforce, rtx) {
        (true, _) => (5, 2),
        (_, true) => (13, 1),
        _ => (14, 0),
    };
    let (architecture, links) = match model.compute_capability {
        (8, 9) => (8, 0),
        (8, 0) => (7, 12),
        (8, _) => (7, 4),
        (9, _) => (9, 18),
        _ => (10, 0),
    };
    Traits {
        brand,
        architecture,
        fans,
        links,
        ecc: !geforce,
        serial: !geforce,
    }
}

/// Serial number: 13 digits of the UUID.
pub(crate) fn serial(gpu: &GpuSnapshot) -> String {
    let number = gpu.uuid_bytes.iter().fold(0u64, |all, byte| {
        all.wrapping_mul(257).wrapping_add(u64::from(*byte))
    });
    format!("{:013}", number % 10_000_000_000_000)
}
