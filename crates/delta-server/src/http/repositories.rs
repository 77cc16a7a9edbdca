//! Repositories: registered, listed and removed by administrators, run by hand by users. No list,
//! no error and no line of the log has a webhook's secret in it.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use delta_core::Command;
use delta_forge::Ref;
use delta_wire::api::{PutRepository, RepositoryView, RunView, TriggerRun};
use delta_wire::planning::FetchAnswer;
use delta_wire::{ErrorBody, ErrorCode, Invalid};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Admin, Heard, Path, User};
use super::runs::{created, idempotency};
use super::secrets::{not_opened, on_keys};
use super::views::at;
use crate::app::App;
use crate::audit;
use crate::forges::trigger::{Asked, by_hand};
use crate::forges::{self, NotPut, Registered};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(put_repository, list_repositories))
        .routes(routes!(remove_repository))
        .routes(routes!(trigger_run))
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
        let registered = match forges::put(&app.sides, keys, &request, &by, body.at) {
            Ok(registered) => registered,
            Err(error) => return Ok(Err(not_put(error))),
        };
        let warnings = registered.unset(&*app.sides.reader, keys)?;
        Ok(Ok((registered, warnings)))
    });
    let (registered, warnings) = put.await??;
    audit::done("repository.put", &who, &registered.row.name);
    let view = view(&app, &registered);
    Ok(axum::Json(RepositoryView { warnings, ..view }))
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
    Ok(axum::Json(read.map(|it| view(&app, &it)).collect()))
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
        .write(move |tables| tables.remove_repository(&wanted))
        .await?;
    if !gone {
        return Err(ApiError::not_found("repository"));
    }
    audit::done("repository.remove", &who, &name);
    Ok(StatusCode::NO_CONTENT)
}

/// Plan what a ref of the repository is now, and run it.
#[utoipa::path(post, path = "/api/v1/repositories/{name}/runs", tag = "repositories",
    params(("name" = String, Path),
        ("Idempotency-Key" = Option<String>, Header,
            description = "The same key with the same body gives the same run")),
    request_body = TriggerRun,
    responses((status = 201, description = "the run, which waits for its plan", body = RunView),
        (status = 404, body = ErrorBody),
        (status = 409, description = "the ref is not there, or cannot be looked at",
            body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn trigger_run(
    State(app): State<App>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Heard(User(who), body): Heard<User>,
) -> Result<Response, ApiError> {
    let body = body.without_receipt();
    let request = TriggerRun::parse(&body.bytes)?;
    let git_ref = if request.git_ref.starts_with("refs/") {
        request.git_ref.clone()
    } else {
        format!("refs/heads/{}", request.git_ref)
    };
    let git_ref = Ref::parse(&git_ref).map_err(|why| Invalid::field("ref", why.to_string()))?;
    let Some(fetching) = app.fetching.get() else {
        let message = "this server makes no plans";
        return Err(ApiError::new(ErrorCode::Conflict, message));
    };
    let wanted = name.clone();
    let found = on_keys(&app, move |app, keys| {
        let Some(registered) = forges::find(&*app.sides.reader, &wanted)? else {
            return Ok(None);
        };
        let credential = match &registered.credential {
            Some(name) => registered.secret(&*app.sides.reader, keys, name)?,
            None => None,
        };
        Ok(Some((registered, credential)))
    });
    let found = found.await?;
    let (registered, credential) = found.ok_or_else(|| ApiError::not_found("repository"))?;
    let looked = fetching.look(&registered, credential, git_ref.as_str());
    let commit = match looked.await {
        FetchAnswer::Fetched { commit, .. } => commit,
        FetchAnswer::Failed(why) => {
            let message = format!("{} cannot be run: {why}", git_ref.as_str());
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
    };
    // The address is part of the request: the same key for another repository is another one.
    let said = [name.as_bytes(), b"\n", &body.bytes].concat();
    let new = by_hand(Asked {
        registered: &registered,
        git_ref: git_ref.as_str(),
        commit: &commit,
        inputs: request.inputs,
        idempotency: idempotency(&headers, &who.id, &said)?,
        by: who.id.clone(),
        id: app.fresh_run_id(body.at),
        settings: &app.writer.shared().settings,
    });
    let command = Command::CreateRun(Box::new(new));
    let answer = app.writer.create(body.at, command, Vec::new()).await?;
    audit::done("repository.run", &who, &name);
    app.planning.notify_one();
    created(&app, answer).await
}

fn view(app: &App, it: &Registered) -> RepositoryView {
    let webhook_path = format!("/api/v1/webhooks/{}", it.row.name);
    let base = app.public_url.as_deref().map(|it| it.trim_end_matches('/'));
    RepositoryView {
        webhook_url: base.map(|base| format!("{base}{webhook_path}")),
        warnings: Vec::new(),
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
        webhook_path,
        created_at: at(it.row.created_at),
        updated_at: at(it.row.updated_at),
        updated_by: it.row.updated_by.to_string(),
    }
}
