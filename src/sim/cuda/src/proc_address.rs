//! `cuGetProcAddress`: finds a function's address by its base name, a CUDA version and the kind of default stream.

use std::ffi::c_char;

use crate::code::{CUresult, INVALID_VALUE, NOT_FOUND, R};
use crate::device;
use crate::ffi::{In, Out, plain};
use crate::table::{Row, TABLE};

const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;

const FOUND: u32 = 0;
const NO_SUCH_SYMBOL: u32 = 1;
const VERSION_TOO_LOW: u32 = 2;

/// The row of a base name: the newest that `version` and the driver's own version cover. A program that wants
/// per-thread streams gets only the twins of functions that have twins, even though the twins are newer.
fn find(name: &str, version: i32, per_thread: bool) -> Result<&'static Row, u32> {
    let driver = device::version();
    let rows = TABLE
        .iter()
        .filter(|r| r.base == name && r.version <= driver);
    let twin = per_thread && rows.clone().any(|r| r.per_thread);
    let mut known = false;
    let mut best: Option<&Row> = None;
    for row in rows {
        known = true;
        let fits = row.version <= version && row.per_thread == twin;
        if fits && best.is_none_or(|b| row.generation > b.generation) {
            best = Some(row);
        }
    }
    best.ok_or(if known {
        VERSION_TOO_LOW
    } else {
        NO_SUCH_SYMBOL
    })
}

fn resolve(symbol: In<c_char>, out: Out<u64>, version: i32, flags: u64) -> R<u32> {
    out.check()?;
    let name = symbol.string()?;
    if flags & !(LEGACY_STREAM | PER_THREAD_STREAM) != 0 {
        return Err(INVALID_VALUE);
    }
    match find(&name, version, flags & PER_THREAD_STREAM != 0) {
        Ok(row) => {
            out.set(row.address as usize as u64)?;
            Ok(FOUND)
        }
        Err(status) => {
            out.set(0)?;
            Ok(status)
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetProcAddress_v2(
    symbol: In<c_char>,
    out: Out<u64>,
    version: i32,
    flags: u64,
    status: Out<u32>,
) -> CUresult {
    plain(|| {
        let found = resolve(symbol, out, version, flags)?;
        status.set_if(found);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetProcAddress(
    symbol: In<c_char>,
    out: Out<u64>,
    version: i32,
    flags: u64,
) -> CUresult {
    plain(|| match resolve(symbol, out, version, flags)? {
        FOUND => Ok(()),
        _ => Err(NOT_FOUND),
    })
}
