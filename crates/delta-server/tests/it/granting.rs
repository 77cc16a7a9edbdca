//! Getting a lease: parked requests, repeats, matching, connections that go away.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::bench::{Bench, Lease, PATIENCE, job, text};

/// Waits until this many requests are parked.
async fn until_parked(bench: &Bench, wanted: i64) {
    delta_testkit::wait::eventually_async(PATIENCE, "parked requests", async || {
        let found = metric(bench, "delta_parked_slots").await;
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await;
}

async fn metric(bench: &Bench, name: &str) -> i64 {
    let text = bench.get("/metrics").await.text;
    let line = text
        .lines()
        .find(|line| line.split(' ').next() == Some(name));
    let value = line.and_then(|line| line.split(' ').nth(1));
    value
        .unwrap_or_else(|| panic!("no {name} in {text}"))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn a_job_enqueued_now_is_granted_now_to_a_parked_slot() {
    // D2, SM-25
    let bench = Bench::memory(delta_core::Settings {
        // No sweep helps: the same batch must do it.
        sweep: delta_core::Span::hours(1),
        ..crate::bench::patient_settings()
    })
    .await;
    let (granted, ()) = tokio::join!(bench.lease_as("r1", 20.0), async {
        until_parked(&bench, 1).await;
        bench.create_one().await;
    });
    let lease = Lease::from(&granted.expect(200), "r1");
    let events = bench
        .get(&format!("/api/v1/runs/{}/events", lease.run))
        .await
        .expect(200);
    let commands: Vec<&Value> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["command"])
        .collect();
    assert_eq!(commands, ["create_run", "grant"]);
}

#[tokio::test]
async fn nothing_to_do_is_204_at_once_or_after_the_wait() {
    // RP-15
    let bench = Bench::patient().await;
    bench.lease_as("r1", 0.0).await.expect(204);
    let started = std::time::Instant::now();
    bench.lease_as("r1", 0.3).await.expect(204);
    assert!(started.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_runner_gets_only_work_it_is_fit_for() {
    // RP-11, A64, A68
    let bench = Bench::patient().await;
    let mut gpu = job("gpu");
    gpu["requires"] = json!(["gpu", "memory>=2GiB"]);
    let mut function = job("function");
    function["job_spec"] = json!({ "function": { "name": "f" } });
    bench.create(json!([gpu, function])).await;
    bench.lease_as("r1", 0.0).await.expect(204);
    let ask = |tags: Value| json!({ "type": "Lease", "runner_id": "r2", "capabilities": tags });
    bench
        .say("/lease", ask(json!(["gpu", "memory=1GiB"])))
        .await
        .expect(204);
    let granted = bench
        .say("/lease", ask(json!(["gpu", "memory=4GiB"])))
        .await
        .expect(200);
    assert_eq!(granted["job_spec"]["steps"], json!(["true"]));
    let lease = Lease::from(&granted, "r2");
    bench.say("/ack-lease", lease.ack()).await.expect(200);
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let granted = bench
        .say("/lease", ask(json!(["work:function"])))
        .await
        .expect(200);
    assert_eq!(granted["job_spec"]["function"]["name"], "f");
}

#[tokio::test]
async fn a_runner_with_an_active_lease_is_busy() {
    // RP-9, A67
    let bench = Bench::patient().await;
    bench.create(json!([job("a"), job("b")])).await;
    let lease = bench.acked().await;
    let busy = bench.lease_as("r1", 0.0).await.expect(409);
    assert_eq!(busy["code"], "RUNNER_BUSY");
    bench.lease_as("r2", 0.0).await.expect(200);
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    bench.lease_as("r1", 0.0).await.expect(204);
}

#[tokio::test]
async fn a_runner_that_never_saw_its_grant_gets_the_same_attempt_anew() {
    // A67
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    let first = bench.lease().await;
    let second = bench.lease().await;
    assert_eq!(second.job, first.job);
    assert_eq!(second.granted["attempt"], 1);
    assert_eq!(second.epoch, first.epoch + 1);
    assert_ne!(second.id, first.id);
    let late = bench.say("/ack-lease", first.ack()).await.expect(409);
    assert_eq!(late["reason"], "LEASE_SUPERSEDED");
    bench.say("/ack-lease", second.ack()).await.expect(200);
    let view = bench.show_job(&job).await;
    assert_eq!(view["attempts"][0]["leases"][0]["reason"], "REPLACED");
    assert_eq!(view["attempts"][0]["dispatches"], 0, "outside the budget");
}

#[tokio::test]
async fn asking_again_replaces_the_parked_request() {
    // A67
    let bench = Bench::patient().await;
    let (first, second, ()) = tokio::join!(
        bench.lease_as("r1", 20.0),
        async {
            until_parked(&bench, 1).await;
            bench.lease_as("r1", 20.0).await
        },
        async {
            // One of the two was answered when only one is left to be granted.
            delta_testkit::wait::eventually_async(PATIENCE, "two asked", async || {
                let asked = metric(&bench, "delta_lease_requests_total").await;
                if asked == 2 { Ok(()) } else { Err(asked) }
            })
            .await;
            bench.create_one().await;
        }
    );
    assert_eq!(first.status.as_u16(), 204);
    assert_eq!(second.status.as_u16(), 200, "{}", second.text);
}

#[tokio::test]
async fn a_closed_connection_takes_its_request_back() {
    // A67
    let bench = Bench::patient().await;
    let ask = tokio::time::timeout(Duration::from_secs(5), bench.lease_as("gone", 30.0));
    tokio::select! {
        _ = ask => panic!("there was nothing to grant"),
        () = until_parked(&bench, 1) => {}
    }
    // Dropping the request closed its connection; a sweep or the next match notices.
    until_parked(&bench, 0).await;
    let (_, job) = bench.create_one().await;
    assert_eq!(bench.show_job(&job).await["state"], "QUEUED");
}

#[tokio::test]
async fn work_goes_by_priority_and_age() {
    // A64
    let bench = Bench::patient().await;
    let named = |name: &str, priority: i32| {
        let mut job = job(name);
        job["priority"] = json!(priority);
        job["job_spec"]["name"] = json!(name);
        json!([job])
    };
    bench.create(named("first", 0)).await;
    bench.create(named("urgent", 5)).await;
    bench.create(named("second", 0)).await;
    let mut order = Vec::new();
    for runner in ["a", "b", "c"] {
        let granted = bench.lease_as(runner, 0.0).await.expect(200);
        order.push(text(&granted["job_spec"]["name"]));
    }
    assert_eq!(order, ["urgent", "first", "second"]);
}

#[tokio::test]
async fn sixty_four_slots_get_sixty_four_different_jobs() {
    // SM-25, LM-8, RP-13
    let bench = Bench::patient().await;
    let jobs: Vec<Value> = (0..64).map(|n| job(&format!("j{n}"))).collect();
    bench.create(json!(jobs)).await;
    let bench = std::sync::Arc::new(bench);
    let mut asked = tokio::task::JoinSet::new();
    for n in 0..80 {
        let bench = bench.clone();
        asked.spawn(async move { bench.lease_as(&format!("s{n}"), 0.5).await });
    }
    let answers = asked.join_all().await;
    let granted: Vec<Value> = answers
        .iter()
        .filter(|it| it.status.as_u16() == 200)
        .map(|it| it.json())
        .collect();
    let jobs: std::collections::BTreeSet<String> =
        granted.iter().map(|it| text(&it["job_id"])).collect();
    let tokens: std::collections::BTreeSet<String> =
        granted.iter().map(|it| text(&it["lease_id"])).collect();
    assert_eq!((granted.len(), jobs.len(), tokens.len()), (64, 64, 64));
}

#[tokio::test]
async fn an_agent_whose_connection_is_gone_is_given_nothing() {
    // A67
    let bench = Bench::patient().await;
    let gone = Agent::new(&bench).await;
    until_parked(&bench, 1).await;
    drop(gone);
    until_parked(&bench, 0).await;
    bench.run_with(1).await;
    let work = Agent::new(&bench).await.work().await;
    assert_eq!(work.lease_epoch as u32, 1, "the first lease there was");
}
