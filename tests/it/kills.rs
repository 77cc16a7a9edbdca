//! kill -9 of the server at random points under load.

use std::time::Duration;

use delta_testkit::postgres::fresh_database;
use delta_testkit::rng::{Rng, SEED_VARIABLE, fresh_seed};

use crate::harness::{Grant, Load, Options, Runner, Server, Shape, jobs, storm_count, until};

/// How often the server is killed.
fn kills(otherwise: u32) -> u32 {
    storm_count("DELTA_STORM_KILLS", otherwise)
}

/// A lease that is held through all kills: it must live on (F12, RP-60).
struct Steady {
    runner: Runner,
    grant: Grant,
}

impl Steady {
    fn begin(server: &Server, person: &crate::harness::Person) -> Steady {
        let mut runner = server.runner("steady");
        runner.capabilities = vec!["steady".into()];
        let mut body = jobs(1);
        body["jobs"][0]["requires"] = serde_json::json!(["steady"]);
        person.create(&body);
        let grant = runner.take();
        Steady { runner, grant }
    }

    /// Renews; the server is up, so that it must succeed.
    fn renew(&self) {
        let answer = self
            .runner
            .heartbeat(&self.grant)
            .expect("an answer")
            .expect(200);
        assert_eq!(answer.body["extend_lease"], true, "{}", answer.text);
    }
}

fn storm(mut server: Server, kills: u32, seed: u64) {
    println!("{SEED_VARIABLE}={seed}");
    let person = server.person();
    let steady = Steady::begin(&server, &person);
    let load = Load::start(Shape {
        addrs: vec![server.addr()],
        user: server.token("user"),
        runner: server.token("runner"),
        people: 3,
        runners: 5,
        seed,
    });
    let mut rng = Rng::part(seed, 77);
    for kill in 1..=kills {
        let before = load.history().completed.len();
        // Some work between two kills, then a random point of it.
        until(
            "results are accepted",
            || load.history().completed.len(),
            |now| *now > before + 5,
        );
        std::thread::sleep(rng.duration(Duration::ZERO..Duration::from_millis(300)));
        server.kill9();
        server.start_again();
        steady.renew();
        println!(
            "kill {kill}: {} results so far",
            load.history().completed.len()
        );
    }
    steady.runner.succeed(&steady.grant);
    let history = load.finish(&person);
    println!(
        "{} runs, {} grants, {} results, {} messages repeated",
        history.created.len(),
        history.granted.len(),
        history.completed.len(),
        history.repeated
    );
    server.check();
    let job = person.job(&steady.grant.job);
    assert_eq!(job["state"], "SUCCEEDED");
    assert_eq!(
        job["attempts"][0]["leases"].as_array().map(Vec::len),
        Some(1)
    );
}

// F10, F11, F12, RP-34, RP-60, I1, I15, I17, I18
#[test]
fn storm_kill_sqlite_loses_nothing_acknowledged() {
    let seed = fresh_seed();
    let options = Options::patient_with_mortal_runners();
    storm(Server::start(options), kills(10), seed);
}

// F10, F11, F12, RP-34, RP-60, I1, I15, I17, I18
#[test]
fn storm_kill_postgres_loses_nothing_acknowledged() {
    let seed = fresh_seed();
    let database = fresh_database().expect("a database");
    let options = Options::patient_with_mortal_runners().on(&database.url);
    storm(Server::start(options), kills(3), seed);
}
