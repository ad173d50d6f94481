//! Costs of a driver and a GPU beyond the work itself, and driver faults. The set is on the board, so that all
//! libraries of the simulation use the same one.
//!
//! - `kind` costs nothing, and contexts have infinitely short slices: each of `n` advances at 1/n.
//! - `real` has the ranges in which real drivers are expected; `real:low` and `real:high` are their ends.
//! - `worst` is beyond those ranges.
//!
//! Figures are drawn from their key (a ticket, the number of a switch), so that runs repeat. That a pair of events
//! around a short launch also measures the launch latency is known (nvbench issue 184, tritonbench pull request 779).
//! The ranges are assumptions that no GPU has confirmed.

/// A range in nanoseconds.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Minimum.
    pub low_ns: u64,
    /// Maximum.
    pub high_ns: u64,
}

impl Range {
    const fn us(low: u64, high: u64) -> Range {
        Range {
            low_ns: low * 1_000,
            high_ns: high * 1_000,
        }
    }

    /// A number in the range, always the same for a key.
    #[must_use]
    pub fn draw(self, key: u64) -> u64 {
        let width = self.high_ns.saturating_sub(self.low_ns);
        let part = u128::from(crate::mix(key)) * (u128::from(width) + 1);
        self.low_ns.saturating_add((part >> 64) as u64)
    }

    const fn is_none(self) -> bool {
        self.high_ns == 0
    }
}

/// Faults of some drivers, which no preset includes. What all drivers do is elsewhere: hidden memory (`hidden.rs`), a
/// checkpoint that loses the process (`park.rs`), refused resets and the order of Xids (`faults.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// NVML calls hang.
    NvmlHangs = 1,
    /// NVML's process samples name only the process that was on the GPU, or are stale or garbage.
    NvmlSamples = 2,
    /// Event times are missing: all differences are 0.
    NoEventTimes = 4,
    /// The occupancy calculator fails.
    NoOccupancy = 8,
    /// `cuStreamGetCtx_v2` is not there: a driver before CUDA 12.5, such as 550.
    NoStreamContexts = 16,
}

/// The costs of a driver, and its faults.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Latency from the call until the GPU has a kernel, a copy or an event record.
    pub launch: Range,
    /// How late a wait that had to sleep returns.
    pub wake: Range,
    /// Time of a context switch, in which the GPU does nothing.
    pub switch: Range,
    /// Time of an event record on the GPU.
    pub record_ns: u64,
    /// Length of a context's slice while others have work; 0: infinitely short.
    pub slice_ns: u64,
    /// Bits of [`Fault`].
    pub faults: u64,
}

impl Preset {
    /// No costs.
    pub const KIND: Preset = Preset {
        launch: Range::us(0, 0),
        wake: Range::us(0, 0),
        switch: Range::us(0, 0),
        record_ns: 0,
        slice_ns: 0,
        faults: 0,
    };
    /// Expected costs of real drivers.
    pub const REAL: Preset = Preset {
        launch: Range::us(2, 4),
        wake: Range::us(30, 80),
        switch: Range::us(50, 200),
        record_ns: 1_000,
        slice_ns: crate::SLICE_NS,
        faults: 0,
    };
    /// Above the expected costs.
    pub const WORST: Preset = Preset {
        launch: Range::us(4, 20),
        wake: Range::us(80, 300),
        switch: Range::us(200, 500),
        record_ns: 2_000,
        slice_ns: crate::SLICE_NS,
        faults: 0,
    };
    pub const NAMES: [&'static str; 5] = ["kind", "real", "real:low", "real:high", "worst"];

    /// The preset with this name; the suffixes `:low` and `:high` select the ends of its ranges.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Preset> {
        let (name, end) = match name.split_once(':') {
            Some((name, end)) => (name, Some(end)),
            None => (name, None),
        };
        let preset = match name {
            "kind" => Preset::KIND,
            "real" => Preset::REAL,
            "worst" => Preset::WORST,
            _ => return None,
        };
        match end {
            None => Some(preset),
            Some("low") => Some(preset.at_end(|r| r.low_ns)),
            Some("high") => Some(preset.at_end(|r| r.high_ns)),
            Some(_) => None,
        }
    }

    /// Whether the driver has this fault.
    #[must_use]
    pub fn has(&self, fault: Fault) -> bool {
        self.faults & fault as u64 != 0
    }

    fn at_end(self, end: fn(Range) -> u64) -> Preset {
        let one = |range: Range| Range {
            low_ns: end(range),
            high_ns: end(range),
        };
        Preset {
            launch: one(self.launch),
            wake: one(self.wake),
            switch: one(self.switch),
            ..self
        }
    }

    /// How late a wait for this work wakes; `None` leaves it to the machine.
    pub(crate) fn late_ns(&self, ticket: u64) -> Option<u64> {
        (!self.wake.is_none()).then(|| self.wake.draw(ticket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_fill_their_range_and_repeat_themselves() {
        let range = Preset::REAL.switch;
        let drawn: Vec<u64> = (0..1_000).map(|key| range.draw(key)).collect();
        assert!(drawn.iter().all(|ns| (50_000..=200_000).contains(ns)));
        let mean = drawn.iter().sum::<u64>() / 1_000;
        assert!((120_000..130_000).contains(&mean), "{mean}");
        assert_eq!(range.draw(7), range.draw(7));
        assert_eq!(Preset::KIND.switch.draw(7), 0);
    }

    #[test]
    fn names_and_ends() {
        for name in Preset::NAMES {
            assert!(Preset::by_name(name).is_some(), "{name}");
        }
        let low = Preset::by_name("real:low").expect("a preset");
        assert_eq!((low.launch.draw(1), low.launch.draw(2)), (2_000, 2_000));
        assert_eq!(
            Preset::by_name("real:high").map(|p| p.wake.draw(3)),
            Some(80_000)
        );
        assert_eq!(low.slice_ns, Preset::REAL.slice_ns);
        assert_eq!(Preset::by_name("real:middle"), None);
        assert_eq!(Preset::by_name("unkind"), None);
    }
}
