//! The Runner Protocol over HTTP/JSON: each message maps to one command, each reply to one answer.
//!
//! The lease token is read from the body only (A24). What a runner says about time, retries or its
//! own authority is not obeyed (RP-17).

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use delta_core::attempt::Progress;
use delta_core::lease::Stale;
use delta_core::{Command, JobId, Reply, Text};
use delta_wire::runner::{
    self as wire, AckLease, AckLeaseAck, CancelAck, CancelAckAck, Complete, CompleteAck, Heartbeat,
    HeartbeatAck, LeaseToken, Reason, StaleLease,
};
use delta_wire::states::AttemptState;
use delta_wire::{ErrorCode, Invalid, Seconds};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, Message, Runner};
use crate::app::App;
use crate::not_done::NotDone;
use crate::runner_commands;
use crate::test_history::{call_flaky, may_be_flaky, only_flaky_failed};
use crate::writer::Answer;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(acknowledge_lease))
        .routes(routes!(renew_lease))
        .routes(routes!(complete_lease))
        .routes(routes!(acknowledge_cancel))
}

/// Take up a lease.
#[utoipa::path(post, path = "/api/v1/runner/ack-lease", tag = "runner",
    request_body(content = ref("#/components/schemas/AckLease")),
    responses(
        (status = 200, description = "done", body = ref("#/components/schemas/AckLeaseAck")),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld"))))]
async fn acknowledge_lease(
    State(app): State<App>,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let ack: AckLease = parse(&app, &body.bytes)?;
    let Some(proof) = who.proof(&ack.lease_id, ack.runner_id) else {
        return Ok(stale(ack.lease_id, Stale::Unknown));
    };
    let job: JobId = ack
        .job_id
        .parse()
        .map_err(|_| Invalid::field("job_id", "is not the id of a job"))?;
    let command = Command::AckLease { proof, job };
    let answer = said(&app, body, command).await?;
    match answer.reply {
        Reply::Acknowledged { ttl } => Ok(axum::Json(AckLeaseAck {
            accepted: true,
            lease_ttl_seconds: ttl.into(),
        })
        .into_response()),
        Reply::Stale(why) => Ok(stale(ack.lease_id, why)),
        other => Err(unexpected(&other)),
    }
}

/// Keep a lease alive.
#[utoipa::path(post, path = "/api/v1/runner/heartbeat", tag = "runner",
    request_body(content = ref("#/components/schemas/Heartbeat")),
    responses((status = 200, description = "also when the lease is over",
        body = ref("#/components/schemas/HeartbeatAck"))))]
async fn renew_lease(
    State(app): State<App>,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let beat: Heartbeat = parse(&app, &body.bytes)?;
    let token = beat.lease_id.clone();
    let runner: Text = beat.runner_id.clone().into();
    let Some(proof) = who.proof(&token, beat.runner_id.clone()) else {
        app.metrics().stale.inc();
        let ack = HeartbeatAck::refused(token, Reason::UnknownLease);
        return Ok(axum::Json(ack).into_response());
    };
    app.presence.works(&who.id, &runner);
    let command = Command::Heartbeat {
        proof,
        seq: beat.seq,
        progress: progress(&beat),
        uploading: beat.phase == Some(wire::Phase::Uploading),
    };
    // Held no longer than one interval, so that a held heartbeat never costs the next one.
    let interval = app.writer.shared().settings.heartbeat_interval;
    let longest = Duration::from_millis(interval.0.unsigned_abs());
    let hold = beat
        .wait_seconds
        .map_or(Duration::ZERO, Seconds::as_duration)
        .min(longest);
    let answer = app.writer.holder_says(body.receipt, command, hold).await?;
    let ack = match answer.reply {
        Reply::Renewed { ttl, cancel } => {
            let cancel = cancel.map(|notice| notice.remaining.into());
            HeartbeatAck::extended(token, ttl.into(), cancel)
        }
        Reply::NotAcknowledged => HeartbeatAck::refused(token, Reason::NotAcked),
        Reply::Stale(why) => HeartbeatAck::refused(token, why.into()),
        other => return Err(unexpected(&other)),
    };
    Ok(axum::Json(ack).into_response())
}

fn progress(beat: &Heartbeat) -> Progress {
    let said = beat.progress.as_ref();
    let text = |text: Option<&String>| text.map(|text| Text::from(text.as_str()));
    Progress {
        // Clamped to 0..=100 when it was read.
        percent: said
            .and_then(|it| it.percent)
            .map(|it| it.get().round() as u8),
        step_index: said.and_then(|it| it.step_index),
        current_step: text(said.and_then(|it| it.current_step.as_ref())),
        message: text(said.and_then(|it| it.message.as_ref())),
        log_bytes: beat.log_cursor.map(|cursor| cursor.bytes_sent),
    }
}

/// End a lease with a result.
#[utoipa::path(post, path = "/api/v1/runner/complete", tag = "runner",
    request_body(content = ref("#/components/schemas/Complete")),
    responses(
        (status = 200, description = "done", body = ref("#/components/schemas/CompleteAck")),
        (status = 409, description = "not accepted, or the lease is over",
            body = ref("#/components/schemas/NotCompleted"))))]
async fn complete_lease(
    State(app): State<App>,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let done: Complete = parse(&app, &body.bytes)?;
    let token = done.lease_id.clone();
    let Some(proof) = who.proof(&token, done.runner_id.clone()) else {
        return Ok(stale(token, Stale::Unknown));
    };
    let lease = proof.key;
    let mut command = runner_commands::complete(proof, &done);
    if may_be_flaky(&command) {
        let judged = app.read(move |reader| only_flaky_failed(reader, lease));
        // A store that cannot say so now leaves the cause as it was said.
        if matches!(judged.await, Ok(true)) {
            call_flaky(&mut command);
        }
    }
    let answer = said(&app, body, command).await?;
    let (accepted, reason, final_status) = match answer.reply {
        Reply::Completed => (true, None, None),
        Reply::CompletedAfterCancel => {
            let canceled = Some(AttemptState::Canceled);
            (false, Some(Reason::CancelRequested), canceled)
        }
        Reply::NotAcknowledged => (false, Some(Reason::NotAcked), None),
        Reply::Stale(why) => return Ok(stale(token, why)),
        other => return Err(unexpected(&other)),
    };
    let ack = CompleteAck {
        lease_id: token,
        accepted,
        reason,
        final_status,
    };
    Ok((accepted_status(accepted), axum::Json(ack)).into_response())
}

/// End a lease after a cancel was asked for.
#[utoipa::path(post, path = "/api/v1/runner/cancel-ack", tag = "runner",
    request_body(content = ref("#/components/schemas/CancelAck")),
    responses(
        (status = 200, description = "done", body = ref("#/components/schemas/CancelAckAck")),
        (status = 409, description = "not accepted, or the lease is over",
            body = ref("#/components/schemas/NotCanceled"))))]
async fn acknowledge_cancel(
    State(app): State<App>,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let ack: CancelAck = parse(&app, &body.bytes)?;
    let token = ack.lease_id.clone();
    let Some(proof) = who.proof(&token, ack.runner_id.clone()) else {
        return Ok(stale(token, Stale::Unknown));
    };
    let command = runner_commands::cancel_ack(proof, &ack);
    let answer = said(&app, body, command).await?;
    let (accepted, reason) = match answer.reply {
        Reply::CancelAcknowledged => (true, None),
        Reply::CancelNotRequested => (false, Some(Reason::CancelNotRequested)),
        Reply::NotAcknowledged => (false, Some(Reason::NotAcked)),
        Reply::Stale(why) => return Ok(stale(token, why)),
        other => return Err(unexpected(&other)),
    };
    let ack = CancelAckAck {
        lease_id: token,
        accepted,
        reason,
        final_status: accepted.then_some(AttemptState::Canceled),
    };
    Ok((accepted_status(accepted), axum::Json(ack)).into_response())
}

/// Judges what a holder said by the moment it was read, before any timer of a later one (A38).
async fn said(app: &App, message: Message, command: Command) -> Result<Answer, NotDone> {
    let receipt = message.receipt;
    app.writer
        .holder_says(receipt, command, Duration::ZERO)
        .await
}

/// A stale answer is a conflict for whoever acts on the lease (RP-44).
pub(super) fn stale(lease_id: LeaseToken, why: Stale) -> Response {
    let body = StaleLease {
        lease_id,
        reason: why.into(),
    };
    (StatusCode::CONFLICT, axum::Json(body)).into_response()
}

fn accepted_status(accepted: bool) -> StatusCode {
    if accepted {
        StatusCode::OK
    } else {
        StatusCode::CONFLICT
    }
}

pub(super) fn parse<M: wire::Message>(app: &App, body: &[u8]) -> Result<M, ApiError> {
    let parsed = wire::parse::<M>(body)?;
    if parsed.unknown_fields > 0 {
        app.metrics()
            .unknown_fields
            .inc_by(parsed.unknown_fields.into());
    }
    Ok(parsed.message)
}

fn unexpected(reply: &Reply) -> ApiError {
    tracing::error!(?reply, "the core answered with something else");
    ApiError::new(ErrorCode::Internal, "the answer made no sense")
}
