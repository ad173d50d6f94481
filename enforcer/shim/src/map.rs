//! A hash map from addresses to small values, by open addressing with removal by shifting back: its cost does not
//! depend on the number of present or past entries.

/// A table with keys other than 0.
#[derive(Debug)]
pub(crate) struct Table<V> {
    slots: Vec<Option<(u64, V)>>,
    used: usize,
}

const SMALLEST: usize = 32;

impl<V> Table<V> {
    pub(crate) const EMPTY: Self = Self {
        slots: Vec::new(),
        used: 0,
    };

    fn home(&self, key: u64) -> usize {
        // Fibonacci hashing: addresses are multiples of powers of two.
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 20) as usize & (self.slots.len() - 1)
    }

    fn find(&self, key: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(key);
        while let Some((present, _)) = &self.slots[at] {
            if *present == key {
                return Some(at);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        None
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        let at = self.find(key)?;
        self.slots[at].as_mut().map(|(_, value)| value)
    }

    pub(crate) fn get(&self, key: u64) -> Option<&V> {
        let at = self.find(key)?;
        self.slots[at].as_ref().map(|(_, value)| value)
    }

    /// Inserts a value; returns the previous one.
    pub(crate) fn insert(&mut self, key: u64, value: V) -> Option<V> {
        if let Some(at) = self.find(key) {
            return self.slots[at].replace((key, value)).map(|(_, old)| old);
        }
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        self.place(key, value);
        self.used += 1;
        None
    }

    fn place(&mut self, key: u64, value: V) {
        let mut at = self.home(key);
        while self.slots[at].is_some() {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = Some((key, value));
    }

    fn grow(&mut self) {
        let room = (self.slots.len() * 2).max(SMALLEST);
        let old = std::mem::replace(&mut self.slots, (0..room).map(|_| None).collect());
        for (key, value) in old.into_iter().flatten() {
            self.place(key, value);
        }
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<V> {
        let mut hole = self.find(key)?;
        let (_, value) = self.slots[hole].take()?;
        self.used -= 1;
        let mask = self.slots.len() - 1;
        let mut at = (hole + 1) & mask;
        while let Some((next, _)) = &self.slots[at] {
            // Moves back the entries that would not be found across the hole any more.
            let home = self.home(*next);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[at].take();
                hole = at;
            }
            at = (at + 1) & mask;
        }
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.slots
            .iter()
            .flatten()
            .map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn behaves_as_the_standard_map_does() {
        let mut table = Table::EMPTY;
        let mut model = HashMap::new();
        let mut dice: u64 = 7;
        for step in 0..200_000_u64 {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            let key = 0x7f00_0000_0000 + (dice % 900) * 512;
            if dice & (1 << 40) == 0 {
                assert_eq!(table.insert(key, step), model.insert(key, step));
            } else {
                assert_eq!(table.remove(key), model.remove(&key));
            }
            assert_eq!(table.len(), model.len());
            let probe = 0x7f00_0000_0000 + (dice >> 50) % 900 * 512;
            assert_eq!(table.get(probe), model.get(&probe));
        }
        let mut left: Vec<_> = table.iter().map(|(key, value)| (key, *value)).collect();
        let mut expected: Vec<_> = model.into_iter().collect();
        left.sort_unstable();
        expected.sort_unstable();
        assert_eq!(left, expected);
    }

    #[test]
    fn an_empty_table_answers() {
        let mut table: Table<u8> = Table::EMPTY;
        assert!(table.get(5).is_none() && table.remove(5).is_none());
        assert_eq!(table.iter().count(), 0);
    }
}
