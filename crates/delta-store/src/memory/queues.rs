//! What is set about queues, in memory.

use super::reader::MemoryReader;
use crate::StoreError;
use crate::queues::{QueueRow, Queues};

impl Queues for MemoryReader {
    fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        Ok(self.tables().queues.values().cloned().collect())
    }

    fn put_queue(&self, queue: &QueueRow) -> Result<(), StoreError> {
        let mut tables = self.tables();
        match queue.is_plain() {
            true => tables.queues.remove(&queue.name),
            false => tables.queues.insert(queue.name.clone(), queue.clone()),
        };
        Ok(())
    }
}
