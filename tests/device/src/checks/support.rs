//! Shared by several checks: contexts, streams, memory, kernels, and gates that hold a stream.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::{cu, need};

pub(super) const INVALID_VALUE: u32 = 1;
pub(super) const OUT_OF_MEMORY: u32 = 2;
pub(super) const NOT_INITIALIZED: u32 = 3;
pub(super) const INVALID_CONTEXT: u32 = 201;
pub(super) const INVALID_HANDLE: u32 = 400;
pub(super) const CONTEXT_IS_DESTROYED: u32 = 709;
pub(super) const NOT_READY: u32 = 600;

/// Time limit for work that nothing holds back.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// A new context on the first device, current on this thread.
pub(super) fn context() -> u64 {
    need!(cuInit(0u32));
    let mut c = 0u64;
    need!(cuCtxCreate_v2(&raw mut c, 0u32, 0i32));
    c
}

/// An attribute of the first device.
pub(super) fn attribute(which: u32) -> i32 {
    let mut v = 0i32;
    need!(cuDeviceGetAttribute(&raw mut v, which, 0i32));
    v
}

pub(super) fn version() -> i32 {
    let mut v = 0i32;
    need!(cuDriverGetVersion(&raw mut v));
    v
}

pub(super) fn alloc(bytes: usize) -> u64 {
    let mut p = 0u64;
    need!(cuMemAlloc_v2(&raw mut p, bytes));
    p
}

/// Free and total bytes.
pub(super) fn info() -> (usize, usize) {
    let (mut free, mut total) = (0usize, 0usize);
    need!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    (free, total)
}

pub(super) fn upload<T>(to: u64, values: &[T]) {
    need!(cuMemcpyHtoD_v2(to, values.as_ptr(), size_of_val(values)));
}

pub(super) fn download<T: Default + Clone>(from: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let bytes = size_of_val(&values[..]);
    need!(cuMemcpyDtoH_v2(values.as_mut_ptr(), from, bytes));
    values
}

/// A stream; `flags` 1 means non-blocking.
pub(super) fn stream(flags: u32) -> u64 {
    let mut s = 0u64;
    need!(cuStreamCreate(&raw mut s, flags));
    s
}

pub(super) fn event(flags: u32) -> u64 {
    let mut e = 0u64;
    need!(cuEventCreate(&raw mut e, flags));
    e
}

/// Holds a stream until it is opened, by a host function that waits.
#[derive(Debug)]
pub(super) struct Gate {
    open: AtomicBool,
    pub calls: AtomicU32,
}

extern "C" fn wait_at(gate: *mut c_void) {
    // SAFETY: gates are leaked, so the pointer stays valid.
    let gate = unsafe { &*gate.cast::<Gate>() };
    gate.calls.fetch_add(1, Ordering::SeqCst);
    while !gate.open.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

extern "C" fn pass(gate: *mut c_void) {
    // SAFETY: as in `wait_at`.
    let gate = unsafe { &*gate.cast::<Gate>() };
    gate.calls.fetch_add(1, Ordering::SeqCst);
}

pub(super) type HostFn = extern "C" fn(*mut c_void);

pub(super) const WAIT: HostFn = wait_at;
pub(super) const PASS: HostFn = pass;

impl Gate {
    pub(super) fn new() -> &'static Gate {
        Box::leak(Box::new(Gate {
            open: AtomicBool::new(false),
            calls: AtomicU32::new(0),
        }))
    }

    /// Puts a closed gate into a stream.
    pub(super) fn close(stream: u64) -> &'static Gate {
        let gate = Gate::new();
        need!(cuLaunchHostFunc(stream, WAIT, gate.data()));
        gate
    }

    pub(super) fn data(&'static self) -> *const c_void {
        std::ptr::from_ref(self).cast()
    }

    pub(super) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    pub(super) fn count(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Loads PTX into the current context.
pub(super) fn module(ptx: &str) -> u64 {
    let text = CString::new(ptx).unwrap_or_default();
    let mut m = 0u64;
    need!(cuModuleLoadData(&raw mut m, text.as_ptr()));
    m
}

pub(super) fn function(module: u64, name: &str) -> u64 {
    let name = CString::new(name).unwrap_or_default();
    let mut f = 0u64;
    need!(cuModuleGetFunction(&raw mut f, module, name.as_ptr()));
    f
}

/// A kernel of [`PTX`].
pub(super) fn kernel(name: &str) -> u64 {
    function(module(PTX), name)
}

/// Launches with one-dimensional grid and block; parameters are passed by address.
pub(super) fn launch(f: u64, grid: u32, block: u32, stream: u64, params: &[*const c_void]) -> u32 {
    let none = std::ptr::null::<*const c_void>();
    let list = params.as_ptr();
    cu!(cuLaunchKernel(
        f, grid, 1u32, 1u32, block, 1u32, 1u32, 0u32, stream, list, none
    ))
}

/// The address of a parameter's value.
pub(super) fn param<T>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

/// `add(p, n, v)` adds `v` to `n` words; `sum(out, in, n)` adds up `n` words with shared memory, barriers and an
/// atomic; `votes(out)` shuffles and ballots in one warp; `wild(p)` writes to `p`.
pub(super) const PTX: &str = r"
.version 6.4
.target sm_60
.address_size 64

.visible .global .align 4 .u32 table[4] = {11, 22, 33, 44};

.visible .entry add(.param .u64 p, .param .u32 n, .param .u32 v)
{
    .reg .pred %q;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [p];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [v];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %q, %r6, %r1;
    @%q bra DONE;
    cvta.to.global.u64 %d1, %d1;
    mul.wide.u32 %d2, %r6, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.u32 %r7, [%d3];
    add.u32 %r7, %r7, %r2;
    st.global.u32 [%d3], %r7;
DONE:
    ret;
}

.visible .entry sum(.param .u64 out, .param .u64 src, .param .u32 n)
{
    .shared .align 4 .b8 part[1024];
    .reg .pred %q<3>;
    .reg .b32 %r<16>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [src];
    ld.param.u32 %r1, [n];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mov.u32 %r6, 0;
    setp.ge.u32 %q1, %r5, %r1;
    @%q1 bra STORE;
    mul.wide.u32 %d3, %r5, 4;
    add.s64 %d4, %d2, %d3;
    ld.global.u32 %r6, [%d4];
STORE:
    shl.b32 %r7, %r4, 2;
    mov.u32 %r8, part;
    add.u32 %r9, %r8, %r7;
    st.shared.u32 [%r9], %r6;
    bar.sync 0;
    shr.u32 %r10, %r3, 1;
LOOP:
    setp.eq.u32 %q1, %r10, 0;
    @%q1 bra END;
    setp.ge.u32 %q2, %r4, %r10;
    @%q2 bra NEXT;
    shl.b32 %r11, %r10, 2;
    add.u32 %r12, %r9, %r11;
    ld.shared.u32 %r13, [%r12];
    ld.shared.u32 %r14, [%r9];
    add.u32 %r14, %r14, %r13;
    st.shared.u32 [%r9], %r14;
NEXT:
    bar.sync 0;
    shr.u32 %r10, %r10, 1;
    bra LOOP;
END:
    setp.ne.u32 %q1, %r4, 0;
    @%q1 bra DONE;
    ld.shared.u32 %r15, [part];
    red.global.add.u32 [%d1], %r15;
DONE:
    ret;
}

.visible .entry votes(.param .u64 out)
{
    .reg .pred %q<3>;
    .reg .b32 %r<8>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [out];
    cvta.to.global.u64 %d1, %d1;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %r1;
    shfl.sync.down.b32 %r3, %r2, 16, 31, 0xffffffff;
    add.u32 %r2, %r2, %r3;
    shfl.sync.down.b32 %r3, %r2, 8, 31, 0xffffffff;
    add.u32 %r2, %r2, %r3;
    shfl.sync.down.b32 %r3, %r2, 4, 31, 0xffffffff;
    add.u32 %r2, %r2, %r3;
    shfl.sync.down.b32 %r3, %r2, 2, 31, 0xffffffff;
    add.u32 %r2, %r2, %r3;
    shfl.sync.down.b32 %r3, %r2, 1, 31, 0xffffffff;
    add.u32 %r2, %r2, %r3;
    setp.lt.u32 %q1, %r1, 5;
    vote.sync.ballot.b32 %r4, %q1, 0xffffffff;
    setp.ne.u32 %q2, %r1, 0;
    @%q2 bra DONE;
    st.global.u32 [%d1], %r2;
    st.global.u32 [%d1+4], %r4;
DONE:
    ret;
}

.visible .entry wild(.param .u64 p)
{
    .reg .b32 %r1;
    .reg .b64 %d1;
    ld.param.u64 %d1, [p];
    mov.u32 %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}
";
