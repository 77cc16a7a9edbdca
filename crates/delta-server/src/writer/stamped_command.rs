//! A command with the moment it came, and which others it is done with: all of them or none.

use std::time::Instant;

use delta_core::Millis;

use super::Order;

/// A command with the moment it was fully read.
pub(super) struct Stamped {
    pub at: Millis,
    pub arrived: Instant,
    pub order: Box<Order>,
    /// Which others of its batch are done with it, or not at all.
    pub whole: Option<usize>,
}

impl Stamped {
    pub fn new(at: Millis, arrived: Instant, order: Box<Order>) -> Stamped {
        Stamped {
            at,
            arrived,
            order,
            whole: None,
        }
    }

    pub fn is_whole_with(&self, other: &Stamped) -> bool {
        self.whole.is_some() && self.whole == other.whole
    }
}

/// What can be done apart: each alone, but for what is all or none.
pub(super) fn units(orders: &[Stamped]) -> impl Iterator<Item = &[Stamped]> {
    orders.chunk_by(Stamped::is_whole_with)
}
