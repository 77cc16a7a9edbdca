//! What the fake server knows and plans, and how its answers get out.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use delta_wire::agent::frame::RawFrame;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AgentConfig, AssignWork, RegisterRequest, RegisterResponse, ResumePoint, ServerMessage,
};
use prost::Message as _;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tonic::Status;

use super::TOKEN;
use crate::bench::fresh_job_id;

const RESUME_SECRET: &str = "resume-canary";

/// The way to the agent that is connected.
pub type ToAgent = mpsc::UnboundedSender<Result<RawFrame, Status>>;

pub struct Execution {
    pub run_id: String,
    pub lease: String,
    spec: Value,
    pub accepted: bool,
    /// It takes no slot any more.
    pub gone: bool,
    /// Its result was taken.
    pub completed: bool,
    pub log: Vec<u8>,
}

pub struct State {
    pub jobs: VecDeque<Value>,
    pub ttl: Duration,
    pub interval: Duration,
    pub timeout_seconds: i32,
    /// How often the agent is to be heard from.
    pub heartbeat_seconds: i32,
    pub assigning: bool,
    /// Every message in order: its name and itself.
    pub seen: Vec<(&'static str, Said)>,
    pub executions: Vec<Execution>,
    /// Answers to lose: the message is handled, the connection cut.
    pub lose: HashMap<&'static str, u32>,
    /// Answers that are kept until somebody lets them go.
    pub hold: HashSet<&'static str>,
    pub held: Vec<Bytes>,
    /// Answers to give instead of the usual ones.
    pub instead: HashMap<&'static str, VecDeque<Say>>,
    /// Goes before every answer, in the same frame.
    pub noise: Vec<Bytes>,
    /// Everything is heard, nothing is answered.
    pub mute: bool,
    /// Nothing more is taken from the connection.
    pub not_reading: bool,
    /// Log bytes are neither kept nor answered.
    pub no_logs: bool,
    /// Log bytes cannot be written, and are asked for again.
    pub logs_have_no_room: bool,
    /// Whether results of tests are kept among what was seen.
    pub keep_results: bool,
    /// Results of tests on this session, by execution.
    pub results: HashMap<String, u64>,
    /// A log is full at this length.
    pub log_limit: usize,
    /// Registrations to refuse.
    pub refuse: VecDeque<Status>,
    /// Done when another token is shown, which is then refused.
    pub on_wrong_token: Option<Box<dyn FnMut() + Send>>,
    pub cancel_deadline: Option<Duration>,
    pub stale: bool,
    /// The first byte of every connection.
    pub first_bytes: Vec<u8>,
    /// What the agent showed of itself.
    pub certificate: Option<Vec<u8>>,
    pub connections: Vec<AbortHandle>,
    pub violations: Vec<String>,
    job_id: String,
    to_agent: Option<ToAgent>,
    slots: usize,
    registered: bool,
}

/// A message as it is sent.
pub fn bytes_of(say: Say) -> Bytes {
    let message = ServerMessage { message: Some(say) };
    message.encode_to_vec().into()
}

impl State {
    pub fn new(jobs: &[Value]) -> State {
        State {
            jobs: jobs.iter().cloned().collect(),
            ttl: Duration::from_secs(20),
            interval: Duration::from_secs(5),
            timeout_seconds: 60,
            heartbeat_seconds: 1,
            assigning: true,
            seen: Vec::new(),
            executions: Vec::new(),
            lose: HashMap::new(),
            hold: HashSet::new(),
            held: Vec::new(),
            instead: HashMap::new(),
            noise: Vec::new(),
            mute: false,
            not_reading: false,
            no_logs: false,
            logs_have_no_room: false,
            keep_results: true,
            results: HashMap::new(),
            log_limit: usize::MAX,
            refuse: VecDeque::new(),
            on_wrong_token: None,
            cancel_deadline: None,
            stale: false,
            first_bytes: Vec::new(),
            certificate: None,
            connections: Vec::new(),
            violations: Vec::new(),
            job_id: fresh_job_id(),
            to_agent: None,
            slots: 0,
            registered: false,
        }
    }

    pub fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    pub fn count(&self, name: &str) -> usize {
        self.seen.iter().filter(|(it, _)| *it == name).count()
    }

    pub fn last_log(&self) -> &[u8] {
        self.executions.last().map_or(&[], |it| &it.log)
    }

    pub fn token_shown(&mut self, token: &str) -> Result<(), Status> {
        if token == TOKEN {
            return Ok(());
        }
        match &mut self.on_wrong_token {
            Some(wrong) => wrong(),
            None => self.violation("a call without the token".to_owned()),
        }
        Err(Status::unauthenticated("this token is not known"))
    }

    pub fn register(&mut self, request: RegisterRequest, to_agent: ToAgent) -> Result<(), Status> {
        self.seen
            .push(("Register", Said::Register(request.clone())));
        if let Some(status) = self.refuse.pop_front() {
            return Err(status);
        }
        let (id, secret) = match self.registered {
            true => ("agt_1", RESUME_SECRET),
            false => ("", ""),
        };
        if (request.agent_id.as_str(), request.resume_secret.as_str()) != (id, secret) {
            self.violation("it does not say who it was".to_owned());
        }
        let held: HashSet<&str> = request.leases.iter().map(|it| it.lease.as_str()).collect();
        for execution in &mut self.executions {
            // An assignment that was never answered goes to the next who asks.
            if !execution.gone && !execution.accepted && !held.contains(&*execution.lease) {
                execution.gone = true;
                self.jobs.push_front(execution.spec.clone());
            }
        }
        let leases = request.leases.iter();
        let resume: Vec<ResumePoint> = leases
            .map(|it| self.resume_point(&it.run_id, &it.lease))
            .collect();
        let capabilities = request.capabilities.unwrap_or_default();
        self.slots = usize::try_from(capabilities.max_parallel).unwrap_or(0);
        self.to_agent = Some(to_agent);
        self.results.clear();
        let response = RegisterResponse {
            agent_id: "agt_1".to_owned(),
            config: Some(AgentConfig {
                heartbeat_interval_seconds: self.heartbeat_seconds,
                ..Default::default()
            }),
            resume_secret: match self.registered {
                true => String::new(),
                false => RESUME_SECRET.to_owned(),
            },
            resume,
            protocol_version: "1.0".to_owned(),
            ..Default::default()
        };
        self.registered = true;
        self.answer("Register", vec![Say::RegisterResponse(response)]);
        self.assign();
        Ok(())
    }

    fn resume_point(&mut self, run_id: &str, lease: &str) -> ResumePoint {
        self.lease_shown(run_id, lease);
        let over = self.over_because(run_id);
        let log = self.execution(run_id).map_or(0, |it| it.log.len());
        ResumePoint {
            run_id: run_id.to_owned(),
            live: over.is_none(),
            reason: over.unwrap_or_default().to_owned(),
            log_received: log as u64,
            log_stored: log as u64,
        }
    }

    /// Why a lease is no right any more, if it is not.
    pub(super) fn over_because(&mut self, run_id: &str) -> Option<&'static str> {
        match self.execution(run_id) {
            Some(execution) if execution.completed => Some("ALREADY_FINAL"),
            _ => self.stale.then_some("LEASE_EXPIRED"),
        }
    }

    pub(super) fn execution(&mut self, run_id: &str) -> Option<&mut Execution> {
        self.executions.iter_mut().find(|it| it.run_id == run_id)
    }

    /// Every message about an execution carries its lease.
    pub(super) fn lease_shown(&mut self, run_id: &str, lease: &str) {
        let right = self.execution(run_id).is_some_and(|it| it.lease == lease);
        if !right {
            self.violation(format!("a message about {run_id} without its lease"));
        }
    }

    pub(super) fn answer(&mut self, name: &'static str, answers: Vec<Say>) {
        let planned = self.instead.get_mut(name).and_then(VecDeque::pop_front);
        let answers = planned.map_or(answers, |it| vec![it]);
        if let Some(left) = self.lose.get_mut(name).filter(|left| **left > 0) {
            *left -= 1;
            return self.break_line();
        }
        let answers = answers.into_iter().map(bytes_of);
        if self.hold.contains(name) {
            self.held.extend(answers);
        } else if !self.mute || name == "Register" {
            let noise = self.noise.iter().filter(|_| name != "Register").cloned();
            let answers: Vec<Bytes> = noise.chain(answers).collect();
            self.say(answers);
        }
    }

    /// What was held back is said now.
    pub fn let_go(&mut self) {
        self.hold.clear();
        let held = std::mem::take(&mut self.held);
        self.say(held);
    }

    pub fn say(&mut self, messages: Vec<Bytes>) {
        if let (Some(to_agent), false) = (&self.to_agent, messages.is_empty()) {
            // It may have left meanwhile.
            let _ = to_agent.send(Ok(RawFrame { messages }));
        }
    }

    /// Ends the session with a status.
    pub fn end_with(&mut self, status: Status) {
        if let Some(to_agent) = self.to_agent.take() {
            let _ = to_agent.send(Err(status));
        }
    }

    pub fn break_line(&mut self) {
        self.to_agent = None;
        for connection in self.connections.drain(..) {
            connection.abort();
        }
    }

    /// It knows no agent any more.
    pub fn forget(&mut self) {
        self.registered = false;
    }

    /// Gives jobs to free slots.
    pub fn assign(&mut self) {
        let free =
            |state: &State| state.slots > state.executions.iter().filter(|it| !it.gone).count();
        while self.assigning
            && self.to_agent.is_some()
            && free(self)
            && let Some(spec) = self.jobs.pop_front()
        {
            let work = self.assignment(&spec);
            self.say(vec![bytes_of(Say::AssignWork(work))]);
        }
    }

    /// An assignment nobody has heard of yet.
    pub fn assignment(&mut self, spec: &Value) -> AssignWork {
        let n = self.executions.len() + 1;
        let (run_id, lease) = (format!("exe_{n}"), format!("lease_canary_{n}"));
        self.executions.push(Execution {
            run_id: run_id.clone(),
            lease: lease.clone(),
            spec: spec.clone(),
            accepted: false,
            gone: false,
            completed: false,
            log: Vec::new(),
        });
        AssignWork {
            run_id,
            lease,
            timeout_seconds: self.timeout_seconds,
            lease_epoch: n as u64,
            attempt: 1,
            job_id: self.job_id.clone(),
            job_run_id: "run_5".to_owned(),
            lease_ttl_ms: millis(self.ttl),
            lease_heartbeat_interval_ms: millis(self.interval),
            accept_within_ms: 10_000,
            job_spec: spec.to_string(),
            ..Default::default()
        }
    }
}

pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a short time")
}
