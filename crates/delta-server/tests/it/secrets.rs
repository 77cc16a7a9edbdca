//! Secrets over the API: set and listed by administrators, fetched by the holder of a lease.

use serde_json::{Value, json};

use crate::audit::{keep_log, said};
use crate::bench::{Answer, Bench, Lease, quick_settings};

const VALUE: &str = "canary-4f1c";

async fn set(bench: &Bench, secret: Value) -> Answer {
    bench.post(&bench.admin, "/api/v1/secrets", secret).await
}

async fn fetch_as(bench: &Bench, runner: &str, lease: &str, names: Value) -> Answer {
    let request = bench
        .client
        .post(format!("{}/api/v1/runner/secrets", bench.base))
        .bearer_auth(runner)
        .header("Delta-Lease", lease);
    let body = json!({ "names": names }).to_string();
    Answer::of(request.body(body).send().await.unwrap()).await
}

async fn fetch(bench: &Bench, lease: &Lease, names: Value) -> Answer {
    fetch_as(bench, &bench.runner, &lease.id, names).await
}

/// A run of one job with these secrets.
async fn create(bench: &Bench, trust: &str, spec: Value) {
    let run = json!({ "repository": "https://forge.test/a", "trust": trust,
        "jobs": [{ "name": "a", "max_attempts": 2, "job_spec": spec }] });
    bench.ask("/runs", run).await.expect(201);
}

fn spec() -> Value {
    json!({ "steps": ["true"], "secrets": ["TOKEN", "OTHER"], "environment": "production" })
}

#[tokio::test]
async fn administrators_set_list_and_remove_secrets_and_nobody_sees_a_value() {
    // EP-18, A51
    let log = keep_log();
    let bench = Bench::patient().await;
    let secret = json!({ "name": "TOKEN", "value": VALUE, "repository": "https://forge.test/a" });
    let refused = bench.post(&bench.user, "/api/v1/secrets", &secret).await;
    refused.expect(403);
    let made = set(&bench, secret.clone()).await;
    let view = made.expect(200);
    assert_eq!(view["repository"], "https://forge.test/a");
    assert_eq!(view["kind"], "plain");
    let again = set(&bench, secret).await.expect(200);
    assert_eq!(again["created_at"], view["created_at"]);
    let short = set(&bench, json!({ "name": "TOKEN", "value": "12345" })).await;
    assert_eq!(short.expect(422)["field"], "value");
    bench.get("/api/v1/secrets").await.expect(403);
    let listed = bench.get_as(&bench.admin, "/api/v1/secrets").await;
    assert_eq!(listed.expect(200).as_array().unwrap().len(), 1);
    for answer in [&made, &listed] {
        assert!(!answer.text.contains(VALUE), "{}", answer.text);
    }
    let delete = async |query: &str| {
        let url = format!("{}/api/v1/secrets/TOKEN{query}", bench.base);
        let request = bench.client.delete(url).bearer_auth(&bench.admin);
        Answer::of(request.send().await.unwrap())
            .await
            .status
            .as_u16()
    };
    assert_eq!(delete("").await, 404, "there is none for all repositories");
    let place = "?repository=https%3A%2F%2Fforge.test%2Fa";
    assert_eq!(delete(place).await, 204);
    assert_eq!(delete(place).await, 404);
    said(&[
        "action=\"secret.set\"",
        "TOKEN repository=https://forge.test/a",
    ])
    .await;
    assert!(!log().contains(VALUE));
}

#[tokio::test]
async fn the_holder_of_a_lease_fetches_what_its_policy_names() {
    // EP-18, A51, D4
    let log = keep_log();
    let bench = Bench::patient().await;
    for (environment, value) in [(None, "for all of them"), (Some("production"), VALUE)] {
        let secret = json!({ "name": "TOKEN", "value": value, "environment": environment });
        set(&bench, secret).await.expect(200);
    }
    set(&bench, json!({ "name": "THIRD", "value": "not named" })).await;
    create(&bench, "trusted", spec()).await;
    let lease = bench.lease().await;
    let early = fetch(&bench, &lease, json!(["TOKEN"])).await.expect(409);
    assert_eq!(early["code"], "CONFLICT", "not acknowledged yet");
    bench.say("/ack-lease", lease.ack()).await.expect(200);
    let fetched = fetch(&bench, &lease, json!(["TOKEN"])).await;
    let expected = json!({ "secrets": [{ "name": "TOKEN", "kind": "plain", "value": VALUE }] });
    assert_eq!(fetched.expect(200), expected);
    assert_eq!(fetched.headers["cache-control"], "no-store");
    let stranger = fetch(&bench, &lease, json!(["TOKEN", "THIRD"])).await;
    assert!(!stranger.text.contains(VALUE));
    let message = stranger.expect(403)["message"].to_string();
    assert!(
        message.contains("does not name the secret THIRD"),
        "{message}"
    );
    let missing = fetch(&bench, &lease, json!(["TOKEN", "OTHER"]))
        .await
        .expect(404);
    assert!(
        missing["message"]
            .to_string()
            .contains("secret OTHER is not set")
    );
    said(&["action=\"secret.read\"", "names=\"TOKEN\""]).await;
    said(&["action=\"secret.refused\"", "THIRD"]).await;
    said(&["action=\"secret.missing\"", "OTHER"]).await;
    assert!(!log().contains(VALUE));
    let events = bench
        .get(&format!("/api/v1/runs/{}/events", lease.run))
        .await;
    assert!(!events.text.contains(VALUE));
}

#[tokio::test]
async fn an_untrusted_run_gets_nothing_though_it_asks() {
    // T5
    let bench = Bench::patient().await;
    set(&bench, json!({ "name": "TOKEN", "value": VALUE }))
        .await
        .expect(200);
    create(&bench, "untrusted", spec()).await;
    let lease = bench.acked().await;
    let refused = fetch(&bench, &lease, json!(["TOKEN"])).await;
    let message = refused.expect(403)["message"].to_string();
    assert!(
        message.contains("untrusted run gets no secrets"),
        "{message}"
    );
}

#[tokio::test]
async fn a_lease_that_is_over_or_anothers_gets_nothing() {
    // LM-13, A26, T3
    let bench = Bench::memory(quick_settings()).await;
    set(&bench, json!({ "name": "TOKEN", "value": VALUE }))
        .await
        .expect(200);
    create(&bench, "trusted", spec()).await;
    let lease = bench.acked().await;
    let server = bench.server.as_ref().unwrap();
    let other = server
        .create_token(delta_server::Role::Runner, "other")
        .await;
    let other = fetch_as(&bench, &other.unwrap(), &lease.id, json!(["TOKEN"])).await;
    assert_eq!(other.expect(409)["reason"], "UNKNOWN_LEASE");
    let role = fetch_as(&bench, &bench.user, &lease.id, json!(["TOKEN"])).await;
    role.expect(403);
    // Left alone, the lease runs out, and the job goes to somebody else.
    let second = bench.lease_as("r2", 10.0).await.expect(200);
    let second = Lease::from(&second, "r2");
    bench.say("/ack-lease", second.ack()).await.expect(200);
    let late = fetch(&bench, &lease, json!(["TOKEN"])).await;
    assert!(!late.text.contains(VALUE));
    assert_eq!(late.expect(409)["type"], "StaleLease");
    fetch(&bench, &second, json!(["TOKEN"])).await.expect(200);
}

/// Every file below a folder, with its bytes.
fn files_below(folder: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                open.push(path);
            } else if entry.file_type().unwrap().is_file() {
                let bytes = std::fs::read(&path).unwrap();
                files.push((path, bytes));
            }
        }
    }
    files
}

#[tokio::test]
async fn the_store_holds_no_value_and_a_rotation_changes_the_key() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().to_owned();
    let config = delta_server::Config {
        store: delta_server::StoreChoice::Sqlite,
        ..crate::bench::config(&data, crate::bench::patient_settings())
    };
    let mut bench = Bench::start(data, config.clone()).await;
    let first = set(&bench, json!({ "name": "TOKEN", "value": VALUE }))
        .await
        .expect(200);
    bench.stop().await;
    let files = files_below(&path);
    let holding = |word: &str| {
        let has = |bytes: &[u8]| bytes.windows(word.len()).any(|it| it == word.as_bytes());
        let found = files.iter().filter(|(_, bytes)| has(bytes));
        found.map(|(path, _)| path.clone()).collect::<Vec<_>>()
    };
    assert!(holding(VALUE).is_empty(), "{:?}", holding(VALUE));
    // What is in the store is seen by whoever looks so.
    assert!(!holding("TOKEN").is_empty(), "{files:?}");
    let old = std::fs::read_to_string(path.join("secret.key")).unwrap();
    let text = format!("{}\n{old}", "ab".repeat(32));
    let rotated = delta_server::Config {
        secret_keys: delta_server::KeySource::Text(delta_server::KeyText::new(text)),
        ..config
    };
    let kept = tempfile::tempdir().unwrap();
    let bench = Bench::start(kept, rotated).await;
    let done = bench.post(&bench.admin, "/api/v1/secrets/rotate", "").await;
    assert_eq!(done.expect(200)["rotated"], 1);
    let listed = bench
        .get_as(&bench.admin, "/api/v1/secrets")
        .await
        .expect(200);
    assert_ne!(listed[0]["key_id"], first["key_id"]);
    create(&bench, "trusted", spec()).await;
    let lease = bench.acked().await;
    let fetched = fetch(&bench, &lease, json!(["TOKEN"])).await.expect(200);
    assert_eq!(fetched["secrets"][0]["value"], VALUE);
}
