//! The commands on PostgreSQL: several servers, one database.

use delta_testkit::postgres::fresh_database;

use crate::support::Place;

#[test]
fn two_servers_on_one_database_show_the_same_runs() {
    let database = fresh_database().expect("PostgreSQL");
    let url = database.url.as_str();
    let (one, two) = (Place::new(), Place::new());
    // Before any server runs, and without a folder of its own.
    let made = one
        .delta(["token", "create", "--role", "user", "--store", url])
        .expect(0);
    assert!(!one.path().join(".delta-ci").exists());
    let first = one.server(&["--store", url]);
    let second = two.server(&["--store", url]);
    one.write("token", &made.stdout);
    let (run, job) = first.submit(&["true"]);
    let target = ["--server", &second.url, "--token-file", "token"];
    let shown = one
        .delta(["--json", "show", &run].iter().chain(&target))
        .expect(0)
        .json();
    assert_eq!(shown["run_id"], run.as_str());
    one.delta(["cancel", &job].iter().chain(&target)).expect(0);
    assert_eq!(first.outcome(&run), "CANCELED");
    let ran = one
        .delta(["--json", "doctor", "--store", url])
        .expect(0)
        .json();
    assert_eq!((&ran["different"], &ran["runs"]), (&0.into(), &1.into()));
}

#[test]
fn a_server_on_a_database_says_that_others_need_the_same_folder() {
    let database = fresh_database().expect("PostgreSQL");
    let url = database.url.as_str();
    let (place, other) = (Place::new(), Place::new());
    let alone = place.server(&["--store", url]);
    let said = alone.process.stderr();
    assert!(said.contains("--objects"), "{said}");
    let sharing = other.server(&["--store", url, "--objects", "shared"]);
    let said = sharing.process.stderr();
    assert!(!said.contains("--objects"), "{said}");
    assert!(other.path().join("shared/parts").is_dir());
    assert!(!sharing.data.join("objects").exists());
}

#[test]
fn the_doctor_reads_a_database_and_makes_nothing_in_it() {
    let database = fresh_database().expect("PostgreSQL");
    let place = Place::new();
    for _ in 0..2 {
        let ran = place.delta(["doctor", "--store", &database.url]).expect(6);
        assert!(ran.stderr.contains("holds no store"), "{}", ran.stderr);
    }
}

#[test]
fn a_database_that_is_not_there_is_unreachable() {
    let place = Place::new();
    let url = "postgres://nobody@127.0.0.1:1/none";
    let ran = place
        .delta([
            "server",
            "--data",
            "data",
            "--listen",
            "127.0.0.1:0",
            "--store",
            url,
        ])
        .expect(6);
    assert!(ran.stderr.contains("--store"), "{}", ran.stderr);
    place.delta(["doctor", "--store", url]).expect(6);
}
