//! What is set about queues, in PostgreSQL.

use delta_core::{Millis, Text};

use super::reader::PgReader;
use super::side_tables::PgSideTables;
use super::sql::Sql;
use super::value::{Fields, escape, unescape};
use crate::StoreError;
use crate::queues::{QueueReader, QueueRow, QueueTable};

pub(super) const READ: &str = "SELECT name, paused_at, paused_by, runner FROM queues \
     WHERE paused_at IS NOT NULL OR runner IS NOT NULL ORDER BY name";
// Each changes its own columns in one statement: what others set at the same moment stays.
pub(super) const PAUSE: &str = "INSERT INTO queues (project, name, paused_at, paused_by) \
     VALUES ('default', $1, $2, $3) ON CONFLICT (name) DO UPDATE SET \
     paused_at = excluded.paused_at, paused_by = excluded.paused_by \
     WHERE queues.paused_at IS NULL";
pub(super) const RESUME: &str =
    "UPDATE queues SET paused_at = NULL, paused_by = NULL WHERE name = $1";
pub(super) const ROUTE: &str = "INSERT INTO queues (project, name, runner) \
     VALUES ('default', $1, $2) ON CONFLICT (name) DO UPDATE SET runner = excluded.runner";
pub(super) const UNROUTE: &str = "UPDATE queues SET runner = NULL WHERE name = $1";
pub(super) const FORGET: &str =
    "DELETE FROM queues WHERE name = $1 AND paused_at IS NULL AND runner IS NULL";

impl QueueReader for PgReader {
    fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        let found = self.pools.rows(Sql::Queues, &[])?;
        let read = |row| {
            let mut fields = Fields::of(row);
            let name = fields.text()?;
            let at = fields.opt_millis()?;
            let by = fields.opt_plain()?.map(unescape);
            Ok(QueueRow {
                name,
                paused: at.zip(by),
                runner: fields.opt_plain()?.map(unescape),
            })
        };
        found.iter().map(read).collect()
    }
}

impl QueueTable for PgSideTables {
    fn pause_queue(&self, name: &Text, paused: Option<&(Millis, Text)>) -> Result<(), StoreError> {
        let name = escape(name);
        match paused {
            Some((at, by)) => self
                .pools
                .rows(Sql::PauseQueue, &[&name, &at.0, &escape(by)]),
            None => self
                .pools
                .rows(Sql::ResumeQueue, &[&name])
                .and_then(|_| self.pools.rows(Sql::ForgetQueue, &[&name])),
        }
        .map(drop)
    }

    fn route_queue(&self, name: &Text, runner: Option<&Text>) -> Result<(), StoreError> {
        let name = escape(name);
        match runner {
            Some(runner) => self.pools.rows(Sql::RouteQueue, &[&name, &escape(runner)]),
            None => self
                .pools
                .rows(Sql::UnrouteQueue, &[&name])
                .and_then(|_| self.pools.rows(Sql::ForgetQueue, &[&name])),
        }
        .map(drop)
    }
}
