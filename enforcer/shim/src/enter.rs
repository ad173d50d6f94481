//! How a process becomes a member.
//!
//! The service is asked before the driver is initialised: a process without access to the GPU then has a driver that
//! refuses everything. The devices are identified afterwards.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::atomic::Ordering,
};

use gshare_abi::CHOSE_DEVICES;

use crate::{
    cuda::{CuResult, NO_DEVICE, NOT_PERMITTED},
    environment,
    forked::{MARK, stage, wiped},
    held,
    join::{self, Joined, Standing},
    mps, paths,
    process::Process,
};

/// Registers this process, once; called before the driver is initialised. Waits for a claim that has no GPU yet.
///
/// # Errors
/// `CUDA_ERROR_NOT_PERMITTED` if it may not use the driver: it is in a claim that cannot count it.
/// `CUDA_ERROR_NO_DEVICE` if its claim gets no GPU now; the next call asks again.
pub(crate) fn enter() -> Result<(), CuResult> {
    let barred = Err(NOT_PERMITTED);
    let Some(page) = wiped() else {
        return if paths::strict() { barred } else { Ok(()) };
    };
    match page.begin(stage::STRANGER, stage::ASKING) {
        Ok(()) => {
            page.mark.store(MARK, Ordering::Release);
            let standing = catch_unwind(join::ask).unwrap_or(match paths::strict() {
                true => Standing::Barred,
                false => Standing::Open,
            });
            match standing {
                Standing::Member(joined) => {
                    environment::fill(&joined);
                    environment::translate(&joined);
                    mps::before_init(&joined);
                    page.answer
                        .store(Box::into_raw(joined).cast(), Ordering::Release);
                }
                Standing::Open => {}
                Standing::Barred => page.barred.store(true, Ordering::Release),
                Standing::Later => {
                    held::put_off(true);
                    page.reach(stage::STRANGER);
                    return Err(NO_DEVICE);
                }
            }
            held::put_off(false);
            page.reach(stage::ANSWERED);
        }
        Err(stage::ASKING) => {
            page.wait_through(stage::ASKING);
            if page.stage.load(Ordering::Acquire) == stage::STRANGER {
                return Err(NO_DEVICE);
            }
        }
        Err(_) => {}
    }
    if page.barred.load(Ordering::Acquire) {
        return barred;
    }
    Ok(())
}

/// The driver could not be initialised: reports it if the program itself hid the claim's GPUs.
pub(crate) fn in_vain() {
    let Some(page) = wiped() else { return };
    let answer = page.answer.load(Ordering::Acquire).cast::<Joined>();
    // SAFETY: null, or a box that only `settle` takes, after the driver was initialised.
    if let Some(joined) = unsafe { answer.as_ref() } {
        environment::chose_in_vain(&joined.name);
    }
}

/// Makes this process a member if the service has accepted it; called when the driver has been initialised.
pub(crate) fn settle() {
    let Some(page) = wiped() else { return };
    if page.begin(stage::ANSWERED, stage::SETTLING).is_err() {
        page.wait_through(stage::SETTLING);
        return;
    }
    let answer = page.answer.swap(ptr::null_mut(), Ordering::AcqRel);
    if !answer.is_null() {
        // SAFETY: came from a box, and the swap gave it to this thread alone.
        let answer = unsafe { Box::from_raw(answer.cast::<Joined>()) };
        if let Ok(process) = catch_unwind(|| Box::new(Process::new(*answer))) {
            let process = Box::leak(process);
            process.watch();
            if std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() {
                process.note(CHOSE_DEVICES);
            }
            if process.view.is_empty() {
                environment::chose_in_vain(&process.name);
            }
            let _ = catch_unwind(AssertUnwindSafe(|| mps::after_init(process)));
            page.process
                .store(ptr::from_ref(process).cast_mut().cast(), Ordering::Release);
            if let [gpu] = &process.gpus[..] {
                let gpu = ptr::from_ref(gpu).cast_mut();
                page.only_gpu.store(gpu.cast(), Ordering::Release);
            }
        }
    }
    page.reach(stage::SETTLED);
}
