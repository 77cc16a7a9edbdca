//! A server whose reporter and planner are driven by hand: by moments that the test chooses, with a
//! forge that records and planners that misbehave.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delta_core::{Cause, Command, Millis, Run, RunId, RunState, Span};
use delta_forge::Client;
use delta_testkit::forge::{Delivery, Fault, RecordingForge, Speaks, pull_body, push_body};
use delta_wire::api::{PutRepository, SetSecret};
use delta_wire::places::is_never_a_server;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

mod others;
mod refs;
mod said;

use super::planning::Planning;
use super::reporter::{Reporter, Told};
use crate::writer::Lane;
use crate::{Config, Role, Server, StoreChoice, secrets, start};

const HOOK: &str = "the secret of the webhook";
const HEAD: &str = "6dcb09b5b57875f334f61aebed695e2e4193db5e";
const NONE: &str = "0000000000000000000000000000000000000000";
const CONTEXT: &str = "delta-ci/push";

struct Desk {
    server: Server,
    forge: RecordingForge,
    data: tempfile::TempDir,
}

impl Desk {
    async fn new(notify: bool) -> Desk {
        let data = tempfile::tempdir().unwrap();
        let forge = RecordingForge::start(Speaks::GitHub).unwrap();
        let config = Config {
            store: StoreChoice::Memory,
            listen: Some(([127, 0, 0, 1], 0).into()),
            duties: false,
            ..Config::recommended(data.path().to_owned())
        };
        let server = start(config).await.unwrap();
        let hook = notify.then(|| forge.hook_address());
        let secret = if notify { "\"SIGN\"" } else { "null" };
        let request = format!(
            r#"{{"name":"app","clone_url":"https://x.example/team/app.git","forge":"github",
                "api":"{}","token":"TOKEN","webhook_secret":"{HOOK}","notify_secret":{secret},
                "notify_url":{}}}"#,
            forge.api(),
            serde_json::json!(hook),
        );
        let request = PutRepository::parse(request.as_bytes()).unwrap();
        let (app, now) = (&server.app, server.app.writer.now());
        super::put(&app.sides, &app.secret_keys, &request, &"ann".into(), now).unwrap();
        for name in ["TOKEN", "SIGN"] {
            let body = format!(r#"{{"name":"{name}","value":"a-value-of-{name}"}}"#);
            let secret = SetSecret::parse(body.as_bytes()).unwrap();
            secrets::set(&app.sides, &app.secret_keys, &secret, &"ann".into(), now).unwrap();
        }
        Desk {
            server,
            forge,
            data,
        }
    }

    fn reporter(&self) -> Arc<Reporter> {
        let client = Client::new(Duration::from_secs(5), is_never_a_server).unwrap();
        let mut reporter = Reporter::new(self.server.app.clone(), client);
        reporter.apart = Span(7);
        Arc::new(reporter)
    }

    async fn deliver(&self, delivery: &Delivery) -> (u16, serde_json::Value) {
        self.deliver_to("app", delivery).await
    }

    async fn deliver_to(&self, name: &str, delivery: &Delivery) -> (u16, serde_json::Value) {
        let url = format!(
            "http://{}/api/v1/webhooks/{name}",
            self.server.addr().unwrap()
        );
        let mut request = reqwest::Client::new().post(url);
        for (name, value) in &delivery.headers {
            request = request.header(name, value);
        }
        let answer = request.body(delivery.body.clone()).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap())
    }

    async fn push(&self, id: &str) -> RunId {
        self.push_of("app", id, "refs/heads/main", NONE, HEAD).await
    }

    async fn push_of(
        &self,
        name: &str,
        id: &str,
        git_ref: &str,
        before: &str,
        after: &str,
    ) -> RunId {
        let body = push_body("team/app", git_ref, before, after);
        let delivery = Delivery::new(Speaks::GitHub, "push", id, &body, HOOK);
        let (status, body) = self.deliver_to(name, &delivery).await;
        assert_eq!(status, 202, "{body}");
        body["run_id"].as_str().unwrap().parse().unwrap()
    }

    /// Another repository, at another host.
    fn register(&self, name: &str, clone_url: &str, api: &str) {
        let request = format!(
            r#"{{"name":"{name}","clone_url":"{clone_url}","forge":"github","api":"{api}",
                "token":"TOKEN","webhook_secret":"{HOOK}"}}"#
        );
        let request = PutRepository::parse(request.as_bytes()).unwrap();
        let (app, now) = (&self.server.app, self.server.app.writer.now());
        super::put(&app.sides, &app.secret_keys, &request, &"ann".into(), now).unwrap();
    }

    fn run(&self, id: RunId) -> Run {
        self.server.app.sides.reader.run(id).unwrap().unwrap().run
    }

    async fn command(&self, command: Command) {
        let writer = &self.server.app.writer;
        let done = writer.command(Lane::People, writer.now(), command).await;
        done.unwrap();
    }

    /// A request's head is made, reopened or moved; from another repository when it is named so.
    async fn request(&self, id: &str, number: u64, head: &str, from: &str) -> RunId {
        let body = pull_body("team/app", number, "synchronize", head, from);
        let delivery = Delivery::new(Speaks::GitHub, "pull_request", id, &body, HOOK);
        let (status, body) = self.deliver(&delivery).await;
        assert_eq!(status, 202, "{body}");
        body["run_id"].as_str().unwrap().parse().unwrap()
    }

    async fn token(&self, role: Role) -> String {
        self.server.create_token(role, "ann").await.unwrap()
    }

    async fn post(&self, token: &str, path: &str, body: Value) -> (u16, Value) {
        let url = format!("http://{}/api/v1{path}", self.server.addr().unwrap());
        let request = reqwest::Client::new().post(url).bearer_auth(token);
        let answer = request.body(body.to_string()).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or_default())
    }

    /// The next job that waits is done, and ends with this code.
    async fn work(&self, code: i32) {
        let token = self.token(Role::Runner).await;
        let say = async |path: &str, mut body: Value| {
            body["runner_id"] = "r1".into();
            let path = format!("/runner{path}");
            let (status, said) = self.post(&token, &path, body).await;
            assert_eq!(status, 200, "{path}: {said}");
            said
        };
        let ask = json!({"type": "Lease", "capabilities": ["linux"], "wait_seconds": 10.0});
        let granted = say("/lease", ask).await;
        let (lease, job) = (&granted["lease_id"], &granted["job_id"]);
        let ack = json!({"type": "AckLease", "lease_id": lease, "job_id": job,
            "accepted_at": "2026-01-04T08:00:00Z"});
        say("/ack-lease", ack).await;
        let status = if code == 0 { "SUCCEEDED" } else { "FAILED" };
        let end = json!({"type": "Complete", "lease_id": lease, "status": status,
            "exit_code": code});
        say("/complete", end).await;
    }

    /// A program that answers the fetch, and does this when it is to plan.
    fn planner(&self, plan: &str) -> PathBuf {
        let path = self.data.path().join("planner");
        let text = format!(
            "#!/bin/sh\norder=$(cat)\necho \"$order\" > {order}\n\
             case \"$order\" in *slow.example*) sleep 600 ;; esac\n\
             case \"$1\" in\nfetch-worker)\n\
             echo '{{\"fetched\":{{\"commit\":\"{HEAD}\",\"head\":\"{HEAD}\",\"base\":null}}}}' ;;\n\
             *)\n{plan}\n\
             ;;\nesac\n",
            order = self.data.path().join("order").display(),
        );
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn planning(&self, program: &Path) -> Arc<Planning> {
        let mirrors = self.data.path().join("mirrors");
        Arc::new(Planning::new(
            self.server.app.clone(),
            program.to_owned(),
            mirrors,
        ))
    }

    async fn until(&self, id: RunId, wanted: impl Fn(&Run) -> bool) -> Run {
        for _ in 0..2_000 {
            let run = self.run(id);
            if wanted(&run) {
                return run;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it is still {:?}", self.run(id));
    }
}

/// One pass over the outbox, and what came of what it began.
async fn pass(reporter: &Arc<Reporter>, now: Millis) -> Result<Told, String> {
    reporter.run_once(now).await?;
    Ok(reporter.finish().await)
}

fn told(told: usize, later: usize) -> Result<Told, String> {
    Ok(Told { told, later })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forge_that_is_down_for_an_hour_is_told_once_afterwards() {
    // SM-17, A44, F47
    let desk = Desk::new(false).await;
    let (reporter, run) = (desk.reporter(), desk.push("d1").await);
    let start = desk.server.app.writer.now();
    assert_eq!(pass(&reporter, start).await, told(1, 0));
    assert_eq!(pass(&reporter, start).await, told(0, 0), "nothing new");
    let cause = Cause::PlanError;
    desk.command(Command::FailPlan { run, cause }).await;
    desk.forge.set_down(true);
    let mut tries = 0;
    // An hour, looked at each second.
    for second in 0..3600 {
        let now = start + Span::secs(second);
        let done = pass(&reporter, now).await.unwrap();
        assert_eq!(done.told, 0);
        tries += done.later;
        assert_eq!(
            desk.run(run).state,
            RunState::Failed,
            "not before it is told"
        );
    }
    assert!(
        (10..60).contains(&tries),
        "{tries} tries: often, and not too often"
    );
    desk.forge.set_down(false);
    let mut now = start + Span::hours(1);
    while desk.run(run).state != RunState::Reported {
        now = now + Span::secs(1);
        pass(&reporter, now).await.unwrap();
        assert!(now < start + Span::hours(2), "never told");
    }
    assert_eq!(desk.forge.states(HEAD, CONTEXT), ["pending", "error"]);
    assert_eq!(pass(&reporter, now + Span::hours(1)).await, told(0, 0));
    assert_eq!(desk.server.app.sides.reader.report(run).unwrap(), None);
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_does_not_tell_twice_and_limits_are_kept() {
    // A44
    let desk = Desk::new(false).await;
    let (reporter, run) = (desk.reporter(), desk.push("d1").await);
    let mut now = desk.server.app.writer.now();
    desk.forge.next([Fault::DoneUnanswered]);
    assert_eq!(pass(&reporter, now).await, told(0, 1));
    now = now + Span::minutes(5);
    assert_eq!(pass(&reporter, now).await, told(1, 0));
    assert_eq!(desk.forge.states(HEAD, CONTEXT), ["pending"]);
    desk.command(Command::FailPlan {
        run,
        cause: Cause::EmptyPlan,
    })
    .await;
    desk.forge.next([Fault::RetryAfter(429, 600)]);
    assert_eq!(pass(&reporter, now).await, told(0, 1));
    let early = now + Span::secs(599);
    assert_eq!(
        pass(&reporter, early).await,
        told(0, 0),
        "it was told to wait"
    );
    let late = now + Span::secs(601);
    assert_eq!(pass(&reporter, late).await, told(1, 0));
    assert_eq!(desk.run(run).state, RunState::Reported);
    // Two reporters at once: what one has taken the other leaves alone.
    let second = desk.push("d2").await;
    assert_eq!(second, run, "the same push");
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_reporters_one_tells() {
    let desk = Desk::new(false).await;
    let run = desk.push("d1").await;
    let now = desk.server.app.writer.now();
    let (one, two) = (desk.reporter(), {
        let mut other = Arc::into_inner(desk.reporter()).unwrap();
        other.apart = Span(8);
        Arc::new(other)
    });
    let (a, b) = tokio::join!(pass(&one, now), pass(&two, now));
    let sum = a.unwrap().told + b.unwrap().told;
    assert_eq!((sum, desk.forge.posted().len()), (1, 1));
    assert_eq!(desk.run(run).state, RunState::Planning);
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_wants_to_know_is_told_once_by_a_signed_webhook() {
    let desk = Desk::new(true).await;
    let (reporter, run) = (desk.reporter(), desk.push("d1").await);
    let cause = Cause::PlanError;
    desk.command(Command::FailPlan { run, cause }).await;
    let now = desk.server.app.writer.now();
    // The status is taken, the webhook is not: the run is reported all the same.
    desk.forge.next([Fault::Answer(200), Fault::Answer(500)]);
    assert_eq!(pass(&reporter, now).await, told(0, 1));
    assert_eq!(desk.run(run).state, RunState::Reported);
    let later = now + Span::minutes(5);
    assert_eq!(pass(&reporter, later).await, told(1, 0));
    let hooks = desk.forge.hooks();
    assert_eq!(hooks.len(), 1);
    assert_eq!(hooks[0].delivery, run.to_string());
    let secret = delta_forge::Secret::new("a-value-of-SIGN");
    let wanted = delta_forge::sign_outgoing(&secret, later.0 / 1000, &hooks[0].body);
    assert_eq!(hooks[0].signature, wanted);
    let body: serde_json::Value = serde_json::from_slice(&hooks[0].body).unwrap();
    assert_eq!(
        (&body["outcome"], &body["repository"]),
        (&"FAILED".into(), &"app".into())
    );
    assert_eq!(pass(&reporter, later + Span::hours(1)).await, told(0, 0));
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_copies_of_a_delivery_make_one_run() {
    // SM-65, T18
    let desk = Arc::new(Desk::new(false).await);
    let body = pull_body("team/app", 7, "opened", HEAD, "team/app");
    let delivery = Arc::new(Delivery::new(
        Speaks::GitHub,
        "pull_request",
        "d1",
        &body,
        HOOK,
    ));
    let mut sent = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (desk, delivery) = (desk.clone(), delivery.clone());
        sent.spawn(async move {
            loop {
                let (status, body) = desk.deliver(&delivery).await;
                // Too many at once are asked to come again, as a forge does.
                if status != 503 {
                    return (status, body["run_id"].clone());
                }
            }
        });
    }
    let answers = sent.join_all().await;
    let first = answers[0].clone();
    assert_eq!(first.0, 202);
    assert!(answers.iter().all(|it| *it == first), "{answers:?}");
    let runs = desk
        .server
        .app
        .sides
        .reader
        .runs(&Default::default(), 10)
        .unwrap();
    assert_eq!(runs.len(), 1);
    // The same number with another body is somebody else.
    let other = pull_body("team/app", 8, "opened", HEAD, "team/app");
    let other = Delivery::new(Speaks::GitHub, "pull_request", "d1", &other, HOOK);
    assert_eq!(desk.deliver(&other).await.0, 409);
}

/// Plans a push with this program; how the run ends.
async fn planned_with(plan: &str, limit: Span) -> (Run, Option<String>, Duration) {
    let desk = Desk::limited(limit).await;
    let program = desk.planner(plan);
    let run = desk.push("d1").await;
    let planning = desk.planning(&program);
    let began = std::time::Instant::now();
    let stop = CancellationToken::new();
    assert_eq!(planning.run_once(&stop).await, Ok(1));
    assert_eq!(planning.run_once(&stop).await, Ok(0), "it is being planned");
    let over = desk.until(run, |run| run.state.has_ended()).await;
    let took = began.elapsed();
    let said = desk.server.app.sides.reader.plan(run).unwrap();
    assert_eq!(planning.run_once(&stop).await, Ok(0), "nothing is left");
    desk.server.shutdown().await;
    (over, said.map(|it| it.to_string()), took)
}

impl Desk {
    /// With this much time for a planner.
    async fn limited(limit: Span) -> Desk {
        let desk = Desk::new(false).await;
        let Desk {
            server,
            forge,
            data,
        } = desk;
        server.shutdown().await;
        let mut config = Config {
            store: StoreChoice::Sqlite,
            listen: Some(([127, 0, 0, 1], 0).into()),
            duties: false,
            ..Config::recommended(data.path().to_owned())
        };
        config.settings.planning_timeout = limit;
        let server = start(config).await.unwrap();
        let request = format!(
            r#"{{"name":"app","clone_url":"https://x.example/team/app.git","forge":"github",
                "api":"{}","token":"TOKEN","webhook_secret":"{HOOK}"}}"#,
            forge.api(),
        );
        let request = PutRepository::parse(request.as_bytes()).unwrap();
        let app = &server.app;
        let now = Millis(1);
        super::put(&app.sides, &app.secret_keys, &request, &"ann".into(), now).unwrap();
        Desk {
            server,
            forge,
            data,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planner_that_crashes_hangs_or_babbles_costs_its_run_only() {
    // F46, SM-9, SM-10, T13
    let minute = Span::minutes(1);
    let (crashed, said, _) = planned_with("kill -SEGV $$", minute).await;
    assert_eq!(
        (crashed.state, crashed.cause),
        (RunState::Failed, Some(Cause::PlanError))
    );
    assert!(said.unwrap().contains("did not answer"));
    let (hung, _, took) = planned_with("sleep 600 & sleep 600", Span::secs(1)).await;
    assert_eq!(hung.cause, Some(Cause::PlanTimeout));
    assert!(took < Duration::from_secs(60), "{took:?}");
    let (garbage, ..) = planned_with("echo '{\"jobs\":7}'", minute).await;
    assert_eq!(garbage.cause, Some(Cause::PlanError));
    let (flood, ..) = planned_with("yes", minute).await;
    assert_eq!(flood.cause, Some(Cause::PlanError));
    let cycle = r#"echo '{"jobs":{"plan":{},"request":{"jobs":[
        {"name":"a","needs":["b"],"job_spec":{"steps":["x"]}},
        {"name":"b","needs":["a"],"job_spec":{"steps":["x"]}}]}}}'"#;
    let (cycle, said, _) = planned_with(cycle, minute).await;
    assert_eq!(cycle.cause, Some(Cause::PlanError));
    assert!(said.unwrap().contains("is not one that can run"));
    let (empty, ..) = planned_with("echo '{\"empty\":\"nothing is here\"}'", minute).await;
    assert_eq!(empty.cause, Some(Cause::EmptyPlan));
    let nothing = r#"echo '{"nothing":{"plan":{"jobs":[],"omitted":[]}}}'"#;
    let (nothing, ..) = planned_with(nothing, minute).await;
    assert_eq!(nothing.outcome, Some(RunState::Success));
    assert_eq!(nothing.cause, Some(Cause::NothingToRun));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_canceled_while_it_is_planned_and_resumed_after_a_restart() {
    // A11, SM-7
    let desk = Desk::limited(Span::minutes(5)).await;
    let slow = desk.planner("sleep 600");
    let run = desk.push("d1").await;
    let planning = desk.planning(&slow);
    let stop = CancellationToken::new();
    assert_eq!(planning.run_once(&stop).await, Ok(1));
    // The server stops in the middle: the run stays as it is, and is taken again.
    stop.cancel();
    let stop = CancellationToken::new();
    let again = desk.planning(&slow);
    assert_eq!(desk.run(run).state, RunState::Planning);
    assert_eq!(again.run_once(&stop).await, Ok(1));
    desk.command(Command::CancelRun {
        run,
        cause: Cause::CanceledByUser,
        by: "ann".into(),
    })
    .await;
    let over = desk.until(run, |run| run.state.has_ended()).await;
    assert_eq!(over.outcome, Some(RunState::Canceled));
    assert_eq!(over.cause, Some(Cause::CanceledByUser));
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_becomes_jobs_with_their_specs() {
    // SM-8: one commit.
    let plan = r#"echo '{"jobs":{"plan":{"jobs":[]},"request":{"jobs":[
        {"name":"a","job_spec":{"steps":["echo a"]}},
        {"name":"b","needs":["a"],"job_spec":{"steps":["echo b"]}}]}}}'"#;
    let desk = Desk::limited(Span::minutes(1)).await;
    let program = desk.planner(plan);
    let run = desk.push("d1").await;
    let planning = desk.planning(&program);
    planning.run_once(&CancellationToken::new()).await.unwrap();
    let queued = desk.until(run, |run| run.state == RunState::Queued).await;
    assert_eq!((queued.jobs, queued.live_jobs), (2, 2));
    for (n, word) in [(1, "echo a"), (2, "echo b")] {
        let spec = desk
            .server
            .app
            .sides
            .reader
            .spec(run.job(n))
            .unwrap()
            .unwrap();
        assert!(spec.contains(word), "{spec}");
    }
    desk.server.shutdown().await;
}
