//! Streams and events: their times on the board.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::support::{Context, PTX, alloc, kernel, launch};
use crate::{cu, ok};

/// Tests that measure run one at a time, on a GPU that no other test launches on.
pub(crate) fn alone() -> (MutexGuard<'static, ()>, Context, u64) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let c = Context::on(2);
    let f = kernel(PTX, "slow");
    (guard, c, f)
}

/// Measures on a GPU without other work, and again after a wrong figure, up to five times: on a busy machine a launch
/// may be late by any time, but seldom five times in a row.
pub(crate) fn measured(what: impl Fn(u64)) {
    let (_one, _c, f) = alone();
    for again in (0..5).rev() {
        match catch_unwind(AssertUnwindSafe(|| what(f))) {
            Ok(()) => return,
            Err(why) if again == 0 => resume_unwind(why),
            Err(_) => println!("measured once more"),
        }
        ok!(cuCtxSynchronize());
    }
}

pub(crate) fn stream(flags: u32) -> u64 {
    let mut s = 0u64;
    ok!(cuStreamCreate(&raw mut s, flags));
    s
}

pub(crate) fn event() -> u64 {
    let mut e = 0u64;
    ok!(cuEventCreate(&raw mut e, 0u32));
    e
}

pub(crate) fn elapsed(start: u64, end: u64) -> f32 {
    let mut ms = -1f32;
    ok!(cuEventElapsedTime(&raw mut ms, start, end));
    ms
}

/// Checks within the error of rounding, a neighbour's context on the same GPU and late launches of a busy machine.
pub(crate) fn close(ms: f32, expect: f32) {
    assert!(
        (-1.0..3.0).contains(&(ms - expect)),
        "{ms} ms, not {expect} ms"
    );
}

#[test]
fn one_stream_is_a_queue_and_two_run_side_by_side() {
    measured(|f| {
        let (s, t) = (stream(1), stream(1));
        let (start, end, end_t) = (event(), event(), event());
        ok!(cuEventRecord(start, s));
        for _ in 0..3 {
            assert_eq!(launch(f, 10, 128, s, &mut []), 0);
        }
        ok!(cuEventRecord(end, s));
        assert_eq!(cu!(cuStreamQuery(s)), 600);
        assert_eq!(cu!(cuEventQuery(end)), 600);
        let mut ms = 0f32;
        assert_eq!(cu!(cuEventElapsedTime(&raw mut ms, start, end)), 600);
        ok!(cuEventSynchronize(end));
        ok!(cuStreamQuery(s));
        close(elapsed(start, end), 15.0);
        // Two kernels of 10 blocks leave SMs for each other.
        ok!(cuEventRecord(start, s));
        assert_eq!(launch(f, 10, 128, s, &mut []), 0);
        assert_eq!(launch(f, 10, 128, t, &mut []), 0);
        ok!(cuEventRecord(end, s));
        ok!(cuEventRecord(end_t, t));
        ok!(cuCtxSynchronize());
        close(elapsed(start, end), 5.0);
        close(elapsed(start, end_t), 5.0);
        // Three waves on 132 SMs of 16 resident blocks each.
        ok!(cuEventRecord(start, s));
        assert_eq!(launch(f, 132 * 16 * 2 + 1, 128, s, &mut []), 0);
        ok!(cuEventRecord(end, s));
        ok!(cuStreamSynchronize(s));
        close(elapsed(start, end), 15.0);
    });
}

#[test]
fn many_streams_before_one_legacy_launch() {
    let (_one, _c, f) = alone();
    let streams: Vec<u64> = (0..11).map(|_| stream(0)).collect();
    let (start, end) = (event(), event());
    ok!(cuEventRecord(start, 0u64));
    for s in &streams {
        assert_eq!(launch(f, 1, 32, *s, &mut []), 0);
    }
    assert_eq!(launch(f, 1, 32, 0, &mut []), 0);
    ok!(cuEventRecord(end, 0u64));
    ok!(cuStreamSynchronize(0u64));
    // Side by side, then the last: far from the 60 ms of a queue, whatever the launch costs.
    let ms = elapsed(start, end);
    assert!((9.9..30.0).contains(&ms), "{ms} ms");
}

#[test]
fn a_long_queue_makes_launches_wait_and_nothing_is_lost() {
    let (_one, _c, f) = alone();
    let s = stream(1);
    let (start, end) = (event(), event());
    ok!(cuEventRecord(start, s));
    for _ in 0..200 {
        assert_eq!(launch(f, 1, 32, s, &mut []), 0);
    }
    ok!(cuEventRecord(end, s));
    ok!(cuStreamSynchronize(s));
    let ms = elapsed(start, end);
    assert!(
        (999.0..1100.0).contains(&ms),
        "{ms} ms for 200 kernels of 5 ms"
    );
}

/// A copy takes time in its stream, beside kernels of other streams; the call returns earlier.
#[test]
fn long_copies_take_time_in_their_stream() {
    const BYTES: usize = 64 << 20;
    measured(|f| {
        let (s, t) = (stream(1), stream(1));
        let (start, end) = (event(), event());
        let mut host = std::ptr::null_mut::<c_void>();
        ok!(cuMemHostAlloc(&raw mut host, BYTES, 0u32));
        let (a, b) = (alloc(BYTES), alloc(BYTES));
        // Touches the memory once, so that the kernel has handled its page faults.
        ok!(cuMemcpyHtoDAsync_v2(a, host, BYTES, s));
        ok!(cuMemcpyDtoDAsync_v2(b, a, BYTES, s));
        ok!(cuCtxSynchronize());
        let begun = std::time::Instant::now();
        ok!(cuMemcpyHtoD_v2(a, host, BYTES));
        let took = begun.elapsed().as_secs_f32() * 1e3;
        // 64 MiB at 2 GB/s are 33.6 ms: the synchronous call takes at least that.
        assert!(took > 33.5, "{took} ms");
        assert_eq!(launch(f, 10, 128, t, &mut []), 0);
        ok!(cuMemcpyHtoDAsync_v2(a, host, BYTES, s));
        assert_eq!(cu!(cuStreamQuery(s)), 600, "it is under way");
        ok!(cuStreamSynchronize(s));
        // Between events; a copy on the device is much faster.
        ok!(cuMemcpyHtoDAsync_v2(a, host, BYTES, s));
        ok!(cuEventRecord(start, s));
        ok!(cuMemsetD8Async(b, 7u32, BYTES, s));
        ok!(cuEventRecord(end, s));
        ok!(cuStreamSynchronize(s));
        close(elapsed(start, end), 0.04);
        // Short copies are over at once.
        ok!(cuMemcpyHtoDAsync_v2(a, host, 4096usize, s));
        assert_eq!(cu!(cuStreamQuery(s)), 0);
        ok!(cuMemFree_v2(a));
        ok!(cuMemFree_v2(b));
        ok!(cuMemFreeHost(host));
    });
}

#[test]
fn a_pair_of_events_measures_the_way_of_a_launch_on_an_idle_stream_only() {
    measured(|f| {
        let s = stream(1);
        let (begin, idle, first, second) = (event(), event(), event(), event());
        ok!(cuEventRecord(begin, s));
        ok!(cuEventRecord(idle, s));
        ok!(cuStreamSynchronize(s));
        // The record itself takes time on the GPU.
        assert!(
            elapsed(begin, idle) >= 0.000_999,
            "{}",
            elapsed(begin, idle)
        );
        assert_eq!(launch(f, 10, 128, s, &mut []), 0);
        ok!(cuEventRecord(first, s));
        assert_eq!(launch(f, 10, 128, s, &mut []), 0);
        ok!(cuEventRecord(second, s));
        ok!(cuStreamSynchronize(s));
        // 2 to 4 us of latency and 1 us for the record itself, beside the 5 ms and this thread's own time.
        assert!(elapsed(idle, first) >= 5.003, "{}", elapsed(idle, first));
        // After other work the latency is hidden: only the kernel and the record count.
        let behind = elapsed(first, second);
        assert!((behind - 5.001).abs() < 1e-4, "{behind}");
    });
}
