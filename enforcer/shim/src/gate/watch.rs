//! The thread of a GPU that waits for the gate's events. The arbiter gets the process's state from it, the service the
//! sums over the launches.

use std::sync::{MutexGuard, atomic::Ordering};

use gshare_abi::{Flight, NO_EVENT_TIMES, Reach, WorkView, futex_wait, futex_wake, monotonic_ns};
use gshare_gate::{Measure, Rest, Word};

use super::{Anchor, BLOCKED_NS, Gate, Inner, PATIENCE_NS, SOON_NS, Seen, Watcher};
use crate::{
    cuda::Handle,
    events::{self, Pair, Progress},
    exit,
    gpu::Gpu,
    say,
};

/// Next step of the thread that attends to a gate.
enum Next {
    /// Polls a flight.
    Look(Head),
    /// Sleeps, at most until this time.
    Sleep(Option<u64>),
}

#[derive(Clone, Copy)]
struct Head {
    id: u64,
    pair: Pair,
    has_start: bool,
    /// Dates its end.
    anchor: Option<Anchor>,
    behind: Option<Pair>,
}

impl Gate {
    /// Publishes the sums over the launches, and the work on the GPU.
    pub(super) fn say_work(&self, gpu: &Gpu, inner: &mut Inner) {
        let now = monotonic_ns();
        let (done, current) = inner.timeline.tell(now);
        let lasts = current.and_then(|current| current.expected_ns);
        inner.over_ns = lasts
            .filter(|_| inner.flights.is_empty())
            .map(|ns| now + ns);
        gpu.say_work(&WorkView {
            busy_ns: done.busy_ns,
            sm_ns: done.sm_ns,
            warp_ns: done.warp_ns,
            unmeasured: self.unmeasured.load(Ordering::Relaxed),
            flight: current.map(|current| Flight {
                since_ns: now,
                expected_ns: current.expected_ns,
                sms_milli: current.fill.sms_milli,
                warps_milli: current.fill.warps_milli,
            }),
        });
    }

    /// Makes the watcher look at a change; starts it if there is none.
    pub(super) fn wake_watcher(
        &'static self,
        gpu: &'static Gpu,
        mut inner: MutexGuard<'static, Inner>,
    ) {
        let watcher = inner.watcher;
        match watcher {
            Watcher::Absent if start_watcher(gpu) => inner.watcher = Watcher::Awake,
            Watcher::Absent => {
                // No thread is available: launching threads wait for their own work meanwhile.
                drop(inner);
                while let Some(head) = self.oldest() {
                    let came = head.pair.wait_here();
                    self.landed(gpu, &head, look_at(came, &head));
                }
                self.attend(gpu, true);
                return;
            }
            Watcher::Asleep(until)
                if until.is_none_or(|until| {
                    until > inner.due_ns().unwrap_or_else(monotonic_ns) + SOON_NS
                }) =>
            {
                inner.watcher = Watcher::Awake;
            }
            // Earlier launches end first.
            Watcher::Asleep(_) | Watcher::Awake => return,
        }
        drop(inner);
        if matches!(watcher, Watcher::Asleep(_)) {
            self.watch.fetch_add(1, Ordering::Release);
            futex_wake(&self.watch, Reach::Process);
        }
    }

    /// Returns the next step; informs the arbiter if the state has changed or `news` may have changed it.
    fn attend(&self, gpu: &Gpu, news: bool) -> Next {
        let word = Word(gpu.limits().turn.word.load(Ordering::Acquire));
        let now = monotonic_ns();
        let mut inner = self.lock();
        let (turn_ns, flags) = (gpu.turn_ns(), gpu.gate_flags());
        (inner.member).adopt(now, word, turn_ns, flags, &gpu.tally);
        if inner.over_ns.is_some_and(|over| over <= now) {
            self.say_work(gpu, &mut inner);
        }
        if let Some(head) = inner.head(now) {
            return Next::Look(head);
        }
        let unused = gpu.tally.unused_ns();
        let launches = gpu.launches();
        let awaited = self.awaited.load(Ordering::Relaxed) == launches;
        let rest = inner.member.rest(now, launches, unused, awaited);
        if rest == Rest::Idle && inner.member.is_told_of() {
            // The next launch must be reported.
            inner.member.refund(gpu.tally.take_grants());
        }
        let mut signals = inner.member.signals(now);
        let long_since_ns = inner.long_since_ns(now);
        if signals.since_ns == 0 {
            signals.since_ns = long_since_ns;
        }
        let says = (signals.waiting, signals.busy, long_since_ns);
        let knock = (news || signals.knock || says != inner.told) && gpu.say(&signals);
        inner.told = says;
        let due = inner.due_ns();
        let until = match (rest, due) {
            (Rest::At(at), Some(due)) => Some(at.min(due)),
            (Rest::At(at), None) => Some(at),
            (Rest::Marker | Rest::Idle, due) => due,
        };
        if inner.watcher != Watcher::Absent {
            inner.watcher = Watcher::Asleep(until);
        }
        drop(inner);
        if knock {
            gpu.ring();
        }
        Next::Sleep(until)
    }

    /// Follows the work on the GPU for the rest of the process. The thread never waits inside the driver: the program
    /// itself may hold up a stream, and may exit.
    pub(super) fn watch(&self, gpu: &Gpu) {
        // SAFETY: concerns the calling thread alone, which is to wake when it asked to.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        if exit::unless(events::relax_this_thread).is_none() {
            return;
        }
        let (mut context, mut ended) = (0, 0);
        let mut news = true;
        loop {
            let seen = self.watch.load(Ordering::Acquire);
            match self.attend(gpu, news) {
                Next::Sleep(until) => {
                    futex_wait(&self.watch, seen, until, Reach::Process);
                    news = self.watch.load(Ordering::Acquire) != seen;
                }
                Next::Look(head) => {
                    // A new context may have an old one's handle.
                    let now_ended = self.ended.load(Ordering::Acquire);
                    if ended != now_ended {
                        (context, ended) = (0, now_ended);
                    }
                    let look = || match head.pair.look(&mut context) {
                        Progress::Under { started } => Err(started),
                        over => Ok(look_at(over == Progress::Over, &head)),
                    };
                    news = match exit::unless(look) {
                        None => return,
                        Some(Ok(seen)) => self.landed(gpu, &head, seen),
                        Some(Err(started)) => self.goes_on(&head, started),
                    };
                }
            }
        }
    }

    fn oldest(&self) -> Option<Head> {
        let inner = self.lock();
        inner.flights.front().map(|flight| inner.head_of(flight))
    }

    /// Looks at the oldest flights from the program's own thread: the GPU may be further than expected.
    pub(super) fn catch_up(&self, gpu: &Gpu) {
        while let Some(head) = self.oldest()
            && head.pair.progress() == Progress::Over
        {
            self.landed(gpu, &head, look_at(true, &head));
        }
    }

    /// A flight was polled and is not over. Returns whether that changes anything for others.
    fn goes_on(&self, head: &Head, started: bool) -> bool {
        let now = monotonic_ns();
        let mut inner = self.lock();
        let Inner {
            flights, member, ..
        } = &mut *inner;
        let Some(flight) = flights.iter_mut().find(|flight| flight.id == head.id) else {
            return false;
        };
        flight.put_off(now);
        let place = flight.place;
        let was_blocked = flight.is_blocked;
        // A graph that has begun and should be over waits.
        let waits = started && flight.own_ns.is_some() && now > flight.over_ns;
        let started = (head.has_start && !waits).then_some(started);
        flight.is_blocked = if flight.marked {
            member.look(now, place, started)
        } else {
            (waits || started == Some(false)) && now > flight.over_ns + BLOCKED_NS
        };
        let is_blocked = flight.is_blocked;
        if is_blocked != was_blocked {
            inner.timeline.blocked(place, is_blocked);
        }
        is_blocked != was_blocked
    }

    /// The oldest flight of a stream is over. Returns whether that was news, which the caller publishes.
    fn landed(&self, gpu: &Gpu, head: &Head, mut seen: Seen) -> bool {
        let now = monotonic_ns();
        let mut inner = self.lock();
        // The end of its context may have come first.
        let at = inner.flights.iter().position(|flight| flight.id == head.id);
        let Some(flight) = at.and_then(|at| inner.flights.remove(at)) else {
            return false;
        };
        inner.spare.extend(flight.behind);
        // There is nothing between the events of a launch that failed.
        let timeless = flight.measured.is_some() && inner.lacks_times(&seen);
        inner.records.saw(seen.record_ns);
        seen.elapsed_ns = seen.elapsed_ns.map(|ns| inner.records.without(ns));
        if let Some(own) = flight.own_ns {
            seen.elapsed_ns = seen.elapsed_ns.map(|ns| ns.min(own));
        }
        let ran = inner.time(now, head.pair, flight.issued_ns, flight.call, &seen);
        let over_ns = ran.map_or(now, |(_, end)| end);
        let place = flight.place;
        if let Some(next) = inner.flights.iter_mut().find(|next| next.place == place) {
            next.expect(over_ns);
        }
        if flight.is_blocked {
            inner.timeline.blocked(place, false);
        }
        let usual = flight.measured.and_then(|key| gpu.tally.expected(key));
        let unsure = inner.timeline.unsure_ns();
        let earliest = ran.map(|(start, _)| start.saturating_sub(unsure));
        let known = usual.is_some_and(|usual| usual.is_sure);
        let whole_ns = seen.elapsed_ns;
        let (mut seen, rough) = seen.without_gap(earliest, flight.call, known);
        // If the call tells nothing about the launch, it took as long as others of its kind.
        let of = |ns: Option<u64>| {
            ran.map(|(start, end)| (latest(start, end, ns.or(usual.map(|usual| usual.ns))), end))
        };
        let mut ran = of(seen.elapsed_ns);
        if flight.marked
            && let Some(learnt) = inner.member.done(now, place, ran, seen.elapsed_ns)
        {
            let how = match (rough, learnt.alone) {
                (true, _) => Measure::Rough,
                (false, true) => Measure::Alone,
                (false, false) => Measure::Crowd,
            };
            gpu.tally.expect(learnt.key, learnt.ns, how);
            if !learnt.alone {
                // The neighbours' slices in between are not its own.
                let alone = gpu.tally.expected(learnt.key);
                seen.elapsed_ns = Some(alone.map_or(learnt.ns, |it| learnt.ns.min(it.ns)));
                ran = of(seen.elapsed_ns);
            }
        }
        let sms = gpu.sms.load(Ordering::Relaxed);
        let takes = |key| gpu.tally.known(key).and_then(|(_, ns)| ns);
        let needs = flight.measured.and_then(|key| gpu.tally.needs(key));
        let needs_ns = needs.map(|load| load.busy_ns);
        let given = gpu.tally.given(place);
        inner.timeline.given(place, given);
        // If the part of it that passed in the call is unknown, rather too much is counted than too little.
        let counted = match seen.elapsed_ns {
            Some(_) if rough => of(whole_ns),
            _ => ran,
        };
        let alone_ns = (inner.timeline).landed(now, place, counted, sms, needs_ns, takes);
        // A duration that is too short would count for long before one of its kind is measured again.
        let too_rough = |ns| rough && whole_ns.is_some_and(|whole| ns < whole / 2);
        if let Some(key) = flight.measured
            && let Some(ns) = seen.elapsed_ns.filter(|ns| !too_rough(*ns))
        {
            gpu.tally.learn(key, ns, alone_ns.unwrap_or(ns));
        }
        self.say_work(gpu, &mut inner);
        let others = inner.member.has_waiters();
        drop(inner);
        if timeless {
            gpu.note(NO_EVENT_TIMES);
            say::line(
                "the driver's CUDA events have no timestamps, so gshare cannot tell how long kernels take and does not \
                 enforce shares of GPU time on this GPU",
            );
        }
        if others {
            self.stir();
        }
        true
    }

    /// Waits for the events in a context that ends, but not for long: events that have not come by then never will.
    /// Destroys unused ones.
    pub(super) fn forget_context(&self, gpu: &Gpu, context: Handle) {
        let until = monotonic_ns() + PATIENCE_NS;
        let next = || {
            let inner = self.lock();
            let mut there = inner.flights.iter();
            let next = there.find(|flight| flight.pair.context == context);
            next.map(|flight| inner.head_of(flight))
        };
        // The watcher may handle each of them first.
        while let Some(head) = next() {
            let progress = head.pair.progress();
            if matches!(progress, Progress::Under { .. }) && monotonic_ns() < until {
                std::thread::sleep(std::time::Duration::from_micros(100));
                continue;
            }
            self.landed(gpu, &head, look_at(progress == Progress::Over, &head));
        }
        let gone = self.lock().take_spare(context);
        for pair in gone {
            pair.destroy();
        }
        self.ended.fetch_add(1, Ordering::Release);
        self.watch.fetch_add(1, Ordering::Release);
        futex_wake(&self.watch, Reach::Process);
    }
}

impl Inner {
    fn head_of(&self, flight: &super::Flight) -> Head {
        let context = flight.pair.context;
        let mut anchors = self.anchors.iter();
        Head {
            id: flight.id,
            pair: flight.pair,
            has_start: flight.call.is_some(),
            anchor: anchors.find(|a| a.pair.context == context).copied(),
            behind: flight.behind,
        }
    }

    /// A flight that is due for a poll.
    fn head(&self, now: u64) -> Option<Head> {
        let mut due = self.flights.iter().filter(|f| f.is_head && f.due_ns <= now);
        due.next().map(|flight| self.head_of(flight))
    }

    /// When the next poll is due, or something is expected to be over.
    fn due_ns(&self) -> Option<u64> {
        let heads = self.flights.iter().filter(|flight| flight.is_head);
        let due = heads.map(|flight| flight.due_ns);
        due.chain(self.over_ns).min()
    }
}

/// Latest start of a flight that took no longer than `ns`.
fn latest(start: u64, end: u64, ns: Option<u64>) -> u64 {
    ns.map_or(start, |ns| start.max(end.saturating_sub(ns)))
}

/// The state of a flight that is over.
fn look_at(came: bool, head: &Head) -> Seen {
    let Head {
        pair,
        anchor,
        behind,
        ..
    } = head;
    let record_ns = behind.filter(|_| came).and_then(|next| next.since_ns(pair));
    Seen {
        came,
        elapsed_ns: (came && head.has_start)
            .then(|| pair.elapsed_ns())
            .flatten(),
        since_anchor_ns: anchor
            .filter(|_| came)
            .and_then(|anchor| pair.since_ns(&anchor.pair)),
        record_ns: record_ns.and_then(|ns| u64::try_from(ns).ok()),
    }
}

/// Starts the thread that waits for a GPU's events, with the program's signals blocked.
fn start_watcher(gpu: &'static Gpu) -> bool {
    without_signals(|| {
        std::thread::Builder::new()
            .name("gshare-gate".to_owned())
            .stack_size(256 << 10)
            .spawn(move || super::of(gpu).watch(gpu))
            .is_ok()
    })
}

/// Runs `part` with all signals blocked; threads that it starts inherit that.
fn without_signals<R>(part: impl FnOnce() -> R) -> R {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid for the calls, the first is filled before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
    }
    let result = part();
    // SAFETY: the call above has filled the set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    result
}
