//! `delta-ci run` in a checkout: what it works on, which jobs of the plan it takes, and what it
//! says when there is none of that name.

use std::process::Command;

use crate::support::{Place, Ran, git};

/// A checkout of `topic`, one commit away from nothing, with this pipeline file.
fn checkout(pipeline: &str) -> Place {
    let place = Place::new();
    place.write(".delta-ci.yaml", pipeline);
    place.write("committed", "one\n");
    git(place.path(), &["init", "-q", "-b", "main"]);
    git(place.path(), &["add", "-A"]);
    git(place.path(), &["commit", "-q", "-m", "one"]);
    git(place.path(), &["checkout", "-q", "-b", "topic"]);
    place
}

/// The names of the jobs that ran.
fn jobs(ran: &Ran) -> Vec<String> {
    let view = ran.json();
    let jobs = view["jobs"].as_array().cloned().unwrap_or_default();
    let name = |job: &serde_json::Value| job["name"].as_str().unwrap_or_default().to_owned();
    jobs.iter().map(name).collect()
}

const CONDITIONS: &str = "\
on: { push: { branches: [main] }, manual: { inputs: { level: { default: low } } } }
jobs:
  always: { steps: ['true'] }
  src: { if: 'changed(\"src/**\")', steps: ['true'] }
  docs: { if: 'changed(\"docs/**\")', steps: ['true'] }
  deploy: { if: 'branch == \"main\" && event == \"push\"', steps: ['true'] }
  tagged: { if: 'tag =~ \"v*\"', steps: ['true'] }
  level: { if: 'inputs.level == \"high\"', steps: ['test \"$INPUT_LEVEL\" = high'] }
";

#[test]
fn the_tree_is_worked_on_as_it_is_committed_or_not() {
    let step = "test \"$(cat committed)\" = two && test -f new && ! test -e ignored && touch made";
    let place = checkout(&format!("jobs:\n  a:\n    steps: ['{step}']\n"));
    place.write("committed", "two\n");
    place.write("new", "");
    place.write(".gitignore", "ignored\n");
    place.write("ignored", "");
    place.say("run").expect(0);
    assert!(!place.path().join("made").exists(), "a copy was worked on");
}

#[test]
fn conditions_and_changed_files_mean_what_they_mean_on_a_server() {
    let place = checkout(CONDITIONS);
    std::fs::create_dir(place.path().join("src")).unwrap();
    place.write("src/new.rs", "");
    let ran = place.say("--json run").expect(0);
    assert_eq!(jobs(&ran), ["always", "src"]);
    let ran = place.say("--json run --all").expect(0);
    assert_eq!(jobs(&ran), ["always", "src", "docs"]);
    let ran = place.say("--json run --event push --branch main").expect(0);
    assert_eq!(jobs(&ran), ["always", "src", "deploy"]);
    let ran = place.say("--json run --tag v1").expect(0);
    assert_eq!(ran.json()["cause"], "NOTHING_TO_RUN", "no run on tags");
    let ran = place.say("--json run --event manual --tag v1").expect(0);
    assert_eq!(jobs(&ran), ["always", "src", "tagged"]);
    let ran = place.say("--json run --input level=high").expect(0);
    assert_eq!(jobs(&ran), ["always", "src", "level"]);
    let ran = place.say("run").expect(0);
    let said = "4 jobs left out; delta-ci plan says why";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
}

#[test]
fn what_cannot_be_meant_names_the_field_and_the_fix() {
    let place = checkout(CONDITIONS);
    for (line, exit, words) in [
        ("run --job doc", 5, "did you mean `docs`?"),
        ("run --job deploy", 8, "branch is `topic`"),
        ("run --from deploy", 8, "--event, --branch"),
        ("run --input levle=x", 2, "did you mean `level`?"),
        ("run --input level", 2, "write --input NAME=VALUE"),
        ("run --event psh", 2, "did you mean `push`?"),
        (
            "run --base nowhere",
            5,
            "--base: there is no commit `nowhere`",
        ),
        ("run nowhere", 5, "there is no nowhere"),
    ] {
        let ran = place.say(line).expect(exit);
        assert!(ran.stderr.contains(words), "{line}: {}", ran.stderr);
    }
}

#[test]
fn a_named_job_runs_whatever_changed_and_a_matrix_by_its_name() {
    let place = checkout(CONDITIONS);
    place.write("committed", "two\n");
    let ran = place.say("--json run --job docs").expect(0);
    assert_eq!(jobs(&ran), ["docs"]);
    let matrix = "jobs:\n  unit: {steps: ['test -n \"$MATRIX_V\"'], matrix: {v: [1, 2]}}\n  \
                  other: {steps: [exit 1]}\n";
    let place = checkout(matrix);
    let ran = place.say("--json run --job unit").expect(0);
    assert_eq!(jobs(&ran), ["unit (v=1)", "unit (v=2)"]);
}

#[test]
fn from_a_job_on_what_it_needs_is_taken_as_passed_and_said() {
    let place = checkout(
        "jobs:\n  build: {steps: [exit 1], artifacts: [out]}\n  lint: {steps: [exit 1]}\n  \
         unit: {needs: [build], inputs: [build], steps: ['true']}\n  \
         ship: {needs: [unit, lint], steps: ['true']}\n  other: {steps: [exit 1]}\n",
    );
    let ran = place.say("run --from unit").expect(0);
    for line in [
        "taken as passed, not executed: build, lint",
        "unit goes without the artifacts of build",
    ] {
        assert!(ran.stderr.contains(line), "{line}\n{}", ran.stderr);
    }
    let ran = place.say("--json run --from unit").expect(0);
    assert_eq!(jobs(&ran), ["unit", "ship"]);
}

#[test]
fn jobs_that_do_not_need_each_other_run_at_the_same_time() {
    // Each ends only when the other has begun.
    let step = |own: &str, other: &str| {
        format!("touch $MEET/{own}; until test -e $MEET/{other}; do sleep 0.05; done")
    };
    let place = checkout(&format!(
        "defaults: {{timeout: 1m, retry: {{attempts: 1}}}}\njobs:\n  a: {{steps: ['{}']}}\n  \
         b: {{steps: ['{}']}}\n",
        step("a", "b"),
        step("b", "a")
    ));
    let meet = tempfile::tempdir().unwrap();
    let ran = place
        .command()
        .args(["run", "--slots", "2"])
        .env("MEET", meet.path())
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
}

#[test]
fn on_a_pipe_every_line_has_its_job_and_failures_come_first_at_the_end() {
    let place = checkout(
        "defaults: {retry: {attempts: 1}}\njobs:\n  good: {steps: [echo fine]}\n  \
         bad: {steps: [echo broken; exit 3]}\n",
    );
    let ran = place.say("run").expect(1);
    assert!(ran.stdout.contains("good | fine"), "{}", ran.stdout);
    assert!(ran.stdout.contains("bad  | broken"), "{}", ran.stdout);
    let (_, table) = ran.stdout.split_once("JOB ").expect("a table");
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert!(
        rows[0].starts_with("bad ") && rows[1].starts_with("good "),
        "{table}"
    );
    assert!(!ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
}

#[test]
fn a_secret_is_a_variable_of_the_shell_and_masked() {
    let place = checkout(
        "jobs:\n  a: {secrets: [{name: HIDDEN_ONE, env: GIVEN}], steps: ['echo \"it is $GIVEN\"']}\n",
    );
    let ran = place.say("run").expect(8);
    for words in [
        "job `a` asks for the secret `HIDDEN_ONE`",
        "export HIDDEN_ONE",
    ] {
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    let output = place
        .command()
        .arg("run")
        .env("HIDDEN_ONE", "canary-77")
        .output();
    let output = output.expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(said.contains("a | it is ***"), "{said}");
    assert!(!said.contains("canary"), "{said}");
}

/// A terminal of 24 lines: the board is there, and never climbs higher than it may.
#[test]
fn fifty_jobs_on_a_terminal_stay_within_its_lines() {
    let values: Vec<String> = (1..=50).map(|n| n.to_string()).collect();
    let place = checkout(&format!(
        "defaults: {{retry: {{attempts: 1}}}}\njobs:\n  unit:\n    matrix: {{n: [{}]}}\n    \
         steps: ['echo line one; echo \"this is $MATRIX_N\"; test \"$MATRIX_N\" != 7']\n",
        values.join(", ")
    ));
    let (exit, seen) = place.on_a_terminal("run --slots 8", 80);
    assert_eq!(exit, 1, "{seen}");
    assert!(seen.contains("of 50 done"), "{seen}");
    let (_, summary) = seen.rsplit_once("of 50 done").expect("a board");
    for words in [
        "unit (n=7)",
        "this is 7",
        "and 49 jobs that succeeded",
        "FAILED",
    ] {
        assert!(summary.contains(words), "{words}\n{summary}");
    }
    assert!(!summary.contains("this is 8"), "{summary}");
    let highest = highest(&seen);
    assert!((5..24).contains(&highest), "{highest}\n{seen}");
}

/// How far the cursor is ever above the line that was written last.
fn highest(seen: &str) -> usize {
    let (mut highest, mut climbed) = (0_usize, 0_usize);
    let mut rest = seen;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, rest.strip_prefix('[')) {
            ('\u{1b}', Some(sequence)) => {
                let letter = |c: char| c.is_ascii_alphabetic();
                let end = sequence.find(letter).unwrap_or(sequence.len() - 1);
                let lines = sequence[..end].parse().unwrap_or(1);
                match &sequence[end..=end] {
                    "A" => climbed += lines,
                    "B" => climbed = climbed.saturating_sub(lines),
                    _ => {}
                }
                highest = highest.max(climbed);
                rest = &sequence[end + 1..];
            }
            ('\r', _) => {}
            _ => climbed = 0,
        }
    }
    highest
}

/// What is on a terminal of so many columns after all of this was written to it.
fn screen(seen: &str, columns: usize) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![Vec::new()], 0_usize, 0_usize);
    let mut rest = seen.chars();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => {
                let mut sequence = String::new();
                let inside = rest.next() == Some('[');
                while let (true, Some(c)) = (inside, rest.next()) {
                    sequence.push(c);
                    if c.is_ascii_alphabetic() {
                        break;
                    }
                }
                let count = sequence[..sequence.len().saturating_sub(1)]
                    .parse()
                    .unwrap_or(1);
                match sequence.pop() {
                    Some('A') => row = row.saturating_sub(count),
                    Some('B') => row += count,
                    Some('K') => lines[row].clear(),
                    Some('J') => lines.truncate(row + 1),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row += 1,
            c => {
                // The last column is left when there is more to be written, and not before.
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                lines.resize(lines.len().max(row + 1), Vec::new());
                let line: &mut Vec<char> = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
            }
        }
        lines.resize(lines.len().max(row + 1), Vec::new());
    }
    let text = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
    lines.iter().map(text).collect()
}

// The terminal shows what is typed, unless somebody tells it not to: a board that has moved by a
// line cannot be taken away.
#[test]
fn after_an_interrupt_no_line_of_the_board_is_left() {
    use std::io::{Read, Write};
    for jobs in ["one", "one, two"] {
        let step = "{steps: ['echo begun > \"$MARK-$DELTA_JOB_NAME\"; sleep 600']}";
        let jobs: Vec<&str> = jobs.split(", ").collect();
        let file: Vec<String> = jobs
            .iter()
            .map(|job| format!("  {job}: {step}\n"))
            .collect();
        let place = checkout(&format!("jobs:\n{}", file.concat()));
        let mark = place.cache.path().join("mark");
        let binary = crate::support::binary();
        let command = format!("stty rows 24 cols 80; exec {} run", binary.display());
        let mut script = Command::new("script")
            .args(["-q", "-e", "-c", &command, "/dev/null"])
            .current_dir(place.path())
            .env("TERM", "xterm-256color")
            .env("XDG_CACHE_HOME", place.cache.path())
            .env("MARK", &mark)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("script of util-linux");
        let mut keys = script.stdin.take().expect("its keys");
        for job in &jobs {
            let mark = place.cache.path().join(format!("mark-{job}"));
            let begun = || mark.exists().then_some(()).ok_or("not yet");
            delta_testkit::wait::eventually(crate::support::PATIENCE, "the job begins", begun);
        }
        let mut stdout = script.stdout.take().expect("its screen");
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let written = std::sync::Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut piece) {
                let mut seen = written.lock().expect("no panic");
                seen.extend_from_slice(&piece[..count]);
            }
        });
        let text = || String::from_utf8_lossy(&seen.lock().expect("no panic")).into_owned();
        // Whoever cancels has seen all of them run.
        let drawn = || match jobs
            .iter()
            .all(|it| text().contains(&format!("\u{25cf} {it}")))
        {
            true => Ok(()),
            false => Err(text()),
        };
        delta_testkit::wait::eventually(crate::support::PATIENCE, "there is a board", drawn);
        keys.write_all(b"\x03").expect("typed");
        reader.join().expect("all of it");
        let status = script.wait().expect("its end");
        drop(keys);
        let seen = text();
        assert_eq!(status.code(), Some(3), "{seen}");
        let shown = screen(&seen, 80);
        let left: Vec<&String> = shown.iter().filter(|it| it.contains('\u{25cf}')).collect();
        assert!(left.is_empty(), "{shown:#?}");
        assert!(
            shown.iter().any(|it| it.contains("canceling")),
            "{shown:#?}"
        );
    }
}
