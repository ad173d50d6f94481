//! When the launches of a process ran, and their sums.
//!
//! Each measured launch has a beginning and an end; for the launches between two of them the sum is known. So every
//! stream is a row of *stretches*, each with its average number of SMs. Streams that overlap share one GPU: at each
//! moment they count for no more SMs than the GPU has. Durations of single launches are not added up, because they
//! contain waiting for other streams.
//!
//! The end of a long launch is seen late, and with it the end of all later launches on other streams. Until then the
//! expected figures are reported, and corrected later.

use std::collections::VecDeque;

use crate::{Fill, Key, Load, MARKERS, SAMPLE_NS, fill::Mean};

/// Number of streams that are told apart; further streams share rows.
const LANES: usize = 32;
/// Maximum number of stretches kept until all streams are known up to their time.
const STRETCHES: usize = 64;
/// A stream that was silent for this long is not waited for.
const QUIET_NS: u64 = 250_000_000;
/// Consecutive launches of a stream that may be in measurement; later ones at ever larger distances.
const CLOSE: u32 = 4;
/// The same for launches of unknown duration.
const NEW: u32 = 12;
/// Kinds of launches of unknown duration that a stream can have between two measured ones.
const KINDS: usize = 4;
/// Measured launches of a stream that represent the others.
const REMEMBERED: f64 = 64.0;

/// Consecutive launches: a stream as used by one thread.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    place: u64,
    /// All work up to this time is known.
    over_ns: u64,
    /// Measured launches in flight.
    flying: u32,
    /// Launches since the last measured one that were left out.
    passed: u32,
    /// Recent measurements, which represent the unmeasured launches.
    seen: Seen,
    owed: [Option<Owed>; KINDS],
    /// Its next launch has waited for a turn.
    waited: bool,
    /// Its load since the last measured launch, if known. It is expected to run directly after that launch, until the
    /// next measurement tells when it was over.
    given: Load,
    /// The part of `owed` whose duration is known by now.
    priced: Load,
    /// The part of `given` that was counted for good, because nothing was measured for long.
    counted: Load,
}

impl Lane {
    /// Work behind the last measured launch while none is in flight.
    fn tail(&self) -> Load {
        if self.flying > 0 {
            return Load::default();
        }
        self.given.minus(self.counted).plus(self.priced)
    }

    /// Expected end of all its work.
    fn ends_ns(&self) -> u64 {
        self.over_ns.saturating_add(self.tail().busy_ns)
    }
}

/// What the measured launches of a stream tell about the others: sums in which older ones fade.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Their durations, and what they fill.
    mean: Mean,
    /// The part of their durations without waiting for other streams.
    needed_ns: f64,
    /// Time in which the stream always had work, and the part of it that its launches explain: copies do not.
    held_ns: f64,
    given_ns: f64,
}

fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        (of / whole).min(1.0)
    } else {
        1.0
    }
}

impl Seen {
    fn launch(&mut self, ns: u64, expected_ns: Option<u64>, needed: f64, fill: Fill, sms: f64) {
        // Of short launches as many lie between two measured ones as fill that time.
        let stands_for = ns as f64 / expected_ns.unwrap_or(ns).clamp(1, SAMPLE_NS) as f64;
        let fades = 1.0 - 1.0 / REMEMBERED;
        self.mean = self.mean.times(fades).plus(Mean::of(stands_for, fill, sms));
        self.needed_ns = self.needed_ns * fades + stands_for * needed;
    }

    /// The room of launches that fill this much.
    fn room(&self, sms: f64, warps: f64) -> f64 {
        let room_of_warp = self.mean.room_of_warp();
        room_of_warp.map_or(sms, |room| (room * warps).min(sms))
    }

    fn held(&mut self, ns: u64, given_ns: u64) {
        self.held_ns += ns as f64 - self.held_ns / REMEMBERED;
        self.given_ns += given_ns as f64 - self.given_ns / REMEMBERED;
    }
}

/// Launches that could neither be measured nor predicted.
#[derive(Debug, Clone, Copy)]
struct Owed {
    key: Key,
    fill: Fill,
    many: u64,
}

/// The load of those whose duration is known by now; they are not owed any longer.
fn price(owed: &mut [Option<Owed>; KINDS], takes: impl Fn(Key) -> Option<u64>) -> Load {
    let mut sum = Load::default();
    for place in owed {
        if let Some(kind) = place
            && let Some(ns) = takes(kind.key)
        {
            sum = sum.plus(kind.fill.during(ns).times(kind.many));
            *place = None;
        }
    }
    sum
}

/// A time in which a stream's use of the GPU is taken as even.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    lane: usize,
    from_ns: u64,
    to_ns: u64,
    /// When it began: 0 for several launches of which no single one is known. The launch that began first gets its
    /// room first.
    began_ns: u64,
    /// Means over that time: parts with any SM and with all SMs in use, SMs, warps.
    busy: f64,
    full: f64,
    sms: f64,
    warps: f64,
    /// SMs that its blocks need as close together as they fit; what needs more than is left runs later.
    room: f64,
    /// The part of it without waiting for other streams; while it waits, they have all SMs.
    needed: f64,
    /// Its SMs while it does not wait.
    wide: f64,
}

/// Where the load between two measured launches lies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lies {
    /// The stream always had work: it fills this time, however long single launches took.
    Throughout,
    /// Right behind the first.
    First,
    /// Half of it follows the first and half leads up to the second: the idle time is in the middle.
    Around,
}

impl Lies {
    fn of(held: bool, waited: bool) -> Self {
        match (held, waited) {
            (true, _) => Self::Throughout,
            (false, true) => Self::First,
            (false, false) => Self::Around,
        }
    }
}

/// A launch whose end is awaited.
#[derive(Debug, Clone, Copy)]
struct Flying {
    place: u64,
    lane: usize,
    before: Load,
    /// `before` was launched before a wait for a turn.
    waited: bool,
    owed: [Option<Owed>; KINDS],
    fill: Option<Fill>,
    /// Its duration, if known.
    expected_ns: Option<u64>,
    issued_ns: u64,
    /// Its stream waits for something other than the GPU.
    is_blocked: bool,
}

/// Work on the GPU now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Current {
    /// Expected duration; `None` for a launch that was never measured.
    pub expected_ns: Option<u64>,
    /// Its average fill.
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

/// The sums over one process's launches on one GPU.
#[derive(Debug)]
pub struct Timeline {
    lanes: [Lane; LANES],
    flying: VecDeque<Flying>,
    stretches: Vec<Stretch>,
    /// Everything before this time is in `done`.
    settled_ns: u64,
    done: Sum,
    sms: f64,
    /// Known ends may be earlier by this.
    unsure_ns: u64,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            lanes: [Lane::default(); LANES],
            flying: VecDeque::with_capacity(MARKERS),
            // Expected stretches are appended while the sums are made.
            stretches: Vec::with_capacity(STRETCHES + 4 * MARKERS),
            settled_ns: 0,
            done: Sum::default(),
            sms: 1.0,
            unsure_ns: 0,
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
            // All lanes are waiting: two streams share one.
            return place as usize % LANES;
        };
        self.lanes[oldest] = Lane {
            place,
            ..Lane::default()
        };
        oldest
    }

    /// Whether to measure a launch that may be left out: the further a stream is ahead of the GPU, the more launches
    /// lie between two measured ones. The caller reports a launch that it leaves out with [`Self::left_out`].
    pub fn wants(&mut self, place: u64, known: bool) -> bool {
        let lane = self.lane(place);
        let lane = &self.lanes[lane];
        let close = if known { CLOSE } else { NEW };
        let between = 1 << lane.flying.saturating_sub(close).min(16);
        lane.flying < close || lane.passed >= between
    }

    /// A launch was left out; `owed` if its duration is unknown.
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

    /// The stream's next launch has waited for a turn: what was launched before it had an earlier one.
    pub fn waited(&mut self, place: u64) {
        let lane = self.lane(place);
        self.lanes[lane].waited = true;
    }

    /// A launch is under way whose end will be seen; the launches of a stream end in the order of issue. `before` is
    /// the stream's load since the last one.
    pub fn issued(
        &mut self,
        now_ns: u64,
        place: u64,
        before: Load,
        fill: Option<Fill>,
        expected_ns: Option<u64>,
    ) {
        let at = self.lane(place);
        let lane = &mut self.lanes[at];
        lane.flying += 1;
        lane.passed = 0;
        let owed = std::mem::take(&mut lane.owed);
        let waited = std::mem::take(&mut lane.waited);
        let before = before.minus(lane.counted).plus(lane.priced);
        (lane.given, lane.priced, lane.counted) = Default::default();
        self.flying.push_back(Flying {
            place,
            is_blocked: false,
            lane: at,
            before,
            waited,
            owed,
            fill,
            expected_ns,
            issued_ns: now_ns,
        });
    }

    /// Sets whether the stream waits for something other than the GPU: its work does not run meanwhile.
    pub fn blocked(&mut self, place: u64, is_blocked: bool) {
        for flying in self.flying.iter_mut().filter(|f| f.place == place) {
            flying.is_blocked = is_blocked;
        }
    }

    /// Shifts all known times `by_ns` earlier; a further `unsure_ns` may follow. The first end of a launch may be seen
    /// late, and it anchors the others until an earlier one is seen.
    pub fn earlier(&mut self, by_ns: u64, unsure_ns: u64) {
        self.unsure_ns = unsure_ns;
        for lane in self.lanes.iter_mut().filter(|lane| lane.over_ns > 0) {
            lane.over_ns = lane.over_ns.saturating_sub(by_ns).max(1);
        }
        let stretches = self.stretches.iter_mut();
        let times = stretches.flat_map(|s| [&mut s.from_ns, &mut s.to_ns, &mut s.began_ns]);
        for at in times.chain([&mut self.settled_ns]) {
            *at = at.saturating_sub(by_ns);
        }
    }

    /// Known ends may be earlier by this.
    pub fn unsure_ns(&self) -> u64 {
        self.unsure_ns
    }

    /// The stream's load since its last measured launch was issued, when that launch is about to end.
    pub fn given(&mut self, place: u64, since: Load) {
        let lane = self.lane(place);
        self.lanes[lane].given = since;
    }

    /// The oldest launch of a stream is over: when it ran, if known. `sms` is the number of SMs that the process sees,
    /// `takes` gives the present durations of kinds. Returns its duration without the process's other streams.
    pub fn landed(
        &mut self,
        now_ns: u64,
        place: u64,
        ran: Option<(u64, u64)>,
        sms: u32,
        needs_ns: Option<u64>,
        takes: impl Fn(Key) -> Option<u64>,
    ) -> Option<u64> {
        let at = self.flying.iter().position(|f| f.place == place)?;
        let flying = self.flying.remove(at)?;
        self.sms = f64::from(sms.max(1));
        let known = self.lanes[flying.lane].over_ns;
        let (start, end) = ran.unwrap_or((now_ns, now_ns));
        let end = end.min(now_ns).max(known);
        let start = start.clamp(known, end);
        let mut owed = flying.owed;
        let mut before = flying.before.plus(price(&mut owed, &takes));
        let unknown = owed.iter().flatten().last().map(|owed| owed.fill);
        let from = match known {
            0 => start.saturating_sub(before.busy_ns),
            known => known,
        };
        let held = flying.issued_ns < known.saturating_sub(self.unsure_ns);
        // The stream's work before the last end has kept it busy since.
        if let Some(fill) = unknown.filter(|_| held) {
            let left = (start - from).saturating_sub(before.busy_ns);
            before = before.plus(fill.during(left));
        }
        let needed = needs_ns.map_or(1.0, |ns| part(ns as f64, (end - start) as f64));
        let mut alone = None;
        if let Some(fill) = flying.fill.filter(|_| end > start) {
            alone = Some(self.alone(flying.lane, start, end, fill));
            let seen = &mut self.lanes[flying.lane].seen;
            seen.launch(end - start, flying.expected_ns, needed, fill, self.sms);
        }
        if held {
            let seen = &mut self.lanes[flying.lane].seen;
            seen.held(start - from, before.busy_ns);
        }
        let lies = Lies::of(held, flying.waited);
        self.put_before(flying.lane, from, start, before, lies);
        if let Some(fill) = flying.fill {
            self.put_fill(flying.lane, start, end, fill, needed);
        }
        let lane = &mut self.lanes[flying.lane];
        lane.over_ns = end.max(1);
        lane.flying = lane.flying.saturating_sub(1);
        if lane.flying == 0 {
            lane.priced = lane.priced.plus(price(&mut lane.owed, &takes));
        }
        self.settle(now_ns);
        alone.filter(|_| ran.is_some())
    }

    /// Duration of a launch without the process's other streams, if all of them waited in proportion to their demand.
    fn alone(&mut self, lane: usize, from_ns: u64, to_ns: u64, fill: Fill) -> u64 {
        let known = self.stretches.len();
        self.put_expected(to_ns, Some(lane));
        let room = fill.room_milli as f64 / 1000.0;
        let (mut at, mut alone) = (from_ns, 0.0);
        while at < to_ns {
            let (mut next, mut wanted) = (to_ns, room);
            for other in self.stretches.iter().filter(|other| other.lane != lane) {
                if other.from_ns > at {
                    next = next.min(other.from_ns);
                } else if other.to_ns > at {
                    next = next.min(other.to_ns);
                    wanted += other.room;
                }
            }
            alone += (next - at) as f64 * (self.sms / wanted.max(1e-9)).min(1.0);
            at = next;
        }
        self.stretches.truncate(known);
        alone as u64
    }

    /// Places the load between two measured launches.
    fn put_before(&mut self, lane: usize, from_ns: u64, to_ns: u64, load: Load, lies: Lies) {
        let gap = to_ns.saturating_sub(from_ns);
        if gap == 0 || load.busy_ns == 0 {
            return;
        }
        let seen = self.lanes[lane].seen;
        if lies == Lies::Throughout {
            let sms = load.sm_ns as f64 / gap as f64;
            let fit = part(self.sms, sms);
            let warps = load.warp_ns as f64 / gap as f64 * fit;
            let at_work = part(seen.given_ns, seen.held_ns);
            let waits = 1.0 - part(seen.needed_ns, seen.mean.ns());
            let needed = 1.0 - at_work * waits;
            // While it is at work and does not wait, its launches may fill all SMs themselves.
            let full = at_work * (1.0 - waits) * seen.mean.full(self.sms) / needed.max(1e-9);
            self.put(Stretch {
                lane,
                from_ns,
                to_ns,
                began_ns: 0,
                busy: at_work,
                needed,
                full,
                sms: sms * fit,
                wide: (at_work * seen.mean.sms()).max(sms * fit),
                warps,
                room: seen.room(sms * fit, warps),
            });
            return;
        }
        let busy = load.busy_ns as f64;
        let sms = load.sm_ns as f64 / busy;
        let fit = part(self.sms, sms);
        let (sms, warps) = (sms * fit, load.warp_ns as f64 / busy * fit);
        let stretch = Stretch {
            lane,
            from_ns,
            to_ns,
            began_ns: 0,
            busy: 1.0,
            // Its launches are as uneven as others, and count without their waiting.
            needed: part(sms, seen.mean.sms()),
            wide: sms,
            full: seen.mean.full(self.sms),
            sms,
            warps,
            room: seen.room(sms, warps),
        };
        if load.busy_ns >= gap {
            self.put(stretch);
            return;
        }
        let first = match lies {
            Lies::First => load.busy_ns,
            _ => load.busy_ns / 2,
        };
        self.put(Stretch {
            to_ns: from_ns + first,
            ..stretch
        });
        self.put(Stretch {
            from_ns: to_ns - (load.busy_ns - first),
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
            wide: fill.sms_milli as f64 / 1000.0,
            sms: fill.sms_milli as f64 / 1000.0,
            warps: fill.warps_milli as f64 / 1000.0,
            room: fill.room_milli as f64 / 1000.0,
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

    /// Adds up the known work of all streams.
    fn settle(&mut self, now_ns: u64) {
        let heard = now_ns.saturating_sub(QUIET_NS);
        for at in 0..LANES {
            let (lane, tail) = (self.lanes[at], self.lanes[at].tail());
            if tail.busy_ns > 0 && lane.ends_ns() <= heard {
                self.put_before(at, lane.over_ns, lane.ends_ns(), tail, Lies::First);
                let lane = &mut self.lanes[at];
                lane.over_ns += tail.busy_ns;
                (lane.counted, lane.priced) = (lane.given, Load::default());
            }
        }
        let awaited = self.lanes.iter();
        let awaited = awaited.enumerate().filter(|(at, lane)| {
            let mut flying = self.flying.iter().filter(|f| f.lane == *at);
            flying.any(|f| !f.is_blocked) || lane.ends_ns() > heard
        });
        let until = awaited.map(|(_, lane)| lane.over_ns).min();
        let mut until = until.unwrap_or(now_ns);
        if self.stretches.len() > STRETCHES {
            // The oldest half, whatever may still be added beside them.
            let at = self.stretches.len() / 2;
            until = until.max(self.stretches[at].from_ns);
        }
        let settled = until.max(self.settled_ns);
        self.done = self.done.plus(self.sum(0, settled));
        self.settled_ns = settled;
        self.stretches.retain_mut(|stretch| {
            stretch.from_ns = stretch.from_ns.max(settled.min(stretch.to_ns));
            stretch.to_ns > stretch.from_ns
        });
    }

    /// The sum of the stretches between two times.
    fn sum(&self, from_ns: u64, until_ns: u64) -> Sum {
        let mut sum = Sum::default();
        let within = |s: &&Stretch| s.to_ns > from_ns && s.from_ns < until_ns;
        let mut there: Vec<&Stretch> = self.stretches.iter().filter(within).collect();
        there.sort_by_key(|stretch| stretch.from_ns);
        let mut left = &there[..];
        let mut at = from_ns;
        while let Some((first, rest)) = left.split_first()
            && at < until_ns
        {
            if first.to_ns <= at {
                left = rest;
                continue;
            }
            let mut next = until_ns;
            let mut active = [(0, 0); LANES];
            let mut many = 0;
            let (mut none_busy, mut none_full) = (1.0, 1.0);
            let (mut partly, mut all_sms, mut wide) = (0.0, 0.0, 0.0);
            for (i, stretch) in left.iter().enumerate() {
                if stretch.from_ns > at {
                    next = next.min(stretch.from_ns);
                    break;
                }
                if stretch.to_ns > at {
                    next = next.min(stretch.to_ns);
                    if many < LANES {
                        active[many] = (stretch.began_ns, i);
                        many += 1;
                    }
                    // The sum over a time without the part of it in which the stream waits.
                    let (full, sms) = match stretch.began_ns {
                        0 => (stretch.full, stretch.sms / stretch.needed.max(1e-9)),
                        _ => (stretch.full.min(stretch.sms / self.sms), stretch.sms),
                    };
                    none_busy *= 1.0 - stretch.busy;
                    none_full *= (1.0 - full) * stretch.needed;
                    if full < 1.0 {
                        partly += ((sms - full * self.sms) / (1.0 - full)).max(0.0);
                    }
                    all_sms += stretch.sms;
                    wide += stretch.wide;
                }
            }
            if many > 0 {
                // The launch that began first gets its room first.
                let active = &mut active[..many];
                active.sort_unstable();
                let (mut room, mut warps) = (self.sms, 0.0);
                for (_, i) in active {
                    let stretch = left[*i];
                    let takes = stretch.room.min(room);
                    room -= takes;
                    warps += stretch.warps * takes / stretch.room.max(1e-9);
                }
                let ns = (next - at) as f64;
                let together = self.sms * (1.0 - none_full) + none_full * partly.min(self.sms);
                let sms = match many {
                    1 => all_sms.min(self.sms),
                    _ => together.min(wide).min(self.sms),
                };
                sum.busy_ns += ns * (1.0 - none_busy);
                sum.sm_ns += ns * sms;
                sum.warp_ns += ns * warps;
            }
            at = next;
        }
        sum
    }

    /// Appends the expected course of work in flight; returns its expected end, and the fill of a launch that runs for
    /// an unknown time. Skips the stream `without`.
    fn put_expected(&mut self, now_ns: u64, without: Option<usize>) -> (u64, Option<Fill>) {
        let mut ends: u64 = now_ns;
        let mut unknown = None;
        let mut over = self.lanes.map(|lane| lane.over_ns);
        let mut seen = [false; LANES];
        for i in 0..self.flying.len() {
            let flying = self.flying[i];
            if Some(flying.lane) == without || flying.is_blocked {
                continue;
            }
            let is_first = !seen[flying.lane];
            seen[flying.lane] = true;
            let from = over[flying.lane];
            let led = from.saturating_add(flying.before.busy_ns);
            let start = if from == 0 {
                flying.issued_ns
            } else {
                led.max(flying.issued_ns)
            };
            if from > 0 {
                let held = flying.issued_ns < from.saturating_sub(self.unsure_ns);
                let lies = Lies::of(held, flying.waited);
                self.put_before(flying.lane, from, start, flying.before, lies);
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
            // The stream's first launch was not seen to be over.
            if is_first {
                end = end.max(now_ns);
            }
            self.put_fill(flying.lane, start, end, fill, 1.0);
            over[flying.lane] = end;
            ends = ends.max(end);
        }
        for at in (0..LANES).filter(|at| Some(*at) != without) {
            let (lane, tail) = (self.lanes[at], self.lanes[at].tail());
            if tail.busy_ns > 0 {
                self.put_before(at, lane.over_ns, lane.ends_ns(), tail, Lies::First);
                ends = ends.max(lane.ends_ns());
            }
        }
        (ends, unknown)
    }

    /// The sums by now, and the work that goes on.
    pub fn tell(&mut self, now_ns: u64) -> (Load, Option<Current>) {
        let known = self.stretches.len();
        let (ends, unknown) = self.put_expected(now_ns, None);
        let until_now = self.sum(0, now_ns);
        let after = (ends > now_ns).then(|| self.sum(now_ns, ends));
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
                let ns = after.busy_ns;
                let milli = |of: f64| (of * 1000.0 / ns.max(1.0)) as u64;
                (ns >= 1.0).then(|| Current {
                    expected_ns: Some(ns as u64),
                    fill: Fill {
                        sms_milli: milli(after.sm_ns),
                        warps_milli: milli(after.warp_ns),
                        ..Fill::default()
                    },
                })
            }
            (None, None) => None,
        };
        (load, current)
    }
}

#[cfg(test)]
mod tests;
