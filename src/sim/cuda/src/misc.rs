//! The profiler's switches, and private tables.

use crate::code::{CUresult, INVALID_VALUE, NOT_FOUND};
use crate::ffi::{In, Out, export, plain};

export! {
    cuProfilerStart() |d| d.current(&d.tables()).map(drop);
    cuProfilerStop() |d| d.current(&d.tables()).map(drop);
}

/// The driver's private tables, which the CUDA runtime requests, are not simulated.
#[unsafe(no_mangle)]
extern "C" fn cuGetExportTable(out: Out<u64>, id: In<[u8; 16]>) -> CUresult {
    plain(|| {
        out.check()?;
        if id.is_null() {
            return Err(INVALID_VALUE);
        }
        out.set(0)?;
        Err(NOT_FOUND)
    })
}
