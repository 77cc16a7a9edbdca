//! The server goes and comes back: on SQLite, with leases alive.

use std::time::{SystemTime, UNIX_EPOCH};

use delta_core::Settings;
use delta_server::{Config, StoreChoice};
use delta_wire::Millis;
use serde_json::json;

use crate::artifacts::get;
use crate::bench::{Bench, Lease, PATIENCE, config, job, patient_settings, quick_settings, text};

fn sqlite(data: &tempfile::TempDir, settings: Settings) -> Config {
    Config {
        store: StoreChoice::Sqlite,
        ..config(data, settings)
    }
}

pub async fn start(settings: Settings) -> Bench {
    let data = tempfile::tempdir().unwrap();
    let config = sqlite(&data, settings);
    Bench::start(data, config).await
}

/// Stops the server and starts another on the same folder; tokens stay good.
pub async fn restart(mut bench: Bench, settings: Settings) -> Bench {
    bench.stop().await;
    let config = sqlite(&bench.data, settings);
    let (runner, user) = (bench.runner.clone(), bench.user.clone());
    let mut again = Bench::start(bench.data, config).await;
    (again.runner, again.user) = (runner, user);
    again
}

/// The moment a job's only lease ends unless it is renewed.
async fn end_of_lease(bench: &Bench, job: &str) -> Millis {
    let view = bench.show_job(job).await;
    let text = text(&view["attempts"][0]["leases"][0]["expires_at"]);
    Millis::from_rfc3339(&text).unwrap()
}

/// Waits until the wall clock, which a server on SQLite starts by, has passed a moment.
async fn until_past(moment: Millis) {
    delta_testkit::wait::eventually_async(PATIENCE, "the lease's end", async || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = Millis(i64::try_from(now.as_millis()).unwrap());
        if now > moment { Ok(()) } else { Err(now) }
    })
    .await;
}

#[tokio::test]
async fn a_whole_job_on_sqlite() {
    let bench = start(patient_settings()).await;
    let (run, _) = bench.create_one().await;
    let lease = bench.acked().await;
    bench.say("/heartbeat", lease.beat()).await.expect(200);
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    assert_eq!(bench.show(&run).await["outcome"], "SUCCESS");
    let doctor = bench
        .get_as(&bench.admin, "/api/v1/doctor")
        .await
        .expect(200);
    assert_eq!(
        (&doctor["healthy"], &doctor["runs"]),
        (&json!(true), &json!(1))
    );
}

#[tokio::test]
async fn leases_inside_their_ttl_live_on_over_a_restart() {
    // RP-60, LM-25, F12
    let bench = start(patient_settings()).await;
    bench.create(json!([job("a"), job("b"), job("c")])).await;
    let active = bench.acked().await;
    let granted = Lease::from(&bench.lease_as("r2", 0.0).await.expect(200), "r2");
    let bench = restart(bench, patient_settings()).await;
    bench.say("/ack-lease", granted.ack()).await.expect(200);
    let beat = bench.say("/heartbeat", active.beat()).await.expect(200);
    assert_eq!(beat["extend_lease"], true);
    for lease in [&active, &granted] {
        bench
            .say("/complete", lease.complete("SUCCEEDED", 0))
            .await
            .expect(200);
    }
    let last = Lease::from(&bench.lease_as("r3", 0.0).await.expect(200), "r3");
    bench.say("/ack-lease", last.ack()).await.expect(200);
    bench
        .say("/complete", last.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    assert_eq!(bench.show(&active.run).await["outcome"], "SUCCESS");
    let doctor = bench
        .get_as(&bench.admin, "/api/v1/doctor")
        .await
        .expect(200);
    assert_eq!(doctor["healthy"], true, "{doctor}");
}

#[tokio::test]
async fn a_lease_that_ran_out_while_the_server_was_away_is_stale() {
    // A40, F13
    let bench = start(quick_settings()).await;
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    let ends = end_of_lease(&bench, &job).await;
    let mut bench = bench;
    bench.stop().await;
    until_past(ends).await;
    let bench = restart(bench, quick_settings()).await;
    let late = bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(409);
    assert_eq!(late["reason"], "LEASE_EXPIRED");
    bench
        .until(&format!("/jobs/{job}"), "/state", "QUEUED")
        .await;
}

#[tokio::test]
async fn a_start_up_grace_spares_leases_that_ran_out_meanwhile() {
    // A40
    let bench = start(quick_settings()).await;
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    let ends = end_of_lease(&bench, &job).await;
    let mut bench = bench;
    bench.stop().await;
    until_past(ends).await;
    let config = Config {
        startup_grace: delta_core::Span::secs(30),
        ..sqlite(&bench.data, quick_settings())
    };
    let runner = bench.runner.clone();
    let mut bench = Bench::start(bench.data, config).await;
    bench.runner = runner;
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
}

#[tokio::test]
async fn old_runs_are_deleted_with_their_logs() {
    let data = tempfile::tempdir().unwrap();
    let config = Config {
        retention: Some(delta_core::Span(1)),
        ..sqlite(&data, patient_settings())
    };
    let bench = Bench::start(data, config.clone()).await;
    let (run, _) = bench.create_one().await;
    let lease = bench.acked().await;
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let objects = bench.data.path().join("objects").join(&run);
    std::fs::create_dir_all(&objects).unwrap();
    // The duty looks when it starts, and then every minute: start it again.
    let mut bench = bench;
    bench.stop().await;
    let user = bench.user.clone();
    let mut bench = Bench::start(bench.data, config).await;
    bench.user = user;
    delta_testkit::wait::eventually_async(crate::bench::PATIENCE, "deletion", async || {
        let status = bench
            .get(&format!("/api/v1/runs/{run}"))
            .await
            .status
            .as_u16();
        let there = objects.exists();
        if status == 404 && !there {
            Ok(())
        } else {
            Err((status, there))
        }
    })
    .await;
}

#[tokio::test]
async fn a_job_is_told_that_what_it_needs_was_deleted_with_an_older_run() {
    // D10
    let mut bench = start(patient_settings()).await;
    let mut uses = job("use");
    uses["needs"] = json!(["build"]);
    let run = text(&bench.create(json!([job("build"), uses])).await["run_id"]);
    for (status, code) in [("SUCCEEDED", 0), ("FAILED", 1)] {
        let lease = bench.acked().await;
        let done = bench.say("/complete", lease.complete(status, code)).await;
        done.expect(200);
    }
    bench
        .until(&format!("/runs/{run}"), "/outcome", "FAILED")
        .await;
    let failed = json!({ "failed_only": true });
    let again = bench.ask(&format!("/runs/{run}/rerun"), failed).await;
    let again = text(&again.expect(201)["run_id"]);
    bench.stop().await;
    let config = Config {
        retention: Some(delta_core::Span(1)),
        ..sqlite(&bench.data, patient_settings())
    };
    let bench = Bench::start(bench.data, config).await;
    delta_testkit::wait::eventually_async(PATIENCE, "deletion", async || {
        let answer = bench.get(&format!("/api/v1/runs/{run}")).await;
        let status = answer.status.as_u16();
        if status == 404 { Ok(()) } else { Err(status) }
    })
    .await;
    let lease = bench.acked().await;
    assert_eq!(lease.run, again);
    let url = format!("{}/api/v1/runner/jobs/{}/inputs", bench.base, lease.job);
    let list = get(&bench, &url, &lease.id).await.expect(200);
    assert_eq!(list, json!({ "inputs": [], "deleted": ["build"] }));
}
