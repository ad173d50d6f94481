//! Stream-ordered memory and its pools.

use super::memory::{after_sync, free_by};
use crate::{
    capture::is_captured,
    cuda::{CuResult, Device, DevicePtr, Handle, NOT_PERMITTED, PlacedProps, SUCCESS},
    driver, events, gate,
    ledger::Refusal,
    live::{Family, Live},
    pools::{Asked, PoolTicket},
    process::{self, Process},
};

/// The GPU of a stream, and the current context.
fn place(process: &Process, stream: Handle) -> Option<(usize, Handle)> {
    let (here, context) = process.here()?;
    // 0, 1 and 2 are the default streams of the current context.
    if stream > 2 && process.gpus.len() > 1 {
        let mut device: Device = -1;
        let ask = driver::helpers().stream_device;
        // SAFETY: the program's own stream, and a valid place for the result.
        let known = ask.is_some_and(|ask| unsafe { ask(stream, &raw mut device) } == SUCCESS);
        if known {
            return Some((process.gpu_of_device(device)?, context));
        }
        // Older drivers only tell its context.
        let of = events::context_named(stream);
        if let Some(gpu) = of.and_then(|of| process.contexts.gpu(of)) {
            return Some((gpu, context));
        }
    }
    Some((here, context))
}

/// The current pool of a device's allocations.
fn pool_of(process: &Process, gpu: usize) -> Option<Handle> {
    let ask = driver::helpers().device_pool?;
    let device = process.device_of_gpu(gpu)?;
    let mut pool: Handle = 0;
    // SAFETY: `pool` is valid for the result.
    let result = unsafe { ask(&raw mut pool, device) };
    (result == SUCCESS && pool != 0).then_some(pool)
}

/// Charges an allocation in the current context, if it is the claim's to charge.
fn ask(
    process: &'static Process,
    pool: Option<Handle>,
    stream: Handle,
    bytes: u64,
    ticket: &mut PoolTicket,
) -> Result<Option<Handle>, CuResult> {
    let Some((here, context)) = place(process, stream) else {
        return Ok(None);
    };
    let Some(handle) = pool.or_else(|| pool_of(process, here)) else {
        return Ok(None);
    };
    process.keep_up();
    let mut asked = process.reserve_in_pool(handle, here, bytes, false, ticket);
    if let Err(Refusal::AtCap { .. }) = asked {
        process.squeeze_pools(ticket.gpu);
        asked = process.reserve_in_pool(handle, here, bytes, true, ticket);
    }
    match asked {
        Ok(Asked::Charged) => Ok(Some(context)),
        Ok(Asked::Free) => Ok(None),
        Ok(Asked::NotGranted) => Err(process.not_granted()),
        Err(refusal) => Err(process.refuse(ticket.gpu, refusal, bytes)),
    }
}

fn allocate(
    pool: Option<Handle>,
    stream: Handle,
    bytes: u64,
    make: impl FnOnce() -> (CuResult, u64),
) -> CuResult {
    let mut ticket = PoolTicket::default();
    let asked = process::with(|process| ask(process, pool, stream, bytes, &mut ticket));
    match asked {
        Some(Err(code)) => code,
        None | Some(Ok(None)) => make().0,
        Some(Ok(Some(context))) => {
            let (result, pointer) = make();
            let made = result == SUCCESS && pointer != 0;
            let code = process::with(|process| {
                match process.settle_in_pool(&mut ticket, bytes, made) {
                    Ok(pool) if made => {
                        let live = Live {
                            bytes,
                            gpu: ticket.gpu,
                            context,
                            family: Family::Pool(pool),
                        };
                        process.remember(pointer, live);
                        result
                    }
                    Ok(_) => result,
                    Err(refusal) => {
                        if let Some(free) = driver::helpers().mem_free_async {
                            // SAFETY: the driver gave this pointer a moment ago for this stream,
                            // and nobody else has it.
                            unsafe { free(pointer, stream) };
                        }
                        process.squeeze_pools(ticket.gpu);
                        process.refuse(ticket.gpu, refusal, bytes)
                    }
                }
            });
            code.unwrap_or(result)
        }
    }
}

pub(crate) unsafe fn alloc_async(
    original: unsafe extern "C" fn(*mut DevicePtr, usize, Handle) -> CuResult,
    pointer: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(pointer, bytes, stream) };
    if pointer.is_null() || bytes == 0 || is_captured(stream) {
        return call();
    }
    // SAFETY: read only after the driver has written there.
    let make = || (call(), unsafe { *pointer });
    allocate(None, stream, bytes as u64, make)
}

pub(crate) unsafe fn alloc_from_pool(
    original: unsafe extern "C" fn(*mut DevicePtr, usize, Handle, Handle) -> CuResult,
    pointer: *mut DevicePtr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(pointer, bytes, pool, stream) };
    if pointer.is_null() || bytes == 0 || pool == 0 || is_captured(stream) {
        return call();
    }
    // SAFETY: read only after the driver has written there.
    let make = || (call(), unsafe { *pointer });
    allocate(Some(pool), stream, bytes as u64, make)
}

pub(crate) unsafe fn free_async(
    original: unsafe extern "C" fn(DevicePtr, Handle) -> CuResult,
    pointer: DevicePtr,
    stream: Handle,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(pointer, stream) };
    if is_captured(stream) {
        return call();
    }
    free_by(pointer, call)
}

pub(crate) unsafe fn create(
    original: unsafe extern "C" fn(*mut Handle, *const PlacedProps) -> CuResult,
    pool: *mut Handle,
    props: *const PlacedProps,
) -> CuResult {
    // SAFETY: NULL, or the caller's properties, whose start this is.
    let device = unsafe { props.as_ref() }.and_then(PlacedProps::device);
    let foreign = |process: &Process| device.is_some_and(|device| process.is_foreign(device));
    if process::with(foreign) == Some(true) {
        return NOT_PERMITTED;
    }
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(pool, props) };
    if result == SUCCESS && !pool.is_null() {
        // SAFETY: the driver has just written there.
        let handle = unsafe { *pool };
        process::with(|process| {
            let gpu = device.and_then(|device| process.gpu_of_device(device));
            process.pool_created(handle, gpu);
        });
    }
    result
}

pub(crate) unsafe fn destroy(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    pool: Handle,
) -> CuResult {
    let marked = process::with(|process| process.pool_ends(pool)).flatten();
    // SAFETY: the caller's own argument.
    let result = unsafe { original(pool) };
    if let Some(id) = marked {
        process::with(|process| process.pool_ended(id, result == SUCCESS));
    }
    result
}

pub(crate) unsafe fn trim(
    original: unsafe extern "C" fn(Handle, usize) -> CuResult,
    pool: Handle,
    keep: usize,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { original(pool, keep) };
    if result == SUCCESS {
        process::with(Process::refresh_pools);
    }
    result
}

fn before_sync() {
    if let Some(process) = process::current() {
        gate::awaits(process);
    }
}

/// Waits for a stream, an event or a context.
pub(crate) unsafe fn sync_handle(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    handle: Handle,
) -> CuResult {
    before_sync();
    // SAFETY: the caller's own argument.
    let result = unsafe { original(handle) };
    after_sync(result);
    result
}

/// Waits for the current context.
pub(crate) unsafe fn sync(original: unsafe extern "C" fn() -> CuResult) -> CuResult {
    before_sync();
    // SAFETY: no arguments.
    let result = unsafe { original() };
    after_sync(result);
    result
}
