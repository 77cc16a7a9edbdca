//! Caches under a lease: written once, to the run's own scope, whole or not at all; read by whoever
//! may.

use std::fs::{File, FileTimes};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use delta_wire::agent::proto::{AssignWork, RunStatus};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::bench::{Answer, Bench};

fn hash(bytes: &[u8]) -> String {
    let hash = digest(&SHA256, bytes);
    let digits = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// An agent at work for a run of this trust and ref.
async fn at_work(bench: &Bench, agent: &mut Agent, trust: &str, git_ref: &str) -> AssignWork {
    let body = json!({ "trust": trust, "ref": git_ref, "repository": "https://git.example/r",
        "jobs": [{ "name": "a", "job_spec": { "steps": ["true"], "checkout": false } }] });
    bench.ask("/runs", body).await.expect(201);
    let work = agent.work().await;
    agent.accepts(&work).await;
    work
}

async fn done(agent: &mut Agent, work: &AssignWork) {
    agent.say([agent.completed(work, RunStatus::Success)]).await;
    agent
        .hears(|say| match say {
            delta_wire::agent::proto::server_message::Message::CompleteAck(ack) => {
                Some(ack.accepted)
            }
            _ => None,
        })
        .await;
}

fn url(bench: &Bench, work: &AssignWork, rest: &str) -> String {
    format!(
        "{}/api/v1/runner/jobs/{}/caches{rest}",
        bench.base, work.job_id
    )
}

async fn find(bench: &Bench, work: &AssignWork, key: &str, prefixes: &[&str]) -> Value {
    let body = json!({ "key": key, "restore_keys": prefixes });
    ask(bench, work, body).await
}

async fn ask(bench: &Bench, work: &AssignWork, body: Value) -> Value {
    let request = bench.client.post(url(bench, work, "/find"));
    let request = request.bearer_auth(&bench.runner);
    let request = request.header("Delta-Lease", &work.lease).json(&body);
    let answer = Answer::of(request.send().await.unwrap()).await;
    answer.expect(200)["cache"].clone()
}

async fn fetch(bench: &Bench, work: &AssignWork, id: &str) -> Answer {
    let request = bench.client.get(url(bench, work, &format!("/{id}")));
    let request = request.bearer_auth(&bench.runner);
    Answer::of(
        request
            .header("Delta-Lease", &work.lease)
            .send()
            .await
            .unwrap(),
    )
    .await
}

async fn save(bench: &Bench, work: &AssignWork, key: &str, hash: &str, bytes: &str) -> Answer {
    let request = bench.client.put(url(
        bench,
        work,
        &format!("?key={key}&sha256={hash}&work_millis=1200"),
    ));
    let request = request.bearer_auth(&bench.runner);
    let request = request
        .header("Delta-Lease", &work.lease)
        .body(bytes.to_owned());
    Answer::of(request.send().await.unwrap()).await
}

#[tokio::test]
async fn what_a_fork_saves_never_reaches_the_trusted_branch() {
    // T7
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let fork = at_work(&bench, &mut agent, "untrusted", "main").await;
    let saved = save(&bench, &fork, "deps", &hash(b"poison"), "poison").await;
    assert_eq!(saved.expect(200)["saved"], true);
    let own = find(&bench, &fork, "deps", &[]).await;
    let id = own["id"].as_str().unwrap().to_owned();
    assert_eq!(fetch(&bench, &fork, &id).await.text, "poison");
    done(&mut agent, &fork).await;
    for (trust, git_ref) in [
        ("trusted", "main"),
        ("trusted", "topic"),
        ("untrusted", "topic"),
    ] {
        let work = at_work(&bench, &mut agent, trust, git_ref).await;
        assert_eq!(find(&bench, &work, "deps", &["de", "d"]).await, json!(null));
        fetch(&bench, &work, &id).await.expect(404);
        done(&mut agent, &work).await;
    }
    let main = at_work(&bench, &mut agent, "trusted", "refs/heads/main").await;
    save(&bench, &main, "deps", &hash(b"good"), "good")
        .await
        .expect(200);
    done(&mut agent, &main).await;
    // Everybody reads the default branch's, a fork its own first.
    for (trust, git_ref, bytes) in [
        ("trusted", "topic", "good"),
        ("untrusted", "topic", "good"),
        ("untrusted", "main", "poison"),
    ] {
        let work = at_work(&bench, &mut agent, trust, git_ref).await;
        let found = find(&bench, &work, "other", &["none", "de"]).await;
        let fetched = fetch(&bench, &work, found["id"].as_str().unwrap()).await;
        assert_eq!(fetched.text, bytes, "{trust} {git_ref}");
        done(&mut agent, &work).await;
    }
    let list = bench.get("/api/v1/caches").await.expect(200);
    assert_eq!(list["caches"].as_array().unwrap().len(), 2);
    let path = format!("{}/api/v1/caches/{id}", bench.base);
    for (token, status) in [(&bench.user, 403), (&bench.admin, 204), (&bench.admin, 404)] {
        let removed = bench
            .client
            .delete(&path)
            .bearer_auth(token)
            .send()
            .await
            .unwrap();
        assert_eq!(removed.status().as_u16(), status);
    }
}

#[tokio::test]
async fn a_cache_is_written_once_whole_and_by_a_lease_that_lives() {
    // D4
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let work = at_work(&bench, &mut agent, "trusted", "main").await;
    let wrong = save(&bench, &work, "k", &hash(b"other"), "bytes").await;
    assert_eq!(wrong.expect(422)["field"], "sha256");
    assert_eq!(find(&bench, &work, "k", &[]).await, json!(null));
    for key in ["", "%00", &"k".repeat(600)] {
        let refused = save(&bench, &work, key, &hash(b"x"), "x").await;
        assert_eq!(refused.expect(422)["field"], "key", "{key}");
    }
    let first = save(&bench, &work, "k", &hash(b"bytes"), "bytes").await;
    assert_eq!(first.expect(200)["saved"], true);
    let second = save(&bench, &work, "k", &hash(b"more"), "more").await;
    assert_eq!(second.expect(200)["saved"], false);
    let found = find(&bench, &work, "k", &[]).await;
    assert_eq!((&found["size"], &found["key"]), (&json!(5), &json!("k")));
    assert_eq!(found["run_id"], json!(work.job_run_id));
    assert_eq!(found["work_millis"], 1200);
    done(&mut agent, &work).await;
    save(&bench, &work, "late", &hash(b"x"), "x")
        .await
        .expect(409);
    let request = bench.client.post(url(&bench, &work, "/find"));
    let request = request
        .bearer_auth(&bench.runner)
        .header("Delta-Lease", &work.lease);
    let request = request.json(&json!({ "key": "k" })).send().await.unwrap();
    assert_eq!(request.status().as_u16(), 409);
}

async fn check(bench: &Bench, work: &AssignWork, id: &str) -> Answer {
    let request = bench.client.post(url(bench, work, &format!("/{id}/check")));
    let request = request.bearer_auth(&bench.runner);
    let request = request.header("Delta-Lease", &work.lease);
    Answer::of(request.send().await.unwrap()).await
}

/// The only file of the caches whose name ends so.
fn stored(bench: &Bench, ending: &str) -> PathBuf {
    let mut open = vec![bench.data.path().join("objects/caches")];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        match std::fs::read_dir(&path) {
            Ok(entries) => open.extend(entries.map(|it| it.unwrap().path())),
            Err(_) => found.push(path),
        }
    }
    found.retain(|it| it.to_str().unwrap().ends_with(ending));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[tokio::test]
async fn a_cache_whose_bytes_changed_is_removed_and_no_other_whoever_says_it_is_bad() {
    // T7, D15
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let main = at_work(&bench, &mut agent, "trusted", "main").await;
    let saved = save(&bench, &main, "deps", &hash(b"good"), "good").await;
    assert_eq!(saved.expect(200)["saved"], true);
    let found = find(&bench, &main, "deps", &[]).await;
    let id = found["id"].as_str().unwrap().to_owned();
    done(&mut agent, &main).await;
    check(&bench, &main, &id).await.expect(409);
    let fork = at_work(&bench, &mut agent, "untrusted", "patch").await;
    assert_eq!(
        check(&bench, &fork, &id).await.expect(200)["removed"],
        false
    );
    assert_eq!(fetch(&bench, &fork, &id).await.text, "good");
    let own = save(&bench, &fork, "own", &hash(b"own"), "own").await;
    assert_eq!(own.expect(200)["saved"], true);
    let own = find(&bench, &fork, "own", &[]).await["id"].clone();
    done(&mut agent, &fork).await;
    let main = at_work(&bench, &mut agent, "trusted", "main").await;
    check(&bench, &main, own.as_str().unwrap())
        .await
        .expect(404);
    let removed = bench
        .client
        .delete(format!(
            "{}/api/v1/caches/{}",
            bench.base,
            own.as_str().unwrap()
        ))
        .bearer_auth(&bench.admin);
    assert_eq!(removed.send().await.unwrap().status().as_u16(), 204);
    for damage in [Some("goad"), Some("goo"), None] {
        match (stored(&bench, ".data"), damage) {
            (path, Some(bytes)) => std::fs::write(path, bytes).unwrap(),
            (path, None) => std::fs::remove_file(path).unwrap(),
        }
        let taken = save(&bench, &main, "deps", &hash(b"good"), "good").await;
        assert_eq!(taken.expect(200)["saved"], false);
        let id = find(&bench, &main, "deps", &[]).await["id"].clone();
        let checked = check(&bench, &main, id.as_str().unwrap()).await;
        assert_eq!(checked.expect(200)["removed"], true, "{damage:?}");
        assert_eq!(find(&bench, &main, "deps", &[]).await, json!(null));
        let again = save(&bench, &main, "deps", &hash(b"good"), "good").await;
        assert_eq!(again.expect(200)["saved"], true, "{damage:?}");
        assert_eq!(
            fetch(&bench, &main, id.as_str().unwrap()).await.text,
            "good"
        );
    }
}

#[tokio::test]
async fn a_cache_is_used_when_it_is_fetched_and_not_when_it_is_found() {
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let work = at_work(&bench, &mut agent, "trusted", "main").await;
    let saved = save(&bench, &work, "k", &hash(b"bytes"), "bytes").await;
    assert_eq!(saved.expect(200)["saved"], true);
    let long_ago = SystemTime::now() - Duration::from_secs(86_400);
    let entry = File::open(stored(&bench, ".json")).unwrap();
    entry
        .set_times(FileTimes::new().set_modified(long_ago))
        .unwrap();
    let before = find(&bench, &work, "k", &[]).await;
    let found = find(&bench, &work, "k", &[]).await;
    assert_eq!(found["used_at"], before["used_at"]);
    fetch(&bench, &work, found["id"].as_str().unwrap()).await;
    let fetched = find(&bench, &work, "k", &[]).await;
    assert_ne!(fetched["used_at"], before["used_at"]);
}

#[tokio::test]
async fn only_what_is_restored_counts_as_a_hit_or_a_miss() {
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let work = at_work(&bench, &mut agent, "trusted", "main").await;
    let saving = json!({ "key": "k", "saving": true });
    assert_eq!(find(&bench, &work, "k", &[]).await, json!(null));
    assert_eq!(ask(&bench, &work, saving.clone()).await, json!(null));
    save(&bench, &work, "k", &hash(b"bytes"), "bytes")
        .await
        .expect(200);
    assert_ne!(ask(&bench, &work, saving).await, json!(null));
    for _ in 0..2 {
        assert_ne!(find(&bench, &work, "x", &["k"]).await, json!(null));
    }
    let text = bench.get("/metrics").await.text;
    for line in ["delta_cache_hits_total 2", "delta_cache_misses_total 1"] {
        assert!(text.lines().any(|it| it == line), "{line} in {text}");
    }
}
