//! What people type in a project of theirs, without a server.

use std::fs;

use delta_testkit::git::git;

use super::{block, follow, repository};
use crate::typist::{Typist, Unprinted};

/// Puts everything in the folder under git.
fn commit(typist: &Typist) {
    let folder = typist.folder.path();
    let author = ["-c", "user.name=a", "-c", "user.email=a@b"];
    let commit = [&author[..], &["commit", "-qm", "first"]].concat();
    for words in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &commit] {
        git(folder, words).unwrap();
    }
}

fn write(typist: &Typist, path: &str, text: &str) {
    let path = typist.folder.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Somebody in the folder of a small project, under git.
fn in_a_project() -> Typist {
    let typist = Typist::new(Unprinted::Any);
    write(&typist, "Makefile", "test:\n\ttrue\n");
    commit(&typist);
    typist
}

#[test]
fn a_first_pipeline_is_planned_run_and_written_down_as_the_readme_says() {
    let mut typist = in_a_project();
    follow(&mut typist, &block("README.md", "$ delta-ci plan"));
    assert!(typist.folder.path().join(".delta-ci.yaml").exists());
}

#[test]
fn a_project_is_run_in_each_way_that_the_page_of_local_runs_has() {
    let mut typist = in_a_project();
    follow(&mut typist, &block("docs/run.md", "$ delta-ci run "));
    assert!(typist.folder.path().join(".delta-ci").exists());
}

/// The first of two commands, with the binary as cargo would have built it.
#[test]
fn the_first_example_is_run_as_the_readme_says() {
    let mut typist = Typist::new(Unprinted::Any);
    let examples = repository().join("examples");
    let copy = format!("$ cp -r {} examples\n", examples.display());
    typist.type_all(&copy);
    typist.instead("cargo run -- ", "delta-ci ");
    follow(
        &mut typist,
        &block("README.md", "$ cargo run -- run examples/first"),
    );
}

/// A backend of three crates and a page, of which one crate has changed.
#[test]
fn a_repository_is_planned_as_the_page_says_word_for_word() {
    let mut typist = Typist::new(Unprinted::Any);
    write(
        &typist,
        "backend/Cargo.toml",
        "[workspace]\nmembers = [\"crates/*\"]\nresolver = \"2\"\n",
    );
    let mut lock = "version = 4\n".to_owned();
    for (name, needs) in [("api", "db"), ("db", ""), ("mail", "")] {
        let mut manifest =
            format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
        lock.push_str(&format!(
            "\n[[package]]\nname = \"{name}\"\nversion = \"0.1.0\"\n"
        ));
        if !needs.is_empty() {
            manifest.push_str(&format!(
                "[dependencies]\n{needs} = {{ path = \"../{needs}\" }}\n"
            ));
            lock.push_str(&format!("dependencies = [\n \"{needs}\",\n]\n"));
        }
        let crate_ = format!("backend/crates/{name}");
        write(&typist, &format!("{crate_}/Cargo.toml"), &manifest);
        let test = "#[test]\nfn it_works() {}\n";
        write(&typist, &format!("{crate_}/src/lib.rs"), test);
    }
    write(&typist, "backend/Cargo.lock", &lock);
    let package = r#"{"name":"web","version":"1.0.0","scripts":{"test":"node --test"}}"#;
    write(&typist, "web/package.json", package);
    let lock = r#"{"name":"web","version":"1.0.0","lockfileVersion":3,
        "packages":{"":{"name":"web","version":"1.0.0"}}}"#;
    write(&typist, "web/package-lock.json", lock);
    write(
        &typist,
        "web/page.test.js",
        "require('node:test')('a', () => {});\n",
    );
    commit(&typist);
    let folder = typist.folder.path().to_owned();
    git(&folder, &["tag", "v1.2"]).unwrap();
    git(&folder, &["update-ref", "refs/remotes/origin/main", "HEAD"]).unwrap();
    let changed = "#[test]\nfn it_works_still() {}\n";
    write(&typist, "backend/crates/db/src/lib.rs", changed);
    follow(&mut typist, &block("docs/planning.md", "$ delta-ci plan"));
}

/// A report of 120 tests that pass, three that are skipped, and one that fails the second time.
fn report(fails: bool) -> String {
    let case = |name: &str, inner: &str| {
        format!(r#"<testcase classname="api::users" name="{name}" time="0.012">{inner}</testcase>"#)
    };
    let passed: String = (0..120)
        .map(|it| case(&format!("passes_{it}"), ""))
        .collect();
    let skipped: String = (0..3)
        .map(|it| case(&format!("is_skipped_{it}"), "<skipped/>"))
        .collect();
    let failure = if fails {
        r#"<failure message="assertion failed: expected 1, found 0"/>"#
    } else {
        ""
    };
    let last = case("a_user_is_found", failure);
    format!(r#"<testsuite name="api::users">{passed}{skipped}{last}</testsuite>"#)
}

#[test]
fn logs_artifacts_and_failed_tests_are_shown_as_their_pages_say() {
    let mut typist = Typist::new(Unprinted::Any);
    let pipeline = "\
jobs:
  build:
    retry: { attempts: 2, on: [user_exit] }
    steps:
      - mkdir dist && echo app > dist/app
      - cp \"$DELTA_ATTEMPT.xml\" r.xml; exit 1
    results: { format: junit, path: r.xml }
    artifacts: [\"dist/**\"]
";
    write(&typist, ".delta-ci.yaml", pipeline);
    write(&typist, "1.xml", &report(false));
    write(&typist, "2.xml", &report(true));
    typist.type_all("$ delta-ci run --data ./.delta-ci || test $? = 1\n");
    // Word for word, with the flaky test.
    let tests = block("docs/results.md", "$ delta-ci tests latest");
    typist.type_all(&tests);
    typist.instead(" JOB", " build");
    typist.instead(" RUN", " latest");
    typist.type_all(&block("docs/logs.md", "$ delta-ci logs JOB"));
    let log = fs::read_to_string(typist.folder.path().join("log")).unwrap();
    assert!(log.contains("tests: 121 passed"), "of the first: {log}");
    typist.type_all(&block("docs/artifacts.md", "$ delta-ci artifacts latest"));
    for file in ["app", "out/dist/app"] {
        let text = fs::read_to_string(typist.folder.path().join(file)).unwrap();
        assert_eq!(text, "app\n", "{file}");
    }
}

/// Each measure comes to its end; the numbers are small, and are not looked at.
#[test]
fn measures_are_taken_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    let table = crate::functions::rust_runner();
    for (printed, small) in [
        ("bench idle", "bench idle --count 5".to_owned()),
        (
            "bench builds",
            "bench builds --alone 2 --together 4".to_owned(),
        ),
        (
            "bench plan",
            "bench plan --packages 40 --files 400".to_owned(),
        ),
        (
            "bench functions",
            "bench functions --alone 2 --together 20".to_owned(),
        ),
        (
            "./target/release/examples/table",
            table.display().to_string(),
        ),
    ] {
        typist.instead(printed, small);
    }
    let text = block("docs/performance.md", "$ cargo build --release");
    follow(&mut typist, &text);
}
