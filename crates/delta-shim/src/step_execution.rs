//! Steps in order, one shell or program each, all writing into one pipe; and the end of everything
//! they started.
//!
//! One pipe for both streams of all steps keeps the order of arrival exactly. Nobody waits for its
//! end, because a grandchild may hold it open for ever: what a dead process wrote is already in the
//! pipe, so reading until it is empty is enough.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use std::{fs, io};

use delta_core::Cause;
use delta_core::time::{Millis, Span};
use delta_wire::Evidence;
use rustix::process::Pid;
use tokio::sync::oneshot;

use crate::clock;
use crate::order::{Event, STEP_FILE, StepRecord};
use crate::processes::tree;
use crate::report_archive::{self, Lost};
use crate::report_files::About;
use crate::shim::{Shim, folder_inside};
use crate::spawner::Program;
use crate::step::Step;
use crate::stop::StopReason;
use crate::verdict::{spawn_cause, terminated};

/// How long killed processes may take to vanish before the end is reported as unconfirmed. KILL
/// works within milliseconds unless a process hangs inside the kernel, and then nothing works.
const KILL_BOUND: Span = Span::secs(5);

/// Between two rounds of KILL: deaths are waited for, not slept through.
const FIRST_ROUND: Span = Span(2);
const LONGEST_ROUND: Span = Span(50);

/// How long reports of a test that was stopped may keep the end of what it started waiting, as long
/// as the lease is held: they are copied in milliseconds unless they are huge.
const KEEP_BOUND: Span = Span::secs(2);

/// How far apart the processes of a unit are told to end: they are told one behind the other, and
/// whoever tells them may have to wait for a processor. Only a step that TERM ended waits for it.
const TOLD_APART: Span = Span::secs(2);

/// Letters kept of why a report was lost: hundreds of tests may have lost theirs, and the record of
/// the end has a reserve to fit into.
const MAX_LOST: usize = 80;

/// What a test may report, and what of it was there before it; nothing where nobody could look.
struct FoundEvidence {
    pattern: String,
    before: Option<HashMap<String, About>>,
}

/// How the steps ended, before what they left is cleared.
pub(crate) struct Verdict {
    pub step: Option<usize>,
    pub end: StepEnd,
    /// What was seen when it ended so: steps behind it may print, and make room on the disk.
    pub evidence: Evidence,
    /// The step printed nothing.
    pub silent: bool,
}

impl Verdict {
    /// It came to its end, or to that of its time, without a word.
    pub fn says_nothing(&self) -> bool {
        let ended = matches!(
            self.end,
            StepEnd::Exited(_)
                | StepEnd::OutOfMemory { .. }
                | StepEnd::Stopped(StopReason::TimedOut | StopReason::StepTimedOut)
        );
        self.silent && self.step.is_some() && ended
    }
}

pub(crate) enum StepEnd {
    AllDone,
    Exited(ExitStatus),
    /// The kernel ended processes for want of memory.
    OutOfMemory {
        status: ExitStatus,
        kills: u64,
        /// They are known to be the step's; otherwise they are anybody's on this machine.
        own: bool,
        /// What it could have had, in MiB.
        limit: Option<u64>,
    },
    Stopped(StopReason),
    NotStarted(Cause, String),
}

impl Shim {
    pub async fn steps(&mut self) -> Verdict {
        let mut first_failure = None;
        for index in 0..self.order.steps.len() {
            if !self.order.steps[index].is_due(first_failure.is_some()) {
                continue;
            }
            let end = match self.stop {
                Some(stop) => StepEnd::Stopped(stop.reason),
                None => self.step(index).await,
            };
            let step = Some(index);
            match end {
                StepEnd::AllDone => {}
                StepEnd::Exited(status) if status.success() => {}
                // Those behind it that wait for a failure have their turn now.
                StepEnd::Exited(_) | StepEnd::OutOfMemory { .. } | StepEnd::NotStarted(..) => {
                    if first_failure.is_none() && !self.order.steps[index].failure_allowed {
                        first_failure = Some(self.verdict(step, end));
                    }
                }
                // An order to stop is about all of them. Before the first it is about none.
                StepEnd::Stopped(_) => return self.verdict(self.step.and(step), end),
            }
        }
        first_failure.unwrap_or_else(|| self.verdict(None, StepEnd::AllDone))
    }

    /// Of an attempt whose first step was not begun.
    pub fn before_steps(&mut self, end: StepEnd) -> Verdict {
        self.verdict(None, end)
    }

    /// An end with what is seen of it now.
    fn verdict(&mut self, step: Option<usize>, end: StepEnd) -> Verdict {
        let evidence = match end {
            StepEnd::AllDone
            | StepEnd::Stopped(
                StopReason::Canceled | StopReason::LeaseLost | StopReason::Shutdown,
            ) => Evidence::default(),
            _ => {
                self.drain();
                self.release();
                self.evidence()
            }
        };
        Verdict {
            step,
            end,
            evidence,
            silent: self.spool.is_silent(),
        }
    }

    async fn step(&mut self, index: usize) -> StepEnd {
        let step = self.order.steps[index].clone();
        let found = self.look_for_reports(step.report.clone()).await;
        if let Some(stop) = self.stop {
            return StepEnd::Stopped(stop.reason);
        }
        self.step = Some(index);
        // For whoever must tell of the attempt should this process be lost; a disk that is full is
        // no reason not to work.
        let _ = fs::write(self.folder.join(STEP_FILE), (index + 1).to_string());
        self.release();
        self.spool.step(index + 1, &step);
        self.marked();
        self.control.send(&Event::StepBegan { index });
        let (started_at, began) = (clock::wall_time(), Instant::now());
        self.step_deadline = step.timeout.map(|timeout| clock::now() + span(timeout));
        self.silent_at = self.silent_from_now();
        self.oom.step_begins();
        let end = self.begin(index, step).await;
        (self.step_deadline, self.silent_at) = (None, None);
        self.drain();
        self.release();
        let took = began.elapsed();
        let lost = self.set_report_aside(index, found).await;
        let lost_to = lost.as_ref().and_then(|it| it.cause);
        let status = match &end {
            StepEnd::Exited(status) | StepEnd::OutOfMemory { status, .. } => Some(*status),
            _ => None,
        };
        let record = StepRecord {
            index,
            started_at,
            took,
            exit_code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            timed_out: matches!(end, StepEnd::Stopped(StopReason::StepTimedOut)),
            report_lost: lost.map(|it| it.words.chars().take(MAX_LOST).collect()),
            report_lost_cause: lost_to.map(|cause| cause.name().to_owned()),
        };
        self.steps.push(record.clone());
        self.control.send(&Event::StepEnded(record));
        end
    }

    /// What lies there before a test begins.
    async fn look_for_reports(&mut self, pattern: Option<String>) -> Option<FoundEvidence> {
        let pattern = pattern?;
        let (workspace, wanted) = (PathBuf::from(&self.order.workspace), pattern.clone());
        let looking = self.meanwhile(move || report_archive::look(&workspace, &wanted));
        let before = looking.await;
        Some(FoundEvidence { pattern, before })
    }

    /// The next test may write over its report; why it is not all there, if it is not.
    async fn set_report_aside(
        &mut self,
        index: usize,
        found: Option<FoundEvidence>,
    ) -> Option<Lost> {
        let FoundEvidence { pattern, before } = found?;
        let said = match before {
            Some(before) => {
                let into = self
                    .folder
                    .join(report_archive::FOLDER)
                    .join(index.to_string());
                let workspace = PathBuf::from(&self.order.workspace);
                let (mut left, wanted) = (self.report_bytes, pattern.clone());
                let keeping = self.meanwhile(move || {
                    let said = report_archive::keep(&workspace, &wanted, &before, &into, &mut left);
                    (said, left)
                });
                keeping.await.map(|(said, left)| {
                    self.report_bytes = left;
                    said
                })
            }
            None => None,
        };
        let lost = said.unwrap_or_else(|| {
            let words = format!("reports {pattern}: they were not kept");
            let cause = Some(Cause::AgentError);
            vec![Lost { words, cause }]
        });
        self.release();
        for it in &lost {
            self.spool.mark(&it.words);
        }
        if !lost.is_empty() {
            self.marked();
        }
        // What the job did comes before what this machine did.
        lost.into_iter().min_by_key(|it| it.cause.is_some())
    }

    /// Does what may take long in a thread, and goes on with everything else until it is done.
    /// Nothing where no thread could be had, or an order to stop does not wait any longer.
    async fn meanwhile<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, mut doing) = oneshot::channel();
        let work = move || drop(done.send(work()));
        let thread = std::thread::Builder::new().name("reports".into());
        thread.spawn(work).ok()?;
        let not_before = clock::now() + KEEP_BOUND;
        loop {
            let give_up = self.stop.map(|stop| match stop.reason {
                StopReason::LeaseLost => Millis(stop.kill_at),
                _ => Millis(stop.kill_at).max(not_before),
            });
            tokio::select! {
                biased;
                done = &mut doing => return done.ok(),
                () = self.turn(give_up) => {}
            }
            if give_up.is_some_and(|at| clock::now() >= at) {
                return None;
            }
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
            Err((cause, why)) => return not_started(cause, why),
        };
        let what = match step.argv {
            Some(_) => "the program could not be started",
            None => "no shell could be started",
        };
        // In a container its own shell says so; what is not found there is the runtime's program.
        let shell = step.shell.as_ref().filter(|_| self.container.is_none());
        let shell = shell.and_then(|words| words.first()).cloned();
        match self.carry_out(step, directory).await {
            Ok(end) => end,
            Err(problem) => match shell.filter(|_| problem.kind() == io::ErrorKind::NotFound) {
                Some(shell) => not_started(Cause::SpecError, no_shell(&shell, "this machine")),
                None => not_started(spawn_cause(&problem), format!("{what}: {problem}")),
            },
        }
    }

    async fn carry_out(&mut self, step: Step, directory: Option<PathBuf>) -> io::Result<StepEnd> {
        if self.container.is_some() {
            let shell = step.shell.as_deref();
            let calling = self.step_in_container(&step.in_shell(), shell, &step.env)?;
            let first = shell.and_then(|words| words.first());
            return Ok(match self.supervise(calling.pid).await {
                Ok(status) => self.judge(calling, status, first).await,
                Err(reason) => StepEnd::Stopped(reason),
            });
        }
        let program = match (step.argv, step.shell) {
            (Some(words), _) => Program::Words(words),
            (None, Some(mut shell)) => {
                shell.push(step.script);
                Program::Words(shell)
            }
            (None, None) => Program::Script(step.script),
        };
        let child = self.spawner.spawn(program, step.env, directory).await?;
        self.watch(child);
        Ok(match self.supervise(child).await {
            Ok(status) => self.of_process(status),
            Err(reason) => StepEnd::Stopped(reason),
        })
    }

    /// A step that failed while the kernel ended processes of it for want of memory failed for
    /// that, whatever its shell made of it: `make` ends with 2.
    fn of_process(&self, status: ExitStatus) -> StepEnd {
        match self.oom.own_kills() {
            Some(kills) if !status.success() => StepEnd::OutOfMemory {
                status,
                kills,
                own: true,
                limit: None,
            },
            _ => StepEnd::Exited(status),
        }
    }

    /// Waits for the shell of a step, reading what is printed and obeying orders to stop.
    async fn supervise(&mut self, shell: Pid) -> Result<ExitStatus, StopReason> {
        let mut asked = false;
        loop {
            if let Some(status) = self.end_of(shell) {
                return match self.stopped_it(asked) {
                    Some(reason) => Err(reason),
                    None if self.is_shut_down(status).await => Err(StopReason::Shutdown),
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

    /// Why a step that has ended was ended, if it was. A clock that ran out unnoticed behind its
    /// end did not end it: nobody had asked it to.
    fn stopped_it(&mut self, asked: bool) -> Option<StopReason> {
        let reason = self.stop?.reason;
        match reason {
            // It was about this step, which is over.
            StopReason::StepTimedOut | StopReason::Silent if !asked => {
                self.stop = None;
                None
            }
            // It is about the steps behind it, which are not begun.
            StopReason::TimedOut if !asked => None,
            _ => Some(reason),
        }
    }

    /// Whether somebody else told a step to end who tells this process too: who stops a unit or the
    /// machine tells all that run in it, in any order. Orders are heard and deadlines kept
    /// meanwhile, but for those of the step, which is over.
    async fn is_shut_down(&mut self, status: ExitStatus) -> bool {
        if !terminated(status) {
            return false;
        }
        (self.step_deadline, self.silent_at) = (None, None);
        let until = clock::now() + TOLD_APART;
        while self.stop.is_none() && clock::now() < until {
            self.turn(Some(until)).await;
        }
        let reason = self.stop.map(|stop| stop.reason);
        reason == Some(StopReason::Shutdown)
    }

    fn ask_to_end(&mut self) {
        if self.container.is_some() {
            self.ask_container_to_end()
        } else {
            tree::terminate()
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

/// A shell that is not there is nothing the script did.
pub(crate) fn no_shell(shell: &str, place: &str) -> String {
    format!(
        "{place} has no `{shell}`, which the step's `shell` names: install it, or let the job run \
         where it is, in an `image` or by `requires`"
    )
}

pub(crate) fn span(time: Duration) -> Span {
    Span(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}
