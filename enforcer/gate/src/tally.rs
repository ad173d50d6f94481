//! What the launches of one process come to: GPU time, SM time and warp time.
//!
//! The driver tells nobody which process keeps the SMs busy. Here each launch adds what launches of the same
//! kernel and shape were seen to take, times the part of the GPU that such a grid fills. Every few milliseconds
//! of predicted GPU time of a stream one launch is measured by a pair of events; with its end everything that
//! the stream was given before it is over as well, and counts from then on. A long kernel is thus measured
//! every time, a short one now and then.
//!
//! A launch touches a row of what is known and a cell of its stream, with plain loads and stores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{
    Key,
    durations::{place, spread},
};

const ROWS: usize = 2048;
const CELLS: usize = 128;
/// Predicted GPU time of a stream between two measurements, in nanoseconds; half of it to three halves.
pub const SAMPLE_NS: u64 = 4_000_000;
/// No kernel takes less.
const LEAST_NS: u64 = 500;
/// After so many measurements an average follows the newest ones.
const MEMORY: u64 = 16;

/// Time on a GPU, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Some kernel of the process runs; kernels of several streams count each.
    pub busy_ns: u64,
    /// The same times the SMs that have a block.
    pub sm_ns: u64,
    /// The same times the resident warps.
    pub warp_ns: u64,
}

impl Load {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Load) -> Load {
        Load {
            busy_ns: self.busy_ns.saturating_add(other.busy_ns),
            sm_ns: self.sm_ns.saturating_add(other.sm_ns),
            warp_ns: self.warp_ns.saturating_add(other.warp_ns),
        }
    }

    /// So many times as much.
    #[must_use]
    pub fn times(self, times: u64) -> Load {
        Load {
            busy_ns: self.busy_ns.saturating_mul(times),
            sm_ns: self.sm_ns.saturating_mul(times),
            warp_ns: self.warp_ns.saturating_mul(times),
        }
    }
}

/// How much GPU time there can have been: streams of a process that run side by side have one GPU together, and what
/// each was seen to take contains the waiting for the others.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limit {
    seen_ns: u64,
    /// Time that was not used yet, for all SMs and for single ones.
    busy_ns: u64,
    sm_ns: u64,
}

/// Unused time is kept for so long beside what a load needs: ends are seen late.
const KEPT_NS: u64 = 4_000_000;

impl Limit {
    /// What is left of a load that came to an end now on a GPU with so many SMs; its last launch was at `issued_ns`.
    pub fn fit(&mut self, now_ns: u64, issued_ns: u64, load: Load, sms: u32) -> Load {
        let passed = now_ns.saturating_sub(self.seen_ns);
        self.seen_ns = self.seen_ns.max(now_ns);
        let sms = u64::from(sms.max(1));
        // After a long silence: whatever this load needs. While it waited, other streams ran and left room.
        let waited = now_ns.saturating_sub(issued_ns);
        let kept = load.busy_ns.min(passed).max(waited);
        let kept = kept.saturating_add(KEPT_NS);
        self.busy_ns = self.busy_ns.saturating_add(passed).min(kept);
        let sm_room = self.sm_ns.saturating_add(passed.saturating_mul(sms));
        self.sm_ns = sm_room.min(kept.saturating_mul(sms));
        let busy_ns = load.busy_ns.min(self.busy_ns);
        let sm_ns = load.sm_ns.min(self.sm_ns);
        self.busy_ns -= busy_ns;
        self.sm_ns -= sm_ns;
        let warp_ns = u128::from(load.warp_ns) * u128::from(sm_ns) / u128::from(load.sm_ns.max(1));
        Load {
            busy_ns,
            sm_ns,
            warp_ns: warp_ns as u64,
        }
    }
}

/// The part of a GPU that a kernel fills while it runs, on average, in thousandths of an SM and of a warp.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fill {
    /// SMs with a block.
    pub sms_milli: u64,
    /// Warps.
    pub warps_milli: u64,
}

impl Fill {
    /// A grid of `blocks` blocks of `warps` warps on a GPU with `sms` SMs, of which each can hold `resident` such
    /// blocks at a time. Blocks go to the SM that has fewest, so that a small grid spreads out; a large one keeps
    /// the GPU full until the last blocks are handed out, and then runs dry over the time of one block.
    #[must_use]
    pub fn of_grid(sms: u32, resident: u32, blocks: u64, warps: u32) -> Fill {
        let (sms, warps) = (u64::from(sms.max(1)), u64::from(warps.max(1)));
        let wave = sms * u64::from(resident.max(1));
        let (full, rest) = (blocks / wave, blocks % wave);
        let rounds = (full + u64::from(rest > 0)).max(1);
        let sm_rounds = full.saturating_mul(sms) + rest.min(sms);
        let warp_rounds = blocks.saturating_mul(warps);
        Fill {
            sms_milli: sm_rounds.saturating_mul(1000) / rounds,
            warps_milli: warp_rounds.saturating_mul(1000) / rounds,
        }
    }

    /// The load of so many nanoseconds.
    #[must_use]
    pub fn during(self, ns: u64) -> Load {
        let of = |milli: u64| (u128::from(ns) * u128::from(milli) / 1000) as u64;
        Load {
            busy_ns: ns,
            sm_ns: of(self.sms_milli),
            warp_ns: of(self.warps_milli),
        }
    }
}

/// A kernel with its shape.
#[derive(Debug)]
#[repr(align(64))]
struct Row {
    key: AtomicU64,
    /// What one launch comes to; all 0 before the first measurement.
    busy_ns: AtomicU64,
    sm_ns: AtomicU64,
    warp_ns: AtomicU64,
    sms_milli: AtomicU64,
    warps_milli: AtomicU64,
    measured: AtomicU64,
    /// Launches that could be neither measured nor predicted so far.
    owed: AtomicU64,
}

/// What a stream has been given by one thread since its last measurement.
#[derive(Debug)]
#[repr(align(64))]
struct Cell {
    tag: AtomicU64,
    busy_ns: AtomicU64,
    sm_ns: AtomicU64,
    warp_ns: AtomicU64,
    limit_ns: AtomicU64,
}

impl Cell {
    fn take(&self) -> Load {
        Load {
            busy_ns: self.busy_ns.swap(0, Relaxed),
            sm_ns: self.sm_ns.swap(0, Relaxed),
            warp_ns: self.warp_ns.swap(0, Relaxed),
        }
    }

    fn put(&self, load: Load) {
        self.busy_ns.fetch_add(load.busy_ns, Relaxed);
        self.sm_ns.fetch_add(load.sm_ns, Relaxed);
        self.warp_ns.fetch_add(load.warp_ns, Relaxed);
    }
}

/// What is known of a process's kernels on one GPU, and what its streams were given.
#[derive(Debug)]
pub struct Tally {
    rows: Box<[Row; ROWS]>,
    cells: Box<[Cell; CELLS]>,
    dice: AtomicU64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            rows: Box::new(
                [const {
                    Row {
                        key: AtomicU64::new(0),
                        busy_ns: AtomicU64::new(0),
                        sm_ns: AtomicU64::new(0),
                        warp_ns: AtomicU64::new(0),
                        sms_milli: AtomicU64::new(0),
                        warps_milli: AtomicU64::new(0),
                        measured: AtomicU64::new(0),
                        owed: AtomicU64::new(0),
                    }
                }; ROWS],
            ),
            cells: Box::new(
                [const {
                    Cell {
                        tag: AtomicU64::new(0),
                        busy_ns: AtomicU64::new(0),
                        sm_ns: AtomicU64::new(0),
                        warp_ns: AtomicU64::new(0),
                        limit_ns: AtomicU64::new(0),
                    }
                }; CELLS],
            ),
            dice: AtomicU64::new(0),
        }
    }
}

impl Tally {
    #[inline]
    fn row(&self, key: Key) -> Option<&Row> {
        let at = place(key);
        [at, at ^ 1]
            .into_iter()
            .map(|at| &self.rows[at & (ROWS - 1)])
            .find(|row| row.key.load(Relaxed) == key.number())
    }

    #[inline]
    fn cell(&self, stream: usize, thread: usize) -> (&Cell, u64) {
        let mixed = spread((stream as u64).wrapping_add((thread as u64).rotate_left(32)));
        (&self.cells[mixed as usize % CELLS], mixed | 1)
    }

    /// Counts a launch by what is known of its kind. `false`: it is not counted, and has to be measured.
    #[inline]
    pub fn add(&self, key: Key, stream: usize, thread: usize) -> bool {
        let Some(row) = self.row(key) else {
            return false;
        };
        let (cell, tag) = self.cell(stream, thread);
        let one = row.busy_ns.load(Relaxed);
        let busy = cell.busy_ns.load(Relaxed) + one;
        if one == 0 || cell.tag.load(Relaxed) != tag || busy > cell.limit_ns.load(Relaxed) {
            return false;
        }
        let more = |to: &AtomicU64, by: &AtomicU64| {
            to.store(to.load(Relaxed).wrapping_add(by.load(Relaxed)), Relaxed);
        };
        cell.busy_ns.store(busy, Relaxed);
        more(&cell.sm_ns, &row.sm_ns);
        more(&cell.warp_ns, &row.warp_ns);
        true
    }

    /// Says what launches of a kind fill; nothing where nobody knows.
    pub fn know(&self, key: Key, fill: Fill) {
        let at = place(key) % ROWS;
        let (one, other) = (&self.rows[at], &self.rows[at ^ 1]);
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
            &row.measured,
            &row.owed,
        ] {
            word.store(0, Relaxed);
        }
        row.sms_milli.store(fill.sms_milli, Relaxed);
        row.warps_milli.store(fill.warps_milli, Relaxed);
        row.key.store(key.number(), Relaxed);
    }

    /// What launches of a kind fill, and what one was seen to take, in nanoseconds.
    pub fn known(&self, key: Key) -> Option<(Fill, Option<u64>)> {
        let row = self.row(key)?;
        let fill = Fill {
            sms_milli: row.sms_milli.load(Relaxed),
            warps_milli: row.warps_milli.load(Relaxed),
        };
        let ns = row.busy_ns.load(Relaxed);
        Some((fill, (ns > 0).then_some(ns)))
    }

    /// What the stream was given since its last measurement goes with the next one. The cell is the stream's from
    /// now on; what another one had left in it comes along.
    pub fn begin(&self, stream: usize, thread: usize) -> Load {
        let (cell, tag) = self.cell(stream, thread);
        let load = cell.take();
        let dice = spread(self.dice.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed));
        cell.limit_ns
            .store(SAMPLE_NS / 2 + dice % SAMPLE_NS, Relaxed);
        cell.tag.store(tag, Relaxed);
        load
    }

    /// What the stream was given since its last measurement, to count with another one.
    pub fn take(&self, stream: usize, thread: usize) -> Load {
        self.cell(stream, thread).0.take()
    }

    /// A measurement did not come about: what would have gone with it counts later.
    pub fn put_back(&self, stream: usize, thread: usize, load: Load) {
        self.cell(stream, thread).0.put(load);
    }

    /// Counts a launch that cannot be measured now.
    pub fn add_unmeasured(&self, key: Key, stream: usize, thread: usize) {
        let Some(row) = self.row(key) else { return };
        let load = Load {
            busy_ns: row.busy_ns.load(Relaxed),
            sm_ns: row.sm_ns.load(Relaxed),
            warp_ns: row.warp_ns.load(Relaxed),
        };
        if load.busy_ns == 0 {
            row.owed.fetch_add(1, Relaxed);
        } else {
            self.put_back(stream, thread, load);
        }
    }

    /// Takes in a measurement; gives what it comes to, together with launches that waited for it.
    pub fn learn(&self, key: Key, ns: u64) -> Load {
        let Some(row) = self.row(key) else {
            return Load::default();
        };
        let ns = ns.max(LEAST_NS);
        let fill = Fill {
            sms_milli: row.sms_milli.load(Relaxed),
            warps_milli: row.warps_milli.load(Relaxed),
        };
        let count = row.measured.fetch_add(1, Relaxed).saturating_add(1);
        let weight = count.min(MEMORY);
        let old = row.busy_ns.load(Relaxed);
        let mean = (old * (weight - 1) + ns) / weight;
        let one = fill.during(mean.max(LEAST_NS));
        row.sm_ns.store(one.sm_ns, Relaxed);
        row.warp_ns.store(one.warp_ns, Relaxed);
        row.busy_ns.store(one.busy_ns, Relaxed);
        fill.during(ns).times(1 + row.owed.swap(0, Relaxed))
    }

    /// Forgets what was learnt of a launch: its handle may come to mean something else.
    pub fn forget(&self, key: Key) {
        if let Some(row) = self.row(key) {
            row.key.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_fill_a_gpu_by_hand() {
        // SMs, blocks that fit, blocks, warps: mean SMs and warps in thousandths
        for (sms, resident, blocks, warps, fill) in [
            (4, 2, 1, 8, (1000, 8000)),
            (4, 2, 4, 8, (4000, 32_000)),
            (4, 2, 6, 8, (4000, 48_000)),
            (4, 2, 8, 8, (4000, 64_000)),
            (4, 2, 9, 8, (2500, 36_000)), // a full round and one block
            (4, 2, 24, 8, (4000, 64_000)),
            (128, 6, 38, 8, (38_000, 304_000)),
        ] {
            let made = Fill::of_grid(sms, resident, blocks, warps);
            assert_eq!((made.sms_milli, made.warps_milli), fill, "{blocks} blocks");
        }
    }

    #[test]
    fn a_launch_counts_once_its_kind_was_measured() {
        let tally = Tally::default();
        let key = Key::kernel(0x5000, 4, 256);
        assert!(!tally.add(key, 1, 1), "nothing is known of it");
        tally.know(key, Fill::of_grid(4, 2, 4, 8));
        assert!(!tally.add(key, 1, 1), "not how long it takes");
        assert_eq!(tally.begin(1, 1), Load::default());
        // A second one meanwhile can be neither measured nor predicted.
        tally.add_unmeasured(key, 1, 1);
        let both = tally.learn(key, 1_000_000);
        assert_eq!(
            both,
            Load {
                busy_ns: 2_000_000,
                sm_ns: 8_000_000,
                warp_ns: 64_000_000
            }
        );
        assert!(tally.add(key, 1, 1) && tally.add(key, 1, 1));
        assert!(
            !tally.add(key, 2, 1),
            "another stream has a cell of its own"
        );
        assert_eq!(tally.begin(1, 1).sm_ns, 8_000_000);
        assert_eq!(tally.begin(1, 1), Load::default(), "it counts once");
        tally.forget(key);
        assert!(!tally.add(key, 1, 1));
    }

    #[test]
    fn every_few_milliseconds_one_is_measured() {
        let tally = Tally::default();
        let key = Key::kernel(0x5000, 4, 256);
        tally.know(key, Fill::of_grid(4, 2, 4, 8));
        tally.learn(key, 100_000);
        let (mut total, mut measured) = (Load::default(), 0);
        for _ in 0..10_000 {
            if !tally.add(key, 7, 3) {
                total = total
                    .plus(tally.begin(7, 3))
                    .plus(tally.learn(key, 100_000));
                measured += 1;
            }
        }
        total = total.plus(tally.begin(7, 3));
        assert_eq!(total.busy_ns, 1_000_000_000, "nothing is lost");
        assert!((150..400).contains(&measured), "{measured} measurements");
    }

    #[test]
    fn streams_side_by_side_have_one_gpu_together() {
        let mut limit = Limit::default();
        let ms = 1_000_000;
        // Two streams, each of which thinks that it had four fifths of ten SMs all the time.
        let one = Fill::of_grid(10, 1, 8, 4).during(4 * ms);
        let mut sum = Load::default();
        for i in 1..=1000 {
            sum = sum.plus(limit.fit(2 * ms * i, 2 * ms * i, one, 10));
        }
        let all = 2000 * ms;
        assert!(sum.busy_ns.abs_diff(all) <= 5 * ms, "{sum:?}");
        assert!(sum.sm_ns.abs_diff(all * 10) <= 50 * ms, "{sum:?}");
        // One alone is left as it is, though its ends are seen late now and then.
        let (mut limit, mut sum) = (Limit::default(), Load::default());
        for i in 1..=1000 {
            let late = if i % 7 == 0 { 2 * ms } else { 0 };
            sum = sum.plus(limit.fit(4 * ms * i + late, 4 * ms * i, one, 10));
        }
        assert_eq!(sum, one.times(1000));
        // Ends that are seen late, because an older one was waited for, leave small grids side by side what they had.
        let mut limit = Limit::default();
        let small = Fill::of_grid(10, 1, 2, 4).during(100 * ms);
        let mut sum = Load::default();
        for end in [100, 200, 300, 400, 400, 400, 400, 400] {
            sum = sum.plus(limit.fit(end * ms, 0, small, 10));
        }
        assert_eq!(sum.busy_ns, 400 * ms, "one GPU for 400 ms");
        assert_eq!(sum.sm_ns, small.sm_ns * 8);
    }

    #[test]
    fn measurements_average_out() {
        let tally = Tally::default();
        let key = Key::kernel(0x5000, 4, 256);
        tally.know(key, Fill::of_grid(4, 2, 4, 8));
        for i in 0..200 {
            tally.learn(key, if i % 2 == 0 { 1_000_000 } else { 3_000_000 });
        }
        let ns = tally.known(key).and_then(|(_, ns)| ns).unwrap_or(0);
        assert!((1_900_000..2_100_000).contains(&ns), "{ns}");
    }
}
