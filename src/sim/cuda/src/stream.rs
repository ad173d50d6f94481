//! Streams: the order of work, and how the default streams synchronise with others.

use crate::capture::Captured;
use crate::code::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{Out, export, export_stream};
use crate::op::{Op, Place};

/// The reserved handle of the legacy default stream, like 0.
pub(crate) const LEGACY: u64 = 1;
/// The reserved handle of the calling thread's default stream.
pub(crate) const PER_THREAD: u64 = 2;

/// Maps stream 0 in the functions for per-thread default streams.
pub(crate) fn per_thread(stream: u64) -> u64 {
    if stream == 0 { PER_THREAD } else { stream }
}

pub(crate) const NON_BLOCKING: u32 = 1;

#[derive(Debug)]
pub(crate) struct Stream {
    pub context: u64,
    /// Its green context; 0 for none.
    pub green: u64,
    pub flags: u32,
    pub priority: i32,
    pub is_legacy: bool,
    /// Ticket of the last work, 0 for none.
    pub last: u64,
    /// When the last finished work ended, on the GPU's clock.
    pub end_ns: u64,
    /// The stream's part in a capture.
    pub capture: Option<Captured>,
}

impl Stream {
    pub(crate) fn new(context: u64, flags: u32, priority: i32, is_legacy: bool) -> Stream {
        Stream {
            context,
            green: 0,
            flags,
            priority,
            is_legacy,
            last: 0,
            end_ns: 0,
            capture: None,
        }
    }
}

pub(crate) fn thread_id() -> u64 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) }.cast_unsigned()
}

impl Tables {
    pub(crate) fn stream(&self, stream: u64) -> R<&Stream> {
        self.streams.get(&stream).ok_or(INVALID_HANDLE)
    }

    /// Tickets of the unfinished work that new work on this stream has to wait for.
    pub(crate) fn before(&self, stream: u64) -> R<Vec<u64>> {
        let s = self.stream(stream)?;
        let mut tickets = vec![s.last];
        if s.is_legacy {
            let others = self.streams.values();
            let joined = others.filter(|o| o.context == s.context && o.flags & NON_BLOCKING == 0);
            tickets.extend(joined.map(|o| o.last));
        } else if s.flags & NON_BLOCKING == 0 {
            let legacy = self.contexts.get(&s.context).map_or(0, |c| c.legacy);
            tickets.extend(self.streams.get(&legacy).map(|l| l.last));
        }
        Ok(self.unfinished(tickets))
    }
}

impl Driver {
    /// The stream of a program's handle; its context must be usable.
    pub(crate) fn stream(&self, handle: u64) -> R<u64> {
        let mut t = self.tables();
        if handle > PER_THREAD {
            let context = t.stream(handle)?.context;
            return match t.context(context)?.sticky {
                Some(code) => Err(code),
                None => Ok(handle),
            };
        }
        let context = self.current(&t)?;
        if handle != PER_THREAD {
            return Ok(t.context(context)?.legacy);
        }
        let thread = thread_id();
        if let Some(&s) = t.context(context)?.per_thread.get(&thread) {
            return Ok(s);
        }
        let s = t.handle();
        t.streams.insert(s, Stream::new(context, 0, 0, false));
        if let Some(c) = t.contexts.get_mut(&context) {
            c.per_thread.insert(thread, s);
        }
        Ok(s)
    }

    /// The number of the last work in the stream; 0 if all of it is over.
    pub(crate) fn tail(&self, stream: u64) -> R<u64> {
        {
            let mut t = self.tables();
            self.poll(&mut t);
        }
        self.join(&Place::Stream(stream))
    }

    /// Waits until all work in the stream is over, and reports the context's error.
    pub(crate) fn settle(&self, stream: u64) -> R {
        let before = self.tables().before(stream)?;
        self.wait_all(&before);
        let t = self.tables();
        let context = t.stream(stream)?.context;
        match t.context(context)?.sticky {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    /// Makes later work of a stream wait for other work.
    fn wait_in_stream(&self, stream: u64, id: u64) -> R {
        let (context, mut deps) = {
            let t = self.tables();
            (t.stream(stream)?.context, t.before(stream)?)
        };
        deps.push(id);
        let joined = self.push(
            &Place::After {
                context,
                deps: &deps,
            },
            Op::Empty,
        )?;
        if let Some(s) = self.tables().streams.get_mut(&stream)
            && joined != 0
        {
            s.last = joined;
        }
        Ok(())
    }

    fn create_stream(&self, out: Out<u64>, flags: u32, priority: i32) -> R {
        out.check()?;
        let mut t = self.tables();
        let context = self.current(&t)?;
        if flags & !NON_BLOCKING != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = t.handle();
        let priority = priority.clamp(-5, 0);
        let green = t.current_green();
        let stream = Stream {
            green,
            ..Stream::new(context, flags, priority, false)
        };
        t.streams.insert(handle, stream);
        out.set(handle)
    }
}

export! {
    cuStreamCreate(out: Out<u64>, flags: u32) |d| d.create_stream(out, flags, 0);
    cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) |d| {
        d.create_stream(out, flags, priority)
    };
    cuStreamDestroy_v2(handle: u64) |d| {
        // Its work goes on without the handle.
        if handle <= PER_THREAD {
            return Err(INVALID_HANDLE);
        }
        let mut t = d.tables();
        t.leave_capture(handle);
        t.streams.remove(&handle).map(drop).ok_or(INVALID_HANDLE)
    };
}

export_stream! {
    cuStreamSynchronize, cuStreamSynchronize_ptsz(; stream) |d| {
        let s = d.op_stream(stream)?;
        d.forbid_capture(s)?;
        d.unsafe_call()?;
        d.settle(s)
    };
    cuStreamQuery, cuStreamQuery_ptsz(; stream) |d| {
        let s = d.op_stream(stream)?;
        d.forbid_capture(s)?;
        d.unsafe_call()?;
        let mut t = d.tables();
        d.poll(&mut t);
        if t.before(s)?.is_empty() {
            Ok(())
        } else {
            Err(NOT_READY)
        }
    };
    cuStreamWaitEvent, cuStreamWaitEvent_ptsz(; stream, event: u64, flags: u32) |d| {
        let s = d.op_stream(stream)?;
        if flags & !1 != 0 {
            return Err(INVALID_VALUE);
        }
        if d.capture_wait(s, event)? {
            return Ok(());
        }
        let id = {
            let mut t = d.tables();
            d.poll(&mut t);
            d.event_work(&mut t, event)?
        };
        match id {
            Some(crate::ipc::Cell::SOON) => {
                // Another process will soon name the work that its event waits for.
                while d.event_work(&mut d.tables(), event)? == Some(crate::ipc::Cell::SOON) {
                    std::thread::yield_now();
                }
                let id = d.event_work(&mut d.tables(), event)?;
                id.map_or(Ok(()), |id| d.wait_in_stream(s, id))
            }
            Some(id) => d.wait_in_stream(s, id),
            None => Ok(()),
        }
    };
    cuStreamGetPriority, cuStreamGetPriority_ptsz(; stream, out: Out<i32>) |d| {
        let s = d.stream(stream)?;
        out.set(d.tables().stream(s)?.priority)
    };
    cuStreamGetFlags, cuStreamGetFlags_ptsz(; stream, out: Out<u32>) |d| {
        let s = d.stream(stream)?;
        out.set(d.tables().stream(s)?.flags)
    };
    cuStreamGetId, cuStreamGetId_ptsz(; stream, out: Out<u64>) |d| {
        let s = d.stream(stream)?;
        out.set(s)
    };
    cuStreamGetDevice, cuStreamGetDevice_ptsz(; stream, out: Out<i32>) |d| {
        let s = d.stream(stream)?;
        let t = d.tables();
        let context = t.stream(s)?.context;
        out.set(t.context(context)?.device as i32)
    };
    cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz(
        ; stream, addr: u64, _length: usize, _flags: u32
    ) |d| {
        d.stream(stream)?;
        match d.tables().memory.find(addr) {
            Some(_) => Ok(()),
            None => Err(INVALID_VALUE),
        }
    };
}
