//! Secrets: set, listed and removed by administrators, and handed to the holder of a lease. No
//! list, no error and no line of the log has a value in it.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_core::rights::Right;
use delta_core::{Millis, Text};
use delta_store::secrets::{SecretAbout, SecretId, SecretPlace};
use delta_wire::api::{
    FetchSecrets, SecretKind, SecretValues, SecretView, SecretsRotated, SetSecret,
};
use delta_wire::{ErrorBody, ErrorCode, Invalid};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Admin, Heard, Path, Runner};
use super::uploads::{held, lease_header};
use super::views::at;
use super::{internal, query_pairs};
use crate::app::App;
use crate::audit;
use crate::secrets::{self, Fetched, Keyring, NotGranted, SecretError};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(set_secret, list_secrets))
        .routes(routes!(rotate_secrets))
        .routes(routes!(remove_secret))
        .routes(routes!(fetch_secrets))
}

/// Set a secret, or replace its value.
#[utoipa::path(post, path = "/api/v1/secrets", tag = "secrets", request_body = SetSecret,
    responses((status = 200, description = "everything but the value", body = SecretView),
        (status = 409, description = "the server has no key", body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn set_secret(
    State(app): State<App>,
    Heard(Admin(who), body): Heard<Admin>,
) -> Result<axum::Json<SecretView>, ApiError> {
    let body = body.without_receipt();
    let request = SetSecret::parse(&body.bytes)?;
    let by = who.id.clone();
    let written = on_keys(&app, move |app, keys| {
        secrets::set(&app.sides, keys, &request, &by, body.at)
    });
    let written = written.await?;
    audit::done("secret.set", &who, &place(&written.id));
    Ok(axum::Json(view(&written)))
}

/// Every secret, without its value.
#[utoipa::path(get, path = "/api/v1/secrets", tag = "secrets",
    responses((status = 200, body = Vec<SecretView>)))]
async fn list_secrets(
    State(app): State<App>,
    _who: Admin,
) -> Result<axum::Json<Vec<SecretView>>, ApiError> {
    let all = app.read(|reader| reader.secrets()).await?;
    Ok(axum::Json(all.iter().map(view).collect()))
}

/// Remove a secret: jobs that name it fail from now on.
#[utoipa::path(delete, path = "/api/v1/secrets/{name}", tag = "secrets",
    params(("name" = String, Path), ("repository" = Option<String>, Query),
        ("branch" = Option<String>, Query), ("environment" = Option<String>, Query)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
async fn remove_secret(
    State(app): State<App>,
    Admin(who): Admin,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ApiError> {
    let mut id = SecretId {
        name: name.into(),
        repository: "".into(),
        branch: "".into(),
        environment: "".into(),
    };
    for (key, value) in query_pairs(query.as_deref())? {
        match key.as_str() {
            "repository" => id.repository = value.into(),
            "branch" => id.branch = value.into(),
            "environment" => id.environment = value.into(),
            other => return Err(Invalid::field(other, "is not a known parameter").into()),
        }
    }
    let wanted = id.clone();
    let gone = app
        .write(move |tables| tables.remove_secret(&wanted))
        .await?;
    if !gone {
        return Err(ApiError::not_found("secret"));
    }
    audit::done("secret.remove", &who, &place(&id));
    Ok(StatusCode::NO_CONTENT)
}

/// Seal every secret anew with the first key.
#[utoipa::path(post, path = "/api/v1/secrets/rotate", tag = "secrets",
    responses((status = 200, body = SecretsRotated),
        (status = 409, description = "a key is missing", body = ErrorBody)))]
async fn rotate_secrets(
    State(app): State<App>,
    Admin(who): Admin,
) -> Result<axum::Json<SecretsRotated>, ApiError> {
    let now: Millis = app.writer.now();
    let rotated = on_keys(&app, move |app, keys| {
        let (rotated, all) = secrets::rotate(&app.sides, keys, now)?;
        Ok(SecretsRotated {
            rotated,
            secrets: all,
            key_id: keys.first()?.id.to_string(),
        })
    });
    let rotated = rotated.await?;
    audit::done("secret.rotate", &who, &rotated.key_id);
    Ok(axum::Json(rotated))
}

/// The values of secrets that the job of a lease names. Only while the lease is live and
/// acknowledged, only names of the job's policy, and never for an untrusted run.
#[utoipa::path(post, path = "/api/v1/runner/secrets", tag = "runner",
    params(("Delta-Lease" = String, Header)), request_body = FetchSecrets,
    responses((status = 200, body = SecretValues),
        (status = 403, description = "the job may not have it", body = ErrorBody),
        (status = 404, description = "no such secret for this job", body = ErrorBody),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld"))))]
async fn fetch_secrets(
    State(app): State<App>,
    headers: HeaderMap,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let body = body.without_receipt();
    let token = lease_header(&headers)?;
    let wanted = FetchSecrets::parse(&body.bytes)?;
    let names: Vec<Text> = wanted.names.iter().map(|it| it.as_str().into()).collect();
    let held = match held(&app, &token, &who, None, Right::Secrets).await? {
        Ok(held) => held,
        Err(answer) => return Ok(answer),
    };
    let (run, policy) = (held.rows.run.header.clone(), held.rows.job.policy.clone());
    if let Err(why) = secrets::may_fetch(&run, &policy, &names) {
        audit::secrets("secret.refused", &who, held.key, &names);
        return Err(not_granted(why));
    }
    let asked = names.clone();
    let fetched = on_keys(&app, move |app, keys| {
        let place = SecretPlace {
            repository: run.repository.as_deref().unwrap_or_default(),
            branch: secrets::branch_of(&run),
            environment: policy.environment.as_deref().unwrap_or_default(),
        };
        secrets::fetch(&*app.sides.reader, keys, &asked, place)
    });
    match fetched.await? {
        Fetched::All(secrets) => {
            audit::secrets("secret.read", &who, held.key, &names);
            let uncached = [(header::CACHE_CONTROL, "no-store")];
            Ok((uncached, axum::Json(SecretValues { secrets })).into_response())
        }
        Fetched::Missing(name) => {
            audit::secrets(
                "secret.missing",
                &who,
                held.key,
                std::slice::from_ref(&name),
            );
            let message = format!(
                "the secret {name} is not set for this job's repository, branch and environment"
            );
            Err(ApiError::new(ErrorCode::NotFound, message).at("names"))
        }
    }
}

fn not_granted(why: NotGranted) -> ApiError {
    let message = match why {
        NotGranted::Untrusted => "an untrusted run gets no secrets".to_owned(),
        NotGranted::NotNamed(name) => format!("the job does not name the secret {name}"),
    };
    ApiError::new(ErrorCode::Forbidden, message).at("names")
}

/// Works with the keys and the store, off the async threads.
pub(super) async fn on_keys<T: Send + 'static>(
    app: &App,
    work: impl FnOnce(&App, &Keyring) -> Result<T, SecretError> + Send + 'static,
) -> Result<T, ApiError> {
    let app = app.clone();
    let done = tokio::task::spawn_blocking(move || work(&app, &app.secret_keys)).await;
    let done = done.map_err(|error| internal("work on secrets failed", &error))?;
    done.map_err(not_opened)
}

pub(super) fn not_opened(error: SecretError) -> ApiError {
    let message = error.to_string();
    match error {
        SecretError::Store(error) => error.into(),
        SecretError::NoKey | SecretError::TooMany => ApiError::new(ErrorCode::Conflict, message),
        SecretError::Busy => ApiError::new(ErrorCode::Unavailable, message),
        // Nothing but a person helps here, so it is said and not only logged.
        SecretError::OtherKey { .. } | SecretError::Damaged(_) | SecretError::Seal => {
            tracing::error!(%error, "a secret cannot be opened");
            ApiError::new(ErrorCode::Internal, message)
        }
    }
}

fn view(about: &SecretAbout) -> SecretView {
    let some = |text: &Text| (!text.is_empty()).then(|| text.to_string());
    SecretView {
        name: about.id.name.to_string(),
        repository: some(&about.id.repository),
        branch: some(&about.id.branch),
        environment: some(&about.id.environment),
        kind: SecretKind::from_text(&about.kind).unwrap_or(SecretKind::Plain),
        created_at: at(about.created_at),
        updated_at: at(about.updated_at),
        updated_by: about.updated_by.to_string(),
        key_id: about.key.to_string(),
    }
}

/// A secret and what it is good for, in one line.
fn place(id: &SecretId) -> String {
    let mut line = id.name.to_string();
    for (word, value) in [
        ("repository", &id.repository),
        ("branch", &id.branch),
        ("environment", &id.environment),
    ] {
        if !value.is_empty() {
            line.push_str(&format!(" {word}={value}"));
        }
    }
    line
}
