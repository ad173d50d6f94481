//! Sums over the launches of a process: GPU time, SM time and warp time.
//!
//! The driver does not tell which process keeps the SMs busy. So each launch adds the usual duration of its kernel and
//! shape, times the part of the GPU that its grid fills. For every few milliseconds of predicted GPU time of a stream,
//! a pair of events measures one launch; at its end all earlier work of the stream is over as well, and counts from
//! then on. So a long kernel is always measured, a short one now and then.
//!
//! While claims share the GPU, launches also spend the time that the gate has granted to their stream, so that most of
//! them need not ask it.
//!
//! A launch touches a row of its kind and a cell of its stream, with plain loads and stores. Threads may read and write
//! a row at once: a race can yield the figure of another kernel, which is an estimate like any other and is corrected
//! by the next measurement. Each thread writes cells of its own, and ends the time in which others only count.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{
    Expected, Fill, Key, Measure, Mode, Word,
    durations::{HOW, HOW_BITS, LEAST_NS, revised, spread},
};

const ROWS: usize = 2048;
/// A stream has one of two cells, one in each half, so that two streams that collide do not evict each other at every
/// launch.
const CELLS: usize = 128;
/// Predicted GPU time of a stream between two measurements, in nanoseconds; varied from half of it to three halves.
pub const SAMPLE_NS: u64 = 4_000_000;
/// Predicted GPU time of a stream after which it is measured along with another one.
const TOGETHER_NS: u64 = SAMPLE_NS / 4;
/// After this many measurements an average follows the newest ones.
const MEMORY: u16 = 16;
/// The need of a kernel rises by this part of the duration of launches that wait for others.
const SLOW: u64 = 64;

/// Time on a GPU, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Time in which a kernel of the process runs; kernels of several streams each count.
    pub busy_ns: u64,
    /// The same times the SMs that have a block.
    pub sm_ns: u64,
    /// The same times the resident warps.
    pub warp_ns: u64,
}

impl Load {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Load) -> Load {
        Load {
            busy_ns: self.busy_ns.saturating_add(other.busy_ns),
            sm_ns: self.sm_ns.saturating_add(other.sm_ns),
            warp_ns: self.warp_ns.saturating_add(other.warp_ns),
        }
    }

    /// The rest without `part`.
    #[must_use]
    pub fn minus(self, part: Load) -> Load {
        Load {
            busy_ns: self.busy_ns.saturating_sub(part.busy_ns),
            sm_ns: self.sm_ns.saturating_sub(part.sm_ns),
            warp_ns: self.warp_ns.saturating_sub(part.warp_ns),
        }
    }

    /// This many times the load.
    #[must_use]
    pub fn times(self, times: u64) -> Load {
        Load {
            busy_ns: self.busy_ns.saturating_mul(times),
            sm_ns: self.sm_ns.saturating_mul(times),
            warp_ns: self.warp_ns.saturating_mul(times),
        }
    }
}

/// A kernel with its shape.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Row {
    key: AtomicU64,
    /// Load of one launch; all 0 before the first measurement.
    busy_ns: AtomicU64,
    sm_ns: AtomicU64,
    warp_ns: AtomicU64,
    sms_milli: AtomicU32,
    warps_milli: AtomicU32,
    room_milli: AtomicU32,
    full_milli: AtomicU16,
    /// Measurements, [`MEMORY`] at most.
    measured: AtomicU16,
    /// Duration of a launch that waits for no other.
    least_ns: AtomicU64,
    /// Duration alone on the GPU, above [`HOW`]; 0 before the first measurement.
    known: AtomicU64,
}

// What a launch reads is in one line of the processor's cache.
const _: () = assert!(size_of::<Row>() == 64);

impl Row {
    fn fill(&self) -> Fill {
        let [sms_milli, warps_milli, room_milli] =
            [&self.sms_milli, &self.warps_milli, &self.room_milli]
                .map(|word| u64::from(word.load(Relaxed)));
        Fill {
            sms_milli,
            warps_milli,
            room_milli,
            full_milli: u64::from(self.full_milli.load(Relaxed)),
        }
    }
}

/// Load of a thread's launches on a stream since the stream's last measurement, and the stream's grant.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    tag: AtomicU64,
    busy_ns: AtomicU64,
    sm_ns: AtomicU64,
    warp_ns: AtomicU64,
    limit_ns: AtomicU64,
    /// GPU time that it may still use under this decision.
    left_ns: AtomicU64,
    word: AtomicU32,
    /// The grant behind the stream's last marker: 0 if all of it came back, the maximum if launches went behind it.
    granted_ns: AtomicU64,
}

impl Cell {
    /// First ends the grant: a launch that has just read it writes its rest back.
    fn take_grant(&self) -> u64 {
        self.word.store(0, Relaxed);
        let unused = self.left_ns.swap(0, Relaxed);
        let came_back = self.granted_ns.load(Relaxed) <= unused;
        let granted = if came_back { 0 } else { u64::MAX };
        self.granted_ns.store(granted, Relaxed);
        unused
    }

    fn take(&self) -> Load {
        Load {
            busy_ns: self.busy_ns.swap(0, Relaxed),
            sm_ns: self.sm_ns.swap(0, Relaxed),
            warp_ns: self.warp_ns.swap(0, Relaxed),
        }
    }

    fn put(&self, load: Load) {
        for (to, by) in [
            (&self.busy_ns, load.busy_ns),
            (&self.sm_ns, load.sm_ns),
            (&self.warp_ns, load.warp_ns),
        ] {
            to.fetch_add(by, Relaxed);
        }
    }
}

/// Figures of a process's kernels on a GPU, and loads of its streams.
#[derive(Debug)]
pub struct Tally {
    rows: Box<[Row; ROWS]>,
    cells: Box<[Cell; CELLS]>,
    dice: AtomicU64,
}

/// Made on the heap: threads may have small stacks.
fn table<T: Default, const N: usize>() -> Box<[T; N]> {
    let all: Box<[T]> = (0..N).map(|_| T::default()).collect();
    all.try_into().unwrap_or_else(|_| unreachable!())
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            rows: table(),
            cells: table(),
            dice: AtomicU64::new(0),
        }
    }
}

/// What a launch found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It goes and is counted.
    Go,
    /// It was not granted, or is unknown.
    Stop,
    /// It was granted and is not counted.
    Uncounted,
}

/// Number of a stream as used by one thread, whose id is 256 or more; never 0. Addresses have 48 bits at most, of which
/// the lowest are 0: the upper part of a large id goes there.
#[inline]
pub fn place(stream: usize, thread: usize) -> u64 {
    stream as u64 ^ (thread as u64).rotate_left(40)
}

impl Tally {
    /// The two rows of a kind, side by side.
    #[inline]
    fn homes(&self, key: Key) -> [&Row; 2] {
        // The upper bits are mixed best.
        let at = (key.number() >> 53) as usize % ROWS;
        [&self.rows[at], &self.rows[at ^ 1]]
    }

    #[inline]
    fn row(&self, key: Key) -> Option<&Row> {
        let [one, other] = self.homes(key);
        if one.key.load(Relaxed) == key.number() {
            return Some(one);
        }
        (other.key.load(Relaxed) == key.number()).then_some(other)
    }

    /// The two cells of a [`place`].
    #[inline]
    fn places(&self, place: u64) -> [&Cell; 2] {
        let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (mixed >> 57) as usize % CELLS;
        [&self.cells[at], &self.cells[at ^ (CELLS / 2)]]
    }

    #[inline]
    fn cell(&self, place: u64) -> Option<&Cell> {
        let [one, other] = self.places(place);
        if one.tag.load(Relaxed) == place {
            return Some(one);
        }
        (other.tag.load(Relaxed) == place).then_some(other)
    }

    fn roll(&self) -> u64 {
        spread(self.dice.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
    }

    /// The stream's cell, or a new one; what another stream left in it comes along.
    fn claim(&self, place: u64) -> &Cell {
        if let Some(own) = self.cell(place) {
            return own;
        }
        let [one, other] = self.places(place);
        let is_free = |cell: &Cell| cell.tag.load(Relaxed) == 0;
        // By chance: some owners have gone, and the others come back.
        let cell = match (is_free(one), is_free(other)) {
            (true, _) => one,
            (false, true) => other,
            (false, false) if self.roll() & 1 == 0 => one,
            (false, false) => other,
        };
        cell.limit_ns.store(0, Relaxed);
        cell.granted_ns.store(u64::MAX, Relaxed);
        cell.tag.store(place, Relaxed);
        cell
    }

    /// The stream's next launches are only counted for this much GPU time; then one is measured.
    fn go_on(&self, cell: &Cell) {
        let ahead = SAMPLE_NS / 2 + self.roll() % SAMPLE_NS;
        let limit = cell.busy_ns.load(Relaxed).saturating_add(ahead);
        cell.limit_ns.store(limit, Relaxed);
    }

    /// Whether a launch goes at once and is counted by the figures of its kind, as nearly all are. It takes its time
    /// from its stream's grant under this decision if claims share the GPU. Changes nothing if not.
    #[inline(always)]
    pub fn goes(&self, word: Word, key: Key, place: u64) -> bool {
        self.step(word, key, true, place, false) == Step::Go
    }

    /// The same, also for a launch that is not counted, which takes its time all the same. `counts`: SMs work on it.
    #[inline]
    pub fn pass(&self, word: Word, key: Key, counts: bool, place: u64) -> Step {
        self.step(word, key, counts, place, true)
    }

    /// `all`: a launch goes that is not counted.
    #[inline(always)]
    fn step(&self, word: Word, key: Key, counts: bool, place: u64, all: bool) -> Step {
        let is_shared = word.mode() != Mode::Free;
        if !counts && !is_shared {
            return Step::Go;
        }
        let Some(row) = self.row(key) else {
            return Step::Stop;
        };
        let Some(cell) = self.cell(place) else {
            return Step::Stop;
        };
        let one = row.busy_ns.load(Relaxed);
        let busy = cell.busy_ns.load(Relaxed) + one;
        let is_counted = one > 0 && busy <= cell.limit_ns.load(Relaxed);
        if !is_counted && !all {
            return Step::Uncounted;
        }
        if is_shared {
            let takes = row.known.load(Relaxed) >> HOW_BITS;
            let left = cell.left_ns.load(Relaxed);
            if cell.word.load(Relaxed) != word.0 || takes == 0 || takes > left {
                return Step::Stop;
            }
            cell.left_ns.store(left - takes, Relaxed);
            if !counts {
                return Step::Go;
            }
        }
        if !is_counted {
            return Step::Uncounted;
        }
        // In this order it is one addition to memory.
        let more = |to: &AtomicU64, by: &AtomicU64| {
            let by = by.load(Relaxed);
            to.store(to.load(Relaxed).wrapping_add(by), Relaxed);
        };
        cell.busy_ns.store(busy, Relaxed);
        more(&cell.sm_ns, &row.sm_ns);
        more(&cell.warp_ns, &row.warp_ns);
        Step::Go
    }

    /// Expected duration of a launch alone on the GPU; `None` if none was measured.
    pub fn expected(&self, key: Key) -> Option<Expected> {
        let known = self.row(key)?.known.load(Relaxed);
        (known > 0).then_some(Expected {
            ns: known >> HOW_BITS,
            is_sure: known & HOW != Measure::Rough as u64,
        })
    }

    /// Learns a measurement of that, in nanoseconds, if launches of the kind are known.
    pub fn expect(&self, key: Key, ns: u64, how: Measure) {
        if let Some(row) = self.row(key) {
            let known = revised(row.known.load(Relaxed), ns, how);
            row.known.store(known, Relaxed);
        }
    }

    /// Grants GPU time to a stream behind a marker, under a decision. Returns the unused nanoseconds of another stream's
    /// grant, whose cell it takes.
    pub fn grant(&self, word: Word, place: u64, ns: u64) -> u64 {
        let cell = self.claim(place);
        cell.granted_ns.store(ns, Relaxed);
        let unused = cell.left_ns.swap(ns, Relaxed);
        cell.word.store(word.0, Relaxed);
        unused
    }

    /// Whether no launch is behind the stream's last marker. A stream that is new here may have many, from when the GPU
    /// was not shared.
    pub fn is_marked(&self, place: u64) -> bool {
        let all_left = |cell: &Cell| cell.granted_ns.load(Relaxed) <= cell.left_ns.load(Relaxed);
        self.cell(place).is_some_and(all_left)
    }

    /// Launches went without grants.
    pub fn unmark(&self) {
        for cell in self.cells.iter() {
            cell.granted_ns.store(u64::MAX, Relaxed);
        }
    }

    /// Whether the stream's last grant is under this decision.
    pub fn is_under(&self, word: Word, place: u64) -> bool {
        let own = |cell: &Cell| cell.word.load(Relaxed) == word.0;
        self.cell(place).is_some_and(own)
    }

    /// Takes back the rest of a stream's grant, in nanoseconds.
    pub fn take_grant(&self, place: u64) -> u64 {
        self.cell(place).map_or(0, Cell::take_grant)
    }

    /// Takes back all grants when a new decision ends them; returns the unused nanoseconds.
    pub fn take_grants(&self) -> u64 {
        let cells = self.cells.iter();
        cells.map(Cell::take_grant).sum()
    }

    /// Sum of unused grants, in nanoseconds.
    pub fn unused_ns(&self) -> u64 {
        let cells = self.cells.iter();
        cells.map(|cell| cell.left_ns.load(Relaxed)).sum()
    }

    /// Sets the part of the GPU that launches of a kind fill; default if unknown.
    pub fn know(&self, key: Key, fill: Fill) {
        let [one, other] = self.homes(key);
        let row = match self.row(key) {
            Some(row) => row,
            None if one.key.load(Relaxed) != 0 && other.key.load(Relaxed) == 0 => other,
            None => one,
        };
        row.key.store(0, Relaxed);
        for word in [
            &row.busy_ns,
            &row.sm_ns,
            &row.warp_ns,
            &row.least_ns,
            &row.known,
        ] {
            word.store(0, Relaxed);
        }
        for (word, to) in [
            (&row.sms_milli, fill.sms_milli),
            (&row.warps_milli, fill.warps_milli),
            (&row.room_milli, fill.room_milli),
        ] {
            word.store(u32::try_from(to).unwrap_or(u32::MAX), Relaxed);
        }
        row.full_milli
            .store(fill.full_milli.min(1000) as u16, Relaxed);
        row.measured.store(0, Relaxed);
        row.key.store(key.number(), Relaxed);
    }

    /// Fill of a kind's launches, and the duration of one in nanoseconds.
    pub fn known(&self, key: Key) -> Option<(Fill, Option<u64>)> {
        let row = self.row(key)?;
        let fill = row.fill();
        let ns = row.busy_ns.load(Relaxed);
        Some((fill, (ns > 0).then_some(ns)))
    }

    /// Load of one launch of a kind by itself: launches that wait for other streams take longer, so the shortest ones
    /// count.
    pub fn needs(&self, key: Key) -> Option<Load> {
        let row = self.row(key)?;
        let ns = row.least_ns.load(Relaxed);
        (ns > 0).then(|| row.fill().during(ns))
    }

    /// The stream's load since its last measurement; counts with the next one.
    pub fn begin(&self, place: u64) -> Load {
        let cell = self.claim(place);
        let load = cell.take();
        self.go_on(cell);
        // The other streams' next ones are measured too: only then it is seen what ran side by side.
        let others = self.cells.iter().filter(|other| {
            let tag = other.tag.load(Relaxed);
            tag != 0 && tag != place && other.busy_ns.load(Relaxed) >= TOGETHER_NS
        });
        for other in others {
            other.limit_ns.store(0, Relaxed);
        }
        load
    }

    /// The stream's load since its last measurement, so far.
    pub fn given(&self, place: u64) -> Load {
        self.cell(place).map_or_else(Load::default, |cell| Load {
            busy_ns: cell.busy_ns.load(Relaxed),
            sm_ns: cell.sm_ns.load(Relaxed),
            warp_ns: cell.warp_ns.load(Relaxed),
        })
    }

    /// The stream's load since its last measurement, to count with another one.
    pub fn take(&self, place: u64) -> Load {
        self.cell(place).map_or_else(Load::default, Cell::take)
    }

    /// Counts a launch that is not measured; returns its fill if its duration is unknown. The stream's next launches
    /// are only counted for a while: otherwise a stream far ahead of the GPU would be examined at every launch.
    pub fn add_unmeasured(&self, key: Key, place: u64) -> Option<Fill> {
        let row = self.row(key)?;
        let load = Load {
            busy_ns: row.busy_ns.load(Relaxed),
            sm_ns: row.sm_ns.load(Relaxed),
            warp_ns: row.warp_ns.load(Relaxed),
        };
        if load.busy_ns == 0 {
            return Some(row.fill());
        }
        let cell = self.claim(place);
        cell.put(load);
        if cell.busy_ns.load(Relaxed) > cell.limit_ns.load(Relaxed) {
            self.go_on(cell);
        }
        None
    }

    /// Learns a measurement: the duration of a launch, and its duration without the process's other streams if all
    /// waited in proportion.
    pub fn learn(&self, key: Key, ns: u64, alone_ns: u64) {
        let Some(row) = self.row(key) else { return };
        let ns = ns.max(LEAST_NS);
        let alone_ns = alone_ns.clamp(LEAST_NS, ns);
        let weight = match row.measured.load(Relaxed) {
            before if before < MEMORY => row.measured.fetch_add(1, Relaxed) + 1,
            _ => MEMORY,
        };
        let weight = u64::from(weight);
        let mean = |old: u64, new: u64| (old * (weight - 1) + new) / weight;
        let least = match row.least_ns.load(Relaxed) {
            0 => ns,
            least if alone_ns >= ns - ns / 50 => mean(least, ns),
            // It follows slowly if no launch is ever alone.
            least if least < ns => least + (ns - least).min(least) / SLOW,
            _ => ns,
        };
        row.least_ns.store(least, Relaxed);
        let one = row.fill().during(alone_ns);
        for (word, now) in [
            (&row.sm_ns, one.sm_ns),
            (&row.warp_ns, one.warp_ns),
            (&row.busy_ns, ns),
        ] {
            word.store(mean(word.load(Relaxed), now), Relaxed);
        }
    }

    /// Forgets a launch, whose handle may be reused for another.
    pub fn forget(&self, key: Key) {
        if let Some(row) = self.row(key) {
            row.key.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tally {
        /// A launch on a GPU that is not shared.
        fn add(&self, key: Key, place: u64) -> bool {
            self.pass(Word::default(), key, true, place) == Step::Go
        }
    }

    /// A table that knows a kind of launches of this duration.
    fn known(ns: u64) -> (Tally, Key) {
        let (tally, key) = (Tally::default(), Key::kernel(0x5000, 4, 256));
        tally.know(key, Fill::of_grid(4, 2, 4, 8));
        tally.learn(key, ns, ns);
        (tally, key)
    }

    #[test]
    fn a_launch_counts_once_its_kind_was_measured() {
        let tally = Tally::default();
        let key = Key::kernel(0x5000, 4, 256);
        assert!(!tally.add(key, 1), "nothing is known of it");
        tally.know(key, Fill::of_grid(4, 2, 4, 8));
        assert!(!tally.add(key, 1), "not how long it takes");
        assert_eq!(tally.begin(1), Load::default());
        let fill = Fill::of_grid(4, 2, 4, 8);
        assert_eq!(tally.add_unmeasured(key, 1), Some(fill));
        tally.learn(key, 1_000_000, 1_000_000);
        assert_eq!(tally.known(key), Some((fill, Some(1_000_000))));
        assert_eq!(tally.add_unmeasured(key, 3), None);
        assert_eq!(tally.begin(3), fill.during(1_000_000));
        assert!(tally.add(key, 1) && tally.add(key, 1));
        assert!(!tally.add(key, 2), "another stream has a cell of its own");
        assert_eq!(tally.begin(1).sm_ns, 8_000_000);
        assert_eq!(tally.begin(1), Load::default(), "it counts once");
        tally.forget(key);
        assert!(!tally.add(key, 1));
    }

    #[test]
    fn every_few_milliseconds_one_is_measured() {
        let (tally, key) = known(100_000);
        let (mut total, mut measured) = (Load::default(), 0);
        for _ in 0..10_000 {
            if !tally.add(key, 7) {
                total = total.plus(tally.begin(7));
                tally.learn(key, 100_000, 100_000);
                measured += 1;
            }
        }
        total = total.plus(tally.begin(7));
        total.busy_ns += measured * 100_000;
        assert_eq!(total.busy_ns, 1_000_000_000, "nothing is lost");
        assert!((150..400).contains(&measured), "{measured} measurements");
    }

    #[test]
    fn streams_are_measured_together() {
        let (tally, key) = known(100_000);
        let streams = [7, 8, 9];
        for stream in streams {
            tally.begin(stream);
        }
        // Two streams in turn, and one that hardly launches.
        let mut measured = Vec::new();
        for i in 0..20_000 {
            let stream = if i % 100 == 0 { 9 } else { streams[i % 2] };
            if !tally.add(key, stream) {
                tally.begin(stream);
                measured.push((stream, i));
            }
        }
        let both: Vec<_> = measured.iter().filter(|(s, _)| *s != 9).collect();
        let alone = both
            .chunk_by(|a, b| b.1 - a.1 <= 2)
            .filter(|of| of.len() < 2);
        assert!(both.len() > 200, "{}", both.len());
        assert!(alone.count() < both.len() / 20, "{both:?}");
        let third = measured.len() - both.len();
        assert!((3..30).contains(&third), "{third} of its 200 launches");
    }

    #[test]
    fn a_stream_that_is_not_measured_goes_on_being_counted() {
        let (tally, key) = known(10_000);
        // No measurement is possible: the GPU is far behind.
        let looks = (0..10_000)
            .filter(|_| !tally.add(key, 7))
            .map(|_| assert_eq!(tally.add_unmeasured(key, 7), None))
            .count();
        assert!((10..40).contains(&looks), "{looks} of 10000 looked closer");
        let fill = Fill::of_grid(4, 2, 4, 8);
        assert_eq!(tally.begin(7), fill.during(10_000).times(10_000));
    }

    #[test]
    fn streams_that_meet_in_one_place_do_not_drive_each_other_out() {
        let (tally, key) = known(1000);
        let home = |stream: u64| std::ptr::from_ref(tally.places(stream)[0]);
        let other = (2..10_000).find(|stream| home(*stream) == home(1));
        let Some(other) = other else {
            panic!("some two streams meet");
        };
        // Earlier streams have the cells.
        for stream in 10_000..20_000 {
            tally.begin(stream);
        }
        let mut looks = 0;
        for _ in 0..1000 {
            for stream in [1, other] {
                if !tally.add(key, stream) {
                    tally.begin(stream);
                    looks += 1;
                }
            }
        }
        assert!(looks < 40, "{looks} of 2000 looked closer");
    }

    #[test]
    fn a_grant_is_for_one_decision_stream_and_thread() {
        let tally = Tally::default();
        let key = Key::kernel(0x5000, 4, 256);
        let turn = Word::default().next(Mode::Turn);
        let spend = |word, stream, thread: usize| {
            tally.pass(word, key, false, place(stream, thread << 8)) == Step::Go
        };
        tally.grant(turn, place(7, 1 << 8), 1000);
        assert!(!spend(turn, 7, 1), "it may take any time");
        tally.know(key, Fill::default());
        assert!(!spend(turn, 7, 1), "still");
        tally.expect(key, 600, Measure::Alone);
        assert!(!spend(turn, 8, 1) && !spend(turn, 7, 2));
        assert!(!spend(turn.next(Mode::Turn), 7, 1), "another turn");
        assert!(spend(turn, 7, 1));
        assert!(!spend(turn, 7, 1), "not enough left");
        assert_eq!(
            (tally.unused_ns(), tally.take_grant(place(7, 1 << 8))),
            (400, 400)
        );
        tally.grant(turn, place(7, 1 << 8), 1000);
        assert_eq!((tally.take_grants(), tally.unused_ns()), (1000, 0));
        // A launch that had read the grant before writes its rest.
        tally.claim(place(7, 1 << 8)).left_ns.store(900, Relaxed);
        assert!(!spend(turn, 7, 1));
    }

    #[test]
    fn threads_that_begin_long_after_each_other_have_places_of_their_own() {
        let of = |number: usize| place(0x7f00_1234_5670, number << 8 | 0xa1);
        let mut places: Vec<u64> = (1..200_000).map(of).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 199_999);
        assert!(!places.contains(&0));
    }

    /// The duration alone in microseconds, and whether it is more than a guess.
    fn alone(tally: &Tally, key: Key) -> Option<(u64, bool)> {
        let expected = tally.expected(key);
        expected.map(|it| (it.ns / 1000, it.is_sure))
    }

    #[test]
    fn durations_follow_and_are_forgotten() {
        let tally = Tally::default();
        let (a, b) = (Key::kernel(0x5000, 64, 256), Key::kernel(0x5000, 65, 256));
        assert_ne!(a, b, "the shape counts");
        assert_ne!(Key::graph(0x5000), a);
        tally.expect(a, 1_000_000, Measure::Alone);
        assert_eq!(alone(&tally, a), None, "its row went to another kind");
        tally.know(a, Fill::default());
        tally.expect(a, 1_000_000, Measure::Alone);
        assert_eq!(
            (alone(&tally, a), alone(&tally, b)),
            (Some((1000, true)), None)
        );
        tally.expect(a, 9_000_000, Measure::Alone);
        assert_eq!(
            alone(&tally, a),
            Some((5000, true)),
            "a jump is believed soon"
        );
        for _ in 0..40 {
            tally.expect(a, 2_000_000, Measure::Alone);
        }
        let (now, _) = alone(&tally, a).unwrap_or_default();
        assert!((1999..2002).contains(&now), "{now}");
        tally.forget(a);
        assert_eq!(alone(&tally, a), None);
        tally.know(a, Fill::default());
        assert_eq!(alone(&tally, a), None, "another launch has its handle");
    }

    #[test]
    fn what_is_known_better_replaces_what_is_rough() {
        let tally = Tally::default();
        let key = Key::kernel(0x5000, 64, 256);
        tally.know(key, Fill::default());
        tally.expect(key, 0, Measure::Rough);
        assert_eq!(alone(&tally, key), Some((0, false)));
        tally.expect(key, 20_000, Measure::Crowd);
        assert_eq!(alone(&tally, key), Some((20, true)), "at once");
        tally.expect(key, 500, Measure::Rough);
        assert_eq!(alone(&tally, key), Some((20, true)), "that says nothing");
        tally.expect(key, 2_000_000, Measure::Crowd);
        assert!(alone(&tally, key) < Some((22, true)), "a neighbour's slice");
        tally.expect(key, 10_000, Measure::Alone);
        assert_eq!(alone(&tally, key), Some((10, true)));
    }

    #[test]
    fn holds_a_programs_kernels() {
        let tally = Tally::default();
        let keys: Vec<Key> = (0..600)
            .map(|i| Key::kernel(0x7f00_0000 + i * 16, 132, 256))
            .collect();
        for key in &keys {
            tally.know(*key, Fill::default());
        }
        let kept = keys.iter().filter(|key| tally.known(**key).is_some());
        let kept = kept.count();
        assert!(kept > 560, "{kept} of 600 kept");
    }

    #[test]
    fn measurements_average_out() {
        let tally = Tally::default();
        let key = Key::kernel(0x5000, 4, 256);
        tally.know(key, Fill::of_grid(4, 2, 4, 8));
        for i in 0..200 {
            let ns = if i % 2 == 0 { 1_000_000 } else { 3_000_000 };
            tally.learn(key, ns, ns);
        }
        let ns = tally.known(key).and_then(|(_, ns)| ns).unwrap_or(0);
        assert!((1_900_000..2_100_000).contains(&ns), "{ns}");
    }
}
