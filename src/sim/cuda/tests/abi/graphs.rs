//! Graphs and work behind host functions: their results, and their times on the board.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Context, download, kernel, launch, upload};
use crate::time::{alone, close, elapsed, event, measured, stream};
use crate::{cu, ok};

/// `x = 3 x + 1` on one word; and a kernel whose blocks wait for each other.
const STEP: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry step(.param .u64 p)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [p];
    cvta.to.global.u64 %d1, %d1;
    ld.global.u32 %r1, [%d1];
    mad.lo.u32 %r2, %r1, 3, 1;
    st.global.u32 [%d1], %r2;
    ret;
}
.visible .entry meet(.param .u64 p)
{
    .reg .pred %q;
    .reg .b32 %r<3>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [p];
    cvta.to.global.u64 %d1, %d1;
    red.global.add.u32 [%d1], 1;
    mov.u32 %r2, %nctaid.x;
AGAIN:
    ld.global.u32 %r1, [%d1];
    setp.lt.u32 %q, %r1, %r2;
    @%q bra AGAIN;
    ret;
}
";

extern "C" fn short_sleep(us: *mut c_void) {
    std::thread::sleep(Duration::from_micros(us as u64));
}

extern "C" fn count(counter: *mut c_void) {
    // SAFETY: the test passes the address of a counter that outlives the stream's work.
    let counter = unsafe { &*counter.cast::<AtomicU32>() };
    counter.fetch_add(1, Ordering::SeqCst);
}

/// A small random number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn work_behind_host_functions_keeps_its_order() {
    let (_one, _c, _f) = alone();
    let f = kernel(STEP, "step");
    let mut seed = u64::from(std::process::id()) << 20 | 1;
    for round in 0..20 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005) | 1;
        let mut random = Random(seed);
        let p = upload(&[1u32]);
        let mut param = p;
        let streams: Vec<u64> = (0..4).map(|i| stream(i % 2)).collect();
        let mut last: Option<u64> = None;
        let mut want = 1u32;
        for _ in 0..60 {
            let s = streams[random.below(4) as usize];
            if let Some(e) = last {
                ok!(cuStreamWaitEvent(s, e, 0u32));
            }
            match random.below(4) {
                0 => {
                    let us = random.below(300) as usize;
                    let f: extern "C" fn(*mut c_void) = short_sleep;
                    ok!(cuLaunchHostFunc(s, f, us));
                }
                1 => {
                    ok!(cuMemsetD32Async(p, 7u32, 1usize, s));
                    want = 7;
                }
                _ => {
                    let params = &mut [(&raw mut param).cast::<c_void>()];
                    assert_eq!(launch(f, 1, 1, s, params), 0);
                    want = want.wrapping_mul(3).wrapping_add(1);
                }
            }
            let e = event();
            ok!(cuEventRecord(e, s));
            last = Some(e);
        }
        ok!(cuCtxSynchronize());
        assert_eq!(
            download::<u32>(p, 1),
            [want],
            "round {round}, seed {seed:#x}"
        );
        for s in streams {
            ok!(cuStreamDestroy_v2(s));
        }
    }
}

#[test]
fn branches_of_a_graph_run_side_by_side() {
    measured(|f| {
        let s = stream(1);
        let (a, b) = (stream(1), stream(1));
        let (fork, join) = (event(), event());
        // Relaxed, since other tests use the driver meanwhile. One kernel, then branches of one and two of 5 ms each.
        ok!(cuStreamBeginCapture_v2(a, 2u32));
        assert_eq!(launch(f, 1, 32, a, &mut []), 0);
        ok!(cuEventRecord(fork, a));
        ok!(cuStreamWaitEvent(b, fork, 0u32));
        assert_eq!(launch(f, 1, 32, b, &mut []), 0);
        assert_eq!(launch(f, 1, 32, b, &mut []), 0);
        assert_eq!(launch(f, 1, 32, a, &mut []), 0);
        ok!(cuEventRecord(join, b));
        ok!(cuStreamWaitEvent(a, join, 0u32));
        let (mut g, mut e) = (0u64, 0u64);
        ok!(cuStreamEndCapture(a, &raw mut g));
        ok!(cuGraphInstantiateWithFlags(&raw mut e, g, 0u64));
        let (start, end) = (event(), event());
        ok!(cuEventRecord(start, s));
        ok!(cuGraphLaunch(e, s));
        ok!(cuEventRecord(end, s));
        assert_eq!(cu!(cuStreamQuery(s)), 600);
        ok!(cuStreamSynchronize(s));
        close(elapsed(start, end), 15.0);
        // An instance runs after its own last launch, also in another stream.
        ok!(cuEventRecord(start, s));
        ok!(cuGraphLaunch(e, s));
        ok!(cuGraphLaunch(e, b));
        ok!(cuEventRecord(end, b));
        ok!(cuStreamSynchronize(b));
        close(elapsed(start, end), 30.0);
    });
}

#[test]
fn a_host_node_between_kernels_waits_for_the_boards_time() {
    let (_one, _c, f) = alone();
    let s = stream(1);
    let counter = AtomicU32::new(0);
    let host: extern "C" fn(*mut c_void) = count;
    ok!(cuStreamBeginCapture_v2(s, 2u32));
    assert_eq!(launch(f, 1, 32, s, &mut []), 0);
    ok!(cuLaunchHostFunc(
        s,
        host,
        (&raw const counter).cast::<c_void>()
    ));
    assert_eq!(launch(f, 1, 32, s, &mut []), 0);
    let (mut g, mut e) = (0u64, 0u64);
    ok!(cuStreamEndCapture(s, &raw mut g));
    ok!(cuGraphInstantiateWithFlags(&raw mut e, g, 0u64));
    for round in 1..=3 {
        ok!(cuGraphLaunch(e, s));
        assert_eq!(counter.load(Ordering::SeqCst), round - 1, "5 ms come first");
        ok!(cuStreamSynchronize(s));
        assert_eq!(counter.load(Ordering::SeqCst), round);
    }
}

#[test]
fn a_cooperative_grid_of_one_block_has_nobody_to_wait_for() {
    let _c = Context::on(1);
    let f = kernel(STEP, "meet");
    let mut p = upload(&[0u32]);
    let params = &mut [(&raw mut p).cast::<c_void>()];
    let one = 1u32;
    ok!(cuLaunchCooperativeKernel(
        f,
        1u32,
        one,
        one,
        1u32,
        one,
        one,
        0u32,
        0u64,
        params.as_mut_ptr()
    ));
    ok!(cuCtxSynchronize());
    assert_eq!(
        download::<u32>(p, 1),
        [1],
        "one block has nobody to wait for"
    );
}
