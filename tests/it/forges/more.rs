//! What a push is compared with, runs by hand, what strangers try, and copies of repositories that
//! were left broken.

use super::*;

/// How the run of a push ends.
fn outcome(person: &Person, delivery: &Delivery) -> String {
    let over = person.until_over(&run_of(person, delivery));
    over["outcome"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn what_failed_is_not_left_out_of_the_next_push() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::Gitea, &server, &[]);
    let person = server.person();
    let _agents = agents(&server, &["one"]);
    let deployed = project.root.path().join("deployed");
    let pipeline = format!(
        "jobs:\n  unit: {{ if: 'changed(\"src/**\")', steps: ['test ! -e src/bad'] }}\n  \
         deploy: {{ needs: [unit], steps: ['echo x >> {}'] }}\n",
        deployed.display()
    );
    let times = || {
        fs::read_to_string(&deployed)
            .unwrap_or_default()
            .lines()
            .count()
    };
    let first = project.commit(&pipeline);
    assert_eq!(
        outcome(&person, &project.pushed("d1", NONE, &first)),
        "SUCCESS"
    );
    let bad = project.app.commit("src/bad", "x").unwrap();
    assert_eq!(
        outcome(&person, &project.pushed("d2", &first, &bad)),
        "FAILED"
    );
    // Nothing that it is about changed, and it is as broken as before.
    let words = project.app.commit("README.md", "x").unwrap();
    assert_eq!(
        outcome(&person, &project.pushed("d3", &bad, &words)),
        "FAILED"
    );
    assert_eq!(times(), 1);
    project.app.git(&["rm", "-q", "src/bad"]).unwrap();
    let mended = project.app.commit("src/good", "x").unwrap();
    assert_eq!(
        outcome(&person, &project.pushed("d4", &words, &mended)),
        "SUCCESS"
    );
    assert_eq!(times(), 2);
    // From here on it need not run again.
    let more = project.app.commit("README.md", "y").unwrap();
    let run = run_of(&person, &project.pushed("d5", &mended, &more));
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    assert_eq!(over["jobs"].as_array().map(Vec::len), Some(1), "{over}");
    assert_eq!(times(), 3);
    // The same for what is found.
    project.app.git(&["rm", "-q", ".delta-ci.yaml"]).unwrap();
    let make = "test:\n\t@test ! -e bad\n";
    let found = project.app.commit("Makefile", make).unwrap();
    assert_eq!(
        outcome(&person, &project.pushed("d6", &more, &found)),
        "SUCCESS"
    );
    let bad = project.app.commit("bad", "x").unwrap();
    assert_eq!(
        outcome(&person, &project.pushed("d7", &found, &bad)),
        "FAILED"
    );
    let words = project.app.commit("README.md", "z").unwrap();
    assert_eq!(
        outcome(&person, &project.pushed("d8", &bad, &words)),
        "FAILED"
    );
    server.check();
}

#[test]
fn a_person_starts_a_run_with_inputs() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::GitHub, &server, &[]);
    let person = server.person();
    let _agents = agents(&server, &["one"]);
    let pipeline = "on:\n  push: { branches: [none] }\n  manual:\n    inputs:\n      \
                    level: { type: choice, options: [low, high], default: low }\njobs:\n  \
                    say: { steps: ['echo level:$INPUT_LEVEL:$DELTA_EVENT:$DELTA_BRANCH', \
                    'echo on:$DELTA_REF:$DELTA_COMMIT:'] }\n  \
                    never: { if: inputs.level == \"low\", steps: ['false'] }\n";
    let commit = project.commit(pipeline);
    let trigger = |more: &[&str]| {
        let known = ["--json", "trigger", "app", "--ref", "main"];
        server.cli(&[&known[..], more].concat())
    };
    let done = trigger(&["--input", "level=high"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let view: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(view["commit"], commit.as_str());
    let run = view["run_id"].as_str().unwrap();
    let over = person.until_over(run);
    assert_eq!(
        (&over["outcome"], &over["trust"]),
        (&"SUCCESS".into(), &"trusted".into()),
        "{over}"
    );
    let all = jobs(&person, run);
    assert_eq!(all.len(), 1, "{over}");
    let log = log_of(&person, &all[0]);
    assert!(log.contains("level:high:manual:main"), "{log}");
    assert!(
        log.contains(&format!("on:refs/heads/main:{commit}:")),
        "{log}"
    );
    let states = project.forge.states(&commit, "delta-ci/manual");
    assert_eq!(states.last().map(String::as_str), Some("success"));
    // What does not fit the file is said as a fault of the plan, and is to be seen.
    let done = trigger(&["--input", "level=middle"]);
    let view: Value = serde_json::from_str(&done.stdout).unwrap();
    let run = view["run_id"].as_str().unwrap();
    assert_eq!(person.until_over(run)["cause"], "plan_error");
    for command in ["show", "why"] {
        let done = server.cli(&[command, run]);
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(done.stdout.contains("must be one of low, high"), "{done:?}");
    }
    let done = server.cli(&["trigger", "app", "--ref", "nowhere"]);
    assert!(
        done.stderr.contains("has no refs/heads/nowhere"),
        "{done:?}"
    );
    let done = server.cli(&["trigger", "other", "--ref", "main"]);
    assert!(done.stderr.contains("no repository `other`"), "{done:?}");
    server.check();
}

#[test]
fn a_copy_that_was_left_broken_is_mended_by_the_next_fetch() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::GitHub, &server, &[]);
    let person = server.person();
    let plan = |n: u32, before: &str| {
        let file = format!("jobs:\n  x: {{ if: branch == \"{n}\", steps: ['true'] }}\n");
        let commit = project.commit(&file);
        let run = run_of(&person, &project.pushed(&format!("d{n}"), before, &commit));
        let over = person.until_over(&run);
        assert_eq!(over["cause"], "nothing_to_run", "{over}");
        commit
    };
    let first = plan(1, NONE);
    let copies = fs::read_dir(server.data().join("mirrors")).unwrap();
    let copy = copies.map(|it| it.unwrap().path()).next().unwrap();
    // As a git leaves it that is killed in the middle.
    let (lock, pack) = (
        copy.join("refs/delta/head.lock"),
        copy.join("objects/pack/tmp_pack_x"),
    );
    fs::write(&lock, "").unwrap();
    fs::create_dir_all(pack.parent().unwrap()).unwrap();
    fs::write(&pack, "PACK").unwrap();
    let second = plan(2, &first);
    assert!(!lock.exists() && !pack.exists());
    // As a disk leaves it.
    fs::write(copy.join("config"), "[core\n").unwrap();
    let third = plan(3, &second);
    fs::remove_dir_all(copy.join("objects")).unwrap();
    plan(4, &third);
    server.check();
}

// T7, T15: a stranger's cache is nobody else's, and the name of a branch is never a command.
#[test]
fn what_strangers_keep_and_what_branches_are_called_touches_nobody() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::GitHub, &server, &["--forks", "run"]);
    let person = server.person();
    let _agents = agents(&server, &["one"]);
    let pipeline = "jobs:\n  keep:\n    caches: [{ key: shared, paths: [kept] }]\n    steps:\n      \
                    - 'if [ -e kept ]; then echo found:$(cat kept):; fi'\n      \
                    - 'echo \"of $DELTA_EVENT on <$DELTA_BRANCH>\" | tee kept'\n";
    let log = |delivery: &Delivery| {
        let run = run_of(&person, delivery);
        assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
        log_of(&person, &jobs(&person, &run)[0])
    };
    let head = project.commit(pipeline);
    let pull = format!("{head}:refs/pull/7/head");
    project.app.git(&["push", "-q", "origin", &pull]).unwrap();
    let strangers = log(&project.requested("d1", &head, "stranger/app"));
    assert!(strangers.contains("of pull_request"), "{strangers}");
    let ours = log(&project.pushed("d2", NONE, &head));
    assert!(!ours.contains("found:of"), "{ours}");
    let mark = tempfile::Builder::new().prefix("mark").tempdir().unwrap();
    let mark = mark.path().join("pwned");
    let name = format!("a$(touch${{IFS}}{})\"';`id`", mark.display());
    let branch = format!("refs/heads/{name}");
    let push = format!("{head}:{branch}");
    project.app.git(&["push", "-q", "origin", &push]).unwrap();
    let body = push_body("team/app", &branch, NONE, &head);
    let odd = log(&Delivery::new(project.speaks, "push", "d3", &body, HOOK));
    assert!(odd.contains(&format!("of push on <{name}>")), "{odd}");
    assert!(
        odd.contains("found:of push on <main>:"),
        "caches do work: {odd}"
    );
    assert!(!mark.exists());
    server.check();
}
