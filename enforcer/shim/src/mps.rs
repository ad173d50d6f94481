//! MPS clients: their part of the SMs and of the memory is put into the environment before the driver reads it, and the
//! actual values are read back.

use std::sync::atomic::Ordering;

use crate::{cuda::SUCCESS, driver, environment::replace, join::Joined, process::Process};

const PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const PINNED: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`.
const MULTIPROCESSOR_COUNT: i32 = 16;
const MPS_ENABLED: i32 = 133;

/// Replaces the launcher's values with the claim's present part of the SMs and of the memory: a program started by an
/// older program of the claim inherits that one's values.
pub(crate) fn before_init(joined: &Joined) {
    let limits = || joined.seats.iter().map(|(_, seat)| &seat.limits);
    let least = |words: &mut dyn Iterator<Item = u32>| words.filter(|n| *n > 0).min();
    let load = |word: &std::sync::atomic::AtomicU32| word.load(Ordering::Relaxed);
    if let Some(n) = least(&mut limits().map(|l| load(&l.mps_percentage_milli))) {
        replace(PERCENTAGE, &format!("{:09.5}", f64::from(n) / 1000.0));
    }
    // The daemon has one GPU.
    if let Some(mib) = least(&mut limits().map(|l| load(&l.mps_pinned_mib))) {
        replace(PINNED, &format!("0={mib}M"));
    }
}

/// Notes for the service how many SMs the driver shows, if this process is an MPS client.
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
