//! Waiting users learn why claims that would give way are left alone.

use super::super::lever::{Lever, Levers, Wish};
use super::super::*;
use super::tests::{Bench, projects, s};
use crate::claim::Class;
use crate::class::{ByHour, Classes, Rules};
use crate::units::Bytes;

/// Project 1 holds four GPUs and is guaranteed two; claims 3 and 4 borrow.
fn borrowed() -> Bench {
    let mut b = projects();
    for id in 1..=4 {
        b.claim(id, 1000, 1, Class::Batch, 10);
    }
    b
}

/// The claims left alone, as reported for claim 11.
fn alone(b: &Bench) -> Vec<(u64, Alone)> {
    let left = b.w.machine.left_alone(b.w.now);
    let told = left.by(&b.w.machine, ClaimId(11));
    told.into_iter().map(|(id, alone)| (id.0, alone)).collect()
}

fn levers(b: &mut Bench, id: u64, park: Result<(), String>, requeue: bool) {
    b.send(Event::Levers {
        id: ClaimId(id),
        levers: Levers {
            park,
            movable: Err("no".to_owned()),
            requeue,
            left_alone: false,
            idle: false,
        },
    });
}

#[test]
fn who_has_not_run_for_long_enough_is_asked_at_the_moment_that_was_told() {
    let mut b = borrowed();
    b.pass(s(10));
    b.claim(11, 1000, 2, Class::Batch, 5);
    let until = match alone(&b).as_slice() {
        [(3, Alone::Young { until }), (4, Alone::Young { .. })] => *until,
        other => panic!("{other:?}"),
    };
    assert!(until > b.w.now);
    b.pass(until - b.w.now - s(1));
    assert_eq!(b.w.machine.plan_of(ClaimId(11)), None);
    b.pass(s(1));
    assert!(b.w.machine.plan_of(ClaimId(11)).is_some());
    assert_eq!(alone(&b), [], "there is a plan");
    // A claim above its owner's guarantee takes nothing.
    let mut b = borrowed();
    b.claim(5, 1000, 1, Class::Batch, 5);
    let left = b.w.machine.left_alone(b.w.now);
    assert_eq!(left.by(&b.w.machine, ClaimId(5)), []);
}

#[test]
fn what_the_driver_cannot_do_is_told_in_its_words_unless_another_lever_works() {
    let mut b = borrowed();
    b.pass(s(100));
    fix(&mut b, &[1, 2, 3, 4]);
    b.claim(11, 1000, 2, Class::Batch, 5);
    let fixed = || Alone::Fixed("it uses managed memory".to_owned());
    assert_eq!(alone(&b), [(3, fixed()), (4, fixed())]);
    levers(&mut b, 4, Err("it uses managed memory".to_owned()), true);
    b.pass(s(1));
    let plan =
        b.w.machine
            .plan_of(ClaimId(11))
            .expect("it may be requeued");
    assert_eq!(plan.steps[0].lever, Lever::Requeue);
}

#[test]
fn what_was_put_off_and_what_the_host_has_no_room_for_is_told() {
    let mut b = borrowed();
    b.pass(s(100));
    b.claim(11, 1000, 2, Class::Batch, 5);
    let mut kept = Vec::new();
    while let Some(plan) = b.w.machine.plan_of(ClaimId(11)) {
        let id = plan.steps[0].id;
        kept.push(id.0);
        b.send(Event::Wish {
            id,
            wish: Wish::Keep,
        });
    }
    kept.sort_unstable();
    let told = alone(&b);
    assert_eq!(told.iter().map(|(id, _)| *id).collect::<Vec<_>>(), kept);
    let until = b.w.now + ReclaimRules::default().keep;
    assert!(told.iter().all(|(_, a)| *a == Alone::PutOff { until }));

    let mut b = borrowed();
    b.pass(s(100));
    b.send(Event::HostRam(Bytes::gib(9)));
    b.claim(11, 1000, 2, Class::Batch, 5);
    let short = || Alone::NoHostRam(Bytes::gib(10));
    assert_eq!(alone(&b), [(3, short()), (4, short())]);
}

/// Makes claims of project 1 fixed: nothing can be taken from them.
fn fix(b: &mut Bench, ids: &[u64]) {
    for id in ids {
        levers(b, *id, Err("it uses managed memory".to_owned()), false);
    }
}

#[test]
fn where_nothing_can_be_taken_from_the_youngest_an_older_one_of_its_owner_makes_room() {
    // It may be ended and started anew, or suspended. A class that is not preemptible is fixed as well.
    for way in ["requeue", "suspend", "class"] {
        let mut b = borrowed();
        b.pass(s(100));
        if way == "class" {
            // The older ones have another class.
            let mut b = projects();
            for id in 1..=4 {
                let younger = id > 2;
                let class = [Class::Batch, Class::Inference][usize::from(younger)];
                b.claim(id, 1000, 1, class, 10);
            }
            b.pass(s(100));
            let mut classes = Classes::default();
            let always = Rules {
                preemptible: false,
                ..Rules::of(Class::Inference)
            };
            let at = Vec::new();
            classes.set(Class::Inference, ByHour { always, at });
            b.send(Event::Classes(classes));
            b.claim(11, 1000, 2, Class::Batch, 5);
            let [(1 | 2, Lever::Suspend)] = taken(&b)[..] else {
                panic!("{:?}", taken(&b));
            };
            continue;
        }
        fix(&mut b, &[2, 3, 4]);
        let no = Err("it uses managed memory".to_owned());
        let park = if way == "requeue" { no } else { Ok(()) };
        levers(&mut b, 1, park, way == "requeue");
        b.claim(11, 1000, 2, Class::Batch, 5);
        let lever = match way {
            "requeue" => Lever::Requeue,
            _ => Lever::Suspend,
        };
        assert_eq!(taken(&b), [(1, lever)]);
        b.pass(s(40));
        assert!(b.at(11).is_some(), "{way}");
        // The owner's remaining claims, with those from which nothing can be taken, are within the guarantee: all stay.
        b.claim(12, 1000, 2, Class::Batch, 5);
        b.pass(s(100));
        assert_eq!(b.at(12), None);
        for id in [2, 3, 4] {
            assert!(b.at(id).is_some(), "{way}: c{id}");
        }
    }
}

/// Steps planned for claim 11.
fn taken(b: &Bench) -> Vec<(u64, Lever)> {
    let plan = b.w.machine.plan_of(ClaimId(11));
    let steps = plan.into_iter().flat_map(|p| &p.steps);
    steps.map(|s| (s.id.0, s.lever)).collect()
}

#[test]
fn the_oldest_keep_their_place_beside_one_that_is_fixed_and_of_the_unknown_nothing_is_said() {
    let mut b = borrowed();
    b.pass(s(100));
    fix(&mut b, &[4]);
    b.claim(11, 1000, 2, Class::Batch, 5);
    b.claim(12, 1000, 2, Class::Batch, 5);
    b.pass(s(40));
    assert!(b.at(11).is_some() && b.at(12).is_some());
    assert_eq!(b.parked(), [2, 3]);
    // They come back within what others do not need; no claim of their own project makes room for them.
    b.pass(s(300));
    assert!(b.at(1).is_some() && b.at(4).is_some());
    for id in [2, 3] {
        assert!(!b.w.machine.is_entitled(ClaimId(id)), "c{id}");
    }
    b.send(Event::Gone { id: ClaimId(12) });
    b.pass(s(10));
    assert_eq!(b.parked().len(), 1, "one of them is back");

    let mut b = borrowed();
    b.pass(s(100));
    for id in [3, 4] {
        let levers = Levers::default();
        b.send(Event::Levers {
            id: ClaimId(id),
            levers,
        });
    }
    b.claim(11, 1000, 2, Class::Batch, 5);
    assert_eq!(
        taken(&b),
        [],
        "nothing is taken from a claim before it is known how"
    );
    levers(&mut b, 3, Ok(()), false);
    b.pass(s(1));
    assert_eq!(taken(&b), [(3, Lever::Suspend)]);
}

#[test]
fn nobody_within_his_guarantee_makes_room_because_a_claim_of_his_is_fixed() {
    let mut b = projects();
    for id in 1..=2 {
        b.claim(id, 1000, 1, Class::Batch, 10);
    }
    for id in 13..=14 {
        b.claim(id, 1000, 2, Class::Batch, 10);
    }
    b.pass(s(100));
    fix(&mut b, &[2, 14]);
    b.claim(11, 1000, 2, Class::Batch, 5);
    b.pass(s(100));
    assert_eq!(taken(&b), []);
    assert!(b.at(1).is_some() && b.at(13).is_some());
}

#[test]
fn who_had_more_memory_than_he_asked_for_comes_back_after_the_one_for_whom_he_went() {
    let mut b = Bench::new(2);
    let ask = |milli, uid, limit| {
        let share = Share::from_milli(milli);
        let mut request = Request::from_gpus(share, Share::ONE, Class::Batch).unwrap();
        request.uid = uid;
        request.only_gpus = vec![0];
        request.mem_limit = limit;
        request
    };
    // User 2 has used more lately, which alone would put them second.
    b.submit(1, ask(1000, 2, None), 2);
    b.pass(s(2000));
    b.send(Event::Gone { id: ClaimId(1) });
    b.submit(2, ask(250, 1, Some(Bytes::gib(18))), 15);
    b.pass(s(100));
    b.submit(3, ask(750, 2, None), 2);
    assert!(b.w.machine.is_entitled(ClaimId(3)));
    b.pass(s(40));
    assert!(b.at(3).is_some());
    b.pass(s(400));
    assert!(b.at(3).is_some(), "once and for all");
    assert_eq!(b.parked(), [2]);
    b.send(Event::Gone { id: ClaimId(3) });
    b.pass(s(5));
    assert!(b.at(2).is_some());
}
