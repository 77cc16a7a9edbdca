//! Results of tests in PostgreSQL.

use delta_core::{LeaseKey, RunId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::reader::PgReader;
use super::side_tables::PgSideTables;
use super::sql::Sql;
use super::value::{Fields, Rows, Value, escape, unescape, uuid};
use crate::StoreError;
use crate::codec::corrupt;
use crate::results::{
    LOOKED_THROUGH, LeaseResults, PRINTED, PastResult, RETRIED, ResultClaim, ResultCounts,
    ResultQuery, ResultReader, ResultRow, ResultStatus, ResultTable, StoredResult, TestQuery, fold,
    last_of_each, mask,
};

impl ResultReader for PgReader {
    fn sizes_of_results(
        &self,
        lease: LeaseKey,
        keys: &[[u8; 16]],
    ) -> Result<Vec<([u8; 16], u64)>, StoreError> {
        let keys: Vec<&[u8]> = keys.iter().map(<[u8; 16]>::as_slice).collect();
        let of = Key::of(lease);
        let mut params = of.params();
        params.push(&keys);
        let found = self.pools.rows(Sql::SizesOfResults, &params)?;
        let read = |row: &Row| {
            let mut fields = Fields::of(row);
            Ok((key(fields.bytes()?)?, fields.int()?.cast_unsigned()))
        };
        found.iter().map(read).collect()
    }

    fn lease_results(&self, lease: LeaseKey) -> Result<LeaseResults, StoreError> {
        let key = Key::of(lease);
        let counted = self.pools.rows(Sql::LeaseResults, &key.params())?;
        let claimed = self.pools.rows(Sql::LeaseClaim, &key.params())?;
        let found = totals(&counted, &claimed)?;
        Ok(found.into_iter().next().unwrap_or(LeaseResults {
            lease,
            counts: ResultCounts::default(),
            bytes: 0,
            claim: None,
        }))
    }

    fn run_results(&self, run: RunId) -> Result<Vec<LeaseResults>, StoreError> {
        let counted = self.pools.rows(Sql::RunResults, &[&uuid(run)])?;
        let claimed = self.pools.rows(Sql::RunClaims, &[&uuid(run)])?;
        totals(&counted, &claimed)
    }

    fn results(&self, query: &ResultQuery, limit: usize) -> Result<Vec<StoredResult>, StoreError> {
        let after = query.after;
        let found = self.pools.rows(
            Sql::ResultPage,
            &[
                &uuid(query.run),
                &query.job.map(i64::from),
                &query.attempt.map(i64::from),
                &mask(&query.only),
                &after.map(|after| i64::from(after.job)),
                &after.map(|after| after.status.code()),
                &after.map(|after| after.id),
                &i64::try_from(limit).unwrap_or(i64::MAX),
            ],
        )?;
        found.iter().map(read).collect()
    }

    fn test_history(&self, query: &TestQuery, limit: usize) -> Result<Vec<PastResult>, StoreError> {
        let found = self.pools.rows(
            Sql::TestHistory,
            &[
                &escape(&query.name),
                &query.before,
                &(LOOKED_THROUGH as i64),
                &query.suite.as_deref().map(escape),
                &query.repository.as_deref().map(escape),
                &i64::try_from(limit).unwrap_or(i64::MAX),
                &RETRIED,
                &PRINTED,
            ],
        )?;
        found.iter().map(read_past).collect()
    }
}

impl ResultTable for PgSideTables {
    fn put_results(&self, lease: LeaseKey, rows: &[ResultRow]) -> Result<(), StoreError> {
        let rows = last_of_each(rows);
        if rows.is_empty() {
            return Ok(());
        }
        let mut columns = Rows::default();
        for row in rows {
            columns.push([
                Value::Bytes(Some(&row.key)),
                Value::Int(row.status.code()),
                Value::Text(&row.test_id),
                Value::Text(&row.suite),
                Value::Text(&row.name),
                Value::OptInt(row.duration_ms.map(u64::cast_signed)),
                Value::OptText(row.message.as_deref()),
                Value::OptText(row.trace.as_deref()),
                Value::OptText(row.metadata.as_deref()),
                Value::Int(row.size().cast_signed()),
                Value::Int(row.at.0),
            ]);
        }
        let key = Key::of(lease);
        let mut params = key.params();
        params.extend(columns.params());
        self.pools.rows(Sql::PutResults, &params).map(drop)
    }

    fn withdraw_results(
        &self,
        lease: LeaseKey,
        keys: Option<&[[u8; 16]]>,
    ) -> Result<(), StoreError> {
        let keys: Option<Vec<&[u8]>> =
            keys.map(|keys| keys.iter().map(<[u8; 16]>::as_slice).collect());
        let key = Key::of(lease);
        let mut params = key.params();
        params.push(&keys);
        self.pools.rows(Sql::WithdrawResults, &params).map(drop)
    }

    fn put_result_claim(&self, lease: LeaseKey, claim: &ResultClaim) -> Result<(), StoreError> {
        let said =
            |of: fn(&ResultCounts) -> u64| claim.counts.map(|count| of(&count).cast_signed());
        let key = Key::of(lease);
        let mut params = key.params();
        let counts = [
            said(|it| it.failed),
            said(|it| it.errors),
            said(|it| it.skipped),
            said(|it| it.passed),
        ];
        params.extend(counts.iter().map(|count| count as &(dyn ToSql + Sync)));
        let dropped = claim.dropped.cast_signed();
        params.push(&dropped);
        self.pools.rows(Sql::PutResultClaim, &params).map(drop)
    }
}

/// A lease as the columns it is kept under.
struct Key {
    run: uuid::Uuid,
    job: i64,
    attempt: i64,
    epoch: i64,
}

impl Key {
    fn of(lease: LeaseKey) -> Key {
        Key {
            run: uuid(lease.attempt.run()),
            job: lease.attempt.job.n.into(),
            attempt: lease.attempt.index.into(),
            epoch: lease.epoch.cast_signed(),
        }
    }

    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![&self.run, &self.job, &self.attempt, &self.epoch]
    }
}

fn totals(counted: &[Row], claimed: &[Row]) -> Result<Vec<LeaseResults>, StoreError> {
    let counted: Vec<_> = counted
        .iter()
        .map(|row| {
            let mut fields = Fields::of(row);
            let (lease, status) = (lease(&mut fields)?, status(&mut fields)?);
            Ok((lease, status, fields.unsigned()?, fields.unsigned()?))
        })
        .collect::<Result<_, StoreError>>()?;
    let claimed: Vec<_> = claimed
        .iter()
        .map(|row| {
            let mut fields = Fields::of(row);
            Ok((lease(&mut fields)?, claim(&mut fields)?))
        })
        .collect::<Result<_, StoreError>>()?;
    Ok(fold(counted.into_iter(), claimed.into_iter()))
}

fn lease(fields: &mut Fields) -> Result<LeaseKey, StoreError> {
    Ok(fields.attempt()?.lease(fields.unsigned()?))
}

fn status(fields: &mut Fields) -> Result<ResultStatus, StoreError> {
    ResultStatus::from_code(fields.int()?)
}

fn claim(fields: &mut Fields) -> Result<ResultClaim, StoreError> {
    let mut next = || Ok::<_, StoreError>(fields.opt_int()?.map(i64::cast_unsigned));
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
    let mut fields = Fields::of(row);
    Ok(StoredResult {
        id: fields.int()?,
        lease: lease(&mut fields)?,
        row: ResultRow {
            key: key(fields.bytes()?)?,
            status: status(&mut fields)?,
            test_id: fields.text()?,
            suite: fields.text()?,
            name: fields.text()?,
            duration_ms: fields.opt_int()?.map(i64::cast_unsigned),
            message: fields.opt_text()?,
            trace: fields.opt_text()?,
            metadata: fields.opt_text()?,
            at: fields.millis()?,
        },
    })
}

fn read_past(row: &Row) -> Result<PastResult, StoreError> {
    let mut fields = Fields::of(row);
    Ok(PastResult {
        id: fields.int()?,
        lease: lease(&mut fields)?,
        job: fields.text()?,
        retried: fields.int()? > 0,
        printed: fields.int()? > 0,
        key: key(fields.bytes()?)?,
        status: status(&mut fields)?,
        suite: fields.text()?,
        duration_ms: fields.opt_int()?.map(i64::cast_unsigned),
        message: fields.opt_text()?,
        at: fields.millis()?,
        repository: fields.opt_plain()?.map(unescape),
        git_ref: fields.opt_plain()?.map(unescape),
        commit: fields.opt_plain()?.map(unescape),
    })
}
