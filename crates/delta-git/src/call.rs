//! Calls of git: arguments only, a clean environment, no configuration but ours, and an end.
//!
//! Nothing in a repository or on this machine makes git start a program: no hooks, no monitor, no
//! filters, no transports but the one that was checked. A call that is dropped takes its whole
//! family of processes with it.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::call_output::CallOutput;
use crate::credential::Loan;
use crate::process_group::ProcessGroup;

/// Moves the credential from the standard input to descriptor 3. The words that follow are
/// arguments, never text of the script.
const LEND: &str = r#"exec "$0" "$@" 3<&0 0</dev/null"#;

/// Runs ssh as git would, with the credential at descriptor 3 of its parent, which therefore waits.
const OVER_SSH: &str =
    r#"exec 3<&0 0</dev/null; sh -c "$GIT_SSH_COMMAND \"\$@\"" ssh "$@"; exit $?"#;

/// Bytes that a call may print: names of submodules, and pointers of large files.
pub const MAX_OUTPUT: usize = 4 * 1024 * 1024;

/// What of the agent's environment git sees: how to get out of here, and whom to believe there.
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

/// Stronger than what any file says.
const CONFIG: [(&str, &str); 20] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.protectHFS", "true"),
    ("core.protectNTFS", "true"),
    ("safe.bareRepository", "explicit"),
    // Resets the list of helpers.
    ("credential.helper", ""),
    ("credential.interactive", "false"),
    // Elsewhere is where nobody checked, and where a credential does not belong.
    ("http.followRedirects", "false"),
    // A server that is still packing says five bytes in five seconds; one that is gone, nothing.
    ("http.lowSpeedLimit", "1"),
    ("http.lowSpeedTime", "60"),
    ("protocol.version", "2"),
    ("protocol.ext.allow", "never"),
    ("transfer.unpackLimit", "1"),
    ("fetch.recurseSubmodules", "false"),
    ("submodule.recurse", "false"),
    // Nothing that works on in the background.
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("advice.detachedHead", "false"),
    ("init.defaultBranch", "main"),
    ("init.templateDir", ""),
];

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("git cannot be started: {0}")]
    Start(#[from] io::Error),
    #[error("git ended with {status}")]
    Ended {
        status: ExitStatus,
        /// What it said last.
        last: Vec<String>,
    },
}

/// What a search of git found: it ends with 1 where there is nothing. Any other end is no answer,
/// and a job would work with less than there is.
pub fn found(searched: Result<Vec<u8>, GitError>) -> Result<Option<Vec<u8>>, GitError> {
    match searched {
        Err(GitError::Ended { status, .. }) if status.code() == Some(1) => Ok(None),
        other => other.map(Some),
    }
}

/// Who calls git, and where its words go.
pub struct Git<'a> {
    pub program: &'a Path,
    /// An empty private folder, which it takes for its user's.
    pub home: &'a Path,
    /// Hears the lines of calls that are shown; nobody does when absent.
    pub shows: Option<&'a (dyn Fn(&str) + Sync)>,
}

/// One call.
pub struct Call<'a> {
    arguments: Vec<OsString>,
    /// As `GIT_ALLOW_PROTOCOL` takes them; none for a call that stays here.
    protocols: String,
    loan: Option<&'a Loan>,
    /// What starts it where there is a loan.
    script: &'static str,
    shown: bool,
    /// Above which folder no repository is looked for.
    folder: &'a Path,
}

impl<'a> Call<'a> {
    /// In this folder, which holds a repository or will.
    pub fn in_folder(folder: &'a Path, arguments: &[&str]) -> Call<'a> {
        let place = ["-C".into(), folder.as_os_str().to_owned()];
        Call::new(folder, place, arguments)
    }

    /// With this repository, which has no work tree.
    pub fn bare(folder: &'a Path, arguments: &[&str]) -> Call<'a> {
        let place = ["--git-dir".into(), folder.as_os_str().to_owned()];
        Call::new(folder, place, arguments)
    }

    fn new(folder: &'a Path, place: [OsString; 2], arguments: &[&str]) -> Call<'a> {
        let arguments = arguments.iter().map(OsString::from);
        Call {
            arguments: place.into_iter().chain(arguments).collect(),
            protocols: String::new(),
            loan: None,
            script: LEND,
            shown: false,
            folder,
        }
    }

    /// Not git but the ssh that it would use, with the key that is lent.
    pub fn over_ssh(folder: &'a Path, arguments: Vec<String>, loan: &'a Loan) -> Call<'a> {
        Call {
            arguments: arguments.into_iter().map(OsString::from).collect(),
            protocols: String::new(),
            loan: Some(loan),
            script: OVER_SSH,
            shown: false,
            folder,
        }
    }

    pub fn arg(mut self, argument: impl Into<OsString>) -> Call<'a> {
        self.arguments.push(argument.into());
        self
    }

    /// May go to another repository, by these ways and with this credential.
    pub fn over(mut self, protocols: &str, loan: Option<&'a Loan>) -> Call<'a> {
        self.protocols = protocols.to_owned();
        self.loan = loan;
        self
    }

    /// What it says is shown to whoever listens.
    pub fn shown(mut self) -> Call<'a> {
        self.shown = true;
        self
    }
}

impl Git<'_> {
    /// What it printed, once it has succeeded.
    pub async fn call(&self, call: Call<'_>) -> Result<Vec<u8>, GitError> {
        let mut group = ProcessGroup::spawn(self.command(&call)?)?;
        let (stdout, stderr) = (group.child.stdout.take(), group.child.stderr.take());
        let (printed, last) = tokio::try_join!(print(stdout), self.listen(stderr, call.shown))?;
        let status = group.wait().await?;
        if status.success() {
            Ok(printed)
        } else {
            Err(GitError::Ended { status, last })
        }
    }

    /// The first line it printed.
    pub async fn ask(&self, call: Call<'_>) -> Result<String, GitError> {
        let printed = self.call(call).await?;
        let text = String::from_utf8_lossy(&printed);
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    fn command(&self, call: &Call<'_>) -> io::Result<Command> {
        let mut command = match call.loan {
            None => {
                let mut command = Command::new(self.program);
                command.stdin(Stdio::null());
                command
            }
            Some(loan) => {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", call.script]).arg(self.program);
                command.stdin(loan.file.try_clone()?);
                command
            }
        };
        command
            .args(&call.arguments)
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .current_dir(self.home)
            .kill_on_drop(true);
        for name in PASSED {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        let above = call.folder.parent().unwrap_or(call.folder);
        command
            .env("HOME", self.home)
            .env("XDG_CONFIG_HOME", self.home)
            // Its words are read here, too.
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_PROTOCOL_FROM_USER", "0")
            // Without a key of the job's there is no ssh: the agent's own are not for jobs.
            .env("GIT_SSH_COMMAND", "false")
            .env("GIT_SSH_VARIANT", "ssh")
            .env("GIT_CEILING_DIRECTORIES", above)
            .env("GIT_LFS_SKIP_SMUDGE", "1")
            .env("GIT_ALLOW_PROTOCOL", allowed(&call.protocols));
        let config = CONFIG.iter().map(|(key, value)| (*key, *value));
        let lent = call.loan.iter().flat_map(|loan| &loan.config);
        let config = config.chain(lent.map(|(key, value)| (key.as_str(), value.as_str())));
        let mut count = 0;
        for (index, (key, value)) in config.enumerate() {
            command
                .env(format!("GIT_CONFIG_KEY_{index}"), key)
                .env(format!("GIT_CONFIG_VALUE_{index}"), value);
            count = index + 1;
        }
        command.env("GIT_CONFIG_COUNT", count.to_string());
        for (name, value) in call.loan.iter().flat_map(|loan| &loan.env) {
            command.env(name, value);
        }
        Ok(command)
    }

    /// Reads what it says to the end, and keeps the last lines.
    async fn listen(
        &self,
        stderr: Option<impl AsyncRead + Unpin>,
        shown: bool,
    ) -> io::Result<Vec<String>> {
        let show = |line: &str| {
            if let Some(shows) = self.shows.filter(|_| shown) {
                shows(line);
            }
        };
        let mut output = CallOutput::new();
        let mut buffer = [0; 4096];
        if let Some(mut stderr) = stderr {
            loop {
                let count = stderr.read(&mut buffer).await?;
                if count == 0 {
                    break;
                }
                output.hear(&buffer[..count], Instant::now(), show);
            }
        }
        Ok(output.end(show))
    }
}

/// An empty list would allow everything.
fn allowed(protocols: &str) -> &str {
    if protocols.is_empty() {
        "none"
    } else {
        protocols
    }
}

/// Reads everything, and keeps as much as anybody needs.
async fn print(stdout: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let Some(mut stdout) = stdout {
        let mut few = (&mut stdout).take(MAX_OUTPUT as u64);
        few.read_to_end(&mut kept).await?;
        tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await?;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_search_that_failed_does_not_mean_that_there_is_nothing() {
        let ended = |raw: i32| {
            let status = ExitStatus::from_raw(raw);
            Err(GitError::Ended {
                status,
                last: Vec::new(),
            })
        };
        assert!(matches!(found(Ok(b"x".to_vec())), Ok(Some(_))));
        assert!(matches!(found(ended(1 << 8)), Ok(None)));
        // It gave up, it was killed, it is not there.
        for failed in [ended(128 << 8), ended(2 << 8), ended(9)] {
            assert!(found(failed).is_err());
        }
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert!(found(Err(missing.into())).is_err());
    }
}
