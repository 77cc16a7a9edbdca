//! An agent at work against a fake server.

use std::sync::Arc;
use std::time::Duration;

use delta_agent::log::progress::Observer;
use delta_agent::tls::TlsFiles;
use delta_agent::{Address, AgentError, AgentSettings, ServerSettings, TokenSource, run};
use delta_wire::Secret;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::bench::{PATIENCE, Seen, shim_program, until};
use crate::fake_server::{FakeServer, TOKEN};

pub struct Agent {
    pub seen: Arc<Seen>,
    pub folder: tempfile::TempDir,
    shutdown: watch::Sender<Option<Instant>>,
    running: AbortOnDropHandle<Result<(), AgentError>>,
}

impl Agent {
    pub fn start(server: &FakeServer) -> Agent {
        Agent::start_with(server, |_| {})
    }

    pub fn start_with(server: &FakeServer, change: impl FnOnce(&mut AgentSettings)) -> Agent {
        let seen = Arc::new(Seen::default());
        let watching = Arc::clone(&seen) as _;
        Agent::start_watched(server_settings(&server.address), watching, seen, change)
    }

    /// Reaches its server in another way than most.
    pub fn start_at(server: ServerSettings) -> Agent {
        let seen = Arc::new(Seen::default());
        let watching = Arc::clone(&seen) as _;
        Agent::start_watched(server, watching, seen, |_| {})
    }

    /// Nothing is kept of what the job prints.
    pub fn start_unwatched(server: &FakeServer) -> Agent {
        let server = server_settings(&server.address);
        let silent = Arc::new(delta_agent::log::progress::Silent);
        Agent::start_watched(server, silent, Arc::default(), |_| {})
    }

    /// It is gone from one moment to the next, and another takes its place.
    pub async fn replaced(self, server: &FakeServer) -> Agent {
        self.running.abort();
        let ended = self.running.await;
        assert!(ended.is_err_and(|it| it.is_cancelled()));
        Agent::start_again(self.folder, server)
    }

    /// Another one in a folder that was used before.
    pub fn start_again(folder: tempfile::TempDir, server: &FakeServer) -> Agent {
        let seen = Arc::new(Seen::default());
        let watching = Arc::clone(&seen) as _;
        let server = server_settings(&server.address);
        Agent::start_in(folder, server, watching, seen, |_| {})
    }

    fn start_watched(
        server: ServerSettings,
        observer: Arc<dyn Observer>,
        seen: Arc<Seen>,
        change: impl FnOnce(&mut AgentSettings),
    ) -> Agent {
        let folder = tempfile::tempdir().expect("a folder");
        Agent::start_in(folder, server, observer, seen, change)
    }

    fn start_in(
        folder: tempfile::TempDir,
        server: ServerSettings,
        observer: Arc<dyn Observer>,
        seen: Arc<Seen>,
        change: impl FnOnce(&mut AgentSettings),
    ) -> Agent {
        let mut settings = AgentSettings::recommended("box".into(), folder.path().join("work"));
        settings.shim = shim_program();
        settings.programs = delta_agent::Sought::Nothing;
        settings.stop_grace = Duration::from_millis(300);
        settings.leftover_grace = Duration::from_millis(100);
        change(&mut settings);
        let shutdown = watch::Sender::new(None);
        let agent = run(server, settings, observer, shutdown.subscribe());
        let running = AbortOnDropHandle::new(tokio::spawn(agent));
        Agent {
            seen,
            folder,
            shutdown,
            running,
        }
    }

    pub fn shut_down_in(&self, grace: Duration) {
        self.shutdown.send_replace(Some(Instant::now() + grace));
    }

    pub async fn ended(self) -> Result<(), AgentError> {
        self.ended_in().await.0
    }

    /// How it ended, and its folder, which is kept.
    pub async fn ended_in(self) -> (Result<(), AgentError>, tempfile::TempDir) {
        let ended = tokio::time::timeout(PATIENCE, self.running).await;
        let ended = ended.expect("the agent ends");
        (ended.expect("the agent does not panic"), self.folder)
    }

    pub async fn shut_down(self) {
        self.shut_down_in(Duration::ZERO);
        self.ended().await.expect("a clean end");
    }

    /// Nothing is left of what it knew of its attempts: log, order and note.
    pub fn has_forgotten(&self) -> bool {
        let attempts = self.folder.path().join("work/state/attempts");
        std::fs::read_dir(attempts).expect("a folder").count() == 0
    }

    /// Soon nothing is left of what it worked on: a result does not wait for that.
    pub async fn has_no_workspace(&self) {
        let attempts = self.folder.path().join("work/attempts");
        let left = || std::fs::read_dir(&attempts).expect("a folder").count();
        until("the workspace is removed", || left() == 0).await;
    }
}

/// How to reach a fake server.
pub fn server_settings(address: &str) -> ServerSettings {
    ServerSettings {
        address: Address::parse(address).expect("an address"),
        token: Some(TokenSource::Memory(Secret::new(TOKEN))),
        tls: TlsFiles::default(),
    }
}

pub fn steps(steps: &[&str]) -> Value {
    json!({ "name": "unit", "steps": steps })
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    hex(digest.as_ref())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The job's own number, which it printed first.
pub async fn job_number(server: &FakeServer) -> String {
    let lines = |log: &[u8]| log.iter().filter(|byte| **byte == b'\n').count();
    server
        .wait_until(|state| lines(state.last_log()) >= 2)
        .await;
    let log = server.log();
    log.lines().nth(1).expect("the job's number").to_owned()
}
