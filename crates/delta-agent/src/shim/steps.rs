//! Steps in order, one shell or program each, all writing into one pipe; and the end of everything
//! they started.
//!
//! One pipe for both streams of all steps keeps the order of arrival exactly. Nobody waits for its
//! end, because a grandchild may hold it open for ever: what a dead process wrote is already in the
//! pipe, so reading until it is empty is enough.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use delta_core::Cause;
use delta_core::time::{Millis, Span};
use rustix::process::Pid;

use super::attempt::{Shim, folder_inside};
use super::order::{Event, StepRecord};
use super::spawner::Program;
use super::tree;
use crate::around::results::aside;
use crate::clock;
use crate::executor::{Step, StopReason, spawn_cause};

/// How long killed processes may take to vanish before the end is reported as unconfirmed. KILL
/// works within milliseconds unless a process hangs inside the kernel, and then nothing works.
const KILL_BOUND: Span = Span::secs(5);

/// Between two rounds of KILL: deaths are waited for, not slept through.
const FIRST_ROUND: Span = Span(2);
const LONGEST_ROUND: Span = Span(50);

/// How the steps ended, before what they left is cleared.
pub(super) struct Verdict {
    pub step: Option<usize>,
    pub end: StepEnd,
}

pub(super) enum StepEnd {
    AllDone,
    Exited(ExitStatus),
    /// The kernel ended processes of the step for want of memory.
    OutOfMemory {
        status: ExitStatus,
        kills: u64,
        /// What it could have had, in MiB.
        limit: Option<u64>,
    },
    Stopped(StopReason),
    NotStarted(Cause, String),
}

impl Verdict {
    /// Of an attempt whose first step was not begun.
    pub fn before_steps(end: StepEnd) -> Verdict {
        let stopped = matches!(end, StepEnd::Stopped(_));
        Verdict {
            step: stopped.then_some(0),
            end,
        }
    }
}

impl Shim {
    pub async fn steps(&mut self) -> Verdict {
        let mut first_failure = None;
        for index in 0..self.order.steps.len() {
            let end = match self.stop {
                Some(stop) => StepEnd::Stopped(stop.reason),
                None => self.step(index).await,
            };
            match end {
                StepEnd::Exited(status) if status.success() => {}
                StepEnd::Exited(_) | StepEnd::NotStarted(..) if self.order.steps[index].goes_on => {
                    let step = Some(index);
                    first_failure.get_or_insert(Verdict { step, end });
                }
                end => {
                    return Verdict {
                        step: Some(index),
                        end,
                    };
                }
            }
        }
        first_failure.unwrap_or(Verdict {
            step: None,
            end: StepEnd::AllDone,
        })
    }

    async fn step(&mut self, index: usize) -> StepEnd {
        let step = self.order.steps[index].clone();
        self.step = Some(index);
        self.release();
        self.spool.step(index + 1, &step);
        self.marked();
        self.control.send(&Event::StepBegan { index });
        let (started_at, began) = (clock::wall_time(), Instant::now());
        self.step_deadline = step.timeout.map(|timeout| clock::now() + span(timeout));
        self.silent_at = self.silent_from_now();
        let report = step.report.clone().map(|pattern| {
            let before = aside::look(Path::new(&self.order.workspace), &pattern);
            (pattern, before)
        });
        let end = self.begin(index, step).await;
        (self.step_deadline, self.silent_at) = (None, None);
        self.drain();
        self.release();
        if let Some((pattern, before)) = report {
            self.set_report_aside(index, &pattern, &before);
        }
        let status = match &end {
            StepEnd::Exited(status) | StepEnd::OutOfMemory { status, .. } => Some(*status),
            _ => None,
        };
        let record = StepRecord {
            index,
            started_at,
            took: began.elapsed(),
            exit_code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            timed_out: matches!(end, StepEnd::Stopped(StopReason::StepTimedOut)),
        };
        self.steps.push(record.clone());
        self.control.send(&Event::StepEnded(record));
        end
    }

    /// The next test may write over it.
    fn set_report_aside(
        &mut self,
        index: usize,
        pattern: &str,
        before: &HashMap<String, aside::About>,
    ) {
        let into = self.folder.join(aside::FOLDER).join(index.to_string());
        let (workspace, left) = (Path::new(&self.order.workspace), &mut self.report_bytes);
        let said = aside::keep(workspace, pattern, before, &into, left);
        for words in &said {
            self.spool.mark(words);
        }
        if !said.is_empty() {
            self.marked();
        }
    }

    /// Starts a step, wherever it runs, and waits for it.
    async fn begin(&mut self, index: usize, step: Step) -> StepEnd {
        let not_started = |cause, why: String| {
            let summary = format!("step {}: {why}", index + 1);
            StepEnd::NotStarted(cause, summary)
        };
        let directory = step.workdir.as_deref();
        let directory = directory.map(|workdir| folder_inside(&self.order, workdir));
        let directory = match directory.transpose() {
            Ok(directory) => directory,
            Err(why) => return not_started(Cause::SpecError, why),
        };
        let what = match step.argv {
            Some(_) => "the program could not be started",
            None => "no shell could be started",
        };
        match self.carry_out(step, directory).await {
            Ok(end) => end,
            Err(problem) => not_started(spawn_cause(&problem), format!("{what}: {problem}")),
        }
    }

    async fn carry_out(&mut self, step: Step, directory: Option<PathBuf>) -> io::Result<StepEnd> {
        if self.container.is_some() {
            let calling = self.step_in_container(&step.in_shell())?;
            return Ok(match self.supervise(calling.pid).await {
                Ok(status) => self.judge(calling, status).await,
                Err(reason) => StepEnd::Stopped(reason),
            });
        }
        let program = match step.argv {
            Some(words) => Program::Words(words),
            None => Program::Script(step.script),
        };
        let child = self.spawner.spawn(program, directory).await?;
        self.watch(child);
        Ok(match self.supervise(child).await {
            Ok(status) => StepEnd::Exited(status),
            Err(reason) => StepEnd::Stopped(reason),
        })
    }

    /// Waits for the shell of a step, reading what is printed and obeying orders to stop.
    async fn supervise(&mut self, shell: Pid) -> Result<ExitStatus, StopReason> {
        let mut asked = false;
        loop {
            if let Some(status) = self.end_of(shell) {
                return match self.stop {
                    Some(stop) => Err(stop.reason),
                    None => Ok(status),
                };
            }
            if let Some(stop) = self.stop {
                if !asked {
                    self.ask_to_end();
                    asked = true;
                }
                if clock::now().0 >= stop.kill_at {
                    return Err(stop.reason);
                }
            }
            self.turn(self.stop.map(|stop| Millis(stop.kill_at))).await;
        }
    }

    fn ask_to_end(&mut self) {
        match self.container.is_some() {
            true => self.ask_container_to_end(),
            false => tree::terminate(),
        }
    }

    /// Ends what is left of all steps: TERM, a grace, then KILL in rounds until there is no child.
    /// True when that is so.
    pub async fn end_tree(&mut self) -> bool {
        if self.take_ends() {
            return true;
        }
        let own_grace = clock::now() + span(self.order.leftover_grace);
        tree::terminate();
        loop {
            if self.take_ends() {
                return true;
            }
            // Asked for in every round: an order to stop may come now, or become stricter.
            let kill_at = self.stop.map_or(own_grace, |stop| Millis(stop.kill_at));
            if clock::now() >= kill_at {
                break;
            }
            self.turn(Some(kill_at)).await;
        }
        let give_up = clock::now() + KILL_BOUND;
        let mut round = FIRST_ROUND;
        while clock::now() < give_up {
            tree::kill(self.group.get());
            if self.all_gone_by(clock::now() + round).await {
                return true;
            }
            round = Span((round.0 * 2).min(LONGEST_ROUND.0));
        }
        false
    }

    /// Waits for the last child to end, reading meanwhile, so that nobody is stuck writing.
    pub async fn all_gone_by(&mut self, deadline: Millis) -> bool {
        loop {
            if self.take_ends() {
                return true;
            }
            if clock::now() >= deadline {
                return false;
            }
            self.turn(Some(deadline)).await;
        }
    }
}

pub(super) fn span(time: Duration) -> Span {
    Span(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}
