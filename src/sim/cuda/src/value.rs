//! Waits for a value in memory and writes of one. They run when their stream comes to them, on a thread of their own as
//! host functions do.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::callback::Host;
use crate::code::{INVALID_VALUE, NOT_SUPPORTED, R};
use crate::driver::{self, Driver, Tables};
use crate::ffi::{In, export_stream};
use crate::memory::Kind;
use crate::op::{Op, Place};

/// `CUstreamBatchMemOpType`.
const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;
const BARRIER: u32 = 6;
/// More operations do not fit in one call.
const MOST: u32 = 255;
const POLL: Duration = Duration::from_micros(20);

/// `CUstreamBatchMemOpParams`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Value {
    kind: u32,
    addr: u64,
    value: u64,
    /// The condition of a wait (`CUstreamWaitValue_flags`).
    flags: u32,
    internal: [u64; 2],
}

const _: () = assert!(size_of::<Value>() == 48);

impl Value {
    fn new(kind: u32, addr: u64, value: u64, flags: u32) -> Value {
        Value {
            kind,
            addr,
            value,
            flags,
            internal: [0; 2],
        }
    }

    fn is_wide(&self) -> bool {
        matches!(self.kind, WAIT_64 | WRITE_64)
    }

    fn check(&self, t: &Tables) -> R {
        match (self.kind, self.flags) {
            (WAIT_32 | WAIT_64, 0..=3) | (WRITE_32 | WRITE_64, 0) => {}
            (WAIT_32 | WRITE_32 | WAIT_64 | WRITE_64, _) => return Err(INVALID_VALUE),
            _ => return Err(NOT_SUPPORTED),
        }
        let managed = t.memory.find(self.addr);
        let managed = managed.is_some_and(|(_, alloc)| alloc.kind == Kind::Managed);
        match !managed && self.addr.is_multiple_of(self.bytes()) && self.reaches(t) {
            true => Ok(()),
            false => Err(INVALID_VALUE),
        }
    }

    fn bytes(&self) -> u64 {
        if self.is_wide() { 8 } else { 4 }
    }

    fn reaches(&self, t: &Tables) -> bool {
        t.memory.covers(self.addr, self.bytes())
    }

    /// Returns when it is done.
    pub(crate) fn run(self) {
        while let Ok(d) = driver::get()
            && !self.is_done(&d.tables())
        {
            std::thread::sleep(POLL);
        }
    }

    /// Writes, or tells whether the condition of a wait holds; also true if the program has freed the memory.
    fn is_done(&self, t: &Tables) -> bool {
        if !self.reaches(t) {
            return true;
        }
        let narrow = self.addr as *mut u32;
        let wide = self.addr as *mut u64;
        // SAFETY: aligned, mapped, and not unmapped while the tables are locked.
        let seen = unsafe {
            match self.kind {
                WRITE_32 => AtomicU32::from_ptr(narrow).store(self.value as u32, Ordering::SeqCst),
                WRITE_64 => AtomicU64::from_ptr(wide).store(self.value, Ordering::SeqCst),
                _ => {}
            }
            match self.is_wide() {
                true => AtomicU64::from_ptr(wide).load(Ordering::SeqCst),
                false => u64::from(AtomicU32::from_ptr(narrow).load(Ordering::SeqCst)),
            }
        };
        if matches!(self.kind, WRITE_32 | WRITE_64) {
            return true;
        }
        let all = u64::MAX >> (64 - 8 * self.bytes());
        let value = self.value & all;
        match self.flags {
            // As signed numbers of this width, so that the comparison is cyclic.
            0 => seen.wrapping_sub(value) & (all / 2 + 1) == 0,
            1 => seen == value,
            2 => seen & value != 0,
            _ => !(seen | value) & all != 0,
        }
    }
}

impl Driver {
    fn push_values(&self, stream: u64, list: &[Value]) -> R {
        let s = self.op_stream(stream)?;
        self.forbid_capture(s)?;
        // Work of a stream is in order anyway.
        let list = list.iter().filter(|value| value.kind != BARRIER);
        {
            let t = self.tables();
            list.clone().try_for_each(|value| value.check(&t))?;
        }
        for value in list {
            self.push(&Place::Stream(s), Op::Host(Host::Value(*value)))?;
        }
        Ok(())
    }
}

export_stream! {
    cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz(
        ; stream, addr: u64, value: u32, flags: u32
    ) |d| d.push_values(stream, &[Value::new(WAIT_32, addr, value.into(), flags)]);
    cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz(
        ; stream, addr: u64, value: u64, flags: u32
    ) |d| d.push_values(stream, &[Value::new(WAIT_64, addr, value, flags)]);
    cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz(
        ; stream, addr: u64, value: u32, flags: u32
    ) |d| d.push_values(stream, &[Value::new(WRITE_32, addr, value.into(), flags)]);
    cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz(
        ; stream, addr: u64, value: u64, flags: u32
    ) |d| d.push_values(stream, &[Value::new(WRITE_64, addr, value, flags)]);
    cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz(
        ; stream, many: u32, list: In<Value>, flags: u32
    ) |d| {
        if many > MOST || flags != 0 {
            return Err(INVALID_VALUE);
        }
        d.push_values(stream, &list.list(many as usize)?)
    };
}
