//! Keeps one lane of a pool filled: starts its process, watches it, ends it when a call of it does
//! not heed its cancel, and starts it again, each time after a longer while.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::connection::{self, Trouble};
use super::pool::Pool;
use super::process::{Launch, Process};
use super::settings::RunnerSource;
use crate::backoff::{Backoff, entropy};

/// Waits between starts: a crash may be one of a kind, a wrong command is not.
const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_CAP: Duration = Duration::from_secs(30);
/// A process that lived this long was a good one: the next wait is short again.
const STABLE: Duration = Duration::from_secs(10);

/// Works until `stop`.
pub(super) async fn keep(
    pool: Arc<Pool>,
    lane: usize,
    launch: Arc<Launch>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    loop {
        let began = Instant::now();
        pool.starting(lane);
        let why = match pool.settings.source {
            RunnerSource::Command { .. } => own(&pool, lane, &launch, &stop).await,
            RunnerSource::Address(address) => foreign(&pool, lane, address, &stop).await,
        };
        let Some(why) = why else { return };
        if began.elapsed() >= STABLE {
            backoff.reset();
        }
        let pause = backoff.next(None, entropy());
        pool.backing_off(lane, &why, pause);
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// The life of a process of ours. Why it is over; nothing when it was to be.
async fn own(
    pool: &Arc<Pool>,
    lane: usize,
    launch: &Arc<Launch>,
    stop: &CancellationToken,
) -> Option<String> {
    let started = tokio::select! {
        started = Process::start(launch, &pool.settings) => started,
        () = stop.cancelled() => return None,
    };
    let mut process = match started {
        Ok(process) => process,
        Err(problem) => return Some(problem.to_string()),
    };
    let live = pool.ready(lane, process.address, process.pid);
    // Whoever waits for its end hears of it, also when this is dropped.
    let _gone = live.gone.clone().drop_guard();
    tokio::select! {
        how = process.ended() => {
            pool.retire(lane);
            Some(format!("it ended {how}"))
        }
        () = live.condemned.cancelled() => {
            pool.retire(lane);
            let confirmed = process.kill().await;
            let rest = if confirmed { "" } else { ", and something of it may be left" };
            Some(format!("it was ended: a call did not heed its cancel{rest}"))
        }
        () = stop.cancelled() => {
            pool.retire(lane);
            process.end(pool.settings.grace).await;
            None
        }
    }
}

/// The same for one that somebody else keeps alive.
async fn foreign(
    pool: &Arc<Pool>,
    lane: usize,
    address: SocketAddr,
    stop: &CancellationToken,
) -> Option<String> {
    if let Err(Trouble::NotSent(why) | Trouble::Broken(why)) = connection::dial(address).await {
        return Some(format!("{address}: {why}"));
    }
    let live = pool.ready(lane, address, 0);
    tokio::select! {
        () = live.condemned.cancelled() => {
            pool.retire(lane);
            Some(format!("{address} did not heed a cancel, or lets nobody in"))
        }
        () = stop.cancelled() => None,
    }
}
