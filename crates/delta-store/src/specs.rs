//! Job specs wait here for their first grant, so that nobody reads from the database what this very
//! process has just written. A spec never changes.

use std::collections::VecDeque;
use std::sync::Arc;

use delta_core::JobId;

use crate::id_map::IdMap;

/// Bytes kept by a store: thousands of ordinary specs.
pub(crate) const CACHED_SPEC_BYTES: usize = 8 << 20;

/// Bounded by bytes, first in, first out.
#[derive(Debug)]
pub(crate) struct Specs {
    texts: IdMap<JobId, Arc<str>>,
    order: VecDeque<JobId>,
    bytes: usize,
    limit: usize,
}

impl Specs {
    pub fn new(limit: usize) -> Specs {
        Specs {
            texts: IdMap::default(),
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
