//! Device memory of one context or pool, cut out of 2 MiB blocks.
//!
//! As in the real driver, small requests share blocks of the granularity, so GPU memory grows in steps of 2 MiB. A
//! request of 2 MiB or more gets blocks of its own. Addresses are multiples of 512 bytes.

use std::collections::{BTreeMap, BTreeSet};

use gshare_sim_board::GRANULARITY;

use crate::code::R;

const ALIGN: u64 = 512;

/// Bytes of a request inside its block.
pub(crate) fn rounded(size: u64) -> u64 {
    if size >= GRANULARITY {
        size.next_multiple_of(GRANULARITY)
    } else {
        size.max(1).next_multiple_of(ALIGN)
    }
}

#[derive(Debug)]
struct Block {
    size: u64,
    used: u64,
    /// Free pieces: offset to length; neighbours are merged.
    free: BTreeMap<u64, u64>,
}

/// Takes and returns whole blocks: accounting on the board, and the memory itself.
pub(crate) trait Source {
    /// A block of `size` bytes; its address.
    fn get(&mut self, size: u64) -> R<u64>;
    /// Returns a block.
    fn put(&mut self, base: u64, size: u64);
}

#[derive(Debug, Default)]
pub(crate) struct Heap {
    blocks: BTreeMap<u64, Block>,
    /// The blocks with free pieces, so that full blocks are not searched.
    open: BTreeSet<u64>,
    /// Empty blocks are kept while the heap has at most this many bytes.
    pub keep: u64,
    pub reserved: u64,
    pub used: u64,
    pub reserved_high: u64,
    pub used_high: u64,
}

impl Heap {
    pub(crate) fn alloc(&mut self, size: u64, source: &mut dyn Source) -> R<u64> {
        let size = rounded(size);
        let fits = |b: &Block| b.free.iter().find(|f| *f.1 >= size).map(|f| *f.0);
        let large = size >= GRANULARITY;
        let found = self.open.iter().find_map(|base| {
            let block = self.blocks.get(base)?;
            if large && (block.size != size || block.used > 0) {
                return None;
            }
            fits(block).map(|offset| (*base, offset))
        });
        let (base, offset) = match found {
            Some(place) => place,
            None => {
                let block = size.next_multiple_of(GRANULARITY);
                let base = source.get(block)?;
                self.reserved += block;
                self.reserved_high = self.reserved_high.max(self.reserved);
                let free = BTreeMap::from([(0, block)]);
                let block = Block {
                    size: block,
                    used: 0,
                    free,
                };
                self.blocks.insert(base, block);
                self.open.insert(base);
                (base, 0)
            }
        };
        if let Some(b) = self.blocks.get_mut(&base) {
            let len = b.free.remove(&offset).unwrap_or(size);
            if len > size {
                b.free.insert(offset + size, len - size);
            }
            b.used += size;
            if b.free.is_empty() {
                self.open.remove(&base);
            }
        }
        self.used += size;
        self.used_high = self.used_high.max(self.used);
        Ok(base + offset)
    }

    /// Frees an allocation of `size` bytes from [`Heap::alloc`].
    pub(crate) fn free(&mut self, addr: u64, size: u64, source: &mut dyn Source) {
        let size = rounded(size);
        let Some((&base, b)) = self.blocks.range_mut(..=addr).next_back() else {
            return;
        };
        let (mut offset, mut len) = (addr - base, size);
        if let Some((&before, &n)) = b.free.range(..offset).next_back()
            && before + n == offset
        {
            b.free.remove(&before);
            (offset, len) = (before, n + len);
        }
        if let Some(n) = b.free.remove(&(offset + len)) {
            len += n;
        }
        b.free.insert(offset, len);
        b.used -= size.min(b.used);
        self.open.insert(base);
        self.used -= size.min(self.used);
        if b.used == 0 && self.reserved > self.keep {
            self.reserved -= b.size;
            let size = b.size;
            self.blocks.remove(&base);
            self.open.remove(&base);
            source.put(base, size);
        }
    }

    /// Returns empty blocks until at most `keep` bytes are left.
    pub(crate) fn trim(&mut self, keep: u64, source: &mut dyn Source) {
        let empty: Vec<(u64, u64)> = self
            .blocks
            .iter()
            .filter(|(_, b)| b.used == 0)
            .map(|(base, b)| (*base, b.size))
            .collect();
        for (base, size) in empty {
            if self.reserved <= keep {
                return;
            }
            self.reserved -= size;
            self.blocks.remove(&base);
            self.open.remove(&base);
            source.put(base, size);
        }
    }

    /// Returns all blocks.
    pub(crate) fn clear(&mut self, source: &mut dyn Source) {
        for (base, b) in std::mem::take(&mut self.blocks) {
            source.put(base, b.size);
        }
        self.open.clear();
        self.reserved = 0;
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::OUT_OF_MEMORY;

    /// Blocks at fake addresses, up to a limit.
    struct Fake {
        next: u64,
        held: u64,
        limit: u64,
    }

    impl Source for Fake {
        fn get(&mut self, size: u64) -> R<u64> {
            if self.held + size > self.limit {
                return Err(OUT_OF_MEMORY);
            }
            self.held += size;
            self.next += 1 << 32;
            Ok(self.next)
        }
        fn put(&mut self, _base: u64, size: u64) {
            self.held -= size;
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn small_requests_share_a_block() {
        let mut source = Fake {
            next: 0,
            held: 0,
            limit: 6 * MIB,
        };
        let mut heap = Heap::default();
        let many: Vec<u64> = (0..4096)
            .map(|_| heap.alloc(512, &mut source).expect("fits"))
            .collect();
        assert_eq!(source.held, 2 * MIB);
        let more = heap.alloc(1, &mut source).expect("fits");
        assert_eq!(source.held, 4 * MIB);
        let mut distinct = many.clone();
        distinct.dedup();
        assert_eq!(distinct.len(), 4096);
        assert!(many.iter().all(|a| a % 512 == 0));
        // Free every second piece, then the rest: the pieces merge into a whole block again.
        for a in many.iter().step_by(2).chain(many.iter().skip(1).step_by(2)) {
            heap.free(*a, 512, &mut source);
        }
        assert_eq!(source.held, 2 * MIB);
        heap.free(more, 1, &mut source);
        assert_eq!((source.held, heap.used, heap.reserved), (0, 0, 0));
    }

    #[test]
    fn large_requests_have_blocks_of_their_own() {
        let mut source = Fake {
            next: 0,
            held: 0,
            limit: 6 * MIB,
        };
        let mut heap = Heap::default();
        let a = heap.alloc(2 * MIB + 1, &mut source).expect("fits");
        assert_eq!(source.held, 4 * MIB);
        assert_eq!(heap.alloc(3 * MIB, &mut source), Err(OUT_OF_MEMORY));
        heap.alloc(MIB, &mut source).expect("fits");
        assert_eq!(heap.alloc(2 * MIB, &mut source), Err(OUT_OF_MEMORY));
        heap.free(a, 2 * MIB + 1, &mut source);
        assert_eq!(source.held, 2 * MIB);
    }

    #[test]
    fn a_kept_block_is_used_again() {
        let mut source = Fake {
            next: 0,
            held: 0,
            limit: 8 * MIB,
        };
        let mut heap = Heap {
            keep: u64::MAX,
            ..Heap::default()
        };
        let a = heap.alloc(4 * MIB, &mut source).expect("fits");
        heap.free(a, 4 * MIB, &mut source);
        assert_eq!(source.held, 4 * MIB);
        assert_eq!(heap.alloc(4 * MIB, &mut source), Ok(a));
        heap.free(a, 4 * MIB, &mut source);
        heap.trim(0, &mut source);
        assert_eq!((source.held, heap.reserved), (0, 0));
        assert_eq!(heap.reserved_high, 4 * MIB);
    }
}
