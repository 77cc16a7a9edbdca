//! Concurrency groups over the API: who waits, for whom, and who ends whom.

use serde_json::{Value, json};

use crate::bench::{Bench, job, text};

async fn create(bench: &Bench, group: Value, jobs: Value) -> String {
    let body = json!({ "jobs": jobs, "concurrency": group });
    text(&bench.ask("/runs", body).await.expect(201)["run_id"])
}

async fn finish(bench: &Bench) -> String {
    let lease = bench.acked().await;
    let done = bench.say("/complete", lease.complete("SUCCEEDED", 0)).await;
    done.expect(200);
    lease.run
}

#[tokio::test]
async fn runs_of_a_group_wait_for_each_other_and_say_so() {
    let bench = Bench::patient().await;
    let group = json!({ "group": "nightly" });
    let first = create(&bench, group.clone(), json!([job("unit")])).await;
    bench
        .until(&format!("/runs/{first}"), "/jobs/0/state", "QUEUED")
        .await;
    let second = create(&bench, group.clone(), json!([job("unit")])).await;
    let third = create(&bench, group, json!([job("unit")])).await;
    let other = json!({ "group": "other" });
    let apart = create(&bench, other, json!([job("unit")])).await;
    bench
        .until(&format!("/runs/{apart}"), "/jobs/0/state", "QUEUED")
        .await;
    let view = bench.show(&third).await;
    assert_eq!(view["concurrency"]["group"], "nightly");
    assert_eq!(view["why"]["code"], "waiting_for_turn", "{view}");
    let said = text(&view["why"]["message"]);
    assert!(
        said.contains(&first) && said.contains("1 other comes first"),
        "{said}"
    );
    assert!(view["must_end_by"].is_string() || view["must_end_by"].is_number());
    let waiting = bench.show_job(&text(&view["jobs"][0]["job_id"])).await;
    assert_eq!(waiting["why"]["code"], "waiting_for_turn", "{waiting}");
    assert_eq!(waiting["state"], "CREATED");
    let mut order = Vec::new();
    for _ in 0..4 {
        order.push(finish(&bench).await);
    }
    order.retain(|run| *run != apart);
    assert_eq!(order, [first, second, third]);
}

#[tokio::test]
async fn a_newer_run_that_cancels_ends_the_older_ones() {
    // A43
    let bench = Bench::patient().await;
    let group = json!({ "group": "main", "cancel_older": true });
    let first = create(&bench, group.clone(), json!([job("unit")])).await;
    let lease = bench.acked().await;
    assert_eq!(lease.run, first);
    let second = create(&bench, group.clone(), json!([job("unit")])).await;
    bench
        .until(&format!("/runs/{first}"), "/state", "CANCEL_REQUESTED")
        .await;
    assert_eq!(bench.show(&second).await["why"]["code"], "waiting_for_turn");
    let third = create(&bench, group, json!([job("unit")])).await;
    let over = bench
        .until(&format!("/runs/{second}"), "/outcome", "CANCELED")
        .await;
    assert_eq!(over["cause"], "superseded");
    let acked = bench.say("/cancel-ack", lease.cancel_ack()).await;
    acked.expect(200);
    let over = bench.show(&first).await;
    assert_eq!(
        (&over["outcome"], &over["cause"]),
        (&json!("CANCELED"), &json!("superseded"))
    );
    assert_eq!(finish(&bench).await, third);
    assert_eq!(bench.show(&third).await["outcome"], "SUCCESS");
}

#[tokio::test]
async fn jobs_of_a_group_wait_while_the_rest_of_their_run_goes_on() {
    let bench = Bench::patient().await;
    let mut deploy = job("deploy");
    deploy["concurrency"] = json!({ "group": "production" });
    let first = text(&bench.create(json!([deploy])).await["run_id"]);
    let held = bench.acked().await;
    assert_eq!(held.run, first);
    let view = bench.create(json!([deploy, job("lint")])).await;
    let second = text(&view["run_id"]);
    let deploying = text(&view["jobs"][0]["job_id"]);
    let lint = crate::bench::Lease::from(&bench.lease_as("r2", 10.0).await.expect(200), "r2");
    assert_eq!(lint.job, text(&view["jobs"][1]["job_id"]));
    bench.say("/ack-lease", lint.ack()).await.expect(200);
    bench
        .say("/complete", lint.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let shown = bench.show_job(&deploying).await;
    let said = text(&shown["why"]["message"]);
    assert!(
        said.contains("production") && said.contains(&held.job),
        "{said}"
    );
    bench
        .say("/complete", held.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    assert_eq!(finish(&bench).await, second);
    assert_eq!(bench.show(&second).await["outcome"], "SUCCESS");
}

#[tokio::test]
async fn a_group_without_a_name_is_refused() {
    let bench = Bench::patient().await;
    for (bad, field) in [
        (json!({ "group": " " }), "concurrency.group"),
        (json!({ "group": "a\nb" }), "concurrency.group"),
        (json!({}), "concurrency.group"),
        (
            json!({ "group": "g", "cancel": true }),
            "concurrency.cancel",
        ),
        (json!("g"), "concurrency"),
    ] {
        let body = json!({ "jobs": [job("unit")], "concurrency": bad });
        let refused = bench.ask("/runs", body).await.expect(422);
        assert_eq!(refused["field"], field, "{refused}");
    }
}
