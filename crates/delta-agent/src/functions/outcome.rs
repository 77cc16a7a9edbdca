//! What the end of a call means: outcomes of the protocol as ends of attempts, with their causes.
//!
//! What a handler says about itself is the user's; whatever happens between us and the runner is
//! the agent's, and can be tried again.

use delta_core::Cause;
use delta_runner_protocol::{ErrorInfo, Outcome as Answered, Status};
use delta_shim::spool::LogSize;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_wire::answer::{MAX_DETAILS_BYTES, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_RESULT_BYTES};
use delta_wire::{Evidence, FunctionAnswer, FunctionError, JsonText};

use crate::work::Ended;

/// The type of an error about a result that nobody stores.
pub const RESULT_TOO_LARGE: &str = "result_too_large";
/// SHA-256 of nothing: a call has no log.
const NO_LOG: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// What a function that fails is said to have ended with.
const FAILED: i32 = 1;

/// What a call came to.
#[derive(Clone, Debug)]
pub struct CallEnd {
    pub ended: Ended,
    /// What the function answered, where it did.
    pub answer: Option<FunctionAnswer>,
}

/// Why a call was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Ordered(StopReason),
    /// Its pool waits for no longer.
    Silent,
}

/// The runner answered; `why` where it had been told to stop.
pub(super) fn answered(outcome: Answered, why: Option<Why>) -> CallEnd {
    match (outcome.status, why) {
        // Done all the same: its work need not be done again.
        (Status::Success, _) => success(outcome),
        (_, Some(why)) => stopped(why, true),
        (Status::Timeout, None) => {
            let error = error(outcome.error, "the runner ended it for its time");
            let summary = error.message.clone();
            let ended = ended(Outcome::TimedOut, Some(Cause::JobTimeout), summary);
            with(ended, of_error(error, None))
        }
        (Status::Error, None) if outcome.is_handler_not_found() => {
            failed(Cause::HandlerNotFound, outcome, "no handler of that name")
        }
        (Status::Error, None) => failed(Cause::UserExit, outcome, "the function failed"),
        (Status::Retry, None) => failed(Cause::UserExit, outcome, "the function asks for a retry"),
    }
}

fn success(outcome: Answered) -> CallEnd {
    let text = outcome
        .result
        .map_or("null".to_owned(), |it| it.get().to_owned());
    if text.len() > MAX_RESULT_BYTES {
        let message = format!(
            "the result has {} bytes, at most {MAX_RESULT_BYTES} are stored; store it elsewhere \
             and return its address",
            text.len()
        );
        let error = ErrorInfo::of_type(RESULT_TOO_LARGE, message);
        return of_failure(Cause::UserExit, error, None);
    }
    let answer = FunctionAnswer {
        result: JsonText::new(text),
        ..Default::default()
    };
    let ended = ended(Outcome::Succeeded, None, "the function returned".to_owned());
    with(ended, answer)
}

fn failed(cause: Cause, outcome: Answered, unsaid: &str) -> CallEnd {
    let after = outcome.retry_after();
    let error = match outcome.error {
        Some(error) if !error.message.is_empty() => error,
        Some(error) => ErrorInfo {
            message: unsaid.to_owned(),
            ..error
        },
        None => ErrorInfo::new(unsaid),
    };
    let millis = after.map(|it| u64::try_from(it.delay.as_millis()).unwrap_or(u64::MAX));
    let mut end = of_failure(cause, error, millis);
    // A48: shown when it was not taken as it was said.
    if after.is_some_and(|it| it.clamped) {
        let said = outcome.retry_after_seconds.unwrap_or_default();
        let words = format!(" (asked to wait {said} s, which is between 0 and 24 h at most)");
        end.ended.summary.push_str(&words);
    }
    end
}

fn of_failure(cause: Cause, info: ErrorInfo, after: Option<u64>) -> CallEnd {
    let error = error(Some(info), "");
    let outcome = Outcome::Failed {
        exit_code: Some(FAILED),
    };
    let ended = ended(outcome, Some(cause), error.message.clone());
    with(ended, of_error(error, after))
}

/// No pool here has this runner (RQ-45): no other try will help.
pub(super) fn no_runner(words: String) -> CallEnd {
    let error = ErrorInfo::of_type(delta_runner_protocol::HANDLER_NOT_FOUND, words);
    of_failure(Cause::HandlerNotFound, error, None)
}

/// It was told to stop, and has not succeeded. `confirmed` where nothing of it runs any more.
pub(super) fn stopped(why: Why, confirmed: bool) -> CallEnd {
    let none = Outcome::Failed { exit_code: None };
    let timed_out = (Outcome::TimedOut, Some(Cause::JobTimeout));
    let ((outcome, cause), summary) = match why {
        Why::Ordered(StopReason::Canceled) => ((Outcome::Canceled, None), "the call was canceled"),
        Why::Ordered(StopReason::LeaseLost) => (
            (none, Some(Cause::AgentError)),
            "the lease was lost during the call",
        ),
        Why::Ordered(StopReason::Shutdown) => (
            (none, Some(Cause::AgentShutdown)),
            "the agent was shut down during the call",
        ),
        Why::Ordered(StopReason::TimedOut | StopReason::StepTimedOut | StopReason::Silent) => {
            (timed_out, "the job's time was up during the call")
        }
        Why::Silent => (
            timed_out,
            "no answer within the response_timeout of its pool",
        ),
    };
    let reason = match why {
        Why::Ordered(reason) => reason,
        Why::Silent => StopReason::TimedOut,
    };
    let mut ended = ended(outcome, cause, summary.to_owned());
    (ended.stopped, ended.confirmed) = (Some(reason), confirmed);
    CallEnd {
        ended,
        answer: None,
    }
}

/// Something between us and the runner failed: another try may do.
pub(super) fn broken(words: String) -> CallEnd {
    tracing::warn!(words, "a call has no answer");
    let outcome = Outcome::Failed { exit_code: None };
    CallEnd {
        ended: ended(outcome, Some(Cause::AgentError), words),
        answer: None,
    }
}

pub(super) fn spec_error(words: &str) -> CallEnd {
    let outcome = Outcome::Failed { exit_code: None };
    CallEnd {
        ended: ended(outcome, Some(Cause::SpecError), words.to_owned()),
        answer: None,
    }
}

fn with(ended: Ended, answer: FunctionAnswer) -> CallEnd {
    CallEnd {
        ended,
        answer: Some(answer),
    }
}

fn ended(outcome: Outcome, cause: Option<Cause>, summary: String) -> Ended {
    Ended {
        outcome,
        cause,
        summary,
        step: None,
        stopped: None,
        confirmed: true,
        log: LogSize {
            sha256: Some(NO_LOG.to_owned()),
            ..LogSize::default()
        },
        evidence: Evidence::default(),
    }
}

fn of_error(error: FunctionError, retry_after_ms: Option<u64>) -> FunctionAnswer {
    FunctionAnswer {
        result: None,
        error: Some(error),
        retry_after_ms,
    }
}

/// Within what is stored (RQ-36).
fn error(info: Option<ErrorInfo>, unsaid: &str) -> FunctionError {
    let info = info.unwrap_or_else(|| ErrorInfo::new(unsaid));
    let name = |text: Option<String>| text.map(|text| cut(text, MAX_NAME_BYTES));
    let details = info.details.map(|it| it.get().to_owned());
    let details = details.filter(|it| it.len() <= MAX_DETAILS_BYTES);
    FunctionError {
        message: cut(info.message, MAX_MESSAGE_BYTES),
        kind: name(info.kind),
        code: name(info.code),
        details: details.and_then(JsonText::new),
    }
}

fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}
