//! Plain, pitched and managed memory.

use std::sync::atomic::Ordering;

use gshare_abi::USES_MANAGED;

use crate::{
    blocks::NO_HEAP,
    cuda::{CuResult, DevicePtr, Handle, SUCCESS, Width},
    driver,
    ledger::{Charge, Refusal},
    live::{Family, Live},
    process::{self, Process},
    reservation::Reservation,
};

/// An allocation that is charged and not yet made. Filled and read in place, like a [`Reservation`].
#[derive(Default)]
struct Asked {
    gpu: usize,
    context: Handle,
    heap: u64,
    reservation: Reservation,
}

/// Reserves on one of the claim's GPUs; returns the program's code after a refusal.
pub(crate) fn ask(
    process: &'static Process,
    index: usize,
    heap: u64,
    bytes: u64,
    reservation: &mut Reservation,
) -> Result<(), CuResult> {
    process.keep_up();
    let gpu = &process.gpus[index];
    if !gpu.granted() {
        return Err(process.not_granted());
    }
    let first = match reservation.allocation(gpu, heap, bytes) {
        Ok(()) => return Ok(()),
        Err(refusal @ Refusal::SeatLost) => return Err(process.refuse(index, refusal, bytes)),
        Err(first) => first,
    };
    // Unused memory in the process's own pools counts as free, as it does for the driver.
    process.squeeze_pools(index);
    match reservation.allocation(gpu, heap, bytes) {
        Ok(()) => Ok(()),
        Err(Refusal::SeatLost) => Err(process.refuse(index, first, bytes)),
        Err(refusal) => Err(process.refuse(index, refusal, bytes)),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Device,
    /// Not packed with others.
    Apart,
}

/// `None` if the allocation is not the claim's to charge.
fn ask_here(kind: Kind, bytes: u64, asked: &mut Asked) -> Option<Result<(), CuResult>> {
    process::with(|process| {
        let (gpu, context) = process.here()?;
        asked.gpu = gpu;
        asked.context = context;
        asked.heap = match kind {
            Kind::Device => context as u64,
            Kind::Apart => NO_HEAP,
        };
        Some(ask(process, gpu, asked.heap, bytes, &mut asked.reservation))
    })
    .flatten()
}

/// The driver has allocated it: keeps the charge. `Err` is the program's code if the memory had to be freed again.
fn settle(asked: &mut Asked, pointer: u64, bytes: u64) -> Result<(), CuResult> {
    let settled = process::with(|process| {
        match asked.reservation.commit(asked.heap, pointer, bytes) {
            Ok(charge) => {
                let live = Live {
                    bytes,
                    gpu: asked.gpu,
                    context: asked.context,
                    family: Family::Plain(charge),
                };
                process.remember(pointer, live);
                Ok(())
            }
            Err(refusal) => {
                if let Some(free) = driver::helpers().mem_free {
                    // SAFETY: the driver gave this pointer a moment ago, and nobody else has it.
                    unsafe { free(pointer) };
                }
                Err(process.refuse(asked.gpu, refusal, bytes))
            }
        }
    });
    settled.unwrap_or(Ok(()))
}

/// Arguments that no known driver accepts go to the driver before the cap is checked: returns the driver's error, or
/// `None` if it accepts them after all. `undo` then frees the memory, which is allocated again under the cap.
pub(crate) fn judged(
    call: impl FnOnce() -> CuResult,
    made: impl FnOnce() -> u64,
    undo: Option<unsafe extern "C" fn(u64) -> CuResult>,
) -> Option<CuResult> {
    let code = call();
    if code != SUCCESS {
        return Some(code);
    }
    if let Some(undo) = undo {
        // SAFETY: the driver gave it a moment ago, and nobody else has it.
        let _ = unsafe { undo(made()) };
    }
    None
}

/// Runs `make`, which allocates and returns the pointer; `sized` returns the actual size.
fn allocate(
    kind: Kind,
    bytes: u64,
    make: impl FnOnce() -> (CuResult, u64),
    sized: impl FnOnce() -> u64,
) -> CuResult {
    let mut asked = Asked::default();
    match ask_here(kind, bytes, &mut asked) {
        None => make().0,
        Some(Err(code)) => code,
        Some(Ok(())) => {
            let (result, pointer) = make();
            if result != SUCCESS || pointer == 0 {
                return result;
            }
            settle(&mut asked, pointer, sized()).map_or_else(|code| code, |()| result)
        }
    }
}

pub(crate) unsafe fn alloc<P: Width, N: Width>(
    original: unsafe extern "C" fn(*mut P, N) -> CuResult,
    pointer: *mut P,
    bytes: N,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(pointer, bytes) };
    if pointer.is_null() || bytes.wide() == 0 {
        return call();
    }
    // SAFETY: read only after the driver has written there.
    let make = || (call(), unsafe { *pointer }.wide());
    allocate(Kind::Device, bytes.wide(), make, || bytes.wide())
}

/// Runs `make` with the bytes charged; it returns the driver's code and, on success, a substitute for the address and
/// the actual size.
pub(crate) fn take_unaddressed(
    bytes: u64,
    make: impl FnOnce() -> (CuResult, Option<(u64, u64)>),
) -> CuResult {
    let mut asked = Asked::default();
    match ask_here(Kind::Apart, bytes, &mut asked) {
        None => make().0,
        Some(Err(code)) => code,
        Some(Ok(())) => {
            let (result, made) = make();
            if let Some((key, bytes)) = made {
                process::with(|process| {
                    asked.reservation.commit_unaddressed(bytes);
                    let whole = process.gpus[asked.gpu].rounded(bytes);
                    let live = Live {
                        bytes,
                        gpu: asked.gpu,
                        context: asked.context,
                        family: Family::Plain(Charge::Own(whole)),
                    };
                    process.remember(key, live);
                });
            }
            result
        }
    }
}

/// Widest row alignment of today's GPUs, in bytes. The actual pitch is charged after the driver's answer.
const PITCH_BYTES: u64 = 512;

/// Valid element sizes for aligned rows.
const ELEMENTS: [u32; 3] = [4, 8, 16];
/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST`.
const ATTACH: [u32; 2] = [1, 2];

fn pitched(width: u64, height: u64) -> u64 {
    width
        .checked_next_multiple_of(PITCH_BYTES)
        .unwrap_or(u64::MAX)
        .saturating_mul(height)
}

pub(crate) unsafe fn alloc_pitch<P: Width, N: Width>(
    original: unsafe extern "C" fn(*mut P, *mut N, N, N, u32) -> CuResult,
    pointer: *mut P,
    pitch: *mut N,
    width: N,
    height: N,
    element: u32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(pointer, pitch, width, height, element) };
    let (width, height) = (width.wide(), height.wide());
    if pointer.is_null() || pitch.is_null() || width == 0 || height == 0 {
        return call();
    }
    // SAFETY: read only after the driver has written there.
    let made = || unsafe { *pointer }.wide();
    if !ELEMENTS.contains(&element)
        && let Some(code) = judged(call, made, driver::helpers().mem_free)
    {
        return code;
    }
    let make = || (call(), made());
    // SAFETY: asked only after success, when the driver has written there.
    let sized = || unsafe { *pitch }.wide().saturating_mul(height);
    allocate(Kind::Device, pitched(width, height), make, sized)
}

pub(crate) unsafe fn alloc_managed(
    original: unsafe extern "C" fn(*mut DevicePtr, usize, u32) -> CuResult,
    pointer: *mut DevicePtr,
    bytes: usize,
    flags: u32,
) -> CuResult {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(pointer, bytes, flags) };
    if pointer.is_null() || bytes == 0 {
        return call();
    }
    // SAFETY: read only after the driver has written there.
    let made = || unsafe { *pointer };
    if !ATTACH.contains(&flags)
        && let Some(code) = judged(call, made, driver::helpers().mem_free)
    {
        return code;
    }
    let make = || (call(), made());
    let result = allocate(Kind::Apart, bytes as u64, make, || bytes as u64);
    if result == SUCCESS {
        process::with(|process| {
            if let Some((gpu, _)) = process.here() {
                process.gpus[gpu].note(USES_MANAGED);
            }
        });
    }
    result
}

/// After a synchronisation a pool may have released memory that was freed before.
pub(super) fn after_sync(result: CuResult) {
    if result == SUCCESS
        && let Some(process) = process::current()
        && process.pools_changed.load(Ordering::Relaxed)
    {
        process::with(Process::refresh_pools);
    }
}

/// Runs `call`, which frees the pointer in some way. Unknown pointers are left to the driver.
pub(crate) fn free_by(pointer: u64, call: impl FnOnce() -> CuResult) -> CuResult {
    let known = process::with(|process| process.take(pointer)).flatten();
    let result = call();
    if let Some(live) = known {
        process::with(|process| {
            if result == SUCCESS {
                process.settle(pointer, &live);
            } else {
                process.remember(pointer, live);
            }
        });
    }
    result
}

pub(crate) unsafe fn free<P: Width>(
    original: unsafe extern "C" fn(P) -> CuResult,
    pointer: P,
) -> CuResult {
    // SAFETY: the caller's own argument.
    let result = free_by(pointer.wide(), || unsafe { original(pointer) });
    after_sync(result);
    result
}
