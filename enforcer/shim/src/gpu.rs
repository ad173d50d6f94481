//! One GPU of the claim as this process uses it: reserve before the driver is asked, commit or roll
//! back after.

use std::{
    ffi::c_void,
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

use gshare_abi::{
    Bell, GateView, GpuUuid, LimitsPage, Marks, Slot, State, Stripe, Stripes, UsagePage, WorkView,
    monotonic_ns,
};
use gshare_gate::{Flags, Frame, Signals, Tally, View, Word};

use crate::{
    ledger::{Charge, Ledger, Seat},
    mark::Thread,
};

#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) uuid: GpuUuid,
    /// The ledger's seat, for lock-free paths.
    limits: AtomicPtr<LimitsPage>,
    slot: AtomicPtr<Slot>,
    stripes: AtomicPtr<Stripes>,
    generation: AtomicU64,
    /// The service's epoch at the last registration.
    pub(crate) epoch: AtomicU64,
    usage: AtomicPtr<UsagePage>,
    number: AtomicUsize,
    /// Calls the arbiter; null if the service gave no bell.
    bell: AtomicPtr<Bell>,
    /// Owned by the layer above ([`crate::gate::of`]); null until the GPU is shared for the first time.
    pub(crate) gate: AtomicPtr<c_void>,
    pub(crate) tally: Tally,
    /// SMs that the driver shows to this process; 0 before the first query.
    pub(crate) sms: AtomicU32,
    /// Size of the blocks that small allocations share, in bytes.
    pub(crate) block_bytes: u64,
    ledger: Apart<Mutex<Ledger>>,
}

/// Keeps a value that threads contend for off the cache lines that all of them read.
#[repr(align(128))]
#[derive(Debug)]
struct Apart<T>(T);

/// How long a thread leaves the ledger to its holder at first, in nanoseconds, and how often.
const AWAY_NS: u64 = 2_000;
const PATIENT_ROUNDS: u32 = 6;

/// A service that was silent for this long is assumed gone if nothing else tells.
const HEARTBEAT_NS: u64 = 5_000_000_000;

/// The bell of a seat, leaked for the rest of the process.
fn bell_of(seat: &Seat) -> *mut Bell {
    let bell = seat.bell.map(std::ptr::from_ref);
    bell.map_or(std::ptr::null_mut(), <*const Bell>::cast_mut)
}

/// Apart, so that launches compare one word.
#[cold]
#[inline(never)]
fn comes_back(state: u32) -> bool {
    State::from_word(state) != State::NotGranted
}

impl Gpu {
    pub(crate) fn new(uuid: GpuUuid, seat: Seat) -> Self {
        let ledger = Ledger::new(seat);
        Self {
            uuid,
            limits: AtomicPtr::new(std::ptr::from_ref(seat.limits).cast_mut()),
            slot: AtomicPtr::new(std::ptr::from_ref(seat.slot()).cast_mut()),
            stripes: AtomicPtr::new(std::ptr::from_ref(seat.stripes()).cast_mut()),
            usage: AtomicPtr::new(std::ptr::from_ref(seat.usage).cast_mut()),
            number: AtomicUsize::new(seat.slot),
            bell: AtomicPtr::new(bell_of(&seat)),
            gate: AtomicPtr::new(std::ptr::null_mut()),
            tally: Tally::default(),
            sms: AtomicU32::new(0),
            generation: AtomicU64::new(seat.generation),
            epoch: AtomicU64::new(seat.limits.epoch.load(Ordering::Relaxed)),
            block_bytes: ledger.blocks.block_bytes(),
            ledger: Apart(Mutex::new(ledger)),
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        match self.ledger.0.try_lock() {
            Ok(ledger) => ledger,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.contended_ledger(),
        }
    }

    /// The ledger is held for less time than its cache lines take to another processor, let alone a system call. A
    /// thread that finds it held leaves it to that processor for some microseconds, which then works as fast as if
    /// alone; threads that contend at every call are several times as slow. After long futile attempts a thread sleeps.
    #[cold]
    #[inline(never)]
    fn contended_ledger(&self) -> MutexGuard<'_, Ledger> {
        for round in 0..PATIENT_ROUNDS {
            let until = monotonic_ns() + (AWAY_NS << round.min(3));
            while monotonic_ns() < until {
                std::hint::spin_loop();
            }
            match self.ledger.0.try_lock() {
                Ok(ledger) => return ledger,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.ledger.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn limits(&self) -> &'static LimitsPage {
        // SAFETY: points to a page that stays mapped for the rest of the process.
        unsafe { &*self.limits.load(Ordering::Acquire) }
    }

    /// Whether the process still owns its slot; takes no lock.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        // SAFETY: points into a page that stays mapped for the rest of the process.
        let slot = unsafe { &*self.slot.load(Ordering::Acquire) };
        slot.generation.load(Ordering::Relaxed) == self.generation.load(Ordering::Relaxed)
    }

    /// Whether the claim may use the GPU. A call that is inside when its claim is about to be detached goes on: the
    /// service waits for it.
    #[inline]
    pub(crate) fn granted(&self) -> bool {
        let word = self.limits().state_word().load(Ordering::Relaxed);
        word == State::Granted as u32 || comes_back(word)
    }

    pub(crate) fn marks(&self) -> Option<&'static Marks> {
        self.usage().marks.get(self.number.load(Ordering::Acquire))
    }

    /// Counts on a cache line that other threads seldom touch, or never: then without a locked instruction.
    #[inline]
    fn count(&self, thread: Thread, which: impl FnOnce(&Stripe) -> &AtomicU64, by: u64) {
        // SAFETY: points into a page that stays mapped for the rest of the process.
        let stripes = unsafe { &*self.stripes.load(Ordering::Acquire) };
        let word = which(&stripes[thread.stripe()]);
        if thread.has_own_stripe() {
            let before = word.load(Ordering::Relaxed);
            word.store(before.wrapping_add(by), Ordering::Relaxed);
        } else {
            word.fetch_add(by, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn launched(&self, thread: Thread, kernels: u64) {
        self.count(thread, |stripe| &stripe.launches, kernels);
    }

    pub(crate) fn copied(&self, thread: Thread, bytes: u64) {
        self.count(thread, |stripe| &stripe.copied, bytes);
    }

    /// Takes a new seat after the service has restarted.
    pub(crate) fn move_to(&self, seat: Seat) {
        let mut ledger = self.ledger();
        ledger.move_to(seat);
        self.limits.store(
            std::ptr::from_ref(seat.limits).cast_mut(),
            Ordering::Release,
        );
        self.slot.store(
            std::ptr::from_ref(seat.slot()).cast_mut(),
            Ordering::Release,
        );
        self.stripes.store(
            std::ptr::from_ref(seat.stripes()).cast_mut(),
            Ordering::Release,
        );
        self.usage
            .store(std::ptr::from_ref(seat.usage).cast_mut(), Ordering::Release);
        self.number.store(seat.slot, Ordering::Release);
        self.bell.store(bell_of(&seat), Ordering::Release);
        self.generation.store(seat.generation, Ordering::Relaxed);
        self.epoch
            .store(seat.limits.epoch.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn launches(&self) -> u64 {
        self.usage().launches(self.number.load(Ordering::Acquire))
    }

    /// Charge of all members of the claim, in bytes; takes no lock.
    #[inline]
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.usage().charged_bytes()
    }

    #[inline]
    fn usage(&self) -> &'static UsagePage {
        // SAFETY: points to a page that stays mapped for the rest of the process.
        unsafe { &*self.usage.load(Ordering::Acquire) }
    }

    /// The word with the mode and the turn.
    #[inline]
    pub(crate) fn turn(&self) -> Word {
        Word(self.limits().turn.word.load(Ordering::Relaxed))
    }

    fn bell(&self) -> Option<&'static Bell> {
        // SAFETY: null, or a bell that is never freed.
        unsafe { self.bell.load(Ordering::Acquire).as_ref() }
    }

    /// Whether the service lives: by the bell's other end, else by its heartbeat.
    pub(crate) fn service_lives(&self) -> bool {
        let seen = self.bell().and_then(Bell::service_lives);
        seen.unwrap_or_else(|| {
            let sign = self.limits().heartbeat_ns.load(Ordering::Relaxed);
            monotonic_ns() < sign.saturating_add(HEARTBEAT_NS)
        })
    }

    pub(crate) fn ring(&self) {
        if let Some(bell) = self.bell() {
            bell.ring();
        }
    }

    /// Further conditions of the word.
    pub(crate) fn gate_flags(&self) -> Flags {
        Flags(self.limits().turn.flags.load(Ordering::Relaxed))
    }

    /// Start and end of the turn.
    pub(crate) fn turn_ns(&self) -> Range<u64> {
        let turn = &self.limits().turn;
        turn.begins_ns.load(Ordering::Relaxed)..turn.ends_ns.load(Ordering::Relaxed)
    }

    /// The gate's view of the claim's pages.
    pub(crate) fn gate_view(&self, word: Word, alive: bool) -> View {
        let turn = &self.limits().turn;
        let turn_ns = self.turn_ns();
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let usage = self.usage();
        let own = self.number.load(Ordering::Acquire);
        let others = (0..usage.high_water()).filter(|slot| *slot != own);
        View {
            word,
            turn_begins_ns: turn_ns.start,
            turn_ends_ns: turn_ns.end,
            beat_ns: read(&turn.beat_ns),
            ahead_ns: read(&turn.ahead_ns),
            flags: self.gate_flags(),
            alive,
            frame: Frame {
                offset_ns: read(&turn.frame_offset_ns),
                window_ns: read(&turn.frame_window_ns),
            },
            others_used_ns: others
                .map(|slot| usage.gates[slot].view().used_ns)
                .fold(0, u64::saturating_add),
        }
    }

    /// Publishes the gate's signals to the arbiter; returns whether the arbiter must look at once. One thread at a
    /// time.
    pub(crate) fn say(&self, signals: &Signals) -> bool {
        if !self.holds() {
            return false;
        }
        let slot = self.number.load(Ordering::Acquire);
        self.usage().gates[slot].publish(&GateView {
            waiting: signals.waiting,
            busy: signals.busy,
            stamp: 0,
            expected_ns: signals.expected_ns,
            used_ns: signals.used_ns,
            held_ns: signals.held_ns,
            waited_ns: signals.waited_ns,
            demand_ns: signals.demand_ns,
            said_ns: signals.said_ns,
            since_ns: signals.since_ns,
        });
        signals.knock
    }

    /// Publishes the sums over the launches. One thread at a time.
    pub(crate) fn say_work(&self, work: &WorkView) {
        if self.holds() {
            let slot = self.number.load(Ordering::Acquire);
            self.usage().gates[slot].publish_work(work);
        }
    }

    fn granularity(&self) -> u64 {
        self.limits()
            .granularity_bytes
            .load(Ordering::Relaxed)
            .max(1)
    }

    /// Largest possible guarantee of the claim here at the service's last update, in bytes; `None` if unknown.
    pub(crate) fn reach(&self) -> Option<u64> {
        let limits = self.limits();
        let free = limits.claimable_bytes.load(Ordering::Relaxed);
        let request = limits.memory_request_bytes.load(Ordering::Relaxed);
        let charged = self.charged_bytes();
        (free != u64::MAX).then(|| request.max(charged).saturating_add(free))
    }

    /// Upper bound of the bytes that the driver takes for an allocation.
    pub(crate) fn rounded(&self, bytes: u64) -> u64 {
        let granularity = self.granularity();
        bytes
            .checked_next_multiple_of(granularity)
            .unwrap_or(u64::MAX)
    }

    pub(crate) fn note_mps(&self, sms: u64) {
        let ledger = self.ledger();
        if ledger.seat.holds() {
            ledger.seat.slot().mps_sms.store(sms, Ordering::Relaxed);
        }
    }

    pub(crate) fn note(&self, flags: u64) {
        let ledger = self.ledger();
        if ledger.seat.holds() {
            ledger.seat.slot().flags.fetch_or(flags, Ordering::Relaxed);
        }
    }

    /// The driver has taken the memory back.
    pub(crate) fn release(&self, charge: Charge, pointer: u64, bytes: u64) {
        let mut ledger = self.ledger();
        let cost = match charge {
            Charge::Shared => ledger.blocks.remove(pointer, bytes),
            Charge::Own(own) => own,
        };
        ledger.died(bytes);
        ledger.shrink(cost);
    }
}
