//! What somebody reads on a terminal that is narrower than a table: whole words, and columns left
//! out or stacked.

use unicode_width::UnicodeWidthStr;

use crate::support::{Place, comparable};

const PIPELINE: &str = "\
jobs:
  unit: {steps: [echo built, exit 3]}
  integration: {steps: ['mkdir out; echo > out/report'], artifacts: ['out/**']}
  publish: {needs: [unit], requires: [linux], timeout: 20m, steps: [make publish --all of it]}
";

fn ran() -> Place {
    let place = Place::new();
    place.write(".delta-ci.yaml", PIPELINE);
    place.say("run --slots 1 --data .delta-ci").expect(1);
    place
}

#[test]
fn a_terminal_of_forty_columns_shows_what_matters() {
    let place = ran();
    let shown = place.on_terminal(40, "show latest");
    let wanted = "\
run_ID
FAILED
created TIME ago
took TIME
cause A required job failed
(required_job_failed)

JOB STATE NOTE
unit FAILED step 2: exit
code 3
integration SUCCEEDED
publish CANCELED dependency
failed: unit

✗ unit FAILED in TIME: step 2 `exit 3`
ended with exit code 3";
    assert!(comparable(&shown).starts_with(wanted), "{shown}");
    let shown = place.on_terminal(40, "runs");
    let wanted = "run_ID\nSTATE FAILED\nCREATED TIME ago\nTOOK TIME";
    assert_eq!(comparable(&shown), wanted, "{shown}");
    let shown = place.on_terminal(80, "runs");
    let wanted = "RUN STATE CREATED TOOK SOURCE\nrun_ID FAILED TIME ago TIME";
    assert_eq!(comparable(&shown), wanted, "{shown}");
}

/// The table of `run` has the same columns for one job as for several.
#[test]
fn a_run_of_one_job_has_no_ids_either() {
    let place = Place::new();
    place.write(".delta-ci.yaml", "jobs: {unit: {steps: [exit 3]}}\n");
    let shown = comparable(&place.on_terminal(60, "run"));
    let table = "JOB STATE ATTEMPTS TOOK NOTE\nunit FAILED 1 TIME step 1: exit code 3";
    assert!(shown.contains(table), "{shown}");
}

#[test]
fn no_word_is_broken_however_narrow_it_is() {
    let place = ran();
    place.write("secret", "long enough for a webhook's secret");
    let server = place.server(&[]);
    for line in [
        "token create --role runner --name runner-of-the-second-floor",
        "token create --role admin --name ann",
        "repo add application --url https://git.example/team/application.git --forge gitea \
         --webhook-secret-file secret",
        "enqueue greet --queue letters",
    ] {
        place.say(&format!("{line} --data data")).expect(0);
    }
    for (line, words) in [
        ("token list --data data", "runner-of-the-second-floor"),
        ("repo list --data data", "application"),
        ("queues --data data", "letters"),
        ("show latest", "(required_job_failed)"),
        ("why unit", "`exit 3`"),
        ("runs", "FAILED"),
        ("artifacts latest", "out/report"),
        ("plan", "publish"),
        ("plan --full", "publish"),
        ("run", "dependency"),
        ("why nobody-has-this-name", "nobody-has-this-name"),
    ] {
        for columns in [40, 60, 80, 120] {
            let shown = place.on_terminal(columns, line);
            assert!(shown.contains(words), "{words} of {line}\n{shown}");
            for shown in shown.lines().filter(|it| !it.contains(" | ")) {
                let words = shown.trim_start_matches(['│', ' ']);
                let fits = shown.width() <= columns || !words.contains(' ');
                assert!(fits, "{line} at {columns}: {shown}");
            }
        }
    }
    drop(server);
}
