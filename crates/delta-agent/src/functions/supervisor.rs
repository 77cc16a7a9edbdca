//! Keeps one lane of a pool filled: starts its process, watches it, ends it when a call of it does
//! not heed its cancel, and starts it again, each time after a longer while.
//!
//! A process that must be ended is given no more calls, and those in it have their time, as long as
//! it answers at all: only then it is ended. Another takes its place meanwhile, so that nobody
//! waits for them. There is one that leaves beside one that is there, and no more: whoever breaks
//! one after the other does not fill the machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::endpoint::RunnerEndpoint;
use super::pool::{Live, Pool};
use super::runner_process::{Launch, Process};
use super::serial_connection::RunnerCallError;
use super::settings::RunnerSource;
use crate::backoff::{Backoff, entropy};

/// Waits between starts: a crash may be one of a kind, a wrong command is not.
const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_CAP: Duration = Duration::from_secs(30);
/// A process that took calls for this long was a good one: the next wait is short again.
const STABLE: Duration = Duration::from_secs(10);
/// A process in which a call does not heed its cancel, and that then answers nobody for so many
/// graces, is taken for one that hangs as a whole: a lock, or a loop that no other call gets past.
/// From outside, a single long call looks the same.
const QUIET_GRACES: u32 = 6;

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
    let mut leaving = JoinSet::new();
    loop {
        pool.starting(lane);
        let over = match pool.settings.source {
            RunnerSource::Command { .. } => own(&pool, lane, &launch, &mut leaving, &stop).await,
            RunnerSource::Address(address) => foreign(&pool, lane, address, &stop).await,
        };
        let Some(Over { why, lived }) = over else {
            break;
        };
        if lived >= STABLE {
            backoff.reset();
        }
        let pause = backoff.next(None, entropy());
        pool.backing_off(lane, &why, pause);
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => break,
        }
    }
    while leaving.join_next().await.is_some() {}
}

/// The life of a process of ours; nothing when it was to be over.
async fn own(
    pool: &Arc<Pool>,
    lane: usize,
    launch: &Arc<Launch>,
    leaving: &mut JoinSet<()>,
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
    let live = pool.ready(lane, process.door.clone());
    // Whoever waits for its end hears of it, also when this is dropped.
    let gone = live.gone.clone().drop_guard();
    let ready = Instant::now();
    let why = tokio::select! {
        how = process.ended() => {
            pool.retire(lane);
            let lived = ready.elapsed();
            return Some(Over { why: format!("it ended {how}"), lived });
        }
        () = live.condemned.cancelled() => "a call did not heed its cancel: it is ended",
        () = live.shunned.cancelled() => "it takes no more calls: it is ended",
        () = stop.cancelled() => {
            pool.retire(lane);
            process.end(pool.settings.grace).await;
            return None;
        }
    };
    let (why, lived) = (why.to_owned(), ready.elapsed());
    let last = Leaving {
        process,
        live,
        gone,
        grace: pool.settings.grace,
    };
    while leaving.try_join_next().is_some() {}
    if leaving.is_empty() && pool.settings.port(lane).is_none() {
        drop(leaving.spawn(last.end(stop.clone(), false)))
    } else {
        last.end(stop.clone(), true).await
    }
    Some(Over { why, lived })
}

/// A process that gets no more calls.
struct Leaving {
    process: Process,
    live: Arc<Live>,
    gone: DropGuard,
    grace: Duration,
}

impl Leaving {
    /// Ends it after its last call, or when none of them can be hoped for. `hurry` where nothing
    /// takes its place before it is gone: then one that must be ended leaves its calls another
    /// grace.
    async fn end(mut self, stop: CancellationToken, hurry: bool) {
        let patience = async {
            self.live.condemned.cancelled().await;
            if hurry {
                sleep(self.grace).await
            } else {
                self.live.quiet(self.grace * QUIET_GRACES).await
            }
        };
        tokio::select! {
            () = self.live.emptied() => {}
            () = patience => {}
            how = self.process.ended() => {
                tracing::info!(how, "a runner that was about to be ended has ended");
                return;
            }
            () = stop.cancelled() => {}
        }
        if stop.is_cancelled() || !self.live.condemned.is_cancelled() {
            self.process.end(self.grace).await;
        } else if !self.process.kill().await {
            tracing::warn!("something of a runner that was ended may be left");
            self.gone.disarm();
        }
    }
}

/// Waits for the end of a runner that somebody else keeps alive.
async fn foreign(
    pool: &Arc<Pool>,
    lane: usize,
    address: SocketAddr,
    stop: &CancellationToken,
) -> Option<Over> {
    let door = RunnerEndpoint {
        address,
        owner: None,
    };
    if let Err(RunnerCallError::NotSent(why) | RunnerCallError::Broken(why)) = door.dial().await {
        return Some(Over::unborn(format!("{address}: {why}")));
    }
    let live = pool.ready(lane, door);
    let ready = Instant::now();
    let why = tokio::select! {
        () = live.condemned.cancelled() => "did not heed a cancel",
        () = live.shunned.cancelled() => "lets nobody in, or is about to end",
        () = stop.cancelled() => return None,
    };
    let (why, lived) = (format!("{address} {why}"), ready.elapsed());
    Some(Over { why, lived })
}
