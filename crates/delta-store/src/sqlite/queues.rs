//! What is set about queues, in SQLite, through the connections of the reading side.

use rusqlite::{Row, params};

use super::connection::store_error;
use super::credentials::PROJECT;
use super::reader::SqliteReader;
use super::rows::{self, Columns};
use crate::StoreError;
use crate::queues::{QueueRow, Queues};

impl Queues for SqliteReader {
    fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        let sql = "SELECT name, paused_at, paused_by, runner FROM queues ORDER BY name";
        rows::all(&self.reader(), sql, [], read)
    }

    fn put_queue(&self, queue: &QueueRow) -> Result<(), StoreError> {
        let writer = self.writer();
        let done = if queue.is_plain() {
            writer.execute("DELETE FROM queues WHERE name = ?1", [&*queue.name])
        } else {
            let paused = queue.paused.as_ref();
            let sql = "INSERT INTO queues (name, project, paused_at, paused_by, runner) \
                       VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (name) DO UPDATE SET \
                       paused_at = excluded.paused_at, paused_by = excluded.paused_by, \
                       runner = excluded.runner";
            let values = params![
                &*queue.name,
                PROJECT,
                paused.map(|(at, _)| at.0),
                paused.map(|(_, by)| &**by),
                queue.runner.as_deref(),
            ];
            writer.execute(sql, values)
        };
        done.map(drop).map_err(store_error)
    }
}

fn read(row: &Row) -> Result<QueueRow, StoreError> {
    let mut c = Columns { row, next: 0 };
    let name = c.text()?;
    let at = c.millis_opt()?;
    let by = c.map_opt(|text| Ok(text.into()))?;
    Ok(QueueRow {
        name,
        paused: at.zip(by),
        runner: c.map_opt(|text| Ok(text.into()))?,
    })
}
