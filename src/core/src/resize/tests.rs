//! Resizing through the machine, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::claim::{Class, Request};
use crate::machine::{Action, Event, Machine};
use crate::{Bytes, GpuFacts};

struct World {
    machine: Machine,
    used: BTreeMap<(ClaimId, usize), Bytes>,
    log: Vec<Action>,
    tickets: u64,
}

impl World {
    fn new(gpus: usize) -> Self {
        let facts = |g| GpuFacts {
            uuid: format!("GPU-{g}"),
            model: "G".into(),
            usable: Some(Bytes::gib(24)),
            reserve: Bytes::ZERO,
            unclaimed: Bytes::ZERO,
            healthy: true,
            sharing: crate::Sharing::Timeslice,
        };
        let mut world = Self {
            machine: Machine::default(),
            used: BTreeMap::new(),
            log: Vec::new(),
            tickets: 0,
        };
        world.send(Event::Gpus((0..gpus).map(facts).collect()));
        world
    }

    /// Like the service: an event waits until the actions of the previous one are done.
    fn send(&mut self, event: Event) {
        let mut todo = std::collections::VecDeque::from([event]);
        while let Some(event) = todo.pop_front() {
            for action in self.machine.step(Duration::ZERO, event) {
                if action == Action::Measure {
                    let read = self.used.iter().map(|((id, g), b)| (*id, *g, *b)).collect();
                    todo.push_back(Event::Measured(read));
                }
                self.log.push(action);
            }
        }
    }

    fn claim(&mut self, id: u64, share: &str) {
        let share = share.parse().expect("a share");
        let request = Request::from_gpus(share, Share::ONE, Class::Batch).expect("valid");
        self.send(Event::Submit {
            id: ClaimId(id),
            request,
            patience: None,
        });
    }

    fn wish(&mut self, id: u64, change: Change, patience: Option<Duration>) -> Option<ResizeError> {
        self.tickets += 1;
        let ticket = self.tickets;
        self.send(Event::Resize {
            ticket,
            id: ClaimId(id),
            change,
            patience,
        });
        self.log.iter().rev().find_map(|a| match a {
            Action::ResizeRefused { ticket: t, error }
            | Action::ResizeWaits {
                ticket: t, error, ..
            } if *t == ticket => Some(error.clone()),
            _ => None,
        })
    }

    fn resize(&mut self, id: u64, change: Change) -> Option<ResizeError> {
        self.wish(id, change, Some(Duration::ZERO))
    }

    fn slice(&self, id: u64) -> Slice {
        self.machine.ledger().slices(ClaimId(id)).expect("held")[0].clone()
    }
}

fn share(text: &str) -> Change {
    Change {
        share: Some(text.parse().expect("a share")),
        ..Change::default()
    }
}

#[test]
fn smaller_and_larger_again() {
    let mut w = World::new(1);
    w.claim(1, "0.5");
    assert_eq!(w.resize(1, share("0.2")), None);
    let small = w.slice(1);
    assert_eq!(small.sm, Share::from_milli(200));
    assert_eq!(
        small.mem,
        Bytes::gib(24)
            .times(Share::from_milli(200))
            .round_down(GRANULARITY)
    );
    assert_eq!((small.mem_cap, small.mem_limit), (small.mem, small.mem));
    assert_eq!(small.sm_limit, Share::ONE, "the limit stays");
    assert_eq!(w.resize(1, share("0.8")), None);
    assert_eq!(w.slice(1).mem_cap, w.slice(1).mem);
    assert_eq!(w.machine.ledger().claimable(0), Share::from_milli(200));
}

#[test]
fn growing_needs_room_that_nobody_holds_and_says_what_would_fit() {
    let mut w = World::new(1);
    w.claim(1, "0.25");
    w.claim(2, "0.5");
    let refused = w.resize(1, share("0.75")).expect("refused");
    assert_eq!(
        refused.to_string(),
        "needs 18.0 GiB on GPU 0; at most 12.0 GiB is possible, including what it has"
    );
    assert_eq!(refused.holders(), [ClaimId(2)]);
    assert_eq!(refused.would_fit(), Some(&share("0.5")));
    assert_eq!(
        w.slice(1).sm,
        Share::from_milli(250),
        "it keeps what it has"
    );
    assert_eq!(w.slice(1).mem_cap, Bytes::gib(6));
    assert_eq!(w.resize(1, share("0.5")), None);
    let sms = Change {
        sm: Some(Share::from_milli(600)),
        ..Change::default()
    };
    let refused = w.resize(1, sms).expect("refused");
    assert_eq!(
        refused.to_string(),
        "needs 60 % of the compute of GPU 0; at most 50 % is possible, including what it has"
    );
    assert_eq!(refused.would_fit(), None);
}

#[test]
fn a_limit_below_what_is_charged_is_refused_with_the_figure_and_the_request_alone_can_shrink() {
    let mut w = World::new(1);
    w.claim(1, "0.5");
    w.used.insert((ClaimId(1), 0), Bytes::gib(9));
    let refused = w.resize(1, share("0.25")).expect("refused");
    assert_eq!(
        refused.to_string(),
        "its programs have 9.0 GiB on GPU 0, which is more than the new limit of 6.0 GiB"
    );
    assert_eq!(w.slice(1).mem_cap, Bytes::gib(12), "nothing has changed");
    let request_only = Change {
        mem_limit: Some(Bytes::gib(12)),
        ..share("0.25")
    };
    assert_eq!(w.resize(1, request_only), None);
    let held = w.slice(1);
    assert_eq!((held.mem, held.mem_limit), (Bytes::gib(6), Bytes::gib(12)));
    assert_eq!(held.borrowed(), Bytes::gib(3));
    // What it borrows belongs to nobody else, but it cannot grow while others wait.
    w.claim(2, "0.7");
    assert!(w.machine.ledger().slices(ClaimId(2)).is_none());
    assert_eq!(w.slice(1).mem_cap, Bytes::gib(9));
    w.claim(3, "0.65");
    w.used.insert((ClaimId(1), 0), Bytes::gib(6));
    w.send(Event::Tick);
    assert!(w.machine.ledger().slices(ClaimId(2)).is_some());
}

#[test]
fn whoever_waits_for_the_gpu_came_first() {
    let mut w = World::new(1);
    w.claim(1, "0.3");
    w.claim(2, "0.4");
    let ends = Some(Duration::from_secs(600));
    w.send(Event::Lease {
        id: ClaimId(2),
        ends,
    });
    w.claim(3, "0.6");
    let error = w.resize(1, share("0.5")).expect("refused");
    assert_eq!(error.to_string(), "c3 waits for GPU 0 and came first");
    // Growth that leaves room for the waiting claim is allowed.
    assert_eq!(w.resize(1, share("0.4")), None);
    // So is shrinking, which lets the waiting claim start.
    assert_eq!(w.resize(1, share("0.3")), None);
    let error = w.resize(2, share("0.1"));
    assert_eq!(error, None);
    assert!(w.machine.ledger().slices(ClaimId(3)).is_some());
}

#[test]
fn a_patient_wish_is_met_in_its_turn_and_can_be_taken_back() {
    let mut w = World::new(1);
    w.claim(1, "0.25");
    w.claim(2, "0.75");
    assert!(w.wish(1, share("0.5"), None).is_some(), "it waits");
    w.claim(3, "0.25");
    w.send(Event::Gone { id: ClaimId(2) });
    assert_eq!(w.slice(1).sm, Share::from_milli(500));
    assert!(w.machine.ledger().slices(ClaimId(3)).is_some());
    assert!(w.wish(1, share("1"), None).is_some());
    w.send(Event::Unwish { ticket: w.tickets });
    w.send(Event::Gone { id: ClaimId(3) });
    assert_eq!(w.slice(1).sm, Share::from_milli(500));
    assert_eq!(w.machine.ledger().claimable(0), Share::from_milli(500));
}

#[test]
fn a_wish_ends_with_its_claim_and_with_a_later_wish() {
    let mut w = World::new(1);
    w.claim(1, "0.25");
    w.claim(2, "0.75");
    w.wish(1, share("0.5"), None);
    w.wish(1, share("0.75"), None);
    assert!(w.log.contains(&Action::ResizeRefused {
        ticket: 1,
        error: ResizeError::Replaced { id: ClaimId(1) }
    }));
    w.send(Event::Gone { id: ClaimId(1) });
    assert!(w.log.contains(&Action::ResizeRefused {
        ticket: 2,
        error: ResizeError::NotHeld { id: ClaimId(1) }
    }));
}

#[test]
fn what_can_never_be_is_refused_also_when_it_would_wait() {
    let mut w = World::new(2);
    w.claim(1, "0.25");
    w.claim(2, "1");
    let mem = |gib| Change {
        mem: Some(Bytes::gib(gib)),
        ..Change::default()
    };
    assert!(matches!(
        w.wish(1, mem(30), None),
        Some(ResizeError::TooBig { .. })
    ));
    assert!(matches!(
        w.wish(1, share("2"), None),
        Some(ResizeError::Count { held: 1, .. })
    ));
    let crossed = Change {
        mem_limit: Some(Bytes::gib(1)),
        ..mem(4)
    };
    assert!(matches!(
        w.wish(1, crossed, None),
        Some(ResizeError::Sizes(_))
    ));
    assert!(matches!(
        w.wish(9, mem(4), None),
        Some(ResizeError::NotHeld { .. })
    ));
}

#[test]
fn several_gpus_keep_their_number() {
    let mut w = World::new(2);
    w.claim(1, "2");
    let held = |w: &World| {
        w.machine
            .ledger()
            .slices(ClaimId(1))
            .expect("held")
            .to_vec()
    };
    assert!(matches!(
        w.resize(1, share("0.5")),
        Some(ResizeError::Count { held: 2, .. })
    ));
    let each = Change {
        mem: Some(Bytes::gib(6)),
        sm: Some(Share::from_milli(250)),
        ..Change::default()
    };
    assert_eq!(w.resize(1, each), None);
    assert!(held(&w).iter().all(|s| s.mem == Bytes::gib(6)));
    assert_eq!(w.resize(1, share("2")), None);
    assert!(held(&w).iter().all(|s| s.sm == Share::ONE));
}

#[test]
fn what_could_not_be_journaled_is_undone_before_anything_else_is_decided() {
    let mut w = World::new(1);
    w.claim(1, "1");
    w.claim(2, "0.5");
    let mut todo = std::collections::VecDeque::from([Event::Resize {
        ticket: 1,
        id: ClaimId(1),
        change: share("0.5"),
        patience: None,
    }]);
    while let Some(event) = todo.pop_front() {
        for action in w.machine.step(Duration::ZERO, event) {
            match action {
                Action::Resize { id, before, .. } => {
                    todo.push_back(Event::Restore {
                        id,
                        request: None,
                        holding: crate::machine::lever::Holding::here(before),
                        ends: None,
                    });
                }
                Action::Measure => todo.push_back(Event::Measured(Vec::new())),
                Action::Grant { id, .. } => panic!("{id} was granted what is not free"),
                _ => {}
            }
        }
    }
    assert_eq!(w.slice(1).sm, Share::ONE);
}
