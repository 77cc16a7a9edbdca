//! The people's API: creating, listing, showing, rerunning.

use serde_json::{Value, json};

use crate::bench::{Answer, Bench, job, text};

async fn create_with_key(bench: &Bench, key: &str, body: &Value) -> Answer {
    let url = format!("{}/api/v1/runs", bench.base);
    let request = bench.client.post(url).bearer_auth(&bench.user);
    let request = request
        .header("Idempotency-Key", key)
        .body(body.to_string());
    Answer::of(request.send().await.unwrap()).await
}

#[tokio::test]
async fn the_same_key_with_the_same_body_gives_the_same_run() {
    let bench = Bench::patient().await;
    let body = json!({ "jobs": [job("a")] });
    let first = create_with_key(&bench, "k1", &body).await.expect(201);
    let again = create_with_key(&bench, "k1", &body).await.expect(201);
    assert_eq!(again["run_id"], first["run_id"]);
    let other = json!({ "jobs": [job("b")] });
    let refused = create_with_key(&bench, "k1", &other).await.expect(409);
    assert_eq!(refused["code"], "IDEMPOTENCY_CONFLICT");
    let fresh = create_with_key(&bench, "k2", &other).await.expect(201);
    assert_ne!(fresh["run_id"], first["run_id"]);
    create_with_key(&bench, &"k".repeat(300), &body)
        .await
        .expect(422);
}

#[tokio::test]
async fn runs_are_listed_newest_first_in_pages_and_by_filter() {
    let bench = Bench::patient().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        let reference = if n % 2 == 0 { "main" } else { "topic" };
        let body = json!({ "jobs": [job("a")], "repository": "r", "ref": reference,
            "commit": format!("c{n}") });
        ids.push(text(&bench.ask("/runs", body).await.expect(201)["run_id"]));
    }
    ids.reverse();
    let mut seen = Vec::new();
    let mut path = "/api/v1/runs?limit=2".to_owned();
    loop {
        let page = bench.get(&path).await.expect(200);
        seen.extend(
            page["runs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|run| text(&run["run_id"])),
        );
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/runs?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    for (query, count) in [
        ("ref=main", 3),
        ("ref=topic", 2),
        ("commit=c1", 1),
        ("repository=r", 5),
        ("repository=q", 0),
        ("state=QUEUED", 5),
        ("state=RUNNING", 0),
        ("outcome=SUCCESS", 0),
    ] {
        let page = bench
            .get(&format!("/api/v1/runs?{query}"))
            .await
            .expect(200);
        assert_eq!(page["runs"].as_array().unwrap().len(), count, "{query}");
    }
    let wrong = bench
        .get("/api/v1/runs?stat=QUEUED&limit=0")
        .await
        .expect(422);
    assert!(
        wrong["message"]
            .as_str()
            .unwrap()
            .contains("did you mean `state`?")
    );
}

#[tokio::test]
async fn needs_hold_a_job_back_and_a_failed_one_drops_it() {
    // A65, SM-24
    let bench = Bench::patient().await;
    let mut second = job("second");
    second["needs"] = json!(["first"]);
    let view = bench.create(json!([job("first"), second.clone()])).await;
    assert_eq!(view["jobs"][1]["state"], "CREATED");
    let waiting = bench.show_job(&text(&view["jobs"][1]["job_id"])).await;
    assert_eq!(waiting["why"]["code"], "waiting_for_needs");
    assert_eq!(waiting["needs"], json!(["first"]));
    let lease = bench.acked().await;
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let lease = bench.acked().await;
    bench
        .say("/complete", lease.complete("FAILED", 1))
        .await
        .expect(200);
    let view = bench.create(json!([job("first"), second])).await;
    let lease = bench.acked().await;
    bench
        .say("/complete", lease.complete("FAILED", 7))
        .await
        .expect(200);
    let view = bench.show(&text(&view["run_id"])).await;
    assert_eq!(view["outcome"], "FAILED");
    assert_eq!(view["jobs"][1]["state"], "CANCELED");
    assert_eq!(view["jobs"][1]["cause"], "dependency_failed");
}

#[tokio::test]
async fn a_retry_is_a_new_attempt_and_the_first_stays_failed() {
    // RP-52, SM-57, SM-59, A57
    let bench = Bench::patient().await;
    let mut flaky = job("flaky");
    flaky["max_attempts"] = json!(2);
    flaky["retry_on"] = json!(["user_exit"]);
    let view = bench.create(json!([flaky])).await;
    let lease = bench.acked().await;
    bench
        .say("/complete", lease.complete("FAILED", 1))
        .await
        .expect(200);
    let lease = bench.acked().await;
    assert_eq!(lease.granted["attempt"], 2);
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let view = bench.show(&text(&view["run_id"])).await;
    assert_eq!(view["outcome"], "SUCCESS");
    let job = bench.show_job(&lease.job).await;
    assert_eq!(job["attempts"][0]["state"], "FAILED");
    assert_eq!(job["attempts"][1]["state"], "SUCCEEDED");
}

#[tokio::test]
async fn why_and_when_are_answered_while_a_job_waits() {
    // D12, L1
    let bench = Bench::patient().await;
    let mut gpu = job("gpu");
    gpu["requires"] = json!(["gpu"]);
    let view = bench.create(json!([gpu])).await;
    let id = text(&view["jobs"][0]["job_id"]);
    assert_eq!(bench.show_job(&id).await["why"]["code"], "no_agents");
    bench.lease_as("r1", 0.0).await.expect(204);
    let shown = bench.show_job(&id).await;
    assert_eq!(shown["why"]["code"], "no_fit_agent");
    assert!(shown["why"]["message"].as_str().unwrap().contains("gpu"));
    assert!(shown["must_end_by"].is_string());
    assert!(bench.show(&text(&view["run_id"])).await["must_end_by"].is_string());
}

#[tokio::test]
async fn a_rerun_is_a_new_run_and_the_old_one_stays() {
    // SM-3
    let bench = Bench::patient().await;
    let mut last = job("last");
    last["needs"] = json!(["bad"]);
    let view = bench.create(json!([job("good"), job("bad"), last])).await;
    let old = text(&view["run_id"]);
    let early = bench
        .ask(&format!("/runs/{old}/rerun"), json!({}))
        .await
        .expect(409);
    assert_eq!(early["code"], "CONFLICT");
    for code in [0, 1] {
        let lease = bench.acked().await;
        let status = if code == 0 { "SUCCEEDED" } else { "FAILED" };
        bench
            .say("/complete", lease.complete(status, code))
            .await
            .expect(200);
    }
    let before = bench.show(&old).await;
    assert_eq!(before["outcome"], "FAILED");
    let rerun = |body: Value| bench.ask_owned(format!("/runs/{old}/rerun"), body);
    let failed = rerun(json!({ "failed_only": true })).await.expect(201);
    assert_eq!(
        (&failed["run_attempt"], &failed["rerun_of"]),
        (&json!(2), &json!(old))
    );
    let jobs = |view: &Value| view["jobs"].as_array().unwrap().clone();
    let fresh = |view: &Value| -> Vec<String> {
        let all = jobs(view).into_iter();
        let again = all.filter(|job| job["kept_from"].is_null());
        again.map(|job| text(&job["name"])).collect()
    };
    assert_eq!(fresh(&failed), ["bad", "last"]);
    let kept = &jobs(&failed)[0];
    assert_eq!(
        (&kept["name"], &kept["state"], &kept["kept_from"]),
        (
            &json!("good"),
            &json!("SUCCEEDED"),
            &before["jobs"][0]["job_id"]
        )
    );
    let all = rerun(json!({})).await.expect(201);
    assert_eq!(fresh(&all), ["good", "bad", "last"]);
    let one = rerun(json!({ "job": "good" })).await.expect(201);
    assert_eq!(fresh(&one), ["good"]);
    assert_eq!(
        jobs(&one)[1]["state"],
        "FAILED",
        "a failure is no success by leaving it out"
    );
    let unmet = rerun(json!({ "job": "last" })).await.expect(201);
    assert_eq!(fresh(&unmet), ["bad", "last"], "with the need that failed");
    let unknown = rerun(json!({ "job": "lastt" })).await.expect(422);
    assert_eq!(unknown["field"], "job");
    let said = text(&unknown["message"]);
    assert!(said.contains("did you mean `last`?"), "{said}");
    let said = rerun(json!({ "job": "nobody" })).await.expect(422)["message"].clone();
    assert!(text(&said).contains("it has good, bad, last"), "{said}");
    let mut after = bench.show(&old).await;
    let again = after.as_object_mut().unwrap().remove("reruns").unwrap();
    let newest_first = [&unmet, &one, &all, &failed].map(|view| view["run_id"].clone());
    assert_eq!(again, json!(newest_first), "the old run knows the new ones");
    assert_eq!(after, before, "and is as it was");
    let lease = bench.acked().await;
    assert_eq!(lease.granted["job_spec"]["steps"], json!(["true"]));
}

#[tokio::test]
async fn a_rerun_of_a_rerun_points_at_what_was_executed() {
    let bench = Bench::patient().await;
    let view = bench.create(json!([job("good"), job("bad")])).await;
    let executed = view["jobs"][0]["job_id"].clone();
    let complete = async |status: &str, code: i64| {
        let lease = bench.acked().await;
        bench
            .say("/complete", lease.complete(status, code))
            .await
            .expect(200);
    };
    complete("SUCCEEDED", 0).await;
    let mut last = text(&view["run_id"]);
    for _ in 0..2 {
        complete("FAILED", 1).await;
        assert_eq!(bench.show(&last).await["outcome"], "FAILED");
        let again = json!({ "failed_only": true });
        let again = bench.ask_owned(format!("/runs/{last}/rerun"), again).await;
        let again = again.expect(201);
        assert_eq!(again["jobs"][0]["kept_from"], executed);
        last = text(&again["run_id"]);
    }
    complete("SUCCEEDED", 0).await;
    assert_eq!(bench.show(&last).await["outcome"], "SUCCESS");
    let nothing = bench.ask_owned(
        format!("/runs/{last}/rerun"),
        json!({ "failed_only": true }),
    );
    let said = nothing.await.expect(409);
    assert_eq!(said["message"], "every job of the run succeeded");
}

#[tokio::test]
async fn a_run_of_a_thousand_jobs_is_made_and_released_at_once() {
    // D15: everything needs the first job, so one completion releases 999.
    let bench = Bench::patient().await;
    let mut jobs = vec![job("root")];
    for n in 1..1000 {
        let mut leaf = job(&format!("leaf{n}"));
        leaf["needs"] = json!(["root"]);
        jobs.push(leaf);
    }
    let view = bench.create(json!(jobs)).await;
    let lease = bench.acked().await;
    bench
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let view = bench.show(&text(&view["run_id"])).await;
    let queued = view["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|job| job["state"] == "QUEUED");
    assert_eq!(queued.count(), 999);
    let run = text(&view["run_id"]);
    let canceled = bench
        .ask(&format!("/runs/{run}/cancel"), json!({}))
        .await
        .expect(200);
    assert_eq!(canceled["outcome"], "CANCELED");
}

#[tokio::test]
async fn a_listed_run_says_nothing_about_jobs_and_nothing_that_is_not_so() {
    let bench = Bench::patient().await;
    let (run, _) = bench.create_one().await;
    let page = bench.get("/api/v1/runs").await.expect(200);
    let listed = page["runs"][0].as_object().unwrap();
    assert_eq!(listed["run_id"], json!(run));
    assert_eq!((listed.get("version"), listed.get("jobs")), (None, None));
    assert_eq!(bench.show(&run).await["version"], 1);
}

#[tokio::test]
async fn who_canceled_and_why_is_shown() {
    let bench = Bench::patient().await;
    let (run, job) = bench.create_one().await;
    let asked = json!({ "reason": "wrong branch: main" });
    let view = bench.ask(&format!("/runs/{run}/cancel"), asked).await;
    let view = view.expect(200);
    assert_eq!(view["cancel"]["reason"], "wrong branch: main", "{view}");
    assert!(text(&view["cancel"]["by"]).starts_with("tok_"), "{view}");
    let page = bench.get("/api/v1/runs").await.expect(200);
    assert_eq!(page["runs"][0]["cancel"], view["cancel"]);
    let attempt = &bench.show_job(&job).await["attempts"][0];
    assert_eq!(attempt["cancel"]["reason"], "wrong branch: main");
}

#[tokio::test]
async fn a_spec_without_a_name_is_granted_with_the_jobs() {
    let bench = Bench::patient().await;
    let jobs = json!([{ "name": "unit", "job_spec": { "steps": ["true"] } }]);
    bench.create(jobs).await;
    let grant = bench.lease_as("r1", 0.0).await.expect(200);
    assert_eq!(
        grant["job_spec"],
        json!({ "name": "unit", "steps": ["true"] })
    );
}

#[tokio::test]
async fn a_runners_clock_is_shown_beside_ours_and_flagged_when_it_is_far_off() {
    // A23
    let bench = Bench::patient().await;
    for (started, finished, duration, skewed) in [
        ("2001-01-01T00:00:10Z", "2001-01-01T00:00:12Z", 2_000, true),
        ("2001-01-01T00:00:10Z", "2001-01-01T00:00:02Z", 0, true),
    ] {
        let (_, job) = bench.create_one().await;
        let lease = bench.acked().await;
        let mut done = lease.complete("SUCCEEDED", 0);
        done["timings"] = json!({ "started_at": started, "finished_at": finished });
        bench.say("/complete", done).await.expect(200);
        let view = bench.show_job(&job).await;
        let (attempt, said) = (&view["attempts"][0], &view["attempts"][0]["reported"]);
        assert_eq!(said["duration_ms"], duration, "{said}");
        assert_eq!(said["skewed"], skewed, "{said}");
        assert_eq!(said["received_at"], attempt["ended_at"]);
        assert!(
            said["reported_at"]
                .as_str()
                .unwrap()
                .starts_with("2001-01-01T00:00:")
        );
    }
    let (_, job) = bench.create_one().await;
    let lease = bench.acked().await;
    let ended = bench.show_job(&job).await["attempts"][0]["started_at"].clone();
    let mut done = lease.complete("SUCCEEDED", 0);
    done["timings"] = json!({ "started_at": ended, "finished_at": ended });
    bench.say("/complete", done).await.expect(200);
    let view = bench.show_job(&job).await;
    assert_eq!(view["attempts"][0]["reported"]["skewed"], false, "{view}");
}
