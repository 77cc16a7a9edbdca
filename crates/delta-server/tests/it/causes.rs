//! Causes as docs/causes.md has them (D10): what a runner says of its own attempt is taken,
//! classified and tried again as written there; what only a rule of the server can bring about is
//! brought about.

use std::collections::BTreeMap;

use delta_core::{Cause, Settings, Span};
use serde_json::{Value, json};

use crate::bench::{Bench, job, patient_settings, text};

const PAGE: &str = include_str!("../../../../docs/causes.md");

/// What the page says of each cause: whether it is tried again by default.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `"));
    let mut found = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let again = cells.last().expect("a cell").trim();
        for name in cells[0].split('`').skip(1).step_by(2) {
            assert_eq!(found.insert(name, again), None, "{name} is there twice");
        }
    }
    found
}

#[test]
fn the_page_has_every_cause_and_no_other() {
    let mut names: Vec<&str> = Cause::ALL.iter().map(|cause| cause.name()).collect();
    names.sort_unstable();
    let documented: Vec<&str> = documented().into_keys().collect();
    assert_eq!(documented, names);
}

/// A runner takes a job that has two attempts, and says so much of the first.
async fn told(bench: &Bench, complete: Value) -> Value {
    let mut work = job("unit");
    work["max_attempts"] = json!(2);
    let run = text(&bench.create(json!([work])).await["run_id"]);
    let lease = bench.acked().await;
    assert_eq!(lease.run, run);
    let mut said = lease.complete("FAILED", 1);
    let more = complete.as_object().expect("fields").clone();
    said.as_object_mut().expect("a message").extend(more);
    bench.say("/complete", said).await.expect(200);
    let shown = bench.show_job(&lease.job).await;
    // Whatever is left of it is nobody's.
    let end = format!("/runs/{run}/cancel");
    bench.ask(&end, json!({})).await;
    shown
}

// A57: for runners of other people's, too, which may know of registries and networks.
#[tokio::test]
async fn what_a_runner_says_of_its_attempt_is_taken_and_tried_again_as_the_page_says() {
    let bench = Bench::patient().await;
    let documented = documented();
    for cause in Cause::ALL.iter().filter(|cause| cause.reportable()) {
        let name = cause.name();
        let timed_out = name == "no_output" || name.ends_with("_timeout");
        let status = if timed_out { "TIMED_OUT" } else { "FAILED" };
        let shown = told(&bench, json!({"status": status, "cause": name})).await;
        let attempts = shown["attempts"].as_array().expect("attempts");
        let ended = (&attempts[0]["state"], &attempts[0]["cause"]);
        assert_eq!(ended, (&json!(status), &json!(name)), "{shown}");
        let again = documented[name].starts_with("yes");
        assert_eq!(attempts.len(), 1 + usize::from(again), "{name}: {shown}");
    }
}

#[tokio::test]
async fn what_a_runner_cannot_know_is_not_taken_from_it() {
    // RP-17, A57
    let bench = Bench::patient().await;
    let others = Cause::ALL.iter().filter(|cause| !cause.reportable());
    for name in others.map(|cause| cause.name()).chain(["gremlins"]) {
        let shown = told(&bench, json!({ "cause": name })).await;
        let attempts = shown["attempts"].as_array().expect("attempts");
        assert_eq!(attempts[0]["cause"], "user_exit", "{name}: {shown}");
        assert_eq!(attempts.len(), 1, "{name}: {shown}");
    }
    let shown = told(&bench, json!({"status": "SUCCEEDED", "exit_code": 3})).await;
    assert_eq!(shown["attempts"][0]["cause"], "inconsistent", "{shown}");
}

#[tokio::test]
async fn the_first_cell_that_fails_ends_the_others_of_its_matrix() {
    let bench = Bench::patient().await;
    let mut jobs = vec![job("a"), job("b"), job("beside")];
    for cell in &mut jobs[..2] {
        cell["fail_fast_group"] = json!("matrix");
    }
    let view = bench.create(json!(jobs)).await;
    let run = text(&view["run_id"]);
    let failed = bench.acked().await;
    assert_eq!(failed.job, text(&view["jobs"][0]["job_id"]));
    let done = bench.say("/complete", failed.complete("FAILED", 1)).await;
    done.expect(200);
    let shown = bench.show(&run).await;
    let other = &shown["jobs"][1];
    let ended = (&other["state"], &other["cause"]);
    assert_eq!(
        ended,
        (&json!("CANCELED"), &json!("matrix_fail_fast")),
        "{shown}"
    );
    assert_eq!(shown["jobs"][2]["state"], "QUEUED", "{shown}");
}

#[tokio::test]
async fn a_required_job_that_somebody_cancels_fails_its_run() {
    let bench = Bench::patient().await;
    let view = bench.create(json!([job("a"), job("b")])).await;
    let run = text(&view["run_id"]);
    let lease = bench.acked().await;
    let other = text(&view["jobs"][1]["job_id"]);
    let canceled = bench.ask_owned(format!("/jobs/{other}/cancel"), json!({}));
    canceled.await.expect(200);
    let done = bench.say("/complete", lease.complete("SUCCEEDED", 0)).await;
    done.expect(200);
    let over = bench.show(&run).await;
    let ended = (&over["outcome"], &over["cause"]);
    let wanted = (&json!("FAILED"), &json!("required_job_canceled"));
    assert_eq!(ended, wanted, "{over}");
}

/// A run of the group, which waits for so long.
async fn in_line(bench: &Bench, wait: f64) -> String {
    let body = json!({ "jobs": [job("unit")], "concurrency": { "group": "nightly" },
        "wait_timeout_seconds": wait });
    text(&bench.ask("/runs", body).await.expect(201)["run_id"])
}

#[tokio::test]
async fn a_run_whose_turn_does_not_come_ends_for_that() {
    let bench = Bench::patient().await;
    let first = in_line(&bench, 600.0).await;
    assert_eq!(bench.acked().await.run, first);
    let second = in_line(&bench, 0.3).await;
    let over = bench
        .until(&format!("/runs/{second}"), "/outcome", "FAILED")
        .await;
    assert_eq!(over["cause"], "no_turn", "{over}");
}

#[tokio::test]
async fn a_line_that_is_too_long_takes_nobody_more() {
    let settings = Settings {
        wait_timeout: Span::hours(1),
        ..patient_settings()
    };
    let bench = Bench::memory(settings).await;
    let first = in_line(&bench, 600.0).await;
    assert_eq!(bench.acked().await.run, first);
    let mut last = String::new();
    for _ in 0..=delta_core::group::MAX_LINE {
        last = in_line(&bench, 600.0).await;
    }
    let over = bench
        .until(&format!("/runs/{last}"), "/outcome", "CANCELED")
        .await;
    assert_eq!(over["cause"], "group_full", "{over}");
}
