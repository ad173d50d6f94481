//! A GPU's memory errors, clocks and faults, beside its load.

use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use super::sys;

/// Errors and repairs change slowly, and reading them takes time.
const EVERY: Duration = Duration::from_secs(2);
/// Maximum number of newest Xids in a reading.
const KEPT: usize = 16;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION` of nvml.h.
const RECOVERY_ACTION: u32 = 230;
/// NVML's number for an unknown Xid.
const UNKNOWN_XID: u64 = 999;

/// An error that the driver reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    /// When it was read.
    pub at: Instant,
    /// Its number; 999 for one that NVML does not know.
    pub code: u64,
}

/// Replaced memory rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remapped {
    /// After corrected errors.
    pub corrected: u32,
    /// After uncorrected errors.
    pub uncorrected: u32,
    /// A replacement waits for a reset.
    pub pending: bool,
    /// A replacement failed.
    pub failed: bool,
}

/// Observed health of a GPU. Unreported figures are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// The last Xids from NVML's events, oldest first.
    pub xids: Vec<Xid>,
    /// Corrected memory errors since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Uncorrected ones.
    pub ecc_uncorrected: Option<u64>,
    /// Replaced rows.
    pub remapped: Option<Remapped>,
    /// Bits of `nvmlDeviceGetCurrentClocksEventReasons`.
    pub clock_reasons: Option<u64>,
    /// Recovery action according to the driver: 0 nothing, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset.
    pub recovery: Option<u64>,
}

impl Seen {
    /// Keeps the errors and drops the measurements of a GPU that does not answer any more.
    pub(super) fn forget(&mut self) {
        self.clock_reasons = None;
        self.recovery = None;
    }
}

/// State between polls.
#[derive(Default)]
pub(super) struct Watch<'nvml> {
    events: Option<EventSet<'nvml>>,
    /// Registration was tried with this device handle.
    tried: bool,
    looked: Option<Instant>,
}

impl<'nvml> Watch<'nvml> {
    /// The device has changed or was lost: events must be registered again.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Reads new figures. After a failure a figure is absent: other calls tell whether the GPU is lost.
    pub(super) fn look(&mut self, nvml: &'nvml Nvml, device: &Device<'nvml>, seen: &mut Seen) {
        self.events(nvml, device, seen);
        seen.clock_reasons = device.current_throttle_reasons().ok().map(|r| r.bits());
        if self.looked.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        let errors = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
        seen.ecc_corrected = errors(MemoryError::Corrected);
        seen.ecc_uncorrected = errors(MemoryError::Uncorrected);
        seen.remapped = sys::remapped_rows(device);
        let fields = device.field_values_for(&[FieldId(RECOVERY_ACTION)]).ok();
        let sample = fields.and_then(|f| f.into_iter().next()?.ok());
        seen.recovery = sample.and_then(|s| match s.value.ok()? {
            SampleValue::U32(n) => Some(u64::from(n)),
            SampleValue::U64(n) => Some(n),
            _ => None,
        });
    }

    /// Reads pending events without waiting.
    fn events(&mut self, nvml: &'nvml Nvml, device: &Device<'nvml>, seen: &mut Seen) {
        if !self.tried {
            self.tried = true;
            let set = nvml.create_event_set().ok();
            self.events = set.and_then(|s| {
                let wanted = device.supported_event_types().ok()? & EventTypes::CRITICAL_XID_ERROR;
                (!wanted.is_empty()).then(|| device.register_events(wanted, s).ok())?
            });
        }
        let Some(set) = &self.events else { return };
        // Bounded: a failing GPU may raise them as fast as they are read.
        for _ in 0..KEPT {
            let Ok(event) = set.wait(0) else { break };
            let code = match event.event_data {
                Some(XidError::Value(code)) => code,
                Some(XidError::Unknown) => UNKNOWN_XID,
                None => continue,
            };
            seen.xids.push(Xid {
                at: Instant::now(),
                code,
            });
        }
        let surplus = seen.xids.len().saturating_sub(KEPT);
        seen.xids.drain(..surplus);
    }
}
