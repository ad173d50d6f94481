//! Event sets: Xid errors of the board.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gshare_sim_board::BoardSnapshot;

use crate::abi::{Handle, Out, export};
use crate::code::Code;
use crate::layout::{EventData, EventDataV1, NO_INSTANCE};
use crate::session::{self, device};

/// `nvmlEventTypeXidCriticalError`
const XID: u64 = 8;
/// Time between a waiter's reads of the board.
const POLL: Duration = Duration::from_millis(10);

/// Number of Xid events already seen, per device.
type Watch = HashMap<usize, u64>;

static SETS: Mutex<Option<HashMap<usize, Watch>>> = Mutex::new(None);

fn with_sets<R>(f: impl FnOnce(&mut HashMap<usize, Watch>) -> R) -> R {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    f(sets.get_or_insert_default())
}

fn with_set<R>(set: Handle, f: impl FnOnce(&mut Watch) -> R) -> Result<R, Code> {
    with_sets(|sets| sets.get_mut(&(set.0 as usize)).map(f)).ok_or(Code::INVALID_ARGUMENT)
}

/// The set's next event: device, Xid.
fn next(watch: &mut Watch, snapshot: &BoardSnapshot) -> Result<Option<(usize, u64)>, Code> {
    let mut lost = false;
    for (index, seen) in watch.iter_mut() {
        let Some(gpu) = snapshot.gpus.get(*index) else {
            continue;
        };
        lost |= gpu.lost;
        if gpu.xid_count > *seen {
            // The board keeps only the latest events; older ones are lost.
            let kept = gpu.xids.len() as u64;
            let oldest = gpu.xid_count - kept;
            let number = (*seen).max(oldest);
            *seen = number + 1;
            if let Some(xid) = gpu.xids.get((number - oldest) as usize) {
                return Ok(Some((*index, xid.code)));
            }
        }
    }
    if lost {
        Err(Code::GPU_IS_LOST)
    } else {
        Ok(None)
    }
}

fn wait(set: Handle, timeout_ms: u32) -> Result<(usize, u64), Code> {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        let snapshot = session::snapshot()?;
        if let Some(found) = with_set(set, |watch| next(watch, &snapshot))?? {
            return Ok(found);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Code::TIMEOUT);
        }
        std::thread::sleep(left.min(POLL));
    }
}

fn raw(index: usize) -> *mut c_void {
    session::handle(index).0
}

export! {
    fn nvmlEventSetCreate(out: Out<Handle>) {
        session::board()?;
        if out.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let address = Box::into_raw(Box::new(0u8));
        with_sets(|sets| sets.insert(address as usize, Watch::new()));
        out.set(Handle(address.cast()))
    }
    fn nvmlEventSetFree(set: Handle) {
        with_sets(|sets| sets.remove(&(set.0 as usize))).ok_or(Code::INVALID_ARGUMENT)?;
        // SAFETY: the table contained it, so nvmlEventSetCreate made it and it was not freed.
        drop(unsafe { Box::from_raw(set.0.cast::<u8>()) });
        Ok(())
    }
    fn nvmlDeviceGetSupportedEventTypes(handle: Handle, out: Out<u64>) {
        device(handle)?;
        out.set(XID)
    }
    fn nvmlDeviceRegisterEvents(handle: Handle, types: u64, set: Handle) {
        let device = device(handle)?;
        if types & !XID != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        if types == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let seen = device.gpu().xid_count;
        with_set(set, |watch| {
            watch.entry(device.index).or_insert(seen);
        })
    }
    fn nvmlEventSetWait(set: Handle, out: Out<EventDataV1>, timeout_ms: u32) {
        let (index, event_data) = wait(set, timeout_ms)?;
        out.set(EventDataV1 { device: raw(index), event_type: XID, event_data })
    }
    fn nvmlEventSetWait_v2(set: Handle, out: Out<EventData>, timeout_ms: u32) {
        let (index, event_data) = wait(set, timeout_ms)?;
        out.set(EventData {
            device: raw(index),
            event_type: XID,
            event_data,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
        })
    }
}
