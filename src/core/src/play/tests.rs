//! Compares the player with known results.

use super::list::{self, Cut, Entry};
use super::player::watched;
use super::simple::{self, Patience, Placing, Rank};
use super::{Policy, Setup, carry_s, play};
use crate::ledger::Sharing;
use crate::machine::Event;
use crate::units::{Bytes, Share};
use std::time::Duration;

/// A busy machine of two GPUs and four users.
fn busy(seed: u64) -> (Vec<Entry>, Setup) {
    let cut = Cut {
        claims: 80,
        gpus: 2,
        load: 1.2,
        run_s: (30.0, 1800.0),
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
    // The first claim has the whole GPU and is guaranteed half. The second, within its guarantee, runs for 100 s.
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
    // A run shorter than the minimum counts when it is done.
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

#[test]
fn an_instance_is_held_whole_and_nothing_is_taken_there() {
    let instance = |mem, sm| Sharing::Instance {
        mem: Share::from_milli(mem),
        sm: Share::from_milli(sm),
    };
    let setup = Setup {
        gpus: 1,
        divided: vec![vec![instance(500, 428), instance(250, 285)]],
        ..Setup::default()
    };
    // An instance each for the first two. The third waits for an end, and the fourth is larger than any instance.
    let list = [
        entry(0.0, 5000.0, 250, 0),
        entry(1.0, 900.0, 300, 1),
        entry(2.0, 100.0, 200, 2),
        entry(3.0, 100.0, 600, 3),
    ];
    let claims = play(&list, &setup).claims;
    let waits: Vec<Option<f64>> = claims.iter().map(|c| c.wait_s).collect();
    assert_eq!(waits, [Some(0.0), Some(0.0), Some(899.0), None]);
    assert!(claims.iter().all(|c| c.suspensions + c.moves == 0));
    // It runs on a GPU that is not divided.
    assert_eq!(play(&list, &Setup { gpus: 2, ..setup }).unfinished(), 0);
}

#[test]
fn a_claim_of_every_gpu_lets_others_past_for_as_long_as_it_is_told_to() {
    let whole = |at| Entry {
        gpus: 2,
        ..entry(at, 100.0, 1000, 0)
    };
    // The others are in turn on either GPU, so that both are never free at the same time.
    let mut list: Vec<Entry> = (0..20)
        .map(|i| entry(f64::from(i) * 500.0, 1000.0, 1000, 0))
        .collect();
    list.splice(1..1, [whole(10.0), whole(20.0)]);
    let setup = Setup {
        gpus: 2,
        ..Setup::default()
    };
    for (after_s, starts) in [(0.0, 1000.0), (1800.0, 2500.0), (1e6, 10_500.0)] {
        // All runs of these sizes take the same time: guesses are as good.
        for (ends, past) in [(None, 0.0), (Some(0.5), 0.9)] {
            let patience = Patience {
                after_s,
                ends,
                past,
                rank: Rank::Arrival,
            };
            let played = simple::patient(&list, &setup, Placing::Pooled, patience);
            let start = |i: usize| played.claims[i].wait_s.unwrap() + list[i].arrival_s;
            // Once the GPUs are free, both start one after the other.
            assert_eq!((start(1), start(2)), (starts, starts + 100.0), "{ends:?}");
        }
    }
}

#[test]
fn backfill_lets_past_who_delays_the_first_by_nothing() {
    let easy = |list: &[Entry]| {
        let setup = Setup {
            gpus: 2,
            ..Setup::default()
        };
        let played = Policy::named("easy").unwrap().play(list, &setup);
        let waits = played.claims.iter().map(|c| c.wait_s.unwrap());
        waits.collect::<Vec<f64>>()
    };
    let two = Entry {
        gpus: 2,
        ..entry(10.0, 100.0, 1000, 0)
    };
    let first = entry(0.0, 1000.0, 1000, 0);
    // One GPU is free until 1000 s, when the second claim gets both.
    assert_eq!(
        easy(&[first, two, entry(20.0, 980.0, 1000, 0)]),
        [0.0, 990.0, 0.0]
    );
    let late = entry(20.0, 981.0, 1000, 0);
    assert_eq!(easy(&[first, two, late]), [0.0, 990.0, 1080.0]);
}

#[test]
fn the_deadline_of_the_whole_machine_does_not_move_on_with_those_that_go_before_it() {
    let limited = |arrival_s, user| Entry {
        limit_s: Some(1001.0),
        ..entry(arrival_s, 1000.0, 1000, user)
    };
    let whole = Entry {
        gpus: 2,
        ..entry(10.0, 100.0, 1000, 1)
    };
    let setup = Setup {
        gpus: 2,
        offload: false,
        ..Setup::default()
    };
    // When it comes, both holders end by 1001 s. The third claim goes before it.
    let list = [limited(0.0, 0), limited(0.0, 0), limited(5.0, 2), whole];
    let played = play(&list, &setup);
    assert_eq!(played.claims[3].wait_s, Some(1990.0));
    assert_eq!(played.claims[3].whole_late_s, Some(2000.0 - 4601.0));
}

#[test]
fn pieces_of_a_task_follow_one_another() {
    let piece = |n: usize| Entry {
        after: (n > 0).then_some(1),
        ..entry(0.0, 100.0, 1000, 0)
    };
    let played = play(&[piece(0), piece(1), piece(2)], &Setup::default());
    let asked: Vec<f64> = played.claims.iter().map(|c| c.asked_s).collect();
    assert_eq!(asked, [0.0, 100.0, 200.0]);
    assert!(played.claims.iter().all(|c| c.wait_s == Some(0.0)));
}

#[test]
fn no_room_is_kept_where_nobody_waits_for_it() {
    let setup = Setup {
        gpus: 1,
        offload: false,
        ..Setup::default()
    };
    // The second claim does not fit beside the first.
    let mut list = vec![entry(0.0, 1000.0, 700, 0), entry(10.0, 100.0, 500, 1)];
    list.push(entry(900.0, 100.0, 500, 1));
    let played = play(&list, &setup);
    assert!(played.kept_idle.abs() < 1e-9);
}

#[test]
fn who_holds_a_part_of_a_gpu_has_had_something_however_often_the_time_is_told() {
    let had = |tick: u64| {
        let setup = Setup {
            gpus: 1,
            tick: Duration::from_secs(tick),
            ..Setup::default()
        };
        // The second and the third claim wait for the first; the third's owner has used less.
        let list = [
            entry(0.0, 3000.0, 600, 0),
            entry(10.0, 3000.0, 400, 1),
            entry(20.0, 100.0, 1000, 0),
            entry(30.0, 100.0, 1000, 1),
        ];
        let played = play(&list, &setup);
        [2, 3].map(|i| played.claims[i].wait_s.unwrap() as u64)
    };
    assert_eq!(had(0), had(1));
}

#[test]
fn a_pool_without_gpus_is_a_bound() {
    let (list, setup) = busy(1);
    let wait = |name: &str| {
        let policy = Policy::named(name).unwrap();
        policy.play(&list, &setup).figures(&list).wait_mean_s
    };
    assert!(wait("pooled") <= wait("exact") && wait("exact") < wait("exclusive"));
}

#[test]
fn claims_are_spread_only_where_the_driver_can_move_them_as_the_service_has_it() {
    for moves in [true, false] {
        let setup = Setup {
            gpus: 2,
            moves,
            offload: moves,
            ..Setup::default()
        };
        let halves = [entry(0.0, 600.0, 500, 0), entry(1.0, 600.0, 500, 1)];
        let list = [halves[0], halves[1], entry(2.0, 600.0, 1000, 2)];
        let played = play(&list, &setup);
        let waits: Vec<f64> = played.waits().collect();
        assert_eq!(waits[2] < 0.1, !moves, "{waits:?}");
    }
}
