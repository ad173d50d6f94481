//! Random histories: claims that come, leave and are resized, wishes, levers that fail, drained GPUs, restarted
//! services. The properties that must hold are in `promises`.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::super::histories::changes;
use super::super::lever::{Failure, Levers, Parked, ParkedBy, Wish};
use super::super::tests::World;
use super::super::*;
use super::ReclaimRules;
use super::tests::{Bench, s};
use crate::claim::Class;
use crate::class::{ByHour, Classes, Rules};
use crate::ledger::Admission;
use crate::units::Bytes;

/// Numbers from here on are not part of a history.
pub(super) const BESIDE: ClaimId = ClaimId(1_000_000);

/// A step of a history.
#[derive(Clone, Debug)]
pub(super) enum Do {
    Claim(Claim),
    Gone(usize),
    Wait(u64),
    Wish(usize, Wish),
    Wanted(usize),
    MoveTo(usize, usize),
    Resize(usize, Change, Option<u64>),
    Extend(usize, u64),
    Fail(Failure),
    Refuses(usize),
    Idle(usize),
    HostRam(u64),
    Drain(usize, bool),
    Admission(usize, Admission),
    /// Another scheduler gives this GPU to a claim.
    OnBehalf(usize, Box<Do>),
    Restart,
}

#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) tenths: u32,
    pub(super) gpus: u32,
    pub(super) uid: u32,
    pub(super) class: Class,
    /// Tenths of its request that it uses.
    pub(super) fill: u64,
    pub(super) limit: bool,
    pub(super) movable: bool,
    pub(super) requeue: bool,
    pub(super) lease: Option<u64>,
    pub(super) patience: Option<u64>,
}

impl Claim {
    /// Its request, and the GiB that it uses.
    fn asks(&self) -> (Request, u64) {
        let of = if self.gpus > 1 {
            2000
        } else {
            self.tenths * 100
        };
        let mut r = Request::from_gpus(Share::from_milli(of), Share::ONE, self.class).unwrap();
        r.uid = self.uid;
        r.mem_limit = self.limit.then_some(Bytes::gib(24));
        r.movable = self.movable;
        r.lease = self.lease.map(s);
        let most = if self.gpus > 1 {
            24
        } else {
            u64::from(self.tenths) * 24 / 10
        };
        (r, most * self.fill / 10)
    }
}

fn claim() -> impl Strategy<Value = Do> {
    let class = prop::sample::select(vec![Class::Interactive, Class::Batch, Class::Inference]);
    let sizes = (
        1u32..=10,
        prop::sample::select(vec![1u32, 1, 1, 2]),
        0u32..3,
    );
    let able = (
        any::<bool>(),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.2),
    );
    let times = (
        prop::option::weighted(0.2, 20u64..400),
        prop::option::weighted(0.2, 0u64..100),
    );
    (sizes, class, 0u64..=10, able, times).prop_map(
        |((tenths, gpus, uid), class, fill, (limit, movable, requeue), (lease, patience))| {
            Do::Claim(Claim {
                tenths,
                gpus,
                uid,
                class,
                fill,
                limit,
                movable,
                requeue,
                lease,
                patience,
            })
        },
    )
}

/// A history; `restarts` is the relative frequency of restarts.
pub(super) fn history(restarts: u32) -> impl Strategy<Value = Vec<Do>> {
    prop::collection::vec(step(restarts), 1..40)
}

/// The same with GPUs that the queue does not decide about.
pub(super) fn admissions() -> impl Strategy<Value = Vec<Do>> {
    let by = prop::sample::select(vec![
        Admission::Queue,
        Admission::Queue,
        Admission::Pass,
        Admission::Foreign,
    ]);
    let step = prop_oneof![
        8 => step(1),
        1 => (0usize..3, by).prop_map(|(g, by)| Do::Admission(g, by)),
        1 => (0usize..3, claim()).prop_map(|(g, claim)| Do::OnBehalf(g, Box::new(claim))),
    ];
    prop::collection::vec(step, 1..40)
}

fn step(restarts: u32) -> impl Strategy<Value = Do> {
    let wish = prop::sample::select(vec![
        Wish::Offload,
        Wish::Restore,
        Wish::Suspend,
        Wish::Resume,
        Wish::Keep,
        Wish::Yield,
    ]);
    let failure = prop::sample::select(vec![
        Failure::Refused,
        Failure::TimedOut,
        Failure::Busy,
        Failure::HostRam,
        Failure::Lost,
    ]);
    prop_oneof![
        8 => claim(),
        3 => (0usize..12).prop_map(Do::Gone),
        8 => (1u64..70).prop_map(Do::Wait),
        2 => (0usize..12, wish).prop_map(|(i, w)| Do::Wish(i, w)),
        1 => (0usize..12).prop_map(Do::Wanted),
        1 => (0usize..12, 0usize..3).prop_map(|(i, g)| Do::MoveTo(i, g)),
        1 => (0usize..12, changes(24), prop::option::of(0u64..60)).prop_map(|(i, c, p)| Do::Resize(i, c, p)),
        1 => (0usize..12, 1u64..200).prop_map(|(i, by)| Do::Extend(i, by)),
        1 => failure.prop_map(Do::Fail),
        1 => (0usize..12).prop_map(Do::Refuses),
        1 => (0usize..12).prop_map(Do::Idle),
        1 => (5u64..60).prop_map(Do::HostRam),
        1 => (0usize..3, any::<bool>()).prop_map(|(g, on)| Do::Drain(g, on)),
        restarts.max(1) => Just(if restarts > 0 { Do::Restart } else { Do::Wait(1) }),
    ]
}

/// A number from the environment, or else this one.
pub(super) fn number(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|t| t.parse().ok()).unwrap_or(otherwise)
}

/// The history of a seed, and the generator for further draws.
pub(super) fn history_of(seed: u64) -> (Vec<Do>, TestRunner) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let steps = history(1).new_tree(&mut runner).expect("a history");
    (steps.current(), runner)
}

/// Minimum run times that differ by class, so that mix-ups show.
fn classes() -> Classes {
    let min_run = |class, seconds| {
        let always = Rules {
            min_run: s(seconds),
            ..Rules::of(class)
        };
        ByHour {
            always,
            at: Vec::new(),
        }
    };
    let mut classes = Classes::default();
    classes.set(Class::Interactive, min_run(Class::Interactive, 60));
    classes.set(Class::Batch, min_run(Class::Batch, 90));
    classes.set(Class::Inference, min_run(Class::Inference, 45));
    classes
}

/// A machine with three GPUs in the middle of a history.
#[derive(Clone)]
pub(super) struct Play {
    pub(super) b: Bench,
    next: u64,
    /// Requests, to be submitted again when claims are queued again.
    asked: BTreeMap<ClaimId, (Request, u64)>,
    /// Claims on which their owners acted: not counted as taken for others.
    pub(super) own: Vec<ClaimId>,
    seen: usize,
}

impl Play {
    pub(super) fn new(kill: bool) -> Self {
        let mut b = Bench::new(3);
        let mut gpus = b.w.machine.ledger().gpus().to_vec();
        for (g, facts) in gpus.iter_mut().enumerate() {
            facts.uuid = format!("GPU-{g}");
        }
        b.send(Event::Gpus(gpus));
        b.send(Event::Classes(classes()));
        b.send(Event::Reclaim(ReclaimRules {
            spread: true,
            kill,
            ..ReclaimRules::default()
        }));
        Self {
            b,
            next: 1,
            asked: BTreeMap::new(),
            own: Vec::new(),
            seen: 0,
        }
    }

    fn ask(&mut self, request: Request, gib: u64, patience: Option<u64>, requeue: bool) {
        let id = ClaimId(self.next);
        self.next += 1;
        self.asked.insert(id, (request.clone(), gib));
        if requeue {
            self.b.requeue.insert(id);
        }
        self.b.submit_for(id.0, request, gib, patience.map(s));
    }

    /// Plays one step and carries out the machine's immediate actions.
    pub(super) fn step(&mut self, step: &Do) {
        let b = &mut self.b;
        // Claims that a test has added are not part of the history.
        let ids = b.w.machine.holdings().into_keys();
        let ids: Vec<ClaimId> = ids.filter(|id| *id < BESIDE).collect();
        let nth = |i: usize| ids.get(i).copied();
        match step {
            Do::Claim(c) => {
                let (r, gib) = c.asks();
                self.ask(r, gib, c.patience, c.requeue);
            }
            Do::Admission(g, by) => {
                let (uuid, by) = (b.w.machine.ledger().gpus()[*g].uuid.clone(), *by);
                b.send(Event::Admission { uuid, by });
            }
            Do::OnBehalf(g, claim) => {
                if let Do::Claim(c) = &**claim {
                    let (mut request, _) = c.asks();
                    request.gpus = 1;
                    let id = ClaimId(self.next);
                    self.next += 1;
                    b.bytes.insert(id, (Bytes::ZERO, None));
                    b.send(Event::OnBehalf {
                        id,
                        request,
                        gpus: vec![*g],
                    });
                }
            }
            Do::Gone(i) => {
                if let Some(id) = nth(*i) {
                    b.send(Event::Gone { id });
                }
            }
            Do::Wait(_) => {}
            Do::Restart => {
                let new = restarted(&b.w);
                b.w = new;
                come_back(b, false);
            }
            Do::Wish(i, wish) => {
                if let Some(id) = nth(*i) {
                    let before = b.w.log.len();
                    b.send(Event::Wish { id, wish: *wish });
                    let parks = |a: &Action| matches!(a, Action::Park { id: i, by: ParkedBy::Person | ParkedBy::Scheduler, .. } if *i == id);
                    if b.w.log[before..].iter().any(parks) {
                        self.own.push(id);
                    }
                }
            }
            Do::Wanted(i) => {
                if let Some(id) = nth(*i) {
                    b.send(Event::Wanted { id });
                }
            }
            Do::MoveTo(i, gpu) => {
                if let Some(id) = nth(*i) {
                    let before = b.w.log.len();
                    b.send(Event::MoveTo {
                        id,
                        gpus: vec![*gpu],
                    });
                    let moves = |a: &Action| matches!(a, Action::Move { id: i, .. } if *i == id);
                    if b.w.log[before..].iter().any(moves) {
                        self.own.push(id);
                    }
                }
            }
            Do::Resize(i, change, patience) => {
                if let Some(id) = nth(*i) {
                    let ticket = self.next;
                    self.next += 1;
                    let patience = patience.map(s);
                    b.send(Event::Resize {
                        ticket,
                        id,
                        change: *change,
                        patience,
                    });
                }
            }
            Do::Extend(i, by) => {
                if let Some(id) = nth(*i)
                    && let Some(ends) = b.w.machine.lease_end(id)
                {
                    let ends = Some(ends + s(*by));
                    b.send(Event::Lease { id, ends });
                }
            }
            Do::Fail(failure) => b.failing.push(*failure),
            Do::Refuses(i) => {
                if let Some(id) = nth(*i) {
                    let no = || Err("it uses managed memory".to_owned());
                    let levers = Levers {
                        park: no(),
                        movable: no(),
                        ..Levers::default()
                    };
                    b.send(Event::Levers { id, levers });
                }
            }
            Do::Idle(i) => {
                if let Some(id) = nth(*i)
                    && let Some(granted) = b.w.machine.claims.get(id)
                {
                    let levers = Levers {
                        idle: !granted.run.levers.idle,
                        ..granted.run.levers.clone()
                    };
                    b.send(Event::Levers { id, levers });
                }
            }
            Do::HostRam(gib) => b.send(Event::HostRam(Bytes::gib(*gib))),
            Do::Drain(g, on) => {
                let uuid = b.w.machine.ledger().gpus()[*g].uuid.clone();
                b.send(Event::Drain { uuid, on: *on });
            }
        }
        self.queue_again();
    }

    pub(super) fn second(&mut self) {
        self.b.pass(s(1));
        self.queue_again();
    }

    /// A claim that was ended to be queued again is submitted anew, as its command's parent does.
    fn queue_again(&mut self) {
        while self.seen < self.b.ended.len() {
            let (id, again) = self.b.ended[self.seen];
            self.seen += 1;
            if let (true, Some((request, gib))) = (again, self.asked.get(&id).cloned()) {
                self.ask(request, gib, None, true);
            }
        }
    }

    /// All claims end after a while, and claims parked by their owners are restored: true if all had their turn.
    pub(super) fn end(
        &mut self,
        mut look: impl FnMut(&mut Self) -> Result<(), TestCaseError>,
    ) -> Result<(), TestCaseError> {
        self.b.failing.clear();
        for g in 0..3 {
            let uuid = self.b.w.machine.ledger().gpus()[g].uuid.clone();
            let by = Admission::Queue;
            self.b.send(Event::Admission {
                uuid: uuid.clone(),
                by,
            });
            self.b.send(Event::Drain { uuid, on: false });
        }
        self.b.send(Event::HostRam(Bytes::gib(200)));
        let mut ran: BTreeMap<ClaimId, u32> = BTreeMap::new();
        for _ in 0..80 {
            let all = self.b.w.machine.holdings();
            if all.is_empty() && self.b.w.machine.queue().count() == 0 {
                break;
            }
            for (id, holding) in all {
                match holding.phase {
                    Phase::Granted | Phase::Counted(_) => {
                        let times = ran.entry(id).or_default();
                        *times += 1;
                        if *times > 3 {
                            self.b.send(Event::Gone { id });
                        }
                    }
                    // Claims parked for others come back by themselves.
                    Phase::Offloaded(parked) if parked.by == ParkedBy::Person => {
                        self.b.send(Event::Wish {
                            id,
                            wish: Wish::Resume,
                        });
                    }
                    Phase::Offloaded(Parked {
                        by: ParkedBy::Idle | ParkedBy::Scheduler,
                        ..
                    }) => {
                        self.b.send(Event::Wanted { id });
                    }
                    _ => {}
                }
                look(self)?;
            }
            for _ in 0..40 {
                self.second();
                look(self)?;
            }
        }
        let left = self.b.w.machine.holdings();
        prop_assert!(left.is_empty(), "{left:?}");
        let waits: Vec<_> = self.b.w.machine.queue().map(|(id, _)| id).collect();
        prop_assert!(waits.is_empty(), "{waits:?} wait on an empty machine");
        Ok(())
    }
}

/// A new machine that has found all claims again where they were, as the service does it.
pub(super) fn restarted(w: &World) -> World {
    restarted_with(w, w.machine.memory())
}

/// The same with this saved state.
pub(super) fn restarted_with(w: &World, memory: Memory) -> World {
    let (old, mut new) = (&w.machine, w.clone());
    let gpus = 0..old.ledger().gpus().len();
    let drained: Vec<bool> = gpus.map(|g| old.ledger().is_drained(g)).collect();
    new.machine = Machine::default();
    new.machine.quotas = old.quotas.clone();
    new.send(Event::Classes(old.clocked.classes.clone()));
    new.send(Event::Reclaim(old.reclaim.rules.clone()));
    new.send(Event::HostRam(old.reclaim.host_ram));
    for (id, holding) in old.holdings() {
        // In the journal, the request's SMs are those that the claim holds.
        let request = old.request_of(id).map(|asked| {
            let first = holding.slices().first();
            let sm = first.map_or(asked.sm, |s| Some(s.sm));
            let full = old.claims.get(id).and_then(|c| c.lowered_from);
            Box::new(Request {
                sm: full.or(sm),
                ..asked.clone()
            })
        });
        // Written when it last changed: before it stood still.
        let ends = old.claims.get(id).and_then(|c| c.ends);
        new.machine.step(
            new.now,
            Event::Restore {
                id,
                request,
                holding,
                ends,
            },
        );
    }
    for g in 0..old.ledger().gpus().len() {
        let uuid = old.ledger().gpus()[g].uuid.clone();
        let by = old.ledger().admission(g);
        new.machine.step(new.now, Event::Admission { uuid, by });
    }
    new.machine.step(new.now, Event::Recall(Box::new(memory)));
    for (g, on) in drained.into_iter().enumerate() {
        let uuid = old.ledger().gpus()[g].uuid.clone();
        new.machine.step(new.now, Event::Drain { uuid, on });
    }
    new.machine.measuring = 0;
    new.send(Event::Gpus(old.ledger().gpus().to_vec()));
    new
}

/// Waiting clients return with their numbers, in reverse order if `last_first`.
pub(super) fn come_back(b: &mut Bench, last_first: bool) {
    let machine = &b.w.machine;
    let absent = machine.queue.iter().filter(|w| w.absent.is_some());
    let absent = absent.filter_map(|w| match &w.ask {
        Ask::Claim { id, request, .. } => Some((*id, request.clone(), w.deadline)),
        Ask::Resize { .. } => None,
    });
    let mut absent: Vec<_> = absent.collect();
    if last_first {
        absent.reverse();
    }
    for (id, request, deadline) in absent {
        let patience = deadline.map(|at| at.saturating_sub(b.w.now));
        b.send(Event::Submit {
            id,
            request,
            patience,
        });
    }
}
