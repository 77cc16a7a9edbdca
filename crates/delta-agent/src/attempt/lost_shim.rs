//! A shim that is gone without a record: killed from outside, or out of memory. What it left is
//! ended as well as can be, and the attempt is reported for what it is: not known to be over.

use std::fs;
use std::path::Path;

use delta_core::Cause;
use delta_shim::clock::wall_time;
use delta_shim::container::{attempt_label, clear_attempt};
use delta_shim::order::{COMPLAINTS_FILE, Deadlines, Order, Record, SPOOL_FILE, STEP_FILE};
use delta_shim::processes::strays::Traits;
use delta_shim::spool::LogSize;
use delta_shim::verdict::{Outcome, Stage};
use delta_wire::Evidence;

use super::state_folder;

/// What a job's processes carry in their environment unless they remove it.
const NAMES: [&str; 2] = ["DELTA_JOB_ID", "DELTA_LEASE_EPOCH"];

/// Ends what can be found of the work, and says how it ended. `step` is the one that was heard of
/// last.
pub(super) async fn bury(folder: &Path, order: &Order, step: Option<usize>) -> Record {
    let complaints = complaints(folder);
    tracing::error!(folder = %folder.display(), complaints, "a shim was lost");
    let named: Vec<String> = order
        .env
        .iter()
        .filter(|(name, _)| NAMES.iter().any(|it| name == it))
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
        .collect();
    let whole = named.len() == NAMES.len();
    let traits = Traits {
        folder: Some(folder.to_owned()),
        mark: order.mark,
        entries: if whole { named } else { Vec::new() },
    };
    let (group, memory) = state_folder::groups(folder);
    let ending = tokio::task::spawn_blocking(move || {
        // One that only did not answer in time must not go on with the next step.
        traits.end_all();
        let cleared = group.is_some_and(|group| group.clear());
        if let Some(memory) = memory {
            memory.clear();
        }
        cleared
    });
    let confirmed = ending.await.unwrap_or(false);
    // Only now does nobody write into the log any more.
    let mut record = record(folder, order.deadlines, step);
    record.confirmed = confirmed;
    if let Some(container) = &order.container {
        let number = folder.file_name().unwrap_or_default().to_string_lossy();
        let attempt = attempt_label(&container.owner, &number);
        // The processes are in there and nowhere else.
        record.confirmed = clear_attempt(&container.runtime, &attempt).await;
    }
    record
}

/// Before the first step nothing of the job was begun; from then on the agent failed beside it.
pub(super) fn record(folder: &Path, deadlines: Deadlines, step: Option<usize>) -> Record {
    let now = wall_time();
    let step = at_work(folder).or(step);
    let (cause, stage) = match step {
        Some(index) => (Cause::AgentError, Stage::Step(index + 1)),
        None => (Cause::StartUp, Stage::Before(None)),
    };
    let said = complaints(folder);
    let said = said
        .lines()
        .next()
        .map_or_else(String::new, |line| format!(": {line}"));
    let bytes = fs::metadata(folder.join(SPOOL_FILE)).map_or(0, |it| it.len());
    Record {
        outcome: Outcome::Failed { exit_code: None },
        cause: Some(cause.name().to_owned()),
        summary: format!("the agent's process that watched over the job was lost {stage}{said}"),
        step,
        stopped: None,
        confirmed: false,
        log: LogSize {
            bytes,
            dropped: 0,
            lost: 0,
            sha256: None,
        },
        started_at: now.clone(),
        finished_at: now,
        steps: Vec::new(),
        deadlines,
        evidence: Evidence::default(),
    }
}

/// What it said of itself, if anything: whoever is killed says nothing.
fn complaints(folder: &Path) -> String {
    fs::read_to_string(folder.join(COMPLAINTS_FILE)).unwrap_or_default()
}

/// The step that the shim has written down, counted from 0.
fn at_work(folder: &Path) -> Option<usize> {
    let number = fs::read_to_string(folder.join(STEP_FILE)).ok()?;
    number.trim().parse::<usize>().ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_lost_at_work_is_no_failure_to_start() {
        let place = tempfile::tempdir().expect("a folder");
        let deadlines = Deadlines {
            until: 0,
            must_finish_by: 0,
        };
        let told = |step| {
            let record = record(place.path(), deadlines, step);
            (record.cause.expect("a cause"), record.summary, record.step)
        };
        let sentence = "the agent's process that watched over the job was lost";
        let unbegun = format!("{sentence} before the first step");
        assert_eq!(told(None), ("start_up".into(), unbegun, None));
        let first = format!("{sentence} during step 1");
        assert_eq!(told(Some(0)), ("agent_error".into(), first, Some(0)));
        // What it wrote down is later than what was heard of it.
        fs::write(place.path().join(STEP_FILE), "3").expect("a file");
        fs::write(place.path().join(COMPLAINTS_FILE), "it fell\nover\n").expect("a file");
        let third = format!("{sentence} during step 3: it fell");
        assert_eq!(told(Some(0)), ("agent_error".into(), third, Some(2)));
    }
}
