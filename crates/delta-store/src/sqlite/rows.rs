//! Rows of the tables, read back into the core's types.

use std::sync::Arc;

use delta_core::lease::Closing;
use delta_core::{Attempt, AttemptId, Job, JobId, Lease, LeaseKey, Millis, Run, RunId, Span, Text};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::connection::store_error;
use crate::StoreError;
use crate::codec::{column, corrupt, row as json};
use crate::events::{EventRow, Tip};
use crate::read::{Credential, Role, Scope};

/// The columns of a table in the order they are read here.
macro_rules! columns {
    (run) => {
        "run_id, state, outcome, cause, cancel, created_at, queued_at, started_at, ended_at, jobs, \
         live_jobs, required_failed, required_canceled, place, header"
    };
    (job) => {
        "run_id, job, name, policy, spec, dependents, waiting_on, attempts, resolution, cause, \
         ended_at, kept, place"
    };
    (attempt) => {
        "run_id, job, attempt, state, created_at, not_before, queued_at, order_key, ended_at, \
         cause, losses, dispatches, cancel, report, lease_number, cancel_told_at, progress"
    };
    (lease) => {
        "lease_epoch, lease_nth, lease_token, lease_state, lease_principal, lease_runner, \
         granted_at, ack_by, acknowledged_at, lease_ended_at, revocation, closing_kind, \
         closing_digest, ttl, expires_at, heartbeat_seq"
    };
}
pub(super) use columns;

/// Columns one after the other.
pub struct Columns<'r, 's> {
    pub row: &'r Row<'s>,
    pub next: usize,
}

impl Columns<'_, '_> {
    pub fn get<T: FromSql>(&mut self) -> Result<T, StoreError> {
        let value = self.row.get(self.next).map_err(store_error);
        self.next += 1;
        value
    }

    pub fn text(&mut self) -> Result<Text, StoreError> {
        self.map(|text| Ok(text.into()))
    }

    /// A text that is turned into something else without a copy.
    pub fn map<T>(
        &mut self,
        read: impl Fn(&str) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.map_opt(read)?
            .ok_or_else(|| corrupt("a row", "a value is missing"))
    }

    pub fn map_opt<T>(
        &mut self,
        read: impl Fn(&str) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let value = self.row.get_ref(self.next).map_err(store_error)?;
        self.next += 1;
        let text = value.as_str_or_null().map_err(|e| corrupt("a row", e))?;
        text.map(read).transpose()
    }

    pub fn bytes<T>(
        &mut self,
        read: impl Fn(&[u8]) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let value = self.row.get_ref(self.next).map_err(store_error)?;
        self.next += 1;
        read(value.as_blob().map_err(|e| corrupt("a row", e))?)
    }

    pub fn bytes_opt<T>(
        &mut self,
        read: impl Fn(&[u8]) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let value = self.row.get_ref(self.next).map_err(store_error)?;
        self.next += 1;
        let bytes = value.as_blob_or_null().map_err(|e| corrupt("a row", e))?;
        bytes.map(read).transpose()
    }

    pub fn small(&mut self) -> Result<u32, StoreError> {
        column::small(self.get()?)
    }

    pub fn millis(&mut self) -> Result<Millis, StoreError> {
        self.get().map(Millis)
    }

    pub fn millis_opt(&mut self) -> Result<Option<Millis>, StoreError> {
        Ok(self.get::<Option<i64>>()?.map(Millis))
    }
}

pub fn read_run(row: &Row) -> Result<Run, StoreError> {
    let mut c = Columns { row, next: 0 };
    Ok(Run {
        id: c.bytes(column::run_id)?,
        state: c.map(column::run_state)?,
        outcome: c.map_opt(column::run_state)?,
        cause: c.map_opt(column::cause)?,
        cancel: c.map_opt(json::decode_run_cancel)?,
        created_at: c.millis()?,
        queued_at: c.millis_opt()?,
        started_at: c.millis_opt()?,
        ended_at: c.millis_opt()?,
        jobs: c.small()?,
        live_jobs: c.small()?,
        required_failed: c.small()?,
        required_canceled: c.small()?,
        place: c.map_opt(json::decode_place)?,
        header: c.map(json::decode_header)?,
    })
}

pub fn read_job(row: &Row) -> Result<Job, StoreError> {
    let mut c = Columns { row, next: 0 };
    let run: RunId = c.bytes(column::run_id)?;
    Ok(Job {
        id: run.job(c.small()?),
        name: c.text()?,
        policy: Arc::new(c.map(json::decode_policy)?),
        spec: c.bytes(column::digest)?,
        dependents: c.map(json::decode_numbers)?.into(),
        waiting_on: c.small()?,
        attempts: c.small()?,
        resolution: c.map_opt(column::resolution)?,
        cause: c.map_opt(column::cause)?,
        ended_at: c.millis_opt()?,
        kept: c.map_opt(column::job_id)?,
        place: c.map_opt(json::decode_place)?,
    })
}

/// An attempt followed by its lease.
pub fn read_attempt(row: &Row) -> Result<Attempt, StoreError> {
    let mut c = Columns { row, next: 0 };
    Ok(Attempt {
        id: attempt_id(&mut c)?,
        state: c.map(column::attempt_state)?,
        created_at: c.millis()?,
        not_before: c.millis()?,
        queued_at: c.millis_opt()?,
        order_key: c.get()?,
        ended_at: c.millis_opt()?,
        cause: c.map_opt(column::cause)?,
        losses: c.small()?,
        dispatches: c.small()?,
        cancel: c.map_opt(json::decode_attempt_cancel)?,
        report: c.map_opt(json::decode_report)?,
        lease_number: c.small()?,
        cancel_told_at: c.millis_opt()?,
        progress: c.map_opt(json::decode_progress)?.unwrap_or_default(),
        lease: lease(&mut c)?,
    })
}

/// The attempt's id followed by the lease.
pub fn read_past_lease(row: &Row) -> Result<(AttemptId, Lease), StoreError> {
    let mut c = Columns { row, next: 0 };
    let id = attempt_id(&mut c)?;
    let lease = lease(&mut c)?.ok_or_else(|| corrupt("a past lease", "it has no epoch"))?;
    Ok((id, lease))
}

fn attempt_id(c: &mut Columns) -> Result<AttemptId, StoreError> {
    let run: RunId = c.bytes(column::run_id)?;
    Ok(run.job(c.small()?).attempt(c.small()?))
}

fn lease(c: &mut Columns) -> Result<Option<Lease>, StoreError> {
    let Some(epoch) = c.get::<Option<i64>>()? else {
        return Ok(None);
    };
    let mut lease = Lease {
        epoch: column::unsigned(epoch),
        number: c.small()?,
        token: c.bytes(column::digest)?,
        state: c.map(column::lease_state)?,
        principal: c.text()?,
        runner: c.text()?,
        granted_at: c.millis()?,
        ack_by: c.millis()?,
        acknowledged_at: c.millis_opt()?,
        ended_at: c.millis_opt()?,
        revocation: c.map_opt(column::revocation)?,
        closing: None,
        ttl: Span::ZERO,
        expires_at: Millis::ZERO,
        heartbeat_seq: None,
    };
    let kind = c.map_opt(column::closing_kind)?;
    let digest = c.bytes_opt(column::digest)?;
    lease.closing = kind
        .zip(digest)
        .map(|(kind, digest)| Closing { kind, digest });
    lease.ttl = Span(c.get()?);
    lease.expires_at = c.millis()?;
    lease.heartbeat_seq = c.get::<Option<i64>>()?.map(column::unsigned);
    Ok(Some(lease))
}

/// Every row a query gives.
pub fn all<T>(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl Fn(&Row) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query(params).map_err(store_error)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(store_error)? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// The one row a query gives, if any.
pub fn one<T>(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl Fn(&Row) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let found = statement.query_row(params, |row| Ok(read(row)));
    found.optional().map_err(store_error)?.transpose()
}

pub fn run(connection: &Connection, id: RunId) -> Result<Option<Run>, StoreError> {
    let sql = concat!("SELECT ", columns!(run), " FROM runs WHERE run_id = ?1");
    one(connection, sql, [column::run_bytes(id)], read_run)
}

pub fn job(connection: &Connection, id: JobId) -> Result<Option<Job>, StoreError> {
    let sql = concat!(
        "SELECT ",
        columns!(job),
        " FROM jobs WHERE run_id = ?1 AND job = ?2"
    );
    let key = params![column::run_bytes(id.run), id.n];
    one(connection, sql, key, read_job)
}

pub fn attempt(connection: &Connection, id: AttemptId) -> Result<Option<Attempt>, StoreError> {
    let sql = concat!(
        "SELECT ",
        columns!(attempt),
        ", ",
        columns!(lease),
        " FROM attempts WHERE run_id = ?1 AND job = ?2 AND attempt = ?3"
    );
    let key = params![column::run_bytes(id.run()), id.job.n, id.index];
    one(connection, sql, key, read_attempt)
}

pub fn past_lease(connection: &Connection, key: LeaseKey) -> Result<Option<Lease>, StoreError> {
    let sql = concat!(
        "SELECT run_id, job, attempt, ",
        columns!(lease),
        " FROM past_leases \
         WHERE run_id = ?1 AND job = ?2 AND attempt = ?3 AND lease_epoch = ?4"
    );
    let AttemptId { job, index } = key.attempt;
    let run = column::run_bytes(job.run);
    let key = params![run, job.n, index, column::signed(key.epoch)];
    Ok(one(connection, sql, key, read_past_lease)?.map(|(_, lease)| lease))
}

pub fn tip(connection: &Connection, run: RunId) -> Result<Tip, StoreError> {
    let sql = "SELECT first + records - 1, hash FROM events WHERE run_id = ?1 \
               ORDER BY first DESC LIMIT 1";
    let found = one(connection, sql, [column::run_bytes(run)], |row| {
        let mut c = Columns { row, next: 0 };
        Ok(Tip {
            version: column::unsigned(c.get()?),
            hash: c.bytes(column::digest)?,
        })
    })?;
    Ok(found.unwrap_or(Tip::NONE))
}

pub fn spec(connection: &Connection, job: JobId) -> Result<Option<Arc<str>>, StoreError> {
    let sql = "SELECT spec FROM job_specs WHERE run_id = ?1 AND job = ?2";
    let key = params![column::run_bytes(job.run), job.n];
    one(connection, sql, key, |row| Columns { row, next: 0 }.text())
}

pub fn read_run_id(row: &Row) -> Result<RunId, StoreError> {
    Columns { row, next: 0 }.bytes(column::run_id)
}

pub fn read_number(row: &Row) -> Result<i64, StoreError> {
    Columns { row, next: 0 }.get()
}

/// A place in the queue: attempt, policy of its job, order key, since when.
pub fn read_place(row: &Row) -> Result<(AttemptId, String, i64, Millis), StoreError> {
    let mut c = Columns { row, next: 0 };
    Ok((attempt_id(&mut c)?, c.get()?, c.get()?, c.millis()?))
}

/// Run, first version, how many, moment, hash and records.
pub fn read_events(row: &Row) -> Result<EventRow, StoreError> {
    let mut c = Columns { row, next: 0 };
    Ok(EventRow {
        run: c.bytes(column::run_id)?,
        first: column::unsigned(c.get()?),
        records: c.small()?,
        at: c.millis()?,
        hash: c.bytes(column::digest)?,
        bytes: c.get()?,
    })
}

pub fn read_credential(row: &Row) -> Result<Credential, StoreError> {
    let mut c = Columns { row, next: 0 };
    let unknown = |name: &str| corrupt("a credential", format!("unknown role `{name}`"));
    Ok(Credential {
        id: c.text()?,
        name: c.text()?,
        role: c.map(|name| Role::from_name(name).ok_or_else(|| unknown(name)))?,
        hash: c.bytes(column::digest)?,
        created_at: c.millis()?,
        expires_at: c.millis_opt()?,
        revoked_at: c.millis_opt()?,
        scope: Scope::from_columns(c.text()?, &c.text()?, &c.text()?),
        agent: c.map_opt(|text| Ok(text.into()))?,
        used_at: c.millis_opt()?,
        used_by: c.map_opt(|text| Ok(text.into()))?,
        reused_at: c.millis_opt()?,
    })
}
