//! Rows of a batch, written once each. Runs inside the transaction of one commit.

use delta_core::{Attempt, AttemptId, Job, JobId, Lease, LeaseKey, Millis, Run, RunId};
use rusqlite::{Connection, ToSql, params};

use super::connection::store_error;
use super::rows::columns;
use crate::StoreError;
use crate::codec::{column, corrupt, row as json};
use crate::events::Tip;

fn execute(connection: &Connection, sql: &str, values: &[&dyn ToSql]) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    statement.execute(values).map(drop).map_err(store_error)
}

/// For a row that must be there.
fn update(connection: &Connection, sql: &str, values: &[&dyn ToSql]) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    match statement.execute(values).map_err(store_error)? {
        1 => Ok(()),
        _ => Err(corrupt("a row", "it was changed and is not there")),
    }
}

pub fn insert_run(c: &Connection, run: &Run) -> Result<(), StoreError> {
    let header = &run.header;
    execute(
        c,
        "INSERT INTO runs (run_id, project, state, outcome, cause, cancel, created_at, queued_at, \
         started_at, ended_at, jobs, live_jobs, required_failed, required_canceled, repository, \
         git_ref, commit_id, idempotency_key, header) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, \
         ?19)",
        params![
            column::run_bytes(run.id),
            &*header.project,
            run.state.name(),
            run.outcome.map(|outcome| outcome.name()),
            run.cause.map(|cause| cause.name()),
            run.cancel.as_ref().map(json::encode_run_cancel),
            run.created_at.0,
            millis(run.queued_at),
            millis(run.started_at),
            millis(run.ended_at),
            run.jobs,
            run.live_jobs,
            run.required_failed,
            run.required_canceled,
            header.repository.as_deref(),
            header.git_ref.as_deref(),
            header.commit.as_deref(),
            header.idempotency.map(|(key, _)| key),
            json::encode_header(header),
        ],
    )
}

/// The header of a run never changes.
pub fn update_run(c: &Connection, run: &Run) -> Result<(), StoreError> {
    update(
        c,
        "UPDATE runs SET state = ?2, outcome = ?3, cause = ?4, cancel = ?5, queued_at = ?6, \
         started_at = ?7, ended_at = ?8, jobs = ?9, live_jobs = ?10, required_failed = ?11, \
         required_canceled = ?12 WHERE run_id = ?1",
        params![
            column::run_bytes(run.id),
            run.state.name(),
            run.outcome.map(|outcome| outcome.name()),
            run.cause.map(|cause| cause.name()),
            run.cancel.as_ref().map(json::encode_run_cancel),
            millis(run.queued_at),
            millis(run.started_at),
            millis(run.ended_at),
            run.jobs,
            run.live_jobs,
            run.required_failed,
            run.required_canceled,
        ],
    )
}

pub fn insert_job(c: &Connection, project: &str, job: &Job) -> Result<(), StoreError> {
    execute(
        c,
        "INSERT INTO jobs (run_id, job, project, name, policy, spec, dependents, waiting_on, \
         attempts, resolution, cause, ended_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        params![
            column::run_bytes(job.id.run),
            job.id.n,
            project,
            &*job.name,
            json::encode_policy(&job.policy),
            job.spec,
            json::encode_numbers(&job.dependents),
            job.waiting_on,
            job.attempts,
            job.resolution.map(|resolution| resolution.name()),
            job.cause.map(|cause| cause.name()),
            millis(job.ended_at),
        ],
    )
}

/// Name, policy and spec of a job never change.
pub fn update_job(c: &Connection, job: &Job) -> Result<(), StoreError> {
    update(
        c,
        "UPDATE jobs SET waiting_on = ?3, attempts = ?4, resolution = ?5, cause = ?6, \
         ended_at = ?7 WHERE run_id = ?1 AND job = ?2",
        params![
            column::run_bytes(job.id.run),
            job.id.n,
            job.waiting_on,
            job.attempts,
            job.resolution.map(|resolution| resolution.name()),
            job.cause.map(|cause| cause.name()),
            millis(job.ended_at),
        ],
    )
}

pub fn insert_attempt(c: &Connection, project: &str, a: &Attempt) -> Result<(), StoreError> {
    let lease = a.lease.as_ref();
    execute(
        c,
        concat!(
            "INSERT INTO attempts (",
            columns!(attempt),
            ", ",
            columns!(lease),
            ", project) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, \
             ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, \
             ?33, ?34)"
        ),
        params![
            column::run_bytes(a.id.run()),
            a.id.job.n,
            a.id.index,
            a.state.name(),
            a.created_at.0,
            a.not_before.0,
            millis(a.queued_at),
            a.order_key,
            millis(a.ended_at),
            a.cause.map(|cause| cause.name()),
            a.losses,
            a.dispatches,
            a.cancel.as_ref().map(json::encode_attempt_cancel),
            a.report.as_ref().map(json::encode_report),
            a.lease_number,
            millis(a.cancel_told_at),
            progress(a),
            lease.map(|l| column::signed(l.epoch)),
            lease.map(|l| l.number),
            lease.map(|l| l.token),
            lease.map(|l| l.state.name()),
            lease.map(|l| &*l.principal),
            lease.map(|l| &*l.runner),
            lease.map(|l| l.granted_at.0),
            lease.map(|l| l.ack_by.0),
            lease.and_then(|l| millis(l.acknowledged_at)),
            lease.and_then(|l| millis(l.ended_at)),
            lease.and_then(|l| l.revocation).map(|r| r.name()),
            lease.and_then(closing_kind),
            lease.and_then(|l| l.closing).map(|closing| closing.digest),
            lease.map(|l| l.ttl.0),
            lease.map(|l| l.expires_at.0),
            lease.and_then(|l| l.heartbeat_seq).map(column::signed),
            project,
        ],
    )
}

/// Everything of an attempt that a batch may change.
pub fn update_attempt(c: &Connection, a: &Attempt) -> Result<(), StoreError> {
    let lease = a.lease.as_ref();
    update(
        c,
        "UPDATE attempts SET state = ?4, queued_at = ?5, order_key = ?6, ended_at = ?7, \
         cause = ?8, losses = ?9, dispatches = ?10, cancel = ?11, report = ?12, \
         lease_number = ?13, cancel_told_at = ?14, progress = ?15, lease_epoch = ?16, \
         lease_nth = ?17, lease_token = ?18, lease_state = ?19, lease_principal = ?20, \
         lease_runner = ?21, granted_at = ?22, ack_by = ?23, acknowledged_at = ?24, \
         lease_ended_at = ?25, revocation = ?26, closing_kind = ?27, closing_digest = ?28, \
         ttl = ?29, expires_at = ?30, heartbeat_seq = ?31 \
         WHERE run_id = ?1 AND job = ?2 AND attempt = ?3",
        params![
            column::run_bytes(a.id.run()),
            a.id.job.n,
            a.id.index,
            a.state.name(),
            millis(a.queued_at),
            a.order_key,
            millis(a.ended_at),
            a.cause.map(|cause| cause.name()),
            a.losses,
            a.dispatches,
            a.cancel.as_ref().map(json::encode_attempt_cancel),
            a.report.as_ref().map(json::encode_report),
            a.lease_number,
            millis(a.cancel_told_at),
            progress(a),
            lease.map(|l| column::signed(l.epoch)),
            lease.map(|l| l.number),
            lease.map(|l| l.token),
            lease.map(|l| l.state.name()),
            lease.map(|l| &*l.principal),
            lease.map(|l| &*l.runner),
            lease.map(|l| l.granted_at.0),
            lease.map(|l| l.ack_by.0),
            lease.and_then(|l| millis(l.acknowledged_at)),
            lease.and_then(|l| millis(l.ended_at)),
            lease.and_then(|l| l.revocation).map(|r| r.name()),
            lease.and_then(closing_kind),
            lease.and_then(|l| l.closing).map(|closing| closing.digest),
            lease.map(|l| l.ttl.0),
            lease.map(|l| l.expires_at.0),
            lease.and_then(|l| l.heartbeat_seq).map(column::signed),
        ],
    )
}

/// What a heartbeat moves, and nothing else.
pub fn renew_attempt(c: &Connection, a: &Attempt) -> Result<(), StoreError> {
    let lease = a.lease.as_ref();
    update(
        c,
        "UPDATE attempts SET cancel_told_at = ?4, progress = ?5, expires_at = ?6, \
         heartbeat_seq = ?7 WHERE run_id = ?1 AND job = ?2 AND attempt = ?3",
        params![
            column::run_bytes(a.id.run()),
            a.id.job.n,
            a.id.index,
            millis(a.cancel_told_at),
            progress(a),
            lease.map(|l| l.expires_at.0),
            lease.and_then(|l| l.heartbeat_seq).map(column::signed),
        ],
    )
}

/// A past lease never changes again; the same one may be written twice after a lost answer.
pub fn insert_past_lease(
    c: &Connection,
    project: &str,
    key: LeaseKey,
    lease: &Lease,
) -> Result<(), StoreError> {
    execute(
        c,
        concat!(
            "INSERT INTO past_leases (run_id, job, attempt, ",
            columns!(lease),
            ", project) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, \
             ?16, ?17, ?18, ?19, ?20)"
        ),
        params![
            column::run_bytes(key.attempt.run()),
            key.attempt.job.n,
            key.attempt.index,
            column::signed(lease.epoch),
            lease.number,
            lease.token,
            lease.state.name(),
            &*lease.principal,
            &*lease.runner,
            lease.granted_at.0,
            lease.ack_by.0,
            millis(lease.acknowledged_at),
            millis(lease.ended_at),
            lease.revocation.map(|r| r.name()),
            closing_kind(lease),
            lease.closing.map(|closing| closing.digest),
            lease.ttl.0,
            lease.expires_at.0,
            lease.heartbeat_seq.map(column::signed),
            project,
        ],
    )
}

pub fn insert_spec(
    c: &Connection,
    project: &str,
    job: JobId,
    spec: &str,
) -> Result<(), StoreError> {
    execute(
        c,
        "INSERT INTO job_specs (run_id, job, project, spec) VALUES (?1, ?2, ?3, ?4)",
        params![column::run_bytes(job.run), job.n, project, spec],
    )
}

pub fn insert_event(
    c: &Connection,
    project: &str,
    run: RunId,
    at: Millis,
    tip: &Tip,
    bytes: &[u8],
) -> Result<(), StoreError> {
    execute(
        c,
        "INSERT INTO events (run_id, version, project, at, hash, record) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            column::run_bytes(run),
            column::signed(tip.version),
            project,
            at.0,
            tip.hash,
            bytes
        ],
    )
}

pub fn enter_queue(
    c: &Connection,
    project: &str,
    attempt: &Attempt,
    match_key: &str,
) -> Result<(), StoreError> {
    let since = attempt.queued_at.unwrap_or(attempt.created_at);
    execute(
        c,
        "INSERT INTO queue (run_id, job, attempt, project, match_key, order_key, queued_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            column::run_bytes(attempt.id.run()),
            attempt.id.job.n,
            attempt.id.index,
            project,
            match_key,
            attempt.order_key,
            since.0,
        ],
    )
}

pub fn leave_queue(c: &Connection, id: AttemptId) -> Result<(), StoreError> {
    execute(
        c,
        "DELETE FROM queue WHERE run_id = ?1 AND job = ?2 AND attempt = ?3",
        params![column::run_bytes(id.run()), id.job.n, id.index],
    )
}

pub fn enter_delayed(c: &Connection, project: &str, attempt: &Attempt) -> Result<(), StoreError> {
    execute(
        c,
        "INSERT INTO delayed (run_id, job, attempt, project, not_before) \
         VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            column::run_bytes(attempt.id.run()),
            attempt.id.job.n,
            attempt.id.index,
            project,
            attempt.not_before.0,
        ],
    )
}

pub fn leave_delayed(c: &Connection, id: AttemptId) -> Result<(), StoreError> {
    execute(
        c,
        "DELETE FROM delayed WHERE run_id = ?1 AND job = ?2 AND attempt = ?3",
        params![column::run_bytes(id.run()), id.job.n, id.index],
    )
}

pub fn set_meta(c: &Connection, name: &str, value: i64) -> Result<(), StoreError> {
    execute(
        c,
        "INSERT INTO meta (name, value) VALUES (?1, ?2) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        params![name, value],
    )
}

fn millis(at: Option<Millis>) -> Option<i64> {
    at.map(|at| at.0)
}

fn progress(attempt: &Attempt) -> Option<String> {
    let said = attempt.progress != Default::default();
    said.then(|| json::encode_progress(&attempt.progress))
}

fn closing_kind(lease: &Lease) -> Option<&'static str> {
    lease
        .closing
        .map(|closing| column::closing_kind_name(closing.kind))
}
