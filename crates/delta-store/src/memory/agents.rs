//! Agents in memory.

use delta_core::Millis;

use super::reader::MemoryReader;
use super::side_tables::MemorySideTables;
use crate::StoreError;
use crate::agents::{AgentReader, AgentRow, AgentSeen, AgentTable};

impl AgentReader for MemoryReader {
    fn agent(&self, id: &str) -> Result<Option<AgentRow>, StoreError> {
        Ok(self.tables().agents.get(id).cloned())
    }

    fn agents(&self, after: &str, limit: usize) -> Result<Vec<AgentRow>, StoreError> {
        let tables = self.tables();
        let later = tables.agents.values().filter(|agent| *agent.id > *after);
        Ok(later.take(limit).cloned().collect())
    }
}

impl AgentTable for MemorySideTables {
    fn new_agent(&self, agent: &AgentRow) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        if tables.agents.contains_key(&agent.id) {
            return Ok(false);
        }
        tables.agents.insert(agent.id.clone(), agent.clone());
        Ok(true)
    }

    fn agents_seen(&self, seen: &[AgentSeen]) -> Result<(), StoreError> {
        let mut tables = self.tables();
        for seen in seen {
            if let Some(agent) = tables.agents.get_mut(&seen.id) {
                agent.slots = agent.slots.max(seen.slots);
                agent.session = agent.session.max(seen.session);
                agent.seen_at = agent.seen_at.max(seen.seen_at);
                agent.about = seen.about.clone();
            }
        }
        Ok(())
    }

    fn begin_session(
        &self,
        id: &str,
        floor: u64,
        process: Option<&str>,
    ) -> Result<Option<u64>, StoreError> {
        let mut tables = self.tables();
        let Some(agent) = tables.agents.get_mut(id) else {
            return Ok(None);
        };
        agent.session = floor.max(agent.session + 1);
        agent.process = process.map(Into::into);
        Ok(Some(agent.session))
    }

    fn drain_agent(&self, id: &str, drain: Option<&str>) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let found = tables.agents.get_mut(id);
        Ok(found
            .map(|agent| agent.drain = drain.map(Into::into))
            .is_some())
    }

    fn rebind_agent(&self, id: &str, from: &str, to: &str) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let found = tables.agents.get_mut(id);
        let bound = found.filter(|agent| *agent.principal == *from);
        Ok(bound.map(|agent| agent.principal = to.into()).is_some())
    }

    fn revoke_agent(&self, id: &str, at: Millis) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let found = tables.agents.get_mut(id);
        Ok(found
            .map(|agent| agent.revoked_at.get_or_insert(at))
            .is_some())
    }

    fn forget_agents(&self, before: Millis) -> Result<u64, StoreError> {
        let mut tables = self.tables();
        let known = tables.agents.len();
        tables.agents.retain(|_, agent| {
            agent.seen_at >= before || agent.drain.is_some() || agent.revoked_at.is_some()
        });
        Ok((known - tables.agents.len()) as u64)
    }
}
