//! Agents as the store knows them: who an id belongs to, and what an operator ordered for it.
//!
//! Presence is memory of the server; this is only what must outlive it.

use delta_core::{AgentStanding, Digest, Millis, Text};

use crate::StoreError;

/// An agent that has registered at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRow {
    pub id: Text,
    /// The credential it comes with.
    pub principal: Text,
    /// Hash of the secret that tells agents with one credential apart; none for an agent that
    /// cannot keep one.
    pub resume: Option<Digest>,
    /// The most slots it has had.
    pub slots: u32,
    /// What it says of itself, in JSON.
    pub about: Text,
    /// The epoch of its newest session, on whichever server.
    pub session: u64,
    /// Set while it is to take no work.
    pub drain: Option<Text>,
    pub created_at: Millis,
    pub seen_at: Millis,
    pub revoked_at: Option<Millis>,
    /// The process that began its newest session, where it shows itself in requests.
    pub process: Option<Text>,
}

impl AgentRow {
    /// As far as the rights of its leases depend on it.
    pub fn standing(&self) -> AgentStanding {
        AgentStanding {
            principal: self.principal.clone(),
            secret: self.resume,
            process: self.process.clone(),
            session: self.session,
            revoked: self.revoked_at.is_some(),
        }
    }
}

/// What changes of an agent by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSeen {
    pub id: Text,
    pub slots: u32,
    pub about: Text,
    pub session: u64,
    pub seen_at: Millis,
}

/// Agents, read.
pub trait AgentReader {
    fn agent(&self, id: &str) -> Result<Option<AgentRow>, StoreError>;

    /// A page of agents in the order of their ids, after the given one.
    fn agents(&self, after: &str, limit: usize) -> Result<Vec<AgentRow>, StoreError>;
}

/// Agents, written. Beside the writer: what is decided here is who an id belongs to and whether it
/// takes work, never what becomes of a lease. The core reads an agent's standing in the batch that
/// judges a message, so that a change counts from the next batch on, whichever was first.
pub trait AgentTable {
    /// Enters an agent, unless its id is taken: false then.
    fn new_agent(&self, agent: &AgentRow) -> Result<bool, StoreError>;

    /// Notes what was seen; slots and sessions only grow, moments only move on. Unknown agents are
    /// passed over.
    fn agents_seen(&self, seen: &[AgentSeen]) -> Result<(), StoreError>;

    /// Begins a session of an agent, and notes which process did. Its number is above those of all
    /// sessions that were begun so or seen, on whichever server, and at least `floor`; nothing when
    /// there is no such agent.
    fn begin_session(
        &self,
        id: &str,
        floor: u64,
        process: Option<&str>,
    ) -> Result<Option<u64>, StoreError>;

    /// Begins a drain or takes it back; false when there is no such agent.
    fn drain_agent(&self, id: &str, drain: Option<&str>) -> Result<bool, StoreError>;

    /// Binds an agent to another credential; false when it is bound to another than `from`.
    fn rebind_agent(&self, id: &str, from: &str, to: &str) -> Result<bool, StoreError>;

    /// Shuts an agent out for good; false when there is no such agent.
    fn revoke_agent(&self, id: &str, at: Millis) -> Result<bool, StoreError>;

    /// Forgets agents that were last seen before this moment, and how many they were. Those for
    /// whom something was ordered stay: a drain, a revocation.
    fn forget_agents(&self, before: Millis) -> Result<u64, StoreError>;
}
