//! Events: a point in a stream, and when the board reached it.

use crate::code::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, R};
use crate::driver::Driver;
use crate::ffi::{Out, export, export_stream};

const DISABLE_TIMING: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// Reached when the work with this ticket is over.
    After(u64),
    /// Reached at this time in nanoseconds.
    At(u64),
}

#[derive(Debug)]
pub(crate) struct Event {
    pub context: u64,
    flags: u32,
    state: State,
}

impl Event {
    /// The work that it still waits for.
    pub(crate) fn ticket(&self) -> Option<u64> {
        match self.state {
            State::After(ticket) => Some(ticket),
            _ => None,
        }
    }

    pub(crate) fn finish(&mut self, ticket: u64, at_ns: u64) {
        if self.state == State::After(ticket) {
            self.state = State::At(at_ns);
        }
    }
}

impl Driver {
    fn record(&self, event: u64, stream: u64) -> R {
        let own = {
            let t = self.tables();
            t.events.get(&event).ok_or(INVALID_HANDLE)?.context
        };
        let s = self.stream(stream)?;
        if self.tables().stream(s)?.context != own {
            return Err(INVALID_HANDLE);
        }
        let tail = self.tail(s)?;
        let mut t = self.tables();
        let idle_ns = t.gpu_now().max(t.stream(s)?.end_ns);
        let state = match t.live.get_mut(&tail) {
            Some(live) => {
                live.events.push(event);
                State::After(tail)
            }
            None => State::At(idle_ns),
        };
        t.events.get_mut(&event).ok_or(INVALID_HANDLE)?.state = state;
        Ok(())
    }

    fn elapsed(&self, out: Out<f32>, start: u64, end: u64) -> R {
        out.check()?;
        let mut t = self.tables();
        self.poll(&mut t);
        let state = |e: u64| match t.events.get(&e) {
            Some(e) if e.flags & DISABLE_TIMING == 0 => Ok(e.state),
            _ => Err(INVALID_HANDLE),
        };
        match (state(start)?, state(end)?) {
            (State::New, _) | (_, State::New) => Err(INVALID_HANDLE),
            (State::At(a), State::At(b)) => {
                let ns = b as f64 - a as f64;
                out.set((ns / 1e6) as f32)
            }
            _ => Err(NOT_READY),
        }
    }
}

export! {
    cuEventCreate(out: Out<u64>, flags: u32) |d| {
        out.check()?;
        let mut t = d.tables();
        let context = d.current(&t)?;
        if flags & !7 != 0 || flags & 6 == 4 {
            return Err(INVALID_VALUE);
        }
        let handle = t.handle();
        t.events.insert(handle, Event { context, flags, state: State::New });
        out.set(handle)
    };
    cuEventDestroy_v2(event: u64) |d| {
        d.tables().events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    };
    cuEventQuery(event: u64) |d| {
        let mut t = d.tables();
        d.poll(&mut t);
        let e = t.events.get(&event).ok_or(INVALID_HANDLE)?;
        if let Some(code) = t.context(e.context)?.sticky {
            return Err(code);
        }
        if e.ticket().is_some() { Err(NOT_READY) } else { Ok(()) }
    };
    cuEventSynchronize(event: u64) |d| {
        let (ticket, context) = {
            let t = d.tables();
            let e = t.events.get(&event).ok_or(INVALID_HANDLE)?;
            (e.ticket(), e.context)
        };
        d.wait_all(ticket.as_slice());
        match d.tables().context(context)?.sticky {
            Some(code) => Err(code),
            None => Ok(()),
        }
    };
    cuEventElapsedTime(out: Out<f32>, start: u64, end: u64) |d| d.elapsed(out, start, end);
    cuEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) |d| d.elapsed(out, start, end);
}

export_stream! {
    cuEventRecord, cuEventRecord_ptsz(event: u64; stream) |d| d.record(event, stream);
    cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz(event: u64; stream, flags: u32) |d| {
        if flags & !1 != 0 {
            return Err(INVALID_VALUE);
        }
        d.record(event, stream)
    };
}
