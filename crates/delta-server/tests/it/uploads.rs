//! Logs and artifacts: fenced by their lease, exact to the byte, honest about what is missing.

use serde_json::{Value, json};

use crate::bench::{Answer, Bench, Lease, job, quick_settings};

const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

async fn upload(bench: &Bench, lease: &Lease, kind: &str, more: Value) -> Answer {
    let mut message = json!({ "type": "CreateUpload", "lease_id": lease.id,
        "runner_id": lease.runner, "name": "out.txt", "kind": kind });
    for (name, value) in more.as_object().unwrap() {
        message[name] = value.clone();
    }
    bench.say("/uploads", message).await
}

async fn put(bench: &Bench, url: &str, lease: &str, offset: u64, bytes: &str) -> Answer {
    let request = bench
        .client
        .put(format!("{}{url}", bench.base))
        .bearer_auth(&bench.runner);
    let request = request
        .header("Delta-Lease", lease)
        .header("Upload-Offset", offset);
    Answer::of(request.body(bytes.to_owned()).send().await.unwrap()).await
}

#[tokio::test]
async fn a_log_is_stored_byte_for_byte_and_shown_as_plain_text() {
    // A27, A49, RP-56
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let created = upload(&bench, &lease, "log", json!({})).await.expect(201);
    let url = created["url"].as_str().unwrap().to_owned();
    assert!(!url.contains(&lease.id), "no token in a URL (A24)");
    assert_eq!(
        put(&bench, &url, &lease.id, 0, "a").await.expect(200)["received"],
        1
    );
    assert_eq!(
        put(&bench, &url, &lease.id, 1, "bc").await.expect(200)["received"],
        3
    );
    assert_eq!(
        put(&bench, &url, &lease.id, 1, "bc").await.expect(200)["received"],
        3
    );
    let gap = put(&bench, &url, &lease.id, 9, "x").await;
    let body = gap.expect(409);
    assert_eq!(
        (&body["code"], &body["expected"]),
        (&json!("OFFSET_MISMATCH"), &json!(3))
    );
    assert_eq!(gap.headers["upload-offset"], "3");
    let differs = put(&bench, &url, &lease.id, 0, "xyz").await.expect(409);
    assert_eq!(differs["code"], "LOG_CONFLICT");
    let path = format!("/api/v1/jobs/{}/log", lease.job);
    let log = bench.get(&path).await;
    assert_eq!((log.status.as_u16(), log.text.as_str()), (200, "abc"));
    assert_eq!(log.headers["x-content-type-options"], "nosniff");
    assert!(
        log.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain")
    );
    assert!(
        log.headers["content-disposition"]
            .to_str()
            .unwrap()
            .starts_with("attachment")
    );
    assert_eq!(bench.get(&format!("{path}?offset=1")).await.text, "bc");
    assert_eq!(bench.get(&format!("{path}?offset=99")).await.text, "");
    let request = bench
        .client
        .get(format!("{}{path}", bench.base))
        .bearer_auth(&bench.user);
    let part = Answer::of(request.header("range", "bytes=0-1").send().await.unwrap()).await;
    assert_eq!((part.status.as_u16(), part.text.as_str()), (206, "ab"));
    assert_eq!(part.headers["content-range"], "bytes 0-1/3");
}

#[tokio::test]
async fn the_view_says_whether_the_log_is_complete() {
    // D8, A22
    let bench = Bench::patient().await;
    for (length, sha256, complete, missing) in [
        (3, ABC.to_owned(), true, json!(null)),
        (5, ABC.to_owned(), false, json!(2)),
        (3, "0".repeat(64), false, json!(null)),
    ] {
        bench.create(json!([job("a")])).await;
        let lease = bench.acked().await;
        let created = upload(&bench, &lease, "log", json!({})).await.expect(201);
        put(
            &bench,
            created["url"].as_str().unwrap(),
            &lease.id,
            0,
            "abc",
        )
        .await
        .expect(200);
        let mut done = lease.complete("SUCCEEDED", 0);
        done["log"] = json!({ "length": length, "sha256": sha256 });
        bench.say("/complete", done).await.expect(200);
        let log = bench.show_job(&lease.job).await["attempts"][0]["log"].clone();
        assert_eq!(log["length"], 3);
        assert_eq!(log["complete"], complete, "{log}");
        assert_eq!(log.get("missing").cloned().unwrap_or_default(), missing);
    }
}

#[tokio::test]
async fn a_forced_cancel_keeps_what_was_uploaded() {
    // SM-52, A42: the runner is gone; what it sent stays readable and is not called complete.
    let bench = Bench::quick().await;
    let (run, job) = bench.create_one().await;
    let lease = bench.acked().await;
    let created = upload(&bench, &lease, "log", json!({})).await.expect(201);
    let url = created["url"].as_str().unwrap();
    put(&bench, url, &lease.id, 0, "half a").await.expect(200);
    let path = format!("/api/v1/runs/{run}/cancel");
    bench.post(&bench.user, &path, "{}").await.expect(200);
    bench
        .until(&format!("/runs/{run}"), "/outcome", "CANCELED")
        .await;
    let log = bench.get(&format!("/api/v1/jobs/{job}/log")).await;
    assert_eq!(log.text, "half a");
    let view = bench.show_job(&job).await["attempts"][0]["log"].clone();
    assert_eq!(
        (&view["length"], &view["complete"]),
        (&json!(6), &json!(false))
    );
}

#[tokio::test]
async fn an_artifact_comes_whole_is_checked_and_shown_with_the_result() {
    // A49
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let wrong = upload(
        &bench,
        &lease,
        "artifact",
        json!({ "sha256": "0".repeat(64) }),
    )
    .await;
    let wrong = wrong.expect(201);
    let refused = put(&bench, wrong["url"].as_str().unwrap(), &lease.id, 0, "abc").await;
    assert_eq!(refused.expect(422)["field"], "sha256");
    let created = upload(
        &bench,
        &lease,
        "artifact",
        json!({ "sha256": ABC, "size": 3 }),
    )
    .await;
    let created = created.expect(201);
    put(
        &bench,
        created["url"].as_str().unwrap(),
        &lease.id,
        0,
        "abc",
    )
    .await
    .expect(200);
    let mut done = lease.complete("SUCCEEDED", 0);
    done["artifacts"] = json!([
        { "type": "report", "uri": created["uri"] },
        { "type": "report", "uri": wrong["uri"] },
        { "type": "link", "uri": "https://elsewhere.example/x" },
    ]);
    bench.say("/complete", done).await.expect(200);
    let artifacts = bench.show_job(&lease.job).await["attempts"][0]["artifacts"].clone();
    assert_eq!(
        artifacts,
        json!([
            { "type": "report", "uri": created["uri"], "external": false, "name": "out.txt",
              "size": 3, "sha256": ABC },
            { "type": "link", "uri": "https://elsewhere.example/x", "external": true },
        ])
    );
}

#[tokio::test]
async fn a_lease_that_is_over_or_foreign_stores_nothing() {
    // LM-13, D4
    let bench = Bench::memory(quick_settings()).await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let created = upload(&bench, &lease, "log", json!({})).await.expect(201);
    let url = created["url"].as_str().unwrap().to_owned();
    put(&bench, &url, &lease.id, 0, "first").await.expect(200);
    bench
        .until(&format!("/jobs/{}", lease.job), "/state", "QUEUED")
        .await;
    let late = put(&bench, &url, &lease.id, 5, "late").await.expect(409);
    assert_eq!(
        (&late["type"], &late["reason"]),
        (&json!("StaleLease"), &json!("LEASE_EXPIRED"))
    );
    let next = Lease::from(&bench.lease_as("r2", 10.0).await.expect(200), "r2");
    bench.say("/ack-lease", next.ack()).await.expect(200);
    let foreign = put(&bench, &url, &next.id, 5, "foreign").await.expect(409);
    assert_eq!(foreign["reason"], "UNKNOWN_LEASE");
    let log = bench.get(&format!("/api/v1/jobs/{}/log", lease.job)).await;
    assert_eq!(log.text, "first", "what the lost lease streamed is kept");
    let created = upload(&bench, &next, "log", json!({})).await.expect(201);
    put(
        &bench,
        created["url"].as_str().unwrap(),
        &next.id,
        0,
        "second",
    )
    .await
    .expect(200);
    let log = bench.get(&format!("/api/v1/jobs/{}/log", lease.job)).await;
    assert_eq!(log.text, "second", "the latest lease with bytes is shown");
}

#[tokio::test]
async fn nothing_is_stored_under_a_strange_name_or_without_a_lease() {
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    for name in ["../x", "/etc/passwd", "a//b", "a\\b"] {
        let answer = upload(&bench, &lease, "artifact", json!({ "name": name })).await;
        assert_eq!(answer.expect(422)["field"], "name", "{name}");
    }
    let created = upload(&bench, &lease, "log", json!({})).await.expect(201);
    let url = created["url"].as_str().unwrap();
    let request = bench
        .client
        .put(format!("{}{url}", bench.base))
        .bearer_auth(&bench.runner);
    let bare = Answer::of(request.body("x").send().await.unwrap()).await;
    assert_eq!(bare.expect(422)["field"], "Delta-Lease");
    put(&bench, "/api/v1/runner/uploads/nothing", &lease.id, 0, "x")
        .await
        .expect(404);
    let big = "x".repeat(5 * 1024 * 1024);
    put(&bench, url, &lease.id, 0, &big).await.expect(413);
}

#[tokio::test]
async fn a_large_spec_goes_by_reference_and_only_to_its_lease() {
    // RP-24
    let bench = Bench::patient().await;
    let step = "x".repeat(40_000);
    let spec = json!({ "name": "big", "steps": [step, step] });
    bench
        .create(json!([{ "name": "big", "job_spec": spec }]))
        .await;
    let lease = bench.lease().await;
    assert!(lease.granted.get("job_spec").is_none());
    let uri = lease.granted["job_spec_ref"]["uri"].as_str().unwrap();
    let fetch = |token: String| {
        let request = bench
            .client
            .get(format!("{}{uri}", bench.base))
            .bearer_auth(&bench.runner);
        async move { Answer::of(request.header("Delta-Lease", token).send().await.unwrap()).await }
    };
    assert_eq!(fetch(lease.id.clone()).await.expect(200), spec);
    let refused = fetch("lease_abc".into()).await.expect(409);
    assert_eq!(refused["reason"], "UNKNOWN_LEASE");
}
