//! Functions of the program that run when a stream gets to them, on a thread of their own.
//!
//! Later work on the same stream may depend on what they do, so queueing it waits for them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::code::{CUresult, INVALID_VALUE, OUT_OF_MEMORY, R};
use crate::driver::{self, Driver};
use crate::ffi::export_stream;

/// The callbacks of one stream that have not returned.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    running: Mutex<u32>,
    changed: Condvar,
}

impl Callbacks {
    pub(crate) fn is_idle(&self) -> bool {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) == 0
    }

    /// Sleeps until all have returned.
    pub(crate) fn wait(&self) {
        let mut n = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while *n > 0 {
            n = self.changed.wait(n).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn add(&self, by: i32) {
        let mut n = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *n = n.saturating_add_signed(by);
        self.changed.notify_all();
    }
}

impl Driver {
    fn add_callback(&self, stream: u64, call: impl FnOnce(CUresult) + Send + 'static) -> R {
        let s = self.stream(stream)?;
        // The earlier callbacks of the stream come first.
        let callbacks = Arc::clone(&self.tables().stream(s)?.callbacks);
        callbacks.wait();
        let tail = self.tail(s)?;
        let context = self.tables().stream(s)?.context;
        callbacks.add(1);
        let on_thread = Arc::clone(&callbacks);
        let spawned = std::thread::Builder::new()
            .name("cuda-callback".to_owned())
            .spawn(move || {
                let mut code = 0;
                if let Ok(d) = driver::get() {
                    d.wait_all(&[tail]);
                    code = d
                        .tables()
                        .context(context)
                        .map_or(0, |c| c.sticky.unwrap_or(0));
                }
                call(code);
                on_thread.add(-1);
            });
        if spawned.is_err() {
            callbacks.add(-1);
            return Err(OUT_OF_MEMORY);
        }
        Ok(())
    }
}

type HostFn = extern "C" fn(*mut libc::c_void);
type StreamCallback = extern "C" fn(u64, CUresult, *mut libc::c_void);

export_stream! {
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz(; stream, f: Option<HostFn>, data: u64) |d| {
        let f = f.ok_or(INVALID_VALUE)?;
        d.add_callback(stream, move |code| {
            // After an error such functions are not called.
            if code == 0 {
                f(data as *mut _);
            }
        })
    };
    cuStreamAddCallback, cuStreamAddCallback_ptsz(
        ; stream, f: Option<StreamCallback>, data: u64, flags: u32
    ) |d| {
        let f = f.ok_or(INVALID_VALUE)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        d.add_callback(stream, move |code| f(stream, code, data as *mut _))
    };
}
