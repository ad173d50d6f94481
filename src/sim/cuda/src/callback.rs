//! Host functions of the program, which run on a thread of their own when a stream reaches them.

use std::cell::Cell;

use crate::code::{CUresult, INVALID_VALUE, R};
use crate::driver::Driver;
use crate::ffi::export_stream;
use crate::op::{Op, Place};
use crate::value::Value;

pub(crate) type HostFn = extern "C" fn(*mut libc::c_void);
type StreamCallback = extern "C" fn(u64, CUresult, *mut libc::c_void);

/// A function of the program and its argument.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Host {
    /// Not called after an error.
    Function { f: HostFn, data: u64 },
    /// Called with the error.
    Callback {
        f: StreamCallback,
        stream: u64,
        data: u64,
    },
    /// The driver's own; not run after an error.
    Value(Value),
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a host function, which may not call the driver.
pub(crate) fn inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

impl Host {
    pub(crate) fn call(self, code: CUresult) {
        let _ = INSIDE.try_with(|i| i.set(true));
        match self {
            Host::Function { f, data } => {
                if code == 0 {
                    f(data as *mut _);
                }
            }
            Host::Callback { f, stream, data } => f(stream, code, data as *mut _),
            Host::Value(value) => {
                if code == 0 {
                    value.run();
                }
            }
        }
        let _ = INSIDE.try_with(|i| i.set(false));
    }
}

impl Driver {
    fn launch_host(&self, stream: u64, f: Option<HostFn>, data: u64) -> R {
        let s = self.op_stream(stream)?;
        let f = f.ok_or(INVALID_VALUE)?;
        let op = Op::Host(Host::Function { f, data });
        if self.captured(s, &op)?.is_some() {
            return Ok(());
        }
        self.push(&Place::Stream(s), op).map(drop)
    }
}

export_stream! {
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz(; stream, f: Option<HostFn>, data: u64) |d| {
        d.launch_host(stream, f, data)
    };
    cuStreamAddCallback, cuStreamAddCallback_ptsz(
        ; stream, f: Option<StreamCallback>, data: u64, flags: u32
    ) |d| {
        let s = d.op_stream(stream)?;
        let f = f.ok_or(INVALID_VALUE)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        // Unlike host functions, callbacks cannot be captured.
        d.forbid_capture(s)?;
        let op = Op::Host(Host::Callback { f, stream, data });
        d.push(&Place::Stream(s), op).map(drop)
    };
}
