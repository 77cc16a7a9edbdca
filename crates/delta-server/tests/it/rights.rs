//! Who may use a lease, from where an attacker stands: every endpoint that a lease opens, over real
//! sockets and on SQLite, tried by whoever is not its holder, or is so no more.
//!
//! The endpoints are those of the OpenAPI document: a new one that nobody entered here fails, and
//! so does one that forgets the rule.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use delta_testkit::wait::eventually_async;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::{Artifact, AssignWork, RegisterRequest, RunStatus};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;
use tokio_util::io::ReaderStream;
use tonic::Code;

use crate::agent::{Agent, request};
use crate::bench::{Answer, Bench, Lease, PATIENCE, config, patient_settings, text};

/// Behind the name of an endpoint that takes artifacts and logs: another right, so asked for twice.
const OF_THE_LOG: &str = " of the log";

/// What asks for work shows no lease: who it is was judged there before.
const WITHOUT_A_LEASE: &str = "POST /api/v1/runner/lease";

/// An agent at work, and what its lease opens.
struct Scene {
    bench: Bench,
    agent: Agent,
    /// Its credential.
    token: String,
    token_id: String,
    lease: Lease,
    input: String,
    cache: String,
    upload: String,
    log: String,
}

/// Whoever makes a request: what it shows of an agent.
type Shown = Option<String>;

fn registration() -> RegisterRequest {
    RegisterRequest {
        shows_itself: true,
        ..request()
    }
}

fn hash(bytes: &[u8]) -> String {
    let hash = digest(&SHA256, bytes);
    hash.as_ref().iter().map(|it| format!("{it:02x}")).collect()
}

fn lease_of(agent: &Agent, work: &AssignWork) -> Lease {
    Lease {
        id: work.lease.clone(),
        job: work.job_id.clone(),
        run: work.job_run_id.clone(),
        runner: format!("{}/1", agent.id),
        epoch: work.lease_epoch,
        granted: Value::Null,
    }
}

async fn bench() -> Bench {
    let data = tempfile::tempdir().unwrap();
    let config = delta_server::Config {
        store: delta_server::StoreChoice::Sqlite,
        ..config(&data, patient_settings())
    };
    Bench::start(data, config).await
}

impl Scene {
    /// With a token that many share, or one that is bound to an agent.
    async fn new(bound: bool) -> Scene {
        Scene::of(bound, registration()).await
    }

    async fn of(bound: bool, registration: RegisterRequest) -> Scene {
        let bench = bench().await;
        let mut body = json!({ "role": "runner", "name": "test" });
        if bound {
            body["agent_id"] = json!("b1");
        }
        let made = bench.post(&bench.admin, "/api/v1/tokens", body).await;
        let made = made.expect(201);
        let token = text(&made["token"]);
        let secret = json!({ "name": "TOKEN", "value": "canary-4f1c" });
        let set = bench.post(&bench.admin, "/api/v1/secrets", secret).await;
        set.expect(200);
        let run = json!({ "trust": "trusted", "repository": "https://git.test/r", "ref": "main",
            "jobs": [
                { "name": "a", "job_spec": { "steps": ["true"], "checkout": false } },
                { "name": "b", "needs": ["a"], "job_spec": { "steps": ["true"],
                    "checkout": false, "secrets": ["TOKEN"] } }] });
        bench.ask("/runs", run).await.expect(201);
        let registered = Agent::register_as(&bench, &token, registration).await;
        let mut agent = registered.unwrap();
        let first = agent.work().await;
        agent.accepts(&first).await;
        let artifact = Artifact {
            name: "out.txt".into(),
            content_type: "text/plain".into(),
            data: b"made by a".to_vec().into(),
            ..Default::default()
        };
        let artifact = agent.result(&first, Payload::Artifact(artifact));
        let done = agent.completed(&first, RunStatus::Success);
        agent.say([artifact, done]).await;
        let work = agent.work().await;
        let mut scene = Scene {
            lease: lease_of(&agent, &work),
            token_id: text(&made["view"]["token_id"]),
            token,
            bench,
            agent,
            input: "none".into(),
            cache: "none".into(),
            upload: "none".into(),
            log: "none".into(),
        };
        scene.agent.accepts(&work).await;
        scene.fill().await;
        scene
    }

    /// Makes what the endpoints that name something are asked for.
    async fn fill(&mut self) {
        let own = self.own();
        let said = async |scene: &Scene, key: &str| {
            let answer = scene.ask(key, &own).await;
            assert!(answer.status.is_success(), "{key}: {}", answer.text);
            answer.json()
        };
        let list = said(self, "GET /api/v1/runner/jobs/{id}/inputs").await;
        self.input = text(&list["inputs"][0]["id"]);
        said(self, "PUT /api/v1/runner/jobs/{id}/caches").await;
        let found = said(self, "POST /api/v1/runner/jobs/{id}/caches/find").await;
        self.cache = text(&found["cache"]["id"]);
        let made = said(self, "POST /api/v1/runner/uploads").await;
        self.upload = text(&made["upload_id"]);
        let made = said(self, &format!("POST /api/v1/runner/uploads{OF_THE_LOG}")).await;
        self.log = text(&made["upload_id"]);
    }

    /// What the agent's own process shows.
    fn own(&self) -> Shown {
        self.shown("i1")
    }

    fn shown(&self, process: &str) -> Shown {
        let secret = &self.agent.registered.resume_secret;
        Some(format!("{process} {secret}").trim_end().to_owned())
    }

    /// Every endpoint that a lease opens.
    async fn endpoints(&self) -> Vec<String> {
        let document = self.bench.get("/api/v1/openapi.json").await.expect(200);
        let mut found = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            if path.starts_with("/api/v1/runner/") {
                let methods = methods.as_object().unwrap().keys();
                found.extend(methods.map(|it| format!("{} {path}", it.to_uppercase())));
            }
        }
        assert!(found.len() >= 16, "{found:?}");
        found.retain(|key| key != WITHOUT_A_LEASE);
        let uploads = found.iter().filter(|key| key.contains("/uploads"));
        let logs: Vec<String> = uploads.map(|key| format!("{key}{OF_THE_LOG}")).collect();
        assert_eq!(logs.len(), 2, "{found:?}");
        found.extend(logs);
        // A lease that is over is no right: this one is tried last.
        found.sort_by_key(|key| key.ends_with("/complete"));
        found
    }

    async fn ask(&self, key: &str, shown: &Shown) -> Answer {
        let mut request = self.request(key).bearer_auth(&self.token);
        if let Some(shown) = shown {
            request = request.header("Delta-Agent", shown);
        }
        Answer::of(request.send().await.unwrap()).await
    }

    /// A request that is good, if its sender is.
    fn request(&self, key: &str) -> RequestBuilder {
        let (kind, upload, key) = match key.strip_suffix(OF_THE_LOG) {
            Some(key) => ("log", &self.log, key),
            None => ("artifact", &self.upload, key),
        };
        let (method, path) = key.split_once(' ').unwrap();
        let path = path.replace("/jobs/{id}", &format!("/jobs/{}", self.lease.job));
        let path = path.replace("{artifact}", &self.input);
        let path = path.replace("{cache}", &self.cache);
        let path = path.replace("/uploads/{id}", &format!("/uploads/{upload}"));
        let method: Method = method.parse().unwrap();
        let request = |more: &str| {
            let url = format!("{}{path}{more}", self.bench.base);
            self.bench.client.request(method.clone(), url)
        };
        let plain = |more: &str| request(more).header("Delta-Lease", &self.lease.id);
        let said = |body: Value| request("").body(body.to_string());
        let (id, runner) = (&self.lease.id, &self.lease.runner);
        match key.strip_prefix("POST /api/v1/runner/") {
            Some("ack-lease") => return said(self.lease.ack()),
            Some("heartbeat") => return said(self.lease.beat()),
            Some("complete") => return said(self.lease.complete("SUCCEEDED", 0)),
            Some("cancel-ack") => return said(self.lease.cancel_ack()),
            Some("secrets") => return plain("").json(&json!({ "names": ["TOKEN"] })),
            Some("results") => {
                return said(json!({ "type": "TestResults", "lease_id": id,
                    "runner_id": runner, "results": [{ "name": "t", "status": "PASS" }] }));
            }
            Some("uploads") => {
                return said(json!({ "type": "CreateUpload", "lease_id": id,
                    "runner_id": runner, "name": "new.txt", "kind": kind }));
            }
            Some("jobs/{id}/caches/find") => return plain("").json(&json!({ "key": "deps" })),
            Some("jobs/{id}/caches/{cache}/check") => return plain(""),
            _ => {}
        }
        match key {
            "PUT /api/v1/runner/uploads/{id}" => {
                plain("").header("Upload-Offset", "0").body("bytes")
            }
            "PUT /api/v1/runner/jobs/{id}/caches" => {
                plain(&format!("?key=deps&sha256={}", hash(b"bytes"))).body("bytes")
            }
            "GET /api/v1/runner/jobs/{id}/spec"
            | "GET /api/v1/runner/jobs/{id}/inputs"
            | "GET /api/v1/runner/jobs/{id}/inputs/{artifact}"
            | "GET /api/v1/runner/jobs/{id}/caches/{cache}" => plain(""),
            other => panic!("{other} is new: say here how it is asked, so that its rule is tried"),
        }
    }

    /// Every endpoint refuses this caller with this code, in words.
    async fn refuses(&self, shown: &Shown, code: &str) {
        for key in self.endpoints().await {
            let answer = self.ask(&key, shown).await;
            assert!(!answer.text.contains("canary"), "{key}");
            let body = answer.expect(403);
            assert_eq!(body["code"], code, "{key} by {shown:?}");
            assert!(text(&body["message"]).len() > 20, "{body}");
        }
    }

    /// Every endpoint serves its holder; the last word is left to be said.
    async fn serves(&self, shown: &Shown) {
        for key in self.endpoints().await {
            if key.ends_with("/complete") {
                continue;
            }
            let answer = self.ask(&key, shown).await;
            // Nobody has asked for a cancel.
            let expected = key.ends_with("/cancel-ack");
            let served = answer.status.is_success() || expected && answer.status == 409;
            assert!(served, "{key}: {} {}", answer.status, answer.text);
        }
    }

    async fn revoke(&self) {
        let revoked = self.bench.revoke(&self.bench.admin, &self.agent.id).await;
        revoked.expect(204);
    }

    async fn completes(&self, shown: &Shown) {
        let done = self.ask("POST /api/v1/runner/complete", shown).await;
        assert_eq!(done.expect(200)["accepted"], true);
        let shown = self.bench.show(&self.lease.run).await;
        assert_eq!(shown["outcome"], "SUCCESS");
    }
}

#[tokio::test]
async fn whoever_shares_the_token_and_has_the_lease_gets_nothing_of_an_agents() {
    // T3, I23
    let scene = Scene::new(false).await;
    scene.refuses(&None, "AGENT_UNPROVEN").await;
    let guessed = Some("i1".to_owned());
    scene.refuses(&guessed, "AGENT_UNPROVEN").await;
    let wrong = Some("i1 resume_00".to_owned());
    scene.refuses(&wrong, "AGENT_UNPROVEN").await;
    scene.serves(&scene.own()).await;
    scene.completes(&scene.own()).await;
}

#[tokio::test]
async fn a_process_whose_session_is_superseded_gets_nothing_more() {
    // I23, A26
    for bound in [false, true] {
        let scene = Scene::new(bound).await;
        scene.serves(&scene.own()).await;
        let newer = RegisterRequest {
            agent_id: scene.agent.id.clone(),
            resume_secret: scene.agent.registered.resume_secret.clone(),
            instance: "i2".into(),
            ..registration()
        };
        let newer = Agent::register_as(&scene.bench, &scene.token, newer).await;
        let _newer = newer.unwrap();
        scene.refuses(&scene.own(), "AGENT_SUPERSEDED").await;
        scene.serves(&scene.shown("i2")).await;
        scene.completes(&scene.shown("i2")).await;
    }
}

#[tokio::test]
async fn a_revoked_agent_has_no_right_at_any_endpoint() {
    // D14, T3
    for bound in [false, true] {
        let mut scene = Scene::new(bound).await;
        scene.serves(&scene.own()).await;
        scene.revoke().await;
        for shown in [scene.own(), None, scene.shown("i2")] {
            scene.refuses(&shown, "AGENT_REVOKED").await;
        }
        let ended = scene.agent.ends().await.unwrap();
        assert_eq!(ended.code(), Code::PermissionDenied);
        assert!(ended.message().starts_with("AGENT_REVOKED: "), "{ended}");
        let job = scene.bench.show_job(&scene.lease.job).await;
        assert_eq!(job["attempts"][0]["state"], "RUNNING", "{job}");
        let ask = json!({ "type": "Lease", "runner_id": scene.lease.runner, "capabilities": [] });
        let path = "/api/v1/runner/lease";
        scene.bench.post(&scene.token, path, ask).await.expect(403);
    }
}

#[tokio::test]
async fn an_agent_that_shows_nothing_in_requests_is_served_and_revoked_like_any() {
    // The agents of before: they registered with their secret, and their requests carry none.
    for bound in [false, true] {
        let scene = Scene::of(bound, request()).await;
        scene.serves(&None).await;
        scene.revoke().await;
        scene.refuses(&None, "AGENT_REVOKED").await;
    }
}

#[tokio::test]
async fn a_revoked_token_has_no_right_at_any_endpoint() {
    // EP-30, D14
    let scene = Scene::new(false).await;
    scene.bench.revoke_token(&scene.token_id).await;
    let own = scene.own();
    let keys = scene.endpoints().await;
    for key in keys.iter().map(String::as_str).chain([WITHOUT_A_LEASE]) {
        let answer = if key == WITHOUT_A_LEASE {
            let ask = json!({ "type": "Lease", "runner_id": "r", "capabilities": [] });
            let path = "/api/v1/runner/lease";
            scene.bench.post(&scene.token, path, ask).await
        } else {
            scene.ask(key, &own).await
        };
        assert_eq!(answer.expect(401)["code"], "UNAUTHENTICATED", "{key}");
    }
}

impl Scene {
    /// An upload of an artifact under way: where its bytes go in, and its answer.
    async fn uploading(&self) -> (DuplexStream, JoinHandle<Answer>) {
        let (mut bytes, body) = tokio::io::duplex(64);
        let body = reqwest::Body::wrap_stream(ReaderStream::new(body));
        let request = self.request("PUT /api/v1/runner/uploads/{id}");
        let request = request.header("Delta-Agent", self.own().unwrap());
        let request = request.bearer_auth(&self.token).body(body);
        let answer = tokio::spawn(async { Answer::of(request.send().await.unwrap()).await });
        bytes.write_all(b"half and").await.unwrap();
        self.is_received().await;
        (bytes, answer)
    }

    /// The server has judged the head and has the part in hand.
    async fn is_received(&self) {
        let objects = self.bench.data.path().to_owned();
        eventually_async(PATIENCE, "the first bytes are received", async || {
            if holds(&objects, b"half") {
                Ok(())
            } else {
                Err("not yet")
            }
        })
        .await;
    }

    async fn registers(&self, process: &str) -> Agent {
        let again = RegisterRequest {
            agent_id: self.agent.id.clone(),
            resume_secret: self.agent.registered.resume_secret.clone(),
            instance: process.into(),
            ..registration()
        };
        let again = Agent::register_as(&self.bench, &self.token, again).await;
        again.unwrap()
    }
}

/// Whether a file below this folder begins with these bytes.
fn holds(folder: &std::path::Path, bytes: &[u8]) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            holds(&path, bytes)
        } else {
            std::fs::read(&path).is_ok_and(|read| read.starts_with(bytes))
        }
    })
}

#[tokio::test]
async fn an_upload_under_way_outlives_a_reconnect_of_its_own_process() {
    // F45, I23
    for bound in [false, true] {
        let scene = Scene::new(bound).await;
        let (mut bytes, answer) = scene.uploading().await;
        let again = scene.registers("i1").await;
        let epoch = scene.agent.registered.session_epoch;
        assert!(again.registered.session_epoch > epoch);
        bytes.write_all(b" whole").await.unwrap();
        drop(bytes);
        assert_eq!(answer.await.unwrap().expect(200)["received"], 14);
    }
}

#[tokio::test]
async fn an_upload_under_way_ends_with_the_right_to_it() {
    // I23, D14: of another process, and of an agent that was revoked meanwhile.
    for (revoked, code) in [(false, "AGENT_SUPERSEDED"), (true, "AGENT_REVOKED")] {
        let scene = Scene::new(false).await;
        let (mut bytes, answer) = scene.uploading().await;
        let _newer = if revoked {
            scene.revoke().await;
            None
        } else {
            Some(scene.registers("i2").await)
        };
        // It never stops sending by itself.
        let sending = tokio::spawn(async move {
            while bytes.write_all(b".").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        let answer = answer.expect("it is cut off").unwrap();
        assert_eq!(answer.expect(403)["code"], code);
        sending.abort();
    }
}

#[tokio::test]
async fn bytes_on_their_way_to_a_revoked_agent_break_off() {
    // D14: more than the sockets hold, read slowly.
    const SIZE: usize = 32 * 1024 * 1024;
    let mut scene = Scene::new(false).await;
    let (bytes, own) = (vec![7; SIZE], scene.own().unwrap());
    let url = |scene: &Scene, rest: &str| {
        let (base, job) = (&scene.bench.base, &scene.lease.job);
        format!("{base}/api/v1/runner/jobs/{job}/caches{rest}")
    };
    let with = |scene: &Scene, request: RequestBuilder| {
        let request = request.bearer_auth(&scene.token);
        let request = request.header("Delta-Lease", &scene.lease.id);
        request.header("Delta-Agent", &own)
    };
    let query = format!("?key=large&sha256={}", hash(&bytes));
    let save = scene.bench.client.put(url(&scene, &query)).body(bytes);
    let saved = Answer::of(with(&scene, save).send().await.unwrap()).await;
    assert_eq!(saved.expect(200)["saved"], true);
    let find = scene.bench.client.post(url(&scene, "/find"));
    let find = with(&scene, find).json(&json!({ "key": "large" }));
    let found = Answer::of(find.send().await.unwrap()).await.expect(200);
    scene.cache = text(&found["cache"]["id"]);
    let fetch = scene
        .bench
        .client
        .get(url(&scene, &format!("/{}", scene.cache)));
    let mut fetched = with(&scene, fetch).send().await.unwrap();
    assert!(fetched.status().is_success());
    let mut received = fetched.chunk().await.unwrap().unwrap().len();
    scene.revoke().await;
    let end = loop {
        match fetched.chunk().await {
            Ok(Some(piece)) => received += piece.len(),
            end => break end,
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(end.is_err() && received < SIZE, "all {received} bytes came");
}
