//! The one who cleans up: a small shell that outlives the test process by a moment.
//!
//! It waits on a pipe whose other end this process holds. The pipe closes when the cluster is
//! dropped, when the process exits (statics are never dropped) and when it is killed; then the
//! guard ends every process of the cluster and removes the folder. It is in a process group of
//! its own, so that a test runner which kills the test's group does not take the guard along.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// `$1` is the data folder, `$2` the folder to remove. Members are known by their working folder,
/// which PostgreSQL sets to the data folder, so that orphans of a killed postmaster are found too.
/// An immediate shutdown first, since kill -9 leaves the shared memory segment behind; where one
/// was left (the pid file is still there), it is removed by its id, from the file's 7th line.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
cat >/dev/null
members() {
  for entry in /proc/[0-9]*; do
    [ "$entry/cwd" -ef "$1" ] || continue
    name=; read -r name <"$entry/comm"
    [ "$name" = postgres ] && echo "${entry#/proc/}"
  done
}
signal() { for pid in $(members "$2"); do kill "-$1" "$pid"; done; }
signal QUIT "$1"
signal CONT "$1"
left=100
while [ -n "$(members "$1")" ] && [ "$left" -gt 0 ]; do sleep 0.05; left=$((left - 1)); done
signal KILL "$1"
while [ -n "$(members "$1")" ]; do sleep 0.05; done
if [ -f "$1/postmaster.pid" ]; then
  segment=$(sed -n 7p "$1/postmaster.pid")
  [ -n "$segment" ] && ipcrm -m "${segment##* }"
fi
rm -rf -- "$2"
"#;

#[derive(Debug)]
pub(super) struct Guard {
    shell: Child,
}

impl Guard {
    pub(super) fn start(data: &Path, folder: &Path) -> Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "cluster-guard"])
            .arg(data)
            .arg(folder);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let shell = command.current_dir("/").process_group(0).spawn();
        Ok(Self {
            shell: shell.context("starting the shell that guards a cluster")?,
        })
    }

    /// Lets the guard do its work now, and waits for it.
    pub(super) fn clean_up(&mut self) {
        drop(self.shell.stdin.take());
        // Nothing to do about an error: the guard works on its own.
        let _ = self.shell.wait();
    }
}
