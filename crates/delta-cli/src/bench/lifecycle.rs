//! Many slots at once: enqueue → lease → acknowledge → complete, as fast as the server goes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use delta_wire::agent::proto::server_message::Message as Say;
use indicatif::ProgressBar;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::child::ServerUnderTest;
use super::jobs::{Slot, run_of, submit};
use super::numbers::Samples;
use super::session::{As, Session};

/// Jobs that wait beyond one per slot: enough that no slot starves, little enough that the time
/// from enqueue to grant is not the length of a queue we made ourselves.
const SPARE_JOBS: usize = 100;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub slots: usize,
    /// Sessions that share the slots; without them each slot speaks HTTP.
    pub agents: Option<usize>,
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
    let mut slots = Vec::new();
    let over_http = if load.agents.is_none() { load.slots } else { 0 };
    for number in 1..=over_http {
        slots.push(Slot::new(server.runner().await?, number));
    }
    let mut sessions = Vec::new();
    for number in 0..load.agents.unwrap_or(0) {
        sessions.push(open(server, &load, number).await?);
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
    for session in sessions {
        tasks.spawn(take_all_over_a_session(Arc::clone(&shared), session));
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
        let body = if jobs == load.jobs_per_run {
            whole.clone()
        } else {
            run_of(jobs, None)
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
        shared.one_more();
    }
    Ok(seen)
}

async fn open(server: &ServerUnderTest, load: &Load, number: usize) -> Result<Session> {
    let agents = load.agents.unwrap_or(1).max(1);
    let slots = load.slots / agents + usize::from(number < load.slots % agents);
    let who = As {
        name: format!("bench-{number}"),
        slots: u32::try_from(slots)?,
        ..As::default()
    };
    Session::open(server, who).await
}

/// How long a session waits for something to be said before it looks at the clock.
const LOOK_AROUND: Duration = Duration::from_millis(500);

/// Each piece of work is accepted, and completed when the acceptance is confirmed.
async fn take_all_over_a_session(shared: Arc<Shared>, mut session: Session) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut leases: HashMap<String, String> = HashMap::new();
    while !shared.is_over() {
        let heard = tokio::time::timeout(LOOK_AROUND, session.several()).await;
        let Ok(heard) = heard else { continue };
        let (now, mut said) = (Instant::now(), Vec::new());
        for say in heard? {
            match say {
                Say::AssignWork(work) => {
                    shared.room.add_permits(1);
                    said.push(session.accept(&work));
                    let run = work.job_run_id.trim_start_matches("run_").to_owned();
                    seen.granted.push((run, now));
                    leases.insert(work.run_id, work.lease);
                }
                Say::WorkAck(ack) if ack.accepted => {
                    let lease = leases.get(&ack.run_id).context("work nobody assigned")?;
                    said.push(session.complete(&ack.run_id, lease));
                }
                Say::CompleteAck(ack) if ack.accepted => {
                    leases.remove(&ack.run_id);
                    seen.last = Some(now);
                    shared.one_more();
                }
                other => bail!("the server said {other:?}"),
            }
        }
        if !said.is_empty() {
            session.say(said).await?;
        }
    }
    Ok(seen)
}

impl Shared {
    fn left(&self) -> Duration {
        self.load.time_limit.saturating_sub(self.started.elapsed())
    }

    fn one_more(&self) {
        let completed = self.completed.fetch_add(1, Ordering::Relaxed) + 1;
        if completed.is_multiple_of(256) {
            self.bar.set_position(completed);
        }
        if completed >= self.load.jobs {
            self.over.store(true, Ordering::Relaxed);
        }
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
