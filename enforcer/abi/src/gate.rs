//! What a process tells the arbiter of its GPU, in the usage page: a slot beside those of the memory, on
//! cache lines of its own.

use std::sync::atomic::{AtomicU64, Ordering};

/// A thread of the process waits to launch.
const WAITING: u64 = 1;
/// Work of the process is on the GPU.
const BUSY: u64 = 2;

/// The words. The process is the only writer while it lives.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct GateSlot {
    flags: AtomicU64,
    /// Grows with every publication.
    stamp: AtomicU64,
    expected_ns: AtomicU64,
    used_ns: AtomicU64,
    waited_ns: AtomicU64,
    _pad: [AtomicU64; 27],
}

/// What the words say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GateView {
    /// Whether a thread waits to launch.
    pub waiting: bool,
    /// Whether work is on the GPU.
    pub busy: bool,
    /// Number of the publication.
    pub stamp: u64,
    /// CLOCK_MONOTONIC at which that work is expected to be over, in nanoseconds.
    pub expected_ns: u64,
    /// GPU time used so far, in nanoseconds.
    pub used_ns: u64,
    /// Time during which some thread was held back so far, in nanoseconds.
    pub waited_ns: u64,
}

impl GateSlot {
    /// Says something new; its number follows the last one's. One thread at a time.
    pub fn publish(&self, view: &GateView) {
        let waiting = if view.waiting { WAITING } else { 0 };
        let flags = waiting | if view.busy { BUSY } else { 0 };
        self.expected_ns.store(view.expected_ns, Ordering::Relaxed);
        self.used_ns.store(view.used_ns, Ordering::Relaxed);
        self.waited_ns.store(view.waited_ns, Ordering::Relaxed);
        self.flags.store(flags, Ordering::Release);
        let next = self.stamp.load(Ordering::Relaxed).wrapping_add(1);
        self.stamp.store(next, Ordering::Release);
    }

    /// What was said last. The figures may be those of two publications that follow each other.
    pub fn view(&self) -> GateView {
        let stamp = self.stamp.load(Ordering::Acquire);
        let flags = self.flags.load(Ordering::Acquire);
        GateView {
            waiting: flags & WAITING != 0,
            busy: flags & BUSY != 0,
            stamp,
            expected_ns: self.expected_ns.load(Ordering::Relaxed),
            used_ns: self.used_ns.load(Ordering::Relaxed),
            waited_ns: self.waited_ns.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn clear(&self) {
        for word in [
            &self.flags,
            &self.stamp,
            &self.expected_ns,
            &self.used_ns,
            &self.waited_ns,
        ] {
            word.store(0, Ordering::Relaxed);
        }
    }
}

const _: () = assert!(size_of::<GateSlot>() == 256);
