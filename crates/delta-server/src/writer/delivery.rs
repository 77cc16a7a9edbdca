//! A grant on its way to its runner.
//!
//! Owns the promise of A67: a grant that does not reach its connection is taken back at once. The
//! guard revokes when it is dropped before somebody said `delivered`, wherever that happens: in a
//! channel nobody reads any more, or in a response nobody fetches.

use std::sync::Arc;

use delta_core::{LeaseKey, Millis, Span, Text};
use delta_wire::runner::LeaseToken;

use super::Shared;
use super::grant::Origin;

/// Everything a runner is told about its lease.
pub struct GrantedLease {
    pub token: LeaseToken,
    pub lease: LeaseKey,
    pub ttl: Span,
    pub max_runtime: Span,
    pub spec: Arc<str>,
    pub name: Text,
    pub priority: i32,
    pub trusted: bool,
    /// Names of the secrets it may fetch, if it is trusted.
    pub secrets: Vec<Text>,
    pub origin: Origin,
    /// Since when it had waited for this.
    pub waits_since: Option<Millis>,
    pub delivery: Delivery,
}

impl std::fmt::Debug for GrantedLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GrantedLease({:?})", self.lease)
    }
}

/// Revokes its lease unless told that it was delivered.
pub struct Delivery {
    shared: Arc<Shared>,
    lease: Option<LeaseKey>,
}

impl Delivery {
    pub(super) fn new(shared: Arc<Shared>, lease: LeaseKey) -> Delivery {
        Delivery {
            shared,
            lease: Some(lease),
        }
    }

    /// The bytes were handed to the connection.
    pub fn delivered(mut self) {
        self.lease = None;
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.shared.metrics.undelivered.inc();
            self.shared.revoke_undelivered(lease);
        }
    }
}
