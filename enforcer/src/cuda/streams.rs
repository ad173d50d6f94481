//! Streams, events, graphs and asynchronous copies, for the benchmarks' programs.

#![allow(
    unsafe_code,
    reason = "calls into libcuda; every block states why it is sound"
)]

use std::ffi::{c_int, c_uint, c_void};

use super::CudaError;
use super::sys::{Buffer, Context, Function, Handle, functions, symbol};

functions! {
    stream: "cuStreamCreate", fn(*mut Handle, c_uint);
    event: "cuEventCreate", fn(*mut Handle, c_uint);
    record: "cuEventRecord", fn(Handle, Handle);
    wait: "cuEventSynchronize", fn(Handle);
    begin: "cuStreamBeginCapture_v2", fn(Handle, c_int);
    end: "cuStreamEndCapture", fn(Handle, *mut Handle);
    instantiate: "cuGraphInstantiateWithFlags", fn(*mut Handle, Handle, u64);
    graph_launch: "cuGraphLaunch", fn(Handle, Handle);
    launch: "cuLaunchKernel", fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    host_alloc: "cuMemAllocHost_v2", fn(*mut *mut c_void, usize);
    copy: "cuMemcpyHtoDAsync_v2", fn(u64, *const c_void, usize, Handle);
}

#[derive(Clone, Copy, Debug)]
pub struct Stream(Handle);

/// An event whose waiting threads sleep.
#[derive(Clone, Copy, Debug)]
pub struct Event(Handle);

/// An executable graph.
#[derive(Clone, Copy, Debug)]
pub struct Graph(Handle);

/// Pinned host memory, kept until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    address: *mut c_void,
    bytes: usize,
}

/// Further streams of a context. They live until the process ends.
#[derive(Debug)]
pub struct Streams<'a> {
    context: &'a Context,
    functions: Functions,
}

/// Streams that do not wait for the default stream.
const NON_BLOCKING: c_uint = 1;
/// Waiting threads sleep; no times are recorded.
const EVENT_FLAGS: c_uint = 1 | 2;
/// Only the capturing thread's calls matter.
const THREAD_LOCAL: c_int = 1;

impl<'a> Streams<'a> {
    /// Looks up the functions.
    pub fn of(context: &'a Context) -> Result<Self, CudaError> {
        Ok(Self {
            context,
            functions: Functions::find(context.library())?,
        })
    }

    /// Makes a stream.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        let code = unsafe { (self.functions.stream)(&raw mut stream, NON_BLOCKING) };
        self.context.check("cuStreamCreate", code)?;
        Ok(Stream(stream))
    }

    /// Makes an event.
    pub fn event(&self) -> Result<Event, CudaError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        let code = unsafe { (self.functions.event)(&raw mut event, EVENT_FLAGS) };
        self.context.check("cuEventCreate", code)?;
        Ok(Event(event))
    }

    /// Records an event behind the stream's work.
    pub fn record(&self, event: Event, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: both were made by this driver and live.
        let code = unsafe { (self.functions.record)(event.0, stream.0) };
        self.context.check("cuEventRecord", code)
    }

    /// Sleeps until an event has occurred.
    ///
    /// # Errors
    /// What a kernel before it failed with.
    pub fn wait(&self, event: Event) -> Result<(), CudaError> {
        // SAFETY: made by this driver and alive.
        let code = unsafe { (self.functions.wait)(event.0) };
        self.context.check("cuEventSynchronize", code)
    }

    /// Launches one block of a kernel without parameters.
    pub fn launch(&self, kernel: Function, stream: Stream) -> Result<(), CudaError> {
        self.launch_blocks(kernel, 1, stream)
    }

    /// Launches blocks of 32 threads of a kernel without parameters.
    pub fn launch_blocks(
        &self,
        kernel: Function,
        blocks: u32,
        stream: Stream,
    ) -> Result<(), CudaError> {
        let none = std::ptr::null_mut();
        // SAFETY: the kernel takes no parameters, as the caller vouches; kernel and stream live.
        let code = unsafe {
            (self.functions.launch)(kernel.0, blocks, 1, 1, 32, 1, 1, 0, stream.0, none, none)
        };
        self.context.check("cuLaunchKernel", code)
    }

    /// Captures the launches of `work` on a stream as a graph.
    pub fn graph(
        &self,
        stream: Stream,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        // SAFETY: the stream lives.
        let code = unsafe { (self.functions.begin)(stream.0, THREAD_LOCAL) };
        self.context.check("cuStreamBeginCapture", code)?;
        work()?;
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream captures; the out pointer is valid.
        let code = unsafe { (self.functions.end)(stream.0, &raw mut graph) };
        self.context.check("cuStreamEndCapture", code)?;
        // SAFETY: the graph was just made; the out pointer is valid.
        let code = unsafe { (self.functions.instantiate)(&raw mut exec, graph, 0) };
        self.context.check("cuGraphInstantiateWithFlags", code)?;
        Ok(Graph(exec))
    }

    /// Launches a graph.
    pub fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: both were made by this driver and live.
        let code = unsafe { (self.functions.graph_launch)(graph.0, stream.0) };
        self.context.check("cuGraphLaunch", code)
    }

    /// Allocates pinned host memory.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, CudaError> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        let code = unsafe { (self.functions.host_alloc)(&raw mut address, bytes) };
        self.context.check("cuMemAllocHost", code)?;
        Ok(Pinned { address, bytes })
    }

    /// Copies pinned memory to the device asynchronously, as much as fits.
    pub fn copy(&self, to: Buffer, from: Pinned, stream: Stream) -> Result<(), CudaError> {
        let bytes = to.bytes.min(from.bytes);
        // SAFETY: pinned memory is never given back, and the length lies within both.
        let code = unsafe { (self.functions.copy)(to.address, from.address, bytes, stream.0) };
        self.context.check("cuMemcpyHtoDAsync", code)
    }
}
