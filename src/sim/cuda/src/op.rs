//! Work on streams: immediate, or postponed by host functions of the program.
//!
//! Bytes move and kernels compute at the call that queues them, unless a host function that has not returned comes
//! before. Then the work is postponed, and runs on the thread of that function as soon as it returns. Work has a
//! number: the board's ticket or, while postponed, a number of its own that later stands for the ticket.

use std::sync::Arc;

use gshare_sim_board::{BoardError, MAX_DEPS, Shape, Transfer, Work, now_ns};

use crate::callback::Host;
use crate::code::{INVALID_HANDLE, R, UNKNOWN};
use crate::copy::{Copy3D, Fill};
use crate::driver::{self, Driver, Live, Tables, code_of};
use crate::graph::GraphVa;
use crate::launch::Kernel;

/// Set in the numbers of postponed work.
const PUT_OFF: u64 = 1 << 63;

/// An operation of a stream or a graph.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Kernel(Kernel),
    /// A copy, and host bytes that it has to keep.
    Copy(Copy3D, Option<Arc<Vec<u8>>>),
    Fill(Fill),
    Host(Host),
    Empty,
    /// The duration of an operation whose effect is already done.
    Timed(Time),
    /// Frees memory of the stream-ordered allocator.
    Free(u64),
    /// In graphs only: the graph inside a node, by its handle.
    Child(u64),
    Record(u64),
    Wait(u64),
    Alloc(Arc<GraphVa>),
}

/// Duration of an operation on the GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Time {
    /// A kernel, with the nanoseconds per block, its meeting (see [`Work`]), and the nanoseconds per block of the
    /// kernel that it starts.
    Blocks {
        shape: Shape,
        block_ns: u64,
        meeting: (u64, u64),
        starts_ns: u64,
    },
    Copy(Transfer),
    /// An event record.
    Record,
}

/// Work that waits for host functions.
#[derive(Debug)]
pub(crate) struct PutOff {
    pub context: u64,
    stream: Option<u64>,
    deps: Vec<u64>,
    /// `None` while it runs.
    op: Option<Op>,
    pub events: Vec<u64>,
}

/// Where to queue work: at the end of a stream, or after given work.
pub(crate) enum Place<'a> {
    Stream(u64),
    After { context: u64, deps: &'a [u64] },
}

impl Tables {
    /// The current number of work: its ticket once postponed work is on the board.
    pub(crate) fn actual(&self, id: u64) -> u64 {
        self.done.get(&id).copied().unwrap_or(id)
    }

    pub(crate) fn is_put_off(&self, id: u64) -> bool {
        self.put_off.contains_key(&id)
    }

    pub(crate) fn is_unfinished(&self, id: u64) -> bool {
        self.is_put_off(id)
            || self.live.contains_key(&self.actual(id))
            || self.imports.foreign.contains(&id)
    }

    /// The unfinished work among these, without duplicates.
    pub(crate) fn unfinished(&self, ids: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut list: Vec<u64> = ids.into_iter().map(|id| self.actual(id)).collect();
        list.retain(|id| self.is_unfinished(*id));
        list.sort_unstable();
        list.dedup();
        list
    }

    fn before_place(&self, place: &Place<'_>) -> R<(u64, Option<u64>, Vec<u64>)> {
        match *place {
            Place::Stream(s) => Ok((self.stream(s)?.context, Some(s), self.before(s)?)),
            Place::After { context, deps } => {
                Ok((context, None, self.unfinished(deps.iter().copied())))
            }
        }
    }

    fn put_off(&mut self, context: u64, stream: Option<u64>, deps: Vec<u64>, op: Op) -> u64 {
        let id = self.handle() | PUT_OFF;
        let item = PutOff {
            context,
            stream,
            deps,
            op: Some(op),
            events: Vec::new(),
        };
        self.put_off.insert(id, item);
        if let Some(s) = stream.and_then(|s| self.streams.get_mut(&s)) {
            s.last = id;
        }
        id
    }

    /// Takes the postponed work that waits for no host function any more.
    fn take_ready(&mut self) -> Vec<(u64, u64, Vec<u64>, Op)> {
        let ready = |p: &PutOff| p.op.is_some() && !p.deps.iter().any(|d| self.is_put_off(*d));
        let ids: Vec<u64> = self
            .put_off
            .iter()
            .filter(|(_, p)| ready(p))
            .map(|(id, _)| *id)
            .collect();
        let mut list = Vec::new();
        for id in ids {
            if let Some(p) = self.put_off.get_mut(&id)
                && let Some(op) = p.op.take()
            {
                list.push((id, p.context, p.deps.clone(), op));
            }
        }
        list
    }

    /// Replaces the number of postponed work by this ticket; 0: the work is over.
    fn resolve(&mut self, id: u64, ticket: u64) {
        let Some(p) = self.put_off.remove(&id) else {
            return;
        };
        let now = self.gpu_now();
        if let Some(live) = self.live.get_mut(&ticket) {
            live.stream = p.stream.unwrap_or(0);
            live.events.extend(&p.events);
            self.done.insert(id, ticket);
            for e in p.events {
                if let Some(event) = self.events.get_mut(&e) {
                    event.rename(id, ticket);
                }
            }
            return;
        }
        if let Some(s) = p.stream.and_then(|s| self.streams.get_mut(&s)) {
            s.end_ns = s.end_ns.max(now);
        }
        for e in p.events {
            if let Some(event) = self.events.get_mut(&e) {
                event.finish(id, now);
            }
        }
    }

    /// Adds work that reaches the GPU `way_ns` from now at the earliest.
    fn add_live(
        &mut self,
        ticket: u64,
        context: u64,
        stream: u64,
        deps: [u64; MAX_DEPS],
        way_ns: u64,
    ) {
        let before = self.streams.get(&stream).map_or(0, |s| s.end_ns);
        let live = Live {
            context,
            stream,
            deps,
            ready_ns: self.gpu_now() + way_ns,
            after_ns: before,
            lag_ns: self.gpu_lag(),
            events: Vec::new(),
        };
        self.live.insert(ticket, live);
    }
}

impl Driver {
    /// Runs or postpones an operation; returns the number of the work, 0 if it is over.
    pub(crate) fn push(&self, place: &Place<'_>, op: Op) -> R<u64> {
        {
            let mut t = self.tables();
            let (context, stream, before) = t.before_place(place)?;
            if matches!(op, Op::Host(_)) || before.iter().any(|d| t.is_put_off(*d)) {
                let op = self.keep_bytes(&t, op);
                let id = t.put_off(context, stream, before, op);
                let ready = t.take_ready();
                drop(t);
                self.do_ready(ready);
                return Ok(id);
            }
        }
        let context = self.tables().before_place(place)?.0;
        match self.perform(context, op)? {
            Some(time) => self.enqueue(place, Some(time)),
            None => match place {
                Place::Stream(_) => Ok(0),
                Place::After { .. } => self.join(place),
            },
        }
    }

    /// One number for all work before a place; 0 if it is over.
    pub(crate) fn join(&self, place: &Place<'_>) -> R<u64> {
        let (_, _, before) = self.tables().before_place(place)?;
        match before[..] {
            [] => Ok(0),
            [one] => Ok(one),
            _ => self.enqueue(place, None),
        }
    }

    /// Moves the bytes of an operation; returns its duration, if any.
    fn perform(&self, context: u64, op: Op) -> R<Option<Time>> {
        match op {
            Op::Kernel(k) => {
                return self.compute(&k);
            }
            Op::Timed(time) => return Ok(Some(time)),
            Op::Copy(c, _kept) => {
                let time = self.copy_time(context, &c)?;
                self.copy_now(&c)?;
                return Ok(time.map(Time::Copy));
            }
            Op::Fill(f) => {
                self.fill_now(&f)?;
                return Ok(self.fill_time(context, &f)?.map(Time::Copy));
            }
            Op::Free(addr) => self.device_free(&mut self.tables(), addr)?,
            // Handled where they are queued.
            Op::Host(_) | Op::Empty | Op::Child(_) | Op::Record(_) | Op::Wait(_) | Op::Alloc(_) => {
            }
        }
        Ok(None)
    }

    /// Runs work that waits for the board only.
    fn do_ready(&self, mut ready: Vec<(u64, u64, Vec<u64>, Op)>) {
        while !ready.is_empty() {
            let mut over = Vec::new();
            for (id, context, deps, op) in ready {
                if let Op::Host(host) = op {
                    if !start_host(id, context, deps, host) {
                        over.push((id, 0));
                    }
                    continue;
                }
                let place = Place::After {
                    context,
                    deps: &deps,
                };
                let done = self.perform(context, op).and_then(|time| match time {
                    Some(time) => self.enqueue(&place, Some(time)),
                    None => self.join(&place),
                });
                if let Err(code) = done
                    && let Some(c) = self.tables().contexts.get_mut(&context)
                {
                    c.sticky.get_or_insert(code);
                }
                over.push((id, done.unwrap_or(0)));
            }
            let mut t = self.tables();
            for (id, ticket) in over {
                t.resolve(id, ticket);
            }
            ready = t.take_ready();
        }
        self.changed.notify_all();
    }

    /// Starts what waited for a host function that has returned.
    fn host_returned(&self, id: u64) {
        let ready = {
            let mut t = self.tables();
            t.resolve(id, 0);
            t.take_ready()
        };
        self.changed.notify_all();
        self.do_ready(ready);
    }

    /// Queues a duration (or, without one, a marker) on the board; returns its ticket.
    fn enqueue(&self, place: &Place<'_>, time: Option<Time>) -> R<u64> {
        let mut joined = Vec::new();
        loop {
            let mut t = self.tables();
            let (context, stream, mut before) = t.before_place(place)?;
            if before.iter().any(|d| t.is_put_off(*d)) {
                // Another thread has queued a host function in the meantime.
                let op = time.map_or(Op::Empty, Op::Timed);
                return Ok(t.put_off(context, stream, before, op));
            }
            if !joined.is_empty() {
                before = t.unfinished(joined.clone());
            }
            let (gpu, board) = {
                let c = t.context(context)?;
                (c.gpu, c.board)
            };
            // Work has room for a few dependencies; markers join more.
            let join = before.len() > MAX_DEPS;
            let mut deps = [0; MAX_DEPS];
            for (d, b) in deps.iter_mut().zip(&before) {
                *d = *b;
            }
            let mut work = Work {
                gpu,
                context: board,
                shape: None,
                block_ns: 0,
                transfer: None,
                record: false,
                meeting: (0, 0),
                deps,
            };
            let time = time.filter(|_| !join);
            match time {
                Some(Time::Blocks {
                    shape,
                    block_ns,
                    meeting,
                    ..
                }) => {
                    work.shape = Some(shape);
                    (work.block_ns, work.meeting) = (block_ns, meeting);
                }
                Some(Time::Copy(transfer)) => work.transfer = Some(transfer),
                Some(Time::Record) => work.record = true,
                None => {}
            }
            match self.board.submit(self.slot, &work) {
                Ok((ticket, finished)) => {
                    t.absorb(&finished);
                    let way = time.map_or(0, |_| self.preset.launch.draw(ticket));
                    t.add_live(ticket, context, stream.unwrap_or(0), deps, way);
                    if join {
                        joined = before[MAX_DEPS..].to_vec();
                        joined.push(ticket);
                        continue;
                    }
                    if let Some(s) = stream.and_then(|s| t.streams.get_mut(&s)) {
                        s.last = ticket;
                    }
                    drop(t);
                    self.start_child(context, ticket, time)?;
                    return Ok(ticket);
                }
                Err(BoardError::Full { .. }) => {
                    // The queue is full: the launch waits, as on a real GPU.
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

    /// Queues the kernel that a kernel starts, outside all streams.
    fn start_child(&self, context: u64, parent: u64, time: Option<Time>) -> R {
        let Some(Time::Blocks {
            shape, starts_ns, ..
        }) = time.filter(|t| matches!(t, Time::Blocks { starts_ns: 1.., .. }))
        else {
            return Ok(());
        };
        let place = Place::After {
            context,
            deps: &[parent],
        };
        let child = Time::Blocks {
            shape,
            block_ns: starts_ns,
            meeting: (0, 0),
            starts_ns: 0,
        };
        self.enqueue(&place, Some(child)).map(drop)
    }

    pub(crate) fn wait_all(&self, ids: &[u64]) {
        for &id in ids {
            let ticket = {
                let mut t = self.tables();
                while t.is_put_off(id) {
                    t = self
                        .changed
                        .wait(t)
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                }
                t.actual(id)
            };
            if !self.tables().is_unfinished(ticket) {
                continue;
            }
            self.board.wait(ticket);
            let mut tables = self.tables();
            self.learn_faults(&mut tables);
            let finished = self.board.poll(self.slot);
            tables.absorb(&finished);
            tables.imports.foreign.remove(&ticket);
            // Work that the board no longer knows is over, too.
            let now = now_ns();
            tables.over(ticket, Some((now, now)));
        }
    }
}

/// Runs a host function on a thread of its own once earlier work is over.
fn start_host(id: u64, context: u64, deps: Vec<u64>, host: Host) -> bool {
    let thread = std::thread::Builder::new().name("cuda-callback".to_owned());
    let started = thread.spawn(move || {
        let Ok(d) = driver::get() else { return };
        d.wait_all(&deps);
        let code = {
            let t = d.tables();
            t.context(context)
                .map_or(INVALID_HANDLE, |c| c.sticky.unwrap_or(0))
        };
        host.call(code);
        d.host_returned(id);
    });
    if started.is_err()
        && let Ok(d) = driver::get()
        && let Some(c) = d.tables().contexts.get_mut(&context)
    {
        c.sticky.get_or_insert(UNKNOWN);
    }
    started.is_ok()
}
