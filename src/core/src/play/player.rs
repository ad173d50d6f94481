//! Plays lists into the live machine: sends the events that the service sends, and answers actions as the service does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::carry_s;
use super::figures::{Outcome, Played};
use super::list::Entry;
use crate::claim::{ClaimId, Request};
use crate::class::{Classes, DAY};
use crate::ledger::{GpuFacts, Held, Ledger, Sharing, Slice};
use crate::machine::lever::{Failure, Levers, Wish};
use crate::machine::{Action, Event, Machine, Now, Obstacle, ReclaimRules};
use crate::place;
use crate::predict::{RUNS, Span, duration};
use crate::quota::{Party, Quota};
use crate::size::Size;
use crate::units::{Bytes, Share};

/// The simulated machine and the settings of the service.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of identical GPUs.
    pub gpus: usize,
    /// Memory of each GPU that claims can divide.
    pub mem: Bytes,
    /// As many of the GPUs are divided (MIG), each into these instances.
    pub divided: Vec<Vec<Sharing>>,
    /// Number of users with equal guarantees; 0 for no guarantees.
    pub guaranteed: usize,
    /// Host memory for offloaded claims.
    pub host: Bytes,
    /// Claims can be offloaded.
    pub offload: bool,
    /// Claims can be moved to other GPUs.
    pub moves: bool,
    /// One in this many offloads and moves fails; 0 for none.
    pub faults: u32,
    pub rules: ReclaimRules,
    pub classes: Classes,
    /// Minute of the day at which the list begins.
    pub minute: u16,
    /// How long before the end of a time limit its owner is warned.
    pub warning: Duration,
    /// Interval of polling, in addition to the wake-ups that the machine asks for; zero for none.
    pub tick: Duration,
    /// Query when waiting claims will start.
    pub asks: bool,
}

impl Default for Setup {
    /// Default settings of the service, on 8 GPUs of 24 GiB where every claim can be offloaded and moved.
    fn default() -> Self {
        Self {
            gpus: 8,
            mem: Bytes::gib(24),
            divided: Vec::new(),
            guaranteed: 0,
            host: Bytes(u64::MAX),
            offload: true,
            moves: true,
            faults: 0,
            rules: ReclaimRules {
                spread: true,
                ..ReclaimRules::default()
            },
            classes: Classes::default(),
            minute: 12 * 60,
            warning: Duration::from_secs(600),
            tick: Duration::ZERO,
            asks: false,
        }
    }
}

impl Setup {
    /// A claim within its owner's guarantee should start within a minimum run, a countdown and two offloads.
    pub(super) fn in_time(&self) -> Duration {
        LEAST_RUN + self.rules.countdown + secs(2.0 * carry_s(self.mem))
    }
}

/// Plays `list` (in order of arrival) into the live machine.
#[must_use]
pub fn play(list: &[Entry], setup: &Setup) -> Played {
    watched(list, setup, &mut |_, _, _| {})
}

/// Like [`play`], and passes each event with its time and the machine's actions to `see`.
pub fn watched(
    list: &[Entry],
    setup: &Setup,
    see: &mut dyn FnMut(Now, &Event, &[Action]),
) -> Played {
    let mut player = Player::new(list, setup, see);
    player.run();
    player.played()
}

/// Minimum run time of each class.
const LEAST_RUN: Duration = Duration::from_secs(60);

/// State of a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// Not submitted yet, waiting, or offloaded.
    Out,
    /// Running since this time, at this speed.
    Runs(Now, f64),
    /// Moving between GPUs or to or from the host, since this time.
    Still(Now),
    /// It has ended.
    Over,
}

/// One claim of the list.
#[derive(Clone, Debug)]
struct Run {
    at: At,
    left_s: f64,
    /// When its last run stopped, while it does not run.
    out_since: Option<Now>,
    /// Since when it has been waiting within its owner's guarantee, before its first run.
    guaranteed_since: Option<Now>,
    began: bool,
    /// Deadline for a claim of the whole machine, and the claims that held the machine.
    whole: Option<(Now, Vec<ClaimId>)>,
    /// Invalidates scheduled events with an older number.
    turn: u32,
    outcome: Outcome,
}

/// Scheduled events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A claim has reached its run time.
    Ends,
    /// An action on a claim is done.
    Done(Doing),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    Park,
    Unpark,
    Move,
}

struct Player<'a> {
    list: &'a [Entry],
    setup: &'a Setup,
    see: &'a mut dyn FnMut(Now, &Event, &[Action]),
    machine: Machine,
    now: Now,
    /// Arrival of the last claim in the list.
    last: Now,
    runs: Vec<Run>,
    due: BinaryHeap<Reverse<(Now, Due, usize, u32)>>,
    /// Number of suspensions, moves and restores.
    pulled: u32,
    /// Run times of ended claims, newest first: by user and size, and by user and number of GPUs.
    ended: BTreeMap<(usize, u32, Option<u32>), VecDeque<Duration>>,
    minute: u16,
    useful_s: f64,
    kept_s: f64,
    failed: u32,
}

/// [`Entry::after`] must be below this.
const FOLLOWS: usize = 8;

fn secs(s: f64) -> Duration {
    Duration::try_from_secs_f64(s.max(0.0)).unwrap_or(Duration::MAX)
}

fn id_of(index: usize) -> ClaimId {
    ClaimId(index as u64 + 1)
}

fn index_of(id: ClaimId) -> usize {
    usize::try_from(id.0.saturating_sub(1)).unwrap_or(usize::MAX)
}

/// The part of a GPU that a GPU of the ledger is: less than one for an instance.
fn of_a_gpu(ledger: &Ledger, g: usize) -> f64 {
    ledger.gpus()[g].of_a_gpu().as_f64()
}

fn party(user: usize) -> Party {
    Party::User(format!("user{user}"))
}

impl<'a> Player<'a> {
    fn new(
        list: &'a [Entry],
        setup: &'a Setup,
        see: &'a mut dyn FnMut(Now, &Event, &[Action]),
    ) -> Self {
        let run = |e: &Entry| Run {
            at: At::Out,
            left_s: e.run_s,
            out_since: None,
            guaranteed_since: None,
            began: false,
            whole: None,
            turn: 0,
            outcome: Outcome::default(),
        };
        Self {
            list,
            setup,
            see,
            machine: Machine::default(),
            now: Now::ZERO,
            last: secs(list.last().map_or(0.0, |e| e.arrival_s)),
            runs: list.iter().map(run).collect(),
            due: BinaryHeap::new(),
            pulled: 0,
            ended: BTreeMap::new(),
            minute: setup.minute,
            useful_s: 0.0,
            kept_s: 0.0,
            failed: 0,
        }
    }

    /// The initial events of a service.
    fn begin(&mut self) {
        let instances = self.setup.divided.iter().flatten().copied();
        let whole = self.setup.gpus.saturating_sub(self.setup.divided.len());
        let whole = std::iter::repeat_n(Sharing::Timeslice, whole);
        let facts = |(g, sharing)| GpuFacts {
            uuid: format!("GPU-{g}"),
            model: "GPU".to_owned(),
            usable: Some(match sharing {
                Sharing::Instance { mem, .. } => self.setup.mem.times(mem),
                _ => self.setup.mem,
            }),
            reserve: Bytes::ZERO,
            unclaimed: Bytes::ZERO,
            healthy: true,
            sharing,
        };
        let facts = whole.chain(instances).enumerate().map(facts).collect();
        let users = self.setup.guaranteed;
        let each = self.setup.gpus as f64 / users.max(1) as f64 * 1000.0;
        let quota = |user| Quota {
            party: party(user),
            gpus: Some(Share::from_milli(each as u32)),
            weight_milli: None,
            max: None,
        };
        self.send(Event::Classes(self.setup.classes.clone()));
        self.send(Event::Minute(self.setup.minute));
        self.send(Event::Gpus(facts));
        if users > 0 {
            self.send(Event::Quotas((0..users).map(quota).collect()));
        }
        self.send(Event::HostRam(self.setup.host));
        let rules = &self.setup.rules;
        self.send(Event::Reclaim(ReclaimRules {
            spread: rules.spread && self.setup.offload && self.setup.moves,
            ..rules.clone()
        }));
        self.send(Event::LeaseWarning(self.setup.warning));
    }

    fn run(&mut self) {
        self.begin();
        let mut next = 0;
        let mut idle_wakes = 0u32;
        loop {
            let arrival = self.list.get(next).map(|e| secs(e.arrival_s));
            let due = self.due.peek().map(|Reverse((at, ..))| *at);
            let wake = self.wake();
            let happens = [arrival, due].into_iter().flatten().min();
            let Some(at) = [happens, wake].into_iter().flatten().min() else {
                break;
            };
            // No future event can start the waiting claims.
            idle_wakes = if happens.is_none() { idle_wakes + 1 } else { 0 };
            if idle_wakes > 20_000 {
                break;
            }
            self.pass(at.max(self.now));
            self.tell_minute();
            while let Some(Reverse((at, due, index, turn))) = self.due.peek().copied()
                && at <= self.now
            {
                self.due.pop();
                if self.runs[index].turn == turn {
                    self.happens(index, due);
                }
            }
            while let Some(entry) = self
                .list
                .get(next)
                .filter(|e| secs(e.arrival_s) <= self.now)
            {
                if entry.after.is_none() {
                    self.submit(next);
                }
                next += 1;
            }
            if wake.is_some_and(|wake| wake <= self.now) {
                self.send(Event::Tick);
            }
            self.look_at_guarantees();
            self.look_at_whole();
        }
    }

    fn wake(&self) -> Option<Now> {
        let mut wake = self.machine.next_wake(self.now);
        let works = !self.due.is_empty() || self.machine.queue().next().is_some();
        if self.setup.tick > Duration::ZERO && works {
            let tick = self.now + self.setup.tick;
            wake = Some(wake.map_or(tick, |w| w.min(tick)));
        }
        if self.by_hours() && self.machine.queue().next().is_some() {
            let minute = Duration::from_secs((self.now.as_secs() / 60 + 1) * 60);
            wake = Some(wake.map_or(minute, |w| w.min(minute)));
        }
        wake
    }

    fn by_hours(&self) -> bool {
        crate::Class::ALL
            .iter()
            .any(|class| !self.setup.classes.of(*class).at.is_empty())
    }

    fn tell_minute(&mut self) {
        let minutes = u64::from(self.setup.minute) + self.now.as_secs() / 60;
        let minute = u16::try_from(minutes % u64::from(DAY)).unwrap_or(0);
        if minute != self.minute && self.by_hours() {
            self.minute = minute;
            self.send(Event::Minute(minute));
        }
    }

    /// Advances the time and counts what passes before the last arrival.
    fn pass(&mut self, to: Now) {
        let counted = to.min(self.last).saturating_sub(self.now.min(self.last));
        if !counted.is_zero() {
            self.kept_s += self.room_kept() * counted.as_secs_f64();
        }
        self.now = to;
    }

    /// GPUs that waiting claims could have now if nothing were reserved.
    fn room_kept(&self) -> f64 {
        let ledger = self.machine.ledger();
        let free = |g: usize| ledger.sm_free(g) > Share::ZERO && ledger.mem_free(g) > Bytes::ZERO;
        let mut queue = self.machine.queue().peekable();
        if queue.peek().is_none() || !(0..ledger.gpus().len()).any(free) {
            return 0.0;
        }
        let mut later = ledger.clone();
        let mut kept = 0.0;
        for (id, request) in queue.take(64) {
            let reason = self.machine.reason(id);
            if reason.is_some_and(crate::Reason::is_rule) {
                continue;
            }
            if let Some(slices) = place::best_fit(&later, request, &[]) {
                let sizes = slices.iter();
                let sizes = sizes.map(|s| s.sm.as_f64() * of_a_gpu(ledger, s.gpu));
                kept += sizes.sum::<f64>();
                later.insert(id, slices);
            }
        }
        kept
    }

    fn submit(&mut self, index: usize) {
        let entry = &self.list[index];
        self.runs[index].outcome.asked_s = self.now.as_secs_f64();
        let size = Size {
            gpus: entry.gpus,
            each: Share::from_milli(entry.milli),
        };
        let mut request = Request::of_size(size, Share::ONE, entry.class);
        request.uid = u32::try_from(entry.user).unwrap_or(u32::MAX);
        request.lease = entry.limit_s.map(secs);
        let id = id_of(index);
        let parties = vec![party(entry.user)];
        self.send(Event::Parties { id, parties });
        if let Some(span) = self.run_time(index) {
            self.send(Event::RunTime { id, span });
        }
        self.send(Event::Submit {
            id,
            request,
            patience: None,
        });
        if self.setup.asks && self.machine.queue().any(|(waits, _)| waits == id) {
            let of = std::iter::once(id).collect();
            let charges = self.measure();
            let starts = self.machine.expected_starts(self.now, &of, &charges);
            let secs = |at: Now| at.saturating_sub(self.now).as_secs_f64();
            let expected = starts.get(&id);
            let expected = expected.map(|e| (secs(e.low), e.high.map(secs), e.certain));
            self.runs[index].outcome.expected = expected;
        }
    }

    /// Run times of similar earlier claims of the list.
    fn run_time(&self, index: usize) -> Option<Span> {
        let Entry {
            user, gpus, milli, ..
        } = self.list[index];
        let of = |size| {
            let ended = self.ended.get(&(user, gpus, size));
            ended
                .map(|e| e.iter().copied().collect())
                .unwrap_or_default()
        };
        let (same, user): (Vec<_>, Vec<_>) = (of(Some(milli)), of(None));
        duration(&same, &user)
    }

    fn note_run_time(&mut self, index: usize) {
        let Entry {
            user,
            gpus,
            milli,
            run_s,
            ..
        } = self.list[index];
        for size in [Some(milli), None] {
            let ended = self.ended.entry((user, gpus, size)).or_default();
            ended.push_front(secs(run_s));
            ended.truncate(RUNS);
        }
    }

    /// Sends an event to the machine and carries out its actions.
    fn send(&mut self, event: Event) {
        let mut todo = VecDeque::from([event]);
        while let Some(event) = todo.pop_front() {
            let shown = event.clone();
            let actions = self.machine.step(self.now, event);
            (self.see)(self.now, &shown, &actions);
            for action in actions {
                todo.extend(self.react(action));
            }
        }
    }

    fn react(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Measure => return Some(Event::Measured(self.measure())),
            Action::Grant { id, slices, .. } => {
                let index = index_of(id);
                let whole_late_s = self.whole_late_s(index);
                let run = &mut self.runs[index];
                run.outcome.whole_late_s = whole_late_s;
                run.began = true;
                let granted_s = self.now.as_secs_f64() - run.outcome.asked_s;
                run.outcome.granted_s = Some(granted_s);
                let wait = run.guaranteed_since.take().map(|since| self.now - since);
                run.outcome.guaranteed_wait_s = wait.map(|wait| wait.as_secs_f64());
                let late = wait.is_some_and(|wait| wait > self.setup.in_time());
                let obstacle = run.outcome.obstacle.unwrap_or(Obstacle::Ways);
                run.outcome.obstacle = late.then_some(obstacle);
                self.start(index, &slices);
                return Some(Event::Levers {
                    id,
                    levers: self.levers(&slices),
                });
            }
            Action::Refuse { id, .. } => self.runs[index_of(id)].at = At::Over,
            Action::Park { id, .. } => {
                self.runs[index_of(id)].outcome.suspensions += 1;
                self.begin_lever(index_of(id), Doing::Park);
            }
            Action::Unpark { id, .. } => self.begin_lever(index_of(id), Doing::Unpark),
            Action::Move { id, .. } => {
                self.runs[index_of(id)].outcome.moves += 1;
                self.begin_lever(index_of(id), Doing::Move);
            }
            Action::Share { id, slices } => {
                let index = index_of(id);
                if matches!(self.runs[index].at, At::Runs(..)) {
                    self.stop(index);
                    self.start(index, &slices);
                }
            }
            Action::Announce { id, .. } if self.list[index_of(id)].keeps => {
                return Some(Event::Wish {
                    id,
                    wish: Wish::Keep,
                });
            }
            Action::LeaseWarning { id, at } if self.list[index_of(id)].extends => {
                let more = secs(self.list[index_of(id)].limit_s.unwrap_or(0.0));
                let ends = Some(at.saturating_add(more));
                let may = self.machine.may_extend(id).is_ok();
                return may.then_some(Event::Lease { id, ends });
            }
            Action::LeaseOver { id } | Action::Kill { id, .. } | Action::Requeue { id, .. } => {
                let index = index_of(id);
                self.stop(index);
                self.runs[index].outcome.cut_short = true;
                return Some(self.over(index));
            }
            _ => {}
        }
        None
    }

    fn levers(&self, slices: &[Slice]) -> Levers {
        // The driver cannot checkpoint what uses an instance.
        let offload = self.setup.offload && slices.iter().all(|s| s.held != Held::Whole);
        let able = |yes: bool| if yes { Ok(()) } else { Err(String::new()) };
        Levers {
            park: able(offload),
            movable: able(offload && self.setup.moves),
            requeue: false,
            left_alone: false,
            idle: false,
        }
    }

    /// Simulated memory use: each claim uses its full size from its start on.
    fn measure(&self) -> Vec<(ClaimId, usize, Bytes)> {
        let held = self.machine.ledger().held();
        let slices = held.flat_map(|(id, slices)| slices.iter().map(move |s| (id, s.gpu, s.mem)));
        slices.collect()
    }

    fn start(&mut self, index: usize, slices: &[Slice]) {
        let asked = f64::from(self.list[index].milli) / 1000.0;
        let sm = slices.first().map_or(asked, |s| s.sm.as_f64());
        let rate = (sm / asked).clamp(0.01, 1.0);
        let now = self.now;
        let run = &mut self.runs[index];
        run.turn += 1;
        run.at = At::Runs(now, rate);
        if let Some(out) = run.out_since.take() {
            let away = now.saturating_sub(out).as_secs_f64();
            run.outcome.away_s = run.outcome.away_s.max(away);
        }
        let ends = now.saturating_add(secs(run.left_s / rate));
        self.due.push(Reverse((ends, Due::Ends, index, run.turn)));
    }

    /// Stops a claim's run.
    fn stop(&mut self, index: usize) {
        let At::Runs(since, rate) = self.runs[index].at else {
            return;
        };
        let entry = &self.list[index];
        let rules = self.setup.classes.of(entry.class).always;
        let (now, last) = (self.now, self.last);
        let counted = now.min(last).saturating_sub(since.min(last));
        self.useful_s += counted.as_secs_f64() * rate * entry.size();
        let run = &mut self.runs[index];
        let ran = (now.saturating_sub(since).as_secs_f64() * rate).min(run.left_s);
        let least = rules.min_run.as_secs_f64().min(entry.run_s);
        let before = entry.run_s - run.left_s;
        if run.outcome.wait_s.is_none() && before + ran >= least - 1e-6 {
            let from = since.as_secs_f64() - before;
            run.outcome.wait_s = Some((from - run.outcome.asked_s).max(0.0));
        }
        run.left_s -= ran;
        run.outcome.ran_s += ran;
        run.out_since = Some(now);
        run.turn += 1;
        run.at = At::Out;
    }

    fn over(&mut self, index: usize) -> Event {
        let run = &mut self.runs[index];
        run.at = At::Over;
        run.turn += 1;
        run.outcome.done_s = Some(self.now.as_secs_f64() - run.outcome.asked_s);
        Event::Gone { id: id_of(index) }
    }

    fn begin_lever(&mut self, index: usize, doing: Doing) {
        self.stop(index);
        let ways = if doing == Doing::Move { 2.0 } else { 1.0 };
        // Each GPU has its own link to the host.
        let took = carry_s(self.bytes_each(index)) * ways;
        let run = &mut self.runs[index];
        run.turn += 1;
        run.at = At::Still(self.now);
        run.outcome.stall_s += took;
        let at = self.now.saturating_add(secs(took));
        self.due
            .push(Reverse((at, Due::Done(doing), index, run.turn)));
    }

    /// A claim's memory, on GPUs or in the host.
    fn bytes(&self, index: usize) -> Bytes {
        let each = self.bytes_each(index).0;
        Bytes(each.saturating_mul(u64::from(self.list[index].gpus)))
    }

    fn bytes_each(&self, index: usize) -> Bytes {
        let share = Share::from_milli(self.list[index].milli);
        self.setup.mem.times(share)
    }

    fn happens(&mut self, index: usize, due: Due) {
        let id = id_of(index);
        match due {
            Due::Ends => {
                self.stop(index);
                self.note_run_time(index);
                let gone = self.over(index);
                self.send(gone);
                let after =
                    |i: &usize| self.list[*i].after.and_then(|n| i.checked_sub(n)) == Some(index);
                let most = self.list.len().min(index + FOLLOWS);
                if let Some(next) = (index + 1..most).find(after) {
                    self.submit(next);
                }
            }
            Due::Done(doing) => {
                self.pulled += 1;
                let fails = self.setup.faults > 0 && self.pulled.is_multiple_of(self.setup.faults);
                if fails {
                    self.failed += 1;
                }
                let here = self.machine.holding(id);
                let out = match doing {
                    Doing::Park => !fails,
                    Doing::Unpark => fails,
                    Doing::Move => false,
                };
                if out {
                    self.runs[index].at = At::Out;
                    self.runs[index].turn += 1;
                } else {
                    let slices = match (&here, doing) {
                        (Some(holding), Doing::Move) if !fails => holding.to.clone(),
                        (Some(holding), _) => holding.slices().to_vec(),
                        (None, _) => Vec::new(),
                    };
                    self.start(index, &slices);
                }
                let event = if fails {
                    Event::LeverFailed {
                        id,
                        failure: Failure::Busy,
                        why: String::new(),
                    }
                } else {
                    match doing {
                        Doing::Park => Event::Parked {
                            id,
                            host: self.bytes(index),
                        },
                        Doing::Unpark => Event::Unparked { id },
                        Doing::Move => Event::Moved { id },
                    }
                };
                self.send(event);
            }
        }
    }

    /// Records since when waiting claims have been within their owners' guarantees.
    fn look_at_guarantees(&mut self) {
        let entitled: BTreeMap<ClaimId, bool> = self
            .machine
            .queue()
            .map(|(id, _)| (id, self.machine.is_entitled(id)))
            .collect();
        for (id, entitled) in entitled {
            let run = &mut self.runs[index_of(id)];
            if run.began {
                continue;
            }
            let since = run.guaranteed_since.unwrap_or(self.now);
            run.guaranteed_since = entitled.then_some(since);
            // A plan that is announced later leads to a late start.
            let early = self.now <= since + LEAST_RUN;
            run.outcome.obstacle = match run.outcome.obstacle.filter(|_| entitled) {
                known @ Some(Obstacle::Ways) => known,
                known if early => known.max(self.machine.obstacle(self.now, id)),
                known => known,
            };
        }
    }

    /// Sets the deadline of the waiting claim of the whole machine that came first, if nothing can be preempted. Its
    /// place in the queue does not count: others may go before it, and it may be first for a moment.
    fn look_at_whole(&mut self) {
        if self.setup.offload {
            return;
        }
        let whole = |r: &Request| r.gpus as usize >= self.setup.gpus;
        let waits = self.machine.queue().filter(|(_, r)| whole(r));
        let Some(id) = waits.map(|(id, _)| id).min() else {
            return;
        };
        if self.runs[index_of(id)].whole.is_some() {
            return;
        }
        let held = self.machine.ledger().held().map(|(id, _)| id);
        let by = self.machine.last_end(self.now);
        self.runs[index_of(id)].whole =
            by.map(|by| (by + Duration::from_secs(3600), held.collect()));
    }

    /// Delay of a claim that starts now, after its deadline or the last holder's end, whichever is later.
    fn whole_late_s(&self, index: usize) -> Option<f64> {
        let (by, held) = self.runs[index].whole.as_ref()?;
        let ended = |id: &ClaimId| {
            let outcome = &self.runs[index_of(*id)].outcome;
            outcome.done_s.map_or(0.0, |done| outcome.asked_s + done)
        };
        let last = held.iter().map(ended).fold(by.as_secs_f64(), f64::max);
        Some(self.now.as_secs_f64() - last)
    }

    fn played(self) -> Played {
        let whole = self.setup.gpus as f64 * self.last.as_secs_f64().max(1e-9);
        Played {
            claims: self.runs.into_iter().map(|r| r.outcome).collect(),
            useful: self.useful_s / whole,
            kept_idle: self.kept_s / whole,
            failed: self.failed,
            ..Played::default()
        }
    }
}
