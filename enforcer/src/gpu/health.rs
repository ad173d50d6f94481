//! What a GPU says of its memory, its clocks and its errors beside its load.

use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use super::sys;

/// Errors and repairs change slowly, and a look at them costs.
const EVERY: Duration = Duration::from_secs(2);
/// Newest Xids that a reading has.
const KEPT: usize = 16;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION` of nvml.h.
const RECOVERY_ACTION: u32 = 230;
/// What NVML gives for an Xid that it does not know.
const UNKNOWN_XID: u64 = 999;

/// An error that the driver reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    /// When it was read.
    pub at: Instant,
    /// Its number; 999 for one that NVML does not know.
    pub code: u64,
}

/// Rows of memory that were replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remapped {
    /// After corrected errors.
    pub corrected: u32,
    /// After uncorrected ones.
    pub uncorrected: u32,
    /// A replacement waits for a reset.
    pub pending: bool,
    /// A replacement failed.
    pub failed: bool,
}

/// What was seen of a GPU's health. What it does not tell is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// The last Xids, oldest first, as NVML's events tell them.
    pub xids: Vec<Xid>,
    /// Memory errors that were corrected, since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Memory errors that were not.
    pub ecc_uncorrected: Option<u64>,
    /// Replaced rows.
    pub remapped: Option<Remapped>,
    /// Bits of `nvmlDeviceGetCurrentClocksEventReasons`.
    pub clock_reasons: Option<u64>,
    /// What the driver says that the GPU needs: 0 nothing, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset.
    pub recovery: Option<u64>,
}

impl Seen {
    /// Keeps the errors and drops what was measured, for a GPU that answers no more.
    pub(super) fn forget(&mut self) {
        self.clock_reasons = None;
        self.recovery = None;
    }
}

/// What must be remembered to look.
#[derive(Default)]
pub(super) struct Watch<'nvml> {
    events: Option<EventSet<'nvml>>,
    /// Registering was tried with this device handle.
    tried: bool,
    looked: Option<Instant>,
}

impl<'nvml> Watch<'nvml> {
    /// The device is another one, or lost: events must be asked for anew.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Brings what is known up to now. Failures leave figures absent: whether the GPU is lost is told by other calls.
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

    /// Takes the events that wait; none are waited for.
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
        // Bounded: a GPU in trouble may raise them as fast as they are read.
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
