//! Predicts when waiting claims start. Copies of the machine run ahead as if no new claims came. In one copy running
//! claims end as early, in another as late, as earlier runs of the same programs did. Beyond the decisions that the
//! copies may make, room goes to waiting claims in their order, and no levers are used.

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

/// Quantiles of earlier runs at which claims end, in the early copy ...
const EARLY: f64 = 0.02;
/// ... and in the late one.
const LATE: f64 = 0.75;
/// Factor for claims that will still arrive, an estimate.
const LATER: f64 = 1.28;
/// A start is certain if another claim ends before it with less than this probability.
const HARDLY: f64 = 0.01;
/// Margin around a start that is not certain.
const SLACK: Duration = Duration::from_secs(10);
/// Limit on decisions of all copies, and on claims times decisions: more claims make each decision slower.
const DECISIONS: usize = 300;
const WORK: usize = 2000;
/// Minimum number of decisions of each copy.
const LEAST: usize = 4;
/// A copy decides less often the further ahead it is: the interval is the time passed in it divided by this, and at
/// least this long.
const COARSE: (u32, Duration) = (16, Duration::from_secs(2));
/// The same for a copy with guessed ends.
const ROUGH: (u32, Duration) = (3, Duration::from_secs(10));

/// After its last decision a copy continues for this many ends, with this many waiting claims.
const ENDS: usize = 64;
const QUEUED: usize = 256;

/// What a claim waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Announced levers make room.
    Countdown,
    /// This claim reaches its minimum run time and makes room.
    MinRun(ClaimId),
    /// The time limit of this claim.
    Limit(ClaimId),
    /// This claim ends, judging by earlier runs.
    Ends(ClaimId),
    /// It has waited so long that every claim makes room for a while.
    Turn,
}

/// Predicted start of a waiting claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Earliest start.
    pub low: Now,
    /// Likely latest start; `None` if unknown.
    pub high: Option<Now>,
    /// The start is at `low`, whatever other claims do.
    pub certain: bool,
    /// What it waits for.
    pub until: Until,
}

/// Time to copy a claim's memory: seconds, and bytes per second.
const CARRY: (f64, f64) = (2.0, 4.0e9);

/// Time to copy a GPU's memory to the host or back.
#[must_use]
pub fn carry(mem: Bytes) -> Duration {
    Duration::from_secs_f64(CARRY.0 + mem.0 as f64 / CARRY.1)
}

/// A copy that runs ahead.
struct Ahead {
    machine: Machine,
    now: Now,
    /// Quantile of earlier runs at which claims end; `None` if only time limits count.
    ends: Option<f64>,
    /// Number of decisions left.
    left: usize,
    /// Levers in progress, and when they are done.
    doing: BinaryHeap<Reverse<(Now, ClaimId, Doing)>>,
    /// Claims that will end here: start, and remaining time from then.
    runs: BTreeMap<ClaimId, (Now, Duration)>,
    charges: BTreeMap<(ClaimId, usize), Bytes>,
    /// The claim that ended last, and whether by a time limit.
    ended: Option<(ClaimId, bool)>,
    /// Time and cause of each plan.
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
    /// Predicted starts of these waiting claims, if no new claims come. Claims without a prediction are left out.
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
        // If no claim's end is known, one copy is enough.
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
        // A claim that does not start in the early copy starts no sooner than where that copy stopped.
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

    /// Upper bound of the probability that a running claim ends by itself before then.
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
            // Half of all runs of a given age last as long again.
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
        // The copy gets no answers to requests of the original.
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
        self.note_plans(began);
        while self.left > 0 && waits.iter().any(|id| !self.starts.contains_key(id)) {
            let (part, least) = if self.ends.is_some() { ROUGH } else { COARSE };
            let passed = self.now - began;
            let coarse = self.now + (passed / part).max(least.min(passed));
            let wake = self.machine.next_wake(self.now).map(|at| at.max(coarse));
            let done = self.doing.peek().map(|Reverse((at, ..))| *at);
            let ends = self.runs.values().map(|(since, left)| *since + *left);
            let next = [wake, done, ends.min()].into_iter().flatten().min();
            let Some(next) = next else { break };
            let before = self.now;
            self.now = next.max(before);
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
            self.send(events, before);
        }
    }

    /// Continues without decisions: an ending claim makes room for waiting claims, in their order.
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

    /// All events of one moment, and one decision; the decision before that was at `before`.
    fn send(&mut self, events: Vec<Event>, before: Now) {
        let mut todo = VecDeque::from(events);
        loop {
            while let Some(event) = todo.pop_front() {
                for action in self.machine.step(self.now, event) {
                    todo.extend(self.react(action));
                }
            }
            // One reading of the pages answers all requests.
            if std::mem::take(&mut self.machine.measuring) == 0 {
                break;
            }
            self.left = self.left.saturating_sub(1);
            todo.push_back(Event::Measured(self.measured()));
        }
        self.note_plans(before);
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

    fn note_plans(&mut self, before: Now) {
        for plan in &self.machine.reclaim.plans {
            if let Some(id) = plan.waiter.filter(|id| !self.planned.contains_key(id)) {
                self.planned
                    .insert(id, (self.now, self.machine.until(id, before)));
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
                // What works on it is unknown: assume what works on the others.
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
    /// What a claim with a plan has waited for, if it had none `before`.
    fn until(&self, id: ClaimId, before: Now) -> Until {
        let countdown = self.reclaim.rules.countdown;
        let waiting = self.queue.iter().find(|w| w.asks_for(id));
        if waiting.is_some_and(|w| w.due) {
            return Until::Turn;
        }
        let steps = self.plan_of(id).map_or(&[][..], |plan| &plan.steps);
        let taken = steps.iter().filter(|s| s.lever != Lever::Move);
        let granted = taken.filter_map(|s| Some((self.claims.get(s.id)?, s.id)));
        let last = granted.map(|(g, id)| (self.min_run_ends(g), id)).max();
        match last {
            // A plan is possible from one countdown before the end of the minimum run time.
            Some((ends, id)) if ends > before + countdown => Until::MinRun(id),
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
        b.pass(s(15));
        let later = expected(&b.w, 2).expect("known");
        assert_eq!(later.until, Until::MinRun(ClaimId(1)));
        b.pass(s(20));
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
