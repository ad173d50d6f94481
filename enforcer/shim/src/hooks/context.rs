//! Contexts take memory that no allocation shows. Each is charged the overhead in the claim's page before it is made;
//! stack, local memory and heap above the driver's defaults are charged before they are taken.

use std::{ffi::c_void, sync::atomic::Ordering};

use super::launch::let_through;
use crate::{
    contexts::{Contexts, Needs},
    cuda::{CuResult, Device, Handle, NOT_PERMITTED, SUCCESS},
    driver, gate,
    gpu::Gpu,
    grid,
    process::{self, Process},
    reservation::Reservation,
    say,
    work::Work,
};

/// `CU_LIMIT_STACK_SIZE`, `CU_LIMIT_MALLOC_HEAP_SIZE`.
const STACK: i32 = 0;
const HEAP: i32 = 2;

/// Changes the memory that the driver holds for the current context, and its charge; returns the previous needs.
/// Smaller values are ignored unless `shrinks`. `None` if the context is not the claim's.
fn hold(
    process: &Process,
    shrinks: bool,
    change: impl FnOnce(&mut Needs),
) -> Option<Result<Needs, CuResult>> {
    let (index, context) = process.here()?;
    let gpu = &process.gpus[index];
    let mut needs = process.contexts.needs(context)?;
    let before = *needs;
    let mut after = before;
    change(&mut after);
    let threads = grid::resident_threads(gpu)?;
    let bytes = |needs: &Needs| gpu.rounded(needs.beyond(threads));
    let (had, has) = (bytes(&before), bytes(&after));
    if has < had && !shrinks {
        return Some(Ok(before));
    }
    let (more, less) = (has.saturating_sub(had), had.saturating_sub(has));
    let grown = gpu.ledger().grow(more);
    if let Err(refusal) = grown {
        drop(needs);
        return Some(Err(process.refuse(index, refusal, more)));
    }
    let mut ledger = gpu.ledger();
    ledger.context_born(more);
    ledger.context_died(less);
    drop(ledger);
    let contexts = &process.contexts;
    contexts.set_overhead(context, |bytes| {
        bytes.saturating_add(more).saturating_sub(less)
    });
    *needs = after;
    Some(Ok(before))
}

/// The stack is allocated for every thread that can be resident: 16 KiB take 4 GiB on an H100.
pub(crate) unsafe fn set_limit(
    original: unsafe extern "C" fn(i32, usize) -> CuResult,
    limit: i32,
    value: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || let_through(0, || unsafe { original(limit, value) });
    let change = |needs: &mut Needs| match limit {
        STACK => needs.stack = value as u64,
        HEAP => needs.heap = value as u64,
        _ => {}
    };
    if ![STACK, HEAP].contains(&limit) {
        return call();
    }
    match process::with(|process| hold(process, false, change)).flatten() {
        None => call(),
        Some(Err(code)) => code,
        Some(Ok(before)) => {
            let result = call();
            process::with(|process| {
                hold(process, true, |needs| {
                    change(needs);
                    if result != SUCCESS {
                        *needs = before;
                    }
                })
            });
            result
        }
    }
}

/// Charges the local memory of a kernel or graph at its first launch. An error is the code for the program.
#[cold]
pub(super) fn charge_local(process: &Process, gpu: &Gpu, work: &Work) -> Result<(), CuResult> {
    if gpu.tally.known(work.key).is_some() {
        return Ok(());
    }
    let take = || {
        let local = work.local_bytes(process);
        let local = local.filter(|bytes| *bytes > Needs::LEAST.stack)?;
        hold(process, false, |needs| needs.local = needs.local.max(local))
    };
    let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(take));
    taken.ok().flatten().unwrap_or(Ok(Needs::LEAST)).map(drop)
}

/// Whether a device's primary context exists now; `None` if the driver does not tell.
fn primary_exists(device: Device) -> Option<bool> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both places are valid for the results.
    let result =
        unsafe { driver::helpers().primary_state?(device, &raw mut flags, &raw mut active) };
    (result == SUCCESS).then_some(active != 0)
}

/// Charges a context's overhead on a device; returns the GPU's index and the charge. An error is the code for the
/// program. `None` for an invalid device number, which the driver reports itself.
fn charge(
    process: &'static Process,
    device: Device,
) -> Option<Result<(usize, Reservation), CuResult>> {
    if process.is_foreign(device) {
        say::line(&format!(
            "device {device} (as this process counts GPUs) is not part of claim {}",
            process.name
        ));
        return Some(Err(NOT_PERMITTED));
    }
    let index = process.gpu_of_device(device)?;
    process.keep_up();
    let gpu = &process.gpus[index];
    if !gpu.granted() {
        return Some(Err(process.not_granted()));
    }
    let overhead = gpu.limits().context_overhead_bytes.load(Ordering::Relaxed);
    let charged = Reservation::charge(gpu, overhead);
    let charged = charged.map_err(|refusal| process.refuse(index, refusal, overhead));
    Some(charged.map(|charged| (index, charged)))
}

/// Runs `make`, which makes a context on the device and returns it, with the overhead charged.
fn charged(
    device: Device,
    primary: bool,
    known: impl FnOnce() -> bool,
    make: impl FnOnce() -> (CuResult, Handle),
) -> CuResult {
    let charge = process::with(|process| match known() {
        true => None,
        false => charge(process, device),
    })
    .flatten();
    match charge {
        Some(Err(code)) => code,
        Some(Ok((index, mut charge))) => {
            let (result, context) = make();
            let overhead = charge.charged();
            process::with(|process| {
                if result == SUCCESS && process.contexts.insert(context, index, overhead, primary) {
                    process.gpus[index].ledger().context_born(overhead);
                    charge.keep();
                }
            });
            result
        }
        None => make().0,
    }
}

pub(crate) unsafe fn primary_retain(
    original: unsafe extern "C" fn(*mut Handle, Device) -> CuResult,
    context: *mut Handle,
    device: Device,
) -> CuResult {
    // An existing context is charged already, unless the process joined late.
    let known = || primary_exists(device) == Some(true);
    charged(device, true, known, || {
        // SAFETY: the caller's own arguments.
        let result = unsafe { original(context, device) };
        let made = result == SUCCESS && !context.is_null();
        // SAFETY: the driver has just written there.
        let context = if made { unsafe { *context } } else { 0 };
        // The first retain is not counted here: the context is not known yet.
        process::with(|process| process.contexts.retained(context));
        (result, context)
    })
}

pub(crate) unsafe fn primary_release(
    original: unsafe extern "C" fn(Device) -> CuResult,
    device: Device,
) -> CuResult {
    // SAFETY: the caller's own argument.
    primary_end(device, Contexts::released, || unsafe { original(device) })
}

pub(crate) unsafe fn primary_reset(
    original: unsafe extern "C" fn(Device) -> CuResult,
    device: Device,
) -> CuResult {
    // SAFETY: the caller's own argument.
    primary_end(device, |_, _| true, || unsafe { original(device) })
}

/// Runs `call`, which may end a device's primary context, according to `ends`. Otherwise work on the GPU is not waited
/// for: it may depend on what this very thread does next.
fn primary_end(
    device: Device,
    ends: fn(&Contexts, Handle) -> bool,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let primary = |process: &'static Process| {
        let index = process.gpu_of_device(device)?;
        Some((index, process.contexts.primary(index)?))
    };
    let goes_on = process::with(|process| {
        let (index, context) = primary(process)?;
        if ends(&process.contexts, context) {
            gate::forget_context(&process.gpus[index], context);
            return None;
        }
        Some(context)
    });
    let result = call();
    process::with(|process| match goes_on.flatten() {
        Some(context) if result != SUCCESS => process.contexts.retained(context),
        _ if result == SUCCESS && primary_exists(device) == Some(false) => {
            if let Some((_, context)) = primary(process) {
                process.drop_context(context);
            }
        }
        _ => {}
    });
    result
}

/// A green context retains the primary one of its device.
pub(crate) unsafe fn green_create(
    original: unsafe extern "C" fn(*mut Handle, Handle, Device, u32) -> CuResult,
    green: *mut Handle,
    part: Handle,
    device: Device,
    flags: u32,
) -> CuResult {
    let known = || primary_exists(device) == Some(true);
    charged(device, true, known, || {
        // SAFETY: the caller's own arguments.
        let result = unsafe { original(green, part, device, flags) };
        // SAFETY: NULL, or the driver has just written there.
        let green = unsafe { green.as_ref() }.filter(|_| result == SUCCESS);
        let Some(green) = green else {
            return (result, 0);
        };
        let primary = primary_of(device).unwrap_or(0);
        process::with(|process| {
            // As in `primary_retain`.
            process.contexts.retained(primary);
            process.contexts.add_green(*green, device);
        });
        (result, primary)
    })
}

/// The last green context of a device may be the last reference to its primary one.
pub(crate) unsafe fn green_destroy(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    green: Handle,
) -> CuResult {
    // SAFETY: the caller's own argument.
    let call = || unsafe { original(green) };
    let device = process::with(|process| process.contexts.remove_green(green));
    let Some(device) = device.flatten() else {
        return call();
    };
    let result = primary_end(device, Contexts::released, call);
    if result != SUCCESS {
        process::with(|process| process.contexts.add_green(green, device));
    }
    result
}

/// The primary context of a device on which one exists.
fn primary_of(device: Device) -> Option<Handle> {
    let (helpers, mut context) = (driver::helpers(), 0);
    let (retain, release) = (helpers.primary_retain?, helpers.primary_release?);
    // SAFETY: a valid place for the result; the reference is given back.
    let code = unsafe { retain(&raw mut context, device) };
    // SAFETY: as above.
    (code == SUCCESS && unsafe { release(device) } == SUCCESS).then_some(context)
}

macro_rules! create {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => {$(
        pub(crate) unsafe fn $name(
            original: unsafe extern "C" fn(*mut Handle, $($kind),*, Device) -> CuResult,
            context: *mut Handle,
            $($arg: $kind,)*
            device: Device,
        ) -> CuResult {
            let refused = || context.is_null();
            charged(device, false, refused, || {
                // SAFETY: the caller's own arguments.
                let result = unsafe { original(context, $($arg,)* device) };
                let made = result == SUCCESS && !context.is_null();
                // SAFETY: the driver has just written there.
                (result, if made { unsafe { *context } } else { 0 })
            })
        }
    )*};
}

create! {
    create(flags: u32);
    create_v3(affinity: *mut c_void, count: i32, flags: u32);
    create_v4(params: *mut c_void, flags: u32);
}

pub(crate) unsafe fn destroy(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    context: Handle,
) -> CuResult {
    process::with(|process| {
        if let Some(gpu) = process.contexts.gpu(context).filter(|_| context != 0) {
            gate::forget_context(&process.gpus[gpu], context);
        }
    });
    // SAFETY: the caller's own argument.
    let result = unsafe { original(context) };
    if result == SUCCESS {
        process::with(|process| process.drop_context(context));
    }
    result
}
