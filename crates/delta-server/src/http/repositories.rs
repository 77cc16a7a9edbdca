//! Repositories: registered, listed and removed by administrators. No list, no error and no line of
//! the log has a webhook's secret in it.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use delta_wire::api::{PutRepository, RepositoryView};
use delta_wire::{ErrorBody, ErrorCode, Invalid};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::error::ApiError;
use super::extract::{Admin, Heard, User};
use super::secrets::{not_opened, on_keys};
use super::views::at;
use crate::audit;
use crate::forges::{self, NotPut, Registered};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(put_repository, list_repositories))
        .routes(routes!(remove_repository))
}

/// Register a repository, or change it.
#[utoipa::path(post, path = "/api/v1/repositories", tag = "repositories",
    request_body = PutRepository,
    responses((status = 200, description = "everything but its secret", body = RepositoryView),
        (status = 409, description = "the server has no key", body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn put_repository(
    State(app): State<App>,
    Heard(Admin(who), body): Heard<Admin>,
) -> Result<axum::Json<RepositoryView>, ApiError> {
    let body = body.without_receipt();
    let request = PutRepository::parse(&body.bytes)?;
    let by = who.id.clone();
    let put = on_keys(&app, move |app, keys| {
        let put = forges::put(&*app.reader, keys, &request, &by, body.at);
        Ok(put.map_err(not_put))
    });
    let registered = put.await??;
    audit::done("repository.put", &who, &registered.row.name);
    Ok(axum::Json(view(&registered)))
}

fn not_put(error: NotPut) -> ApiError {
    match error {
        NotPut::Wrong { field, why } => Invalid::field(field, why).into(),
        NotPut::TooMany => ApiError::new(ErrorCode::Conflict, error.to_string()),
        NotPut::Secret(error) => not_opened(error),
    }
}

/// Every repository, without its secret.
#[utoipa::path(get, path = "/api/v1/repositories", tag = "repositories",
    responses((status = 200, body = Vec<RepositoryView>)))]
async fn list_repositories(
    State(app): State<App>,
    _who: User,
) -> Result<axum::Json<Vec<RepositoryView>>, ApiError> {
    let rows = app.read(|reader| reader.repositories()).await?;
    let read = rows.into_iter().filter_map(|row| {
        let read = Registered::read(row);
        read.inspect_err(|why| tracing::error!(why, "a repository cannot be shown"))
            .ok()
    });
    Ok(axum::Json(read.map(|it| view(&it)).collect()))
}

/// Remove a repository: its deliveries are refused from now on. Its runs stay.
#[utoipa::path(delete, path = "/api/v1/repositories/{name}", tag = "repositories",
    params(("name" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
async fn remove_repository(
    State(app): State<App>,
    Admin(who): Admin,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let wanted = name.clone();
    let gone = app
        .read(move |reader| reader.remove_repository(&wanted))
        .await?;
    if !gone {
        return Err(ApiError::not_found("repository"));
    }
    audit::done("repository.remove", &who, &name);
    Ok(StatusCode::NO_CONTENT)
}

fn view(it: &Registered) -> RepositoryView {
    RepositoryView {
        name: it.row.name.to_string(),
        clone_url: it.row.clone_url.to_string(),
        forge: it.forge(),
        api: it.site.api().to_owned(),
        project: it.site.project(),
        token: it.token.clone(),
        credential: it.credential.clone(),
        forks: it.forks,
        supersede: it.supersede,
        notify_url: it.notify.as_ref().map(|it| it.url.clone()),
        notify_secret: it.notify.as_ref().map(|it| it.secret.clone()),
        webhook_path: format!("/api/v1/webhooks/{}", it.row.name),
        created_at: at(it.row.created_at),
        updated_at: at(it.row.updated_at),
        updated_by: it.row.updated_by.to_string(),
    }
}
