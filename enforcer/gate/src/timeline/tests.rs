use super::*;

const MS: u64 = 1_000_000;

/// Part of ten SMs in use over a time, with every launch known: place, start, end.
fn part(ran: &[(u64, u64, u64)], fill: Fill) -> f64 {
    let mut timeline = Timeline::default();
    for (place, start, _) in ran {
        timeline.issued(start * MS, *place, Load::default(), Some(fill), None);
    }
    let last = ran.iter().map(|(.., end)| *end).max().unwrap_or(0) * MS;
    for (place, start, end) in ran {
        timeline.landed(last, *place, Some((start * MS, end * MS)), 10, None, |_| {
            None
        });
    }
    let (load, current) = timeline.tell(last);
    assert_eq!(current, None, "all of it is over");
    load.sm_ns as f64 / (last as f64 * 10.0)
}

#[test]
fn streams_side_by_side_have_one_gpu_together() {
    let (eight, two) = (Fill::of_grid(10, 1, 8, 4), Fill::of_grid(10, 1, 2, 4));
    let near = |a: f64, b: f64| assert!((a - b).abs() < 0.001, "{a} of {b}");
    // In sequence, at the same time, and in part.
    near(part(&[(1, 0, 50), (1, 50, 100)], eight), 0.8);
    near(part(&[(1, 0, 100), (2, 0, 100)], eight), 1.0);
    near(part(&[(1, 0, 60), (2, 40, 100)], eight), 0.84);
    near(part(&[(1, 0, 100), (2, 0, 100)], two), 0.4);
    // The end of the first was seen late, and so were the second stream's.
    near(part(&[(1, 0, 100), (2, 0, 50), (2, 50, 100)], two), 0.4);
}

#[test]
fn waves_and_tails_of_two_streams_fill_each_other() {
    // Half of its time ten of ten SMs, the other half two.
    let fill = Fill::of_grid(10, 1, 12, 4);
    assert_eq!((fill.sms_milli, fill.full_milli), (6000, 500));
    // Each is full in three quarters of the time, else both are in their tails.
    let both = part(&[(1, 0, 100), (2, 0, 100)], fill);
    assert!((both - 0.85).abs() < 0.001, "{both}");
}

/// Mean warps of two launches side by side, each of this fill.
fn warps_together(one: Fill, other: Fill) -> f64 {
    let mut timeline = Timeline::default();
    for (place, fill) in [(1, one), (2, other)] {
        timeline.issued(place, place, Load::default(), Some(fill), None);
    }
    for place in [1, 2] {
        timeline.landed(10 * MS, place, Some((place, 10 * MS)), 10, None, |_| None);
    }
    timeline.tell(10 * MS).0.warp_ns as f64 / (10 * MS) as f64
}

#[test]
fn blocks_of_two_streams_share_sms_while_there_is_room() {
    let near = |a: f64, b: f64| assert!((a - b).abs() < 0.01, "{a} of {b}");
    // A block on each SM, of which four fit: there is room for both.
    let (all, few) = (Fill::of_grid(10, 4, 10, 8), Fill::of_grid(10, 2, 6, 3));
    near(warps_together(all, few), 80.0 + 18.0);
    // The first has half of the room of each SM, and the second needs all of it: a half of its blocks are there.
    let (half, whole) = (Fill::of_grid(10, 4, 20, 4), Fill::of_grid(10, 2, 20, 8));
    near(warps_together(half, whole), 80.0 + 80.0);
    // The first has all of it.
    near(warps_together(whole, half), 160.0);
}

#[test]
fn what_lies_between_two_measured_launches_counts_by_its_sum() {
    let fill = Fill::of_grid(10, 1, 5, 4);
    let mut timeline = Timeline::default();
    let land = |timeline: &mut Timeline, now: u64, start: u64| {
        timeline.landed(now * MS, 1, Some((start * MS, now * MS)), 10, None, |_| {
            None
        });
        timeline.tell(now * MS).0
    };
    timeline.issued(0, 1, Load::default(), Some(fill), Some(MS));
    assert_eq!(land(&mut timeline, 1, 0), fill.during(MS));
    // 20 ms of short launches in 49 ms.
    timeline.issued(50 * MS, 1, fill.during(20 * MS), Some(fill), Some(MS));
    assert_eq!(land(&mut timeline, 51, 50), fill.during(22 * MS));
    // More than fits: they took no longer than there was time.
    timeline.issued(60 * MS, 1, fill.during(20 * MS), Some(fill), Some(MS));
    assert_eq!(land(&mut timeline, 61, 60), fill.during(32 * MS));
}

#[test]
fn what_runs_is_told_as_it_is_expected() {
    let fill = Fill::of_grid(10, 1, 5, 4);
    let mut timeline = Timeline::default();
    timeline.issued(0, 1, Load::default(), Some(fill), Some(10 * MS));
    timeline.issued(0, 1, Load::default(), Some(fill), Some(10 * MS));
    timeline.landed(10 * MS, 1, Some((0, 10 * MS)), 10, None, |_| None);
    let (load, current) = timeline.tell(12 * MS);
    assert_eq!(load, fill.during(12 * MS));
    let current = current.expect("the second one runs");
    assert_eq!(current.expected_ns, Some(8 * MS));
    assert_eq!(current.fill.sms_milli, 5000);
    // It still runs after its expected end, and its duration is unknown.
    assert_eq!(timeline.tell(25 * MS), (fill.during(25 * MS), None));
}

#[test]
fn launches_of_a_new_kind_fill_the_time_in_which_they_ran() {
    let (fill, other) = (Fill::of_grid(10, 1, 5, 4), Fill::of_grid(10, 1, 10, 4));
    let new = Key::kernel(0x7000, 10, 128);
    let run = |takes: Option<u64>| {
        let mut timeline = Timeline::default();
        timeline.issued(0, 1, Load::default(), Some(fill), None);
        timeline.left_out(1, Some((new, other)));
        timeline.left_out(1, Some((new, other)));
        timeline.issued(0, 1, Load::default(), Some(fill), None);
        timeline.landed(10 * MS, 1, Some((0, 10 * MS)), 10, None, |_| takes);
        timeline.landed(40 * MS, 1, Some((30 * MS, 40 * MS)), 10, None, |_| takes);
        timeline.tell(40 * MS).0
    };
    let ends = fill.during(20 * MS);
    assert_eq!(run(None), ends.plus(other.during(20 * MS)));
    assert_eq!(run(Some(8 * MS)), ends.plus(other.during(16 * MS)));
}

/// A program that is far ahead launches a burst and waits for it: nothing is measured behind its last measured launch,
/// and all of it has run.
#[test]
fn what_stands_behind_the_last_measured_launch_counts_as_it_runs() {
    let fill = Fill::of_grid(10, 1, 5, 4);
    let new = Key::kernel(0x7000, 10, 128);
    let behind = fill.during(30 * MS);
    let burst = || {
        let mut timeline = Timeline::default();
        timeline.issued(0, 1, Load::default(), Some(fill), None);
        timeline.left_out(1, Some((new, fill)));
        timeline.given(1, behind);
        let ran = Some((0, 10 * MS));
        timeline.landed(10 * MS, 1, ran, 10, None, |_| Some(10 * MS));
        timeline
    };
    let mut timeline = burst();
    // The launch itself, an unmeasured one of its kind, and 30 ms.
    let (load, current) = timeline.tell(20 * MS);
    assert_eq!(load, fill.during(20 * MS));
    assert_eq!(current.and_then(|it| it.expected_ns), Some(30 * MS));
    assert_eq!(timeline.tell(60 * MS), (fill.during(50 * MS), None));

    // The next measured launch tells its end: it has not run longer than there was time.
    let mut early = burst();
    early.issued(40 * MS, 1, behind, Some(fill), Some(10 * MS));
    early.landed(50 * MS, 1, Some((40 * MS, 50 * MS)), 10, None, |_| None);
    assert_eq!(early.tell(50 * MS), (fill.during(50 * MS), None));

    // Another stream goes on for long: the launch then stays in the account, and is not counted again with the next.
    for at in 2..100 {
        timeline.issued(at * 10 * MS, 2, Load::default(), Some(fill), Some(MS));
        let ran = Some((at * 10 * MS, (at * 10 + 1) * MS));
        timeline.landed((at * 10 + 1) * MS, 2, ran, 10, None, |_| None);
    }
    let both = timeline.tell(1000 * MS).0;
    assert_eq!(both.busy_ns, (50 + 95) * MS);
    timeline.issued(1000 * MS, 1, behind, Some(fill), Some(10 * MS));
    timeline.landed(1010 * MS, 1, Some((1000 * MS, 1010 * MS)), 10, None, |_| {
        None
    });
    assert_eq!(timeline.tell(1010 * MS).0.busy_ns, (60 + 95) * MS);
}

#[test]
fn what_was_placed_too_late_counts_in_full_once_the_clock_is_known() {
    let fill = Fill::of_grid(10, 1, 5, 4);
    let mut timeline = Timeline::default();
    for _ in 0..3 {
        timeline.issued(0, 1, Load::default(), Some(fill), None);
    }
    // All are seen at 40 ms: the first ended at 10 ms, unknown to the timeline, the others 10 and 20 ms after it.
    for late in [0, 10, 10] {
        timeline.earlier(late * MS, 20 * MS);
        let ran = Some((30 * MS, 40 * MS));
        let alone = timeline.landed(40 * MS, 1, ran, 10, None, |_| None);
        assert_eq!(alone, Some(10 * MS));
    }
    assert_eq!(timeline.tell(40 * MS).0, fill.during(30 * MS));
}

#[test]
fn a_stream_far_ahead_is_measured_now_and_then() {
    let mut timeline = Timeline::default();
    let mut measured = 0;
    for _ in 0..1000 {
        if timeline.wants(1, true) {
            timeline.issued(0, 1, Load::default(), None, None);
            measured += 1;
        } else {
            timeline.left_out(1, None);
        }
    }
    assert!((10..20).contains(&measured), "{measured}");
    assert!(timeline.wants(2, true), "another stream has its own");
}

/// Part of ten SMs that two streams use with two measured launches each, and with the load `before` in the 80 ms
/// between; the second one is issued at `issued`.
fn between(issued: u64, before: Load) -> f64 {
    let fill = Fill::of_grid(10, 1, 10, 4);
    let mut timeline = Timeline::default();
    for at in [0, issued] {
        for place in [1, 2] {
            let given = if at == 0 { Load::default() } else { before };
            timeline.issued(at * MS, place, given, Some(fill), Some(5 * MS));
        }
    }
    for (start, end) in [(0, 10), (90, 100)] {
        for place in [1, 2] {
            let ran = Some((start * MS, end * MS));
            timeline.landed(end * MS, place, ran, 10, Some(5 * MS), |_| None);
        }
    }
    let (load, _) = timeline.tell(100 * MS);
    load.sm_ns as f64 / (100.0 * MS as f64 * 10.0)
}

#[test]
fn a_stream_that_always_had_work_was_not_idle_where_launches_took_longer_than_usual() {
    let fill = Fill::of_grid(10, 1, 10, 4);
    // Launches that usually take 60 ms have filled 80 ms: each waited for the other, and one of the two was at work.
    let before = Load {
        sm_ns: 30 * MS * 10,
        ..fill.during(60 * MS)
    };
    let always = between(5, before);
    assert!(always > 0.9, "{always}");
    // It is unknown whether later launches followed at once.
    let later = between(50, before);
    assert!((later - 0.8).abs() < 0.001, "{later}");
}

#[test]
fn what_copies_take_is_not_counted_as_work_of_kernels() {
    let fill = Fill::of_grid(10, 1, 10, 4);
    let mut timeline = Timeline::default();
    // Always busy; kernels are a quarter of the work.
    for i in 0..20_u64 {
        let at = i * 100;
        let before = match i {
            0 => Load::default(),
            _ => fill.during(20 * MS),
        };
        let issued = at.saturating_sub(98) * MS;
        timeline.issued(issued, 1, before, Some(fill), Some(5 * MS));
        let ran = Some((at * MS, (at + 5) * MS));
        timeline.landed((at + 5) * MS, 1, ran, 10, Some(5 * MS), |_| None);
    }
    let (load, _) = timeline.tell(1905 * MS);
    let expected = (20 * 5 + 19 * 20) * MS * 10;
    assert_eq!(load.sm_ns, expected);
}

#[test]
fn a_stream_that_waits_holds_up_the_account_of_no_other() {
    let fill = Fill::of_grid(10, 1, 5, 4);
    let mut timeline = Timeline::default();
    // Behind a host function of two seconds.
    timeline.issued(0, 1, Load::default(), Some(fill), Some(MS));
    timeline.blocked(1, true);
    for at in 0..100 {
        timeline.issued(at * 10 * MS, 2, Load::default(), Some(fill), Some(MS));
        let ran = Some((at * 10 * MS, (at * 10 + 1) * MS));
        timeline.landed((at * 10 + 1) * MS, 2, ran, 10, None, |_| None);
        let (load, current) = timeline.tell((at * 10 + 1) * MS);
        assert_eq!(load, fill.during((at + 1) * MS));
        assert_eq!(current, None, "what waits is not on the GPU");
    }
    timeline.blocked(1, false);
    let ran = Some((2000 * MS, 2001 * MS));
    timeline.landed(2001 * MS, 1, ran, 10, None, |_| None);
    assert_eq!(timeline.tell(2001 * MS).0, fill.during(101 * MS));
}

/// Two streams at work for the same 20 ms, then without a turn for 60 ms: only one launch of each turn is measured.
#[test]
fn what_was_launched_before_a_wait_for_a_turn_lies_before_it() {
    let fill = Fill::of_grid(10, 1, 10, 4);
    let busy = |waits: bool| {
        let mut timeline = Timeline::default();
        let mut measure = |place: u64, at: u64, before: u64| {
            if waits {
                timeline.waited(place);
            }
            let before = fill.during(before * MS);
            timeline.issued(at * MS, place, before, Some(fill), Some(MS));
            let (start, end) = (at * MS, (at + 1) * MS);
            timeline.landed(end, place, Some((start, end)), 10, None, |_| None);
        };
        // The second stream is measured 10 ms later.
        for (place, at, before) in [(1, 0, 0), (2, 10, 0), (1, 80, 19), (2, 90, 9)] {
            measure(place, at, before);
        }
        timeline.tell(200 * MS).0.busy_ns / MS
    };
    assert_eq!(busy(true), 20 + 1 + 1);
    assert!(busy(false) > 25, "{}", busy(false));
}

/// Two streams whose launches fill all SMs and wait for each other half of the time. What is known of launches explains
/// four fifths of the time in which there always was work.
#[test]
fn launches_that_fill_the_gpu_leave_no_sm_idle_while_others_wait_for_them() {
    let fill = Fill::of_grid(10, 1, 10, 4);
    let mut timeline = Timeline::default();
    // While two streams wait in turns, a launch is charged half of what it takes.
    let before = Load {
        busy_ns: 4 * MS,
        ..fill.during(2 * MS)
    };
    let issue = |timeline: &mut Timeline, place: u64, before: Load| {
        timeline.issued(0, place, before, Some(fill), Some(MS));
    };
    for place in [1, 2] {
        issue(&mut timeline, place, Load::default());
    }
    let many = 20;
    for at in 0..many {
        for place in [1, 2] {
            issue(&mut timeline, place, before);
            let ran = Some((6 * at * MS, (6 * at + 1) * MS));
            let now = (6 * at + 1) * MS;
            timeline.landed(now, place, ran, 10, Some(MS / 2), |_| None);
        }
    }
    let all = (6 * (many - 1) + 1) * MS;
    let sms = timeline.tell(all).0.sm_ns as f64 / all as f64;
    assert!(sms > 9.6, "{sms} of 10 SMs");
}
