//! What is set about queues, in SQLite.

use delta_core::{Millis, Text};
use rusqlite::{Connection, Row, params};

use super::connection::store_error;
use super::credentials::PROJECT;
use super::reader::SqliteReader;
use super::rows::{self, Columns};
use super::side_tables::SqliteSideTables;
use crate::StoreError;
use crate::queues::{QueueReader, QueueRow, QueueTable};

impl QueueReader for SqliteReader {
    fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        let sql = "SELECT name, paused_at, paused_by, runner FROM queues \
                   WHERE paused_at IS NOT NULL OR runner IS NOT NULL ORDER BY name";
        rows::all(&self.reader(), sql, [], read)
    }
}

impl QueueTable for SqliteSideTables {
    fn pause_queue(&self, name: &Text, paused: Option<&(Millis, Text)>) -> Result<(), StoreError> {
        let writer = self.writer();
        let Some((at, by)) = paused else {
            let sql = "UPDATE queues SET paused_at = NULL, paused_by = NULL WHERE name = ?1";
            return clear(&writer, sql, name);
        };
        let sql = "INSERT INTO queues (name, project, paused_at, paused_by) \
                   VALUES (?1, ?2, ?3, ?4) ON CONFLICT (name) DO UPDATE SET \
                   paused_at = excluded.paused_at, paused_by = excluded.paused_by \
                   WHERE queues.paused_at IS NULL";
        let done = writer.execute(sql, params![&**name, PROJECT, at.0, &**by]);
        done.map(drop).map_err(store_error)
    }

    fn route_queue(&self, name: &Text, runner: Option<&Text>) -> Result<(), StoreError> {
        let writer = self.writer();
        let Some(runner) = runner else {
            let sql = "UPDATE queues SET runner = NULL WHERE name = ?1";
            return clear(&writer, sql, name);
        };
        let sql = "INSERT INTO queues (name, project, runner) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (name) DO UPDATE SET runner = excluded.runner";
        let done = writer.execute(sql, params![&**name, PROJECT, &**runner]);
        done.map(drop).map_err(store_error)
    }
}

/// Takes something back; a queue about which nothing is left is forgotten.
fn clear(writer: &Connection, sql: &str, name: &Text) -> Result<(), StoreError> {
    let empty = "DELETE FROM queues WHERE name = ?1 AND paused_at IS NULL AND runner IS NULL";
    for sql in [sql, empty] {
        writer.execute(sql, [&**name]).map_err(store_error)?;
    }
    Ok(())
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
