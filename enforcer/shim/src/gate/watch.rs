//! The thread of a GPU that waits for the gate's events, and what their ends tell: the arbiter, where things
//! stand; the service, what the launches have come to.

use std::sync::{MutexGuard, atomic::Ordering};

use gshare_abi::{Flight, Reach, WorkView, futex_wait, futex_wake, monotonic_ns};
use gshare_gate::{Rest, Word};

use super::{Anchor, Gate, Inner, PATIENCE_NS, SOON_NS, Seen, Watcher};
use crate::{
    cuda::Handle,
    events::{self, Pair},
    gpu::Gpu,
};

/// What whoever attends to a gate does next.
enum Next {
    /// Waits for this flight, whose end is timed by an anchor.
    Flight(u64, Pair, Option<Anchor>),
    /// Sleeps, at most until then.
    Sleep(Option<u64>),
}

impl Gate {
    /// Tells the service what the launches have come to, and what is on the GPU.
    pub(super) fn say_work(&self, gpu: &Gpu, inner: &mut Inner) {
        let now = monotonic_ns();
        let (done, current) = inner.timeline.tell(now);
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

    /// Has the watcher look at what has changed; starts it where there is none.
    pub(super) fn wake_watcher(
        &'static self,
        gpu: &'static Gpu,
        mut inner: MutexGuard<'static, Inner>,
    ) {
        let watcher = inner.watcher;
        match watcher {
            Watcher::Absent if start_watcher(gpu) => inner.watcher = Watcher::Awake,
            Watcher::Absent => {
                // No thread to be had: whoever launches waits for its own work meanwhile.
                drop(inner);
                while let Next::Flight(id, pair, anchor) = self.attend(gpu) {
                    let came = pair.wait_here();
                    self.landed(gpu, id, pair, look_at(came, &pair, anchor));
                }
                return;
            }
            Watcher::Asleep(until)
                if until.is_none_or(|until| until > monotonic_ns() + SOON_NS) =>
            {
                inner.watcher = Watcher::Awake;
            }
            // What was launched before comes to its end first.
            Watcher::Asleep(_) | Watcher::Awake => return,
        }
        drop(inner);
        if matches!(watcher, Watcher::Asleep(_)) {
            self.watch.fetch_add(1, Ordering::Release);
            futex_wake(&self.watch, Reach::Process);
        }
    }

    /// What is to be waited for now; the arbiter hears where things stand.
    fn attend(&self, gpu: &Gpu) -> Next {
        let word = Word(gpu.limits().turn.word.load(Ordering::Acquire));
        let now = monotonic_ns();
        let mut inner = self.lock();
        self.see(gpu, &mut inner, now, word);
        let unused = self.cells.unused_ns();
        let rest = inner.member.rest(now, gpu.launches(), unused);
        if rest == Rest::Idle && inner.member.is_told_of() {
            // The next launch is to be heard of.
            inner.member.refund(self.cells.clear());
        }
        let knock = gpu.say(&inner.member.signals(now));
        let next = match (rest, inner.flights.front()) {
            (_, Some(flight)) => {
                let context = flight.pair.context;
                let mut anchors = inner.anchors.iter();
                let anchor = anchors.find(|a| a.pair.context == context).copied();
                Next::Flight(flight.id, flight.pair, anchor)
            }
            (Rest::At(until), None) => Next::Sleep(Some(until)),
            (Rest::Marker | Rest::Idle, None) => Next::Sleep(None),
        };
        if inner.watcher != Watcher::Absent {
            inner.watcher = match next {
                Next::Sleep(until) => Watcher::Asleep(until),
                Next::Flight(..) => Watcher::Awake,
            };
        }
        drop(inner);
        if knock {
            gpu.ring();
        }
        next
    }

    /// Waits for what is on the GPU, for the rest of the process.
    pub(super) fn watch(&self, gpu: &Gpu) {
        events::relax_this_thread();
        let (mut context, mut ended) = (0, 0);
        loop {
            let seen = self.watch.load(Ordering::Acquire);
            match self.attend(gpu) {
                Next::Sleep(until) => futex_wait(&self.watch, seen, until, Reach::Process),
                Next::Flight(id, pair, anchor) => {
                    // A new context may have an old one's handle.
                    let now_ended = self.ended.load(Ordering::Acquire);
                    if ended != now_ended {
                        (context, ended) = (0, now_ended);
                    }
                    let came = pair.wait(&mut context);
                    self.landed(gpu, id, pair, look_at(came, &pair, anchor));
                }
            }
        }
    }

    /// The oldest flight is over.
    fn landed(&self, gpu: &Gpu, id: u64, pair: Pair, seen: Seen) {
        let now = monotonic_ns();
        let mut inner = self.lock();
        // The end of a context may have been quicker.
        if inner.flights.front().is_none_or(|flight| flight.id != id) {
            return;
        }
        let Some(flight) = inner.flights.pop_front() else {
            return;
        };
        let ran = inner.time(now, pair, flight.issued_ns, &seen);
        let known = self.durations.knows(flight.measured);
        let mut seen = seen.without_gap(ran, flight.call_ns, known);
        if flight.marked
            && let Some(learnt) = inner.member.done(now, seen.elapsed_ns)
        {
            self.durations.learn(learnt.key, learnt.ns, learnt.alone);
            if !learnt.alone {
                // The neighbours' slices in between are not its own.
                let alone = self.durations.get(learnt.key);
                seen.elapsed_ns = Some(learnt.ns.min(alone.unwrap_or(learnt.ns)));
            }
        }
        let ran = ran.map(|(start, end)| {
            let alone = seen.elapsed_ns.map(|ns| end.saturating_sub(ns));
            (alone.map_or(start, |from| from.max(start)), end)
        });
        let sms = gpu.sms.load(Ordering::Relaxed);
        let takes = |key| gpu.tally.known(key).and_then(|(_, ns)| ns);
        let needs = flight.measured.and_then(|key| gpu.tally.needs(key));
        let needs_ns = needs.map(|load| load.busy_ns);
        let alone_ns = inner.timeline.landed(now, ran, sms, needs_ns, takes);
        if let Some(key) = flight.measured
            && let Some(ns) = seen.elapsed_ns
        {
            gpu.tally.learn(key, ns, alone_ns.unwrap_or(ns));
        }
        self.say_work(gpu, &mut inner);
        let others = inner.member.has_waiters();
        let knock = gpu.say(&inner.member.signals(now));
        drop(inner);
        if knock {
            gpu.ring();
        }
        if others || self.leaving.swap(false, Ordering::SeqCst) {
            self.stir();
        }
    }

    /// Waits for the events in a context, which its end does in any case, and destroys those that nothing uses.
    pub(super) fn forget_context(&self, context: Handle) {
        let until = monotonic_ns() + PATIENCE_NS;
        let last = {
            let inner = self.lock();
            let mut there = inner.flights.iter().rev();
            let last = there.find(|flight| flight.pair.context == context);
            last.map(|flight| (flight.id, flight.pair))
        };
        if let Some((id, pair)) = last {
            // Marks come in the order of launches: when the last is over, so are those before it.
            pair.wait_here();
            loop {
                self.leaving.store(true, Ordering::SeqCst);
                let stirred = self.stir.load(Ordering::SeqCst);
                let oldest = self.lock().flights.front().map(|flight| flight.id);
                if oldest.is_none_or(|oldest| oldest > id) || monotonic_ns() >= until {
                    break;
                }
                futex_wait(&self.stir, stirred, Some(until), Reach::Process);
            }
        }
        let gone = self.lock().take_spare(context);
        for pair in gone {
            pair.destroy();
        }
        self.ended.fetch_add(1, Ordering::Release);
    }
}

/// What is known of a flight whose second event was waited for.
fn look_at(came: bool, pair: &Pair, anchor: Option<Anchor>) -> Seen {
    Seen {
        came,
        elapsed_ns: came.then(|| pair.elapsed_ns()).flatten(),
        since_anchor_ns: anchor
            .filter(|_| came)
            .and_then(|anchor| pair.since_ns(&anchor.pair)),
    }
}

/// Starts the thread that waits for a GPU's events. No signal of the program's is handled there.
fn start_watcher(gpu: &'static Gpu) -> bool {
    without_signals(|| {
        std::thread::Builder::new()
            .name("gshare-gate".to_owned())
            .stack_size(256 << 10)
            .spawn(move || gpu.gate().watch(gpu))
            .is_ok()
    })
}

/// Runs `part` with all signals held back; threads that it starts inherit that.
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
