//! What a function may know of its call.

use std::collections::BTreeMap;
use std::time::Duration;

use delta_runner_protocol::ExecutionRequest;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

/// One call, as its function sees it.
#[derive(Clone, Debug)]
pub struct Context {
    pub job_id: String,
    pub request_id: String,
    pub function: String,
    /// From 1.
    pub attempt: u32,
    /// Grows with every lease of the job: a store that keeps the largest it saw refuses a late
    /// writer. Absent where the caller has no leases.
    pub lease_epoch: Option<u64>,
    pub queue: String,
    pub enqueued_at: Timestamp,
    /// When the caller gives up on it.
    pub deadline: Option<Timestamp>,
    /// What continues the producer's trace, as `traceparent`.
    pub trace: BTreeMap<String, String>,
    /// Who calls.
    pub worker_id: Option<String>,
    pub(crate) cancel: CancellationToken,
}

impl Context {
    pub(crate) fn of(request: &ExecutionRequest, cancel: CancellationToken) -> Context {
        let context = &request.context;
        Context {
            job_id: request.job_id.clone(),
            request_id: request.request_id.clone(),
            function: request.function_name.clone(),
            attempt: context.attempt,
            lease_epoch: context.lease_epoch,
            queue: context.queue_name.clone(),
            enqueued_at: context.enqueue_time,
            deadline: context.deadline,
            trace: context.trace_context.clone().unwrap_or_default(),
            worker_id: context.worker_id.clone(),
            cancel,
        }
    }

    /// Waits until the call is canceled. What a function does not end by itself soon after is
    /// dropped at its next `await`.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// For functions that do not wait: look now and then, and return.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// How long is left; nothing when there is no deadline, zero when it is over.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.deadline?.duration_since(Timestamp::now());
        Some(Duration::try_from(left).unwrap_or(Duration::ZERO))
    }
}
