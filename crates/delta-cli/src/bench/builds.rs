//! Whole builds on a real agent: `true` as a process under a shim, with a workspace and a log, from
//! submitting it to hearing that it is over.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use delta_wire::Millis;
use delta_wire::states::RunOutcome;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tempfile::TempDir;

use super::child::ServerUnderTest;
use super::jobs::{run_of, submit};
use super::numbers::Samples;
use super::wire::Connection;
use crate::human_time;

/// Between two looks at one build that is under way: small beside what a build takes.
const ONE_PAUSE: Duration = Duration::from_millis(1);

/// Between two looks at many: each makes the server read all their rows, and how long they took is
/// told by its own clock.
const MANY_PAUSE: Duration = Duration::from_millis(250);

/// Jobs of one run: as many as a run may have.
const JOBS_PER_RUN: usize = 1000;

/// What was found.
pub struct Builds {
    /// From submitting one build to its end, with nothing else to do.
    pub alone: Samples,
    /// Builds that ended with all slots at work, and how long they took together.
    pub together: usize,
    pub took: Duration,
}

/// An agent as a child process. It ends when this is dropped.
pub(super) struct AgentUnderTest {
    child: Child,
    _folder: TempDir,
}

impl AgentUnderTest {
    pub fn start(server: &ServerUnderTest, more: &[&str]) -> Result<AgentUnderTest> {
        let folder = tempfile::Builder::new().prefix("delta-bench-").tempdir()?;
        let token = folder.path().join("token");
        let mut options = std::fs::File::options();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&token)?;
        file.write_all(server.runner_token.as_bytes())?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command
            .env("RUST_LOG", "error")
            .args(["agent", "--name", "bench", "--server"])
            .arg(format!("http://{}", server.addr))
            .args(["--shutdown-grace", "0s"])
            .args(more)
            .arg("--token-file")
            .arg(token)
            .arg("--work-dir")
            .arg(folder.path().join("work"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().context("starting the agent")?;
        Ok(AgentUnderTest {
            child,
            _folder: folder,
        })
    }
}

impl Drop for AgentUnderTest {
    fn drop(&mut self) {
        // Asked, so that no shim outlives it; it has nothing left to wait for.
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Builds `alone` one after another, then `together` as fast as the slots take them.
pub async fn measure(
    server: &ServerUnderTest,
    slots: u16,
    alone: usize,
    together: usize,
    tell: impl Fn(u64),
) -> Result<Builds> {
    let _agent = AgentUnderTest::start(server, &["--slots", &slots.to_string()])?;
    let mut user = server.user().await?;
    let one = run_of(1, None);
    // The first one waits for the agent to be there, and is not counted.
    run_to_its_end(&mut user, &one, ONE_PAUSE).await?;
    let mut waits = Vec::with_capacity(alone);
    for _ in 0..alone {
        let sent = Instant::now();
        run_to_its_end(&mut user, &one, ONE_PAUSE).await?;
        waits.push(sent.elapsed());
        tell(1);
    }
    let mut took = Duration::ZERO;
    let mut left = together;
    while left > 0 {
        let jobs = left.min(JOBS_PER_RUN);
        took += run_to_its_end(&mut user, &run_of(jobs, None), MANY_PAUSE).await?;
        tell(jobs as u64);
        left -= jobs;
    }
    Ok(Builds {
        alone: Samples::new(waits),
        together,
        took,
    })
}

/// A run, as far as the bench reads it.
#[derive(Deserialize)]
struct Seen {
    outcome: Option<RunOutcome>,
    created_at: Millis,
    ended_at: Option<Millis>,
}

/// Submits a run and waits for its end. How long it took, by the server's clock.
async fn run_to_its_end(user: &mut Connection, body: &str, pause: Duration) -> Result<Duration> {
    let run = submit(user, body).await?;
    to_its_end(user, &run, pause).await
}

/// Waits for the end of a run. How long it took, by the server's clock.
pub(super) async fn to_its_end(
    user: &mut Connection,
    run: &str,
    pause: Duration,
) -> Result<Duration> {
    let path = format!("/api/v1/runs/run_{run}");
    loop {
        let answer = user.get(&path).await?.expect(200, "looking at a run")?;
        let seen: Seen = serde_json::from_slice(&answer)?;
        match (seen.outcome, seen.ended_at) {
            (Some(RunOutcome::Success), Some(ended)) => {
                return Ok(human_time::between(seen.created_at, ended));
            }
            (Some(outcome), _) => bail!("a build ended as {}", outcome.as_str()),
            (None, _) => tokio::time::sleep(pause).await,
        }
    }
}
