//! Spawns children that die with the test process, also when it is killed.
//!
//! The kernel's parent-death signal belongs to the *thread* that forked, and a test harness ends
//! a thread per test: a child spawned there would die with the first test that used it. So all
//! children come from one thread that lives as long as the process does.
//!
//! Refuses `unsafe`: the signal is set by util-linux's `setpriv`, which then becomes the program,
//! so that the child's pid is the program's pid. In between, a shell looks whether the parent is
//! still there: one that died before the signal was set would never send it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use anyhow::{Context, Result, ensure};

/// `$1` is the parent's pid, the rest is the program.
const BECOME_UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$1" ] || exit 1; shift; exec "$@""#;

/// What a shell adds to an environment that has nothing: not for the program.
const FORGET_THE_SHELL: &str = "unset PWD OLDPWD SHLVL _; ";

/// What of this process's environment a child gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inherited {
    Everything,
    Nothing,
}

struct Request {
    command: Command,
    reply: SyncSender<io::Result<Child>>,
}

/// A command that gets `signal` when this process ends. `switch` are further options of setpriv,
/// as for becoming another user; the signal is set after them, since they would clear it.
pub(crate) fn dying_with_us(
    program: &Path,
    inherited: Inherited,
    signal: &str,
    switch: &[&str],
) -> Result<Command> {
    ensure!(
        program.is_file(),
        "{} does not exist (looking for a program to start)",
        program.display()
    );
    let setpriv = find_on_path("setpriv")
        .context("setpriv is not on the PATH; install the package util-linux")?;
    let mut command = Command::new(setpriv);
    command.args(switch);
    command.args(["--pdeathsig", signal, "--", "/bin/sh", "-c"]);
    match inherited {
        Inherited::Everything => command.arg(BECOME_UNLESS_ORPHANED),
        Inherited::Nothing => command
            .env_clear()
            .arg(format!("{FORGET_THE_SHELL}{BECOME_UNLESS_ORPHANED}")),
    };
    command
        .arg("sh")
        .arg(std::process::id().to_string())
        .arg(program);
    Ok(command)
}

/// Spawns from the thread that lives as long as the process.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    let (reply, answer) = sync_channel(1);
    let gone = || io::Error::other("the thread that starts processes is gone");
    nursery()
        .send(Request { command, reply })
        .map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// The program of this name in the folders of `PATH`.
pub(crate) fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

fn nursery() -> &'static Sender<Request> {
    static NURSERY: OnceLock<Sender<Request>> = OnceLock::new();
    NURSERY.get_or_init(|| {
        let (requests, inbox) = channel();
        std::thread::Builder::new()
            .name("nursery".into())
            .spawn(move || serve(inbox))
            .expect("the operating system gives a test one more thread");
        requests
    })
}

fn serve(inbox: Receiver<Request>) {
    for mut request in inbox {
        let spawned = request.command.spawn();
        // The asker waits for this answer; when it is gone, dropping the child is all there is.
        let _ = request.reply.send(spawned);
    }
}
