//! What is set about queues, in memory.

use delta_core::{Millis, Text};

use super::reader::MemoryReader;
use super::side_tables::MemorySideTables;
use crate::StoreError;
use crate::queues::{QueueReader, QueueRow, QueueTable};

impl QueueReader for MemoryReader {
    fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        Ok(self.tables().queues.values().cloned().collect())
    }
}

impl QueueTable for MemorySideTables {
    fn pause_queue(&self, name: &Text, paused: Option<&(Millis, Text)>) -> Result<(), StoreError> {
        self.set(name, |row| {
            row.paused = match paused {
                Some(paused) => row.paused.take().or_else(|| Some(paused.clone())),
                None => None,
            }
        });
        Ok(())
    }

    fn route_queue(&self, name: &Text, runner: Option<&Text>) -> Result<(), StoreError> {
        self.set(name, |row| row.runner = runner.cloned());
        Ok(())
    }
}

impl MemorySideTables {
    fn set(&self, name: &Text, change: impl FnOnce(&mut QueueRow)) {
        let mut tables = self.tables();
        let row = tables
            .queues
            .entry(name.clone())
            .or_insert_with(|| QueueRow {
                name: name.clone(),
                ..QueueRow::default()
            });
        change(row);
        if row.paused.is_none() && row.runner.is_none() {
            tables.queues.remove(name);
        }
    }
}
