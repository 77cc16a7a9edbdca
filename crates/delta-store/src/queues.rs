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

/// What is set about queues, read.
pub trait QueueReader {
    /// All of them, by name: as many as people have set something about.
    fn queues(&self) -> Result<Vec<QueueRow>, StoreError>;
}

/// What is set about queues, written; what others set at the same moment stays as they set it, and
/// a queue about which nothing is set is forgotten. Beside the writer: it says who is asked next,
/// and a grant that crosses a pause on its way is as good as one before it.
pub trait QueueTable {
    /// Pauses one, since when and by whose word, unless it is paused; or resumes it.
    fn pause_queue(&self, name: &Text, paused: Option<&(Millis, Text)>) -> Result<(), StoreError>;

    /// Says which runner serves its functions that name none.
    fn route_queue(&self, name: &Text, runner: Option<&Text>) -> Result<(), StoreError>;
}
