//! Stream capture: work on some streams becomes nodes of a graph instead of running.
//!
//! A capture begins in one stream and spreads to those that wait for its events. Queries, waits and work that the
//! legacy default stream would order are refused and invalidate the capture, as the driver API documents.

use std::cell::Cell;
use std::collections::HashSet;

use crate::code::{
    CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURE_UNJOINED,
    CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, ILLEGAL_STATE, INVALID_HANDLE,
    INVALID_VALUE, R,
};
use crate::driver::{Driver, Tables};
use crate::ffi::{In, Out, export, export_stream};
use crate::graph::Edge;
use crate::op::Op;
use crate::stream::{NON_BLOCKING, Stream, thread_id};

const GLOBAL: u32 = 0;
/// The mode above thread-local (1).
const RELAXED: u32 = 2;

#[derive(Debug)]
pub(crate) struct Capture {
    graph: u64,
    /// The stream in which it began.
    origin: u64,
    thread: u64,
    mode: u32,
    is_invalid: bool,
    /// The program passed the graph and keeps it.
    into_given: bool,
    /// The last nodes of branches whose stream was destroyed.
    ended: Vec<u64>,
}

/// A stream's part in a capture.
#[derive(Debug)]
pub(crate) struct Captured {
    pub capture: u64,
    /// The nodes before the stream's next node.
    deps: Vec<u64>,
    edges: Vec<Edge>,
}

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

impl Tables {
    pub(crate) fn invalidate(&mut self, capture: u64) {
        if let Some(c) = self.captures.get_mut(&capture) {
            c.is_invalid = true;
        }
    }

    /// The capture that a stream is in; an error if the capture is invalid.
    fn capture_of(&self, stream: u64) -> R<Option<u64>> {
        let Some(c) = &self.stream(stream)?.capture else {
            return Ok(None);
        };
        match self.captures.get(&c.capture) {
            Some(capture) if capture.is_invalid => Err(CAPTURE_INVALIDATED),
            _ => Ok(Some(c.capture)),
        }
    }

    /// The captures that work on this stream would wait for. Empty unless it is the legacy stream.
    fn joined_captures(&self, stream: u64) -> R<Vec<u64>> {
        let s = self.stream(stream)?;
        if self.captures.is_empty() || !s.is_legacy {
            return Ok(Vec::new());
        }
        let joins = |o: &&Stream| o.context == s.context && o.flags & NON_BLOCKING == 0;
        let blocking = self.streams.values().filter(joins);
        Ok(blocking
            .filter_map(|o| Some(o.capture.as_ref()?.capture))
            .collect())
    }

    /// Puts a node at the end of a capturing stream.
    fn append(&mut self, stream: u64, capture: u64, op: Op) -> R<u64> {
        let graph = self.captures.get(&capture).ok_or(ILLEGAL_STATE)?.graph;
        let deps = match &self.stream(stream)?.capture {
            Some(c) => c.deps.clone(),
            None => return Err(ILLEGAL_STATE),
        };
        let node = self.add_node(graph, &deps, op)?;
        self.set_deps(stream, vec![node]);
        Ok(node)
    }

    fn set_deps(&mut self, stream: u64, deps: Vec<u64>) {
        if let Some(c) = self
            .streams
            .get_mut(&stream)
            .and_then(|s| s.capture.as_mut())
        {
            c.edges = vec![Edge::default(); deps.len()];
            c.deps = deps;
        }
    }

    fn begin(&mut self, stream: u64, graph: u64, mode: u32, given: Option<Vec<u64>>) -> R {
        let capture = self.handle();
        let into_given = given.is_some();
        let deps = given.unwrap_or_default();
        self.captures.insert(
            capture,
            Capture {
                graph,
                origin: stream,
                thread: thread_id(),
                mode,
                is_invalid: false,
                into_given,
                ended: Vec::new(),
            },
        );
        let s = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        s.capture = Some(Captured {
            capture,
            edges: vec![Edge::default(); deps.len()],
            deps,
        });
        Ok(())
    }

    /// Removes a stream from its capture. A branch ends; without its origin the capture is invalid.
    pub(crate) fn leave_capture(&mut self, stream: u64) {
        let Some(c) = self.streams.get_mut(&stream).and_then(|s| s.capture.take()) else {
            return;
        };
        if let Some(capture) = self.captures.get_mut(&c.capture) {
            capture.is_invalid |= capture.origin == stream;
            capture.ended.extend(c.deps);
        }
    }

    /// Ends a capture, so that its streams work normally again; returns the last nodes of the origin, and those of the
    /// other streams.
    fn end(&mut self, capture: u64, origin: u64) -> (Vec<u64>, Vec<u64>) {
        let mut own = Vec::new();
        let ended = self.captures.get_mut(&capture);
        let mut others = ended.map_or_else(Vec::new, |c| std::mem::take(&mut c.ended));
        for (handle, s) in &mut self.streams {
            if s.capture.as_ref().is_some_and(|c| c.capture == capture)
                && let Some(c) = s.capture.take()
            {
                if *handle == origin {
                    own = c.deps;
                } else {
                    others.extend(c.deps);
                }
            }
        }
        for e in self.events.values_mut() {
            if e.captured.as_ref().is_some_and(|c| c.0 == capture) {
                e.captured = None;
            }
        }
        (own, others)
    }
}

impl Driver {
    /// The stream for new work. An error, which invalidates the captures, if the legacy stream would wait for capturing
    /// streams.
    pub(crate) fn op_stream(&self, handle: u64) -> R<u64> {
        let s = self.stream(handle)?;
        let mut t = self.tables();
        let joined = t.joined_captures(s)?;
        for c in &joined {
            t.invalidate(*c);
        }
        if joined.is_empty() {
            Ok(s)
        } else {
            Err(CAPTURE_IMPLICIT)
        }
    }

    /// The same for queries, which invalidate nothing.
    fn asked_stream(&self, handle: u64) -> R<u64> {
        let s = self.stream(handle)?;
        match self.tables().joined_captures(s)?[..] {
            [] => Ok(s),
            _ => Err(CAPTURE_IMPLICIT),
        }
    }

    /// Refuses a call that capturing streams do not support.
    pub(crate) fn forbid_capture(&self, stream: u64) -> R {
        let mut t = self.tables();
        match t.capture_of(stream)? {
            None => Ok(()),
            Some(capture) => {
                t.invalidate(capture);
                Err(CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Refuses a potentially unsafe call during a capture, by the thread's mode.
    pub(crate) fn unsafe_call(&self) -> R {
        let mut t = self.tables();
        if t.captures.is_empty() {
            return Ok(());
        }
        let (mode, thread) = (MODE.with(Cell::get), thread_id());
        let hit = |c: &Capture| {
            let own = c.thread == thread && c.mode != RELAXED;
            let other = c.thread != thread && c.mode == GLOBAL && mode == GLOBAL;
            mode != RELAXED && (own || other)
        };
        let mut any = false;
        for c in t.captures.values_mut().filter(|c| hit(c)) {
            c.is_invalid = true;
            any = true;
        }
        if any {
            Err(CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }

    /// Captures an operation if the stream is in a capture; returns the node.
    pub(crate) fn captured(&self, stream: u64, op: &Op) -> R<Option<u64>> {
        let mut t = self.tables();
        match t.capture_of(stream)? {
            None => Ok(None),
            Some(capture) => t.append(stream, capture, op.clone()).map(Some),
        }
    }

    /// Records an event in a capturing stream, as a place in the graph.
    pub(crate) fn capture_record(&self, stream: u64, event: u64) -> R<bool> {
        let mut t = self.tables();
        let Some(capture) = t.capture_of(stream)? else {
            return Ok(false);
        };
        let deps = match &t.stream(stream)?.capture {
            Some(c) => c.deps.clone(),
            None => Vec::new(),
        };
        let e = t.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        e.captured = Some((capture, deps));
        Ok(true)
    }

    /// Draws the stream into a capture by a wait for a captured event; false if no capture is involved.
    pub(crate) fn capture_wait(&self, stream: u64, event: u64) -> R<bool> {
        let mut t = self.tables();
        let own = t.capture_of(stream)?;
        let of_event = t.events.get(&event).ok_or(INVALID_HANDLE)?.captured.clone();
        let (capture, nodes) = match (own, of_event) {
            (None, None) => return Ok(false),
            (Some(own), None) => {
                t.invalidate(own);
                return Err(CAPTURE_ISOLATION);
            }
            (Some(own), Some((other, _))) if own != other => {
                t.invalidate(own);
                t.invalidate(other);
                return Err(CAPTURE_MERGE);
            }
            (_, Some(found)) => found,
        };
        if t.captures.get(&capture).is_none_or(|c| c.is_invalid) {
            return Err(CAPTURE_INVALIDATED);
        }
        let s = t.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        if s.is_legacy {
            t.invalidate(capture);
            return Err(CAPTURE_IMPLICIT);
        }
        let mut deps = s.capture.as_ref().map_or_else(Vec::new, |c| c.deps.clone());
        for n in nodes {
            if !deps.contains(&n) {
                deps.push(n);
            }
        }
        s.capture.get_or_insert(Captured {
            capture,
            deps: Vec::new(),
            edges: Vec::new(),
        });
        t.set_deps(stream, deps);
        Ok(true)
    }

    fn begin_capture(&self, stream: u64, mode: u32, given: Option<(u64, Vec<u64>)>) -> R {
        let s = self.stream(stream)?;
        let mut t = self.tables();
        if mode > RELAXED {
            return Err(INVALID_VALUE);
        }
        let found = t.stream(s)?;
        if found.is_legacy {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if found.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        match given {
            Some((graph, deps)) => {
                t.check_nodes(graph, &deps)?;
                t.begin(s, graph, mode, Some(deps))
            }
            None => {
                let graph = t.new_graph();
                t.begin(s, graph, mode, None)
            }
        }
    }

    fn end_capture(&self, stream: u64, out: Out<u64>) -> R {
        out.check()?;
        let s = self.stream(stream)?;
        let mut t = self.tables();
        let capture = match &t.stream(s)?.capture {
            Some(c) => c.capture,
            None => return Err(ILLEGAL_STATE),
        };
        let c = t.captures.get(&capture).ok_or(ILLEGAL_STATE)?;
        if c.origin != s {
            t.invalidate(capture);
            return Err(CAPTURE_UNMATCHED);
        }
        if c.mode != RELAXED && c.thread != thread_id() {
            return Err(CAPTURE_WRONG_THREAD);
        }
        let (graph, is_invalid, into_given) = (c.graph, c.is_invalid, c.into_given);
        let (own, others) = t.end(capture, s);
        t.captures.remove(&capture);
        let joined = t.with_ancestors(graph, own);
        let unjoined = others.iter().any(|n| !joined.contains(n));
        if is_invalid || unjoined {
            if !into_given {
                t.destroy_graph(graph);
            }
            out.set(0)?;
            return Err(if is_invalid {
                CAPTURE_INVALIDATED
            } else {
                CAPTURE_UNJOINED
            });
        }
        out.set(graph)
    }
}

impl Tables {
    /// These nodes and all that come before them.
    fn with_ancestors(&self, graph: u64, nodes: Vec<u64>) -> HashSet<u64> {
        let mut seen = HashSet::new();
        let mut todo = nodes;
        while let Some(n) = todo.pop() {
            if seen.insert(n) {
                todo.extend(self.dependencies_of(graph, n));
            }
        }
        seen
    }
}

/// What the three generations of `cuStreamGetCaptureInfo` ask for.
struct Info {
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    deps: Out<*const u64>,
    edges: Out<*const Edge>,
    count: Out<usize>,
}

impl Info {
    fn answer(&self, d: &Driver, stream: u64) -> R {
        let s = d.asked_stream(stream)?;
        let t = d.tables();
        let found = &t.stream(s)?.capture;
        let capture = found.as_ref().and_then(|c| t.captures.get(&c.capture));
        let (Some(found), Some(capture)) = (found, capture) else {
            return self.status.set(0);
        };
        if capture.is_invalid {
            return self.status.set(2);
        }
        self.id.set_if(found.capture);
        self.graph.set_if(capture.graph);
        self.deps.set_if(found.deps.as_ptr());
        self.edges.set_if(found.edges.as_ptr());
        self.count.set_if(found.deps.len());
        self.status.set(1)
    }
}

fn update_deps(d: &Driver, stream: u64, nodes: In<u64>, count: usize, flags: u32) -> R {
    let s = d.stream(stream)?;
    let mut t = d.tables();
    let capture = t.capture_of(s)?.ok_or(ILLEGAL_STATE)?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let nodes = nodes.list(count)?;
    let graph = t.captures.get(&capture).ok_or(ILLEGAL_STATE)?.graph;
    t.check_nodes(graph, &nodes)?;
    let mut deps = match (&t.stream(s)?.capture, flags) {
        (Some(c), 0) => c.deps.clone(),
        _ => Vec::new(),
    };
    deps.extend(nodes);
    t.set_deps(s, deps);
    Ok(())
}

export! {
    cuThreadExchangeStreamCaptureMode(mode: Out<u32>) |_d| {
        mode.check()?;
        let wanted = In::<u32>::from_addr(mode.addr()).get()?;
        if wanted > RELAXED {
            return Err(INVALID_VALUE);
        }
        mode.set(MODE.with(|m| m.replace(wanted)))
    };
}

export_stream! {
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz(; stream) |d| {
        d.begin_capture(stream, GLOBAL, None)
    };
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz(; stream, mode: u32) |d| {
        d.begin_capture(stream, mode, None)
    };
    cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz(
        ; stream, graph: u64, nodes: In<u64>, _edges: In<Edge>, count: usize, mode: u32
    ) |d| {
        let nodes = nodes.list(count)?;
        d.begin_capture(stream, mode, Some((graph, nodes)))
    };
    cuStreamEndCapture, cuStreamEndCapture_ptsz(; stream, out: Out<u64>) |d| {
        d.end_capture(stream, out)
    };
    cuStreamIsCapturing, cuStreamIsCapturing_ptsz(; stream, out: Out<u32>) |d| {
        out.check()?;
        let s = d.asked_stream(stream)?;
        let t = d.tables();
        let found = &t.stream(s)?.capture;
        let capture = found.as_ref().and_then(|c| t.captures.get(&c.capture));
        out.set(capture.map_or(0, |c| if c.is_invalid { 2 } else { 1 }))
    };
    cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz(
        ; stream, status: Out<u32>, id: Out<u64>
    ) |d| Info {
        status,
        id,
        graph: Out::NULL,
        deps: Out::NULL,
        edges: Out::NULL,
        count: Out::NULL,
    }.answer(d, stream);
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz(
        ; stream, status: Out<u32>, id: Out<u64>, graph: Out<u64>, deps: Out<*const u64>,
        count: Out<usize>
    ) |d| Info { status, id, graph, deps, edges: Out::NULL, count }.answer(d, stream);
    cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz(
        ; stream, status: Out<u32>, id: Out<u64>, graph: Out<u64>, deps: Out<*const u64>,
        edges: Out<*const Edge>, count: Out<usize>
    ) |d| Info { status, id, graph, deps, edges, count }.answer(d, stream);
    cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz(
        ; stream, nodes: In<u64>, count: usize, flags: u32
    ) |d| update_deps(d, stream, nodes, count, flags);
    cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz(
        ; stream, nodes: In<u64>, _edges: In<Edge>, count: usize, flags: u32
    ) |d| update_deps(d, stream, nodes, count, flags);
}
