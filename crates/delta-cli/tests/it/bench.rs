//! `delta-ci bench` comes to its end and counts right. How fast it is is not asserted: that depends
//! on the machine and on whatever else it does.

use delta_testkit::postgres::fresh_database;

use crate::support::Place;

#[test]
fn a_small_lifecycle_completes_every_job() {
    let place = Place::new();
    for per_run in ["1", "100"] {
        let arguments = [
            "--json",
            "bench",
            "lifecycle",
            "--slots",
            "4",
            "--jobs",
            "250",
        ];
        let ran = place.delta(arguments.iter().chain(&["--jobs-per-run", per_run]));
        let report = ran.expect(0).json();
        assert_eq!(report["jobs"], 250, "{report}");
        assert_eq!(report["enqueue_to_grant_loaded"]["count"], 250, "{report}");
        for name in [
            "jobs_per_second",
            "mean_batch",
            "fsyncs_per_job",
            "server_resident_bytes",
        ] {
            assert!(
                report[name].as_f64().is_some_and(|it| it > 0.0),
                "{name}: {report}"
            );
        }
    }
}

#[test]
fn a_store_can_be_filled_before_it_is_measured() {
    let place = Place::new();
    let report = place
        .say(
            "--json bench lifecycle --slots 4 --jobs 100 --preload-finished 300 \
             --preload-queued 150",
        )
        .expect(0)
        .json();
    assert_eq!(report["jobs"], 100, "{report}");
}

#[test]
fn postgresql_is_measured_the_same_way() {
    let database = fresh_database().expect("PostgreSQL");
    let arguments = ["--json", "bench", "idle", "--count", "20", "--store"];
    let ran = Place::new().delta(arguments.iter().copied().chain([database.url.as_str()]));
    let report = ran.expect(0).json();
    assert_eq!(report["enqueue_to_grant"]["count"], 20, "{report}");
}

#[test]
fn a_store_that_is_not_there_ends_the_bench() {
    let ran = Place::new().say("bench idle --count 5 --store postgres://nobody@127.0.0.1:1/none");
    assert_eq!(ran.exit, 1, "{}", ran.shown());
    assert!(ran.stderr.contains("did not start"), "{}", ran.stderr);
}

#[test]
fn a_few_builds_go_through_a_real_agent() {
    let place = Place::new();
    let report = place
        .say("--json bench builds --slots 2 --alone 3 --together 8")
        .expect(0)
        .json();
    assert_eq!(report["submit_to_finished"]["count"], 3, "{report}");
    assert_eq!(report["builds"], 8, "{report}");
    let rate = report["builds_per_second"].as_f64();
    assert!(rate.is_some_and(|rate| rate > 0.0), "{report}");
}

#[test]
fn a_local_run_is_measured_with_what_it_built() {
    let ran = Place::new().say("--json bench run --crates 3").expect(0);
    let line = |line: &str| -> serde_json::Value { serde_json::from_str(line).unwrap() };
    let compiled: Vec<_> = ran
        .stdout
        .lines()
        .map(|it| line(it)["compiled"].clone())
        .collect();
    assert_eq!(compiled, [3, 0, 1], "{}", ran.stdout);
}
