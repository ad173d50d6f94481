//! The program's allocations by address, in many maps with a lock each: threads seldom meet in one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    cuda::Handle,
    ledger::Charge,
    map::{Table, mix, table},
};

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

const MAPS: usize = 64;

#[derive(Debug)]
#[repr(align(64))]
struct Apart(Mutex<Table<u64, Live>>);

/// The allocations of a process.
#[derive(Debug)]
pub(crate) struct LiveMap([Apart; MAPS]);

fn lock(apart: &Apart) -> MutexGuard<'_, Table<u64, Live>> {
    apart.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LiveMap {
    pub(crate) const fn new() -> Self {
        Self([const { Apart(Mutex::new(table())) }; MAPS])
    }

    fn of(&self, pointer: u64) -> MutexGuard<'_, Table<u64, Live>> {
        lock(&self.0[(mix(pointer) >> 58) as usize % MAPS])
    }

    pub(crate) fn insert(&self, pointer: u64, live: Live) {
        if pointer != 0 {
            self.of(pointer).insert(pointer, live);
        }
    }

    /// `None`: unknown.
    pub(crate) fn remove(&self, pointer: u64) -> Option<Live> {
        self.of(pointer).remove(&pointer)
    }

    /// Removes all matching allocations.
    pub(crate) fn remove_all(&self, wanted: impl Fn(&Live) -> bool) -> Vec<(u64, Live)> {
        let mut gone = Vec::new();
        for apart in &self.0 {
            gone.extend(lock(apart).extract_if(|_, live| wanted(live)));
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_made_another_one_frees() {
        let map = LiveMap::new();
        let live = |bytes| Live {
            bytes,
            gpu: 0,
            context: 0x55,
            family: Family::Plain(Charge::Shared),
        };
        let pointers: Vec<u64> = (1..500).map(|number| number * 512).collect();
        let all = std::sync::Barrier::new(20);
        std::thread::scope(|scope| {
            for thread in 0..20_usize {
                let (map, pointers, all) = (&map, &pointers, &all);
                scope.spawn(move || {
                    for pointer in pointers.iter().skip(thread).step_by(20) {
                        map.insert(*pointer, live(*pointer));
                    }
                    all.wait();
                    for pointer in pointers.iter().skip((thread + 7) % 20).step_by(20) {
                        let found = map.remove(*pointer).map(|found| found.bytes);
                        assert_eq!(found, Some(*pointer));
                        assert!(map.remove(*pointer).is_none(), "once");
                    }
                });
            }
        });
        assert!(map.remove_all(|_| true).is_empty());
        for pointer in &pointers {
            map.insert(*pointer, live(pointer % 3));
        }
        assert_eq!(map.remove_all(|live| live.bytes == 0).len(), 166);
        assert_eq!(map.remove_all(|_| true).len(), 333);
    }
}
