//! Who may do what: roles, revocation, expiry, and the local administrator.

use delta_server::Role;
use serde_json::json;

use crate::bench::{Bench, PATIENCE, text};

#[tokio::test]
async fn without_a_good_token_nothing_is_answered() {
    // RP-55
    let bench = Bench::patient().await;
    let made_up = format!("delta_user_{}", "A".repeat(43));
    for token in [
        "",
        "nonsense",
        &made_up,
        &bench.user.replace("delta_user", "delta_admin"),
    ] {
        for path in ["/api/v1/runs", "/api/v1/tokens", "/api/v1/doctor"] {
            let answer = bench.get_as(token, path).await;
            assert_eq!(answer.expect(401)["code"], "UNAUTHENTICATED", "{path}");
            assert!(answer.headers.contains_key("www-authenticate"));
        }
        let path = "/api/v1/runner/lease";
        bench.post(token, path, "{}").await.expect(401);
    }
    let bare = bench
        .client
        .get(format!("{}/api/v1/runs", bench.base))
        .send()
        .await
        .unwrap();
    assert_eq!(bare.status().as_u16(), 401);
    for open in ["/healthz", "/readyz"] {
        let answer = bench
            .client
            .get(format!("{}{open}", bench.base))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status().as_u16(), 200, "{open}");
    }
}

#[tokio::test]
async fn a_role_reaches_as_far_as_it_should_and_no_further() {
    let bench = Bench::patient().await;
    let lease = "/api/v1/runner/lease";
    for (token, runs, tokens, runner) in [
        (&bench.runner, 403, 403, 422),
        (&bench.user, 200, 403, 403),
        (&bench.admin, 200, 200, 403),
    ] {
        bench.get_as(token, "/api/v1/runs").await.expect(runs);
        bench.get_as(token, "/api/v1/tokens").await.expect(tokens);
        bench.post(token, lease, "{}").await.expect(runner);
    }
    let refused = bench
        .get_as(&bench.runner, "/api/v1/runs")
        .await
        .expect(403);
    assert_eq!(refused["code"], "FORBIDDEN");
}

#[tokio::test]
async fn a_token_is_made_listed_used_and_revoked() {
    let bench = Bench::patient().await;
    let body = json!({ "role": "user", "name": "laptop" });
    let made = bench
        .post(&bench.admin, "/api/v1/tokens", body)
        .await
        .expect(201);
    let secret = text(&made["token"]);
    let id = text(&made["view"]["token_id"]);
    assert!(secret.starts_with("delta_user_"));
    bench.get_as(&secret, "/api/v1/runs").await.expect(200);
    let list = bench.get_as(&bench.admin, "/api/v1/tokens").await;
    assert!(list.text.contains(&id) && !list.text.contains(&secret));
    let url = format!("{}/api/v1/tokens/{id}", bench.base);
    let revoked = bench
        .client
        .delete(&url)
        .bearer_auth(&bench.admin)
        .send()
        .await
        .unwrap();
    assert_eq!(revoked.status().as_u16(), 204);
    bench.get_as(&secret, "/api/v1/runs").await.expect(401);
    let again = bench
        .client
        .delete(format!("{url}0"))
        .bearer_auth(&bench.admin)
        .send();
    assert_eq!(again.await.unwrap().status().as_u16(), 404);
}

#[tokio::test]
async fn a_token_revoked_while_its_request_is_parked_gets_no_lease() {
    // RP-55, D14
    let bench = Bench::patient().await;
    let body = json!({ "role": "runner", "name": "soon gone" });
    let made = bench.post(&bench.admin, "/api/v1/tokens", body).await;
    let made = made.expect(201);
    let (secret, id) = (text(&made["token"]), text(&made["view"]["token_id"]));
    let ask = json!({
        "type": "Lease", "runner_id": "gone", "capabilities": ["linux"], "wait_seconds": 20,
    });
    let parked = bench.post(&secret, "/api/v1/runner/lease", ask);
    let revoke_and_enqueue = async {
        let parked = "parked_slots 1";
        delta_testkit::wait::eventually_async(PATIENCE, parked, async || {
            let metrics = bench.get("/metrics").await.text;
            let line = metrics.lines().find(|line| line.ends_with(parked));
            line.map(drop).ok_or(metrics)
        })
        .await;
        let url = format!("{}/api/v1/tokens/{id}", bench.base);
        let revoked = bench.client.delete(&url).bearer_auth(&bench.admin).send();
        assert_eq!(revoked.await.unwrap().status().as_u16(), 204);
        bench.create_one().await
    };
    let (refused, (_, job)) = tokio::join!(parked, revoke_and_enqueue);
    refused.expect(401);
    // The attempt is free again, at no cost, for whoever may have it.
    let lease = bench.lease().await;
    assert_eq!(lease.job, job);
    let attempt = bench.show_job(&job).await["attempts"][0].clone();
    assert_eq!(
        (&attempt["losses"], &attempt["dispatches"]),
        (&json!(0), &json!(0))
    );
}

#[tokio::test]
async fn a_token_ends_at_its_time() {
    let bench = Bench::patient().await;
    let body = json!({ "role": "user", "name": "short", "expires_in_seconds": 0.3 });
    let made = bench
        .post(&bench.admin, "/api/v1/tokens", body)
        .await
        .expect(201);
    let secret = text(&made["token"]);
    bench.get_as(&secret, "/api/v1/runs").await.expect(200);
    delta_testkit::wait::eventually_async(PATIENCE, "expiry", async || {
        let status = bench.get_as(&secret, "/api/v1/runs").await.status;
        if status.as_u16() == 401 {
            Ok(())
        } else {
            Err(status)
        }
    })
    .await;
}

#[tokio::test]
async fn a_lease_belongs_to_the_principal_that_got_it() {
    // A25, LM-29: the same runner_id under another token is somebody else.
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let server = bench.server.as_ref().unwrap();
    let thief = server.create_token(Role::Runner, "thief").await.unwrap();
    let path = "/api/v1/runner/heartbeat";
    let answer = bench.post(&thief, path, lease.beat()).await.expect(200);
    assert_eq!(
        (&answer["stale"], &answer["reason"]),
        (&json!(true), &json!("UNKNOWN_LEASE"))
    );
}
