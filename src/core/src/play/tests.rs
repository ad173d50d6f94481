//! The player against what is known without it.

use super::list::{self, Cut, Entry};
use super::player::watched;
use super::{Setup, carry_s, play};
use crate::machine::Event;
use crate::units::Bytes;

/// A busy machine of two GPUs and four users.
fn busy(seed: u64) -> (Vec<Entry>, Setup) {
    let cut = Cut {
        claims: 80,
        gpus: 2,
        load: 1.2,
        run_s: (30.0, 1800.0),
        ..Cut::default()
    };
    let setup = Setup {
        gpus: 2,
        guaranteed: 4,
        ..Setup::default()
    };
    (list::block(&list::synthetic(400, 1), &cut, seed), setup)
}

fn entry(arrival_s: f64, run_s: f64, milli: u32, user: usize) -> Entry {
    Entry {
        arrival_s,
        run_s,
        gpus: 1,
        milli,
        user,
        ..Entry::default()
    }
}

#[test]
fn a_claim_alone_waits_for_nothing_and_takes_what_it_runs() {
    let played = play(&[entry(10.0, 100.0, 500, 0)], &Setup::default());
    let claim = played.claims[0];
    assert_eq!((claim.wait_s, claim.done_s), (Some(0.0), Some(100.0)));
    assert_eq!(claim.suspensions, 0);
}

#[test]
fn what_is_taken_for_another_costs_both_ways_and_the_countdown() {
    let setup = Setup {
        gpus: 1,
        guaranteed: 2,
        ..Setup::default()
    };
    // The first has the whole GPU and is guaranteed half of it; the second, within its guarantee, runs 100 s.
    let list = [entry(0.0, 1000.0, 1000, 0), entry(200.0, 100.0, 500, 1)];
    let played = play(&list, &setup);
    let (way, countdown) = (carry_s(Bytes::gib(24)), 30.0);
    let [first, second] = [played.claims[0], played.claims[1]];
    let close = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 0.01, "{a:?}, not {b}");
    close(second.wait_s, countdown + way);
    close(second.done_s, countdown + way + 100.0);
    close(first.done_s, 1000.0 + 100.0 + 2.0 * way);
    assert_eq!((first.suspensions, second.suspensions), (1, 0));
    assert!((first.away_s - 100.0 - 2.0 * way).abs() < 0.01);
}

#[test]
fn a_start_that_is_taken_back_before_the_shortest_run_is_no_start() {
    let list = [entry(0.0, 1000.0, 1000, 0), entry(10.0, 30.0, 1000, 0)];
    let setup = Setup {
        gpus: 1,
        offload: false,
        ..Setup::default()
    };
    let played = play(&list, &setup);
    // A run that is shorter than that counts when it is done.
    assert_eq!(played.claims[1].wait_s, Some(990.0));
}

#[test]
fn use_never_exceeds_the_machine_and_every_claim_ends() {
    for seed in 0..4 {
        let (list, setup) = busy(seed);
        let played = play(&list, &setup);
        assert_eq!(played.unfinished(), 0, "seed {seed}");
        assert!(played.useful <= 1.0, "{}", played.useful);
        let figures = played.figures(&list);
        assert!(
            figures.suspensions > 0 && figures.jain <= 1.0,
            "{figures:?}"
        );
        for (e, c) in list.iter().zip(&played.claims) {
            assert!((c.ran_s - e.run_s).abs() < 1e-3);
            assert!(c.done_s.unwrap() >= e.run_s - 1e-3);
        }
    }
}

#[test]
fn a_time_limit_ends_a_claim_and_a_fault_leaves_it_where_it_was() {
    let mut limited = entry(0.0, 1000.0, 1000, 0);
    limited.limit_s = Some(600.0);
    let played = play(&[limited], &Setup::default());
    assert_eq!(played.claims[0].done_s, Some(600.0));
    assert!(played.claims[0].cut_short);
    let (list, setup) = busy(1);
    let faulty = Setup { faults: 3, ..setup };
    let mut failed = 0;
    let played = watched(&list, &faulty, &mut |_, event, _| {
        failed += u32::from(matches!(event, Event::LeverFailed { .. }));
    });
    assert!(failed > 0 && failed == played.failed);
    assert_eq!(played.unfinished(), 0);
}
