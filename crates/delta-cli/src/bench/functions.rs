//! Calls of a function in a real runner, by a real agent: from enqueue to the result known, one
//! at a time, and as many as its pool takes together. Everything durable.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use delta_wire::api::{FunctionList, FunctionView, QueueView};
use delta_wire::states::JobState;
use delta_wire::{JsonText, Millis};
use serde_json::{Value, json};

use super::builds::AgentUnderTest;
use super::child::ServerUnderTest;
use super::numbers::Samples;
use super::wire::Connection;
use crate::human_time;

/// Calls of one request: as many as one may have.
const AT_ONCE: usize = 1000;
/// Between two looks at the queue.
const PAUSE: Duration = Duration::from_millis(50);
/// A larger number that a handler returns is a moment of this century.
const A_MOMENT: f64 = 1e9;
/// How long the first call may take: a runner starts.
const FIRST: Duration = Duration::from_secs(60);

/// The runner that is measured.
pub struct Pool {
    pub command: Vec<String>,
    pub size: u16,
    pub in_flight: u16,
    pub pipeline: bool,
}

impl Pool {
    /// A file of pools, as an agent reads it: JSON is YAML, too.
    fn file(&self) -> Result<String> {
        let here = std::env::current_dir().context("finding this folder")?;
        let pool = json!({
            "command": self.command, "size": self.size, "in_flight": self.in_flight,
            "pipeline": self.pipeline, "working_folder": here,
        });
        Ok(json!({ "pools": { "bench": pool } }).to_string())
    }
}

/// What is called.
pub struct Call {
    pub function: String,
    pub params: Value,
}

pub struct Calls {
    /// From enqueue to the result known, with nothing else to do.
    pub alone: Samples,
    /// From enqueue to the handler, where it returns the moment it was called at.
    pub to_handler: Samples,
    /// How long all the others took, from the first enqueue to the last end.
    pub took: Duration,
    /// How long it took to enqueue them.
    pub enqueued: Duration,
}

pub async fn measure(
    server: &ServerUnderTest,
    pool: &Pool,
    call: &Call,
    (alone, together): (usize, usize),
    tell: impl Fn(u64),
) -> Result<Calls> {
    let folder = tempfile::Builder::new().prefix("delta-bench-").tempdir()?;
    let file = folder.path().join("runners.yaml");
    std::fs::write(&file, pool.file()?)?;
    let file = file.to_str().context("a path that can be read")?;
    let _agent = AgentUnderTest::start(server, &["--runners", file])?;
    let mut user = server.user().await?;
    let one = json!({"function": format!("bench#{}", call.function), "params": call.params,
        "max_attempts": 1});
    // The first one waits for agent and runner to be there, and is not counted.
    let first = tokio::time::timeout(FIRST, to_its_end(&mut user, &one));
    first.await.context("the first call did not end")??;
    let (mut waits, mut to_handler) = (Vec::with_capacity(alone), Vec::new());
    for _ in 0..alone {
        let (sent, at) = (Instant::now(), SystemTime::now());
        let result = to_its_end(&mut user, &one).await?;
        waits.push(sent.elapsed());
        to_handler.extend(called_at(&result).map(|called| since(at, called)));
        tell(1);
    }
    let began = Instant::now();
    let mut left = together;
    while left > 0 {
        let some = left.min(AT_ONCE);
        let body = json!({ "functions": vec![&one; some] }).to_string();
        let answer = user.post("/api/v1/functions", &body).await?;
        answer.expect(201, "enqueueing")?;
        left -= some;
    }
    let enqueued = began.elapsed();
    until_empty(&mut user, together, &tell).await?;
    Ok(Calls {
        alone: Samples::new(waits),
        to_handler: Samples::new(to_handler),
        took: taken(&mut user, together).await?,
        enqueued,
    })
}

/// The moment a handler was called, where that is what it returns: seconds since 1970.
fn called_at(result: &Value) -> Option<SystemTime> {
    let seconds = result.as_f64().filter(|seconds| *seconds > A_MOMENT)?;
    let since = Duration::try_from_secs_f64(seconds).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(since)
}

fn since(at: SystemTime, called: SystemTime) -> Duration {
    called.duration_since(at).unwrap_or_default()
}

/// The result of a call.
async fn to_its_end(user: &mut Connection, body: &Value) -> Result<Value> {
    let answer = user.post("/api/v1/functions", &body.to_string()).await?;
    let made: FunctionView = serde_json::from_slice(&answer.expect(201, "enqueueing")?)?;
    let path = format!("/api/v1/functions/{}?wait=20", made.id);
    loop {
        let answer = user.get(&path).await?.expect(200, "waiting for a call")?;
        let seen: FunctionView = serde_json::from_slice(&answer)?;
        match seen.state {
            JobState::Succeeded => {
                let result = seen.result.as_ref().map_or("null", JsonText::as_str);
                return Ok(serde_json::from_str(result)?);
            }
            _ if seen.has_ended() => bail!("a call failed: {:?} {:?}", seen.cause, seen.error),
            _ => {}
        }
    }
}

async fn until_empty(user: &mut Connection, all: usize, tell: &impl Fn(u64)) -> Result<()> {
    let mut done = 0;
    loop {
        let answer = user.get("/api/v1/queues/default").await?;
        let queue: QueueView =
            serde_json::from_slice(&answer.expect(200, "looking at the queue")?)?;
        let now = all.saturating_sub(queue.depth as usize);
        tell(now.saturating_sub(done) as u64);
        done = now.max(done);
        if queue.depth == 0 {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// From the first enqueue to the last end, by the server's clock, once all have ended.
async fn taken(user: &mut Connection, count: usize) -> Result<Duration> {
    let (mut first, mut last): (Option<Millis>, Option<Millis>) = (None, None);
    let (mut seen, mut cursor) = (0, String::new());
    while seen < count {
        let path = format!("/api/v1/functions?limit=200{cursor}");
        let page = user.get(&path).await?.expect(200, "listing calls")?;
        let page: FunctionList = serde_json::from_slice(&page)?;
        if page.functions.iter().any(|call| !call.has_ended()) {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        for call in page.functions.iter().take(count - seen) {
            ensure!(
                call.state == JobState::Succeeded,
                "a call failed: {:?}",
                call.cause
            );
            first = Some(first.map_or(call.created_at, |at| at.min(call.created_at)));
            last = last.max(call.ended_at);
        }
        seen += page.functions.len();
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let (first, last) = first.zip(last).context("no call was made")?;
    Ok(human_time::between(first, last))
}
