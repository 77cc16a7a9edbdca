//! Agents in SQLite, through the connections of the reading side.

use delta_core::Millis;
use rusqlite::{Row, params};

use super::connection::store_error;
use super::credentials::PROJECT;
use super::reader::SqliteReader;
use super::rows::{self, Columns};
use crate::StoreError;
use crate::agents::{AgentRow, AgentSeen, Agents};
use crate::codec::column;

macro_rules! columns {
    () => {
        "agent_id, principal, resume, slots, about, session, drain, created_at, seen_at, revoked_at"
    };
}

impl Agents for SqliteReader {
    fn agent(&self, id: &str) -> Result<Option<AgentRow>, StoreError> {
        let sql = concat!("SELECT ", columns!(), " FROM agents WHERE agent_id = ?1");
        rows::one(&self.reader(), sql, [id], read)
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

    fn new_agent(&self, agent: &AgentRow) -> Result<bool, StoreError> {
        let sql = "INSERT INTO agents (agent_id, project, principal, resume, slots, about, \
                   session, drain, created_at, seen_at, revoked_at) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT DO NOTHING";
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
        ];
        let entered = self.writer().execute(sql, values).map_err(store_error)?;
        Ok(entered > 0)
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
        batch.commit().map_err(store_error)
    }

    fn drain_agent(&self, id: &str, drain: Option<&str>) -> Result<bool, StoreError> {
        let sql = "UPDATE agents SET drain = ?2 WHERE agent_id = ?1";
        let changed = self.writer().execute(sql, params![id, drain]);
        Ok(changed.map_err(store_error)? > 0)
    }

    fn rebind_agent(&self, id: &str, from: &str, to: &str) -> Result<bool, StoreError> {
        let sql = "UPDATE agents SET principal = ?3 WHERE agent_id = ?1 AND principal = ?2";
        let changed = self.writer().execute(sql, params![id, from, to]);
        Ok(changed.map_err(store_error)? > 0)
    }

    fn revoke_agent(&self, id: &str, at: Millis) -> Result<bool, StoreError> {
        let sql = "UPDATE agents SET revoked_at = coalesce(revoked_at, ?2) WHERE agent_id = ?1";
        let changed = self.writer().execute(sql, params![id, at.0]);
        Ok(changed.map_err(store_error)? > 0)
    }

    fn forget_agents(&self, before: Millis) -> Result<u64, StoreError> {
        let sql = "DELETE FROM agents \
                   WHERE seen_at < ?1 AND drain IS NULL AND revoked_at IS NULL";
        let gone = self.writer().execute(sql, [before.0]);
        Ok(gone.map_err(store_error)? as u64)
    }
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
    })
}
