//! What people have set about queues, as it is in the store: re-read after a change and now and
//! then, since others may have changed it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, RwLock};

use delta_core::Text;
use delta_store::StoreError;
use delta_store::queues::QueueRow;
use delta_store::read::Reader;

use crate::writer::Writer;

/// Everything that is set, by queue.
#[derive(Debug, Default)]
pub struct Queues {
    all: RwLock<Arc<BTreeMap<Text, QueueRow>>>,
    /// Held from the reading to the taking over: what was read earlier never replaces what was
    /// read later.
    reading: Mutex<()>,
}

impl Queues {
    pub fn all(&self) -> Arc<BTreeMap<Text, QueueRow>> {
        Arc::clone(&self.all.read().unwrap_or_else(|e| e.into_inner()))
    }

    /// The runner of functions of this queue that name none.
    pub fn runner(&self, queue: &str) -> Option<Text> {
        self.all().get(queue)?.runner.clone()
    }

    /// Reads everything again and tells the writer what is paused. Blocks.
    pub fn read(&self, reader: &dyn Reader, writer: &Writer) -> Result<(), StoreError> {
        let _reading = self.reading.lock().unwrap_or_else(|e| e.into_inner());
        let rows = reader.queues()?;
        let paused = rows.iter().filter(|row| row.paused.is_some());
        let paused: BTreeSet<Text> = paused.map(|row| row.name.clone()).collect();
        let all = rows
            .into_iter()
            .map(|row| (row.name.clone(), row))
            .collect();
        *self.all.write().unwrap_or_else(|e| e.into_inner()) = Arc::new(all);
        writer.pause(paused);
        Ok(())
    }
}
