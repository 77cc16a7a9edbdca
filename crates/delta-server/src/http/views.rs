//! Rows as people are shown them. Nothing here names a token: leases appear by number and epoch.

use delta_core::attempt::Report;
use delta_core::deadlines::{attempt_must_end_by, run_must_end_by};
use delta_core::lease::Revocation;
use delta_core::why::Line;
use delta_core::{
    Attempt, Concurrency, Job, Lease, LeaseState, Millis, Run, RunState, Settings, Span, Text,
};
use delta_store::read::{JobRows, RunRows};
use delta_wire::StepResult;
use delta_wire::api::{
    ArtifactView, AttemptView, CancelView, GroupView, JobSummary, JobView, LeaseView, LogView,
    ProgressView, ReportedView, RunSummary, RunView, Trigger, Trust, Why,
};
use delta_wire::states::{JobState, RunOutcome};

use super::waiting::{self, InLine, Jobs, Sight};

/// What is shown of an attempt beyond its row: the bytes it left.
#[derive(Default)]
pub struct Left {
    pub log: Option<LogView>,
    pub artifacts: Vec<ArtifactView>,
}

pub fn run(rows: &RunRows, settings: &Settings) -> RunView {
    let jobs = rows.jobs.iter();
    RunView {
        summary: run_summary(&rows.run, settings),
        version: rows.version,
        reruns: Vec::new(),
        untold: None,
        jobs: jobs.map(|(job, current)| summary(job, current)).collect(),
    }
}

/// A run without its jobs.
pub fn run_summary(run: &Run, settings: &Settings) -> RunSummary {
    let header = &run.header;
    let text = |text: &Option<Text>| text.as_ref().map(|text| text.to_string());
    RunSummary {
        run_id: run.id.to_string(),
        state: run.state.into(),
        outcome: run.outcome.and_then(RunOutcome::of_state),
        cause: run.cause.map(|cause| cause.name().to_string()),
        run_attempt: header.run_attempt,
        rerun_of: header.rerun_of.map(|id| id.to_string()),
        repository: text(&header.repository),
        git_ref: text(&header.git_ref),
        commit: text(&header.commit),
        trust: Some(if header.trusted {
            Trust::Trusted
        } else {
            Trust::Untrusted
        }),
        created_at: at(run.created_at),
        started_at: run.started_at.map(at),
        ended_at: run.ended_at.map(at),
        must_end_by: run_must_end_by(run, settings).map(at),
        why: will_fail(run)
            .or_else(|| waits(run))
            .or_else(|| in_line(run)),
        concurrency: header.concurrency.as_ref().map(group),
        cancel: run.cancel.as_ref().map(|it| cancel(it.at, &it.by)),
    }
}

/// The text that [`super::runs::by`] wrote, taken apart again.
fn cancel(asked_at: Millis, by: &str) -> CancelView {
    let (by, reason) = match by.split_once(": ") {
        Some((by, reason)) => (by, Some(reason)),
        None => (by, None),
    };
    CancelView {
        at: at(asked_at),
        by: by.into(),
        reason: reason.map(Into::into),
    }
}

/// A run without a plan: it is being planned, or, a stranger's, once somebody says so.
fn waits(run: &Run) -> Option<Why> {
    let trigger = run.header.trigger.as_deref().and_then(Trigger::from_text)?;
    if run.state != RunState::Planning || run.cancel.is_some() {
        return None;
    }
    if !trigger.gated {
        return Some(planning());
    }
    Some(Why {
        code: APPROVAL.into(),
        message: format!(
            "It comes from another repository: it is planned once somebody approves it, with \
             delta-ci approve {}.",
            run.id
        ),
    })
}

/// The code of a run that waits for somebody.
pub const APPROVAL: &str = "waits_for_approval";

/// Of a run that nobody keeps waiting.
pub fn planning() -> Why {
    Why {
        code: "waits_for_plan".into(),
        message: "Its commit is being fetched and planned.".into(),
    }
}

pub fn group(concurrency: &Concurrency) -> GroupView {
    GroupView {
        group: concurrency.group.to_string(),
        cancel_older: concurrency.cancel_older,
    }
}

/// Others of its group come first; who they are, says whoever looks at the group.
fn in_line(run: &Run) -> Option<Why> {
    let group = run.header.concurrency.as_ref()?;
    let line = || Line::of(group, &Default::default(), run.id.job(0));
    run.waits_for_turn().then(|| turn(&line()))
}

pub fn turn(line: &Line) -> Why {
    Why {
        code: "waiting_for_turn".into(),
        message: format!("It {line}."),
    }
}

/// That a required job failed for good is said at once, while the others go on.
fn will_fail(run: &Run) -> Option<Why> {
    (run.will_fail() && !run.state.has_ended()).then(|| Why {
        code: "will_fail".into(),
        message: "A required job did not succeed; the run ends as FAILED when the others are done."
            .into(),
    })
}

pub fn summary(job: &Job, current: &Attempt) -> JobSummary {
    let lease = current.lease.as_ref();
    JobSummary {
        job_id: job.id.to_string(),
        name: job.name.to_string(),
        state: JobState::of(job.resolution, current.state),
        required: job.policy.required,
        attempts: job.attempts,
        cause: job.cause.map(|cause| cause.name().to_string()),
        failure: None,
        failed_needs: Vec::new(),
        log_dropped: current.report.as_ref().and_then(|it| it.log_dropped),
        why: None,
        summary: said_at_the_end(current),
        kept_from: job.kept.map(|id| id.to_string()),
        started_at: lease.and_then(|lease| lease.acknowledged_at).map(at),
        ended_at: job.ended_at.map(at),
    }
}

/// What the runner said of an attempt when it ended.
fn said_at_the_end(attempt: &Attempt) -> Option<String> {
    let report = attempt.report.as_ref()?;
    report.summary.as_ref().map(|text| text.to_string())
}

/// What a job's view is made of beside its rows.
pub struct Surroundings<'a> {
    pub settings: &'a Settings,
    pub sight: &'a Sight,
    pub place: InLine,
    /// All jobs of the run.
    pub jobs: &'a Jobs<'a>,
}

pub fn job(
    rows: &JobRows,
    around: Surroundings,
    mut left: impl FnMut(&Attempt) -> Left,
) -> JobView {
    let job = &rows.job;
    let policy = &job.policy;
    let needs = policy.needs.iter().filter_map(|n| around.jobs.get(n));
    let current = rows.attempts.iter().find(|it| it.id.index == job.attempts);
    let reason = current.map(|attempt| {
        let asked = (job, attempt);
        let why = around
            .sight
            .why(&rows.run, asked, around.jobs, around.place);
        waiting::view(&why)
    });
    let ends = current
        .filter(|_| job.resolution.is_none())
        .and_then(|attempt| attempt_must_end_by(&rows.run, attempt, around.settings));
    JobView {
        job_id: job.id.to_string(),
        run_id: job.id.run.to_string(),
        name: job.name.to_string(),
        state: current.map_or(JobState::Created, |it| {
            JobState::of(job.resolution, it.state)
        }),
        required: policy.required,
        needs: needs.map(|need| need.name.to_string()).collect(),
        requires: policy
            .requires
            .split(' ')
            .filter(|it| !it.is_empty())
            .map(Into::into)
            .collect(),
        max_attempts: policy.max_attempts,
        priority: policy.priority,
        once: policy.once,
        concurrency: policy.concurrency.as_ref().map(group),
        cause: job.cause.map(|cause| cause.name().to_string()),
        failure: None,
        failed_needs: Vec::new(),
        kept_from: job.kept.map(|id| id.to_string()),
        why: reason,
        must_end_by: ends.map(at),
        attempts: rows
            .attempts
            .iter()
            .map(|it| attempt(it, rows, left(it)))
            .collect(),
    }
}

pub fn attempt(attempt: &Attempt, rows: &JobRows, left: Left) -> AttemptView {
    let past = rows.past_leases.iter().filter(|(id, _)| *id == attempt.id);
    let leases = past.map(|(_, lease)| lease).chain(&attempt.lease);
    let report = attempt.report.as_ref();
    let lease = attempt.lease.as_ref();
    AttemptView {
        attempt: attempt.id.index,
        state: attempt.state.into(),
        cause: attempt.cause.map(|cause| cause.name().to_string()),
        exit_code: report.and_then(|it| it.exit_code),
        summary: report
            .and_then(|it| it.summary.as_ref())
            .map(|it| it.to_string()),
        created_at: at(attempt.created_at),
        not_before: attempt.waits_for_a_moment().then(|| at(attempt.not_before)),
        queued_at: attempt.queued_at.map(at),
        started_at: lease.and_then(|lease| lease.acknowledged_at).map(at),
        ended_at: attempt.ended_at.map(at),
        reported: reported(attempt),
        losses: attempt.losses,
        dispatches: attempt.dispatches,
        cancel: attempt
            .cancel
            .as_ref()
            .map(|it| cancel(it.requested_at, &it.by)),
        progress: progress(attempt),
        confirmed: confirmed(attempt),
        evidence: report
            .and_then(|it| it.evidence.as_ref())
            .and_then(|text| serde_json::from_str(text).ok()),
        steps: steps(report),
        log: left.log,
        artifacts: left.artifacts,
        leases: leases.map(lease_view).collect(),
    }
}

/// D9: whoever ended the attempt without its holder has no proof.
fn confirmed(attempt: &Attempt) -> Option<bool> {
    let revoked = attempt.lease.as_ref().and_then(|lease| lease.revocation);
    if revoked == Some(Revocation::ForcedCancel) {
        return Some(false);
    }
    attempt.report.as_ref().and_then(|report| report.confirmed)
}

/// The steps as they were kept.
pub fn steps(report: Option<&Report>) -> Vec<StepResult> {
    let kept = report.and_then(|report| report.steps.as_ref());
    let read = kept.and_then(|text| serde_json::from_str(text).ok());
    read.unwrap_or_default()
}

/// A runner's clock that is further off than this is said to be wrong (A23): more than a slow line
/// or a repeated message explains.
const SKEW: Span = Span::secs(5 * 60);

fn reported(attempt: &Attempt) -> Option<ReportedView> {
    let report = attempt.report.as_ref()?;
    let (started, finished) = (report.started_at, report.finished_at);
    let said = finished.or(started)?;
    let received = attempt.ended_at?;
    let apart = received.since(said).max(said.since(received));
    let duration = started.zip(finished).map(|(from, to)| to.since(from));
    Some(ReportedView {
        started_at: started.map(at),
        reported_at: finished.map(at),
        received_at: at(received),
        duration_ms: duration.map(|span| span.0.unsigned_abs()),
        // The beginning may be long ago; it cannot be yet to come.
        skewed: if finished.is_some() {
            apart > SKEW
        } else {
            said.since(received) > SKEW
        },
    })
}

fn progress(attempt: &Attempt) -> Option<ProgressView> {
    let said = &attempt.progress;
    let view = ProgressView {
        percent: said.percent.map(f64::from),
        current_step: said.current_step.as_ref().map(|it| it.to_string()),
        step_index: said.step_index,
        message: said.message.as_ref().map(|it| it.to_string()),
    };
    (attempt.state.is_leased() && view != ProgressView::default()).then_some(view)
}

fn lease_view(lease: &Lease) -> LeaseView {
    let stale = matches!(lease.state, LeaseState::Expired | LeaseState::Revoked);
    LeaseView {
        number: lease.number.into(),
        epoch: lease.epoch,
        state: lease.state.into(),
        stale,
        reason: reason(lease).map(Into::into),
        runner_id: lease.runner.to_string(),
        granted_at: at(lease.granted_at),
        acknowledged_at: lease.acknowledged_at.map(at),
        expires_at: lease.state.is_live().then(|| at(lease.expires_at)),
        ended_at: lease.ended_at.map(at),
    }
}

/// Why a lease was lost: a revocation has a reason of its own.
fn reason(lease: &Lease) -> Option<&'static str> {
    match (lease.revocation, lease.state) {
        (Some(why), _) => Some(why.name()),
        (None, LeaseState::Expired) => Some("LEASE_EXPIRED"),
        (None, _) => None,
    }
}

pub fn at(moment: Millis) -> delta_wire::Millis {
    delta_wire::Millis(moment.0)
}
