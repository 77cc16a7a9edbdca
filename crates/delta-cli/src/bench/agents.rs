//! Many agents on one server: what each costs, how long renewals take, and what happens when all
//! of them come back at once (F49).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use delta_wire::agent::proto::HeldLease;
use delta_wire::agent::proto::server_message::Message as Say;
use indicatif::ProgressBar;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::child::ServerUnderTest;
use super::jobs::{run_of, submit};
use super::numbers::Samples;
use super::session::{As, Session};

/// Registrations on their way at the start: agents of a large installation do not all begin in one
/// moment. The storm has no such limit.
const AT_ONCE: usize = 64;
/// Jobs of one run.
const JOBS: usize = 500;

/// What was found.
#[derive(Debug)]
pub struct Found {
    pub agents: usize,
    /// Of the server, per idle agent.
    pub bytes_per_agent: f64,
    pub renewals: Samples,
    /// From the first connection of the storm to the last registration.
    pub storm: Duration,
    pub registrations: Samples,
    /// Leases that were not live any more after the storm.
    pub lost: usize,
}

/// An agent that holds one lease.
struct Agent {
    session: Session,
    held: Vec<HeldLease>,
    seq: u64,
}

pub async fn measure(
    server: &Arc<ServerUnderTest>,
    agents: usize,
    rounds: u64,
    bar: &ProgressBar,
) -> Result<Found> {
    let before = server.usage().resident_bytes;
    let sessions = register(server, agents, bar).await?;
    let idle = server.usage().resident_bytes;
    let mut held = hold(server, sessions).await?;
    let mut renewals = Vec::new();
    for _ in 0..rounds {
        let (again, took) = renew(held).await?;
        held = again;
        renewals.extend(took);
    }
    let (storm, registrations, lost) = storm(server, held).await?;
    Ok(Found {
        agents,
        bytes_per_agent: idle.saturating_sub(before) as f64 / agents.max(1) as f64,
        renewals: Samples::new(renewals),
        storm,
        registrations: Samples::new(registrations),
        lost,
    })
}

async fn register(
    server: &Arc<ServerUnderTest>,
    agents: usize,
    bar: &ProgressBar,
) -> Result<Vec<Session>> {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for n in 0..agents {
        let (server, turns) = (Arc::clone(server), Arc::clone(&turns));
        tasks.spawn(async move {
            let _turn = turns.acquire_owned().await?;
            let who = As {
                name: format!("bench-{n}"),
                slots: 1,
                ..As::default()
            };
            Session::open(&server, who).await
        });
    }
    let mut sessions = Vec::with_capacity(agents);
    while let Some(session) = tasks.join_next().await {
        sessions.push(session??);
        bar.inc(1);
    }
    Ok(sessions)
}

/// Gives every agent a job, which it accepts.
async fn hold(server: &ServerUnderTest, sessions: Vec<Session>) -> Result<Vec<Agent>> {
    let mut user = server.user().await?;
    let mut left = sessions.len();
    while left > 0 {
        let jobs = left.min(JOBS);
        submit(&mut user, &run_of(jobs, None)).await?;
        left -= jobs;
    }
    let mut tasks = JoinSet::new();
    for mut session in sessions {
        tasks.spawn(async move {
            let Say::AssignWork(work) = session.next().await? else {
                bail!("something else than work came first");
            };
            session.say(vec![session.accept(&work)]).await?;
            while !matches!(session.next().await?, Say::WorkAck(ack) if ack.accepted) {}
            let held = vec![HeldLease {
                run_id: work.run_id,
                lease: work.lease,
            }];
            Ok(Agent {
                session,
                held,
                seq: 0,
            })
        });
    }
    gather(tasks).await
}

async fn gather<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut done = Vec::with_capacity(tasks.len());
    while let Some(one) = tasks.join_next().await {
        done.push(one??);
    }
    Ok(done)
}

/// Every agent renews its lease once, spread over a second as real ones are.
async fn renew(agents: Vec<Agent>) -> Result<(Vec<Agent>, Vec<Duration>)> {
    let pause = Duration::from_secs(1) / u32::try_from(agents.len().max(1))?;
    let mut tasks = JoinSet::new();
    for (n, mut agent) in agents.into_iter().enumerate() {
        let wait = pause * u32::try_from(n)?;
        tasks.spawn(async move {
            tokio::time::sleep(wait).await;
            agent.seq += 1;
            let sent = Instant::now();
            let beat = agent.session.heartbeat(&agent.held, agent.seq);
            agent.session.say(vec![beat]).await?;
            loop {
                if let Say::HeartbeatAck(ack) = agent.session.next().await? {
                    let renewed = ack.leases.first().is_some_and(|lease| lease.extended);
                    anyhow::ensure!(renewed, "a lease was not renewed");
                    return Ok((agent, sent.elapsed()));
                }
            }
        });
    }
    Ok(gather(tasks).await?.into_iter().unzip())
}

/// All connections are cut, and all agents come back in the same moment.
async fn storm(
    server: &Arc<ServerUnderTest>,
    agents: Vec<Agent>,
) -> Result<(Duration, Vec<Duration>, usize)> {
    let mut back = Vec::with_capacity(agents.len());
    for (n, agent) in agents.into_iter().enumerate() {
        back.push(As {
            name: format!("bench-{n}-again"),
            slots: 1,
            agent_id: agent.session.registered.agent_id.clone(),
            resume_secret: agent.session.registered.resume_secret.clone(),
            leases: agent.held.clone(),
        });
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for who in back {
        let server = Arc::clone(server);
        tasks.spawn(async move {
            let sent = Instant::now();
            let session = Session::open(&server, who).await.context("coming back")?;
            let live = session.registered.resume.iter().all(|point| point.live);
            Ok((session, sent.elapsed(), live))
        });
    }
    let done = gather(tasks).await?;
    let storm = began.elapsed();
    let lost = done.iter().filter(|(_, _, live)| !live).count();
    Ok((storm, done.iter().map(|(_, took, _)| *took).collect(), lost))
}
