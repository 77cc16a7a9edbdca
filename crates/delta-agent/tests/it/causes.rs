//! Ends that are not just an exit code: each produced for real, and told for what it was (D10).

use std::path::Path;
use std::time::{Duration, Instant};

use delta_agent::work::Ended;
use delta_core::Cause;
use delta_shim::program::ShimProgram;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_testkit::disk::Mounted;
use delta_testkit::memory::LittleMemory;
use delta_wire::step::StepWhen;
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, is_running, until};
use crate::shim::shims;

/// Half of the time that a shim gives those who tell it and its step to end.
const TOGETHER: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_step_that_prints_nothing_for_too_long_is_ended_for_that() {
    let mut bench = Bench::new(&["echo begun; sleep 600"]);
    bench.work.silence = Some(SOON);
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::TimedOut);
    assert_eq!(ended.cause, Some(Cause::NoOutput));
    assert_eq!(ended.stopped, Some(StopReason::Silent));
    assert_eq!(ended.evidence.last_lines, ["begun"]);
    assert!(ended.confirmed);
}

#[tokio::test]
async fn a_step_that_prints_now_and_then_is_left_alone() {
    let mut bench = Bench::new(&["for i in 1 2 3 4 5; do sleep 1; echo $i; done"]);
    bench.work.silence = Some(SOON);
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", ended.summary);
}

/// Longer than a busy machine takes to see a line, and soon over.
const SOON: Duration = Duration::from_secs(4);

/// The shim of a bench, which is not given the processor as long as this is there.
struct Held(Pid);

impl Held {
    fn of(bench: &Bench) -> Held {
        let shim = shims(bench).remove(0);
        let pid = Pid::from_raw(shim.parse().expect("a number")).expect("a number");
        kill_process(pid, Signal::STOP).expect("stopped");
        Held(pid)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

// D10: a step that ended in time ended by itself, however late that is seen.
#[tokio::test]
async fn a_clock_that_runs_out_behind_the_end_of_a_step_did_not_end_it() {
    let mut bench = Bench::new(&[
        "echo $$ > shell; echo up; until [ -e go ]; do sleep 0.02; done; exit 3",
        "echo never",
    ]);
    bench.work.steps[0].timeout = Some(SOON);
    bench.work.silence = Some(SOON);
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    let held = Held::of(&bench);
    std::fs::write(bench.work.workspace.join("go"), "").expect("told");
    let shell = bench.file("shell");
    until("it has ended", || !is_running(&shell)).await;
    tokio::time::sleep(SOON).await;
    drop(held);
    let ended = bench.ended(&mut attempt).await;
    let exit_code = Some(3);
    assert_eq!(ended.outcome, Outcome::Failed { exit_code });
    assert_eq!(ended.cause, Some(Cause::UserExit), "{}", ended.summary);
}

// Who stops the agent's unit, or the machine, tells the shim and the step: what comes of it is the
// same whoever is looked at first.
#[tokio::test]
async fn a_step_that_was_told_to_end_along_with_its_shim_is_tried_again() {
    let bench = Bench::new(&["echo $$ > shell; echo up; while :; do sleep 0.02; done"]);
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    let held = Held::of(&bench);
    let shell = bench.file("shell");
    let step = Pid::from_raw(shell.parse().expect("a number")).expect("a number");
    for told in [step, held.0] {
        kill_process(told, Signal::TERM).expect("told to end");
    }
    until("it has ended", || !is_running(&shell)).await;
    drop(held);
    let ended = bench.ended(&mut attempt).await;
    assert_eq!(ended.cause, Some(Cause::AgentShutdown), "{}", ended.summary);
    assert_eq!(ended.summary, "the agent was shut down during step 1");
}

// Also where its end was seen before anything else was told.
#[tokio::test]
async fn a_shim_that_is_told_to_end_just_after_its_step_tells_the_same() {
    // Where this test itself got no processor between the two, they were not told together.
    for _ in 0..10 {
        let bench = Bench::new(&["echo $$ > shell; echo up; while :; do sleep 0.02; done"]);
        let mut attempt = bench.start();
        bench.seen.wait_for("out up").await;
        let pid = |text: &str| Pid::from_raw(text.parse().expect("a number")).expect("a number");
        let (shell, shim) = (bench.file("shell"), pid(&shims(&bench).remove(0)));
        let began = Instant::now();
        kill_process(pid(&shell), Signal::TERM).expect("told to end");
        let place = Path::new("/proc").join(&shell);
        until("its end was taken", || !place.exists()).await;
        let told = kill_process(shim, Signal::TERM);
        let together = began.elapsed() < TOGETHER;
        let ended = bench.ended(&mut attempt).await;
        if together {
            told.expect("it waits for that");
            assert_eq!(ended.cause, Some(Cause::AgentShutdown), "{}", ended.summary);
            return;
        }
    }
    panic!("this machine is too busy to tell two processes anything within {TOGETHER:?}");
}

#[tokio::test]
async fn a_step_that_was_told_to_end_alone_was_ended_by_a_signal() {
    for step in ["kill -TERM $$", "sh -c 'kill -TERM $$'"] {
        let bench = Bench::new(&[step]);
        let ended = bench.run().await;
        assert_eq!(ended.cause, Some(Cause::UserSignal), "{}", ended.summary);
        assert_eq!(ended.evidence.signal, Some(15), "{}", ended.summary);
    }
}

#[tokio::test]
async fn what_was_printed_in_time_counts_however_late_it_is_read() {
    let mut bench = Bench::new(
        &["echo up; until [ -e go ]; do sleep 0.02; done; echo more; \
                                  : > printed; until [ -e end ]; do sleep 0.02; done"],
    );
    bench.work.silence = Some(SOON);
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    let held = Held::of(&bench);
    std::fs::write(bench.work.workspace.join("go"), "").expect("told");
    let printed = bench.work.workspace.join("printed");
    until("it has printed", || printed.exists()).await;
    tokio::time::sleep(SOON).await;
    drop(held);
    bench.seen.wait_for("out more").await;
    std::fs::write(bench.work.workspace.join("end"), "").expect("told");
    let ended = bench.ended(&mut attempt).await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", ended.summary);
}

// The agent does not know that a clock of the shim's ran out, and goes away meanwhile: what was too
// long here is too long elsewhere.
#[tokio::test]
async fn a_step_that_took_too_long_is_told_as_that_though_the_agent_goes_away() {
    let mut bench = Bench::new(&["trap 'echo asked' TERM; echo up; while :; do sleep 0.02; done"]);
    bench.work.steps[0].timeout = Some(SOON);
    bench.work.stop_grace = Duration::from_secs(60);
    let mut attempt = bench.start();
    bench.seen.wait_for("out asked").await;
    bench.order(StopReason::Shutdown, Duration::ZERO);
    let ended = bench.ended(&mut attempt).await;
    assert_eq!(ended.cause, Some(Cause::StepTimeout), "{}", ended.summary);
}

#[tokio::test]
async fn a_program_ended_by_a_signal_is_more_than_an_exit_code() {
    let bench = Bench::new(&["echo working; sh -c 'kill -9 $$'; exit $?"]);
    let ended = bench.run().await;
    let exit_code = Some(137);
    assert_eq!(ended.outcome, Outcome::Failed { exit_code });
    assert_eq!(ended.cause, Some(Cause::UserSignal));
    assert_eq!(ended.evidence.signal, Some(9));
    assert_eq!(ended.evidence.oom_kills, None);
    assert!(
        ended.summary.contains("signal 9 (KILL)"),
        "{}",
        ended.summary
    );
}

#[tokio::test]
async fn the_last_lines_of_a_failure_are_its_evidence() {
    let bench = Bench::new(&["echo compiling; echo 'error: no such file' >&2; exit 3"]);
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::UserExit));
    let lines = ["compiling", "error: no such file"];
    assert_eq!(ended.evidence.last_lines, lines);
}

/// Bytes that shims and shells do well with, and that are soon too few for [`EATS`].
const LITTLE: u64 = 96 << 20;

/// Holds all that it reads, because no line ever ends.
const EATS: &str = "head -c 500m /dev/zero | tail > kept";

/// A bench whose shim, and so its job, lives in this group.
fn bench_in(little: &LittleMemory, steps: &[&str]) -> Bench {
    let mut bench = Bench::new(steps);
    let join = format!(
        "echo 0 > {} && exec \"$0\" \"$@\"",
        little.members().display()
    );
    let shim = bench.program.program.display().to_string();
    bench.program = ShimProgram {
        program: "/bin/sh".into(),
        arguments: ["-c", &join, &shim].map(Into::into).to_vec(),
    };
    bench
}

fn little_memory() -> LittleMemory {
    LittleMemory::of(LITTLE).expect("a group with little memory")
}

#[tokio::test]
async fn a_step_that_ran_out_of_memory_is_told_as_that() {
    let little = little_memory();
    let bench = bench_in(&little, &["echo filling", EATS]);
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::OutOfMemory), "{}", ended.summary);
    assert_eq!(ended.evidence.signal, Some(9));
    assert_eq!(ended.evidence.oom_kills, Some(1), "{:?}", ended.evidence);
    let wanted = "step 2 ran out of memory: the kernel ended a process of it";
    assert_eq!(ended.summary, wanted);
}

#[tokio::test]
async fn a_step_whose_tool_hides_the_signal_ran_out_of_memory_all_the_same() {
    let little = little_memory();
    let makefile = format!("printf 'all:\\n\\t{EATS}\\n' > Makefile");
    let bench = bench_in(&little, &[&makefile, "make"]);
    let ended = bench.run().await;
    let exit_code = Some(2);
    assert_eq!(
        ended.outcome,
        Outcome::Failed { exit_code },
        "{}",
        bench.log()
    );
    assert_eq!(ended.cause, Some(Cause::OutOfMemory), "{}", ended.summary);
    assert_eq!(ended.evidence.oom_kills, Some(1), "{:?}", ended.evidence);
    until("its group is gone", || little.inside().is_empty()).await;
}

#[tokio::test]
async fn a_want_of_memory_that_a_step_got_over_is_not_the_next_ones() {
    let little = little_memory();
    let gets_over = format!("({EATS}) || echo gets over it");
    let bench = bench_in(&little, &[&gets_over, "exit 3"]);
    let ended = bench.run().await;
    assert!(bench.log().contains("gets over it"), "{}", bench.log());
    assert_eq!(ended.cause, Some(Cause::UserExit), "{}", ended.summary);
    assert_eq!(
        ended.summary,
        "step 2 ended with exit code 3; it printed nothing"
    );
    assert_eq!(ended.evidence.oom_kills, None);
}

/// Two jobs of one group at once: one that runs out of memory, and beside it one that is then
/// ended by a signal of its own.
async fn killed_beside_a_hungry_one(groups: bool) -> (Ended, Ended) {
    let little = little_memory();
    let waits = "echo up; until [ -e go ]; do sleep 0.05; done; kill -9 $$";
    let mut beside = bench_in(&little, &[waits]);
    let mut hungry = bench_in(&little, &[EATS]);
    for bench in [&mut beside, &mut hungry] {
        bench.work.control_group = groups;
    }
    let mut waiting = beside.start();
    beside.seen.wait_for("out up").await;
    let hungry = hungry.run().await;
    std::fs::write(beside.work.workspace.join("go"), "").expect("told to go on");
    let ended = beside.ended(&mut waiting).await;
    assert_eq!(ended.evidence.signal, Some(9));
    assert_eq!(hungry.cause, Some(Cause::OutOfMemory), "{}", hungry.summary);
    (ended, hungry)
}

#[tokio::test]
async fn a_job_killed_beside_one_that_ran_out_of_memory_is_told_for_what_it_was() {
    let (beside, hungry) = killed_beside_a_hungry_one(true).await;
    assert_eq!(beside.cause, Some(Cause::UserSignal), "{}", beside.summary);
    assert_eq!(beside.summary, "step 1 was ended by signal 9 (KILL)");
    assert_eq!(beside.evidence.oom_kills, None);
    assert!(
        hungry.summary.contains("a process of it"),
        "{}",
        hungry.summary
    );
}

// Where no group can be had, nobody knows whose process it was, and nobody says so.
#[tokio::test]
async fn without_a_group_of_its_own_nothing_is_claimed_of_a_job() {
    let (beside, hungry) = killed_beside_a_hungry_one(false).await;
    for ended in [beside, hungry] {
        assert_eq!(ended.cause, Some(Cause::OutOfMemory), "{}", ended.summary);
        let words = ["most likely", "a process on this machine"];
        assert!(
            words.iter().all(|it| ended.summary.contains(it)),
            "{}",
            ended.summary
        );
        let claim = "a process of it";
        assert!(!ended.summary.contains(claim), "{}", ended.summary);
    }
    let little = little_memory();
    let hides = format!("({EATS}) || exit 2");
    let mut bench = bench_in(&little, &[&hides]);
    bench.work.control_group = false;
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::UserExit), "{}", ended.summary);
    let wanted = "step 1 ended with exit code 2; meanwhile the kernel ended a process on this \
                  machine for want of memory";
    assert_eq!(ended.summary, wanted);
}

fn small(at: &Path) -> Mounted {
    Mounted::of(at, "2m").expect("a small disk")
}

#[tokio::test]
async fn a_step_that_filled_the_disk_is_told_as_that() {
    // F43
    let bench = Bench::new(&["head -c 10m /dev/zero > big"]);
    let disk = small(&bench.work.workspace);
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::DiskFull), "{}", ended.summary);
    assert!(
        ended.evidence.free_bytes < Some(1 << 20),
        "{:?}",
        ended.evidence
    );
    // A program that removes what it had written is believed, where there is little room.
    let bench = Bench::new(&["head -c 10m /dev/zero > big || { rm big; exit 1; }"]);
    let other = small(&bench.work.workspace);
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::DiskFull), "{}", ended.summary);
    drop((disk, other));
}

/// A step that is carried out whatever happened before.
fn always(bench: &mut Bench, index: usize) {
    bench.work.steps[index].when = StepWhen::Always;
}

#[tokio::test]
async fn evidence_is_that_of_the_step_that_failed_and_not_of_those_behind_it() {
    let mut bench = Bench::new(&[
        "echo the real error; exit 3",
        "for i in $(seq 30); do echo cleanup $i; done; exit 4",
    ]);
    always(&mut bench, 1);
    let ended = bench.run().await;
    assert_eq!((ended.cause, ended.step), (Some(Cause::UserExit), Some(0)));
    assert_eq!(ended.evidence.last_lines, ["the real error"]);
    assert!(bench.log().contains("cleanup 30"), "{}", bench.log());
}

#[tokio::test]
async fn a_disk_that_was_full_is_told_though_a_step_behind_it_made_room() {
    // F43
    let fills = "head -c 10m /dev/zero > big 2>/dev/null";
    let mut bench = Bench::new(&[fills, "rm -f big; echo cleaned up"]);
    always(&mut bench, 1);
    let disk = small(&bench.work.workspace);
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::DiskFull), "{}", bench.log());
    assert!(bench.log().contains("cleaned up"), "{}", bench.log());
    drop(disk);
}

#[tokio::test]
async fn a_workspace_that_is_gone_is_not_the_jobs_mistake() {
    let bench = Bench::new(&["true"]);
    std::fs::remove_dir(&bench.work.workspace).expect("removed");
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::StartUp), "{}", ended.summary);
    let mut bench = Bench::new(&["true"]);
    bench.work.workdir = "nowhere".into();
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::SpecError), "{}", ended.summary);
}
