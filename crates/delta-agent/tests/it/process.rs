//! Steps as real processes.

use std::time::{Duration, Instant};

use delta_agent::work::BaseEnvironment;
use delta_core::Cause;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_wire::step::StepWhen;

use crate::bench::{Bench, is_running};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(15);

#[tokio::test]
async fn steps_run_in_order_each_in_its_own_shell() {
    let bench = Bench::new(&["echo one; X=1; cd /", "echo two$X; pwd", "echo three >&2"]);
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded);
    assert!(ended.confirmed);
    let workspace = bench.work.workspace.canonicalize().expect("a path");
    let wanted = format!(
        "--- step 1: echo one; X=1; cd /\none\n--- step 2: echo two$X; pwd\ntwo\n{}\n\
         --- step 3: echo three >&2\nthree\n",
        workspace.display()
    );
    assert_eq!(bench.log(), wanted);
    assert_eq!(ended.log.bytes, wanted.len() as u64);
}

// RP-18: the exit code is stored as it is.
#[tokio::test]
async fn the_exit_code_of_the_failing_step_is_the_outcome() {
    let bench = Bench::new(&["true", "exit 42", "echo never"]);
    let ended = bench.run().await;
    assert_eq!(
        ended.outcome,
        Outcome::Failed {
            exit_code: Some(42)
        }
    );
    assert_eq!((ended.cause, ended.step), (Some(Cause::UserExit), Some(1)));
    assert!(!bench.log().contains("never"), "{}", bench.log());
    assert!(
        bench
            .log()
            .ends_with("--- step 2 ended with exit code 42; it printed nothing\n")
    );
}

#[tokio::test]
async fn a_failing_line_ends_its_step() {
    let bench = Bench::new(&["false\necho not reached"]);
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Failed { exit_code: Some(1) });
    assert!(!bench.log().contains("\nnot reached"), "{}", bench.log());
}

#[tokio::test]
async fn a_signal_is_a_cause_of_its_own() {
    let bench = Bench::new(&["kill -SEGV $$"]);
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Signaled { signal: 11 });
    assert_eq!(ended.cause, Some(Cause::UserSignal));
}

#[tokio::test]
async fn both_streams_keep_their_order_of_arrival() {
    let script = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    let bench = Bench::new(&[script]);
    bench.run().await;
    let wanted: Vec<String> = (0..500)
        .flat_map(|n| [format!("out {n}"), format!("err {n}")])
        .collect();
    let log = bench.log();
    assert_eq!(log.lines().skip(1).collect::<Vec<_>>(), wanted);
}

// RP-54, A60, A72: the job knows its epoch, never its lease.
#[tokio::test]
async fn the_environment_is_clean_and_says_who_the_attempt_is() {
    let mut bench = Bench::new(&["env | sort"]);
    bench.work.env = vec![
        ("GREETING".into(), "it's \"quoted\" $HOME `x`".into()),
        ("DELTA_ATTEMPT".into(), "99".into()),
    ];
    bench.run().await;
    let log = bench.log();
    let names: Vec<&str> = log
        .lines()
        .skip(1)
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    let shell_adds = ["OLDPWD", "PWD", "SHLVL", "_"];
    let wanted = [
        "CI",
        "DELTA_ATTEMPT",
        "DELTA_JOB_ID",
        "DELTA_JOB_NAME",
        "DELTA_LEASE_EPOCH",
        "DELTA_RUN_ID",
        "DELTA_WORKSPACE",
        "GREETING",
        "HOME",
        "LANG",
        "PATH",
        "TMPDIR",
    ];
    let found: Vec<_> = names
        .into_iter()
        .filter(|name| !shell_adds.contains(name))
        .collect();
    assert_eq!(found, wanted);
    let job_id = format!("DELTA_JOB_ID={}", bench.work.identity.job_id);
    for line in [
        "CI=true",
        "DELTA_ATTEMPT=2",
        &job_id,
        "DELTA_JOB_NAME=unit",
        "DELTA_LEASE_EPOCH=7",
        "DELTA_RUN_ID=run_1",
        "GREETING=it's \"quoted\" $HOME `x`",
    ] {
        assert!(log.lines().any(|seen| seen == line), "{line}\n{log}");
    }
}

#[tokio::test]
async fn the_callers_environment_is_inherited_when_asked_for() {
    let mut bench = Bench::new(&["env"]);
    bench.work.base = BaseEnvironment::Inherited;
    bench.run().await;
    let log = bench.log();
    assert!(
        log.contains("CARGO_PKG_NAME=") || log.contains("CARGO="),
        "{log}"
    );
    assert!(log.contains("DELTA_ATTEMPT=2"), "{log}");
}

#[tokio::test]
async fn work_that_cannot_be_begun_is_a_spec_error() {
    for (workdir, words) in [
        ("missing", "cannot be entered"),
        ("..", "leaves the workspace"),
        ("/", "leaves the workspace"),
        ("escape", "leaves the workspace"),
        ("file", "is not a folder"),
    ] {
        let mut bench = Bench::new(&["true"]);
        std::os::unix::fs::symlink("/", bench.work.workspace.join("escape")).expect("a link");
        std::fs::write(bench.work.workspace.join("file"), "x").expect("a file");
        bench.work.workdir = workdir.into();
        let ended = bench.run().await;
        assert_eq!(ended.cause, Some(Cause::SpecError), "{workdir}");
        assert_eq!(ended.outcome, Outcome::Failed { exit_code: None });
        assert!(ended.summary.contains(words), "{}", ended.summary);
    }
}

// RP-37: TERM at once, KILL of the whole group before the deadline.
#[tokio::test]
async fn a_job_that_ignores_term_is_killed_at_the_deadline() {
    let bench = Bench::new(&[
        "trap '' TERM; echo ready; while :; do sleep 0.05; done",
        "echo no",
    ]);
    let start = Instant::now();
    let stopper = async {
        bench.seen.wait_for("out ready").await;
        bench.order(StopReason::Canceled, SHORT);
    };
    let (ended, ()) = tokio::join!(bench.run(), stopper);
    assert_eq!(ended.outcome, Outcome::Canceled);
    assert_eq!(
        (ended.stopped, ended.cause),
        (Some(StopReason::Canceled), None)
    );
    assert!(ended.confirmed);
    assert!(start.elapsed() >= SHORT);
    assert!(
        bench.log().ends_with("--- canceled during step 1\n"),
        "{}",
        bench.log()
    );
}

#[tokio::test]
async fn a_polite_job_has_its_grace() {
    let bench = Bench::new(&[
        "trap 'echo cleaning; sleep 0.2; echo cleaned; exit 0' TERM\necho ready\n\
         while :; do sleep 0.02; done",
    ]);
    let start = Instant::now();
    let stopper = async {
        bench.seen.wait_for("out ready").await;
        bench.order(StopReason::Shutdown, LONG);
    };
    let (ended, ()) = tokio::join!(bench.run(), stopper);
    assert_eq!(ended.cause, Some(Cause::AgentShutdown));
    assert_eq!(ended.outcome, Outcome::Failed { exit_code: None });
    assert!(
        bench.log().contains("cleaning\ncleaned\n"),
        "{}",
        bench.log()
    );
    assert!(start.elapsed() < LONG);
}

#[tokio::test]
async fn the_whole_group_is_ended_not_only_the_shell() {
    // Each child ignores TERM, and one is orphaned by a double fork inside the group.
    let bench = Bench::new(&["trap '' TERM\n\
         (sh -c 'echo $$ > orphan; while :; do sleep 0.05; done' &) \n\
         sh -c 'echo $$ > child; while :; do sleep 0.05; done' &\n\
         while [ ! -s orphan ] || [ ! -s child ]; do sleep 0.01; done\necho ready; wait"]);
    let stopper = async {
        bench.seen.wait_for("out ready").await;
        bench.order(StopReason::TimedOut, SHORT);
    };
    let (ended, ()) = tokio::join!(bench.run(), stopper);
    assert_eq!(
        (ended.outcome, ended.cause),
        (Outcome::TimedOut, Some(Cause::JobTimeout))
    );
    assert!(ended.confirmed);
    for name in ["orphan", "child"] {
        assert!(!is_running(&bench.file(name)), "{name} is still running");
    }
}

#[tokio::test]
async fn a_grandchild_that_holds_the_pipe_holds_up_nobody() {
    let bench = Bench::new(&["sleep 600 & echo $! > pid; echo started", "echo second"]);
    let start = Instant::now();
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded);
    assert!(start.elapsed() < LONG);
    assert!(
        bench
            .log()
            .ends_with("started\n--- step 2: echo second\nsecond\n")
    );
    assert!(
        !is_running(&bench.file("pid")),
        "what a job leaves behind is ended with it"
    );
}

// T28, D9: another session and another parent do not help.
#[tokio::test]
async fn a_process_that_left_its_session_is_ended_with_the_job() {
    let bench = Bench::new(&[
        "setsid sh -c 'echo $$ > pid; exec sleep 600' & while [ ! -s pid ]; do sleep 0.01; done",
    ]);
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded);
    assert!(ended.confirmed);
    assert!(!is_running(&bench.file("pid")));
}

#[tokio::test]
async fn a_background_service_lives_for_the_steps_that_follow() {
    let bench = Bench::new(&[
        "(while :; do echo up > alive; sleep 0.02; done) &",
        "rm -f alive; while [ ! -s alive ]; do sleep 0.01; done; echo served",
    ]);
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", bench.log());
    assert!(bench.log().ends_with("served\n"));
}

#[tokio::test]
async fn a_stricter_order_moves_the_kill_forward() {
    let bench = Bench::new(&["trap '' TERM; echo ready; while :; do sleep 0.05; done"]);
    let start = Instant::now();
    let stopper = async {
        bench.seen.wait_for("out ready").await;
        bench.order(StopReason::Canceled, Duration::from_secs(600));
        bench.order(StopReason::LeaseLost, SHORT);
    };
    let (ended, ()) = tokio::join!(bench.run(), stopper);
    assert_eq!(ended.stopped, Some(StopReason::LeaseLost));
    assert!(start.elapsed() < LONG);
}

#[tokio::test]
async fn a_step_may_have_a_shell_of_its_own() {
    let words = |text: &str| Some(text.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let mut bench = Bench::new(&["[[ a == a ]]; echo \"it's\"; false | true; echo unreached"]);
    bench.work.steps[0].shell = words("bash -eo pipefail -c");
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Failed { exit_code: Some(1) });
    assert!(bench.log().contains("\nit's\n--- "), "{}", bench.log());

    // A shell that is not there is no exit code 127 of the script's.
    let mut bench = Bench::new(&["echo odd"]);
    bench.work.steps[0].shell = words("no-such-shell -c");
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Failed { exit_code: None });
    assert_eq!(ended.cause, Some(Cause::SpecError));
    assert!(
        ended
            .summary
            .starts_with("step 1: this machine has no `no-such-shell`"),
        "{}",
        ended.summary
    );
}

#[tokio::test]
async fn the_quota_bounds_the_log_and_the_job_goes_on() {
    let mut bench = Bench::new(&["yes | head -c 3000000", "echo after"]);
    bench.work.log_quota = 10_000;
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded);
    let log = bench.log();
    assert!(log.len() < 11_000, "{}", log.len());
    // Its beginning, one line in between, and its end.
    assert!(
        log.starts_with("--- step 1: yes | head -c 3000000\ny\ny\n"),
        "{log}"
    );
    assert!(log.ends_with("y\n--- step 2: echo after\nafter\n"), "{log}");
    let marks = "--- step 1: yes | head -c 3000000\n--- step 2: echo after\nafter\n".len();
    let lost = ended.log.dropped;
    let mark = format!("--- {lost} bytes were dropped here: a log may have 10000 bytes\n");
    let (head, tail) = log.split_once(&mark).expect("the line in between");
    let newline = usize::from(head.ends_with("\n\n"));
    let kept = head.len() - newline + tail.len();
    assert_eq!(kept as u64 + lost, (3_000_000 + marks) as u64);
}

#[tokio::test]
async fn a_step_of_the_largest_size_runs_and_a_larger_one_is_a_spec_error() {
    let largest = delta_wire::job_spec::MAX_STEP_BYTES;
    let end = "\necho long enough";
    let step = format!("# {}{end}", "x".repeat(largest - end.len() - 2));
    assert_eq!(step.len(), largest);
    let bench = Bench::new(&[&step]);
    assert_eq!(bench.run().await.outcome, Outcome::Succeeded);
    assert!(bench.log().ends_with("long enough\n"));
    let bench = Bench::new(&[&"x".repeat(10 * largest)]);
    assert_eq!(bench.run().await.cause, Some(Cause::SpecError));
}

#[tokio::test]
async fn a_watcher_sees_steps_and_lines_and_none_of_our_marks() {
    let bench = Bench::new(&["printf 'a\\nb\\n'", "echo c"]);
    bench.run().await;
    let seen = bench.seen.lines.lock().expect("no panic inside").clone();
    let wanted = [
        "began 0",
        "out a",
        "out b",
        "ended 0 Some(0)",
        "began 1",
        "out c",
        "ended 1 Some(0)",
    ];
    assert_eq!(seen, wanted);
}

#[tokio::test]
async fn a_step_has_a_time_of_its_own() {
    let mut bench = Bench::new(&["true", "sleep 600", "true"]);
    bench.work.steps[1].timeout = Some(SHORT);
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::TimedOut);
    assert_eq!(
        (ended.cause, ended.step),
        (Some(Cause::StepTimeout), Some(1))
    );
}

/// The log of steps without our marks.
fn printed(bench: &Bench) -> Vec<String> {
    let log = bench.log();
    let lines = log.lines().filter(|line| !line.starts_with("--- "));
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn steps_that_wait_for_a_failure_have_their_turn_after_one() {
    let mut bench = Bench::new(&[
        "echo one; exit 3",
        "echo two",
        "echo three; exit 4",
        "echo four",
    ]);
    bench.work.steps[2].when = StepWhen::Failure;
    bench.work.steps[3].when = StepWhen::Always;
    let ended = bench.run().await;
    assert_eq!(printed(&bench), ["one", "three", "four"]);
    // The first failure is what the job ended with.
    assert_eq!(ended.outcome, Outcome::Failed { exit_code: Some(3) });
    assert_eq!((ended.cause, ended.step), (Some(Cause::UserExit), Some(0)));
}

#[tokio::test]
async fn without_a_failure_those_that_wait_for_one_are_left_out() {
    let mut bench = Bench::new(&["echo one", "echo two", "echo three"]);
    bench.work.steps[1].when = StepWhen::Failure;
    bench.work.steps[2].when = StepWhen::Always;
    let ended = bench.run().await;
    assert_eq!(printed(&bench), ["one", "three"]);
    assert_eq!(ended.outcome, Outcome::Succeeded);
}

#[tokio::test]
async fn a_failure_that_is_allowed_does_not_count() {
    let mut bench = Bench::new(&["echo one; exit 3", "echo two", "echo three"]);
    bench.work.steps[0].failure_allowed = true;
    bench.work.steps[2].when = StepWhen::Failure;
    let ended = bench.run().await;
    assert_eq!(printed(&bench), ["one", "two"]);
    assert_eq!(ended.outcome, Outcome::Succeeded);
}

#[tokio::test]
async fn a_step_has_variables_of_its_own() {
    let show = "echo \"$A $B\"";
    let mut bench = Bench::new(&[show, show, show]);
    bench.work.env = vec![("A".into(), "job".into())];
    bench.work.steps[1].env = vec![
        ("A".into(), "it's $HOME; id".into()),
        ("B".into(), "own".into()),
    ];
    bench.run().await;
    assert_eq!(printed(&bench), ["job ", "it's $HOME; id own", "job "]);
}

#[tokio::test]
async fn an_order_to_stop_is_about_every_step() {
    let mut bench = Bench::new(&["echo one; sleep 600", "echo two"]);
    // Long enough to have printed.
    bench.work.steps[0].timeout = Some(Duration::from_secs(5));
    bench.work.steps[0].failure_allowed = true;
    bench.work.steps[1].when = StepWhen::Always;
    let ended = bench.run().await;
    assert_eq!(printed(&bench), ["one"]);
    assert_eq!(ended.outcome, Outcome::TimedOut);
}
