//! Health, metrics, the API's own description, overload, secrets in output.

use std::collections::BTreeSet;

use delta_server::{Config, Limits};
use serde_json::{Value, json};

use crate::bench::{Answer, Bench, config, patient_settings};

#[tokio::test]
async fn the_description_lists_exactly_the_paths_that_exist() {
    let bench = Bench::patient().await;
    let described = bench.get("/api/v1/openapi.json").await.expect(200);
    let paths: BTreeSet<(String, String)> = described["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods
                .map(|method| (method.clone(), path.clone()))
                .collect::<Vec<_>>()
        })
        .collect();
    let expected: BTreeSet<(String, String)> = [
        ("get", "/api/v1/agents"),
        ("get", "/api/v1/agents/{id}"),
        ("delete", "/api/v1/agents/{id}"),
        ("post", "/api/v1/agents/{id}/drain"),
        ("post", "/api/v1/agents/{id}/undrain"),
        ("post", "/api/v1/agents/enroll"),
        ("get", "/api/v1/caches"),
        ("delete", "/api/v1/caches/{id}"),
        ("get", "/api/v1/secrets"),
        ("post", "/api/v1/secrets"),
        ("delete", "/api/v1/secrets/{name}"),
        ("post", "/api/v1/secrets/rotate"),
        ("get", "/api/v1/tests"),
        ("get", "/api/v1/jobs/{id}/tests"),
        ("get", "/api/v1/runs/{id}/tests"),
        ("get", "/api/v1/runs/{id}/artifacts"),
        ("get", "/api/v1/runner/jobs/{id}/caches/{cache}"),
        ("post", "/api/v1/runner/jobs/{id}/caches/find"),
        ("post", "/api/v1/runner/jobs/{id}/caches/{cache}/check"),
        ("put", "/api/v1/runner/jobs/{id}/caches"),
        ("get", "/api/v1/runner/jobs/{id}/inputs"),
        ("get", "/api/v1/runner/jobs/{id}/inputs/{artifact}"),
        ("post", "/api/v1/runner/results"),
        ("post", "/api/v1/runner/secrets"),
        ("get", "/api/v1/dead-letters"),
        ("post", "/api/v1/dead-letters/purge"),
        ("post", "/api/v1/dead-letters/requeue"),
        ("get", "/api/v1/doctor"),
        ("get", "/api/v1/functions"),
        ("post", "/api/v1/functions"),
        ("get", "/api/v1/functions/{id}"),
        ("get", "/api/v1/queues"),
        ("get", "/api/v1/queues/{name}"),
        ("put", "/api/v1/queues/{name}"),
        ("post", "/api/v1/queues/{name}/pause"),
        ("post", "/api/v1/queues/{name}/resume"),
        ("get", "/api/v1/jobs"),
        ("get", "/api/v1/jobs/{id}"),
        ("get", "/api/v1/jobs/{id}/artifacts"),
        ("get", "/api/v1/jobs/{id}/artifacts/{name}"),
        ("post", "/api/v1/jobs/{id}/cancel"),
        ("get", "/api/v1/jobs/{id}/log"),
        ("get", "/api/v1/openapi.json"),
        ("post", "/api/v1/runner/ack-lease"),
        ("post", "/api/v1/runner/cancel-ack"),
        ("post", "/api/v1/runner/complete"),
        ("post", "/api/v1/runner/heartbeat"),
        ("get", "/api/v1/runner/jobs/{id}/spec"),
        ("post", "/api/v1/runner/lease"),
        ("post", "/api/v1/runner/uploads"),
        ("put", "/api/v1/runner/uploads/{id}"),
        ("get", "/api/v1/runs"),
        ("post", "/api/v1/runs"),
        ("get", "/api/v1/runs/{id}"),
        ("post", "/api/v1/runs/{id}/cancel"),
        ("get", "/api/v1/runs/{id}/events"),
        ("post", "/api/v1/runs/{id}/rerun"),
        ("post", "/api/v1/runs/{id}/approve"),
        ("get", "/api/v1/runs/{id}/plan"),
        ("get", "/api/v1/repositories"),
        ("post", "/api/v1/repositories"),
        ("delete", "/api/v1/repositories/{name}"),
        ("post", "/api/v1/repositories/{name}/runs"),
        ("post", "/api/v1/webhooks/{repository}"),
        ("get", "/api/v1/tokens"),
        ("post", "/api/v1/tokens"),
        ("delete", "/api/v1/tokens/{id}"),
        ("get", "/healthz"),
        ("get", "/runs/{id}"),
        ("get", "/metrics"),
        ("get", "/readyz"),
    ]
    .map(|(method, path)| (method.to_owned(), path.to_owned()))
    .into();
    assert_eq!(paths, expected);
    for (method, path) in paths {
        let method = method.to_uppercase().parse().unwrap();
        let url = format!("{}{}", bench.base, path.replace("{id}", "x"));
        let answer = Answer::of(bench.client.request(method, url).send().await.unwrap()).await;
        assert_ne!(answer.status.as_u16(), 405, "{path}");
        let nowhere = answer.status.as_u16() == 404 && answer.text.contains("no such path");
        assert!(!nowhere, "{path} is described and does not exist");
    }
}

#[tokio::test]
async fn every_path_describes_the_refusals_that_come_before_it() {
    let bench = Bench::patient().await;
    let described = bench.get("/api/v1/openapi.json").await.expect(200);
    let statuses = |method: &str, path: &str| {
        let responses = described["paths"][path][method]["responses"].as_object();
        let statuses = responses.unwrap().keys().cloned();
        statuses.collect::<Vec<String>>().join(" ")
    };
    assert_eq!(
        statuses("post", "/api/v1/runs"),
        "201 401 403 409 413 422 429 500 503"
    );
    assert_eq!(
        statuses("get", "/api/v1/runs/{id}"),
        "200 401 403 404 422 500 503"
    );
    assert_eq!(
        statuses("get", "/api/v1/runs/{id}/events"),
        "200 401 403 404 422 429 500 503"
    );
    for path in ["lease", "ack-lease", "heartbeat", "complete", "cancel-ack"] {
        let statuses = statuses("post", &format!("/api/v1/runner/{path}"));
        for status in ["401", "403", "413", "422", "429", "503"] {
            assert!(statuses.contains(status), "{path}: {statuses}");
        }
    }
    assert_eq!(statuses("get", "/healthz"), "200 500 503");
    let list = &described["components"]["schemas"]["RunSummary"]["properties"];
    assert!(
        list["run_id"].is_object() && list["jobs"].is_null(),
        "{list}"
    );
}

#[tokio::test]
async fn overload_refuses_people_with_a_time_to_come_back_and_serves_runners() {
    // D2: a lane of people with no room at all.
    let data = tempfile::tempdir().unwrap();
    let full = Config {
        limits: Limits {
            waiting_requests: 0,
            ..Limits::recommended()
        },
        ..config(&data, patient_settings())
    };
    let bench = Bench::start(data, full).await;
    let body = json!({ "jobs": [crate::bench::job("a")] });
    let refused = bench.ask("/runs", body).await;
    let answer = refused.expect(429);
    assert_eq!(
        (&answer["code"], &answer["retryable"]),
        (&json!("OVERLOADED"), &json!(true))
    );
    assert_eq!(refused.headers["retry-after"], "1");
    bench.lease_as("r1", 0.0).await.expect(204);
    let token = format!("lease_{}", "A".repeat(86));
    let beat = json!({ "type": "Heartbeat", "lease_id": token, "runner_id": "r" });
    assert_eq!(
        bench.say("/heartbeat", beat).await.expect(200)["stale"],
        true
    );
}

#[tokio::test]
async fn metrics_count_and_name_no_secret() {
    // A24, RP-54
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let text = bench.get("/metrics").await.text;
    for line in [
        "delta_leases_granted_total 1",
        "delta_lane_people_depth 0",
        "delta_parked_slots 0",
        "delta_stale_replies_total 0",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    for name in [
        "delta_batch_size_count",
        "delta_commit_seconds_bucket",
        "delta_store_flushes",
        "delta_wal_bytes",
        "delta_refused_total",
        "delta_clock_ahead_of_store_milliseconds",
    ] {
        assert!(text.contains(name), "{name} in {text}");
    }
    for secret in [&lease.id, &bench.user, &bench.runner, &"r1\"".to_owned()] {
        assert!(!text.contains(secret.as_str()));
    }
}

#[tokio::test]
async fn no_answer_to_people_holds_a_lease_token() {
    // A24
    let bench = Bench::patient().await;
    let (run, job) = bench.create_one().await;
    let lease = bench.acked().await;
    for path in [
        format!("/api/v1/runs/{run}"),
        format!("/api/v1/runs/{run}/events"),
        format!("/api/v1/jobs/{job}"),
        "/api/v1/runs".into(),
    ] {
        let text = bench.get(&path).await.text;
        assert!(!text.contains(&lease.id), "{path}");
    }
    let view: Value = bench.show_job(&job).await;
    assert_eq!(view["attempts"][0]["leases"][0]["number"], 1);
    assert_eq!(view["attempts"][0]["leases"][0]["epoch"], lease.epoch);
}

// Where statuses link to: a person with a browser and no credential.
#[tokio::test]
async fn whoever_clicks_on_a_status_reads_what_to_type() {
    let bench = Bench::patient().await;
    let run = format!("run_{}", "0".repeat(32));
    let url = |path: &str| format!("{}{path}", bench.base);
    let answer = reqwest::get(url(&format!("/runs/{run}"))).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(
        answer.headers()["content-type"],
        "text/plain; charset=utf-8"
    );
    let text = answer.text().await.unwrap();
    assert!(text.contains(&format!("delta-ci show {run}\n")), "{text}");
    let odd = reqwest::get(url("/runs/%3Cscript%3E")).await.unwrap();
    assert_eq!(odd.status(), 404);
    assert!(!odd.text().await.unwrap().contains("script"));
}
