//! How each action comes about.

use super::super::super::lever::{Levers, ParkedBy, Wish};
use super::super::super::*;
use super::super::ReclaimRules;
use super::super::tests::{Bench, projects, s};
use super::{Scene, nothing_is_lost};
use crate::claim::Class;
use crate::size::Size;
use crate::units::Bytes;

fn wish(b: &mut Bench, id: u64, wish: Wish) {
    b.send(Event::Wish {
        id: ClaimId(id),
        wish,
    });
}

fn gone(b: &mut Bench, id: u64) {
    b.send(Event::Gone { id: ClaimId(id) });
}

fn move_to(b: &mut Bench, gpus: &[usize]) {
    b.send(Event::MoveTo {
        id: ClaimId(1),
        gpus: gpus.to_vec(),
    });
}

fn resize(b: &mut Bench, milli: u32) {
    b.send(Event::Resize {
        ticket: 900,
        id: ClaimId(1),
        change: Change {
            share: Some(Share::from_milli(milli)),
            ..Change::default()
        },
        patience: None,
    });
}

/// One project holds all four GPUs, and a claim of the other waits.
fn a_project_waits() -> Bench {
    let mut b = projects();
    for id in 1..=4 {
        b.claim(id, 1000, 1, Class::Batch, 10);
    }
    b.pass(s(100));
    b.claim(11, 1000, 2, Class::Batch, 5);
    b
}

/// A claim, and another without room beside it.
fn one_waits() -> Bench {
    let mut b = Bench::new(1);
    b.claim(1, 600, 1, Class::Interactive, 8);
    b.claim(2, 600, 1, Class::Interactive, 6);
    b
}

fn parked(gpus: usize) -> Bench {
    let mut b = Bench::new(gpus);
    b.claim(1, 1000, 1, Class::Interactive, 8);
    wish(&mut b, 1, Wish::Suspend);
    b.pass(s(5));
    b
}

/// Two notebooks on two GPUs, and a claim that needs a whole GPU.
fn notebooks() -> Bench {
    let mut b = Bench::new(2);
    b.claim(1, 500, 1, Class::Interactive, 8);
    b.claim(2, 500, 2, Class::Interactive, 6);
    b.pass(s(100));
    b.claim(3, 1000, 3, Class::Batch, 10);
    b
}

/// [`a_project_waits`] with claims that can only be ended.
fn fixed(requeue: bool) -> Bench {
    let mut b = projects();
    b.send(Event::Reclaim(ReclaimRules {
        kill: !requeue,
        ..ReclaimRules::default()
    }));
    for id in 1..=4 {
        b.claim(id, 1000, 1, Class::Batch, 4);
        let levers = Levers {
            requeue,
            ..Levers::default()
        };
        b.send(Event::Levers {
            id: ClaimId(id),
            levers,
        });
    }
    b.pass(s(100));
    b.claim(11, 1000, 2, Class::Batch, 4);
    b
}

/// A borrower with most of the SMs, and a claim that needs some of them.
fn crowded() -> Bench {
    let mut b = Bench::new(1);
    for (id, uid, sm) in [(1, 1, 800), (2, 2, 400)] {
        let mut r = Request::from_gpus(Share::from_milli(sm), Share::ONE, Class::Batch).unwrap();
        r.mem = Some(Bytes::gib(8));
        r.uid = uid;
        b.submit(id, r, 4);
        if id == 1 {
            b.pass(s(100));
        }
    }
    b
}

fn on_two(milli: u32) -> Request {
    let size = Size {
        gpus: 2,
        each: Share::from_milli(milli),
    };
    Request::of_size(size, Share::ONE, Class::Batch)
}

fn two_of_four(milli: u32) -> Bench {
    let mut b = Bench::new(4);
    b.submit(1, on_two(milli), 3);
    b
}

#[test]
fn nothing_is_lost_when_a_claim_goes_to_the_host() {
    let park = |a: &Action| matches!(a, Action::Park { .. });
    nothing_is_lost(&[
        Scene {
            name: "suspended for a claim within a guarantee",
            start: a_project_waits,
            cause: None,
            is: |a| {
                matches!(
                    a,
                    Action::Park {
                        freeze: true,
                        by: ParkedBy::Reclaim,
                        ..
                    }
                )
            },
        },
        Scene {
            name: "offloaded because it is idle",
            start: || {
                let mut b = one_waits();
                b.idles(1, true);
                b
            },
            cause: None,
            is: |a| {
                matches!(
                    a,
                    Action::Park {
                        freeze: false,
                        by: ParkedBy::Idle,
                        ..
                    }
                )
            },
        },
        Scene {
            name: "offloaded by its owner",
            start: one_waits,
            cause: Some(|b| wish(b, 1, Wish::Offload)),
            is: |a| {
                matches!(
                    a,
                    Action::Park {
                        freeze: false,
                        by: ParkedBy::Person,
                        ..
                    }
                )
            },
        },
        Scene {
            name: "suspended by its owner",
            start: one_waits,
            cause: Some(|b| wish(b, 1, Wish::Suspend)),
            is: |a| {
                matches!(
                    a,
                    Action::Park {
                        freeze: true,
                        by: ParkedBy::Person,
                        ..
                    }
                )
            },
        },
        Scene {
            name: "wanted while it is being offloaded",
            start: one_waits,
            cause: Some(|b| {
                wish(b, 1, Wish::Offload);
                b.send(Event::Wanted { id: ClaimId(1) });
            }),
            is: park,
        },
        Scene {
            name: "on two GPUs",
            start: || two_of_four(1000),
            cause: Some(|b| wish(b, 1, Wish::Suspend)),
            is: park,
        },
    ]);
}

#[test]
fn nothing_is_lost_when_a_claim_comes_back_from_the_host() {
    let is = |a: &Action| matches!(a, Action::Unpark { .. });
    nothing_is_lost(&[
        Scene {
            name: "when there is room again",
            start: || {
                let mut b = a_project_waits();
                b.pass(s(40));
                b
            },
            cause: Some(|b| gone(b, 11)),
            is,
        },
        Scene {
            name: "when its owner wants it",
            start: || parked(1),
            cause: Some(|b| wish(b, 1, Wish::Resume)),
            is,
        },
        Scene {
            name: "on another GPU",
            start: || {
                let mut b = parked(2);
                let mut whole = Request::from_gpus(Share::ONE, Share::ONE, Class::Batch).unwrap();
                whole.only_gpus = vec![0];
                b.submit(2, whole, 9);
                b
            },
            cause: Some(|b| wish(b, 1, Wish::Resume)),
            is: |a| matches!(a, Action::Unpark { to, .. } if to[0].gpu == 1),
        },
        Scene {
            name: "on two GPUs",
            start: || {
                let mut b = two_of_four(1000);
                wish(&mut b, 1, Wish::Suspend);
                b.pass(s(5));
                b
            },
            cause: Some(|b| wish(b, 1, Wish::Restore)),
            is,
        },
    ]);
}

#[test]
fn nothing_is_lost_when_a_claim_moves() {
    let is = |a: &Action| matches!(a, Action::Move { .. });
    nothing_is_lost(&[
        Scene {
            name: "for somebody who waits",
            start: notebooks,
            cause: None,
            is,
        },
        Scene {
            name: "to an idle GPU",
            start: || {
                let mut b = notebooks();
                b.pass(s(40));
                gone(&mut b, 3);
                b
            },
            cause: None,
            is,
        },
        Scene {
            name: "by its owner",
            start: one_on_two,
            cause: Some(|b| move_to(b, &[1])),
            is,
        },
        Scene {
            name: "on two GPUs",
            start: || two_of_four(500),
            cause: Some(|b| move_to(b, &[2, 3])),
            is,
        },
    ]);
}

fn one_on_two() -> Bench {
    let mut b = Bench::new(2);
    b.claim(1, 500, 1, Class::Interactive, 8);
    b
}

#[test]
fn nothing_is_lost_when_a_claim_is_ended_for_others() {
    nothing_is_lost(&[
        Scene {
            name: "queued again",
            start: || fixed(true),
            cause: None,
            is: |a| matches!(a, Action::Requeue { .. }),
        },
        Scene {
            name: "for good",
            start: || fixed(false),
            cause: None,
            is: |a| matches!(a, Action::Kill { .. }),
        },
    ]);
}

#[test]
fn nothing_is_lost_when_a_share_or_a_size_changes() {
    let is = |a: &Action| matches!(a, Action::Resize { .. });
    nothing_is_lost(&[
        Scene {
            name: "a lower share for somebody who waits",
            start: crowded,
            cause: None,
            is: |a| matches!(a, Action::Share { slices, .. } if slices[0].sm.milli() == 600),
        },
        Scene {
            name: "the share given back",
            start: || {
                let mut b = crowded();
                b.pass(s(40));
                b
            },
            cause: Some(|b| gone(b, 2)),
            is: |a| matches!(a, Action::Share { slices, .. } if slices[0].sm.milli() == 800),
        },
        Scene {
            name: "larger",
            start: one_on_two,
            cause: Some(|b| resize(b, 900)),
            is,
        },
        Scene {
            name: "smaller, and somebody waits",
            start: one_waits,
            cause: Some(|b| resize(b, 400)),
            is,
        },
        Scene {
            name: "larger when there is room",
            start: || {
                let mut b = Bench::new(1);
                b.claim(1, 500, 1, Class::Batch, 4);
                b.claim(2, 500, 1, Class::Batch, 4);
                resize(&mut b, 750);
                b
            },
            cause: Some(|b| gone(b, 2)),
            is,
        },
    ]);
}

#[test]
fn nothing_is_lost_when_a_claim_is_granted() {
    let is = |a: &Action| matches!(a, Action::Grant { .. });
    nothing_is_lost(&[
        Scene {
            name: "at once",
            start: one_on_two,
            cause: Some(|b| b.claim(2, 500, 2, Class::Batch, 5)),
            is,
        },
        Scene {
            name: "after a wait",
            start: one_waits,
            cause: Some(|b| gone(b, 1)),
            is,
        },
        Scene {
            name: "after others made room",
            start: a_project_waits,
            cause: None,
            is,
        },
        Scene {
            name: "on two GPUs",
            start: one_on_two_of_three,
            cause: Some(|b| b.submit(2, on_two(1000), 3)),
            is,
        },
    ]);
}

fn one_on_two_of_three() -> Bench {
    let mut b = Bench::new(3);
    b.claim(1, 500, 1, Class::Interactive, 8);
    b
}
