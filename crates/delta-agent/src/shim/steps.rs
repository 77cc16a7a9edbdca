//! Steps in order, one shell or program each, all writing into one pipe; and the end of everything
//! they started.
//!
//! One pipe for both streams of all steps keeps the order of arrival exactly. Nobody waits for its
//! end, because a grandchild may hold it open for ever: what a dead process wrote is already in the
//! pipe, so reading until it is empty is enough.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use delta_core::Cause;
use delta_core::time::{Millis, Span};
use rustix::process::Pid;

use super::attempt::{Shim, folder_inside};
use super::order::{Event, StepRecord};
use super::spawner::Program;
use super::tree;
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
    Stopped(StopReason),
    NotStarted(Cause, String),
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
        self.spool.step(index + 1, &step);
        self.marked();
        self.control.send(&Event::StepBegan { index });
        let (started_at, began) = (clock::wall_time(), Instant::now());
        self.step_deadline = step.timeout.map(|timeout| clock::now() + span(timeout));
        let end = self.begin(index, step).await;
        self.step_deadline = None;
        self.drain();
        let status = match &end {
            StepEnd::Exited(status) => Some(*status),
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

    /// Starts a step and waits for it.
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
        let (program, what) = match step.argv {
            Some(words) => (Program::Words(words), "the program could not be started"),
            None => (Program::Script(step.script), "no shell could be started"),
        };
        match self.spawner.spawn(program, directory).await {
            Ok(pid) => self.supervise(pid).await,
            Err(problem) => not_started(spawn_cause(&problem), format!("{what}: {problem}")),
        }
    }

    /// Waits for the shell of a step, reading what is printed and obeying orders to stop.
    async fn supervise(&mut self, shell: Pid) -> StepEnd {
        let mut asked = false;
        loop {
            if let Some(status) = tree::reap(Some(shell)).watched {
                return match self.stop {
                    Some(stop) => StepEnd::Stopped(stop.reason),
                    None => StepEnd::Exited(ExitStatus::from_raw(status.as_raw())),
                };
            }
            if let Some(stop) = self.stop {
                if !asked {
                    tree::terminate();
                    asked = true;
                }
                if clock::now().0 >= stop.kill_at {
                    return StepEnd::Stopped(stop.reason);
                }
            }
            self.turn(self.stop.map(|stop| Millis(stop.kill_at))).await;
        }
    }

    /// Ends what is left of all steps: TERM, a grace, then KILL in rounds until there is no child.
    /// True when that is so.
    pub async fn end_tree(&mut self) -> bool {
        if tree::reap(None).none_left {
            return true;
        }
        let own_grace = clock::now() + span(self.order.leftover_grace);
        tree::terminate();
        loop {
            if tree::reap(None).none_left {
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
    async fn all_gone_by(&mut self, deadline: Millis) -> bool {
        loop {
            if tree::reap(None).none_left {
                return true;
            }
            if clock::now() >= deadline {
                return false;
            }
            self.turn(Some(deadline)).await;
        }
    }
}

fn span(time: Duration) -> Span {
    Span(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}
