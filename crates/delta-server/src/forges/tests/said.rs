//! What a commit's status says, and of whom; which run goes on; what a person may ask for.

use std::task::{Context, Waker};

use delta_wire::planning::FetchAnswer;

use super::*;

const REQUEST: &str = "delta-ci/pull_request";
const FORK: &str = "delta-ci/pull_request/fork";
const NOTHING: &str = r#"echo '{"nothing":{"plan":{"jobs":[],"omitted":[]}}}'"#;

impl Desk {
    /// Requests from other repositories are treated like this.
    fn set_forks(&self, policy: &str) {
        let request = format!(
            r#"{{"name":"app","clone_url":"https://x.example/team/app.git","forge":"github",
                "forks":"{policy}"}}"#
        );
        let request = PutRepository::parse(request.as_bytes()).unwrap();
        let (app, now) = (&self.server.app, self.server.app.writer.now());
        crate::forges::put(&app.sides, &app.secret_keys, &request, &"ann".into(), now).unwrap();
    }

    /// Plans what waits with this program, until this run is over or has jobs.
    async fn plan(&self, run: RunId, program: &str) -> Run {
        let planning = self.planning(&self.planner(program));
        planning.run_once(&CancellationToken::new()).await.unwrap();
        self.until(run, |run| run.state != RunState::Planning).await
    }

    /// Tells everything that is due, as if a second had passed.
    async fn tell(&self, seconds: i64) {
        let now = self.server.app.writer.now() + Span::secs(seconds);
        pass(&self.reporter(), now).await.unwrap();
    }

    fn descriptions(&self, commit: &str) -> Vec<String> {
        let posted = self.forge.posted().into_iter();
        let those = posted.filter(|it| it.commit == commit);
        those.map(|it| it.description).collect()
    }
}

/// A planner's answer with these jobs.
fn jobs(jobs: Value) -> String {
    let plan = json!({"jobs": {"plan": {"jobs": []}, "request": {"jobs": jobs}}});
    format!("echo '{plan}'")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_request_says_nothing_about_our_own_commit() {
    // T5
    for policy in ["run", "approve"] {
        let desk = Desk::new(false).await;
        desk.set_forks(policy);
        let ours = desk.request("d1", 7, HEAD, "team/app").await;
        let theirs = desk.request("d2", 8, HEAD, "stranger/app").await;
        let cause = Cause::PlanError;
        desk.command(Command::FailPlan { run: ours, cause }).await;
        let (jobs, settings) = (vec![], None);
        let run = theirs;
        desk.command(Command::Plan {
            run,
            jobs,
            settings,
        })
        .await;
        for second in 0..3 {
            desk.tell(second).await;
        }
        assert_eq!(desk.forge.states(HEAD, REQUEST), ["error"], "{policy}");
        assert_eq!(desk.forge.states(HEAD, FORK), ["success"], "{policy}");
        desk.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_is_allowed_is_counted_and_runs_again() {
    let desk = Desk::new(false).await;
    let job = |name: &str, required: bool| {
        json!({"name": name, "required": required, "max_attempts": 1,
            "job_spec": {"steps": ["true"]}})
    };
    let both = jobs(json!([job("unit", true), job("lint", false)]));
    let [one, two, three] = ["a", "b", "c"].map(|letter| letter.repeat(40));
    let push = async |id: &str, before: &str, after: &str| {
        let main = "refs/heads/main";
        desk.push_of("app", id, main, before, after).await
    };
    for (id, before, after, lint) in [("d1", NONE, &*one, 0), ("d2", &*one, &*two, 1)] {
        let run = push(id, before, after).await;
        desk.plan(run, &both).await;
        desk.work(0).await;
        desk.work(lint).await;
        let over = desk.until(run, |run| run.state.has_ended()).await;
        assert_eq!(over.outcome, Some(RunState::Success));
        desk.tell(0).await;
    }
    for (commit, wanted) in [
        (&one, "2 jobs succeeded"),
        (&two, "1 job succeeded, 1 allowed failure"),
    ] {
        let said = desk.descriptions(commit);
        // A slow machine says how long it took, too.
        assert!(said.len() == 1 && said[0].starts_with(wanted), "{said:?}");
    }
    // The next push is compared with what went well in all its parts.
    let run = push("d3", &two, &three).await;
    desk.plan(run, NOTHING).await;
    assert_eq!(others::asked(&desk), (Some(one), None));
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_without_jobs_says_why_there_are_none() {
    let desk = Desk::new(false).await;
    let why = "the file does not run on `push`";
    let plan = json!({"nothing": {"plan": {"jobs": [],
        "omitted": [{"name": "unit", "reason": why}]}}});
    let run = desk.push("d1").await;
    desk.plan(run, &format!("echo '{plan}'")).await;
    desk.tell(0).await;
    let said = format!("Nothing to run: {why}");
    assert_eq!(desk.descriptions(HEAD), [said]);
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_comes_late_does_not_end_the_heads_run() {
    // A43
    let job = json!([{"name": "unit", "max_attempts": 1, "job_spec": {"steps": ["true"]}}]);
    let plan = |cancel_older: bool| {
        let group = json!({"group": "refs/heads/main", "cancel_older": cancel_older});
        let request = json!({"jobs": job, "concurrency": group});
        let plan = json!({"jobs": {"plan": {"jobs": []}, "request": request}});
        format!("echo '{plan}'")
    };
    let [first, old] = ["a", "b"].map(|letter| letter.repeat(40));
    let desk = Desk::new(false).await;
    // The head came first.
    let main = "refs/heads/main";
    let new = desk.push_of("app", "d2", main, &old, HEAD).await;
    desk.plan(new, &plan(true)).await;
    let late = desk.push_of("app", "d1", main, &first, &old).await;
    let over = desk.plan(late, &plan(true)).await;
    assert_eq!(over.outcome, Some(RunState::Canceled));
    assert_eq!(over.cause, Some(Cause::Superseded));
    assert_eq!(desk.run(new).cancel, None);
    // Where the file does not say so, it waits for its turn and runs.
    let late = desk.push_of("app", "d3", main, &old, &first).await;
    let waits = desk.plan(late, &plan(false)).await;
    assert_eq!((waits.state, waits.cancel), (RunState::Queued, None));
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rerun_of_an_older_head_ends_when_a_newer_one_comes() {
    // A43
    let desk = Desk::new(false).await;
    let unit = jobs(json!([{"name": "unit", "max_attempts": 1,
        "job_spec": {"steps": ["true"]}}]));
    let old = desk.request("d1", 7, &"a".repeat(40), "team/app").await;
    desk.plan(old, &unit).await;
    desk.work(1).await;
    let person = desk.token(Role::User).await;
    let path = format!("/runs/{old}/rerun");
    let (status, again) = desk.post(&person, &path, json!({})).await;
    assert_eq!(status, 201, "{again}");
    let again: RunId = again["run_id"].as_str().unwrap().parse().unwrap();
    let new = desk.request("d2", 7, HEAD, "team/app").await;
    desk.plan(new, &unit).await;
    let over = desk.until(again, |run| run.state.has_ended()).await;
    assert_eq!(over.cause, Some(Cause::Superseded));
    assert_eq!(desk.run(new).cancel, None);
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_not_asked_for_where_there_are_none() {
    let desk = Desk::new(false).await;
    let old = desk.push("d1").await;
    let cause = Cause::PlanError;
    desk.command(Command::FailPlan { run: old, cause }).await;
    let person = desk.token(Role::User).await;
    let path = format!("/runs/{old}/rerun");
    let (status, said) = desk.post(&person, &path, json!({"job": "nonsense"})).await;
    assert_eq!((status, &said["field"]), (422, &json!("job")), "{said}");
    let message = said["message"].as_str().unwrap();
    assert!(message.contains("it has none"), "{message}");
    let (status, said) = desk.post(&person, &path, json!({})).await;
    assert_eq!(
        (status, &said["state"]),
        (201, &json!("PLANNING")),
        "{said}"
    );
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_git_server_that_hangs_keeps_nobody_elses_refs_from_being_looked_at() {
    let desk = Desk::new(false).await;
    desk.register(
        "slow",
        "https://slow.example/team/app.git",
        &desk.forge.api(),
    );
    let planning = desk.planning(&desk.planner(NOTHING));
    let app = &desk.server.app;
    let find = |name| {
        crate::forges::find(&*app.sides.reader, name)
            .unwrap()
            .unwrap()
    };
    let (slow, ours) = (find("slow"), find("app"));
    let look = |registered| planning.fetching.look(registered, None, "refs/heads/main");
    let mut hanging: Vec<_> = (0..8).map(|_| Box::pin(look(&slow))).collect();
    // They have what places there are before ours comes.
    let mut context = Context::from_waker(Waker::noop());
    for it in &mut hanging {
        assert!(it.as_mut().poll(&mut context).is_pending());
    }
    let looked = tokio::time::timeout(Duration::from_secs(4), look(&ours)).await;
    let Ok(FetchAnswer::Fetched { commit, .. }) = looked else {
        panic!("{looked:?}");
    };
    assert_eq!(commit, HEAD);
    drop(hanging);
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_wants_to_know_does_not_wait_for_the_forge() {
    let desk = Desk::new(true).await;
    let (reporter, run) = (desk.reporter(), desk.push("d1").await);
    let cause = Cause::PlanError;
    desk.command(Command::FailPlan { run, cause }).await;
    let mut now = desk.server.app.writer.now();
    let (no, gone) = (Fault::Answer(401), Fault::Answer(500));
    // Neither is told; then one; then not again.
    for (faults, hooks) in [
        (vec![no.clone(), gone], 0),
        (vec![no.clone()], 1),
        (vec![no], 1),
    ] {
        desk.forge.next(faults);
        assert_eq!(pass(&reporter, now).await, told(0, 1));
        assert_eq!(desk.forge.hooks().len(), hooks);
        assert_eq!(
            desk.run(run).state,
            RunState::Failed,
            "the forge was not told"
        );
        now = now + Span::minutes(16);
    }
    assert_eq!(pass(&reporter, now).await, told(1, 0));
    assert_eq!(desk.run(run).state, RunState::Reported);
    assert_eq!(desk.forge.states(HEAD, CONTEXT), ["error"]);
    assert_eq!(desk.forge.hooks().len(), 1);
    assert_eq!(desk.server.app.sides.reader.report(run).unwrap(), None);
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_is_too_long_to_keep_keeps_its_first_reasons_and_is_no_fault() {
    let desk = Desk::new(false).await;
    let why = "the file does not run on `push`";
    let omitted = vec![json!({"name": "unit", "reason": why}); 9_000];
    let plan = json!({"nothing": {"plan": {"jobs": [], "omitted": omitted}}});
    let file = desk.data.path().join("plan.json");
    std::fs::write(&file, plan.to_string()).unwrap();
    let run = desk.push("d1").await;
    desk.plan(run, &format!("cat {}", file.display())).await;
    let kept = desk.server.app.sides.reader.plan(run).unwrap().unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["error"], Value::Null);
    let listed = kept["omitted"].as_array().unwrap().len() as u64;
    assert_eq!(listed + kept["cut"]["omitted"].as_u64().unwrap(), 9_000);
    desk.tell(0).await;
    let said = format!("Nothing to run: {why}");
    assert_eq!(desk.descriptions(HEAD), [said]);
    desk.server.shutdown().await;
}
