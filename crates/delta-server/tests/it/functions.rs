//! Functions by the people's API, carried out by runners that speak HTTP.

use delta_testkit::wait::eventually_async;
use delta_wire::agent::proto::{Capabilities, Runtime};
use serde_json::{Value, json};

use crate::agent::{Agent, request};
use crate::bench::{Answer, Bench, Lease, PATIENCE, config, patient_settings, text};

/// A lease on a function, acknowledged; `None` when nothing came.
pub async fn take(bench: &Bench, runner: &str, wait: f64) -> Option<Lease> {
    let message = json!({
        "type": "Lease", "runner_id": runner, "wait_seconds": wait,
        "capabilities": ["work:function", "runner:python"],
    });
    let answer = bench.say("/lease", message).await;
    if answer.status == 204 {
        return None;
    }
    let lease = Lease::from(&answer.expect(200), runner);
    bench.say("/ack-lease", lease.ack()).await.expect(200);
    Some(lease)
}

pub async fn taken(bench: &Bench) -> Lease {
    take(bench, "r1", 10.0).await.expect("work")
}

pub async fn finish(bench: &Bench, lease: &Lease, status: &str, code: i64, answer: Value) {
    let mut complete = lease.complete(status, code);
    complete["answer"] = answer;
    bench.say("/complete", complete).await.expect(200);
}

pub async fn not_found(bench: &Bench, lease: &Lease) {
    let mut complete = lease.complete("FAILED", 1);
    complete["cause"] = json!("handler_not_found");
    complete["answer"] = json!({"error": {"message": "no handler", "type": "handler_not_found"}});
    bench.say("/complete", complete).await.expect(200);
}

pub async fn enqueue(bench: &Bench, body: Value) -> Value {
    bench.ask("/functions", body).await.expect(201)
}

pub async fn shown(bench: &Bench, id: &Value, wait: u32) -> Value {
    let path = format!("/api/v1/functions/{}?wait={wait}", text(id));
    bench.get(&path).await.expect(200)
}

#[tokio::test]
async fn a_function_is_called_and_its_result_awaited() {
    // RQ-18, RQ-29, RQ-30
    let bench = Bench::patient().await;
    let call = json!({"function": "python#send_email", "params": {"to": "x"}, "queue": "mail"});
    let view = enqueue(&bench, call).await;
    assert_eq!(
        (&view["state"], &view["queue"]),
        (&json!("QUEUED"), &json!("mail"))
    );
    let lease = taken(&bench).await;
    let function = &lease.granted["job_spec"]["function"];
    assert_eq!(function["name"], "python#send_email");
    assert_eq!(function["params"], json!({"to": "x"}));
    assert!(function["enqueued_at"].is_string());
    let waiting = {
        let (client, base, user) = (bench.client.clone(), bench.base.clone(), bench.user.clone());
        let url = format!("{base}/api/v1/functions/{}?wait=20", text(&view["id"]));
        tokio::spawn(async move {
            Answer::of(client.get(url).bearer_auth(user).send().await.unwrap()).await
        })
    };
    finish(
        &bench,
        &lease,
        "SUCCEEDED",
        0,
        json!({"result": {"sent": [1, 2.5]}}),
    )
    .await;
    let done = waiting.await.unwrap().expect(200);
    assert_eq!(done["state"], "SUCCEEDED");
    assert_eq!(done["result"], json!({"sent": [1, 2.5]}));
    assert_eq!(done["params"], json!({"to": "x"}));
    assert_eq!(done["tries"][0]["attempt"], 1);
    assert_eq!(done["dead_letter"], false);
    // Runs are listed without functions, and functions by themselves.
    let runs = bench.get("/api/v1/runs").await.expect(200);
    assert_eq!(runs["runs"], json!([]));
    let list = bench.get("/api/v1/functions?queue=mail").await.expect(200);
    assert_eq!(list["functions"][0]["id"], view["id"]);
}

#[tokio::test]
async fn an_error_is_tried_again_and_ends_as_a_dead_letter() {
    // A48, A57, RQ-33
    let bench = Bench::patient().await;
    let call = json!({"function": "python#f", "max_attempts": 2, "backoff_seconds": 0.001});
    let view = enqueue(&bench, call).await;
    for attempt in 1..=2 {
        let lease = taken(&bench).await;
        assert_eq!(lease.granted["attempt"], attempt);
        let error = json!({"error": {"message": format!("boom {attempt}"), "type": "ValueError"}});
        finish(&bench, &lease, "FAILED", 1, error).await;
    }
    let done = shown(&bench, &view["id"], 10).await;
    assert_eq!(
        (&done["state"], &done["dead_letter"]),
        (&json!("FAILED"), &json!(true))
    );
    assert_eq!(
        done["error"],
        json!({"message": "boom 2", "type": "ValueError"})
    );
    assert_eq!(done["tries"][0]["error"]["message"], "boom 1");
    let dead = bench
        .get("/api/v1/dead-letters?function=f")
        .await
        .expect(200);
    assert_eq!(dead["functions"].as_array().unwrap().len(), 1);
    let none = bench
        .get("/api/v1/dead-letters?cause=spec_error")
        .await
        .expect(200);
    assert_eq!(none["functions"], json!([]));
}

#[tokio::test]
async fn dead_letters_that_fit_are_found_behind_many_that_do_not() {
    let bench = Bench::patient().await;
    for name in ["wanted", "wanted", "other", "other", "other", "wanted"] {
        let call = json!({"function": format!("python#{name}")});
        enqueue(&bench, call).await;
        not_found(&bench, &taken(&bench).await).await;
    }
    let (mut path, mut pages) = ("/api/v1/dead-letters?function=wanted&limit=1".to_owned(), 0);
    loop {
        let page = bench.get(&path).await.expect(200);
        assert_eq!(page["functions"].as_array().unwrap().len(), 1, "{page}");
        assert_eq!(page["functions"][0]["function"], "python#wanted");
        pages += 1;
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/api/v1/dead-letters?function=wanted&limit=1&cursor={cursor}");
    }
    assert_eq!(pages, 3);
}

#[tokio::test]
async fn a_missing_handler_is_a_dead_letter_at_once_and_can_be_called_again() {
    // RQ-37
    let bench = Bench::patient().await;
    let view = enqueue(
        &bench,
        json!({"function": "python#nosuch", "max_attempts": 9}),
    )
    .await;
    not_found(&bench, &taken(&bench).await).await;
    let done = shown(&bench, &view["id"], 0).await;
    assert_eq!(
        (&done["attempts"], &done["cause"]),
        (&json!(1), &json!("handler_not_found"))
    );
    let all = json!({"queue": "default", "dry_run": true});
    let dry = bench
        .ask("/dead-letters/requeue", all.clone())
        .await
        .expect(200);
    assert_eq!(
        (&dry["chosen"], &dry["requeued"]),
        (&json!([view["id"]]), &json!([]))
    );
    let named = json!({"ids": [view["id"]]});
    let again = bench
        .ask("/dead-letters/requeue", named.clone())
        .await
        .expect(200);
    let fresh = &again["requeued"][0];
    assert_eq!(shown(&bench, fresh, 0).await["requeue_of"], view["id"]);
    assert_eq!(shown(&bench, &view["id"], 0).await["dead_letter"], false);
    let refused = bench.ask("/dead-letters/requeue", named).await.expect(422);
    assert!(
        text(&refused["message"]).contains("is no dead letter"),
        "{refused}"
    );
    finish(
        &bench,
        &taken(&bench).await,
        "SUCCEEDED",
        0,
        json!({"result": 1}),
    )
    .await;
    assert_eq!(shown(&bench, fresh, 10).await["result"], 1);
    // Another one is put aside without being called again.
    enqueue(&bench, json!({"function": "python#nosuch"})).await;
    not_found(&bench, &taken(&bench).await).await;
    let purged = bench
        .ask("/dead-letters/purge", json!({"all": true}))
        .await
        .expect(200);
    assert_eq!(purged["chosen"].as_array().unwrap().len(), 1);
    let dead = bench.get("/api/v1/dead-letters").await.expect(200);
    assert_eq!(dead["functions"], json!([]));
}

/// Why the only job of a call waits.
async fn why(bench: &Bench, call: &Value) -> Value {
    let job = text(&call["id"]).replacen("run_", "job_", 1);
    let job = bench
        .get(&format!("/api/v1/jobs/{job}_1"))
        .await
        .expect(200);
    job["why"]["code"].clone()
}

#[tokio::test]
async fn a_paused_queue_gives_nothing_out() {
    let bench = Bench::patient().await;
    let paused = bench
        .ask("/queues/mail/pause", json!({"reason": "deploy"}))
        .await
        .expect(200);
    assert!(
        text(&paused["paused"]["by"]).ends_with("deploy"),
        "{paused}"
    );
    let mail = enqueue(&bench, json!({"function": "python#f", "queue": "mail"})).await;
    let other = enqueue(&bench, json!({"function": "python#f", "queue": "video"})).await;
    let lease = taken(&bench).await;
    assert_eq!(json!(lease.run), other["id"]);
    finish(&bench, &lease, "SUCCEEDED", 0, json!({"result": null})).await;
    assert!(take(&bench, "r1", 0.3).await.is_none(), "mail is paused");
    assert_eq!(why(&bench, &mail).await, "queue_paused");
    let later = json!({"function": "python#f", "queue": "video", "delay_seconds": 3600});
    let later = enqueue(&bench, later).await;
    assert_eq!(why(&bench, &later).await, "waiting_for_moment");
    let queues = bench.get("/api/v1/queues").await.expect(200);
    let of = |name: &str| {
        let all = queues["queues"].as_array().unwrap();
        all.iter().find(|it| it["name"] == name).cloned().unwrap()
    };
    assert_eq!(
        (&of("mail")["depth"], &of("video")["depth"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(of("video")["succeeded_per_minute"], 1);
    assert!(of("mail")["oldest_seconds"].as_f64().unwrap() > 0.0);
    // A slot that waits is woken by the resume.
    let waits = take(&bench, "r2", 20.0);
    let resumes = async {
        let parked = async || {
            let metrics = bench.get_as(&bench.admin, "/metrics").await.text;
            let waits = metrics.contains("delta_parked_slots 1");
            waits.then_some(()).ok_or("nobody waits")
        };
        eventually_async(PATIENCE, "the slot waits", parked).await;
        bench
            .ask("/queues/mail/resume", json!({}))
            .await
            .expect(200)
    };
    let (lease, _) = tokio::join!(waits, resumes);
    assert_eq!(json!(lease.expect("work").run), mail["id"]);
    bench
        .ask("/queues/a%20b/pause", json!({}))
        .await
        .expect(422);
}

#[tokio::test]
async fn a_thousand_calls_are_made_at_once_and_once() {
    let bench = Bench::patient().await;
    let call = |n: u32| json!({"function": "python#f", "params": {"n": n}});
    let body = json!({"functions": (0..1000).map(call).collect::<Vec<_>>()});
    let post = || async {
        let url = format!("{}/api/v1/functions", bench.base);
        let request = bench.client.post(url).bearer_auth(&bench.user);
        let request = request
            .header("Idempotency-Key", "batch")
            .body(body.to_string());
        Answer::of(request.send().await.unwrap()).await.expect(201)
    };
    let (first, again) = (post().await, post().await);
    let ids = |list: &Value| -> Vec<String> {
        let all = list["functions"].as_array().unwrap();
        all.iter().map(|it| text(&it["id"])).collect()
    };
    assert_eq!(ids(&first).len(), 1000);
    assert_eq!(ids(&first), ids(&again));
    assert_eq!(again["functions"][999]["existing"], true);
    let queue = bench.get("/api/v1/queues/default").await.expect(200);
    assert_eq!(queue["depth"], 1000);
    let last = shown(&bench, &first["functions"][999]["id"], 0).await;
    assert_eq!(last["params"], json!({"n": 999}));
}

#[tokio::test]
async fn delays_and_unique_keys_are_kept() {
    let bench = Bench::patient().await;
    let unique = json!({"function": "python#f", "unique_key": "k", "delay_seconds": 0.4});
    let first = enqueue(&bench, unique.clone()).await;
    assert_eq!(
        (&first["state"], &first["existing"]),
        (&json!("CREATED"), &json!(false))
    );
    assert!(first["not_before"].is_string());
    let again = enqueue(&bench, unique).await;
    assert_eq!(
        (&again["id"], &again["existing"]),
        (&first["id"], &json!(true))
    );
    assert!(take(&bench, "r1", 0.0).await.is_none(), "not yet");
    let lease = taken(&bench).await;
    assert_eq!(json!(lease.run), first["id"]);
    // The same key in another queue is another key.
    let other = json!({"function": "python#f", "unique_key": "k", "queue": "other"});
    assert_ne!(enqueue(&bench, other).await["id"], first["id"]);
}

#[tokio::test]
async fn a_route_names_the_runner_of_functions_that_name_none() {
    let bench = Bench::patient().await;
    let url = format!("{}/api/v1/queues/mail", bench.base);
    let request = bench.client.put(url).bearer_auth(&bench.user);
    let request = request.body(json!({"runner": "python"}).to_string());
    let routed = Answer::of(request.send().await.unwrap()).await.expect(200);
    assert_eq!(routed["runner"], "python");
    let view = enqueue(&bench, json!({"function": "send", "queue": "mail"})).await;
    assert_eq!(view["function"], "python#send");
    let lease = taken(&bench).await;
    assert_eq!(lease.granted["job_spec"]["function"]["name"], "python#send");
}

#[tokio::test]
async fn a_runner_that_nobody_has_fails_at_once() {
    // RQ-45
    let bench = Bench::patient().await;
    let early = enqueue(&bench, json!({"function": "ruby#f"})).await;
    assert_eq!(early["state"], "QUEUED", "the first agent may still come");
    let mut register = request();
    register.capabilities = Some(Capabilities {
        max_parallel: 1,
        work: vec!["function".into()],
        runtimes: vec![Runtime {
            name: "runner:python".into(),
            ..Default::default()
        }],
        ..Default::default()
    });
    let agent = Agent::register(&bench, register).await.unwrap();
    let known = enqueue(&bench, json!({"function": "python#f"})).await;
    assert_ne!(known["state"], "FAILED");
    let unknown = enqueue(&bench, json!({"function": "perl#f"})).await;
    assert_eq!(
        (&unknown["state"], &unknown["dead_letter"]),
        (&json!("FAILED"), &json!(true))
    );
    assert_eq!(unknown["cause"], "handler_not_found");
    // Who asks for work over HTTP has runners, too.
    let asks = json!({"type": "Lease", "runner_id": "go", "wait_seconds": 0,
        "capabilities": ["work:function", "runner:go"]});
    bench.say("/lease", asks).await;
    let served = enqueue(&bench, json!({"function": "go#f"})).await;
    assert_eq!(served["state"], "QUEUED", "{served}");
    drop(agent);
}

#[tokio::test]
async fn a_bad_call_is_told_everything_that_is_wrong() {
    let bench = Bench::patient().await;
    let body = json!({"function": "a#", "params": [], "queue": "a b", "retries": 3});
    let refused = bench.ask("/functions", body).await.expect(422);
    let message = text(&refused["message"]);
    for field in ["function", "params", "queue", "retries"] {
        assert!(message.contains(field), "{field}: {message}");
    }
    let run = bench.create_one().await.0;
    bench
        .get(&format!("/api/v1/functions/{run}"))
        .await
        .expect(404);
    bench.get("/api/v1/functions?colour=red").await.expect(422);
}

#[tokio::test]
async fn what_an_attempt_asks_for_decides_when_it_is_tried_again() {
    // RQ-31, RQ-38, A48
    let bench = Bench::patient().await;
    let view = enqueue(&bench, json!({"function": "python#f"})).await;
    let lease = taken(&bench).await;
    let later = json!({"error": {"message": "later"}, "retry_after_ms": 3_600_000});
    finish(&bench, &lease, "FAILED", 1, later).await;
    let waits = shown(&bench, &view["id"], 0).await;
    assert_eq!(
        (&waits["state"], &waits["attempts"]),
        (&json!("CREATED"), &json!(2))
    );
    assert_eq!(waits["error"]["message"], "later");
    let why = bench
        .get(&format!("/api/v1/jobs/{}", lease.job))
        .await
        .expect(200);
    assert_eq!(why["why"]["code"], "waiting_for_retry");
}

#[tokio::test]
async fn a_call_is_followed_to_its_end() {
    let bench = Bench::patient().await;
    let view = enqueue(
        &bench,
        json!({"function": "python#f", "delay_seconds": 3600}),
    )
    .await;
    let url = format!("{}/api/v1/functions/{}", bench.base, text(&view["id"]));
    let follow = || {
        let request = bench.client.get(&url).bearer_auth(&bench.user);
        request.header("accept", "text/event-stream").send()
    };
    let mut stream = follow().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let first = stream.chunk().await.unwrap().expect("how it stands now");
    let first = String::from_utf8(first.to_vec()).unwrap();
    assert!(first.starts_with("event: call\ndata: {"), "{first}");
    assert!(first.contains(r#""state":"CREATED""#), "{first}");
    let cancel = format!("/runs/{}/cancel", text(&view["id"]));
    bench.ask(&cancel, json!({})).await.expect(200);
    let mut rest = String::new();
    while let Some(chunk) = stream.chunk().await.unwrap() {
        rest.push_str(&String::from_utf8_lossy(&chunk));
    }
    let last = rest.trim_end().rsplit("data: ").next().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["state"], "CANCELED", "{rest}");
    assert!(last["ended_at"].is_string(), "{rest}");
    // One that has ended is told at once, and the stream is over.
    let whole = follow().await.unwrap().text().await.unwrap();
    assert_eq!(whole.matches("event: call").count(), 1, "{whole}");
    let nobody = bench.client.get(&url).header("accept", "text/event-stream");
    assert_eq!(nobody.send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn a_unique_key_is_free_again_after_its_time() {
    let bench = Bench::patient().await;
    let call = json!({"function": "python#f", "unique_key": "k", "unique_seconds": 0.3});
    let first = enqueue(&bench, call.clone()).await;
    let again = enqueue(&bench, call.clone()).await;
    assert_eq!(again["id"], first["id"]);
    let other = async || {
        let made = enqueue(&bench, call.clone()).await;
        let fresh = made["id"] != first["id"] && made["existing"] == false;
        fresh.then_some(()).ok_or(made)
    };
    eventually_async(PATIENCE, "the key is free again", other).await;
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[tokio::test]
async fn options_of_a_call_are_those_of_its_job() {
    let bench = Bench::patient().await;
    let low = enqueue(&bench, json!({"function": "python#low", "priority": -5})).await;
    let high = json!({"function": "python#high", "priority": 5, "timeout_seconds": 77,
        "trace_context": {"traceparent": PARENT}});
    let high = enqueue(&bench, high).await;
    let lease = taken(&bench).await;
    assert_eq!(json!(lease.run), high["id"], "higher is sooner");
    let function = &lease.granted["job_spec"]["function"];
    assert_eq!(function["trace_context"]["traceparent"], PARENT);
    assert_eq!(
        lease.granted["max_runtime_seconds"], 77,
        "{}",
        lease.granted
    );
    let shown_high = shown(&bench, &high["id"], 0).await;
    assert_eq!(shown_high["trace_context"]["traceparent"], PARENT);
    finish(&bench, &lease, "SUCCEEDED", 0, json!({"result": 1})).await;
    assert_eq!(json!(taken(&bench).await.run), low["id"]);
    // A moment instead of a delay.
    let at = json!({"function": "python#f", "not_before": "2099-01-31T12:00:00Z"});
    let waits = enqueue(&bench, at).await;
    assert_eq!(waits["not_before"], "2099-01-31T12:00:00Z", "{waits}");
    assert_eq!(waits["state"], "CREATED");
}

#[tokio::test]
async fn delays_between_attempts_grow_to_their_cap() {
    let bench = Bench::patient().await;
    let call = json!({"function": "python#f", "max_attempts": 3, "backoff_seconds": 3600,
        "backoff_cap_seconds": 3600});
    let view = enqueue(&bench, call).await;
    let before = std::time::SystemTime::now();
    finish(
        &bench,
        &taken(&bench).await,
        "FAILED",
        1,
        json!({"error": {"message": "m"}}),
    )
    .await;
    let waits = shown(&bench, &view["id"], 0).await;
    let until = delta_wire::Millis::from_rfc3339(&text(&waits["not_before"])).unwrap();
    let before = before.duration_since(std::time::UNIX_EPOCH).unwrap();
    let delay = until.0 / 1000 - i64::try_from(before.as_secs()).unwrap();
    assert!(
        (1700..=3700).contains(&delay),
        "jitter, and no more: {delay} s"
    );
}

#[tokio::test]
async fn a_batch_with_something_wrong_makes_nothing() {
    let bench = Bench::patient().await;
    let body = json!({"functions": [{"function": "python#f"}, {"function": "python#f",
        "params": []}]});
    let refused = bench.ask("/functions", body).await.expect(422);
    assert!(
        text(&refused["message"]).contains("functions[1].params"),
        "{refused}"
    );
    let list = bench.get("/api/v1/functions").await.expect(200);
    assert_eq!(list["functions"], json!([]));
    // The same key with another batch is another request.
    let post = async |body: Value| {
        let request = bench
            .client
            .post(format!("{}/api/v1/functions", bench.base));
        let request = request
            .bearer_auth(&bench.user)
            .header("Idempotency-Key", "b");
        Answer::of(request.body(body.to_string()).send().await.unwrap()).await
    };
    let one = json!({"functions": [{"function": "python#f"}]});
    post(one.clone()).await.expect(201);
    post(one).await.expect(201);
    let other = json!({"functions": [{"function": "python#g"}]});
    // A longer one too, none of which is made.
    let longer = json!({"functions": [{"function": "python#f"}, {"function": "python#g"}]});
    for body in [other, longer] {
        let refused = post(body).await.expect(409);
        assert_eq!(refused["code"], "IDEMPOTENCY_CONFLICT");
        let list = bench.get("/api/v1/functions").await.expect(200);
        assert_eq!(list["functions"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_result_is_gone_after_its_time() {
    let data = tempfile::tempdir().unwrap();
    let sqlite = |data: &tempfile::TempDir| delta_server::Config {
        store: delta_server::StoreChoice::Sqlite,
        limits: delta_server::Limits {
            shortest_keep: delta_core::Span(100),
            ..delta_server::Limits::recommended()
        },
        ..config(data, patient_settings())
    };
    let first = sqlite(&data);
    let mut bench = Bench::start(data, first).await;
    let call = json!({"function": "python#f", "result_ttl_seconds": 0.3});
    let view = enqueue(&bench, call).await;
    let kept = enqueue(&bench, json!({"function": "python#f"})).await;
    for _ in 0..2 {
        finish(
            &bench,
            &taken(&bench).await,
            "SUCCEEDED",
            0,
            json!({"result": 7}),
        )
        .await;
    }
    let path = |id: &Value| format!("/api/v1/functions/{}", text(id));
    let gone = async || {
        let status = bench.get(&path(&view["id"])).await.status;
        (status == 404).then_some(()).ok_or(status)
    };
    eventually_async(PATIENCE, "its time is over", gone).await;
    assert_eq!(bench.get(&path(&kept["id"])).await.expect(200)["result"], 7);
    // Not only hidden: what is over is deleted when a server starts, and every minute.
    bench.stop().await;
    let again = sqlite(&bench.data);
    let bench = Bench::start(bench.data, again).await;
    let run = format!("/api/v1/runs/{}", text(&view["id"]));
    let deleted = async || {
        let status = bench.get(&run).await.status;
        (status == 404).then_some(()).ok_or(status)
    };
    eventually_async(PATIENCE, "it is deleted", deleted).await;
    assert_eq!(bench.get(&path(&kept["id"])).await.expect(200)["result"], 7);
}
