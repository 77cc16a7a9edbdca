//! One batch into one transaction: what is written, in which order, and what memory learns of it
//! afterwards. Nothing in memory changes before the file has.

use std::sync::{Arc, PoisonError};

use delta_core::{Attempt, AttemptId, AttemptState, Fact, Job, JobId, Run, RunId, RunState, Text};

use super::cache::Cache;
use super::connection::WAL_BOUND;
use super::write::Write;
use super::{SqliteStore, store_error};
use crate::codec::corrupt;
use crate::events::{Chained, Tip};
use crate::id_map::{IdMap, IdSet};
use crate::index::Queue;
use crate::{CommitError, StoreError, Writes, newest_of};

/// The log's size is looked at once in so many commits: a look is a system call.
const WAL_LOOK_EVERY: u64 = 256;

/// What the records say about the rows: which are new, and which attempts changed by more than a
/// renewal.
#[derive(Default)]
struct Touched {
    runs: IdSet<RunId>,
    /// Runs whose plan said something about them.
    headers: IdSet<RunId>,
    jobs: IdSet<JobId>,
    attempts: IdSet<AttemptId>,
    moved: IdSet<AttemptId>,
}

/// A batch ready to be written.
struct Plan {
    touched: Touched,
    events: Chained,
    projects: IdMap<RunId, Text>,
    /// Match keys of the attempts that enter the queue.
    entering: IdMap<AttemptId, Text>,
}

impl SqliteStore {
    /// Writes the batch; the caller ends a transaction that is still open afterwards.
    pub(super) fn commit_batch(&mut self, writes: &Writes) -> Result<(), CommitError> {
        if writes.is_empty() {
            return Ok(());
        }
        let plan = self.plan(writes)?;
        let last = plan.events.rows.last();
        self.unknown = last.map(|row| (row.run, row.first, row.hash));
        if self.connection.is_autocommit() {
            self.run_sql("BEGIN IMMEDIATE")?;
        }
        if let Err(error) = self.write_all(writes, &plan) {
            // Another writer may have been the reason: memory is read again.
            self.doubtful = true;
            return Err(match error {
                StoreError::Conflict => CommitError::Conflict,
                other => other.into(),
            });
        }
        if let Err(error) = self.run_sql("COMMIT") {
            self.doubtful = true;
            if !self.connection.is_autocommit() {
                return Err(error.into());
            }
            // The transaction is over, and nobody said how: the file knows.
            tracing::warn!(%error, "a commit was not answered");
            return Err(match self.is_there() {
                Ok(false) => error.into(),
                Ok(true) | Err(_) => CommitError::Unknown,
            });
        }
        self.publish(writes, plan);
        self.keep_wal_bounded();
        Ok(())
    }

    pub(super) fn run_sql(&self, sql: &str) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare_cached(sql).map_err(store_error)?;
        statement.execute([]).map(drop).map_err(store_error)
    }

    fn plan(&mut self, writes: &Writes) -> Result<Plan, StoreError> {
        let touched = touched(writes);
        let mut projects: IdMap<RunId, Text> = IdMap::default();
        let events = Chained::of(&writes.records, |run| {
            projects.insert(run, self.project(run, writes)?);
            if touched.runs.contains(&run) {
                Ok(Tip::NONE)
            } else {
                self.tip(run)
            }
        })?;
        let mut entering = IdMap::default();
        for attempt in writes.edits.attempts.values() {
            let change = self.index().queue_change(attempt);
            if change == Queue::Entered {
                let key = self.match_key(attempt.id.job, writes)?;
                entering.insert(attempt.id, key);
            }
        }
        Ok(Plan {
            touched,
            events,
            projects,
            entering,
        })
    }

    fn project(&mut self, run: RunId, writes: &Writes) -> Result<Text, StoreError> {
        if let Some(row) = writes.edits.runs.get(&run) {
            return Ok(row.header.project.clone());
        }
        let found = self.run(run)?.map(|row| row.header.project.clone());
        found.ok_or_else(|| {
            corrupt(
                "a record",
                format!("it speaks of {run}, which is not there"),
            )
        })
    }

    fn match_key(&mut self, job: JobId, writes: &Writes) -> Result<Text, StoreError> {
        if let Some(row) = writes.edits.jobs.get(&job) {
            return Ok(row.policy.requires.clone());
        }
        let found = self.job(job)?.map(|row| row.policy.requires.clone());
        found.ok_or_else(|| corrupt("an attempt", format!("its job {job} is not there")))
    }

    fn write_all(&mut self, writes: &Writes, plan: &Plan) -> Result<(), StoreError> {
        let mut write = Write::to(&self.connection);
        let before = Before {
            runs: &self.runs,
            jobs: &self.jobs,
            attempts: &self.attempts,
        };
        before.write_changed(writes, plan, &mut write)?;
        for row in &plan.events.rows {
            write.insert_events(&plan.projects[&row.run], row)?;
        }
        for (job, spec) in &writes.specs {
            write.insert_spec(&plan.projects[&job.run], *job, spec)?;
        }
        let newest = newest_of(writes);
        if newest > self.newest {
            write.set_meta("newest", newest.0)?;
        }
        if !plan.touched.runs.is_empty() {
            let runs = self.run_count + plan.touched.runs.len() as u64;
            write.set_meta("runs", runs as i64)?;
        }
        Ok(())
    }

    /// The file has it: now memory may. What has ended is not kept: a late message about it is
    /// rare, and reads it again.
    fn publish(&mut self, writes: &Writes, plan: Plan) {
        let (batch, edits) = (self.batch, &writes.edits);
        for (run, tip) in plan.events.tips() {
            self.tips.put(run, tip, batch);
        }
        let index = self.index.clone();
        let mut index = index.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, run) in &edits.runs {
            index.put_run(run);
            if run.state == RunState::Reported {
                self.runs.remove(*id);
                self.tips.remove(*id);
            } else {
                self.runs.put(*id, run.clone(), batch);
            }
        }
        for (id, job) in &edits.jobs {
            index.put_job(job);
            match job.resolution {
                Some(_) => self.jobs.remove(*id),
                None => self.jobs.put(*id, job.clone(), batch),
            }
        }
        for (id, attempt) in &edits.attempts {
            index.put_attempt(attempt, || &plan.entering[id]);
            if attempt.state.is_final() {
                self.attempts.remove(*id)
            } else {
                self.attempts.put(*id, attempt.clone(), batch)
            }
        }
        drop(index);
        for (job, spec) in &writes.specs {
            self.specs.put(*job, spec.clone());
        }
        self.newest = self.newest.max(newest_of(writes));
        self.run_count += plan.touched.runs.len() as u64;
        self.flushes += 1;
        self.show_gauges();
    }

    /// Checkpoints happen by themselves, but a reader at the wrong moment can keep the log from
    /// starting over. Far above its usual size it is emptied by force.
    fn keep_wal_bounded(&self) {
        if !self.flushes.is_multiple_of(WAL_LOOK_EVERY) {
            return;
        }
        let log = self.path.with_extension("db-wal");
        if log.metadata().is_ok_and(|found| found.len() > WAL_BOUND) {
            let done = self
                .connection
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            if let Err(error) = done {
                tracing::warn!(%error, "the write-ahead log could not be emptied");
            }
        }
    }
}

/// The rows as the file has them, as far as they are in memory.
struct Before<'s> {
    runs: &'s Cache<RunId, Arc<Run>>,
    jobs: &'s Cache<JobId, Arc<Job>>,
    attempts: &'s Cache<AttemptId, Arc<Attempt>>,
}

impl Before<'_> {
    /// A row that is as it was is not written; deciding often only looks at a job.
    fn write_changed(
        &self,
        writes: &Writes,
        plan: &Plan,
        write: &mut Write,
    ) -> Result<(), StoreError> {
        let edits = &writes.edits;
        for (id, run) in &edits.runs {
            if plan.touched.runs.contains(id) {
                write.insert_run(run)?;
            } else if self.runs.peek(*id) != Some(run) {
                write.update_run(run)?;
                if plan.touched.headers.contains(id) {
                    write.update_header(run)?;
                }
            }
        }
        for (id, job) in &edits.jobs {
            if plan.touched.jobs.contains(id) {
                write.insert_job(&plan.projects[&id.run], job)?;
            } else if self.jobs.peek(*id) != Some(job) {
                write.update_job(job)?;
            }
        }
        for (id, attempt) in &edits.attempts {
            if plan.touched.attempts.contains(id) {
                write.insert_attempt(&plan.projects[&id.run()], attempt)?;
            } else if plan.touched.moved.contains(id) {
                write.update_attempt(attempt)?;
            } else if self.attempts.peek(*id) != Some(attempt) {
                write.renew_attempt(attempt)?;
            }
            if attempt.waits_for_a_moment() {
                write_delayed(attempt, plan, write)?;
            }
        }
        for (key, lease) in &edits.past_leases {
            let project = &plan.projects[&key.attempt.run()];
            write.insert_past_lease(project, *key, lease)?;
        }
        Ok(())
    }
}

fn write_delayed(attempt: &Attempt, plan: &Plan, write: &mut Write) -> Result<(), StoreError> {
    let waits = attempt.state == AttemptState::Created;
    let made_here = plan.touched.attempts.contains(&attempt.id);
    if made_here && waits {
        write.enter_delayed(&plan.projects[&attempt.id.run()], attempt)
    } else if !made_here && !waits && plan.touched.moved.contains(&attempt.id) {
        write.leave_delayed(attempt.id)
    } else {
        Ok(())
    }
}

fn touched(writes: &Writes) -> Touched {
    let mut touched = Touched::default();
    for record in &writes.records {
        for fact in &record.facts {
            let (job, index) = match fact {
                Fact::RunCreated(run) => {
                    touched.runs.insert(run.id);
                    continue;
                }
                Fact::JobCreated(job) => {
                    touched.jobs.insert(job.id);
                    touched.attempts.insert(job.id.attempt(1));
                    continue;
                }
                Fact::AttemptCreated { job, index, .. } => {
                    let id = record.run.job(*job).attempt(*index);
                    touched.attempts.insert(id);
                    continue;
                }
                Fact::RunConfigured(_) => {
                    touched.headers.insert(record.run);
                    continue;
                }
                Fact::RunMoved { .. }
                | Fact::RunCancelAsked(_)
                | Fact::NeedMet { .. }
                | Fact::LineEntered { .. }
                | Fact::TurnTaken { .. }
                | Fact::JobResolved { .. } => continue,
                Fact::AttemptMoved { job, index, .. }
                | Fact::CancelAsked { job, index, .. }
                | Fact::Reported { job, index, .. }
                | Fact::LeaseGranted { job, index, .. }
                | Fact::LeaseMoved { job, index, .. }
                | Fact::Spent { job, index, .. }
                | Fact::LeaseClamped { job, index, .. } => (job, index),
            };
            touched.moved.insert(record.run.job(*job).attempt(*index));
        }
    }
    touched
}
