//! How long a user waits for an idle notebook under the default rules.

use super::super::lever::Lever;
use super::super::*;
use super::ReclaimRules;
use super::tests::{Bench, s};
use crate::claim::Class;
use crate::units::Bytes;

const NOTEBOOK: Class = Class::Interactive;
/// Default of `[idle] detach`; the service measures it and tells the core.
const OFFLOAD: Duration = Duration::from_secs(30 * 60);
/// Time for a lever in these tests, and until the next look.
const SECONDS: Duration = Duration::from_secs(3);

/// Two notebooks of one user on a GPU of 24 GiB: only idleness takes anything from them.
fn two() -> Bench {
    two_of([1, 1])
}

fn two_of(uids: [u32; 2]) -> Bench {
    let mut b = Bench::new(1);
    b.send(Event::Reclaim(ReclaimRules::default()));
    for (id, uid) in (1..).zip(uids) {
        b.claim(id, 500, uid, NOTEBOOK, 8);
    }
    b
}

fn third(b: &mut Bench, id: u64) {
    b.claim(id, 500, 1, Class::Batch, 8);
}

/// How long it waits from now on.
fn waits(b: &mut Bench, id: u64) -> Duration {
    let begun = b.w.now;
    while b.at(id).is_none() {
        b.pass(s(1));
        assert!(b.w.now - begun < s(3600), "c{id} waits for ever");
    }
    b.w.now - begun
}

/// Times for which its offload was announced.
fn announced(b: &Bench, of: u64) -> Vec<Now> {
    let told = b.w.log.iter().filter_map(|a| match a {
        Action::Announce {
            id,
            lever: Lever::Offload,
            at,
            ..
        } if *id == ClaimId(of) => Some(*at),
        _ => None,
    });
    told.collect()
}

#[test]
fn who_waits_already_has_the_gpu_a_countdown_after_the_notebook_has_idled_for_too_long() {
    let countdown = ReclaimRules::default().countdown;
    let mut b = two();
    b.pass(s(600));
    third(&mut b, 3);
    b.pass(OFFLOAD - s(600));
    assert!(b.at(3).is_none() && announced(&b, 1).is_empty());
    b.idles(1, true);
    assert_eq!(announced(&b, 1), [b.w.now + countdown]);
    let waited = waits(&mut b, 3);
    assert!(waited >= countdown, "not before the announced time");
    assert!(waited <= countdown + SECONDS, "{waited:?}");
    assert!(b.at(2).is_some() && announced(&b, 2).is_empty());
}

#[test]
fn who_comes_when_it_has_idled_for_too_long_already_waits_for_the_countdown_alone() {
    let countdown = ReclaimRules::default().countdown;
    for longer in [s(0), s(1), s(7), s(3600)] {
        let mut b = two();
        b.pass(OFFLOAD);
        b.idles(1, true);
        b.pass(longer);
        third(&mut b, 3);
        let waited = waits(&mut b, 3);
        assert!(waited <= countdown + SECONDS, "{longer:?}: {waited:?}");
    }
    // Even instead of one that came back to its GPU and is idle again.
    let mut b = two();
    b.pass(OFFLOAD);
    b.idles(1, true);
    third(&mut b, 3);
    waits(&mut b, 3);
    b.idles(1, false);
    b.send(Event::Wanted { id: ClaimId(1) });
    b.send(Event::Gone { id: ClaimId(3) });
    waits(&mut b, 1);
    b.pass(OFFLOAD);
    b.idles(1, true);
    third(&mut b, 4);
    let waited = waits(&mut b, 4);
    assert!(waited <= countdown + SECONDS, "{waited:?}");
}

#[test]
fn the_countdown_does_not_begin_anew_whoever_comes_or_goes_meanwhile() {
    let countdown = ReclaimRules::default().countdown;
    let mut b = two();
    b.pass(OFFLOAD);
    b.idles(1, true);
    third(&mut b, 3);
    let due = b.w.now + countdown;
    b.pass(s(5));
    // More claims queue behind, one of them without a place here, and facts about the other notebook change.
    third(&mut b, 4);
    b.claim(5, 1000, 1, Class::Batch, 8);
    b.pass(s(5));
    b.idles(2, false);
    b.w.used.insert((ClaimId(2), 0), Bytes::gib(9));
    b.pass(s(5));
    b.send(Event::Gone { id: ClaimId(5) });
    // It is interrupted: the next claim takes over the announcement.
    b.send(Event::Gone { id: ClaimId(3) });
    assert_eq!(announced(&b, 1), [due], "told once");
    let retracted = |a: &Action| matches!(a, Action::Retract { .. });
    assert!(!b.w.log.iter().any(retracted));
    waits(&mut b, 4);
    assert!(b.w.now <= due + SECONDS, "{:?} after it", b.w.now - due);
}

#[test]
fn two_that_idle_make_room_within_one_countdown() {
    let countdown = ReclaimRules::default().countdown;
    let mut b = two();
    b.pass(OFFLOAD);
    b.idles(1, true);
    b.idles(2, true);
    b.claim(3, 1000, 1, Class::Batch, 20);
    let waited = waits(&mut b, 3);
    assert!(waited <= countdown + SECONDS + s(2), "{waited:?}");
}

#[test]
fn nobody_makes_room_for_a_notebook_whose_calls_wait_no_longer() {
    let mut b = two();
    b.pass(OFFLOAD);
    b.idles(1, true);
    third(&mut b, 3);
    waits(&mut b, 3);
    // Its next cell wants the GPU of the third, which is idle by now, and is interrupted during the countdown.
    b.pass(s(60));
    b.idles(3, true);
    let (id, before) = (ClaimId(1), b.w.log.len());
    b.send(Event::Wanted { id });
    assert_eq!(announced(&b, 3).len(), 1);
    b.pass(s(5));
    b.send(Event::Unwanted { id });
    let retracted = |a: &Action| matches!(a, Action::Retract { id, .. } if *id == ClaimId(3));
    assert!(b.w.log[before..].iter().any(retracted));
    b.pass(s(600));
    assert!(b.at(3).is_some() && b.at(1).is_none());
    // The cell after that still finds the third idle.
    b.send(Event::Wanted { id });
    let waited = waits(&mut b, 1);
    assert!(
        waited <= ReclaimRules::default().countdown + SECONDS + s(2),
        "{waited:?}"
    );
}

/// Two users with half a GPU each hold more than the third that each is guaranteed when a third user comes.
#[test]
fn somebody_within_his_part_waits_for_the_minimum_run_of_others_and_not_for_idleness() {
    let rules = ReclaimRules::default();
    let mut b = two_of([1, 2]);
    let least = b.w.machine.rules_of(NOTEBOOK).min_run;
    b.claim(3, 330, 3, NOTEBOOK, 4);
    let waited = waits(&mut b, 3);
    assert!(waited >= least.max(rules.countdown), "{waited:?}");
    assert!(waited <= least.max(rules.countdown) + SECONDS, "{waited:?}");
}
