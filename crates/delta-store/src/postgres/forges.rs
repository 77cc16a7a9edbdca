//! Repositories, reports and approvals in PostgreSQL.
//! The row of a report is written by the writer, with its run. A statement may be sent again after
//! a broken connection: what it wrote the first time counts as written by it.

use delta_core::{Millis, RunId, Text};
use tokio_postgres::Row;

use super::reader::PgReader;
use super::side_tables::PgSideTables;
use super::sql::Sql;
use super::value::{Fields, escape, uuid};
use crate::StoreError;
use crate::codec::column;
use crate::forges::{Approval, ForgeReader, ForgeTables, ReportRow, RepositoryRow, STAGE_SQL};

impl ForgeReader for PgReader {
    fn repositories(&self) -> Result<Vec<RepositoryRow>, StoreError> {
        let found = self.pools.rows(Sql::Repositories, &[])?;
        found.iter().map(read_repository).collect()
    }

    fn repository(&self, name: &str) -> Result<Option<RepositoryRow>, StoreError> {
        let found = self.pools.rows(Sql::Repository, &[&escape(name)])?;
        found.first().map(read_repository).transpose()
    }

    fn reports_due(&self, now: Millis, limit: usize) -> Result<Vec<ReportRow>, StoreError> {
        let found = self
            .pools
            .rows(Sql::ReportsDue, &[&now.0, &(limit as i64)])?;
        found.iter().map(read_report).collect()
    }

    fn report(&self, run: RunId) -> Result<Option<ReportRow>, StoreError> {
        let found = self.pools.rows(Sql::Report, &[&uuid(run)])?;
        found.first().map(read_report).transpose()
    }

    fn approval(&self, run: RunId) -> Result<Option<Approval>, StoreError> {
        let found = self.pools.rows(Sql::Approval, &[&uuid(run)])?;
        let read = |row| {
            let mut fields = Fields::of(row);
            Ok(Approval {
                by: fields.text()?,
                at: fields.millis()?,
            })
        };
        found.first().map(read).transpose()
    }

    fn plan(&self, run: RunId) -> Result<Option<Text>, StoreError> {
        let found = self
            .pools
            .rows(Sql::ReadPlan, &[&uuid(run)])?
            .first()
            .map(|row| Fields::of(row).text());
        found.transpose()
    }
}

impl ForgeTables for PgSideTables {
    fn put_repository(
        &self,
        row: &RepositoryRow,
        instead_of: Option<u64>,
    ) -> Result<bool, StoreError> {
        let (name, clone_url) = (escape(&row.name), escape(&row.clone_url));
        let (about, by) = (escape(&row.about), escape(&row.updated_by));
        let (version, key) = (row.version.cast_signed(), &*row.key);
        let sealed = row.sealed.as_slice();
        // The moment it was made, or the version it is to replace.
        let (sql, last) = match instead_of {
            None => (Sql::NewRepository, row.created_at.0),
            Some(old) => (Sql::ReplaceRepository, old.cast_signed()),
        };
        let written = self.pools.rows(
            sql,
            &[
                &name,
                &clone_url,
                &about,
                &version,
                &key,
                &sealed,
                &row.updated_at.0,
                &by,
                &last,
            ],
        );
        Ok(!written?.is_empty())
    }

    fn remove_repository(&self, name: &str) -> Result<bool, StoreError> {
        let gone = self.pools.rows(Sql::RemoveRepository, &[&escape(name)])?;
        Ok(!gone.is_empty())
    }

    fn take_report(&self, seen: &ReportRow, until: Millis) -> Result<bool, StoreError> {
        let (stage, tries) = (i64::from(seen.stage), i64::from(seen.tries));
        let taken = self.pools.rows(
            Sql::TakeReport,
            &[&uuid(seen.run), &stage, &tries, &seen.next_at.0, &until.0],
        )?;
        Ok(!taken.is_empty())
    }

    fn put_report(&self, row: &ReportRow) -> Result<(), StoreError> {
        let (stage, tries) = (i64::from(row.stage), i64::from(row.tries));
        let why = escape(&row.why);
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&uuid(row.run), &stage, &tries, &row.next_at.0, &why];
        self.pools.rows(Sql::PutReport, &values).map(drop)
    }

    fn remove_report(&self, run: RunId) -> Result<(), StoreError> {
        self.pools.rows(Sql::RemoveReport, &[&uuid(run)]).map(drop)
    }

    fn approve(&self, run: RunId, approval: &Approval) -> Result<(), StoreError> {
        let by = escape(&approval.by);
        self.pools
            .rows(Sql::Approve, &[&uuid(run), &by, &approval.at.0])
            .map(drop)
    }

    fn put_plan(&self, run: RunId, text: &str) -> Result<(), StoreError> {
        let text = escape(text);
        self.pools
            .rows(Sql::PutPlan, &[&uuid(run), &text])
            .map(drop)
    }
}

/// The statements; none for those that are about something else.
pub(super) fn text(sql: Sql) -> Option<String> {
    macro_rules! repository {
        () => {
            "SELECT name, clone_url, about, version, key_id, sealed, created_at, updated_at, \
             updated_by FROM repositories"
        };
    }
    let fixed = match sql {
        Sql::Repositories => concat!(repository!(), " ORDER BY name"),
        Sql::Repository => concat!(repository!(), " WHERE project = 'default' AND name = $1"),
        Sql::NewRepository => {
            "INSERT INTO repositories AS t (project, name, clone_url, about, version, key_id, \
             sealed, updated_at, updated_by, created_at) \
             VALUES ('default', $1, $2, $3, $4, $5, $6, $7, $8, $9) \
             ON CONFLICT (project, name) DO UPDATE SET version = t.version \
             WHERE t.version = excluded.version AND t.sealed = excluded.sealed RETURNING name"
        }
        Sql::ReplaceRepository => {
            "UPDATE repositories SET clone_url = $2, about = $3, version = $4, key_id = $5, \
             sealed = $6, updated_at = $7, updated_by = $8 \
             WHERE project = 'default' AND name = $1 \
             AND (version = $9 OR (version = $4 AND sealed = $6)) RETURNING name"
        }
        Sql::RemoveRepository => {
            "DELETE FROM repositories WHERE project = 'default' AND name = $1 RETURNING name"
        }
        Sql::ReportsDue => {
            return Some(format!(
                "SELECT o.run_id, o.stage, o.tries, o.next_at, o.why \
                 FROM reports o JOIN runs r ON r.id = o.run_id \
                 WHERE o.next_at <= $1 AND o.stage < ({STAGE_SQL}) \
                 ORDER BY o.next_at, o.run_id LIMIT $2"
            ));
        }
        Sql::Report => "SELECT run_id, stage, tries, next_at, why FROM reports WHERE run_id = $1",
        // Sent again, it finds what it wrote itself: nobody else writes this moment for this try.
        Sql::TakeReport => {
            "UPDATE reports SET tries = $3 + 1, next_at = $5 WHERE run_id = $1 AND stage = $2 \
             AND ((tries = $3 AND next_at = $4) OR (tries = $3 + 1 AND next_at = $5)) \
             RETURNING run_id"
        }
        Sql::PutReport => {
            "UPDATE reports SET stage = $2, tries = $3, next_at = $4, why = $5 WHERE run_id = $1"
        }
        Sql::RemoveReport => "DELETE FROM reports WHERE run_id = $1",
        Sql::Approve => {
            "INSERT INTO approvals (run_id, project, approved_by, approved_at) \
             VALUES ($1, 'default', $2, $3) ON CONFLICT DO NOTHING"
        }
        Sql::Approval => "SELECT approved_by, approved_at FROM approvals WHERE run_id = $1",
        Sql::PutPlan => {
            "INSERT INTO plans (run_id, project, plan) VALUES ($1, 'default', $2) \
             ON CONFLICT (run_id) DO UPDATE SET plan = excluded.plan"
        }
        Sql::ReadPlan => "SELECT plan FROM plans WHERE run_id = $1",
        _ => return None,
    };
    Some(fixed.into())
}

fn read_repository(row: &Row) -> Result<RepositoryRow, StoreError> {
    let mut fields = Fields::of(row);
    Ok(RepositoryRow {
        name: fields.text()?,
        clone_url: fields.text()?,
        about: fields.text()?,
        version: fields.unsigned()?,
        key: fields.text()?,
        sealed: fields.bytes()?.to_vec(),
        created_at: fields.millis()?,
        updated_at: fields.millis()?,
        updated_by: fields.text()?,
    })
}

fn read_report(row: &Row) -> Result<ReportRow, StoreError> {
    let mut fields = Fields::of(row);
    Ok(ReportRow {
        run: fields.run()?,
        stage: column::small(fields.int()?)?,
        tries: column::small(fields.int()?)?,
        next_at: fields.millis()?,
        why: fields.text()?,
    })
}
