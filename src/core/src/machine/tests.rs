//! The machine in virtual time: a small driver that answers `Measure` as the service does.

use super::*;
use crate::claim::Class;
use crate::ledger::GpuFacts;
use crate::units::Bytes;
use crate::units::Share;

#[derive(Clone)]
pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) now: Now,
    pub(super) log: Vec<Action>,
    /// Real bytes in use by claim and GPU.
    pub(super) used: BTreeMap<(ClaimId, usize), Bytes>,
    /// Journaling a resize fails.
    pub(super) full_disk: bool,
    /// GPUs of another scheduler: what it booked there may exceed what exists.
    pub(super) over: Vec<usize>,
}

pub(super) fn facts(gib: u64) -> GpuFacts {
    GpuFacts {
        uuid: format!("GPU-{gib}"),
        model: "G".into(),
        usable: Some(Bytes::gib(gib)),
        reserve: Bytes::ZERO,
        unclaimed: Bytes::ZERO,
        healthy: true,
        sharing: crate::ledger::Sharing::Timeslice,
    }
}

impl World {
    pub(super) fn new(gpus: &[u64]) -> Self {
        let mut world = Self {
            machine: Machine::default(),
            now: Duration::ZERO,
            log: Vec::new(),
            used: BTreeMap::new(),
            full_disk: false,
            over: Vec::new(),
        };
        world.send(Event::Gpus(gpus.iter().map(|g| facts(*g)).collect()));
        world
    }

    pub(super) fn send(&mut self, event: Event) {
        if let Event::OnBehalf { gpus, .. } = &event {
            self.over.extend(gpus);
        }
        let mut todo = vec![event];
        while let Some(event) = todo.pop() {
            let mut undo = None;
            for action in self.machine.step(self.now, event) {
                match &action {
                    Action::Measure => {
                        let read = self.used.iter().map(|((id, g), b)| (*id, *g, *b)).collect();
                        todo.push(Event::Measured(read));
                    }
                    Action::Resize { id, before, .. } if self.full_disk => {
                        undo = Some(Event::Restore {
                            id: *id,
                            request: None,
                            holding: lever::Holding::here(before.clone()),
                            ends: self.machine.lease_end(*id),
                        });
                    }
                    _ => {}
                }
                self.log.push(action);
            }
            todo.extend(undo);
        }
        self.check();
    }

    pub(super) fn submit(&mut self, id: u64, share: u32) {
        let request =
            Request::from_gpus(Share::from_milli(share), Share::ONE, Class::Batch).unwrap();
        self.submit_request(id, request, None);
    }

    pub(super) fn submit_request(&mut self, id: u64, request: Request, patience: Option<Duration>) {
        self.send(Event::Submit {
            id: ClaimId(id),
            request,
            patience,
        });
    }

    pub(super) fn granted(&self, id: u64) -> Option<Vec<usize>> {
        self.machine
            .ledger()
            .slices(ClaimId(id))
            .map(|s| s.iter().map(|s| s.gpu).collect())
    }

    /// Invariant 3: requests and charges stay within the allocatable, SMs within the whole.
    fn check(&self) {
        let ledger = self.machine.ledger();
        let sound = |(g, _): &(usize, &GpuFacts)| !self.over.contains(g);
        for (g, facts) in ledger.gpus().iter().enumerate().filter(sound) {
            let allocatable = facts.allocatable().unwrap();
            assert!(
                ledger.mem_requested(g) <= allocatable,
                "requests on GPU {g}"
            );
            assert!(ledger.sm_requested(g) <= Share::ONE, "SMs on GPU {g}");
            let caps: u64 = ledger
                .held()
                .flat_map(|(_, s)| s)
                .filter(|s| s.gpu == g)
                .map(|s| s.mem_cap.0)
                .sum();
            assert!(caps <= allocatable.0, "caps on GPU {g}");
        }
    }
}

/// A claim with a time limit, in seconds.
fn ends(share: u32, seconds: u64) -> Request {
    let mut r = Request::from_gpus(Share::from_milli(share), Share::ONE, Class::Batch).unwrap();
    r.lease = Some(Duration::from_secs(seconds));
    r
}

#[test]
fn nobody_is_overtaken_on_a_gpu_he_waits_for() {
    let mut w = World::new(&[24]);
    w.submit_request(1, ends(500, 600), None);
    w.submit(2, 1000);
    w.submit(3, 250);
    assert_eq!(w.granted(3), None);
    let told = w.machine.reason(ClaimId(3)).unwrap();
    assert_eq!(told, &Reason::Behind { ahead: ClaimId(2) });
    w.send(Event::Gone { id: ClaimId(1) });
    assert_eq!(w.granted(2), Some(vec![0]));
    w.send(Event::Gone { id: ClaimId(2) });
    assert_eq!(w.granted(3), Some(vec![0]));
}

#[test]
fn the_reason_names_the_inequality_and_what_would_start() {
    let mut w = World::new(&[24]);
    w.submit(1, 750);
    w.submit(2, 500);
    let Some(Action::Wait {
        position: 1,
        reason,
        ..
    }) = w.log.last()
    else {
        panic!("{:?}", w.log)
    };
    assert_eq!(
        reason.to_string(),
        "needs 12.0 GiB; most free is 6.0 GiB on GPU 0"
    );
    assert_eq!(reason.would_start(), Some(Share::from_milli(250)));
    assert_eq!(reason.holders(), [ClaimId(1)]);
}

#[test]
fn what_can_never_run_is_refused_at_once() {
    let mut w = World::new(&[24]);
    let mut big = Request::from_gpus(Share::ONE, Share::ONE, Class::Batch).unwrap();
    big.mem = Some(Bytes::gib(30));
    w.submit_request(1, big, None);
    assert!(matches!(
        w.log.last(),
        Some(Action::Refuse {
            for_now: false,
            reason: Reason::TooBig { .. },
            ..
        })
    ));
    w.submit(2, 2000);
    assert!(matches!(
        w.log.last(),
        Some(Action::Refuse {
            for_now: false,
            reason: Reason::TooManyGpus {
                wanted: 2,
                present: 1
            },
            ..
        })
    ));
}

#[test]
fn patience_ends_in_a_refusal_with_the_reason() {
    let mut w = World::new(&[24]);
    w.submit(1, 1000);
    let half = Request::from_gpus(Share::from_milli(500), Share::ONE, Class::Batch).unwrap();
    w.submit_request(2, half.clone(), Some(Duration::ZERO));
    assert!(matches!(
        w.log.last(),
        Some(Action::Cap { .. } | Action::Refuse { for_now: true, .. })
    ));
    assert_eq!(w.machine.queue().count(), 0);
    w.submit_request(3, half, Some(Duration::from_secs(60)));
    w.now = Duration::from_secs(59);
    w.send(Event::Tick);
    assert_eq!(w.machine.queue().count(), 1);
    w.now = Duration::from_secs(60);
    w.send(Event::Tick);
    assert_eq!(w.machine.queue().count(), 0);
}

#[test]
fn leases_end() {
    let mut w = World::new(&[24]);
    let mut r = Request::from_gpus(Share::ONE, Share::ONE, Class::Batch).unwrap();
    r.lease = Some(Duration::from_secs(10));
    w.submit_request(1, r, None);
    w.now = Duration::from_secs(10);
    w.send(Event::Tick);
    assert!(w.log.contains(&Action::LeaseOver { id: ClaimId(1) }));
    w.send(Event::Tick);
    assert_eq!(
        w.log
            .iter()
            .filter(|a| matches!(a, Action::LeaseOver { .. }))
            .count(),
        1
    );
}

#[test]
fn borrowed_bytes_are_not_promised_to_another() {
    let mut w = World::new(&[24]);
    let mut r = Request::from_gpus(Share::from_milli(250), Share::ONE, Class::Batch).unwrap();
    r.mem_limit = Some(Bytes::gib(24));
    w.submit_request(1, r, None);
    assert_eq!(
        w.machine.ledger().slices(ClaimId(1)).unwrap()[0].mem_cap,
        Bytes::gib(24)
    );
    // The claim grew to 10 GiB just before the next one came, and the machine had not read that yet.
    w.used.insert((ClaimId(1), 0), Bytes::gib(10));
    w.submit(2, 750);
    assert_eq!(w.granted(2), None, "18 GiB are not free beside 10");
    assert_eq!(
        w.machine.ledger().slices(ClaimId(1)).unwrap()[0].mem_cap,
        Bytes::gib(10),
        "and it grows no more"
    );
    w.used.insert((ClaimId(1), 0), Bytes::gib(6));
    w.send(Event::Tick);
    assert_eq!(w.granted(2), Some(vec![0]));
}

#[test]
fn an_auto_claim_that_holds_much_is_named_to_those_who_wait() {
    let mut machine = Machine::default();
    let gpu = GpuFacts {
        unclaimed: Bytes::gib(20),
        ..facts(24)
    };
    machine.step(Duration::ZERO, Event::Gpus(vec![gpu]));
    let held = vec![
        (ClaimId(2), 0, Bytes::gib(19)),
        (ClaimId(3), 0, Bytes::mib(1)),
        (ClaimId(4), 1, Bytes::gib(1)),
    ];
    machine.step(Duration::ZERO, Event::Uncapped(held));
    let ledger = machine.ledger();
    assert_eq!(ledger.holders(0), [ClaimId(2)]);
    assert_eq!(ledger.uncapped(0).count(), 2);
    assert_eq!(
        ledger.mem_free(0),
        Bytes::gib(4),
        "the facts say what is left"
    );
}

/// Adopts a process that holds 8 of 24 GiB on a GPU, as `request`.
fn adopted(request: Request, before: &[Event]) -> (World, Vec<Action>) {
    let mut world = World::new(&[24]);
    let used = GpuFacts {
        unclaimed: Bytes::gib(8),
        ..facts(24)
    };
    world.send(Event::Gpus(vec![used]));
    for event in before {
        world.send(event.clone());
    }
    world.log.clear();
    world.send(Event::Adopt {
        id: ClaimId(9),
        request,
        held: vec![(0, Bytes::gib(8))],
    });
    let log = world.log.clone();
    (world, log)
}

fn sized(gib: u64, sm: u32) -> Request {
    let sm = Share::from_milli(sm);
    let mut request = Request::from_gpus(sm, Share::ONE, Class::Batch).unwrap();
    request.mem = Some(Bytes::gib(gib));
    request
}

fn granted(log: &[Action]) -> bool {
    log.iter()
        .any(|a| matches!(a, Action::Grant { id: ClaimId(9), .. }))
}

#[test]
fn who_is_adopted_needs_no_room_for_what_he_holds_already() {
    let submit = |id, gib, sm| Event::Submit {
        id: ClaimId(id),
        request: sized(gib, sm),
        patience: None,
    };
    // 16 of 24 GiB are claimed, 8 are its own: it fits exactly.
    let taken = [submit(1, 16, 500)];
    let (world, log) = adopted(sized(8, 500), &taken);
    assert!(granted(&log), "{log:?}");
    assert_eq!(
        world.machine.ledger().slices(ClaimId(9)).unwrap()[0].mem,
        Bytes::gib(8)
    );
    // If others hold the SMs it stays outside the ledger, with what it holds, until there is room.
    let (mut world, log) = adopted(sized(8, 500), &[submit(1, 16, 600)]);
    let counted = |a: &Action| {
        matches!(
            a,
            Action::Grant {
                id: ClaimId(9),
                counted: true,
                ..
            }
        )
    };
    assert!(log.iter().any(counted), "{log:?}");
    let again = Event::Adopt {
        id: ClaimId(9),
        request: sized(8, 500),
        held: vec![(0, Bytes::gib(8))],
    };
    world.send(again.clone());
    assert_eq!(world.machine.ledger().slices(ClaimId(9)), None);
    world.send(Event::Gone { id: ClaimId(1) });
    world.log.clear();
    world.send(again);
    assert!(granted(&world.log) && !world.log.iter().any(counted));
    let ledger = world.machine.ledger();
    assert_eq!(ledger.slices(ClaimId(9)).unwrap()[0].sm.milli(), 500);
    assert_eq!(ledger.mem_free(0), Bytes::gib(16), "counted once");
    let (_, log) = adopted(sized(9, 500), &taken);
    let refused = |a: &Action| {
        matches!(
            a,
            Action::Refuse {
                id: ClaimId(9),
                for_now: true,
                ..
            }
        )
    };
    assert!(!granted(&log) && log.iter().any(refused), "{log:?}");
    // An adoption overtakes the queue only for what the process already holds.
    let waits = [submit(1, 14, 500), submit(2, 10, 500)];
    assert!(granted(&adopted(sized(8, 100), &waits).1));
    let (_, log) = adopted(sized(9, 100), &waits);
    let behind = |a: &Action| {
        matches!(
            a,
            Action::Refuse {
                reason: Reason::Behind { ahead: ClaimId(2) },
                ..
            }
        )
    };
    assert!(!granted(&log) && log.iter().any(behind), "{log:?}");
}
