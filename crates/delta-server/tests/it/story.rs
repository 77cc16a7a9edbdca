//! One job from its creation to its end.

use serde_json::json;

use crate::bench::{Bench, job, text};

#[tokio::test]
async fn a_job_is_created_leased_acknowledged_heartbeat_completed_and_shown() {
    // RP-23, RP-26, RP-30, RP-33, SM-11, SM-25, SM-26, SM-27
    let bench = Bench::patient().await;
    let view = bench.create(json!([job("unit")])).await;
    assert_eq!(view["state"], "QUEUED");
    assert_eq!(view["outcome"], json!(null));
    assert_eq!(view["jobs"][0]["state"], "QUEUED");
    let run = text(&view["run_id"]);
    let lease = bench.lease().await;
    assert_eq!(lease.run, run);
    let spec = json!({ "name": "unit", "steps": ["true"] });
    assert_eq!(lease.granted["job_spec"], spec);
    assert_eq!(lease.granted["lease_ttl_seconds"], 120);
    assert_eq!(lease.granted["heartbeat_interval_seconds"], 20);
    assert_eq!(lease.granted["max_runtime_seconds"], 1800);
    assert_eq!(lease.granted["attempt"], 1);
    assert_eq!(bench.show(&run).await["state"], "RUNNING");
    let ack = bench.say("/ack-lease", lease.ack()).await.expect(200);
    assert_eq!(
        ack,
        json!({ "type": "AckLeaseAck", "accepted": true, "lease_ttl_seconds": 120 })
    );
    assert_eq!(bench.show_job(&lease.job).await["state"], "STARTING");
    let beat = bench.say("/heartbeat", lease.beat()).await.expect(200);
    assert_eq!(beat["extend_lease"], true);
    assert_eq!(beat["cancel_requested"], false);
    assert_eq!(bench.show_job(&lease.job).await["state"], "RUNNING");
    let done = bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    assert_eq!(
        done,
        json!({ "type": "CompleteAck", "lease_id": lease.id, "accepted": true })
    );
    let view = bench.show(&run).await;
    assert_eq!(view["state"], "REPORTED");
    assert_eq!(view["outcome"], "SUCCESS");
    let job = bench.show_job(&lease.job).await;
    assert_eq!(job["attempts"][0]["leases"][0]["state"], "COMPLETED");
    assert_eq!(job["attempts"][0]["exit_code"], 0);
}
