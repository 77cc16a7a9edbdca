//! Rows of a batch, written once each. Runs inside the transaction of one commit.

use delta_core::{Attempt, AttemptId, Job, JobId, Lease, LeaseKey, Millis, Run, RunId};
use rusqlite::{CachedStatement, Connection, ToSql, params};

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
    one_row(statement.execute(values).map_err(store_error)?)
}

fn one_row(changed: usize) -> Result<(), StoreError> {
    match changed {
        1 => Ok(()),
        _ => Err(corrupt("a row", "it was changed and is not there")),
    }
}

/// Values bound one after the other, in the order of `columns!`.
struct Values<'c> {
    statement: CachedStatement<'c>,
    next: usize,
}

impl<'c> Values<'c> {
    fn of(connection: &'c Connection, sql: &str) -> Result<Values<'c>, StoreError> {
        let statement = connection.prepare_cached(sql).map_err(store_error)?;
        Ok(Values { statement, next: 1 })
    }

    fn put(&mut self, value: impl ToSql) -> Result<(), StoreError> {
        let bound = self.statement.raw_bind_parameter(self.next, value);
        self.next += 1;
        bound.map_err(store_error)
    }

    fn execute(mut self) -> Result<usize, StoreError> {
        self.statement.raw_execute().map_err(store_error)
    }

    fn key(&mut self, id: AttemptId) -> Result<(), StoreError> {
        self.put(column::run_bytes(id.run()))?;
        self.put(id.job.n)?;
        self.put(id.index)
    }

    /// An attempt with its latest lease.
    fn attempt(&mut self, a: &Attempt) -> Result<(), StoreError> {
        self.key(a.id)?;
        self.put(a.state.name())?;
        self.put(a.created_at.0)?;
        self.put(a.not_before.0)?;
        self.put(millis(a.queued_at))?;
        self.put(a.order_key)?;
        self.put(millis(a.ended_at))?;
        self.put(a.cause.map(|cause| cause.name()))?;
        self.put(a.losses)?;
        self.put(a.dispatches)?;
        self.put(a.cancel.as_ref().map(json::encode_attempt_cancel))?;
        self.put(a.report.as_ref().map(json::encode_report))?;
        self.put(a.lease_number)?;
        self.put(millis(a.cancel_told_at))?;
        self.put(progress(a))?;
        self.lease(a.lease.as_ref())
    }

    fn lease(&mut self, lease: Option<&Lease>) -> Result<(), StoreError> {
        self.put(lease.map(|l| column::signed(l.epoch)))?;
        self.put(lease.map(|l| l.number))?;
        self.put(lease.map(|l| l.token))?;
        self.put(lease.map(|l| l.state.name()))?;
        self.put(lease.map(|l| &*l.principal))?;
        self.put(lease.map(|l| &*l.runner))?;
        self.put(lease.map(|l| l.granted_at.0))?;
        self.put(lease.map(|l| l.ack_by.0))?;
        self.put(lease.and_then(|l| millis(l.acknowledged_at)))?;
        self.put(lease.and_then(|l| millis(l.ended_at)))?;
        self.put(lease.and_then(|l| l.revocation).map(|r| r.name()))?;
        self.put(lease.and_then(closing_kind))?;
        self.put(lease.and_then(|l| l.closing).map(|closing| closing.digest))?;
        self.put(lease.map(|l| l.ttl.0))?;
        self.put(lease.map(|l| l.expires_at.0))?;
        self.put(lease.and_then(|l| l.heartbeat_seq).map(column::signed))
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
    let mut values = Values::of(
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
    )?;
    values.attempt(a)?;
    values.put(project)?;
    values.execute().map(drop)
}

/// Everything of an attempt that a batch may change; the numbers are those of `insert_attempt`.
pub fn update_attempt(c: &Connection, a: &Attempt) -> Result<(), StoreError> {
    let mut values = Values::of(
        c,
        "UPDATE attempts SET state = ?4, queued_at = ?7, order_key = ?8, ended_at = ?9, \
         cause = ?10, losses = ?11, dispatches = ?12, cancel = ?13, report = ?14, \
         lease_number = ?15, cancel_told_at = ?16, progress = ?17, lease_epoch = ?18, \
         lease_nth = ?19, lease_token = ?20, lease_state = ?21, lease_principal = ?22, \
         lease_runner = ?23, granted_at = ?24, ack_by = ?25, acknowledged_at = ?26, \
         lease_ended_at = ?27, revocation = ?28, closing_kind = ?29, closing_digest = ?30, \
         ttl = ?31, expires_at = ?32, heartbeat_seq = ?33 \
         WHERE run_id = ?1 AND job = ?2 AND attempt = ?3",
    )?;
    values.attempt(a)?;
    one_row(values.execute()?)
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
    let mut values = Values::of(
        c,
        concat!(
            "INSERT INTO past_leases (run_id, job, attempt, ",
            columns!(lease),
            ", project) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, \
             ?16, ?17, ?18, ?19, ?20)"
        ),
    )?;
    values.key(key.attempt)?;
    values.lease(Some(lease))?;
    values.put(project)?;
    values.execute().map(drop)
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
