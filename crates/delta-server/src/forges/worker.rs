//! Processes that fetch and plan: this binary again, with an order on its standard input and an
//! answer of bounded size within a bounded time. Whatever is left of one is killed with its family.
//! What one says on standard error before it dies is its last words: bounded, and not believed to
//! be text.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use delta_git::ProcessGroup;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::writer::sha256;

/// Bytes of an answer: a run of a thousand jobs has four million at most.
const MAX_ANSWER: u64 = 8 << 20;

/// Bytes of what a worker says on standard error that are kept, the last ones: enough for what went
/// wrong and for what git said about it.
const LAST_WORDS: usize = 2 << 10;

/// How long words are waited for once their process has ended: one of its children may hold the
/// pipe open.
const HEARD_OUT: Duration = Duration::from_secs(2);

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
    #[error("it ended with {0}{said}", said = colon(.1))]
    Ended(ExitStatus, String),
    #[error("it said too much, or nothing that can be read")]
    Answer,
}

fn colon(said: &str) -> String {
    if said.is_empty() {
        String::new()
    } else {
        format!(": {said}")
    }
}

impl Broken {
    /// Puts it into the log, and says it for whoever asks about the run. What the worker was lent
    /// stays out of both.
    pub fn reported(&self, word: &str, lent: Option<&str>) -> String {
        let mut why = self.to_string();
        let lines = lent.into_iter().flat_map(str::lines).map(str::trim);
        for line in lines.filter(|line| !line.is_empty()) {
            why = why.replace(line, "***");
        }
        tracing::warn!(worker = word, why, "a worker did not answer");
        why
    }
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
        let mut group = ProcessGroup::spawn(self.command(word))?;
        let child = &mut group.child;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(std::io::Error::other("it has no pipes").into());
        };
        let words = LastWords::listen(stderr);
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
        let status = group.wait().await?;
        if status.success() {
            Ok(bytes)
        } else {
            Err(Broken::Ended(status, words.heard().await))
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
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for name in PASSED {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }
}

/// The end of what a worker says on standard error.
struct LastWords {
    kept: Arc<Mutex<Vec<u8>>>,
    listening: JoinHandle<()>,
}

impl LastWords {
    /// Reads to the end, so that nobody blocks on a full pipe, and keeps the last of it.
    fn listen(mut stderr: impl AsyncRead + Unpin + Send + 'static) -> LastWords {
        let kept = Arc::<Mutex<Vec<u8>>>::default();
        let keeping = kept.clone();
        let listening = tokio::spawn(async move {
            let mut piece = [0; LAST_WORDS];
            // What cannot be read any more has been said.
            while let Ok(read @ 1..) = stderr.read(&mut piece).await {
                let mut kept = keeping.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&piece[..read]);
                let over = kept.len().saturating_sub(LAST_WORDS);
                kept.drain(..over);
            }
        });
        LastWords { kept, listening }
    }

    /// As one line, of a worker that has ended.
    async fn heard(self) -> String {
        // After that, what there is must do.
        let _ = tokio::time::timeout(HEARD_OUT, self.listening).await;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        plain(&String::from_utf8_lossy(&kept))
    }
}

/// One line of what may have come from a stranger's files: it moves no cursor and turns no text
/// around, whoever prints it.
fn plain(text: &str) -> String {
    let shown = |c: char| match c {
        c if c.is_whitespace() => ' ',
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    let text: String = text.chars().map(shown).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn workers(folder: &tempfile::TempDir, script: &str) -> Workers {
        let program = folder.path().join("worker");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        Workers {
            program,
            mirrors: folder.path().join("mirrors"),
        }
    }

    async fn broken(script: &str) -> Broken {
        let folder = tempfile::tempdir().unwrap();
        let workers = workers(&folder, script);
        let called = workers.call::<serde_json::Value>("word", &(), Duration::from_secs(60));
        called.await.unwrap_err()
    }

    #[tokio::test]
    async fn a_worker_that_dies_says_why_in_one_plain_line() {
        let why = broken("printf 'no\\033[2J room\\n\\n left\\n' >&2; exit 7").await;
        let text = why.to_string();
        assert_eq!(
            text,
            "it ended with exit status: 7: no\u{fffd}[2J room left"
        );
        let silent = broken("exit 7").await.to_string();
        assert_eq!(silent, "it ended with exit status: 7");
    }

    #[tokio::test]
    async fn of_a_flood_the_end_is_kept_and_a_child_that_holds_the_pipe_holds_up_nobody() {
        let flood = "i=0; while [ $i -lt 20000 ]; do echo 0123456789 >&2; i=$((i+1)); done; \
                     echo the end >&2; sleep 20 >/dev/null & exit 1";
        let text = broken(flood).await.to_string();
        assert!(text.len() < LAST_WORDS + 100, "{}", text.len());
        assert!(text.ends_with("the end"), "{text}");
    }

    #[tokio::test]
    async fn what_a_worker_was_lent_is_not_repeated() {
        let why = broken("echo cannot log in as me with pass-canary >&2; exit 1").await;
        let said = why.reported("word", Some("me\npass-canary\n"));
        assert!(
            !said.contains("pass-canary") && said.contains("***"),
            "{said}"
        );
    }
}
