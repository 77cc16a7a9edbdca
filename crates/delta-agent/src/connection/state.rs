//! What calls, the writer and the reader of the line share.
//!
//! One lock, held for moments. Everything in it is bounded by the agent's slots and by the calls in
//! flight; log bytes by their window.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::{
    AgentFrame, AgentMessage, AgentStatus, DrainComplete, HeldLease, LeaseRenewal, RunnerPool,
};
use delta_wire::runner::LeaseToken;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::call_error::CallError;
use super::receive::Heard;
use super::{Assigned, Followed, messages};
use crate::log::window::Window;

/// Messages of one frame, log chunks apart.
const FRAME_MESSAGES: usize = 512;
/// Log bytes of one frame: little enough that what comes behind is not late.
const FRAME_LOG_BYTES: usize = 256 * 1024;

/// What a holder hears about its lease beside its own calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    None,
    /// A heartbeat brings the deadline.
    CancelAsked,
    Stale(String),
}

/// How far the server has a log, and on which session it said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursors {
    pub session: u64,
    pub received: u64,
    pub stored: u64,
    /// Counts the times it asked to go on from `received`.
    pub resends: u64,
    /// No more is wanted.
    pub full: bool,
}

/// How many results of a lease the server has of those sent on a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultCursor {
    pub session: u64,
    pub received: u64,
}

/// Which call an answer belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Accept(String),
    Renew(String, u64),
    Complete(String),
    /// By the name of the artifact.
    Upload(String, String),
}

impl Key {
    pub fn execution(&self) -> &str {
        match self {
            Key::Accept(it) | Key::Renew(it, _) | Key::Complete(it) | Key::Upload(it, _) => it,
        }
    }
}

pub(super) type Answered = oneshot::Sender<Result<Heard, CallError>>;

pub(super) struct Holding {
    pub lease: LeaseToken,
    /// How often it is renewed.
    pub every: Duration,
    pub news: watch::Sender<News>,
    pub cursors: watch::Sender<Cursors>,
    /// The server has its result, so its slot is free.
    pub settled: bool,
    /// Results of tests that the server has.
    pub results: watch::Sender<ResultCursor>,
    /// Log chunks on their way: where each ends, how long it is, when it was sent.
    pub sent: VecDeque<(u64, usize, Instant)>,
}

pub(super) struct State {
    pub agent_id: String,
    /// What it keeps of a log, as it said when this agent registered.
    pub max_log_bytes: Option<u64>,
    /// Rises with every session; nothing while the line is down.
    pub session: Option<u64>,
    pub sessions: u64,
    pub control: VecDeque<Said>,
    pub renewals: Vec<LeaseRenewal>,
    pub presence_due: bool,
    /// How the runner pools are, and whether this session has not been told.
    pub runners: Vec<RunnerPool>,
    pub runners_due: bool,
    /// Bounded by what their senders keep.
    pub results: VecDeque<Said>,
    pub logs: VecDeque<(Said, usize)>,
    pub pending: HashMap<Key, Answered>,
    pub held: BTreeMap<String, Holding>,
    pub drain: Option<String>,
    pub drain_said: bool,
    pub stopping: bool,
    /// There will be no further session.
    pub over: bool,
    /// Executions that were assigned and are not yet held or rejected.
    pub offered: BTreeSet<String>,
    pub window: Window,
}

pub(super) struct Shared {
    state: Mutex<State>,
    pub slots: u32,
    /// Something is to be sent.
    pub to_send: Notify,
    /// Moves whenever there may be room for log bytes.
    pub room: watch::Sender<u64>,
    /// The number of the session, while there is one.
    pub line: watch::Sender<Option<u64>>,
    pub assignments: mpsc::Sender<Assigned>,
}

impl Shared {
    pub fn new(slots: u32, assignments: mpsc::Sender<Assigned>) -> Shared {
        Shared {
            state: Mutex::new(State {
                agent_id: String::new(),
                max_log_bytes: None,
                session: None,
                sessions: 0,
                control: VecDeque::new(),
                renewals: Vec::new(),
                presence_due: false,
                runners: Vec::new(),
                runners_due: false,
                results: VecDeque::new(),
                logs: VecDeque::new(),
                pending: HashMap::new(),
                held: BTreeMap::new(),
                drain: None,
                drain_said: false,
                stopping: false,
                over: false,
                offered: BTreeSet::new(),
                window: Window::new(),
            }),
            slots,
            to_send: Notify::new(),
            room: watch::Sender::new(0),
            line: watch::Sender::new(None),
            assignments,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn hold(&self, execution: &str, lease: &LeaseToken, every: Duration) -> Followed {
        let mut state = self.lock();
        state.offered.remove(execution);
        let (news, followed) = watch::channel(News::None);
        let (cursors, log) = watch::channel(Cursors::default());
        let holding = Holding {
            lease: lease.clone(),
            every,
            news,
            cursors,
            settled: false,
            results: watch::Sender::default(),
            sent: VecDeque::new(),
        };
        state.held.insert(execution.to_owned(), holding);
        Followed {
            news: followed,
            cursors: log,
            line: self.line.subscribe(),
        }
    }

    pub fn release(&self, execution: &str) {
        let mut state = self.lock();
        if let Some(holding) = state.held.remove(execution) {
            let on_their_way = holding.sent.iter().map(|(_, length, _)| length).sum();
            state.window.give_back(on_their_way);
        }
        // EP-26: IDLE follows the result; nobody should wait for the next heartbeat to see it.
        state.presence_due = state.session.is_some();
        drop(state);
        self.more_room();
        // A drain may be complete now, too.
        self.to_send.notify_one();
    }

    pub fn stop_taking(&self) {
        let mut state = self.lock();
        state.stopping = true;
        state.presence_due = state.session.is_some();
        drop(state);
        self.to_send.notify_one();
    }

    pub fn tell_runners(&self, pools: Vec<RunnerPool>) {
        let mut state = self.lock();
        if state.runners == pools {
            return;
        }
        state.runners = pools;
        state.runners_due = true;
        state.presence_due = state.session.is_some();
        drop(state);
        self.to_send.notify_one();
    }

    pub fn more_room(&self) {
        self.room.send_modify(|moved| *moved += 1);
    }

    /// Sends something that nobody waits for.
    pub fn say(&self, said: Said) {
        self.lock().control.push_back(said);
        self.to_send.notify_one();
    }

    /// The next frame, if there is anything to say: what keeps work alive first, logs last.
    pub fn next_frame(&self) -> Option<AgentFrame> {
        let mut state = self.lock();
        let mut said = Vec::new();
        while said.len() < FRAME_MESSAGES
            && let Some(next) = state.control.pop_front()
        {
            said.push(next);
        }
        if state.presence_due || !state.renewals.is_empty() {
            state.presence_due = false;
            let renewals = std::mem::take(&mut state.renewals);
            let mut heartbeat = messages::heartbeat(&state, renewals);
            if std::mem::take(&mut state.runners_due) {
                heartbeat.runners = state.runners.clone();
            }
            said.push(Said::Heartbeat(heartbeat));
        }
        said.extend(state.drained());
        let mut bytes = 0;
        while bytes < FRAME_LOG_BYTES
            && said.len() < FRAME_MESSAGES
            && let Some(result) = state.results.pop_front()
        {
            bytes += messages::length(&result);
            said.push(result);
        }
        while bytes < FRAME_LOG_BYTES
            && let Some((chunk, length)) = state.logs.pop_front()
        {
            bytes += length;
            said.push(chunk);
        }
        let message = |said| AgentMessage {
            message: Some(said),
        };
        (!said.is_empty()).then(|| AgentFrame {
            messages: said.into_iter().map(message).collect(),
        })
    }

    /// The line is down: nothing that was sent will be answered.
    pub fn line_down(&self, why: &str) {
        let mut state = self.lock();
        state.session = None;
        state.control.clear();
        state.renewals.clear();
        state.results.clear();
        state.logs.clear();
        state.presence_due = false;
        state.window.reset();
        for holding in state.held.values_mut() {
            holding.sent.clear();
        }
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        self.line.send_replace(None);
        for (_, answered) in pending {
            let _ = answered.send(Err(CallError::Unreachable(why.to_owned())));
        }
    }
}

impl State {
    pub fn status(&self) -> AgentStatus {
        if self.drain.is_some() || self.stopping {
            AgentStatus::Draining
        } else if self.held.is_empty() {
            AgentStatus::Idle
        } else {
            AgentStatus::Busy
        }
    }

    /// Who holds leases tries to come back as often as they are renewed: a server that restarted
    /// a few times must not cost a job its lease (A35 counts for those with nothing to lose).
    pub fn must_be_back_within(&self) -> Option<Duration> {
        self.held.values().map(|holding| holding.every).min()
    }

    /// EP-25: once per drain, when nothing is left.
    fn drained(&mut self) -> Option<Said> {
        let nothing_left = self.held.is_empty() && self.offered.is_empty();
        let drain_id = self
            .drain
            .clone()
            .filter(|_| nothing_left && !self.drain_said)?;
        self.drain_said = true;
        Some(Said::DrainComplete(DrainComplete { drain_id }))
    }

    /// Slots that are not free.
    pub fn taken(&self) -> usize {
        let held = self.held.values().filter(|holding| !holding.settled);
        held.count() + self.offered.len()
    }

    pub fn held_leases(&self) -> Vec<HeldLease> {
        let held = self.held.iter().map(|(run_id, holding)| HeldLease {
            run_id: run_id.clone(),
            lease: holding.lease.expose().to_owned(),
        });
        held.collect()
    }
}
