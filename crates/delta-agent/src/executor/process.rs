//! Steps as processes: one shell each, in order, all writing into one pipe that we read.
//!
//! One pipe for both streams of all steps keeps the order of arrival exactly. We never wait for its
//! end, because a grandchild may hold it open for ever: what a dead process wrote is already in the
//! pipe, so reading until it is empty is enough.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use delta_core::Cause;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout_at};

use super::environment::{environment, unusable};
use super::group::Groups;
use super::output::Output;
use super::verdict::{exited, spawn_cause, stopped_at};
use super::{Ended, LogFile, Outcome, StopOrder, StopReason, Work};
use crate::progress::{Lines, Observer, Progress};

/// How long killed processes may take to vanish before the end is reported as unconfirmed. KILL
/// works within milliseconds unless a process hangs inside the kernel, and then nothing works.
const KILL_BOUND: Duration = Duration::from_secs(5);

/// How often a group that should end is looked at.
const POLL: Duration = Duration::from_millis(10);

/// How often groups left by earlier steps are checked, so that an emptied one is forgotten long
/// before its number comes around again.
const FORGET_EVERY: Duration = Duration::from_secs(5);

/// Executes the steps in order until one fails, all are done, or `stop` says so. Returns when
/// nothing of the job is left, or cannot be ended.
pub async fn execute(
    work: &Work,
    log: LogFile,
    stop: watch::Receiver<Option<StopOrder>>,
    observer: &dyn Observer,
) -> Ended {
    let mut run = match prepare(work, log, stop, observer) {
        Ok(run) => run,
        Err(refused) => return *refused,
    };
    let verdict = run.steps().await;
    let confirmed = run.end_groups().await;
    run.conclude(verdict, confirmed)
}

/// Everything one attempt needs while it runs.
struct Run<'a> {
    work: &'a Work,
    directory: PathBuf,
    output: Output<'a>,
    writer: io::PipeWriter,
    groups: Groups,
    stop: watch::Receiver<Option<StopOrder>>,
}

/// How the steps ended, before the groups are cleared.
struct Verdict {
    step: Option<usize>,
    end: StepEnd,
}

enum StepEnd {
    AllDone,
    Exited(ExitStatus),
    Stopped(StopReason),
    NotStarted(Cause, String),
}

fn prepare<'a>(
    work: &'a Work,
    log: LogFile,
    stop: watch::Receiver<Option<StopOrder>>,
    observer: &'a dyn Observer,
) -> Result<Run<'a>, Box<Ended>> {
    if let Some(name) = unusable(&work.env) {
        let summary = format!("the variable {name:?} cannot be set");
        return Err(refusal(log, Cause::SpecError, summary));
    }
    if work.steps.is_empty() {
        return Err(refusal(
            log,
            Cause::SpecError,
            "the job has no steps".into(),
        ));
    }
    let directory = match working_directory(&work.workspace, &work.workdir) {
        Ok(directory) => directory,
        Err(summary) => return Err(refusal(log, Cause::SpecError, summary)),
    };
    let (receiver, writer) = match pipe_pair() {
        Ok(pair) => pair,
        Err(problem) => {
            let summary = format!("no pipe for the log: {problem}");
            return Err(refusal(log, Cause::StartUp, summary));
        }
    };
    let output = Output {
        receiver,
        log,
        lines: Lines::default(),
        work,
        observer,
    };
    Ok(Run {
        work,
        directory,
        output,
        writer,
        groups: Groups::default(),
        stop,
    })
}

fn refusal(mut log: LogFile, cause: Cause, summary: String) -> Box<Ended> {
    log.mark(&summary);
    Box::new(Ended {
        outcome: Outcome::Failed { exit_code: None },
        cause: Some(cause),
        summary,
        step: None,
        stopped: None,
        confirmed: true,
        log: log.finish(),
    })
}

fn pipe_pair() -> io::Result<(pipe::Receiver, io::PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    Ok((
        pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?,
        writer,
    ))
}

/// The folder steps start in. It must exist and, links resolved, lie inside the workspace.
fn working_directory(workspace: &Path, workdir: &str) -> Result<PathBuf, String> {
    let root = workspace
        .canonicalize()
        .map_err(|problem| format!("the workspace cannot be entered: {problem}"))?;
    let directory = root
        .join(workdir)
        .canonicalize()
        .map_err(|problem| format!("the workdir {workdir:?} cannot be entered: {problem}"))?;
    if !directory.starts_with(&root) {
        return Err(format!("the workdir {workdir:?} leaves the workspace"));
    }
    if !directory.is_dir() {
        return Err(format!("the workdir {workdir:?} is not a folder"));
    }
    Ok(directory)
}

impl Run<'_> {
    async fn steps(&mut self) -> Verdict {
        let work = self.work;
        for (index, step) in work.steps.iter().enumerate() {
            if let Some(order) = *self.stop.borrow() {
                return Verdict {
                    step: Some(index),
                    end: StepEnd::Stopped(order.reason),
                };
            }
            self.output.log.step(index + 1, step);
            let (job, count) = (&work.identity, work.steps.len());
            self.output.observer.progress(Progress::Step {
                job,
                index,
                count,
                text: step,
            });
            let end = self.step(index, step).await;
            self.output.drain();
            self.output.end_line();
            match end {
                StepEnd::Exited(status) if status.success() => {}
                end => {
                    return Verdict {
                        step: Some(index),
                        end,
                    };
                }
            }
        }
        Verdict {
            step: None,
            end: StepEnd::AllDone,
        }
    }

    async fn step(&mut self, index: usize, step: &str) -> StepEnd {
        let mut child = match self.spawn(step) {
            Ok(child) => child,
            Err(problem) => {
                let summary = format!("step {}: no shell could be started: {problem}", index + 1);
                return StepEnd::NotStarted(spawn_cause(&problem), summary);
            }
        };
        if let Some(leader) = child.id() {
            self.groups.add(leader);
        }
        self.supervise(&mut child).await
    }

    fn spawn(&self, step: &str) -> io::Result<Child> {
        // The step is one argument, never part of another text: nothing in it is interpolated.
        let mut command = Command::new("/bin/sh");
        command.arg("-e").arg("-c").arg(step);
        command
            .env_clear()
            .envs(environment(self.work))
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(self.writer.try_clone()?)
            .stderr(self.writer.try_clone()?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    /// Waits for the shell of a step, reading what is printed and obeying orders to stop.
    async fn supervise(&mut self, child: &mut Child) -> StepEnd {
        let mut forget = interval(FORGET_EVERY);
        forget.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut order: Option<StopOrder> = *self.stop.borrow_and_update();
        let mut killed_at: Option<Instant> = None;
        if order.is_some() {
            self.groups.terminate();
        }
        loop {
            let next = match (order, killed_at) {
                (_, Some(at)) => Some(at + KILL_BOUND),
                (Some(order), None) => Some(order.kill_at),
                (None, None) => None,
            };
            tokio::select! {
                biased;
                Ok(()) = self.stop.changed() => {
                    let newest = *self.stop.borrow_and_update();
                    if order.is_none() && newest.is_some() {
                        self.groups.terminate();
                    }
                    order = stricter(order, newest);
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    if killed_at.is_some() {
                        // Even KILL did not end it: end_groups will report that.
                        return StepEnd::Stopped(order.map_or(StopReason::LeaseLost, |o| o.reason));
                    }
                    self.groups.kill();
                    killed_at = Some(Instant::now());
                }
                status = child.wait() => {
                    return match (order, status) {
                        (Some(order), _) => StepEnd::Stopped(order.reason),
                        (None, Ok(status)) => StepEnd::Exited(status),
                        (None, Err(problem)) => StepEnd::NotStarted(
                            Cause::StartUp,
                            format!("the shell was lost sight of: {problem}"),
                        ),
                    };
                }
                _ = forget.tick() => {
                    self.groups.all_gone();
                }
                _ = self.output.receiver.readable() => {
                    self.output.read_once();
                }
            }
        }
    }

    /// Ends what is left of all steps: TERM, a grace, then KILL in rounds until nothing answers.
    /// True when that is proven.
    async fn end_groups(&mut self) -> bool {
        if self.groups.all_gone() {
            return true;
        }
        let own_grace = Instant::now() + self.work.leftover_grace;
        self.groups.terminate();
        while !self.groups.all_gone() {
            // Asked for in every round: an order to stop may come now, or become stricter.
            let kill_at = self.stop.borrow().map_or(own_grace, |order| order.kill_at);
            if Instant::now() >= kill_at {
                break;
            }
            self.read_for_a_moment().await;
        }
        let give_up = Instant::now() + KILL_BOUND;
        while !self.groups.all_gone() {
            // Again in every round: a process that was forking during the last one is a new member.
            self.groups.kill();
            self.read_for_a_moment().await;
            if self.groups.all_dead() {
                return true;
            }
            if Instant::now() > give_up {
                return false;
            }
        }
        true
    }

    /// Keeps the pipe flowing while groups end, so that nobody is stuck writing to it.
    async fn read_for_a_moment(&mut self) {
        let until = Instant::now() + POLL;
        while Instant::now() < until {
            match timeout_at(until, self.output.receiver.readable()).await {
                Ok(Ok(())) if self.output.read_once() => {}
                Ok(_) => sleep(POLL).await,
                Err(_) => break,
            }
        }
    }

    fn conclude(mut self, verdict: Verdict, confirmed: bool) -> Ended {
        self.output.drain();
        let number = verdict.step.map_or(0, |index| index + 1);
        let mut stopped = None;
        let (outcome, cause, summary) = match verdict.end {
            StepEnd::AllDone => (
                Outcome::Succeeded,
                None,
                match self.work.steps.len() {
                    1 => "1 step succeeded".into(),
                    count => format!("{count} steps succeeded"),
                },
            ),
            StepEnd::Exited(status) => exited(status, number),
            StepEnd::NotStarted(cause, summary) => {
                (Outcome::Failed { exit_code: None }, Some(cause), summary)
            }
            StepEnd::Stopped(reason) => {
                stopped = Some(reason);
                stopped_at(reason, number)
            }
        };
        if outcome != Outcome::Succeeded {
            self.output.log.mark(&summary);
        }
        if !confirmed {
            self.output
                .log
                .mark("a process of this job could not be ended");
        }
        let log = self.output.finish();
        Ended {
            outcome,
            cause,
            summary,
            step: verdict.step,
            stopped,
            confirmed,
            log,
        }
    }
}

/// An order never moves the moment of KILL back; its reason is always the newest.
fn stricter(old: Option<StopOrder>, new: Option<StopOrder>) -> Option<StopOrder> {
    match (old, new) {
        (Some(old), Some(new)) => Some(StopOrder {
            reason: new.reason,
            kill_at: old.kill_at.min(new.kill_at),
        }),
        (old, new) => new.or(old),
    }
}
