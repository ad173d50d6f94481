//! Turns of claims that have waited for long, and that promises hold.

use super::super::lever::Lever;
use super::super::tests::World;
use super::super::*;
use super::tests::{Bench, projects, s};
use crate::claim::Class;
use crate::quota::{Party, Quota};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

/// Seconds until it runs.
fn waits(b: &mut Bench, id: u64, most: u64) -> u64 {
    for waited in 0..=most {
        if b.at(id).is_some() {
            return waited;
        }
        b.pass(s(1));
    }
    panic!("c{id} waits for more than {most} s");
}

fn claim(share: &str, uid: u32) -> Request {
    let mut r = Request::from_gpus(share.parse().unwrap(), Share::ONE, Class::Batch).unwrap();
    r.uid = uid;
    r
}

#[test]
fn an_owners_short_claim_displaces_their_own_long_one_and_no_other_of_the_same_level() {
    let mut b = Bench::new(1);
    b.claim(1, 1000, 1, Class::Batch, 8);
    b.pass(s(5 * MINUTE));
    b.claim(2, 1000, 1, Class::Batch, 8);
    b.pass(s(4 * MINUTE));
    assert_eq!(b.at(2), None, "neither has had ten minutes");
    assert!(waits(&mut b, 2, 2 * MINUTE) > 0);
    assert_eq!(b.parked(), [1]);
    // After equal use the first arrival goes first.
    assert!(waits(&mut b, 1, 11 * MINUTE) > 9 * MINUTE);
    assert_eq!(b.parked(), [2]);
}

#[test]
fn a_job_in_many_small_claims_gives_way_as_one_claim_does() {
    for parts in [1, 4, 100] {
        let mut b = Bench::new(1);
        for id in 1..=parts {
            b.claim(id, 1000 / parts as u32, 1, Class::Batch, 20 / parts);
        }
        b.pass(s(11 * MINUTE));
        b.claim(200, 1000, 1, Class::Batch, 8);
        assert!(waits(&mut b, 200, 2 * MINUTE) > 0, "{parts} parts");
    }
}

#[test]
fn a_class_goes_first_for_an_hour_and_then_as_batch_jobs_do() {
    let mut b = Bench::new(1);
    b.claim(1, 1000, 1, Class::Batch, 8);
    b.pass(s(5 * MINUTE));
    b.claim(2, 1000, 1, Class::Interactive, 8);
    assert!(
        waits(&mut b, 2, 2 * MINUTE) > 0,
        "it goes before a batch job"
    );
    b.pass(s(50 * MINUTE));
    assert!(b.at(2).is_some());
    assert!(
        waits(&mut b, 1, 15 * MINUTE) > 0,
        "the batch job has used less"
    );
}

#[test]
fn room_that_was_announced_for_one_is_not_given_to_a_smaller_one_that_comes_first() {
    let mut b = Bench::new(2);
    b.claim(1, 500, 1, Class::Interactive, 8);
    b.claim(2, 500, 2, Class::Interactive, 6);
    b.pass(s(100));
    b.claim(3, 1000, 3, Class::Batch, 10);
    let planned = b.w.machine.plan_of(ClaimId(3)).expect("one moves").clone();
    assert_eq!(planned.steps[0].lever, Lever::Move);
    assert_eq!(planned.steps[0].id, ClaimId(2));
    b.pass(s(5));
    // Its class goes first, and it is small enough for either GPU as they are now.
    b.claim(4, 400, 4, Class::Interactive, 4);
    assert_eq!(b.at(4), None, "{:?}", b.at(4));
    assert_eq!(b.w.machine.plan_of(ClaimId(3)), Some(&planned));
    let retracted = |a: &Action| matches!(a, Action::Retract { .. });
    assert!(!b.w.log.iter().any(retracted));
    assert!(waits(&mut b, 3, 30) <= 28);
}

#[test]
fn who_ends_before_the_countdown_is_over_is_let_past() {
    for (limit, past) in [(20, true), (60, false)] {
        let mut b = Bench::new(2);
        b.claim(1, 500, 1, Class::Interactive, 8);
        b.claim(2, 500, 2, Class::Interactive, 6);
        b.pass(s(100));
        b.claim(3, 1000, 3, Class::Batch, 10);
        let due = b.w.machine.plan_of(ClaimId(3)).expect("one moves").due;
        let mut short = claim("0.4", 4);
        short.lease = Some(s(limit));
        b.submit(4, short, 4);
        assert_eq!(b.at(4).is_some(), past, "of {limit} s");
        let plan = b.w.machine.plan_of(ClaimId(3));
        assert_eq!(plan.map(|p| p.due), Some(due));
        assert!(waits(&mut b, 3, 40) <= 33);
    }
}

#[test]
fn who_is_likely_to_have_ended_before_the_first_starts_is_let_past() {
    // The time limit is firm, so half of past runs having ended is not enough.
    for (longest, limit, past) in [
        (Some(590), None, true),
        (Some(700), None, false),
        (None, None, false),
        (None, Some(600), true),
        (None, Some(601), false),
    ] {
        let mut w = World::new(&[24]);
        let mut first = claim("0.5", 7);
        first.lease = Some(s(600));
        w.submit_request(1, first, None);
        w.submit_request(2, claim("1", 7), None);
        let id = ClaimId(3);
        if let Some(longest) = longest {
            let span = Span::of([10, 50, 100, 300, longest].map(s).to_vec()).unwrap();
            w.send(Event::RunTime { id, span });
        }
        let mut third = claim("0.25", 7);
        third.lease = limit.map(s);
        w.submit_request(3, third, None);
        assert_eq!(w.granted(3).is_some(), past);
        assert_eq!(w.machine.expected_start(ClaimId(2)), Some(s(600)));
    }
}

/// If nothing can be taken on a machine, most claims wait until their turn.
#[test]
fn who_comes_to_its_turn_later_goes_after_those_whose_turn_it_was() {
    let mut w = World::new(&[24]);
    w.submit_request(1, claim("1", 7), None);
    w.submit_request(2, claim("1", 7), None);
    w.now = s(600);
    w.submit_request(3, claim("1", 8), None);
    let mut order_at = |now| {
        w.now = now;
        w.send(Event::Tick);
        w.machine.queue().map(|(id, _)| id.0).collect::<Vec<_>>()
    };
    assert_eq!(order_at(s(601)), [3, 2], "within the guarantee");
    assert_eq!(order_at(DUE), [2, 3]);
    assert_eq!(order_at(DUE + s(601)), [2, 3]);
}

/// Nothing is announced for room that a time limit gives sooner. If the limit is extended, the choice is made again.
#[test]
fn what_ends_before_others_could_make_room_is_waited_for() {
    for (limit, extended, starts) in [(20, false, 20), (20, true, 44), (60, false, 33)] {
        let mut b = Bench::new(2);
        let mut ends = claim("1", 1);
        ends.lease = Some(s(100 + limit));
        b.submit(1, ends, 8);
        b.claim(2, 1000, 1, Class::Batch, 4);
        b.pass(s(100));
        b.claim(3, 1000, 2, Class::Batch, 8);
        let announced = b.w.machine.plan_of(ClaimId(3)).is_some();
        assert_eq!(announced, limit > 30, "of {limit} s");
        if extended {
            b.pass(s(10));
            let ends = Some(s(1000));
            b.send(Event::Lease {
                id: ClaimId(1),
                ends,
            });
        }
        let waited = waits(&mut b, 3, 60) + if extended { 10 } else { 0 };
        assert!((starts - 2..=starts).contains(&waited), "{waited} s");
    }
}

#[test]
fn the_moment_at_which_a_large_claim_starts_only_becomes_earlier() {
    let mut b = Bench::new(2);
    for (id, limit) in [(1, 600), (2, 300)] {
        let mut ends = claim("1", 1);
        ends.lease = Some(s(limit));
        b.submit(id, ends, 8);
        let id = ClaimId(id);
        let levers = lever::Levers::default();
        b.send(Event::Levers { id, levers });
    }
    let all = Party::User("all".to_owned());
    b.send(Event::Quotas(vec![Quota {
        party: all.clone(),
        gpus: Some(Share::from_milli(2000)),
        weight_milli: None,
        max: None,
    }]));
    let (id, parties) = (ClaimId(3), vec![all]);
    b.send(Event::Parties { id, parties });
    b.claim(3, 2000, 2, Class::Batch, 8);
    let expected = |b: &Bench| b.w.machine.expected_start(ClaimId(3)).expect("known");
    assert_eq!(expected(&b), s(600), "when both have ended");
    let mut earliest = expected(&b);
    for second in 1..=420u64 {
        b.pass(s(1));
        match second {
            // Its class goes first, and it is small enough for the room that is free from 300 s on.
            50 => b.claim(4, 500, 3, Class::Interactive, 4),
            310 => {
                assert_eq!(
                    b.at(4),
                    None,
                    "it may run on when the large one is to start"
                );
                let mut short = claim("0.5", 4);
                short.lease = Some(s(60));
                b.submit(5, short, 4);
                assert!(
                    b.at(5).is_some(),
                    "nothing is kept idle that a short one can use"
                );
            }
            // News about the first claim: it can be offloaded.
            400 => {
                let levers = lever::Levers {
                    park: Ok(()),
                    ..lever::Levers::default()
                };
                b.send(Event::Levers {
                    id: ClaimId(1),
                    levers,
                });
                assert_eq!(expected(&b), s(430), "after a countdown");
            }
            _ => {}
        }
        assert!(expected(&b) <= earliest, "at {second} s");
        earliest = expected(&b);
    }
    assert!(waits(&mut b, 3, 14) > 0);
}

#[test]
fn claims_of_the_whole_machine_divide_half_an_hour_in_their_turn_and_have_the_next_after_six() {
    // Two projects hold all that they are guaranteed.
    let mut b = projects();
    for (id, uid) in [(1, 1), (2, 1), (11, 2), (12, 2)] {
        b.claim(id, 1000, uid, Class::Batch, 4);
    }
    b.claim(21, 4000, 5, Class::Batch, 20);
    b.claim(22, 4000, 6, Class::Batch, 20);
    let all_run = |b: &Bench| [1, 2, 11, 12].iter().all(|id| b.at(*id).is_some());
    b.pass(DUE - s(MINUTE));
    assert!(all_run(&b), "nothing is taken or kept for it yet");
    assert!(waits(&mut b, 21, 4 * MINUTE) > 0);
    assert_eq!(b.parked(), [1, 2, 11, 12]);
    b.pass(s(13 * MINUTE));
    assert!(
        b.at(21).is_some(),
        "for a quarter of an hour nothing is taken from it"
    );
    // The second has the next turn, and then no other claim's turn to start has come.
    assert!(waits(&mut b, 22, 5 * MINUTE) > 0);
    b.pass(s(HOUR + 5 * MINUTE));
    assert!(all_run(&b), "{:?}", b.parked());
    b.pass(s(4 * HOUR));
    assert!(all_run(&b), "their next turns have not come");
    assert!(waits(&mut b, 21, HOUR + 5 * MINUTE) > 0);
}

#[test]
fn who_starts_behind_a_claim_whose_turn_it_is_keeps_it_waiting_no_longer() {
    let mut b = projects();
    for (id, uid) in [(1, 1), (2, 1), (11, 2), (12, 2)] {
        b.claim(id, 1000, uid, Class::Batch, 4);
    }
    b.claim(21, 1000, 5, Class::Batch, 4);
    b.pass(s(10 * MINUTE));
    b.claim(22, 4000, 6, Class::Batch, 20);
    b.pass(s(12 * MINUTE));
    // Its turn would end seven minutes after the first one's, which lasts half an hour.
    b.claim(23, 1000, 7, Class::Batch, 4);
    b.pass(s(40 * MINUTE));
    // Else this would end the turn after ten minutes.
    for id in b.parked().into_iter().map(ClaimId) {
        b.send(Event::Gone { id });
    }
    b.pass(s(27 * MINUTE));
    let both = b.at(21).is_some() && b.at(23).is_some();
    assert!(both, "no GPU is kept for the large one");
    assert!(waits(&mut b, 22, 4 * MINUTE) > 0);
}

#[test]
fn turns_of_claims_that_were_away_leave_others_what_they_are_guaranteed() {
    let mut b = Bench::new(2);
    b.claim(1, 1000, 1, Class::Batch, 8);
    b.claim(2, 1000, 1, Class::Batch, 8);
    b.pass(s(11 * MINUTE));
    // Shorter claims of the same owner keep coming.
    let mut next = 10;
    let mut pieces = |b: &mut Bench, most: u64| {
        for _ in 0..most {
            for id in [next, next + 1] {
                b.claim(id, 1000, 1, Class::Batch, 8);
                b.send(Event::Gone {
                    id: ClaimId(id - 2),
                });
            }
            next += 2;
            b.pass(s(9 * MINUTE));
        }
    };
    pieces(&mut b, 80);
    assert_eq!(b.parked(), [1, 2]);
    pieces(&mut b, 2);
    assert!(b.at(1).is_some(), "its turn has come after twelve hours");
    assert_eq!(b.at(2), None, "the next turn is after this one");
    b.claim(3, 1000, 2, Class::Batch, 8);
    assert!(waits(&mut b, 3, 106) > 0, "one GPU is guaranteed to each");
    pieces(&mut b, 4);
    assert!(b.at(1).is_some() && b.at(3).is_some(), "{:?}", b.parked());
}

#[test]
fn a_turn_gives_way_after_ten_minutes_to_what_has_waited_so_long_within_a_guarantee() {
    let mut b = Bench::new(3);
    for (id, gib) in [(1, 8), (2, 8), (3, 20)] {
        b.claim(id, 1000, id as u32, Class::Batch, gib);
    }
    // Larger than what each user is guaranteed.
    b.submit(4, claim("2", 1), 8);
    assert!(waits(&mut b, 4, 62 * MINUTE) > 59 * MINUTE);
    assert_eq!(b.parked(), [1, 2]);
    let took = waits(&mut b, 2, 12 * MINUTE);
    assert!(took > 9 * MINUTE, "half an hour is its turn: {took} s");
    assert_eq!(b.parked(), [4]);
}

#[test]
fn a_time_limit_stands_still_while_the_memory_is_away_for_others() {
    let id = ClaimId(1);
    let end = |b: &Bench| b.w.machine.lease_end(id).expect("it has a limit");
    for own in [true, false] {
        let mut b = Bench::new(1);
        let mut limited = claim("1", 1);
        limited.lease = Some(s(HOUR));
        b.submit(1, limited, 8);
        b.pass(s(100));
        if own {
            let wish = lever::Wish::Suspend;
            b.send(Event::Wish { id, wish });
        } else {
            b.claim(2, 1000, 2, Class::Interactive, 5);
        }
        b.pass(s(540));
        assert_eq!(b.parked(), [1]);
        if own {
            assert_eq!(end(&b), s(HOUR), "its owner asked for it");
            continue;
        }
        // It left when the countdown ended, at 130 s.
        assert_eq!(end(&b), s(HOUR) + b.w.now - s(130));
        let left = end(&b) - b.w.now;
        // A restarted service remembers that.
        b.w = super::histories::restarted(&b.w);
        // Its class goes first for an hour.
        b.pass(s(40 * MINUTE));
        assert_eq!(end(&b) - b.w.now, left);
        let over = Action::LeaseOver { id };
        assert!(!b.w.log.contains(&over));
        b.send(Event::Gone { id: ClaimId(2) });
        let ends = end(&b) + s(waits(&mut b, 1, 10));
        assert_eq!(end(&b), ends, "until it can run again");
        assert!(b.w.log.contains(&Action::LeaseMoved { id, ends }));
        b.pass(left - s(1));
        assert!(!b.w.log.contains(&over));
        b.pass(s(1));
        assert!(b.w.log.contains(&over));
    }
}

/// Each user is guaranteed half of the machine. In six hours the pieces may get at most a twentieth above that. Here
/// the lower bound is loose: they must be served at all.
#[test]
fn a_job_in_pieces_gets_no_more_than_one_job() {
    let mut b = Bench::new(1);
    // Neither fits into the half that each user is guaranteed.
    b.claim(1, 1000, 1, Class::Batch, 8);
    let (mut ran, mut piece) = ([0, 0], 100);
    b.claim(piece, 1000, 2, Class::Batch, 8);
    let mut left = 9 * MINUTE;
    for _ in 0..6 * HOUR {
        b.pass(s(1));
        ran[0] += u64::from(b.at(1).is_some());
        if b.at(piece).is_some() {
            ran[1] += 1;
            left -= 1;
        }
        if left == 0 {
            b.send(Event::Gone { id: ClaimId(piece) });
            piece += 1;
            b.claim(piece, 1000, 2, Class::Batch, 8);
            left = 9 * MINUTE;
        }
    }
    let part = ran[1] as f64 / (ran[0] + ran[1]) as f64;
    assert!((0.2..0.55).contains(&part), "{ran:?}");
}

#[test]
fn the_more_wait_the_less_is_searched_for_in_one_decision() {
    let most = |gpus: usize, waiting: u64| {
        let mut w = World::new(&vec![24; gpus]);
        for id in 0..gpus as u64 + waiting {
            w.submit_request(id + 1, claim("1", 7), None);
        }
        assert_eq!(w.machine.queue().count() as u64, waiting);
        w.machine.most_steps()
    };
    assert_eq!(most(1, 50), 12_000);
    assert_eq!(most(1, 100), 10_750);
    assert_eq!(
        most(2, 700),
        600,
        "some steps remain, no matter how many claims wait"
    );
}

#[test]
fn claims_within_guarantees_that_one_decision_left_out_get_their_plans_in_the_next_seconds() {
    let mut b = Bench::new(1);
    for id in 1..=530 {
        b.claim(id, 100, 1, Class::Batch, 2);
    }
    let others = 2..=10;
    for uid in others.clone() {
        b.claim(1000 + u64::from(uid), 100, uid, Class::Batch, 2);
    }
    let planned = |b: &Bench| {
        let ids = others.clone().map(|uid| ClaimId(1000 + u64::from(uid)));
        ids.filter(|id| b.w.machine.plan_of(*id).is_some()).count()
    };
    b.w.now = s(30);
    b.send(Event::Tick);
    assert!((1..9).contains(&planned(&b)), "of 9: {}", planned(&b));
    while planned(&b) < 9 {
        b.w.now = b.w.machine.next_wake(b.w.now).expect("claims wait");
        b.send(Event::Tick);
    }
    assert!(b.w.now <= s(39), "{:?}", b.w.now);
}

#[test]
fn an_owner_with_many_claims_has_none_away_for_a_day() {
    const CLAIMS: u64 = 30;
    let mut b = Bench::new(1);
    b.claim(100, 500, 2, Class::Batch, 4);
    for id in 1..=CLAIMS {
        b.claim(id, 500, 1, Class::Batch, 4);
    }
    let (mut last, mut longest) = (BTreeMap::new(), Duration::ZERO);
    while b.w.now < s(60 * HOUR) {
        b.w.now += s(29);
        b.pass(s(1));
        for id in (1..=CLAIMS).filter(|id| b.at(*id).is_some()) {
            let before = last.insert(id, b.w.now);
            longest = longest.max(b.w.now - before.unwrap_or(b.w.now));
        }
    }
    let now = b.w.now;
    let still = last.values().map(|at| now - *at).max();
    assert_eq!(last.len() as u64, CLAIMS, "each has run");
    assert!(
        longest.max(still.unwrap()) < s(20 * HOUR),
        "{longest:?} {still:?}"
    );
    assert!(b.at(100).is_some(), "the other user has lost nothing");
}
