//! How a GPU differs from the plain model of waves and tails, drawn at random from a seed.
//!
//! - **Memory.** Some kernels want more memory bandwidth than there is. They take longer while the GPU is full and less
//!   long in their tail, when few blocks share the bandwidth. Side by side they slow each other.
//! - **Cache.** Beside other processes' kernels, and after each of their slices, a kernel misses the cache more often.
//! - **Slices.** Each change between contexts costs time in which nothing runs.
//! - **Blocks** of a grid take unequal time: the last ones end one by one.
//! - **Launches** of one kernel take unequal time, too.
//!
//! A board has a nature only if its maker asks for one. The estimates under test do not know it.

use crate::cost::{Phase, Shape};

/// A random number generator (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }
}

/// How one kernel behaves.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Habit {
    /// Part of the memory's bandwidth that it wants while it fills the GPU; above 1 it is bound by memory.
    pub demand: f64,
    /// Slowdown when others use all other SMs.
    pub cache: f64,
}

/// Part of the time lost when contexts take turns.
pub(crate) fn lost_to_switches(seed: u64) -> f64 {
    if seed == 0 {
        return 0.0;
    }
    // Tens to hundreds of microseconds of a 2 ms slice.
    Dice(seed).between(0.01, 0.1)
}

/// The habit of a kernel, and its waves and tail with the effects that the plain model omits.
pub(crate) fn bend(
    seed: u64,
    owner: u64,
    ticket: u64,
    shape: &Shape,
    plain: [Phase; 2],
) -> (Habit, [Phase; 2]) {
    if seed == 0 {
        return (Habit::default(), plain);
    }
    let kernel = seed
        ^ owner.rotate_left(48)
        ^ shape.blocks.rotate_left(24)
        ^ u64::from(shape.threads) << 8
        ^ u64::from(shape.regs);
    let mut dice = Dice(kernel);
    let bound = dice.next() < 0.4;
    let habit = Habit {
        demand: if bound {
            dice.between(0.4, 1.6)
        } else {
            dice.between(0.0, 0.3)
        },
        cache: dice.between(0.0, 0.4),
    };
    let spread = dice.between(0.0, 0.4);
    let (jitter, usual) = (dice.between(0.0, 0.15), dice.between(0.9, 1.1));
    let length = usual * (1.0 + jitter * Dice(kernel ^ ticket << 20).between(-1.0, 1.0));
    let [full, tail] = plain;
    // The blocks of the last round end between (1 - spread) and (1 + spread) of their usual time. On average half of
    // them are resident during that time.
    let phases = if tail.ns > 0.0 {
        [
            Phase {
                ns: full.ns * length,
                ..full
            },
            Phase {
                ns: tail.ns * length * (1.0 + spread / 2.0),
                ..tail
            },
        ]
    } else {
        let round = full.ns / waves(shape.blocks, full.blocks);
        [
            Phase {
                ns: (full.ns - round * spread / 2.0) * length,
                ..full
            },
            Phase {
                blocks: full.blocks.div_ceil(2),
                ns: round * spread * length,
            },
        ]
    };
    (habit, phases)
}

fn waves(blocks: u64, wave: u64) -> f64 {
    (blocks.checked_div(wave).unwrap_or(1)).max(1) as f64
}

/// A running kernel as its neighbours feel it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Felt {
    pub habit: Habit,
    /// Board id of its process.
    pub owner: u64,
    /// Part of the GPU's SMs that it has during its slice.
    pub part: f64,
}

/// Speed of each kernel on the GPU during one slice, as a factor of at most 1; 1 for all kernels without a nature.
/// `turns` says that contexts take turns.
pub(crate) fn slowed(running: &[Felt], turns: bool) -> Vec<f64> {
    let demand: f64 = running.iter().map(|k| k.habit.demand * k.part).sum();
    let one = |k: &Felt| {
        let others: f64 = running
            .iter()
            .filter(|other| other.owner != k.owner)
            .map(|other| other.part)
            .sum();
        let cold = if turns { 0.3 } else { 0.0 };
        let cache = 1.0 + k.habit.cache * (others.min(1.0) + cold);
        // The part of its time in which it waits for memory grows with the total demand.
        let bound = k.habit.demand.min(1.0);
        let memory = 1.0 - bound + bound * demand.max(1.0);
        1.0 / (cache * memory)
    };
    running.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::phases;

    const SHAPE: Shape = Shape {
        blocks: 2112,
        threads: 256,
        regs: 32,
        shared: 0,
    };

    #[test]
    fn without_a_seed_nothing_changes() {
        let plain = phases(132, 8, 2112, 1000);
        assert_eq!(bend(0, 1, 2, &SHAPE, plain), (Habit::default(), plain));
        assert!(lost_to_switches(0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_same_seed_draws_the_same_and_blocks_are_not_lost() {
        let plain = phases(132, 8, 2112, 1000);
        for seed in 1..200 {
            let one = bend(seed, 1, 2, &SHAPE, plain);
            assert_eq!(one, bend(seed, 1, 2, &SHAPE, plain));
            // Half of the blocks during the whole spread do as much work as all blocks during half of it.
            let work = |p: &[Phase; 2]| p.iter().map(|p| p.blocks as f64 * p.ns).sum::<f64>();
            let ratio = work(&one.1) / work(&plain);
            assert!((0.75..1.3).contains(&ratio), "{seed}: {ratio}");
            assert_ne!(bend(seed, 2, 2, &SHAPE, plain).0, one.0, "{seed}");
        }
    }

    #[test]
    fn memory_and_cache_slow_neighbours() {
        let felt = |demand, cache, owner, part| Felt {
            habit: Habit { demand, cache },
            owner,
            part,
        };
        let alone = slowed(&[felt(1.5, 0.0, 1, 1.0)], false);
        assert!((alone[0] - 1.0 / 1.5).abs() < 1e-9, "{alone:?}");
        // In its tail, on a tenth of the SMs, there is enough bandwidth.
        assert!((slowed(&[felt(1.5, 0.0, 1, 0.1)], false)[0] - 1.0).abs() < 1e-9);
        let beside = slowed(&[felt(0.0, 0.4, 1, 0.5), felt(1.0, 0.0, 2, 0.5)], false);
        assert!((beside[0] - 1.0 / 1.2).abs() < 1e-9 && (beside[1] - 1.0).abs() < 1e-9);
        assert!(
            slowed(&[felt(0.0, 0.4, 1, 1.0)], true)[0] < 0.95,
            "a cold cache"
        );
    }
}
