//! Credentials: made, listed and revoked by administrators. A secret is shown once.

use axum::extract::State;
use axum::http::StatusCode;
use delta_core::{Millis, Span, Text};
use delta_store::read::{Credential, DEFAULT_POOL, Labels, Role, Scope};
use delta_wire::api::tokens::ANY_LABEL;
use delta_wire::api::{CreateToken, Role as WireRole, TokenCreated, TokenView};
use delta_wire::{ErrorBody, ErrorCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Admin, Heard, Path};
use super::views::at;
use crate::app::App;
use crate::audit;
use crate::identity::{CERTIFICATE, OIDC, certificate_id, new_token, vouched_row};

/// How long an enrolment is good for when nobody says.
const ENROLMENT_LIFE: Span = Span::hours(1);

/// Bytes of the id of somebody who has no token; longer ones cannot be anybody's.
const LONGEST_ID: usize = 1024;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create_token, list_tokens))
        .routes(routes!(revoke_token))
}

/// Make a token, or say what the holder of a certificate is granted.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "tokens", request_body = CreateToken,
    responses((status = 201, description = "the only time the secret is shown",
        body = TokenCreated),
        (status = 409, description = "the certificate's name was revoked", body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn create_token(
    State(app): State<App>,
    Heard(Admin(who), body): Heard<Admin>,
) -> Result<(StatusCode, axum::Json<TokenCreated>), ApiError> {
    let body = body.without_receipt();
    let request = CreateToken::parse(&body.bytes)?;
    let created = create(&app, request, body.at).await?;
    audit::done("token.create", &who, &created.view.token_id);
    Ok((StatusCode::CREATED, axum::Json(created)))
}

async fn create(app: &App, request: CreateToken, now: Millis) -> Result<TokenCreated, ApiError> {
    let role = Role::from_name(request.role.as_str()).unwrap_or(Role::Runner);
    let (scope, expires) = (scope(&request), expiry(&request, now));
    let name: Text = request.name.into();
    let agent = request.agent_id.map(Text::from);
    let Some(identity) = request.certificate else {
        let token = new_token(role, name, now, expires);
        let credential = Credential {
            scope,
            agent,
            ..token.credential
        };
        let view = view(&credential);
        app.put_credential(credential).await?;
        return Ok(TokenCreated {
            token: Some(token.secret),
            view,
        });
    };
    let row = Credential {
        agent,
        expires_at: expires,
        ..vouched_row(certificate_id(&identity), name, scope, now)
    };
    let hash = row.hash;
    app.put_credential(row).await?;
    // What was revoked stays so: the certificate that was stolen is still signed.
    let kept = app.read(move |reader| reader.credential(&hash)).await?;
    let kept = kept.ok_or_else(|| ApiError::new(ErrorCode::Internal, "it was not kept"))?;
    if kept.revoked_at.is_some() {
        let message = "certificates of this name were revoked; use another name";
        return Err(ApiError::new(ErrorCode::Conflict, message).at("certificate"));
    }
    Ok(TokenCreated {
        token: None,
        view: view(&kept),
    })
}

/// What is granted: of a runner token of which nothing is said, any label, as it ever was.
fn scope(request: &CreateToken) -> Scope {
    let words = |list: &[String]| list.iter().map(|word| Text::from(word.as_str())).collect();
    let plain = request.role == WireRole::Runner && request.certificate.is_none();
    let labels = match &request.labels {
        None if plain => Labels::Any,
        None => Labels::Only(Default::default()),
        Some(list) if list.iter().any(|label| label == ANY_LABEL) => Labels::Any,
        Some(list) => Labels::Only(words(list)),
    };
    Scope {
        pool: request.pool.as_deref().unwrap_or(DEFAULT_POOL).into(),
        zones: words(&request.zones),
        labels,
    }
}

fn expiry(request: &CreateToken, now: Millis) -> Option<Millis> {
    let asked: Option<Span> = request.expires_in_seconds.map(Into::into);
    let after = match request.role {
        WireRole::Enrolment => Some(asked.unwrap_or(ENROLMENT_LIFE)),
        _ => asked,
    };
    after.map(|after| now + after)
}

/// Every credential, without its secret.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "tokens",
    responses((status = 200, body = Vec<TokenView>)))]
async fn list_tokens(
    State(app): State<App>,
    _who: Admin,
) -> Result<axum::Json<Vec<TokenView>>, ApiError> {
    let credentials = app.read(|reader| reader.credentials()).await?;
    Ok(axum::Json(credentials.iter().map(view).collect()))
}

/// Revoke a credential: within seconds nobody can use it, on any replica. `cert:NAME` and
/// `oidc:ISSUER:SUBJECT` can be revoked whether or not anything was granted to them.
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
        .write(move |tables| {
            if tables.revoke_credential(&token, now)? {
                return Ok(true);
            }
            let vouched = [CERTIFICATE, OIDC].iter().any(|it| token.starts_with(it));
            if !vouched || token.len() > LONGEST_ID || token.chars().any(char::is_control) {
                return Ok(false);
            }
            let id: Text = token.into();
            let row = Credential {
                revoked_at: Some(now),
                ..vouched_row(id.clone(), id, Scope::least(), now)
            };
            tables.put_credential(&row).map(|()| true)
        })
        .await?;
    app.identity.forget();
    if !found {
        return Err(ApiError::not_found("token"));
    }
    audit::done("token.revoke", &who, &id);
    Ok(StatusCode::NO_CONTENT)
}

/// Labels as they are shown: `*` is any.
pub fn label_words(labels: &Labels) -> Vec<String> {
    match labels {
        Labels::Any => vec![ANY_LABEL.into()],
        Labels::Only(labels) => labels.iter().map(|label| label.to_string()).collect(),
    }
}

fn view(credential: &Credential) -> TokenView {
    let role = WireRole::from_text(credential.role.name()).unwrap_or(WireRole::Runner);
    let scope = Some(&credential.scope).filter(|_| role.is_for_agents());
    let zones = scope.into_iter().flat_map(|scope| &scope.zones);
    TokenView {
        token_id: credential.id.to_string(),
        name: credential.name.to_string(),
        role,
        created_at: at(credential.created_at),
        expires_at: credential.expires_at.map(at),
        revoked_at: credential.revoked_at.map(at),
        pool: scope.map(|scope| scope.pool.to_string()),
        zones: zones.map(|zone| zone.to_string()).collect(),
        labels: scope.map_or_else(Vec::new, |scope| label_words(&scope.labels)),
        agent_id: credential.agent.as_deref().map(str::to_owned),
        used_at: credential.used_at.map(at),
        used_by: credential.used_by.as_deref().map(str::to_owned),
        reused_at: credential.reused_at.map(at),
    }
}
