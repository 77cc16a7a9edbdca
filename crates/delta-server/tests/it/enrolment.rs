//! One-time enrolment: a token that lets one agent in, once; what the agent then may and may not.

use delta_server::Config;
use delta_testkit::postgres::fresh_database;
use delta_testkit::wait::eventually_async;
use serde_json::{Value, json};

use crate::audit::{keep_log, said};
use crate::bench::{Answer, Bench, PATIENCE, config, patient_settings, text};

const ENROL: &str = "/api/v1/agents/enroll";

/// Makes an enrolment token with more said of it, and returns its secret and its id.
async fn enrolment(bench: &Bench, more: Value) -> (String, String) {
    let mut body = json!({ "role": "enrolment", "name": "new machines" });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let made = bench.post(&bench.admin, "/api/v1/tokens", body).await;
    let made = made.expect(201);
    (text(&made["token"]), text(&made["view"]["token_id"]))
}

async fn exchange(bench: &Bench, token: &str) -> Answer {
    let body = json!({ "agent_name": "box" });
    bench.post(token, ENROL, body).await
}

async fn lease(bench: &Bench, token: &str, runner: &str, tags: &[&str]) -> Answer {
    let ask = json!({ "type": "Lease", "runner_id": runner, "capabilities": tags,
        "wait_seconds": 0 });
    bench.post(token, "/api/v1/runner/lease", ask).await
}

async fn listed(bench: &Bench, id: &str) -> Value {
    let list = bench
        .get_as(&bench.admin, "/api/v1/tokens")
        .await
        .expect(200);
    let rows = list.as_array().unwrap();
    let found = rows.iter().find(|row| row["token_id"] == id);
    found.unwrap_or_else(|| panic!("{list}")).clone()
}

async fn job_in(bench: &Bench, requires: &[&str]) -> String {
    let job = json!([{ "name": "a", "requires": requires, "job_spec": { "steps": ["true"] } }]);
    text(&bench.create(job).await["jobs"][0]["job_id"])
}

#[tokio::test]
async fn an_enrolment_becomes_one_agents_credential_and_grants_no_more_than_it_says() {
    // T3, T4, T27, A26
    let bench = Bench::patient().await;
    let scope = json!({ "pool": "gpu", "zones": ["eu", "us"], "labels": ["a100"] });
    let (once, id) = enrolment(&bench, scope).await;
    let enrolled = exchange(&bench, &once).await.expect(201);
    let (token, agent) = (text(&enrolled["token"]), text(&enrolled["agent_id"]));
    assert!(agent.starts_with("box-"), "{agent}");
    assert_eq!(enrolled["pool"], "gpu");
    assert_eq!(enrolled["zones"], json!(["eu", "us"]));
    let row = listed(&bench, &id).await;
    assert_eq!(row["used_by"], agent.as_str());
    let own = listed(&bench, &text(&enrolled["token_id"])).await;
    assert_eq!(
        (&own["agent_id"], &own["pool"]),
        (&json!(agent), &json!("gpu"))
    );
    // It is nobody else, and claims no zone, label or pool that it was not given.
    lease(&bench, &token, "another/1", &[]).await.expect(403);
    let slot = format!("{agent}/1");
    for requires in [["zone=prod"], ["tpu"], ["pool=default"]] {
        job_in(&bench, &requires).await;
        let claims = ["linux", "zone=prod", "tpu", "pool=default"];
        lease(&bench, &token, &slot, &claims).await.expect(204);
    }
    let job = job_in(&bench, &["zone=eu", "a100", "pool=gpu"]).await;
    // Naming one zone narrows it to that one.
    let claims = ["linux", "zone=us"];
    lease(&bench, &token, &slot, &claims).await.expect(204);
    let granted = lease(&bench, &token, &slot, &["linux"]).await.expect(200);
    assert_eq!(granted["job_id"], job.as_str());
}

#[tokio::test]
async fn a_stolen_enrolment_is_refused_like_any_wrong_token_and_the_trail_shouts() {
    // T4, T32, A24
    let log = keep_log();
    let bench = Bench::patient().await;
    let (once, id) = enrolment(&bench, json!({})).await;
    let enrolled = exchange(&bench, &once).await.expect(201);
    let again = exchange(&bench, &once).await;
    let unknown = exchange(&bench, &format!("delta_enrolment_{}", "A".repeat(43))).await;
    again.expect(401);
    assert_eq!((again.status, again.text), (unknown.status, unknown.text));
    said(&["enrolment.reused", &id]).await;
    let row = listed(&bench, &id).await;
    assert!(row["reused_at"].is_string(), "{row}");
    // The honest agent is undisturbed.
    let (own, agent) = (text(&enrolled["token"]), text(&enrolled["agent_id"]));
    lease(&bench, &own, &format!("{agent}/1"), &[])
        .await
        .expect(204);
    let all = log();
    assert!(all.contains("agent.enrol"), "{all}");
    for secret in [&once, &own] {
        assert!(!all.contains(secret.as_str()), "a secret is in the log");
    }
}

#[tokio::test]
async fn an_enrolment_is_short_lived_revocable_and_good_for_nothing_else() {
    // T4
    let bench = Bench::patient().await;
    let (once, id) = enrolment(&bench, json!({})).await;
    lease(&bench, &once, "r", &[]).await.expect(403);
    bench.get_as(&once, "/api/v1/runs").await.expect(403);
    exchange(&bench, &bench.runner).await.expect(403);
    exchange(&bench, &bench.admin).await.expect(403);
    // An hour, unless something else is said; never more than a day.
    let row = listed(&bench, &id).await;
    let life = |row: &Value| {
        let seconds = |name: &str| {
            let text = text(&row[name]);
            delta_wire::Millis::from_rfc3339(&text).unwrap().0 / 1000
        };
        seconds("expires_at") - seconds("created_at")
    };
    assert_eq!(life(&row), 3600);
    let long = json!({ "role": "enrolment", "name": "n", "expires_in_seconds": 86_401 });
    let refused = bench.post(&bench.admin, "/api/v1/tokens", long).await;
    assert_eq!(refused.expect(422)["field"], "expires_in_seconds");
    let url = format!("{}/api/v1/tokens/{id}", bench.base);
    let revoked = bench.client.delete(url).bearer_auth(&bench.admin).send();
    assert_eq!(revoked.await.unwrap().status().as_u16(), 204);
    exchange(&bench, &once).await.expect(401);
    let (soon, _) = enrolment(&bench, json!({ "expires_in_seconds": 0.2 })).await;
    eventually_async(PATIENCE, "it expires", async || {
        // Nothing is used up by a request that is not one.
        let status = bench.post(&soon, ENROL, "{}").await.status.as_u16();
        match status {
            401 => Ok(()),
            other => Err(other),
        }
    })
    .await;
    exchange(&bench, &soon).await.expect(401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_exchanges_at_two_servers_one_wins() {
    // T4
    let database = tokio::task::spawn_blocking(fresh_database).await;
    let database = database.unwrap().unwrap();
    let server = async || {
        let data = tempfile::tempdir().unwrap();
        let config = Config {
            store: delta_server::StoreChoice::Postgres(database.url.clone()),
            ..config(&data, patient_settings())
        };
        Bench::start(data, config).await
    };
    let (one, two) = (server().await, server().await);
    for _ in 0..5 {
        let (once, id) = enrolment(&one, json!({})).await;
        let (a, b) = tokio::join!(exchange(&one, &once), exchange(&two, &once));
        let mut statuses = [a.status.as_u16(), b.status.as_u16()];
        statuses.sort();
        assert_eq!(statuses, [201, 401]);
        let winner = if a.status.as_u16() == 201 { a } else { b };
        let row = listed(&two, &id).await;
        assert_eq!(row["used_by"], winner.json()["agent_id"]);
        assert!(row["reused_at"].is_string());
    }
}

#[tokio::test]
async fn a_plain_runner_token_claims_labels_but_no_zone() {
    // T27: an agent that claims a zone it was not given.
    let bench = Bench::patient().await;
    job_in(&bench, &["zone=prod"]).await;
    let claims = ["linux", "zone=prod", "gpu"];
    let runner = bench.runner.clone();
    lease(&bench, &runner, "r/1", &claims).await.expect(204);
    job_in(&bench, &["gpu"]).await;
    lease(&bench, &runner, "r/1", &claims).await.expect(200);
}
