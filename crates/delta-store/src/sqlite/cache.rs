//! Live rows in memory, so that an acknowledgement, a heartbeat or a completion reads nothing from
//! the file. Bounded: the rows that no batch has used for longest go first.

use std::hash::Hash;

use crate::id_map::IdMap;

/// Rows of one kind, each with the batch that last used it.
#[derive(Debug)]
pub struct Cache<K, V> {
    rows: IdMap<K, (V, u64)>,
    limit: usize,
}

impl<K: Copy + Eq + Hash, V> Cache<K, V> {
    pub fn new(limit: usize) -> Cache<K, V> {
        Cache {
            rows: IdMap::default(),
            limit,
        }
    }

    pub fn get(&mut self, key: K, batch: u64) -> Option<&V> {
        let (row, used) = self.rows.get_mut(&key)?;
        *used = batch;
        Some(row)
    }

    /// The row, without counting as a use.
    pub fn peek(&self, key: K) -> Option<&V> {
        self.rows.get(&key).map(|(row, _)| row)
    }

    pub fn put(&mut self, key: K, row: V, batch: u64) {
        self.rows.insert(key, (row, batch));
    }

    pub fn remove(&mut self, key: K) {
        self.rows.remove(&key);
    }

    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.rows.retain(|key, _| keep(key));
    }

    pub fn clear(&mut self) {
        self.rows.clear();
    }

    /// Makes room between two batches: above the limit, the older half goes, so that the cost is
    /// spread over as many puts.
    pub fn trim(&mut self) {
        if self.rows.len() <= self.limit {
            return;
        }
        let mut used: Vec<u64> = self.rows.values().map(|(_, used)| *used).collect();
        let middle = used.len() - self.limit / 2;
        let (_, oldest_kept, _) = used.select_nth_unstable(middle);
        let oldest_kept = *oldest_kept;
        self.rows.retain(|_, (_, used)| *used > oldest_kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_used_longest_ago_go_first() {
        let mut cache = Cache::new(4);
        for n in 0..6u64 {
            cache.put(n, n, n);
        }
        cache.get(0, 7);
        cache.trim();
        let kept: Vec<u64> = (0..6).filter(|n| cache.get(*n, 8).is_some()).collect();
        assert!(kept.contains(&0) && !kept.contains(&1), "{kept:?}");
        assert!(kept.len() <= 4);
    }
}
