//! A third-party runner, one message at a time: it does what a test tells it, right or wrong.

use std::io::Result;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::http::{Answer, Http};

/// A runner with a name and a credential.
#[derive(Clone, Debug)]
pub struct Runner {
    pub http: Http,
    pub id: String,
    pub capabilities: Vec<String>,
}

/// A LeaseGranted.
#[derive(Clone, Debug)]
pub struct Grant {
    pub job: String,
    pub run: String,
    /// The secret; in bodies only.
    pub lease: String,
    pub attempt: u64,
    pub epoch: u64,
}

impl Grant {
    pub fn of(answer: &Answer) -> Grant {
        let number = |field: &str| answer.body[field].as_u64().unwrap_or_default();
        assert_eq!(answer.word("type"), "LeaseGranted", "{}", answer.text);
        Grant {
            job: answer.word("job_id").to_owned(),
            run: answer.word("run_id").to_owned(),
            lease: answer.word("lease_id").to_owned(),
            attempt: number("attempt"),
            epoch: number("lease_epoch"),
        }
    }
}

impl Runner {
    pub fn new(addr: SocketAddr, token: &str, id: &str) -> Runner {
        Runner {
            http: Http {
                addr,
                token: token.to_owned(),
            },
            id: id.to_owned(),
            capabilities: Vec::new(),
        }
    }

    /// This runner by way of another address: a proxy, another replica.
    pub fn through(&self, addr: SocketAddr) -> Runner {
        let mut other = self.clone();
        other.http.addr = addr;
        other
    }

    pub fn ask(&self, wait_seconds: f64) -> Value {
        json!({"type": "Lease", "runner_id": self.id, "capabilities": self.capabilities,
            "wait_seconds": wait_seconds})
    }

    pub fn lease(&self, wait_seconds: f64) -> Result<Answer> {
        self.say("lease", &self.ask(wait_seconds))
    }

    /// Leases a job that must come.
    #[track_caller]
    pub fn grant(&self) -> Grant {
        Grant::of(&self.lease(20.0).expect("an answer").expect(200))
    }

    /// Leases and acknowledges.
    #[track_caller]
    pub fn take(&self) -> Grant {
        let grant = self.grant();
        self.ack(&grant).expect("an answer").expect(200);
        grant
    }

    pub fn ack(&self, grant: &Grant) -> Result<Answer> {
        let message = json!({"type": "AckLease", "job_id": grant.job, "lease_id": grant.lease,
            "runner_id": self.id});
        self.say("ack-lease", &message)
    }

    pub fn heartbeat(&self, grant: &Grant) -> Result<Answer> {
        self.say("heartbeat", &self.beat(grant))
    }

    pub fn beat(&self, grant: &Grant) -> Value {
        json!({"type": "Heartbeat", "lease_id": grant.lease, "runner_id": self.id})
    }

    pub fn complete(&self, grant: &Grant, status: &str, exit_code: i64) -> Result<Answer> {
        self.say("complete", &self.done(grant, status, exit_code))
    }

    pub fn done(&self, grant: &Grant, status: &str, exit_code: i64) -> Value {
        json!({"type": "Complete", "lease_id": grant.lease, "runner_id": self.id,
            "status": status, "exit_code": exit_code, "artifacts": []})
    }

    /// Completes as SUCCEEDED, which must be accepted.
    #[track_caller]
    pub fn succeed(&self, grant: &Grant) {
        let answer = self
            .complete(grant, "SUCCEEDED", 0)
            .expect("an answer")
            .expect(200);
        assert_eq!(answer.body["accepted"], true, "{}", answer.text);
    }

    pub fn cancel_ack(&self, grant: &Grant) -> Result<Answer> {
        let message = json!({"type": "CancelAck", "lease_id": grant.lease, "runner_id": self.id,
            "final_status": "CANCELED"});
        self.say("cancel-ack", &message)
    }

    pub fn say(&self, action: &str, message: &Value) -> Result<Answer> {
        self.http.post(&format!("/api/v1/runner/{action}"), message)
    }
}
