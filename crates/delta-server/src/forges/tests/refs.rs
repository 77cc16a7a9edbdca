//! Two refs with the same commit, of which a forge keeps one status: it is never good while one of
//! them is not. And a forge that wants to be left alone.

use super::*;

const REQUEST: &str = "delta-ci/pull_request";
const MAIN: &str = "refs/heads/main";
const RELEASE: &str = "refs/heads/release";

impl Desk {
    /// The run comes to nothing, which is a success.
    async fn comes_to_nothing(&self, run: RunId) {
        let (jobs, settings) = (vec![], None);
        self.command(Command::Plan {
            run,
            jobs,
            settings,
        })
        .await;
    }

    async fn fails(&self, run: RunId) {
        let cause = Cause::PlanError;
        self.command(Command::FailPlan { run, cause }).await;
    }

    /// It is planned with one job, in a group of runs in which the newer one ends the older.
    async fn enters_the_group(&self, run: RunId) {
        let job = json!({"name": "unit", "max_attempts": 1, "job_spec": {"steps": ["true"]}});
        let group = json!({"group": "one", "cancel_older": true});
        let request = json!({"jobs": [job], "concurrency": group});
        let plan = json!({"jobs": {"plan": {"jobs": []}, "request": request}});
        let planning = self.planning(&self.planner(&format!("echo '{plan}'")));
        planning.run_once(&CancellationToken::new()).await.unwrap();
        self.until(run, |run| run.place.is_some()).await;
    }

    /// What a sweep does about a run that waits for its turn.
    async fn turn(&self, run: RunId) {
        let member = run.job(0);
        self.command(Command::TakeTurn { member }).await;
    }

    /// Tells what is due until nothing is, as if time had passed.
    async fn tell_all(&self, reporter: &Arc<Reporter>) {
        for second in 1..=4 {
            let now = self.server.app.writer.now() + Span::secs(second * 60);
            pass(reporter, now).await.unwrap();
        }
    }

    async fn until_the_forge_is_asked(&self) {
        for _ in 0..2_000 {
            if self.forge.seen().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await
            } else {
                return;
            }
        }
        panic!("nobody asks it");
    }

    fn last(&self, context: &str) -> (String, String) {
        let mut posted = self.forge.posted().into_iter();
        let last = posted.rfind(|it| it.commit == HEAD && it.context == context);
        last.map(|it| (it.state, it.description)).unwrap()
    }

    async fn rerun(&self, run: RunId) -> RunId {
        let person = self.token(Role::User).await;
        let path = format!("/runs/{run}/rerun");
        let (status, again) = self.post(&person, &path, json!({})).await;
        assert_eq!(status, 201, "{again}");
        again["run_id"].as_str().unwrap().parse().unwrap()
    }
}

// I27: how the commit stands is the worst of what the newest run of each of its refs came to.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_failed_is_not_made_good_by_another_with_the_same_commit() {
    // Whether the failure was told before the other came, or not.
    for told_before in [true, false] {
        let desk = Desk::new(false).await;
        let reporter = desk.reporter();
        let main = desk.push_of("app", "d1", MAIN, NONE, HEAD).await;
        desk.fails(main).await;
        if told_before {
            desk.tell_all(&reporter).await;
        }
        let release = desk.push_of("app", "d2", RELEASE, NONE, HEAD).await;
        desk.comes_to_nothing(release).await;
        desk.tell_all(&reporter).await;
        let states = desk.forge.states(HEAD, CONTEXT);
        assert!(states.iter().all(|it| it == "error"), "{states:?}");
        let (_, line) = desk.last(CONTEXT);
        assert!(line.starts_with("main: "), "{line}");
        for run in [main, release] {
            assert_eq!(desk.run(run).state, RunState::Reported);
        }
        // Again, and well: then it is good.
        let again = desk.rerun(main).await;
        desk.tell_all(&reporter).await;
        assert_eq!(desk.last(CONTEXT).0, "pending");
        desk.comes_to_nothing(again).await;
        desk.tell_all(&reporter).await;
        assert_eq!(desk.last(CONTEXT).0, "success");
        desk.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_goes_on_or_failed_is_not_made_good_by_another_with_the_same_head() {
    let desk = Desk::new(false).await;
    let reporter = desk.reporter();
    let seven = desk.request("d1", 7, HEAD, "team/app").await;
    desk.tell_all(&reporter).await;
    let eight = desk.request("d2", 8, HEAD, "team/app").await;
    desk.comes_to_nothing(eight).await;
    desk.tell_all(&reporter).await;
    assert_eq!(desk.last(REQUEST), ("pending".into(), "#7: Queued".into()));
    assert_eq!(desk.run(eight).state, RunState::Reported);
    desk.fails(seven).await;
    desk.tell_all(&reporter).await;
    assert_eq!(desk.last(REQUEST).0, "error");
    assert_eq!(desk.run(seven).state, RunState::Reported);
    let states = desk.forge.states(HEAD, REQUEST);
    assert!(!states.contains(&"success".to_owned()), "{states:?}");
    // A newer run of the other changes nothing of it.
    let eight = desk.request("d3", 8, HEAD, "team/app").await;
    desk.comes_to_nothing(eight).await;
    desk.tell_all(&reporter).await;
    assert_eq!(desk.last(REQUEST).0, "error");
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_moved_on_has_no_word_about_the_head_it_left() {
    let desk = Desk::new(false).await;
    let reporter = desk.reporter();
    let left = "a".repeat(40);
    let seven = desk.request("d1", 7, &left, "team/app").await;
    let newer = desk.request("d2", 7, HEAD, "team/app").await;
    let nothing = r#"echo '{"nothing":{"plan":{"jobs":[],"omitted":[]}}}'"#;
    let planning = desk.planning(&desk.planner(nothing));
    planning.run_once(&CancellationToken::new()).await.unwrap();
    desk.until(newer, |run| run.state.has_ended()).await;
    let over = desk.until(seven, |run| run.state.has_ended()).await;
    assert_eq!(over.cause, Some(Cause::Superseded));
    desk.tell_all(&reporter).await;
    let last = || desk.forge.states(&left, REQUEST).pop();
    assert_eq!(last().as_deref(), Some("error"), "nobody else says a word");
    let eight = desk.request("d3", 8, &left, "team/app").await;
    desk.comes_to_nothing(eight).await;
    desk.tell_all(&reporter).await;
    assert_eq!(last().as_deref(), Some("success"));
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_its_group_ended_for_another_is_not_made_good_by_it() {
    let desk = Desk::new(false).await;
    let reporter = desk.reporter();
    // That it had another head before says nothing about this one.
    let before = desk.request("d0", 7, &"a".repeat(40), "team/app").await;
    desk.enters_the_group(before).await;
    let seven = desk.request("d1", 7, HEAD, "team/app").await;
    desk.enters_the_group(seven).await;
    let eight = desk.request("d2", 8, HEAD, "team/app").await;
    desk.enters_the_group(eight).await;
    desk.turn(seven).await;
    assert_eq!(desk.run(seven).cause, Some(Cause::Superseded));
    desk.turn(eight).await;
    desk.work(0).await;
    let over = desk.until(eight, |run| run.state.has_ended()).await;
    assert_eq!(over.outcome, Some(RunState::Success));
    desk.tell_all(&reporter).await;
    // Its head is what it was, and nobody has tested it for where it wants to go.
    let line = "#7: Superseded by another run of its group";
    assert_eq!(desk.last(REQUEST), ("error".into(), line.into()));
    let states = desk.forge.states(HEAD, REQUEST);
    assert!(!states.contains(&"success".to_owned()), "{states:?}");
    // Again, and well: then it is good.
    let again = desk.rerun(seven).await;
    desk.turn(again).await;
    desk.work(0).await;
    desk.until(again, |run| run.state.has_ended()).await;
    desk.tell_all(&reporter).await;
    assert_eq!(desk.last(REQUEST).0, "success");
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_whose_newer_push_ended_the_older_has_no_word_about_what_it_left() {
    let desk = Desk::new(false).await;
    let reporter = desk.reporter();
    let left = "a".repeat(40);
    let old = desk.push_of("app", "d1", MAIN, NONE, &left).await;
    desk.enters_the_group(old).await;
    let new = desk.push_of("app", "d2", MAIN, &left, HEAD).await;
    desk.enters_the_group(new).await;
    desk.turn(old).await;
    assert_eq!(desk.run(old).cause, Some(Cause::Superseded));
    let release = desk.push_of("app", "d3", RELEASE, NONE, &left).await;
    desk.comes_to_nothing(release).await;
    desk.tell_all(&reporter).await;
    let last = desk.forge.states(&left, CONTEXT).pop();
    assert_eq!(last.as_deref(), Some("success"));
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_while_a_status_is_on_its_way_is_told_after_it() {
    let desk = Desk::new(false).await;
    let reporter = desk.reporter();
    let release = desk.push_of("app", "d1", RELEASE, NONE, HEAD).await;
    desk.comes_to_nothing(release).await;
    desk.forge.set_held(true);
    let now = desk.server.app.writer.now() + Span::secs(1);
    let telling = tokio::spawn(async move { pass(&reporter, now).await });
    desk.until_the_forge_is_asked().await;
    // Somebody else told of this one meanwhile, and this success arrives behind it.
    let main = desk.push_of("app", "d2", MAIN, NONE, HEAD).await;
    desk.fails(main).await;
    desk.forge.set_held(false);
    telling.await.unwrap().unwrap();
    let states = desk.forge.states(HEAD, CONTEXT);
    assert_eq!(states, ["success", "error"], "it is right in the end");
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_with_the_last_request_that_is_taken_waits_until_there_are_more() {
    // F47
    let desk = Desk::new(false).await;
    let reporter = desk.reporter();
    let release = desk.push_of("app", "d1", RELEASE, NONE, HEAD).await;
    desk.comes_to_nothing(release).await;
    let now = desk.server.app.writer.now() + Span::secs(1);
    let reset = (now + Span::minutes(30)).0 / 1000;
    desk.forge.next([Fault::DoneAndLimited(reset)]);
    desk.forge.set_held(true);
    let first = reporter.clone();
    let telling = tokio::spawn(async move { pass(&first, now).await });
    desk.until_the_forge_is_asked().await;
    let main = desk.push_of("app", "d2", MAIN, NONE, HEAD).await;
    desk.fails(main).await;
    desk.forge.set_held(false);
    assert_eq!(telling.await.unwrap(), told(0, 1));
    let done = pass(&reporter, now + Span::minutes(29)).await.unwrap();
    assert_eq!(done.told, 0);
    assert_eq!(desk.forge.requests().len(), 1, "nothing more was sent");
    let later = now + Span::minutes(32);
    pass(&reporter, later).await.unwrap();
    assert_eq!(desk.last(CONTEXT).0, "error");
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forge_that_wants_to_be_left_alone_is_left_alone_by_all_runs() {
    // F47
    let commit = |n: usize| format!("{n:x}").repeat(40);
    let desk = Desk::new(false).await;
    let reporter = desk.reporter();
    let start = desk.server.app.writer.now() + Span::secs(1);
    let at = |minutes: i64| start + Span::minutes(minutes);
    let reset = |minutes: i64| at(minutes).0 / 1000;
    let push = async |n: usize| {
        let (id, git_ref) = (format!("d{n}"), format!("refs/heads/b{n}"));
        desk.push_of("app", &id, &git_ref, NONE, &commit(n)).await
    };
    // The answer to one says it, or it comes with the last one that is taken.
    for (n, fault, from) in [
        (1, Fault::Limited(reset(60)), 0),
        (4, Fault::RetryAfter(503, 3600), 61),
        (7, Fault::DoneAndLimited(reset(61 + 61 + 60)), 61 + 61),
    ] {
        desk.forge.next([fault]);
        push(n).await;
        pass(&reporter, at(from)).await.unwrap();
        let asked = desk.forge.seen();
        for more in [n + 1, n + 2] {
            push(more).await;
        }
        for minute in [1, 30, 59] {
            let done = pass(&reporter, at(from + minute)).await.unwrap();
            assert_eq!(done.told, 0, "{n}");
        }
        assert_eq!(desk.forge.seen(), asked, "nothing was sent");
        pass(&reporter, at(from + 61)).await.unwrap();
        for n in n..=n + 2 {
            let states = desk.forge.states(&commit(n), CONTEXT);
            assert_eq!(states, ["pending"], "{n}");
        }
        // Nothing was lost, so nothing is looked for: only the one that was refused is.
        let looks = desk.forge.requests();
        let looks = looks.iter().filter(|it| it.starts_with("GET"));
        assert!(looks.count() <= 2, "{:?}", desk.forge.requests());
    }
    desk.server.shutdown().await;
}
