//! Results of tests in memory.

use std::collections::BTreeMap;

use delta_core::{LeaseKey, RunId};

use super::reader::MemoryReader;
use super::side_tables::MemorySideTables;
use super::tables::Tables;
use crate::StoreError;
use crate::results::{
    LOOKED_THROUGH, LeaseResults, PRINTED, PastResult, RETRIED, ResultClaim, ResultQuery,
    ResultReader, ResultRow, ResultTable, StoredResult, TestQuery, fold,
};

#[derive(Debug, Default)]
pub(super) struct MemoryResults {
    /// By key; the number is the order of arrival.
    rows: BTreeMap<(LeaseKey, [u8; 16]), (i64, ResultRow)>,
    claims: BTreeMap<LeaseKey, ResultClaim>,
    last: i64,
}

impl MemoryResults {
    pub fn forget(&mut self, run: RunId) {
        self.rows.retain(|(lease, _), _| lease.attempt.run() != run);
        self.claims.retain(|lease, _| lease.attempt.run() != run);
    }

    fn all(&self) -> impl Iterator<Item = StoredResult> {
        self.rows
            .iter()
            .map(|((lease, _), (id, row))| StoredResult {
                id: *id,
                lease: *lease,
                row: row.clone(),
            })
    }

    fn totals(&self, wanted: impl Fn(LeaseKey) -> bool) -> Vec<LeaseResults> {
        let rows = self
            .rows
            .iter()
            .filter(|((lease, _), _)| wanted(*lease))
            .map(|((lease, _), (_, row))| (*lease, row.status, 1, row.size()));
        let claims = self.claims.iter().filter(|(lease, _)| wanted(**lease));
        fold(rows, claims.map(|(lease, claim)| (*lease, *claim)))
    }
}

/// Whether it is the latest lease of its attempt.
fn shown(tables: &Tables, lease: LeaseKey) -> bool {
    let attempt = tables.attempts.get(&lease.attempt);
    let latest = attempt.and_then(|attempt| attempt.lease.as_ref());
    latest.is_some_and(|latest| latest.epoch == lease.epoch)
}

impl ResultReader for MemoryReader {
    fn sizes_of_results(
        &self,
        lease: LeaseKey,
        keys: &[[u8; 16]],
    ) -> Result<Vec<([u8; 16], u64)>, StoreError> {
        let tables = self.tables();
        let found = keys.iter().filter_map(|key| {
            let (_, row) = tables.results.rows.get(&(lease, *key))?;
            Some((*key, row.size()))
        });
        Ok(found.collect())
    }

    fn lease_results(&self, lease: LeaseKey) -> Result<LeaseResults, StoreError> {
        let found = self.tables().results.totals(|it| it == lease);
        Ok(found.into_iter().next().unwrap_or(LeaseResults {
            lease,
            counts: Default::default(),
            bytes: 0,
            claim: None,
        }))
    }

    fn run_results(&self, run: RunId) -> Result<Vec<LeaseResults>, StoreError> {
        let tables = self.tables();
        let wanted = |lease: LeaseKey| lease.attempt.run() == run && shown(&tables, lease);
        Ok(tables.results.totals(wanted))
    }

    fn results(&self, query: &ResultQuery, limit: usize) -> Result<Vec<StoredResult>, StoreError> {
        let tables = self.tables();
        let latest = |found: &StoredResult| {
            let attempt = found.lease.attempt;
            let latest = tables.jobs.get(&attempt.job).map(|job| job.attempts);
            query.attempt.or(latest) == Some(attempt.index)
        };
        let mut found: Vec<StoredResult> = tables
            .results
            .all()
            .filter(|result| {
                result.lease.attempt.run() == query.run && shown(&tables, result.lease)
            })
            .filter(|result| {
                query
                    .job
                    .is_none_or(|job| result.lease.attempt.job.n == job)
            })
            .filter(latest)
            .filter(|result| query.only.is_empty() || query.only.contains(&result.row.status))
            .filter(|result| query.after.is_none_or(|after| result.place() > after))
            .collect();
        found.sort_by_key(StoredResult::place);
        found.truncate(limit);
        Ok(found)
    }

    fn test_history(&self, query: &TestQuery, limit: usize) -> Result<Vec<PastResult>, StoreError> {
        let tables = self.tables();
        let mut named: Vec<StoredResult> = tables
            .results
            .all()
            .filter(|result| result.row.name == query.name)
            .filter(|result| query.before.is_none_or(|before| result.id < before))
            .collect();
        named.sort_by_key(|it| std::cmp::Reverse(it.id));
        named.truncate(LOOKED_THROUGH);
        let past = named.into_iter().filter_map(|it| {
            let header = &tables.runs.get(&it.lease.attempt.run())?.header;
            let job = tables.jobs.get(&it.lease.attempt.job)?;
            let metadata = it.row.metadata.as_deref();
            let asked = query.suite.as_ref().is_none_or(|s| *s == it.row.suite)
                && (query.repository.is_none() || query.repository == header.repository);
            (asked && shown(&tables, it.lease)).then(|| PastResult {
                id: it.id,
                lease: it.lease,
                job: job.name.clone(),
                retried: metadata.is_some_and(|metadata| metadata.contains(RETRIED)),
                printed: metadata.is_some_and(|metadata| metadata.contains(PRINTED)),
                key: it.row.key,
                status: it.row.status,
                suite: it.row.suite,
                duration_ms: it.row.duration_ms,
                message: it.row.message,
                at: it.row.at,
                repository: header.repository.clone(),
                git_ref: header.git_ref.clone(),
                commit: header.commit.clone(),
            })
        });
        Ok(past.take(limit).collect())
    }
}

impl ResultTable for MemorySideTables {
    fn put_results(&self, lease: LeaseKey, rows: &[ResultRow]) -> Result<(), StoreError> {
        let mut tables = self.tables();
        let table = &mut tables.results;
        for row in rows {
            let next = table.last + 1;
            let there = table.rows.entry((lease, row.key));
            let (id, kept) = there.or_insert_with(|| (next, row.clone()));
            table.last = table.last.max(*id);
            kept.clone_from(row);
        }
        Ok(())
    }

    fn withdraw_results(
        &self,
        lease: LeaseKey,
        keys: Option<&[[u8; 16]]>,
    ) -> Result<(), StoreError> {
        let mut tables = self.tables();
        let meant = |key: &[u8; 16]| keys.is_none_or(|keys| keys.contains(key));
        let rows = &mut tables.results.rows;
        rows.retain(|(of, key), _| *of != lease || !meant(key));
        Ok(())
    }

    fn put_result_claim(&self, lease: LeaseKey, claim: &ResultClaim) -> Result<(), StoreError> {
        self.tables().results.claims.insert(lease, *claim);
        Ok(())
    }
}
