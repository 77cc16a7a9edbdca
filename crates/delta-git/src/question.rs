//! Questions to git that are answered at once, on the thread that asks: bounded in what is read,
//! and with nothing of the repository or of whoever asks being started.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// Why git said nothing that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    #[error("git {what}: {why}")]
    Failed { what: &'static str, why: String },
    #[error("git {what}: it says too much")]
    TooMuch { what: &'static str },
}

/// Git in a folder of a person's, with their configuration but none of their programs.
pub(crate) fn in_folder(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(folder)
        .args([
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.hooksPath=/dev/null",
        ])
        .args(["-c", "core.quotePath=false"])
        // Set while a hook runs; the folder decides, not they.
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_NO_LAZY_FETCH", "1")
        .stderr(Stdio::null());
    command
}

/// What git prints, when it ends well and says no more than it may.
pub(crate) fn answer(
    mut command: Command,
    what: &'static str,
    most: u64,
) -> Result<Vec<u8>, NoAnswer> {
    let failed = |why: String| NoAnswer::Failed { what, why };
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut bytes = Vec::new();
    let read = match child.stdout.take() {
        Some(stdout) => stdout.take(most + 1).read_to_end(&mut bytes),
        None => Ok(0),
    };
    let long = u64::try_from(bytes.len()).is_ok_and(|len| len > most);
    if long {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    match read {
        _ if long => Err(NoAnswer::TooMuch { what }),
        Err(error) => Err(failed(error.to_string())),
        Ok(_) if status.success() => Ok(bytes),
        Ok(_) => Err(failed(format!("it ended with {status}"))),
    }
}
