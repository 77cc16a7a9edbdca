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
/// A process that took calls for this long was a good one: the next wait is short again.
const STABLE: Duration = Duration::from_secs(10);

/// Why a process is not there, and how long it took calls before.
struct Over {
    why: String,
    lived: Duration,
}

impl Over {
    fn unborn(why: String) -> Over {
        let lived = Duration::ZERO;
        Over { why, lived }
    }
}

/// Works until `stop`.
pub(super) async fn keep(
    pool: Arc<Pool>,
    lane: usize,
    launch: Arc<Launch>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    loop {
        pool.starting(lane);
        let over = match pool.settings.source {
            RunnerSource::Command { .. } => own(&pool, lane, &launch, &stop).await,
            RunnerSource::Address(address) => foreign(&pool, lane, address, &stop).await,
        };
        let Some(Over { why, lived }) = over else {
            return;
        };
        if lived >= STABLE {
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

/// The life of a process of ours; nothing when it was to be over.
async fn own(
    pool: &Arc<Pool>,
    lane: usize,
    launch: &Arc<Launch>,
    stop: &CancellationToken,
) -> Option<Over> {
    let started = tokio::select! {
        started = Process::start(launch, &pool.settings, lane) => started,
        () = stop.cancelled() => return None,
    };
    let mut process = match started {
        Ok(process) => process,
        Err(problem) => return Some(Over::unborn(problem.to_string())),
    };
    let live = pool.ready(lane, process.address, process.pid);
    // Whoever waits for its end hears of it, also when this is dropped.
    let _gone = live.gone.clone().drop_guard();
    let ready = Instant::now();
    let why = tokio::select! {
        how = process.ended() => {
            pool.retire(lane);
            format!("it ended {how}")
        }
        () = live.condemned.cancelled() => {
            pool.retire(lane);
            let confirmed = process.kill().await;
            let rest = if confirmed { "" } else { ", and something of it may be left" };
            format!("it was ended: a call did not heed its cancel{rest}")
        }
        () = live.emptied.cancelled() => {
            pool.retire(lane);
            process.end(pool.settings.grace).await;
            "it was ended: it took no more calls".to_owned()
        }
        () = stop.cancelled() => {
            pool.retire(lane);
            process.end(pool.settings.grace).await;
            return None;
        }
    };
    let lived = ready.elapsed();
    Some(Over { why, lived })
}

/// The same for one that somebody else keeps alive.
async fn foreign(
    pool: &Arc<Pool>,
    lane: usize,
    address: SocketAddr,
    stop: &CancellationToken,
) -> Option<Over> {
    if let Err(Trouble::NotSent(why) | Trouble::Broken(why)) = connection::dial(address).await {
        return Some(Over::unborn(format!("{address}: {why}")));
    }
    let live = pool.ready(lane, address, 0);
    let ready = Instant::now();
    tokio::select! {
        () = live.condemned.cancelled() => {
            pool.retire(lane);
            let why = format!("{address} did not heed a cancel, or lets nobody in");
            let lived = ready.elapsed();
            Some(Over { why, lived })
        }
        () = stop.cancelled() => None,
    }
}
