//! Measured duration of each kernel by function and shape: a table that a launch reads without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

const ROWS: usize = 2048;
/// No kernel takes less.
const LEAST_NS: u64 = 500;

/// The lowest bits of a row tell the kind of measurement.
const HOW: u64 = 3;
const HOW_BITS: u32 = 2;

/// Kinds of measurement; a better kind replaces a worse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// A guess, or the time between the events may be mostly not the launch's.
    Rough = 2,
    /// Alone on its stream between the events, maybe with others on the GPU.
    Crowd = 1,
    /// Alone on the GPU.
    Alone = 0,
}

/// Expected duration of a launch alone on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Nanoseconds.
    pub ns: u64,
    /// From a measurement that is not rough.
    pub is_sure: bool,
}

/// A kind of launch: a function with its shape, or a whole graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// A kernel by its function, blocks of the grid and threads of a block.
    #[inline]
    pub fn kernel(function: usize, blocks: u64, threads: u64) -> Key {
        // Two independent multiplications; the upper bits, which they mix best, choose the row.
        let mixed = (function as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (blocks.rotate_left(20) ^ threads).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        Key(mixed | 1)
    }

    /// A graph by its executable form.
    #[inline]
    pub fn graph(exec: usize) -> Key {
        Key(spread((exec as u64) ^ 0x9216_d5d9_8979_fb1b) | 1)
    }

    /// Its number, which is never 0.
    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// Mixes a number well enough for tables of a few thousand rows.
#[inline]
pub(crate) fn spread(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

#[inline]
pub(crate) fn place(key: Key) -> usize {
    (key.0 >> 40) as usize % ROWS
}

#[derive(Debug)]
struct Row {
    key: AtomicU64,
    /// Nanoseconds above [`HOW`].
    known: AtomicU64,
}

/// Learnt durations. Threads may read and write at once: a race can yield the figure of another kernel, which is an
/// estimate like any other and is corrected by the next measurement.
///
/// Both places of a key are on one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub struct Durations {
    rows: [Row; ROWS],
}

impl Default for Durations {
    fn default() -> Self {
        Self {
            rows: [const {
                Row {
                    key: AtomicU64::new(0),
                    known: AtomicU64::new(0),
                }
            }; ROWS],
        }
    }
}

impl Durations {
    /// Expected duration of a launch; `None` if none was measured.
    pub fn expected(&self, key: Key) -> Option<Expected> {
        self.known(key).map(|known| Expected {
            ns: known >> HOW_BITS,
            is_sure: known & HOW != Measure::Rough as u64,
        })
    }

    /// The same in nanoseconds alone.
    #[inline]
    pub fn get(&self, key: Key) -> Option<u64> {
        self.known(key).map(|known| known >> HOW_BITS)
    }

    #[inline]
    fn known(&self, key: Key) -> Option<u64> {
        let at = place(key);
        [at, at ^ 1].into_iter().find_map(|at| {
            let row = &self.rows[at];
            (row.key.load(Ordering::Relaxed) == key.0).then(|| row.known.load(Ordering::Relaxed))
        })
    }

    /// Learns a measurement, in nanoseconds. Beside others a launch is never shorter than alone, and often longer.
    pub fn learn(&self, key: Key, ns: u64, how: Measure) {
        let ns = ns.max(LEAST_NS);
        let known = |ns: u64, how: u64| ns << HOW_BITS | how;
        let how = how as u64;
        let at = place(key);
        for at in [at, at ^ 1] {
            let row = &self.rows[at];
            if row.key.load(Ordering::Relaxed) == key.0 {
                let before = row.known.load(Ordering::Relaxed);
                let (old, was) = (before >> HOW_BITS, before & HOW);
                let new = match how.cmp(&was) {
                    // A better measurement.
                    std::cmp::Ordering::Less => ns,
                    std::cmp::Ordering::Greater if how == Measure::Rough as u64 => return,
                    _ if how == Measure::Crowd as u64 && ns > old => old + (ns - old).min(old / 16),
                    // A sudden large increase is adopted sooner than noise.
                    _ if ns > old.saturating_mul(2) => old / 2 + ns / 2,
                    _ => old - old / 4 + ns / 4,
                };
                row.known.store(known(new, how.min(was)), Ordering::Relaxed);
                return;
            }
        }
        let [one, other] = [at, at ^ 1].map(|at| &self.rows[at]);
        let taken = |row: &Row| row.key.load(Ordering::Relaxed) != 0;
        let row = if taken(one) && !taken(other) {
            other
        } else {
            one
        };
        row.known.store(known(ns, how), Ordering::Relaxed);
        row.key.store(key.0, Ordering::Relaxed);
    }

    /// Forgets a launch, whose handle may be reused for another.
    pub fn forget(&self, key: Key) {
        let at = place(key);
        for at in [at, at ^ 1] {
            let row = &self.rows[at];
            if row.key.load(Ordering::Relaxed) == key.0 {
                row.key.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learns_follows_and_forgets() {
        let table = Durations::default();
        let (a, b) = (Key::kernel(0x5000, 64, 256), Key::kernel(0x5000, 65, 256));
        assert_ne!(a, b, "the shape counts");
        assert_ne!(Key::graph(0x5000), a);
        assert_eq!(table.get(a), None);
        table.learn(a, 1_000_000, Measure::Alone);
        assert_eq!((table.get(a), table.get(b)), (Some(1_000_000), None));
        table.learn(a, 9_000_000, Measure::Alone);
        assert_eq!(table.get(a), Some(5_000_000), "a jump is believed soon");
        for _ in 0..40 {
            table.learn(a, 2_000_000, Measure::Alone);
        }
        let now = table.get(a).unwrap_or(0);
        assert!((1_999_000..2_002_000).contains(&now), "{now}");
        table.forget(a);
        assert_eq!(table.get(a), None);
    }

    #[test]
    fn what_is_known_better_replaces_what_is_rough() {
        let table = Durations::default();
        let key = Key::kernel(0x5000, 64, 256);
        let about = |us: u64| table.get(key) == Some(us * 1000);
        table.learn(key, 0, Measure::Rough);
        assert!(table.expected(key).is_some_and(|it| !it.is_sure));
        table.learn(key, 20_000, Measure::Crowd);
        assert!(
            about(20) && table.expected(key).is_some_and(|it| it.is_sure),
            "at once"
        );
        table.learn(key, 500, Measure::Rough);
        assert!(about(20), "that says nothing");
        table.learn(key, 2_000_000, Measure::Crowd);
        assert!(table.get(key) < Some(22_000), "a neighbour's slice");
        table.learn(key, 10_000, Measure::Alone);
        assert!(about(10));
    }

    #[test]
    fn holds_a_programs_kernels() {
        let table = Durations::default();
        let keys: Vec<Key> = (0..600)
            .map(|i| Key::kernel(0x7f00_0000 + i * 16, 132, 256))
            .collect();
        for (i, key) in keys.iter().enumerate() {
            table.learn(*key, 1000 + 2 * i as u64, Measure::Alone);
        }
        let kept = keys
            .iter()
            .enumerate()
            .filter(|(i, key)| table.get(**key) == Some(1000 + 2 * *i as u64))
            .count();
        assert!(kept > 560, "{kept} of 600 kept");
    }
}
