//! What a name alone means: whose it may be, and when it is refused.

use serde_json::{Value, json};

use crate::support::{Place, ServerProcess, comparable};

/// A run of jobs with these names, which wait: there is no agent.
fn submit(server: &ServerProcess, names: &[&str]) -> String {
    let job = |name: &&str| json!({"name": name, "job_spec": {"name": name, "steps": ["true"]}});
    let jobs: Vec<Value> = names.iter().map(job).collect();
    let (status, run) = server.ask("POST", "/api/v1/runs", &json!({"jobs": jobs}));
    assert_eq!(status, 201, "{run}");
    run["run_id"].as_str().expect("an id").to_owned()
}

fn state(server: &ServerProcess, run: &str, at: usize) -> Value {
    let (_, view) = server.ask("GET", &format!("/api/v1/runs/{run}"), &Value::Null);
    view["jobs"][at]["state"].clone()
}

fn say(place: &Place, command: &str) -> crate::support::Ran {
    place.say(&format!("{command} --data data"))
}

#[test]
fn a_job_is_not_canceled_by_a_name_that_several_have() {
    let place = Place::new();
    let server = place.server(&[]);
    let older = submit(&server, &["deploy", "unit"]);
    let newer = submit(&server, &["deploy", "lint"]);

    let refused = say(&place, "cancel deploy").expect(2).stderr;
    for words in [
        "2 jobs called `deploy` have not ended",
        &format!("{newer}/deploy"),
        &format!("{older}/deploy"),
        "type one of these",
    ] {
        assert!(refused.contains(words), "{words:?} in {refused}");
    }
    assert_eq!(state(&server, &older, 0), "QUEUED");
    assert_eq!(state(&server, &newer, 0), "QUEUED");

    // Who only reads is shown the newest, and told of the others.
    let shown = say(&place, "why deploy").expect(0);
    assert!(shown.stdout.starts_with("deploy is QUEUED"), "{shown:?}");
    let told = format!("`deploy` of {newer}");
    let others = format!("the newest; not ended, too: {older}/deploy");
    assert!(
        shown.stderr.contains(&told) && shown.stderr.contains(&others),
        "{}",
        shown.stderr
    );

    // What is said is what to type.
    say(&place, &format!("cancel {newer}/deploy")).expect(0);
    assert_eq!(state(&server, &newer, 0), "CANCELED");
    assert_eq!(state(&server, &older, 0), "QUEUED");

    // The newest has ended: whoever means it did not mean the other.
    let refused = say(&place, "cancel deploy").expect(2).stderr;
    assert!(
        refused.contains("an older one has not") && refused.contains(&format!("{older}/deploy")),
        "{refused}"
    );
    assert_eq!(state(&server, &older, 0), "QUEUED");

    // One of a name is meant by it, and so is one of which all have ended.
    say(&place, "cancel unit").expect(0);
    assert_eq!(state(&server, &older, 1), "CANCELED");
    let again = say(&place, "cancel unit").expect(0).stderr;
    assert!(again.contains("had already ended"), "{again}");
}

#[test]
fn a_name_that_looks_like_an_id_is_a_name_where_no_run_is_called_so() {
    let place = Place::new();
    let server = place.server(&[]);
    let digits = "f".repeat(32);
    let run = submit(&server, &["fe/bad", "fe", "fe_1", &digits]);
    for name in ["fe/bad", "fe", "fe_1", &digits] {
        for what in [
            name.to_owned(),
            format!("latest/{name}"),
            format!("{run}/{name}"),
        ] {
            let why = say(&place, &format!("why {what}")).expect(0).stdout;
            assert!(
                why.starts_with(&format!("{name} is QUEUED")),
                "{what}: {why}"
            );
        }
    }
    say(&place, "cancel fe/bad").expect(0);
    assert_eq!(state(&server, &run, 0), "CANCELED");

    // What is neither says which run was looked into, or that there is none.
    let nobody = say(&place, "why fe/good").expect(5).stderr;
    assert!(nobody.contains("there is no run `fe`"), "{nobody}");
    let nobody = say(&place, "why latest/good").expect(5).stderr;
    assert!(nobody.contains("has no job `good`"), "{nobody}");
    let nobody = say(&place, &format!("show {}", "e".repeat(32))).expect(5);
    assert!(
        nobody.stderr.contains("there is no run or job"),
        "{nobody:?}"
    );
}

#[test]
fn a_name_that_is_the_beginning_of_an_id_is_said_to_be_both() {
    let place = Place::new();
    let server = place.server(&[]);
    let first = submit(&server, &["bad"]);
    // Of the part that is drawn, so that no other run begins like that.
    let beginning = &first[4..28];
    let with_slash = format!("{beginning}/bad");
    let second = submit(&server, &[beginning, &with_slash]);

    let shown = say(&place, &format!("show {beginning}")).expect(0);
    assert!(shown.stdout.starts_with(&first), "{shown:?}");
    assert!(
        shown.stderr.contains(&format!("is read as {first}"))
            && shown.stderr.contains(&format!("{second}/{beginning}")),
        "{}",
        shown.stderr
    );
    let shown = say(&place, &format!("show {with_slash}")).expect(0);
    assert!(comparable(&shown.stdout).starts_with("job_ID_1 bad QUEUED"));
    assert!(
        shown.stderr.contains(&format!("{second}/{with_slash}")),
        "{}",
        shown.stderr
    );

    for what in [beginning, &with_slash] {
        let refused = say(&place, &format!("cancel {what}")).expect(2).stderr;
        assert!(
            refused.contains("may be an id, and is the name of a job")
                && refused.contains(&format!("{second}/{what}")),
            "{refused}"
        );
    }
    assert_eq!(state(&server, &first, 0), "QUEUED");
    assert_eq!(state(&server, &second, 0), "QUEUED");
    // A whole address means one thing.
    say(&place, &format!("cancel {second}/{with_slash}")).expect(0);
    assert_eq!(state(&server, &second, 1), "CANCELED");
}
