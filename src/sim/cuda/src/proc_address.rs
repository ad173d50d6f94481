//! `cuGetProcAddress`: from a function's base name, a CUDA version and a kind of default stream to
//! the function's address.

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

/// Names that stand for another function from some version on: since CUDA 12 the header gives
/// `cuGraphInstantiate` the arguments of the function with flags.
const RENAMED: [(&str, i32, &str); 1] =
    [("cuGraphInstantiate", 12_000, "cuGraphInstantiateWithFlags")];

/// The row for a base name: the newest that `version` covers, the per-thread twin if wanted.
fn find(name: &str, version: i32, per_thread: bool) -> Result<&'static Row, u32> {
    let renamed = RENAMED.iter().find(|r| r.0 == name && r.1 <= version);
    let name = renamed.map_or(name, |r| r.2);
    let mut known = false;
    let mut best: Option<&Row> = None;
    for row in TABLE.iter().filter(|r| r.base == name) {
        known = true;
        let fits = row.version <= version && (per_thread || !row.per_thread);
        let order = |r: &Row| (r.generation, r.per_thread);
        if fits && best.is_none_or(|b| order(row) > order(b)) {
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
    if flags & !(LEGACY_STREAM | PER_THREAD_STREAM) != 0 || version > device::version() {
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
