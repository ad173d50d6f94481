//! The gate: while claims share a GPU, launches go as far as the claim's turn reaches and then wait.
//! The logic is `gshare_gate`'s; here is what it needs of the world: a lock on the rare path, futexes, pairs of
//! events, a thread per GPU that waits for them.
//!
//! The same pairs of events measure what launches come to (`gshare_gate::Tally`): while the GPU is shared those that
//! the gate asks for anyway, else one every few milliseconds of GPU time.

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

use gshare_abi::{Reach, futex_wait, futex_wait_either, futex_wake, monotonic_ns};
use gshare_gate::{
    Cells, Durations, Key, Load, MARKERS, Measure, Member, Mode, Timeline, Verdict, Word,
};

use self::clock::{ANCHORS, Anchor, Call, Seen};
pub(crate) use self::pass::{Quick, closer, quick};
use crate::{
    cuda::{CuResult, Handle, SUCCESS},
    events::{self, Pair},
    gpu::Gpu,
    map::Table,
    mark::Thread,
    process::Process,
    work::Work,
};

/// A thread that was to ask again and did not, for so long after its time, is taken for gone.
const GONE_NS: u64 = 250_000_000;
/// Most events in flight where the gate does not ask for any: those of the gate have room beside them.
const MEASURED: usize = MARKERS / 2;
/// Streams of which the gate remembers what they were granted.
const MOST_STREAMS: usize = 256;
/// A service that was seen alive is not looked for again before so long.
const ALIVE_NS: u64 = 10_000_000;
/// A watcher that wakes by itself so soon is not woken: that costs who launches a call of the kernel, and often the
/// way to another processor that is idle.
const SOON_NS: u64 = 200_000;
/// Between two looks at an event. Of the time that it is late, each waits for this part: for a launch that is known, and
/// for one of which nobody knows how long it takes.
const LOOK_NS: (u64, u64) = (40_000, 20_000_000);
const LATE_PART: (u64, u64) = (16, 4);
/// Launches of one kind do not all take as long: one that lasts at least so long is looked at from the last quarter of its
/// time on, in steps of this part of it.
const EARLY_NS: u64 = 4_000_000;
const EARLY_PART: u64 = 32;
/// A launch that is in no account of the gate and has not begun so long after it was expected to be over stands behind
/// something other than the GPU.
const BLOCKED_NS: u64 = 5_000_000;
/// Longest that the end of a context waits for the events in it.
const PATIENCE_NS: u64 = 2_000_000_000;

/// The gate of this process on one GPU.
pub(crate) struct Gate {
    durations: Durations,
    cells: Cells,
    inner: Mutex<Inner>,
    /// Steps when a thread that waits may have to look; a futex.
    stir: AtomicU32,
    /// Steps when the watcher has to look; a futex.
    watch: AtomicU32,
    ended: AtomicU32,
    /// When the service was last seen alive.
    seen_alive_ns: AtomicU64,
    /// How many launches there were when the program last began to wait for its work.
    awaited: AtomicU64,
    /// Launches that are in no figure of what the launches have come to.
    unmeasured: AtomicU64,
}

struct Inner {
    member: Member,
    /// The events behind the member's markers, those of a stream in the order of its launches.
    flights: VecDeque<Flight>,
    /// What the arbiter was told last: whether threads wait, and whether work is on the GPU.
    told: (bool, bool),
    /// Events that are in no flight.
    spare: Vec<Pair>,
    waiters: Vec<Waiter>,
    /// What each stream was granted behind its last marker, by [`place`].
    grants: Table<u64>,
    next_flight: u64,
    watcher: Watcher,
    /// When the launches ran, and what they have come to so far.
    timeline: Timeline,
    /// When all that was launched is expected to be over, where no event says so.
    over_ns: Option<u64>,
    /// An event of each context whose time is known.
    anchors: Vec<Anchor>,
    /// Pairs of events that were no time apart; the most there can be once one was.
    timeless: u32,
}

struct Flight {
    id: u64,
    /// Its stream, by [`place`], and as one thread uses it.
    place: u64,
    lane: (Handle, usize),
    pair: Pair,
    /// The first event of its pair was recorded.
    has_start: bool,
    /// It is the oldest of its stream.
    is_head: bool,
    /// How long it takes with what was launched before it, as far as that is known.
    takes_ns: Option<u64>,
    /// By when it is expected to be over, and when that is looked at next; of heads.
    over_ns: u64,
    due_ns: u64,
    /// Its stream was found to wait for something other than the GPU.
    is_blocked: bool,
    /// The member has a marker for it.
    marked: bool,
    /// What was measured, where that counts.
    measured: Option<Key>,
    issued_ns: u64,
    /// Where there is an event before it.
    call: Option<Call>,
}

impl Flight {
    /// It is the oldest of its stream from then on.
    fn expect(&mut self, from_ns: u64) {
        self.is_head = true;
        let takes_ns = self.takes_ns.unwrap_or(0);
        self.over_ns = from_ns + takes_ns;
        let early_ns = if takes_ns < EARLY_NS { 0 } else { takes_ns / 4 };
        self.due_ns = (self.over_ns - early_ns).max(from_ns + LOOK_NS.0);
    }

    /// It was looked at and is not over: the later it is, the longer until the next look.
    fn put_off(&mut self, now: u64) {
        let step_ns = match (self.over_ns.checked_sub(now), self.takes_ns) {
            (Some(left), Some(takes)) => left.min(takes / EARLY_PART),
            (_, Some(_)) => (now - self.over_ns) / LATE_PART.0,
            (_, None) => now.saturating_sub(self.over_ns) / LATE_PART.1,
        };
        self.due_ns = now + step_ns.clamp(LOOK_NS.0, LOOK_NS.1);
    }
}

/// Number of a stream as one thread uses it; never 0.
fn place(stream: Handle, thread: usize) -> u64 {
    (stream as u64 ^ (thread as u64).rotate_right(16)) | 1 << 47
}

/// A thread that waits, and by when it looks again.
struct Waiter {
    ticket: u64,
    until_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watcher {
    /// None yet.
    Absent,
    /// At work.
    Awake,
    /// Sleeps on its futex, at most until then.
    Asleep(Option<u64>),
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            durations: Durations::default(),
            cells: Cells::default(),
            inner: Mutex::new(Inner {
                member: Member::default(),
                flights: VecDeque::with_capacity(MARKERS),
                told: (false, false),
                spare: Vec::with_capacity(MARKERS),
                waiters: Vec::new(),
                grants: Table::EMPTY,
                next_flight: 0,
                watcher: Watcher::Absent,
                timeline: Timeline::default(),
                over_ns: None,
                anchors: Vec::with_capacity(ANCHORS),
                timeless: 0,
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

/// The gate of a GPU, made when it is first asked for.
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

/// What the gate says to a launch.
pub(crate) enum Pass {
    /// Go.
    Go,
    /// Go, and say afterwards that it is done.
    Measured(Box<Trial>),
    /// The claim does not hold the GPU any more.
    Refused,
}

/// A launch that comes to the gate.
#[derive(Clone, Copy)]
struct Launch {
    /// The arbiter's decision as the caller read it.
    word: Word,
    work: Work,
    stream: Handle,
    thread: Thread,
}

/// A launch that the gate wants to know the end of.
pub(crate) struct Trial {
    launch: Launch,
    /// The gate let it through, with so much more for its stream; else it is measured only.
    grant_ns: Option<u64>,
    /// The tally knows what it fills.
    fills: bool,
    /// Events of which the first is recorded, the stream for the second, and the time before the first was recorded.
    pair: Option<(Pair, Handle, u64)>,
}

/// The driver has answered for a launch that the gate wanted to know the end of.
#[cold]
#[inline(never)]
pub(crate) fn leave(gpu: &'static Gpu, trial: Box<Trial>, result: CuResult) {
    // What panicked has been said nowhere and changes nothing for the program.
    let _ = catch_unwind(AssertUnwindSafe(|| of(gpu).end(gpu, &trial, result)));
    drop(trial);
}

/// The program begins to wait for what it has launched: bursts end with that.
pub(crate) fn awaits(process: &Process) {
    for gpu in &process.gpus {
        if gpu.turn().mode() != Mode::Free
            && let Some(gate) = if_used(gpu)
        {
            gate.awaited.store(gpu.launches(), Ordering::Relaxed);
        }
    }
}

/// A context is about to go, and the gate's events in it with it.
pub(crate) fn forget_context(gpu: &'static Gpu, context: Handle) {
    if let Some(gate) = if_used(gpu) {
        let _ = catch_unwind(AssertUnwindSafe(|| gate.forget_context(gpu, context)));
    }
}

/// An executable graph is gone; its handle may come to mean another.
pub(crate) fn forget_graph(process: &Process, exec: Handle) {
    for gpu in &process.gpus {
        gpu.tally.forget(Key::graph(exec));
        if let Some(gate) = if_used(gpu) {
            gate.durations.forget(Key::graph(exec));
        }
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

    /// Has all threads that wait look again.
    fn stir(&self) {
        self.stir.fetch_add(1, Ordering::Release);
        futex_wake(&self.stir, Reach::Process);
    }

    /// Takes in a new decision: the grants of the last one are void.
    fn see(&self, gpu: &Gpu, inner: &mut Inner, now: u64, word: Word) -> bool {
        let new = inner.member.see(now, word, gpu.gate_flags());
        if new {
            inner.member.refund(self.cells.clear());
        }
        new
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
        let (key, stream) = (launch.work.key, launch.stream);
        let thread = launch.thread.number();
        let mut ticket = None;
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
            let granted = inner.grants.remove(place(stream, thread));
            let unused = if self.see(gpu, &mut inner, now, word) {
                None
            } else {
                let unused = self.cells.take(word, stream, thread);
                inner.member.refund(unused);
                Some(unused)
            };
            // Launches behind the stream's last marker, as far as can be known.
            // On a stream that was never here there may be much, from when nobody shared the GPU.
            let unmarked = granted.is_none_or(|granted| unused.is_none_or(|left| left < granted));
            inner.drop_gone(now, &mut ticket);
            let waited = ticket;
            let verdict = if gpu.granted() {
                let expected = self.durations.expected(key);
                inner.member.ask(now, &view, key, expected, &mut ticket)
            } else {
                inner.member.leave(now, &mut ticket);
                Verdict::Free
            };
            if matches!(verdict, Verdict::Wait { .. }) {
                inner.keep_grant(place(stream, thread), 0);
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
                    // The first one now waits for something else than before.
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
                self.mark_stream(gpu, stream, thread);
            }
            if first {
                let turn = (&turn.word, word.0, Reach::Machine);
                let stir = (&self.stir, stirred, Reach::Process);
                futex_wait_either(turn, stir, until);
            } else {
                futex_wait(&self.stir, stirred, Some(until), Reach::Process);
            }
        }
    }

    /// Two events of a context that nothing uses.
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

    /// Whether a launch is to be measured that the gate does not ask for.
    fn wants(&self, gpu: &Gpu, launch: &Launch) -> bool {
        let known = gpu.tally.known(launch.work.key);
        let known = known.is_some_and(|(_, ns)| ns.is_some());
        let place = place(launch.stream, launch.thread.number());
        // Waiting for the lock would hold up a launch.
        self.inner.try_lock().is_ok_and(|mut inner| {
            inner.flights.len() < MEASURED && inner.timeline.wants(place, known)
        })
    }

    /// Records the first of two events around a launch, and says when it began to; `None` where that cannot be done now.
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

    /// Counts a launch by what is known of its kind, or among those of which nothing is.
    #[cold]
    fn add_unmeasured(
        &self,
        process: &Process,
        gpu: &Gpu,
        work: &Work,
        stream: Handle,
        thread: Thread,
    ) {
        if !work.meet(process, gpu) {
            self.unmeasured.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let number = thread.number();
        let owed = gpu.tally.add_unmeasured(work.key, stream, number);
        // Where nobody knows yet how long it takes only this says that it was there: worth waiting for, as at launches
        // that are measured.
        let inner = match owed {
            Some(_) => Some(self.lock()),
            None => self.inner.try_lock().ok(),
        };
        if let Some(mut inner) = inner {
            let owed = owed.map(|fill| (work.key, fill));
            inner.timeline.left_out(place(stream, number), owed);
        }
    }

    /// Before a thread sleeps: an event behind what it has launched on its stream, to see the end of that.
    fn mark_stream(&'static self, gpu: &'static Gpu, stream: Handle, thread: usize) {
        let at = events::context_of(stream).zip(events::recordable(stream));
        let Some((context, real)) = at else { return };
        let Some(pair) = self.pair(context) else {
            return;
        };
        let recorded = pair.record_end(real);
        let mut inner = self.lock();
        if recorded
            && inner
                .member
                .mark(monotonic_ns(), place(stream, thread), None, 0)
        {
            // What the stream was given is over with it.
            let before = gpu.tally.take(stream, thread);
            inner.fly(gpu, pair, true, (stream, thread), before, None, None, None);
        } else {
            inner.spare.push(pair);
        }
        self.wake_watcher(gpu, inner);
    }

    fn end(&'static self, gpu: &'static Gpu, trial: &Trial, result: CuResult) {
        let Launch {
            word,
            work,
            stream,
            thread,
        } = trial.launch;
        let number = thread.number();
        let call = trial.pair.map(|(pair, _, began_ns)| Call {
            began_ns,
            ended_ns: monotonic_ns(),
            behind: pair.is_ahead(),
        });
        let key = (result == SUCCESS).then_some(work.key);
        let recorded = trial
            .pair
            .is_some_and(|(pair, stream, _)| pair.record_end(stream));
        let mut inner = self.lock();
        if trial.grant_ns.is_some() {
            inner.member.returned();
        }
        let marked = recorded
            && trial.grant_ns.is_some_and(|grant| {
                let place = place(stream, number);
                inner.member.mark(monotonic_ns(), place, key, grant)
            });
        if let Some((pair, ..)) = trial.pair {
            if marked || (recorded && trial.grant_ns.is_none()) {
                let before = gpu.tally.begin(stream, number);
                let key = key.filter(|_| trial.fills);
                let usual = trial.grant_ns.and_then(|_| self.durations.get(work.key));
                inner.fly(
                    gpu,
                    pair,
                    marked,
                    (stream, number),
                    before,
                    key,
                    call,
                    usual,
                );
            } else {
                inner.spare.push(pair);
            }
        }
        let flies = marked || (recorded && trial.grant_ns.is_none());
        if !flies && trial.fills && key.is_some() {
            let owed = gpu.tally.add_unmeasured(work.key, stream, number);
            let owed = owed.map(|fill| (work.key, fill));
            inner.timeline.left_out(place(stream, number), owed);
        }
        if let Some(grant_ns) = trial.grant_ns {
            if !marked && let Some(ns) = inner.member.unmeasured(work.key) {
                self.durations.learn(work.key, ns, Measure::Rough);
            }
            if grant_ns > 0 {
                self.cells.grant(word, stream, number, grant_ns);
            }
            inner.keep_grant(place(stream, number), grant_ns);
        }
        self.say_work(gpu, &mut inner);
        self.wake_watcher(gpu, inner);
    }
}

impl Inner {
    /// Keeps the list of those who wait; gives whether the caller is the first of them.
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

    /// Lets go of threads that should have asked again long ago; one that was taken for gone waits anew.
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

    /// Keeps what a stream was granted behind its last marker.
    fn keep_grant(&mut self, place: u64, ns: u64) {
        if self.grants.len() >= MOST_STREAMS {
            self.grants = Table::EMPTY;
        }
        self.grants.insert(place, ns);
    }

    #[allow(clippy::too_many_arguments, reason = "they describe one launch")]
    fn fly(
        &mut self,
        gpu: &Gpu,
        pair: Pair,
        marked: bool,
        lane: (Handle, usize),
        before: Load,
        measured: Option<Key>,
        call: Option<Call>,
        usual_ns: Option<u64>,
    ) {
        let place = place(lane.0, lane.1);
        let id = self.next_flight;
        self.next_flight += 1;
        let issued_ns = monotonic_ns();
        let known = measured.and_then(|key| gpu.tally.known(key));
        let fill = known.map(|(fill, _)| fill);
        let expected_ns = known.and_then(|(_, ns)| ns);
        let is_head = self.flights.iter().all(|flight| flight.place != place);
        let takes_ns = match (usual_ns.or(expected_ns), &call) {
            (None, Some(_)) => None,
            (own, _) => Some(before.busy_ns + own.unwrap_or(0)),
        };
        self.flights.push_back(Flight {
            id,
            place,
            lane,
            has_start: call.is_some(),
            is_head,
            takes_ns,
            over_ns: 0,
            due_ns: u64::MAX,
            is_blocked: false,
            pair,
            marked,
            measured,
            issued_ns,
            call,
        });
        if is_head && let Some(flight) = self.flights.back_mut() {
            flight.expect(issued_ns);
        }
        self.timeline
            .issued(issued_ns, place, before, fill, expected_ns);
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
