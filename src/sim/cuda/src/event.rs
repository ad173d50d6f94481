//! Events: a point in a stream, and when the board reached it.

use crate::code::{CAPTURED_EVENT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{Out, export, export_stream};
use crate::ipc::Cell;
use crate::op::{Op, Place, Time};

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// Reached when the work with this number is over.
    After(u64),
    /// Reached at this time in nanoseconds.
    At(u64),
}

#[derive(Debug)]
pub(crate) struct Event {
    pub context: u64,
    flags: u32,
    state: State,
    /// Last recorded in a capture: its number, and the nodes before the event.
    pub captured: Option<(u64, Vec<u64>)>,
    /// State shared between processes.
    pub shared: Option<Cell>,
}

impl Event {
    pub(crate) fn new(context: u64, flags: u32) -> Event {
        Event {
            context,
            flags,
            state: State::New,
            captured: None,
            shared: None,
        }
    }

    /// An event that another process made.
    pub(crate) fn imported(context: u64, cell: Cell) -> Event {
        Event {
            shared: Some(cell),
            ..Event::new(context, DISABLE_TIMING | INTERPROCESS)
        }
    }

    pub(crate) fn is_interprocess(&self) -> bool {
        self.flags & INTERPROCESS != 0
    }

    pub(crate) fn finish(&mut self, id: u64, at_ns: u64) {
        if self.state == State::After(id) {
            self.state = State::At(at_ns);
            if let Some(cell) = &self.shared {
                cell.finish();
            }
        }
    }

    /// Follows postponed work to its ticket on the board.
    pub(crate) fn rename(&mut self, id: u64, ticket: u64) {
        if self.state == State::After(id) {
            self.state = State::After(ticket);
            if let Some(cell) = &self.shared {
                cell.set(ticket);
            }
        }
    }
}

impl Tables {
    /// Sets the work that the event waits for (0: the event is reached).
    pub(crate) fn set_event(&mut self, event: u64, id: u64, idle_ns: u64) -> R {
        let id = self.actual(id);
        let mut state = State::At(idle_ns);
        if let Some(p) = self.put_off.get_mut(&id) {
            p.events.push(event);
            state = State::After(id);
        } else if let Some(live) = self.live.get_mut(&id) {
            live.events.push(event);
            state = State::After(id);
        }
        let is_put_off = self.is_put_off(id);
        let e = self.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        e.state = state;
        e.captured = None;
        if let Some(cell) = &e.shared {
            match state {
                State::After(_) if is_put_off => cell.begin(),
                State::After(ticket) => cell.set(ticket),
                _ => cell.finish(),
            }
        }
        Ok(())
    }
}

impl Driver {
    /// The unfinished work that an event waits for.
    pub(crate) fn event_work(&self, t: &mut Tables, event: u64) -> R<Option<u64>> {
        let e = t.events.get(&event).ok_or(INVALID_HANDLE)?;
        if e.captured.is_some() {
            return Err(CAPTURED_EVENT);
        }
        let Some(cell) = &e.shared else {
            let State::After(id) = e.state else {
                return Ok(None);
            };
            return Ok(Some(id).filter(|id| t.is_unfinished(*id)));
        };
        let ticket = cell.get();
        Ok(match ticket {
            0 => None,
            t_ if t.live.contains_key(&t_) => Some(t_),
            // Another process's work, or postponed work of this process.
            Cell::SOON => match e.state {
                State::After(id) if t.is_unfinished(id) => Some(id),
                _ => Some(Cell::SOON),
            },
            other if self.board.is_over(other) => None,
            other => {
                t.imports.foreign.insert(other);
                Some(other)
            }
        })
    }

    fn record(&self, event: u64, stream: u64) -> R {
        let own = {
            let t = self.tables();
            t.events.get(&event).ok_or(INVALID_HANDLE)?.context
        };
        let s = self.op_stream(stream)?;
        if self.tables().stream(s)?.context != own {
            return Err(INVALID_HANDLE);
        }
        if self.capture_record(s, event)? {
            return Ok(());
        }
        let tail = if self.preset.record_ns > 0 {
            self.push(&Place::Stream(s), Op::Timed(Time::Record))?
        } else {
            self.tail(s)?
        };
        let mut t = self.tables();
        let idle_ns = t.gpu_now().max(t.stream(s)?.end_ns);
        t.set_event(event, tail, idle_ns)
    }

    fn elapsed(&self, out: Out<f32>, start: u64, end: u64) -> R {
        out.check()?;
        let mut t = self.tables();
        self.poll(&mut t);
        let state = |e: u64| match t.events.get(&e) {
            Some(e) if e.captured.is_some() => Err(CAPTURED_EVENT),
            Some(e) if e.flags & DISABLE_TIMING == 0 => Ok(e.state),
            _ => Err(INVALID_HANDLE),
        };
        match (state(start)?, state(end)?) {
            (State::New, _) | (_, State::New) => Err(INVALID_HANDLE),
            (State::At(a), State::At(b)) => {
                let timeless = self.preset.has(gshare_sim_board::Fault::NoEventTimes);
                let ns = if timeless { 0.0 } else { b as f64 - a as f64 };
                out.set((ns / 1e6) as f32)
            }
            _ => Err(NOT_READY),
        }
    }

    /// Refuses queries of and waits for a captured event.
    fn check_event(&self, event: u64) -> R<u64> {
        let (capture, context) = {
            let t = self.tables();
            let e = t.events.get(&event).ok_or(INVALID_HANDLE)?;
            (e.captured.as_ref().map(|c| c.0), e.context)
        };
        if let Some(capture) = capture {
            self.tables().invalidate(capture);
            return Err(CAPTURED_EVENT);
        }
        self.unsafe_call()?;
        Ok(context)
    }
}

export! {
    cuEventCreate(out: Out<u64>, flags: u32) |d| {
        out.check()?;
        let mut t = d.tables();
        let context = d.current(&t)?;
        // Events shared between processes have no time.
        if flags & !7 != 0 || flags & 6 == INTERPROCESS {
            return Err(INVALID_VALUE);
        }
        let mut event = Event::new(context, flags);
        if flags & INTERPROCESS != 0 {
            event.shared = Some(Cell::new()?);
        }
        let handle = t.handle();
        t.events.insert(handle, event);
        out.set(handle)
    };
    cuEventDestroy_v2(event: u64) |d| {
        d.tables().events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    };
    cuEventQuery(event: u64) |d| {
        let context = d.check_event(event)?;
        let mut t = d.tables();
        d.poll(&mut t);
        if let Some(code) = t.context(context)?.sticky {
            return Err(code);
        }
        match d.event_work(&mut t, event)? {
            Some(_) => Err(NOT_READY),
            None => Ok(()),
        }
    };
    cuEventSynchronize(event: u64) |d| {
        let context = d.check_event(event)?;
        loop {
            let work = d.event_work(&mut d.tables(), event)?;
            match work {
                Some(Cell::SOON) => std::thread::yield_now(),
                Some(id) => d.wait_all(&[id]),
                None => break,
            }
        }
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

#[cfg(test)]
mod tests {
    use gshare_sim_board::now_ns;

    use super::{Event, State};
    use crate::driver::{Live, Tables};

    /// The launching thread lost its processor after the board had the work, and then to another interpretation.
    #[test]
    fn an_event_has_the_time_of_the_board_unless_a_kernel_was_interpreted_meanwhile() {
        let (mut tables, now) = (Tables::default(), now_ns());
        let ms = 1_000_000;
        let mut event_of = |lag_ns| {
            let live = Live {
                context: 1,
                stream: 0,
                deps: [0; gshare_sim_board::MAX_DEPS],
                ready_ns: now + 3 * ms,
                after_ns: now,
                lag_ns,
                events: vec![7],
            };
            let event = Event {
                state: State::After(5),
                ..Event::new(1, 0)
            };
            tables.events.insert(7, event);
            tables.live.insert(5, live);
            tables.over(5, Some((now + ms, now + 2 * ms)));
            tables.events[&7].state
        };
        assert_eq!(event_of(0), State::At(now + 2 * ms));
        let other_lag = 1;
        assert_eq!(event_of(other_lag), State::At(now + 4 * ms));
    }
}
