//! Live rows in memory, so that an acknowledgement, a heartbeat or a completion reads nothing from
//! the file. Bounded: the rows that no batch has used for longest go first.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use delta_core::JobId;

/// Rows of one kind, each with the batch that last used it.
#[derive(Debug)]
pub struct Cache<K, V> {
    rows: HashMap<K, (V, u64)>,
    limit: usize,
}

impl<K: Copy + Eq + Hash, V> Cache<K, V> {
    pub fn new(limit: usize) -> Cache<K, V> {
        Cache {
            rows: HashMap::new(),
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

/// Job specs wait here for their first grant; bounded by their bytes, first in, first out.
#[derive(Debug)]
pub struct Specs {
    texts: HashMap<JobId, Arc<str>>,
    order: VecDeque<JobId>,
    bytes: usize,
    limit: usize,
}

impl Specs {
    pub fn new(limit: usize) -> Specs {
        Specs {
            texts: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    pub fn get(&self, job: JobId) -> Option<Arc<str>> {
        self.texts.get(&job).cloned()
    }

    pub fn put(&mut self, job: JobId, text: Arc<str>) {
        self.bytes += text.len();
        if let Some(former) = self.texts.insert(job, text) {
            self.bytes -= former.len();
        } else {
            self.order.push_back(job);
        }
        while self.bytes > self.limit {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            if let Some(text) = self.texts.remove(&oldest) {
                self.bytes -= text.len();
            }
        }
    }

    /// Forgets the specs that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&JobId) -> bool) {
        self.order.retain(&keep);
        self.texts.retain(|job, _| keep(job));
        self.bytes = self.texts.values().map(|text| text.len()).sum();
    }

    pub fn clear(&mut self) {
        self.texts.clear();
        self.order.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delta_core::RunId;

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

    #[test]
    fn specs_are_bounded_by_their_bytes() {
        let mut specs = Specs::new(10);
        let job = |n| RunId(1).job(n);
        specs.put(job(1), "12345".into());
        specs.put(job(2), "12345".into());
        specs.put(job(3), "1".into());
        assert_eq!(specs.get(job(1)), None);
        assert_eq!(specs.get(job(3)).as_deref(), Some("1"));
        specs.put(job(4), "far too long to keep".into());
        assert_eq!(specs.bytes, 0);
    }
}
