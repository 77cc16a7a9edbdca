//! The work under one lease: a workspace, the steps in it, and the log on its way to the server.
//!
//! It runs as a task beside the session, which talks to the server meanwhile. When it returns,
//! nothing of the job is left on this machine but what it reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use delta_core::Cause;
use delta_wire::JobSpec;
use delta_wire::runner::LeaseGranted;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::agent::SlotContext;
use crate::clock::wall_time;
use crate::executor::{self, Ended, Identity, LogFile, LogSize, Outcome, StopOrder, StopReason};
use crate::log_ship::{self, Shipment};
use crate::progress::{Observer, Progress};
use crate::spec;
use crate::workspace::AttemptFolder;

/// How long the end of a job waits for the rest of its log to reach the server. The result matters
/// more than the last lines: past this it is reported without them, and says so.
const FLUSH_BOUND: Duration = Duration::from_secs(30);

/// The same when the job was stopped: the holder leaves itself five seconds of a cancel deadline,
/// and the acknowledgement must fit into them too.
const FLUSH_AFTER_STOP: Duration = Duration::from_secs(3);

/// The log on its way; dropping it stops the shipping.
type Shipping = AbortOnDropHandle<Result<String, log_ship::ShipError>>;

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
    mut identity: Identity,
    stop: watch::Receiver<Option<StopOrder>>,
    visible: Arc<Visible>,
) -> WorkEnd {
    let started_at = wall_time();
    let tap = Tap {
        context: &context,
        visible: &visible,
    };
    let spec = spec::read(&context.client, &granted).await;
    if let Ok(JobSpec {
        name: Some(name), ..
    }) = &spec
    {
        identity.job_name.clone_from(name);
    }
    tap.progress(Progress::Started { job: &identity });
    let (ended, log_uri) = match spec {
        Ok(spec) => attempt(&context, &granted, &identity, spec, stop, &tap).await,
        Err(unusable) => (not_begun(unusable.cause, unusable.summary), None),
    };
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
    spec: JobSpec,
    stop: watch::Receiver<Option<StopOrder>>,
    tap: &Tap<'_>,
) -> (Ended, Option<String>) {
    let folder = match make_folder(context).await {
        Ok(folder) => folder,
        Err((cause, summary)) => return (not_begun(cause, summary), None),
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
    let shipping = Shipping::new(tokio::spawn(log_ship::ship(shipment)));
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

/// Waits for the rest of the log: long while the job ended by itself, briefly once it is to stop,
/// and not at all when nobody wants it any more.
async fn flush(shipping: Shipping, mut stop: watch::Receiver<Option<StopOrder>>) -> Option<String> {
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
        shipped = timeout(FLUSH_BOUND, shipping) => shipped,
        () = hurried => return None,
    };
    match shipped {
        Ok(Ok(Ok(uri))) => return Some(uri),
        Ok(Ok(Err(problem))) => tracing::warn!(error = %problem, "the log was not shipped"),
        Ok(Err(problem)) => tracing::error!(error = %problem, "shipping the log failed"),
        Err(_) => tracing::warn!("the log did not reach the server in time"),
    }
    None
}

async fn make_folder(context: &Arc<SlotContext>) -> Result<AttemptFolder, (Cause, String)> {
    let context = Arc::clone(context);
    let made =
        tokio::task::spawn_blocking(move || context.work_folder.attempt(&context.settings.source));
    match made.await {
        Ok(Ok(folder)) => Ok(folder),
        Ok(Err(problem)) => {
            let full = problem.is_disk_full();
            let cause = if full {
                Cause::DiskFull
            } else {
                Cause::StartUp
            };
            Err((cause, format!("no workspace: {}", in_full(&problem))))
        }
        Err(problem) => Err((Cause::StartUp, format!("no workspace: {problem}"))),
    }
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
