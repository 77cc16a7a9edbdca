//! The messages of the measurement: runs of empty jobs, and a slot that takes them through lease,
//! acknowledgement and completion.

use std::time::Instant;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;

use super::wire::{Answer, Connection};

/// Seconds a slot's request may be held open: it looks at the clock of the bench in between.
const LEASE_WAIT_SECONDS: u32 = 2;

/// How every job of the bench ends.
const SUCCESS: &str = r#""status":"SUCCEEDED","exit_code":0"#;

/// A grant, as far as the bench reads it.
#[derive(Deserialize)]
struct Granted {
    job_id: String,
    lease_id: String,
}

#[derive(Deserialize)]
struct Created {
    run_id: String,
}

/// The body of a run with this many jobs that do nothing.
pub fn run_of(jobs: usize, requires: Option<&str>) -> String {
    let job = |number: usize| {
        json!({
            "name": format!("j{number}"),
            "max_attempts": 1,
            "requires": requires.into_iter().collect::<Vec<_>>(),
            "job_spec": { "name": format!("j{number}"), "steps": ["true"] },
        })
    };
    json!({ "jobs": (1..=jobs).map(job).collect::<Vec<_>>() }).to_string()
}

/// Submits a run, again while the server says that it is full; returns the run's hex digits.
pub async fn submit(connection: &mut Connection, body: &str) -> Result<String> {
    loop {
        let answer = connection.post("/api/v1/runs", body).await?;
        if answer.status == 429 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            continue;
        }
        let body = answer.expect(201, "creating a run")?;
        let created: Created = serde_json::from_slice(&body)?;
        return Ok(created.run_id.trim_start_matches("run_").to_owned());
    }
}

/// One slot of a runner.
pub struct Slot {
    connection: Connection,
    runner: String,
    lease: String,
}

/// A job that was granted, and when.
pub struct Grant {
    /// The hex digits of its run.
    pub run: String,
    pub at: Instant,
    job: String,
    lease: String,
}

impl Slot {
    pub fn new(connection: Connection, number: usize) -> Slot {
        let runner = format!("bench-{number}");
        let lease = json!({
            "type": "Lease",
            "runner_id": runner,
            "capabilities": ["linux"],
            "wait_seconds": LEASE_WAIT_SECONDS,
        });
        Slot {
            connection,
            runner,
            lease: lease.to_string(),
        }
    }

    /// Asks for work; nothing when there was none for a while.
    pub async fn lease(&mut self) -> Result<Option<Grant>> {
        let path = "/api/v1/runner/lease";
        let answer = self.connection.post(path, &self.lease).await?;
        let at = Instant::now();
        if answer.status == 204 {
            return Ok(None);
        }
        let granted: Granted = read(answer, "leasing")?;
        let run = granted.job_id.trim_start_matches("job_");
        let (run, _) = run.split_once('_').context("a job's id names its run")?;
        Ok(Some(Grant {
            run: run.to_owned(),
            at,
            job: granted.job_id,
            lease: granted.lease_id,
        }))
    }

    pub async fn acknowledge(&mut self, grant: &Grant) -> Result<()> {
        let body = format!(
            r#"{{"type":"AckLease","job_id":"{}","lease_id":"{}","runner_id":"{}"}}"#,
            grant.job, grant.lease, self.runner
        );
        let path = "/api/v1/runner/ack-lease";
        let answer = self.connection.post(path, &body).await?;
        answer.expect(200, "acknowledging").map(drop)
    }

    pub async fn complete(&mut self, grant: &Grant) -> Result<()> {
        let body = format!(
            r#"{{"type":"Complete","lease_id":"{}","runner_id":"{}",{SUCCESS}}}"#,
            grant.lease, self.runner
        );
        let path = "/api/v1/runner/complete";
        let answer = self.connection.post(path, &body).await?;
        answer.expect(200, "completing").map(drop)
    }
}

fn read<T: serde::de::DeserializeOwned>(answer: Answer, doing: &str) -> Result<T> {
    let body = answer.expect(200, doing)?;
    serde_json::from_slice(&body).context("reading an answer")
}
