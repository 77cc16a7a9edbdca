//! What people set about queues: whether one is paused, and which runner serves it. Not part of any
//! run: it decides who is asked next, never what has happened.

use delta_core::{Millis, Text};

use crate::StoreError;

/// A queue with something set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueRow {
    pub name: Text,
    /// Since when nothing of it is given out, and by whose word.
    pub paused: Option<(Millis, Text)>,
    /// The runner of functions that name none.
    pub runner: Option<Text>,
}

impl QueueRow {
    pub fn is_plain(&self) -> bool {
        self.paused.is_none() && self.runner.is_none()
    }
}

/// Reads and writes them. Every write is on disk when it returns.
pub trait Queues {
    /// All of them, by name: as many as people have set something about.
    fn queues(&self) -> Result<Vec<QueueRow>, StoreError>;

    /// Writes one; a plain one is forgotten.
    fn put_queue(&self, queue: &QueueRow) -> Result<(), StoreError>;
}
