//! The connection to the server: one gRPC session after another, one line to the rest of the agent.
//!
//! Calls made while the line is down wait for it a little, then fail and are made again by whoever
//! made them. Answers find their call by the execution they are about. Log bytes never stand in the
//! way of anything else: they are sent last, and no more of them than the line carries in about a
//! second ([`crate::log::window`]).
//!
//! Reading order: here (what the agent sees), [`state`] (what is shared), [`receive`], [`session`]
//! (dial, register, serve, wait), [`dial`].

mod call_error;
mod calls;
mod dial;
mod identity;
mod machine;
mod messages;
mod outage;
mod receive;
mod session;
mod state;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use call_error::CallError;
pub(crate) use calls::{Renewal, Settled, stale};
use delta_wire::agent::proto::RunnerPool;
use delta_wire::runner::{LeaseGranted, LeaseToken};
pub use dial::{Address, AddressError};
pub use identity::IdentityFile;
pub(crate) use identity::Process;
pub use machine::{Machine, Sought};
pub(crate) use session::{AgentRefused, ConnectionSettings, run};
use state::Shared;
pub(crate) use state::{Cursors, News, ResultCursor};
use tokio::sync::{mpsc, watch};

use crate::job_io::Origin;

/// Work that the server assigned.
pub(crate) struct Assigned {
    /// What the protocol calls `run_id`: this one execution.
    pub execution: String,
    pub granted: LeaseGranted,
    pub job_name: String,
    /// The work comes from people without rights here: the strict sandbox, always.
    pub untrusted: bool,
    pub origin: Origin,
}

/// The agent's end of the line. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Shared>);

/// What a holder follows of its lease beside its own calls.
pub(crate) struct Followed {
    pub news: watch::Receiver<News>,
    pub cursors: watch::Receiver<Cursors>,
    /// The number of the session, while there is one.
    pub line: watch::Receiver<Option<u64>>,
}

impl Connection {
    /// A line that is down, and where assignments will come from.
    pub fn new(slots: u32) -> (Connection, mpsc::Receiver<Assigned>) {
        let (assignments, assigned) = mpsc::channel(slots.max(1) as usize);
        (
            Connection(Arc::new(Shared::new(slots, assignments))),
            assigned,
        )
    }

    /// From now on this agent says that it holds the lease, until [`Link::release`]; it is never
    /// away for longer than `every` by its own choice.
    pub fn hold(&self, execution: &str, lease: &LeaseToken, every: Duration) -> Followed {
        self.0.hold(execution, lease, every)
    }

    /// The lease is over for this agent.
    pub fn release(&self, execution: &str) {
        self.0.release(execution);
    }

    /// Gives back what was assigned and is not held.
    pub fn turn_away(&self, work: &Assigned, reason: &str) {
        let lease = work.granted.lease_id.expose();
        self.0.turn_away(&work.execution, lease, reason);
        self.0.not_taken(&work.execution);
    }

    /// The server refused this agent for good: nothing will be answered any more.
    pub fn is_over(&self) -> bool {
        self.0.lock().over
    }

    /// Bytes that the server keeps of a log, once it has said so.
    pub fn max_log_bytes(&self) -> Option<u64> {
        self.0.lock().max_log_bytes
    }

    /// How the runner pools are; said with the presence, where it has changed.
    pub fn tell_runners(&self, pools: Vec<RunnerPool>) {
        self.0.tell_runners(pools);
    }

    /// Takes no more work: whatever is still assigned is rejected.
    pub fn stop_taking(&self) {
        self.0.stop_taking();
    }
}
