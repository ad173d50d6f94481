//! Small allocations share blocks: the driver takes memory in blocks of its granularity and packs smaller requests into
//! them, separately for each of its heaps (one per context). The proxy derives this from the addresses: a block is
//! charged while at least one allocation lives in it.

use crate::map::{Table, table};

/// Bytes to which the driver aligns small allocations.
const UNIT_BYTES: u64 = 512;

/// Memory that the driver does not pack.
pub(crate) const NO_HEAP: u64 = u64::MAX;

#[derive(Debug)]
struct Block {
    heap: u64,
    live: u32,
    used: u64,
    /// Number of allocations in each unit: two for a moment if the driver reuses memory before the thread that freed it
    /// has told the proxy.
    units: Box<[u8]>,
    /// A count has reached its maximum and is not exact any more.
    stuck: bool,
}

/// The shared blocks of one process on one GPU.
#[derive(Debug)]
pub(crate) struct Blocks {
    block_bytes: u64,
    /// By block number, which is never 0: address 0 is not an allocation.
    blocks: Table<u64, Block>,
    /// Units in use in all blocks, for a quick negative answer.
    used_units: u64,
    /// The zeroed unit counts of a dropped block, for the next one: a program that repeatedly allocates and frees one
    /// small piece makes and drops a block each time.
    spare: Option<Box<[u8]>>,
}

/// Whether an allocation lies within one block and is smaller than it.
pub(crate) fn shares(block_bytes: u64, pointer: u64, bytes: u64) -> bool {
    let first = pointer / block_bytes;
    let last = pointer.saturating_add(bytes.max(1) - 1) / block_bytes;
    bytes < block_bytes && first == last && first != 0
}

impl Blocks {
    pub(crate) fn new(block_bytes: u64) -> Self {
        Self {
            block_bytes: block_bytes.max(UNIT_BYTES),
            blocks: table(),
            used_units: 0,
            spare: None,
        }
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn units(&self, pointer: u64, bytes: u64) -> std::ops::Range<usize> {
        let start = pointer % self.block_bytes;
        let end = start + bytes.max(1);
        (start / UNIT_BYTES) as usize..end.div_ceil(UNIT_BYTES) as usize
    }

    /// Adds a shared allocation in a heap of the driver; returns the bytes by which the charge must grow.
    pub(crate) fn add(&mut self, heap: u64, pointer: u64, bytes: u64) -> u64 {
        let units = self.units(pointer, bytes);
        let count = (self.block_bytes / UNIT_BYTES) as usize;
        let number = pointer / self.block_bytes;
        let mut cost = 0;
        if !self.blocks.contains_key(&number) {
            cost = self.block_bytes;
            let block = Block {
                heap,
                live: 0,
                used: 0,
                stuck: false,
                units: self
                    .spare
                    .take()
                    .unwrap_or_else(|| vec![0; count].into_boxed_slice()),
            };
            self.blocks.insert(number, block);
        }
        self.used_units += units.len() as u64;
        if let Some(block) = self.blocks.get_mut(&number) {
            block.live += 1;
            block.used += units.len() as u64;
            for unit in &mut block.units[units] {
                *unit = unit.saturating_add(1);
                block.stuck |= *unit == u8::MAX;
            }
        }
        cost
    }

    /// Removes a shared allocation; returns the bytes by which the charge may shrink.
    pub(crate) fn remove(&mut self, pointer: u64, bytes: u64) -> u64 {
        let units = self.units(pointer, bytes);
        let number = pointer / self.block_bytes;
        let Some(block) = self.blocks.get_mut(&number) else {
            return 0;
        };
        self.used_units = self.used_units.saturating_sub(units.len() as u64);
        block.live = block.live.saturating_sub(1);
        block.used = block.used.saturating_sub(units.len() as u64);
        for unit in &mut block.units[units] {
            *unit = unit.saturating_sub(1);
        }
        if block.live > 0 {
            return 0;
        }
        // A stuck count would not have returned to zero.
        self.spare = self
            .blocks
            .remove(&number)
            .filter(|block| block.used == 0 && !block.stuck)
            .map(|block| block.units);
        self.block_bytes
    }

    /// Whether a block of a heap has this many contiguous free bytes, so that the driver need not take another block.
    pub(crate) fn has_room(&self, heap: u64, bytes: u64) -> bool {
        let wanted = bytes.max(1).div_ceil(UNIT_BYTES);
        let all = self.block_bytes / UNIT_BYTES;
        if heap == NO_HEAP
            || wanted >= all
            || self.blocks.len() as u64 * all - self.used_units < wanted
        {
            return false;
        }
        let fitting = |block: &Block| block.heap == heap && all - block.used >= wanted;
        let mut own = self.blocks.iter().filter(|(_, block)| fitting(block));
        own.any(|(_, block)| {
            let mut run = 0;
            block.units.iter().any(|&owners| {
                run = if owners > 0 { 0 } else { run + 1 };
                run >= wanted
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BASE: u64 = 0x7f00_0000_0000;

    #[test]
    fn a_block_is_charged_once_and_until_its_last_allocation_goes() {
        let mut blocks = Blocks::new(2 * MIB);
        assert_eq!(blocks.add(1, BASE, 512), 2 * MIB);
        assert_eq!(blocks.add(1, BASE + 512, MIB), 0);
        assert_eq!(blocks.add(1, BASE + 2 * MIB, 1), 2 * MIB);
        assert_eq!(blocks.remove(BASE, 512), 0);
        assert_eq!(blocks.remove(BASE + 512, MIB), 2 * MIB);
        assert_eq!(blocks.remove(BASE + 512, MIB), 0, "already gone");
        assert_eq!(blocks.remove(BASE + 2 * MIB, 1), 2 * MIB);
    }

    #[test]
    fn what_fills_or_crosses_a_block_does_not_share() {
        let shares = |pointer, bytes| shares(2 * MIB, pointer, bytes);
        assert!(shares(BASE, 2 * MIB - 1));
        assert!(!shares(BASE, 2 * MIB));
        assert!(!shares(BASE + MIB, MIB + 1));
        assert!(shares(BASE + MIB, MIB));
        assert!(!shares(100, 5), "block 0");
    }

    #[test]
    fn room_is_in_one_piece_or_not_at_all() {
        let mut blocks = Blocks::new(2 * MIB);
        assert!(!blocks.has_room(1, 1));
        blocks.add(1, BASE, MIB);
        assert!(blocks.has_room(1, MIB) && !blocks.has_room(1, MIB + 1));
        blocks.add(1, BASE + MIB + MIB / 2, 512);
        assert!(blocks.has_room(1, MIB / 2) && !blocks.has_room(1, MIB / 2 + 1));
        blocks.remove(BASE, MIB);
        assert!(!blocks.has_room(2, 1), "another heap");
        assert!(blocks.has_room(1, MIB + MIB / 2));
        assert!(!blocks.has_room(1, MIB + MIB / 2 + 1));
    }

    #[test]
    fn memory_handed_out_again_early_stays_in_use() {
        let mut blocks = Blocks::new(2 * MIB);
        blocks.add(1, BASE, 2 * MIB - 512);
        assert_eq!(
            blocks.add(1, BASE, 2 * MIB - 512),
            0,
            "the next owner, first"
        );
        assert_eq!(
            blocks.remove(BASE, 2 * MIB - 512),
            0,
            "the last owner, late"
        );
        assert!(!blocks.has_room(1, 1024));
        assert_eq!(blocks.remove(BASE, 2 * MIB - 512), 2 * MIB);
    }

    #[test]
    fn a_block_that_comes_anew_is_empty_whatever_lay_in_the_last_one() {
        let mut blocks = Blocks::new(2 * MIB);
        for rounds in [1, 300] {
            for _ in 0..rounds {
                blocks.add(1, BASE, MIB);
            }
            for _ in 0..rounds {
                blocks.remove(BASE, MIB);
            }
            blocks.add(1, BASE + 4 * MIB, 512);
            assert!(blocks.has_room(1, 2 * MIB - 512), "{rounds}");
            assert_eq!(blocks.remove(BASE + 4 * MIB, 512), 2 * MIB);
        }
    }

    #[test]
    fn room_agrees_with_a_model_over_random_steps() {
        let mut blocks = Blocks::new(64 << 10);
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut dice: u64 = 99;
        for _ in 0..5000 {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            if dice & 3 == 0 && !live.is_empty() {
                let (at, bytes) = live.swap_remove((dice >> 8) as usize % live.len());
                blocks.remove(at, bytes);
            } else {
                let bytes = 1 + (dice >> 16) % 9000;
                let at = BASE + (dice >> 40) % 256 * 512;
                let free = live.iter().all(|(other, length)| {
                    at + bytes.div_ceil(512) * 512 <= *other
                        || other + length.div_ceil(512) * 512 <= at
                });
                if free && shares(64 << 10, at, bytes) {
                    blocks.add(1, at, bytes);
                    live.push((at, bytes));
                }
            }
            let mut numbers: Vec<u64> = live.iter().map(|(at, _)| at >> 16).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let largest = numbers
                .iter()
                .map(|number| {
                    let mut units = [false; 128];
                    for (at, bytes) in live.iter().filter(|(at, _)| at >> 16 == *number) {
                        let start = (at & 0xffff) as usize / 512;
                        units[start..start + bytes.div_ceil(512) as usize].fill(true);
                    }
                    let runs = units.split(|used| *used);
                    runs.map(<[bool]>::len).max().unwrap_or(0)
                })
                .max()
                .unwrap_or(0) as u64;
            assert!(largest == 0 || largest == 128 || blocks.has_room(1, largest * 512));
            assert!(!blocks.has_room(1, largest * 512 + 1));
        }
    }
}
