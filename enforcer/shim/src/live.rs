//! The program's allocations by address: read without a lock, changed under one of many short locks, at a cost that
//! does not grow with their number.
//!
//! Each shard is an open-addressing table with a turn counter that is odd while a thread writes. A writer makes it odd
//! with one exchange and even again with one store; a reader repeats if the turn has changed meanwhile. A table that
//! has become too small is replaced and never freed, so a late reader reads old words and no reused memory; all old
//! tables together are smaller than the table in use.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

use gshare_abi::STRIPES;

use crate::{cuda::Handle, ledger::Charge, mark::Thread};

/// Figures of an allocation that the program holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) bytes: u64,
    pub(crate) gpu: usize,
    pub(crate) context: Handle,
    pub(crate) family: Family,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Family {
    Plain(Charge),
    /// From the pool with this number.
    Pool(u64),
}

impl Live {
    /// A placeholder for "not found".
    pub(crate) const NONE: Self = Self {
        bytes: 0,
        gpu: 0,
        context: 0,
        family: Family::Plain(Charge::Shared),
    };
}

/// Shards of each home.
const SHARDS: usize = 4;
const SMALLEST: usize = 64;
const _: () = assert!(STRIPES.is_power_of_two());

/// An allocation in four words; key 0 marks an empty cell.
#[derive(Debug)]
struct Cell {
    key: AtomicU64,
    bytes: AtomicU64,
    context: AtomicU64,
    /// Its charge: two bits of kind, 14 of the GPU's index, 48 of bytes or pool.
    how: AtomicU64,
}

#[derive(Debug)]
struct Cells {
    cells: Box<[Cell]>,
}

const VALUE: u64 = (1 << 48) - 1;

fn pack(live: &Live) -> u64 {
    let (kind, value) = match live.family {
        Family::Plain(Charge::Shared) => (0, 0),
        Family::Plain(Charge::Own(bytes)) => (1, bytes),
        Family::Pool(pool) => (2, pool),
    };
    kind << 62 | (live.gpu as u64 & 0x3fff) << 48 | value.min(VALUE)
}

impl Cell {
    #[inline]
    fn read(&self) -> Live {
        let how = self.how.load(Ordering::Relaxed);
        let value = how & VALUE;
        Live {
            bytes: self.bytes.load(Ordering::Relaxed),
            gpu: (how >> 48 & 0x3fff) as usize,
            context: self.context.load(Ordering::Relaxed) as Handle,
            family: match how >> 62 {
                0 => Family::Plain(Charge::Shared),
                1 => Family::Plain(Charge::Own(value)),
                _ => Family::Pool(value),
            },
        }
    }

    fn write(&self, key: u64, live: &Live) {
        self.bytes.store(live.bytes, Ordering::Relaxed);
        self.context.store(live.context as u64, Ordering::Relaxed);
        self.how.store(pack(live), Ordering::Relaxed);
        self.key.store(key, Ordering::Relaxed);
    }

    fn copy(&self, from: &Self) {
        for (to, from) in [
            (&self.bytes, &from.bytes),
            (&self.context, &from.context),
            (&self.how, &from.how),
            (&self.key, &from.key),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Cells {
    fn new(room: usize) -> Self {
        let empty = || Cell {
            key: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            context: AtomicU64::new(0),
            how: AtomicU64::new(0),
        };
        Self {
            cells: (0..room).map(|_| empty()).collect(),
        }
    }

    fn home(&self, key: u64) -> usize {
        (mix(key) >> 16) as usize & (self.cells.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }

    /// The cell of a key, or the free cell where the search ends. A reader may see a table in change, so the search is
    /// bounded.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let mut at = self.home(key);
        for _ in 0..self.cells.len() {
            match self.cells[at].key.load(Ordering::Relaxed) {
                0 => return Err(at),
                found if found == key => return Ok(at),
                _ => at = self.after(at),
            }
        }
        Err(at)
    }
}

fn mix(key: u64) -> u64 {
    // Fibonacci hashing: addresses are multiples of powers of two.
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Waits for the thread that changes a shard.
fn pause(tries: &mut u32) {
    *tries += 1;
    if tries.is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

#[derive(Debug)]
#[repr(align(64))]
struct Shard {
    turn: AtomicU32,
    used: AtomicU32,
    cells: AtomicPtr<Cells>,
}

/// The right to change a shard.
struct Turn<'a> {
    shard: &'a Shard,
    mine: u32,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shard
            .turn
            .store(self.mine.wrapping_add(1), Ordering::Release);
    }
}

impl Shard {
    const fn new() -> Self {
        Self {
            turn: AtomicU32::new(0),
            used: AtomicU32::new(0),
            cells: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn cells(&self) -> Option<&Cells> {
        // SAFETY: null, or a table that is never freed.
        unsafe { self.cells.load(Ordering::Acquire).as_ref() }
    }

    fn write(&self) -> Turn<'_> {
        let mut tries = 0;
        loop {
            let now = self.turn.load(Ordering::Relaxed);
            let even = now & 1 == 0;
            let next = now.wrapping_add(1);
            if even
                && self
                    .turn
                    .compare_exchange_weak(now, next, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                // The writes that follow must not be visible before the odd turn.
                fence(Ordering::Release);
                return Turn {
                    shard: self,
                    mine: next,
                };
            }
            pause(&mut tries);
        }
    }

    #[cfg(test)]
    fn knows(&self, key: u64) -> bool {
        let mut tries = 0;
        loop {
            let before = self.turn.load(Ordering::Acquire);
            if before & 1 == 0 {
                let found = self.cells().is_some_and(|cells| cells.find(key).is_ok());
                fence(Ordering::Acquire);
                if self.turn.load(Ordering::Relaxed) == before {
                    return found;
                }
            }
            pause(&mut tries);
        }
    }

    fn insert(&self, key: u64, live: &Live) {
        let _turn = self.write();
        let used = self.used.load(Ordering::Relaxed);
        let cells = match self.cells() {
            Some(cells) if (used as usize + 1) * 4 <= cells.cells.len() * 3 => cells,
            small => self.larger(small),
        };
        match cells.find(key) {
            Ok(at) => cells.cells[at].write(key, live),
            Err(at) => {
                cells.cells[at].write(key, live);
                self.used.store(used + 1, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn larger(&self, small: Option<&Cells>) -> &Cells {
        let room = small.map_or(SMALLEST, |small| small.cells.len() * 2);
        let large = Box::leak(Box::new(Cells::new(room)));
        for cell in small.iter().flat_map(|small| &small.cells) {
            let key = cell.key.load(Ordering::Relaxed);
            if key != 0
                && let Err(at) = large.find(key)
            {
                large.cells[at].copy(cell);
            }
        }
        self.cells.store(large, Ordering::Release);
        large
    }

    /// Looks first, and locks the shard only for an existing key and an unchanged turn: then the cell is still where it
    /// was found.
    fn remove(&self, key: u64, live: &mut Live) -> bool {
        let mut tries = 0;
        loop {
            let before = self.turn.load(Ordering::Acquire);
            if before & 1 == 0 {
                let cells = self.cells();
                let found = cells.and_then(|cells| Some((cells, cells.find(key).ok()?)));
                let Some((cells, at)) = found else {
                    fence(Ordering::Acquire);
                    if self.turn.load(Ordering::Relaxed) == before {
                        return false;
                    }
                    pause(&mut tries);
                    continue;
                };
                let mine = before.wrapping_add(1);
                // Ordered after the look, and before the writes.
                let order = (Ordering::AcqRel, Ordering::Relaxed);
                let taken = self.turn.compare_exchange(before, mine, order.0, order.1);
                if taken.is_ok() {
                    fence(Ordering::Release);
                    let _turn = Turn { shard: self, mine };
                    *live = cells.cells[at].read();
                    self.empty(cells, at);
                    return true;
                }
            }
            pause(&mut tries);
        }
    }

    /// Empties a cell; the caller has the right to change the shard.
    fn empty(&self, cells: &Cells, mut hole: usize) {
        let used = self.used.load(Ordering::Relaxed);
        self.used.store(used.saturating_sub(1), Ordering::Relaxed);
        let mask = cells.cells.len() - 1;
        let mut at = cells.after(hole);
        loop {
            let next = cells.cells[at].key.load(Ordering::Relaxed);
            if next == 0 {
                break;
            }
            // Moves back the entries that would not be found across the hole any more.
            let home = cells.home(next);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                cells.cells[hole].copy(&cells.cells[at]);
                hole = at;
            }
            at = cells.after(at);
        }
        cells.cells[hole].key.store(0, Ordering::Relaxed);
    }

    fn keys(&self, wanted: &impl Fn(&Live) -> bool) -> Vec<u64> {
        let _turn = self.write();
        let Some(cells) = self.cells() else {
            return Vec::new();
        };
        let keyed = cells.cells.iter();
        let keyed = keyed.map(|cell| (cell.key.load(Ordering::Relaxed), cell));
        keyed
            .filter(|(key, cell)| *key != 0 && wanted(&cell.read()))
            .map(|(key, _)| key)
            .collect()
    }
}

/// The allocations of a process. Each thread keeps its own in shards of its own, like its stripe of counters: memory
/// that it also frees never meets other threads.
#[derive(Debug)]
pub(crate) struct LiveMap {
    homes: [[Shard; SHARDS]; STRIPES],
}

impl LiveMap {
    pub(crate) const fn new() -> Self {
        Self {
            homes: [const { [const { Shard::new() }; SHARDS] }; STRIPES],
        }
    }

    fn shard(&self, home: usize, key: u64) -> &Shard {
        &self.homes[home % STRIPES][(mix(key) >> 58) as usize % SHARDS]
    }

    /// Whether an address is known; takes no lock.
    #[cfg(test)]
    fn knows(&self, key: u64) -> bool {
        (0..STRIPES).any(|home| self.shard(home, key).knows(key))
    }

    /// Adds an allocation of the calling thread.
    pub(crate) fn insert(&self, key: u64, live: &Live) {
        if key != 0 {
            let home = Thread::current().stripe();
            self.shard(home, key).insert(key, live);
        }
    }

    /// Removes an allocation; `false`: unknown, without taking a lock.
    pub(crate) fn remove(&self, key: u64, live: &mut Live) -> bool {
        if key == 0 {
            return false;
        }
        let own = Thread::current().stripe();
        // From its own shards on: XOR reaches all of them.
        (0..STRIPES).any(|other| self.shard(own ^ other, key).remove(key, live))
    }

    /// Removes all matching allocations.
    pub(crate) fn remove_all(&self, wanted: impl Fn(&Live) -> bool) -> Vec<(u64, Live)> {
        let shards = self.homes.iter().flatten();
        let keys: Vec<u64> = shards.flat_map(|shard| shard.keys(&wanted)).collect();
        let keys = keys.into_iter();
        keys.filter_map(|key| {
            let mut live = Live::NONE;
            self.remove(key, &mut live).then_some((key, live))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::atomic::AtomicBool};

    use super::*;

    fn live(number: u64) -> Live {
        Live {
            bytes: number,
            gpu: (number % 8) as usize,
            context: number as usize ^ 0x55,
            family: match number % 3 {
                0 => Family::Plain(Charge::Shared),
                1 => Family::Plain(Charge::Own(number << 9)),
                _ => Family::Pool(number),
            },
        }
    }

    fn take(map: &LiveMap, key: u64) -> Option<Live> {
        let mut live = Live::NONE;
        map.remove(key, &mut live).then_some(live)
    }

    fn same(one: &Live, other: &Live) -> bool {
        format!("{one:?}") == format!("{other:?}")
    }

    #[test]
    fn behaves_as_the_standard_map_does() {
        let map = LiveMap::new();
        let mut model = HashMap::new();
        let mut dice: u64 = 7;
        for step in 1..300_000_u64 {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            let key = 0x7f00_0000_0000 + (dice % 9000) * 512;
            if dice & (1 << 40) == 0 {
                map.insert(key, &live(step));
                model.insert(key, live(step));
            } else {
                match (take(&map, key), model.remove(&key)) {
                    (None, None) => {}
                    (Some(found), Some(expected)) => assert!(same(&found, &expected)),
                    other => panic!("{other:?}"),
                }
            }
            let probe = 0x7f00_0000_0000 + (dice >> 50) % 9000 * 512;
            assert_eq!(map.knows(probe), model.contains_key(&probe));
        }
        let even = map.remove_all(|live| live.bytes % 2 == 0);
        assert!(even.iter().all(|(key, found)| {
            let expected = model.remove(key);
            expected.is_some_and(|expected| same(found, &expected))
        }));
        assert!(model.values().all(|live| live.bytes % 2 == 1));
        assert!(model.keys().all(|key| map.knows(*key)));
    }

    #[test]
    fn what_one_thread_made_another_one_frees() {
        let map = LiveMap::new();
        let keys: Vec<u64> = (1..500).map(|number| number * 512).collect();
        let all = std::sync::Barrier::new(20);
        std::thread::scope(|scope| {
            for thread in 0..20_usize {
                let (map, keys, all) = (&map, &keys, &all);
                scope.spawn(move || {
                    for key in keys.iter().skip(thread).step_by(20) {
                        map.insert(*key, &live(*key));
                    }
                    all.wait();
                    for key in keys.iter().skip((thread + 7) % 20).step_by(20) {
                        assert!(take(map, *key).is_some_and(|found| same(&found, &live(*key))));
                        assert!(take(map, *key).is_none(), "once");
                    }
                });
            }
        });
        assert!(map.remove_all(|_| true).is_empty());
    }

    #[test]
    fn readers_never_miss_what_stays_while_others_change_everything_else() {
        let map = LiveMap::new();
        let stays: Vec<u64> = (1..200).map(|number| number * 4096).collect();
        for key in &stays {
            map.insert(*key, &live(*key));
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 1..3_u64 {
                let (map, stop) = (&map, &stop);
                scope.spawn(move || {
                    let own = |number: u64| (thread << 40) + number * 512;
                    for round in 0..40 {
                        for number in 1..600 {
                            map.insert(own(number), &live(number + round));
                        }
                        for number in 1..600 {
                            let found = take(map, own(number));
                            assert!(found.is_some_and(|found| same(&found, &live(number + round))));
                        }
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            }
            while !stop.load(Ordering::Relaxed) {
                assert!(stays.iter().all(|key| map.knows(*key)));
            }
        });
        assert_eq!(map.remove_all(|_| true).len(), stays.len());
    }
}
