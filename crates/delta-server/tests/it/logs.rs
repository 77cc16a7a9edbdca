//! Logs as people read them: by byte range, and with a word on whether that is all.

use reqwest::Method;
use serde_json::{Value, json};

use crate::bench::{Answer, Bench, Lease, forcing_settings, patient_settings, quick_settings};
use crate::uploads::{log_url, log_view, put, put_log};

const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// Asks for a job's log with these headers.
async fn ask(bench: &Bench, job: &str, method: Method, headers: &[(&str, &str)]) -> Answer {
    let url = format!("{}/api/v1/jobs/{job}/log", bench.base);
    let mut request = bench.client.request(method, url).bearer_auth(&bench.user);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::of(request.send().await.unwrap()).await
}

/// A lease that has printed "0123456789".
async fn digits(bench: &Bench) -> (Lease, String) {
    bench.create_one().await;
    let lease = bench.acked().await;
    let url = put_log(bench, &lease, "0123456789").await;
    (lease, url)
}

#[tokio::test]
async fn any_range_of_a_log_can_be_read() {
    // D8
    let bench = Bench::patient().await;
    let (lease, _) = digits(&bench).await;
    for (range, text, part) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=8-", "89", "bytes 8-9/10"),
        ("bytes=8-99", "89", "bytes 8-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=-99", "0123456789", "bytes 0-9/10"),
    ] {
        let answer = ask(&bench, &lease.job, Method::GET, &[("range", range)]).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (206, text));
        assert_eq!(answer.headers["content-range"], part, "{range}");
        assert_eq!(answer.headers["content-length"], text.len().to_string());
    }
    for range in ["bytes=10-", "bytes=99-100", "bytes=-0"] {
        let answer = ask(&bench, &lease.job, Method::GET, &[("range", range)]).await;
        assert_eq!(answer.status.as_u16(), 416, "{range}");
        assert_eq!(answer.headers["content-range"], "bytes */10");
    }
    for range in ["bytes=0-1,3-4", "lines=1-2", "bytes=4-2"] {
        let answer = ask(&bench, &lease.job, Method::GET, &[("range", range)]).await;
        assert_eq!(answer.status.as_u16(), 200, "{range}");
        assert_eq!(answer.text, "0123456789");
    }
    let head = ask(&bench, &lease.job, Method::HEAD, &[("range", "bytes=2-4")]).await;
    assert_eq!((head.status.as_u16(), head.text.as_str()), (206, ""));
    assert_eq!(head.headers["content-length"], "3");
    assert_eq!(head.headers["content-range"], "bytes 2-4/10");
}

#[tokio::test]
async fn a_download_that_broke_off_goes_on_though_the_log_has_grown() {
    let bench = Bench::patient().await;
    let (lease, url) = digits(&bench).await;
    let first = ask(&bench, &lease.job, Method::GET, &[]).await;
    assert_eq!(first.headers["delta-log"], "open");
    assert_eq!(first.headers["delta-attempt"], "1");
    let tag = first.headers["etag"].to_str().unwrap().to_owned();
    let same = ask(&bench, &lease.job, Method::GET, &[("if-none-match", &tag)]).await;
    assert_eq!(same.status.as_u16(), 304);
    put(&bench, &url, &lease.id, 10, "ab").await.expect(200);
    let grown = ask(&bench, &lease.job, Method::GET, &[("if-none-match", &tag)]).await;
    assert_eq!((grown.status.as_u16(), grown.text.len()), (200, 12));
    let rest = [("range", "bytes=10-"), ("if-range", &tag)];
    let rest = ask(&bench, &lease.job, Method::GET, &rest).await;
    assert_eq!((rest.status.as_u16(), rest.text.as_str()), (206, "ab"));
    let other = [("range", "bytes=10-"), ("if-range", "\"1.1.10\"")];
    let other = ask(&bench, &lease.job, Method::GET, &other).await;
    assert_eq!((other.status.as_u16(), other.text.len()), (200, 12));
}

#[tokio::test]
async fn the_rest_of_a_declared_log_may_come_after_the_result() {
    // I25: up to the length that Complete declared, and no byte more.
    let bench = Bench::patient().await;
    bench.create_one().await;
    let lease = bench.acked().await;
    let url = put_log(&bench, &lease, "a").await;
    let mut done = lease.complete("SUCCEEDED", 0);
    done["log"] = json!({ "length": 3, "sha256": ABC });
    bench.say("/complete", done).await.expect(200);
    let view = log_view(&bench, &lease.job).await;
    let wanted = json!({ "length": 1, "state": "incomplete", "complete": false, "missing": 2 });
    assert_eq!(view, wanted);
    let said = ask(&bench, &lease.job, Method::HEAD, &[]).await;
    assert_eq!(said.headers["delta-log"], "incomplete: 2 bytes missing");
    let beyond = put(&bench, &url, &lease.id, 1, "bcd").await.expect(409);
    assert_eq!(beyond["reason"], "ALREADY_FINAL");
    put(&bench, &url, &lease.id, 1, "bc").await.expect(200);
    let view = log_view(&bench, &lease.job).await;
    let wanted = json!({ "length": 3, "state": "complete", "complete": true });
    assert_eq!(view, wanted);
    let artifact = crate::uploads::create(&bench, &lease, "artifact", json!({})).await;
    assert_eq!(artifact.expect(409)["reason"], "ALREADY_FINAL");
}

/// Ends a job with a log of three bytes in some way, and returns what is said about the log.
async fn ended(bench: &Bench, end: &str) -> Value {
    let (run, job) = bench.create_one().await;
    let lease = bench.acked().await;
    put_log(bench, &lease, "abc").await;
    if end == "heartbeat" {
        let mut beat = lease.beat();
        beat["log_cursor"] = json!({ "bytes_sent": 5 });
        bench.say("/heartbeat", beat).await.expect(200);
    }
    let complete = lease.complete("SUCCEEDED", 0);
    match end {
        "completed" | "heartbeat" => {
            bench.say("/complete", complete).await.expect(200);
        }
        "lost" => {}
        _ => {
            let path = format!("/runs/{run}/cancel");
            bench.ask_owned(path, json!({})).await.expect(200);
            if end == "canceled" {
                bench
                    .say("/cancel-ack", lease.cancel_ack())
                    .await
                    .expect(200);
            }
        }
    }
    let over = async || {
        let view = bench.show_job(&job).await;
        let log = view["attempts"][0]["log"].clone();
        if log["state"] == "open" {
            Err(view)
        } else {
            Ok(log)
        }
    };
    delta_testkit::wait::eventually_async(crate::bench::PATIENCE, end, over).await
}

#[tokio::test]
async fn every_end_says_whether_the_log_is_complete() {
    // D8, A22, A42, I25
    for (end, state, missing) in [
        ("completed", "complete", Value::Null),
        ("heartbeat", "incomplete", json!(2)),
        ("canceled", "incomplete", Value::Null),
        ("forced", "incomplete", Value::Null),
        ("lost", "incomplete", Value::Null),
    ] {
        // Nothing else runs out before its word is heard.
        let settings = match end {
            "forced" => forcing_settings(),
            "lost" => quick_settings(),
            _ => patient_settings(),
        };
        let log = ended(&Bench::memory(settings).await, end).await;
        assert_eq!(
            (&log["length"], &log["state"]),
            (&json!(3), &json!(state)),
            "{end}"
        );
        assert_eq!(log["complete"], state == "complete", "{end}");
        assert_eq!(log["missing"], missing, "{end}: {log}");
    }
}

#[tokio::test]
async fn a_lease_that_printed_nothing_has_a_log_too() {
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    assert_eq!(
        log_view(&bench, &job).await,
        Value::Null,
        "nobody ran it yet"
    );
    let lease = bench.acked().await;
    assert_eq!(log_view(&bench, &job).await["state"], "open");
    log_url(&bench, &lease).await;
    bench
        .get(&format!("/api/v1/jobs/{job}/log"))
        .await
        .expect(404);
    let mut done = lease.complete("SUCCEEDED", 0);
    done["log"] = json!({ "length": 0, "sha256": "0".repeat(64) });
    bench.say("/complete", done).await.expect(200);
    let view = log_view(&bench, &job).await;
    assert_eq!(
        (&view["length"], &view["state"]),
        (&json!(0), &json!("complete"))
    );
}
