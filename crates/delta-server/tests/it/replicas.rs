//! Several servers on one PostgreSQL: any message to any of them (D3, D6).

use std::time::Duration;

use delta_core::{Settings, Span};
use delta_server::{Config, StoreChoice};
use delta_testkit::postgres::{PgDatabase, fresh_database};
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AssignWork, DrainComplete, HeldLease, RegisterRequest, RunStatus, WorkRejected,
};
use serde_json::json;
use tonic::Code;

use crate::agent::{Agent, request};
use crate::bench::{Bench, Lease, PATIENCE, config, job, patient_settings};
use crate::uploads::{complete_with, log_url, put, put_artifact};

/// What servers share for as long as they live: a database, and a folder of logs and artifacts.
pub struct Shared {
    database: PgDatabase,
    objects: tempfile::TempDir,
}

impl Shared {
    async fn new() -> Shared {
        let database = tokio::task::spawn_blocking(fresh_database).await;
        Shared {
            database: database.unwrap().unwrap(),
            objects: tempfile::tempdir().unwrap(),
        }
    }

    fn config(&self, data: &tempfile::TempDir, settings: Settings) -> Config {
        Config {
            store: StoreChoice::Postgres(self.database.url.clone()),
            objects: Some(self.objects.path().to_owned()),
            recheck: Duration::from_millis(100),
            ..config(data, settings)
        }
    }

    async fn server(&self, settings: Settings, retention: Option<Span>) -> Bench {
        let data = tempfile::tempdir().unwrap();
        let config = Config {
            retention,
            ..self.config(&data, settings)
        };
        Bench::start(data, config).await
    }
}

/// Two servers, and what they share.
pub async fn pair(settings: Settings) -> (Bench, Bench, Shared) {
    let shared = Shared::new().await;
    let one = shared.server(settings.clone(), None).await;
    let mut two = shared.server(settings, None).await;
    // A token made by one is good at the other.
    (two.user, two.runner, two.admin) = (one.user.clone(), one.runner.clone(), one.admin.clone());
    (one, two, shared)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_of_a_job_may_go_to_another_server() {
    let (one, two, _shared) = pair(patient_settings()).await;
    let (run, _) = one.create_one().await;
    let lease = two.lease().await;
    one.say("/ack-lease", lease.ack()).await.expect(200);
    two.say("/heartbeat", lease.beat()).await.expect(200);
    one.say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let again = two
        .say("/complete", lease.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    assert_eq!(again["accepted"], true);
    assert_eq!(two.show(&run).await["outcome"], "SUCCESS");
    let doctor = one.get_as(&one.admin, "/api/v1/doctor").await.expect(200);
    assert_eq!(doctor["healthy"], true, "{doctor}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_queued_at_one_server_wakes_a_slot_parked_at_the_other() {
    // No sweep helps: the store's own wake-up must.
    let slow = Settings {
        sweep: Span::hours(1),
        ..patient_settings()
    };
    let (one, two, _shared) = pair(slow).await;
    let (granted, ()) = tokio::join!(two.lease_as("r1", 25.0), async {
        delta_testkit::wait::eventually_async(PATIENCE, "parked", async || {
            let text = two.get("/metrics").await.text;
            if text.contains("delta_parked_slots 1") {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await;
        one.create_one().await;
    });
    granted.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_at_one_server_reaches_an_agent_at_the_other() {
    // EP-24, EP-25, A50, D14
    let (one, two, _shared) = pair(patient_settings()).await;
    let mut agent = Agent::new(&one).await;
    two.order(&agent.id, "drain").await.expect(200);
    let drain_id = agent.hears(|say| match say {
        Say::Drain(drain) => Some(drain.drain_id.clone()),
        _ => None,
    });
    let drain_id = drain_id.await;
    two.run_with(1).await;
    agent
        .say([Said::DrainComplete(DrainComplete { drain_id })])
        .await;
    two.agent_until(&agent.id, "the drain's end is known here", |view| {
        view["status"] == "DRAINING" && view["drain"]["drained_at"].is_string()
    })
    .await;
    two.order(&agent.id, "undrain").await.expect(200);
    agent
        .hears(|say| matches!(say, Say::Undrain(_)).then_some(()))
        .await;
    agent.work().await;
    assert!(two.revoke(&two.admin, &agent.id).await.status.is_success());
    assert_eq!(agent.ends().await.unwrap().code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_session_wins_whichever_server_it_is_at() {
    // A26, F50
    let (one, two, _shared) = pair(patient_settings()).await;
    let mut older = Agent::new(&one).await;
    let again = RegisterRequest {
        agent_id: older.id.clone(),
        resume_secret: older.registered.resume_secret.clone(),
        instance: "i2".into(),
        ..request()
    };
    let mut newer = Agent::register(&two, again).await.unwrap();
    assert!(newer.registered.session_epoch > older.registered.session_epoch);
    let ended = older.ends().await.unwrap();
    assert_eq!(ended.code(), Code::Aborted);
    assert!(ended.message().contains("SUPERSEDED"), "{ended}");
    one.run_with(1).await;
    let work = newer.work().await;
    newer.accepts(&work).await;
    for bench in [&one, &two] {
        bench
            .agent_until(&newer.id, "the newer session is shown", |view| {
                view["session_epoch"] == newer.registered.session_epoch
            })
            .await;
    }
}

/// Puts a clock of our own in the place of the database's, to be moved by a table.
const MOVABLE_CLOCK: &str = "SET allow_system_table_mods = on; \
    ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO true_clock_timestamp; \
    CREATE TABLE public.wall (ahead interval NOT NULL); \
    INSERT INTO public.wall VALUES ('0'); \
    CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
    'SELECT pg_catalog.true_clock_timestamp() + (SELECT ahead FROM public.wall)'";

/// Two servers, the first of which has a clock ahead of the other's by nearly as much as it may be
/// before it stops serving.
async fn ahead_and_behind(settings: Settings) -> (Bench, Bench, Shared) {
    let shared = Shared::new().await;
    let execute = |sql: &'static str| {
        let database = &shared.database;
        tokio::task::block_in_place(|| database.execute(sql).unwrap());
    };
    execute(MOVABLE_CLOCK);
    let mut behind = shared.server(settings.clone(), None).await;
    execute("UPDATE public.wall SET ahead = '4 seconds'");
    let ahead = shared.server(settings, None).await;
    execute("UPDATE public.wall SET ahead = '0'");
    (behind.user, behind.runner) = (ahead.user.clone(), ahead.runner.clone());
    behind.admin = ahead.admin.clone();
    (ahead, behind, shared)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_moves_to_a_server_whose_clock_is_behind_has_the_newest_session() {
    // A23, A26, I23
    let (ahead, behind, _shared) = ahead_and_behind(patient_settings()).await;
    let shows_itself = RegisterRequest {
        shows_itself: true,
        ..request()
    };
    let first = Agent::register(&ahead, shows_itself.clone()).await;
    let mut agent = first.unwrap();
    let secret = agent.registered.resume_secret.clone();
    let (run, jobs) = ahead.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    let lines: Vec<String> = (0..5).map(|n| format!("line {n}\n")).collect();
    let mut sent = 0;
    // At once, each time: nobody has had the time to tell others of the session before.
    for (n, line) in lines.iter().enumerate() {
        let log = agent.log(&work, Some(sent), line.as_bytes());
        agent
            .say([log, agent.heartbeat(&[&work], Some(n as u64 + 1))])
            .await;
        agent
            .hears(|say| matches!(say, Say::LogAck(_)).then_some(()))
            .await;
        sent += line.len() as u64;
        let to = [&behind, &ahead][n % 2];
        let again = RegisterRequest {
            agent_id: agent.id.clone(),
            resume_secret: secret.clone(),
            leases: vec![HeldLease {
                run_id: work.run_id.clone(),
                ..HeldLease::default()
            }],
            ..shows_itself.clone()
        };
        let newer = Agent::register(to, again).await.unwrap();
        assert!(newer.registered.session_epoch > agent.registered.session_epoch);
        assert!(newer.registered.resume[0].live, "{:?}", newer.registered);
        // The one before is over, and has not taken the newer one with it.
        let ended = agent.ends().await.unwrap();
        assert!(ended.message().contains("SUPERSEDED"), "{ended}");
        agent = newer;
    }
    let log = lines.concat();
    agent
        .say([agent.completed_with_log(&work, log.as_bytes())])
        .await;
    agent
        .hears(|say| matches!(say, Say::CompleteAck(_)).then_some(()))
        .await;
    assert_eq!(behind.show(&run).await["outcome"], "SUCCESS");
    let job = behind
        .get(&format!("/api/v1/jobs/{}", jobs[0]))
        .await
        .expect(200);
    assert_eq!(job["attempts"][0]["losses"], 0, "{job}");
    let stored = behind.get(&format!("/api/v1/jobs/{}/log", jobs[0])).await;
    assert_eq!(stored.text, log);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_still_said_over_a_session_that_is_not_the_newest_is_refused() {
    // A26, I23: by the row that is judged with the message, before anybody has told the session.
    let shared = Shared::new().await;
    let data = tempfile::tempdir().unwrap();
    let deaf = Config {
        recheck: Duration::from_secs(3600),
        ..shared.config(&data, patient_settings())
    };
    let one = Bench::start(data, deaf).await;
    let mut two = shared.server(patient_settings(), None).await;
    (two.user, two.runner) = (one.user.clone(), one.runner.clone());
    type Message = fn(&Agent, &AssignWork) -> Said;
    let declined: Message = |agent, work| {
        Said::WorkRejected(WorkRejected {
            run_id: work.run_id.clone(),
            agent_id: agent.id.clone(),
            lease: work.lease.clone(),
            ..WorkRejected::default()
        })
    };
    let messages: [(&str, Message); 4] = [
        ("a decline", declined),
        ("an acceptance", |agent, work| agent.accepted(work)),
        ("a renewal", |agent, work| agent.heartbeat(&[work], Some(1))),
        ("a result", |agent, work| {
            agent.completed(work, RunStatus::Failure)
        }),
    ];
    for (n, (what, message)) in messages.into_iter().enumerate() {
        let first = RegisterRequest {
            shows_itself: true,
            ..request()
        };
        let mut older = Agent::register(&one, first.clone()).await.unwrap();
        let (run, jobs) = one.run_with(1).await;
        let work = older.work().await;
        if n >= 2 {
            older.accepts(&work).await;
        }
        // Its own process, which has another session by now.
        let again = RegisterRequest {
            agent_id: older.id.clone(),
            resume_secret: older.registered.resume_secret.clone(),
            ..first
        };
        let mut newer = Agent::register(&two, again).await.unwrap();
        older.say([message(&older, &work)]).await;
        let ended = older.ends().await.unwrap();
        assert!(ended.message().contains("SUPERSEDED"), "{what}: {ended}");
        let job = two.get(&format!("/api/v1/jobs/{}", jobs[0])).await;
        let attempt = &job.expect(200)["attempts"][0];
        assert_eq!(
            attempt["leases"].as_array().map(Vec::len),
            Some(1),
            "{what}"
        );
        let expected = if n >= 2 { "STARTING" } else { "LEASED" };
        assert_eq!(attempt["state"], expected, "{what}: {attempt}");
        // Whoever has the newest one goes on.
        if n < 2 {
            newer.accepts(&work).await;
        }
        let done = newer.completed(&work, RunStatus::Success);
        newer.say([done]).await;
        newer
            .hears(|say| matches!(say, Say::CompleteAck(_)).then_some(()))
            .await;
        assert_eq!(two.show(&run).await["outcome"], "SUCCESS", "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_says_nothing_but_log_bytes_is_over_at_the_next_look() {
    // A26, I23: of an agent that another server has shut out, or given a newer session.
    let (one, two, _shared) = pair(patient_settings()).await;
    for revoked in [true, false] {
        let mut older = Agent::new(&one).await;
        let (_, jobs) = one.run_with(1).await;
        let work = older.work().await;
        older.accepts(&work).await;
        older.say([older.log(&work, Some(0), b"before\n")]).await;
        older
            .hears(|say| matches!(say, Say::LogAck(_)).then_some(()))
            .await;
        let _newer = if revoked {
            let done = two.revoke(&two.admin, &older.id).await;
            assert!(done.status.is_success(), "{}", done.text);
            None
        } else {
            let again = RegisterRequest {
                agent_id: older.id.clone(),
                resume_secret: older.registered.resume_secret.clone(),
                instance: "i2".into(),
                ..request()
            };
            Some(Agent::register(&two, again).await.unwrap())
        };
        let mut at = 7;
        let ended = loop {
            // Its end may come between two pieces: then nobody takes the second.
            let more = older.log(&work, Some(at), b"after\n");
            if !older.try_say(more).await {
                break older.ends().await.unwrap();
            }
            at += 6;
            let next = older.hears_or_ends(|say| matches!(say, Say::LogAck(_)));
            if let Some(ended) = next.await {
                break ended;
            }
        };
        let code = if revoked {
            Code::PermissionDenied
        } else {
            Code::Aborted
        };
        assert_eq!(ended.code(), code, "{ended}");
        let taken = two.log(&jobs[0]).await.len() as u64;
        assert!((7..=at).contains(&taken), "{taken} of {at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_two_servers_never_get_the_same_job() {
    // SM-45, LM-8
    let (one, two, _shared) = pair(patient_settings()).await;
    let jobs: Vec<_> = (0..30).map(|n| job(&format!("j{n}"))).collect();
    one.create(json!(jobs)).await;
    let benches = [std::sync::Arc::new(one), std::sync::Arc::new(two)];
    let mut asked = tokio::task::JoinSet::new();
    for n in 0..40 {
        let bench = benches[n % 2].clone();
        asked.spawn(async move {
            let runner = format!("s{n}");
            let answer = bench.lease_as(&runner, 2.0).await;
            (answer.status.as_u16() == 200).then(|| Lease::from(&answer.json(), &runner))
        });
    }
    let leases: Vec<Lease> = asked.join_all().await.into_iter().flatten().collect();
    let jobs: std::collections::BTreeSet<&str> = leases.iter().map(|it| it.job.as_str()).collect();
    assert_eq!((leases.len(), jobs.len()), (30, 30));
    for (n, lease) in leases.iter().enumerate() {
        benches[n % 2]
            .say("/ack-lease", lease.ack())
            .await
            .expect(200);
        benches[(n + 1) % 2]
            .say("/complete", lease.complete("SUCCEEDED", 0))
            .await
            .expect(200);
    }
    let run = &leases[0].run;
    assert_eq!(benches[0].show(run).await["outcome"], "SUCCESS");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_given_to_one_server_are_there_at_the_other() {
    // A27, A49
    let (one, two, shared) = pair(patient_settings()).await;
    let (_, job) = one.create_one().await;
    let lease = one.acked().await;
    let url = log_url(&one, &lease).await;
    put(&two, &url, &lease.id, 0, "first ").await.expect(200);
    put(&one, &url, &lease.id, 6, "second ").await.expect(200);
    let gap = put(&two, &url, &lease.id, 99, "x").await.expect(409);
    assert_eq!(gap["expected"], 13);
    put(&two, &url, &lease.id, 13, "third").await.expect(200);
    let artifact = put_artifact(&two, &lease, "out.txt", "kept").await;
    let done = complete_with(&lease, "SUCCEEDED", 0, &[artifact]);
    one.say("/complete", done).await.expect(200);
    for server in [&one, &two] {
        let log = server.get(&format!("/api/v1/jobs/{job}/log")).await;
        assert_eq!(log.text, "first second third");
        let path = format!("/api/v1/jobs/{job}/artifacts/out.txt");
        assert_eq!(server.get(&path).await.text, "kept");
    }
    let own = one.data.path().join("objects");
    assert!(!own.exists(), "nothing is kept in a server's own folder");
    assert!(shared.objects.path().join(&lease.run).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_delete_old_runs_together_leave_nothing_and_take_nothing_else() {
    let shared = Shared::new().await;
    let one = shared.server(patient_settings(), None).await;
    let mut old = Vec::new();
    for _ in 0..5 {
        one.create_one().await;
        let lease = one.acked().await;
        let url = log_url(&one, &lease).await;
        put(&one, &url, &lease.id, 0, "old").await.expect(200);
        one.say("/complete", lease.complete("SUCCEEDED", 0))
            .await
            .expect(200);
        old.push(shared.objects.path().join(&lease.run));
    }
    one.create_one().await;
    let lease = one.acked().await;
    let url = log_url(&one, &lease).await;
    let foreign = shared.objects.path().join(delta_core::RunId(7).to_string());
    std::fs::create_dir(&foreign).unwrap();
    // One that died between deleting the runs and deleting what they left is made up for by any
    // other: the folders come back as such a server leaves them.
    let keep = Some(Span(1));
    let (two, three) = tokio::join!(
        shared.server(patient_settings(), keep),
        shared.server(patient_settings(), keep)
    );
    let gone = async |what: &str| {
        delta_testkit::wait::eventually_async(PATIENCE, what, async || {
            let left: Vec<_> = old.iter().filter(|it| it.exists()).collect();
            left.is_empty().then_some(()).ok_or(format!("{left:?}"))
        })
        .await;
    };
    gone("deletion").await;
    drop((two, three));
    for folder in &old {
        std::fs::create_dir_all(folder.join("1/1/1")).unwrap();
        std::fs::write(folder.join("1/1/1/log"), b"left over").unwrap();
    }
    let _four = shared.server(patient_settings(), None).await;
    gone("tidying").await;
    assert!(
        foreign.exists(),
        "a run this store never had is not its own"
    );
    put(&one, &url, &lease.id, 0, "alive").await.expect(200);
}
