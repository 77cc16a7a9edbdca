//! Several servers on one PostgreSQL: any message to any of them (D3, D6).

use delta_core::{Settings, Span};
use delta_server::{Config, StoreChoice};
use delta_testkit::postgres::{PgDatabase, fresh_database};
use serde_json::json;

use crate::bench::{Bench, Lease, config, job, patient_settings};

async fn server(url: &str, settings: Settings) -> Bench {
    let data = tempfile::tempdir().unwrap();
    let config = Config {
        store: StoreChoice::Postgres(url.to_owned()),
        ..config(&data, settings)
    };
    Bench::start(data, config).await
}

/// Two servers, and the database they share for as long as they live.
async fn pair(settings: Settings) -> (Bench, Bench, PgDatabase) {
    let database = tokio::task::spawn_blocking(fresh_database)
        .await
        .unwrap()
        .unwrap();
    let url = database.url.clone();
    let one = server(&url, settings.clone()).await;
    let mut two = server(&url, settings).await;
    // A token made by one is good at the other.
    (two.user, two.runner, two.admin) = (one.user.clone(), one.runner.clone(), one.admin.clone());
    (one, two, database)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_of_a_job_may_go_to_another_server() {
    let (one, two, _database) = pair(patient_settings()).await;
    let (run, _) = one.create_one().await;
    let lease = two.lease().await;
    one.say("/ack-lease", lease.ack()).await.expect(200);
    two.say("/heartbeat", lease.beat()).await.expect(200);
    one.say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let again = two
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    assert_eq!(again["accepted"], true);
    assert_eq!(two.show(&run).await["outcome"], "SUCCESS");
    let doctor = one.get_as(&one.admin, "/api/v1/doctor").await.expect(200);
    assert_eq!(doctor["healthy"], true, "{doctor}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_queued_at_one_server_wakes_a_slot_parked_at_the_other() {
    // No sweep helps: the store's own wake-up must.
    let slow = Settings {
        sweep: Span::hours(1),
        ..patient_settings()
    };
    let (one, two, _database) = pair(slow).await;
    let (granted, ()) = tokio::join!(two.lease_as("r1", 25.0), async {
        delta_testkit::wait::eventually_async(crate::bench::PATIENCE, "parked", async || {
            let text = two.get("/metrics").await.text;
            if text.contains("delta_parked_slots 1") {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await;
        one.create_one().await;
    });
    granted.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_two_servers_never_get_the_same_job() {
    // SM-45, LM-8
    let (one, two, _database) = pair(patient_settings()).await;
    let jobs: Vec<_> = (0..30).map(|n| job(&format!("j{n}"))).collect();
    one.create(json!(jobs)).await;
    let benches = [std::sync::Arc::new(one), std::sync::Arc::new(two)];
    let mut asked = tokio::task::JoinSet::new();
    for n in 0..40 {
        let bench = benches[n % 2].clone();
        asked.spawn(async move {
            let runner = format!("s{n}");
            let answer = bench.lease_as(&runner, 2.0).await;
            (answer.status.as_u16() == 200).then(|| Lease::from(&answer.json(), &runner))
        });
    }
    let leases: Vec<Lease> = asked.join_all().await.into_iter().flatten().collect();
    let jobs: std::collections::BTreeSet<&str> = leases.iter().map(|it| it.job.as_str()).collect();
    assert_eq!((leases.len(), jobs.len()), (30, 30));
    for (n, lease) in leases.iter().enumerate() {
        benches[n % 2]
            .say("/ack-lease", lease.ack())
            .await
            .expect(200);
        benches[(n + 1) % 2]
            .say("/complete", lease.complete("SUCCEEDED", 0))
            .await
            .expect(200);
    }
    let run = &leases[0].run;
    assert_eq!(benches[0].show(run).await["outcome"], "SUCCESS");
}
