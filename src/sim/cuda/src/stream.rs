//! Streams: the order of work, and how the default streams join the others.

use std::sync::Arc;

use gshare_sim_board::{BoardError, MAX_DEPS, Shape, Work};

use crate::callback::Callbacks;
use crate::code::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, R};
use crate::driver::{Driver, Live, Tables, code_of};
use crate::ffi::{In, Out, export, export_stream};

/// The reserved handle of the legacy default stream; 0 means the same.
pub(crate) const LEGACY: u64 = 1;
/// The reserved handle of the calling thread's default stream.
pub(crate) const PER_THREAD: u64 = 2;

/// What stream 0 means in the functions for per-thread default streams.
pub(crate) fn per_thread(stream: u64) -> u64 {
    if stream == 0 { PER_THREAD } else { stream }
}

const NON_BLOCKING: u32 = 1;

#[derive(Debug)]
pub(crate) struct Stream {
    pub context: u64,
    pub flags: u32,
    pub priority: i32,
    pub is_legacy: bool,
    /// Ticket of the last work, 0 for none.
    pub last: u64,
    /// When the last finished work ended, on the GPU's clock.
    pub end_ns: u64,
    pub callbacks: Arc<Callbacks>,
}

impl Stream {
    pub(crate) fn new(context: u64, flags: u32, priority: i32, is_legacy: bool) -> Stream {
        Stream {
            context,
            flags,
            priority,
            is_legacy,
            last: 0,
            end_ns: 0,
            callbacks: Arc::default(),
        }
    }
}

fn thread_id() -> u64 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) }.cast_unsigned()
}

impl Tables {
    pub(crate) fn stream(&self, stream: u64) -> R<&Stream> {
        self.streams.get(&stream).ok_or(INVALID_HANDLE)
    }

    /// Tickets of the unfinished work that new work on this stream has to wait for.
    fn before(&self, stream: u64) -> R<Vec<u64>> {
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
        tickets.retain(|t| self.live.contains_key(t));
        tickets.sort_unstable();
        tickets.dedup();
        Ok(tickets)
    }

    fn add_live(&mut self, ticket: u64, context: u64, stream: u64, deps: [u64; MAX_DEPS]) {
        let before = self.streams.get(&stream).map_or(0, |s| s.end_ns);
        let live = Live {
            context,
            stream,
            deps,
            ready_ns: self.gpu_now().max(before),
            events: Vec::new(),
        };
        self.live.insert(ticket, live);
    }
}

impl Driver {
    /// The stream that a program's handle means, and its context, which must be usable.
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

    /// Queues a kernel (or, without a shape, a marker) after what the stream's rules and `more`
    /// put before it; gives its ticket.
    pub(crate) fn enqueue(
        &self,
        stream: u64,
        shape: Option<Shape>,
        block_ns: u64,
        more: &[u64],
    ) -> R<u64> {
        let callbacks = Arc::clone(&self.tables().stream(stream)?.callbacks);
        callbacks.wait();
        loop {
            let mut t = self.tables();
            let mut before = t.before(stream)?;
            before.extend(more.iter().filter(|m| t.live.contains_key(m)));
            let (context, gpu, board) = {
                let context = t.stream(stream)?.context;
                let c = t.context(context)?;
                (context, c.gpu, c.board)
            };
            // Work has room for a few dependencies; more are joined by markers first.
            let join = before.len() > MAX_DEPS;
            let mut deps = [0; MAX_DEPS];
            for (d, b) in deps.iter_mut().zip(&before) {
                *d = *b;
            }
            let work = Work {
                gpu,
                context: board,
                shape: if join { None } else { shape },
                block_ns,
                deps,
            };
            match self.board.submit(self.slot, &work) {
                Ok((ticket, finished)) => {
                    t.absorb(&finished);
                    t.add_live(ticket, context, stream, deps);
                    if join {
                        let mut rest = before[MAX_DEPS..].to_vec();
                        rest.push(ticket);
                        drop(t);
                        let joined = self.join_all(context, gpu, board, rest)?;
                        return self.enqueue(stream, shape, block_ns, &[joined]);
                    }
                    if let Some(s) = t.streams.get_mut(&stream) {
                        s.last = ticket;
                    }
                    return Ok(ticket);
                }
                Err(BoardError::Full { .. }) => {
                    // The queue is full: as on a real GPU, the launch waits.
                    let oldest = t.live.keys().next().copied();
                    drop(t);
                    match oldest {
                        Some(ticket) => self.wait_all(&[ticket]),
                        None => std::thread::yield_now(),
                    }
                }
                Err(e) => return Err(code_of(&e)),
            }
        }
    }

    fn join_all(&self, context: u64, gpu: usize, board: u64, mut tickets: Vec<u64>) -> R<u64> {
        while tickets.len() > 1 {
            let n = tickets.len().min(MAX_DEPS);
            let mut deps = [0; MAX_DEPS];
            deps[..n].copy_from_slice(&tickets[..n]);
            let work = Work {
                gpu,
                context: board,
                shape: None,
                block_ns: 0,
                deps,
            };
            let mut t = self.tables();
            match self.board.submit(self.slot, &work) {
                Ok((ticket, finished)) => {
                    t.absorb(&finished);
                    t.add_live(ticket, context, 0, deps);
                    tickets.drain(..n);
                    tickets.push(ticket);
                }
                Err(BoardError::Full { .. }) => {
                    drop(t);
                    self.wait_all(&tickets[..1]);
                }
                Err(e) => return Err(code_of(&e)),
            }
        }
        Ok(tickets.first().copied().unwrap_or(0))
    }

    /// The ticket after which everything now in the stream is over; 0 if it is over already.
    pub(crate) fn tail(&self, stream: u64) -> R<u64> {
        let before = {
            let mut t = self.tables();
            self.poll(&mut t);
            t.before(stream)?
        };
        match before[..] {
            [] => Ok(0),
            [one] => Ok(one),
            _ => self.enqueue(stream, None, 0, &[]),
        }
    }

    /// Waits until everything now in the stream is over, and reports the context's error.
    pub(crate) fn settle(&self, stream: u64) -> R {
        let (before, callbacks) = {
            let t = self.tables();
            (t.before(stream)?, Arc::clone(&t.stream(stream)?.callbacks))
        };
        self.wait_all(&before);
        callbacks.wait();
        let t = self.tables();
        let context = t.stream(stream)?.context;
        match t.context(context)?.sticky {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    pub(crate) fn wait_callbacks_of(&self, context: u64) {
        let all: Vec<Arc<Callbacks>> = {
            let t = self.tables();
            let own = t.streams.values().filter(|s| s.context == context);
            own.map(|s| Arc::clone(&s.callbacks)).collect()
        };
        for c in all {
            c.wait();
        }
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
        let stream = Stream::new(context, flags, priority, false);
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
        // Its work goes on; the handle is gone.
        if handle <= PER_THREAD {
            return Err(INVALID_HANDLE);
        }
        let callbacks = Arc::clone(&d.tables().stream(handle)?.callbacks);
        callbacks.wait();
        d.tables().streams.remove(&handle).map(drop).ok_or(INVALID_HANDLE)
    };
    cuThreadExchangeStreamCaptureMode(mode: Out<u32>) |_d| mode.check();
}

export_stream! {
    cuStreamSynchronize, cuStreamSynchronize_ptsz(; stream) |d| {
        let s = d.stream(stream)?;
        d.settle(s)
    };
    cuStreamQuery, cuStreamQuery_ptsz(; stream) |d| {
        let s = d.stream(stream)?;
        let mut t = d.tables();
        d.poll(&mut t);
        if t.before(s)?.is_empty() && t.stream(s)?.callbacks.is_idle() {
            Ok(())
        } else {
            Err(NOT_READY)
        }
    };
    cuStreamWaitEvent, cuStreamWaitEvent_ptsz(; stream, event: u64, flags: u32) |d| {
        let s = d.stream(stream)?;
        if flags & !1 != 0 {
            return Err(INVALID_VALUE);
        }
        let ticket = {
            let mut t = d.tables();
            d.poll(&mut t);
            t.events.get(&event).ok_or(INVALID_HANDLE)?.ticket()
        };
        match ticket {
            Some(ticket) => d.enqueue(s, None, 0, &[ticket]).map(drop),
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
    cuStreamGetCtx, cuStreamGetCtx_ptsz(; stream, out: Out<u64>) |d| {
        let s = d.stream(stream)?;
        out.set(d.tables().stream(s)?.context)
    };
    cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz(; stream, out: Out<u64>, green: Out<u64>) |d| {
        let s = d.stream(stream)?;
        green.set_if(0);
        out.set(d.tables().stream(s)?.context)
    };
    cuStreamGetDevice, cuStreamGetDevice_ptsz(; stream, out: Out<i32>) |d| {
        let s = d.stream(stream)?;
        let t = d.tables();
        let context = t.stream(s)?.context;
        out.set(t.context(context)?.device as i32)
    };
    cuStreamIsCapturing, cuStreamIsCapturing_ptsz(; stream, out: Out<u32>) |d| {
        d.stream(stream)?;
        out.set(0)
    };
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz(
        ; stream, status: Out<u32>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>, count: Out<usize>
    ) |d| {
        d.stream(stream)?;
        id.set_if(0);
        graph.set_if(0);
        nodes.set_if(0);
        count.set_if(0);
        status.set(0)
    };
    cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz(
        ; stream, status: Out<u32>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>,
        edges: Out<u64>, count: Out<usize>
    ) |d| {
        d.stream(stream)?;
        id.set_if(0);
        graph.set_if(0);
        nodes.set_if(0);
        edges.set_if(0);
        count.set_if(0);
        status.set(0)
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
    cuStreamSetAttribute, cuStreamSetAttribute_ptsz(; stream, _attribute: u32, value: In<u64>) |d| {
        // Hints about caching and scheduling: the board has no use for them.
        d.stream(stream)?;
        value.get().map(drop)
    };
    cuStreamGetAttribute, cuStreamGetAttribute_ptsz(; stream, attribute: u32, out: Out<u64>) |d| {
        let s = d.stream(stream)?;
        match attribute {
            // The priority; others were never set.
            8 => out.cast::<i32>().set(d.tables().stream(s)?.priority),
            1 | 3 | 9 | 10 => out.set_all([0; 8], 8),
            _ => Err(NOT_SUPPORTED),
        }
    };
    cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz(; stream, source: u64) |d| {
        d.stream(stream)?;
        d.stream(source).map(drop)
    };
}
