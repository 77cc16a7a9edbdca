//! The work under one lease: a workspace, the steps in it, and the log on its way to the server.
//!
//! It runs as a task beside the session, which talks to the server meanwhile. When it returns,
//! nothing of the job is left on this machine but what it reports, and the record of it, which is
//! kept until the server has it. When it is dropped, the work goes on in its shim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use delta_core::Cause;
use delta_core::time::Millis;
use delta_wire::JobSpec;
use delta_wire::agent::proto::StepResult;
use delta_wire::runner::LeaseGranted;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::agent::SlotContext;
use crate::attempt::{self, Adopted, Attempt, Begin, Finished, Happened, Watcher};
use crate::clock::wall_time;
use crate::executor::{
    BaseEnvironment, Ended, Identity, LogSize, Outcome, Step, StopOrder, StopReason, Work,
    stopped_at, unusable,
};
use crate::link::Cursors;
use crate::log_ship::{self, Shipment};
use crate::note::Note;
use crate::progress::{Lines, Progress};
use crate::report;
use crate::shim::{Confinement, Sandbox};
use crate::spec;
use crate::workspace::{AttemptFolder, Home};

/// How long the end of a job waits for a server that is there and takes no more of its log. The
/// result matters more than the last lines: past this it is reported without them, and says so.
/// Without a line there is no result to report either, and the lease's local end is the bound.
const FLUSH_BOUND: Duration = Duration::from_secs(30);

/// The same when the job was stopped: the holder leaves itself five seconds of a cancel deadline,
/// and the acknowledgement must fit into them too.
const FLUSH_AFTER_STOP: Duration = Duration::from_secs(3);

/// The log on its way; dropping it stops the shipping.
type Shipping = AbortOnDropHandle<Result<(), log_ship::ShipError>>;

/// What the session can see of the work while it goes on.
#[derive(Debug, Default)]
pub(crate) struct Visible {
    /// Log bytes the server has.
    pub shipped: Arc<AtomicU64>,
    /// The steps are over; only the log is still on its way.
    pub uploading: AtomicBool,
    /// The step at work, counted from 0, and what people call it.
    pub step: std::sync::Mutex<Option<(usize, String)>>,
}

/// What the work came to.
pub(crate) struct WorkEnd {
    pub ended: Ended,
    pub started_at: String,
    pub finished_at: String,
    pub steps: Vec<StepResult>,
    /// The record on disk, to be removed when nobody needs it any more.
    pub attempt: Option<Attempt>,
    /// The removal of the workspace, which a result does not wait for.
    pub cleaning: Option<JoinHandle<()>>,
}

/// What the session orders while the work goes on, and what it begins with.
pub(crate) struct Assignment {
    pub context: Arc<SlotContext>,
    pub granted: Arc<LeaseGranted>,
    pub identity: Identity,
    pub stop: watch::Receiver<Option<StopOrder>>,
    /// The lease's local end, as it moves.
    pub until: watch::Receiver<Millis>,
    pub must_finish_by: Millis,
    pub visible: Arc<Visible>,
    pub cursors: watch::Receiver<Cursors>,
    pub line: watch::Receiver<Option<u64>>,
}

/// Does the work of one lease.
pub(crate) async fn perform(mut assignment: Assignment, adopted: Option<Adopted>) -> WorkEnd {
    let started_at = wall_time();
    let done = match adopted {
        Some(adopted) => {
            assignment.tell_started();
            let number = adopted.number;
            let steps = adopted.steps.clone();
            let tap = assignment.tap(&steps);
            let attempt = adopted.resume(&assignment.context.state, tap);
            let folder = assignment.context.work_folder.existing(number);
            Ok(assignment.follow(attempt, &steps, folder).await)
        }
        None => assignment.begin().await,
    };
    let end = match done {
        Ok(end) => end,
        Err(ended) => WorkEnd {
            ended: *ended,
            started_at,
            finished_at: wall_time(),
            steps: Vec::new(),
            attempt: None,
            cleaning: None,
        },
    };
    assignment.context.observer.progress(Progress::Ended {
        job: &assignment.identity,
        ended: &end.ended,
    });
    end
}

impl Assignment {
    async fn begin(&mut self) -> Result<WorkEnd, Box<Ended>> {
        let spec = spec::read(&self.granted);
        if let Ok(JobSpec {
            name: Some(name), ..
        }) = &spec
        {
            self.identity.job_name.clone_from(name);
        }
        self.tell_started();
        let mut spec = spec.map_err(|unusable| not_begun(unusable.cause, unusable.summary))?;
        if let Some(order) = *self.stop.borrow() {
            return Err(stopped_before(order.reason));
        }
        if let Some(name) = unusable(&spec.env) {
            let summary = format!("the variable {name:?} cannot be set");
            return Err(not_begun(Cause::SpecError, summary));
        }
        let number = self.context.state.number();
        let confinement = self.confinement();
        let folder = self.make_folder(number, confinement).await?;
        let steps: Vec<Step> = spec.steps.drain(..).map(Step::from).collect();
        match self.start(number, spec, &steps, &folder, confinement) {
            Ok(attempt) => Ok(self.follow(attempt, &steps, folder).await),
            Err(problem) => {
                remove(folder).await;
                let summary = format!("no shim could be started: {problem}");
                Err(not_begun(Cause::StartUp, summary))
            }
        }
    }

    fn confinement(&self) -> Confinement {
        let context = &self.context;
        let (state, work) = (context.state.path(), context.work_folder.path());
        let sandbox = context.settings.sandbox.for_run(!context.untrusted);
        Confinement::of_slot(sandbox, state, work, context.slot)
    }

    /// What `--pass-env` names is for those who are trusted.
    fn base_environment(&self) -> BaseEnvironment {
        match self.context.untrusted {
            true => BaseEnvironment::Clean { pass: Vec::new() },
            false => self.context.settings.base_environment.clone(),
        }
    }

    fn start(
        &self,
        number: u64,
        spec: JobSpec,
        steps: &[Step],
        folder: &AttemptFolder,
        confinement: Confinement,
    ) -> std::io::Result<Attempt> {
        let settings = &self.context.settings;
        let work = Work {
            identity: self.identity.clone(),
            steps: steps.to_vec(),
            env: spec.env,
            workspace: folder.workspace.clone(),
            workdir: spec.workdir,
            tmp: folder.tmp.clone(),
            home: (home(confinement) == Home::Own).then(|| folder.home.clone()),
            base: self.base_environment(),
            hidden: confinement.to_hide(&self.context.secrets, self.context.work_folder.path()),
            confinement,
            control_group: true,
            log_quota: settings.log_quota,
            stop_grace: settings.stop_grace,
            leftover_grace: settings.leftover_grace,
        };
        let note = Note::of(&self.context, &self.granted, &self.identity);
        let begin = Begin {
            program: &settings.shim,
            number,
            work: &work,
            until: *self.until.borrow(),
            must_finish_by: self.must_finish_by,
            abandoned: settings.abandoned,
            note: &note.to_bytes(),
        };
        attempt::start(&self.context.state, begin, self.tap(steps))
    }

    /// Stays with the work to its end, and ships its log.
    async fn follow(
        &mut self,
        mut attempt: Attempt,
        steps: &[Step],
        folder: AttemptFolder,
    ) -> WorkEnd {
        let shipment = Shipment {
            link: self.context.link.clone(),
            execution: self.context.execution.clone(),
            lease: self.granted.lease_id.clone(),
            path: attempt.spool(),
            grows: attempt.grows(),
            cursors: self.cursors.clone(),
            line: self.line.clone(),
            shipped: Arc::clone(&self.visible.shipped),
        };
        let shipping = Shipping::new(tokio::spawn(log_ship::ship(shipment)));
        let finished = self.obey_until_ended(&mut attempt).await;
        let steps = finished.steps.iter().map(|it| report::step(it, steps));
        let steps = steps.collect();
        self.visible.uploading.store(true, Ordering::Relaxed);
        let cleaning = tokio::spawn(remove(folder));
        flush(shipping, self.stop.clone(), self.patience()).await;
        WorkEnd {
            ended: finished.ended,
            started_at: finished.started_at,
            finished_at: finished.finished_at,
            steps,
            attempt: Some(attempt),
            cleaning: Some(cleaning),
        }
    }

    fn patience(&self) -> Patience {
        Patience {
            line: self.line.clone(),
            cursors: self.cursors.clone(),
            bound: FLUSH_BOUND,
        }
    }

    async fn obey_until_ended(&mut self, attempt: &mut Attempt) -> Finished {
        self.stop.mark_changed();
        self.until.mark_changed();
        loop {
            tokio::select! {
                finished = attempt.ended() => return finished,
                Ok(()) = self.stop.changed() => {
                    if let Some(order) = *self.stop.borrow_and_update() {
                        attempt.stop(order);
                    }
                }
                Ok(()) = self.until.changed() => attempt.extend(*self.until.borrow_and_update()),
            }
        }
    }

    async fn make_folder(
        &self,
        number: u64,
        confinement: Confinement,
    ) -> Result<AttemptFolder, Box<Ended>> {
        let context = Arc::clone(&self.context);
        let made = tokio::task::spawn_blocking(move || {
            let source = &context.settings.source;
            let folder = &context.work_folder;
            folder.attempt(number, source, home(confinement), confinement.user)
        });
        let problem = match made.await {
            Ok(Ok(folder)) => return Ok(folder),
            Ok(Err(problem)) => problem,
            Err(problem) => {
                return Err(not_begun(
                    Cause::StartUp,
                    format!("no workspace: {problem}"),
                ));
            }
        };
        let cause = match problem.is_disk_full() {
            true => Cause::DiskFull,
            false => Cause::StartUp,
        };
        Err(not_begun(
            cause,
            format!("no workspace: {}", in_full(&problem)),
        ))
    }

    fn tell_started(&self) {
        let job = &self.identity;
        self.context.observer.progress(Progress::Started { job });
    }

    fn tap(&self, steps: &[Step]) -> Box<dyn Watcher> {
        Box::new(Tap {
            context: Arc::clone(&self.context),
            visible: Arc::clone(&self.visible),
            identity: self.identity.clone(),
            steps: steps.to_vec(),
            lines: Lines::default(),
        })
    }
}

/// Waits for the rest of the log: long while the job ended by itself, briefly once it is to stop,
/// and not at all when nobody wants it any more.
async fn flush(
    shipping: Shipping,
    mut stop: watch::Receiver<Option<StopOrder>>,
    patience: Patience,
) {
    let hurried = async {
        let urgent =
            |order: &Option<StopOrder>| order.is_some_and(|it| it.reason != StopReason::TimedOut);
        let order = stop.wait_for(urgent).await.ok().and_then(|order| *order);
        match order.map(|it| it.reason) {
            Some(StopReason::LeaseLost) => {}
            Some(_) => sleep(FLUSH_AFTER_STOP).await,
            // Nobody is left to order anything: the session is gone.
            None => std::future::pending().await,
        }
    };
    let shipped = tokio::select! {
        shipped = shipping => shipped,
        () = patience.runs_out() => {
            tracing::warn!("the server takes no more of the log");
            return;
        }
        () = hurried => return,
    };
    match shipped {
        Ok(Ok(())) => {}
        Ok(Err(problem)) => tracing::warn!(error = %problem, "the log was not shipped"),
        Err(problem) => tracing::error!(error = %problem, "shipping the log failed"),
    }
}

/// How long a log that stands still is waited for.
struct Patience {
    line: watch::Receiver<Option<u64>>,
    cursors: watch::Receiver<Cursors>,
    bound: Duration,
}

impl Patience {
    /// Ends when there was a line for the whole bound and the log did not get on.
    async fn runs_out(mut self) {
        loop {
            // Those who tell are gone only with the whole session.
            if self.line.wait_for(Option::is_some).await.is_err() {
                return std::future::pending().await;
            }
            tokio::select! {
                () = sleep(self.bound) => return,
                Ok(()) = self.line.changed() => {}
                Ok(()) = self.cursors.changed() => {}
            }
        }
    }
}

async fn remove(folder: AttemptFolder) {
    let removed = tokio::task::spawn_blocking(move || folder.remove()).await;
    if let Err(problem) = removed {
        tracing::warn!(error = %problem, "the workspace was not removed");
    }
}

/// A confined job cannot reach the agent's.
fn home(confinement: Confinement) -> Home {
    match confinement.sandbox {
        Sandbox::Strict => Home::Own,
        Sandbox::Host | Sandbox::Open => Home::Agents,
    }
}

fn not_begun(cause: Cause, summary: String) -> Box<Ended> {
    tracing::warn!(cause = cause.name(), summary, "the work was not begun");
    Box::new(Ended {
        outcome: Outcome::Failed { exit_code: None },
        cause: Some(cause),
        summary,
        step: None,
        stopped: None,
        confirmed: true,
        log: LogSize::default(),
    })
}

fn stopped_before(reason: StopReason) -> Box<Ended> {
    let (outcome, cause, summary) = stopped_at(reason, 1);
    Box::new(Ended {
        outcome,
        cause,
        summary,
        step: Some(0),
        stopped: Some(reason),
        confirmed: true,
        log: LogSize::default(),
    })
}

/// An error with all its sources, for a sentence.
fn in_full(problem: &dyn std::error::Error) -> String {
    let mut words = problem.to_string();
    let mut source = problem.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}

/// Tells the observer what happens, and keeps what heartbeats tell.
struct Tap {
    context: Arc<SlotContext>,
    visible: Arc<Visible>,
    identity: Identity,
    steps: Vec<Step>,
    lines: Lines,
}

impl Watcher for Tap {
    fn happened(&mut self, what: Happened<'_>) {
        let (job, observer) = (&self.identity, &self.context.observer);
        let tell = |line: &[u8]| observer.progress(Progress::Output { job, line });
        match what {
            Happened::Output(bytes) => self.lines.push(bytes, tell),
            Happened::StepEnded(_) => self.lines.finish(tell),
            Happened::StepBegan { index } => {
                let (label, text) = match self.steps.get(index) {
                    Some(step) => (step.label(), step.script.as_str()),
                    None => (String::new(), ""),
                };
                let mut step = self.visible.step.lock();
                *step.as_deref_mut().unwrap_or(&mut None) = Some((index, label));
                let count = self.steps.len();
                observer.progress(Progress::Step {
                    job,
                    index,
                    count,
                    text,
                });
            }
        }
    }
}

/// A last line without its newline is a line too.
impl Drop for Tap {
    fn drop(&mut self) {
        let (job, observer) = (&self.identity, &self.context.observer);
        self.lines
            .finish(|line| observer.progress(Progress::Output { job, line }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_log_waits_for_its_line_however_long_it_is_away() {
        // D8: a job that ends during an outage keeps its log. F44: a server that is there and takes
        // nothing does not keep the result.
        let bound = Duration::from_millis(50);
        let (line, cursors) = (watch::Sender::new(None), watch::Sender::default());
        let patience = Patience {
            line: line.subscribe(),
            cursors: cursors.subscribe(),
            bound,
        };
        let mut over = Box::pin(patience.runs_out());
        let waits = timeout(bound * 4, &mut over).await;
        assert!(waits.is_err(), "it gave up without a line");
        line.send_replace(Some(1));
        for received in 1..5 {
            let waits = timeout(bound / 2, &mut over).await;
            assert!(waits.is_err(), "it gave up though the log got on");
            cursors.send_modify(|it: &mut Cursors| it.received = received);
        }
        let ended = timeout(bound * 100, &mut over).await;
        assert!(ended.is_ok(), "it never gave up");
    }
}
