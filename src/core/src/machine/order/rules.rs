//! Rules of claims in virtual time: several GPUs of one model, modes, classes by hour, guarantees, backfill.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::tests::World;
use super::super::{Action, Event, Machine};
use super::*;
use crate::Sharing;
use crate::claim::ModeWish;
use crate::class::{AtHours, ByHour, Classes};
use crate::quota::{Party as QuotaParty, Quota};
use crate::reason::Reason;

fn request(size: &str, uid: u32) -> Request {
    let size = size.parse().expect("a size");
    let mut request = Request::of_size(size, Share::ONE, Class::Batch);
    request.uid = uid;
    request
}

fn waiting(machine: &Machine) -> Vec<u64> {
    machine.queue().map(|(id, _)| id.0).collect()
}

/// GPUs of 24 GiB of these models.
fn kinds(kinds: &[u32]) -> World {
    let mut w = World::new(&vec![24; kinds.len()]);
    let mut gpus = w.machine.ledger().gpus().to_vec();
    for (gpu, kind) in gpus.iter_mut().zip(kinds) {
        gpu.model = format!("model {kind}");
    }
    w.send(Event::Gpus(gpus));
    w
}

#[test]
fn parts_of_several_gpus_are_of_one_model() {
    let mut w = kinds(&[0, 1, 1, 0]);
    w.submit_request(1, request("0.75", 7), None);
    assert_eq!(w.granted(1), Some(vec![0]));
    // GPU 0 has too little left, so only model 1 has two GPUs with half of each free.
    w.submit_request(2, request("2x0.5", 7), None);
    assert_eq!(w.granted(2), Some(vec![1, 2]));
    let slices = w.machine.ledger().slices(ClaimId(2)).expect("held");
    assert!(
        slices
            .iter()
            .all(|s| s.mem == Bytes::gib(12) && s.sm == Share::from_milli(500))
    );
    // Two whole GPUs are free, but of two models.
    w.submit_request(3, request("2x0.75", 8), None);
    assert_eq!(w.granted(3), None);
    let reason = w.machine.reason(ClaimId(3)).expect("it waits");
    assert_eq!(
        reason.to_string(),
        "needs 2 GPUs of one model at once; 1 would fit now"
    );
    w.send(Event::Gone { id: ClaimId(1) });
    assert_eq!(w.granted(3), Some(vec![0, 3]));
    // No model has three GPUs.
    w.submit_request(4, request("3x0.1", 8), None);
    assert!(w.log.iter().any(|a| matches!(
        a,
        Action::Refuse {
            id: ClaimId(4),
            for_now: false,
            reason: Reason::TooManyGpus {
                wanted: 3,
                present: 2
            }
        }
    )));
}

#[test]
fn a_mode_that_was_asked_for_is_what_it_gets() {
    let mut w = World::new(&[24, 24, 24]);
    let mut gpus = w.machine.ledger().gpus().to_vec();
    gpus[1].sharing = Sharing::Exclusive;
    gpus[2].sharing = Sharing::Auto { mps: Some(false) };
    w.send(Event::Gpus(gpus));
    let ask = |w: &mut World, id, mode| {
        let mut r = request("0.25", 7);
        r.mode = Some(mode);
        w.submit_request(id, r, None);
    };
    ask(&mut w, 1, ModeWish::Exclusive);
    assert_eq!(w.granted(1), Some(vec![1]));
    ask(&mut w, 2, ModeWish::Mps);
    assert_eq!(w.granted(2), Some(vec![2]));
    ask(&mut w, 3, ModeWish::Timeslice);
    assert_eq!(w.granted(3), Some(vec![0]));
    ask(&mut w, 4, ModeWish::Exclusive);
    assert_eq!(
        w.granted(4),
        None,
        "there is room on a GPU of another mode, but not of this one"
    );
    w.send(Event::Gone { id: ClaimId(1) });
    assert_eq!(w.granted(4), Some(vec![1]));
    ask(&mut w, 5, ModeWish::Mig);
    assert!(
        w.machine.reason(ClaimId(5)).is_none(),
        "there is no such GPU"
    );
}

fn rule(hours: &str, start: Option<bool>, priority: Option<u16>) -> AtHours {
    AtHours {
        hours: hours.parse().expect("hours"),
        priority,
        preemptible: None,
        min_run: None,
        start,
    }
}

#[test]
fn rules_by_hour_hold_at_that_hour() {
    let mut w = World::new(&[24]);
    let mut classes = Classes::default();
    classes.set(
        Class::Batch,
        ByHour {
            always: Rules::of(Class::Batch),
            at: vec![
                rule("8-18", Some(false), None),
                rule("22-6", None, Some(200)),
            ],
        },
    );
    w.send(Event::Classes(classes));
    w.send(Event::Minute(9 * 60));
    w.submit_request(1, request("0.5", 7), None);
    let reason = w.machine.reason(ClaimId(1)).expect("it waits");
    assert_eq!(
        reason.to_string(),
        "claims of class batch start from 18:00 on"
    );
    // It is not in the way of others, and they may borrow.
    let mut notebook = request("0.75", 8);
    notebook.class = Class::Interactive;
    notebook.mem_limit = Some(Bytes::gib(24));
    w.submit_request(2, notebook.clone(), None);
    assert_eq!(w.granted(2), Some(vec![0]));
    let cap = w.machine.ledger().slices(ClaimId(2)).expect("held")[0].mem_cap;
    assert_eq!(
        cap,
        Bytes::gib(24),
        "free memory is lent while the batch claim may not start"
    );
    w.send(Event::Minute(18 * 60));
    assert!(matches!(
        w.machine.reason(ClaimId(1)),
        Some(Reason::Memory { .. })
    ));
    // By day notebooks go first, at night batch jobs.
    notebook.share = Share::from_milli(500);
    notebook.sm = Some(Share::from_milli(500));
    notebook.uid = 9;
    w.submit_request(3, notebook, None);
    let even: Vec<bool> = [1, 3].map(|id| w.machine.is_entitled(ClaimId(id))).to_vec();
    assert_eq!(
        even[0], even[1],
        "both within or both above their guarantee"
    );
    assert_eq!(waiting(&w.machine), [3, 1]);
    w.send(Event::Minute(23 * 60));
    assert_eq!(waiting(&w.machine), [1, 3]);
    w.send(Event::Gone { id: ClaimId(2) });
    assert_eq!(w.granted(1), Some(vec![0]));
}

#[test]
fn who_waits_for_an_hour_is_expected_in_no_place_that_another_waits_for() {
    let mut w = World::new(&[24, 24]);
    let mut classes = Classes::default();
    classes.set(
        Class::Inference,
        ByHour {
            always: Rules::of(Class::Inference),
            at: vec![rule("8-18", Some(false), None)],
        },
    );
    w.send(Event::Classes(classes));
    w.send(Event::Minute(13 * 60));
    let leased = |size: &str, seconds: u64| {
        let lease = Some(Duration::from_secs(seconds));
        Request {
            lease,
            ..request(size, 7)
        }
    };
    w.submit_request(1, leased("0.6", 240), None);
    w.submit_request(2, leased("0.6", 360), None);
    let mut inference = request("0.3", 7);
    inference.class = Class::Inference;
    w.submit_request(3, inference, None);
    w.submit_request(4, request("1", 9), None);
    assert_eq!(w.machine.expected_start(ClaimId(3)), None);
    assert_eq!(waiting(&w.machine), [4, 3], "nor before anybody");
    let at = w.machine.expected_start(ClaimId(4));
    assert_eq!(
        at,
        Some(Duration::from_secs(240)),
        "when the first time limit ends"
    );
    // A claim that has not ended by then would be in its way.
    let there = |seconds| Request {
        only_gpus: vec![0],
        ..leased("0.3", seconds)
    };
    w.submit_request(5, there(300), None);
    assert_eq!(w.granted(5), None);
    w.submit_request(6, there(200), None);
    assert!(w.granted(6).is_some());
    // Nothing is kept on the other GPU.
    w.submit_request(7, leased("0.3", 300), None);
    assert_eq!(w.granted(7), Some(vec![1]));
}

#[test]
fn what_waits_for_an_hour_takes_nothing_of_its_owners_guarantee() {
    let mut w = World::new(&[24, 24]);
    let mut classes = Classes::default();
    let hours = ByHour {
        always: Rules::of(Class::Inference),
        at: vec![rule("8-18", Some(false), None)],
    };
    classes.set(Class::Inference, hours);
    w.send(Event::Classes(classes));
    w.send(Event::Minute(13 * 60));
    let mut inference = request("0.5", 7);
    inference.class = Class::Inference;
    w.submit_request(1, inference, None);
    w.submit_request(2, request("2", 8), None);
    assert!(w.granted(2).is_some());
    // The owner is guaranteed one of two GPUs, and only this claim fits within that.
    w.submit_request(3, request("1", 7), None);
    assert!(w.machine.is_entitled(ClaimId(3)) && !w.machine.is_entitled(ClaimId(1)));
    // From that hour on the first arrival goes first.
    w.send(Event::Minute(18 * 60));
    assert!(w.machine.is_entitled(ClaimId(1)) && !w.machine.is_entitled(ClaimId(3)));
}

#[test]
fn what_cannot_be_reclaimed_is_not_lent() {
    let mut w = World::new(&[24, 24]);
    let mut classes = Classes::default();
    let firm = Rules {
        preemptible: false,
        ..Rules::of(Class::Inference)
    };
    classes.set(
        Class::Inference,
        ByHour {
            always: firm,
            at: Vec::new(),
        },
    );
    w.send(Event::Classes(classes));
    // Two users are guaranteed one GPU each.
    w.submit_request(1, request("0.25", 8), None);
    let server = |uid| Request {
        class: Class::Inference,
        ..request("1", uid)
    };
    w.submit_request(2, server(7), None);
    assert!(w.granted(2).is_some(), "within the guarantee");
    w.submit_request(
        3,
        Request {
            share: Share::from_milli(250),
            sm: Some(Share::from_milli(250)),
            ..server(7)
        },
        None,
    );
    assert_eq!(w.granted(3), None);
    assert_eq!(
        w.machine.reason(ClaimId(3)),
        Some(&Reason::Firm {
            class: Class::Inference
        })
    );
    // Batch work may borrow the same place.
    w.submit_request(4, request("0.25", 7), None);
    assert!(w.granted(4).is_some());
}

#[test]
fn by_default_the_gpus_are_divided_by_those_who_claim_or_wait_and_entries_override() {
    let mut w = World::new(&[24; 4]);
    w.submit_request(1, request("4", 7), None);
    assert!(w.granted(1).is_some(), "a single user gets all GPUs");
    w.submit_request(2, request("2", 8), None);
    assert!(
        w.machine.is_entitled(ClaimId(2)),
        "of two users, each is guaranteed two GPUs"
    );
    w.submit_request(3, request("2", 9), None);
    assert!(
        !w.machine.is_entitled(ClaimId(3)),
        "of three users, each is guaranteed 4/3 GPUs"
    );
    assert!(!w.machine.is_entitled(ClaimId(2)));
    let party = QuotaParty::Project("p".into());
    w.send(Event::Parties {
        id: ClaimId(3),
        parties: vec![QuotaParty::User("x".into()), party.clone()],
    });
    w.send(Event::Quotas(vec![Quota {
        party,
        gpus: Some(Share::from_milli(2000)),
        weight_milli: None,
        max: None,
    }]));
    assert!(
        w.machine.is_entitled(ClaimId(3)),
        "the entry guarantees two GPUs"
    );
    assert!(
        !w.machine.is_entitled(ClaimId(2)),
        "the two others are guaranteed one GPU each"
    );
    w.send(Event::Gone { id: ClaimId(3) });
    w.send(Event::Tick);
    assert!(
        w.machine.is_entitled(ClaimId(2)),
        "users without a claim get no part"
    );
}

#[test]
fn a_user_in_several_projects_counts_for_the_one_he_names() {
    let mut w = World::new(&[24, 24]);
    let project = |name: &str| QuotaParty::Project(name.into());
    let max = |name: &str, milli| Quota {
        party: project(name),
        gpus: None,
        weight_milli: None,
        max: Some(Share::from_milli(milli)),
    };
    w.send(Event::Quotas(vec![max("vision", 500), max("speech", 1000)]));
    for (id, name) in [(1, "vision"), (2, "vision"), (3, "speech")] {
        w.send(Event::Parties {
            id: ClaimId(id),
            parties: vec![QuotaParty::User("ada".into()), project(name)],
        });
        w.submit_request(id, request("0.5", 7), None);
    }
    assert!(w.granted(1).is_some() && w.granted(3).is_some());
    let reason = w.machine.reason(ClaimId(2)).expect("it waits");
    assert_eq!(
        reason.to_string(),
        "needs 0.5 of a GPU; project:vision may hold 0.5 at most and holds 0.5"
    );
}

#[derive(Clone, Debug)]
struct Wanted {
    gpus: u32,
    milli: u32,
    at_s: u64,
    lease_s: Option<u64>,
}

fn asks(most: usize, leased: bool) -> impl Strategy<Value = Vec<Wanted>> {
    let lease = if leased {
        (1u64..500).prop_map(Some).boxed()
    } else {
        prop::option::of(1u64..500).boxed()
    };
    let ask =
        (1u32..=2, 1u32..=10, 0u64..300, lease).prop_map(|(gpus, tenths, at_s, lease_s)| Wanted {
            gpus,
            milli: tenths * 100,
            at_s,
            lease_s,
        });
    prop::collection::vec(ask, 0..most)
}

/// Plays claims; those with ids below 100 belong to a user who is guaranteed everything, the others to a borrower.
/// Claims end with their leases. Returns when each started, and which entitled claims waited at `look`.
fn play(asks: &[(u64, Wanted)], look: u64) -> (BTreeMap<u64, u64>, Vec<u64>) {
    let mut w = World::new(&[24, 24, 24]);
    let owner = QuotaParty::User("owner".into());
    w.send(Event::Quotas(vec![Quota {
        party: owner.clone(),
        gpus: Some(Share::from_milli(3000)),
        weight_milli: None,
        max: None,
    }]));
    let (mut started, mut entitled) = (BTreeMap::new(), Vec::new());
    let mut times: BTreeSet<u64> = asks.iter().map(|(_, a)| a.at_s).chain([look]).collect();
    while let Some(now) = times.pop_first() {
        w.now = Duration::from_secs(now);
        let before = w.log.len();
        w.send(Event::Tick);
        let over: Vec<ClaimId> = w.log[before..]
            .iter()
            .filter_map(|a| match a {
                Action::LeaseOver { id } => Some(*id),
                _ => None,
            })
            .collect();
        for id in over {
            w.send(Event::Gone { id });
        }
        for (id, ask) in asks.iter().filter(|(_, a)| a.at_s == now) {
            let parties = if *id < 100 {
                vec![owner.clone()]
            } else {
                Vec::new()
            };
            w.send(Event::Parties {
                id: ClaimId(*id),
                parties,
            });
            let mut r = request(&format!("{}x0.5", ask.gpus), if *id < 100 { 7 } else { 8 });
            r.share = Share::from_milli(ask.milli);
            r.sm = Some(r.share);
            r.lease = ask.lease_s.map(Duration::from_secs);
            w.submit_request(*id, r, None);
        }
        for (id, ask) in asks {
            if w.granted(*id).is_some() && !started.contains_key(id) {
                started.insert(*id, now);
                times.extend(ask.lease_s.map(|lease| now + lease));
            }
        }
        if now == look {
            let sure = asks.iter().map(|(id, _)| *id);
            entitled = sure
                .filter(|id| w.machine.is_entitled(ClaimId(*id)))
                .collect();
        }
    }
    (started, entitled)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// The first waiting entitled claim starts as if no claims had come after it: claims that overtake it end in time.
    /// Includes claims of several GPUs. Only the first has a reservation.
    #[test]
    fn backfill_never_delays_the_first_entitled_claim(owner in asks(7, true), others in asks(12, false)) {
        // Ids ascend with arrival.
        let mut owner = owner;
        owner.sort_by_key(|a| a.at_s);
        let mine: Vec<(u64, Wanted)> = owner.into_iter().enumerate().map(|(i, a)| (i as u64 + 1, a)).collect();
        // The borrower's claims come last.
        let last = mine.iter().map(|(_, a)| a.at_s).max().unwrap_or(0);
        let mut others = others;
        others.sort_by_key(|a| a.at_s);
        let late = others.into_iter().enumerate().map(|(i, a)| {
            (i as u64 + 100, Wanted { at_s: last + 1 + a.at_s, ..a })
        });
        let (alone, entitled) = play(&mine, last);
        let all: Vec<(u64, Wanted)> = mine.iter().cloned().chain(late).collect();
        let (together, _) = play(&all, last);
        if let Some((id, ask)) = mine.iter().find(|(id, _)| entitled.contains(id)) {
            prop_assert!(
                together.get(id).unwrap_or(&u64::MAX) <= alone.get(id).unwrap_or(&u64::MAX),
                "{id} {ask:?}: {:?} instead of {:?}", together.get(id), alone.get(id)
            );
        }
    }
}
