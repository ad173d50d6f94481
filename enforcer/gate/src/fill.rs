//! The part of a GPU that kernels fill while they run.

use crate::Load;

/// The part of a GPU that a kernel fills while it runs, on average, in thousandths of an SM and of a warp.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fill {
    /// SMs with a block.
    pub sms_milli: u64,
    /// Warps.
    pub warps_milli: u64,
    /// Part of the time in which all SMs have a block, in thousandths.
    pub full_milli: u64,
    /// SMs that its blocks would need if they were as close together as they fit, in thousandths. The rest has room
    /// for others.
    pub room_milli: u64,
}

impl Fill {
    /// A grid of `blocks` blocks of `warps` warps on a GPU with `sms` SMs, each with room for `resident` such blocks.
    /// Blocks go to the SM with the fewest, so a small grid spreads out; a large one keeps the GPU full until the last
    /// blocks are handed out, and then runs dry over the time of one block.
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
            full_milli: (full + u64::from(rest >= sms)).saturating_mul(1000) / rounds,
            room_milli: blocks.saturating_mul(1000) / (rounds * u64::from(resident.max(1))),
        }
    }

    /// The load over this many nanoseconds.
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

/// The mean square of the part of the SMs in use, from the mean and the part of the time with all of them; the others
/// are in use evenly.
fn square(mean: f64, full: f64) -> f64 {
    if full >= 1.0 {
        return 1.0;
    }
    let rest = (mean - full).max(0.0) / (1.0 - full);
    full + (1.0 - full) * rest * rest
}

fn over(sum: f64, ns: f64) -> f64 {
    if ns > 0.0 { sum / ns } else { 0.0 }
}

/// Kernels one after the other, taken together: what they fill on average and how unevenly. Of two streams that fill
/// a GPU by halves, one kernel waits for the other only if they are uneven.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mean {
    ns: f64,
    /// The same times the SMs that they fill.
    sm_ns: f64,
    warp_ns: f64,
    room_ns: f64,
    /// The same times the square of the part of the SMs.
    square_ns: f64,
}

impl Mean {
    /// A kernel of this duration on a GPU of `sms` SMs.
    pub(crate) fn of(ns: f64, fill: Fill, sms: f64) -> Mean {
        let [in_use, warps, full, room] = [
            fill.sms_milli,
            fill.warps_milli,
            fill.full_milli,
            fill.room_milli,
        ]
        .map(|milli| milli as f64 / 1000.0);
        Mean {
            ns,
            sm_ns: ns * in_use,
            warp_ns: ns * warps,
            room_ns: ns * room,
            square_ns: ns * square(in_use / sms.max(1.0), full),
        }
    }

    /// Both.
    pub(crate) fn plus(self, other: Mean) -> Mean {
        Mean {
            ns: self.ns + other.ns,
            sm_ns: self.sm_ns + other.sm_ns,
            warp_ns: self.warp_ns + other.warp_ns,
            room_ns: self.room_ns + other.room_ns,
            square_ns: self.square_ns + other.square_ns,
        }
    }

    /// This part of it.
    pub(crate) fn times(self, part: f64) -> Mean {
        Mean {
            ns: self.ns * part,
            sm_ns: self.sm_ns * part,
            warp_ns: self.warp_ns * part,
            room_ns: self.room_ns * part,
            square_ns: self.square_ns * part,
        }
    }

    /// Sum of durations, in nanoseconds.
    pub(crate) fn ns(&self) -> f64 {
        self.ns
    }

    /// SMs in use on average.
    pub(crate) fn sms(&self) -> f64 {
        over(self.sm_ns, self.ns)
    }

    /// SMs that a warp needs, as close together as they fit; `None` without any.
    pub(crate) fn room_of_warp(&self) -> Option<f64> {
        (self.warp_ns > 0.0).then(|| self.room_ns / self.warp_ns)
    }

    /// The part of the time with all SMs in use, if the others are in use evenly.
    pub(crate) fn full(&self, sms: f64) -> f64 {
        let mean = self.sms() / sms.max(1.0);
        let square = over(self.square_ns, self.ns);
        if mean >= 1.0 {
            return 1.0;
        }
        // With mean and mean square as they are: `square` solved for the SMs of the rest.
        let rest = ((1.0 - square) / (1.0 - mean) - 1.0).clamp(0.0, mean);
        (mean - rest) / (1.0 - rest)
    }

    /// The fill of all of them together, on a GPU of `sms` SMs; `None` without any.
    pub(crate) fn fill(&self, sms: f64) -> Option<Fill> {
        let milli = |of: f64| (of * 1000.0).round() as u64;
        (self.ns > 0.0).then(|| Fill {
            sms_milli: milli(self.sms()),
            warps_milli: milli(self.warp_ns / self.ns),
            full_milli: milli(self.full(sms)),
            room_milli: milli(self.room_ns / self.ns),
        })
    }
}

/// A graph's kernels together: by their measured durations, or by their rounds of blocks if one of them has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kernels {
    known: Mean,
    rounds: Mean,
    unknown: bool,
    sms: f64,
}

impl Kernels {
    /// A kernel of so many warps on a GPU of `sms` SMs; `needs` is its load outside graphs.
    pub fn add(&mut self, fill: Fill, warps: u64, needs: Option<Load>, sms: u32) {
        self.sms = f64::from(sms);
        let over = |ns: u64| Mean::of(ns as f64, fill, self.sms);
        let rounds = warps.saturating_mul(1_000_000) / fill.warps_milli.max(1);
        self.rounds = self.rounds.plus(over(rounds));
        match needs {
            Some(load) => self.known = self.known.plus(over(load.busy_ns)),
            None => self.unknown = true,
        }
    }

    /// A kernel of which nothing is known.
    pub fn add_unknown(&mut self) {
        self.unknown = true;
    }

    /// What they fill; `None` if no grid is known.
    #[must_use]
    pub fn fill(&self) -> Option<Fill> {
        let mean = if self.unknown {
            self.rounds
        } else {
            self.known
        };
        mean.fill(self.sms)
    }

    /// Their durations one after the other, if all are known.
    #[must_use]
    pub fn busy_ns(&self) -> Option<u64> {
        (!self.unknown).then_some(self.known.ns() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_fill_a_gpu_by_hand() {
        // SMs, resident blocks, blocks, warps: mean SMs, warps and room in thousandths
        for (sms, resident, blocks, warps, fill) in [
            (4, 2, 1, 8, (1000, 8000, 500)),
            (4, 2, 4, 8, (4000, 32_000, 2000)),
            (4, 2, 6, 8, (4000, 48_000, 3000)),
            (4, 2, 8, 8, (4000, 64_000, 4000)),
            (4, 2, 9, 8, (2500, 36_000, 2250)), // a full round and one block
            (4, 2, 24, 8, (4000, 64_000, 4000)),
            (128, 6, 38, 8, (38_000, 304_000, 6333)),
        ] {
            let made = Fill::of_grid(sms, resident, blocks, warps);
            let made = (made.sms_milli, made.warps_milli, made.room_milli);
            assert_eq!(made, fill, "{blocks} blocks");
        }
    }

    /// Part of the SMs that two streams have in use together, if it is left to chance what is side by side.
    fn together(kernels: &[(f64, Fill)], mean: &Mean, sms: f64) -> [f64; 2] {
        let whole: f64 = kernels.iter().map(|(ns, _)| ns).sum();
        let pairs = kernels
            .iter()
            .flat_map(|one| kernels.iter().map(move |other| (one, other)));
        let exact = pairs.map(|(one, other)| {
            let both = (one.1.sms_milli + other.1.sms_milli) as f64 / 1000.0;
            one.0 * other.0 / whole / whole * (both / sms).min(1.0)
        });
        let full = mean.full(sms);
        let rest = (mean.sms() / sms - full) / (1.0 - full);
        let none_full = (1.0 - full) * (1.0 - full);
        [exact.sum(), 1.0 - none_full * (1.0 - (2.0 * rest).min(1.0))]
    }

    #[test]
    fn kernels_of_different_size_are_one_that_is_full_for_a_part_of_its_time() {
        let small = |blocks| Fill::of_grid(100, 1, blocks, 4);
        for kernels in [
            [(1.0, small(30)), (1.0, small(80)), (0.0, small(1))],
            [(3.0, small(67)), (9.0, small(5)), (4.0, small(58))],
            [(1.0, small(90)), (1.0, small(10)), (2.0, small(40))],
            [(1.0, small(100)), (5.0, small(20)), (1.0, small(60))],
        ] {
            let mean = kernels.iter().fold(Mean::default(), |sum, (ns, fill)| {
                sum.plus(Mean::of(*ns * 1e6, *fill, 100.0))
            });
            let [exact, told] = together(&kernels, &mean, 100.0);
            assert!((exact - told).abs() < 0.03, "{exact} {told} {kernels:?}");
            let even = (2.0 * mean.sms() / 100.0).min(1.0);
            assert!(even - exact > 0.04, "{even} {exact}");
        }
        // One kernel is told as it is.
        let fill = Fill::of_grid(100, 2, 250, 4);
        let mean = Mean::of(5e6, fill, 100.0);
        assert_eq!(mean.times(0.5).fill(100.0), Some(fill));
        assert_eq!(Mean::default().fill(100.0), None);
    }
}
