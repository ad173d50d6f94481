//! Claims that change places so that another can start: one of them waits in the host until the others have moved.

use std::collections::BTreeSet;

use super::super::lever::{Failure, Holding, Lever, Levers};
use super::super::*;
use super::ReclaimRules;
use super::faults::OUTCOMES;
use super::histories::{come_back, restarted_with};
use super::promises::{fits, lie_where_it_says};
use super::tests::{Bench, s, subject};
use crate::claim::Class;
use crate::quota::{Party, Quota};
use crate::units::Bytes;

/// Size in thousandths of a GPU, and GiB used.
type Size = (u32, u64);

/// GPUs of 24 GiB, each with a fixed and a movable claim, all of one user who is guaranteed them. The fixed claims are
/// 1, 2 ..., the movable ones 11, 12 ...
fn crossed(class: Class, on: &[(Size, Size)]) -> Bench {
    let sizes = on.iter().map(|((a, _), (b, _))| a + b);
    let all = Share::from_milli(sizes.sum::<u32>());
    let mut b = Bench::new(on.len());
    b.send(Event::Reclaim(ReclaimRules::default()));
    let user = Party::User("one".to_owned());
    b.send(Event::Quotas(vec![Quota {
        party: user.clone(),
        gpus: Some(all),
        weight_milli: None,
        max: None,
    }]));
    for (g, (stays, goes)) in on.iter().enumerate() {
        for (id, (milli, gib), movable) in [(1, *stays, false), (11, *goes, true)] {
            let id = id + g as u64;
            b.send(Event::Parties {
                id: ClaimId(id),
                parties: vec![user.clone()],
            });
            let part = Share::from_milli(milli);
            let mut r = Request::from_gpus(part, Share::ONE, class).unwrap();
            r.uid = 1;
            r.only_gpus = vec![u32::try_from(g).unwrap()];
            b.submit(id, r.clone(), gib);
            // Now that it is placed it may move elsewhere.
            r.only_gpus.clear();
            r.movable = movable;
            let slices = b.w.machine.ledger().slices(ClaimId(id)).unwrap().to_vec();
            b.send(Event::Restore {
                id: ClaimId(id),
                request: Some(Box::new(r)),
                holding: Holding::here(slices),
                ends: None,
            });
            b.send(Event::Levers {
                id: ClaimId(id),
                levers: Levers {
                    park: if movable {
                        Ok(())
                    } else {
                        Err("no".to_owned())
                    },
                    movable: Ok(()),
                    ..Levers::default()
                },
            });
        }
    }
    b.pass(s(100));
    b
}

/// 0.3 and 0.1 of two GPUs are free. If 11 and 12 change places, 0.4 of GPU 1 are.
fn two(class: Class) -> Bench {
    crossed(class, &[((400, 2), (300, 6)), ((300, 2), (600, 8))])
}

/// 0.1, 0.1 and 0.05 of three GPUs are free. If the movable claims rotate, 0.25 of one are; no two of them can swap.
fn three(class: Class) -> Bench {
    let on = [
        ((500, 2), (400, 4)),
        ((400, 2), (500, 6)),
        ((350, 2), (600, 5)),
    ];
    crossed(class, &on)
}

const NEW: u64 = 100;

fn ask(b: &mut Bench, milli: u32) {
    b.claim(NEW, milli, 2, Class::Batch, 3);
}

/// Checks every second that each claim fits where it is. Returns the seconds that each claim spent in the host.
fn watched(b: &mut Bench, seconds: u64) -> BTreeMap<ClaimId, u64> {
    let mut hosted = BTreeMap::new();
    for _ in 0..seconds {
        b.pass(s(1));
        fits(b).unwrap();
        lie_where_it_says(b, None).unwrap();
        for (id, holding) in b.w.machine.holdings() {
            match holding.phase {
                Phase::Offloaded(_) | Phase::Restoring(_) => {
                    *hosted.entry(id).or_default() += 1;
                }
                _ => {}
            }
        }
    }
    hosted
}

/// No claim moves, waits or is in the host.
fn all_here(b: &Bench) {
    for (id, holding) in b.w.machine.holdings() {
        assert!(matches!(holding.phase, Phase::Granted), "{id}: {holding:?}");
        assert!(b.at(id.0).is_some());
    }
    assert_eq!(b.w.machine.queue().count(), 0);
    assert!(b.w.machine.reclaim.plans.is_empty());
    assert!(b.w.machine.claims.moving().next().is_none());
}

fn parks(b: &Bench) -> usize {
    let log = b.w.log.iter();
    log.filter(|a| matches!(a, Action::Park { .. })).count()
}

/// Checks both orders of the queue: the waiting claim first, or the claims that change places first.
fn by_either(b: fn(Class) -> Bench, milli: u32, check: impl Fn(Bench)) {
    for class in [Class::Batch, Class::Interactive] {
        let mut b = b(class);
        ask(&mut b, milli);
        let plan = b.w.machine.plan_of(ClaimId(NEW)).expect("there is a way");
        let moves = plan.steps.iter().all(|s| s.lever == Lever::Move);
        assert!(moves, "{plan:?}");
        check(b);
    }
}

#[test]
fn two_change_places_for_a_claim_that_waits() {
    by_either(two, 400, |mut b| {
        let hosted = watched(&mut b, 60);
        assert_eq!(b.at(NEW), Some(vec![1]));
        assert_eq!((b.at(11), b.at(12)), (Some(vec![1]), Some(vec![0])));
        all_here(&b);
        // One is in the host while the other moves (2 s) and while it is restored itself (2 s).
        assert_eq!(parks(&b), 1);
        assert_eq!(hosted.len(), 1, "{hosted:?}");
        assert!(hosted.values().all(|t| *t <= 5), "{hosted:?}");
    });
}

#[test]
fn three_go_round_for_a_claim_that_waits() {
    by_either(three, 250, |mut b| {
        let hosted = watched(&mut b, 60);
        assert_eq!(b.at(NEW), Some(vec![2]));
        let at = [11, 12, 13].map(|id| b.at(id));
        assert_eq!(at, [Some(vec![2]), Some(vec![0]), Some(vec![1])]);
        all_here(&b);
        assert_eq!(parks(&b), 1, "one is enough");
        // Two claims move meanwhile, one after the other.
        assert!(hosted.values().all(|t| *t <= 8), "{hosted:?}");
    });
}

#[test]
fn whatever_fails_in_the_middle_all_have_a_place_in_the_end() {
    for failure in OUTCOMES.into_iter().flatten() {
        for nth in 1..=3 {
            by_either(two, 400, |mut b| {
                assert!(b.w.machine.claims.iter().all(|(_, c)| !c.borrower));
                let mut failed = false;
                for _ in 0..60 {
                    let pulled = |a: &&Action| {
                        matches!(
                            a,
                            Action::Park { .. } | Action::Move { .. } | Action::Unpark { .. }
                        )
                    };
                    if !failed && b.w.log.iter().filter(pulled).count() == nth {
                        b.failing.push(failure);
                        failed = true;
                    }
                    watched(&mut b, 1);
                }
                assert!(failed && b.failing.is_empty());
                // A refused lever is tried again after ten minutes.
                watched(&mut b, 1500);
                assert!(b.at(NEW).is_some(), "{failure:?} of {nth}");
                all_here(&b);
            });
        }
    }
}

#[test]
fn the_host_has_room_for_the_one_that_waits_and_the_one_that_moves() {
    for (gib, way) in [(13, false), (14, true)] {
        let mut b = two(Class::Interactive);
        b.send(Event::HostRam(Bytes::gib(gib)));
        ask(&mut b, 400);
        let plan = b.w.machine.plan_of(ClaimId(NEW));
        assert_eq!(plan.is_some(), way, "{plan:?}");
        watched(&mut b, 100);
        assert_eq!(b.at(NEW).is_some(), way);
        assert_eq!(parks(&b), usize::from(way));
    }
}

/// Passes time until the first of them is in the host.
fn until_parked(b: &mut Bench) {
    for _ in 0..60 {
        let mut all = b.w.machine.holdings().into_values();
        if all.any(|h| matches!(h.phase, Phase::Offloaded(_))) {
            return;
        }
        b.pass(s(1));
    }
    panic!("nobody is parked");
}

#[test]
fn who_waits_in_the_host_comes_back_where_the_waiting_claim_leaves() {
    by_either(two, 400, |mut b| {
        until_parked(&mut b);
        b.send(Event::Gone { id: ClaimId(NEW) });
        let hosted = watched(&mut b, 20);
        assert!(hosted.values().all(|t| *t <= 4), "{hosted:?}");
        all_here(&b);
    });
}

#[test]
fn nobody_starts_in_the_place_of_one_that_waits_in_the_host() {
    by_either(two, 400, |mut b| {
        until_parked(&mut b);
        // It would fit in the parked claim's place, and its owner has used less.
        b.claim(NEW + 1, 300, 3, Class::Interactive, 1);
        let hosted = watched(&mut b, 10);
        assert!(hosted.values().all(|t| *t <= 5), "{hosted:?}");
        assert_eq!((b.at(11), b.at(12)), (Some(vec![1]), Some(vec![0])));
    });
}

/// Name of a test machine on which claims change places, its constructor, and the size of the new claim.
type Swap = (&'static str, fn(Class) -> Bench, u32);

const SWAPS: [Swap; 2] = [("two", two, 400), ("three", three, 250)];

/// Seconds after the request: the countdown ends after 30 s, and all have their places by 44 s.
fn moments() -> impl Iterator<Item = u64> {
    [1, 15].into_iter().chain(28..=44)
}

/// In the end all remaining claims run, each where the machine says.
fn all_run_in_the_end(b: &mut Bench) {
    watched(b, 60);
    // A failed lever is tried again after ten minutes.
    for _ in 0..100 {
        let all = b.w.machine.holdings().into_values();
        let here = all.map(|h| matches!(h.phase, Phase::Granted));
        if here.fold(b.w.machine.queue().count() == 0, |a, b| a && b) {
            break;
        }
        b.w.now += s(9);
        watched(b, 1);
    }
    all_here(b);
    for id in b.bytes.keys() {
        assert!(b.at(id.0).is_some(), "{id} runs");
    }
}

/// The processes of a claim die. A lever in progress fails first; `later` seconds afterwards the claim is found gone.
fn dies(b: &mut Bench, id: ClaimId, later: u64) {
    let pulled = b.underway.iter().any(|(_, a)| subject(a) == Some(id));
    if pulled {
        b.underway.retain(|(_, a)| subject(a) != Some(id));
        b.w.used.retain(|(c, _), _| *c != id);
        b.send(Event::LeverFailed {
            id,
            failure: Failure::Lost,
            why: String::new(),
        });
        for _ in 0..later {
            b.pass(s(1));
            fits(b).unwrap();
            lie_where_it_says(b, Some(id)).unwrap();
        }
    }
    b.send(Event::Gone { id });
}

#[test]
fn whoever_dies_in_the_middle_the_others_have_a_place_in_the_end() {
    let mut pulled = BTreeSet::new();
    for (name, start, milli) in SWAPS {
        for at in moments() {
            let mut then = start(Class::Interactive);
            ask(&mut then, milli);
            watched(&mut then, at);
            let all: Vec<ClaimId> = then.bytes.keys().copied().collect();
            for id in all {
                let mut deeds = then.underway.iter().map(|(_, a)| a);
                let deed = deeds.find(|a| subject(a) == Some(id));
                let later: &[u64] = if deed.is_some() { &[0, 1, 4] } else { &[0] };
                pulled.extend(deed.map(|a| format!("{a:?}").split(' ').next().map(str::to_owned)));
                for later in later {
                    println!(
                        "{name}: {id} dies after {at} s, and the service learns of it {later} s later"
                    );
                    let mut b = then.clone();
                    dies(&mut b, id, *later);
                    all_run_in_the_end(&mut b);
                    assert!(b.w.machine.holding(id).is_none());
                    assert_eq!(b.w.machine.host_taken(), Bytes::ZERO);
                }
            }
        }
    }
    assert_eq!(
        pulled.len(),
        3,
        "deaths during each kind of action: {pulled:?}"
    );
}

#[test]
fn a_service_started_anew_in_the_middle_goes_on_where_it_was() {
    for (name, start, milli) in SWAPS {
        for class in [Class::Batch, Class::Interactive] {
            let mut b = start(class);
            ask(&mut b, milli);
            let mut undisturbed = b.clone();
            watched(&mut undisturbed, 60);
            let ids: Vec<u64> = undisturbed.bytes.keys().map(|id| id.0).collect();
            let places = |b: &Bench| -> Vec<_> { ids.iter().map(|id| b.at(*id)).collect() };
            for at in moments() {
                println!("{name}, {class:?}: started anew after {at} s");
                let mut b = b.clone();
                watched(&mut b, at);
                b.w = restarted_with(&b.w, b.w.machine.memory());
                come_back(&mut b, false);
                watched(&mut b, 60 - at);
                assert_eq!(places(&b), places(&undisturbed));
                all_here(&b);
                assert_eq!(parks(&b), 1);
            }
        }
    }
}

/// The saved state is from before the last decisions, and then something fails or a waiting client does not return.
#[test]
fn whatever_it_knew_when_it_was_killed_all_have_a_place_in_the_end() {
    for (name, start, milli) in SWAPS {
        let mut b = start(Class::Interactive);
        ask(&mut b, milli);
        for at in moments() {
            let mut then = b.clone();
            watched(&mut then, at - 1);
            let old = then.w.machine.memory();
            watched(&mut then, 1);
            let new = then.w.machine.memory();
            for (known, memory) in [("old", old), ("new", new)] {
                for outcome in OUTCOMES {
                    for asks_again in [true, false] {
                        println!("{name}, {at} s: {known}, {outcome:?}, asks again: {asks_again}");
                        let mut b = then.clone();
                        b.w = restarted_with(&b.w, memory.clone());
                        if asks_again {
                            come_back(&mut b, false);
                        } else if b.w.machine.holding(ClaimId(NEW)).is_none() {
                            b.bytes.remove(&ClaimId(NEW));
                        }
                        b.failing.extend(outcome);
                        all_run_in_the_end(&mut b);
                        if outcome != Some(Failure::Lost) {
                            assert!(b.lost.is_empty());
                        }
                    }
                }
            }
        }
    }
}
