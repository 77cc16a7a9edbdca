//! Processes that fetch and plan: this binary again, with an order on its standard input and an
//! answer of bounded size within a bounded time. Whatever is left of one is killed with its family.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::writer::sha256;

/// Bytes of an answer: a run of a thousand jobs has four million at most.
const MAX_ANSWER: u64 = 8 << 20;

/// What of the server's environment such a process sees: how to get out of here, and whom to
/// believe there.
const PASSED: [&str; 10] = [
    "PATH",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Starts them.
#[derive(Clone, Debug)]
pub struct Workers {
    /// This binary.
    pub program: PathBuf,
    /// The folder of the repositories that are kept.
    pub mirrors: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error("it could not be started: {0}")]
    Start(#[from] std::io::Error),
    #[error("it took longer than {} s", .0.as_secs())]
    Time(Duration),
    #[error("it ended with {0}")]
    Ended(ExitStatus),
    #[error("it said too much, or nothing that can be read")]
    Answer,
}

impl Workers {
    /// The folder of a repository: another address is another one.
    pub fn mirror(&self, name: &str, url: &str) -> String {
        let hash = sha256(url.as_bytes());
        let hash: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = self.mirrors.join(format!("{name}-{hash}.git"));
        folder.to_string_lossy().into_owned()
    }

    pub async fn call<T: DeserializeOwned>(
        &self,
        word: &str,
        order: &impl Serialize,
        limit: Duration,
    ) -> Result<T, Broken> {
        let order = serde_json::to_vec(order).map_err(std::io::Error::other)?;
        let called = tokio::time::timeout(limit, self.answer(word, &order)).await;
        let bytes = called.unwrap_or(Err(Broken::Time(limit)))?;
        serde_json::from_slice(&bytes).map_err(|_| Broken::Answer)
    }

    async fn answer(&self, word: &str, order: &[u8]) -> Result<Vec<u8>, Broken> {
        std::fs::create_dir_all(&self.mirrors)?;
        let mut family = Family::spawn(self.command(word))?;
        let pipes = (family.child.stdin.take(), family.child.stdout.take());
        let (Some(mut stdin), Some(stdout)) = pipes else {
            return Err(std::io::Error::other("it has no pipes").into());
        };
        let tell = async {
            // One that has ended already does not listen; its end says why.
            let _ = stdin.write_all(order).await;
            drop(stdin);
        };
        let hear = async {
            let mut bytes = Vec::new();
            let mut stdout = stdout.take(MAX_ANSWER + 1);
            stdout.read_to_end(&mut bytes).await.map(|_| bytes)
        };
        let ((), heard) = tokio::join!(tell, hear);
        let bytes = heard?;
        if bytes.len() as u64 > MAX_ANSWER {
            return Err(Broken::Answer);
        }
        let status = family.wait().await?;
        match status.success() {
            true => Ok(bytes),
            false => Err(Broken::Ended(status)),
        }
    }

    fn command(&self, word: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(word)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);
        for name in PASSED {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }
}

/// A process with all its children: they have a group of their own, and end with this.
struct Family {
    child: Child,
    group: Option<Pid>,
}

impl Family {
    fn spawn(mut command: Command) -> std::io::Result<Family> {
        let child = command.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Ok(Family {
            group: id.and_then(Pid::from_raw),
            child,
        })
    }

    async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        // From now on the number may be somebody else's.
        self.group = None;
        Ok(status)
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // Nothing to do about one that is gone.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
