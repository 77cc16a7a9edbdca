//! Ends that are not just an exit code: each produced for real, and told for what it was (D10).

use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_agent::executor::{Outcome, StopReason};
use delta_core::Cause;
use delta_testkit::disk::Mounted;
use delta_wire::step::StepWhen;

use crate::bench::Bench;

#[tokio::test]
async fn a_step_that_prints_nothing_for_too_long_is_ended_for_that() {
    let mut bench = Bench::new(&["echo begun; sleep 600"]);
    bench.work.silence = Some(Duration::from_millis(300));
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::TimedOut);
    assert_eq!(ended.cause, Some(Cause::NoOutput));
    assert_eq!(ended.stopped, Some(StopReason::Silent));
    assert_eq!(ended.evidence.last_lines, ["begun"]);
    assert!(ended.confirmed);
}

#[tokio::test]
async fn a_step_that_prints_now_and_then_is_left_alone() {
    let mut bench = Bench::new(&["for i in 1 2 3 4 5; do sleep 0.3; echo $i; done"]);
    bench.work.silence = Some(Duration::from_secs(1));
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", ended.summary);
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

/// A group of this process with so much memory, left and removed at the end.
struct LittleMemory {
    folder: PathBuf,
    home: PathBuf,
}

impl LittleMemory {
    fn enter(bytes: u64) -> LittleMemory {
        let membership = std::fs::read_to_string("/proc/self/cgroup").expect("groups");
        let path = |which: &str| {
            let line = membership.lines().find(|line| line.contains(which));
            line.and_then(|line| line.rsplit_once(':'))
                .map(|(_, path)| path)
        };
        let (home, limit) = match path(":memory:") {
            Some(path) => (
                format!("/sys/fs/cgroup/memory{path}"),
                "memory.limit_in_bytes",
            ),
            None => {
                let path = path("0::").expect("a group");
                (format!("/sys/fs/cgroup{path}"), "memory.max")
            }
        };
        let home = PathBuf::from(home);
        let folder = home.join(format!("delta-test-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a group; this test needs root and a memory group");
        std::fs::write(folder.join(limit), bytes.to_string()).expect("a limit");
        let swap = folder.join("memory.swap.max");
        if swap.exists() {
            std::fs::write(swap, "0").expect("no swap");
        }
        std::fs::write(folder.join("cgroup.procs"), "0").expect("joined");
        LittleMemory { folder, home }
    }
}

impl Drop for LittleMemory {
    fn drop(&mut self) {
        let _ = std::fs::write(self.home.join("cgroup.procs"), "0");
        let _ = std::fs::remove_dir(&self.folder);
    }
}

#[tokio::test]
async fn a_step_that_ran_out_of_memory_is_told_as_that() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("a group with little memory takes root; containers show the same");
        return;
    }
    let bench = Bench::new(&["echo filling; head -c 500m /dev/zero | tail > kept"]);
    let little = LittleMemory::enter(96 << 20);
    let ended = bench.run().await;
    drop(little);
    assert_eq!(ended.cause, Some(Cause::OutOfMemory), "{}", ended.summary);
    assert_eq!(ended.evidence.signal, Some(9));
    assert!(ended.evidence.oom_kills >= Some(1), "{:?}", ended.evidence);
    assert!(
        ended.summary.contains("ran out of memory"),
        "{}",
        ended.summary
    );
}

fn small(at: &Path) -> Mounted {
    Mounted::of(at, "2m").expect("a small disk")
}

#[tokio::test]
async fn a_step_that_filled_the_disk_is_told_as_that() {
    // F43
    if !rustix::process::geteuid().is_root() {
        eprintln!("a small disk takes root");
        return;
    }
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
    if !rustix::process::geteuid().is_root() {
        eprintln!("a small disk takes root");
        return;
    }
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
