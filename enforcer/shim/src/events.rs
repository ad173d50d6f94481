//! The proxy's own events around the program's launches. These calls may be made while another stream captures: they
//! use the relaxed mode, and none touches a capturing stream.

use crate::{
    capture::any_capture,
    cuda::{CuResult, Handle, NOT_READY, SUCCESS},
    driver, mark,
};

/// `CU_EVENT_BLOCKING_SYNC`: waiting threads sleep.
const BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;
/// The default stream of all threads, and the calling thread's.
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;

/// Two events of one context.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pair {
    pub(crate) context: Handle,
    start: Handle,
    end: Handle,
}

/// Progress of a launch between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Not over; whether it has begun, if there is an event before it.
    Under {
        started: bool,
    },
    Over,
    /// The driver cannot tell.
    Failed,
}

fn context() -> Option<Handle> {
    let mut context: Handle = 0;
    // SAFETY: `context` is valid for the result.
    let result = unsafe { driver::helpers().ctx_get_current?(&raw mut context) };
    (result == SUCCESS && context != 0).then_some(context)
}

/// The context of the stream that the hook's caller means: a launch goes there whatever the thread's context. The
/// thread's own may be green, and its events are the primary one's.
pub(crate) fn context_of(stream: Handle) -> Option<Handle> {
    relaxed(|| context_named(stream)).or_else(context)
}

/// The context that the driver names; the primary one for a stream of a green context, whose events it is for. Before
/// CUDA 12.5 it is the green one itself.
pub(crate) fn context_named(stream: Handle) -> Option<Handle> {
    let (helpers, mut context, mut green) = (driver::helpers(), 0, 0);
    // SAFETY: the program's own stream, and room for the results.
    let code = unsafe {
        match (helpers.stream_contexts, helpers.stream_context) {
            (Some(ask), _) => ask(stream, &raw mut context, &raw mut green),
            // Before CUDA 12.5; of a green context it says nothing.
            (None, Some(ask)) => ask(stream, &raw mut context),
            (None, None) => return None,
        }
    };
    if code == SUCCESS && context != 0 {
        return Some(context);
    }
    // SAFETY: as above.
    let code = unsafe { helpers.stream_green?(stream, &raw mut green) };
    if code != SUCCESS || green == 0 {
        return None;
    }
    // SAFETY: the green context that the driver named, and room for the result.
    let code = unsafe { helpers.green_as_context?(&raw mut context, green) };
    (code == SUCCESS && context != 0).then_some(context)
}

/// The stream that the hook's caller means, if events can be recorded on it now; `None` for the legacy stream while any
/// stream captures, because it would join the capture.
pub(crate) fn recordable(stream: Handle) -> Option<Handle> {
    let stream = match stream {
        0 if mark::is_per_thread()? => PER_THREAD,
        0 => LEGACY,
        other => other,
    };
    (stream != LEGACY || !any_capture()).then_some(stream)
}

/// Makes the calling thread's own calls independent of captures from now on.
pub(crate) fn relax_this_thread() {
    let mut mode = RELAXED;
    if let Some(exchange) = driver::helpers().exchange_capture_mode {
        // SAFETY: a valid mode, and room for the old one.
        unsafe { exchange(&raw mut mode) };
    }
}

fn relaxed<R>(part: impl FnOnce() -> R) -> R {
    // Even without a known capture: one may begin at any moment.
    let Some(exchange) = driver::helpers().exchange_capture_mode else {
        return part();
    };
    let mut mode = RELAXED;
    // SAFETY: a valid mode, and room for the old one.
    let changed = unsafe { exchange(&raw mut mode) } == SUCCESS;
    let result = part();
    if changed {
        // SAFETY: the mode that the driver gave.
        unsafe { exchange(&raw mut mode) };
    }
    result
}

fn make() -> Option<Handle> {
    let mut event: Handle = 0;
    // SAFETY: `event` is valid for the result.
    let result = unsafe { driver::helpers().event_create?(&raw mut event, BLOCKING) };
    (result == SUCCESS && event != 0).then_some(event)
}

fn destroy(event: Handle) {
    if let Some(destroy) = driver::helpers().event_destroy {
        // SAFETY: an event of the proxy's own that nothing uses any more.
        unsafe { destroy(event) };
    }
}

fn record(event: Handle, stream: Handle) -> bool {
    let record = driver::helpers().event_record;
    // SAFETY: an event of the stream's context, and the program's own stream.
    relaxed(|| record.is_some_and(|record| unsafe { record(event, stream) } == SUCCESS))
}

fn query(event: Handle) -> Option<CuResult> {
    let query = driver::helpers().event_query?;
    // SAFETY: an event of the proxy's own.
    Some(relaxed(|| unsafe { query(event) }))
}

fn elapsed_ms(from: Handle, to: Handle) -> Option<f64> {
    let mut ms: f32 = 0.0;
    let elapsed = driver::helpers().event_elapsed?;
    // SAFETY: two events of the proxy's own, and room for the result.
    let result = relaxed(|| unsafe { elapsed(&raw mut ms, from, to) });
    (result == SUCCESS).then_some(f64::from(ms))
}

impl Pair {
    pub(crate) fn new(context: Handle) -> Option<Self> {
        let set = driver::helpers().ctx_set_current?;
        let here = self::context().unwrap_or(0);
        // SAFETY: the context of a stream that the program uses, and below the one that the thread had.
        if here != context && unsafe { set(context) } != SUCCESS {
            return None;
        }
        let pair = relaxed(|| {
            let start = make()?;
            let Some(end) = make() else {
                destroy(start);
                return None;
            };
            Some(Self {
                context,
                start,
                end,
            })
        });
        if here != context {
            // SAFETY: as above.
            unsafe { set(here) };
        }
        pair
    }

    pub(crate) fn record_start(&self, stream: Handle) -> bool {
        record(self.start, stream)
    }

    pub(crate) fn record_end(&self, stream: Handle) -> bool {
        record(self.end, stream)
    }

    /// Whether the GPU has passed the first event.
    pub(crate) fn has_started(&self) -> bool {
        query(self.start) == Some(SUCCESS)
    }

    /// Whether the GPU is known not to have passed it; false if the driver cannot tell now.
    pub(crate) fn is_ahead(&self) -> bool {
        query(self.start) == Some(NOT_READY)
    }

    /// Whether the launch between the two is over, on a thread without a context of the program; `current` is the
    /// thread's context.
    pub(crate) fn look(&self, current: &mut Handle) -> Progress {
        let helpers = driver::helpers();
        if *current != self.context {
            let set = helpers.ctx_set_current;
            // SAFETY: a context in which this pair was made; an error is the driver's answer.
            let result = set.map(|set| unsafe { set(self.context) });
            *current = if result == Some(SUCCESS) {
                self.context
            } else {
                0
            };
        }
        self.progress()
    }

    /// Whether the launch between the two is over.
    pub(crate) fn progress(&self) -> Progress {
        match query(self.end) {
            Some(NOT_READY) => Progress::Under {
                started: self.has_started(),
            },
            Some(SUCCESS) => Progress::Over,
            Some(_) | None => Progress::Failed,
        }
    }

    /// Nanoseconds between the two events; `None` unless both were recorded.
    pub(crate) fn elapsed_ns(&self) -> Option<u64> {
        let ms = elapsed_ms(self.start, self.end)?;
        (ms >= 0.0).then_some((ms * 1e6) as u64)
    }

    /// Nanoseconds from another pair's second event to this one's, both of the same context and over.
    pub(crate) fn since_ns(&self, other: &Pair) -> Option<i64> {
        Some((elapsed_ms(other.end, self.end)? * 1e6) as i64)
    }

    /// Waits for the second event; false on an error.
    pub(crate) fn wait_here(&self) -> bool {
        let wait = driver::helpers().event_sync;
        // SAFETY: an event of the proxy's own.
        relaxed(|| wait.is_some_and(|wait| unsafe { wait(self.end) } == SUCCESS))
    }

    pub(crate) fn destroy(self) {
        relaxed(|| {
            destroy(self.start);
            destroy(self.end);
        });
    }
}
