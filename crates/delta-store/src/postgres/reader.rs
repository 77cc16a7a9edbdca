//! The reading side: a few connections shared by all callers, each call one page.

use std::sync::Arc;

use delta_core::group::Members;
use delta_core::{Digest, Job, JobId, Run, RunId};

use super::integrity;
use super::pools::Pools;
use super::rows;
use super::sql::Sql;
use super::sweep::read_spec;
use super::value::{Fields, escape, uuid};
use crate::StoreError;
use crate::codec::corrupt;
use crate::doctor::Integrity;
use crate::events::{EventRow, Unfolding};
use crate::read::{
    JobRows, QueueDepth, Reader, RunFilter, RunKind, RunRows, StoreStats, StoredEvent,
};

/// The reading side. See [`super::open`].
pub struct PgReader {
    pub(super) pools: Arc<Pools>,
}

impl Reader for PgReader {
    fn run(&self, id: RunId) -> Result<Option<RunRows>, StoreError> {
        let id = uuid(id);
        let found = self
            .pools
            .snapshot(&[(Sql::ReadRun, vec![&id]), (Sql::ReadRunJobs, vec![&id])])?;
        let Some(row) = found[0].first() else {
            return Ok(None);
        };
        let mut fields = Fields::of(row);
        let run = rows::read_run(&mut fields)?;
        let version = fields.opt_int()?.unwrap_or(0) as u64;
        let mut jobs = Vec::with_capacity(found[1].len());
        for row in &found[1] {
            let mut fields = Fields::of(row);
            jobs.push((
                rows::read_job(&mut fields)?,
                rows::read_attempt(&mut fields)?,
            ));
        }
        Ok(Some(RunRows { run, version, jobs }))
    }

    fn job(&self, id: JobId) -> Result<Option<JobRows>, StoreError> {
        let (run, n) = (uuid(id.run), i64::from(id.n));
        let found = self.pools.snapshot(&[
            (Sql::ReadJobRun, vec![&run]),
            (Sql::ReadJob, vec![&run, &n]),
            (Sql::ReadJobAttempts, vec![&run, &n]),
            (Sql::ReadJobLeases, vec![&run, &n]),
        ])?;
        let (Some(run), Some(job)) = (found[0].first(), found[1].first()) else {
            return Ok(None);
        };
        let run: Run = rows::read_run(&mut Fields::of(run))?;
        let job: Job = rows::read_job(&mut Fields::of(job))?;
        let attempts = found[2]
            .iter()
            .map(|row| rows::read_attempt(&mut Fields::of(row)));
        let mut past_leases = Vec::with_capacity(found[3].len());
        for row in &found[3] {
            let mut fields = Fields::of(row);
            let id = fields.attempt()?;
            past_leases.extend(rows::read_lease(&mut fields)?.map(|lease| (id, lease)));
        }
        Ok(Some(JobRows {
            run,
            job,
            attempts: attempts.collect::<Result<_, _>>()?,
            past_leases,
        }))
    }

    fn runs(&self, filter: &RunFilter, limit: usize) -> Result<Vec<Run>, StoreError> {
        let before = filter.before.map(uuid);
        let state = filter.state.map(|state| state.name());
        // Only a state that can be had both ways leaves the index to the ids.
        let ended = filter.state.map(|state| state.has_ended());
        let outcome = filter.outcome.map(|outcome| outcome.name());
        let [repository, git_ref, commit] = [&filter.repository, &filter.git_ref, &filter.commit]
            .map(|text| text.as_deref().map(escape));
        let queue = filter.queue.as_deref().map(escape);
        let functions = match filter.kind {
            RunKind::Any => None,
            RunKind::Plain => Some(false),
            RunKind::Functions | RunKind::DeadLetters => Some(true),
        };
        let dead = filter.kind == RunKind::DeadLetters;
        let rerun_of = filter.rerun_of.map(|id| id.to_string());
        let most = limit as i64;
        let found = self.pools.rows(
            Sql::ListRuns,
            &[
                &before,
                &state,
                &ended,
                &outcome,
                &repository,
                &git_ref,
                &commit,
                &queue,
                &functions,
                &dead,
                &rerun_of,
                &most,
            ],
        )?;
        found
            .iter()
            .map(|row| rows::read_run(&mut Fields::of(row)))
            .collect()
    }

    fn events(&self, id: RunId, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        // Versions have no gaps, so the last event of the page is known before it is read.
        let first = i64::try_from(after.saturating_add(1)).unwrap_or(i64::MAX);
        let last = i64::try_from(after.saturating_add(limit as u64)).unwrap_or(i64::MAX);
        let found = self.pools.rows(Sql::Events, &[&uuid(id), &first, &last])?;
        let mut unfolding = Unfolding::new(after, limit);
        for row in &found {
            let mut fields = Fields::of(row);
            unfolding.add(&EventRow {
                run: fields.run()?,
                first: fields.unsigned()?,
                records: fields.small()?,
                at: fields.millis()?,
                hash: fields.digest()?,
                bytes: fields.bytes()?.to_vec(),
            });
        }
        Ok(unfolding.events)
    }

    fn spec(&self, id: JobId) -> Result<Option<Arc<str>>, StoreError> {
        let found = self
            .pools
            .rows(Sql::Spec, &[&uuid(id.run), &i64::from(id.n)])?;
        let Some(row) = found.first() else {
            return Ok(None);
        };
        Fields::of(row).opt_bytes()?.map(read_spec).transpose()
    }

    fn queue(&self) -> Result<Vec<QueueDepth>, StoreError> {
        let found = self.pools.rows(Sql::QueueDepths, &[])?;
        let read = |row| -> Result<QueueDepth, StoreError> {
            let mut fields = Fields::of(row);
            Ok(QueueDepth {
                match_key: fields.text()?,
                attempts: fields.unsigned()?,
                oldest: fields.millis()?,
            })
        };
        found.iter().map(read).collect()
    }

    fn ahead(&self, match_key: &str, order_key: i64) -> Result<u64, StoreError> {
        let found = self
            .pools
            .rows(Sql::Ahead, &[&escape(match_key), &order_key])?;
        let row = found
            .first()
            .ok_or_else(|| corrupt("the queue", "it has no count"))?;
        Fields::of(row).unsigned()
    }

    fn group(&self, key: &Digest) -> Result<Members, StoreError> {
        let found = self.pools.rows(Sql::Line, &[&vec![key.to_vec()]])?;
        let members = found.iter().map(|row| {
            let (_, member) = rows::read_member(&mut Fields::of(row))?;
            Ok((member.id, member))
        });
        members.collect()
    }

    fn run_ids(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, StoreError> {
        let found = self
            .pools
            .rows(Sql::RunIds, &[&after.map(uuid), &(limit as i64)])?;
        found.iter().map(|row| Fields::of(row).run()).collect()
    }

    fn pruned(&self, among: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        let among: Vec<uuid::Uuid> = among.iter().map(|id| uuid(*id)).collect();
        let found = self.pools.rows(Sql::Pruned, &[&among])?;
        found.iter().map(|row| Fields::of(row).run()).collect()
    }

    fn integrity(&self, progress: &mut dyn FnMut(&str)) -> Result<Integrity, StoreError> {
        integrity::look(&self.pools, progress)
    }

    fn ping(&self) -> Result<(), StoreError> {
        self.pools.rows(Sql::Ping, &[]).map(|_| ())
    }

    fn stats(&self) -> Result<StoreStats, StoreError> {
        let found = self.pools.rows(Sql::Stats, &[])?;
        let row = found
            .first()
            .ok_or_else(|| corrupt("the store", "it has no tables"))?;
        let mut fields = Fields::of(row);
        Ok(StoreStats {
            runs: fields.unsigned()?,
            queued: fields.unsigned()?,
            leased: fields.unsigned()?,
            wal_bytes: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use delta_testkit::postgres::fresh_database;

    use crate::credential::CredentialReader as _;

    #[test]
    fn credentials_are_looked_up_while_every_other_connection_is_busy() {
        let database = fresh_database().expect("a database");
        let (_store, reader, _) = crate::postgres::open(&database.url).expect("opens");
        let busy = reader.pools.pages.take_all();
        assert!(busy.is_some());
        assert_eq!(reader.credential(&[7; 32]).expect("an answer"), None);
    }
}
