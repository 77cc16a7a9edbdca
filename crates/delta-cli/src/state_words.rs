//! States as people read them: a tone for each, and one line about how something stands.

use std::time::Duration;

use delta_wire::api::{AttemptView, CancelView, FailedNeed, GroupView, JobSummary, LeaseView};
use delta_wire::states::{AttemptState, JobState, LeaseState, RunOutcome, RunState};
use delta_wire::{Evidence, Millis, StepResult};

use crate::table::Cell;
use crate::terminal::Tone;
use crate::{human_time, sanitize};

/// A run's outcome once it has one, else its state.
pub fn run(state: RunState, outcome: Option<RunOutcome>) -> Cell {
    match outcome {
        Some(outcome) => Cell::toned(outcome.as_str(), outcome_tone(outcome)),
        None => {
            let tone = match state {
                RunState::Running => Tone::Busy,
                RunState::CancelRequested | RunState::PlanFailed => Tone::Warn,
                _ => Tone::Quiet,
            };
            Cell::toned(state.as_str(), tone)
        }
    }
}

pub fn outcome_tone(outcome: RunOutcome) -> Tone {
    match outcome {
        RunOutcome::Success => Tone::Good,
        RunOutcome::Failed | RunOutcome::Timeout => Tone::Bad,
        RunOutcome::Canceled => Tone::Warn,
    }
}

pub fn job(state: JobState, required: bool) -> Cell {
    Cell::toned(state.as_str(), job_tone(state, required))
}

pub fn job_tone(state: JobState, required: bool) -> Tone {
    match state {
        JobState::Succeeded => Tone::Good,
        JobState::Failed if required => Tone::Bad,
        JobState::Failed | JobState::Canceled | JobState::CancelRequested => Tone::Warn,
        JobState::Starting | JobState::Running | JobState::Uploading => Tone::Busy,
        JobState::Created | JobState::Queued | JobState::Leased => Tone::Quiet,
    }
}

pub fn attempt(state: AttemptState) -> Cell {
    let tone = match state {
        AttemptState::Succeeded => Tone::Good,
        AttemptState::Failed | AttemptState::TimedOut => Tone::Bad,
        AttemptState::Canceled | AttemptState::CancelRequested | AttemptState::Stale => Tone::Warn,
        AttemptState::Starting | AttemptState::Running | AttemptState::Uploading => Tone::Busy,
        _ => Tone::Quiet,
    };
    Cell::toned(state.as_str(), tone)
}

/// How often somebody took the job up. The one that waits, or never came to it, does not count.
pub fn begun(job: &JobSummary) -> u32 {
    if job.started_at.is_none() && job.state != JobState::Failed {
        job.attempts.saturating_sub(1)
    } else {
        job.attempts
    }
}

/// Nobody has taken the attempt up, so that there is nothing to tell of it.
pub fn is_unbegun(attempt: &AttemptView) -> bool {
    attempt.started_at.is_none() && attempt.leases.is_empty()
}

/// Requirements as people write them, without the kinds of work that servers and agents speak of.
pub fn requirements(of: &[String]) -> Vec<String> {
    let asked = of.iter().filter(|it| !it.starts_with("work:"));
    asked.map(|it| sanitize::text(it)).collect()
}

/// Nothing more will happen to the job.
pub fn is_over(state: JobState) -> bool {
    matches!(
        state,
        JobState::Succeeded | JobState::Failed | JobState::Canceled
    )
}

/// Why a job ended as it did or what it waits for, in few words, and whether that counts.
pub fn note(job: &JobSummary) -> String {
    let waits = job.why.as_ref().map(|why| sanitize::text(&why.message));
    let ended = job.cause.as_deref().map(|cause| short_cause(cause, job));
    let standing = Some(standing(job)).filter(|it| !it.is_empty());
    let parts: Vec<String> = [ended, waits, standing].into_iter().flatten().collect();
    parts.join(", ")
}

/// `step 2: exit code 101`, `step 2: out of memory`, `dependency failed: unit`.
fn short_cause(cause: &str, job: &JobSummary) -> String {
    if let [first, others @ ..] = job.failed_needs.as_slice() {
        let more = match others.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what = cause.replace('_', " ");
        return sanitize::text(&format!("{what}: {}{more}", first.name));
    }
    let failure = job.failure.as_ref();
    let code = failure.and_then(|it| it.exit_code);
    let signal = failure.and_then(|it| it.signal);
    let what = match (cause, signal, code) {
        ("user_signal", Some(signal), _) => format!("signal {signal}"),
        ("user_exit", _, Some(code)) => format!("exit code {code}"),
        _ => sanitize::text(&cause.replace('_', " ")),
    };
    let step = failure.and_then(|it| it.step.as_ref());
    match step.and_then(|step| step.number) {
        Some(number) => format!("step {number}: {what}"),
        None => what,
    }
}

/// A need that was not met, in a sentence: `unit is FAILED: step 2 `make` ended with …`.
pub fn failed_need(need: &FailedNeed) -> String {
    let (name, state) = (&need.name, need.state.as_str());
    sanitize::text(&format!(
        "It needs {name}, which is {state}: {}",
        need.message
    ))
}

/// A cause in a sentence, where this build knows it, and the word for it that settings use.
pub fn cause(cause: &str) -> String {
    match delta_core::Cause::from_name(cause) {
        Some(known) => format!("{} ({cause})", known.sentence().trim_end_matches('.')),
        None => sanitize::text(cause),
    }
}

/// What is to be known of a job beside how it ended.
pub fn standing(job: &JobSummary) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let Some(kept) = &job.kept_from {
        parts.push(format!("kept from {}", crate::sanitize::text(kept)));
    }
    if job.state == JobState::Failed && !job.required {
        parts.push("allowed to fail".into());
    }
    if let Some(dropped) = job.log_dropped {
        parts.push(format!("log cut: {} dropped", bytes(dropped)));
    }
    if job.state == JobState::Succeeded && job.attempts > 1 {
        parts.push(format!("needed {} attempts", job.attempts));
    }
    // Beside how many steps succeeded the runner says how many tests ran, or that nobody knows.
    let said = job.summary.as_deref().and_then(|it| it.split_once("; "));
    if let (JobState::Succeeded, Some((_, said))) = (job.state, said) {
        parts.push(crate::sanitize::text(said));
    }
    parts.join(", ")
}

/// The moment by which something has ended, whatever happens. Before it begins, nearly all of that
/// is time to wait for somebody who executes it: its own limits are shorter, and begin later.
pub fn latest(at: Millis, begun: bool) -> String {
    let when = human_time::relative(at, human_time::now());
    if begun {
        format!("{at} ({when}), all waiting and tries counted")
    } else {
        format!("{at} ({when}) even if nobody executes it; once it runs, its own limits hold")
    }
}

/// A concurrency group.
pub fn group(group: &GroupView) -> String {
    let name = crate::sanitize::text(&group.group);
    if group.cancel_older {
        format!("{name}, ends older ones")
    } else {
        name
    }
}

/// `1 run`, `2 runs`.
pub fn count(number: impl Into<u64>, thing: &str) -> String {
    match number.into() {
        1 => format!("1 {thing}"),
        number => format!("{number} {thing}s"),
    }
}

/// A number of bytes: `34.1 MB`.
pub fn bytes(bytes: u64) -> String {
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1000.0, "kB");
    for next in ["MB", "GB", "TB"] {
        if value < 999.95 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    format!("{value:.1} {unit}")
}

/// Who asked for the cancel, and why.
pub fn cancel(cancel: &CancelView) -> String {
    let text = match &cancel.reason {
        Some(reason) => format!("{}: {reason}", cancel.by),
        None => cancel.by.clone(),
    };
    crate::sanitize::text(&text)
}

/// Why a lease was lost, in words where this build knows them.
pub fn lease_reason(lease: &LeaseView) -> String {
    let known = match lease.reason.as_deref() {
        Some("LEASE_EXPIRED") => "no heartbeat came before it expired",
        Some("ACK_TIMEOUT") => "it was not acknowledged in time",
        Some("REJECTED") => "the runner declined it",
        Some("REPLACED") => "the same runner asked for work again",
        Some("DISOWNED") => "the runner no longer knew it",
        Some("JOB_TIMEOUT") => "the job took longer than it may",
        Some("CANCELED_UNACKNOWLEDGED") => "a cancel came before it was acknowledged",
        Some("FORCED_CANCEL") => "the runner did not answer the cancel in time",
        Some("OPERATOR") => "an operator took it away",
        Some(other) => return crate::sanitize::text(other),
        None if lease.state == LeaseState::Expired => "no heartbeat came before it expired",
        None => "the server gave no reason",
    };
    known.into()
}

/// What was seen at the end, in words. Whose processes the kernel ended is not known here: they may
/// be others' on the same machine, and the summary says what is known of them.
pub fn evidence(seen: &Evidence) -> Option<String> {
    let kills = seen.oom_kills.filter(|kills| *kills > 0);
    let words = [
        seen.signal.map(|signal| format!("signal {signal}")),
        kills.map(|kills| {
            let whom = match kills {
                1 => "a process".to_owned(),
                many => format!("{many} processes"),
            };
            format!("the kernel ended {whom} for want of memory meanwhile")
        }),
        seen.free_bytes.map(|bytes| format!("{bytes} bytes free")),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Whether anything of the work may still run.
pub fn confirmed(confirmed: bool) -> String {
    if confirmed {
        "confirmed: nothing of it is left".to_owned()
    } else {
        "unconfirmed: something of it may still run".to_owned()
    }
}

/// What a step came to, in one line.
pub fn step(step: &StepResult) -> String {
    let took = human_time::short(Duration::from_millis(step.duration_ms));
    let end = match (step.timed_out, step.signal, step.exit_code) {
        (true, ..) => ", timed out".to_owned(),
        (_, Some(signal), _) => format!(", ended by signal {signal}"),
        (_, _, Some(0)) => String::new(),
        (_, _, Some(code)) => format!(", exit code {code}"),
        (_, _, None) => ", stopped".to_owned(),
    };
    format!("{}  {took}{end}", sanitize::text(&step.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    // D10
    #[test]
    fn a_process_that_the_kernel_ended_is_not_called_the_jobs() {
        let seen = |oom_kills, signal| {
            evidence(&Evidence {
                signal,
                oom_kills: Some(oom_kills),
                ..Evidence::default()
            })
        };
        assert_eq!(seen(0, None), None);
        assert_eq!(
            seen(1, None).as_deref(),
            Some("the kernel ended a process for want of memory meanwhile")
        );
        assert_eq!(
            seen(2, Some(9)).as_deref(),
            Some("signal 9, the kernel ended 2 processes for want of memory meanwhile")
        );
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!(count(1_u32, "run"), "1 run");
        assert_eq!(count(0_u32, "run"), "0 runs");
    }
}
