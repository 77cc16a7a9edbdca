//! The process that plans a stranger's commit, as a server starts it: what it may take, and what it
//! takes for a pipeline file.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::{Place, git, worker};

/// More than planning takes.
const PLENTY: u64 = 2 << 30;

fn order(repository: &Path, memory: u64) -> Value {
    json!({
        "mirror": repository.join(".git"), "commit": "HEAD", "git_ref": "refs/heads/main",
        "base": null, "no_base": null, "trusted": true, "cpu_seconds": 60,
        "memory_bytes": memory,
        "trigger": {"repository": "app", "event": "push", "actor": "ann"},
    })
}

fn planned(order: &Value) -> Output {
    worker("plan-worker", order)
}

fn answer(repository: &Path) -> Value {
    let output = planned(&order(repository, PLENTY));
    serde_json::from_slice(&output.stdout).expect("an answer")
}

/// A repository of what is in this place.
fn commit(place: &Place) {
    git(place.path(), &["init", "-q", "-b", "main"]);
    git(place.path(), &["add", "-A"]);
    git(place.path(), &["commit", "-q", "-m", "one"]);
}

// T13: a bomb costs its own run, and not the machine.
#[test]
fn a_planner_has_no_more_memory_than_it_is_given() {
    let place = Place::new();
    place.write(".delta-ci.yaml", "jobs:\n  a: {steps: [x]}\n");
    commit(&place);
    let fine = answer(place.path());
    assert_eq!(fine["jobs"]["plan"]["jobs"][0]["name"], "a", "{fine}");
    let starved = planned(&order(place.path(), 8 << 20));
    assert!(!starved.status.success(), "{starved:?}");
    assert!(starved.stdout.is_empty(), "{starved:?}");
}

#[test]
fn what_is_no_plain_file_is_a_fault_here_and_on_a_server() {
    // A link to a good file, a link to nowhere, a folder; what it is called in words.
    type Make = fn(&Path) -> std::io::Result<()>;
    let table: [(&str, Make); 3] = [
        ("a link", |file| std::os::unix::fs::symlink("ci.yaml", file)),
        ("a link", |file| {
            std::os::unix::fs::symlink("/nowhere", file)
        }),
        ("a folder", |file| {
            std::fs::create_dir(file)?;
            std::fs::write(file.join("x"), "")
        }),
    ];
    for (what, make) in table {
        let place = Place::new();
        place.write("ci.yaml", "jobs:\n  a: {steps: [x]}\n");
        // It would be found, if the file was taken for missing.
        place.write("Makefile", "test:\n\ttrue\n");
        make(&place.path().join(".delta-ci.yaml")).expect("something of that name");
        let wanted = format!(".delta-ci.yaml is {what}; it must be a plain file");
        let here = place.say("plan").expect(2);
        assert!(here.stderr.contains(&wanted), "{}", here.stderr);
        commit(&place);
        assert_eq!(answer(place.path()), json!({ "fault": wanted }));
    }
}

#[test]
fn a_file_of_almost_the_right_name_is_remarked_here_and_on_a_server() {
    let place = Place::new();
    place.write(".delta-ci.yml", "jobs:\n  a: {steps: [x]}\n");
    place.write("Makefile", "test:\n\ttrue\n");
    let wanted = "did you mean .delta-ci.yaml?";
    let here = place.say("run").expect(0);
    assert!(here.stderr.contains(wanted), "{}", here.stderr);
    commit(&place);
    let there = answer(place.path());
    let remark = &there["jobs"]["plan"]["remarks"][0];
    assert_eq!(remark["name"], ".delta-ci.yml", "{there}");
    assert!(
        remark["reason"].as_str().unwrap().contains(wanted),
        "{there}"
    );
}
