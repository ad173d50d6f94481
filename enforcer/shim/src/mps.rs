//! Clients of MPS: their part of the SMs is in the environment before the driver looks there, and what they
//! really got is read back.

use std::{
    ffi::{CStr, c_char},
    sync::atomic::Ordering,
};

use crate::{cuda::SUCCESS, driver, join::Joined, process::Process};

const VARIABLE: &[u8] = b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=";
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`.
const MULTIPROCESSOR_COUNT: i32 = 16;
const MPS_ENABLED: i32 = 133;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Puts the claim's present part of the SMs in the place of the one that the launcher left in the
/// environment: a program that was started by an older one of the claim has that one's. The text keeps its
/// length, so nothing is allocated and nobody's pointer into the environment changes.
pub(crate) fn before_init(joined: &Joined) {
    let words = joined
        .seats
        .iter()
        .map(|(_, seat)| seat.limits.mps_percentage_milli.load(Ordering::Relaxed));
    let Some(thousandths) = words.filter(|n| *n > 0).min() else {
        return;
    };
    let text = format!("{:09.5}", f64::from(thousandths) / 1000.0);
    // SAFETY: the C library's own list, which ends in a null pointer; entries are strings that end in NUL. A
    // program that changes its environment in another thread meanwhile races with the driver as well.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let have = CStr::from_ptr(*entry).to_bytes();
            if have.starts_with(VARIABLE) && have.len() == VARIABLE.len() + text.len() {
                let value = (*entry).add(VARIABLE.len()).cast::<u8>();
                value.copy_from_nonoverlapping(text.as_ptr(), text.len());
            }
            entry = entry.add(1);
        }
    }
}

/// Notes for the service how many SMs the driver shows, where this process is a client.
pub(crate) fn after_init(process: &Process) {
    let Some(ask) = driver::helpers().device_attribute else {
        return;
    };
    let attribute = |device, number| {
        let mut value = 0;
        // SAFETY: `value` is valid for the result.
        (unsafe { ask(&raw mut value, number, device) } == SUCCESS).then_some(value)
    };
    for (device, gpu) in process.devices() {
        let client = attribute(device, MPS_ENABLED) == Some(1);
        let sms = attribute(device, MULTIPROCESSOR_COUNT).filter(|_| client);
        if let (Some(sms), Some(gpu)) = (sms, process.gpus.get(gpu)) {
            gpu.note_mps(u64::try_from(sms).unwrap_or(0));
        }
    }
}
