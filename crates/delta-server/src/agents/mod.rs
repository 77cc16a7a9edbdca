//! Agents that speak the Execution Protocol: their sessions, who they are, what they offer.
//!
//! A session is transport and holds no authority (A31): everything it says becomes the same
//! commands as a message of the Runner Protocol, and a lease outlives any number of sessions.
//! Presence gates what is assigned and nothing else.
//!
//! Reading order: [`call`] (one call comes in), [`register`] (who is it), [`session`] (its loop),
//! [`hear`] (what it says), [`past`] (of leases that are over), [`tell`] (what it is told),
//! [`leases`] (what it holds), [`offers`] (what its slots take), [`logs`], [`results`],
//! [`uploads`].
//! Beside them: [`orders`] (of operators), [`noted`] and [`noting`] (what outlives a session),
//! [`runners`] (how its runner pools are), [`asked`] (health, reflection).

mod asked;
mod call;
mod capabilities;
mod execution;
mod hear;
mod leases;
mod logs;
mod meaning;
mod noted;
mod noting;
mod offers;
mod orders;
mod outgoing;
mod past;
mod rebind;
mod register;
mod registry;
mod results;
mod runners;
mod sandbox;
mod session;
mod tell;
mod uploads;

pub use call::{not_spoken, routes};
pub use leases::Found;
pub use noted::{Noted, runners_of};
pub use noting::Noting;
pub use orders::Order;
pub use register::{AGENT_PREFIX, held};
pub use registry::{Agents, OFFLINE_AFTER};
pub use runners::RunnerPool;
pub use sandbox::{PoolSandboxes, Sandbox};
pub use session::RECHECK;
