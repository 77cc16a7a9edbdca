//! The silhouette of a duty, and its loop: a pass at once, then one after each interval, or when it
//! is rung, until the server stops.
//!
//! Owns when the next pass is due, and tells the metrics what each did and whether it came in
//! time. A duty that fails is tried again soon, then less and less soon; its next pass finds what
//! this one left. It is said once when it begins to fail, and once when it goes well again.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// When to try again after the first pass that failed: what was in the way is usually gone by then.
const AGAIN: Duration = Duration::from_secs(1);

/// Something that the server does by itself, again and again.
pub trait Duty: Send {
    /// Its name in metrics and in the log.
    const NAME: &'static str;
    type Counts: Counts + Send;
    type Error: Display + Send;

    /// From one pass to the next.
    fn interval(&self) -> Duration;

    /// Rung when it should not wait for the interval.
    fn bell(&self) -> Option<Arc<Notify>> {
        None
    }

    /// One pass. It finds what there is to do; what it leaves, the next one finds.
    fn run_once(&mut self) -> impl Future<Output = Result<Self::Counts, Self::Error>> + Send;

    /// What is still to be done when the server stops.
    fn finish(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// What one pass did.
pub trait Counts {
    /// Things that it did, of all kinds together.
    fn done(&self) -> usize;
}

impl Counts for usize {
    fn done(&self) -> usize {
        *self
    }
}

/// Makes passes until it is time to stop.
pub async fn every<D: Duty>(mut duty: D, metrics: Arc<Metrics>, stop: CancellationToken) {
    let (name, interval) = (D::NAME, duty.interval());
    let bell = duty.bell();
    metrics.duties.expect(name, Instant::now());
    let mut failed: Option<Duration> = None;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let pause = match duty.run_once().await {
            Ok(counts) => {
                metrics.duties.did(name, counts.done());
                metrics.duties.expect(name, began + interval);
                if failed.take().is_some() {
                    tracing::info!(duty = name, "a duty that failed is done again");
                }
                interval
            }
            Err(error) => {
                if failed.is_none() {
                    tracing::warn!(duty = name, %error, "a duty failed; its next pass looks again");
                }
                let pause = failed.map_or(AGAIN, |last| last * 2).min(interval);
                failed = Some(pause);
                pause
            }
        };
        // From the beginning of a pass to that of the next, unless it took longer.
        tokio::select! {
            () = tokio::time::sleep_until((began + pause).into()) => {}
            () = rung(bell.as_deref()) => {}
            () = stop.cancelled() => {}
        }
    }
    duty.finish().await;
}

async fn rung(bell: Option<&Notify>) {
    match bell {
        Some(bell) => bell.notified().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Does what it is told, and then stops the server.
    struct Scripted {
        script: Vec<Result<usize, &'static str>>,
        began: Arc<Mutex<Vec<Instant>>>,
        stop: CancellationToken,
        finished: Arc<Mutex<bool>>,
    }

    impl Duty for Scripted {
        const NAME: &'static str = "scripted";
        type Counts = usize;
        type Error = &'static str;

        fn interval(&self) -> Duration {
            Duration::from_millis(20)
        }

        async fn run_once(&mut self) -> Result<usize, &'static str> {
            self.began.lock().unwrap().push(Instant::now());
            let done = self.script.remove(0);
            if self.script.is_empty() {
                self.stop.cancel();
            }
            done
        }

        async fn finish(&mut self) {
            *self.finished.lock().unwrap() = true;
        }
    }

    #[tokio::test]
    async fn passes_go_on_after_one_that_failed_and_end_with_the_server() {
        let metrics = Arc::<Metrics>::default();
        let (began, finished) = (Arc::<Mutex<Vec<Instant>>>::default(), Arc::default());
        let stop = CancellationToken::new();
        let duty = Scripted {
            script: vec![Ok(2), Err("away"), Err("away"), Ok(3)],
            began: began.clone(),
            stop: stop.clone(),
            finished: Arc::clone(&finished),
        };
        every(duty, metrics.clone(), stop).await;
        assert!(*finished.lock().unwrap());
        let began = began.lock().unwrap();
        assert_eq!(began.len(), 4);
        let apart = began.windows(2).map(|pair| pair[1] - pair[0]);
        let short = apart.filter(|apart| *apart < Duration::from_millis(19));
        assert_eq!(short.count(), 0, "a failed pass is not repeated at once");
        let text = metrics.encode();
        let done = "delta_duty_done_total{duty=\"scripted\"} 5";
        assert!(text.contains(done), "{text}");
        assert!(
            text.contains("delta_duty_late_seconds{duty=\"scripted\"}"),
            "{text}"
        );
    }
}
