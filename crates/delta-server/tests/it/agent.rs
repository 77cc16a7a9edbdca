//! A hand-driven agent: what it says is written out, what it hears is looked at message by message.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use delta_grpc::dial::{self, Dialed};
use delta_wire::agent::frame::RawFrame;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AgentMessage, AgentStatus, AssignWork, Capabilities, Heartbeat, LeaseRenewal, LogChunk,
    RegisterRequest, RegisterResponse, ResultStream, RunComplete, RunStatus, ServerMessage,
    WorkAccepted,
};
use prost::Message as _;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::Status;

use crate::bench::{Bench, PATIENCE, text};

pub struct Agent {
    frames: mpsc::Sender<RawFrame>,
    dialed: Dialed,
    heard: VecDeque<Say>,
    /// Every message, in the order of saying and hearing.
    pub trace: Mutex<Vec<String>>,
    pub id: String,
    pub registered: RegisterResponse,
}

/// A registration that every server takes: one slot, steps.
pub fn request() -> RegisterRequest {
    RegisterRequest {
        agent_name: "test".into(),
        version: "0".into(),
        protocol_version: "1.0".into(),
        instance: "i1".into(),
        capabilities: Some(Capabilities {
            max_parallel: 1,
            work: vec!["steps".into()],
            os: "linux".into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub fn frame(said: impl IntoIterator<Item = Said>) -> RawFrame {
    let message = |said| AgentMessage {
        message: Some(said),
    };
    let messages = said.into_iter().map(message);
    RawFrame {
        messages: messages.map(|it| it.encode_to_vec().into()).collect(),
    }
}

impl Agent {
    pub async fn new(bench: &Bench) -> Agent {
        Agent::register(bench, request()).await.unwrap()
    }

    pub async fn register(bench: &Bench, request: RegisterRequest) -> Result<Agent, Status> {
        Agent::register_as(bench, &bench.runner, request).await
    }

    pub async fn register_as(
        bench: &Bench,
        token: &str,
        request: RegisterRequest,
    ) -> Result<Agent, Status> {
        let first = Said::Register(request);
        let trace = Mutex::new(vec![crate::flows::said(&first)]);
        let (frames, dialed) = Agent::dial(bench, token, first).await?;
        let mut agent = Agent {
            frames,
            dialed,
            heard: VecDeque::new(),
            trace,
            id: String::new(),
            registered: RegisterResponse::default(),
        };
        agent.registered = agent
            .hears(|say| match say {
                Say::RegisterResponse(response) => Some(response.clone()),
                _ => None,
            })
            .await;
        agent.id = agent.registered.agent_id.clone();
        Ok(agent)
    }

    pub async fn dial(
        bench: &Bench,
        token: &str,
        first: Said,
    ) -> Result<(mpsc::Sender<RawFrame>, Dialed), Status> {
        let (frames, sent) = mpsc::channel(64);
        frames.send(frame([first])).await.unwrap();
        let address = bench.base.trim_start_matches("http://");
        let stream = TcpStream::connect(address).await.unwrap();
        let origin = bench.base.parse().unwrap();
        let dialed = dial::open(stream, origin, Some(token), sent).await?;
        Ok((frames, dialed))
    }

    pub async fn say(&self, said: impl IntoIterator<Item = Said>) {
        let said: Vec<Said> = said.into_iter().collect();
        let names = said.iter().map(crate::flows::said);
        self.trace.lock().unwrap().extend(names);
        self.frames.send(frame(said)).await.unwrap();
    }

    pub async fn send(&self, frame: RawFrame) {
        self.frames.send(frame).await.unwrap();
    }

    /// Reads on; false when the stream has ended well.
    async fn read(&mut self) -> Result<bool, Status> {
        let received = tokio::time::timeout(PATIENCE, self.dialed.received.message());
        let Some(received) = received.await.expect("something is heard")? else {
            return Ok(false);
        };
        for bytes in received.messages {
            let message = ServerMessage::decode(bytes).unwrap();
            let names = message.message.iter().map(crate::flows::told);
            self.trace.lock().unwrap().extend(names);
            self.heard.extend(message.message);
        }
        Ok(true)
    }

    /// Waits for the first message that `what` knows; the others stay unheard.
    pub async fn hears<T>(&mut self, what: impl Fn(&Say) -> Option<T>) -> T {
        loop {
            let found = self.heard.iter().enumerate();
            let found = found.filter_map(|(n, say)| Some((n, what(say)?))).next();
            if let Some((n, found)) = found {
                self.heard.remove(n);
                return found;
            }
            assert!(self.read().await.unwrap(), "the stream goes on");
        }
    }

    /// Says it, if there is still somebody who hears it.
    pub async fn try_say(&self, said: Said) -> bool {
        self.frames.send(frame([said])).await.is_ok()
    }

    /// Waits for a message like this, or for how the stream ends before.
    pub async fn hears_or_ends(&mut self, what: impl Fn(&Say) -> bool) -> Option<Status> {
        loop {
            if let Some(n) = self.heard.iter().position(&what) {
                self.heard.remove(n);
                return None;
            }
            match self.read().await {
                Ok(goes_on) => assert!(goes_on, "it ends with a word"),
                Err(status) => return Some(status),
            }
        }
    }

    /// How the stream ends.
    pub async fn ends(&mut self) -> Option<Status> {
        loop {
            match self.read().await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(status) => return Some(status),
            }
        }
    }

    pub async fn work(&mut self) -> AssignWork {
        self.hears(|say| match say {
            Say::AssignWork(work) => Some(work.clone()),
            _ => None,
        })
        .await
    }

    /// Whether nothing of the kind is heard for a while.
    pub async fn hears_no_work(&mut self, for_this_long: Duration) -> bool {
        tokio::time::timeout(for_this_long, self.work())
            .await
            .is_err()
    }

    pub fn accepted(&self, work: &AssignWork) -> Said {
        Said::WorkAccepted(WorkAccepted {
            run_id: work.run_id.clone(),
            agent_id: self.id.clone(),
            lease: work.lease.clone(),
            ..Default::default()
        })
    }

    pub async fn accepts(&mut self, work: &AssignWork) {
        self.say([self.accepted(work)]).await;
        let accepted = self.hears(|say| match say {
            Say::WorkAck(ack) => Some(ack.accepted),
            _ => None,
        });
        assert!(accepted.await);
    }

    pub fn result(&self, work: &AssignWork, payload: Payload) -> Said {
        Said::Result(ResultStream {
            run_id: work.run_id.clone(),
            agent_id: self.id.clone(),
            lease: work.lease.clone(),
            payload: Some(payload),
        })
    }

    pub fn completed(&self, work: &AssignWork, status: RunStatus) -> Said {
        let complete = RunComplete {
            status: status.into(),
            ..Default::default()
        };
        self.result(work, Payload::RunComplete(complete))
    }

    /// A success that says how long the log is, and what is in it.
    pub fn completed_with_log(&self, work: &AssignWork, log: &[u8]) -> Said {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, log);
        let complete = RunComplete {
            status: RunStatus::Success.into(),
            log_length: Some(log.len() as u64),
            log_sha256: digest.as_ref().to_vec().into(),
            ..Default::default()
        };
        self.result(work, Payload::RunComplete(complete))
    }

    pub fn log(&self, work: &AssignWork, offset: Option<u64>, data: &[u8]) -> Said {
        let chunk = LogChunk {
            data: data.to_vec().into(),
            offset,
            ..Default::default()
        };
        self.result(work, Payload::LogChunk(chunk))
    }

    pub fn heartbeat(&self, works: &[&AssignWork], seq: Option<u64>) -> Said {
        let renewal = |work: &&AssignWork| LeaseRenewal {
            run_id: work.run_id.clone(),
            lease: work.lease.clone(),
            seq,
            ..Default::default()
        };
        Said::Heartbeat(Heartbeat {
            agent_id: self.id.clone(),
            status: if works.is_empty() {
                AgentStatus::Idle.into()
            } else {
                AgentStatus::Busy.into()
            },
            active_runs: works.iter().map(|work| work.run_id.clone()).collect(),
            leases: works.iter().map(renewal).collect(),
            ..Default::default()
        })
    }
}

impl Bench {
    /// Makes a run of so many jobs; returns its id and theirs.
    pub async fn run_with(&self, jobs: usize) -> (String, Vec<String>) {
        let job = |n| json!({ "name": format!("j{n}"), "job_spec": { "steps": ["true"] } });
        let view = self.create((0..jobs).map(job).collect()).await;
        let ids = view["jobs"].as_array().unwrap().iter();
        let ids = ids.map(|job| text(&job["job_id"])).collect();
        (text(&view["run_id"]), ids)
    }

    pub async fn job_state(&self, job: &str) -> String {
        let view = self.show_job(job).await;
        text(
            view["attempts"]
                .as_array()
                .unwrap()
                .last()
                .unwrap()
                .get("state")
                .unwrap(),
        )
    }

    pub async fn cancel_run(&self, run: &str) {
        let answer = self.ask(&format!("/runs/{run}/cancel"), json!({})).await;
        assert!(answer.status.is_success(), "{}", answer.text);
    }

    pub async fn token(&self, role: &str) -> String {
        self.token_with_id(role).await.0
    }

    /// A token, and what revokes it.
    pub async fn token_with_id(&self, role: &str) -> (String, String) {
        let body = json!({ "role": role, "name": "another" });
        let made = self.post(&self.admin, "/api/v1/tokens", body).await;
        let made = made.expect(201);
        (text(&made["token"]), text(&made["view"]["token_id"]))
    }

    pub async fn revoke_token(&self, id: &str) {
        let url = format!("{}/api/v1/tokens/{id}", self.base);
        let revoked = self.client.delete(&url).bearer_auth(&self.admin).send();
        assert_eq!(revoked.await.unwrap().status().as_u16(), 204);
    }

    pub async fn log(&self, job: &str) -> Vec<u8> {
        let path = format!("{}/api/v1/jobs/{job}/log", self.base);
        let request = self.client.get(path).bearer_auth(&self.user);
        request
            .send()
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap()
            .to_vec()
    }
}
