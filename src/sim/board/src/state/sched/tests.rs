//! The cost model and the sharing of a GPU, in virtual time.

use super::super::tests::state;
use super::*;
use crate::cost::Route;
use crate::presets::{Preset, Range};

const US: u64 = 1_000;

fn kernel(gpu: usize, context: u64, blocks: u64, threads: u32, block_us: u64) -> Work {
    Work {
        gpu,
        context,
        shape: Some(Shape {
            blocks,
            threads,
            regs: 32,
            shared: 0,
        }),
        block_ns: block_us * US,
        transfer: None,
        record: false,
        meeting: (0, 0),
        deps: [0; MAX_DEPS],
    }
}

fn after(mut s: Work, dep: u64) -> Work {
    s.deps[0] = dep;
    s
}

fn end(s: &State, ticket: u64) -> Option<u64> {
    s.kernels()
        .iter()
        .find(|k| k.ticket == ticket && k.state == DONE)
        .map(|k| k.end_ns / US)
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= b.abs() * 1e-9 + 1e-3, "{a} is not {b}");
}

#[test]
fn a_kernel_alone_runs_its_waves_and_its_tail() {
    let (mut s, a) = state(&["h100"]);
    // 132 SMs x 8 blocks of 256 threads = 1056 a wave; 2 waves and a tail of 10 blocks.
    let t = s.submit(a, &kernel(0, 1, 2122, 256, 100)).expect("ok");
    s.advance(1_000 * US);
    assert_eq!(end(&s, t), Some(300));
    let g = &s.gpus[0];
    close(g.busy_ns, 300e3);
    close(g.sm_ns, 132.0 * 200e3 + 10.0 * 100e3);
    close(g.warp_ns, 1056.0 * 8.0 * 200e3 + 10.0 * 8.0 * 100e3);
    let u = &s.uses[0];
    close(u.busy_ns, g.busy_ns);
    close(u.sm_ns, g.sm_ns);
    close(u.warp_ns, g.warp_ns);
    assert_eq!(u.launched, 1);
}

#[test]
fn looking_often_gives_the_same_as_looking_once() {
    let (mut once, a) = state(&["h100"]);
    let t = once.submit(a, &kernel(0, 1, 5000, 192, 70)).expect("ok");
    let u = once.submit(a, &kernel(0, 2, 40, 64, 900)).expect("ok");
    let mut often = once.clone();
    once.advance(5_000 * US);
    for i in 0..=5_000 {
        often.advance(i * US);
    }
    for t in [t, u] {
        let (a, b) = (end(&once, t).expect("end"), end(&often, t).expect("end"));
        assert!(a.abs_diff(b) <= 1, "{a} {b}");
    }
    assert!((once.gpus[0].sm_ns / often.gpus[0].sm_ns - 1.0).abs() < 1e-3);
}

#[test]
fn contexts_take_turns() {
    let (mut s, a) = state(&["h100"]);
    let b = s.add_process(1, 101, 1001, 2, "second");
    let ta = s.submit(a, &kernel(0, 1, 132, 1024, 100)).expect("ok");
    let tb = s.submit(b, &kernel(0, 2, 66, 1024, 300)).expect("ok");
    s.advance(1_000 * US);
    // Both at half speed until a ends at 200; b then has 200 left, alone.
    assert_eq!((end(&s, ta), end(&s, tb)), (Some(200), Some(400)));
    close(s.gpus[0].busy_ns, 400e3);
    close(s.uses[0].busy_ns, 100e3);
    close(s.uses[1].busy_ns, 300e3);
    close(s.gpus[0].sm_ns, 132.0 * 100e3 + 66.0 * 300e3);
}

#[test]
fn streams_of_one_context_run_side_by_side_while_sms_are_free() {
    let (mut s, a) = state(&["h100"]);
    // One block has all registers of an SM.
    let kernel = |blocks| {
        let mut work = kernel(0, 1, blocks, 1024, 100);
        work.shape.as_mut().expect("a kernel").regs = 64;
        work
    };
    let first = s.submit(a, &kernel(100)).expect("ok");
    let second = s.submit(a, &kernel(32)).expect("ok");
    // The third kernel gets no SM until the others end.
    let third = s.submit(a, &kernel(132)).expect("ok");
    s.advance(100 * US);
    close(s.gpus[0].sm_ns, 132.0 * 100e3);
    s.advance(500 * US);
    assert_eq!(end(&s, first), Some(100));
    assert_eq!(end(&s, second), Some(100));
    assert_eq!(end(&s, third), Some(200));
    close(s.gpus[0].busy_ns, 200e3);
}

#[test]
fn blocks_of_two_streams_share_sms_and_a_kernel_of_which_fewer_fit_runs_slower() {
    let (mut s, a) = state(&["h100"]);
    // One block on each of 99 SMs, which have room for a second one.
    s.submit(a, &kernel(0, 1, 99, 1024, 1_000)).expect("ok");
    let beside = s.submit(a, &kernel(0, 1, 132, 1024, 100)).expect("ok");
    s.advance(100 * US);
    assert_eq!(end(&s, beside), Some(100));
    close(s.gpus[0].sm_ns, 132.0 * 100e3);
    close(s.gpus[0].warp_ns, (99.0 + 132.0) * 32.0 * 100e3);
    // Of 264 blocks 165 fit.
    let t = s.submit(a, &kernel(0, 1, 264, 1024, 100)).expect("ok");
    s.advance(2_000 * US);
    assert_eq!(end(&s, t), Some(260));
}

/// Ends of two kernels of one context, of which the second is launched `after_us` later.
fn ends_of_two(first: &Work, after_us: u64, second: &Work) -> [Option<u64>; 2] {
    let (mut s, a) = state(&["h100"]);
    let first = s.submit(a, first).expect("ok");
    s.advance(after_us * US);
    let second = s.submit(a, second).expect("ok");
    s.advance(1_000 * US);
    [first, second].map(|ticket| end(&s, ticket))
}

#[test]
fn a_later_kernel_waits_until_an_earlier_one_has_given_out_its_blocks() {
    // Two rounds of two blocks on each SM, and a round of 10 blocks.
    let (first, second) = (kernel(0, 1, 538, 1024, 100), kernel(0, 1, 100, 32, 50));
    assert_eq!(ends_of_two(&first, 10, &second), [Some(300), Some(250)]);
}

#[test]
fn a_later_kernel_goes_beside_the_last_round() {
    // Two rounds of two blocks with 100 KiB of shared memory, which leave most warps of an SM.
    let mut first = kernel(0, 1, 528, 128, 100);
    first.shape.as_mut().expect("a kernel").shared = 100 << 10;
    let second = kernel(0, 1, 132, 1024, 50);
    assert_eq!(ends_of_two(&first, 0, &second), [Some(200), Some(150)]);
}

/// The stream whose kernel began first goes on first, whatever was launched first.
#[test]
fn kernels_get_sms_in_the_order_in_which_they_begin() {
    let (mut s, a) = state(&["h100"]);
    let short = s.submit(a, &kernel(0, 1, 264, 1024, 10)).expect("ok");
    let behind = s
        .submit(a, &after(kernel(0, 1, 264, 1024, 100), short))
        .expect("ok");
    let other = s.submit(a, &kernel(0, 1, 264, 1024, 100)).expect("ok");
    s.advance(1_000 * US);
    assert_eq!((end(&s, other), end(&s, behind)), (Some(110), Some(210)));
}

#[test]
fn order_within_a_stream_and_across_streams() {
    let (mut s, a) = state(&["h100", "h100"]);
    let t1 = s.submit(a, &kernel(0, 1, 1, 32, 50)).expect("ok");
    let t2 = s
        .submit(a, &after(kernel(0, 1, 1, 32, 50), t1))
        .expect("ok");
    let marker = Work {
        shape: None,
        ..after(kernel(1, 2, 0, 0, 0), t2)
    };
    let m = s.submit(a, &marker).expect("ok");
    let t3 = s.submit(a, &after(kernel(1, 2, 1, 32, 50), m)).expect("ok");
    let mut scratch = s.clone();
    assert_eq!(s.predict(t3, u64::MAX, &mut scratch), Some(150 * US));
    s.advance(10_000 * US);
    assert_eq!(end(&s, t1), Some(50));
    assert_eq!(end(&s, t2), Some(100));
    assert_eq!(end(&s, m), Some(100));
    assert_eq!(end(&s, t3), Some(150));
    assert_eq!(s.predict(t3, u64::MAX, &mut scratch), None);
    assert_eq!(s.collect(a).len(), 4);
    assert_eq!(s.head.kernel_hwm, 0);
}

#[test]
fn a_process_holds_a_limited_number_of_rows() {
    let (mut s, a) = state(&["h100"]);
    for _ in 0..MAX_PENDING {
        s.submit(a, &kernel(0, 1, 1, 32, 50)).expect("ok");
    }
    let r = s.submit(a, &kernel(0, 1, 1, 32, 50));
    assert!(matches!(r, Err(BoardError::Full { .. })), "{r:?}");
    let r = s.submit(a, &kernel(0, 1, 1, 1025, 50));
    assert!(r.is_err());
}

#[test]
fn samples_of_the_last_second_survive_any_gap() {
    let (mut s, a) = state(&["h100"]);
    s.submit(a, &kernel(0, 1, 132, 1024, 60_000_000))
        .expect("ok");
    let now = 3_600 * 1_000_000_000;
    s.advance(now);
    let marks: Vec<u64> = s.gpus[0].marks.iter().map(|m| m.at_ns).collect();
    for i in 0..MARKS as u64 {
        assert!(marks.contains(&(now - i * MARK_NS)), "{marks:?}");
    }
    close(s.gpus[0].busy_ns, 60e9);
    assert_eq!(s.head.now_ns, now);
}

#[test]
fn a_cancelled_kernel_fails_and_frees_its_sms() {
    let (mut s, a) = state(&["h100"]);
    let t = s.submit(a, &kernel(0, 7, 132, 1024, 1_000)).expect("ok");
    s.advance(300 * US);
    s.cancel(|k| k.context == 7);
    s.advance(2_000 * US);
    close(s.gpus[0].busy_ns, 300e3);
    assert_eq!(s.collect(a), [(t, 0, None)]);
}

fn copy(gpu: usize, context: u64, route: Route, us: u64) -> Work {
    Work {
        shape: None,
        transfer: Some(Transfer {
            route,
            bytes: 1000,
            ns: us * US,
        }),
        ..kernel(gpu, context, 0, 0, 0)
    }
}

#[test]
fn copies_run_beside_kernels_and_share_their_route() {
    let (mut s, a) = state(&["h100"]);
    let b = s.add_process(1, 101, 1001, 2, "second");
    let k = s.submit(a, &kernel(0, 1, 132, 1024, 300)).expect("ok");
    let up = s
        .submit(b, &copy(0, 2, Route::HostToDevice, 100))
        .expect("ok");
    let also = s
        .submit(b, &copy(0, 2, Route::HostToDevice, 50))
        .expect("ok");
    let down = s
        .submit(b, &copy(0, 2, Route::DeviceToHost, 80))
        .expect("ok");
    let then = s.submit(b, &after(copy(0, 2, Route::OnDevice, 10), down));
    let then = then.expect("ok");
    s.advance(1_000 * US);
    // The kernel has the SMs to itself. Two copies up halve their route's rate; the copy down has its own route.
    assert_eq!(end(&s, k), Some(300));
    assert_eq!((end(&s, also), end(&s, up)), (Some(100), Some(150)));
    assert_eq!((end(&s, down), end(&s, then)), (Some(80), Some(90)));
    close(s.gpus[0].busy_ns, 300e3);
    let of = |id| s.uses().iter().find(|u| u.owner == id).expect("a row");
    close(of(a).work_ns, 300e3);
    // NVML does not count copies as utilisation, but they are work. A copy at half rate counts half.
    assert_eq!(
        (of(b).busy_ns, of(b).copied, of(b).launched),
        (0.0, 4000, 0)
    );
    close(of(b).work_ns, 80e3 + 10e3 + 10e3 * 0.5 + 50e3);
}

/// A state with one process and these driver costs.
fn costly(slugs: &[&str], preset: Preset) -> (Box<State>, u64) {
    let (mut s, a) = state(slugs);
    s.head.preset = preset;
    (s, a)
}

const SLICES: Preset = Preset {
    slice_ns: 2_000 * US,
    ..Preset::KIND
};

fn exactly(us: u64) -> Range {
    Range {
        low_ns: us * US,
        high_ns: us * US,
    }
}

#[test]
fn a_launch_reaches_the_gpu_later_and_what_is_queued_does_not_lose_that_again() {
    let preset = Preset {
        launch: exactly(3),
        ..Preset::KIND
    };
    let (mut s, a) = costly(&["h100"], preset);
    let t1 = s.submit(a, &kernel(0, 1, 1, 32, 50)).expect("ok");
    let t2 = s
        .submit(a, &after(kernel(0, 1, 1, 32, 50), t1))
        .expect("ok");
    let marker = Work {
        shape: None,
        ..after(kernel(0, 1, 0, 0, 0), t2)
    };
    let m = s.submit(a, &marker).expect("ok");
    s.advance(2 * US);
    close(s.gpus[0].busy_ns, 0.0);
    let mut scratch = s.clone();
    assert_eq!(s.predict(m, u64::MAX, &mut scratch), Some(103 * US));
    assert_eq!(s.predict(m, 60 * US, &mut scratch), Some(60 * US));
    s.advance(1_000 * US);
    assert_eq!(
        (end(&s, t1), end(&s, t2), end(&s, m)),
        (Some(53), Some(103), Some(103))
    );
}

#[test]
fn a_launch_takes_what_is_drawn_for_it() {
    let (mut s, a) = costly(&["h100"], Preset::REAL);
    let mut ways = Vec::new();
    for i in 0..64 {
        s.advance(i * 100 * US);
        s.submit(a, &kernel(0, 1, 1, 32, 10)).expect("ok");
        s.advance((i + 1) * 100 * US);
        let (_, start, _) = s.collect(a)[0];
        ways.push(start - i * 100 * US);
    }
    assert!(
        ways.iter().all(|ns| (2_000..=4_000).contains(ns)),
        "{ways:?}"
    );
    ways.dedup();
    assert!(ways.len() > 32, "{ways:?}");
}

#[test]
fn a_record_takes_gpu_time_of_its_stream_and_no_sm() {
    let preset = Preset {
        record_ns: US,
        ..SLICES
    };
    let (mut s, a) = costly(&["h100"], preset);
    let record = |dep| Work {
        shape: None,
        record: true,
        ..after(kernel(0, 1, 0, 0, 0), dep)
    };
    let k1 = s.submit(a, &kernel(0, 1, 132, 1024, 50)).expect("ok");
    let r = s.submit(a, &record(k1)).expect("ok");
    let k2 = s.submit(a, &after(kernel(0, 1, 1, 32, 50), r)).expect("ok");
    // Another stream has half of the GPU, and all of it from 50 to 225.
    let other = s.submit(a, &kernel(0, 1, 264, 1024, 200)).expect("ok");
    s.advance(1_000 * US);
    assert_eq!((end(&s, k1), end(&s, r)), (Some(50), Some(51)));
    assert_eq!((end(&s, other), end(&s, k2)), (Some(225), Some(275)));
    assert_eq!(s.uses[0].launched, 3);
    // Without a cost a record is a marker.
    let (mut s, a) = costly(&["h100"], SLICES);
    let r = s.submit(a, &record(0)).expect("ok");
    s.advance(US);
    assert_eq!(end(&s, r), Some(0));
}

#[test]
fn slices_end_after_two_milliseconds_and_changes_cost() {
    let preset = Preset {
        switch: exactly(100),
        ..SLICES
    };
    let (mut s, a) = costly(&["h100"], preset);
    let b = s.add_process(1, 101, 1001, 2, "second");
    let ta = s.submit(a, &kernel(0, 1, 132, 1024, 5_000)).expect("ok");
    s.advance(500 * US);
    let tb = s.submit(b, &kernel(0, 2, 132, 1024, 300)).expect("ok");
    s.advance(2_050 * US);
    // Nothing runs during a switch.
    close(s.gpus[0].busy_ns, 2_000e3);
    s.advance(20_000 * US);
    // a until 2000, b from 2100 until 2400, a again from 2500 for the remaining 3000.
    assert_eq!((end(&s, ta), end(&s, tb)), (Some(5_500), Some(2_400)));
    assert_eq!(s.gpus[0].switches, 2);
    close(s.uses[0].busy_ns, 5_000e3);
    close(s.uses[1].busy_ns, 300e3);
}

#[test]
fn who_is_alone_has_the_gpu_without_changes_and_who_stops_gives_it_up_at_once() {
    let preset = Preset {
        switch: exactly(50),
        ..SLICES
    };
    let (mut s, a) = costly(&["h100"], preset);
    let b = s.add_process(1, 101, 1001, 2, "second");
    for i in 0..10 {
        s.advance(i * 1_000 * US);
        s.submit(a, &kernel(0, 1, 1, 32, 700)).expect("ok");
    }
    s.advance(10_000 * US);
    assert_eq!(s.gpus[0].switches, 0);
    // The other context's short kernel arrives during a gap: one switch there, one back.
    let tb = s.submit(b, &kernel(0, 2, 1, 32, 100)).expect("ok");
    s.advance(10_150 * US);
    assert_eq!(end(&s, tb), Some(10_150));
    let ta = s.submit(a, &kernel(0, 1, 1, 32, 100)).expect("ok");
    s.advance(11_000 * US);
    assert_eq!(end(&s, ta), Some(10_300));
    assert_eq!(s.gpus[0].switches, 2);
}

#[test]
fn looking_often_changes_no_slice() {
    let (mut once, a) = costly(&["h100"], Preset::REAL);
    let b = once.add_process(1, 101, 1001, 2, "second");
    let ta = once.submit(a, &kernel(0, 1, 500, 192, 9_000)).expect("ok");
    let tb = once.submit(b, &kernel(0, 2, 40, 64, 9_000)).expect("ok");
    let mut often = once.clone();
    once.advance(50_000 * US);
    for i in 0..=50_000 {
        often.advance(i * US);
    }
    for t in [ta, tb] {
        let (a, b) = (end(&once, t).expect("end"), end(&often, t).expect("end"));
        assert!(a.abs_diff(b) <= 1, "{a} {b}");
    }
    assert_eq!(once.gpus[0].switches, often.gpus[0].switches);
    assert!(once.gpus[0].switches >= 8, "{}", once.gpus[0].switches);
}

#[test]
fn copies_do_not_wait_for_slices() {
    let (mut s, a) = costly(&["h100"], SLICES);
    let b = s.add_process(1, 101, 1001, 2, "second");
    s.submit(a, &kernel(0, 1, 132, 1024, 10_000)).expect("ok");
    let up = s
        .submit(b, &copy(0, 2, Route::HostToDevice, 100))
        .expect("ok");
    s.advance(20_000 * US);
    assert_eq!(end(&s, up), Some(100));
    close(s.gpus[0].busy_ns, 10_000e3);
    assert_eq!(s.gpus[0].switches, 0, "the engine of copies is another one");
}

#[test]
fn kernels_that_meet_wait_for_each_other_on_their_gpus() {
    let meets = |gpu, context| Work {
        meeting: (7, 2),
        ..kernel(gpu, context, 1, 32, 100)
    };
    let (mut s, a) = costly(&["h100", "h100"], SLICES);
    let first = s.submit(a, &meets(0, 1)).expect("ok");
    s.advance(400 * US);
    // The kernel occupies the GPU without progress.
    assert_eq!(end(&s, first), None);
    close(s.gpus[0].busy_ns, 400e3);
    // A neighbour has the other GPU until 2000.
    let b = s.add_process(1, 101, 1001, 2, "second");
    s.submit(b, &kernel(1, 3, 1, 32, 3_000)).expect("ok");
    s.advance(500 * US);
    let second = s.submit(a, &meets(1, 2)).expect("ok");
    s.advance(9_000 * US);
    // The neighbour's slice began at 400, and the second GPU's last 7 us longer.
    assert_eq!(
        (end(&s, first), end(&s, second)),
        (Some(2_507), Some(2_507))
    );
}

/// Neither leaves the other behind, which would wait for it for ever.
#[test]
fn kernels_that_meet_are_as_fast_as_the_slowest_and_end_also_if_one_is_longer() {
    let meets = |gpu, context, us| Work {
        meeting: (7, 2),
        ..kernel(gpu, context, 1, 32, us)
    };
    let ends = |neighbour: bool, us: [u64; 2]| {
        let (mut s, a) = costly(&["h100", "h100"], Preset::KIND);
        if neighbour {
            let b = s.add_process(1, 101, 1001, 2, "second");
            s.submit(b, &kernel(1, 3, 1, 32, 10_000)).expect("ok");
        }
        let first = s.submit(a, &meets(0, 1, us[0])).expect("ok");
        let second = s.submit(a, &meets(1, 2, us[1])).expect("ok");
        s.advance(5_000 * US);
        (end(&s, first), end(&s, second))
    };
    assert_eq!(ends(false, [100, 100]), (Some(100), Some(100)));
    assert_eq!(ends(true, [100, 100]), (Some(200), Some(200)));
    assert_eq!(ends(false, [100, 300]), (Some(100), Some(300)));
}

/// Two processes, each with a meeting of both GPUs, whose slices begin on different GPUs.
#[test]
fn slices_of_two_gpus_are_not_apart_for_ever() {
    let preset = Preset::by_name("real:high").expect("a preset");
    let (mut s, a) = costly(&["h100", "h100"], preset);
    let b = s.add_process(1, 101, 1001, 2, "second");
    let meets = |gpu, context, number| Work {
        meeting: (number, 2),
        ..kernel(gpu, context, 1, 32, 100)
    };
    let mut tickets = vec![
        s.submit(a, &meets(0, 1, 7)).expect("ok"),
        s.submit(b, &meets(1, 4, 8)).expect("ok"),
    ];
    s.advance(500 * US);
    tickets.push(s.submit(a, &meets(1, 2, 7)).expect("ok"));
    tickets.push(s.submit(b, &meets(0, 3, 8)).expect("ok"));
    s.advance(1_000_000 * US);
    let ends: Vec<_> = tickets.iter().map(|t| end(&s, *t)).collect();
    assert!(ends.iter().all(Option::is_some), "{ends:?}");
}
