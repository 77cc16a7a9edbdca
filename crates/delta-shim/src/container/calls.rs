//! Calling the container program from the shim: one command at a time is waited for, while the
//! log is read and orders are obeyed as always. What a command answers is kept in memory.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

use delta_core::time::{Millis, Span};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};

use super::runtime::Runtime;
use crate::clock;
use crate::shim::Shim;

/// Bytes of an answer that are looked at: an id, a number, a complaint.
const MAX_ANSWER: u64 = 64 * 1024;

/// How long a question may take: a loaded daemon, not one that hangs.
const PATIENCE: Span = Span::secs(60);

/// A command to be.
pub(super) struct Call {
    pub arguments: Vec<OsString>,
    /// What it reads.
    pub input: Vec<u8>,
    pub output: Output,
}

/// Where what it prints goes.
pub(super) enum Output {
    Kept,
    /// Into the job's log; only what it complains is kept.
    Shown(File),
}

impl Call {
    pub fn new(arguments: Vec<OsString>) -> Call {
        Call {
            arguments,
            input: Vec::new(),
            output: Output::Kept,
        }
    }

    pub fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Call {
        Call::new(words.into_iter().map(OsString::from).collect())
    }
}

/// A command at work.
pub(crate) struct Calling {
    pub pid: Pid,
    output: File,
    complaint: File,
}

/// What came of it.
pub(super) struct Called {
    pub status: ExitStatus,
    pub text: String,
    pub complaint: String,
}

/// How long a command is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Until an order to stop comes: for what may take as long as a network does.
    UntilStopped,
    /// A while, unless an order to stop comes.
    AWhileUnlessStopped,
    /// A while, whatever is ordered.
    AWhile,
    /// Until then, whatever is ordered.
    Until(Millis),
    /// Until then, unless an order to stop comes.
    UntilUnlessStopped(Millis),
}

/// Why there is no answer.
pub(super) enum NoAnswer {
    Stopped,
    TooLate,
    NotStarted(io::Error),
}

impl Calling {
    pub(super) fn start(runtime: &Runtime, call: Call) -> io::Result<Calling> {
        let mut input = memory("input")?;
        input.write_all(&call.input)?;
        input.rewind()?;
        let (output, complaint) = (memory("output")?, memory("complaint")?);
        let mut command = Command::new(&runtime.program);
        command
            .args(&call.arguments)
            .env_clear()
            .envs(runtime.env.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(input)
            .stdout(match call.output {
                Output::Kept => Stdio::from(output.try_clone()?),
                Output::Shown(log) => Stdio::from(log),
            })
            .stderr(complaint.try_clone()?)
            .process_group(0);
        Ok(Calling {
            pid: spawned(&mut command)?,
            output,
            complaint,
        })
    }

    /// What it left when it ended so.
    pub(super) fn ended(mut self, status: ExitStatus) -> Called {
        Called {
            status,
            text: text(&mut self.output),
            complaint: text(&mut self.complaint),
        }
    }
}

/// Starts it without waiting for it: the shim reaps all its children itself.
pub(super) fn spawned(command: &mut Command) -> io::Result<Pid> {
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("a child without a number"))
}

fn memory(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // It is memory: there is nothing to go wrong that would not have gone wrong before.
    let _ = file.rewind();
    let _ = file.take(MAX_ANSWER).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Shim {
    /// Calls the program and waits for its answer.
    pub(super) async fn call(
        &mut self,
        runtime: &Runtime,
        call: Call,
        waiting: Waiting,
    ) -> Result<Called, NoAnswer> {
        let calling = Calling::start(runtime, call).map_err(NoAnswer::NotStarted)?;
        self.watch(calling.pid);
        self.answered(calling, waiting).await
    }

    pub(super) async fn answered(
        &mut self,
        calling: Calling,
        waiting: Waiting,
    ) -> Result<Called, NoAnswer> {
        let deadline = match waiting {
            Waiting::UntilStopped => Millis::FAR,
            Waiting::AWhile | Waiting::AWhileUnlessStopped => clock::now() + PATIENCE,
            Waiting::Until(deadline) | Waiting::UntilUnlessStopped(deadline) => deadline,
        };
        loop {
            if let Some(status) = self.end_of(calling.pid) {
                return Ok(calling.ended(status));
            }
            let obeys = !matches!(waiting, Waiting::AWhile | Waiting::Until(_));
            let stopped = obeys && self.stop.is_some();
            if stopped || clock::now() >= deadline {
                self.unwatch(calling.pid);
                let _ = kill_process(calling.pid, Signal::KILL);
                return Err(if stopped {
                    NoAnswer::Stopped
                } else {
                    NoAnswer::TooLate
                });
            }
            self.turn((deadline != Millis::FAR).then_some(deadline))
                .await;
        }
    }
}

/// An end as the standard library knows it.
pub(crate) fn exit_status(status: rustix::process::WaitStatus) -> ExitStatus {
    ExitStatus::from_raw(status.as_raw())
}
