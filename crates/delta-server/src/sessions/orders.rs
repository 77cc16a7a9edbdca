//! What a session is told from outside, in order.
//!
//! One per session and nearly always empty, so it takes no room for what is not there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use delta_core::Text;
use tokio::sync::Notify;

/// SessionOrders that wait: a session takes them at once, so one with more is ending.
const MOST: usize = 8;

/// What a session is told from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionOrder {
    Drain(Text),
    Undrain(Text),
    /// Another session of the same agent has begun.
    Superseded,
    /// The agent was revoked.
    Revoked,
}

/// The way of orders to one session.
#[derive(Clone, Default)]
pub struct SessionOrders(Arc<WaitingOrders>);

#[derive(Default)]
struct WaitingOrders {
    orders: Mutex<VecDeque<SessionOrder>>,
    arrived: Notify,
}

impl SessionOrders {
    /// False when there is no room for it.
    pub fn give(&self, order: SessionOrder) -> bool {
        // A queue has no state to spoil.
        let mut orders = self.0.orders.lock().unwrap_or_else(|e| e.into_inner());
        let room = orders.len() < MOST;
        if room {
            orders.push_back(order);
            self.0.arrived.notify_one();
        }
        room
    }

    /// The next one that waits, if there is one.
    pub fn take(&self) -> Option<SessionOrder> {
        let mut orders = self.0.orders.lock().unwrap_or_else(|e| e.into_inner());
        orders.pop_front()
    }

    /// Waits for the next one. May be dropped midway; nothing is lost.
    pub async fn next(&self) -> SessionOrder {
        loop {
            if let Some(order) = self.take() {
                return order;
            }
            self.0.arrived.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn orders_come_in_order_and_are_bounded() {
        let orders = SessionOrders::default();
        let session = orders.clone();
        let waiting = tokio::spawn(async move { session.next().await });
        assert!(orders.give(SessionOrder::Superseded));
        assert_eq!(waiting.await.unwrap(), SessionOrder::Superseded);
        for n in 0..MOST {
            assert!(orders.give(SessionOrder::Drain(n.to_string().into())));
        }
        assert!(!orders.give(SessionOrder::Revoked), "it is full");
        for n in 0..MOST {
            assert_eq!(
                orders.next().await,
                SessionOrder::Drain(n.to_string().into())
            );
        }
        assert_eq!(orders.take(), None);
    }
}
