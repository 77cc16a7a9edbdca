//! Repositories, reports and approvals in SQLite. The row of a report is written by the writer,
//! with its run.

use delta_core::{Millis, RunId, Text};
use rusqlite::{Row, params};

use super::connection::store_error;
use super::credentials::PROJECT;
use super::reader::SqliteReader;
use super::rows::{self, Columns};
use super::side_tables::SqliteSideTables;
use crate::StoreError;
use crate::codec::column;
use crate::forges::{Approval, ForgeReader, ForgeTables, ReportRow, RepositoryRow, STAGE_SQL};

macro_rules! repositories {
    ($rest:literal) => {
        concat!(
            "SELECT name, clone_url, about, version, key_id, sealed, created_at, updated_at, \
             updated_by FROM repositories ",
            $rest
        )
    };
}

impl SqliteSideTables {
    fn write(&self, sql: &str, values: impl rusqlite::Params) -> Result<usize, StoreError> {
        self.writer().execute(sql, values).map_err(store_error)
    }
}

impl ForgeReader for SqliteReader {
    fn repositories(&self) -> Result<Vec<RepositoryRow>, StoreError> {
        let sql = repositories!("ORDER BY name");
        rows::all(&self.reader(), sql, [], read_repository)
    }

    fn repository(&self, name: &str) -> Result<Option<RepositoryRow>, StoreError> {
        let sql = repositories!("WHERE name = ?1");
        rows::one(&self.reader(), sql, [name], read_repository)
    }

    fn reports_due(&self, now: Millis, limit: usize) -> Result<Vec<ReportRow>, StoreError> {
        let sql = format!(
            "SELECT o.run_id, o.stage, o.tries, o.next_at, o.why FROM reports o \
             CROSS JOIN runs r ON r.run_id = o.run_id \
             WHERE o.next_at <= ?1 AND o.stage < ({STAGE_SQL}) \
             ORDER BY o.next_at, o.run_id LIMIT ?2"
        );
        let values = params![now.0, limit as i64];
        rows::all(&self.reader(), &sql, values, read_report)
    }

    fn report(&self, run: RunId) -> Result<Option<ReportRow>, StoreError> {
        let sql = "SELECT run_id, stage, tries, next_at, why FROM reports WHERE run_id = ?1";
        rows::one(&self.reader(), sql, [column::run_bytes(run)], read_report)
    }

    fn approval(&self, run: RunId) -> Result<Option<Approval>, StoreError> {
        let sql = "SELECT approved_by, approved_at FROM approvals WHERE run_id = ?1";
        rows::one(&self.reader(), sql, [column::run_bytes(run)], |row| {
            let mut c = Columns { row, next: 0 };
            Ok(Approval {
                by: c.text()?,
                at: c.millis()?,
            })
        })
    }

    fn plan(&self, run: RunId) -> Result<Option<Text>, StoreError> {
        let sql = "SELECT plan FROM plans WHERE run_id = ?1";
        rows::one(&self.reader(), sql, [column::run_bytes(run)], |row| {
            Columns { row, next: 0 }.text()
        })
    }
}

impl ForgeTables for SqliteSideTables {
    fn put_repository(
        &self,
        row: &RepositoryRow,
        instead_of: Option<u64>,
    ) -> Result<bool, StoreError> {
        let sql = match instead_of {
            None => {
                "INSERT INTO repositories (project, name, clone_url, about, version, key_id, \
                 sealed, created_at, updated_at, updated_by) \
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE ?11 IS NULL \
                 ON CONFLICT DO NOTHING"
            }
            Some(_) => {
                "UPDATE repositories SET clone_url = ?3, about = ?4, version = ?5, key_id = ?6, \
                 sealed = ?7, updated_at = ?9, updated_by = ?10 \
                 WHERE project = ?1 AND name = ?2 AND ?8 IS NOT NULL AND version = ?11"
            }
        };
        let values = params![
            PROJECT,
            &*row.name,
            &*row.clone_url,
            &*row.about,
            column::signed(row.version),
            &*row.key,
            row.sealed,
            row.created_at.0,
            row.updated_at.0,
            &*row.updated_by,
            instead_of.map(column::signed),
        ];
        Ok(self.write(sql, values)? > 0)
    }

    fn remove_repository(&self, name: &str) -> Result<bool, StoreError> {
        let gone = self.write("DELETE FROM repositories WHERE name = ?1", [name])?;
        Ok(gone > 0)
    }

    fn take_report(&self, seen: &ReportRow, until: Millis) -> Result<bool, StoreError> {
        let sql = "UPDATE reports SET tries = tries + 1, next_at = ?5 WHERE run_id = ?1 \
                   AND stage = ?2 AND tries = ?3 AND next_at = ?4";
        let run = column::run_bytes(seen.run);
        let values = params![run, seen.stage, seen.tries, seen.next_at.0, until.0];
        Ok(self.write(sql, values)? > 0)
    }

    fn put_report(&self, row: &ReportRow) -> Result<(), StoreError> {
        let sql = "UPDATE reports SET stage = ?2, tries = ?3, next_at = ?4, why = ?5 \
                   WHERE run_id = ?1";
        let run = column::run_bytes(row.run);
        let values = params![run, row.stage, row.tries, row.next_at.0, &*row.why];
        self.write(sql, values).map(drop)
    }

    fn remove_report(&self, run: RunId) -> Result<(), StoreError> {
        let sql = "DELETE FROM reports WHERE run_id = ?1";
        self.write(sql, [column::run_bytes(run)]).map(drop)
    }

    fn approve(&self, run: RunId, approval: &Approval) -> Result<(), StoreError> {
        let sql = "INSERT INTO approvals (run_id, project, approved_by, approved_at) \
                   VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
        let run = column::run_bytes(run);
        let values = params![run, PROJECT, &*approval.by, approval.at.0];
        self.write(sql, values).map(drop)
    }

    fn put_plan(&self, run: RunId, text: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO plans (run_id, project, plan) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (run_id) DO UPDATE SET plan = excluded.plan";
        let values = params![column::run_bytes(run), PROJECT, text];
        self.write(sql, values).map(drop)
    }
}

fn read_repository(row: &Row) -> Result<RepositoryRow, StoreError> {
    let mut c = Columns { row, next: 0 };
    Ok(RepositoryRow {
        name: c.text()?,
        clone_url: c.text()?,
        about: c.text()?,
        version: column::unsigned(c.get()?),
        key: c.text()?,
        sealed: c.bytes(|bytes| Ok(bytes.to_vec()))?,
        created_at: c.millis()?,
        updated_at: c.millis()?,
        updated_by: c.text()?,
    })
}

fn read_report(row: &Row) -> Result<ReportRow, StoreError> {
    let mut c = Columns { row, next: 0 };
    Ok(ReportRow {
        run: c.bytes(column::run_id)?,
        stage: c.small()?,
        tries: c.small()?,
        next_at: c.millis()?,
        why: c.text()?,
    })
}
