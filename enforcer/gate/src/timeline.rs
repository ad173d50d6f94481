//! When the launches of a process ran, and what they come to together.
//!
//! Each measured launch says when it began and ended; what its stream was given between two of them is known by
//! its sum. So every stream is a row of *stretches*, each with the SMs that it takes on average. Streams that
//! overlap have one GPU together: at each moment they count for no more SMs than there are, and what each alone
//! was seen to take, which contains the waiting for the others, is not added up.
//!
//! The end of a long launch is seen late, and with it that of everything launched after it on other streams.
//! What is not yet known is told as it is expected, and corrected when it is known.

use std::collections::VecDeque;

use crate::{Fill, Key, Load, MARKERS};

/// Streams that are told apart; more than these at a time share rows.
const LANES: usize = 32;
/// Stretches that are kept until all streams are known up to their time.
const STRETCHES: usize = 64;
/// A stream of which nothing was heard for so long is not waited for.
const QUIET_NS: u64 = 250_000_000;
/// Launches of one stream that may be measured at a time one after the other; later ones with ever more between.
const CLOSE: u32 = 4;
/// The same of launches of which nobody knows how long they take.
const NEW: u32 = 12;
/// Kinds of launches of one stream between two measured ones of which nobody knows how long they take.
const KINDS: usize = 4;

/// A row of launches, one after the other: a stream as one thread uses it.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    place: u64,
    /// All of it is known up to this time.
    over_ns: u64,
    /// Measured launches in flight.
    flying: u32,
    /// Launches since the last measured one that could have been measured and were not.
    passed: u32,
    /// Part of the time of what it runs in which that takes all SMs.
    full: f64,
    owed: [Option<Owed>; KINDS],
}

/// Launches that could neither be measured nor predicted.
#[derive(Debug, Clone, Copy)]
struct Owed {
    key: Key,
    fill: Fill,
    many: u64,
}

/// A time in which one stream's use of the GPU is taken to be even.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    lane: usize,
    from_ns: u64,
    to_ns: u64,
    /// When it began: 0 for several launches of which no single one is known. Who began first has the SMs first.
    began_ns: u64,
    /// Mean over that time: parts of it in which anything and in which all SMs are in use, SMs, warps.
    busy: f64,
    full: f64,
    sms: f64,
    warps: f64,
    /// Part of it in which it does not wait for other streams; while it does, they have all SMs.
    needed: f64,
}

/// A launch whose end is awaited.
#[derive(Debug, Clone, Copy)]
struct Flying {
    lane: usize,
    before: Load,
    owed: [Option<Owed>; KINDS],
    fill: Option<Fill>,
    /// How long it takes, if that is known.
    expected_ns: Option<u64>,
    issued_ns: u64,
}

/// What is on the GPU now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Current {
    /// How long it is expected to last; absent for what was never seen.
    pub expected_ns: Option<u64>,
    /// What it fills on average.
    pub fill: Fill,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    busy_ns: f64,
    sm_ns: f64,
    warp_ns: f64,
}

impl Sum {
    fn plus(self, by: Sum) -> Sum {
        Sum {
            busy_ns: self.busy_ns + by.busy_ns,
            sm_ns: self.sm_ns + by.sm_ns,
            warp_ns: self.warp_ns + by.warp_ns,
        }
    }
}

/// What the launches of one process on one GPU have come to.
#[derive(Debug)]
pub struct Timeline {
    lanes: [Lane; LANES],
    flying: VecDeque<Flying>,
    stretches: Vec<Stretch>,
    /// Everything before this time is in `done`.
    settled_ns: u64,
    done: Sum,
    sms: f64,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            lanes: [Lane::default(); LANES],
            flying: VecDeque::with_capacity(MARKERS),
            // What is expected is put behind what is known, for as long as it is added up.
            stretches: Vec::with_capacity(STRETCHES + 4 * MARKERS),
            settled_ns: 0,
            done: Sum::default(),
            sms: 1.0,
        }
    }
}

impl Timeline {
    fn lane(&mut self, place: u64) -> usize {
        let known = self.lanes.iter().position(|lane| lane.place == place);
        if let Some(known) = known {
            return known;
        }
        let idle = self.lanes.iter().enumerate();
        let idle = idle.filter(|(_, lane)| lane.flying == 0);
        let Some((oldest, _)) = idle.min_by_key(|(_, lane)| lane.over_ns) else {
            // All of them wait for something: one more shares with another.
            return place as usize % LANES;
        };
        self.lanes[oldest] = Lane {
            place,
            ..Lane::default()
        };
        oldest
    }

    /// Whether a launch of a stream is worth measuring that may be left out: the further a stream is ahead of the
    /// GPU, the more launches lie between two that are measured.
    /// Whoever leaves it out says so with [`Self::left_out`].
    pub fn wants(&mut self, place: u64, known: bool) -> bool {
        let lane = self.lane(place);
        let lane = &self.lanes[lane];
        let close = if known { CLOSE } else { NEW };
        let between = 1 << lane.flying.saturating_sub(close).min(16);
        lane.flying < close || lane.passed >= between
    }

    /// A launch was left out; `owed` where nobody knows how long it takes.
    pub fn left_out(&mut self, place: u64, owed: Option<(Key, Fill)>) {
        let lane = self.lane(place);
        let lane = &mut self.lanes[lane];
        lane.passed += 1;
        let Some((key, fill)) = owed else { return };
        let same = |kind: &Option<Owed>| kind.is_none_or(|kind| kind.key == key);
        let at = lane.owed.iter().position(same).unwrap_or(KINDS - 1);
        let kind = lane.owed[at].get_or_insert(Owed { key, fill, many: 0 });
        kind.many += 1;
    }

    /// A launch is under way whose end will be seen; those of all streams land in the order in which they were
    /// issued. `before` is what its stream was given since the last one.
    pub fn issued(
        &mut self,
        now_ns: u64,
        place: u64,
        before: Load,
        fill: Option<Fill>,
        expected_ns: Option<u64>,
    ) {
        let lane = self.lane(place);
        self.lanes[lane].flying += 1;
        self.lanes[lane].passed = 0;
        let owed = std::mem::take(&mut self.lanes[lane].owed);
        self.flying.push_back(Flying {
            lane,
            before,
            owed,
            fill,
            expected_ns,
            issued_ns: now_ns,
        });
    }

    /// The oldest is over: when it ran, as far as that is known. `sms` are those that the process sees, `takes` says
    /// how long launches of a kind take by now. Gives how long it would have taken without the process's other streams.
    pub fn landed(
        &mut self,
        now_ns: u64,
        ran: Option<(u64, u64)>,
        sms: u32,
        needs_ns: Option<u64>,
        takes: impl Fn(Key) -> Option<u64>,
    ) -> Option<u64> {
        let flying = self.flying.pop_front()?;
        self.sms = f64::from(sms.max(1));
        let known = self.lanes[flying.lane].over_ns;
        let (start, end) = ran.unwrap_or((now_ns, now_ns));
        let end = end.min(now_ns).max(known);
        let start = start.clamp(known, end);
        let mut before = flying.before;
        let mut unknown: Option<Fill> = None;
        for owed in flying.owed.iter().flatten() {
            match takes(owed.key) {
                Some(ns) => before = before.plus(owed.fill.during(ns).times(owed.many)),
                None => unknown = Some(owed.fill),
            }
        }
        let from = match known {
            0 => start.saturating_sub(before.busy_ns),
            known => known,
        };
        // What the stream was given before the last launch was over has kept it at work since.
        if let Some(fill) = unknown.filter(|_| flying.issued_ns < known) {
            let left = (start - from).saturating_sub(before.busy_ns);
            before = before.plus(fill.during(left));
        }
        let mut alone = None;
        if let Some(fill) = flying.fill.filter(|_| end > start) {
            alone = Some(self.alone(flying.lane, start, end, fill));
            let lane = &mut self.lanes[flying.lane];
            lane.full += (fill.full_milli as f64 / 1000.0 - lane.full) / 8.0;
        }
        self.put_before(flying.lane, from, start, before);
        if let Some(fill) = flying.fill {
            let needed = needs_ns.map_or(1.0, |ns| ns as f64 / (end - start).max(1) as f64);
            self.put_fill(flying.lane, start, end, fill, needed.min(1.0));
        }
        let lane = &mut self.lanes[flying.lane];
        lane.over_ns = end.max(1);
        lane.flying = lane.flying.saturating_sub(1);
        self.settle(now_ns);
        alone.filter(|_| ran.is_some())
    }

    /// How long a launch would have taken without the process's other streams, if all of them waited in proportion
    /// to what they want.
    fn alone(&mut self, lane: usize, from_ns: u64, to_ns: u64, fill: Fill) -> u64 {
        let known = self.stretches.len();
        self.put_expected(to_ns, Some(lane));
        let sms = fill.sms_milli as f64 / 1000.0;
        let (mut at, mut alone) = (from_ns, 0.0);
        while at < to_ns {
            let (mut next, mut wanted) = (to_ns, sms);
            for other in self.stretches.iter().filter(|other| other.lane != lane) {
                if other.from_ns > at {
                    next = next.min(other.from_ns);
                } else if other.to_ns > at {
                    next = next.min(other.to_ns);
                    wanted += other.sms;
                }
            }
            alone += (next - at) as f64 * (self.sms / wanted.max(1e-9)).min(1.0);
            at = next;
        }
        self.stretches.truncate(known);
        alone as u64
    }

    /// What a stream was given between two measured launches: it follows the one and leads to the other, and
    /// where it does not fill the time between, that is idle in the middle.
    fn put_before(&mut self, lane: usize, from_ns: u64, to_ns: u64, load: Load) {
        let gap = to_ns.saturating_sub(from_ns);
        if gap == 0 || load.busy_ns == 0 {
            return;
        }
        let busy = load.busy_ns as f64;
        let (sms, warps) = (load.sm_ns as f64 / busy, load.warp_ns as f64 / busy);
        let stretch = Stretch {
            lane,
            from_ns,
            to_ns,
            began_ns: 0,
            busy: 1.0,
            needed: 1.0,
            full: 0.0,
            sms: sms.min(self.sms),
            warps: warps * (self.sms / sms.max(1e-9)).min(1.0),
        };
        if load.busy_ns >= gap {
            self.put(stretch);
            return;
        }
        let half = load.busy_ns / 2;
        self.put(Stretch {
            to_ns: from_ns + half,
            ..stretch
        });
        self.put(Stretch {
            from_ns: to_ns - (load.busy_ns - half),
            ..stretch
        });
    }

    fn put_fill(&mut self, lane: usize, from_ns: u64, to_ns: u64, fill: Fill, needed: f64) {
        self.put(Stretch {
            lane,
            from_ns,
            to_ns,
            began_ns: from_ns,
            busy: 1.0,
            needed,
            full: fill.full_milli as f64 / 1000.0,
            sms: fill.sms_milli as f64 / 1000.0,
            warps: fill.warps_milli as f64 / 1000.0,
        });
    }

    fn put(&mut self, stretch: Stretch) {
        if stretch.to_ns <= stretch.from_ns || stretch.sms <= 0.0 {
            return;
        }
        if self.stretches.len() >= self.stretches.capacity() {
            return;
        }
        self.stretches.push(stretch);
    }

    /// Adds up what is known of all streams.
    fn settle(&mut self, now_ns: u64) {
        let heard = now_ns.saturating_sub(QUIET_NS);
        let awaited = self.lanes.iter();
        let awaited = awaited.filter(|lane| lane.flying > 0 || lane.over_ns > heard);
        let mut until = awaited.map(|lane| lane.over_ns).min().unwrap_or(now_ns);
        if self.stretches.len() > STRETCHES {
            // The oldest half of them, whatever may come beside them.
            let at = self.stretches.len() / 2;
            until = until.max(self.stretches[at].from_ns);
        }
        let settled = until.max(self.settled_ns);
        self.done = self.done.plus(self.sum(settled));
        self.settled_ns = settled;
        self.stretches.retain_mut(|stretch| {
            stretch.from_ns = stretch.from_ns.max(settled.min(stretch.to_ns));
            stretch.to_ns > stretch.from_ns
        });
    }

    /// What the stretches come to until then, those before the settled time too.
    fn sum(&self, until_ns: u64) -> Sum {
        let mut sum = Sum::default();
        let first = self.stretches.iter().map(|s| s.from_ns).min();
        let Some(mut at) = first else { return sum };
        while at < until_ns {
            let mut next = until_ns;
            let mut active = [(0, 0); LANES];
            let mut many = 0;
            let (mut none_busy, mut none_full) = (1.0, 1.0);
            let (mut partly, mut all_sms) = (0.0, 0.0);
            for (i, stretch) in self.stretches.iter().enumerate() {
                if stretch.from_ns > at {
                    next = next.min(stretch.from_ns);
                } else if stretch.to_ns > at {
                    next = next.min(stretch.to_ns);
                    if many < LANES {
                        active[many] = (stretch.began_ns, i);
                        many += 1;
                    }
                    let full = stretch.full.min(stretch.sms / self.sms);
                    none_busy *= 1.0 - stretch.busy;
                    none_full *= (1.0 - full) * stretch.needed;
                    if full < 1.0 {
                        partly += (stretch.sms - full * self.sms) / (1.0 - full);
                    }
                    all_sms += stretch.sms;
                }
            }
            if many > 0 {
                // Who began first has the SMs first.
                let active = &mut active[..many];
                active.sort_unstable();
                let (mut taken, mut warps) = (0.0, 0.0);
                for (_, i) in active {
                    let stretch = &self.stretches[*i];
                    let takes = stretch.sms.min(self.sms - taken).max(0.0);
                    taken += takes;
                    warps += stretch.warps * takes / stretch.sms.max(1e-9);
                }
                let ns = (next - at) as f64;
                let together = self.sms * (1.0 - none_full) + none_full * partly.min(self.sms);
                let sms = if many > 1 { together } else { all_sms };
                let sms = sms.min(all_sms).min(self.sms);
                sum.busy_ns += ns * (1.0 - none_busy);
                sum.sm_ns += ns * sms;
                sum.warp_ns += ns * warps * sms / taken.max(1e-9);
            }
            at = next;
        }
        sum
    }

    /// Puts what is in flight behind what is known, as it is expected to run; gives when it is expected to be over,
    /// and what one fills that runs for nobody knows how long. Not of one stream if that is so wished.
    fn put_expected(&mut self, now_ns: u64, without: Option<usize>) -> (u64, Option<Fill>) {
        let mut ends: u64 = now_ns;
        let mut unknown = None;
        let mut over = self.lanes.map(|lane| lane.over_ns);
        for i in 0..self.flying.len() {
            let flying = self.flying[i];
            if Some(flying.lane) == without {
                continue;
            }
            let from = over[flying.lane];
            let led = from.saturating_add(flying.before.busy_ns);
            let start = if from == 0 {
                flying.issued_ns
            } else {
                led.max(flying.issued_ns)
            };
            if from > 0 {
                self.put_before(flying.lane, from, start, flying.before);
            }
            let Some(fill) = flying.fill else {
                over[flying.lane] = start;
                continue;
            };
            let mut end = match flying.expected_ns {
                Some(ns) => start.saturating_add(ns),
                None => {
                    if start <= now_ns {
                        unknown = Some(fill);
                    }
                    start.max(now_ns)
                }
            };
            // What is waited for first is not over.
            if i == 0 {
                end = end.max(now_ns);
            }
            self.put_fill(flying.lane, start, end, fill, 1.0);
            over[flying.lane] = end;
            ends = ends.max(end);
        }
        (ends, unknown)
    }

    /// What the launches have come to by now, and what goes on.
    pub fn tell(&mut self, now_ns: u64) -> (Load, Option<Current>) {
        let known = self.stretches.len();
        let (ends, unknown) = self.put_expected(now_ns, None);
        let until_now = self.sum(now_ns);
        let after = (ends > now_ns).then(|| self.sum(ends));
        self.stretches.truncate(known);
        let all = self.done.plus(until_now);
        let load = Load {
            busy_ns: all.busy_ns as u64,
            sm_ns: all.sm_ns as u64,
            warp_ns: all.warp_ns as u64,
        };
        let current = match (unknown, after) {
            (Some(fill), _) => Some(Current {
                expected_ns: None,
                fill,
            }),
            (None, Some(after)) => {
                let ns = after.busy_ns - until_now.busy_ns;
                let milli = |of: f64| (of * 1000.0 / ns.max(1.0)) as u64;
                (ns >= 1.0).then(|| Current {
                    expected_ns: Some(ns as u64),
                    fill: Fill {
                        sms_milli: milli(after.sm_ns - until_now.sm_ns),
                        warps_milli: milli(after.warp_ns - until_now.warp_ns),
                        full_milli: 0,
                    },
                })
            }
            (None, None) => None,
        };
        (load, current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Part of ten SMs that is in use over a time, of launches that are known one by one: place, start, end.
    fn part(ran: &[(u64, u64, u64)], fill: Fill) -> f64 {
        let mut timeline = Timeline::default();
        for (place, start, _) in ran {
            timeline.issued(start * MS, *place, Load::default(), Some(fill), None);
        }
        let last = ran.iter().map(|(.., end)| *end).max().unwrap_or(0) * MS;
        for (_, start, end) in ran {
            timeline.landed(last, Some((start * MS, end * MS)), 10, None, |_| None);
        }
        let (load, current) = timeline.tell(last);
        assert_eq!(current, None, "all of it is over");
        load.sm_ns as f64 / (last as f64 * 10.0)
    }

    #[test]
    fn streams_side_by_side_have_one_gpu_together() {
        let (eight, two) = (Fill::of_grid(10, 1, 8, 4), Fill::of_grid(10, 1, 2, 4));
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.001, "{a} of {b}");
        // One after the other, at the same time, and in part.
        near(part(&[(1, 0, 50), (1, 50, 100)], eight), 0.8);
        near(part(&[(1, 0, 100), (2, 0, 100)], eight), 1.0);
        near(part(&[(1, 0, 60), (2, 40, 100)], eight), 0.84);
        near(part(&[(1, 0, 100), (2, 0, 100)], two), 0.4);
        // The end of the first was seen late, and with it those of the second stream.
        near(part(&[(1, 0, 100), (2, 0, 50), (2, 50, 100)], two), 0.4);
    }

    #[test]
    fn waves_and_tails_of_two_streams_fill_each_other() {
        // Half of its time ten of ten SMs, the other half two.
        let fill = Fill::of_grid(10, 1, 12, 4);
        assert_eq!((fill.sms_milli, fill.full_milli), (6000, 500));
        // Either is full in three quarters of the time, else both have their tail.
        let both = part(&[(1, 0, 100), (2, 0, 100)], fill);
        assert!((both - 0.85).abs() < 0.001, "{both}");
    }

    #[test]
    fn what_lies_between_two_measured_launches_counts_by_its_sum() {
        let fill = Fill::of_grid(10, 1, 5, 4);
        let mut timeline = Timeline::default();
        let land = |timeline: &mut Timeline, now: u64, start: u64| {
            timeline.landed(now * MS, Some((start * MS, now * MS)), 10, None, |_| None);
            timeline.tell(now * MS).0
        };
        timeline.issued(0, 1, Load::default(), Some(fill), Some(MS));
        assert_eq!(land(&mut timeline, 1, 0), fill.during(MS));
        // 20 ms of short launches in 49 ms.
        timeline.issued(50 * MS, 1, fill.during(20 * MS), Some(fill), Some(MS));
        assert_eq!(land(&mut timeline, 51, 50), fill.during(22 * MS));
        // More than fits: they did not take longer than there was time.
        timeline.issued(60 * MS, 1, fill.during(20 * MS), Some(fill), Some(MS));
        assert_eq!(land(&mut timeline, 61, 60), fill.during(32 * MS));
    }

    #[test]
    fn what_runs_is_told_as_it_is_expected() {
        let fill = Fill::of_grid(10, 1, 5, 4);
        let mut timeline = Timeline::default();
        timeline.issued(0, 1, Load::default(), Some(fill), Some(10 * MS));
        timeline.issued(0, 1, Load::default(), Some(fill), Some(10 * MS));
        timeline.landed(10 * MS, Some((0, 10 * MS)), 10, None, |_| None);
        let (load, current) = timeline.tell(12 * MS);
        assert_eq!(load, fill.during(12 * MS));
        let current = current.expect("the second one runs");
        assert_eq!(current.expected_ns, Some(8 * MS));
        assert_eq!(current.fill.sms_milli, 5000);
        // Later than expected it still runs, and nobody knows for how long.
        assert_eq!(timeline.tell(25 * MS), (fill.during(25 * MS), None));
    }

    #[test]
    fn launches_of_a_new_kind_fill_the_time_in_which_they_ran() {
        let (fill, other) = (Fill::of_grid(10, 1, 5, 4), Fill::of_grid(10, 1, 10, 4));
        let new = Key::kernel(0x7000, 10, 128);
        let run = |takes: Option<u64>| {
            let mut timeline = Timeline::default();
            timeline.issued(0, 1, Load::default(), Some(fill), None);
            timeline.left_out(1, Some((new, other)));
            timeline.left_out(1, Some((new, other)));
            timeline.issued(0, 1, Load::default(), Some(fill), None);
            timeline.landed(10 * MS, Some((0, 10 * MS)), 10, None, |_| takes);
            timeline.landed(40 * MS, Some((30 * MS, 40 * MS)), 10, None, |_| takes);
            timeline.tell(40 * MS).0
        };
        let ends = fill.during(20 * MS);
        assert_eq!(run(None), ends.plus(other.during(20 * MS)));
        assert_eq!(run(Some(8 * MS)), ends.plus(other.during(16 * MS)));
    }

    #[test]
    fn a_stream_far_ahead_is_measured_now_and_then() {
        let mut timeline = Timeline::default();
        let mut measured = 0;
        for _ in 0..1000 {
            if timeline.wants(1, true) {
                timeline.issued(0, 1, Load::default(), None, None);
                measured += 1;
            } else {
                timeline.left_out(1, None);
            }
        }
        assert!((10..20).contains(&measured), "{measured}");
        assert!(timeline.wants(2, true), "another stream has its own");
    }
}
