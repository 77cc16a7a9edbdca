//! Many slots at once: enqueue → lease → acknowledge → complete, as fast as the server goes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::child::ServerUnderTest;
use super::jobs::{Slot, run_of, submit};
use super::numbers::Samples;

/// Jobs that wait beyond one per slot: enough that no slot starves, little enough that the time
/// from enqueue to grant is not the length of a queue we made ourselves.
const SPARE_JOBS: usize = 100;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub slots: usize,
    pub jobs: u64,
    pub jobs_per_run: usize,
    /// Connections that submit runs.
    pub submitters: usize,
    /// The measurement ends here, however many jobs are done.
    pub time_limit: Duration,
}

/// What was reached.
#[derive(Debug)]
pub struct Reached {
    pub completed: u64,
    pub elapsed: Duration,
    /// From the sending of the run to the arrival of the grant.
    pub enqueue_to_grant: Samples,
}

impl Reached {
    pub fn per_second(&self) -> f64 {
        super::numbers::ratio(self.completed as f64, self.elapsed.as_secs_f64())
    }
}

/// What all tasks of one measurement share.
struct Shared {
    load: Load,
    /// Jobs that submitters may still put into the queue; a grant makes room for one more.
    room: Semaphore,
    submitted: AtomicU64,
    completed: AtomicU64,
    over: AtomicBool,
    started: Instant,
    bar: ProgressBar,
}

/// What one task saw.
#[derive(Default)]
struct Seen {
    submitted: Vec<(String, Instant)>,
    granted: Vec<(String, Instant)>,
    last: Option<Instant>,
}

/// Drives the load and returns when it is done.
pub async fn drive(server: &ServerUnderTest, load: Load, bar: ProgressBar) -> Result<Reached> {
    let ahead = (load.slots + SPARE_JOBS).max(load.jobs_per_run * 2);
    let mut slots = Vec::with_capacity(load.slots);
    for number in 1..=load.slots {
        slots.push(Slot::new(server.runner().await?, number));
    }
    let mut submitters = Vec::with_capacity(load.submitters);
    for _ in 0..load.submitters {
        submitters.push(server.user().await?);
    }
    let shared = Arc::new(Shared {
        load,
        room: Semaphore::new(ahead),
        submitted: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        over: AtomicBool::new(false),
        started: Instant::now(),
        bar,
    });
    let mut tasks: JoinSet<Result<Seen>> = JoinSet::new();
    for connection in submitters {
        tasks.spawn(submit_all(Arc::clone(&shared), connection));
    }
    for slot in slots {
        tasks.spawn(take_all(Arc::clone(&shared), slot));
    }
    let mut seen = Seen::default();
    while let Some(joined) = tasks.join_next().await {
        let one = joined??;
        seen.submitted.extend(one.submitted);
        seen.granted.extend(one.granted);
        seen.last = seen.last.max(one.last);
    }
    shared.bar.finish_and_clear();
    let completed = shared.completed.load(Ordering::Relaxed);
    let Some(last) = seen.last else {
        bail!("no job was completed within {:?}", load.time_limit);
    };
    Ok(Reached {
        completed,
        elapsed: last - shared.started,
        enqueue_to_grant: join(seen),
    })
}

async fn submit_all(shared: Arc<Shared>, mut connection: super::wire::Connection) -> Result<Seen> {
    let load = shared.load;
    let whole = run_of(load.jobs_per_run, None);
    let mut seen = Seen::default();
    while !shared.is_over() {
        let before = shared
            .submitted
            .fetch_add(load.jobs_per_run as u64, Ordering::Relaxed);
        if before >= load.jobs {
            break;
        }
        let left = usize::try_from(load.jobs - before).unwrap_or(usize::MAX);
        let jobs = load.jobs_per_run.min(left);
        let room = u32::try_from(jobs).unwrap_or(u32::MAX);
        let wait = shared.room.acquire_many(room);
        let Ok(permit) = tokio::time::timeout(shared.left(), wait).await else {
            break;
        };
        permit?.forget();
        let body = match jobs == load.jobs_per_run {
            true => whole.clone(),
            false => run_of(jobs, None),
        };
        let sent = Instant::now();
        let run = submit(&mut connection, &body).await?;
        seen.submitted.push((run, sent));
    }
    Ok(seen)
}

async fn take_all(shared: Arc<Shared>, mut slot: Slot) -> Result<Seen> {
    let mut seen = Seen::default();
    while !shared.is_over() {
        let Some(grant) = slot.lease().await? else {
            continue;
        };
        shared.room.add_permits(1);
        slot.acknowledge(&grant).await?;
        slot.complete(&grant).await?;
        seen.last = Some(Instant::now());
        seen.granted.push((grant.run, grant.at));
        let completed = shared.completed.fetch_add(1, Ordering::Relaxed) + 1;
        if completed.is_multiple_of(256) {
            shared.bar.set_position(completed);
        }
        if completed >= shared.load.jobs {
            shared.over.store(true, Ordering::Relaxed);
        }
    }
    Ok(seen)
}

impl Shared {
    fn left(&self) -> Duration {
        self.load.time_limit.saturating_sub(self.started.elapsed())
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.left().is_zero()
    }
}

/// A grant may arrive before the answer that names its run, so the two are joined afterwards.
fn join(seen: Seen) -> Samples {
    let sent: HashMap<String, Instant> = seen.submitted.into_iter().collect();
    let waits = seen.granted.iter().filter_map(|(run, at)| {
        sent.get(run)
            .map(|sent| at.saturating_duration_since(*sent))
    });
    Samples::new(waits.collect())
}
