//! A server under test, and short ways to talk to it as a person and as a runner.

use std::time::Duration;

use delta_core::{Settings, Span};
use delta_server::{Config, Role, Server, StoreChoice};
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};

/// Long enough for a loaded machine; nothing waits this long when all is well.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Leases of 3 s: long for a busy machine, short for a test.
pub fn quick_settings() -> Settings {
    Settings {
        lease_ttl: Span(3_000),
        heartbeat_interval: Span(200),
        ack_timeout: Span(3_000),
        cancel_deadline: Span(300),
        timeout_buffer: Span(100),
        sweep: Span(20),
        retry_base: Span(1),
        retry_cap: Span(2),
        ..Settings::recommended()
    }
}

/// Leases that outlive the test, and cancels that are soon forced.
pub fn forcing_settings() -> Settings {
    Settings {
        lease_ttl: Span::secs(60),
        ack_timeout: Span::secs(60),
        ..quick_settings()
    }
}

/// Leases that outlive the test.
pub fn patient_settings() -> Settings {
    Settings {
        sweep: Span(20),
        retry_base: Span(1),
        retry_cap: Span(2),
        ..Settings::recommended()
    }
}

pub fn config(data: &tempfile::TempDir, settings: Settings) -> Config {
    Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        store: StoreChoice::Memory,
        settings,
        ..Config::recommended(data.path().to_owned())
    }
}

pub struct Bench {
    pub server: Option<Server>,
    pub data: tempfile::TempDir,
    pub base: String,
    pub client: Client,
    pub user: String,
    pub runner: String,
    pub admin: String,
}

/// An answer: status, headers and body.
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Answer {
    pub async fn of(response: Response) -> Answer {
        Answer {
            status: response.status(),
            headers: response.headers().clone(),
            text: response.text().await.unwrap(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    /// The body, if the status is the expected one.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        if self.text.is_empty() {
            Value::Null
        } else {
            self.json()
        }
    }
}

impl Bench {
    pub async fn memory(settings: Settings) -> Bench {
        let data = tempfile::tempdir().unwrap();
        let config = config(&data, settings);
        Bench::start(data, config).await
    }

    pub async fn patient() -> Bench {
        Bench::memory(patient_settings()).await
    }

    pub async fn quick() -> Bench {
        Bench::memory(quick_settings()).await
    }

    pub async fn start(data: tempfile::TempDir, config: Config) -> Bench {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let server = delta_server::start(config).await.unwrap();
        let token = |role| server.create_token(role, "test");
        Bench {
            base: format!("http://{}", server.addr().unwrap()),
            client: Client::new(),
            user: token(Role::User).await.unwrap(),
            runner: token(Role::Runner).await.unwrap(),
            admin: token(Role::Admin).await.unwrap(),
            data,
            server: Some(server),
        }
    }

    pub async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown().await;
        }
    }

    pub async fn post(&self, token: &str, path: &str, body: impl ToString) -> Answer {
        let request = self
            .client
            .post(format!("{}{path}", self.base))
            .bearer_auth(token);
        Answer::of(request.body(body.to_string()).send().await.unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.get_as(&self.user, path).await
    }

    pub async fn get_as(&self, token: &str, path: &str) -> Answer {
        let request = self
            .client
            .get(format!("{}{path}", self.base))
            .bearer_auth(token);
        Answer::of(request.send().await.unwrap()).await
    }

    /// As a person.
    pub async fn ask(&self, path: &str, body: Value) -> Answer {
        self.post(&self.user, &format!("/api/v1{path}"), body).await
    }

    /// As a person, with a path that was made for it.
    pub async fn ask_owned(&self, path: String, body: Value) -> Answer {
        self.ask(&path, body).await
    }

    /// As a runner.
    pub async fn say(&self, path: &str, body: Value) -> Answer {
        self.post(&self.runner, &format!("/api/v1/runner{path}"), body)
            .await
    }

    /// Makes a run with these jobs and returns its view.
    pub async fn create(&self, jobs: Value) -> Value {
        self.ask("/runs", json!({ "jobs": jobs })).await.expect(201)
    }

    /// Makes a run of one job that takes one attempt, and returns run id and job id.
    pub async fn create_one(&self) -> (String, String) {
        let view = self.create(json!([job("unit")])).await;
        (text(&view["run_id"]), text(&view["jobs"][0]["job_id"]))
    }

    pub async fn lease_as(&self, runner: &str, wait: f64) -> Answer {
        let message = json!({
            "type": "Lease", "runner_id": runner, "capabilities": ["linux"], "wait_seconds": wait,
        });
        self.say("/lease", message).await
    }

    /// A granted lease for runner `r1`.
    pub async fn lease(&self) -> Lease {
        Lease::from(&self.lease_as("r1", 10.0).await.expect(200), "r1")
    }

    /// A granted and acknowledged lease for runner `r1`.
    pub async fn acked(&self) -> Lease {
        let lease = self.lease().await;
        self.say("/ack-lease", lease.ack()).await.expect(200);
        lease
    }

    pub async fn show(&self, run: &str) -> Value {
        self.get(&format!("/api/v1/runs/{run}")).await.expect(200)
    }

    pub async fn show_job(&self, job: &str) -> Value {
        self.get(&format!("/api/v1/jobs/{job}")).await.expect(200)
    }

    /// Waits until a run's or a job's field has this value.
    pub async fn until(&self, path: &str, pointer: &str, wanted: &str) -> Value {
        let what = format!("{path} {pointer} = {wanted}");
        delta_testkit::wait::eventually_async(PATIENCE, &what, async || {
            let view = self.get(&format!("/api/v1{path}")).await.expect(200);
            if view.pointer(pointer).and_then(Value::as_str) == Some(wanted) {
                Ok(view)
            } else {
                Err(view)
            }
        })
        .await
    }
}

/// What a runner knows about its lease.
#[derive(Clone)]
pub struct Lease {
    pub id: String,
    pub job: String,
    pub run: String,
    pub runner: String,
    pub epoch: u64,
    pub granted: Value,
}

impl Lease {
    pub fn from(granted: &Value, runner: &str) -> Lease {
        Lease {
            id: text(&granted["lease_id"]),
            job: text(&granted["job_id"]),
            run: text(&granted["run_id"]),
            runner: runner.into(),
            epoch: granted["lease_epoch"].as_u64().unwrap(),
            granted: granted.clone(),
        }
    }

    pub fn ack(&self) -> Value {
        json!({ "type": "AckLease", "job_id": self.job, "lease_id": self.id,
            "runner_id": self.runner, "accepted_at": "2026-01-04T08:00:00Z" })
    }

    pub fn beat(&self) -> Value {
        json!({ "type": "Heartbeat", "lease_id": self.id, "runner_id": self.runner,
            "ts": "1999-01-01T00:00:00Z" })
    }

    pub fn complete(&self, status: &str, exit_code: i64) -> Value {
        json!({ "type": "Complete", "lease_id": self.id, "runner_id": self.runner,
            "status": status, "exit_code": exit_code })
    }

    pub fn cancel_ack(&self) -> Value {
        json!({ "type": "CancelAck", "lease_id": self.id, "runner_id": self.runner,
            "final_status": "CANCELED" })
    }
}

pub fn job(name: &str) -> Value {
    json!({ "name": name, "max_attempts": 1, "job_spec": { "steps": ["true"] } })
}

pub fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("no text: {value}"))
        .to_owned()
}
