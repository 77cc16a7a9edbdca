//! A shim that is gone without a record: killed from outside, or out of memory. What it left is
//! ended as well as can be, and the attempt is reported for what it is: not known to be over.

use std::fs;
use std::path::Path;

use delta_core::Cause;
use delta_wire::Evidence;

use super::state;
use crate::clock::wall_time;
use crate::container::{attempt_label, clear_attempt};
use crate::executor::{LogSize, Outcome};
use crate::shim::order::{COMPLAINTS_FILE, Deadlines, Order, Record, SPOOL_FILE};
use crate::shim::strays::Traits;

/// What a job's processes carry in their environment unless they remove it.
const NAMES: [&str; 2] = ["DELTA_JOB_ID", "DELTA_LEASE_EPOCH"];

/// Ends what can be found of the work, and says how it ended.
pub(super) async fn bury(folder: &Path, order: &Order) -> Record {
    let complaints = fs::read_to_string(folder.join(COMPLAINTS_FILE)).unwrap_or_default();
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
    let (group, memory) = state::groups(folder);
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
    let mut record = record(folder, order.deadlines);
    record.confirmed = confirmed;
    if let Some(container) = &order.container {
        let number = folder.file_name().unwrap_or_default().to_string_lossy();
        let attempt = attempt_label(&container.owner, &number);
        // The processes are in there and nowhere else.
        record.confirmed = clear_attempt(&container.runtime, &attempt).await;
    }
    record
}

pub(super) fn record(folder: &Path, deadlines: Deadlines) -> Record {
    let now = wall_time();
    let bytes = fs::metadata(folder.join(SPOOL_FILE)).map_or(0, |it| it.len());
    Record {
        outcome: Outcome::Failed { exit_code: None },
        cause: Some(Cause::StartUp.name().to_owned()),
        summary: "the process that watched over the job was lost".to_owned(),
        step: None,
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
