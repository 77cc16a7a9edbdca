//! A whole server on a store that a test disturbs: a writer that panics, look-ups that hang, a
//! database that is away.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use delta_store::memory::MemoryStore;
use serde_json::{Value, json};

use crate::writer::test_store::{DRIVER_WORDS, Levers, TestReader, TestStore};
use crate::*;

/// Long enough for a loaded machine; nothing waits this long when all is well.
const PATIENCE: Duration = Duration::from_secs(20);

struct Desk {
    server: Server,
    levers: Arc<Levers>,
    client: reqwest::Client,
    base: String,
    user: String,
    runner: String,
    _data: tempfile::TempDir,
}

async fn desk(settings: Settings) -> Desk {
    let data = tempfile::tempdir().unwrap();
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        settings,
        ..Config::recommended(data.path().to_owned())
    };
    let levers = Arc::<Levers>::default();
    let shared = levers.clone();
    let open = move |_: &Config| {
        let inner = MemoryStore::new();
        let reader = TestReader {
            inner: inner.reader(),
            levers: shared.clone(),
        };
        let sides = StoreSides {
            reader: Arc::new(reader),
            tables: Arc::new(inner.side_tables()),
        };
        let store = TestStore {
            inner,
            levers: shared,
        };
        Ok((Box::new(store) as Box<dyn Store>, sides))
    };
    let server = start_on(config, Box::new(open)).await.unwrap();
    Desk {
        user: server.create_token(Role::User, "u").await.unwrap(),
        runner: server.create_token(Role::Runner, "r").await.unwrap(),
        base: format!("http://{}", server.addr().unwrap()),
        client: reqwest::Client::new(),
        server,
        levers,
        _data: data,
    }
}

impl Desk {
    async fn post(&self, path: &str, token: &str, body: Value) -> reqwest::Response {
        let request = self.client.post(format!("{}{path}", self.base));
        let request = request.bearer_auth(token).body(body.to_string());
        request.send().await.unwrap()
    }

    async fn create(&self) -> u16 {
        let run = json!({ "jobs": [{ "name": "a", "job_spec": { "steps": ["true"] } }] });
        self.post("/api/v1/runs", &self.user, run)
            .await
            .status()
            .as_u16()
    }

    async fn say(&self, path: &str, body: Value) -> reqwest::Response {
        self.post(&format!("/api/v1/runner{path}"), &self.runner, body)
            .await
    }

    async fn get(&self, path: &str) -> reqwest::Response {
        let request = self.client.get(format!("{}{path}", self.base));
        request.send().await.unwrap()
    }
}

fn ask(wait: u32) -> Value {
    json!({ "type": "Lease", "runner_id": "r", "capabilities": ["linux"], "wait_seconds": wait })
}

#[tokio::test]
async fn a_server_whose_writer_panicked_answers_everybody_and_says_so() {
    let desk = desk(Settings::recommended()).await;
    desk.levers.panics.store(true, Relaxed);
    let all = async {
        let (parked, created) = tokio::join!(desk.say("/lease", ask(30)), desk.create());
        assert_eq!((parked.status().as_u16(), created), (503, 503));
        assert_eq!(desk.create().await, 503);
        desk.server.broken().await;
        assert_eq!(desk.get("/healthz").await.status().as_u16(), 503);
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("an answer");
    desk.server.shutdown().await;
}

#[tokio::test]
async fn a_heartbeat_counts_from_its_last_byte_however_long_its_sender_is_looked_up() {
    // A23, A38: swept many times meanwhile.
    let settings = Settings {
        lease_ttl: Span(500),
        heartbeat_interval: Span(200),
        sweep: Span(20),
        ..Settings::recommended()
    };
    let desk = desk(settings).await;
    assert_eq!(desk.create().await, 201);
    let granted: Value = desk.say("/lease", ask(10)).await.json().await.unwrap();
    let message = |kind: &str| {
        json!({ "type": kind, "lease_id": granted["lease_id"], "runner_id": "r",
            "job_id": granted["job_id"], "accepted_at": "2026-01-04T08:00:00Z" })
    };
    let acked = desk.say("/ack-lease", message("AckLease")).await;
    assert_eq!(acked.status().as_u16(), 200);
    let sent = desk.server.writer.now();
    desk.server.app.identity.forget();
    desk.levers.lookups_hang.store(true, Relaxed);
    let (beat, ()) = tokio::join!(desk.say("/heartbeat", message("Heartbeat")), async {
        let over = sent + Span(700);
        let writer = &desk.server.writer;
        delta_testkit::wait::eventually_async(PATIENCE, "the lease is over", async || {
            let now = writer.now();
            if now > over { Ok(()) } else { Err(now) }
        })
        .await;
        desk.levers.lookups_hang.store(false, Relaxed);
    });
    let beat: Value = beat.json().await.unwrap();
    assert_eq!(beat["extend_lease"], true, "{beat}");
}

#[tokio::test]
async fn what_the_database_says_is_not_for_strangers() {
    let desk = desk(Settings::recommended()).await;
    desk.server.app.identity.forget();
    desk.levers.away.store(true, Relaxed);
    let ready = desk.get("/readyz").await;
    let beat = desk.say("/lease", ask(0)).await;
    for answer in [ready, beat] {
        assert_eq!(answer.status().as_u16(), 503);
        assert_eq!(answer.headers()["retry-after"], "1");
        let text = answer.text().await.unwrap();
        assert!(!text.contains(DRIVER_WORDS), "{text}");
        assert!(text.contains("the store does not answer"), "{text}");
    }
}

#[tokio::test]
async fn nothing_is_read_of_a_caller_without_a_token() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let desk = desk(Settings::recommended()).await;
    let mut stream = tokio::net::TcpStream::connect(desk.server.addr().unwrap())
        .await
        .unwrap();
    // It says how long its message is, and never sends it.
    let head = "POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer));
    read.await.expect("an answer without the body").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
}
