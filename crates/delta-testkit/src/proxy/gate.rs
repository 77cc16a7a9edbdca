//! A message stopped on its way, until the test lets it go.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::wait::{eventually, eventually_async};

/// The test's hold on one message. Dropping it lets the message go.
#[derive(Debug)]
pub struct Held {
    what: String,
    gate: Arc<Gate>,
}

impl Held {
    pub(super) fn new(what: String) -> (Self, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        (
            Self {
                what,
                gate: gate.clone(),
            },
            gate,
        )
    }

    /// Whether the message stands at the gate (or has stood there).
    pub fn has_arrived(&self) -> bool {
        *self.gate.arrived.borrow()
    }

    /// Blocks until the message stands at the gate; panics at the deadline.
    #[track_caller]
    pub fn wait_arrived(&self, deadline: Duration) {
        eventually(deadline, &self.what, || self.look());
    }

    /// As [`Held::wait_arrived`], for a test whose client runs on the same runtime.
    pub async fn arrived(&self, deadline: Duration) {
        eventually_async(deadline, &self.what, async || self.look()).await;
    }

    /// Lets the message go, as dropping does.
    pub fn release(self) {}

    fn look(&self) -> Result<(), &'static str> {
        if self.has_arrived() {
            Ok(())
        } else {
            Err("no such message yet")
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gate.released.send_replace(true);
    }
}

/// Where the message waits.
#[derive(Debug)]
pub(super) struct Gate {
    arrived: watch::Sender<bool>,
    released: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            arrived: watch::Sender::new(false),
            released: watch::Sender::new(false),
        }
    }
}

impl Gate {
    pub(super) async fn pass(&self) {
        self.arrived.send_replace(true);
        // The sender is part of this gate and cannot go before it.
        let _ = self
            .released
            .subscribe()
            .wait_for(|released| *released)
            .await;
    }
}
