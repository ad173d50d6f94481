//! Random histories of the machine, with properties that hold after every event.

use proptest::prelude::*;

use super::tests::{World, facts};
use super::*;
use crate::claim::Class;
use crate::ledger::GpuFacts;
use crate::quota::{Party, Quota};
use crate::units::Bytes;

#[derive(Clone, Debug)]
enum Step {
    Submit {
        share: u32,
        limit: bool,
        patience: Option<u64>,
        uid: u32,
        lease: Option<u64>,
    },
    Gone(usize),
    Use {
        claim: usize,
        part: u8,
    },
    Resize {
        claim: usize,
        change: Change,
        patience: Option<u64>,
    },
    Wait(u64),
}

/// Wishes for another size, of at most this much memory.
pub(super) fn changes(most_gib: u64) -> impl Strategy<Value = Change> {
    let share = || prop::option::of((1u32..=1000).prop_map(Share::from_milli));
    let mem = move || prop::option::of((1u64..=most_gib).prop_map(Bytes::gib));
    (share(), mem(), mem(), share(), share()).prop_map(|(share, mem, mem_limit, sm, sm_limit)| {
        Change {
            share,
            count: None,
            mem,
            mem_limit,
            sm,
            sm_limit,
        }
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (
            1u32..=1000,
            any::<bool>(),
            prop::option::of(0u64..100),
            0u32..3,
            prop::option::of(1u64..1000)
        )
            .prop_map(|(share, limit, patience, uid, lease)| Step::Submit {
                share,
                limit,
                patience,
                uid,
                lease
            }),
        (0usize..20).prop_map(Step::Gone),
        (0usize..20, any::<u8>()).prop_map(|(claim, part)| Step::Use { claim, part }),
        (0usize..20, changes(80), prop::option::of(0u64..100)).prop_map(
            |(claim, change, patience)| Step::Resize {
                claim,
                change,
                patience
            }
        ),
        (0u64..50).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

#[test]
fn a_drained_gpu_takes_no_new_claims_and_keeps_those_it_has() {
    let mut w = World::new(&[24, 80]);
    w.submit(1, 500);
    assert_eq!(w.machine.ledger().slices(ClaimId(1)).unwrap()[0].gpu, 0);
    w.send(Event::Drain {
        uuid: "GPU-24".into(),
        on: true,
    });
    assert_eq!(w.machine.ledger().claimable(0), Share::ZERO);
    w.submit(2, 500);
    assert_eq!(w.machine.ledger().slices(ClaimId(2)).unwrap()[0].gpu, 1);
    w.submit(3, 2000);
    assert_eq!(
        w.machine.reason(ClaimId(3)),
        Some(&Reason::Drained { wanted: 2, open: 1 })
    );
    w.send(Event::Gone { id: ClaimId(3) });
    let mut only = Request::from_gpus(Share::from_milli(100), Share::ONE, Class::Batch).unwrap();
    only.only_gpus = vec![0];
    w.submit_request(4, only, None);
    let reason = w.machine.reason(ClaimId(4)).unwrap();
    assert_eq!(
        reason.to_string(),
        "needs 1 GPU; of the GPUs that it may use, 0 accept new claims"
    );
    assert_eq!(
        w.machine.ledger().holders(0),
        [ClaimId(1)],
        "the claim there keeps running"
    );
    w.send(Event::Drain {
        uuid: "GPU-24".into(),
        on: false,
    });
    assert_eq!(w.machine.ledger().holders(0), [ClaimId(1), ClaimId(4)]);
}

#[test]
fn a_quota_bounds_what_its_party_holds_together_and_blocks_nobody_else() {
    let party = |text: &str| text.parse::<Party>().unwrap();
    let mut w = World::new(&[24, 80]);
    let max = |milli| Quota {
        party: party("group:lab"),
        gpus: None,
        weight_milli: None,
        max: Some(Share::from_milli(milli)),
    };
    w.send(Event::Quotas(vec![max(800)]));
    let enter = |w: &mut World, id, name: &str| {
        w.send(Event::Parties {
            id: ClaimId(id),
            parties: vec![party(name), party("project:x")],
        });
    };
    enter(&mut w, 1, "group:lab");
    w.submit(1, 500);
    enter(&mut w, 2, "group:lab");
    w.submit(2, 500);
    let reason = w.machine.reason(ClaimId(2)).expect("it waits");
    assert_eq!(
        reason.to_string(),
        "needs 0.5 of a GPU; group:lab may hold 0.8 at most and holds 0.5"
    );
    // The quota does not affect others, on any GPU. A claim that alone exceeds it is refused at once.
    enter(&mut w, 3, "user:bob");
    w.submit(3, 1000);
    assert!(w.machine.ledger().slices(ClaimId(3)).is_some());
    enter(&mut w, 4, "group:lab");
    w.submit(4, 1000);
    let refused = w.log.iter().any(|a| {
        matches!(
            a,
            Action::Refuse {
                id: ClaimId(4),
                for_now: false,
                reason: Reason::Quota(_)
            }
        )
    });
    assert!(refused);
    // Growing does not bypass the quota.
    let change = Change {
        share: Some(Share::from_milli(900)),
        ..Change::default()
    };
    w.send(Event::Resize {
        ticket: 1,
        id: ClaimId(1),
        change,
        patience: Some(Duration::ZERO),
    });
    let kept = w.log.iter().any(|a| {
        matches!(
            a,
            Action::ResizeRefused {
                ticket: 1,
                error: ResizeError::Quota(_)
            }
        )
    });
    assert!(kept, "{:?}", w.log.last());
    // A larger quota lets it start, and so does room that is returned.
    w.send(Event::Quotas(vec![max(1000)]));
    assert!(w.machine.ledger().slices(ClaimId(2)).is_some());
    enter(&mut w, 5, "group:lab");
    w.submit(5, 400);
    assert!(w.machine.ledger().slices(ClaimId(5)).is_none());
    w.send(Event::Gone { id: ClaimId(1) });
    assert!(w.machine.ledger().slices(ClaimId(5)).is_some());
}

#[test]
fn an_instance_counts_for_its_part_of_a_gpu() {
    let mut w = World::new(&[]);
    // Of an A100-80GB: 1g.10gb, 2g.20gb and 3g.40gb.
    let cut = [(9, 125, 142), (19, 250, 285), (39, 500, 428)];
    let instances = cut.map(|(gib, mem, sm)| GpuFacts {
        sharing: crate::ledger::Sharing::Instance {
            mem: Share::from_milli(mem),
            sm: Share::from_milli(sm),
        },
        ..facts(gib)
    });
    w.send(Event::Gpus(instances.to_vec()));
    let party = Party::Group("lab".into());
    w.send(Event::Quotas(vec![Quota {
        party: party.clone(),
        gpus: None,
        weight_milli: None,
        max: Some(Share::from_milli(600)),
    }]));
    let mut ask = |id: u64, milli| {
        w.send(Event::Parties {
            id: ClaimId(id),
            parties: vec![party.clone()],
        });
        w.submit(id, milli);
        let waits = w.machine.reason(ClaimId(id));
        (w.granted(id), waits.map(ToString::to_string))
    };
    assert_eq!(ask(1, 250), (Some(vec![1]), None));
    assert_eq!(ask(2, 250), (Some(vec![2]), None));
    let kept = "needs 0.1 of a GPU; group:lab may hold 0.6 at most and holds 0.785";
    assert_eq!(ask(3, 100), (None, Some(kept.to_owned())));
    // Three instances are not three GPUs: the other user is guaranteed half of 0.927.
    let mut other = Request::from_gpus(Share::from_milli(100), Share::ONE, Class::Batch).unwrap();
    other.uid = 2;
    w.submit_request(4, other, None);
    assert_eq!(w.granted(4), Some(vec![0]));
    assert!(w.machine.borrows(ClaimId(1)));
    assert!(!w.machine.borrows(ClaimId(4)));
}

proptest! {
    /// Random histories keep the ledger's rule (checked after every event), and every waiting claim starts once the
    /// others have ended.
    #[test]
    fn never_over_and_nobody_is_forgotten(steps in steps()) {
        let mut w = World::new(&[24, 48, 80]);
        let mut next = 1;
        for step in steps {
            let holders: Vec<ClaimId> = w.machine.ledger().held().map(|(id, _)| id).collect();
            match step {
                Step::Submit { share, limit, patience, uid, lease } => {
                    let mut r = Request::from_gpus(Share::from_milli(share), Share::ONE, Class::Batch).unwrap();
                    r.mem_limit = limit.then_some(Bytes::gib(80));
                    r.uid = uid;
                    r.lease = lease.map(Duration::from_secs);
                    w.submit_request(next, r, patience.map(Duration::from_secs));
                    next += 1;
                }
                Step::Gone(i) => {
                    if let Some(id) = holders.get(i) {
                        w.used.retain(|(c, _), _| c != id);
                        w.send(Event::Gone { id: *id });
                    }
                }
                Step::Use { claim, part } => {
                    if let Some(id) = holders.get(claim) {
                        // A member never uses more than the cap in its page.
                        let s = w.machine.ledger().slices(*id).unwrap()[0].clone();
                        w.used.insert((*id, s.gpu), Bytes(s.mem_cap.0 / 255 * u64::from(part)));
                    }
                }
                Step::Resize { claim, change, patience } => {
                    if let Some(id) = holders.get(claim) {
                        let id = *id;
                        let patience = patience.map(Duration::from_secs);
                        w.send(Event::Resize { ticket: next, id, change, patience });
                        next += 1;
                    }
                }
                Step::Wait(s) => {
                    w.now += Duration::from_secs(s);
                    w.send(Event::Tick);
                }
            }
            // Nothing that the head of the queue could have stays idle.
            if let Some(Ask::Claim { id, request, .. }) = w.machine.queue.first().map(|f| &f.ask) {
                prop_assert!(
                    place::best_fit(w.machine.ledger(), request, &[]).is_none(),
                    "{id} could start"
                );
            }
            // The end of a lease is reported once; the service then ends the claim.
            for (id, slices) in w.machine.ledger().held() {
                let used = w.used.get(&(id, slices[0].gpu)).copied().unwrap_or_default();
                prop_assert!(used <= slices[0].mem_cap, "{id} is over its cap");
                prop_assert!(slices[0].mem <= slices[0].mem_limit && slices[0].sm <= slices[0].sm_limit);
            }
            for (g, facts) in w.machine.ledger().gpus().iter().enumerate() {
                let used: u64 = w.used.iter().filter(|((_, x), _)| *x == g).map(|(_, b)| b.0).sum();
                prop_assert!(used <= facts.allocatable().unwrap().0);
            }
        }
        let all: Vec<ClaimId> = w.machine.ledger().held().map(|(id, _)| id).collect();
        let waiting = w.machine.queue().count();
        // Every wish to resize was answered once, or still waits.
        for ticket in 1..next {
            let answers = w.log.iter().filter(|a| matches!(a,
                Action::Resize { ticket: t, .. } | Action::ResizeRefused { ticket: t, .. } if *t == ticket));
            prop_assert!(answers.count() <= 1);
        }
        w.used.clear();
        for id in all {
            w.send(Event::Gone { id });
        }
        if waiting > 0 {
            prop_assert!(w.machine.queue().count() < waiting, "the first in the queue starts on an empty machine");
        }
    }
}
