//! When the gate's events came, in `CLOCK_MONOTONIC`: a driver says only how long after another one an event came.

use super::{Inner, Pair};

/// An anchor is replaced after so long: times since then are 32-bit numbers.
const ANCHORED_NS: u64 = 1_000_000_000;
/// An end that is seen within so long was waited for.
const AT_ONCE_NS: u64 = 1_000_000;
/// Contexts whose events are timed; a program has one or two on a GPU.
pub(super) const ANCHORS: usize = 8;
/// A pair of events whose second one is known in `CLOCK_MONOTONIC`: the other events of its context are timed by it.
#[derive(Clone, Copy)]
pub(super) struct Anchor {
    pub(super) pair: Pair,
    at_ns: u64,
}

/// What the watcher found out about a flight.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// Its second event came.
    pub(super) came: bool,
    /// Nanoseconds between its two events.
    pub(super) elapsed_ns: Option<u64>,
    /// Nanoseconds from the anchor to its second event.
    pub(super) since_anchor_ns: Option<i64>,
}

impl Inner {
    /// When a flight ran that was just seen to be over, and what its pair of events is good for from now on.
    pub(super) fn time(&mut self, now: u64, pair: Pair, seen: &Seen) -> Option<(u64, u64)> {
        let context = pair.context;
        let at = self.anchors.iter().position(|a| a.pair.context == context);
        let Some(anchor) = at.map(|at| &mut self.anchors[at]) else {
            if seen.came && self.anchors.len() < ANCHORS {
                self.anchors.push(Anchor { pair, at_ns: now });
            } else {
                self.spare.push(pair);
            }
            return seen.came.then(|| ran(now, seen));
        };
        let end = seen.since_anchor_ns.filter(|_| seen.came).map(|since| {
            let end = anchor.at_ns.saturating_add_signed(since);
            // Nothing ends after it was seen to be over: the first anchor of a context is a little late.
            anchor.at_ns -= end.saturating_sub(now).min(anchor.at_ns);
            end.min(now)
        });
        let mut unused = pair;
        if let Some(end) = end
            && now.saturating_sub(anchor.at_ns) > ANCHORED_NS
        {
            // Two clocks drift apart: seen at once, an end is known better by ours.
            let behind = now - end;
            let by = if behind < AT_ONCE_NS { behind / 8 } else { 0 };
            unused = anchor.pair;
            *anchor = Anchor {
                pair,
                at_ns: end + by,
            };
        }
        self.spare.push(unused);
        seen.came.then(|| ran(end.unwrap_or(now), seen))
    }
}

/// From when to when a flight ran whose end is known; without a first event the time between is not.
fn ran(end: u64, seen: &Seen) -> (u64, u64) {
    (end.saturating_sub(seen.elapsed_ns.unwrap_or(0)), end)
}
