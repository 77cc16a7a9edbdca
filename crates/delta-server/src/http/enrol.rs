//! One-time enrolment (T4): a token that lets one new agent in is exchanged for a credential of the
//! agent's own, bound to a fresh id.
//!
//! Whatever is wrong with the token, the answer is the same 401: somebody who found it learns
//! nothing. The audit trail and `token list` say when one was shown a second time.

use axum::extract::State;
use axum::http::StatusCode;
use delta_store::read::{Credential, Role};
use delta_wire::ErrorBody;
use delta_wire::api::{AgentEnrolled, EnrolAgent};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Enrolling, Heard};
use super::tokens::label_words;
use crate::app::App;
use crate::audit;
use crate::identity::{NewToken, new_agent_id, new_token};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(enrol_agent))
}

/// Exchange an enrolment token, once, for the agent's own credential.
#[utoipa::path(post, path = "/api/v1/agents/enroll", tag = "agents", request_body = EnrolAgent,
    responses((status = 201, description = "the only time the secret is shown",
        body = AgentEnrolled), (status = 422, body = ErrorBody)))]
async fn enrol_agent(
    State(app): State<App>,
    Heard(Enrolling(who), body): Heard<Enrolling>,
) -> Result<(StatusCode, axum::Json<AgentEnrolled>), ApiError> {
    let body = body.without_receipt();
    let request = EnrolAgent::parse(&body.bytes)?;
    let NewToken { secret, credential } = new_token(
        Role::Runner,
        request.agent_name.as_str().into(),
        body.at,
        None,
    );
    let agent = new_agent_id(&request.agent_name);
    let fresh = Credential {
        scope: (*who.scope).clone(),
        agent: Some(agent.clone()),
        ..credential
    };
    let enrolled = AgentEnrolled {
        agent_id: agent.to_string(),
        token: secret,
        token_id: fresh.id.to_string(),
        pool: fresh.scope.pool.to_string(),
        zones: fresh.scope.zones.iter().map(|it| it.to_string()).collect(),
        labels: label_words(&fresh.scope.labels),
    };
    let (id, at) = (who.id.clone(), body.at);
    let done = app
        .write(move |tables| tables.exchange_enrolment(&id, at, &fresh))
        .await?;
    if !done {
        audit::enrolment_reused(&who, &request.agent_name);
        return Err(app.unauthenticated().into());
    }
    audit::done("agent.enrol", &who, &agent);
    Ok((StatusCode::CREATED, axum::Json(enrolled)))
}
