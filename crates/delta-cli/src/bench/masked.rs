//! A job that prints a file on a real agent, in turns without and with secrets to mask: from
//! submitting it until the whole log was read back, through shim, agent and server.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;

use super::builds::{self, AgentUnderTest};
use super::child::ServerUnderTest;
use super::jobs::submit;
use super::wire::Connection;

/// Between two looks at a job that prints: far less than it takes.
const PAUSE: Duration = Duration::from_millis(2);

/// A token, a password and a key of one line: what a job that deploys has.
const SECRETS: [(&str, &str); 3] = [
    ("BENCH_TOKEN", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
    ("BENCH_PASSWORD", "correct horse battery staple"),
    ("BENCH_KEY", "AKIAIOSFODNN7EXAMPLE/K7MDENGbPxRfiCY"),
];

/// How long it took until the last byte was read back.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub plain: Duration,
    pub masked: Duration,
}

/// A server, an agent and a file to print.
pub struct Place {
    user: Connection,
    _agent: AgentUnderTest,
    folder: tempfile::TempDir,
    bytes: u64,
}

#[derive(Deserialize)]
struct Seen {
    jobs: Vec<SeenJob>,
}

#[derive(Deserialize)]
struct SeenJob {
    job_id: String,
}

impl Place {
    pub async fn new(server: &ServerUnderTest, bytes: u64) -> Result<Place> {
        let folder = tempfile::Builder::new().prefix("delta-bench-").tempdir()?;
        let bytes = write_log(&folder.path().join("log"), bytes)?;
        let mut user = server.user().await?;
        for (name, value) in SECRETS {
            let body = json!({ "name": name, "value": value }).to_string();
            let answer = user.post("/api/v1/secrets", &body).await?;
            if !matches!(answer.status, 200..300) {
                bail!("a secret was answered with {}", answer.status);
            }
        }
        let mut place = Place {
            _agent: AgentUnderTest::start(server, &["--slots", "1"])?,
            user,
            folder,
            bytes,
        };
        // The first one waits for the agent to be there, and is not counted.
        place.print(false).await?;
        Ok(place)
    }

    /// Bytes that are printed each time.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Both ways; which of them is first changes from round to round.
    pub async fn round(&mut self, round: u32) -> Result<Found> {
        let masked_first = round.is_multiple_of(2);
        let one = self.print(masked_first).await?;
        let two = self.print(!masked_first).await?;
        Ok(if masked_first {
            Found {
                plain: two,
                masked: one,
            }
        } else {
            Found {
                plain: one,
                masked: two,
            }
        })
    }

    async fn print(&mut self, masked: bool) -> Result<Duration> {
        let names: Vec<&str> = SECRETS.iter().map(|(name, _)| *name).collect();
        let log = self.folder.path().join("log");
        let body = json!({ "jobs": [{
            "name": "print",
            "max_attempts": 1,
            "job_spec": {
                "steps": [format!("exec cat '{}'", log.display())],
                "secrets": if masked { names } else { Vec::new() },
                "checkout": false,
            },
        }]});
        let began = Instant::now();
        let run = submit(&mut self.user, &body.to_string()).await?;
        builds::to_its_end(&mut self.user, &run, PAUSE).await?;
        let path = format!("/api/v1/runs/run_{run}");
        let answer = self
            .user
            .get(&path)
            .await?
            .expect(200, "looking at a run")?;
        let seen: Seen = serde_json::from_slice(&answer)?;
        let job = seen.jobs.first().context("the run has no job")?;
        let path = format!("/api/v1/jobs/{}/log", job.job_id);
        let read = self.user.get(&path).await?.expect(200, "reading the log")?;
        if (read.len() as u64) < self.bytes {
            bail!("{} bytes were read back of {}", read.len(), self.bytes);
        }
        Ok(began.elapsed())
    }
}

/// Lines as builds and servers print them; how many bytes they are.
fn write_log(path: &Path, bytes: u64) -> Result<u64> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let (mut written, mut n) = (0, 0u64);
    while written < bytes {
        n += 1;
        let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lines = format!(
            "   Compiling crate-{} v{}.{} (/builds/team/project/crates/crate-{})\n\
             test module::part::number_{n} ... ok\n\
             {:02}:{:02} INFO server::http GET /api/v1/runs/{id:x} 200 in {} ms\n",
            n % 97,
            n % 17,
            n % 29,
            n % 97,
            n % 60,
            n * 7 % 60,
            n % 113
        );
        file.write_all(lines.as_bytes())?;
        written += lines.len() as u64;
    }
    file.flush()?;
    Ok(written)
}
