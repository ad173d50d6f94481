//! What a process publishes to the arbiter of its GPU in the usage page: a slot of its own cache lines, beside the
//! memory slots.

use std::sync::atomic::{AtomicU64, Ordering, fence};

const WAITING: u64 = 1;
const BUSY: u64 = 2;

/// The process is the only writer while it lives.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct GateSlot {
    flags: AtomicU64,
    /// Grows with every publication.
    stamp: AtomicU64,
    expected_ns: AtomicU64,
    used_ns: AtomicU64,
    waited_ns: AtomicU64,
    demand_ns: AtomicU64,
    said_ns: AtomicU64,
    since_ns: AtomicU64,
    held_ns: AtomicU64,
    _pad: [AtomicU64; 7],
    work: WorkWords,
}

/// Sums over the process's launches.
#[repr(C, align(128))]
#[derive(Debug)]
struct WorkWords {
    /// Odd while the rest is being written.
    turn: AtomicU64,
    busy_ns: AtomicU64,
    sm_ns: AtomicU64,
    warp_ns: AtomicU64,
    unmeasured: AtomicU64,
    since_ns: AtomicU64,
    flight_ns: AtomicU64,
    sms_milli: AtomicU64,
    warps_milli: AtomicU64,
    _pad: [AtomicU64; 7],
}

// As in the other pages, fields stay where 0.2 has them.
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(GateSlot, expected_ns) == 16 && offset_of!(GateSlot, said_ns) == 48);
    assert!(offset_of!(GateSlot, held_ns) == 64 && offset_of!(GateSlot, work) == 128);
    assert!(offset_of!(WorkWords, warps_milli) == 64 && size_of::<GateSlot>() == 256);
};

/// Sums over the launches of a process so far, and its work on the GPU now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkView {
    /// Nanoseconds in which its kernels ran; kernels of several streams each count.
    pub busy_ns: u64,
    /// The same times the SMs with a block.
    pub sm_ns: u64,
    /// The same times the resident warps.
    pub warp_ns: u64,
    /// Launches that could not be measured and are not in the sums.
    pub unmeasured: u64,
    /// Work on the GPU that is not in the sums yet.
    pub flight: Option<Flight>,
}

/// Work on the GPU that is not known to have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flight {
    /// CLOCK_MONOTONIC in nanoseconds: it began no earlier.
    pub since_ns: u64,
    /// Expected duration; `None` for a launch that was never measured.
    pub expected_ns: Option<u64>,
    /// SMs that it fills, in thousandths.
    pub sms_milli: u64,
    /// Resident warps, in thousandths.
    pub warps_milli: u64,
}

/// What a process last published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GateView {
    /// Whether a thread waits to launch.
    pub waiting: bool,
    /// Whether work is on the GPU.
    pub busy: bool,
    /// Number of the publication.
    pub stamp: u64,
    /// CLOCK_MONOTONIC in nanoseconds at which that work is expected to end.
    pub expected_ns: u64,
    /// GPU time used so far, in nanoseconds.
    pub used_ns: u64,
    /// The same, plus the time until work began and until its end was seen, in nanoseconds.
    pub held_ns: u64,
    /// Time during which some thread was held back so far, in nanoseconds.
    pub waited_ns: u64,
    /// Sum of the times that its launches take alone on the GPU, in nanoseconds.
    pub demand_ns: u64,
    /// CLOCK_MONOTONIC of the publication, in nanoseconds.
    pub said_ns: u64,
    /// CLOCK_MONOTONIC in nanoseconds since when its oldest work is on the GPU; 0 without work.
    pub since_ns: u64,
}

impl GateSlot {
    /// Publishes new figures under the next number. One thread at a time.
    pub fn publish(&self, view: &GateView) {
        let waiting = if view.waiting { WAITING } else { 0 };
        let flags = waiting | if view.busy { BUSY } else { 0 };
        self.expected_ns.store(view.expected_ns, Ordering::Relaxed);
        self.used_ns.store(view.used_ns, Ordering::Relaxed);
        self.held_ns.store(view.held_ns, Ordering::Relaxed);
        self.waited_ns.store(view.waited_ns, Ordering::Relaxed);
        self.demand_ns.store(view.demand_ns, Ordering::Relaxed);
        self.said_ns.store(view.said_ns, Ordering::Relaxed);
        self.since_ns.store(view.since_ns, Ordering::Relaxed);
        self.flags.store(flags, Ordering::Release);
        let next = self.stamp.load(Ordering::Relaxed).wrapping_add(1);
        self.stamp.store(next, Ordering::Release);
    }

    /// The last publication. The figures may be from two consecutive ones.
    pub fn view(&self) -> GateView {
        let stamp = self.stamp.load(Ordering::Acquire);
        let flags = self.flags.load(Ordering::Acquire);
        GateView {
            waiting: flags & WAITING != 0,
            busy: flags & BUSY != 0,
            stamp,
            expected_ns: self.expected_ns.load(Ordering::Relaxed),
            used_ns: self.used_ns.load(Ordering::Relaxed),
            held_ns: self.held_ns.load(Ordering::Relaxed),
            waited_ns: self.waited_ns.load(Ordering::Relaxed),
            demand_ns: self.demand_ns.load(Ordering::Relaxed),
            said_ns: self.said_ns.load(Ordering::Relaxed),
            since_ns: self.since_ns.load(Ordering::Relaxed),
        }
    }

    /// Publishes the sums. One thread at a time.
    pub fn publish_work(&self, view: &WorkView) {
        let work = &self.work;
        let turn = work.turn.load(Ordering::Relaxed);
        work.turn.store(turn | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let flight = view.flight.unwrap_or_default();
        let expected = match view.flight {
            None => 0,
            Some(flight) => flight.expected_ns.map_or(u64::MAX, |ns| ns.max(1)),
        };
        for (word, value) in [
            (&work.busy_ns, view.busy_ns),
            (&work.sm_ns, view.sm_ns),
            (&work.warp_ns, view.warp_ns),
            (&work.unmeasured, view.unmeasured),
            (&work.since_ns, flight.since_ns),
            (&work.flight_ns, expected),
            (&work.sms_milli, flight.sms_milli),
            (&work.warps_milli, flight.warps_milli),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        work.turn
            .store((turn | 1).wrapping_add(1), Ordering::Release);
    }

    /// The sums last published; `None` if they keep changing during the read.
    pub fn work(&self) -> Option<WorkView> {
        let work = &self.work;
        for _ in 0..100 {
            let turn = work.turn.load(Ordering::Acquire);
            let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
            let view = WorkView {
                busy_ns: read(&work.busy_ns),
                sm_ns: read(&work.sm_ns),
                warp_ns: read(&work.warp_ns),
                unmeasured: read(&work.unmeasured),
                flight: match read(&work.flight_ns) {
                    0 => None,
                    ns => Some(Flight {
                        since_ns: read(&work.since_ns),
                        expected_ns: (ns != u64::MAX).then_some(ns),
                        sms_milli: read(&work.sms_milli),
                        warps_milli: read(&work.warps_milli),
                    }),
                },
            };
            fence(Ordering::Acquire);
            if turn & 1 == 0 && work.turn.load(Ordering::Relaxed) == turn {
                return Some(view);
            }
            std::hint::spin_loop();
        }
        None
    }

    pub(crate) fn clear(&self) {
        self.publish_work(&WorkView::default());
        for word in [
            &self.flags,
            &self.stamp,
            &self.expected_ns,
            &self.used_ns,
            &self.held_ns,
            &self.waited_ns,
            &self.demand_ns,
            &self.said_ns,
            &self.since_ns,
        ] {
            word.store(0, Ordering::Relaxed);
        }
    }
}

const _: () = assert!(size_of::<GateSlot>() == 256);
const _: () = assert!(size_of::<WorkWords>() == 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_read_as_it_was_said() {
        let slot = GateSlot {
            flags: AtomicU64::new(0),
            stamp: AtomicU64::new(0),
            expected_ns: AtomicU64::new(0),
            used_ns: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            demand_ns: AtomicU64::new(0),
            said_ns: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
            held_ns: AtomicU64::new(0),
            _pad: std::array::from_fn(|_| AtomicU64::new(0)),
            work: WorkWords {
                turn: AtomicU64::new(0),
                busy_ns: AtomicU64::new(0),
                sm_ns: AtomicU64::new(0),
                warp_ns: AtomicU64::new(0),
                unmeasured: AtomicU64::new(0),
                since_ns: AtomicU64::new(0),
                flight_ns: AtomicU64::new(0),
                sms_milli: AtomicU64::new(0),
                warps_milli: AtomicU64::new(0),
                _pad: std::array::from_fn(|_| AtomicU64::new(0)),
            },
        };
        assert_eq!(slot.work(), Some(WorkView::default()));
        for expected_ns in [None, Some(5_000)] {
            let said = WorkView {
                busy_ns: 1,
                sm_ns: 2,
                warp_ns: 3,
                unmeasured: 4,
                flight: Some(Flight {
                    since_ns: 6,
                    expected_ns,
                    sms_milli: 7,
                    warps_milli: 8,
                }),
            };
            slot.publish_work(&said);
            assert_eq!(slot.work(), Some(said));
        }
        // A process died while it wrote.
        slot.work.turn.store(7, Ordering::Relaxed);
        assert_eq!(slot.work(), None);
        slot.clear();
        assert_eq!(slot.work(), Some(WorkView::default()));
    }
}
