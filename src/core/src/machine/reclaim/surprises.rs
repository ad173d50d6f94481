//! Surprises during plans: GPUs that fail, clocks that jump, owners and administrators who change their minds, and
//! predictions that prove wrong.

use super::super::lever::{Lever, Levers, Wish};
use super::super::tests::World;
use super::super::*;
use super::tests::{Bench, s};
use crate::claim::Class;
use crate::quota::{Party, Quota};

/// Two claims of half a GPU each on two GPUs; one is to move so that a whole GPU becomes free.
fn planned() -> Bench {
    let mut b = Bench::new(2);
    b.claim(1, 500, 1, Class::Interactive, 8);
    b.claim(2, 500, 2, Class::Interactive, 6);
    b.pass(s(100));
    b.claim(3, 1000, 3, Class::Batch, 10);
    let plan = b.w.machine.plan_of(ClaimId(3)).expect("one moves");
    assert_eq!(
        (plan.steps[0].id, plan.steps[0].lever),
        (ClaimId(2), Lever::Move)
    );
    b.pass(s(10));
    b
}

/// All these claims run.
fn all_run(b: &Bench, ids: &[u64]) -> bool {
    ids.iter().all(|id| b.at(*id).is_some())
}

#[test]
fn a_gpu_that_is_drained_or_sick_while_it_is_planned_is_not_waited_for() {
    for sick in [false, true] {
        let mut b = planned();
        let mut gpus = b.w.machine.ledger().gpus().to_vec();
        // Claim 2 was to leave this GPU.
        let out = b.at(2).expect("it runs")[0];
        let event = if sick {
            gpus[out].healthy = false;
            Event::Gpus(gpus.clone())
        } else {
            let uuid = gpus[out].uuid.clone();
            Event::Drain { uuid, on: true }
        };
        b.send(event);
        b.pass(s(60));
        let onto = b.at(3);
        assert!(
            onto.as_ref().is_none_or(|at| !at.contains(&out)),
            "sick: {sick}, {onto:?}"
        );
        let to =
            |p: &Plan| p.at.contains(&out) || p.steps.iter().any(|step| step.to.contains(&out));
        assert!(
            !b.w.machine.plan_of(ClaimId(3)).is_some_and(to),
            "sick: {sick}"
        );
        // It works again: in the end all claims have a place.
        let event = if sick {
            gpus[out].healthy = true;
            Event::Gpus(gpus)
        } else {
            let uuid = gpus[out].uuid.clone();
            Event::Drain { uuid, on: false }
        };
        b.send(event);
        b.pass(s(200));
        assert!(all_run(&b, &[3]), "sick: {sick}");
    }
}

#[test]
fn a_machine_that_slept_goes_on_with_what_was_announced_and_owes_nobody_a_turn_for_it() {
    let mut b = planned();
    // The lid is closed for a day: time jumps in one step.
    b.w.now += s(24 * 3600);
    b.send(Event::Tick);
    b.pass(s(10));
    assert!(all_run(&b, &[1, 2, 3]));
}

#[test]
fn a_clock_that_goes_back_stops_nothing() {
    let mut b = planned();
    let before = b.w.machine.past(1);
    b.w.now -= s(90);
    b.send(Event::Tick);
    assert_eq!(
        b.w.machine.past(1),
        before,
        "nothing is counted twice or taken back"
    );
    b.pass(s(90 + 60));
    assert!(all_run(&b, &[1, 2, 3]));
}

#[test]
fn an_owner_who_withdraws_in_mid_offload_leaves_the_room_to_the_others() {
    // Either the waiting claim is withdrawn while another leaves for it, or the leaving claim ends.
    for (gone, runs) in [(2, [1, 1]), (1, [2, 2])] {
        let mut b = Bench::new(1);
        b.claim(1, 1000, 1, Class::Batch, 8);
        b.pass(s(700));
        b.claim(2, 1000, 1, Class::Batch, 8);
        let leaving = |b: &Bench| {
            matches!(
                b.w.machine.claims.phase(ClaimId(1)),
                Some(Phase::Offloading { .. })
            )
        };
        for _ in 0..120 {
            if leaving(&b) {
                break;
            }
            b.pass(s(1));
        }
        assert!(leaving(&b), "it is on its way to the host");
        b.send(Event::Gone { id: ClaimId(gone) });
        b.pass(s(30));
        assert!(all_run(&b, &runs), "c{gone} has gone");
        assert!(b.parked().is_empty());
    }
}

#[test]
fn an_owner_who_suspends_what_is_announced_makes_the_room_at_once() {
    let mut b = planned();
    let (id, wish) = (ClaimId(2), Wish::Suspend);
    b.send(Event::Wish { id, wish });
    b.pass(s(10));
    assert!(all_run(&b, &[1, 3]));
    b.pass(s(3600));
    assert_eq!(b.parked(), [2], "until its owner resumes it");
}

fn guarantee(user: u32, gpus: &str) -> Quota {
    Quota {
        party: Party::User(format!("u{user}")),
        gpus: Some(gpus.parse().unwrap()),
        weight_milli: None,
        max: None,
    }
}

#[test]
fn a_guarantee_lowered_under_a_plan_withdraws_what_only_it_allowed() {
    let mut b = Bench::new(2);
    for user in [1, 2] {
        let parties = vec![Party::User(format!("u{user}"))];
        let ids = if user == 1 { [1, 2] } else { [3, 4] };
        for id in ids.map(ClaimId) {
            b.send(Event::Parties {
                id,
                parties: parties.clone(),
            });
        }
    }
    b.send(Event::Quotas(vec![guarantee(1, "1"), guarantee(2, "1")]));
    b.claim(1, 1000, 1, Class::Batch, 8);
    b.claim(2, 1000, 1, Class::Batch, 8);
    b.pass(s(100));
    b.claim(3, 1000, 2, Class::Batch, 8);
    assert!(
        b.w.machine.plan_of(ClaimId(3)).is_some(),
        "one of two is on loan"
    );
    b.pass(s(5));
    b.send(Event::Quotas(vec![guarantee(1, "2")]));
    assert_eq!(b.w.machine.plan_of(ClaimId(3)), None);
    let told = b.w.log.iter().any(|a| matches!(a, Action::Retract { .. }));
    assert!(told, "its owner hears that nothing is taken");
    b.pass(s(60));
    assert!(all_run(&b, &[1, 2]));
    // In the other direction it is announced anew, with a whole countdown.
    b.send(Event::Quotas(vec![guarantee(1, "1"), guarantee(2, "1")]));
    let plan = b.w.machine.plan_of(ClaimId(3)).expect("again");
    assert_eq!(plan.due, b.w.now + s(30));
    b.pass(s(40));
    assert!(all_run(&b, &[3]));
}

#[test]
fn while_a_claim_is_being_ended_nothing_is_taken_for_what_it_leaves() {
    for announced in [true, false] {
        let mut b = Bench::new(1);
        b.claim(1, 500, 1, Class::Batch, 8);
        b.claim(2, 500, 1, Class::Batch, 8);
        b.pass(s(700));
        let end = |b: &mut Bench| {
            for id in [1, 2].map(ClaimId) {
                b.send(Event::Ending { id });
            }
        };
        if !announced {
            end(&mut b);
        }
        b.claim(3, 500, 2, Class::Batch, 8);
        assert_eq!(b.w.machine.plan_of(ClaimId(3)).is_some(), announced);
        b.pass(s(5));
        if announced {
            end(&mut b);
        }
        assert_eq!(b.w.machine.plan_of(ClaimId(3)), None);
        b.pass(s(60));
        let taken = |a: &Action| matches!(a, Action::Park { .. });
        assert!(
            !b.w.log.iter().any(taken),
            "nothing is done to claims that end by themselves"
        );
        b.send(Event::Gone { id: ClaimId(1) });
        assert!(all_run(&b, &[2, 3]));
    }
}

#[test]
fn a_predicted_end_that_passes_is_not_counted_on_any_more() {
    let mut w = World::new(&[24]);
    let span = |long| Span::of([10, 50, 100, 300, long].map(s).to_vec()).expect("enough");
    let claim = |share: &str| {
        let mut r = Request::from_gpus(share.parse().unwrap(), Share::ONE, Class::Batch).unwrap();
        r.uid = 7;
        r
    };
    w.submit_request(1, claim("0.5"), None);
    w.send(Event::RunTime {
        id: ClaimId(1),
        span: span(600),
    });
    // Nothing can be taken from it, so the plan is to wait for its end.
    let no = || Err("it uses managed memory".to_owned());
    let levers = Levers {
        park: no(),
        movable: no(),
        ..Levers::default()
    };
    w.send(Event::Levers {
        id: ClaimId(1),
        levers,
    });
    w.submit_request(2, claim("1"), None);
    assert_eq!(w.machine.expected_start(ClaimId(2)), Some(s(600)));
    w.submit_request(3, claim("0.5"), None);
    assert_eq!(w.granted(3), None, "it would delay the first");
    let id = ClaimId(4);
    w.send(Event::RunTime {
        id,
        span: span(900),
    });
    w.submit_request(4, claim("0.25"), None);
    assert!(w.granted(4).is_some(), "most such runs have ended by then");
    w.send(Event::Gone { id });
    w.now = s(601);
    w.send(Event::Tick);
    assert_eq!(
        w.machine.expected_start(ClaimId(2)),
        None,
        "nobody knows now"
    );
    assert_eq!(
        w.granted(3),
        Some(vec![0]),
        "no room is kept for a start that was guessed wrong"
    );
}

#[test]
fn a_decision_that_is_made_again_at_once_decides_nothing_new() {
    let mut b = Bench::new(3);
    // A reason may name claims that started behind it in the same decision; only its text changes.
    let decides = |a: &Action| {
        !matches!(
            a,
            Action::Measure | Action::Cap { .. } | Action::Wait { .. }
        )
    };
    for second in 0..3000u64 {
        if second % 20 == 0 && second < 600 {
            let (id, turn) = (1 + second / 20, (second / 20) as usize);
            let milli = [300, 500, 1000, 700, 150, 2000][turn % 6];
            b.claim(id, milli, 1 + turn as u32 % 4, Class::Batch, 3);
        }
        if second % 60 == 50 {
            let id = ClaimId(second / 60);
            b.send(Event::Gone { id });
        }
        b.pass(s(1));
        let before = b.w.log.len();
        b.send(Event::Tick);
        let again: Vec<&Action> = b.w.log[before..].iter().filter(|a| decides(a)).collect();
        assert!(again.is_empty(), "after {second} s: {again:?}");
    }
}
