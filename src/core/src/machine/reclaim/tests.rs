//! Taking and giving back in virtual time, with levers that take a while and may fail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::lever::{Failure, Lever, Levers, ParkedBy, Wish};
use super::super::tests::World;
use super::super::*;
use super::ReclaimRules;
use crate::claim::Class;
use crate::quota::{Party, Quota};
use crate::units::Bytes;

pub(in super::super) const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A machine with working levers, each taking two seconds.
#[derive(Clone)]
pub(in super::super) struct Bench {
    pub(in super::super) w: World,
    /// Levers in progress, and when they are answered.
    pub(in super::super) underway: Vec<(Now, Action)>,
    /// Real bytes of a claim and where they are: on GPUs, or in the host (`None`).
    pub(in super::super) bytes: BTreeMap<ClaimId, (Bytes, Option<Vec<usize>>)>,
    /// Failures of the next answers.
    pub(in super::super) failing: Vec<Failure>,
    pub(in super::super) movable: bool,
    /// Claims that may be ended and queued again.
    pub(in super::super) requeue: BTreeSet<ClaimId>,
    /// Claims ended for others, in order, and whether each is queued again.
    pub(in super::super) ended: Vec<(ClaimId, bool)>,
    /// Claims that died during a lever.
    pub(in super::super) lost: BTreeSet<ClaimId>,
    /// Ending a claim takes time as well.
    pub(in super::super) slow: bool,
    /// Bytes of claims that are only counted.
    counted: BTreeMap<ClaimId, Vec<(usize, Bytes)>>,
    seen: usize,
}

impl Bench {
    pub(in super::super) fn new(gpus: usize) -> Self {
        let mut w = World::new(&vec![24; gpus]);
        w.send(Event::Reclaim(ReclaimRules {
            spread: true,
            ..ReclaimRules::default()
        }));
        Self {
            w,
            underway: Vec::new(),
            bytes: BTreeMap::new(),
            failing: Vec::new(),
            movable: true,
            requeue: BTreeSet::new(),
            ended: Vec::new(),
            lost: BTreeSet::new(),
            slow: false,
            counted: BTreeMap::new(),
            seen: 0,
        }
    }

    /// All levers work on a claim, and it has been idle for long or not.
    pub(in super::super) fn idles(&mut self, id: u64, idle: bool) {
        let levers = Levers {
            park: Ok(()),
            movable: Ok(()),
            requeue: false,
            left_alone: false,
            idle,
        };
        let id = ClaimId(id);
        self.send(Event::Levers { id, levers });
    }

    /// Submits a claim of this user; it uses `gib` once granted.
    pub(in super::super) fn claim(
        &mut self,
        id: u64,
        milli: u32,
        uid: u32,
        class: Class,
        gib: u64,
    ) {
        let mut request = Request::from_gpus(Share::from_milli(milli), Share::ONE, class).unwrap();
        request.uid = uid;
        self.submit(id, request, gib);
    }

    pub(in super::super) fn submit(&mut self, id: u64, request: Request, gib: u64) {
        self.submit_for(id, request, gib, None);
    }

    /// The same, with this patience.
    pub(in super::super) fn submit_for(
        &mut self,
        id: u64,
        request: Request,
        gib: u64,
        patience: Option<Duration>,
    ) {
        self.bytes.insert(ClaimId(id), (Bytes::gib(gib), None));
        self.w.submit_request(id, request, patience);
        self.react();
    }

    pub(in super::super) fn send(&mut self, event: Event) {
        let mut counted = false;
        if let Event::Gone { id } = &event {
            self.bytes.remove(id);
            self.underway.retain(|(_, a)| subject(a) != Some(*id));
            self.w.used.retain(|(c, _), _| c != id);
            counted = self.counted.remove(id).is_some();
        }
        self.w.send(event);
        if counted {
            self.tell_what_is_used();
        }
        self.react();
    }

    /// A claim that is only counted uses what it asked for, as far as there is room.
    fn uses_what_is_left(&mut self, id: ClaimId, slices: &[Slice]) {
        self.bytes.remove(&id);
        let ledger = self.w.machine.ledger();
        let left = |s: &Slice| {
            let held = ledger.held().flat_map(|(_, slices)| slices);
            let caps = held.filter(|h| h.gpu == s.gpu).map(|h| h.mem_cap.0).sum();
            // `mem_taken` includes the room of claims that move there.
            let taken = Bytes(caps).max(ledger.mem_taken(s.gpu));
            let all = ledger.gpus()[s.gpu].allocatable().unwrap_or_default();
            (s.gpu, all.saturating_sub(taken).min(s.mem))
        };
        self.counted.insert(id, slices.iter().map(left).collect());
        self.tell_what_is_used();
    }

    fn tell_what_is_used(&mut self) {
        let mut gpus = self.w.machine.ledger().gpus().to_vec();
        for (g, facts) in gpus.iter_mut().enumerate() {
            let here = self.counted.values().flatten().filter(|(at, _)| *at == g);
            facts.unclaimed = Bytes(here.map(|(_, bytes)| bytes.0).sum());
        }
        self.w.send(Event::Gpus(gpus));
    }

    /// Carries out the machine's actions.
    fn react(&mut self) {
        while self.seen < self.w.log.len() {
            let action = self.w.log[self.seen].clone();
            self.seen += 1;
            match &action {
                Action::Grant {
                    id,
                    slices,
                    counted: true,
                    ..
                } => self.uses_what_is_left(*id, slices),
                Action::Grant { id, slices, .. } => {
                    // A part of the room that others left is less than the same part of a GPU.
                    let gpus = self.w.machine.ledger().gpus();
                    let left = slices.iter();
                    let left = left.filter(|s| gpus[s.gpu].unclaimed > Bytes::ZERO);
                    let least = left.map(|s| s.mem).min();
                    if let (Some((bytes, _)), Some(mem)) = (self.bytes.get_mut(id), least) {
                        *bytes = (*bytes).min(mem);
                    }
                    let gpus: Vec<usize> = slices.iter().map(|s| s.gpu).collect();
                    self.place(*id, gpus);
                    let able = |yes: bool| if yes { Ok(()) } else { Err("no".to_owned()) };
                    let levers = Levers {
                        park: Ok(()),
                        movable: able(self.movable),
                        requeue: self.requeue.contains(id),
                        left_alone: false,
                        idle: false,
                    };
                    self.w.send(Event::Levers { id: *id, levers });
                }
                Action::Park { .. } | Action::Unpark { .. } | Action::Move { .. } => {
                    self.underway.push((self.w.now + s(2), action));
                }
                Action::Kill { .. } | Action::Requeue { .. } if self.slow => {
                    self.underway.push((self.w.now + s(2), action));
                }
                Action::Kill { .. } | Action::Requeue { .. } => self.end(&action),
                Action::LeaseOver { id } => {
                    let id = *id;
                    self.send(Event::Gone { id });
                }
                _ => {}
            }
        }
    }

    pub(in super::super) fn end(&mut self, action: &Action) {
        if let Some(id) = subject(action) {
            let again = matches!(action, Action::Requeue { .. });
            self.ended.push((id, again));
            self.send(Event::Gone { id });
        }
    }

    /// Puts the bytes of a claim on these GPUs.
    pub(in super::super) fn place(&mut self, id: ClaimId, gpus: Vec<usize>) {
        self.w.used.retain(|(c, _), _| *c != id);
        if let Some((bytes, at)) = self.bytes.get_mut(&id) {
            for g in &gpus {
                self.w.used.insert((id, *g), *bytes);
            }
            *at = Some(gpus);
        }
    }

    /// Answers levers that are done by now.
    fn answer(&mut self) {
        let (done, still) = std::mem::take(&mut self.underway)
            .into_iter()
            .partition(|(at, _)| *at <= self.w.now);
        self.underway = still;
        for (_, action) in done {
            let id = subject(&action).unwrap();
            if !self.bytes.contains_key(&id) {
                continue;
            }
            if matches!(action, Action::Kill { .. } | Action::Requeue { .. }) {
                self.end(&action);
                continue;
            }
            if let Some(failure) = self.failing.pop() {
                let why = String::new();
                self.send(Event::LeverFailed { id, failure, why });
                if failure == Failure::Lost {
                    self.lost.insert(id);
                    self.send(Event::Gone { id });
                }
                continue;
            }
            match action {
                Action::Park { .. } => {
                    let (host, at) = self.bytes.get_mut(&id).expect("it lives");
                    assert!(at.take().is_some(), "{id} was on a GPU");
                    let host = *host;
                    self.w.used.retain(|(c, _), _| *c != id);
                    self.send(Event::Parked { id, host });
                }
                Action::Unpark { to, .. } => {
                    assert!(self.bytes[&id].1.is_none(), "{id} was in the host");
                    self.place(id, to.iter().map(|s| s.gpu).collect());
                    self.send(Event::Unparked { id });
                }
                Action::Move { to, .. } => {
                    assert!(self.bytes[&id].1.is_some(), "{id} was on a GPU");
                    self.place(id, to.iter().map(|s| s.gpu).collect());
                    self.send(Event::Moved { id });
                }
                _ => {}
            }
        }
    }

    /// Lets time pass in steps of a second.
    pub(in super::super) fn pass(&mut self, time: Duration) {
        let end = self.w.now + time;
        while self.w.now < end {
            self.w.now += s(1);
            self.answer();
            self.send(Event::Tick);
        }
    }

    pub(in super::super) fn at(&self, id: u64) -> Option<Vec<usize>> {
        let here = self.w.machine.holding(ClaimId(id))?;
        if here.phase != Phase::Granted {
            return None;
        }
        let gpus: Vec<usize> = here.at.iter().map(|s| s.gpu).collect();
        let (_, truth) = &self.bytes[&ClaimId(id)];
        assert_eq!(
            truth.as_ref(),
            Some(&gpus),
            "c{id} is where the machine says"
        );
        Some(gpus)
    }

    pub(super) fn parked(&self) -> Vec<u64> {
        let parked = self.w.machine.holdings().into_iter();
        let parked = parked.filter(|(_, h)| matches!(h.phase, Phase::Offloaded(_)));
        parked.map(|(id, _)| id.0).collect()
    }

    fn announced(&self) -> Vec<(u64, Lever)> {
        let told = self.w.log.iter().filter_map(|a| match a {
            Action::Announce { id, lever, .. } => Some((id.0, *lever)),
            _ => None,
        });
        told.collect()
    }
}

pub(in super::super) fn subject(action: &Action) -> Option<ClaimId> {
    match action {
        Action::Park { id, .. }
        | Action::Unpark { id, .. }
        | Action::Move { id, .. }
        | Action::Requeue { id, .. }
        | Action::Kill { id, .. } => Some(*id),
        _ => None,
    }
}

const NOTEBOOK: Class = Class::Interactive;

#[test]
fn two_notebooks_are_spread_and_one_moves_beside_the_other_when_a_whole_gpu_is_claimed() {
    for (milli, moved) in [(1000, true), (600, true), (500, false)] {
        let mut b = Bench::new(2);
        b.claim(1, 500, 1, NOTEBOOK, 8);
        b.claim(2, 500, 2, NOTEBOOK, 6);
        assert_eq!((b.at(1), b.at(2)), (Some(vec![0]), Some(vec![1])), "spread");
        b.pass(s(100));
        b.claim(3, milli, 3, Class::Batch, 10);
        if !moved {
            assert!(b.at(3).is_some(), "it fits beside either");
            continue;
        }
        assert_eq!(b.at(3), None);
        assert_eq!(
            b.announced(),
            [(2, Lever::Move)],
            "the one with less to carry"
        );
        assert_eq!(b.w.machine.expected_start(ClaimId(3)), Some(s(130)));
        b.pass(s(29));
        assert_eq!(b.underway.len(), 0, "not before the countdown is over");
        b.pass(s(4));
        assert_eq!(
            (b.at(1), b.at(2), b.at(3)),
            (Some(vec![0]), Some(vec![0]), Some(vec![1]))
        );
        // After it has ended, the bursts return after a while.
        b.send(Event::Gone { id: ClaimId(3) });
        b.pass(s(59));
        assert_eq!(b.announced().len(), 1);
        b.pass(s(40));
        assert_eq!(b.announced().len(), 2, "told again");
        assert!(b.at(1) != b.at(2), "spread again");
    }
}

#[test]
fn bursts_return_though_the_time_of_day_and_rules_are_told_again_and_again() {
    let mut b = Bench::new(2);
    b.claim(1, 500, 1, NOTEBOOK, 8);
    b.claim(3, 1000, 3, Class::Batch, 10);
    b.claim(2, 500, 2, NOTEBOOK, 6);
    assert_eq!(
        b.at(1),
        b.at(2),
        "they share a GPU while the other is taken"
    );
    b.pass(s(30));
    b.send(Event::Gone { id: ClaimId(3) });
    // As in the service: the minute comes before a tick.
    for second in 0..95u16 {
        if second % 60 == 20 {
            b.send(Event::Minute(600 + second / 60));
        }
        if second == 40 {
            b.send(Event::HostRam(Bytes::gib(200)));
            let rules = b.w.machine.reclaim.rules.clone();
            b.send(Event::Reclaim(rules));
        }
        b.pass(s(1));
    }
    assert!(b.at(1) != b.at(2), "{:?} {:?}", b.at(1), b.at(2));
}

/// Two projects, of users 1 and 2, with a guarantee of two GPUs each.
pub(super) fn projects() -> Bench {
    let mut b = Bench::new(4);
    let party = |uid| Party::Project(format!("p{uid}"));
    let quota = |uid| Quota {
        party: party(uid),
        gpus: Some(Share::from_milli(2000)),
        weight_milli: None,
        max: None,
    };
    b.send(Event::Quotas(vec![quota(1), quota(2)]));
    for id in 1..=20 {
        let parties = vec![party(if id <= 10 { 1 } else { 2 })];
        b.send(Event::Parties {
            id: ClaimId(id),
            parties,
        });
    }
    b
}

#[test]
fn a_project_alone_has_all_gpus_and_gives_what_the_other_is_guaranteed() {
    let mut b = projects();
    for id in 1..=4 {
        b.claim(id, 1000, 1, Class::Batch, 10);
        assert!(b.at(id).is_some(), "borrowing is free");
    }
    b.pass(s(10));
    b.claim(11, 1000, 2, Class::Batch, 5);
    assert!(
        b.announced().is_empty(),
        "no claim gives before it has run for a minute"
    );
    b.pass(s(50));
    assert_eq!(b.announced().len(), 1, "as many as are needed");
    let (victim, lever) = b.announced()[0];
    assert!(victim > 2 && lever == Lever::Suspend, "{victim} {lever:?}");
    b.pass(s(12));
    assert_eq!(b.parked(), [victim]);
    assert!(b.at(11).is_some());
    b.claim(12, 1000, 2, Class::Batch, 5);
    b.pass(s(40));
    assert!(b.at(12).is_some());
    assert_eq!(b.parked(), [3, 4]);
    // No more is taken for it than it is guaranteed.
    b.claim(13, 1000, 2, Class::Batch, 5);
    b.pass(s(300));
    assert_eq!((b.parked(), b.at(13)), (vec![3, 4], None));
    b.send(Event::Gone { id: ClaimId(13) });
    b.send(Event::Gone { id: ClaimId(12) });
    b.pass(s(3));
    assert_eq!(b.parked().len(), 1, "it is back where there is room");
    b.send(Event::Gone { id: ClaimId(11) });
    b.pass(s(3));
    assert!((1..=4).all(|id| b.at(id).is_some()), "all resumed");
    assert_eq!(b.w.machine.host_taken(), Bytes::ZERO);
}

#[test]
fn a_small_claim_has_its_request_always_and_more_while_it_is_free() {
    let mut b = Bench::new(1);
    let mut request =
        Request::from_gpus(Share::from_milli(250), Share::from_milli(800), NOTEBOOK).unwrap();
    request.mem_limit = Some(Bytes::gib(18));
    b.submit(1, request, 4);
    let slice = |b: &Bench| b.w.machine.ledger().slices(ClaimId(1)).unwrap()[0].clone();
    assert_eq!(
        (slice(&b).mem_cap, slice(&b).sm_limit.milli()),
        (Bytes::gib(18), 800)
    );
    b.claim(2, 750, 2, Class::Batch, 10);
    assert_eq!(
        (slice(&b).mem_cap, slice(&b).sm.milli()),
        (Bytes::gib(6), 250)
    );
    b.send(Event::Gone { id: ClaimId(2) });
    assert_eq!(slice(&b).mem_cap, Bytes::gib(18));
}

#[test]
fn levers_that_fail_lead_to_the_next_and_not_to_a_loop() {
    for failure in [
        Failure::Refused,
        Failure::TimedOut,
        Failure::Busy,
        Failure::HostRam,
    ] {
        let mut b = projects();
        for id in 1..=4 {
            b.claim(id, 1000, 1, Class::Batch, 10);
        }
        b.pass(s(100));
        b.failing = vec![failure];
        b.claim(11, 1000, 2, Class::Batch, 5);
        b.pass(s(33));
        let tried = b.w.log.iter().filter_map(subject).collect::<Vec<_>>();
        assert_eq!(tried.len(), 1, "{failure:?}");
        b.pass(s(33));
        assert!(b.at(11).is_some(), "{failure:?}: the other borrower went");
        assert!(!b.parked().contains(&tried[0].0));
    }
}

#[test]
fn the_host_bounds_what_is_parked_and_nobody_is_ended_without_leave() {
    let mut b = projects();
    b.send(Event::HostRam(Bytes::gib(9)));
    for id in 1..=4 {
        b.claim(id, 1000, 1, Class::Batch, 10);
    }
    b.pass(s(100));
    b.claim(11, 1000, 2, Class::Batch, 5);
    b.pass(s(200));
    assert_eq!((b.parked(), b.at(11)), (vec![], None));
    let last = b.w.log.len();
    b.send(Event::Reclaim(ReclaimRules {
        kill: true,
        ..ReclaimRules::default()
    }));
    b.pass(s(40));
    let ended = |a: &Action| matches!(a, Action::Kill { .. });
    assert_eq!(b.w.log[last..].iter().filter(|a| ended(a)).count(), 1);
    assert!(b.at(11).is_some());
}

/// Its wait and the countdown end in the same second.
#[test]
fn nothing_is_taken_for_a_claim_that_gives_up_in_the_same_moment() {
    let mut b = Bench::new(1);
    b.claim(1, 700, 1, Class::Batch, 4);
    b.pass(s(600));
    let mut request = Request::from_gpus(Share::from_milli(500), Share::ONE, Class::Batch).unwrap();
    request.uid = 2;
    let countdown = b.w.machine.reclaim.rules.countdown;
    b.submit_for(2, request, 4, Some(countdown));
    b.pass(countdown + s(5));
    let count = |of: fn(&Action) -> bool| b.w.log.iter().filter(|a| of(a)).count();
    assert_eq!(count(|a| matches!(a, Action::Announce { .. })), 1);
    assert_eq!(count(|a| matches!(a, Action::Park { .. })), 0);
    assert_eq!(count(|a| matches!(a, Action::Retract { .. })), 1);
    assert_eq!(b.at(1), Some(vec![0]));
}

#[test]
fn a_plan_counts_what_earlier_ones_take_of_the_host() {
    let mut b = projects();
    b.send(Event::HostRam(Bytes::gib(14)));
    for id in 1..=4 {
        b.claim(id, 1000, 1, Class::Batch, 10);
    }
    b.pass(s(100));
    b.claim(11, 1000, 2, Class::Batch, 5);
    b.claim(12, 1000, 2, Class::Batch, 5);
    assert!(b.w.machine.plan_of(ClaimId(11)).is_some());
    assert_eq!(b.w.machine.plan_of(ClaimId(12)), None);
    assert_eq!(b.announced().len(), 1, "the host has room for one of them");
    let alone = b.w.machine.left_alone(b.w.now);
    let alone = alone.by(&b.w.machine, ClaimId(12));
    let full = |(_, why): &(ClaimId, Alone)| *why == Alone::NoHostRam(Bytes::gib(10));
    assert!(!alone.is_empty() && alone.iter().all(full), "{alone:?}");
    b.pass(s(100));
    assert!(b.at(11).is_some() && b.at(12).is_none());
}

#[test]
fn an_owner_keeps_what_was_announced_once() {
    let mut b = Bench::new(2);
    b.claim(1, 500, 1, NOTEBOOK, 8);
    b.claim(2, 500, 2, NOTEBOOK, 6);
    b.pass(s(100));
    b.claim(3, 1000, 3, Class::Batch, 10);
    b.pass(s(10));
    let keep = |b: &mut Bench, id| {
        b.send(Event::Wish {
            id: ClaimId(id),
            wish: Wish::Keep,
        });
    };
    keep(&mut b, 2);
    assert_eq!(
        b.announced(),
        [(2, Lever::Move), (1, Lever::Move)],
        "the other one goes"
    );
    assert!(b.w.log.contains(&Action::Retract {
        id: ClaimId(2),
        lever: Lever::Move
    }));
    b.pass(s(33));
    assert_eq!(
        (b.at(1), b.at(2), b.at(3)),
        (Some(vec![1]), Some(vec![1]), Some(vec![0]))
    );
}

#[test]
fn an_idle_notebook_is_detached_for_somebody_who_waits_and_for_nobody_else() {
    let mut b = Bench::new(1);
    b.claim(1, 600, 1, NOTEBOOK, 8);
    b.idles(1, true);
    b.pass(s(300));
    assert!(b.at(1).is_some());
    b.claim(2, 600, 1, Class::Batch, 8);
    b.pass(s(35));
    assert_eq!(b.parked(), [1]);
    assert!(b.at(2).is_some());
    let Some(is) = b.w.machine.claims.offloaded(ClaimId(1)) else {
        panic!("parked");
    };
    assert_eq!((is.by, is.frozen, is.back), (ParkedBy::Idle, false, false));
    b.send(Event::Wanted { id: ClaimId(1) });
    b.send(Event::Gone { id: ClaimId(2) });
    b.pass(s(3));
    assert!(b.at(1).is_some());
}

#[test]
fn a_borrower_gives_sms_before_it_is_suspended_and_gets_them_back() {
    let mut b = Bench::new(1);
    let sized = |uid, sm| {
        let mut r = Request::from_gpus(Share::from_milli(sm), Share::ONE, Class::Batch).unwrap();
        r.mem = Some(Bytes::gib(8));
        r.uid = uid;
        r
    };
    b.submit(1, sized(1, 800), 4);
    b.pass(s(100));
    b.submit(2, sized(2, 400), 4);
    assert_eq!(b.announced(), [(1, Lever::Share)]);
    b.pass(s(31));
    let sm = |b: &Bench| {
        b.w.machine.ledger().slices(ClaimId(1)).unwrap()[0]
            .sm
            .milli()
    };
    assert_eq!((sm(&b), b.at(2)), (600, Some(vec![0])));
    b.send(Event::Gone { id: ClaimId(2) });
    b.pass(s(1));
    assert_eq!(sm(&b), 800);
}

#[test]
fn a_borrower_that_can_only_be_requeued_is_ended_for_the_entitled() {
    let mut b = projects();
    for id in 1..=4 {
        b.claim(id, 1000, 1, Class::Batch, 4);
    }
    let fixed = |requeue| Levers {
        park: Err("managed memory".to_owned()),
        movable: Err("managed memory".to_owned()),
        requeue,
        left_alone: false,
        idle: false,
    };
    for id in 1..=4 {
        let levers = fixed(false);
        b.send(Event::Levers {
            id: ClaimId(id),
            levers,
        });
    }
    b.pass(s(300));
    b.claim(11, 1000, 2, Class::Batch, 4);
    assert_eq!(b.announced(), [], "nothing can be done");
    // A claim that is left alone is safe from all levers.
    let levers = Levers {
        left_alone: true,
        ..fixed(true)
    };
    b.send(Event::Levers {
        id: ClaimId(4),
        levers,
    });
    assert_eq!(b.announced(), []);
    // Later it turns out that levers may be used on it.
    let levers = fixed(true);
    b.send(Event::Levers {
        id: ClaimId(4),
        levers,
    });
    assert_eq!(b.announced(), [(4, Lever::Requeue)]);
}

#[test]
fn a_parked_claim_that_turns_out_to_be_movable_comes_back_elsewhere() {
    let mut b = Bench::new(2);
    b.movable = false;
    b.claim(1, 1000, 1, Class::Batch, 10);
    let own = b.at(1).expect("it runs")[0];
    let id = ClaimId(1);
    b.send(Event::Wish {
        id,
        wish: Wish::Offload,
    });
    b.pass(s(3));
    let mut request = Request::from_gpus(Share::ONE, Share::ONE, Class::Batch).unwrap();
    request.uid = 2;
    request.only_gpus = vec![u32::try_from(own).unwrap()];
    b.submit(2, request, 1);
    assert_eq!(b.at(2), Some(vec![own]));
    b.send(Event::Wish {
        id,
        wish: Wish::Restore,
    });
    b.pass(s(3));
    assert_eq!(b.at(1), None, "its own GPU is another's");
    b.idles(1, false);
    b.pass(s(3));
    assert_eq!(b.at(1), Some(vec![1 - own]));
}
