//! Whose turn it is: a place in the line for one of the runner's permits.
//!
//! A place is taken when a request is read, not when its task first runs: of two tasks the one that
//! was made later may well run first, and would begin a call before one that came earlier.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::unconstrained;

/// Nobody closes the line.
type Taken = Result<OwnedSemaphorePermit, AcquireError>;

/// A place in the line; it is given up when it is dropped.
pub(crate) struct Turn(TurnState);

enum TurnState {
    Come(Option<Taken>),
    Waits(Pin<Box<dyn Future<Output = Taken> + Send>>),
}

impl Turn {
    /// Takes the next place, and the permit itself where one is free. Never waits.
    pub async fn line_up(permits: &Arc<Semaphore>) -> Turn {
        // A task that has run for long would be told to wait without a place in the line.
        let mut place = Box::pin(unconstrained(Arc::clone(permits).acquire_owned()));
        let first = |context: &mut Context<'_>| Poll::Ready(place.as_mut().poll(context));
        Turn(match poll_fn(first).await {
            Poll::Ready(taken) => TurnState::Come(Some(taken)),
            Poll::Pending => TurnState::Waits(place),
        })
    }
}

impl Future for Turn {
    type Output = Taken;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Taken> {
        match &mut self.0 {
            TurnState::Come(taken) => match taken.take() {
                Some(taken) => Poll::Ready(taken),
                None => Poll::Pending,
            },
            TurnState::Waits(place) => place.as_mut().poll(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn polled(turn: &mut Turn) -> Poll<Taken> {
        Pin::new(turn).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn turns_come_in_the_order_of_the_line_whoever_asks_first() {
        let permits = Arc::new(Semaphore::new(1));
        let mut first = Turn::line_up(&permits).await;
        let mut second = Turn::line_up(&permits).await;
        let mut third = Turn::line_up(&permits).await;
        assert!(polled(&mut third).is_pending() && polled(&mut second).is_pending());
        let Poll::Ready(Ok(permit)) = polled(&mut first) else {
            panic!("a free permit is taken at once");
        };
        drop(permit);
        assert!(polled(&mut third).is_pending(), "it is the second's turn");
        assert!(polled(&mut second).is_ready());
        assert!(polled(&mut third).is_ready());
    }

    #[tokio::test]
    async fn who_leaves_the_line_holds_up_nobody() {
        let permits = Arc::new(Semaphore::new(1));
        let turns = [Turn::line_up(&permits).await, Turn::line_up(&permits).await];
        let mut last = Turn::line_up(&permits).await;
        drop(turns);
        assert!(polled(&mut last).is_ready());
    }
}
