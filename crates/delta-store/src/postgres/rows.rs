//! How runs, jobs, attempts and leases lie in their tables. For each: the columns, the row that is
//! written, and the row read back. Order is everything: lists and functions here go together.

use std::sync::Arc;

use delta_core::attempt::Progress;
use delta_core::lease::Closing;
use delta_core::{
    Attempt, AttemptId, Digest, Job, JobId, Lease, Member, Millis, Run, RunState, Span,
};

use super::value::{Fields, Value};
use crate::StoreError;
use crate::codec::{column, corrupt, row};

/// A column's name and type.
pub(super) type Columns = &'static [(&'static str, &'static str)];

pub(super) const RUN_KEY: Columns = &[("id", "uuid")];

/// Fixed when the run is made.
pub(super) const RUN_FIXED: Columns = &[
    ("project", "text"),
    ("header", "text"),
    ("repository", "text"),
    ("git_ref", "text"),
    ("commit", "text"),
    ("idempotency_key", "bytea"),
    ("queue", "text"),
    ("unique_key", "bytea"),
    ("rerun_of", "text"),
    ("created_at", "int8"),
];

/// The outbox's row of a new run.
pub(super) const REPORT: Columns = &[
    ("run_id", "uuid"),
    ("project", "text"),
    ("stage", "int8"),
    ("tries", "int8"),
    ("next_at", "int8"),
    ("why", "text"),
];

pub(super) fn first_report(run: &Run) -> [Value<'_>; 6] {
    [
        Value::Id(run.id),
        Value::Text(&run.header.project),
        Value::Int(0),
        Value::Int(0),
        Value::Int(run.created_at.0),
        Value::Text(""),
    ]
}

pub(super) const RUN_MOVING: Columns = &[
    ("state", "text"),
    ("outcome", "text"),
    ("cause", "text"),
    ("cancel", "text"),
    ("queued_at", "int8"),
    ("started_at", "int8"),
    ("ended_at", "int8"),
    ("jobs", "int8"),
    ("live_jobs", "int8"),
    ("required_failed", "int8"),
    ("required_canceled", "int8"),
    ("ended", "bool"),
    ("due_at", "int8"),
    ("moment", "int8"),
    ("keep_until", "int8"),
    ("place", "text"),
];

/// What is read of a run, for [`read_run`].
pub(super) const RUN_READ: &[&str] = &[
    "id",
    "header",
    "created_at",
    "state",
    "outcome",
    "cause",
    "cancel",
    "queued_at",
    "started_at",
    "ended_at",
    "jobs",
    "live_jobs",
    "required_failed",
    "required_canceled",
    "place",
];

pub(super) const JOB_KEY: Columns = &[("run_id", "uuid"), ("n", "int8")];

pub(super) const JOB_FIXED: Columns = &[
    ("project", "text"),
    ("name", "text"),
    ("policy", "text"),
    ("match_key", "text"),
    ("spec_digest", "bytea"),
    ("dependents", "text"),
    ("kept", "text"),
    ("spec", "bytea"),
];

pub(super) const JOB_MOVING: Columns = &[
    ("waiting_on", "int8"),
    ("attempts", "int8"),
    ("resolution", "text"),
    ("cause", "text"),
    ("ended_at", "int8"),
    ("place", "text"),
];

/// What is read of a job, for [`read_job`].
pub(super) const JOB_READ: &[&str] = &[
    "run_id",
    "n",
    "name",
    "policy",
    "spec_digest",
    "dependents",
    "waiting_on",
    "attempts",
    "resolution",
    "cause",
    "ended_at",
    "kept",
    "place",
];

pub(super) const ATTEMPT_KEY: Columns = &[("run_id", "uuid"), ("job", "int8"), ("n", "int8")];

pub(super) const ATTEMPT_FIXED: Columns = &[
    ("project", "text"),
    ("created_at", "int8"),
    ("not_before", "int8"),
];

pub(super) const ATTEMPT_MOVING: Columns = &[
    ("state", "text"),
    ("queued_at", "int8"),
    ("order_key", "int8"),
    ("ended_at", "int8"),
    ("cause", "text"),
    ("losses", "int8"),
    ("dispatches", "int8"),
    ("cancel", "text"),
    ("report", "text"),
    ("leases", "int8"),
    ("cancel_told_at", "int8"),
    ("progress", "text"),
];

/// What a heartbeat changes.
pub(super) const ATTEMPT_RENEWED: Columns = &[
    ("cancel_told_at", "int8"),
    ("progress", "text"),
    ("lease_expires_at", "int8"),
    ("lease_heartbeat_seq", "int8"),
];

pub(super) const LEASE: Columns = &[
    ("lease_epoch", "int8"),
    ("lease_token", "bytea"),
    ("lease_state", "text"),
    ("lease_principal", "text"),
    ("lease_runner", "text"),
    ("lease_granted_at", "int8"),
    ("lease_ack_by", "int8"),
    ("lease_acknowledged_at", "int8"),
    ("lease_ended_at", "int8"),
    ("lease_revocation", "text"),
    ("lease_closing", "text"),
    ("lease_closing_digest", "bytea"),
    ("lease_ttl", "int8"),
    ("lease_expires_at", "int8"),
    ("lease_heartbeat_seq", "int8"),
];

pub(super) fn run_fixed(run: &Run) -> [Value<'_>; 10] {
    let header = &run.header;
    let key = header.idempotency.as_ref().map(|(key, _)| key.as_slice());
    [
        Value::Text(&header.project),
        run_header(run),
        Value::OptText(header.repository.as_deref()),
        Value::OptText(header.git_ref.as_deref()),
        Value::OptText(header.commit.as_deref()),
        Value::Bytes(key),
        Value::OptText(header.queue.as_deref()),
        Value::Bytes(header.unique.as_ref().map(|unique| unique.key.as_slice())),
        Value::Json(header.rerun_of.map(|id| id.to_string())),
        Value::Int(run.created_at.0),
    ]
}

/// What a plan may change of it.
pub(super) const RUN_HEADER: Columns = &[("header", "text")];

pub(super) fn run_header(run: &Run) -> Value<'_> {
    Value::Json(Some(row::encode_header(&run.header)))
}

pub(super) fn run_moving(run: &Run) -> [Value<'_>; 16] {
    [
        Value::Text(run.state.name()),
        Value::OptText(run.outcome.map(|outcome| outcome.name())),
        Value::OptText(run.cause.map(|cause| cause.name())),
        Value::Json(run.cancel.as_ref().map(row::encode_run_cancel)),
        Value::OptInt(millis(run.queued_at)),
        Value::OptInt(millis(run.started_at)),
        Value::OptInt(millis(run.ended_at)),
        Value::Int(run.jobs.into()),
        Value::Int(run.live_jobs.into()),
        Value::Int(run.required_failed.into()),
        Value::Int(run.required_canceled.into()),
        Value::Bool(run.ended_at.is_some()),
        Value::OptInt(millis(run.due_at())),
        Value::OptInt(millis(moment(run))),
        Value::OptInt(millis(run.keep_until())),
        Value::Json(run.place.as_ref().map(row::encode_place)),
    ]
}

/// What the index on moments has of a run: its end, or a moment it is certainly not due before.
/// That one stays the same when the run starts, so that the update is HOT; `due_at` is exact.
fn moment(run: &Run) -> Option<Millis> {
    let due = run.due_at();
    let waiting_or_running = matches!(run.state, RunState::Queued | RunState::Running);
    let earliest = run.queued_at.filter(|_| waiting_or_running).map(|at| {
        let header = &run.header;
        at + header.wait_timeout.min(header.run_timeout)
    });
    run.ended_at.or(earliest).or(due)
}

pub(super) fn read_run(fields: &mut Fields) -> Result<Run, StoreError> {
    Ok(Run {
        id: fields.run()?,
        header: row::decode_header(fields.plain()?)?,
        created_at: fields.millis()?,
        state: column::run_state(fields.plain()?)?,
        outcome: fields.opt_plain()?.map(column::run_state).transpose()?,
        cause: fields.opt_plain()?.map(column::cause).transpose()?,
        cancel: fields
            .opt_plain()?
            .map(row::decode_run_cancel)
            .transpose()?,
        queued_at: fields.opt_millis()?,
        started_at: fields.opt_millis()?,
        ended_at: fields.opt_millis()?,
        jobs: fields.small()?,
        live_jobs: fields.small()?,
        required_failed: fields.small()?,
        required_canceled: fields.small()?,
        place: fields.opt_plain()?.map(row::decode_place).transpose()?,
    })
}

pub(super) const LINE_KEY: Columns = &[("key", "bytea"), ("run_id", "uuid"), ("job", "int8")];

pub(super) const LINE: Columns = &[
    ("project", "text"),
    ("taken", "bool"),
    ("cancel_older", "bool"),
];

pub(super) fn line_key(key: &Digest, id: JobId) -> [Value<'_>; 3] {
    [
        Value::Bytes(Some(key)),
        Value::Id(id.run),
        Value::Int(id.n.into()),
    ]
}

/// Key of the group, and a member of it.
pub(super) fn read_member(fields: &mut Fields) -> Result<(Digest, Member), StoreError> {
    let key = fields.digest()?;
    let member = Member {
        id: fields.job()?,
        taken: fields.truth()?,
        cancel_older: fields.truth()?,
    };
    Ok((key, member))
}

pub(super) fn job_key<'a>(id: JobId) -> [Value<'a>; 2] {
    [Value::Id(id.run), Value::Int(id.n.into())]
}

pub(super) fn job_fixed<'a>(
    job: &'a Job,
    project: &'a str,
    spec: Option<&'a str>,
) -> [Value<'a>; 8] {
    [
        Value::Text(project),
        Value::Text(&job.name),
        Value::Json(Some(row::encode_policy(&job.policy))),
        Value::Text(&job.policy.requires),
        Value::Bytes(Some(&job.spec)),
        Value::Json(Some(row::encode_numbers(&job.dependents))),
        Value::Json(job.kept.map(|id| id.to_string())),
        Value::Bytes(spec.map(str::as_bytes)),
    ]
}

pub(super) fn job_moving(job: &Job) -> [Value<'_>; 6] {
    [
        Value::Int(job.waiting_on.into()),
        Value::Int(job.attempts.into()),
        Value::OptText(job.resolution.map(|resolution| resolution.name())),
        Value::OptText(job.cause.map(|cause| cause.name())),
        Value::OptInt(millis(job.ended_at)),
        Value::Json(job.place.as_ref().map(row::encode_place)),
    ]
}

pub(super) fn read_job(fields: &mut Fields) -> Result<Job, StoreError> {
    Ok(Job {
        id: fields.job()?,
        name: fields.text()?,
        policy: Arc::new(row::decode_policy(fields.plain()?)?),
        spec: fields.digest()?,
        dependents: row::decode_numbers(fields.plain()?)?.into(),
        waiting_on: fields.small()?,
        attempts: fields.small()?,
        resolution: fields.opt_plain()?.map(column::resolution).transpose()?,
        cause: fields.opt_plain()?.map(column::cause).transpose()?,
        ended_at: fields.opt_millis()?,
        kept: fields.opt_plain()?.map(column::job_id).transpose()?,
        place: fields.opt_plain()?.map(row::decode_place).transpose()?,
    })
}

pub(super) fn attempt_key<'a>(id: AttemptId) -> [Value<'a>; 3] {
    let AttemptId { job, index } = id;
    [
        Value::Id(job.run),
        Value::Int(job.n.into()),
        Value::Int(index.into()),
    ]
}

pub(super) fn attempt_fixed<'a>(attempt: &Attempt, project: &'a str) -> [Value<'a>; 3] {
    [
        Value::Text(project),
        Value::Int(attempt.created_at.0),
        Value::Int(attempt.not_before.0),
    ]
}

pub(super) fn attempt_moving(attempt: &Attempt) -> [Value<'_>; 12] {
    [
        Value::Text(attempt.state.name()),
        Value::OptInt(millis(attempt.queued_at)),
        Value::Int(attempt.order_key),
        Value::OptInt(millis(attempt.ended_at)),
        Value::OptText(attempt.cause.map(|cause| cause.name())),
        Value::Int(attempt.losses.into()),
        Value::Int(attempt.dispatches.into()),
        Value::Json(attempt.cancel.as_ref().map(row::encode_attempt_cancel)),
        Value::Json(attempt.report.as_ref().map(row::encode_report)),
        Value::Int(attempt.lease_number.into()),
        Value::OptInt(millis(attempt.cancel_told_at)),
        Value::Json(progress(attempt)),
    ]
}

pub(super) fn attempt_renewed(attempt: &Attempt) -> [Value<'_>; 4] {
    let lease = attempt.lease.as_ref();
    let seq = lease.and_then(|lease| lease.heartbeat_seq);
    [
        Value::OptInt(millis(attempt.cancel_told_at)),
        Value::Json(progress(attempt)),
        Value::OptInt(lease.map(|lease| lease.expires_at.0)),
        Value::OptInt(seq.map(column::signed)),
    ]
}

fn progress(attempt: &Attempt) -> Option<String> {
    let said = attempt.progress != Progress::default();
    said.then(|| row::encode_progress(&attempt.progress))
}

/// Reads key, fixed and moving columns and those of the lease, in this order.
pub(super) fn read_attempt(fields: &mut Fields) -> Result<Attempt, StoreError> {
    Ok(Attempt {
        id: fields.attempt()?,
        created_at: fields.millis()?,
        not_before: fields.millis()?,
        state: column::attempt_state(fields.plain()?)?,
        queued_at: fields.opt_millis()?,
        order_key: fields.int()?,
        ended_at: fields.opt_millis()?,
        cause: fields.opt_plain()?.map(column::cause).transpose()?,
        losses: fields.small()?,
        dispatches: fields.small()?,
        cancel: fields
            .opt_plain()?
            .map(row::decode_attempt_cancel)
            .transpose()?,
        report: fields.opt_plain()?.map(row::decode_report).transpose()?,
        lease_number: fields.small()?,
        cancel_told_at: fields.opt_millis()?,
        progress: match fields.opt_plain()? {
            Some(text) => row::decode_progress(text)?,
            None => Progress::default(),
        },
        lease: read_lease(fields)?,
    })
}

pub(super) fn lease(lease: Option<&Lease>) -> [Value<'_>; 15] {
    let closing = lease.and_then(|lease| lease.closing.as_ref());
    let seq = lease.and_then(|lease| lease.heartbeat_seq);
    let int = |value: fn(&Lease) -> i64| Value::OptInt(lease.map(value));
    [
        int(|lease| column::signed(lease.epoch)),
        Value::Bytes(lease.map(|lease| lease.token.as_slice())),
        Value::OptText(lease.map(|lease| lease.state.name())),
        Value::OptText(lease.map(|lease| &*lease.principal)),
        Value::OptText(lease.map(|lease| &*lease.runner)),
        int(|lease| lease.granted_at.0),
        int(|lease| lease.ack_by.0),
        Value::OptInt(lease.and_then(|lease| millis(lease.acknowledged_at))),
        Value::OptInt(lease.and_then(|lease| millis(lease.ended_at))),
        Value::OptText(
            lease
                .and_then(|lease| lease.revocation)
                .map(|why| why.name()),
        ),
        Value::OptText(closing.map(|closing| column::closing_kind_name(closing.kind))),
        Value::Bytes(closing.map(|closing| closing.digest.as_slice())),
        int(|lease| lease.ttl.0),
        int(|lease| lease.expires_at.0),
        Value::OptInt(seq.map(column::signed)),
    ]
}

/// Reads the columns of [`LEASE`]; none when there is no epoch.
pub(super) fn read_lease(fields: &mut Fields) -> Result<Option<Lease>, StoreError> {
    let Some(epoch) = fields.opt_int()?.map(column::unsigned) else {
        return Ok(None);
    };
    Ok(Some(Lease {
        epoch,
        // The low half of an epoch is the lease's number.
        number: epoch as u32,
        token: fields.digest()?,
        state: column::lease_state(fields.plain()?)?,
        principal: fields.text()?,
        runner: fields.text()?,
        granted_at: fields.millis()?,
        ack_by: fields.millis()?,
        acknowledged_at: fields.opt_millis()?,
        ended_at: fields.opt_millis()?,
        revocation: fields.opt_plain()?.map(column::revocation).transpose()?,
        closing: read_closing(fields)?,
        ttl: Span(fields.int()?),
        expires_at: fields.millis()?,
        heartbeat_seq: fields.opt_int()?.map(column::unsigned),
    }))
}

fn read_closing(fields: &mut Fields) -> Result<Option<Closing>, StoreError> {
    let kind = fields.opt_plain()?;
    let digest = fields.opt_bytes()?;
    match (kind, digest) {
        (None, _) => Ok(None),
        (Some(kind), Some(digest)) => Ok(Some(Closing {
            kind: column::closing_kind(kind)?,
            digest: column::digest(digest)?,
        })),
        (Some(_), None) => Err(corrupt("a closing", "it has no digest")),
    }
}

fn millis(moment: Option<Millis>) -> Option<i64> {
    moment.map(|moment| moment.0)
}
