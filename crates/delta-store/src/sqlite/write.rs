//! Rows of a batch, written once each. Runs inside the transaction of one commit.

use std::sync::Arc;

use delta_core::{Attempt, AttemptId, Job, JobId, Lease, LeaseKey, Millis, Policy, Run};
use rusqlite::{CachedStatement, Connection, ToSql};

use super::connection::store_error;
use super::rows::columns;
use crate::StoreError;
use crate::codec::{column, corrupt, row as json};
use crate::events::EventRow;

/// What is written, a statement each.
#[derive(Clone, Copy)]
enum Sql {
    InsertRun,
    InsertReport,
    UpdateRun,
    UpdateHeader,
    InsertJob,
    UpdateJob,
    InsertAttempt,
    UpdateAttempt,
    RenewAttempt,
    InsertPastLease,
    InsertSpec,
    InsertEvents,
    EnterDelayed,
    LeaveDelayed,
    SetMeta,
}

const STATEMENTS: usize = Sql::SetMeta as usize + 1;

impl Sql {
    fn text(self) -> &'static str {
        match self {
            Sql::InsertRun => {
                "INSERT INTO runs (run_id, state, outcome, cause, cancel, queued_at, started_at, \
                 ended_at, jobs, live_jobs, required_failed, required_canceled, project, \
                 keep_until, place, created_at, repository, git_ref, commit_id, idempotency_key, \
                 queue, unique_key, rerun_of, header) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?15, ?13, ?14, ?16, \
                 ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24)"
            }
            Sql::InsertReport => {
                "INSERT INTO reports (run_id, project, stage, tries, next_at, why) \
                 VALUES (?1, ?2, 0, 0, ?3, '')"
            }
            // The header of a run changes once at most, by its plan.
            Sql::UpdateRun => {
                "UPDATE runs SET state = ?2, outcome = ?3, cause = ?4, cancel = ?5, \
                 queued_at = ?6, started_at = ?7, ended_at = ?8, jobs = ?9, live_jobs = ?10, \
                 required_failed = ?11, required_canceled = ?12, keep_until = ?13, \
                 place = ?14 \
                 WHERE run_id = ?1"
            }
            Sql::UpdateHeader => "UPDATE runs SET header = ?2 WHERE run_id = ?1",
            Sql::InsertJob => {
                "INSERT INTO jobs (run_id, job, project, name, policy, spec, dependents, \
                 waiting_on, attempts, resolution, cause, ended_at, place, kept) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"
            }
            // Name, policy and spec of a job never change.
            Sql::UpdateJob => {
                "UPDATE jobs SET waiting_on = ?3, attempts = ?4, resolution = ?5, cause = ?6, \
                 ended_at = ?7, place = ?8 WHERE run_id = ?1 AND job = ?2"
            }
            Sql::InsertAttempt | Sql::UpdateAttempt | Sql::RenewAttempt | Sql::InsertPastLease => {
                self.attempt_text()
            }
            Sql::InsertSpec => {
                "INSERT INTO job_specs (run_id, job, project, spec) VALUES (?1, ?2, ?3, ?4)"
            }
            Sql::InsertEvents => {
                "INSERT INTO events (run_id, first, project, at, hash, record, records) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
            }
            Sql::EnterDelayed => {
                "INSERT INTO delayed (run_id, job, attempt, project, not_before) \
                 VALUES (?1, ?2, ?3, ?4, ?5)"
            }
            Sql::LeaveDelayed => {
                "DELETE FROM delayed WHERE run_id = ?1 AND job = ?2 AND attempt = ?3"
            }
            Sql::SetMeta => {
                "INSERT INTO meta (name, value) VALUES (?1, ?2) \
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value"
            }
        }
    }

    fn attempt_text(self) -> &'static str {
        match self {
            Sql::InsertAttempt => concat!(
                "INSERT INTO attempts (",
                columns!(attempt),
                ", ",
                columns!(lease),
                ", project) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, \
                 ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, \
                 ?31, ?32, ?33, ?34)"
            ),
            // Everything of an attempt that a batch may change; the numbers are those above.
            Sql::UpdateAttempt => {
                "UPDATE attempts SET state = ?4, queued_at = ?7, order_key = ?8, ended_at = ?9, \
                 cause = ?10, losses = ?11, dispatches = ?12, cancel = ?13, report = ?14, \
                 lease_number = ?15, cancel_told_at = ?16, progress = ?17, lease_epoch = ?18, \
                 lease_nth = ?19, lease_token = ?20, lease_state = ?21, lease_principal = ?22, \
                 lease_runner = ?23, granted_at = ?24, ack_by = ?25, acknowledged_at = ?26, \
                 lease_ended_at = ?27, revocation = ?28, closing_kind = ?29, \
                 closing_digest = ?30, ttl = ?31, expires_at = ?32, heartbeat_seq = ?33 \
                 WHERE run_id = ?1 AND job = ?2 AND attempt = ?3"
            }
            // What a heartbeat moves, and nothing else.
            Sql::RenewAttempt => {
                "UPDATE attempts SET cancel_told_at = ?4, progress = ?5, expires_at = ?6, \
                 heartbeat_seq = ?7 WHERE run_id = ?1 AND job = ?2 AND attempt = ?3"
            }
            _ => concat!(
                "INSERT INTO past_leases (run_id, job, attempt, ",
                columns!(lease),
                ", project) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, \
                 ?15, ?16, ?17, ?18, ?19, ?20)"
            ),
        }
    }
}

/// The statements of one batch. Each is looked up once, however many rows it writes: finding one by
/// its text costs a good part of carrying it out.
pub struct Write<'c> {
    connection: &'c Connection,
    prepared: [Option<CachedStatement<'c>>; STATEMENTS],
    /// The policy written last, with its text: the jobs of a run often share one.
    policy: Option<(Arc<Policy>, String)>,
}

/// Values bound one after the other, in the order of `columns!`.
struct Values<'w, 'c> {
    statement: &'w mut CachedStatement<'c>,
    next: usize,
}

impl Values<'_, '_> {
    fn put(&mut self, value: impl ToSql) -> Result<(), StoreError> {
        let bound = self.statement.raw_bind_parameter(self.next, value);
        self.next += 1;
        bound.map_err(store_error)
    }

    fn run(self) -> Result<(), StoreError> {
        self.statement.raw_execute().map(drop).map_err(store_error)
    }

    /// For a row that must be there.
    fn run_on_one(self) -> Result<(), StoreError> {
        match self.statement.raw_execute().map_err(store_error)? {
            1 => Ok(()),
            _ => Err(corrupt("a row", "it was changed and is not there")),
        }
    }

    /// A run's key, and what of it moves.
    fn moving(&mut self, run: &Run) -> Result<(), StoreError> {
        self.put(column::run_bytes(run.id))?;
        self.put(run.state.name())?;
        self.put(run.outcome.map(|outcome| outcome.name()))?;
        self.put(run.cause.map(|cause| cause.name()))?;
        self.put(run.cancel.as_ref().map(json::encode_run_cancel))?;
        self.put(millis(run.queued_at))?;
        self.put(millis(run.started_at))?;
        self.put(millis(run.ended_at))?;
        self.put(run.jobs)?;
        self.put(run.live_jobs)?;
        self.put(run.required_failed)?;
        self.put(run.required_canceled)?;
        self.put(millis(run.keep_until()))?;
        self.put(run.place.as_ref().map(json::encode_place))
    }

    fn job_key(&mut self, id: JobId) -> Result<(), StoreError> {
        self.put(column::run_bytes(id.run))?;
        self.put(id.n)
    }

    fn key(&mut self, id: AttemptId) -> Result<(), StoreError> {
        self.job_key(id.job)?;
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

impl<'c> Write<'c> {
    pub fn to(connection: &'c Connection) -> Write<'c> {
        Write {
            connection,
            prepared: [const { None }; STATEMENTS],
            policy: None,
        }
    }

    fn values(&mut self, sql: Sql) -> Result<Values<'_, 'c>, StoreError> {
        let prepared = &mut self.prepared[sql as usize];
        let statement = match prepared {
            Some(statement) => statement,
            None => {
                let found = self.connection.prepare_cached(sql.text());
                prepared.insert(found.map_err(store_error)?)
            }
        };
        Ok(Values { statement, next: 1 })
    }

    pub fn insert_run(&mut self, run: &Run) -> Result<(), StoreError> {
        let header = &run.header;
        let mut values = self.values(Sql::InsertRun)?;
        values.moving(run)?;
        values.put(&*header.project)?;
        values.put(run.created_at.0)?;
        values.put(header.repository.as_deref())?;
        values.put(header.git_ref.as_deref())?;
        values.put(header.commit.as_deref())?;
        values.put(header.idempotency.map(|(key, _)| key))?;
        values.put(header.queue.as_deref())?;
        values.put(header.unique.map(|unique| unique.key))?;
        values.put(header.rerun_of.map(|id| id.to_string()))?;
        values.put(json::encode_header(header))?;
        values.run()?;
        if header.needs_report {
            self.insert_report(run)
        } else {
            Ok(())
        }
    }

    /// The outbox's row, in the commit that makes the run.
    fn insert_report(&mut self, run: &Run) -> Result<(), StoreError> {
        let mut values = self.values(Sql::InsertReport)?;
        values.put(column::run_bytes(run.id))?;
        values.put(&*run.header.project)?;
        values.put(run.created_at.0)?;
        values.run()
    }

    pub fn update_run(&mut self, run: &Run) -> Result<(), StoreError> {
        let mut values = self.values(Sql::UpdateRun)?;
        values.moving(run)?;
        values.run_on_one()
    }

    pub fn update_header(&mut self, run: &Run) -> Result<(), StoreError> {
        let mut values = self.values(Sql::UpdateHeader)?;
        values.put(column::run_bytes(run.id))?;
        values.put(json::encode_header(&run.header))?;
        values.run_on_one()
    }

    pub fn insert_job(&mut self, project: &str, job: &Job) -> Result<(), StoreError> {
        let (policy, text) = match self.policy.take() {
            Some(last) if last.0 == job.policy => last,
            _ => (job.policy.clone(), json::encode_policy(&job.policy)),
        };
        let mut values = self.values(Sql::InsertJob)?;
        values.job_key(job.id)?;
        values.put(project)?;
        values.put(&*job.name)?;
        values.put(&*text)?;
        values.put(job.spec)?;
        values.put(json::encode_numbers(&job.dependents))?;
        values.put(job.waiting_on)?;
        values.put(job.attempts)?;
        values.put(job.resolution.map(|resolution| resolution.name()))?;
        values.put(job.cause.map(|cause| cause.name()))?;
        values.put(millis(job.ended_at))?;
        values.put(job.place.as_ref().map(json::encode_place))?;
        values.put(job.kept.map(|id| id.to_string()))?;
        values.run()?;
        self.policy = Some((policy, text));
        Ok(())
    }

    pub fn update_job(&mut self, job: &Job) -> Result<(), StoreError> {
        let mut values = self.values(Sql::UpdateJob)?;
        values.job_key(job.id)?;
        values.put(job.waiting_on)?;
        values.put(job.attempts)?;
        values.put(job.resolution.map(|resolution| resolution.name()))?;
        values.put(job.cause.map(|cause| cause.name()))?;
        values.put(millis(job.ended_at))?;
        values.put(job.place.as_ref().map(json::encode_place))?;
        values.run_on_one()
    }

    pub fn insert_attempt(&mut self, project: &str, a: &Attempt) -> Result<(), StoreError> {
        let mut values = self.values(Sql::InsertAttempt)?;
        values.attempt(a)?;
        values.put(project)?;
        values.run()
    }

    pub fn update_attempt(&mut self, a: &Attempt) -> Result<(), StoreError> {
        let mut values = self.values(Sql::UpdateAttempt)?;
        values.attempt(a)?;
        values.run_on_one()
    }

    pub fn renew_attempt(&mut self, a: &Attempt) -> Result<(), StoreError> {
        let lease = a.lease.as_ref();
        let mut values = self.values(Sql::RenewAttempt)?;
        values.key(a.id)?;
        values.put(millis(a.cancel_told_at))?;
        values.put(progress(a))?;
        values.put(lease.map(|l| l.expires_at.0))?;
        values.put(lease.and_then(|l| l.heartbeat_seq).map(column::signed))?;
        values.run_on_one()
    }

    /// A past lease never changes again; the same one may be written twice after a lost answer.
    pub fn insert_past_lease(
        &mut self,
        project: &str,
        key: LeaseKey,
        lease: &Lease,
    ) -> Result<(), StoreError> {
        let mut values = self.values(Sql::InsertPastLease)?;
        values.key(key.attempt)?;
        values.lease(Some(lease))?;
        values.put(project)?;
        values.run()
    }

    pub fn insert_spec(&mut self, project: &str, job: JobId, spec: &str) -> Result<(), StoreError> {
        let mut values = self.values(Sql::InsertSpec)?;
        values.job_key(job)?;
        values.put(project)?;
        values.put(spec)?;
        values.run()
    }

    pub fn insert_events(&mut self, project: &str, row: &EventRow) -> Result<(), StoreError> {
        let mut values = self.values(Sql::InsertEvents)?;
        values.put(column::run_bytes(row.run))?;
        values.put(column::signed(row.first))?;
        values.put(project)?;
        values.put(row.at.0)?;
        values.put(row.hash)?;
        values.put(&row.bytes[..])?;
        values.put(row.records)?;
        values.run()
    }

    pub fn enter_delayed(&mut self, project: &str, attempt: &Attempt) -> Result<(), StoreError> {
        let mut values = self.values(Sql::EnterDelayed)?;
        values.key(attempt.id)?;
        values.put(project)?;
        values.put(attempt.not_before.0)?;
        values.run()
    }

    pub fn leave_delayed(&mut self, id: AttemptId) -> Result<(), StoreError> {
        let mut values = self.values(Sql::LeaveDelayed)?;
        values.key(id)?;
        values.run()
    }

    pub fn set_meta(&mut self, name: &str, value: i64) -> Result<(), StoreError> {
        let mut values = self.values(Sql::SetMeta)?;
        values.put(name)?;
        values.put(value)?;
        values.run()
    }
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
