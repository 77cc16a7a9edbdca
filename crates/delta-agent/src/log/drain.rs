//! The end of a log on its way: how long it is waited for.

use std::time::Duration;

use delta_shim::stop::StopReason;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::connection::Cursors;
use crate::log::ship::ShipError;
use crate::work::StopOrder;

/// How long the end of a job waits for a server that is there and takes no more of its log. The
/// result matters more than the last lines: past this it is reported without them, and says so.
/// Without a line there is no result to report either, and the lease's local end is the bound.
const FLUSH_BOUND: Duration = Duration::from_secs(30);

/// How long the end of a job that was stopped waits for its log: the holder leaves itself five
/// seconds of a cancel deadline, and the acknowledgement must fit into them too.
const FLUSH_AFTER_STOP: Duration = Duration::from_secs(3);

/// The log on its way; dropping it stops the shipping.
pub(crate) type Shipping = AbortOnDropHandle<Result<(), ShipError>>;

/// Waits for the rest of the log: long while the job ended by itself, briefly once it is to stop,
/// and not at all when nobody wants it any more.
pub(crate) async fn flush(
    shipping: Shipping,
    mut stop: watch::Receiver<Option<StopOrder>>,
    patience: Patience,
) {
    let hurried = async {
        let urgent =
            |order: &Option<StopOrder>| order.is_some_and(|it| it.reason != StopReason::TimedOut);
        let order = stop.wait_for(urgent).await.ok().and_then(|order| *order);
        match order.map(|it| it.reason) {
            Some(StopReason::LeaseLost) => {}
            Some(_) => sleep(FLUSH_AFTER_STOP).await,
            // Nobody is left to order anything: the session is gone.
            None => std::future::pending().await,
        }
    };
    let shipped = tokio::select! {
        shipped = shipping => shipped,
        () = patience.runs_out() => {
            tracing::warn!("the server takes no more of the log");
            return;
        }
        () = hurried => return,
    };
    match shipped {
        Ok(Ok(())) => {}
        Ok(Err(problem)) => tracing::warn!(error = %problem, "the log was not shipped"),
        Err(problem) => tracing::error!(error = %problem, "shipping the log failed"),
    }
}

/// How long a log that stands still is waited for.
pub(crate) struct Patience {
    line: watch::Receiver<Option<u64>>,
    cursors: watch::Receiver<Cursors>,
    bound: Duration,
}

impl Patience {
    pub fn new(line: watch::Receiver<Option<u64>>, cursors: watch::Receiver<Cursors>) -> Patience {
        Patience {
            line,
            cursors,
            bound: FLUSH_BOUND,
        }
    }

    /// Ends when there was a line for the whole bound and the log did not get on. That the server
    /// asks for the same bytes again is no getting on.
    async fn runs_out(mut self) {
        let mut cursors = self.cursors.clone();
        loop {
            // Those who tell are gone only with the whole session.
            if self.line.wait_for(Option::is_some).await.is_err() {
                return std::future::pending().await;
            }
            let received = cursors.borrow_and_update().received;
            tokio::select! {
                () = sleep(self.bound) => return,
                Ok(()) = self.line.changed() => {}
                Ok(_) = self.cursors.wait_for(|now| now.received > received) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_log_waits_for_its_line_however_long_it_is_away() {
        // D8: a job that ends during an outage keeps its log. F44: a server that is there and takes
        // nothing does not keep the result.
        let bound = Duration::from_millis(50);
        let (line, cursors) = (watch::Sender::new(None), watch::Sender::default());
        let patience = Patience {
            line: line.subscribe(),
            cursors: cursors.subscribe(),
            bound,
        };
        let mut over = Box::pin(patience.runs_out());
        let waits = timeout(bound * 4, &mut over).await;
        assert!(waits.is_err(), "it gave up without a line");
        line.send_replace(Some(1));
        for received in 1..5 {
            let waits = timeout(bound / 2, &mut over).await;
            assert!(waits.is_err(), "it gave up though the log got on");
            cursors.send_modify(|it: &mut Cursors| it.received = received);
        }
        let ask_again = async {
            loop {
                sleep(bound / 5).await;
                cursors.send_modify(|it: &mut Cursors| it.resends += 1);
            }
        };
        let ended = tokio::select! {
            ended = timeout(bound * 100, &mut over) => ended,
            () = ask_again => unreachable!(),
        };
        assert!(ended.is_ok(), "it never gave up");
    }
}
