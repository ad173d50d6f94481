//! One GPU of the claim as this process uses it: reserve before the driver is asked, commit or roll
//! back after.

use std::{
    ffi::c_void,
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
    /// The same seat as the ledger's, for the paths that take no lock.
    limits: AtomicPtr<LimitsPage>,
    slot: AtomicPtr<Slot>,
    stripes: AtomicPtr<Stripes>,
    generation: AtomicU64,
    /// The service's epoch at the last registration.
    pub(crate) epoch: AtomicU64,
    usage: AtomicPtr<UsagePage>,
    number: AtomicUsize,
    /// By which the arbiter is called; null where the service gave none.
    bell: AtomicPtr<Bell>,
    /// The layer above's own ([`crate::gate::of`]); null until the GPU is shared for the first time.
    pub(crate) gate: AtomicPtr<c_void>,
    /// What launches come to.
    pub(crate) tally: Tally,
    /// SMs that the driver shows to this process; 0 before it was asked.
    pub(crate) sms: AtomicU32,
    /// Bytes of the blocks that small allocations share.
    pub(crate) block_bytes: u64,
    ledger: Apart<Mutex<Ledger>>,
}

/// On cache lines of its own: what threads fight for does not take with it what all of them read.
#[repr(align(128))]
#[derive(Debug)]
struct Apart<T>(T);

/// For so long the ledger is left to who holds it, at first, and how often that is done.
const AWAY_NS: u64 = 2_000;
const PATIENT_ROUNDS: u32 = 6;

/// A service that was silent for so long is taken for gone where nothing else tells.
const HEARTBEAT_NS: u64 = 5_000_000_000;

/// The bell of a seat, for the rest of the process.
fn bell_of(seat: &Seat) -> *mut Bell {
    let bell = seat.bell.map(std::ptr::from_ref);
    bell.map_or(std::ptr::null_mut(), <*const Bell>::cast_mut)
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

    /// The ledger is held for less than it takes to bring its cache lines to another processor, let alone than a call
    /// of the kernel. A thread that meets it held leaves it for some microseconds to the processor that has it, which is then
    /// as quick as if it were alone; threads that take it from each other at every call are several times as slow.
    /// A thread that comes in vain for long sleeps.
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

    /// Whether the slot is still this process's; takes no lock.
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
        self.limits().state() != State::NotGranted
    }

    /// The places for the marks of this process's threads.
    pub(crate) fn marks(&self) -> Option<&'static Marks> {
        self.usage().marks.get(self.number.load(Ordering::Acquire))
    }

    /// Counts on a cache line that other threads seldom touch, or never: then without a locked
    /// instruction.
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

    /// Counts a launch.
    #[inline]
    pub(crate) fn launched(&self, thread: Thread, kernels: u64) {
        self.count(thread, |stripe| &stripe.launches, kernels);
    }

    /// Counts bytes that were copied.
    pub(crate) fn copied(&self, thread: Thread, bytes: u64) {
        self.count(thread, |stripe| &stripe.copied, bytes);
    }

    /// Takes a new seat after the service has started anew.
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

    /// Launches of this process so far.
    pub(crate) fn launches(&self) -> u64 {
        self.usage().launches(self.number.load(Ordering::Acquire))
    }

    /// Bytes that all members of the claim are charged; takes no lock.
    #[inline]
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.usage().charged_bytes()
    }

    #[inline]
    fn usage(&self) -> &'static UsagePage {
        // SAFETY: points to a page that stays mapped for the rest of the process.
        unsafe { &*self.usage.load(Ordering::Acquire) }
    }

    /// The word that says whether the GPU is shared now, and whose turn it is.
    #[inline]
    pub(crate) fn turn(&self) -> Word {
        Word(self.limits().turn.word.load(Ordering::Relaxed))
    }

    fn bell(&self) -> Option<&'static Bell> {
        // SAFETY: null, or a bell that is never freed.
        unsafe { self.bell.load(Ordering::Acquire).as_ref() }
    }

    /// Whether the service lives: by the bell's other end, else by its last sign of life.
    pub(crate) fn service_lives(&self) -> bool {
        let seen = self.bell().and_then(Bell::service_lives);
        seen.unwrap_or_else(|| {
            let sign = self.limits().heartbeat_ns.load(Ordering::Relaxed);
            monotonic_ns() < sign.saturating_add(HEARTBEAT_NS)
        })
    }

    /// Has the arbiter look.
    pub(crate) fn ring(&self) {
        if let Some(bell) = self.bell() {
            bell.ring();
        }
    }

    /// What holds beside the word.
    pub(crate) fn gate_flags(&self) -> Flags {
        Flags(self.limits().turn.flags.load(Ordering::Relaxed))
    }

    /// What the claim's pages say to the gate.
    pub(crate) fn gate_view(&self, word: Word, alive: bool) -> View {
        let turn = &self.limits().turn;
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let usage = self.usage();
        let own = self.number.load(Ordering::Acquire);
        let others = (0..usage.high_water()).filter(|slot| *slot != own);
        View {
            word,
            turn_ends_ns: read(&turn.ends_ns),
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

    /// Tells the arbiter what the gate says of this process; whether it has to look at once. One thread
    /// at a time.
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

    /// Tells the service what the launches have come to. One thread at a time.
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

    /// The most that the claim could be guaranteed here when the service last looked, in bytes;
    /// `None` when it does not say.
    pub(crate) fn reach(&self) -> Option<u64> {
        let limits = self.limits();
        let free = limits.claimable_bytes.load(Ordering::Relaxed);
        let request = limits.memory_request_bytes.load(Ordering::Relaxed);
        let charged = self.charged_bytes();
        (free != u64::MAX).then(|| request.max(charged).saturating_add(free))
    }

    /// The bytes that the driver takes for so many, at most.
    pub(crate) fn rounded(&self, bytes: u64) -> u64 {
        let granularity = self.granularity();
        bytes
            .checked_next_multiple_of(granularity)
            .unwrap_or(u64::MAX)
    }

    /// Notes the SMs of a client of MPS.
    pub(crate) fn note_mps(&self, sms: u64) {
        let ledger = self.ledger();
        if ledger.seat.holds() {
            ledger.seat.slot().mps_sms.store(sms, Ordering::Relaxed);
        }
    }

    /// Sets bits in the slot's flags.
    pub(crate) fn note(&self, flags: u64) {
        let ledger = self.ledger();
        if ledger.seat.holds() {
            ledger.seat.slot().flags.fetch_or(flags, Ordering::Relaxed);
        }
    }

    /// The driver has the memory back.
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
