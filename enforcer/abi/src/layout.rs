//! The two pages. Every word is an atomic, so a torn or concurrent read yields a stale number and never undefined
//! behaviour.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{GpuUuid, gate::GateSlot};

/// Version of both layouts and of the registration message.
pub const ABI_VERSION: u32 = 3;
/// Bytes of a [`LimitsPage`] and of the file that holds it.
pub const LIMITS_BYTES: usize = 4096;
/// Processes that one claim can have on one GPU.
pub const SLOTS: usize = 128;
/// Counters per process: its threads spread over them, so that their launches do not contend for a cache line.
pub const STRIPES: usize = 16;
/// Bytes of a [`UsagePage`] and of the memfd that holds it.
pub const USAGE_BYTES: usize = 4096 + SLOTS * (256 + STRIPES * 128 + 256 + MARKS * 64);
/// Threads per process that have a word of their own for the driver call they are in.
pub const MARKS: usize = 128;
/// Unit in which the driver allocates device memory, unless the limits page says otherwise.
pub const GRANULARITY_BYTES: u64 = 2 << 20;

pub(crate) const LIMITS_MAGIC: u64 = u64::from_le_bytes(*b"gshrlim1");
pub(crate) const USAGE_MAGIC: u64 = u64::from_le_bytes(*b"gshruse1");

/// Whether the claim may use its GPU now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// The claim holds the GPU.
    Granted = 1,
    /// The claim has ended or is not yet granted: allocations and launches are refused.
    NotGranted = 2,
    /// The claim's memory is in host RAM: driver calls wait.
    Detached = 3,
    /// Its memory is about to move to host RAM: calls wait.
    Detaching = 4,
}

/// States from this one on hold calls back.
pub const WAITS_FROM: u32 = State::Detached as u32;

/// Bit of [`Slot::flags`]: the process allocated managed memory.
pub const USES_MANAGED: u64 = 1;
/// Bit of [`Slot::flags`]: more than [`MARKS`] threads call the driver; the calls of the rest are not seen.
pub const HAS_CROWD: u64 = 2;
/// Bit of [`Slot::flags`]: the process shares memory or events with others.
pub const SHARES_MEMORY: u64 = 4;
/// Bit of [`Slot::flags`]: the process uses multicast between GPUs, as NCCL does.
pub const USES_MULTICAST: u64 = 8;
/// Bit of [`Slot::flags`]: the process initialised CUDA with `CUDA_VISIBLE_DEVICES` set.
pub const CHOSE_DEVICES: u64 = 16;
/// Bit of [`Slot::flags`]: the process uses memory of graphics or of other drivers.
pub const USES_FOREIGN: u64 = 32;
/// Bit of [`Slot::flags`]: the driver's events carry no times, so the duration of kernels is unknown.
pub const NO_EVENT_TIMES: u64 = 64;
/// Bit of [`Slot::flags`]: kernels of the process can start others (dynamic parallelism), which no launch shows.
pub const STARTS_KERNELS: u64 = 128;

impl State {
    /// The state behind a stored word; anything unknown is `NotGranted`.
    pub fn from_word(word: u32) -> Self {
        match word {
            1 => Self::Granted,
            3 => Self::Detached,
            4 => Self::Detaching,
            _ => Self::NotGranted,
        }
    }
}

/// What one claim may use on one GPU. Written by the service only.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct LimitsPage {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) bytes: AtomicU32,
    pub(crate) claim: AtomicU64,
    pub(crate) uuid: [AtomicU64; 2],
    pub(crate) token: AtomicU64,
    /// Grows with every start of the service; members that see it change register again.
    pub epoch: AtomicU64,
    pub(crate) state: AtomicU32,
    pub(crate) gpu_index: AtomicU32,
    /// Maximum sum of the members' charges, in bytes of device memory.
    pub memory_cap_bytes: AtomicU64,
    /// Guaranteed bytes of device memory.
    pub memory_request_bytes: AtomicU64,
    /// Bytes that a process's context takes on this GPU.
    pub context_overhead_bytes: AtomicU64,
    /// Unit in which the driver allocates device memory, in bytes.
    pub granularity_bytes: AtomicU64,
    /// Guaranteed share of the SMs, in thousandths.
    pub sm_request_permille: AtomicU32,
    /// Largest share of the SMs, in thousandths.
    pub sm_limit_permille: AtomicU32,
    /// Bytes by which a claim's guarantee could grow on the GPU at the service's last update; a hint, `u64::MAX` if
    /// unknown.
    pub claimable_bytes: AtomicU64,
    /// CLOCK_MONOTONIC of the service's last sign of life, in nanoseconds.
    pub heartbeat_ns: AtomicU64,
    /// Part of the SMs through MPS in thousandths of a percent, for programs that start now; 0 for a claim without MPS.
    pub mps_percentage_milli: AtomicU32,
    /// Device memory that one of its processes may have through MPS, in MiB, for programs that start now; 0 as above.
    pub mps_pinned_mib: AtomicU32,
    /// Turns on the GPU.
    pub turn: Turn,
}

/// What the arbiter of a GPU publishes to a claim. Every launch reads the first word, and the rest only if needed.
/// Times are CLOCK_MONOTONIC in nanoseconds.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Turn {
    /// The mode in the lowest two bits (0: the GPU is not shared), and a number that changes with every decision. A
    /// futex.
    pub word: AtomicU32,
    _pad0: AtomicU32,
    /// End of the turn.
    pub ends_ns: AtomicU64,
    /// The arbiter's last sign of life while claims take turns.
    pub beat_ns: AtomicU64,
    /// Start of the claim's window in a fixed frame of time, used when no arbiter decides.
    pub frame_offset_ns: AtomicU64,
    /// Length of that window; 0 for none.
    pub frame_window_ns: AtomicU64,
    /// How far the claim may run ahead of the GPU; 0: as the mode allows.
    pub ahead_ns: AtomicU64,
    /// Further conditions of the mode, as bits of the gate's flags.
    pub flags: AtomicU32,
    _pad1: AtomicU32,
    /// Start of the turn; until then it is another claim's. In the past, or 0: it has begun.
    pub begins_ns: AtomicU64,
    _pad2: [AtomicU64; 8],
}

impl LimitsPage {
    /// Whether the claim may use the GPU now.
    #[inline]
    pub fn state(&self) -> State {
        State::from_word(self.state.load(Ordering::Relaxed))
    }

    /// The word behind [`Self::state`], for code that must read it in one instruction.
    pub fn state_word(&self) -> &AtomicU32 {
        &self.state
    }

    /// The GPU's number for messages (NVML's index), if set.
    pub fn gpu_index(&self) -> Option<u32> {
        self.gpu_index.load(Ordering::Relaxed).checked_sub(1)
    }

    pub fn claim(&self) -> u64 {
        self.claim.load(Ordering::Relaxed)
    }

    /// Ties the usage pages of this grant to this page.
    pub fn token(&self) -> u64 {
        self.token.load(Ordering::Relaxed)
    }

    pub fn uuid(&self) -> GpuUuid {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.uuid[0].load(Ordering::Relaxed).to_le_bytes());
        bytes[8..].copy_from_slice(&self.uuid[1].load(Ordering::Relaxed).to_le_bytes());
        GpuUuid(bytes)
    }
}

/// Use of a GPU by one process of a claim. The process is the only writer while it lives; the service writes when it
/// hands the slot out and when it takes it back.
///
/// The two halves lie on different cache lines: the owner writes the first at every allocation and neighbours read it
/// at theirs; the second seldom changes.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Slot {
    /// Bytes that count towards the cap.
    pub charge: AtomicU64,
    /// Bytes of a reservation that is being decided.
    pub reserving: AtomicU64,
    /// Bytes that the program asked for.
    pub requested: AtomicU64,
    /// Part of `charge` that is context overhead.
    pub context_bytes: AtomicU64,
    /// Live allocations.
    pub allocations: AtomicU64,
    _pad0: [AtomicU64; 11],
    /// Times the slot was handed out. A member with another number has lost the slot.
    pub generation: AtomicU64,
    /// Start time of the process in clock ticks after boot (`/proc/PID/stat`, field 22).
    pub start_time: AtomicU64,
    pub(crate) pid: AtomicU32,
    pub(crate) in_use: AtomicU32,
    /// Allocations refused at the cap.
    pub refusals: AtomicU64,
    /// Size of the last refused allocation.
    pub last_refused_bytes: AtomicU64,
    /// CLOCK_MONOTONIC of the last refusal in nanoseconds; 0 before the first.
    pub last_refusal_ns: AtomicU64,
    /// Driver features used: [`USES_MANAGED`] and the other bits.
    pub flags: AtomicU64,
    /// Written by the service: launches at its last poll, and CLOCK_MONOTONIC of the poll that last found new ones; 0
    /// before the first.
    pub(crate) launches_seen: AtomicU64,
    pub(crate) launched_ns: AtomicU64,
    /// SMs that the driver shows to an MPS client; 0 for other processes.
    pub mps_sms: AtomicU64,
    /// Highest sum of the charges of all members that the process has seen, in bytes.
    pub charge_peak: AtomicU64,
    /// Identifies the copy of the proxy that counts for the process, by an address of its own: another copy in the same
    /// process finds it there.
    pub copy: AtomicU64,
    _pad1: [AtomicU64; 4],
}

impl Slot {
    /// Process that has the slot.
    pub fn owner(&self) -> Option<u32> {
        let pid = self.pid.load(Ordering::Relaxed);
        (self.in_use.load(Ordering::SeqCst) != 0 && pid != 0).then_some(pid)
    }

    /// Empties the slot and resets its counters.
    pub(crate) fn clear(&self) {
        // The charge goes first: a reader in between sees too little use, never bytes without an owner.
        self.reserving.store(0, Ordering::SeqCst);
        self.charge.store(0, Ordering::SeqCst);
        for word in [
            &self.requested,
            &self.context_bytes,
            &self.allocations,
            &self.start_time,
            &self.refusals,
            &self.last_refused_bytes,
            &self.last_refusal_ns,
            &self.flags,
            &self.launches_seen,
            &self.launched_ns,
            &self.mps_sms,
            &self.charge_peak,
            &self.copy,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.pid.store(0, Ordering::Relaxed);
        self.in_use.store(0, Ordering::SeqCst);
    }
}

/// Counters of some threads of a process.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Stripe {
    /// Kernels launched.
    pub launches: AtomicU64,
    /// Bytes copied to, from and on the GPU, if the calls state the size.
    pub copied: AtomicU64,
    _pad: [AtomicU64; 14],
}

/// The stripes of one process.
pub type Stripes = [Stripe; STRIPES];

/// The driver call of a thread: 0 for none.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Mark {
    /// A number of the entry point, above 0.
    pub entry: AtomicU32,
    _pad: [AtomicU32; 15],
}

impl Mark {
    /// A mark for no call.
    pub const fn new() -> Self {
        Self {
            entry: AtomicU32::new(0),
            _pad: [const { AtomicU32::new(0) }; 15],
        }
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self::new()
    }
}

/// The marks of one process.
pub type Marks = [Mark; MARKS];

/// The use of one claim on one GPU: a slot per process.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct UsagePage {
    pub(crate) header: UsageHeader,
    /// The slots; they never move.
    pub slots: [Slot; SLOTS],
    /// The launch counters of each slot.
    pub stripes: [Stripes; SLOTS],
    /// Gate figures of each slot's process.
    pub gates: [GateSlot; SLOTS],
    /// The driver calls of each slot's threads. For a claim with several GPUs the first one's page counts.
    pub marks: [Marks; SLOTS],
}

#[repr(C, align(4096))]
#[derive(Debug)]
pub(crate) struct UsageHeader {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) bytes: AtomicU32,
    pub(crate) claim: AtomicU64,
    pub(crate) token: AtomicU64,
    pub(crate) uuid: [AtomicU64; 2],
    pub(crate) high_water: AtomicU32,
}

impl UsagePage {
    /// Number of slots from the start that were ever handed out.
    #[inline]
    pub fn high_water(&self) -> usize {
        (self.header.high_water.load(Ordering::Acquire) as usize).min(SLOTS)
    }

    /// Kernels launched by the slot's process.
    pub fn launches(&self, slot: usize) -> u64 {
        self.striped(slot).fold(0, |sum: u64, stripe| {
            sum.saturating_add(stripe.launches.load(Ordering::Relaxed))
        })
    }

    /// Bytes copied by the slot's process.
    pub fn copied(&self, slot: usize) -> u64 {
        self.striped(slot).fold(0, |sum: u64, stripe| {
            sum.saturating_add(stripe.copied.load(Ordering::Relaxed))
        })
    }

    fn striped(&self, slot: usize) -> impl Iterator<Item = &Stripe> {
        self.stripes.get(slot).into_iter().flatten()
    }

    pub(crate) fn clear(&self, slot: usize) {
        self.slots[slot].clear();
        self.gates[slot].clear();
        for stripe in self.striped(slot) {
            stripe.launches.store(0, Ordering::Relaxed);
            stripe.copied.store(0, Ordering::Relaxed);
        }
        for mark in &self.marks[slot] {
            // An untouched page of memory stays untouched.
            if mark.entry.load(Ordering::Relaxed) != 0 {
                mark.entry.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Threads of the slot's process that are inside driver calls.
    pub fn calls(&self, slot: usize) -> usize {
        let marks = self.marks.get(slot).into_iter().flatten();
        marks
            .filter(|mark| mark.entry.load(Ordering::SeqCst) != 0)
            .count()
    }

    /// Present charge of all members, in bytes.
    pub fn charged_bytes(&self) -> u64 {
        self.slots[..self.high_water()]
            .iter()
            .fold(0, |sum: u64, slot| {
                sum.saturating_add(slot.charge.load(Ordering::SeqCst))
            })
    }
}

/// Programs keep the library that they started with, so the fields stay where 0.2 has them.
macro_rules! stay {
    ($($page:ty { $($field:ident $at:literal,)* })*) => {
        $($(const _: () = assert!(std::mem::offset_of!($page, $field) == $at);)*)*
    };
}

stay! {
    LimitsPage {
        magic 0, version 8, bytes 12, claim 16, uuid 24, token 40, epoch 48, state 56, gpu_index 60,
        memory_cap_bytes 64, memory_request_bytes 72, context_overhead_bytes 80, granularity_bytes 88,
        sm_request_permille 96, sm_limit_permille 100, claimable_bytes 104, heartbeat_ns 112,
        mps_percentage_milli 120, mps_pinned_mib 124, turn 128,
    }
    Turn {
        word 0, ends_ns 8, beat_ns 16, frame_offset_ns 24, frame_window_ns 32, ahead_ns 40, flags 48,
        begins_ns 56,
    }
    Slot {
        charge 0, reserving 8, requested 16, context_bytes 24, allocations 32, generation 128, start_time 136,
        pid 144, in_use 148, refusals 152, last_refused_bytes 160, last_refusal_ns 168, flags 176,
        launches_seen 184, launched_ns 192, mps_sms 200, charge_peak 208, copy 216,
    }
    Stripe {
        launches 0, copied 8,
    }
    UsagePage {
        header 0, slots 4096, stripes 36864, gates 299008, marks 331776,
    }
    UsageHeader {
        magic 0, version 8, bytes 12, claim 16, token 24, uuid 32, high_water 48,
    }
    Mark {
        entry 0,
    }
}

const _: () = assert!(size_of::<LimitsPage>() == LIMITS_BYTES);
const _: () = assert!(size_of::<Slot>() == 256);
const _: () = assert!(size_of::<UsageHeader>() == 4096);
const _: () = assert!(size_of::<UsagePage>() == USAGE_BYTES);
const _: () = assert!(size_of::<Stripe>() == 128);
const _: () = assert!(size_of::<Turn>() == 128);
const _: () = assert!(size_of::<Mark>() == 64);
