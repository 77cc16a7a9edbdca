//! A server of the Runner Protocol that does what a test says, over a real socket.
//!
//! By default it behaves: one grant per job given to it, heartbeats renewed, logs appended,
//! completions taken. A test can lose its answers, replace them, cancel, or declare the lease
//! stale.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::bench::PATIENCE;

pub const TOKEN: &str = "agent-token-canary";

/// What is known and planned. Times are in seconds, as on the wire.
pub struct State {
    pub jobs: VecDeque<Value>,
    pub ttl: f64,
    pub interval: f64,
    pub max_runtime: f64,
    /// Every request in order: the last part of its path and its body.
    pub seen: Vec<(String, Value)>,
    pub log: Vec<u8>,
    /// Answers to lose: the request is handled, the connection closed.
    pub lose: HashMap<String, u32>,
    /// Answers to give instead of the usual one.
    pub instead: HashMap<String, VecDeque<(u16, &'static str, Value)>>,
    pub cancel_deadline: Option<f64>,
    pub stale: bool,
    /// Specs go by reference under this hash; the right one when it is empty.
    pub spec_hash: Option<String>,
    granted: u32,
    referenced: Value,
}

pub struct FakeServer {
    pub address: String,
    shared: Arc<Shared>,
    _accepting: AbortOnDropHandle<()>,
}

struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

struct Request {
    action: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl FakeServer {
    pub async fn start(jobs: &[Value]) -> FakeServer {
        FakeServer::listen(jobs, None).await
    }

    pub async fn start_tls(jobs: &[Value], tls: TlsAcceptor) -> FakeServer {
        FakeServer::listen(jobs, Some(tls)).await
    }

    async fn listen(jobs: &[Value], tls: Option<TlsAcceptor>) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://{}", listener.local_addr().expect("an address"));
        let state = State {
            jobs: jobs.iter().cloned().collect(),
            ttl: 20.0,
            interval: 5.0,
            max_runtime: 60.0,
            seen: Vec::new(),
            log: Vec::new(),
            lose: HashMap::new(),
            instead: HashMap::new(),
            cancel_deadline: None,
            stale: false,
            spec_hash: None,
            granted: 0,
            referenced: Value::Null,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, tls, Arc::clone(&shared)));
        FakeServer {
            address,
            shared,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no panic inside")
    }

    /// Changes what is planned and wakes whoever is held.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.shared.changed.send_modify(|count| *count += 1);
    }

    /// Waits until `count` requests of this kind were seen, and returns their bodies.
    pub async fn wait_for(&self, action: &str, count: usize) -> Vec<Value> {
        let of_kind = |state: &State| state.seen.iter().filter(|(it, _)| it == action).count();
        self.wait_until(|state| of_kind(state) >= count).await;
        self.bodies(action)
    }

    pub async fn wait_until(&self, reached: impl Fn(&State) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let waiting = async {
            while !reached(&self.state()) {
                changed.changed().await.expect("the server lives");
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(
            in_time.is_ok(),
            "it never came to that: {:?}",
            self.state().seen
        );
    }

    pub fn bodies(&self, action: &str) -> Vec<Value> {
        let state = self.state();
        state
            .seen
            .iter()
            .filter(|(seen, _)| seen == action)
            .map(|(_, body)| body.clone())
            .collect()
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.state().log).into_owned()
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    while let Ok((socket, _)) = listener.accept().await {
        let (shared, tls) = (Arc::clone(&shared), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(socket, &shared).await,
                Some(tls) => serve(tls.accept(socket).await.ok()?, &shared).await,
            }
        });
    }
}

/// One connection; nothing when the peer left or the answer is to be lost.
async fn serve<S>(socket: S, shared: &Shared) -> Option<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut socket = BufReader::new(socket);
    loop {
        let request = read_request(&mut socket).await?;
        let authorized = request.headers.get("authorization") == Some(&format!("Bearer {TOKEN}"));
        assert!(authorized, "every request carries the token");
        let (status, headers, body) = answer(&request, shared).await;
        let lost = {
            let mut state = shared.state.lock().expect("no panic inside");
            let left = state.lose.entry(request.action.clone()).or_default();
            let lost = *left > 0;
            *left = left.saturating_sub(1);
            lost
        };
        shared.changed.send_modify(|count| *count += 1);
        if lost {
            return None;
        }
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n\
             {headers}content-length: {}\r\n\r\n",
            body.len()
        );
        socket
            .get_mut()
            .write_all(format!("{head}{body}").as_bytes())
            .await
            .ok()?;
        socket.get_mut().flush().await.ok()?;
    }
}

async fn read_request<S: AsyncRead + Unpin>(socket: &mut BufReader<S>) -> Option<Request> {
    let mut line = String::new();
    socket
        .read_line(&mut line)
        .await
        .ok()
        .filter(|count| *count > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers
        .get("content-length")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    assert!(!path.contains("lease_"), "no lease in a path: {path}");
    let action = path.rsplit('/').next().unwrap_or_default().to_owned();
    Some(Request {
        action,
        headers,
        body,
    })
}

async fn answer(request: &Request, shared: &Shared) -> (u16, String, Value) {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
    {
        let mut state = shared.state.lock().expect("no panic inside");
        state.seen.push((request.action.clone(), body.clone()));
        let planned = state
            .instead
            .get_mut(&request.action)
            .and_then(VecDeque::pop_front);
        if let Some((status, headers, body)) = planned {
            return (status, headers.to_owned(), body);
        }
    }
    shared.changed.send_modify(|count| *count += 1);
    let (status, body) = match request.action.as_str() {
        "lease" => lease(&body, shared).await,
        "heartbeat" => heartbeat(&body, shared).await,
        "the-log" => put_log(request, shared),
        "spec" => {
            assert!(request.headers.contains_key("delta-lease"));
            (
                200,
                shared
                    .state
                    .lock()
                    .expect("no panic inside")
                    .referenced
                    .clone(),
            )
        }
        action => plain(action, &body, shared),
    };
    (status, String::new(), body)
}

async fn lease(body: &Value, shared: &Shared) -> (u16, Value) {
    let wait = Duration::from_secs_f64(body["wait_seconds"].as_f64().unwrap_or(0.0));
    let mut changed = shared.changed.subscribe();
    let granted = tokio::time::timeout(wait, async {
        loop {
            if let Some(granted) = grant(shared) {
                return granted;
            }
            changed.changed().await.expect("the server lives");
        }
    });
    match granted.await {
        Ok(granted) => (200, granted),
        Err(_) => (204, Value::Null),
    }
}

fn grant(shared: &Shared) -> Option<Value> {
    let mut state = shared.state.lock().expect("no panic inside");
    let spec = state.jobs.pop_front()?;
    state.granted += 1;
    let mut granted = json!({
        "type": "LeaseGranted", "job_id": "job_5_1", "run_id": "run_5",
        "lease_id": format!("lease_canary_{}", state.granted),
        "lease_ttl_seconds": state.ttl, "heartbeat_interval_seconds": state.interval,
        "max_runtime_seconds": state.max_runtime, "attempt": 1, "lease_epoch": state.granted,
    });
    match state.spec_hash.clone() {
        None => granted["job_spec"] = spec,
        Some(hash) => {
            let right = crate::lease::sha256(spec.to_string().as_bytes());
            let sha256 = if hash.is_empty() { right } else { hash };
            let uri = "/api/v1/runner/jobs/job_5_1/spec";
            granted["job_spec_ref"] = json!({ "uri": uri, "sha256": sha256 });
            state.referenced = spec;
        }
    }
    Some(granted)
}

async fn heartbeat(body: &Value, shared: &Shared) -> (u16, Value) {
    let wait = Duration::from_secs_f64(body["wait_seconds"].as_f64().unwrap_or(0.0));
    let mut changed = shared.changed.subscribe();
    let news = async {
        loop {
            let news = {
                let state = shared.state.lock().expect("no panic inside");
                state.stale || state.cancel_deadline.is_some()
            };
            if news {
                return;
            }
            changed.changed().await.expect("the server lives");
        }
    };
    let _ = tokio::time::timeout(wait, news).await;
    let state = shared.state.lock().expect("no panic inside");
    let lease_id = &body["lease_id"];
    if state.stale {
        let answer = json!({
            "type": "HeartbeatAck", "lease_id": lease_id, "extend_lease": false, "stale": true,
            "reason": "LEASE_EXPIRED", "cancel_requested": false, "cancel_deadline_seconds": 0,
        });
        return (200, answer);
    }
    let answer = json!({
        "type": "HeartbeatAck", "lease_id": lease_id, "extend_lease": true,
        "new_lease_ttl_seconds": state.ttl, "cancel_requested": state.cancel_deadline.is_some(),
        "cancel_deadline_seconds": state.cancel_deadline.unwrap_or(0.0),
    });
    (200, answer)
}

fn put_log(request: &Request, shared: &Shared) -> (u16, Value) {
    let mut state = shared.state.lock().expect("no panic inside");
    let lease = request
        .headers
        .get("delta-lease")
        .expect("bytes carry their lease");
    assert!(lease.starts_with("lease_canary_"));
    let offset: usize = request.headers["upload-offset"].parse().expect("an offset");
    if offset != state.log.len() {
        let expected = state.log.len();
        let message = "another offset is expected";
        let body = json!({
            "code": "OFFSET_MISMATCH", "message": message, "retryable": true, "expected": expected,
        });
        return (409, body);
    }
    state.log.extend_from_slice(&request.body);
    (200, json!({ "received": state.log.len() }))
}

fn plain(action: &str, body: &Value, shared: &Shared) -> (u16, Value) {
    let state = shared.state.lock().expect("no panic inside");
    let lease_id = &body["lease_id"];
    let answer = match action {
        "ack-lease" => {
            json!({"type": "AckLeaseAck", "accepted": true, "lease_ttl_seconds": state.ttl})
        }
        "complete" => json!({"type": "CompleteAck", "lease_id": lease_id, "accepted": true}),
        "cancel-ack" => json!({"type": "CancelAckAck", "lease_id": lease_id, "accepted": true}),
        "uploads" => json!({
            "type": "UploadCreated", "upload_id": "the-log", "method": "PUT",
            "url": "/api/v1/runner/uploads/the-log", "uri": "delta://logs/1",
            "max_bytes": 1_000_000_000,
        }),
        other => panic!("no such action: {other}"),
    };
    (200, answer)
}
