//! Converts the times of the gate's events to `CLOCK_MONOTONIC`: a driver only reports the time between two events.

use gshare_gate::LEAST_NS;

use super::{Inner, Pair};

/// Anchors are replaced after this time: later times are 32-bit numbers, and clocks drift apart.
const ANCHORED_NS: u64 = 250_000_000;
/// An end that is reported this long before the launch was issued comes from another clock.
const OTHER_CLOCK_NS: u64 = 1_000_000;
/// Maximum relative drift of two clocks: the kernel itself corrects its own by as much.
const DRIFT_PART: u64 = 2000;
/// No call of a launch takes this much processor time.
const LOST_NS: u64 = 30_000;
/// Less than this part of a launch is negligible.
const LITTLE_PART: u64 = 16;
/// After this many pairs of events with the same time the driver's events are taken to have no times. With a driver
/// that has some, one record alone takes a microsecond.
const TIMELESS: u32 = 1;
/// Number of contexts whose events are timed; a program has one or two on a GPU.
pub(super) const ANCHORS: usize = 8;
/// A pair of events whose second one is known in `CLOCK_MONOTONIC`: it dates the other events of its context.
#[derive(Clone, Copy)]
pub(super) struct Anchor {
    pub(super) pair: Pair,
    /// Latest time: when it was seen to be over, less the delay by which others were seen sooner.
    at_ns: u64,
    /// Earliest time: no launch begins before its call.
    least_ns: u64,
    /// Least delay at which ends dated by it were seen.
    seen_after_ns: u64,
}

impl Anchor {
    fn new(pair: Pair, at_ns: u64, least_ns: u64) -> Anchor {
        Anchor {
            pair,
            at_ns,
            least_ns: least_ns.min(at_ns),
            seen_after_ns: u64::MAX,
        }
    }

    /// An end dated by this anchor was seen at `now`; returns the corrected end. If no end was seen at once for long,
    /// the clocks have drifted apart.
    fn corrected(&mut self, end: u64, now: u64) -> u64 {
        self.seen_after_ns = self.seen_after_ns.min(now - end);
        let age = now.saturating_sub(self.at_ns);
        end + self.seen_after_ns.min(age / DRIFT_PART)
    }
}

/// The program's call of a launch that is measured.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// When the first event was recorded.
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
    /// The GPU had not passed the first event when the call ended: its stream had work, or the GPU worked for others,
    /// and the time of the call does not lie between the two.
    pub(super) behind: bool,
}

impl Call {
    /// The launch begins no earlier.
    pub(super) fn least_ns(&self) -> u64 {
        if self.behind {
            self.ended_ns
        } else {
            self.began_ns
        }
    }
}

/// The watcher's findings about a flight.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// Its second event occurred.
    pub(super) came: bool,
    /// Nanoseconds between its two events.
    pub(super) elapsed_ns: Option<u64>,
    /// Nanoseconds from the anchor to its second event.
    pub(super) since_anchor_ns: Option<i64>,
    /// Nanoseconds from its second event to one right behind it.
    pub(super) record_ns: Option<u64>,
}

impl Seen {
    /// The same for the launch alone, which began at `start_ns` at the earliest, and whether that is rough. On an idle
    /// stream the first event is over as soon as it is recorded, and the time until the launch call lies between the
    /// two. `known`: such a launch was measured before. Then a launch whose thread lost its processor in the call, or
    /// of which little is left, is ignored.
    pub(super) fn without_gap(
        mut self,
        start_ns: Option<u64>,
        call: Option<Call>,
        known: bool,
    ) -> (Self, bool) {
        let mut rough = false;
        if let Some(start) = start_ns
            && let Some(elapsed) = self.elapsed_ns
            && let Some(call) = call.filter(|call| !call.behind)
            && start < call.ended_ns
        {
            let gap = call.ended_ns - start.max(call.began_ns);
            let gap = gap.min(elapsed.saturating_sub(LEAST_NS));
            rough = gap > LOST_NS.min(elapsed / 2).max(elapsed / LITTLE_PART);
            self.elapsed_ns = (!known || !rough).then(|| elapsed.saturating_sub(gap));
        }
        (self, rough)
    }
}

impl Inner {
    /// Whether this pair shows that the driver's events carry no times.
    pub(super) fn lacks_times(&mut self, seen: &Seen) -> bool {
        self.timeless = match seen.elapsed_ns {
            Some(0) => self.timeless.saturating_add(1),
            Some(_) => u32::MAX,
            None => return false,
        };
        self.timeless == TIMELESS
    }

    /// When a flight ran that was issued at `issued_ns` and was just seen to be over. Its pair of events is reused, or
    /// becomes its context's anchor.
    pub(super) fn time(
        &mut self,
        now: u64,
        pair: Pair,
        issued_ns: u64,
        call: Option<Call>,
        seen: &Seen,
    ) -> Option<(u64, u64)> {
        if !seen.came {
            self.spare.push(pair);
            return None;
        }
        let least_ns = call.map_or(0, |call| call.least_ns() + seen.elapsed_ns.unwrap_or(0));
        let anchor = self
            .anchors
            .iter_mut()
            .find(|anchor| anchor.pair.context == pair.context);
        let Some(anchor) = anchor else {
            let at_ns = now;
            self.timeline.earlier(0, now.saturating_sub(least_ns));
            if self.anchors.len() < ANCHORS {
                self.anchors.push(Anchor::new(pair, at_ns, least_ns));
            } else {
                self.spare.push(pair);
            }
            return Some(ran(now, seen));
        };
        let end = seen.since_anchor_ns.map(|since| {
            let end = anchor.at_ns.saturating_add_signed(since);
            // Nothing ends after it was seen to be over: the anchor was seen late, and so is everything dated by it.
            let late = end.saturating_sub(now).min(anchor.at_ns);
            anchor.at_ns -= late;
            let least = least_ns.saturating_add_signed(since.saturating_neg());
            // Nor before its call: the GPU's clock has fallen behind.
            anchor.at_ns = anchor.at_ns.max(least);
            anchor.least_ns = anchor.least_ns.max(least).min(anchor.at_ns);
            self.timeline.earlier(late, anchor.at_ns - anchor.least_ns);
            anchor.at_ns.saturating_add_signed(since).min(now)
        });
        // Nor long before it was issued: the GPU's clock has changed, as after a restore.
        let end = end.filter(|end| end.saturating_add(OTHER_CLOCK_NS) >= issued_ns);
        let (at_ns, age) = match end {
            Some(end) => (anchor.corrected(end, now), now.saturating_sub(anchor.at_ns)),
            None => (now, u64::MAX),
        };
        let mut unused = pair;
        if age > ANCHORED_NS {
            unused = anchor.pair;
            let unsure = anchor.at_ns - anchor.least_ns;
            let least_ns = match end {
                Some(_) => least_ns.max(at_ns.saturating_sub(unsure)).min(at_ns),
                None => least_ns,
            };
            *anchor = Anchor::new(pair, at_ns, least_ns);
        }
        self.spare.push(unused);
        Some(ran(end.unwrap_or(now), seen))
    }
}

/// Beginning and end of a flight whose end is known; without a first event the time between is not.
fn ran(end: u64, seen: &Seen) -> (u64, u64) {
    (end.saturating_sub(seen.elapsed_ns.unwrap_or(0)), end)
}

#[cfg(test)]
mod tests {
    use super::{super::Gate, *};

    /// Kernels of 10 ms, each end seen 40 us late, on a GPU whose clock loses 300 us a second.
    #[test]
    fn ends_are_told_by_a_clock_that_falls_behind() {
        let gate = Gate::default();
        let mut inner = gate.lock();
        let gpu = |ns: u64| (ns - ns / 10_000 * 3).cast_signed();
        let (mut anchored, mut at_ns, mut worst) = (0, 0, 0);
        for end in (100..2100).map(|kernel| kernel * 10_000_000) {
            let seen = Seen {
                came: true,
                elapsed_ns: None,
                since_anchor_ns: Some(gpu(end) - gpu(anchored)),
                record_ns: None,
            };
            let told = inner.time(end + 40_000, Pair::default(), end - 20_000_000, None, &seen);
            let (_, told) = told.expect("it came");
            worst = worst.max(end.abs_diff(told));
            if inner.anchors[0].at_ns != at_ns {
                (anchored, at_ns) = (end, inner.anchors[0].at_ns);
            }
        }
        assert!(worst < 400_000, "{worst}");
    }

    /// A kernel of 10 us each millisecond, launched 50 us before it begins behind others' work; each end is seen half a
    /// millisecond late. The clock loses 2 ms a second.
    #[test]
    fn a_clock_that_falls_behind_is_seen_by_calls() {
        let gate = Gate::default();
        let mut inner = gate.lock();
        let gpu = |ns: u64| (ns - ns / 500).cast_signed();
        let (mut anchored, mut at_ns) = (0, 0);
        for end in (100..2100).map(|ms| ms * 1_000_000) {
            let seen = Seen {
                came: true,
                elapsed_ns: Some(10_000),
                since_anchor_ns: Some(gpu(end) - gpu(anchored)),
                record_ns: None,
            };
            let called = end - 60_000;
            let call = Call {
                began_ns: called - 4_000,
                ended_ns: called,
                behind: true,
            };
            let ran = inner.time(end + 500_000, Pair::default(), called, Some(call), &seen);
            let (start, told) = ran.expect("it came");
            assert!(start >= called, "{} us early", (called - start) / 1000);
            assert!(told <= end + 500_000, "at {end}");
            if inner.anchors[0].at_ns.abs_diff(at_ns) > 1_000_000 {
                (anchored, at_ns) = (end, inner.anchors[0].at_ns);
            }
        }
    }

    #[test]
    fn a_thread_that_loses_its_processor_in_the_call_makes_no_launch_longer() {
        let ms = 1_000_000;
        let seen = Seen {
            came: true,
            elapsed_ns: Some(20 * ms),
            since_anchor_ns: None,
            record_ns: None,
        };
        // Called from 1 ms to 19 ms, over at 21 ms, seen at 40 ms: it may have begun at 1 ms.
        let call = |behind| {
            Some(Call {
                began_ns: ms,
                ended_ns: 19 * ms,
                behind,
            })
        };
        let (start, _) = ran(40 * ms, &seen);
        let earliest = start - 19 * ms;
        let after = |start, behind, known| seen.without_gap(Some(start), call(behind), known).0;
        assert_eq!(after(earliest, false, false).elapsed_ns, Some(2 * ms));
        assert_eq!(after(earliest, false, true).elapsed_ns, None);
        // Only a negligible part of it passed in the call.
        assert_eq!(after(18 * ms, false, true).elapsed_ns, Some(19 * ms));
        // A launch takes the least at least, so two events that are no further apart leave nothing open.
        let short = Seen {
            elapsed_ns: Some(LEAST_NS),
            ..seen
        };
        let (short, rough) = short.without_gap(Some(ms), call(false), false);
        assert_eq!((short.elapsed_ns, rough), (Some(LEAST_NS), false));
        // Behind others it began when they were over, even if that time is unknown.
        assert_eq!(after(20 * ms, false, true).elapsed_ns, Some(20 * ms));
        assert_eq!(after(earliest, true, true).elapsed_ns, Some(20 * ms));
    }
}
