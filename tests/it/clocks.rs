//! Wall clocks that jump, under the server, the database and the runner (A23).
//!
//! libfaketime moves the wall clock of one process; the machine's own clock is never touched, and
//! monotonic time goes on as it is.

use std::path::{Path, PathBuf};

use delta_testkit::postgres::fresh_database;
use delta_testkit::proxy::Proxy;
use serde_json::json;

use crate::handover::log_of;
use crate::harness::person::SOON;
use crate::harness::{Options, Server, delta_ci, jobs, until};

/// Where Debian's package `faketime` puts it.
fn library() -> PathBuf {
    let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
    let file =
        |folder: &&str| PathBuf::from(format!("/usr/lib/{folder}/faketime/libfaketime.so.1"));
    let found = folders.iter().map(file).find(|file| file.is_file());
    found.expect("libfaketime.so.1: install the package faketime")
}

/// A wall clock that a test sets by writing a file.
struct WallClock {
    file: PathBuf,
}

impl WallClock {
    fn new(folder: &Path) -> WallClock {
        let clock = WallClock {
            file: folder.join("offset"),
        };
        clock.set("+0");
        clock
    }

    fn set(&self, offset: &str) {
        // In one step: a half-written file would be a third time.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{offset}\n")).unwrap();
        std::fs::rename(&new, &self.file).unwrap();
    }

    fn environment(&self) -> Vec<(String, String)> {
        let mut list = moved_by("");
        list.retain(|(name, _)| name != "FAKETIME");
        list.push((
            "FAKETIME_TIMESTAMP_FILE".into(),
            self.file.display().to_string(),
        ));
        list.push(("FAKETIME_NO_CACHE".into(), "1".into()));
        list
    }
}

/// The environment of a process whose wall clock is off by so much for good.
fn moved_by(offset: &str) -> Vec<(String, String)> {
    let pair = |name: &str, value: String| (name.to_owned(), value);
    vec![
        pair("LD_PRELOAD", library().display().to_string()),
        pair("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        pair("FAKETIME", offset.into()),
    ]
}

/// A server on a wall clock of its own, and the lease of a runner.
fn server_on(clock: &WallClock, ttl: &str) -> Server {
    let mut options = Options::patient().flag("lease-ttl", ttl);
    for (name, value) in clock.environment() {
        options = options.env(&name, value);
    }
    Server::start(options)
}

// F40, A23: an hour ahead.
#[test]
fn a_wall_clock_that_jumps_ahead_expires_nothing_while_the_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let clock = WallClock::new(folder.path());
    let mut server = server_on(&clock, "20s");
    let (person, one) = (server.person(), server.runner("one"));
    person.create(&jobs(1));
    let old = one.take();
    clock.set("+1h");
    let beat = one.heartbeat(&old).unwrap().expect(200);
    assert_eq!(beat.body["extend_lease"], true, "{}", beat.text);
    // Somebody is told, and nothing else happens.
    let told = server.process().wait_for_line("the clocks disagree", SOON);
    told.unwrap();
    let beat = one.heartbeat(&old).unwrap().expect(200);
    assert_eq!(beat.body["extend_lease"], true, "{}", beat.text);
    assert_eq!(person.attempt(&old.job)["losses"], 0);
    // Over a restart the new wall clock judges: everything expires, once, and safely.
    server.kill9();
    server.start_again();
    let late = one.complete(&old, "SUCCEEDED", 0).unwrap().expect(409);
    assert_eq!(late.word("type"), "StaleLease", "{}", late.text);
    let other = server.runner("other");
    let grant = other.take();
    assert_eq!((&grant.job, grant.attempt), (&old.job, 1));
    other.succeed(&grant);
    assert_eq!(person.until_over(&grant.run)["outcome"], "SUCCESS");
    server.check();
}

// F41, I19: an hour back.
#[test]
fn a_wall_clock_that_jumps_back_makes_no_lease_immortal() {
    let folder = tempfile::tempdir().unwrap();
    let clock = WallClock::new(folder.path());
    let mut server = server_on(&clock, "12s");
    let (person, one) = (server.person(), server.runner("one"));
    person.create(&jobs(1));
    let old = one.take();
    clock.set("-1h");
    let beat = one.heartbeat(&old).unwrap().expect(200);
    assert_eq!(beat.body["extend_lease"], true, "{}", beat.text);
    server.kill9();
    server.start_again();
    // Within its time to live it lives on; then it ends, though by the wall it would live an hour.
    let beat = one.heartbeat(&old).unwrap().expect(200);
    assert_eq!(beat.body["extend_lease"], true, "{}", beat.text);
    let ttl = beat.body["new_lease_ttl_seconds"].as_f64().unwrap();
    assert!(ttl <= 12.0, "{}", beat.text);
    let other = server.runner("other");
    let grant = other.take();
    assert_eq!((&grant.job, grant.attempt), (&old.job, 1));
    other.succeed(&grant);
    assert_eq!(person.until_over(&grant.run)["outcome"], "SUCCESS");
    server.check();
}

/// Puts a clock of our own in the place of the database's, to be moved by a table.
const MOVABLE_CLOCK: &str = "SET allow_system_table_mods = on; \
    ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO true_clock_timestamp; \
    CREATE TABLE public.wall (ahead interval NOT NULL); \
    INSERT INTO public.wall VALUES ('0'); \
    CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
    'SELECT pg_catalog.true_clock_timestamp() + (SELECT ahead FROM public.wall)'";

// F40, A23: the database's clock jumps under a server that runs.
#[test]
fn a_database_clock_that_jumps_expires_nothing_and_is_reported() {
    let database = fresh_database().unwrap();
    database.execute(MOVABLE_CLOCK).unwrap();
    let server = Server::start(
        Options::patient()
            .flag("lease-ttl", "20s")
            .on(&database.url),
    );
    let (person, one) = (server.person(), server.runner("one"));
    person.create(&jobs(1));
    let grant = one.take();
    assert_eq!(person.http.get("/readyz").unwrap().status, 200);
    database
        .execute("UPDATE public.wall SET ahead = '1 hour'")
        .unwrap();
    let beat = one.heartbeat(&grant).unwrap().expect(200);
    assert_eq!(beat.body["extend_lease"], true, "{}", beat.text);
    // It says that it cannot be trusted beside others, and why.
    let unready = until(
        "the difference is noticed",
        || person.http.get("/readyz").unwrap(),
        |answer| answer.status == 503,
    );
    assert!(unready.text.contains("clock"), "{}", unready.text);
    let beat = one.heartbeat(&grant).unwrap().expect(200);
    assert_eq!(beat.body["extend_lease"], true, "{}", beat.text);
    one.succeed(&grant);
    assert_eq!(person.attempt(&grant.job)["losses"], 0);
    server.check();
}

// F42, A23: the agent lives in another day.
#[test]
fn an_agent_in_yesterday_or_tomorrow_works_all_the_same() {
    let server = Server::start(Options::patient());
    let person = server.person();
    for (name, offset) in [("yesterday", "-1d"), ("tomorrow", "+1d")] {
        let token = server.folder().join(format!("{name}.token"));
        std::fs::write(&token, server.token("runner")).unwrap();
        let mut spawn = delta_ci()
            .args([
                "agent",
                "--server",
                &format!("http://{}", server.addr()),
                "--name",
                name,
            ])
            .args(["--label", name, "--token-file"])
            .arg(&token)
            .arg("--work-dir")
            .arg(server.folder().join(name));
        for (name, value) in moved_by(offset) {
            spawn = spawn.env(name, value);
        }
        let _agent = spawn.spawn().unwrap();
        let run = person.create(&json!({"jobs": [{"name": "work", "requires": [name],
            "job_spec": {"steps": ["sleep 0.6"]}}]}));
        let over = person.until_over(&run);
        assert_eq!(over["outcome"], "SUCCESS", "{name}: {over}");
        let attempt = person.attempt(over["jobs"][0]["job_id"].as_str().unwrap());
        assert_eq!(attempt["losses"], 0, "{attempt}");
    }
    server.check();
}

// A23, A26, I23: the machines of two servers are an hour apart.
#[test]
fn an_agent_moves_between_servers_whose_machines_are_an_hour_apart() {
    let database = fresh_database().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let objects = folder.path().join("objects");
    let options = Options::patient()
        .flag("objects", objects.to_str().unwrap())
        .on(&database.url);
    let mut an_hour_on = options.clone();
    for (name, value) in moved_by("+1h") {
        an_hour_on = an_hour_on.env(&name, value);
    }
    let (one, other) = (Server::start(options), Server::start(an_hour_on));
    let person = one.person();
    let way = Proxy::start(one.addr(), 1).unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, one.token("runner")).unwrap();
    let agent = delta_ci()
        .args(["agent", "--name", "box", "--server"])
        .arg(format!("http://{}", way.addr()))
        .arg("--token-file")
        .arg(&token)
        .arg("--work-dir")
        .arg(folder.path().join("box"))
        .spawn()
        .unwrap();
    let stop = folder.path().join("stop");
    let step = format!(
        "n=0; until [ -e {} ]; do n=$((n+1)); echo line $n; sleep 0.05; done; echo the end",
        stop.display()
    );
    let run = person.create(&json!({"jobs": [{"name": "work",
        "job_spec": {"steps": [step]}}]}));
    let job = person.run(&run)["jobs"][0]["job_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let session = || {
        let agents = person.get("/api/v1/agents");
        agents["agents"][0]["session_epoch"].as_u64().unwrap_or(0)
    };
    let mut before = 0;
    for turn in 0..6 {
        let printed = log_of(&person, &job).len();
        until(
            "the log goes on",
            || log_of(&person, &job).len(),
            |length| *length > printed,
        );
        let now = until("a newer session is known", session, |now| *now > before);
        before = now;
        // Now to the other one, at once, and with an older session that nobody has ended.
        way.lead_to([&other, &one][turn % 2].addr());
        assert!(way.cut_all() > 0);
    }
    std::fs::write(&stop, "").unwrap();
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let attempt = person.attempt(&job);
    assert_eq!(attempt["losses"], 0, "{attempt}");
    assert_eq!(attempt["log"]["complete"], true, "{attempt}");
    let log = log_of(&person, &job);
    let lines: Vec<&str> = log.lines().filter(|it| it.starts_with("line ")).collect();
    let expected: Vec<String> = (1..=lines.len()).map(|n| format!("line {n}")).collect();
    assert_eq!(lines, expected);
    assert!(log.contains("the end"), "{log}");
    assert!(!agent.stderr().contains("SUPERSEDED"), "{}", agent.stderr());
    one.check();
    other.check_log();
}

// F42, RP-17: what a message says about time sets no deadline.
#[test]
fn moments_in_messages_are_information_only() {
    let server = Server::start(Options::patient());
    let (person, one) = (server.person(), server.runner("one"));
    let run = person.create(&jobs(1));
    let grant = one.grant();
    for moment in ["1970-01-01T00:00:00Z", "2999-12-31T23:59:59Z"] {
        let mut ack = json!({"type": "AckLease", "job_id": grant.job, "lease_id": grant.lease,
            "runner_id": one.id});
        ack["accepted_at"] = json!(moment);
        one.say("ack-lease", &ack).unwrap().expect(200);
        let mut beat = one.beat(&grant);
        beat["ts"] = json!(moment);
        let answer = one.say("heartbeat", &beat).unwrap().expect(200);
        let ttl = answer.body["new_lease_ttl_seconds"].as_f64().unwrap();
        assert!(ttl > 0.0 && ttl <= 60.0, "{}", answer.text);
    }
    let mut done = one.done(&grant, "SUCCEEDED", 0);
    done["timings"] = json!({"started_at": "2999-12-31T23:59:59Z",
        "finished_at": "1970-01-01T00:00:00Z"});
    one.say("complete", &done).unwrap().expect(200);
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    server.check();
}
