//! A server whose writer panics: nobody hangs, and whoever runs it is told.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use delta_store::memory::MemoryStore;
use serde_json::json;

use crate::writer::test_store::TestStore;
use crate::*;

/// Long enough for a loaded machine; nothing waits this long when all is well.
const PATIENCE: Duration = Duration::from_secs(20);

fn panicking(_: &Config) -> Result<Opened, StoreError> {
    let store = TestStore {
        inner: MemoryStore::new(),
        levers: Arc::default(),
    };
    store.levers.panics.store(true, Ordering::Relaxed);
    let reader = store.inner.reader();
    Ok((Box::new(store), Arc::new(reader)))
}

#[tokio::test]
async fn a_server_whose_writer_panicked_answers_everybody_and_says_so() {
    let data = tempfile::tempdir().unwrap();
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..Config::recommended(data.path().to_owned())
    };
    let server = start_on(config, panicking).await.unwrap();
    let (user, runner) = tokio::join!(
        server.create_token(Role::User, "u"),
        server.create_token(Role::Runner, "r")
    );
    let base = format!("http://{}", server.addr().unwrap());
    let client = reqwest::Client::new();
    let post = |path: &str, token: &str, body: serde_json::Value| {
        let request = client.post(format!("{base}{path}")).bearer_auth(token);
        request.body(body.to_string()).send()
    };
    let parked = json!({ "type": "Lease", "runner_id": "r", "capabilities": ["gpu"],
        "wait_seconds": 30 });
    let run = json!({ "jobs": [{ "name": "a", "job_spec": { "steps": ["true"] } }] });
    let (runner, user) = (runner.unwrap(), user.unwrap());
    let all = async {
        let (parked, created) = tokio::join!(
            post("/api/v1/runner/lease", &runner, parked),
            post("/api/v1/runs", &user, run.clone())
        );
        let later = post("/api/v1/runs", &user, run.clone()).await;
        for answer in [parked, created, later] {
            assert_eq!(answer.unwrap().status().as_u16(), 503);
        }
        server.broken().await;
        let health = client.get(format!("{base}/healthz")).send().await;
        assert_eq!(health.unwrap().status().as_u16(), 503);
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("an answer");
    server.shutdown().await;
}
