//! When waiting claims start: a copy of the machine goes on as this one would if nobody else asked, with those who run
//! ending as earlier runs of the same programs did, early in one copy and late in another. What is further ahead than the
//! copies can decide is added without decisions: room goes to those who wait in their order, and nothing is taken.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use super::claims::PhaseKind;
use super::lever::{Lever, Levers};
use super::order::Round;
use super::{Action, Event, Machine, Now};
use crate::claim::ClaimId;
use crate::ledger::Slice;
use crate::place;
use crate::units::Bytes;

/// Ends are as early as in this part of earlier runs ...
const EARLY: f64 = 0.02;
/// ... and as late as in this one.
const LATE: f64 = 0.75;
/// Those who will come make a wait longer by this, about.
const LATER: f64 = 1.28;
/// A start is certain where others end before it with less than this probability.
const HARDLY: f64 = 0.01;
/// What is not certain is not said more closely than this.
const SLACK: Duration = Duration::from_secs(10);
/// Decisions of all copies at most, and claims times decisions: many decide for longer.
const DECISIONS: usize = 300;
const WORK: usize = 2000;
/// A copy decides so often in any case.
const LEAST: usize = 4;
/// The further ahead the less often a copy decides: after this part of the time that has passed in it, and no sooner than
/// this.
const COARSE: (u32, Duration) = (16, Duration::from_secs(2));
/// The same where ends are guessed.
const ROUGH: (u32, Duration) = (3, Duration::from_secs(10));

/// After its last decision a copy goes on for so many ends, with so many of those who wait.
const ENDS: usize = 64;
const QUEUED: usize = 256;

/// What a claim waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Others make room, as announced.
    Countdown,
    /// This claim has run for its minimum run time, and makes room.
    MinRun(ClaimId),
    /// The time limit of this claim.
    Limit(ClaimId),
    /// This claim ends, by what earlier runs took.
    Ends(ClaimId),
    /// It has waited so long that all make room for a while.
    Turn,
}

/// When a waiting claim starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Not before.
    pub low: Now,
    /// Mostly by then; `None` where nobody knows.
    pub high: Option<Now>,
    /// Both are close to each other, whatever others do.
    pub certain: bool,
    /// What it waits for.
    pub until: Until,
}

/// A claim's memory on its way takes so long: seconds, and bytes per second.
const CARRY: (f64, f64) = (2.0, 4.0e9);

/// How long it takes to bring memory of a GPU to the host, or back.
#[must_use]
pub fn carry(mem: Bytes) -> Duration {
    Duration::from_secs_f64(CARRY.0 + mem.0 as f64 / CARRY.1)
}

/// A copy that goes on.
struct Ahead {
    machine: Machine,
    now: Now,
    /// How claims end.
    ends: Option<f64>,
    /// So often it may still decide.
    left: usize,
    /// What is being done, and when it is done.
    doing: BinaryHeap<Reverse<(Now, ClaimId, Doing)>>,
    /// Since when claims run here that end, and how much longer they do.
    runs: BTreeMap<ClaimId, (Now, Duration)>,
    charges: BTreeMap<(ClaimId, usize), Bytes>,
    /// The claim that ended last, and whether by a time limit.
    ended: Option<(ClaimId, bool)>,
    /// When plans were made.
    planned: BTreeMap<ClaimId, (Now, Until)>,
    starts: BTreeMap<ClaimId, (Now, Until)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    Park,
    Unpark,
    Move,
}

impl Machine {
    /// When these of the waiting claims start, if nobody else asks for anything. Those of which that cannot be said are
    /// left out.
    #[must_use]
    pub fn expected_starts(
        &self,
        now: Now,
        of: &BTreeSet<ClaimId>,
        charges: &[(ClaimId, usize, Bytes)],
    ) -> BTreeMap<ClaimId, Expected> {
        let queue = self.queue().map(|(id, _)| id);
        let waits: BTreeSet<ClaimId> = queue.filter(|id| of.contains(id)).collect();
        if waits.is_empty() {
            return BTreeMap::new();
        }
        // Where nobody's end is known there is one future, not three.
        let held = self.ledger.held().map(|(id, _)| id);
        let known = held
            .chain(self.queue().map(|(id, _)| id))
            .any(|id| self.run_times.contains_key(&id));
        let claims = self.claims.iter().len() + self.queue.len();
        let mut left = DECISIONS.min(WORK / claims.max(1));
        let mut scene = |ends: Option<f64>, scenes: usize| {
            let mut ahead = Ahead::new(self, now, charges, ends);
            let most = (left / scenes).max(LEAST);
            ahead.left = most;
            ahead.go_on(&waits);
            left = left.saturating_sub(most - ahead.left);
            ahead
        };
        let (sure, early, late) = match known {
            true => {
                let (sure, early) = (scene(None, 3).starts, scene(Some(EARLY), 2));
                let mut late = scene(Some(LATE), 1);
                late.roll_on(&waits);
                (sure, Some(early), late.starts)
            }
            false => (scene(None, 1).starts, None, BTreeMap::new()),
        };
        // A claim that does not start in the copy in which claims end early starts no sooner than it was gone on with.
        let lowest = |id: &ClaimId| {
            let early = early.as_ref()?;
            let starts = early.starts.get(id).copied();
            starts.or_else(|| Some((early.now, late.get(id)?.1)))
        };
        let expected = |id: ClaimId| {
            let sure = sure.get(&id).copied();
            if let Some((at, until)) = sure
                && self.ends_before(now, at) <= HARDLY
            {
                return Some(Expected {
                    low: at,
                    high: Some(at),
                    certain: true,
                    until,
                });
            }
            let (low, until) = lowest(&id).or(sure)?;
            let latest = [late.get(&id).copied(), sure];
            let high = latest.into_iter().flatten().map(|(at, _)| at).min();
            let later = |high: Now| high.max(low).saturating_sub(now).mul_f64(LATER);
            Some(Expected {
                low: low.saturating_sub(SLACK).max(now),
                high: high.map(|high| now.saturating_add(later(high)).saturating_add(SLACK)),
                certain: false,
                until,
            })
        };
        let all = waits.iter().filter_map(|id| Some((*id, expected(*id)?)));
        all.collect()
    }

    /// Whether room is kept for a waiting claim until others end.
    #[must_use]
    pub fn is_reserved(&self, id: ClaimId) -> bool {
        let waiting = self.queue.iter().find(|w| w.asks_for(id));
        waiting.is_some_and(|w| !w.blocks.is_empty()) && self.plan_of(id).is_none()
    }

    /// At most how probable it is that one of those who hold ends by itself before then.
    fn ends_before(&self, now: Now, at: Now) -> f64 {
        let within = at.saturating_sub(now);
        let limit = |id| self.lease_end(id).is_some_and(|end| end <= at);
        let held = self
            .ledger
            .held()
            .map(|(id, _)| id)
            .filter(|id| !limit(*id));
        held.map(|id| {
            let ran = self.ran(id);
            // Of whatever goes on for a while half goes on for as long again.
            let alone = within.as_secs_f64() / (ran + within).as_secs_f64().max(1.0);
            let span = self.run_times.get(&id);
            span.map_or(alone, |span| span.ends_within(ran, within, alone))
        })
        .sum()
    }
}

impl Ahead {
    fn new(
        machine: &Machine,
        now: Now,
        charges: &[(ClaimId, usize, Bytes)],
        ends: Option<f64>,
    ) -> Self {
        let mut ahead = Self {
            machine: machine.clone(),
            now,
            ends,
            left: LEAST,
            doing: BinaryHeap::new(),
            runs: BTreeMap::new(),
            charges: charges.iter().map(|(id, g, b)| ((*id, *g), *b)).collect(),
            ended: None,
            planned: BTreeMap::new(),
            starts: BTreeMap::new(),
        };
        // The copy gets no answers to what the original has asked.
        ahead.machine.measuring = 0;
        let held: Vec<ClaimId> = machine.ledger.held().map(|(id, _)| id).collect();
        held.into_iter().for_each(|id| ahead.run(id));
        for (id, phase) in machine.claims.moving() {
            let doing = match phase.kind() {
                PhaseKind::Offloading => Doing::Park,
                PhaseKind::Restoring => Doing::Unpark,
                _ => Doing::Move,
            };
            ahead.begin(id, doing);
        }
        ahead
    }

    fn go_on(&mut self, waits: &BTreeSet<ClaimId>) {
        let began = self.now;
        self.note_plans();
        while self.left > 0 && waits.iter().any(|id| !self.starts.contains_key(id)) {
            let (part, least) = if self.ends.is_some() { ROUGH } else { COARSE };
            let passed = self.now - began;
            let coarse = self.now + (passed / part).max(least.min(passed));
            let wake = self.machine.next_wake(self.now).map(|at| at.max(coarse));
            let done = self.doing.peek().map(|Reverse((at, ..))| *at);
            let ends = self.runs.values().map(|(since, left)| *since + *left);
            let next = [wake, done, ends.min()].into_iter().flatten().min();
            let Some(next) = next else { break };
            self.now = next.max(self.now);
            let mut events = Vec::new();
            let now = self.now;
            let is_done = |d: &Reverse<(Now, ClaimId, Doing)>| d.0.0 <= now;
            while self.doing.peek().is_some_and(is_done)
                && let Some(Reverse((_, id, doing))) = self.doing.pop()
            {
                events.push(self.done(id, doing));
            }
            let over = self.runs.iter();
            let over = over.filter(|(_, (since, left))| *since + *left <= self.now);
            let over: Vec<ClaimId> = over.map(|(id, _)| *id).collect();
            for id in over {
                self.runs.remove(&id);
                self.ended = Some((id, false));
                events.push(Event::Gone { id });
            }
            events.push(Event::Tick);
            self.send(events);
        }
    }

    /// What it does not decide any more: whoever ends makes room for those who wait, in their order.
    fn roll_on(&mut self, waits: &BTreeSet<ClaimId>) {
        let mut ledger = std::mem::take(&mut self.machine.ledger);
        let queue = self
            .machine
            .queue()
            .map(|(id, request)| (id, request.clone()));
        let mut queue: Vec<_> = queue.take(QUEUED).collect();
        let runs = std::mem::take(&mut self.runs).into_iter();
        let mut ends: BinaryHeap<_> = runs
            .map(|(id, (since, left))| Reverse((since + left, id)))
            .collect();
        for _ in 0..ENDS {
            let open = waits.iter().any(|id| !self.starts.contains_key(id));
            let Some(Reverse((at, ended))) = ends.pop().filter(|_| open) else {
                break;
            };
            self.now = at;
            self.ended = Some((ended, false));
            ledger.remove(ended);
            let mut round = Round::new(&ledger);
            queue.retain(|(id, request)| {
                let fits = round.may_fit(&ledger, request, &[]);
                let Some(slices) = fits
                    .then(|| place::best_fit(&ledger, request, &[]))
                    .flatten()
                else {
                    return true;
                };
                ledger.insert(*id, slices);
                round = Round::new(&ledger);
                self.started(*id);
                self.run(*id);
                ends.extend(
                    self.runs
                        .remove(id)
                        .map(|(since, left)| Reverse((since + left, *id))),
                );
                false
            });
        }
    }

    /// A claim runs from now on.
    fn run(&mut self, id: ClaimId) {
        let ran = self.machine.ran(id);
        let span = self.machine.run_times.get(&id);
        if let (Some(q), Some(span)) = (self.ends, span)
            && let Some(left) = span.left(ran, q)
        {
            self.runs.insert(id, (self.now, left));
        }
    }

    fn begin(&mut self, id: ClaimId, doing: Doing) {
        self.runs.remove(&id);
        let each = self.charges.iter().filter(|((of, _), _)| *of == id);
        let most = each.map(|(_, bytes)| *bytes).max().unwrap_or(Bytes::ZERO);
        let ways = if doing == Doing::Move { 2 } else { 1 };
        let at = self.now + carry(most) * ways;
        self.doing.push(Reverse((at, id, doing)));
    }

    fn done(&mut self, id: ClaimId, doing: Doing) -> Event {
        let each = self.charges.iter().filter(|((of, _), _)| *of == id);
        let host = each.fold(Bytes::ZERO, |sum, (_, bytes)| sum.saturating_add(*bytes));
        if doing != Doing::Park {
            self.run(id);
        }
        match doing {
            Doing::Park => Event::Parked { id, host },
            Doing::Unpark => Event::Unparked { id },
            Doing::Move => Event::Moved { id },
        }
    }

    /// All that happens at a moment, and one decision.
    fn send(&mut self, events: Vec<Event>) {
        let mut todo = VecDeque::from(events);
        loop {
            while let Some(event) = todo.pop_front() {
                for action in self.machine.step(self.now, event) {
                    todo.extend(self.react(action));
                }
            }
            // The pages are read once for all who have asked for that.
            if std::mem::take(&mut self.machine.measuring) == 0 {
                break;
            }
            self.left = self.left.saturating_sub(1);
            todo.push_back(Event::Measured(self.measured()));
        }
        self.note_plans();
    }

    fn measured(&self) -> Vec<(ClaimId, usize, Bytes)> {
        let charge = |id, s: &Slice| {
            let known = self.charges.get(&(id, s.gpu)).copied();
            (id, s.gpu, known.unwrap_or(s.mem))
        };
        let held = self.machine.ledger.held();
        held.flat_map(|(id, slices)| slices.iter().map(move |s| charge(id, s)))
            .collect()
    }

    fn note_plans(&mut self) {
        for plan in &self.machine.reclaim.plans {
            if let Some(id) = plan.waiter.filter(|id| !self.planned.contains_key(id)) {
                self.planned.insert(id, (self.now, self.machine.until(id)));
            }
        }
    }

    fn react(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Grant { id, slices, .. } => {
                self.started(id);
                for slice in slices {
                    self.charges.insert((id, slice.gpu), slice.mem);
                }
                self.run(id);
                // What can be done to it is not known: as much as to any other.
                let others = self.machine.claims.iter().map(|(_, g)| g);
                let able = others
                    .map(|g| &g.run.levers)
                    .find(|l| l.park.is_ok())
                    .cloned();
                let levers = able.map(|levers| Levers {
                    idle: false,
                    ..levers
                })?;
                return Some(Event::Levers { id, levers });
            }
            Action::Park { id, .. } => self.begin(id, Doing::Park),
            Action::Unpark { id, .. } => {
                self.started(id);
                self.begin(id, Doing::Unpark);
            }
            Action::Move { id, .. } => self.begin(id, Doing::Move),
            Action::LeaseOver { id } => {
                self.runs.remove(&id);
                self.ended = Some((id, true));
                return Some(Event::Gone { id });
            }
            Action::Kill { id, .. } | Action::Requeue { id, .. } => {
                self.runs.remove(&id);
                return Some(Event::Gone { id });
            }
            _ => {}
        }
        None
    }

    fn started(&mut self, id: ClaimId) {
        let planned = self.planned.get(&id).map(|(_, until)| *until);
        let ended = self.ended.map(|(id, limit)| match limit {
            true => Until::Limit(id),
            false => Until::Ends(id),
        });
        let until = planned.or(ended).unwrap_or(Until::Countdown);
        self.starts.entry(id).or_insert((self.now, until));
    }
}

impl Machine {
    /// What a claim for which room is being made has waited for.
    fn until(&self, id: ClaimId) -> Until {
        let now = self.past.at();
        let countdown = self.reclaim.rules.countdown;
        let waiting = self.queue.iter().find(|w| w.asks_for(id));
        if waiting.is_some_and(|w| w.due) {
            return Until::Turn;
        }
        let steps = self.plan_of(id).map_or(&[][..], |plan| &plan.steps);
        let taken = steps.iter().filter(|s| s.lever != Lever::Move);
        let granted = taken.filter_map(|s| Some((self.claims.get(s.id)?, s.id)));
        let last = granted.map(|(g, id)| (self.min_run_ends(g), id)).max();
        // It was asked for as soon as that was over when the countdown will be.
        let waited = |ends: Now| ends + Duration::from_secs(1) >= now + countdown;
        match last {
            Some((ends, id)) if waited(ends) => Until::MinRun(id),
            _ => Until::Countdown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reclaim::tests::{Bench, s};
    use super::super::tests::World;
    use super::*;
    use crate::claim::{Class, Request};
    use crate::predict::Span;
    use crate::units::Share;

    fn expected(w: &World, id: u64) -> Option<Expected> {
        let id = ClaimId(id);
        let charges: Vec<_> = w.used.iter().map(|((id, g), b)| (*id, *g, *b)).collect();
        let of = BTreeSet::from([id]);
        w.machine.expected_starts(w.now, &of, &charges).remove(&id)
    }

    #[test]
    fn a_claim_starts_when_the_runs_before_it_end_and_nobody_knows_of_one_that_is_longer() {
        let mut w = World::new(&[24]);
        w.submit(1, 800);
        w.submit(2, 500);
        assert_eq!(expected(&w, 2), None);
        let span = Span::of([100, 200, 300].map(s).to_vec()).unwrap();
        let id = ClaimId(1);
        w.send(Event::RunTime { id, span });
        let told = expected(&w, 2).expect("known");
        assert_eq!((told.until, told.certain), (Until::Ends(id), false));
        assert_eq!((told.low, told.high), (s(90), Some(s(394))));
        w.now = s(250);
        w.send(Event::Tick);
        let told = expected(&w, 2).expect("it may take as long as the longest");
        assert_eq!((told.low, told.high), (s(290), Some(s(324))));
        w.now = s(301);
        w.send(Event::Tick);
        assert_eq!(expected(&w, 2), None, "it takes longer than any did");
    }

    #[test]
    fn whoever_is_far_back_in_a_long_queue_is_told_as_well() {
        let mut w = World::new(&[24]);
        let span = Span::of([600, 700, 800].map(s).to_vec()).unwrap();
        for id in 1..=100 {
            let span = span.clone();
            let of = ClaimId(id);
            w.send(Event::RunTime { id: of, span });
            w.submit(id, 1000);
        }
        let told = expected(&w, 31).expect("thirty runs later");
        assert!(matches!(told.until, Until::Ends(_)), "{told:?}");
        assert!(told.low <= s(30 * 600), "{told:?}");
        let high = told.high.expect("by what earlier runs took");
        assert!((s(30 * 700)..s(60 * 800)).contains(&high), "{told:?}");
    }

    #[test]
    fn what_a_claim_waits_for_is_named() {
        let mut b = Bench::new(1);
        b.claim(1, 1000, 1, Class::Batch, 10);
        b.pass(s(5));
        b.claim(2, 500, 2, Class::Batch, 4);
        let told = expected(&b.w, 2).expect("known");
        assert_eq!(told.until, Until::MinRun(ClaimId(1)));
        b.pass(s(35));
        let announced = expected(&b.w, 2).expect("known");
        assert_eq!(announced.until, Until::Countdown);
        while b.w.granted(2).is_none() && b.w.now < s(200) {
            b.pass(s(1));
        }
        for told in [told, announced] {
            assert!(told.low <= b.w.now, "{told:?} at {:?}", b.w.now);
            assert!(told.high.is_some_and(|high| b.w.now <= high), "{told:?}");
        }
    }

    #[test]
    fn a_time_limit_is_named_and_what_runs_for_long_makes_it_certain() {
        let mut w = World::new(&[24]);
        let mut limited = Request::anybody(Share::ONE, 0);
        limited.lease = Some(s(90_000));
        w.submit_request(1, limited, None);
        w.submit(2, 500);
        w.now = s(89_900);
        w.send(Event::Tick);
        let told = expected(&w, 2).expect("known");
        let at = s(90_000);
        assert_eq!((told.until, told.certain), (Until::Limit(ClaimId(1)), true));
        assert_eq!((told.low, told.high), (at, Some(at)));
    }
}
