//! Agents in PostgreSQL.

use delta_core::Millis;
use tokio_postgres::Row;

use super::reader::PgReader;
use super::side_tables::PgSideTables;
use super::sql::Sql;
use super::value::{Fields, escape, unescape};
use crate::StoreError;
use crate::agents::{AgentReader, AgentRow, AgentSeen, AgentTable};
use crate::codec::column;

impl AgentReader for PgReader {
    fn agent(&self, id: &str) -> Result<Option<AgentRow>, StoreError> {
        let found = self.pools.rows(Sql::Agent, &[&escape(id)])?;
        found.first().map(read).transpose()
    }

    fn agents(&self, after: &str, limit: usize) -> Result<Vec<AgentRow>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = self.pools.rows(Sql::AgentPage, &[&escape(after), &limit])?;
        found.iter().map(read).collect()
    }
}

impl AgentTable for PgSideTables {
    fn new_agent(&self, agent: &AgentRow) -> Result<bool, StoreError> {
        let entered = self.pools.rows(
            Sql::NewAgent,
            &[
                &escape(&agent.id),
                &escape(&agent.principal),
                &agent.resume.as_ref().map(|hash| hash.as_slice()),
                &i64::from(agent.slots),
                &escape(&agent.about),
                &agent.session.cast_signed(),
                &agent.drain.as_deref().map(escape),
                &agent.created_at.0,
                &agent.seen_at.0,
                &agent.revoked_at.map(|at| at.0),
                &agent.process.as_deref().map(escape),
            ],
        )?;
        Ok(!entered.is_empty())
    }

    fn agents_seen(&self, seen: &[AgentSeen]) -> Result<(), StoreError> {
        let text = |of: fn(&AgentSeen) -> &str| -> Vec<String> {
            seen.iter().map(|it| escape(of(it)).into_owned()).collect()
        };
        let slots: Vec<i64> = seen.iter().map(|it| it.slots.into()).collect();
        let sessions: Vec<i64> = seen.iter().map(|it| it.session.cast_signed()).collect();
        let at: Vec<i64> = seen.iter().map(|it| it.seen_at.0).collect();
        self.pools.rows(
            Sql::AgentsSeen,
            &[
                &text(|it| &it.id),
                &slots,
                &text(|it| &it.about),
                &at,
                &sessions,
            ],
        )?;
        Ok(())
    }

    fn begin_session(
        &self,
        id: &str,
        floor: u64,
        process: Option<&str>,
    ) -> Result<Option<u64>, StoreError> {
        let begun = self.pools.rows(
            Sql::BeginSession,
            &[&escape(id), &floor.cast_signed(), &process.map(escape)],
        )?;
        let number = |row: &Row| Fields::of(row).unsigned();
        begun.first().map(number).transpose()
    }

    fn drain_agent(&self, id: &str, drain: Option<&str>) -> Result<bool, StoreError> {
        let changed = self
            .pools
            .rows(Sql::DrainAgent, &[&escape(id), &drain.map(escape)])?;
        Ok(!changed.is_empty())
    }

    fn rebind_agent(&self, id: &str, from: &str, to: &str) -> Result<bool, StoreError> {
        let changed = self
            .pools
            .rows(Sql::RebindAgent, &[&escape(id), &escape(from), &escape(to)])?;
        Ok(!changed.is_empty())
    }

    fn revoke_agent(&self, id: &str, at: Millis) -> Result<bool, StoreError> {
        let changed = self.pools.rows(Sql::RevokeAgent, &[&escape(id), &at.0])?;
        Ok(!changed.is_empty())
    }

    fn forget_agents(&self, before: Millis) -> Result<u64, StoreError> {
        Ok(self.pools.rows(Sql::ForgetAgents, &[&before.0])?.len() as u64)
    }
}

fn read(row: &Row) -> Result<AgentRow, StoreError> {
    let mut fields = Fields::of(row);
    Ok(AgentRow {
        id: fields.text()?,
        principal: fields.text()?,
        resume: fields.opt_bytes()?.map(column::digest).transpose()?,
        slots: fields.small()?,
        about: fields.text()?,
        session: fields.unsigned()?,
        drain: fields.opt_plain()?.map(unescape),
        created_at: fields.millis()?,
        seen_at: fields.millis()?,
        revoked_at: fields.opt_millis()?,
        process: fields.opt_text()?,
    })
}
