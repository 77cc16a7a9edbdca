//! Results of tests in SQLite.

use delta_core::{LeaseKey, RunId};
use rusqlite::{Connection, Row, params};

use super::connection::store_error;
use super::credentials::PROJECT;
use super::reader::SqliteReader;
use super::rows::{self, Columns};
use super::side_tables::SqliteSideTables;
use crate::StoreError;
use crate::codec::{column, corrupt};
use crate::results::{
    LOOKED_THROUGH, LeaseResults, PRINTED, PastResult, RETRIED, ResultClaim, ResultCounts,
    ResultQuery, ResultReader, ResultRow, ResultStatus, ResultTable, StoredResult, TestQuery, fold,
    mask,
};

const PUT: &str = "INSERT INTO results (run_id, job, attempt, lease_epoch, project, result_key, \
     status, test_id, suite, name, duration_ms, message, trace, metadata, size, at) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16) \
     ON CONFLICT (run_id, job, attempt, lease_epoch, result_key) DO UPDATE SET \
         status = excluded.status, suite = excluded.suite, name = excluded.name, \
         duration_ms = excluded.duration_ms, message = excluded.message, \
         trace = excluded.trace, metadata = excluded.metadata, size = excluded.size, \
         at = excluded.at";

const WITHDRAW: &str = "DELETE FROM results WHERE run_id = ?1 AND job = ?2 AND attempt = ?3 \
     AND lease_epoch = ?4 AND (?5 IS NULL OR result_key = ?5)";

const SIZE: &str = "SELECT size FROM results WHERE run_id = ?1 AND job = ?2 AND attempt = ?3 \
     AND lease_epoch = ?4 AND result_key = ?5";

/// The latest lease of its attempt.
macro_rules! shown {
    () => {
        "JOIN attempts a ON a.run_id = t.run_id AND a.job = t.job AND a.attempt = t.attempt \
         AND a.lease_epoch = t.lease_epoch "
    };
}

macro_rules! lease {
    () => {
        "t.run_id, t.job, t.attempt, t.lease_epoch"
    };
}

const COUNTED: &str = concat!(
    "SELECT ",
    lease!(),
    ", t.status, count(*), sum(t.size) FROM results t ",
    shown!(),
    "WHERE t.run_id = ?1 GROUP BY t.job, t.attempt, t.lease_epoch, t.status"
);

const CLAIMED: &str = concat!(
    "SELECT ",
    lease!(),
    ", t.failed, t.errors, t.skipped, t.passed, t.dropped FROM result_claims t ",
    shown!(),
    "WHERE t.run_id = ?1"
);

/// The counts of one lease, whichever it is.
const COUNTED_OF_LEASE: &str = concat!(
    "SELECT ",
    lease!(),
    ", t.status, count(*), sum(t.size) FROM results t \
     WHERE t.run_id = ?1 AND t.job = ?2 AND t.attempt = ?3 AND t.lease_epoch = ?4 \
     GROUP BY t.status"
);

const CLAIM_OF_LEASE: &str = concat!(
    "SELECT ",
    lease!(),
    ", t.failed, t.errors, t.skipped, t.passed, t.dropped FROM result_claims t \
     WHERE t.run_id = ?1 AND t.job = ?2 AND t.attempt = ?3 AND t.lease_epoch = ?4"
);

const PAGE: &str = concat!(
    "SELECT t.id, ",
    lease!(),
    ", t.result_key, t.status, t.test_id, t.suite, t.name, t.duration_ms, t.message, t.trace, \
     t.metadata, t.at FROM results t ",
    shown!(),
    "JOIN jobs j ON j.run_id = t.run_id AND j.job = t.job \
     WHERE t.run_id = ?1 AND (?2 IS NULL OR t.job = ?2) \
     AND t.attempt = coalesce(?3, j.attempts) AND (?4 >> t.status) & 1 \
     AND (?5 IS NULL OR (t.job, t.status, t.id) > (?5, ?6, ?7)) \
     ORDER BY t.job, t.status, t.id LIMIT ?8"
);

const HISTORY: &str = concat!(
    "SELECT t.id, ",
    lease!(),
    ", j.name, coalesce(instr(t.metadata, ?7) > 0, 0), \
     coalesce(instr(t.metadata, ?8) > 0, 0), t.result_key, t.status, t.suite, \
     t.duration_ms, t.message, t.at, r.repository, r.git_ref, r.commit_id \
     FROM (SELECT * FROM results WHERE name = ?1 AND (?2 IS NULL OR id < ?2) \
           ORDER BY id DESC LIMIT ?3) t ",
    shown!(),
    "JOIN runs r ON r.run_id = t.run_id \
     JOIN jobs j ON j.run_id = t.run_id AND j.job = t.job \
     WHERE (?4 IS NULL OR t.suite = ?4) AND (?5 IS NULL OR r.repository = ?5) \
     ORDER BY t.id DESC LIMIT ?6"
);

impl ResultReader for SqliteReader {
    fn sizes_of_results(
        &self,
        lease: LeaseKey,
        keys: &[[u8; 16]],
    ) -> Result<Vec<([u8; 16], u64)>, StoreError> {
        let reader = self.reader();
        let run = column::run_bytes(lease.attempt.run());
        let (job, attempt) = (lease.attempt.job.n, lease.attempt.index);
        let mut found = Vec::new();
        for key in keys {
            let values = params![run, job, attempt, column::signed(lease.epoch), key];
            let size = |row: &Row| Columns { row, next: 0 }.get().map(column::unsigned);
            let sizes = rows::all(&reader, SIZE, values, size)?;
            found.extend(sizes.into_iter().map(|size| (*key, size)));
        }
        Ok(found)
    }

    fn lease_results(&self, lease: LeaseKey) -> Result<LeaseResults, StoreError> {
        let key = params![
            column::run_bytes(lease.attempt.run()),
            lease.attempt.job.n,
            lease.attempt.index,
            column::signed(lease.epoch)
        ];
        let found = totals(&self.reader(), COUNTED_OF_LEASE, CLAIM_OF_LEASE, key)?;
        Ok(found.into_iter().next().unwrap_or(LeaseResults {
            lease,
            counts: ResultCounts::default(),
            bytes: 0,
            claim: None,
        }))
    }

    fn run_results(&self, run: RunId) -> Result<Vec<LeaseResults>, StoreError> {
        let key = params![column::run_bytes(run)];
        totals(&self.reader(), COUNTED, CLAIMED, key)
    }

    fn results(&self, query: &ResultQuery, limit: usize) -> Result<Vec<StoredResult>, StoreError> {
        let after = query.after;
        let values = params![
            column::run_bytes(query.run),
            query.job,
            query.attempt,
            mask(&query.only),
            after.map(|after| after.job),
            after.map(|after| after.status.code()),
            after.map(|after| after.id),
            i64::try_from(limit).unwrap_or(i64::MAX),
        ];
        rows::all(&self.reader(), PAGE, values, read)
    }

    fn test_history(&self, query: &TestQuery, limit: usize) -> Result<Vec<PastResult>, StoreError> {
        let values = params![
            &*query.name,
            query.before,
            LOOKED_THROUGH as i64,
            query.suite.as_deref(),
            query.repository.as_deref(),
            i64::try_from(limit).unwrap_or(i64::MAX),
            RETRIED,
            PRINTED,
        ];
        rows::all(&self.reader(), HISTORY, values, read_past)
    }
}

impl ResultTable for SqliteSideTables {
    fn put_results(&self, lease: LeaseKey, rows: &[ResultRow]) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let batch = writer.transaction().map_err(store_error)?;
        {
            let mut put = batch.prepare_cached(PUT).map_err(store_error)?;
            let (run, epoch) = (column::run_bytes(lease.attempt.run()), lease.epoch);
            for row in rows {
                let values = params![
                    run,
                    lease.attempt.job.n,
                    lease.attempt.index,
                    column::signed(epoch),
                    PROJECT,
                    row.key,
                    row.status.code(),
                    &*row.test_id,
                    &*row.suite,
                    &*row.name,
                    row.duration_ms.map(column::signed),
                    row.message.as_deref(),
                    row.trace.as_deref(),
                    row.metadata.as_deref(),
                    column::signed(row.size()),
                    row.at.0,
                ];
                put.execute(values).map_err(store_error)?;
            }
        }
        batch.commit().map_err(store_error)
    }

    fn withdraw_results(
        &self,
        lease: LeaseKey,
        keys: Option<&[[u8; 16]]>,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let batch = writer.transaction().map_err(store_error)?;
        {
            let mut withdraw = batch.prepare_cached(WITHDRAW).map_err(store_error)?;
            let run = column::run_bytes(lease.attempt.run());
            let (job, attempt) = (lease.attempt.job.n, lease.attempt.index);
            let mut each = |key: Option<&[u8; 16]>| {
                let values = params![run, job, attempt, column::signed(lease.epoch), key];
                withdraw.execute(values).map(drop).map_err(store_error)
            };
            match keys {
                None => each(None)?,
                Some(keys) => keys.iter().try_for_each(|key| each(Some(key)))?,
            }
        }
        batch.commit().map_err(store_error)
    }

    fn put_result_claim(&self, lease: LeaseKey, claim: &ResultClaim) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO result_claims (run_id, job, attempt, lease_epoch, \
                   project, failed, errors, skipped, passed, dropped) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let said =
            |of: fn(&ResultCounts) -> u64| claim.counts.map(|count| column::signed(of(&count)));
        let values = params![
            column::run_bytes(lease.attempt.run()),
            lease.attempt.job.n,
            lease.attempt.index,
            column::signed(lease.epoch),
            PROJECT,
            said(|it| it.failed),
            said(|it| it.errors),
            said(|it| it.skipped),
            said(|it| it.passed),
            column::signed(claim.dropped),
        ];
        let written = self.writer().execute(sql, values);
        written.map(drop).map_err(store_error)
    }
}

fn totals(
    connection: &Connection,
    counted: &str,
    claimed: &str,
    key: &[&dyn rusqlite::ToSql],
) -> Result<Vec<LeaseResults>, StoreError> {
    let counted = rows::all(connection, counted, key, |row| {
        let mut c = Columns { row, next: 0 };
        let (lease, status) = (lease(&mut c)?, ResultStatus::from_code(c.get()?)?);
        Ok((
            lease,
            status,
            column::unsigned(c.get()?),
            column::unsigned(c.get()?),
        ))
    })?;
    let claimed = rows::all(connection, claimed, key, |row| {
        let mut c = Columns { row, next: 0 };
        Ok((lease(&mut c)?, claim(&mut c)?))
    })?;
    Ok(fold(counted.into_iter(), claimed.into_iter()))
}

fn lease(c: &mut Columns) -> Result<LeaseKey, StoreError> {
    let run: RunId = c.bytes(column::run_id)?;
    let attempt = run.job(c.small()?).attempt(c.small()?);
    Ok(attempt.lease(column::unsigned(c.get()?)))
}

fn claim(c: &mut Columns) -> Result<ResultClaim, StoreError> {
    let mut next = || Ok::<_, StoreError>(c.get::<Option<i64>>()?.map(column::unsigned));
    let (failed, errors, skipped, passed) = (next()?, next()?, next()?, next()?);
    let dropped = next()?.unwrap_or(0);
    let counts = failed.map(|failed| ResultCounts {
        failed,
        errors: errors.unwrap_or(0),
        skipped: skipped.unwrap_or(0),
        passed: passed.unwrap_or(0),
    });
    Ok(ResultClaim { counts, dropped })
}

fn key(bytes: &[u8]) -> Result<[u8; 16], StoreError> {
    bytes.try_into().map_err(|_| corrupt("a result", "its key"))
}

fn read(row: &Row) -> Result<StoredResult, StoreError> {
    let mut c = Columns { row, next: 0 };
    let text = |text: &str| Ok(text.into());
    Ok(StoredResult {
        id: c.get()?,
        lease: lease(&mut c)?,
        row: ResultRow {
            key: c.bytes(key)?,
            status: ResultStatus::from_code(c.get()?)?,
            test_id: c.text()?,
            suite: c.text()?,
            name: c.text()?,
            duration_ms: c.get::<Option<i64>>()?.map(column::unsigned),
            message: c.map_opt(text)?,
            trace: c.map_opt(text)?,
            metadata: c.map_opt(text)?,
            at: c.millis()?,
        },
    })
}

fn read_past(row: &Row) -> Result<PastResult, StoreError> {
    let mut c = Columns { row, next: 0 };
    let text = |text: &str| Ok(text.into());
    Ok(PastResult {
        id: c.get()?,
        lease: lease(&mut c)?,
        job: c.text()?,
        retried: c.get()?,
        printed: c.get()?,
        key: c.bytes(key)?,
        status: ResultStatus::from_code(c.get()?)?,
        suite: c.text()?,
        duration_ms: c.get::<Option<i64>>()?.map(column::unsigned),
        message: c.map_opt(text)?,
        at: c.millis()?,
        repository: c.map_opt(text)?,
        git_ref: c.map_opt(text)?,
        commit: c.map_opt(text)?,
    })
}
