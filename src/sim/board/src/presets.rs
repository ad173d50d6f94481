//! What a driver and a GPU cost beyond the work itself, and what a driver does wrong: one set, which lies on the board, so
//! that all libraries of the simulation go by the same one.
//!
//! - `kind` costs nothing, and contexts have infinitely short slices: each of `n` advances at 1/n.
//! - `real` has ranges in which real drivers are expected; `real:low` and `real:high` are their ends.
//! - `worst` is beyond them.
//!
//! Figures are drawn from what they belong to (a ticket, the number of a switch), so that a board's life repeats
//! itself. That a pair of events around a short launch measures the launch's way is known (nvbench issue 184,
//! tritonbench pull request 779); the ranges are assumptions that no GPU has confirmed.

/// From the least to the most, in nanoseconds.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The least.
    pub low_ns: u64,
    /// The most.
    pub high_ns: u64,
}

impl Range {
    const fn us(low: u64, high: u64) -> Range {
        Range {
            low_ns: low * 1_000,
            high_ns: high * 1_000,
        }
    }

    /// A number of the range, always the same for a key.
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

/// What some drivers do wrong, and no preset by itself. What all do lies where it belongs: hidden memory (`hidden.rs`), a
/// checkpoint that loses the process (`park.rs`), a reset that is refused, the rows of Xids in their order (`faults.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Calls of NVML hang.
    NvmlHangs = 1,
    /// NVML's samples of processes name the one that was on the GPU, are stale, or garbage.
    NvmlSamples = 2,
    /// No event has a time: all are 0 apart.
    NoEventTimes = 4,
    /// The occupancy calculator fails.
    NoOccupancy = 8,
}

/// The costs of a driver, and its faults.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// From the call until the GPU has a kernel, a copy or an event record.
    pub launch: Range,
    /// How late a wait returns that had to sleep.
    pub wake: Range,
    /// A GPU that changes from one context to another does nothing for so long.
    pub switch: Range,
    /// What an event record takes on the GPU.
    pub record_ns: u64,
    /// For so long a context has the GPU while others have work; 0: infinitely short.
    pub slice_ns: u64,
    /// Bits of [`Fault`].
    pub faults: u64,
}

impl Preset {
    /// Costs nothing.
    pub const KIND: Preset = Preset {
        launch: Range::us(0, 0),
        wake: Range::us(0, 0),
        switch: Range::us(0, 0),
        record_ns: 0,
        slice_ns: 0,
        faults: 0,
    };
    /// What real drivers are expected to cost.
    pub const REAL: Preset = Preset {
        launch: Range::us(2, 4),
        wake: Range::us(30, 80),
        switch: Range::us(50, 200),
        record_ns: 1_000,
        slice_ns: crate::SLICE_NS,
        faults: 0,
    };
    /// More than that.
    pub const WORST: Preset = Preset {
        launch: Range::us(4, 20),
        wake: Range::us(80, 300),
        switch: Range::us(200, 500),
        record_ns: 2_000,
        slice_ns: crate::SLICE_NS,
        faults: 0,
    };
    /// The names of all.
    pub const NAMES: [&'static str; 5] = ["kind", "real", "real:low", "real:high", "worst"];

    /// The preset with this name; `:low` and `:high` behind one are the ends of its ranges.
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

    /// Whether the driver does this wrong.
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

    /// How late a wait for this work wakes; `None` where it is as late as the machine makes it.
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
