//! The work under one lease: a workspace, the steps in it, and the log on its way to the server.
//!
//! It runs as a task beside the session, which talks to the server meanwhile. When it returns,
//! nothing of the job is left on this machine but what it reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use delta_core::Cause;
use delta_wire::JobSpec;
use delta_wire::job_spec::WorkKind;
use delta_wire::runner::{GrantedSpec, LeaseGranted};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::agent::SlotContext;
use crate::clock::wall_time;
use crate::executor::{self, Ended, Identity, LogFile, LogSize, Outcome, StopOrder, StopReason};
use crate::log_ship::{self, Shipment};
use crate::progress::{Observer, Progress};
use crate::workspace::AttemptFolder;

/// How long the end of a job waits for the rest of its log to reach the server. The result matters
/// more than the last lines: past this it is reported without them, and says so.
const FLUSH_BOUND: Duration = Duration::from_secs(30);

/// What the session can see of the work while it goes on.
#[derive(Debug, Default)]
pub(crate) struct Visible {
    /// Log bytes the server has.
    pub shipped: Arc<AtomicU64>,
    /// The steps are over; only the log is still on its way.
    pub uploading: AtomicBool,
    /// The step at work, counted from 0, and its first line.
    pub step: std::sync::Mutex<Option<(usize, String)>>,
}

/// What the work came to.
#[derive(Debug)]
pub(crate) struct WorkEnd {
    pub ended: Ended,
    pub started_at: String,
    pub finished_at: String,
    /// Where the server keeps the log; absent when it does not have all of it.
    pub log_uri: Option<String>,
}

/// Does the work of one lease.
pub(crate) async fn perform(
    context: Arc<SlotContext>,
    granted: Arc<LeaseGranted>,
    identity: Identity,
    stop: watch::Receiver<Option<StopOrder>>,
    visible: Arc<Visible>,
) -> WorkEnd {
    let started_at = wall_time();
    let tap = Tap {
        context: &context,
        visible: &visible,
    };
    tap.progress(Progress::Started { job: &identity });
    let (ended, log_uri) = attempt(&context, &granted, &identity, stop, &tap).await;
    tap.progress(Progress::Ended {
        job: &identity,
        ended: &ended,
    });
    WorkEnd {
        ended,
        started_at,
        finished_at: wall_time(),
        log_uri,
    }
}

async fn attempt(
    context: &Arc<SlotContext>,
    granted: &LeaseGranted,
    identity: &Identity,
    stop: watch::Receiver<Option<StopOrder>>,
    tap: &Tap<'_>,
) -> (Ended, Option<String>) {
    let spec = match read_spec(context, granted).await {
        Ok(spec) => spec,
        Err((cause, summary)) => return (not_begun(cause, summary), None),
    };
    let folder = match make_folder(context).await {
        Ok(folder) => folder,
        Err(summary) => return (not_begun(Cause::StartUp, summary), None),
    };
    let done = run_in(context, granted, identity, spec, &folder, stop, tap).await;
    let removed = tokio::task::spawn_blocking(move || folder.remove()).await;
    if let Err(problem) = removed {
        tracing::warn!(error = %problem, "the workspace was not removed");
    }
    done
}

async fn run_in(
    context: &Arc<SlotContext>,
    granted: &LeaseGranted,
    identity: &Identity,
    spec: JobSpec,
    folder: &AttemptFolder,
    stop: watch::Receiver<Option<StopOrder>>,
    tap: &Tap<'_>,
) -> (Ended, Option<String>) {
    let log = match LogFile::create(&folder.log, context.settings.log_quota) {
        Ok(log) => log,
        Err(problem) => {
            let summary = format!("the log cannot be created: {problem}");
            return (not_begun(Cause::StartUp, summary), None);
        }
    };
    let shipment = Shipment {
        client: context.client.clone(),
        lease: granted.lease_id.clone(),
        runner_id: context.runner_id.clone(),
        path: folder.log.clone(),
        grows: log.follow(),
        shipped: Arc::clone(&tap.visible.shipped),
    };
    let shipping = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(log_ship::ship(shipment)));
    let work = executor::Work {
        identity: identity.clone(),
        steps: spec.steps,
        env: spec.env,
        workspace: folder.workspace.clone(),
        workdir: spec.workdir,
        tmp: folder.tmp.clone(),
        base: context.settings.base_environment,
        leftover_grace: context.settings.leftover_grace,
    };
    let ended = executor::execute(&work, log, stop.clone(), tap).await;
    tap.visible.uploading.store(true, Ordering::Relaxed);
    let log_uri = flush(shipping, stop).await;
    (ended, log_uri)
}

/// Waits for the rest of the log, unless nobody wants it any more.
async fn flush(
    shipping: tokio_util::task::AbortOnDropHandle<Result<String, log_ship::ShipError>>,
    mut stop: watch::Receiver<Option<StopOrder>>,
) -> Option<String> {
    let lost = stop.wait_for(|order| order.is_some_and(|it| it.reason == StopReason::LeaseLost));
    let shipped = tokio::select! {
        shipped = timeout(FLUSH_BOUND, shipping) => shipped,
        Ok(_) = lost => return None,
    };
    match shipped {
        Ok(Ok(Ok(uri))) => return Some(uri),
        Ok(Ok(Err(problem))) => tracing::warn!(error = %problem, "the log was not shipped"),
        Ok(Err(problem)) => tracing::error!(error = %problem, "shipping the log failed"),
        Err(_) => tracing::warn!("the log did not reach the server in time"),
    }
    None
}

async fn make_folder(context: &Arc<SlotContext>) -> Result<AttemptFolder, String> {
    let context = Arc::clone(context);
    let made =
        tokio::task::spawn_blocking(move || context.work_folder.attempt(&context.settings.source));
    match made.await {
        Ok(Ok(folder)) => Ok(folder),
        Ok(Err(problem)) => Err(format!("no workspace: {}", in_full(&problem))),
        Err(problem) => Err(format!("no workspace: {problem}")),
    }
}

async fn read_spec(
    context: &SlotContext,
    granted: &LeaseGranted,
) -> Result<JobSpec, (Cause, String)> {
    let unusable = |text: String| (Cause::SpecError, text);
    let fetched;
    let text = match &granted.spec {
        GrantedSpec::Embedded(spec) => spec.as_text().as_bytes(),
        GrantedSpec::Referenced(reference) => {
            fetched = context
                .client
                .job_spec(reference, &granted.lease_id)
                .await
                .map_err(|problem| {
                    (
                        Cause::StartUp,
                        format!("the job spec was not fetched: {problem}"),
                    )
                })?;
            &fetched[..]
        }
    };
    let spec = JobSpec::parse(text)
        .map_err(|problem| unusable(format!("the job spec cannot be read: {problem}")))?;
    if spec.work() != WorkKind::Steps {
        let kind = spec.work().as_str();
        return Err(unusable(format!(
            "this agent executes steps, the job has {kind}"
        )));
    }
    if spec.image.is_some() {
        return Err(unusable(
            "this agent executes processes, the job needs an image".into(),
        ));
    }
    Ok(spec)
}

fn not_begun(cause: Cause, summary: String) -> Ended {
    tracing::warn!(cause = cause.name(), summary, "the work was not begun");
    Ended {
        outcome: Outcome::Failed { exit_code: None },
        cause: Some(cause),
        summary,
        step: None,
        stopped: None,
        confirmed: true,
        log: LogSize::default(),
    }
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

/// Sees what the observer sees, and keeps what heartbeats tell.
struct Tap<'a> {
    context: &'a SlotContext,
    visible: &'a Visible,
}

impl Observer for Tap<'_> {
    fn progress(&self, progress: Progress<'_>) {
        if let Progress::Step { index, text, .. } = &progress {
            let first = text
                .lines()
                .find(|line| !line.trim().is_empty())
                .unwrap_or_default();
            let first: String = first.trim().chars().take(MAX_STEP_CHARS).collect();
            *self
                .visible
                .step
                .lock()
                .unwrap_or_else(|broken| broken.into_inner()) = Some((*index, first));
        }
        self.context.observer.progress(progress);
    }
}

/// Characters of a step that a heartbeat repeats.
const MAX_STEP_CHARS: usize = 120;
