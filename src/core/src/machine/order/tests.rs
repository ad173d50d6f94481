//! The order of service, in virtual time.

use super::super::tests::World;
use super::super::{Event, Machine};
use super::*;
use crate::claim::Class;

fn request(share: &str, uid: u32) -> Request {
    let share = share.parse().expect("a share");
    let mut request = Request::from_gpus(share, Share::ONE, Class::Batch).expect("valid");
    request.uid = uid;
    request
}

fn ask(w: &mut World, id: u64, share: &str, uid: u32) {
    w.submit_request(id, request(share, uid), None);
}

fn waiting(machine: &Machine) -> Vec<u64> {
    machine.queue().map(|(id, _)| id.0).collect()
}

fn gone(w: &mut World, id: u64) {
    w.send(Event::Gone { id: ClaimId(id) });
}

#[test]
fn who_has_nothing_goes_before_the_next_claim_of_one_who_has_all() {
    let mut w = World::new(&[24]);
    ask(&mut w, 1, "0.5", 7);
    ask(&mut w, 2, "0.5", 7);
    ask(&mut w, 3, "0.5", 7);
    ask(&mut w, 4, "0.5", 8);
    assert_eq!(waiting(&w.machine), [4, 3]);
    assert!(w.machine.is_entitled(ClaimId(4)) && !w.machine.is_entitled(ClaimId(3)));
    gone(&mut w, 1);
    assert_eq!(w.granted(4), Some(vec![0]));
    assert_eq!(w.granted(3), None);
    gone(&mut w, 2);
    assert_eq!(w.granted(3), Some(vec![0]));
}

#[test]
fn among_borrowers_goes_first_who_had_less_lately() {
    let mut w = World::new(&[24]);
    ask(&mut w, 1, "1", 7);
    w.now = Duration::from_secs(2 * 3600);
    // Both owners want more than their half.
    ask(&mut w, 2, "1", 7);
    ask(&mut w, 3, "1", 8);
    assert!(w.machine.past(7) > 3600.0 / 2.0);
    gone(&mut w, 1);
    assert_eq!(w.granted(3), Some(vec![0]));
    assert_eq!(waiting(&w.machine), [2]);
}

/// To make all GPUs free costs the same for one of them as for several.
#[test]
fn claims_of_every_gpu_start_one_after_the_other() {
    let hours = |h: u64| Duration::from_secs(3600 * h);
    let mut w = World::new(&[24, 24]);
    ask(&mut w, 1, "2", 7);
    ask(&mut w, 2, "1", 8);
    w.now = hours(2);
    ask(&mut w, 3, "2", 9);
    assert_eq!(waiting(&w.machine), [2, 3]);
    gone(&mut w, 1);
    assert_eq!(w.granted(3), Some(vec![0, 1]));
    // The other claim has waited for more than half a day longer than this one.
    w.now = hours(14);
    ask(&mut w, 4, "2", 9);
    gone(&mut w, 3);
    assert_eq!((w.granted(2), w.granted(4)), (Some(vec![0]), None));
}

#[test]
fn a_small_part_of_every_gpu_is_not_the_whole_machine() {
    let mut w = World::new(&[24, 24]);
    ask(&mut w, 1, "2", 7);
    ask(&mut w, 2, "1", 8);
    w.now = Duration::from_secs(2 * 3600);
    let size = "2x0.3".parse().expect("a size");
    let mut parts = Request::of_size(size, Share::ONE, Class::Batch);
    parts.uid = 9;
    w.submit_request(3, parts, None);
    gone(&mut w, 1);
    assert_eq!((w.granted(2), w.granted(3)), (Some(vec![0]), None));
}

#[test]
fn nobody_waits_for_ever() {
    let mut w = World::new(&[24]);
    ask(&mut w, 1, "1", 7);
    ask(&mut w, 2, "1", 7);
    let mut next = 3;
    // Claims within a guarantee keep coming.
    while w.granted(2).is_none() {
        assert!(w.now < AWAY + Duration::from_secs(7200), "it starves");
        w.now += Duration::from_secs(600);
        ask(&mut w, next, "0.5", 8 + u32::try_from(next).expect("few"));
        let held: Vec<u64> = w.machine.ledger().held().map(|(id, _)| id.0).collect();
        gone(&mut w, held[0]);
        next += 1;
    }
    // Nothing can be taken and no end is known: until then no guess keeps room idle.
    assert!(w.now >= AWAY);
}

#[test]
fn room_is_kept_only_where_and_while_it_is_known_when_the_first_starts() {
    for known in [true, false] {
        let mut w = World::new(&[24, 24]);
        ask(&mut w, 1, "0.9", 7);
        let mut ends = request("0.5", 7);
        ends.lease = known.then_some(Duration::from_secs(600));
        w.submit_request(2, ends, None);
        // The first waits for a whole GPU: GPU 1 is free in ten minutes, or at an unknown time.
        ask(&mut w, 3, "1", 7);
        let at = known.then_some(Duration::from_secs(600));
        assert_eq!(w.machine.expected_start(ClaimId(3)), at);
        ask(&mut w, 4, "0.2", 7);
        let there = (!known).then(|| vec![1]);
        assert_eq!(w.granted(4), there, "it would delay the first");
        ask(&mut w, 5, "0.1", 7);
        assert_eq!(w.granted(5), Some(vec![0]), "nothing is kept there");
        gone(&mut w, 2);
        assert_eq!(w.granted(3), known.then(|| vec![1]));
    }
}

#[test]
fn an_entry_guarantees_more_than_an_equal_part_and_a_weight_counts() {
    use crate::quota::{Party, Quota};
    let mut w = World::new(&[24, 24]);
    let vision = Party::Project("vision".into());
    w.send(Event::Quotas(vec![Quota {
        party: vision.clone(),
        gpus: Some("1.5".parse().expect("a share")),
        weight_milli: None,
        max: None,
    }]));
    let enter = |w: &mut World, id: u64| {
        let parties = vec![vision.clone()];
        w.send(Event::Parties {
            id: ClaimId(id),
            parties,
        });
    };
    ask(&mut w, 1, "1", 7);
    ask(&mut w, 2, "1", 7);
    ask(&mut w, 3, "0.5", 8);
    enter(&mut w, 4);
    ask(&mut w, 4, "1", 9);
    enter(&mut w, 5);
    ask(&mut w, 5, "0.5", 9);
    // The project is guaranteed 1.5 and asks for all of it; the two others are guaranteed a quarter each.
    assert_eq!(waiting(&w.machine), [4, 5, 3]);
    assert!(w.machine.is_entitled(ClaimId(5)) && !w.machine.is_entitled(ClaimId(3)));
    gone(&mut w, 1);
    assert_eq!(w.granted(4), Some(vec![0]));
}

#[test]
fn the_past_is_remembered_and_forgotten() {
    let mut w = World::new(&[24]);
    w.send(Event::Remember(vec![(7, 7200)]));
    assert!((w.machine.past(7) - 7200.0).abs() < 1.0);
    ask(&mut w, 1, "1", 9);
    ask(&mut w, 2, "1", 7);
    ask(&mut w, 3, "1", 8);
    assert_eq!(waiting(&w.machine), [3, 2]);
    w.now = Duration::from_secs(48 * 3600);
    w.send(Event::Tick);
    assert!(w.machine.past(7) < 2000.0);
}

#[test]
fn a_full_machine_is_decided_on() {
    let mut w = World::new(&[48; 16]);
    for id in 1..=120 {
        let share = ["0.1", "0.25", "0.5", "1"][id as usize % 4];
        ask(&mut w, id, share, 1000 + id as u32 % 9);
    }
    let held = w.machine.ledger().held().count();
    assert!(held >= 32 && w.machine.queue().count() == 120 - held);
    for id in 1..=120 {
        gone(&mut w, id);
    }
    assert_eq!(w.machine.queue().count(), 0);
}
