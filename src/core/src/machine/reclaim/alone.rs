//! Those who wait are told why others who would give way are left alone.

use super::super::lever::{Lever, Levers, Wish};
use super::super::*;
use super::tests::{Bench, projects, s};
use crate::claim::Class;
use crate::units::Bytes;

/// Project 1 has four GPUs and is guaranteed two; 3 and 4 borrow.
fn borrowed() -> Bench {
    let mut b = projects();
    for id in 1..=4 {
        b.claim(id, 1000, 1, Class::Batch, 10);
    }
    b
}

/// Who is left alone, as 11 is told.
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
    // Who would have more than he is guaranteed takes nothing.
    let mut b = borrowed();
    b.claim(5, 1000, 1, Class::Batch, 5);
    let left = b.w.machine.left_alone(b.w.now);
    assert_eq!(left.by(&b.w.machine, ClaimId(5)), []);
}

#[test]
fn what_the_driver_cannot_do_is_told_in_its_words_unless_another_lever_works() {
    let mut b = borrowed();
    b.pass(s(100));
    for id in [3, 4] {
        levers(&mut b, id, Err("it uses managed memory".to_owned()), false);
    }
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
