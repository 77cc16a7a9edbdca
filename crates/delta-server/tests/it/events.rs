//! The events of a run: pages, and a live stream that resumes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Bench, text};

/// Reads a stream until it ends or `most` events came; returns their ids and data.
async fn listen(bench: &Bench, run: &str, after: Option<u64>, most: usize) -> Vec<(u64, Value)> {
    let url = format!("{}/api/v1/runs/{run}/events", bench.base);
    let mut request = bench.client.get(url).bearer_auth(&bench.user);
    request = request.header("accept", "text/event-stream");
    if let Some(after) = after {
        request = request.header("last-event-id", after);
    }
    let mut response = request.send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (mut text, mut events) = (String::new(), Vec::new());
    while events.len() < most {
        let chunk = tokio::time::timeout(Duration::from_secs(10), response.chunk()).await;
        let Some(chunk) = chunk.expect("a stream that says something").unwrap() else {
            break;
        };
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            if let (Some(id), Some(data)) = (field("id: "), field("data: ")) {
                events.push((id.parse().unwrap(), serde_json::from_str(data).unwrap()));
            }
            text = rest.to_owned();
        }
    }
    events
}

#[tokio::test]
async fn a_stream_follows_a_run_to_its_end_and_resumes_by_version() {
    let bench = Bench::patient().await;
    let (run, _) = bench.create_one().await;
    let (events, ()) = tokio::join!(listen(&bench, &run, None, 100), async {
        let lease = bench.acked().await;
        bench.say("/heartbeat", lease.beat()).await.expect(200);
        bench
            .say("/complete", lease.complete("SUCCEEDED", 0))
            .await
            .expect(200);
    });
    let commands: Vec<&str> = events
        .iter()
        .map(|(_, it)| it["command"].as_str().unwrap())
        .collect();
    assert_eq!(
        commands,
        ["create_run", "grant", "ack_lease", "heartbeat", "complete"]
    );
    let versions: Vec<u64> = events.iter().map(|(id, _)| *id).collect();
    assert_eq!(versions, [1, 2, 3, 4, 5]);
    let rest = listen(&bench, &run, Some(3), 100).await;
    assert_eq!(rest, events[3..]);
}

#[tokio::test]
async fn events_come_in_pages_with_the_hash_that_chains_them() {
    // D3
    let bench = Bench::patient().await;
    let (run, _) = bench.create_one().await;
    let lease = bench.acked().await;
    let path = format!("/api/v1/runs/{run}/events");
    let page = bench.get(&path).await.expect(200);
    let events = page["events"].as_array().unwrap();
    assert_eq!(events.len(), 3);
    assert_eq!(page["next_after"], json!(null));
    assert!(
        events
            .iter()
            .all(|event| event["hash"].as_str().unwrap().len() == 64)
    );
    assert!(
        !page.to_string().contains(&lease.id),
        "no token in events (A24)"
    );
    let rest = bench.get(&format!("{path}?after=2")).await.expect(200);
    assert_eq!(rest["events"], json!([events[2]]));
    bench.get(&format!("{path}?after=x")).await.expect(422);
    bench.get(&format!("{path}?since=1")).await.expect(422);
    assert_eq!(text(&events[1]["actor"]), text(&events[2]["actor"]));
}
