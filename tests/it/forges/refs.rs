//! One commit at the head of two refs, of which a forge keeps one status: what people require is
//! never good while the newest run of one of them failed or goes on.

use super::*;

fn last(project: &Project, commit: &str, context: &str) -> String {
    let states = project.forge.states(commit, context);
    states.last().cloned().unwrap_or_default()
}

/// How a run ends: its outcome, and its cause.
fn ended(person: &Person, run: &str) -> (Value, Value) {
    let over = person.until_over(run);
    (over["outcome"].clone(), over["cause"].clone())
}

// SM-17
#[test]
fn a_failure_on_main_stays_when_the_commit_is_pushed_to_release() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::Forgejo, &server, &[]);
    let person = server.person();
    let _agents = agents(&server, &["one"]);
    let flag = project.root.path().join("flag");
    let commit = project.commit(&format!(
        "on: {{ push: {{ branches: [main] }} }}\njobs:\n  unit: {{ steps: ['test -e {}'] }}\n",
        flag.display()
    ));
    let main = run_of(&person, &project.pushed("d1", NONE, &commit));
    assert_eq!(ended(&person, &main).0, "FAILED");
    let release = "refs/heads/release";
    let push = format!("{commit}:{release}");
    project.app.git(&["push", "-q", "origin", &push]).unwrap();
    let body = push_body("team/app", release, NONE, &commit);
    let delivery = Delivery::new(project.speaks, "push", "d2", &body, HOOK);
    let run = run_of(&person, &delivery);
    let nothing = (json!("SUCCESS"), json!("nothing_to_run"));
    assert_eq!(ended(&person, &run), nothing);
    let states = project.forge.states(&commit, PUSH);
    assert_eq!(states.last().map(String::as_str), Some("failure"));
    assert!(!states.contains(&"success".to_owned()), "{states:?}");
    let said = project.forge.posted().pop().unwrap().description;
    assert_eq!(said, "main: unit: user_exit");
    // Again, and well.
    fs::write(&flag, "").unwrap();
    let done = server.cli(&["--json", "rerun", &main]);
    let view: Value = serde_json::from_str(&done.stdout).unwrap();
    let again = view["run_id"].as_str().unwrap();
    assert_eq!(ended(&person, again).0, "SUCCESS");
    assert_eq!(last(&project, &commit, PUSH), "success");
    server.check();
}

// SM-17
#[test]
fn a_request_to_another_branch_with_the_same_head_says_nothing_good_of_the_first() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::GitHub, &server, &[]);
    let person = server.person();
    let _agents = agents(&server, &["one"]);
    let flag = project.root.path().join("flag");
    let head = project.commit(&format!(
        "on: {{ pull_request: {{ branches: [main] }} }}\njobs:\n  unit: {{ steps: \
         ['while [ ! -e {} ]; do sleep 0.1; done; exit 3'] }}\n",
        flag.display()
    ));
    for name in ["refs/pull/7/head", "refs/pull/8/head", "refs/heads/release"] {
        let push = format!("{head}:{name}");
        project.app.git(&["push", "-q", "origin", &push]).unwrap();
    }
    let request = |id: &str, number: u64, action: &str, base: &str| {
        let mut body = pull_body("team/app", number, action, &head, "team/app");
        body["pull_request"]["base"]["ref"] = base.into();
        if action == "edited" {
            body["changes"] = json!({"base": {"ref": {"from": "release"}}});
        }
        Delivery::new(project.speaks, "pull_request", id, &body, HOOK)
    };
    let seven = run_of(&person, &request("d1", 7, "opened", "main"));
    let state = || person.run(&seven)["state"].clone();
    until("it goes on", state, |state| state == "RUNNING");
    let eight = run_of(&person, &request("d2", 8, "opened", "release"));
    let nothing = (json!("SUCCESS"), json!("nothing_to_run"));
    assert_eq!(ended(&person, &eight), nothing);
    assert_eq!(last(&project, &head, REQUEST), "pending");
    fs::write(&flag, "").unwrap();
    assert_eq!(ended(&person, &seven).0, "FAILED");
    assert_eq!(last(&project, &head, REQUEST), "failure");
    // Now the second is to go where the first is: that is another question.
    let moved = run_of(&person, &request("d3", 8, "edited", "main"));
    assert_eq!(ended(&person, &moved).0, "FAILED");
    let states = project.forge.states(&head, REQUEST);
    assert!(!states.contains(&"success".to_owned()), "{states:?}");
    server.check();
}
