use super::*;

const SECOND: u64 = 1_000_000_000;

fn interval() -> Interval {
    Interval {
        ns: SECOND,
        sms: 100,
        warps_per_sm: 64,
        side_by_side: false,
        crowd: 1.0,
        outsiders: false,
        desktop: false,
        left: false,
        counters: None,
    }
}

fn counted(active: f64, occupancy: f64) -> Option<Counters> {
    Some(Counters {
        sm_active: Some(active),
        sm_occupancy: Some(occupancy),
    })
}

/// A process that was busy for `busy` seconds of a second, on `sms` SMs with 32 warps each.
fn grown(busy: f64, sms: f64) -> Option<Grown> {
    let ns = SECOND as f64 * busy;
    Some(Grown {
        times: Times {
            busy_ns: ns,
            sm_ns: ns * sms,
            warp_ns: ns * sms * 32.0,
        },
        incomplete: false,
    })
}

fn work(processes: &[Option<Grown>]) -> Work {
    Work {
        processes: processes.to_vec(),
        most: None,
    }
}

fn near(figure: Option<f64>, wanted: f64) -> bool {
    figure.is_some_and(|figure| (figure - wanted).abs() < 1e-9)
}

#[test]
fn without_counters_the_claims_own_figures_stand() {
    let division = attribute(
        &interval(),
        &[work(&[grown(0.5, 30.0)]), work(&[grown(0.25, 80.0)])],
    );
    let [a, b] = &division.parts[..] else {
        panic!("{division:?}");
    };
    assert!(
        near(a.sm_active, 0.15) && near(b.sm_active, 0.2),
        "{division:?}"
    );
    assert!(near(a.sm_occupancy, 0.075) && near(b.sm_occupancy, 0.1));
    assert!(near(a.time_got, 0.5) && near(b.time_got, 0.25));
    assert!(near(division.sm_total, 0.35));
    assert_eq!(division.sm_unattributed, None, "the GPU does not tell");
    assert!(!a.measured);
}

#[test]
fn the_gpus_own_figure_is_divided_where_nobody_else_is_there() {
    let interval = Interval {
        counters: counted(0.42, 0.21),
        ..interval()
    };
    let division = attribute(
        &interval,
        &[work(&[grown(0.5, 30.0)]), work(&[grown(0.25, 80.0)])],
    );
    assert!(near(division.parts[0].sm_active, 0.18), "{division:?}");
    assert!(near(division.parts[1].sm_active, 0.24));
    assert!(near(division.sm_unattributed, 0.0));
    // Twice what the claims explain: half of it stays unattributed.
    let interval = Interval {
        counters: counted(0.7, 0.35),
        ..interval
    };
    let division = attribute(
        &interval,
        &[work(&[grown(0.5, 30.0)]), work(&[grown(0.25, 80.0)])],
    );
    assert!(near(division.parts[0].sm_active, 0.225), "{division:?}");
    assert!(near(division.sm_unattributed, 0.175));
}

#[test]
fn alone_a_claim_has_the_gpus_own_figure() {
    let interval = Interval {
        counters: counted(0.3, 0.1),
        ..interval()
    };
    let division = attribute(&interval, &[work(&[grown(0.9, 90.0)])]);
    assert!(near(division.parts[0].sm_active, 0.3) && division.parts[0].measured);
    assert_eq!(division.sm_unattributed, None);
    // The same if its processes cannot be counted.
    let division = attribute(&interval, &[work(&[None])]);
    assert!(near(division.parts[0].sm_occupancy, 0.1) && division.parts[0].measured);
    // Not with programs outside claims: they may have caused the rest.
    let beside = Interval {
        outsiders: true,
        ..interval
    };
    let division = attribute(&beside, &[work(&[grown(0.5, 20.0)])]);
    assert!(near(division.parts[0].sm_active, 0.1), "{division:?}");
    assert!(near(division.sm_unattributed, 0.2));
    assert_eq!(
        division.sm_total, None,
        "what the stranger does is not known"
    );
}

#[test]
fn what_is_not_counted_has_no_figure() {
    let uncounted = [None, grown(0.5, 30.0)];
    let division = attribute(&interval(), &[work(&uncounted), work(&[grown(0.25, 80.0)])]);
    assert_eq!(division.parts[0], Part::default());
    assert!(near(division.parts[1].sm_active, 0.2));
    assert_eq!(division.sm_total, None);
    let incomplete = grown(0.5, 30.0).map(|grown| Grown {
        incomplete: true,
        ..grown
    });
    let division = attribute(&interval(), &[work(&[incomplete])]);
    assert_eq!(division.parts[0].sm_active, None);
    // A claim without processes has a figure: zero.
    let division = attribute(&interval(), &[work(&[])]);
    assert!(near(division.parts[0].sm_active, 0.0));
}

#[test]
fn nobody_has_more_than_there_is() {
    // Two busy processes that take turns have half of the time each.
    let claims = [work(&[grown(1.0, 60.0), grown(1.0, 60.0)])];
    let mut together = Together::default();
    // Work reported early is not cut off at once, but gains nothing in the long run.
    let crowds: Vec<f64> = (0..5).map(|_| together.crowd(SECOND, &claims)).collect();
    assert!((crowds[0] - 2.0 / 1.1).abs() < 1e-9, "{crowds:?}");
    let exact = |crowd: &f64| (crowd - 2.0).abs() < 1e-9;
    assert!(crowds[1..].iter().all(exact), "{crowds:?}");
    let crowded = Interval {
        crowd: crowds[4],
        ..interval()
    };
    let both = attribute(&crowded, &claims);
    assert!(near(both.parts[0].sm_active, 0.6), "{both:?}");
    assert!(near(both.parts[0].time_got, 1.0));
    // With MPS they run concurrently and fill the GPU.
    let beside = Interval {
        side_by_side: true,
        ..interval()
    };
    let both = attribute(
        &beside,
        &[work(&[grown(1.0, 60.0)]), work(&[grown(1.0, 60.0)])],
    );
    assert!(near(both.parts[0].sm_active, 0.5) && near(both.parts[1].sm_active, 0.5));
    let mut small = work(&[grown(1.0, 60.0)]);
    small.most = Some(0.25);
    let alone = attribute(&beside, &[small, work(&[])]);
    assert!(near(alone.parts[0].sm_active, 0.25), "{alone:?}");
    // Four concurrent streams of one process.
    let streams = attribute(&interval(), &[work(&[grown(4.0, 60.0)])]);
    assert!(near(streams.parts[0].sm_active, 1.0), "{streams:?}");
    assert!(near(streams.parts[0].time_got, 1.0));
}

fn said(busy: u64, running: Option<Running>) -> Reading {
    Reading {
        done: Times {
            busy_ns: busy as f64,
            sm_ns: busy as f64 * 10.0,
            warp_ns: busy as f64 * 80.0,
        },
        running,
        launches: 100,
        unmeasured: 0,
    }
}

#[test]
fn a_long_kernel_counts_while_it_runs() {
    let mut meter = Meter::default();
    let running = |expected_ns| {
        Some(Running {
            since_ns: SECOND,
            expected_ns,
            sms: 10.0,
            warps: 80.0,
        })
    };
    // A kernel of three seconds, polled every second; its end is seen after 4.1 s.
    let mut total = 0.0;
    for (at, reading) in [
        (SECOND, said(0, running(None))),
        (2 * SECOND, said(0, running(None))),
        (3 * SECOND, said(0, running(None))),
        (4 * SECOND, said(0, running(None))),
        (5 * SECOND, said(3 * SECOND + SECOND / 10, None)),
    ] {
        let grown = meter.read(at, 0, &reading);
        assert!(!grown.incomplete);
        assert!(grown.times.busy_ns <= SECOND as f64 * 1.0001, "{grown:?}");
        assert!((grown.times.sm_ns - grown.times.busy_ns * 10.0).abs() < 1.0);
        total += grown.times.busy_ns;
    }
    assert!((total - 3.1 * SECOND as f64).abs() < 1.0, "{total}");
    // The expectation was too long: nothing is subtracted, and nothing is counted twice.
    let mut meter = Meter::default();
    meter.read(SECOND, 0, &said(0, running(Some(2 * SECOND))));
    let ahead = meter.read(3 * SECOND, 0, &said(0, running(Some(2 * SECOND))));
    assert!((ahead.times.busy_ns - 2.0 * SECOND as f64).abs() < 1.0);
    let less = meter.read(4 * SECOND, 0, &said(SECOND, None));
    assert!(less.times.busy_ns.abs() < 1.0);
    let on = meter.read(5 * SECOND, 0, &said(2 * SECOND + SECOND / 2, None));
    assert!((on.times.busy_ns - 0.5 * SECOND as f64).abs() < 1.0);
}

#[test]
fn what_came_before_the_service_is_not_counted_as_new() {
    let mut meter = Meter::default();
    let first = meter.read(10 * SECOND, 9 * SECOND, &said(3600 * SECOND, None));
    assert!(first.times.busy_ns.abs() < 1.0);
    let next = meter.read(11 * SECOND, 10 * SECOND, &said(3601 * SECOND, None));
    assert!((next.times.busy_ns - SECOND as f64).abs() < 1.0);
    // A process that began within the interval counts from its first launch.
    let mut young = Meter::default();
    let first = young.read(10 * SECOND, 9 * SECOND, &said(SECOND / 2, None));
    assert!((first.times.busy_ns - 0.5 * SECOND as f64).abs() < 1.0);
}

#[test]
fn launches_that_could_not_be_measured_make_a_figure_unknown() {
    let mut meter = Meter::default();
    let mut reading = said(0, None);
    reading.unmeasured = 50;
    assert!(meter.read(SECOND, 0, &reading).incomplete);
    reading.launches = 10_000;
    assert!(!meter.read(2 * SECOND, SECOND, &reading).incomplete);
}

#[test]
fn what_the_gpu_counted_before_a_claim_left_is_not_told_of_the_one_that_stayed() {
    let stays = work(&[grown(0.5, 40.0)]);
    let since = |left| Interval {
        left,
        counters: counted(0.9, 0.5),
        ..interval()
    };
    let alone = attribute(&since(false), std::slice::from_ref(&stays));
    assert_eq!(
        (alone.parts[0].sm_active, alone.parts[0].measured),
        (Some(0.9), true)
    );
    let moved = attribute(&since(true), &[stays]);
    let part = moved.parts[0];
    assert!(!part.measured);
    assert!(near(part.sm_active, 0.2), "{part:?}");
    assert!(near(moved.sm_unattributed, 0.7), "{moved:?}");
}

#[test]
fn who_has_left_is_remembered_for_two_looks() {
    let mut present = Present::default();
    assert!(!present.look(vec![1, 2]), "nobody was there before");
    assert!(!present.look(vec![2, 1, 3]));
    assert!(present.look(vec![1, 3]), "2 has left");
    assert!(present.look(vec![1, 3, 4]));
    assert!(!present.look(vec![1, 3, 4]));
}
