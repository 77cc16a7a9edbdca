//! One agent of the measurement: a session of the Execution Protocol with as little around it as
//! possible. It executes nothing.

use std::collections::VecDeque;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use delta_grpc::dial::{self, Dialed};
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AgentFrame, AgentMessage, AssignWork, Capabilities, Heartbeat, HeldLease, LeaseRenewal,
    LogChunk, RegisterRequest, RegisterResponse, ResultStream, RunComplete, RunStatus,
    ServerMessage, WorkAccepted,
};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::child::ServerUnderTest;

/// Frames on their way: the measurement answers one while the next is read.
const FRAMES: usize = 16;

/// A registered agent.
pub struct Session {
    frames: mpsc::Sender<AgentFrame>,
    dialed: Dialed,
    heard: VecDeque<Say>,
    pub registered: RegisterResponse,
}

/// Who registers.
#[derive(Clone, Debug, Default)]
pub struct As {
    pub name: String,
    pub slots: u32,
    /// Of an earlier session.
    pub agent_id: String,
    pub resume_secret: String,
    pub leases: Vec<HeldLease>,
}

impl Session {
    pub async fn open(server: &ServerUnderTest, who: As) -> Result<Session> {
        let stream = TcpStream::connect(server.addr)
            .await
            .context("connecting")?;
        stream.set_nodelay(true)?;
        let (frames, sent) = mpsc::channel(FRAMES);
        let request = RegisterRequest {
            agent_id: who.agent_id,
            resume_secret: who.resume_secret,
            instance: who.name.clone(),
            agent_name: who.name,
            version: "bench".into(),
            protocol_version: "1.0".into(),
            leases: who.leases,
            // It makes no request beside its session.
            shows_itself: false,
            capabilities: Some(Capabilities {
                max_parallel: i32::try_from(who.slots).unwrap_or(1),
                work: vec!["steps".into()],
                os: "linux".into(),
                ..Default::default()
            }),
        };
        frames.send(frame(vec![Said::Register(request)])).await?;
        let origin = format!("http://{}", server.addr).parse()?;
        let opened = dial::open(stream, origin, Some(&server.runner_token), sent).await;
        let dialed = opened.map_err(|status| anyhow::anyhow!("registering: {status}"))?;
        let mut session = Session {
            frames,
            dialed,
            heard: VecDeque::new(),
            registered: RegisterResponse::default(),
        };
        match session.next().await? {
            Say::RegisterResponse(response) => session.registered = response,
            other => bail!("the registration was answered with {other:?}"),
        }
        Ok(session)
    }

    /// What came in one frame, or is left of it.
    pub async fn several(&mut self) -> Result<VecDeque<Say>> {
        if self.heard.is_empty() {
            self.read().await?;
        }
        Ok(std::mem::take(&mut self.heard))
    }

    pub async fn next(&mut self) -> Result<Say> {
        loop {
            if let Some(say) = self.heard.pop_front() {
                return Ok(say);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<()> {
        let received = self.dialed.received.message().await?;
        let received = received.context("the server ended the session")?;
        for bytes in received.messages {
            self.heard.extend(ServerMessage::decode(bytes)?.message);
        }
        Ok(())
    }

    pub async fn say(&self, said: Vec<Said>) -> Result<()> {
        let sent = self.frames.send(frame(said)).await;
        sent.context("the session has ended")
    }

    pub fn accept(&self, work: &AssignWork) -> Said {
        Said::WorkAccepted(WorkAccepted {
            run_id: work.run_id.clone(),
            agent_id: self.registered.agent_id.clone(),
            accepted_at: None,
            lease: work.lease.clone(),
        })
    }

    pub fn complete(&self, run_id: &str, lease: &str) -> Said {
        let complete = RunComplete {
            status: RunStatus::Success.into(),
            exit_code: Some(0),
            ..Default::default()
        };
        self.result(run_id, lease, Payload::RunComplete(complete))
    }

    pub fn log(&self, work: &AssignWork, offset: u64, data: Bytes) -> Said {
        let chunk = LogChunk {
            data,
            offset: Some(offset),
            ..Default::default()
        };
        self.result(&work.run_id, &work.lease, Payload::LogChunk(chunk))
    }

    fn result(&self, run_id: &str, lease: &str, payload: Payload) -> Said {
        Said::Result(ResultStream {
            run_id: run_id.to_owned(),
            agent_id: self.registered.agent_id.clone(),
            lease: lease.to_owned(),
            payload: Some(payload),
        })
    }

    pub fn heartbeat(&self, held: &[HeldLease], seq: u64) -> Said {
        let renewal = |held: &HeldLease| LeaseRenewal {
            run_id: held.run_id.clone(),
            lease: held.lease.clone(),
            seq: Some(seq),
            ..Default::default()
        };
        Said::Heartbeat(Heartbeat {
            agent_id: self.registered.agent_id.clone(),
            active_runs: held.iter().map(|it| it.run_id.clone()).collect(),
            leases: held.iter().map(renewal).collect(),
            ..Default::default()
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.dialed.connection.abort();
    }
}

fn frame(said: Vec<Said>) -> AgentFrame {
    let message = |said| AgentMessage {
        message: Some(said),
    };
    AgentFrame {
        messages: said.into_iter().map(message).collect(),
    }
}
