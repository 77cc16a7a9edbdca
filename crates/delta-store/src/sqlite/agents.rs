//! Agents in SQLite.

use delta_core::Millis;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::connection::store_error;
use super::credentials::PROJECT;
use super::reader::SqliteReader;
use super::rows::{self, Columns};
use super::side_tables::SqliteSideTables;
use crate::StoreError;
use crate::agents::{AgentReader, AgentRow, AgentSeen, AgentTable};
use crate::codec::column;

macro_rules! columns {
    () => {
        "agent_id, principal, resume, slots, about, session, drain, created_at, seen_at, \
         revoked_at, process"
    };
}

impl AgentReader for SqliteReader {
    fn agent(&self, id: &str) -> Result<Option<AgentRow>, StoreError> {
        one(&self.reader(), id)
    }

    fn agents(&self, after: &str, limit: usize) -> Result<Vec<AgentRow>, StoreError> {
        let sql = concat!(
            "SELECT ",
            columns!(),
            " FROM agents WHERE agent_id > ?1 ORDER BY agent_id LIMIT ?2"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        rows::all(&self.reader(), sql, params![after, limit], read)
    }
}

impl AgentTable for SqliteSideTables {
    fn new_agent(&self, agent: &AgentRow) -> Result<bool, StoreError> {
        let sql = "INSERT INTO agents (agent_id, project, principal, resume, slots, about, \
                   session, drain, created_at, seen_at, revoked_at, process) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
                   ON CONFLICT DO NOTHING";
        let values = params![
            &*agent.id,
            PROJECT,
            &*agent.principal,
            agent.resume,
            agent.slots,
            &*agent.about,
            column::signed(agent.session),
            agent.drain.as_deref(),
            agent.created_at.0,
            agent.seen_at.0,
            agent.revoked_at.map(|at| at.0),
            agent.process.as_deref(),
        ];
        self.change_agent(&agent.id, sql, values)
    }

    fn agents_seen(&self, seen: &[AgentSeen]) -> Result<(), StoreError> {
        let sql = "UPDATE agents SET slots = max(slots, ?2), about = ?3, \
                   seen_at = max(seen_at, ?4), session = max(session, ?5) WHERE agent_id = ?1";
        let mut writer = self.writer();
        let batch = writer.transaction().map_err(store_error)?;
        for seen in seen {
            let session = column::signed(seen.session);
            let values = params![&*seen.id, seen.slots, &*seen.about, seen.seen_at.0, session];
            batch.execute(sql, values).map_err(store_error)?;
        }
        let done = batch.commit().map_err(store_error);
        self.standings.forget(seen.iter().map(|it| &*it.id));
        done
    }

    fn begin_session(
        &self,
        id: &str,
        floor: u64,
        process: Option<&str>,
    ) -> Result<Option<u64>, StoreError> {
        let sql = "UPDATE agents SET session = max(session + 1, ?2), process = ?3 \
                   WHERE agent_id = ?1 RETURNING session";
        let values = params![id, column::signed(floor), process];
        let begun = self.writer().query_row(sql, values, |row| row.get(0));
        self.standings.forget([id].into_iter());
        let begun = begun.optional().map_err(store_error)?;
        Ok(begun.map(column::unsigned))
    }

    fn drain_agent(&self, id: &str, drain: Option<&str>) -> Result<bool, StoreError> {
        let sql = "UPDATE agents SET drain = ?2 WHERE agent_id = ?1";
        self.change_agent(id, sql, params![id, drain])
    }

    fn rebind_agent(&self, id: &str, from: &str, to: &str) -> Result<bool, StoreError> {
        let sql = "UPDATE agents SET principal = ?3 WHERE agent_id = ?1 AND principal = ?2";
        self.change_agent(id, sql, params![id, from, to])
    }

    fn revoke_agent(&self, id: &str, at: Millis) -> Result<bool, StoreError> {
        let sql = "UPDATE agents SET revoked_at = coalesce(revoked_at, ?2) WHERE agent_id = ?1";
        self.change_agent(id, sql, params![id, at.0])
    }

    fn forget_agents(&self, before: Millis) -> Result<u64, StoreError> {
        let sql = "DELETE FROM agents \
                   WHERE seen_at < ?1 AND drain IS NULL AND revoked_at IS NULL";
        let gone = self.writer().execute(sql, [before.0]);
        self.standings.forget_all();
        Ok(gone.map_err(store_error)? as u64)
    }
}

impl SqliteSideTables {
    /// Changes one agent; false when nothing was there to be changed.
    fn change_agent(&self, id: &str, sql: &str, values: impl Params) -> Result<bool, StoreError> {
        let changed = self.writer().execute(sql, values);
        self.standings.forget([id].into_iter());
        Ok(changed.map_err(store_error)? > 0)
    }
}

/// An agent's row, for whoever asks inside a batch.
pub(super) fn one(connection: &Connection, id: &str) -> Result<Option<AgentRow>, StoreError> {
    let sql = concat!("SELECT ", columns!(), " FROM agents WHERE agent_id = ?1");
    rows::one(connection, sql, [id], read)
}

fn read(row: &Row) -> Result<AgentRow, StoreError> {
    let mut c = Columns { row, next: 0 };
    Ok(AgentRow {
        id: c.text()?,
        principal: c.text()?,
        resume: c.bytes_opt(column::digest)?,
        slots: c.small()?,
        about: c.text()?,
        session: column::unsigned(c.get()?),
        drain: c.map_opt(|text| Ok(text.into()))?,
        created_at: c.millis()?,
        seen_at: c.millis()?,
        revoked_at: c.millis_opt()?,
        process: c.map_opt(|text| Ok(text.into()))?,
    })
}
