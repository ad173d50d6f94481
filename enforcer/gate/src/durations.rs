//! Kinds of launches, by function and shape, and what measurements tell about their duration.

/// No kernel takes less.
pub const LEAST_NS: u64 = 500;
/// Launches of a process after which its events are compared with each other, and the number of comparisons.
const WARM: u64 = 100;
const COMPARED: u8 = 8;
/// No record of an event takes longer on the GPU: in a longer time others had it.
const LONGEST_RECORD_NS: u64 = 30_000;

/// What the record of an event takes on the GPU, from events recorded right behind others.
#[derive(Debug, Clone, Copy, Default)]
pub struct Records {
    compared: u8,
    ns: Option<u64>,
}

impl Records {
    /// Whether to record one right behind another now.
    pub fn wants(&self, launches: u64) -> bool {
        launches >= WARM && self.compared < COMPARED
    }

    /// One was recorded.
    pub fn compare(&mut self) {
        self.compared += 1;
    }

    /// The time between two such; the least counts.
    pub fn saw(&mut self, ns: Option<u64>) {
        let ns = ns.filter(|ns| *ns <= LONGEST_RECORD_NS);
        self.ns = [self.ns, ns].into_iter().flatten().min();
    }

    /// The time between two events without what a record adds to it.
    pub fn without(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.ns.unwrap_or(0))
            .max(ns.min(LEAST_NS))
    }
}

/// The lowest bits of a known duration tell the kind of measurement.
pub(crate) const HOW: u64 = 3;
pub(crate) const HOW_BITS: u32 = 2;

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
        // Two independent multiplications.
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

/// What is known after a measurement in nanoseconds; 0 before the first one. Beside others a launch is never shorter
/// than alone, and often longer.
pub(crate) fn revised(before: u64, ns: u64, how: Measure) -> u64 {
    let (ns, how) = (ns.max(LEAST_NS), how as u64);
    if before == 0 {
        return ns << HOW_BITS | how;
    }
    let (old, was) = (before >> HOW_BITS, before & HOW);
    let new = match how.cmp(&was) {
        // A better measurement.
        std::cmp::Ordering::Less => ns,
        std::cmp::Ordering::Greater if how == Measure::Rough as u64 => return before,
        _ if how == Measure::Crowd as u64 && ns > old => old + (ns - old).min(old / 16),
        // A sudden large increase is adopted sooner than noise.
        _ if ns > old.saturating_mul(2) => old / 2 + ns / 2,
        _ => old - old / 4 + ns / 4,
    };
    new << HOW_BITS | how.min(was)
}
