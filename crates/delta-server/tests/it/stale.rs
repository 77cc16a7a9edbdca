//! Leases that are over: every message on them is answered, and changes nothing.

use serde_json::{Value, json};

use crate::bench::{Bench, Lease, quick_settings};

/// Every message of a holder but the heartbeat, with its path.
fn messages(lease: &Lease) -> Vec<(&'static str, Value)> {
    vec![
        ("/ack-lease", lease.ack()),
        ("/complete", lease.complete("SUCCEEDED", 0)),
        ("/cancel-ack", lease.cancel_ack()),
        (
            "/uploads",
            json!({ "type": "CreateUpload", "lease_id": lease.id,
            "runner_id": lease.runner, "name": "log", "kind": "log" }),
        ),
    ]
}

async fn all_are_stale(bench: &Bench, lease: &Lease, reason: &str) {
    for (path, message) in messages(lease) {
        let answer = bench.say(path, message).await.expect(409);
        assert_eq!(answer["type"], "StaleLease", "{path} {answer}");
        assert_eq!(answer["reason"], reason, "{path}");
    }
    let beat = bench.say("/heartbeat", lease.beat()).await.expect(200);
    let expected = json!({ "type": "HeartbeatAck", "lease_id": lease.id, "extend_lease": false,
        "cancel_requested": false, "cancel_deadline_seconds": 0, "stale": true,
        "reason": reason });
    assert_eq!(beat, expected);
}

#[tokio::test]
async fn an_expired_lease_is_stale_for_every_message() {
    // RP-19, RP-20, RP-31, RP-44, A37, LM-13
    let settings = delta_core::Settings {
        // The first expiry is judged by the messages themselves, not by a sweep.
        sweep: delta_core::Span::hours(1),
        ..quick_settings()
    };
    let bench = Bench::memory(settings).await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let beat = async || {
        let answer = bench.say("/cancel-ack", lease.cancel_ack()).await;
        if answer.json()["type"] == "StaleLease" {
            Ok(())
        } else {
            Err(answer.text)
        }
    };
    delta_testkit::wait::eventually_async(crate::bench::PATIENCE, "expiry", beat).await;
    all_are_stale(&bench, &lease, "LEASE_EXPIRED").await;
}

#[tokio::test]
async fn a_lost_lease_is_superseded_by_the_next_one() {
    // RP-5, RP-42, RP-57, A6, SM-30
    let bench = Bench::quick().await;
    let (run, job) = bench.create_one().await;
    let lost = bench.acked().await;
    bench
        .until(&format!("/jobs/{job}"), "/state", "QUEUED")
        .await;
    all_are_stale(&bench, &lost, "LEASE_EXPIRED").await;
    let next = Lease::from(&bench.lease_as("r2", 10.0).await.expect(200), "r2");
    assert_eq!(next.granted["attempt"], 1, "the same attempt, a new lease");
    assert_eq!(next.epoch, lost.epoch + 1);
    all_are_stale(&bench, &lost, "LEASE_SUPERSEDED").await;
    bench.say("/ack-lease", next.ack()).await.expect(200);
    bench
        .say("/complete", next.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    assert_eq!(bench.show(&run).await["outcome"], "SUCCESS");
    let view = bench.show_job(&job).await;
    assert_eq!(view["attempts"][0]["losses"], 1);
    assert_eq!(view["attempts"][0]["leases"][0]["stale"], true);
}

#[tokio::test]
async fn an_unacknowledged_lease_is_revoked_after_the_ack_timeout() {
    // RP-27, A5
    let bench = Bench::quick().await;
    let (_, job) = bench.create_one().await;
    let lease = bench.lease().await;
    bench
        .until(&format!("/jobs/{job}"), "/state", "QUEUED")
        .await;
    all_are_stale(&bench, &lease, "LEASE_REVOKED").await;
    let view = bench.show_job(&job).await;
    assert_eq!(view["attempts"][0]["leases"][0]["reason"], "ACK_TIMEOUT");
    assert_eq!(view["attempts"][0]["dispatches"], 1);
}

#[tokio::test]
async fn heartbeats_keep_a_lease_alive_well_past_its_ttl() {
    // RP-3, RP-30: each answer says how long; half as much again as the ttl passes.
    let bench = Bench::quick().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let started = std::time::Instant::now();
    while started.elapsed().as_millis() < 4_500 {
        // The answer is held until the wait is over: a pace without a sleep of ours.
        let mut beat = lease.beat();
        beat["wait_seconds"] = json!(0.1);
        let answer = bench.say("/heartbeat", beat).await.expect(200);
        assert_eq!(answer["extend_lease"], true, "{answer}");
    }
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
}

#[tokio::test]
async fn a_finished_lease_answers_a_repeat_alike_and_everything_else_as_final() {
    // A18, RP-41, I16
    let bench = Bench::patient().await;
    let (run, _) = bench.create_one().await;
    let lease = bench.acked().await;
    let first = bench.say("/complete", lease.complete("FAILED", 1)).await;
    first.expect(200);
    let before = bench.show(&run).await;
    let again = bench.say("/complete", lease.complete("FAILED", 1)).await;
    assert_eq!(again.expect(200), first.json());
    let mut reordered = lease.complete("FAILED", 1);
    reordered["seq"] = json!(9);
    reordered["unknown"] = json!([1, 2]);
    bench.say("/complete", reordered).await.expect(200);
    for other in [
        lease.complete("SUCCEEDED", 0),
        lease.complete("FAILED", 2),
        lease.cancel_ack(),
    ] {
        let path = if other["type"] == "CancelAck" {
            "/cancel-ack"
        } else {
            "/complete"
        };
        let answer = bench.say(path, other).await.expect(409);
        assert_eq!(answer["type"], "StaleLease");
        assert_eq!(answer["reason"], "ALREADY_FINAL");
    }
    assert_eq!(bench.show(&run).await, before, "nothing changed");
}

#[tokio::test]
async fn unknown_foreign_and_invented_leases_are_all_answered_alike() {
    // RP-20, RP-53, A25, T32
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    let before = bench.show_job(&job).await;
    let mut forged = lease.clone();
    let last = if forged.id.ends_with('A') { "B" } else { "A" };
    forged.id.replace_range(forged.id.len() - 1.., last);
    let mut invented = lease.clone();
    invented.id = "lease_abc".into();
    for wrong in [&forged, &invented] {
        all_are_stale(&bench, wrong, "UNKNOWN_LEASE").await;
    }
    let server = bench.server.as_ref().unwrap();
    let other = server
        .create_token(delta_server::Role::Runner, "other")
        .await
        .unwrap();
    for (path, message) in messages(&lease) {
        let path = format!("/api/v1/runner{path}");
        let answer = bench.post(&other, &path, message).await.expect(409);
        assert_eq!(answer["reason"], "UNKNOWN_LEASE", "{path}");
    }
    assert_eq!(bench.show_job(&job).await, before, "nothing changed");
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
}

#[tokio::test]
async fn nothing_is_completed_before_it_is_acknowledged() {
    // RP-26, A3, A4
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    let lease = bench.lease().await;
    let refused = bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(409);
    assert_eq!(refused["type"], "CompleteAck");
    assert_eq!(
        (&refused["accepted"], &refused["reason"]),
        (&json!(false), &json!("NOT_ACKED"))
    );
    let beat = bench.say("/heartbeat", lease.beat()).await.expect(200);
    assert_eq!(
        (&beat["stale"], &beat["reason"]),
        (&json!(false), &json!("NOT_ACKED"))
    );
    let refused = bench
        .say("/cancel-ack", lease.cancel_ack())
        .await
        .expect(409);
    assert_eq!(refused["reason"], "NOT_ACKED");
    assert_eq!(bench.show_job(&job).await["state"], "LEASED");
    bench.say("/ack-lease", lease.ack()).await.expect(200);
    bench.say("/ack-lease", lease.ack()).await.expect(200);
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
}
