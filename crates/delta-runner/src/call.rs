//! One call from its request to its one answer: within its deadline, unless it is canceled.

use std::time::Duration;

use delta_runner_protocol::{
    CANCELLED, ErrorInfo, ExecutionRequest, HANDLER_NOT_FOUND, Outcome, Status, TIMEOUT,
};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::failure::Failure;
use crate::handlers::{Done, Handlers};
use crate::span::Span;

/// How long a function that was canceled may take to end by itself, so that it can put things in
/// order. The caller has its answer within a second.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// Carries out a request.
pub(crate) async fn answer(
    handlers: &Handlers,
    permits: &Semaphore,
    request: &ExecutionRequest,
    cancel: CancellationToken,
) -> Outcome {
    let span = Span::begin(request);
    let outcome = carry_out(handlers, permits, request, cancel, &span).await;
    span.end(&outcome);
    outcome
}

async fn carry_out(
    handlers: &Handlers,
    permits: &Semaphore,
    request: &ExecutionRequest,
    cancel: CancellationToken,
    span: &Span,
) -> Outcome {
    let context = Context::of(request, cancel.clone());
    if context.remaining() == Some(Duration::ZERO) {
        return timed_out(request, "Job deadline exceeded");
    }
    let _permit = tokio::select! {
        permit = permits.acquire() => permit,
        () = deadline(context.remaining()) => return timed_out(request, "Job deadline exceeded"),
        () = cancel.cancelled() => return stopped(request),
    };
    let remaining = context.remaining();
    let Some(handler) = handlers.get(&request.function_name) else {
        let name = &request.function_name;
        let message = format!("No handler registered for function '{name}'");
        return failed(request, ErrorInfo::of_type(HANDLER_NOT_FOUND, message));
    };
    // A task of its own, so that a panic is an answer and not the end of the runner.
    let mut running = Running(tokio::spawn(span.within(handler(&request.params, context))));
    tokio::select! {
        done = &mut running.0 => outcome(request, done.unwrap_or_else(panicked)),
        () = deadline(remaining) => {
            cancel.cancel();
            timed_out(request, "Job execution timed out.")
        }
        () = cancel.cancelled() => canceled(request, &mut running).await,
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
async fn canceled(request: &ExecutionRequest, running: &mut Running) -> Outcome {
    let last = tokio::time::timeout(CANCEL_GRACE, &mut running.0).await;
    match last {
        Ok(Ok(Ok(result))) => outcome(request, Ok(result)),
        _ => stopped(request),
    }
}

fn stopped(request: &ExecutionRequest) -> Outcome {
    failed(request, ErrorInfo::of_type(CANCELLED, "Job cancelled"))
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
        Err(failure) => Outcome {
            error: Some(failure.error),
            retry_after_seconds: failure.after.map(|after| after.as_secs_f64()),
            ..of(request, failure.status)
        },
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
