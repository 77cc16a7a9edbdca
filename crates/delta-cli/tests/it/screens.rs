//! Whole screens: all that a command says, compared with a file of `screens/`. `DELTA_BLESS=1`
//! writes them anew: read their difference line by line.

use std::path::Path;

use crate::support::{Place, Ran};

const PIPELINE: &str = r#"
jobs:
  lint: {steps: [echo tidy]}
  tools:
    needs: [lint]
    allow_failure: true
    steps: ["echo 'sh: 1: uv: not found'; exit 127"]
  unit:
    needs: [tools]
    steps:
      - echo built
      - name: tests
        run: |
          printf 'line 1\nline 2\n'
          cp report.xml junit.xml
          exit 3
    results: {format: junit, path: junit.xml}
  publish: {needs: [unit], steps: [echo published]}
"#;

const REPORT: &str = r#"<testsuite name="math">
  <testcase classname="tests.test_add" name="test_add">
    <failure message="assert -1 == 3">E  assert -1 == 3</failure>
  </testcase>
  <testcase classname="tests.test_add" name="test_one"/>
</testsuite>"#;

#[track_caller]
fn same(name: &str, ran: &Ran) {
    let shown = ran.shown() + "\n";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/screens");
    let file = folder.join(format!("{name}.txt"));
    if std::env::var_os("DELTA_BLESS").is_some() {
        std::fs::write(&file, &shown).expect("a screen is written");
        return;
    }
    let wanted = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        shown, wanted,
        "{name}: read the difference; DELTA_BLESS=1 cargo test -p delta-cli screens accepts it"
    );
}

#[test]
fn what_is_told_of_a_run_that_failed() {
    let place = Place::new();
    place.write(".delta-ci.yaml", PIPELINE);
    place.write("report.xml", REPORT);
    same("plan", &place.say("plan"));
    let mut ran = place.say("run --slots 1 --data .delta-ci");
    // How jobs began and ended is told by two: which line is first, nobody says.
    ran.stderr.clear();
    same("run", &ran);
    for (name, line) in [
        ("show_run", "show latest"),
        ("show_job", "show latest/unit"),
        ("show_canceled", "show latest/publish"),
        ("why_run", "why latest"),
        ("why_job", "why latest/unit"),
        ("tests", "tests latest"),
        ("runs", "runs"),
    ] {
        same(name, &place.say(line));
    }
}

#[test]
fn what_is_told_of_nothing_and_of_a_file_with_faults() {
    let place = Place::new();
    let server = place.server(&[]);
    same("no_agents", &place.say("agents --data data"));
    same("no_runs", &place.say("why unit --data data"));
    drop(server);
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  unit:\n    stepz: [x]\n  lint: {steps: [x], needs: [unti]}\n",
    );
    same("faults", &place.say("run"));
}
