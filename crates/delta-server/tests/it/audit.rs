//! Who did what, and who tried: lines under the log target `audit`, without a secret.

use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata};

use crate::bench::{Bench, Lease, PATIENCE};

/// Everything that is logged, a line for each event: target, then fields.
#[derive(Default)]
struct Kept(Mutex<Vec<String>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

/// Hands events on to what is kept for the whole process: the writer logs on a thread of its own.
struct Keeper(&'static Kept);

impl tracing::Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().target().to_owned());
        event.record(&mut line);
        self.0.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Keeps everything that is logged from now on; all of it so far.
pub fn keep_log() -> impl Fn() -> String {
    static SET: std::sync::Once = std::sync::Once::new();
    SET.call_once(|| tracing::subscriber::set_global_default(Keeper(kept())).unwrap());
    || kept().0.lock().unwrap().join("\n")
}

fn kept() -> &'static Kept {
    static KEPT: OnceLock<Kept> = OnceLock::new();
    KEPT.get_or_init(Kept::default)
}

/// Waits for an audit line with all of these words.
pub async fn said(words: &[&str]) {
    delta_testkit::wait::eventually_async(PATIENCE, "an audit line", async || {
        let lines = kept().0.lock().unwrap().clone();
        let audit = lines.iter().filter(|line| line.starts_with("audit "));
        let fits = |line: &&String| words.iter().all(|word| line.contains(word));
        if audit.clone().any(|line| fits(&line)) {
            Ok(())
        } else {
            Err((words.to_vec(), audit.cloned().collect::<Vec<_>>()))
        }
    })
    .await;
}

/// Acts on somebody else's lease, and reports a second result for one that has ended.
async fn try_what_is_not_allowed(bench: &Bench, lease: &Lease, id: &str, other: &str) {
    let attempt = format!("{}#1", lease.job);
    // Another runner with the token of this one's lease.
    let stolen = bench
        .post(other, "/api/v1/runner/heartbeat", lease.beat())
        .await;
    assert_eq!(stolen.expect(200)["reason"], "UNKNOWN_LEASE");
    said(&["foreign_lease", &format!("by={id}"), &attempt, "epoch="]).await;
    let upload = json!({ "type": "CreateUpload", "lease_id": lease.id,
        "runner_id": lease.runner, "name": "log", "kind": "log" });
    bench
        .post(other, "/api/v1/runner/uploads", upload)
        .await
        .expect(409);
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    bench
        .say("/complete", lease.complete("FAILED", 1))
        .await
        .expect(409);
    said(&["another_result", &attempt]).await;
    let lines = kept().0.lock().unwrap().clone();
    let odd = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
    assert_eq!(
        (odd("foreign_lease"), odd("another_result")),
        (2, 1),
        "{lines:#?}"
    );
}

#[tokio::test]
async fn what_was_done_and_what_was_tried_is_written_down_without_a_secret() {
    // A18, A24, A25
    let log = keep_log();
    let bench = Bench::patient().await;
    let made = bench
        .post(
            &bench.admin,
            "/api/v1/tokens",
            json!({ "name": "n", "role": "runner" }),
        )
        .await
        .expect(201);
    let (id, other) = (made["view"]["token_id"].as_str().unwrap(), &made["token"]);
    let other = other.as_str().unwrap().to_owned();
    said(&["token.create", id]).await;
    bench.create_one().await;
    let lease = bench.acked().await;
    try_what_is_not_allowed(&bench, &lease, id, &other).await;
    bench
        .ask_owned(format!("/runs/{}/rerun", lease.run), json!({}))
        .await
        .expect(201);
    said(&["run.rerun", &lease.run, "role=\"user\""]).await;
    let (run, job) = bench.create_one().await;
    bench
        .ask_owned(format!("/jobs/{job}/cancel"), json!({}))
        .await
        .expect(200);
    bench
        .ask_owned(format!("/runs/{run}/cancel"), json!({}))
        .await
        .expect(200);
    said(&["job.cancel", &job]).await;
    said(&["run.cancel", &run]).await;
    bench
        .get_as(&bench.user, "/api/v1/tokens")
        .await
        .expect(403);
    said(&["forbidden", "needed=\"admin\""]).await;
    let url = format!("{}/api/v1/tokens/{id}", bench.base);
    let revoked = bench
        .client
        .delete(url)
        .bearer_auth(&bench.admin)
        .send()
        .await;
    assert_eq!(revoked.unwrap().status().as_u16(), 204);
    said(&["token.revoke", id]).await;
    let agent = crate::agent::Agent::new(&bench).await;
    said(&["agent.register", &agent.id]).await;
    for order in ["drain", "undrain"] {
        bench.order(&agent.id, order).await.expect(200);
        said(&[&format!("agent.{order}"), &agent.id, "role=\"admin\""]).await;
    }
    bench.revoke(&bench.admin, &agent.id).await.expect(204);
    said(&["agent.revoke", &agent.id]).await;
    let resume = &agent.registered.resume_secret;
    let all = log();
    let tokens = [&bench.user, &bench.runner, &bench.admin];
    for secret in [&lease.id, &other, resume].into_iter().chain(tokens) {
        assert!(!all.contains(secret.as_str()), "{all}");
    }
}
