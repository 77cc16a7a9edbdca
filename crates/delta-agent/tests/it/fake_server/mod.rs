//! A server of the Execution Protocol that does what a test says, over a real socket.
//!
//! By default it behaves: it answers registrations, assigns the jobs given to it to free slots,
//! confirms and renews leases, appends logs by their offsets, takes results. A test can lose its
//! answers, hold them back or replace them, cancel, drain, declare leases stale, refuse
//! registrations, and break the connection. What no agent may do is noted as a violation, and
//! fails the test when the server is dropped.

mod answers;
mod serve;
mod state;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AgentStatus, CancelWork, Drain, Heartbeat, RegisterRequest, RunComplete, WorkRejected,
};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

pub use self::state::{State, bytes_of};
use crate::bench::PATIENCE;

pub const TOKEN: &str = "agent-token-canary";

pub struct FakeServer {
    pub address: String,
    shared: Arc<Shared>,
    accepting: AbortOnDropHandle<()>,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }

    async fn may_read(&self) {
        let mut changed = self.changed.subscribe();
        while self.state().not_reading && changed.changed().await.is_ok() {}
    }

    /// Changes something and wakes whoever waits for it.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changed.send_modify(|count| *count += 1);
        changed
    }
}

impl FakeServer {
    pub async fn start(jobs: &[Value]) -> FakeServer {
        FakeServer::listen(jobs, "127.0.0.1:0", None).await
    }

    pub async fn start_at(jobs: &[Value], address: &str) -> FakeServer {
        FakeServer::listen(jobs, address, None).await
    }

    pub async fn start_tls(jobs: &[Value], tls: TlsAcceptor) -> FakeServer {
        FakeServer::listen(jobs, "127.0.0.1:0", Some(tls)).await
    }

    async fn listen(jobs: &[Value], address: &str, tls: Option<TlsAcceptor>) -> FakeServer {
        let listener = TcpListener::bind(address).await.expect("a port");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(jobs)),
            changed: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(serve::accept(listener, tls, Arc::clone(&shared)));
        FakeServer {
            address,
            shared,
            accepting: AbortOnDropHandle::new(accepting),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Changes what is planned, and does what is now to be done.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        self.shared.with(|state| {
            change(state);
            state.assign();
        });
    }

    /// Says something unasked.
    pub fn say(&self, say: Say) {
        self.shared.with(|state| state.say(vec![bytes_of(say)]));
    }

    /// Asks for an end of the work, by a message and by the flag in renewals.
    pub fn cancel(&self, run_id: &str, deadline: Duration) {
        self.change(|state| state.cancel_deadline = Some(deadline));
        self.say(Say::CancelWork(CancelWork {
            run_id: run_id.to_owned(),
            reason: "user request".to_owned(),
            deadline_ms: u64::try_from(deadline.as_millis()).expect("a deadline"),
        }));
    }

    pub fn drain(&self, drain_id: &str) {
        self.change(|state| state.assigning = false);
        self.say(Say::Drain(Drain {
            drain_id: drain_id.to_owned(),
        }));
    }

    /// Every connection is cut, as by a network.
    pub fn break_line(&self) {
        self.shared.with(State::break_line);
    }

    /// Nobody listens any more.
    pub fn go_away(&self) {
        self.accepting.abort();
        self.break_line();
    }

    /// Waits until `count` messages of this name were seen.
    pub async fn wait_for(&self, name: &str, count: usize) {
        self.wait_until(|state| state.count(name) >= count).await;
    }

    /// Waits until the agent says that it has nothing to do, after the last thing it accepted.
    pub async fn wait_idle(&self) {
        let idle =
            |said: &Said| matches!(said, Said::Heartbeat(it) if it.status() == AgentStatus::Idle);
        self.wait_until(|state| {
            let accepted = state.seen.iter().rposition(|(it, _)| *it == "WorkAccepted");
            accepted.is_some_and(|at| state.seen[at..].iter().any(|(_, said)| idle(said)))
        })
        .await;
    }

    pub async fn wait_until(&self, reached: impl Fn(&State) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let waiting = async {
            while !reached(&self.state()) {
                changed.changed().await.expect("the server lives");
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(in_time.is_ok(), "never came to that: {:?}", self.names());
    }

    fn each<T>(&self, what: impl Fn(&Said) -> Option<T>) -> Vec<T> {
        let state = self.state();
        state.seen.iter().filter_map(|(_, it)| what(it)).collect()
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.state().seen.iter().map(|(name, _)| *name).collect()
    }

    pub fn count(&self, name: &str) -> usize {
        self.state().count(name)
    }

    pub fn registrations(&self) -> Vec<RegisterRequest> {
        self.each(|said| match said {
            Said::Register(it) => Some(it.clone()),
            _ => None,
        })
    }

    pub fn heartbeats(&self) -> Vec<Heartbeat> {
        self.each(|said| match said {
            Said::Heartbeat(it) => Some(it.clone()),
            _ => None,
        })
    }

    pub fn rejections(&self) -> Vec<WorkRejected> {
        self.each(|said| match said {
            Said::WorkRejected(it) => Some(it.clone()),
            _ => None,
        })
    }

    pub fn drains_complete(&self) -> Vec<String> {
        self.each(|said| match said {
            Said::DrainComplete(it) => Some(it.drain_id.clone()),
            _ => None,
        })
    }

    pub fn results(&self) -> Vec<RunComplete> {
        self.each(|said| match said {
            Said::Result(it) => match &it.payload {
                Some(Payload::RunComplete(complete)) => Some(complete.clone()),
                _ => None,
            },
            _ => None,
        })
    }

    /// Waits for so many results.
    pub async fn wait_results(&self, count: usize) -> Vec<RunComplete> {
        self.wait_for("RunComplete", count).await;
        self.results()
    }

    /// The log of the last execution that was assigned.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(self.state().last_log()).into_owned()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let violations = &self.state().violations;
            assert!(violations.is_empty(), "{violations:?}");
        }
    }
}
