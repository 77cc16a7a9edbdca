//! What an end means: exit codes, signals and orders as outcomes and causes.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use std::{fmt, io};

use delta_core::Cause;
use delta_wire::{Evidence, duration};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::stop::StopReason;

/// Shells say so when a program of theirs was ended by a signal: this, and its number.
const SIGNALED: i32 = 128;

const KILL: i32 = 9;
const TERM: i32 = 15;

/// A disk with less than this is full: no program gets far with it.
const FULL_BELOW: u64 = 1024 * 1024;

/// With less than this, what a program said of the disk is believed: many remove what they had
/// half written before they say it.
pub(crate) const NEARLY_FULL_BELOW: u64 = 256 * 1024 * 1024;

/// What an attempt ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    /// A step ended with this exit code, or the work could not be begun (no code).
    Failed {
        exit_code: Option<i32>,
    },
    /// The shell of a step was ended by this signal, sent by somebody else.
    Signaled {
        signal: i32,
    },
    TimedOut,
    Canceled,
}

/// Where the work was when it was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In this step, counted from 1.
    Step(usize),
    /// Before the first, at this where it is known.
    Before(Option<&'static str>),
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Step(number) => write!(f, "during step {number}"),
            Stage::Before(None) => f.write_str("before the first step"),
            Stage::Before(Some(what)) => write!(f, "before the first step, during {what}"),
        }
    }
}

/// The end of a step whose shell ended by itself. Processes that the kernel ended meanwhile for
/// want of memory are the machine's: that they are the step's own is not claimed, and believed only
/// of one that was killed. What is known to be its own is [`out_of_memory`].
pub(crate) fn exited(
    status: ExitStatus,
    number: usize,
    evidence: &mut Evidence,
) -> (Outcome, Option<Cause>, String) {
    let code = status.code();
    let below = code
        .and_then(|code| code.checked_sub(SIGNALED))
        .filter(|signal| name(*signal).is_some());
    evidence.signal = status.signal().or(below);
    let outcome = match status.signal() {
        Some(signal) => Outcome::Signaled { signal },
        None => Outcome::Failed { exit_code: code },
    };
    let meanwhile = evidence.oom_kills.filter(|kills| *kills > 0);
    let (cause, words) = match (status.signal(), below) {
        (Some(signal), _) => (
            Cause::UserSignal,
            format!("step {number} was ended by {}", signal_words(signal)),
        ),
        (None, Some(signal)) => {
            let signal = signal_words(signal);
            let code = code.unwrap_or_default();
            let words =
                format!("step {number} ended with exit code {code}: a program of it got {signal}");
            (Cause::UserSignal, words)
        }
        (None, None) => {
            let code = code.unwrap_or(-1);
            let words = format!("step {number} ended with exit code {code}");
            (Cause::UserExit, words)
        }
    };
    if let Some(kills) = meanwhile.filter(|_| evidence.signal == Some(KILL)) {
        let whom = counted(kills);
        let summary = format!(
            "{words}, most likely for want of memory: the kernel ended {whom} on this machine \
             for that meanwhile"
        );
        return (outcome, Some(Cause::OutOfMemory), summary);
    }
    if let Some(free) = evidence
        .free_bytes
        .filter(|free| disk_full(*free, evidence))
    {
        let summary = format!("step {number} failed on a full disk: {free} bytes were free");
        return (outcome, Some(Cause::DiskFull), summary);
    }
    let summary = match meanwhile.map(counted) {
        None => words,
        Some(whom) => {
            format!("{words}; meanwhile the kernel ended {whom} on this machine for want of memory")
        }
    };
    (outcome, Some(cause), summary)
}

/// It was told to end, or a program of it was: nobody else's exit looks like that.
pub(crate) fn terminated(status: ExitStatus) -> bool {
    status.signal() == Some(TERM) || status.code() == Some(SIGNALED + TERM)
}

fn disk_full(free: u64, evidence: &Evidence) -> bool {
    let said = |line: &String| line.contains("No space left on device");
    free < FULL_BELOW || (free < NEARLY_FULL_BELOW && evidence.last_lines.iter().any(said))
}

/// So many processes, in words.
pub(crate) fn counted(kills: u64) -> String {
    match kills {
        1 => "a process".to_owned(),
        many => format!("{many} processes"),
    }
}

fn signal_words(signal: i32) -> String {
    match name(signal) {
        Some(name) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

/// Those that end a program, by the names people know.
fn name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL",
        5 => "TRAP",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        KILL => "KILL",
        10 => "USR1",
        11 => "SEGV",
        12 => "USR2",
        13 => "PIPE",
        14 => "ALRM",
        TERM => "TERM",
        24 => "XCPU",
        25 => "XFSZ",
        31 => "SYS",
        _ => return None,
    })
}

/// The end of a step whose processes were too much for its memory: how many were ended for it,
/// whether they are known to be its own, and what it could have had.
pub(crate) fn out_of_memory(
    status: ExitStatus,
    number: usize,
    kills: u64,
    own: bool,
    limit: Option<u64>,
    evidence: &mut Evidence,
) -> (Outcome, Option<Cause>, String) {
    let (outcome, _, _) = exited(status, number, evidence);
    evidence.oom_kills = Some(kills);
    let whom = counted(kills);
    let words = if own {
        format!("ran out of memory: the kernel ended {whom} of it")
    } else {
        format!(
            "ended without an answer, most likely for want of memory: the kernel ended {whom} on \
             this machine for that meanwhile"
        )
    };
    let limit = limit.map_or(String::new(), |limit| format!("; it may use {limit} MiB"));
    let summary = format!("step {number} {words}{limit}");
    (outcome, Some(Cause::OutOfMemory), summary)
}

/// What a step may take, and how long it may be silent, where that is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    pub step: Option<Duration>,
    pub silence: Option<Duration>,
}

/// The end of work that was told to stop.
pub fn stopped_at(
    reason: StopReason,
    stage: Stage,
    limits: Limits,
) -> (Outcome, Option<Cause>, String) {
    let may = |limit: Option<Duration>| match limit {
        Some(limit) => format!("the {} that it may", duration::format(limit)),
        None => "it may".to_owned(),
    };
    let failed = Outcome::Failed { exit_code: None };
    let step = match stage {
        Stage::Step(number) => format!("step {number}"),
        Stage::Before(_) => "it".to_owned(),
    };
    match reason {
        StopReason::Canceled => (Outcome::Canceled, None, format!("canceled {stage}")),
        StopReason::TimedOut => {
            let summary = format!("the job's time was up {stage}");
            (Outcome::TimedOut, Some(Cause::JobTimeout), summary)
        }
        StopReason::StepTimedOut => {
            let summary = format!("{step} took longer than {}", may(limits.step));
            (Outcome::TimedOut, Some(Cause::StepTimeout), summary)
        }
        StopReason::Silent => {
            let may = may(limits.silence);
            let summary = format!("{step} printed nothing for longer than {may}");
            (Outcome::TimedOut, Some(Cause::NoOutput), summary)
        }
        // Told of only when the lease lives after all: the shim's clock ran out just before a
        // renewal came. That is the agent's failure, and not the work's own (D10).
        StopReason::LeaseLost => (
            failed,
            Some(Cause::AgentError),
            format!("the lease was lost {stage}"),
        ),
        StopReason::Shutdown => {
            let summary = format!("the agent was shut down {stage}");
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

/// Whose fault it is that something in the workspace cannot be reached or made: what is not there,
/// in the way or not allowed is the job's; a disk that is full or broken is not.
pub fn path_cause(problem: &io::Error) -> Cause {
    match problem.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Cause::DiskFull,
        io::ErrorKind::NotFound
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::AlreadyExists => Cause::SpecError,
        _ if problem.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => Cause::SpecError,
        _ => Cause::StartUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(raw: i32, mut evidence: Evidence) -> (Cause, String) {
        let (outcome, cause, summary) = exited(ExitStatus::from_raw(raw), 2, &mut evidence);
        assert_ne!(outcome, Outcome::Succeeded);
        (cause.expect("a cause"), summary)
    }

    fn with(oom_kills: u64, free_bytes: u64, line: &str) -> Evidence {
        Evidence {
            signal: None,
            oom_kills: Some(oom_kills),
            free_bytes: Some(free_bytes),
            last_lines: vec![line.to_owned()],
        }
    }

    #[test]
    fn an_exit_is_told_with_what_was_seen() {
        // D10: never a bare "exit 137".
        let plenty = 1 << 40;
        let full = "write: No space left on device";
        let (exit_1, exit_137, kill) = (1 << 8, 137 << 8, 9);
        for (raw, evidence, cause, words) in [
            (exit_1, with(0, plenty, ""), Cause::UserExit, "exit code 1"),
            (
                exit_137,
                with(0, plenty, ""),
                Cause::UserSignal,
                "exit code 137: a program of it got signal 9 (KILL)",
            ),
            (
                kill,
                with(0, plenty, ""),
                Cause::UserSignal,
                "by signal 9 (KILL)",
            ),
            // Another process of the machine's, perhaps: it is said, and not that it is its own.
            (
                kill,
                with(1, plenty, ""),
                Cause::OutOfMemory,
                "by signal 9 (KILL), most likely for want of memory: the kernel ended a process \
                 on this machine",
            ),
            (
                exit_137,
                with(2, plenty, ""),
                Cause::OutOfMemory,
                "ended 2 processes on this machine",
            ),
            (
                exit_1,
                with(1, plenty, ""),
                Cause::UserExit,
                "exit code 1; meanwhile the kernel ended a process on this machine for want of",
            ),
            (exit_1, with(0, 0, ""), Cause::DiskFull, "0 bytes were free"),
            (exit_1, with(0, 9 << 20, full), Cause::DiskFull, "full disk"),
            (
                exit_1,
                with(0, plenty, full),
                Cause::UserExit,
                "exit code 1",
            ),
        ] {
            let (judged, summary) = judged(raw, evidence.clone());
            assert_eq!(judged, cause, "{raw} {evidence:?}");
            assert!(summary.contains(words), "{summary}");
        }
    }

    #[test]
    fn what_is_known_to_be_the_steps_own_is_claimed_whatever_it_exited_with() {
        let mut evidence = with(0, 1 << 40, "");
        let made = ExitStatus::from_raw(2 << 8);
        let (outcome, cause, summary) = out_of_memory(made, 3, 1, true, Some(64), &mut evidence);
        assert_eq!(outcome, Outcome::Failed { exit_code: Some(2) });
        assert_eq!(cause, Some(Cause::OutOfMemory));
        let wanted =
            "step 3 ran out of memory: the kernel ended a process of it; it may use 64 MiB";
        assert_eq!(summary, wanted);
        assert_eq!(evidence.oom_kills, Some(1));
    }

    #[test]
    fn what_may_be_anybodys_is_not_claimed_of_the_step() {
        let mut evidence = with(0, 1 << 40, "");
        let made = ExitStatus::from_raw(KILL);
        let (_, cause, summary) = out_of_memory(made, 3, 2, false, Some(64), &mut evidence);
        assert_eq!(cause, Some(Cause::OutOfMemory));
        let wanted = "step 3 ended without an answer, most likely for want of memory: the kernel \
                      ended 2 processes on this machine for that meanwhile; it may use 64 MiB";
        assert_eq!(summary, wanted);
        assert_eq!(evidence.oom_kills, Some(2));
    }

    #[test]
    fn a_stop_says_where_the_work_was() {
        let limits = Limits {
            step: Some(Duration::from_secs(90)),
            silence: None,
        };
        let said = |reason, stage| stopped_at(reason, stage, limits).2;
        let checkout = Stage::Before(Some("the checkout"));
        for (reason, stage, words) in [
            (
                StopReason::Canceled,
                Stage::Step(2),
                "canceled during step 2",
            ),
            (
                StopReason::Canceled,
                Stage::Before(None),
                "canceled before the first step",
            ),
            (
                StopReason::TimedOut,
                checkout,
                "the job's time was up before the first step, during the checkout",
            ),
            (
                StopReason::Shutdown,
                checkout,
                "the agent was shut down before the first step, during the checkout",
            ),
        ] {
            assert_eq!(said(reason, stage), words);
        }
    }

    // D10
    #[test]
    fn a_broken_disk_is_not_the_jobs_mistake() {
        for (errno, cause) in [
            (Errno::NOENT, Cause::SpecError),
            (Errno::NOTDIR, Cause::SpecError),
            (Errno::NAMETOOLONG, Cause::SpecError),
            (Errno::LOOP, Cause::SpecError),
            (Errno::NOSPC, Cause::DiskFull),
            (Errno::DQUOT, Cause::DiskFull),
            (Errno::IO, Cause::StartUp),
            (Errno::MFILE, Cause::StartUp),
            (Errno::ROFS, Cause::StartUp),
        ] {
            assert_eq!(path_cause(&errno.into()), cause, "{errno}");
        }
    }
}
