//! Bad input: a clear answer each, no state change, no panic.

use serde_json::{Value, json};

use crate::bench::{Bench, Lease, job};

/// Messages with one field that is wrong, under the path they go to.
fn wrong_messages(lease: &Lease) -> Vec<(&'static str, &'static str, Value)> {
    let ask = json!({ "type": "Lease", "runner_id": "r", "capabilities": [] });
    let (ack, beat, done) = (lease.ack(), lease.beat(), lease.complete("SUCCEEDED", 0));
    let with = |message: &Value, field: &'static str, value: Value| {
        let mut message = message.clone();
        message[field] = value;
        (field, message)
    };
    let cases = [
        ("/lease", with(&ask, "capabilities", json!(null))),
        ("/lease", with(&ask, "runner_id", json!(7))),
        ("/lease", with(&ask, "type", json!("Heartbeat"))),
        ("/lease", with(&ask, "wait_seconds", json!(31))),
        ("/ack-lease", with(&ack, "job_id", json!("job_x"))),
        ("/ack-lease", with(&ack, "runner_id", json!("other"))),
        ("/heartbeat", with(&beat, "lease_id", json!(null))),
        ("/heartbeat", with(&beat, "progress", json!([1]))),
        ("/complete", with(&done, "status", json!("CANCELED"))),
        ("/complete", with(&done, "exit_code", json!(null))),
        ("/complete", with(&done, "exit_code", json!("0"))),
        ("/complete", with(&done, "runner_id", json!("r9"))),
        ("/complete", with(&done, "artifacts", json!({}))),
    ];
    let flat = |(path, (field, message))| (path, field, message);
    cases.into_iter().map(flat).collect()
}

#[tokio::test]
async fn a_wrong_message_is_answered_with_the_field_that_is_wrong() {
    // RP-1, RP-4, RP-10, RP-25, A36
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    let before = bench.show_job(&job).await;
    for (path, field, message) in wrong_messages(&lease) {
        let answer = bench.say(path, message.clone()).await.expect(422);
        assert_eq!(answer["code"], "INVALID", "{message}");
        assert_eq!(answer["field"], field, "{answer}");
        assert_eq!(answer["retryable"], false);
    }
    for body in [
        "",
        "{",
        "[]",
        "null",
        "{\"type\":",
        "\u{0}",
        "{\"type\":\"Lease\"}x",
    ] {
        let path = "/api/v1/runner/lease";
        bench.post(&bench.runner, path, body).await.expect(422);
    }
    assert_eq!(bench.show_job(&job).await, before, "nothing changed");
}

#[tokio::test]
async fn an_acknowledgement_for_another_job_is_refused() {
    // RP-25
    let bench = Bench::patient().await;
    let view = bench.create(json!([job("a"), job("b")])).await;
    let lease = bench.lease().await;
    let jobs = view["jobs"].as_array().unwrap();
    let other = jobs
        .iter()
        .find(|job| job["job_id"] != lease.job.as_str())
        .unwrap();
    let mut ack = lease.ack();
    ack["job_id"] = other["job_id"].clone();
    assert_eq!(
        bench.say("/ack-lease", ack).await.expect(422)["field"],
        "job_id"
    );
    bench.say("/ack-lease", lease.ack()).await.expect(200);
}

#[tokio::test]
async fn ten_megabytes_are_too_large_everywhere() {
    // D15
    let bench = Bench::patient().await;
    let big = "x".repeat(10 * 1024 * 1024);
    for path in [
        "lease",
        "ack-lease",
        "heartbeat",
        "complete",
        "cancel-ack",
        "uploads",
    ] {
        let path = format!("/api/v1/runner/{path}");
        let answer = bench.post(&bench.runner, &path, &big).await.expect(413);
        assert_eq!(answer["code"], "TOO_LARGE", "{path}");
    }
    bench
        .post(&bench.user, "/api/v1/runs", &big)
        .await
        .expect(413);
    let nearly =
        json!({ "jobs": [{ "name": "a", "job_spec": { "steps": ["x".repeat(2_000_000)] } }] });
    bench.ask("/runs", nearly).await.expect(422);
}

#[tokio::test]
async fn unknown_fields_are_ignored_from_runners_and_counted() {
    // A71
    let bench = Bench::patient().await;
    bench.create_one().await;
    let message = json!({ "type": "Lease", "runner_id": "r1", "capabilities": ["linux"],
        "wait_seconds": 0, "shoe_size": 43, "nested": { "a": 1 } });
    bench.say("/lease", message).await.expect(200);
    let metrics = bench.get("/metrics").await.text;
    assert!(
        metrics.contains("delta_unknown_fields_total 2"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_request_for_a_run_lists_everything_that_is_wrong_with_it() {
    // A65, A71
    let bench = Bench::patient().await;
    let body = json!({ "jobbs": [], "jobs": [
        { "name": "a", "neds": [], "job_spec": { "steps": [] } },
        { "name": "a", "needs": ["zz"], "max_attempts": 0, "requires": ["!"],
          "job_spec": { "steps": ["x"] } },
    ] });
    let answer = bench.ask("/runs", body).await.expect(422);
    let message = answer["message"].as_str().unwrap();
    for part in [
        "jobbs",
        "jobs[0].neds",
        "did you mean `needs`",
        "jobs[1].max_attempts",
        "jobs[1].requires[0]",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
    let cycle = json!({ "jobs": [
        { "name": "a", "needs": ["b"], "job_spec": { "steps": ["x"] } },
        { "name": "b", "needs": ["a"], "job_spec": { "steps": ["x"] } },
    ] });
    let answer = bench.ask("/runs", cycle).await.expect(422);
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .contains("wait for each other")
    );
    assert_eq!(
        bench.get("/api/v1/runs").await.expect(200)["runs"],
        json!([])
    );
}

#[tokio::test]
async fn back_dated_and_absurd_times_of_a_runner_decide_nothing() {
    // A23: the heartbeats of every test say 1999; here are worse ones.
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    for ts in [
        json!("1970-01-01T00:00:00Z"),
        json!("9999-12-31T23:59:59Z"),
        json!("yesterday"),
    ] {
        let mut beat = lease.beat();
        beat["ts"] = ts;
        let answer = bench.say("/heartbeat", beat).await.expect(200);
        assert_eq!(answer["extend_lease"], true);
        assert_eq!(answer["new_lease_ttl_seconds"], 120);
    }
    let mut complete = lease.complete("SUCCEEDED", 0);
    complete["timings"] = json!({ "started_at": "2030-01-01T00:00:00Z", "finished_at": "x" });
    bench.say("/complete", complete).await.expect(200);
}

#[tokio::test]
async fn a_replayed_heartbeat_renews_nothing() {
    // A19, A20
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let beat = |seq: u64, percent: f64| {
        let mut beat = lease.beat();
        beat["seq"] = json!(seq);
        beat["progress"] = json!({ "percent": percent });
        beat
    };
    bench.say("/heartbeat", beat(5, 50.0)).await.expect(200);
    bench.say("/heartbeat", beat(4, 10.0)).await.expect(200);
    let view = bench.show_job(&lease.job).await;
    assert_eq!(view["attempts"][0]["progress"]["percent"], 50.0);
    bench.say("/heartbeat", beat(6, 1000.0)).await.expect(200);
    let view = bench.show_job(&lease.job).await;
    assert_eq!(
        view["attempts"][0]["progress"]["percent"], 100.0,
        "A21: clamped"
    );
}

#[tokio::test]
async fn success_with_a_failing_exit_code_is_a_failure() {
    // A58
    let bench = Bench::patient().await;
    let (run, job) = bench.create_one().await;
    let lease = bench.acked().await;
    bench
        .say("/complete", lease.complete("SUCCEEDED", 3))
        .await
        .expect(200);
    let view = bench.show_job(&job).await;
    assert_eq!(
        (&view["state"], &view["cause"]),
        (&json!("FAILED"), &json!("inconsistent"))
    );
    assert_eq!(bench.show(&run).await["outcome"], "FAILED");
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let bench = Bench::patient().await;
    let nobody = format!("run_{}", "0".repeat(32));
    for path in [
        "/api/v1/nothing",
        "/api/v1/runs/x",
        "/api/v1/jobs/x",
        "/api/v1/runs/..%2f..%2fetc",
        &format!("/api/v1/runs/{nobody}"),
        &format!("/api/v1/runs/{nobody}/events"),
        &format!("/api/v1/jobs/job_{}_1", "0".repeat(32)),
        &format!("/api/v1/jobs/job_{}_1/log", "0".repeat(32)),
    ] {
        assert_eq!(
            bench.get(path).await.expect(404)["code"],
            "NOT_FOUND",
            "{path}"
        );
    }
    let cancel = bench
        .ask(&format!("/runs/{nobody}/cancel"), json!({}))
        .await;
    assert_eq!(cancel.expect(404)["code"], "NOT_FOUND");
    let wrong = bench.get("/api/v1/runner/lease").await.expect(405);
    assert_eq!(wrong["code"], "METHOD_NOT_ALLOWED");
}
