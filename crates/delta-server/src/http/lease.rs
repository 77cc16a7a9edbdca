//! Asking for work: the one message of the Runner Protocol that waits.
//!
//! The answer carries its own proof of delivery: a grant whose connection is gone before the bytes
//! are taken is revoked at once.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_core::requirement::Capabilities;
use delta_core::rights::Barred;
use delta_core::{JobId, Refusal, Text};
use delta_store::read::Scope;
use delta_wire::job_spec::{MAX_EMBEDDED_SPEC_BYTES, RawJobSpec};
use delta_wire::runner::{GrantedSpec, JobSpecRef, Lease, LeaseGranted};
use delta_wire::{ErrorBody, ErrorCode};
use hyper::body::{Frame, SizeHint};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, Runner};
use super::runner::parse;
use crate::app::App;
use crate::identity::Principal;
use crate::not_done::NotDone;
use crate::runner_commands::hex;
use crate::sessions::AGENT_PREFIX;
use crate::writer::{Delivery, GrantedLease, Offer, sha256};
use crate::{audit, identity, trace};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(ask_for_lease))
}

/// Ask for work; long-poll up to `wait_seconds`.
#[utoipa::path(post, path = "/api/v1/runner/lease", tag = "runner",
    request_body(content = ref("#/components/schemas/Lease")),
    responses(
        (status = 200, description = "work", body = ref("#/components/schemas/LeaseGranted")),
        (status = 204, description = "nothing to do"),
        (status = 409, description = "this runner holds a lease already", body = ErrorBody)))]
async fn ask_for_lease(
    State(app): State<App>,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let ask: Lease = parse(&app, &body.bytes)?;
    // Asking for work is not about a lease: no timer waits for it.
    drop(body.receipt);
    let runner: Text = ask.runner_id.into();
    if !who.may_be(&runner) {
        audit::foreign_agent(&who, &runner);
        let message = "this credential is another agent's";
        return Err(ApiError::new(ErrorCode::Forbidden, message).at("runner_id"));
    }
    may_take_work(&app, &who, &runner).await?;
    let capabilities = capabilities(&who.scope, &ask.capabilities);
    app.presence.asks(&who.id, &runner, &capabilities);
    let wait = ask.wait_seconds.as_duration();
    let offer = Offer::new(capabilities);
    let lease = app
        .writer
        .lease(body.at, who.id.clone(), runner.clone(), offer, wait);
    match lease.await? {
        Some(granted) => {
            // Dropping the grant takes the lease back at once.
            app.still_admitted(&who).await?;
            may_take_work(&app, &who, &runner).await?;
            app.presence.works(&who.id, &runner);
            lease_granted(&app, *granted)
        }
        None => {
            app.presence.still_asks(&who.id, &runner);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
    }
}

/// An agent of the Execution Protocol proves who it is when it registers, and is drained and
/// revoked by its id. Here nothing but the credential is shown, so an id of ours is taken from
/// nobody who is not bound to it (A26, T3), and not from one that was sent home (I21).
async fn may_take_work(app: &App, who: &Principal, runner: &str) -> Result<(), ApiError> {
    let forbidden = || {
        let message = "this id is an agent's that may take no work here, or its pool asks for a \
                       sandbox, which only agents of the Execution Protocol tell of";
        ApiError::new(ErrorCode::Forbidden, message).at("runner_id")
    };
    // A runner of this protocol does not say how it confines its jobs.
    if app.pool_sandboxes.contains_key(&who.scope.pool) {
        return Err(forbidden());
    }
    let Some(agent) = who.agent.clone() else {
        let ours = runner.starts_with(AGENT_PREFIX);
        return if ours { Err(forbidden()) } else { Ok(()) };
    };
    let row = app.read(move |reader| reader.agent(&agent)).await?;
    match row {
        Some(row) if row.revoked_at.is_some() => Err(Refusal::Barred(Barred::Revoked).into()),
        Some(row) if row.drain.is_some() => Err(forbidden()),
        _ => Ok(()),
    }
}

/// What is granted of what is said (T27). Who says nothing about kinds of work executes steps
/// (A68).
fn capabilities(scope: &Scope, tags: &[String]) -> Capabilities {
    let tags = identity::scope::tags(scope, tags);
    let says = tags.iter().any(|tag| tag.starts_with("work:"));
    let implied = (!says).then_some("work:steps");
    Capabilities::parse(tags.iter().map(String::as_str).chain(implied))
}

fn lease_granted(app: &App, granted: GrantedLease) -> Result<Response, ApiError> {
    trace::waited(app, &granted);
    let job = granted.lease.attempt.job;
    let message = LeaseGranted {
        job_id: job.to_string(),
        run_id: job.run.to_string(),
        lease_id: granted.token,
        lease_ttl_seconds: granted.ttl.into(),
        heartbeat_interval_seconds: app.writer.shared().settings.heartbeat_interval.into(),
        max_runtime_seconds: granted.max_runtime.into(),
        spec: spec(job, &granted.spec)?,
        cancel_token: None,
        attempt: Some(granted.lease.attempt.index),
        lease_epoch: Some(granted.lease.epoch),
    };
    let bytes = serde_json::to_vec(&message).map_err(|error| {
        tracing::error!(%error, %job, "a grant cannot be written");
        ApiError::from(NotDone::Internal)
    })?;
    let body = Body::new(Carried {
        bytes: Some(bytes.into()),
        delivery: Some(granted.delivery),
    });
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, body).into_response())
}

fn spec(job: JobId, text: &str) -> Result<GrantedSpec, ApiError> {
    if text.len() > MAX_EMBEDDED_SPEC_BYTES {
        return Ok(GrantedSpec::Referenced(JobSpecRef {
            uri: format!("/api/v1/runner/jobs/{job}/spec"),
            sha256: hex(&sha256(text.as_bytes())),
        }));
    }
    Ok(GrantedSpec::Embedded(RawJobSpec::from_text(
        text.to_owned(),
    )?))
}

/// A grant as a body that knows whether the connection took it (A67).
struct Carried {
    bytes: Option<Bytes>,
    delivery: Option<Delivery>,
}

impl hyper::body::Body for Carried {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(delivery) = self.delivery.take() {
            delivery.delivered();
        }
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
