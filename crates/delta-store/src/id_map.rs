//! Hashing of ids. A run's id is random bits that the server itself has drawn, so nobody outside
//! can make ids collide, and a hash that only spreads them is enough. Names that others choose are
//! not hashed with it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
pub(crate) type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

#[derive(Default)]
pub(crate) struct IdHasher(u64);

/// An odd number with its bits well spread (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl IdHasher {
    fn add(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word) * u128::from(SPREAD);
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn write_u128(&mut self, number: u128) {
        self.add(number as u64);
        self.add((number >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use delta_core::RunId;

    use super::*;

    #[test]
    fn neighbours_do_not_share_a_hash() {
        let hasher = BuildHasherDefault::<IdHasher>::default();
        let runs = (0..50u128).map(|n| RunId(0x0190_0000_0000_7000_8000_0000_0000_0000 + n));
        let jobs = runs.flat_map(|run| (1..=100).map(move |n| run.job(n).attempt(1)));
        // The table looks at the low bits first.
        let low: HashSet<u64> = jobs.map(|id| hasher.hash_one(id) & 0xf_ffff).collect();
        assert!(low.len() > 4_900, "{}", low.len());
    }
}
