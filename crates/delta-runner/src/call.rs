//! One call from its request to its one answer: within its deadline, unless it is canceled.
//!
//! An answer says that nothing of the work goes on: whoever hears it may try again, and counts the
//! place as free. A function on a thread that heeds nothing is never answered; its caller ends this
//! process when its grace is over.

use std::time::Duration;

use delta_runner_protocol::{
    CANCELLED, ErrorInfo, ExecutionRequest, HANDLER_NOT_FOUND, Outcome, SHUTTING_DOWN, Status,
    TIMEOUT,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::connection::Shared;
use crate::context::Context;
use crate::failure::Failure;
use crate::handlers::{Done, Work};
use crate::span::Span;
use crate::turn::Turn;

/// How long a function that was canceled may take to end by itself, so that it can put things in
/// order, before it is dropped at its next await.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// Carries out a request when its turn has come.
pub(crate) async fn answer(
    shared: &Shared,
    request: &ExecutionRequest,
    cancel: CancellationToken,
    turn: Turn,
) -> Outcome {
    let span = Span::begin(request);
    let outcome = carry_out(shared, request, cancel, turn, &span).await;
    span.end(&outcome);
    outcome
}

async fn carry_out(
    shared: &Shared,
    request: &ExecutionRequest,
    cancel: CancellationToken,
    turn: Turn,
    span: &Span,
) -> Outcome {
    let Some(handler) = shared.handlers.get(&request.function_name) else {
        let name = &request.function_name;
        let message = format!("No handler registered for function '{name}'");
        return failed(request, ErrorInfo::of_type(HANDLER_NOT_FOUND, message));
    };
    let context = Context::of(request, cancel.clone());
    if context.remaining() == Some(Duration::ZERO) {
        return timed_out(request, "Job deadline exceeded");
    }
    let permit = tokio::select! {
        biased;
        // Whoever hears this sends it elsewhere, and has lost nothing.
        () = shared.stopping.cancelled() => return shutting_down(request),
        () = deadline(context.remaining()) => return timed_out(request, "Job deadline exceeded"),
        () = cancel.cancelled() => return stopped(request),
        permit = turn => permit,
    };
    // Nobody closes it.
    let Ok(permit) = permit else {
        return stopped(request);
    };
    let remaining = context.remaining();
    let over = CancellationToken::new();
    let work = Work::new(permit, over.clone());
    // A task of its own, so that a panic is an answer and not the end of the runner.
    let handling = handler(&request.params, context, work);
    let mut running = Running(tokio::spawn(span.within(handling)));
    tokio::select! {
        done = &mut running.0 => outcome(request, done.unwrap_or_else(panicked)),
        () = deadline(remaining) => {
            cancel.cancel();
            running.0.abort();
            over.cancelled().await;
            timed_out(request, "Job execution timed out.")
        }
        () = cancel.cancelled() => canceled(request, &mut running, &over).await,
    }
}

/// What is dropped is ended at its next await.
struct Running(JoinHandle<Done>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn deadline(remaining: Option<Duration>) {
    match remaining {
        Some(remaining) => tokio::time::sleep(remaining).await,
        None => std::future::pending().await,
    }
}

/// A function that was done all the same has done its work; any other end is that of the cancel.
async fn canceled(
    request: &ExecutionRequest,
    running: &mut Running,
    over: &CancellationToken,
) -> Outcome {
    let last = tokio::time::timeout(CANCEL_GRACE, &mut running.0).await;
    match last {
        Ok(Ok(Ok(result))) => outcome(request, Ok(result)),
        _ => {
            running.0.abort();
            over.cancelled().await;
            stopped(request)
        }
    }
}

fn stopped(request: &ExecutionRequest) -> Outcome {
    failed(request, ErrorInfo::of_type(CANCELLED, "Job cancelled"))
}

fn shutting_down(request: &ExecutionRequest) -> Outcome {
    let message = "The runner is shutting down; nothing of this was begun";
    Outcome {
        error: Some(ErrorInfo::of_type(SHUTTING_DOWN, message)),
        ..of(request, Status::Retry)
    }
}

fn panicked(_: tokio::task::JoinError) -> Done {
    Err(Failure::error("the function panicked"))
}

fn outcome(request: &ExecutionRequest, done: Done) -> Outcome {
    match done {
        Ok(result) => Outcome {
            result: Some(result),
            ..of(request, Status::Success)
        },
        Err(failure) => {
            // RQ-38: it means nothing beside any other status.
            let after = failure.after.filter(|_| failure.status == Status::Retry);
            Outcome {
                error: Some(failure.error),
                retry_after_seconds: after.map(|after| after.as_secs_f64()),
                ..of(request, failure.status)
            }
        }
    }
}

pub(crate) fn failed(request: &ExecutionRequest, error: ErrorInfo) -> Outcome {
    Outcome {
        error: Some(error),
        ..of(request, Status::Error)
    }
}

fn timed_out(request: &ExecutionRequest, message: &str) -> Outcome {
    Outcome {
        error: Some(ErrorInfo::of_type(TIMEOUT, message)),
        ..of(request, Status::Timeout)
    }
}

fn of(request: &ExecutionRequest, status: Status) -> Outcome {
    Outcome {
        request_id: request.request_id.clone(),
        job_id: request.job_id.clone(),
        status,
        result: None,
        error: None,
        retry_after_seconds: None,
    }
}

#[cfg(test)]
mod tests {
    use delta_runner_protocol::Message;

    use super::*;

    // RQ-38
    #[test]
    fn a_delay_goes_with_a_retry_alone() {
        let text = r#"{"type":"request","payload":{"protocol_version":"2","request_id":"r",
            "job_id":"j","function_name":"f","params":{},"context":{"job_id":"j","attempt":1,
            "enqueue_time":"2026-01-04T08:00:00Z","queue_name":"q"}}}"#;
        let Ok(Message::Request(Ok(request))) = Message::read(text.as_bytes()) else {
            panic!("a request");
        };
        let delay = Duration::from_secs(3);
        let retry = outcome(&request, Err(Failure::retry("later").after(delay)));
        assert_eq!(retry.retry_after_seconds, Some(3.0));
        let error = outcome(&request, Err(Failure::error("boom").after(delay)));
        assert_eq!(error.retry_after_seconds, None);
    }
}
