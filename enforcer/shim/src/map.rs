//! Hash maps from addresses and handles.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

pub(crate) type Table<K, V> = HashMap<K, V, BuildHasherDefault<Mixed>>;

pub(crate) const fn table<K, V>() -> Table<K, V> {
    HashMap::with_hasher(BuildHasherDefault::new())
}

/// Mixes one number: the standard hash would be most of a look-up's cost.
#[derive(Debug, Default)]
pub(crate) struct Mixed(u64);

/// Fibonacci hashing: addresses are multiples of powers of two.
#[inline]
pub(crate) fn mix(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        self.0 = mix(self.0 ^ key);
    }

    #[inline]
    fn write_usize(&mut self, key: usize) {
        self.write_u64(key as u64);
    }

    /// The upper bits are mixed best, and the map chooses by the lower ones.
    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}
