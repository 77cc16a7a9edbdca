//! What the fake server makes of each message.

use std::collections::VecDeque;

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    CompleteAck, HeartbeatAck, LeaseRenewal, LeaseRenewalAck, LogAck, LogChunk, TestResultAck,
    WorkAck,
};

use super::state::{State, millis};

impl State {
    pub fn hear(&mut self, said: Said) {
        let (name, answers) = match &said {
            Said::Register(_) => ("Register", Vec::new()),
            Said::Heartbeat(beat) => {
                let name = if beat.leases.is_empty() {
                    "Heartbeat"
                } else {
                    "Renewal"
                };
                self.agent_shown(&beat.agent_id);
                let leases = beat.leases.iter().map(|it| self.renew(it)).collect();
                (name, vec![Say::HeartbeatAck(HeartbeatAck { leases })])
            }
            Said::WorkAccepted(it) => {
                self.agent_shown(&it.agent_id);
                self.lease_shown(&it.run_id, &it.lease);
                ("WorkAccepted", vec![self.accepted(&it.run_id)])
            }
            Said::WorkRejected(it) => {
                self.agent_shown(&it.agent_id);
                self.lease_shown(&it.run_id, &it.lease);
                self.over(&it.run_id);
                ("WorkRejected", Vec::new())
            }
            Said::Result(it) => {
                self.agent_shown(&it.agent_id);
                self.lease_shown(&it.run_id, &it.lease);
                match &it.payload {
                    Some(Payload::LogChunk(chunk)) => ("LogChunk", self.append(&it.run_id, chunk)),
                    Some(Payload::RunComplete(_)) => ("RunComplete", self.complete(&it.run_id)),
                    Some(Payload::TestResult(_)) => ("TestResult", self.tested(&it.run_id)),
                    _ => ("Other", Vec::new()),
                }
            }
            Said::DrainComplete(_) => ("DrainComplete", Vec::new()),
            Said::CreateUpload(_) => ("CreateUpload", Vec::new()),
        };
        if self.count("Register") == 0 {
            self.violation(format!("{name} before a registration"));
        }
        if name != "TestResult" || self.keep_results {
            self.seen.push((name, said));
        }
        self.answer(name, answers);
        self.assign();
    }

    fn agent_shown(&mut self, agent_id: &str) {
        if agent_id != "agt_1" {
            self.violation(format!("a message of {agent_id:?}"));
        }
    }

    fn renew(&mut self, renewal: &LeaseRenewal) -> LeaseRenewalAck {
        self.lease_shown(&renewal.run_id, &renewal.lease);
        let over = self.over_because(&renewal.run_id);
        let live = over.is_none();
        LeaseRenewalAck {
            run_id: renewal.run_id.clone(),
            extended: live,
            lease_ttl_ms: if live { millis(self.ttl) } else { 0 },
            cancel_requested: live && self.cancel_deadline.is_some(),
            cancel_deadline_ms: self.cancel_deadline.map_or(0, millis),
            stale: !live,
            reason: over.unwrap_or_default().to_owned(),
            seq: renewal.seq,
        }
    }

    fn accepted(&mut self, run_id: &str) -> Say {
        if let Some(execution) = self.execution(run_id) {
            execution.accepted = true;
        }
        Say::WorkAck(WorkAck {
            run_id: run_id.to_owned(),
            accepted: !self.stale,
            lease_ttl_ms: millis(self.ttl),
            reason: if self.stale { "LEASE_EXPIRED" } else { "" }.to_owned(),
        })
    }

    /// Appends what follows, asks again after a gap, and insists that an overlap is equal (A27).
    fn append(&mut self, run_id: &str, chunk: &LogChunk) -> Vec<Say> {
        if self.no_logs {
            return Vec::new();
        }
        let offset = usize::try_from(chunk.offset.unwrap_or(0)).expect("an offset");
        let (limit, no_room) = (self.log_limit, self.logs_have_no_room);
        let Some(execution) = self.execution(run_id) else {
            return Vec::new();
        };
        let has = execution.log.len();
        let resend = no_room || offset > has;
        let mut conflict = false;
        if !resend {
            let known = (has - offset).min(chunk.data.len());
            conflict = execution.log[offset..offset + known] != chunk.data[..known];
            execution.log.extend_from_slice(&chunk.data[known..]);
            execution.log.truncate(limit);
        }
        let received = execution.log.len();
        if conflict {
            self.violation(format!("other bytes at {offset}"));
        }
        vec![Say::LogAck(LogAck {
            run_id: run_id.to_owned(),
            received: received as u64,
            stored: received as u64,
            resend,
            full: received >= limit,
        })]
    }

    fn tested(&mut self, run_id: &str) -> Vec<Say> {
        let received = self.results.entry(run_id.to_owned()).or_default();
        *received += 1;
        vec![Say::TestResultAck(TestResultAck {
            run_id: run_id.to_owned(),
            received: *received,
            full: false,
        })]
    }

    fn complete(&mut self, run_id: &str) -> Vec<Say> {
        // The slot is free again unless the test refuses the result.
        if self
            .instead
            .get("RunComplete")
            .is_none_or(VecDeque::is_empty)
        {
            self.over(run_id);
            if let Some(execution) = self.execution(run_id) {
                execution.completed = true;
            }
        }
        vec![Say::CompleteAck(CompleteAck {
            run_id: run_id.to_owned(),
            accepted: true,
            ..Default::default()
        })]
    }

    fn over(&mut self, run_id: &str) {
        if let Some(execution) = self.execution(run_id) {
            execution.gone = true;
        }
    }
}
