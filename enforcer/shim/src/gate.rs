//! The gate: while claims share a GPU, launches go as far as the claim's turn allows and then wait. The logic is in
//! `gshare_gate`; this module provides a lock on the rare path, futexes, pairs of events, and a thread per GPU that
//! waits for the events.
//!
//! The same pairs of events feed `gshare_gate::Tally`: those that the gate needs anyway while the GPU is shared, else
//! one every few milliseconds of GPU time.

mod clock;
mod pass;
mod watch;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use gshare_abi::{Reach, futex_wait, futex_wait_either, futex_wake, monotonic_ns, on_time};
use gshare_gate::{Key, Load, MARKERS, Measure, Member, Mode, Records, Timeline, Verdict, Word};

use self::clock::{ANCHORS, Anchor, Call, Seen};
pub(crate) use self::pass::closer;
use crate::{
    cuda::{CuResult, Handle, SUCCESS},
    events::{self, Pair},
    gpu::Gpu,
    process::Process,
    work::Work,
};

/// A thread that is this late to ask again is assumed gone.
const GONE_NS: u64 = 250_000_000;
/// Maximum number of events in flight that the gate does not need: the gate's own have room beside them.
const MEASURED: usize = MARKERS / 2;
/// A service that was seen alive is not checked again within this time.
const ALIVE_NS: u64 = 10_000_000;
/// A watcher that wakes by itself within this time is not woken: that costs the launching thread a system call, and
/// often moves work to an idle processor.
const SOON_NS: u64 = 200_000;
/// Shortest and longest interval between polls of an event. A late event is polled again after this part of its delay:
/// for launches of known and of unknown duration.
const LOOK_NS: (u64, u64) = (40_000, 20_000_000);
const LATE_PART: (u64, u64) = (16, 4);
/// Launches of one kind vary in duration: one of at least this duration is polled from the last quarter of its time on,
/// in steps of this part of it.
const EARLY_NS: u64 = 4_000_000;
const EARLY_PART: u64 = 32;
/// A launch that the gate does not account for and that has not begun this long after its expected end waits for
/// something other than the GPU.
const BLOCKED_NS: u64 = 5_000_000;
/// A launch from before the GPU was shared is reported once it has run for this long.
const LONG_NS: u64 = 1_000_000_000;
/// Longest wait of a context's end for its events.
const PATIENCE_NS: u64 = 2_000_000_000;

pub(crate) struct Gate {
    inner: Mutex<Inner>,
    /// Changes when waiting threads may have to check; a futex.
    stir: AtomicU32,
    /// Changes when the watcher has to check; a futex.
    watch: AtomicU32,
    ended: AtomicU32,
    /// When the service was last seen alive.
    seen_alive_ns: AtomicU64,
    /// Number of launches when the program last began to wait for its work.
    awaited: AtomicU64,
    /// Launches that the sums do not contain.
    unmeasured: AtomicU64,
}

struct Inner {
    member: Member,
    /// The events behind the member's markers; those of a stream are in launch order.
    flights: VecDeque<Flight>,
    /// The arbiter's last information: whether threads wait, whether work is on the GPU, and since when a launch runs
    /// that the gate did not admit.
    told: (bool, bool, u64),
    /// Unused events.
    spare: Vec<Pair>,
    waiters: Vec<Waiter>,
    next_flight: u64,
    watcher: Watcher,
    /// When the launches ran, and their sums so far.
    timeline: Timeline,
    /// Expected end of all launches, if no event marks it.
    over_ns: Option<u64>,
    /// An event of known time for each context.
    anchors: Vec<Anchor>,
    /// Pairs of events with the same time; the maximum once one pair had times.
    timeless: u32,
    records: Records,
}

struct Flight {
    id: u64,
    /// Its stream as used by one thread, by [`gshare_gate::place`].
    place: u64,
    pair: Pair,
    /// It is the oldest of its stream.
    is_head: bool,
    /// Its duration together with earlier launches, if known.
    takes_ns: Option<u64>,
    /// Its expected end, and the time of the next poll; for heads.
    over_ns: u64,
    due_ns: u64,
    /// Its stream waits for something other than the GPU.
    is_blocked: bool,
    /// [`Work::own_ns`].
    own_ns: Option<u64>,
    /// What its stream launched before it had an earlier turn.
    waited: bool,
    /// The member has a marker for it.
    marked: bool,
    /// The measured kind, if it counts.
    measured: Option<Key>,
    issued_ns: u64,
    /// If the first event of its pair was recorded.
    call: Option<Call>,
    /// Its second event is recorded right behind that of `pair`.
    behind: Option<Pair>,
}

impl Flight {
    fn new(pair: Pair, place: u64) -> Self {
        Self {
            id: 0,
            place,
            pair,
            is_head: false,
            takes_ns: None,
            over_ns: 0,
            due_ns: u64::MAX,
            is_blocked: false,
            own_ns: None,
            waited: false,
            marked: false,
            measured: None,
            issued_ns: 0,
            call: None,
            behind: None,
        }
    }

    /// It becomes the oldest of its stream.
    fn expect(&mut self, from_ns: u64) {
        self.is_head = true;
        let takes_ns = self.takes_ns.unwrap_or(0);
        self.over_ns = from_ns + takes_ns;
        let early_ns = if takes_ns < EARLY_NS { 0 } else { takes_ns / 4 };
        self.due_ns = (self.over_ns - early_ns).max(from_ns + LOOK_NS.0);
    }

    /// It was polled and is not over: the later it is, the longer until the next poll.
    fn put_off(&mut self, now: u64) {
        let step_ns = match (self.over_ns.checked_sub(now), self.takes_ns) {
            (Some(left), Some(takes)) => left.min(takes / EARLY_PART),
            (_, Some(_)) => (now - self.over_ns) / LATE_PART.0,
            (_, None) => now.saturating_sub(self.over_ns) / LATE_PART.1,
        };
        self.due_ns = now + step_ns.clamp(LOOK_NS.0, LOOK_NS.1);
    }
}

/// A waiting thread, and the time of its next check.
struct Waiter {
    ticket: u64,
    until_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watcher {
    Absent,
    Awake,
    /// Sleeps on its futex, at most until this time.
    Asleep(Option<u64>),
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                member: Member::default(),
                flights: VecDeque::with_capacity(MARKERS),
                told: (false, false, 0),
                spare: Vec::with_capacity(MARKERS),
                waiters: Vec::new(),
                next_flight: 0,
                watcher: Watcher::Absent,
                timeline: Timeline::default(),
                over_ns: None,
                anchors: Vec::with_capacity(ANCHORS),
                timeless: 0,
                records: Records::default(),
            }),
            stir: AtomicU32::new(0),
            watch: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            seen_alive_ns: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            unmeasured: AtomicU64::new(0),
        }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// The GPU's gate, created on first use.
#[inline]
pub(crate) fn of(gpu: &Gpu) -> &'static Gate {
    if_used(gpu).unwrap_or_else(|| make(gpu))
}

/// The gate of a GPU that is or was shared.
#[inline]
fn if_used(gpu: &Gpu) -> Option<&'static Gate> {
    // SAFETY: null, or a leaked gate that `make` has put there.
    unsafe { gpu.gate.load(Ordering::Acquire).cast::<Gate>().as_ref() }
}

#[cold]
fn make(gpu: &Gpu) -> &'static Gate {
    let made = Box::into_raw(Box::<Gate>::default());
    let none = std::ptr::null_mut();
    let place = &gpu.gate;
    match place.compare_exchange(none, made.cast(), Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked above.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: the leaked gate of whoever was quicker.
            unsafe { &*other.cast::<Gate>() }
        }
    }
}

/// The gate's answer to a launch.
pub(crate) enum Pass {
    Go,
    /// Go, and report when it is done.
    Measured(Box<Trial>),
    /// The claim does not have the GPU any more.
    Refused,
}

#[derive(Clone, Copy)]
struct Launch {
    /// The arbiter's decision as read by the caller.
    word: Word,
    work: Work,
    stream: Handle,
    place: u64,
}

/// A launch whose end the gate follows.
pub(crate) struct Trial {
    launch: Launch,
    /// Admitted by the gate, with this many further nanoseconds for its stream; `None`: measured only.
    grant_ns: Option<u64>,
    /// The first one of its stream under this decision.
    is_first: bool,
    /// The tally knows its fill.
    fills: bool,
    /// Events with the first one recorded, the stream for the second, and the time before the first was recorded.
    pair: Option<(Pair, Handle, u64)>,
}

/// The driver has returned from a launch whose end the gate follows.
#[cold]
#[inline(never)]
pub(crate) fn leave(gpu: &'static Gpu, trial: Box<Trial>, result: CuResult) {
    // A panic must not unwind into the program; the measurement is dropped.
    let _ = catch_unwind(AssertUnwindSafe(|| of(gpu).end(gpu, &trial, result)));
    drop(trial);
}

/// The program begins to wait for its launches: that ends bursts.
pub(crate) fn awaits(process: &Process) {
    for gpu in &process.gpus {
        if gpu.turn().mode() != Mode::Free
            && let Some(gate) = if_used(gpu)
        {
            gate.awaited.store(gpu.launches(), Ordering::Relaxed);
        }
    }
}

/// A context is about to go, with the gate's events in it.
pub(crate) fn forget_context(gpu: &'static Gpu, context: Handle) {
    if let Some(gate) = if_used(gpu) {
        let _ = catch_unwind(AssertUnwindSafe(|| gate.forget_context(gpu, context)));
    }
}

/// An executable graph is gone; its handle may be reused.
pub(crate) fn forget_graph(process: &Process, exec: Handle) {
    for gpu in &process.gpus {
        gpu.tally.forget(Key::graph(exec));
    }
}

enum Outcome {
    Free,
    Go { word: Word, grant_ns: u64 },
    Refused,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all waiting threads check again.
    fn stir(&self) {
        self.stir.fetch_add(1, Ordering::Release);
        futex_wake(&self.stir, Reach::Process);
    }

    fn service_lives(&self, gpu: &Gpu) -> bool {
        let now = monotonic_ns();
        if now < self.seen_alive_ns.load(Ordering::Relaxed) + ALIVE_NS {
            return true;
        }
        let alive = gpu.service_lives();
        if alive {
            self.seen_alive_ns.store(now, Ordering::Relaxed);
        }
        alive
    }

    fn wait_for_turn(
        &'static self,
        process: &Process,
        gpu: &'static Gpu,
        launch: &Launch,
    ) -> Outcome {
        let (key, stream, place) = (launch.work.key, launch.stream, launch.place);
        let (mut ticket, mut looked) = (None, false);
        loop {
            let alive = self.service_lives(gpu);
            if !alive {
                process.keep_up();
            }
            let turn = &gpu.limits().turn;
            let word = Word(turn.word.load(Ordering::Acquire));
            let stirred = self.stir.load(Ordering::Acquire);
            let view = gpu.gate_view(word, alive);
            let now = monotonic_ns();
            let mut inner = self.lock();
            if !looked && inner.member.is_ahead(now) {
                drop(inner);
                self.catch_up(gpu);
                looked = true;
                continue;
            }
            let tally = &gpu.tally;
            let turn_ns = view.turn_begins_ns..view.turn_ends_ns;
            (inner.member).adopt(now, word, turn_ns, view.flags, tally);
            inner.member.refund(tally.take_grant(place));
            let unmarked = !tally.is_marked(place);
            inner.drop_gone(now, &mut ticket);
            let waited = ticket;
            let verdict = if gpu.granted() {
                let expected = gpu.tally.expected(key);
                inner.member.ask(now, &view, key, expected, &mut ticket)
            } else {
                inner.member.leave(now, &mut ticket);
                Verdict::Free
            };
            if unmarked && matches!(verdict, Verdict::Wait { .. }) {
                inner.member.refund(tally.grant(word, place, 0));
            }
            let first = inner.note(waited, ticket, &verdict);
            let others = inner.member.has_waiters();
            let knock = gpu.say(&inner.member.signals(now));
            drop(inner);
            if knock {
                gpu.ring();
            }
            let until = match verdict {
                Verdict::Wait { until_ns } => until_ns,
                through => {
                    // The first waiting thread now waits for something else.
                    if others && waited.is_some() {
                        self.stir();
                    }
                    return match through {
                        Verdict::Go { grant_ns } => Outcome::Go { word, grant_ns },
                        _ if gpu.granted() => Outcome::Free,
                        _ => Outcome::Refused,
                    };
                }
            };
            if unmarked {
                self.mark_stream(gpu, stream, place);
            }
            if first {
                let turn = (&turn.word, word.0, Reach::Machine);
                let stir = (&self.stir, stirred, Reach::Process);
                // A turn may begin then by itself.
                on_time(|| futex_wait_either(turn, stir, until));
            } else {
                futex_wait(&self.stir, stirred, Some(until), Reach::Process);
            }
            looked = false;
        }
    }

    /// Two unused events of a context.
    fn pair(&self, context: Handle) -> Option<Pair> {
        let known = {
            let mut inner = self.lock();
            if inner.flights.len() >= MARKERS {
                return None;
            }
            let spare = &mut inner.spare;
            let at = spare.iter().position(|pair| pair.context == context);
            at.map(|at| spare.swap_remove(at))
        };
        known.or_else(|| Pair::new(context))
    }

    /// Whether to measure a launch for which the gate needs no measurement.
    fn wants(&self, gpu: &Gpu, launch: &Launch) -> bool {
        let known = gpu.tally.known(launch.work.key);
        let known = known.is_some_and(|(_, ns)| ns.is_some());
        // Waiting for the lock would delay the launch.
        self.inner.try_lock().is_ok_and(|mut inner| {
            inner.flights.len() < MEASURED && inner.timeline.wants(launch.place, known)
        })
    }

    /// Records the first of two events around a launch, and returns when the recording began; `None` if it is not
    /// possible now.
    fn begin(&self, stream: Handle) -> Option<(Pair, Handle, u64)> {
        let (context, stream) = events::context_of(stream).zip(events::recordable(stream))?;
        let pair = self.pair(context)?;
        let began_ns = monotonic_ns();
        if pair.record_start(stream) {
            return Some((pair, stream, began_ns));
        }
        self.lock().spare.push(pair);
        None
    }

    /// An event right behind the second one of a pair that the GPU has not come to yet: nothing lies between the two.
    fn record_behind(&self, gpu: &Gpu, pair: &Pair, stream: Handle) -> Option<Pair> {
        if !self.lock().records.wants(gpu.launches()) {
            return None;
        }
        let other = self.pair(pair.context)?;
        let counts = other.record_end(stream) && pair.is_ahead();
        let mut inner = self.lock();
        if !counts {
            inner.spare.push(other);
            return None;
        }
        inner.records.compare();
        Some(other)
    }

    /// Counts a launch by the figures of its kind, or as unknown.
    #[cold]
    fn add_unmeasured(&self, process: &Process, gpu: &Gpu, launch: &Launch) {
        let (work, place) = (&launch.work, launch.place);
        if !work.meet(process, gpu) {
            self.unmeasured.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let owed = gpu.tally.add_unmeasured(work.key, place);
        // For an unknown duration this is the only trace of the launch: worth waiting for the lock, as for measured
        // launches.
        let inner = match owed {
            Some(_) => Some(self.lock()),
            None => self.inner.try_lock().ok(),
        };
        if let Some(mut inner) = inner {
            let owed = owed.map(|fill| (work.key, fill));
            inner.timeline.left_out(place, owed);
        }
    }

    /// Before a thread sleeps: records an event behind the launches on its stream, to see their end.
    fn mark_stream(&'static self, gpu: &'static Gpu, stream: Handle, place: u64) {
        let at = events::context_of(stream).zip(events::recordable(stream));
        let Some((context, real)) = at else { return };
        let Some(pair) = self.pair(context) else {
            return;
        };
        let recorded = pair.record_end(real);
        let mut inner = self.lock();
        if recorded && inner.member.mark(monotonic_ns(), place, None, 0) {
            // The stream's load ends with it.
            let before = gpu.tally.take(place);
            let flight = Flight {
                marked: true,
                waited: true,
                ..Flight::new(pair, place)
            };
            inner.fly(gpu, before, None, flight);
        } else {
            inner.spare.push(pair);
        }
        self.wake_watcher(gpu, inner);
    }

    fn end(&'static self, gpu: &'static Gpu, trial: &Trial, result: CuResult) {
        let Launch {
            word, work, place, ..
        } = trial.launch;
        let call = trial.pair.map(|(pair, _, began_ns)| Call {
            began_ns,
            ended_ns: monotonic_ns(),
            behind: pair.is_ahead(),
        });
        let key = (result == SUCCESS).then_some(work.key);
        let recorded = trial
            .pair
            .is_some_and(|(pair, stream, _)| pair.record_end(stream));
        let at_end = trial.pair.filter(|_| recorded);
        let at_end = at_end.filter(|_| call.is_some_and(|call| call.behind));
        let behind = at_end.and_then(|(pair, stream, _)| self.record_behind(gpu, &pair, stream));
        let mut inner = self.lock();
        if trial.grant_ns.is_some() {
            inner.member.returned();
        }
        let marked = recorded
            && trial
                .grant_ns
                .is_some_and(|grant| inner.member.mark(monotonic_ns(), place, key, grant));
        if let Some((pair, ..)) = trial.pair {
            if marked || (recorded && trial.grant_ns.is_none()) {
                let before = gpu.tally.begin(place);
                let usual = trial.grant_ns.and_then(|_| gpu.tally.expected(work.key));
                let flight = Flight {
                    marked,
                    measured: key.filter(|_| trial.fills),
                    call,
                    own_ns: work.own_ns(),
                    waited: trial.is_first,
                    behind,
                    ..Flight::new(pair, place)
                };
                inner.fly(gpu, before, usual.map(|usual| usual.ns), flight);
            } else {
                inner.spare.push(pair);
                inner.spare.extend(behind);
            }
        }
        let flies = marked || (recorded && trial.grant_ns.is_none());
        if !flies && trial.fills && key.is_some() {
            let owed = gpu.tally.add_unmeasured(work.key, place);
            let owed = owed.map(|fill| (work.key, fill));
            inner.timeline.left_out(place, owed);
        }
        if let Some(grant_ns) = trial.grant_ns {
            if !marked && let Some(ns) = inner.member.unmeasured(work.key) {
                gpu.tally.expect(work.key, ns, Measure::Rough);
            }
            let unused = gpu.tally.grant(word, place, grant_ns);
            inner.member.refund(unused);
        }
        // Behind other work of its stream, the end of that will tell soon enough.
        if inner.flights.back().is_none_or(|flight| flight.is_head) {
            self.say_work(gpu, &mut inner);
        }
        self.wake_watcher(gpu, inner);
    }
}

impl Inner {
    /// Keeps the list of waiting threads; returns whether the caller is the first of them.
    fn note(&mut self, waited: Option<u64>, ticket: Option<u64>, verdict: &Verdict) -> bool {
        if let Some(old) = waited {
            self.waiters.retain(|waiter| waiter.ticket != old);
        }
        let (Verdict::Wait { until_ns }, Some(ticket)) = (verdict, ticket) else {
            return false;
        };
        let waiter = Waiter {
            ticket,
            until_ns: *until_ns,
        };
        let at = self.waiters.partition_point(|other| other.ticket < ticket);
        self.waiters.insert(at, waiter);
        at == 0
    }

    /// Drops threads that should have asked again long ago; a thread that was assumed gone waits anew.
    fn drop_gone(&mut self, now: u64, ticket: &mut Option<u64>) {
        if let Some(mine) = *ticket
            && self.waiters.iter().all(|waiter| waiter.ticket != mine)
        {
            *ticket = None;
        }
        let mine = *ticket;
        let is_gone = |waiter: &Waiter| {
            Some(waiter.ticket) != mine && now > waiter.until_ns.saturating_add(GONE_NS)
        };
        while let Some(at) = self.waiters.iter().position(is_gone) {
            let gone = self.waiters.remove(at);
            self.member.leave(now, &mut Some(gone.ticket));
        }
    }

    /// Adds a flight that was issued now, behind the load of its stream that it ends.
    fn fly(&mut self, gpu: &Gpu, before: Load, usual_ns: Option<u64>, mut flight: Flight) {
        flight.id = self.next_flight;
        self.next_flight += 1;
        flight.issued_ns = monotonic_ns();
        let known = flight.measured.and_then(|key| gpu.tally.known(key));
        let fill = known.map(|(fill, _)| fill);
        let expected_ns = known.and_then(|(_, ns)| ns);
        flight.takes_ns = match usual_ns.or(expected_ns).or(flight.own_ns) {
            None if flight.call.is_some() => None,
            own => Some(before.busy_ns + own.unwrap_or(0)),
        };
        let (issued_ns, place) = (flight.issued_ns, flight.place);
        if flight.waited {
            self.timeline.waited(place);
        }
        if self.flights.iter().all(|other| other.place != place) {
            flight.expect(issued_ns);
        }
        self.flights.push_back(flight);
        self.timeline
            .issued(issued_ns, place, before, fill, expected_ns);
    }

    /// Since when a long launch runs for which the gate was not asked, since nobody shared the GPU then; 0: none.
    fn long_since_ns(&self, now: u64) -> u64 {
        let there = self.flights.iter();
        let there = there.filter(|f| f.is_head && !f.marked && !f.is_blocked && f.call.is_some());
        let since = there.map(|f| f.over_ns - f.takes_ns.unwrap_or(0)).min();
        since.filter(|since| now > since + LONG_NS).unwrap_or(0)
    }

    fn take_spare(&mut self, context: Handle) -> Vec<Pair> {
        let spare = std::mem::take(&mut self.spare);
        let (mut gone, kept): (Vec<Pair>, Vec<Pair>) =
            spare.into_iter().partition(|pair| pair.context == context);
        self.spare = kept;
        let anchors = self.anchors.iter().filter(|a| a.pair.context == context);
        gone.extend(anchors.map(|anchor| anchor.pair));
        self.anchors.retain(|a| a.pair.context != context);
        gone
    }
}
