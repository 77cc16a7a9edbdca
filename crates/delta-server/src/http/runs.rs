//! Runs: create, list, show, cancel.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use delta_core::why::Line;
use delta_core::{Cause, Command, Digest, Reply, RunId};
use delta_store::read::{RunFilter, RunKind, RunRows};
use delta_wire::api::{CancelRequest, CreateRun, Cursor, ListRuns, RunList, RunView};
use delta_wire::states::JobState;
use delta_wire::{ErrorBody, ErrorCode, Invalid};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, Path, RUN_BYTES, User};
use super::waiting::{self, Sight};
use super::{failures, views};
use crate::app::App;
use crate::audit;
use crate::new_run;
use crate::writer::{Answer, Lane, sha256};

/// Bytes of an idempotency key: room for two UUIDs and a prefix.
pub(super) const MAX_KEY_BYTES: usize = 255;
/// Reruns that are shown with a run: the newest, and more than anybody reads.
const MAX_RERUNS: usize = 20;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create_run, list_runs))
        .routes(routes!(show_run))
        .routes(routes!(cancel_run))
}

/// Make a run with its jobs.
#[utoipa::path(post, path = "/api/v1/runs", tag = "runs",
    request_body = CreateRun,
    params(("Idempotency-Key" = Option<String>, Header,
        description = "The same key with the same body gives the same run")),
    responses(
        (status = 201, description = "the run", body = RunView),
        (status = 409, description = "the key came with another body", body = ErrorBody),
        (status = 422, description = "everything that is wrong", body = ErrorBody),
        (status = 429, description = "come back after Retry-After", body = ErrorBody)))]
async fn create_run(
    State(app): State<App>,
    headers: HeaderMap,
    Heard(User(who), body): Heard<User, RUN_BYTES>,
) -> Result<Response, ApiError> {
    let body = body.without_receipt();
    let request = CreateRun::parse(&body.bytes)?;
    let asked = new_run::Asked {
        idempotency: idempotency(&headers, &who.id, &body.bytes)?,
        by: who.id,
    };
    let id = app.fresh_run_id(body.at);
    let settings = &app.writer.shared().settings;
    let (new, specs) = new_run::new_run(id, &request, asked, settings)?;
    let command = Command::CreateRun(Box::new(new));
    let answer = app.writer.create(body.at, command, specs).await?;
    created(&app, answer).await
}

/// Hashes of the caller's key and of what it came with. One person's key never meets another's.
pub(super) fn idempotency(
    headers: &HeaderMap,
    who: &str,
    request: &[u8],
) -> Result<Option<(Digest, Digest)>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    if text.is_empty() || text.len() > MAX_KEY_BYTES {
        let message = format!("must be 1 to {MAX_KEY_BYTES} plain characters");
        return Err(Invalid::field("Idempotency-Key", message).into());
    }
    let scoped = format!("{who}\n{text}");
    Ok(Some((sha256(scoped.as_bytes()), sha256(request))))
}

/// 201 with the run as it was made, or as it is now when an earlier request made it.
pub(super) async fn created(app: &App, answer: Answer) -> Result<Response, ApiError> {
    let settings = &app.writer.shared().settings;
    let view = match (answer.created, answer.reply) {
        (Some(made), _) => {
            let jobs = made.jobs.into_iter();
            let jobs = jobs.map(|(job, it)| (Arc::unwrap_or_clone(job), Arc::unwrap_or_clone(it)));
            let rows = RunRows {
                run: Arc::unwrap_or_clone(made.run),
                version: 1,
                jobs: jobs.collect(),
            };
            views::run(&rows, settings)
        }
        (None, Reply::Created { run, .. }) => views::run(&find(app, run).await?, settings),
        (None, _) => return Err(ApiError::new(ErrorCode::Internal, "no run was made")),
    };
    let location = format!("/api/v1/runs/{}", view.summary.run_id);
    let headers = [(axum::http::header::LOCATION, location)];
    Ok((StatusCode::CREATED, headers, axum::Json(view)).into_response())
}

pub(super) async fn find(app: &App, id: RunId) -> Result<RunRows, ApiError> {
    let rows = app.read(move |reader| reader.run(id)).await?;
    rows.ok_or_else(|| ApiError::not_found("run"))
}

pub(super) fn run_id(text: &str) -> Result<RunId, ApiError> {
    text.parse().map_err(|_| ApiError::not_found("run"))
}

/// Runs, newest first.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(ListRuns),
    responses((status = 200, body = RunList), (status = 422, body = ErrorBody)))]
async fn list_runs(
    State(app): State<App>,
    _who: User,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<RunList>, ApiError> {
    let pairs = super::query_pairs(query.as_deref())?;
    let list = ListRuns::parse(
        pairs
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    )?;
    let limit = list.limit as usize;
    let filter = filter(&list);
    // One more than asked for tells whether there is a next page.
    let mut runs = app
        .read(move |reader| reader.runs(&filter, limit + 1))
        .await?;
    let more = runs.len() > limit;
    runs.truncate(limit);
    let next = runs.last().filter(|_| more).map(|run| {
        let cursor = Cursor {
            created_at: views::at(run.created_at),
            run: run.id.0.to_be_bytes(),
        };
        cursor.encode()
    });
    let settings = &app.writer.shared().settings;
    Ok(axum::Json(RunList {
        runs: runs
            .iter()
            .map(|run| views::run_summary(run, settings))
            .collect(),
        next_cursor: next,
    }))
}

fn filter(list: &ListRuns) -> RunFilter {
    let text = |text: &Option<String>| text.as_deref().map(Into::into);
    let state = |name: &str| delta_core::RunState::from_name(name);
    RunFilter {
        before: list
            .cursor
            .map(|cursor| RunId(u128::from_be_bytes(cursor.run))),
        state: list.state.and_then(|it| state(it.as_str())),
        outcome: list.outcome.and_then(|it| state(it.as_str())),
        repository: text(&list.repository),
        git_ref: text(&list.git_ref),
        commit: text(&list.commit),
        // Functions are many, and have lists of their own.
        kind: RunKind::Plain,
        queue: None,
        rerun_of: None,
    }
}

/// One run with a line for each job.
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs",
    params(("id" = String, Path)),
    responses((status = 200, body = RunView), (status = 404, body = ErrorBody)))]
async fn show_run(
    State(app): State<App>,
    _who: User,
    Path(id): Path<String>,
) -> Result<axum::Json<RunView>, ApiError> {
    let id = run_id(&id)?;
    let rows = find(&app, id).await?;
    let again = RunFilter {
        rerun_of: Some(id),
        ..RunFilter::default()
    };
    let again = app.read(move |reader| reader.runs(&again, MAX_RERUNS));
    let mut view = detailed(&app, &rows).await?;
    view.reruns = again.await?.iter().map(|run| run.id.to_string()).collect();
    let beside = app.read(move |reader| Ok((reader.report(id)?, reader.approval(id)?)));
    let (report, approval) = beside.await?;
    let untold = report.map(|row| row.why.to_string());
    view.untold = untold.filter(|why| !why.is_empty());
    if let Some(why) = &mut view.summary.why
        && why.code == views::APPROVAL
        && approval.is_some()
    {
        *why = views::planning();
    }
    if rows.run.waits_for_turn()
        && let Some(group) = rows.run.header.concurrency.clone()
    {
        let members = app.read(move |reader| reader.group(&group.key)).await?;
        let group = rows.run.header.concurrency.as_ref();
        let line = group.map(|group| Line::of(group, &members, id.job(0)));
        view.summary.why = line.as_ref().map(views::turn).or(view.summary.why);
    }
    Ok(axum::Json(view))
}

/// A run, its failed jobs with why they failed, and its waiting ones with what they wait for.
async fn detailed(app: &App, rows: &RunRows) -> Result<RunView, ApiError> {
    let mut view = views::run(rows, &app.writer.shared().settings);
    let ended_badly = [JobState::Failed, JobState::Canceled];
    let failed = view.jobs.iter().any(|it| ended_badly.contains(&it.state));
    let waits = waiting::any(&view.jobs);
    if !failed && !waits {
        return Ok(view);
    }
    let (rows, mut jobs) = (rows.clone(), std::mem::take(&mut view.jobs));
    let sight = waits.then(|| Sight::of(app));
    let told = app.read(move |reader| {
        failures::tell(reader, &rows.jobs, &mut jobs)?;
        if let Some(sight) = sight {
            sight.tell(reader, &rows, &mut jobs)?;
        }
        Ok(jobs)
    });
    view.jobs = told.await?;
    Ok(view)
}

/// Ask a run to stop. Repeating it changes nothing.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs",
    params(("id" = String, Path)), request_body = CancelRequest,
    responses((status = 200, description = "the run as it is now", body = RunView),
        (status = 404, body = ErrorBody)))]
async fn cancel_run(
    State(app): State<App>,
    Path(id): Path<String>,
    Heard(User(who), body): Heard<User>,
) -> Result<axum::Json<RunView>, ApiError> {
    let run = run_id(&id)?;
    let body = body.without_receipt();
    let request = CancelRequest::parse(&body.bytes)?;
    let command = Command::CancelRun {
        run,
        cause: Cause::CanceledByUser,
        by: by(&who.id, request.reason.as_deref()),
    };
    app.writer.command(Lane::People, body.at, command).await?;
    audit::done("run.cancel", &who, &id);
    let rows = find(&app, run).await?;
    Ok(axum::Json(views::run(&rows, &app.writer.shared().settings)))
}

/// Who asked, and why if they said so.
pub(super) fn by(who: &str, reason: Option<&str>) -> delta_core::Text {
    match reason {
        Some(reason) => format!("{who}: {reason}").into(),
        None => who.into(),
    }
}
