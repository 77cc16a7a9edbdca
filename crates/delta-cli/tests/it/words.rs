//! The words of answers and errors: what is said is true, said once, and names what to type next.

use crate::support::{Place, comparable};

fn said(place: &Place, line: &str, exit: i32) -> String {
    comparable(&place.say(line).expect(exit).stderr)
}

#[test]
fn what_was_given_is_not_advised_and_words_of_the_inside_are_not_said() {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  c: {requires: [gpu], steps: [x]}\n  e: {needs: [c], steps: [x]}\n  \
         f: {steps: [x]}\n",
    );
    for line in ["run --job e", "run --job e --skip-unfit"] {
        let text = said(&place, line, 8);
        let wanted = "error: this machine cannot execute job `c`\nwhy: c: it requires gpu, which \
                      is not here\ne: it needs c\nhere are ";
        assert!(text.starts_with(wanted), "{text}");
        let next = "next: --label gpu if it is here after all; a server with an agent that has it";
        assert!(text.ends_with(next), "{text}");
        assert!(!text.contains("work:"), "{text}");
    }
    let text = said(&place, "run", 8);
    assert!(
        text.contains("next: --skip-unfit runs the others"),
        "{text}"
    );
}

#[test]
fn a_log_whose_bytes_are_gone_is_told_from_one_that_never_was() {
    let place = Place::new();
    place.write(".delta-ci.yaml", "jobs: {a: {steps: [echo hello]}}\n");
    place.say("run --data d").expect(0);
    assert!(
        place
            .say("logs a --data d")
            .expect(0)
            .stdout
            .contains("hello")
    );
    std::fs::remove_dir_all(place.path().join("d/objects")).expect("the objects");
    let text = said(&place, "logs latest/a --data d", 5);
    let wanted = "error: the log is gone: it has 29 bytes, and none of them is here\nnext: \
                  delta-ci doctor, where the server is, says what else is missing";
    assert_eq!(text, wanted);
}

#[test]
fn a_call_that_never_began_is_not_tried_again() {
    let place = Place::new();
    let server = place.server(&[]);
    let made = place
        .say("enqueue greet --delay 1h --timeout 60s --data data")
        .expect(0);
    let run = made.stdout.trim();
    let why = comparable(
        &place
            .say(&format!("why {run} --data data"))
            .expect(0)
            .stdout,
    );
    assert!(why.contains("is to begin in"), "{why}");
    assert!(!why.contains("again"), "{why}");
    assert!(
        why.contains("even if nobody executes it; once it runs"),
        "{why}"
    );
    drop(server);
}

#[test]
fn a_report_that_is_not_there_is_told_of_a_job_that_succeeded() {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs: {a: {steps: [echo hello], results: {format: junit, path: nothere.xml}}}\n",
    );
    let ran = comparable(&place.say("run --data d").expect(0).stdout);
    let note = "a SUCCEEDED 1 TIME job_ID_1 no report of tests is at nothere.xml";
    assert!(ran.contains(note), "{ran}");
    let shown = comparable(&place.say("show latest --data d").expect(0).stdout);
    assert!(shown.contains(note), "{shown}");
}

#[test]
fn how_many_tests_ran_is_said_once_in_a_log() {
    let place = Place::new();
    place.write("r.xml", "<testsuite><testcase name='x'/></testsuite>");
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  a:\n    steps: [cp r.xml j.xml]\n    count_tests: report\n    \
         results: {format: junit, path: j.xml}\n",
    );
    let ran = place.say("run").expect(0);
    assert!(
        ran.stdout.contains("--- tests: 1 passed\n"),
        "{}",
        ran.stdout
    );
    assert!(!ran.stdout.contains("--- 1 test ran"), "{}", ran.stdout);
    let ran = comparable(&ran.stdout);
    assert!(ran.contains("job_ID_1 1 test ran\n"), "{ran}");
}

#[test]
fn who_executes_is_said_where_nobody_does() {
    let place = Place::new();
    place.write(".delta-ci.yaml", "jobs: {a: {steps: [echo hello]}}\n");
    place.say("run --data d").expect(0);
    let text = said(&place, "rerun latest --data d", 0);
    let wanted = "no server runs on d, so nobody executes it; next: delta-ci up --data d";
    assert!(text.ends_with(wanted), "{text}");
    let shown = comparable(&place.say("show latest --data d").expect(0).stdout);
    assert!(shown.contains("a QUEUED 0 - job_ID_1"), "{shown}");
    let text = said(&place, "run --data d", 8);
    assert!(text.contains("waits in d for a server"), "{text}");
    assert!(
        text.contains("next: delta-ci up --data d executes it"),
        "{text}"
    );
}

#[test]
fn a_job_that_never_began_has_no_attempts_and_a_timeout_names_its_limit() {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  slow: {timeout: 1s, retry: {attempts: 1}, steps: [sleep 60]}\n  \
         step: {retry: {attempts: 1}, steps: [{run: sleep 60, timeout: 1s}]}\n  \
         after: {needs: [slow], steps: [x]}\n",
    );
    let ran = comparable(&place.say("run").expect(1).stdout);
    assert!(ran.contains("after CANCELED 0 - job_ID_3"), "{ran}");
    for wanted in [
        "the job's time was up during step 1; it printed nothing (it may take TIME)",
        "step 1 `sleep 60` took longer than the TIME that it may; it printed nothing",
    ] {
        assert!(ran.contains(wanted), "{wanted}\n{ran}");
    }
}

#[test]
fn a_folder_that_is_refused_is_not_called_a_server() {
    let place = Place::new();
    place.write(".delta-ci.yaml", "jobs: {a: {steps: [echo hello]}}\n");
    place.say("run --data d").expect(0);
    std::fs::remove_file(place.path().join("d/delta-ci.db")).expect("the database");
    let text = said(&place, "runs --data d", 8);
    assert!(
        text.starts_with("error: the data in d cannot be opened\n"),
        "{text}"
    );
}

#[test]
fn a_hint_is_given_once_and_a_plan_speaks_as_its_file() {
    let place = Place::new();
    place.write("pom.xml", "<project/>");
    let text = said(&place, "plan", 5);
    assert_eq!(text.matches("delta-ci init").count(), 1, "{text}");
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  a:\n    image: debian\n    steps: [x]\n    container:\n      services:\n        \
         - {name: db, image: pg, ready: {run: x, every: 2s, timeout: 1m}}\n",
    );
    let full = place.say("plan --full").expect(0).stdout;
    assert!(
        full.contains("every: 2s") && full.contains("timeout: 1m"),
        "{full}"
    );
    assert!(!full.contains("_seconds"), "{full}");
}

#[test]
fn artifacts_are_told_to_programs() {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs: {a: {steps: ['echo > out'], artifacts: [out]}}\n",
    );
    let ran = place.say("--json run --artifacts kept").expect(0).json();
    assert_eq!(ran["artifacts"][0]["job"], "a", "{ran}");
    assert_eq!(ran["artifacts"][0]["name"], "out", "{ran}");
    assert_eq!(ran["artifacts_folder"], "kept", "{ran}");
    assert!(place.path().join("kept/a/out").exists());
}

#[test]
fn what_cannot_be_done_says_what_to_do() {
    let place = Place::new();
    place.write(".delta-ci.yaml", "jobs: {hello: {steps: [echo hello]}}\n");
    place.say("run --data .delta-ci").expect(0);
    for (line, exit, next) in [
        (
            "agent --server http://127.0.0.1:1 --token-file nope",
            2,
            "name another file, or make one: delta-ci token create --role ROLE --out FILE",
        ),
        (
            "up --runners nope.yaml --data d",
            5,
            "name a file that can be read: --runners FILE",
        ),
        (
            "server --listen 0.0.0.0:0 --data d",
            2,
            "--listen 127.0.0.1:PORT for this machine alone; --tls-cert FILE --tls-key FILE; or \
             --behind-tls-proxy",
        ),
        ("why latest/hell", 5, "did you mean run_ID/hello?"),
        ("why latest/zz", 5, "delta-ci show run_ID lists them"),
        (
            "why hell",
            5,
            "did you mean `hello`? delta-ci runs lists runs; a job of an older one is RUN/NAME, \
             its id, or the beginning of it",
        ),
        (
            "run --input x=1",
            2,
            "`on: {manual: {inputs: …}}` of the file declares them, see docs/pipeline.md",
        ),
        ("approve latest/hello", 2, "delta-ci runs lists runs"),
    ] {
        let text = said(&place, line, exit);
        assert!(text.ends_with(&format!("\nnext: {next}")), "{line}\n{text}");
    }
}

#[test]
fn what_is_cut_is_marked_and_programs_get_it_whole() {
    let place = Place::new();
    let long = format!("echo {}", "word ".repeat(40));
    place.write(
        ".delta-ci.yaml",
        &format!("jobs:\n  a:\n    steps:\n      - |\n        echo first\n        exit 1\n      - {long}\n"),
    );
    let plan = place.say("plan").expect(0).stdout;
    assert!(plan.contains("$ echo first …\n"), "{plan}");
    assert!(
        plan.contains("word word…\n") || plan.contains("word w…\n"),
        "{plan}"
    );
    let json = place.say("--json plan").expect(0).stdout;
    assert!(
        json.contains(long.trim()) && json.contains("echo first\\nexit 1"),
        "{json}"
    );
    let ran = comparable(&place.say("run").expect(1).stdout);
    let wanted = "✗ a FAILED in TIME: step 1 `echo first …` ended with exit code 1\n| first";
    assert!(ran.contains(wanted), "{ran}");
}
