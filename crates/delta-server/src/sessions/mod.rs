//! Sessions of agents, over the Execution Protocol: their loops, who they are, what they offer.
//!
//! A session is transport and holds no authority (A31): everything it says becomes the same
//! commands as a message of the Runner Protocol, and a lease outlives any number of sessions.
//! Presence gates what is assigned and nothing else.
//!
//! Reading order: [`call`] (one call comes in), [`register`] (who is it), [`session`] (its loop),
//! [`receive`] (its messages), [`ended_leases`] (messages about leases that are over),
//! [`to_command`] (messages as commands), [`reply`] (answers), [`held_lease`] (one lease, as a
//! machine), [`lease_table`] (all that it holds), [`intake`] (whether it is given work), [`offers`]
//! (what its slots take), [`logs`], [`results`], [`uploads`].
//! Beside them: [`orders`] (of operators), [`agent_record`] (what outlives a session), [`runners`]
//! (how its runner pools are), [`grpc_health`] (health, reflection).

pub mod agent_record;
mod call;
mod capabilities;
mod ended_leases;
mod execution_id;
mod grpc_health;
mod held_lease;
mod intake;
mod lease_table;
mod logs;
mod offences;
mod offers;
mod orders;
mod outgoing;
mod rebind;
mod receive;
mod register;
mod registry;
mod reply;
mod results;
mod runners;
mod sandbox;
mod session;
mod to_command;
mod uploads;

pub use agent_record::{AgentRecord, runners_of};
pub use call::{not_spoken, routes};
#[cfg(test)]
pub use capabilities::About;
pub use lease_table::StoredLease;
pub use orders::SessionOrder;
pub use register::{AGENT_PREFIX, held};
pub use registry::{Agents, OFFLINE_AFTER};
pub use runners::RunnerPool;
pub use sandbox::{PoolSandboxes, Sandbox};
pub use session::RECHECK;
