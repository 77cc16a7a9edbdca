//! The live tail: every byte once, in order, whatever breaks off in between.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Response;
use serde_json::{Value, json};

use crate::bench::{Bench, Lease, PATIENCE, patient_settings};
use crate::replicas::pair;
use crate::restart;
use crate::uploads::{log_url, put, put_bytes, put_log};

/// One event of a tail.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    id: Option<String>,
    name: String,
    data: String,
}

#[tokio::test]
async fn a_tail_ends_with_the_credential_it_was_opened_with() {
    // D14
    let bench = Bench::patient().await;
    let (run, job) = bench.create_one().await;
    let body = json!({ "role": "user", "name": "soon gone" });
    let made = bench.post(&bench.admin, "/api/v1/tokens", body).await;
    let made = made.expect(201);
    let secret = made["token"].as_str().unwrap();
    let events = format!("{}/api/v1/runs/{run}/events", bench.base);
    let log = format!("{}/api/v1/jobs/{job}/log", bench.base);
    let mut streams = Vec::new();
    for url in [log, events] {
        let request = bench.client.get(&url).bearer_auth(secret);
        let response = request.header("accept", "text/event-stream").send();
        let response = response.await.unwrap();
        assert_eq!(response.status().as_u16(), 200, "{url}");
        streams.push(response);
    }
    let id = made["view"]["token_id"].as_str().unwrap();
    let url = format!("{}/api/v1/tokens/{id}", bench.base);
    let revoked = bench.client.delete(&url).bearer_auth(&bench.admin).send();
    assert_eq!(revoked.await.unwrap().status().as_u16(), 204);
    for stream in streams {
        let rest = tokio::time::timeout(PATIENCE, stream.bytes()).await;
        assert!(rest.is_ok(), "a stream outlived its credential");
    }
}

/// Somebody who follows a job's logs, and knows where they are.
struct Follower {
    response: Response,
    text: String,
    place: Option<String>,
    bytes: Vec<u8>,
    seen: Vec<Event>,
}

impl Follower {
    async fn open(bench: &Bench, job: &str, query: &str, place: Option<String>) -> Follower {
        let url = format!("{}/api/v1/jobs/{job}/log{query}", bench.base);
        let mut request = bench.client.get(url).bearer_auth(&bench.user);
        request = request.header("accept", "text/event-stream");
        if let Some(place) = &place {
            request = request.header("last-event-id", place);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Follower {
            response,
            text: String::new(),
            place,
            bytes: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// The next event; `None` when the tail ended.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let found = block.lines().find_map(|line| line.strip_prefix(name));
                    found.map(str::to_owned)
                };
                let event = field("event: ").map(|name| Event {
                    id: field("id: "),
                    name,
                    data: field("data: ").unwrap_or_default(),
                });
                self.text = rest.to_owned();
                let Some(event) = event else { continue };
                self.place = event.id.clone().or(self.place.take());
                if event.name == "bytes" {
                    self.bytes.extend(STANDARD.decode(&event.data).unwrap());
                } else {
                    self.seen.push(event.clone());
                }
                return Some(event);
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await;
            let chunk = chunk.expect("a tail that says something").ok().flatten()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Follows until so many bytes came.
    async fn until(&mut self, bytes: usize) {
        while self.bytes.len() < bytes {
            self.next().await.expect("more bytes");
        }
    }

    /// Follows to the end, and returns what the last event says.
    async fn finish(&mut self) -> Value {
        while self.next().await.is_some() {}
        let last = self.seen.last().expect("an end");
        assert_eq!(last.name, "end", "{last:?}");
        serde_json::from_str(&last.data).unwrap()
    }
}

/// Bytes that are no text, and end lines where SSE would see them.
fn noise(length: usize) -> Vec<u8> {
    (0..length)
        .map(|n| (n * 31 % 251) as u8 ^ (n >> 8) as u8)
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A completion that declares this log.
fn complete(lease: &Lease, status: &str, code: i64, log: &[u8]) -> Value {
    let mut done = lease.complete(status, code);
    done["log"] = json!({ "length": log.len(), "sha256": sha256(log) });
    done
}

#[tokio::test]
async fn a_tail_follows_a_log_as_it_is_written_and_says_how_it_ended() {
    // D8
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    let mut follower = Follower::open(&bench, &job, "", None).await;
    let lease = bench.acked().await;
    let url = log_url(&bench, &lease).await;
    let log = noise(200_000);
    for (n, piece) in log.chunks(50_000).enumerate() {
        let offset = n as u64 * 50_000;
        put_bytes(&bench, &url, &lease.id, offset, piece.to_vec())
            .await
            .expect(200);
        // Each piece is there before the next is written.
        follower.until((n + 1) * 50_000).await;
    }
    assert_eq!(follower.place, Some(format!("1.{}.200000", lease.epoch)));
    bench
        .say("/complete", complete(&lease, "SUCCEEDED", 0, &log))
        .await
        .expect(200);
    let end = follower.finish().await;
    assert!(follower.bytes == log);
    let begin: Value = serde_json::from_str(&follower.seen[0].data).unwrap();
    let wanted = json!({ "attempt": 1, "lease": 1, "epoch": lease.epoch, "offset": 0 });
    assert_eq!(begin, wanted);
    let wanted = json!({ "attempt": 1, "epoch": lease.epoch, "last": true,
        "log": { "length": 200_000, "state": "complete", "complete": true } });
    assert_eq!(end, wanted);
}

#[tokio::test]
async fn a_tail_goes_on_where_it_broke_off_and_into_the_next_attempt() {
    let bench = Bench::patient().await;
    let again = json!({ "name": "a", "max_attempts": 2, "retry_on": ["user_exit"],
        "job_spec": { "steps": ["true"] } });
    bench.create(json!([again])).await;
    let lease = bench.acked().await;
    let url = put_log(&bench, &lease, "first ").await;
    let mut follower = Follower::open(&bench, &lease.job, "", None).await;
    follower.until(6).await;
    let (place, mut bytes) = (follower.place.clone(), follower.bytes.clone());
    drop(follower);
    put(&bench, &url, &lease.id, 6, "log").await.expect(200);
    let done = complete(&lease, "FAILED", 1, b"first log and more");
    bench.say("/complete", done).await.expect(200);
    let next = bench.acked().await;
    put_log(&bench, &next, "second log").await;
    let done = complete(&next, "SUCCEEDED", 0, b"second log");
    bench.say("/complete", done).await.expect(200);

    let mut follower = Follower::open(&bench, &lease.job, "", place).await;
    let end = follower.finish().await;
    bytes.extend(&follower.bytes);
    assert_eq!(String::from_utf8(bytes).unwrap(), "first logsecond log");
    assert_eq!(end["log"]["state"], "complete");
    let names: Vec<&str> = follower.seen.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["log", "end", "log", "end"]);
    let first: Value = serde_json::from_str(&follower.seen[1].data).unwrap();
    let wanted = json!({ "attempt": 1, "epoch": lease.epoch, "last": false, "log":
        { "length": 9, "state": "incomplete", "complete": false, "missing": 9 } });
    assert_eq!(first, wanted);

    let mut only = Follower::open(&bench, &lease.job, "?attempt=1&offset=6", None).await;
    assert_eq!(only.finish().await["last"], true);
    assert_eq!(only.bytes, b"log");
}

#[tokio::test]
async fn a_tail_goes_on_after_the_server_came_back() {
    // Every byte once, though server and follower both broke off.
    let mut bench = restart::start(patient_settings()).await;
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    let url = log_url(&bench, &lease).await;
    let log = noise(300_000);
    let (mut place, mut bytes) = (None, Vec::new());
    for (n, piece) in log.chunks(100_000).enumerate() {
        let mut follower = Follower::open(&bench, &job, "", place).await;
        let offset = n as u64 * 100_000;
        put_bytes(&bench, &url, &lease.id, offset, piece.to_vec())
            .await
            .expect(200);
        follower.until(60_000).await;
        (place, bytes) = (follower.place, [bytes, follower.bytes].concat());
        bench = restart::restart(bench, patient_settings()).await;
    }
    bench
        .say("/complete", complete(&lease, "SUCCEEDED", 0, &log))
        .await
        .expect(200);
    let mut follower = Follower::open(&bench, &job, "", place).await;
    let end = follower.finish().await;
    bytes.extend(&follower.bytes);
    assert_eq!(sha256(&bytes), sha256(&log));
    assert_eq!(end["log"]["state"], "complete");
}

#[tokio::test]
async fn a_reader_that_is_slow_holds_up_nobody_and_misses_nothing() {
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    let url = log_url(&bench, &lease).await;
    let mut slow = Follower::open(&bench, &job, "", None).await;
    let log = noise(12 * 1024 * 1024);
    for (n, piece) in log.chunks(4 * 1024 * 1024).enumerate() {
        let offset = n as u64 * 4 * 1024 * 1024;
        put_bytes(&bench, &url, &lease.id, offset, piece.to_vec())
            .await
            .expect(200);
    }
    bench
        .say("/complete", complete(&lease, "SUCCEEDED", 0, &log))
        .await
        .expect(200);
    let mut quick = Follower::open(&bench, &job, "?offset=12582900", None).await;
    assert_eq!(quick.finish().await["log"]["state"], "complete");
    // Only now does the first one begin to read.
    assert_eq!(slow.finish().await["last"], true);
    assert!(slow.bytes == log);
}

#[tokio::test]
async fn a_tail_of_a_lost_lease_says_so_and_waits_for_the_next() {
    let bench = Bench::quick().await;
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    put_log(&bench, &lease, "lost").await;
    let mut follower = Follower::open(&bench, &job, "", None).await;
    while follower.seen.iter().all(|it| it.name != "end") {
        follower.next().await.expect("an end of the lost lease");
    }
    let end: Value = serde_json::from_str(&follower.seen[1].data).unwrap();
    assert_eq!(
        (&end["log"]["state"], &end["last"]),
        (&json!("incomplete"), &json!(false))
    );
    let next = Lease::from(&bench.lease_as("r2", 10.0).await.expect(200), "r2");
    bench.say("/ack-lease", next.ack()).await.expect(200);
    put_log(&bench, &next, "found").await;
    bench
        .say("/complete", complete(&next, "SUCCEEDED", 0, b"found"))
        .await
        .expect(200);
    let end = follower.finish().await;
    assert_eq!(follower.bytes, b"lostfound");
    assert_eq!(
        (&end["epoch"], &end["last"]),
        (&json!(next.epoch), &json!(true))
    );
}

#[tokio::test]
async fn a_tail_of_a_job_nobody_ran_ends_too() {
    let bench = Bench::patient().await;
    let (run, job) = bench.create_one().await;
    let mut follower = Follower::open(&bench, &job, "", None).await;
    bench
        .ask_owned(format!("/runs/{run}/cancel"), json!({}))
        .await
        .expect(200);
    assert_eq!(follower.finish().await, json!({ "last": true }));
}

#[tokio::test]
async fn a_place_that_is_none_is_refused() {
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    for odd in ["x", "1.2", &format!("1.{}.0", lease.epoch + 1), "-1"] {
        let url = format!("{}/api/v1/jobs/{job}/log", bench.base);
        let request = bench.client.get(url).bearer_auth(&bench.user);
        let request = request
            .header("accept", "text/event-stream")
            .header("last-event-id", odd);
        let answer = crate::bench::Answer::of(request.send().await.unwrap()).await;
        assert_eq!(answer.expect(422)["field"], "Last-Event-ID", "{odd}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tail_at_one_server_shows_what_another_was_given() {
    let (one, two, _shared) = pair(patient_settings()).await;
    let (_, job) = one.create_one().await;
    let lease = one.acked().await;
    let url = log_url(&one, &lease).await;
    let mut follower = Follower::open(&two, &job, "", None).await;
    for (n, piece) in ["to ", "one ", "server"].iter().enumerate() {
        let offset = ["to ", "one ", "server"][..n].concat().len();
        put(&one, &url, &lease.id, offset as u64, piece)
            .await
            .expect(200);
        let within = Duration::from_secs(10);
        let all = offset + piece.len();
        tokio::time::timeout(within, follower.until(all))
            .await
            .expect("the bytes, soon");
    }
    let log = b"to one server";
    one.say("/complete", complete(&lease, "SUCCEEDED", 0, log))
        .await
        .expect(200);
    assert_eq!(follower.finish().await["log"]["state"], "complete");
    assert_eq!(follower.bytes, log);
}
