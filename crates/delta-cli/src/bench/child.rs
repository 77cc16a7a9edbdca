//! The server under measurement: this very binary, as a child process on a temporary folder. It
//! ends when the bench does.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use delta_wire::api::{CreateToken, Role, TokenCreated};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::meter::{Counters, Usage};
use super::wire::Connection;
use crate::client::{self, connect};

/// How long the child may take to stop before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// A running server and the two tokens to use it with.
pub struct ServerUnderTest {
    child: Child,
    pub addr: SocketAddr,
    pub runner_token: String,
    pub user_token: String,
    folder: TempDir,
}

/// The line a server prints with `--json` when it listens.
#[derive(serde::Deserialize)]
struct Listening {
    listening: String,
}

impl ServerUnderTest {
    /// Starts it. `store` is `sqlite` or an address of PostgreSQL.
    pub async fn start(store: &str, extra: &[String]) -> Result<ServerUnderTest> {
        let folder = tempfile::Builder::new().prefix("delta-bench-").tempdir()?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        // Its audit trail would mix with the progress shown here.
        command.env("RUST_LOG", "warn");
        command
            .args(["server", "--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(folder.path())
            .args(extra)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.env_remove("DELTA_STORE");
        if store != "sqlite" {
            // In the environment: an address may hold a password, and arguments are public.
            command.env("DELTA_STORE", store);
        }
        let mut child = command.spawn().context("starting the server")?;
        let stdout = child.stdout.take().context("the server has no stdout")?;
        let line = tokio::task::spawn_blocking(move || first_line(stdout)).await?;
        let addr = match line.and_then(|line| parse_line(&line)) {
            Ok(addr) => addr,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        let mut server = ServerUnderTest {
            child,
            addr,
            runner_token: String::new(),
            user_token: String::new(),
            folder,
        };
        server.runner_token = create_token(server.folder.path(), Role::Runner).await?;
        server.user_token = create_token(server.folder.path(), Role::Admin).await?;
        Ok(server)
    }

    pub fn usage(&self) -> Usage {
        Usage::of(self.child.id())
    }

    /// A connection of a runner's slot.
    pub async fn runner(&self) -> Result<Connection> {
        Connection::open(self.addr, &self.runner_token).await
    }

    /// A connection of somebody who submits runs.
    pub async fn user(&self) -> Result<Connection> {
        Connection::open(self.addr, &self.user_token).await
    }

    pub async fn counters(&self) -> Result<Counters> {
        let mut connection = self.user().await?;
        let body = connection.get("/metrics").await?.expect(200, "metrics")?;
        Ok(Counters::parse(&String::from_utf8_lossy(&body)))
    }
}

impl Drop for ServerUnderTest {
    fn drop(&mut self) {
        // Asked first, so that it closes its store; killed when it does not listen.
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let started = std::time::Instant::now();
        while started.elapsed() < STOP_PATIENCE {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn first_line(stdout: impl std::io::Read) -> Result<String> {
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    Ok(line)
}

fn parse_line(line: &str) -> Result<SocketAddr> {
    let said: Listening = serde_json::from_str(line)
        .with_context(|| "the server did not start; what it said is above")?;
    let addr = said.listening.trim_start_matches("http://");
    addr.parse().context("reading the server's address")
}

async fn create_token(data: &Path, role: Role) -> Result<String> {
    let failed = |failure: crate::failure::Failure| anyhow!(failure.text());
    let client = connect::beside(data)
        .await
        .map_err(failed)?
        .context("the server has no admin socket")?;
    let request = CreateToken::plain(role, "bench".into());
    let text = client
        .post_text("/api/v1/tokens", &request)
        .await
        .map_err(failed)?;
    let created: TokenCreated = client::read(&text).map_err(failed)?;
    created.token.context("the server made no token")
}
