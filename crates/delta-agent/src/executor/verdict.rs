//! What an end means: exit codes, signals and orders as outcomes and causes.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use delta_core::Cause;

use super::{Outcome, StopReason};

/// The end of a step whose shell ended by itself.
pub(crate) fn exited(status: ExitStatus, number: usize) -> (Outcome, Option<Cause>, String) {
    if let Some(signal) = status.signal() {
        let summary = format!("step {number} was ended by signal {signal}");
        return (
            Outcome::Signaled { signal },
            Some(Cause::UserSignal),
            summary,
        );
    }
    let code = status.code();
    let summary = format!("step {number} ended with exit code {}", code.unwrap_or(-1));
    (
        Outcome::Failed { exit_code: code },
        Some(Cause::UserExit),
        summary,
    )
}

/// The end of a step whose processes were too much for its memory: how many were ended for it, and
/// what it could have had.
pub(crate) fn out_of_memory(
    status: ExitStatus,
    number: usize,
    kills: u64,
    limit: Option<u64>,
) -> (Outcome, Option<Cause>, String) {
    let (outcome, _, _) = exited(status, number);
    let whom = match kills {
        1 => "a process of it".to_owned(),
        kills => format!("{kills} processes of it"),
    };
    let limit = limit.map_or(String::new(), |limit| format!("; it may use {limit} MiB"));
    let summary = format!("step {number} ran out of memory: the kernel ended {whom}{limit}");
    (outcome, Some(Cause::OutOfMemory), summary)
}

/// The end of a step that was told to stop.
pub(crate) fn stopped_at(reason: StopReason, number: usize) -> (Outcome, Option<Cause>, String) {
    let failed = Outcome::Failed { exit_code: None };
    match reason {
        StopReason::Canceled => (
            Outcome::Canceled,
            None,
            format!("canceled during step {number}"),
        ),
        StopReason::TimedOut => {
            let summary = format!("the job's time was up during step {number}");
            (Outcome::TimedOut, Some(Cause::JobTimeout), summary)
        }
        StopReason::StepTimedOut => {
            let summary = format!("step {number} took longer than it may");
            (Outcome::TimedOut, Some(Cause::StepTimeout), summary)
        }
        // Told of only when the lease lives after all: the shim's clock ran out just before a
        // renewal came. That is the agent's failure, and not the work's own (D10).
        StopReason::LeaseLost => (
            failed,
            Some(Cause::AgentError),
            format!("the lease was lost during step {number}"),
        ),
        StopReason::Shutdown => {
            let summary = format!("the agent was shut down during step {number}");
            (failed, Some(Cause::AgentShutdown), summary)
        }
    }
}

/// Whose fault it is that a shell could not be started.
pub(crate) fn spawn_cause(problem: &io::Error) -> Cause {
    match problem.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Cause::DiskFull,
        io::ErrorKind::NotFound
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::ArgumentListTooLong => Cause::SpecError,
        // Too many processes, no memory: another try elsewhere may do.
        _ => Cause::StartUp,
    }
}
