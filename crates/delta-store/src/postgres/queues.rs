//! What is set about queues, in PostgreSQL, through the connections of the reading side.

use super::reader::PgReader;
use super::sql::Sql;
use super::value::{Fields, escape, unescape};
use crate::StoreError;
use crate::queues::{QueueRow, Queues};

pub(super) const READ: &str = "SELECT name, paused_at, paused_by, runner FROM queues ORDER BY name";
pub(super) const PUT: &str = "INSERT INTO queues (project, name, paused_at, paused_by, runner) \
     VALUES ('default', $1, $2, $3, $4) ON CONFLICT (name) DO UPDATE SET \
     paused_at = excluded.paused_at, paused_by = excluded.paused_by, runner = excluded.runner";
pub(super) const REMOVE: &str = "DELETE FROM queues WHERE name = $1";

impl Queues for PgReader {
    fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        let found = self.rows(Sql::Queues, &[])?;
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

    fn put_queue(&self, queue: &QueueRow) -> Result<(), StoreError> {
        if queue.is_plain() {
            return self
                .rows(Sql::RemoveQueue, &[&escape(&queue.name)])
                .map(drop);
        }
        let paused = queue.paused.as_ref();
        let done = self.rows(
            Sql::PutQueue,
            &[
                &escape(&queue.name),
                &paused.map(|(at, _)| at.0),
                &paused.map(|(_, by)| escape(by)),
                &queue.runner.as_deref().map(escape),
            ],
        );
        done.map(drop)
    }
}
