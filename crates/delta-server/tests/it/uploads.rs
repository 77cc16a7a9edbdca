//! Logs and artifacts: fenced by their lease, exact to the byte, honest about what is missing.

use serde_json::{Value, json};

use crate::bench::{Answer, Bench, Lease, PATIENCE, forcing_settings, job, quick_settings, text};

const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// Asks where to put something.
pub async fn create(bench: &Bench, lease: &Lease, kind: &str, more: Value) -> Answer {
    let mut message = json!({ "type": "CreateUpload", "lease_id": lease.id,
        "runner_id": lease.runner, "name": "out.txt", "kind": kind });
    for (name, value) in more.as_object().unwrap() {
        message[name] = value.clone();
    }
    bench.say("/uploads", message).await
}

/// Where to put the log of a lease.
pub async fn log_url(bench: &Bench, lease: &Lease) -> String {
    text(&create(bench, lease, "log", json!({})).await.expect(201)["url"])
}

pub async fn put(bench: &Bench, url: &str, lease: &str, offset: u64, bytes: &str) -> Answer {
    put_bytes(bench, url, lease, offset, bytes.into()).await
}

pub async fn put_bytes(
    bench: &Bench,
    url: &str,
    lease: &str,
    offset: u64,
    bytes: Vec<u8>,
) -> Answer {
    let request = bench
        .client
        .put(format!("{}{url}", bench.base))
        .bearer_auth(&bench.runner);
    let request = request
        .header("Delta-Lease", lease)
        .header("Upload-Offset", offset);
    Answer::of(request.body(bytes).send().await.unwrap()).await
}

/// Stores the whole log of a lease.
pub async fn put_log(bench: &Bench, lease: &Lease, bytes: &str) -> String {
    let url = log_url(bench, lease).await;
    put(bench, &url, &lease.id, 0, bytes).await.expect(200);
    url
}

/// Stores an artifact, and returns the reference to name in Complete.
pub async fn put_artifact(bench: &Bench, lease: &Lease, name: &str, bytes: &str) -> Value {
    let created = create(bench, lease, "artifact", json!({ "name": name })).await;
    let created = created.expect(201);
    let url = text(&created["url"]);
    put(bench, &url, &lease.id, 0, bytes).await.expect(200);
    json!({ "type": "report", "uri": created["uri"] })
}

/// A completion that names these artifacts.
pub fn complete_with(lease: &Lease, status: &str, code: i64, artifacts: &[Value]) -> Value {
    let mut done = lease.complete(status, code);
    done["artifacts"] = json!(artifacts);
    done
}

async fn log_text(bench: &Bench, job: &str) -> String {
    bench.get(&format!("/api/v1/jobs/{job}/log")).await.text
}

/// What is said about the log of a job's first attempt.
pub async fn log_view(bench: &Bench, job: &str) -> Value {
    bench.show_job(job).await["attempts"][0]["log"].clone()
}

#[tokio::test]
async fn a_log_is_stored_byte_for_byte_and_shown_as_plain_text() {
    // A27, A49, RP-56
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let url = log_url(&bench, &lease).await;
    assert!(!url.contains(&lease.id), "no token in a URL (A24)");
    for (offset, bytes, received) in [(0, "a", 1), (1, "bc", 3), (1, "bc", 3)] {
        let stored = put(&bench, &url, &lease.id, offset, bytes).await;
        assert_eq!(stored.expect(200)["received"], received);
    }
    let gap = put(&bench, &url, &lease.id, 9, "x").await;
    let body = gap.expect(409);
    assert_eq!(
        (&body["code"], &body["expected"]),
        (&json!("OFFSET_MISMATCH"), &json!(3))
    );
    assert_eq!(gap.headers["upload-offset"], "3");
    let differs = put(&bench, &url, &lease.id, 0, "xyz").await.expect(409);
    assert_eq!(differs["code"], "LOG_CONFLICT");
    let path = format!("/api/v1/jobs/{}/log", lease.job);
    let log = bench.get(&path).await;
    assert_eq!((log.status.as_u16(), log.text.as_str()), (200, "abc"));
    assert_eq!(log.headers["x-content-type-options"], "nosniff");
    for (name, begins) in [
        ("content-type", "text/plain"),
        ("content-disposition", "attachment"),
    ] {
        let value = log.headers[name].to_str().unwrap();
        assert!(value.starts_with(begins), "{name}: {value}");
    }
    assert_eq!(bench.get(&format!("{path}?offset=1")).await.text, "bc");
    assert_eq!(bench.get(&format!("{path}?offset=99")).await.text, "");
    let request = bench
        .client
        .get(format!("{}{path}", bench.base))
        .bearer_auth(&bench.user);
    let part = Answer::of(request.header("range", "bytes=0-1").send().await.unwrap()).await;
    assert_eq!((part.status.as_u16(), part.text.as_str()), (206, "ab"));
    assert_eq!(part.headers["content-range"], "bytes 0-1/3");
}

#[tokio::test]
async fn the_view_says_whether_the_log_is_complete() {
    // D8, A22
    let bench = Bench::patient().await;
    for (length, sha256, complete, missing) in [
        (3, ABC.to_owned(), true, json!(null)),
        (5, ABC.to_owned(), false, json!(2)),
        (3, "0".repeat(64), false, json!(null)),
    ] {
        bench.create(json!([job("a")])).await;
        let lease = bench.acked().await;
        put_log(&bench, &lease, "abc").await;
        let mut done = lease.complete("SUCCEEDED", 0);
        done["log"] = json!({ "length": length, "sha256": sha256 });
        bench.say("/complete", done).await.expect(200);
        let log = log_view(&bench, &lease.job).await;
        assert_eq!(log["length"], 3);
        assert_eq!(log["complete"], complete, "{log}");
        assert_eq!(log.get("missing").cloned().unwrap_or_default(), missing);
    }
}

/// A job whose cancel was forced after half of its log had come, and the log's URL.
async fn forced(bench: &Bench) -> (Lease, String) {
    let (run, _) = bench.create_one().await;
    let lease = bench.acked().await;
    let url = put_log(bench, &lease, "half a").await;
    let path = format!("/api/v1/runs/{run}/cancel");
    bench.post(&bench.user, &path, "{}").await.expect(200);
    bench
        .until(&format!("/runs/{run}"), "/outcome", "CANCELED")
        .await;
    (lease, url)
}

#[tokio::test]
async fn a_forced_cancel_keeps_what_was_uploaded() {
    // SM-52, A42: what the runner sent, before and after, is readable and not called complete.
    let bench = Bench::memory(forcing_settings()).await;
    let (lease, url) = forced(&bench).await;
    assert_eq!(log_text(&bench, &lease.job).await, "half a");
    assert_eq!(log_url(&bench, &lease).await, url);
    put(&bench, &url, &lease.id, 6, " log").await.expect(200);
    assert_eq!(log_text(&bench, &lease.job).await, "half a log");
    let view = log_view(&bench, &lease.job).await;
    assert_eq!(
        (&view["length"], &view["complete"]),
        (&json!(10), &json!(false))
    );
    // The log and nothing else.
    let artifact = create(&bench, &lease, "artifact", json!({})).await;
    assert_eq!(artifact.expect(409)["reason"], "LEASE_REVOKED");
    let late = bench.say("/complete", lease.complete("SUCCEEDED", 0)).await;
    assert_eq!(late.expect(409)["reason"], "LEASE_REVOKED");
}

#[tokio::test]
async fn some_time_after_a_forced_cancel_nothing_more_is_stored() {
    // A42
    let bench = Bench::memory(delta_core::Settings {
        late_log: delta_core::Span(300),
        ..forcing_settings()
    })
    .await;
    let (lease, url) = forced(&bench).await;
    let refused = delta_testkit::wait::eventually_async(PATIENCE, "a refusal", async || {
        let answer = put(&bench, &url, &lease.id, 6, "").await;
        match answer.status.as_u16() {
            200 => Err(answer.text),
            _ => Ok(answer.expect(409)),
        }
    })
    .await;
    assert_eq!(refused["reason"], "LEASE_REVOKED");
    assert_eq!(log_text(&bench, &lease.job).await, "half a");
}

#[tokio::test]
async fn an_artifact_comes_whole_is_checked_and_shown_with_the_result() {
    // A49
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let announced = json!({ "sha256": "0".repeat(64) });
    let wrong = create(&bench, &lease, "artifact", announced)
        .await
        .expect(201);
    let refused = put(&bench, &text(&wrong["url"]), &lease.id, 0, "abc").await;
    assert_eq!(refused.expect(422)["field"], "sha256");
    let announced = json!({ "sha256": ABC, "size": 3 });
    let created = create(&bench, &lease, "artifact", announced)
        .await
        .expect(201);
    let url = text(&created["url"]);
    // The second time is an answer that was lost.
    for _ in 0..2 {
        put(&bench, &url, &lease.id, 0, "abc").await.expect(200);
    }
    let named = [
        json!({ "type": "report", "uri": created["uri"] }),
        json!({ "type": "report", "uri": wrong["uri"] }),
        json!({ "type": "link", "uri": "https://elsewhere.example/x" }),
    ];
    let done = complete_with(&lease, "SUCCEEDED", 0, &named);
    bench.say("/complete", done).await.expect(200);
    let artifacts = bench.show_job(&lease.job).await["attempts"][0]["artifacts"].clone();
    assert_eq!(
        artifacts,
        json!([
            { "type": "report", "uri": created["uri"], "external": false, "name": "out.txt",
              "size": 3, "sha256": ABC },
            { "type": "link", "uri": "https://elsewhere.example/x", "external": true },
        ])
    );
    assert_eq!(parts(&bench), 0);
}

/// Files that are being received.
fn parts(bench: &Bench) -> usize {
    let folder = bench.data.path().join("objects/parts");
    std::fs::read_dir(folder).unwrap().count()
}

#[tokio::test]
async fn an_artifact_that_breaks_off_leaves_nothing() {
    use tokio::io::AsyncWriteExt;
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let created = create(&bench, &lease, "artifact", json!({}))
        .await
        .expect(201);
    let url = text(&created["url"]);
    let address = bench.base.strip_prefix("http://").unwrap();
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "PUT {url} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ndelta-lease: {}\r\n\
         content-length: 100\r\n\r\nhalf",
        bench.runner, lease.id
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let count = async |wanted: usize| {
        delta_testkit::wait::eventually_async(PATIENCE, "parts", async || {
            let found = parts(&bench);
            (found == wanted).then_some(()).ok_or(found)
        })
        .await;
    };
    count(1).await;
    // Another sender of the same upload is not in its way.
    put(&bench, &url, &lease.id, 0, "abc").await.expect(200);
    drop(socket);
    count(0).await;
    let other = put(&bench, &url, &lease.id, 0, "xyz").await.expect(409);
    assert_eq!(other["code"], "CONFLICT");
}

#[tokio::test]
async fn artifacts_are_listed_and_fetched_as_files_to_keep() {
    // A49, RP-56
    let bench = Bench::patient().await;
    let again = json!({ "name": "a", "max_attempts": 2, "retry_on": ["user_exit"],
        "job_spec": { "steps": ["true"] } });
    bench.create(json!([again])).await;
    let lease = bench.acked().await;
    let old = put_artifact(&bench, &lease, "site/index.html", "<old>").await;
    let only = put_artifact(&bench, &lease, "once.txt", "once").await;
    let done = complete_with(&lease, "FAILED", 1, &[old, only]);
    bench.say("/complete", done).await.expect(200);
    let lease = bench.acked().await;
    let new = put_artifact(&bench, &lease, "site/index.html", "abc").await;
    put_artifact(&bench, &lease, "unnamed.txt", "x").await;
    let elsewhere = json!({ "type": "link", "uri": "https://elsewhere.example/x" });
    let done = complete_with(&lease, "SUCCEEDED", 0, &[new, elsewhere]);
    bench.say("/complete", done).await.expect(200);

    let path = format!("/api/v1/jobs/{}/artifacts", lease.job);
    let list = bench.get(&path).await.expect(200);
    let short = |it: &Value| json!([it["attempt"], it["name"], it["size"]]);
    let shown: Vec<Value> = list["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(short)
        .collect();
    let wanted = [
        json!([1, "site/index.html", 5]),
        json!([1, "once.txt", 4]),
        json!([2, "site/index.html", 3]),
    ];
    assert_eq!(shown, wanted);
    assert_eq!(list["artifacts"][2]["sha256"], ABC);

    let latest = bench.get(&format!("{path}/site%2Findex.html")).await;
    assert_eq!((latest.status.as_u16(), latest.text.as_str()), (200, "abc"));
    for (name, value) in [
        ("content-type", "application/octet-stream"),
        ("x-content-type-options", "nosniff"),
        (
            "content-disposition",
            "attachment; filename*=UTF-8''index.html",
        ),
        ("content-security-policy", "default-src 'none'; sandbox"),
        ("content-length", "3"),
    ] {
        assert_eq!(latest.headers[name], value, "{name}");
    }
    let former = bench
        .get(&format!("{path}/site%2Findex.html?attempt=1"))
        .await;
    assert_eq!(former.text, "<old>");
    assert_eq!(bench.get(&format!("{path}/once.txt")).await.text, "once");

    for strange in [
        "unnamed.txt",
        "once.txt?attempt=2",
        "..%2F..%2F..%2Flock",
        "%2Fetc%2Fpasswd",
        "once.txt%00",
    ] {
        bench.get(&format!("{path}/{strange}")).await.expect(404);
    }
    bench.get(&format!("{path}/once.txt?n=1")).await.expect(422);
    for path in [path.clone(), format!("{path}/once.txt")] {
        bench.get_as(&bench.runner, &path).await.expect(403);
        bench.get_as("nobody", &path).await.expect(401);
    }
}

#[tokio::test]
async fn a_lease_that_is_over_or_foreign_stores_nothing() {
    // LM-13, D4
    let bench = Bench::memory(quick_settings()).await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let url = put_log(&bench, &lease, "first").await;
    bench
        .until(&format!("/jobs/{}", lease.job), "/state", "QUEUED")
        .await;
    let late = put(&bench, &url, &lease.id, 5, "late").await.expect(409);
    assert_eq!(
        (&late["type"], &late["reason"]),
        (&json!("StaleLease"), &json!("LEASE_EXPIRED"))
    );
    let next = Lease::from(&bench.lease_as("r2", 10.0).await.expect(200), "r2");
    bench.say("/ack-lease", next.ack()).await.expect(200);
    let foreign = put(&bench, &url, &next.id, 5, "foreign").await.expect(409);
    assert_eq!(foreign["reason"], "UNKNOWN_LEASE");
    let shown = log_text(&bench, &lease.job).await;
    assert_eq!(shown, "first", "what the lost lease streamed is kept");
    put_log(&bench, &next, "second").await;
    let shown = log_text(&bench, &lease.job).await;
    assert_eq!(shown, "second", "the latest lease with bytes is shown");
}

#[tokio::test]
async fn a_grant_nobody_acknowledged_in_time_reads_nothing_more() {
    // RP-27, LM-13: no sweep helps, the endpoint itself must say so.
    let bench = Bench::memory(delta_core::Settings {
        lease_ttl: delta_core::Span::secs(120),
        ack_timeout: delta_core::Span(300),
        sweep: delta_core::Span::hours(1),
        ..quick_settings()
    })
    .await;
    bench.create_one().await;
    let lease = bench.lease().await;
    let path = format!("/api/v1/runner/jobs/{}/spec", lease.job);
    let refused = delta_testkit::wait::eventually_async(PATIENCE, "a refusal", async || {
        let answer = fetch_spec(&bench, &path, &lease.id).await;
        match answer.status.as_u16() {
            200 => Err(answer.text),
            _ => Ok(answer.expect(409)),
        }
    })
    .await;
    assert_eq!(refused["reason"], "LEASE_EXPIRED");
}

async fn fetch_spec(bench: &Bench, path: &str, token: &str) -> Answer {
    let request = bench
        .client
        .get(format!("{}{path}", bench.base))
        .bearer_auth(&bench.runner);
    Answer::of(request.header("Delta-Lease", token).send().await.unwrap()).await
}

#[tokio::test]
async fn nothing_is_stored_under_a_strange_name_or_without_a_lease() {
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    for name in ["../x", "/etc/passwd", "a//b", "a\\b"] {
        let answer = create(&bench, &lease, "artifact", json!({ "name": name })).await;
        assert_eq!(answer.expect(422)["field"], "name", "{name}");
    }
    let url = log_url(&bench, &lease).await;
    let request = bench
        .client
        .put(format!("{}{url}", bench.base))
        .bearer_auth(&bench.runner);
    let bare = Answer::of(request.body("x").send().await.unwrap()).await;
    assert_eq!(bare.expect(422)["field"], "Delta-Lease");
    let artifact = url.replace("-log", "-0000000000000001");
    for unknown in ["/api/v1/runner/uploads/nothing", &artifact] {
        put(&bench, unknown, &lease.id, 0, "x").await.expect(404);
    }
    let big = "x".repeat(5 * 1024 * 1024);
    put(&bench, &url, &lease.id, 0, &big).await.expect(413);
}

#[tokio::test]
async fn a_large_spec_goes_by_reference_and_only_to_its_lease() {
    // RP-24
    let bench = Bench::patient().await;
    let step = "x".repeat(40_000);
    let spec = json!({ "name": "big", "steps": [step, step] });
    bench
        .create(json!([{ "name": "big", "job_spec": spec }]))
        .await;
    let lease = bench.lease().await;
    assert!(lease.granted.get("job_spec").is_none());
    let uri = text(&lease.granted["job_spec_ref"]["uri"]);
    assert_eq!(fetch_spec(&bench, &uri, &lease.id).await.expect(200), spec);
    let refused = fetch_spec(&bench, &uri, "lease_abc").await.expect(409);
    assert_eq!(refused["reason"], "UNKNOWN_LEASE");
}
