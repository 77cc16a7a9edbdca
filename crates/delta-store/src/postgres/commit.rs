//! Writing a batch: one statement per table however many rows, and COMMIT behind them, all in one
//! round trip.
//!
//! What is new and what was there before is read off the records: a row is inserted by the fact
//! that created it, an attempt that no fact names was only renewed.

use std::collections::{BTreeMap, BTreeSet};

use delta_core::attempt::AttemptState;
use delta_core::{AttemptId, Fact, JobId, LeaseEvent, RunId};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::connect::{Session, bounded};
use super::error::Trouble;
use super::join::in_order;
use super::resolve::Sent;
use super::rows;
use super::sql::Sql;
use super::store::{Batch, PgStore};
use super::value::{Rows, Value};
use crate::codec::column;
use crate::events::{Chained, EventRow, Tip};
use crate::{CommitError, StoreError, Writes};

/// What the records say about the rows.
#[derive(Default)]
struct Reading {
    new_runs: BTreeSet<RunId>,
    /// Runs whose plan said something about them.
    configured: BTreeSet<RunId>,
    new_jobs: BTreeSet<JobId>,
    new_attempts: BTreeSet<AttemptId>,
    /// Jobs that a fact changes; an edit of any other holds the row as it was.
    moved_jobs: BTreeSet<JobId>,
    /// Attempts that a fact names; all others were only renewed.
    named: BTreeSet<AttemptId>,
    granted: BTreeSet<AttemptId>,
    closed: BTreeSet<AttemptId>,
}

impl Reading {
    fn of(writes: &Writes) -> Reading {
        let mut reading = Reading::default();
        for record in &writes.records {
            for fact in &record.facts {
                reading.add(record.run, fact);
            }
        }
        reading
    }

    fn add(&mut self, run: RunId, fact: &Fact) {
        match fact {
            Fact::RunCreated(_) => {
                self.new_runs.insert(run);
            }
            Fact::JobCreated(job) => {
                self.new_jobs.insert(job.id);
                self.new_attempts.insert(job.id.attempt(1));
            }
            Fact::AttemptCreated { job, index, .. } => {
                self.moved_jobs.insert(run.job(*job));
                self.new_attempts.insert(run.job(*job).attempt(*index));
            }
            Fact::NeedMet { job }
            | Fact::LineEntered { job }
            | Fact::TurnTaken { job }
            | Fact::JobResolved { job, .. } => {
                self.moved_jobs.insert(run.job(*job));
            }
            Fact::LeaseGranted { job, index, .. } => {
                let id = run.job(*job).attempt(*index);
                self.named.insert(id);
                self.granted.insert(id);
            }
            Fact::LeaseMoved {
                job, index, event, ..
            } => {
                let id = run.job(*job).attempt(*index);
                self.named.insert(id);
                if *event != LeaseEvent::Acknowledged {
                    self.closed.insert(id);
                }
            }
            Fact::AttemptMoved { job, index, .. }
            | Fact::CancelAsked { job, index, .. }
            | Fact::Reported { job, index, .. }
            | Fact::Spent { job, index, .. }
            | Fact::LeaseClamped { job, index, .. } => {
                self.named.insert(run.job(*job).attempt(*index));
            }
            Fact::RunConfigured(_) => {
                self.configured.insert(run);
            }
            Fact::RunMoved { .. } | Fact::RunCancelAsked(_) => {}
        }
    }
}

/// The statements of a batch in the order they are sent.
struct Plan<'a> {
    steps: Vec<(Sql, Rows<'a>)>,
}

impl<'a> Plan<'a> {
    fn of(writes: &'a Writes, events: &'a [EventRow], projects: &Projects<'a>) -> Plan<'a> {
        let mut plan = Plan { steps: Vec::new() };
        let reading = Reading::of(writes);
        plan.runs(writes, &reading);
        plan.jobs(writes, &reading, projects);
        plan.attempts(writes, &reading, projects);
        plan.past_leases(writes, projects);
        plan.queue(writes);
        plan.holders(writes, &reading, projects);
        plan.delayed(writes, &reading, projects);
        plan.lines(writes, projects);
        let mut rows = Rows::default();
        for event in events {
            rows.push([
                Value::Id(event.run),
                Value::Int(column::signed(event.first)),
                Value::Int(event.records.into()),
                Value::Text(projects.of(event.run)),
                Value::Int(event.at.0),
                Value::Bytes(Some(&event.hash)),
                Value::Bytes(Some(&event.bytes)),
            ]);
        }
        plan.add(Sql::InsertEvents, rows);
        plan
    }

    fn add(&mut self, sql: Sql, rows: Rows<'a>) {
        if rows.count() > 0 {
            self.steps.push((sql, rows));
        }
    }

    fn runs(&mut self, writes: &'a Writes, reading: &Reading) {
        let (mut inserted, mut updated) = (Rows::default(), Rows::default());
        let (mut reports, mut headers) = (Rows::default(), Rows::default());
        for (id, run) in &writes.edits.runs {
            let (key, moving) = ([Value::Id(*id)], rows::run_moving(run));
            if reading.new_runs.contains(id) {
                inserted.push(key.into_iter().chain(rows::run_fixed(run)).chain(moving));
                if run.header.needs_report {
                    reports.push(rows::first_report(run));
                }
            } else {
                updated.push(key.into_iter().chain(moving));
                if reading.configured.contains(id) {
                    headers.push([Value::Id(*id), rows::run_header(run)]);
                }
            }
        }
        self.add(Sql::InsertRuns, inserted);
        self.add(Sql::UpdateRuns, updated);
        self.add(Sql::UpdateHeaders, headers);
        self.add(Sql::InsertReports, reports);
    }

    fn jobs(&mut self, writes: &'a Writes, reading: &Reading, projects: &Projects<'a>) {
        let (mut inserted, mut updated) = (Rows::default(), Rows::default());
        let specs: BTreeMap<JobId, &str> = writes
            .specs
            .iter()
            .map(|(id, spec)| (*id, &**spec))
            .collect();
        for (id, job) in &writes.edits.jobs {
            let (key, moving) = (rows::job_key(*id), rows::job_moving(job));
            if reading.new_jobs.contains(id) {
                let spec = specs.get(id).copied();
                let fixed = rows::job_fixed(job, projects.of(id.run), spec);
                inserted.push(key.into_iter().chain(fixed).chain(moving));
            } else if reading.moved_jobs.contains(id) {
                updated.push(key.into_iter().chain(moving));
            }
        }
        self.add(Sql::InsertJobs, inserted);
        self.add(Sql::UpdateJobs, updated);
    }

    fn attempts(&mut self, writes: &'a Writes, reading: &Reading, projects: &Projects<'a>) {
        let (mut inserted, mut updated) = (Rows::default(), Rows::default());
        let mut renewed = Rows::default();
        for (id, attempt) in &writes.edits.attempts {
            let key = rows::attempt_key(*id).into_iter();
            let moving = rows::attempt_moving(attempt)
                .into_iter()
                .chain(rows::lease(attempt.lease.as_ref()));
            if reading.new_attempts.contains(id) {
                let fixed = rows::attempt_fixed(attempt, projects.of(id.run()));
                inserted.push(key.chain(fixed).chain(moving));
            } else if reading.named.contains(id) {
                updated.push(key.chain(moving));
            } else {
                renewed.push(key.chain(rows::attempt_renewed(attempt)));
            }
        }
        self.add(Sql::InsertAttempts, inserted);
        self.add(Sql::UpdateAttempts, updated);
        self.add(Sql::RenewAttempts, renewed);
    }

    fn past_leases(&mut self, writes: &'a Writes, projects: &Projects<'a>) {
        let mut inserted = Rows::default();
        for (key, lease) in &writes.edits.past_leases {
            let project = [Value::Text(projects.of(key.attempt.run()))];
            let id = rows::attempt_key(key.attempt).into_iter().chain(project);
            inserted.push(id.chain(rows::lease(Some(lease))));
        }
        self.add(Sql::InsertPastLeases, inserted);
    }

    fn queue(&mut self, writes: &'a Writes) {
        let changes = writes.queue_changes();
        let place = |id: &AttemptId| {
            let attempt = writes.edits.attempts.get(id);
            let order = attempt.map_or(0, |attempt| attempt.order_key);
            let since = attempt.map(|attempt| attempt.queued_at.unwrap_or(attempt.created_at).0);
            let place = [Value::Int(order), Value::Int(since.unwrap_or(0))];
            rows::attempt_key(*id).into_iter().chain(place)
        };
        let (mut left, mut entered) = (Rows::default(), Rows::default());
        changes.left.iter().for_each(|id| left.push(place(id)));
        changes
            .entered
            .iter()
            .for_each(|id| entered.push(place(id)));
        self.add(Sql::LeaveQueue, left);
        self.add(Sql::EnterQueue, entered);
    }

    /// Those who gave a lease up go before those who got one: a runner may do both in one batch.
    fn holders(&mut self, writes: &'a Writes, reading: &Reading, projects: &Projects<'a>) {
        let edits = &writes.edits;
        let latest = |id: &AttemptId| {
            edits
                .attempts
                .get(id)
                .and_then(|attempt| attempt.lease.as_ref())
        };
        let row = |id: AttemptId, lease: &'a delta_core::Lease| {
            let holder = [Value::Text(&lease.principal), Value::Text(&lease.runner)];
            holder.into_iter().chain(rows::attempt_key(id))
        };
        let (mut gone, mut here) = (Rows::default(), Rows::default());
        for (key, lease) in &edits.past_leases {
            if reading.closed.contains(&key.attempt) {
                gone.push(row(key.attempt, lease));
            }
        }
        for id in &reading.closed {
            if let Some(lease) = latest(id).filter(|lease| !lease.state.is_live()) {
                gone.push(row(*id, lease));
            }
        }
        // In the order of their key, so that two writers wait for each other in one direction.
        let mut granted: Vec<_> = reading
            .granted
            .iter()
            .filter_map(|id| latest(id).map(|lease| (*id, lease)))
            .filter(|(_, lease)| lease.state.is_live())
            .collect();
        granted.sort_unstable_by_key(|(_, lease)| (&lease.principal, &lease.runner));
        for (id, lease) in granted {
            here.push(row(id, lease).chain([Value::Text(projects.of(id.run()))]));
        }
        self.add(Sql::DeleteHolders, gone);
        self.add(Sql::InsertHolders, here);
    }

    /// Members of concurrency groups: one that is over has its place still, and leaves the line.
    fn lines(&mut self, writes: &'a Writes, projects: &Projects<'a>) {
        let (mut gone, mut here) = (Rows::default(), Rows::default());
        let edits = &writes.edits;
        let runs = edits.runs.values().filter_map(|run| {
            let key = &run.header.concurrency.as_ref()?.key;
            run.place.map(|_| (key, run.id.job(0), run.member()))
        });
        let jobs = edits.jobs.values().filter_map(|job| {
            let key = &job.policy.concurrency.as_ref()?.key;
            job.place.map(|_| (key, job.id, job.member()))
        });
        for (key, id, member) in runs.chain(jobs) {
            let key = rows::line_key(key, id).into_iter();
            match member {
                None => gone.push(key),
                Some(member) => here.push(key.chain([
                    Value::Text(projects.of(id.run)),
                    Value::Bool(member.taken),
                    Value::Bool(member.cancel_older),
                ])),
            }
        }
        self.add(Sql::LeaveLine, gone);
        self.add(Sql::PutLine, here);
    }

    /// Retries that wait for their moment, and functions with a delay.
    fn delayed(&mut self, writes: &'a Writes, reading: &Reading, projects: &Projects<'a>) {
        let (mut over, mut waiting) = (Rows::default(), Rows::default());
        let edited = writes.edits.attempts.iter();
        for (id, attempt) in edited.filter(|(_, it)| it.waits_for_a_moment()) {
            let waits = attempt.state == AttemptState::Created;
            if reading.new_attempts.contains(id) && waits {
                let project = Value::Text(projects.of(id.run()));
                let more = [project, Value::Int(attempt.not_before.0)];
                waiting.push(rows::attempt_key(*id).into_iter().chain(more));
            } else if reading.named.contains(id) && !waits && attempt.lease.is_none() {
                over.push(rows::attempt_key(*id));
            }
        }
        self.add(Sql::DeleteDelayed, over);
        self.add(Sql::InsertDelayed, waiting);
    }
}

/// The project of each run of the batch.
struct Projects<'a>(BTreeMap<RunId, &'a str>);

impl<'a> Projects<'a> {
    fn collect(writes: &'a Writes, batch: &'a Batch) -> Projects<'a> {
        let locked = batch
            .locked
            .iter()
            .map(|(id, locked)| (*id, &*locked.project));
        let edited = writes
            .edits
            .runs
            .iter()
            .map(|(id, run)| (*id, &*run.header.project));
        Projects(locked.chain(edited).collect())
    }

    fn of(&self, run: RunId) -> &'a str {
        self.0.get(&run).copied().unwrap_or_else(|| {
            panic!("{run} is written to in a batch that neither loaded nor created it")
        })
    }
}

/// Continues the chain of every run by the batch's records.
fn chained(writes: &Writes, batch: &Batch) -> Result<Chained, StoreError> {
    Chained::of(&writes.records, |run| {
        let locked = batch.locked.get(&run);
        Ok(locked.map_or(Tip::NONE, |locked| locked.tip))
    })
}

/// How a commit went.
enum Outcome {
    Done,
    Failed(Trouble),
    Unknown,
}

impl PgStore {
    pub(super) fn commit_batch(&mut self, writes: &Writes) -> Result<(), CommitError> {
        let Some(batch) = self.batch.take() else {
            return Err(StoreError::Unavailable("the batch was lost".into()).into());
        };
        if writes.is_empty() {
            // Nothing to keep: giving the locks back needs no disk.
            self.batch = Some(batch);
            crate::Store::rollback(self);
            return Ok(());
        }
        let projects = Projects::collect(writes, &batch);
        let events = chained(writes, &batch)?.rows;
        let plan = Plan::of(writes, &events, &projects);
        let last = events.last().map(|row| (row.run, row.first, row.hash));
        self.sent = Some(Sent {
            xid: batch.xid.clone(),
            last,
        });
        let name = writes.notify.then(|| self.name.clone());
        let outcome = match self
            .on_session(async |session: &Session| Ok(send(session, &plan, name.as_deref()).await))
        {
            Ok(outcome) => outcome,
            // Sent or not: nobody knows.
            Err(trouble) if trouble.ends_session() => Outcome::Unknown,
            Err(trouble) => Outcome::Failed(trouble),
        };
        self.judge(outcome, writes)
    }

    fn judge(&mut self, outcome: Outcome, writes: &Writes) -> Result<(), CommitError> {
        match outcome {
            Outcome::Done => {
                self.flushes += 1;
                for (job, spec) in &writes.specs {
                    self.specs.put(*job, spec.clone());
                }
                if !writes.queue_changes().entered.is_empty() {
                    self.memory.forget();
                }
                Ok(())
            }
            Outcome::Failed(trouble) => {
                if trouble.ends_session() {
                    self.drop_session();
                }
                Err(trouble.into())
            }
            Outcome::Unknown => {
                self.memory.forget();
                self.drop_session();
                Err(CommitError::Unknown)
            }
        }
    }
}

/// Statements, notification and COMMIT, sent together and carried out in this order. After a
/// failed statement PostgreSQL refuses the rest and turns the COMMIT into a rollback.
async fn send(session: &Session, plan: &Plan<'_>, name: Option<&str>) -> Outcome {
    let params: Vec<_> = plan.steps.iter().map(|(_, rows)| rows.params()).collect();
    type Answer<'f> = std::pin::Pin<Box<dyn Future<Output = Result<u64, Error>> + 'f>>;
    let mut calls: Vec<Answer<'_>> = Vec::with_capacity(params.len() + 2);
    for ((sql, _), params) in plan.steps.iter().zip(&params) {
        calls.push(Box::pin(
            session.client.execute(session.statement(*sql), params),
        ));
    }
    if let Some(name) = &name {
        let said: Vec<&(dyn ToSql + Sync)> = vec![name];
        calls.push(Box::pin(async move {
            session
                .client
                .execute(session.statement(Sql::Notify), &said)
                .await
        }));
    }
    let statements = calls.len();
    calls.push(Box::pin(async {
        session.client.batch_execute("COMMIT").await.map(|()| 0)
    }));
    let answers = match bounded(async { Ok(in_order(calls).await) }).await {
        Ok(answers) => answers,
        Err(_) => return Outcome::Unknown,
    };
    for (at, answer) in answers.into_iter().enumerate() {
        let Err(error) = answer else {
            continue;
        };
        let step = plan.steps.get(at).map(|(sql, _)| *sql);
        return match Trouble::of(&error) {
            // Said by the server about a statement before COMMIT: it did not come to that.
            trouble if error.as_db_error().is_some() && at < statements => {
                Outcome::Failed(missed(&error, step).unwrap_or(trouble))
            }
            trouble if trouble.ends_session() => Outcome::Unknown,
            trouble => Outcome::Failed(trouble),
        };
    }
    Outcome::Done
}

/// What a statement says that did not find all of its rows.
fn missed(error: &Error, step: Option<Sql>) -> Option<Trouble> {
    let sql = step.filter(|_| error.code() == Some(&SqlState::DIVISION_BY_ZERO))?;
    let text = format!("{sql:?} did not find every row it was to write");
    Some(Trouble::Wrong(text))
}
