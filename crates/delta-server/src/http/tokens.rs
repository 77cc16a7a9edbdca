//! Tokens: made, listed and revoked by administrators. The secret is shown once.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use delta_core::{Millis, Text};
use delta_store::read::{Credential, Role};
use delta_wire::ErrorBody;
use delta_wire::api::{CreateToken, Role as WireRole, TokenCreated, TokenView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::error::ApiError;
use super::extract::{Admin, Heard};
use super::views::at;
use crate::audit;
use crate::identity::new_token;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create_token, list_tokens))
        .routes(routes!(revoke_token))
}

/// Make a token.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "tokens", request_body = CreateToken,
    responses((status = 201, description = "the only time the secret is shown",
        body = TokenCreated), (status = 422, body = ErrorBody)))]
async fn create_token(
    State(app): State<App>,
    Heard(Admin(who), body): Heard<Admin>,
) -> Result<(StatusCode, axum::Json<TokenCreated>), ApiError> {
    let body = body.without_receipt();
    let request = CreateToken::parse(&body.bytes)?;
    let expires = request
        .expires_in_seconds
        .map(|after| body.at + after.into());
    let role = Role::from_name(request.role.as_str()).unwrap_or(Role::Runner);
    let created = make(&app, role, request.name.into(), body.at, expires).await?;
    audit::done("token.create", &who, &created.view.token_id);
    Ok((StatusCode::CREATED, axum::Json(created)))
}

/// Makes a token and keeps its hash.
pub async fn make(
    app: &App,
    role: Role,
    name: Text,
    now: Millis,
    expires_at: Option<Millis>,
) -> Result<TokenCreated, ApiError> {
    let token = new_token(role, name, now, expires_at);
    let credential = token.credential.clone();
    app.read(move |reader| reader.put_credential(&credential))
        .await?;
    Ok(TokenCreated {
        token: token.secret,
        view: view(&token.credential),
    })
}

/// Every token, without its secret.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "tokens",
    responses((status = 200, body = Vec<TokenView>)))]
async fn list_tokens(
    State(app): State<App>,
    _who: Admin,
) -> Result<axum::Json<Vec<TokenView>>, ApiError> {
    let credentials = app.read(|reader| reader.credentials()).await?;
    Ok(axum::Json(credentials.iter().map(view).collect()))
}

/// Revoke a token: within seconds nobody can use it, on any replica.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "tokens",
    params(("id" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
async fn revoke_token(
    State(app): State<App>,
    Admin(who): Admin,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let now = app.writer.now();
    let token = id.clone();
    let found = app
        .read(move |reader| reader.revoke_credential(&token, now))
        .await?;
    app.identity.forget();
    if !found {
        return Err(ApiError::not_found("token"));
    }
    audit::done("token.revoke", &who, &id);
    Ok(StatusCode::NO_CONTENT)
}

fn view(credential: &Credential) -> TokenView {
    TokenView {
        token_id: credential.id.to_string(),
        name: credential.name.to_string(),
        role: WireRole::from_text(credential.role.name()).unwrap_or(WireRole::Runner),
        created_at: at(credential.created_at),
        expires_at: credential.expires_at.map(at),
        revoked_at: credential.revoked_at.map(at),
    }
}
