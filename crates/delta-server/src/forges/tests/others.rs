//! What one run, one forge, one git server or one stranger does to others: as little as can be. And
//! what a repository may be registered with.

use std::io::ErrorKind;
use std::time::Instant;

use delta_testkit::wait::eventually_async;

use super::*;
use crate::app::DELIVERIES_OF_AN_ADDRESS;
use crate::duties::every::every;

/// What the planner was asked last.
pub fn asked(desk: &Desk) -> (Option<String>, Option<String>) {
    let order = std::fs::read(desk.data.path().join("order")).unwrap();
    let order: serde_json::Value = serde_json::from_slice(&order).unwrap();
    let text = |name: &str| order[name].as_str().map(str::to_owned);
    (text("base"), text("no_base"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_is_compared_with_a_commit_that_went_well() {
    let desk = Desk::limited(Span::minutes(1)).await;
    let well = r#"echo '{"nothing":{"plan":{"jobs":[],"omitted":[]}}}'"#;
    let badly = r#"echo '{"fault":"it is broken"}'"#;
    let commit = |letter: &str| letter.repeat(40);
    let none = "there is nothing to compare the commit with";
    let red = "the last run of this branch did not go well";
    // The branch, what was there before, what is pushed, how it ends, what it is compared with.
    let table = [
        ("main", "0", "a", well, Err(none)),
        ("main", "a", "b", well, Ok("a")),
        ("main", "b", "c", badly, Ok("b")),
        ("main", "c", "d", badly, Ok("b")),
        ("main", "d", "e", well, Ok("b")),
        ("main", "e", "f", well, Ok("e")),
        ("side", "0", "1", badly, Err(none)),
        ("side", "1", "2", well, Err(red)),
        ("side", "2", "3", well, Ok("2")),
    ];
    for (n, (branch, before, after, plan, wanted)) in table.into_iter().enumerate() {
        let git_ref = format!("refs/heads/{branch}");
        let (id, before, after) = (format!("d{n}"), commit(before), commit(after));
        let run = desk.push_of("app", &id, &git_ref, &before, &after).await;
        let planning = desk.planning(&desk.planner(plan));
        planning.run_once(&CancellationToken::new()).await.unwrap();
        desk.until(run, |run| run.state.has_ended()).await;
        let wanted = match wanted {
            Ok(letter) => (Some(commit(letter)), None),
            Err(why) => (None, Some(why.to_owned())),
        };
        assert_eq!(asked(&desk), wanted, "{n}");
    }
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_older_does_not_write_over_the_status_of_a_newer_run() {
    let desk = Desk::new(false).await;
    let reporter = desk.reporter();
    let old = desk.push("d1").await;
    let start = desk.server.app.writer.now();
    desk.forge.set_down(true);
    let cause = Cause::PlanError;
    desk.command(Command::FailPlan { run: old, cause }).await;
    assert_eq!(pass(&reporter, start).await, told(0, 1));
    let before = "a".repeat(40);
    let new = desk
        .push_of("app", "d2", "refs/heads/main", &before, HEAD)
        .await;
    desk.command(Command::Plan {
        run: new,
        jobs: vec![],
        settings: None,
    })
    .await;
    desk.forge.set_down(false);
    // The newer one is told while the older one waits.
    for moment in [desk.run(new).created_at, start + Span::hours(1)] {
        pass(&reporter, moment).await.unwrap();
    }
    assert_eq!(desk.forge.states(HEAD, CONTEXT), ["success"]);
    for run in [old, new] {
        assert_eq!(desk.run(run).state, RunState::Reported);
    }
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_git_server_that_hangs_keeps_only_its_own_runs_waiting() {
    let desk = Desk::limited(Span::minutes(1)).await;
    let program = desk.planner(r#"echo '{"nothing":{"plan":{"jobs":[],"omitted":[]}}}'"#);
    for n in 1..=9 {
        let (name, url) = (
            format!("slow{n}"),
            format!("https://slow.example/team/app{n}.git"),
        );
        let request = format!(
            r#"{{"name":"{name}","clone_url":"{url}","forge":"github","project":"team/app",
                "token":"TOKEN","webhook_secret":"{HOOK}"}}"#
        );
        let request = PutRepository::parse(request.as_bytes()).unwrap();
        let app = &desk.server.app;
        crate::forges::put(
            &app.sides,
            &app.secret_keys,
            &request,
            &"ann".into(),
            Millis(1),
        )
        .unwrap();
        let id = format!("s{n}");
        desk.push_of(&name, &id, "refs/heads/main", NONE, HEAD)
            .await;
    }
    let planning = desk.planning(&program);
    let stop = CancellationToken::new();
    assert_eq!(planning.run_once(&stop).await, Ok(9));
    let run = desk.push("d1").await;
    assert_eq!(planning.run_once(&stop).await, Ok(1));
    let over = desk.until(run, |run| run.state.has_ended()).await;
    assert_eq!(over.cause, Some(Cause::NothingToRun));
    stop.cancel();
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forge_that_does_not_answer_keeps_no_other_waiting() {
    let desk = Desk::new(false).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = format!("http://{}", silent.local_addr().unwrap());
    desk.register("slow", "https://slow.example/team/app.git", &api);
    for n in 0..20 {
        let (id, git_ref) = (format!("s{n}"), format!("refs/heads/b{n}"));
        desk.push_of("slow", &id, &git_ref, NONE, HEAD).await;
    }
    let mut reporter = Arc::into_inner(desk.reporter()).unwrap();
    reporter.client = Client::new(Duration::from_secs(60), is_never_a_server).unwrap();
    let stop = CancellationToken::new();
    let telling = tokio::spawn(every(Arc::new(reporter), Arc::default(), stop.clone()));
    // It is being told, and says nothing.
    let _open = silent.accept().await.unwrap();
    desk.push("d1").await;
    let told = async {
        while desk.forge.states(HEAD, CONTEXT).is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(12), told).await;
    assert!(told.is_ok(), "it waits for the one that is silent");
    stop.cancel();
    telling.abort();
    desk.server.shutdown().await;
}

/// Longer than a busy machine takes for anything here.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn strangers_keep_no_deliveries_out() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let desk = Desk::new(false).await;
    let addr = desk.server.addr().unwrap();
    let open = async |signature: &str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(addr).await.unwrap();
        let head = format!(
            "POST /api/v1/webhooks/app HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\
             x-hub-signature-256: {signature}\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    // What cannot be a signature is answered before its body is there.
    for signature in [
        "",
        "sha256=",
        "sha256=00",
        &format!("sha256={}", "z".repeat(64)),
    ] {
        let mut stream = open(signature).await;
        let mut answer = [0; 12];
        let read = stream.read_exact(&mut answer);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 401", "{signature}");
    }
    // What could be one waits with others of its address.
    let forged = format!("sha256={}", "0".repeat(64));
    let mut slow = Vec::new();
    let began = Instant::now();
    for _ in 0..60 {
        slow.push(open(&forged).await);
    }
    // They have what one address may have, and no more.
    let look = async || match desk.server.app.webhooks.taken() {
        DELIVERIES_OF_AN_ADDRESS => Ok(()),
        taken => Err(taken),
    };
    eventually_async(PATIENCE, "their places are taken", look).await;
    desk.push("d1").await;
    // The first are still waiting for their turn to be over, which takes them some seconds.
    if began.elapsed() < Duration::from_secs(4) {
        let early = slow[0].try_read(&mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(early, Err(ErrorKind::WouldBlock), "it waited for theirs");
    }
    // And not for long; a name that is not there is no different.
    let mut answer = [0; 12];
    let read = slow[0].read_exact(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 503");
    drop(slow);
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_is_overtaken_by_its_newer_head_and_told_when_it_goes_on() {
    // A43
    let desk = Desk::new(false).await;
    let planning = desk.planning(&desk.planner("sleep 600"));
    let request = async |id: &str, head: &str| desk.request(id, 7, head, "stranger/app").await;
    // The newer head came first.
    let new = request("d2", HEAD).await;
    let stop = CancellationToken::new();
    assert_eq!(planning.run_once(&stop).await, Ok(0));
    let old = request("d1", &"a".repeat(40)).await;
    assert_eq!(planning.run_once(&stop).await, Ok(0));
    desk.until(old, |run| run.cancel.is_some()).await;
    assert_eq!(planning.run_once(&stop).await, Ok(1));
    let over = desk.until(old, |run| run.state.has_ended()).await;
    assert_eq!(over.cause, Some(Cause::Superseded));
    assert!(desk.run(new).cancel.is_none());
    let reporter = desk.reporter();
    pass(&reporter, desk.server.app.writer.now()).await.unwrap();
    let role = delta_store::read::Role::Admin;
    let token = desk.server.create_token(role, "ann").await.unwrap();
    let approve = async |run: RunId| {
        let url = format!(
            "http://{}/api/v1/runs/{run}/approve",
            desk.server.addr().unwrap()
        );
        let request = reqwest::Client::new().post(url).bearer_auth(&token);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(approve(old).await, 409, "it is over");
    assert_eq!(approve(new).await, 200);
    let now = desk.server.app.writer.now() + Span::secs(1);
    pass(&reporter, now).await.unwrap();
    let said = desk
        .forge
        .posted()
        .into_iter()
        .filter(|it| it.commit == HEAD);
    let said: Vec<String> = said.map(|it| it.description).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("Waits for approval"), "{said:?}");
    assert_eq!(said[1], "Queued");
    stop.cancel();
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_ours_goes_where_clouds_keep_credentials() {
    // T17
    let desk = Desk::new(false).await;
    let app = &desk.server.app;
    for (url, more, field) in [
        ("https://169.254.169.254/team/app.git", "", "clone_url"),
        (
            "git@169.254.169.254:team/app.git",
            r#","api":"https://x.example""#,
            "clone_url",
        ),
        ("ext://x.example/team/app.git", "", "clone_url"),
        (
            "https://x.example/team/app.git",
            r#","api":"https://[fd00:ec2::254]/""#,
            "api",
        ),
        (
            "https://x.example/team/app.git",
            r#","notify_url":"https://2852039166/","notify_secret":"SIGN""#,
            "notify_url",
        ),
    ] {
        let request = format!(
            r#"{{"name":"other","clone_url":"{url}","forge":"github",
                "webhook_secret":"{HOOK}"{more}}}"#
        );
        let request = PutRepository::parse(request.as_bytes()).unwrap();
        let now = app.writer.now();
        let put = crate::forges::put(&app.sides, &app.secret_keys, &request, &"ann".into(), now);
        let Err(crate::forges::NotPut::Wrong { field: found, .. }) = put else {
            panic!("{url} {more}");
        };
        assert_eq!(found, field, "{url} {more}");
    }
    desk.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_is_registered_again_keeps_what_is_not_named() {
    let desk = Desk::new(true).await;
    let app = &desk.server.app;
    let put = |more: &str| {
        let request = format!(
            r#"{{"name":"app","clone_url":"https://x.example/team/app.git",
                "forge":"github"{more}}}"#
        );
        let request = PutRepository::parse(request.as_bytes()).unwrap();
        let now = app.writer.now();
        crate::forges::put(&app.sides, &app.secret_keys, &request, &"bob".into(), now).unwrap()
    };
    let first = put(r#","forks":"ignore","supersede":false,"credential":"CLONE""#);
    assert_eq!(first.token.as_deref(), Some("TOKEN"));
    assert_eq!(first.site.api(), desk.forge.api().trim_end_matches('/'));
    let again = put("");
    assert_eq!(again.forks, delta_wire::api::ForkPolicy::Ignore);
    assert!(!again.supersede && again.notify == first.notify && again.notify.is_some());
    let unset = again.unset(&*app.sides.reader, &app.secret_keys).unwrap();
    assert_eq!(
        unset,
        ["the secret CLONE is not set: nothing is cloned until it is"]
    );
    desk.server.shutdown().await;
}
