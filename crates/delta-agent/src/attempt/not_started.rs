//! Ends of attempts whose work was not begun: why, in the words of the causes.

use delta_core::Cause;
use delta_shim::spool::LogSize;
use delta_shim::stop::StopReason;
use delta_shim::verdict::{Limits, Outcome, Stage, stopped_at};
use delta_wire::Evidence;

use crate::work::Ended;
use crate::workspace::WorkspaceError;

pub(crate) fn no_workspace(problem: &WorkspaceError) -> Box<Ended> {
    let cause = if problem.is_disk_full() {
        Cause::DiskFull
    } else {
        Cause::StartUp
    };
    not_begun(cause, format!("no workspace: {}", in_full(problem)))
}

/// Whose fault a failure of the disk is.
pub(crate) fn cause_of(problem: &std::io::Error) -> Cause {
    match problem.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Cause::DiskFull,
        _ => Cause::StartUp,
    }
}

pub(crate) fn not_begun(cause: Cause, summary: String) -> Box<Ended> {
    tracing::warn!(cause = cause.name(), summary, "the work was not begun");
    Box::new(Ended {
        outcome: Outcome::Failed { exit_code: None },
        cause: Some(cause),
        summary,
        step: None,
        stopped: None,
        confirmed: true,
        log: LogSize::default(),
        evidence: Evidence::default(),
    })
}

/// Told to stop before the first step, at this where it is known.
pub(crate) fn stopped_before(reason: StopReason, at: Option<&'static str>) -> Box<Ended> {
    let (outcome, cause, summary) = stopped_at(reason, Stage::Before(at), Limits::default());
    Box::new(Ended {
        outcome,
        cause,
        summary,
        step: None,
        stopped: Some(reason),
        confirmed: true,
        log: LogSize::default(),
        evidence: Evidence::default(),
    })
}

/// An error with all its sources, for a sentence.
fn in_full(problem: &dyn std::error::Error) -> String {
    let mut words = problem.to_string();
    let mut source = problem.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}
