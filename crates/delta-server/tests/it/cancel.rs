//! Two-phase cancel: asked for, heard, answered; or forced.

use serde_json::{Value, json};

use crate::bench::{Bench, job, text};

async fn cancel(bench: &Bench, run: &str) -> Value {
    bench
        .ask(
            &format!("/runs/{run}/cancel"),
            json!({ "reason": "enough" }),
        )
        .await
        .expect(200)
}

#[tokio::test]
async fn a_cancel_is_heard_by_heartbeat_and_ends_with_the_runners_word() {
    // RP-8, RP-29, RP-36, RP-39, SM-33, SM-43, SM-48
    let bench = Bench::patient().await;
    let (run, job) = bench.create_one().await;
    let lease = bench.acked().await;
    assert_eq!(cancel(&bench, &run).await["state"], "CANCEL_REQUESTED");
    assert_eq!(bench.show_job(&job).await["state"], "CANCEL_REQUESTED");
    let beat = bench.say("/heartbeat", lease.beat()).await.expect(200);
    assert_eq!(beat["cancel_requested"], true);
    let left = beat["cancel_deadline_seconds"].as_f64().unwrap();
    assert!(left > 20.0 && left <= 30.0, "{left}");
    let ack = bench
        .say("/cancel-ack", lease.cancel_ack())
        .await
        .expect(200);
    assert_eq!(ack["type"], "CancelAckAck");
    assert_eq!(
        (&ack["accepted"], &ack["final_status"]),
        (&json!(true), &json!("CANCELED"))
    );
    let again = bench
        .say("/cancel-ack", lease.cancel_ack())
        .await
        .expect(200);
    assert_eq!(again, ack, "a repeat gets the same answer");
    let view = bench.show(&run).await;
    assert_eq!(
        (&view["state"], &view["outcome"]),
        (&json!("REPORTED"), &json!("CANCELED"))
    );
    assert_eq!(
        cancel(&bench, &run).await,
        bench.show(&run).await,
        "and is over"
    );
}

#[tokio::test]
async fn a_held_heartbeat_hears_of_the_cancel_at_once() {
    // A70
    let bench = Bench::patient().await;
    let (run, _) = bench.create_one().await;
    let lease = bench.acked().await;
    let mut beat = lease.beat();
    beat["wait_seconds"] = json!(20);
    beat["seq"] = json!(1);
    let started = std::time::Instant::now();
    let (heard, ()) = tokio::join!(bench.say("/heartbeat", beat), async {
        // The heartbeat is in once the job shows that it runs.
        bench
            .until(&format!("/jobs/{}", lease.job), "/state", "RUNNING")
            .await;
        cancel(&bench, &run).await;
    });
    assert_eq!(heard.expect(200)["cancel_requested"], true);
    assert!(started.elapsed().as_secs() < 15, "not held until its end");
}

#[tokio::test]
async fn a_complete_after_the_cancel_is_kept_but_not_obeyed() {
    // A10, LM-22
    let bench = Bench::patient().await;
    let (run, job) = bench.create_one().await;
    let lease = bench.acked().await;
    cancel(&bench, &run).await;
    let answer = bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(409);
    assert_eq!(answer["type"], "CompleteAck");
    assert_eq!(answer["accepted"], false);
    assert_eq!(answer["reason"], "CANCEL_REQUESTED");
    assert_eq!(answer["final_status"], "CANCELED");
    let view = bench.show_job(&job).await;
    assert_eq!(view["state"], "CANCELED");
    assert_eq!(
        view["attempts"][0]["exit_code"], 0,
        "what was reported is kept"
    );
}

#[tokio::test]
async fn a_cancel_ack_nobody_asked_for_changes_nothing() {
    // RP-40, LM-18
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    let answer = bench
        .say("/cancel-ack", lease.cancel_ack())
        .await
        .expect(409);
    assert_eq!(answer["accepted"], false);
    assert_eq!(answer["reason"], "CANCEL_NOT_REQUESTED");
    assert_eq!(bench.show_job(&job).await["state"], "STARTING");
}

#[tokio::test]
async fn a_deaf_runner_is_forced_and_its_late_complete_is_stale() {
    // RP-38, SM-15, SM-51, SM-53, SM-63
    let bench = Bench::memory(crate::bench::forcing_settings()).await;
    let (run, job) = bench.create_one().await;
    let lease = bench.acked().await;
    cancel(&bench, &run).await;
    bench
        .until(&format!("/runs/{run}"), "/outcome", "CANCELED")
        .await;
    let late = bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(409);
    assert_eq!(late["type"], "StaleLease");
    let view = bench.show_job(&job).await;
    assert_eq!(view["state"], "CANCELED");
}

#[tokio::test]
async fn queued_jobs_end_at_once_and_an_unacknowledged_lease_with_them() {
    // SM-50, A41
    let bench = Bench::patient().await;
    let view = bench.create(json!([job("a"), job("b")])).await;
    let run = text(&view["run_id"]);
    let lease = bench.lease().await;
    let view = cancel(&bench, &run).await;
    assert_eq!(view["outcome"], "CANCELED");
    assert!(
        view["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|job| job["state"] == "CANCELED")
    );
    let late = bench.say("/ack-lease", lease.ack()).await.expect(409);
    assert_eq!(late["reason"], "LEASE_REVOKED");
}

#[tokio::test]
async fn one_job_can_be_canceled_alone() {
    // SM-38, A16
    let bench = Bench::patient().await;
    let mut optional = job("extra");
    optional["required"] = json!(false);
    let view = bench.create(json!([job("main"), optional])).await;
    let extra = text(&view["jobs"][1]["job_id"]);
    let answer = bench
        .ask(&format!("/jobs/{extra}/cancel"), json!({}))
        .await
        .expect(200);
    assert_eq!(answer["state"], "CANCELED");
    assert_eq!(answer["cause"], "canceled_by_user");
    let lease = bench.acked().await;
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    assert_eq!(bench.show(&lease.run).await["outcome"], "SUCCESS");
}
