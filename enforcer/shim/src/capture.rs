//! Whether streams of this process are being captured: calls on such a stream are recorded and not executed.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    cuda::{CuResult, Handle, SUCCESS},
    driver,
};

/// Captures in progress in this process. A forked child inherits the number, which only costs it an extra check per
/// call.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

/// Whether any stream of this process may be capturing now.
#[inline]
pub(crate) fn any_capture() -> bool {
    CAPTURES.load(Ordering::Relaxed) > 0
}

/// Whether calls on this stream are recorded instead of executed.
#[inline]
pub(crate) fn is_captured(stream: Handle) -> bool {
    any_capture() && ask_whether_captured(stream)
}

/// The calling thread's default stream. The default stream of all threads, elsewhere 0, cannot be captured.
const PER_THREAD: Handle = 2;

#[cold]
pub(crate) fn ask_whether_captured(stream: Handle) -> bool {
    let stream = if stream == 0 { PER_THREAD } else { stream };
    let mut status = 0;
    let ask = driver::helpers().stream_is_capturing;
    // SAFETY: the program's own stream, and a valid place for the result.
    ask.is_some_and(|ask| unsafe { ask(stream, &raw mut status) } == SUCCESS && status != 0)
}

pub(crate) fn began(result: CuResult) -> CuResult {
    if result == SUCCESS {
        CAPTURES.fetch_add(1, Ordering::Relaxed);
    }
    result
}

pub(crate) fn ended() {
    let one_less = |captures: usize| captures.checked_sub(1);
    // Fails if the capture began before the proxy counted.
    let _ = CAPTURES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
}
