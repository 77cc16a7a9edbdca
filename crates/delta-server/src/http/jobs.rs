//! Jobs: show and cancel.

use axum::extract::{Path, State};
use delta_core::requirement::queue_of;
use delta_core::why::Line;
use delta_core::{Cause, Command, JobId};
use delta_store::StoreError;
use delta_store::read::{JobRows, Reader, RunRows};
use delta_wire::ErrorBody;
use delta_wire::api::{CancelRequest, JobView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, User};
use super::runs::by;
use super::{App, log_view, views};
use crate::audit;
use crate::writer::Lane;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(show_job))
        .routes(routes!(cancel_job))
}

pub(super) fn job_id(text: &str) -> Result<JobId, ApiError> {
    text.parse().map_err(|_| ApiError::not_found("job"))
}

/// A job with everything it left: of one that was kept from an earlier run, while that is there,
/// the one that was executed.
pub(super) fn source(reader: &dyn Reader, id: JobId) -> Result<Option<JobRows>, StoreError> {
    let Some(rows) = reader.job(id)? else {
        return Ok(None);
    };
    let executed = match rows.job.kept {
        Some(kept) => reader.job(kept)?,
        None => None,
    };
    Ok(Some(executed.unwrap_or(rows)))
}

/// A job with its attempts, their leases, why it is where it is, and when it must end.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path)),
    responses((status = 200, body = JobView), (status = 404, body = ErrorBody)))]
async fn show_job(
    State(app): State<App>,
    _who: User,
    Path(id): Path<String>,
) -> Result<axum::Json<JobView>, ApiError> {
    view(&app, job_id(&id)?).await.map(axum::Json)
}

/// What it waits for in a line: the run's turn, or its own.
fn line(reader: &dyn Reader, rows: &JobRows) -> Result<Option<Line>, StoreError> {
    let (run, job) = (&rows.run, &rows.job);
    let (group, id) = match run.waits_for_turn() {
        true => (&run.header.concurrency, run.id.job(0)),
        false if job.waits_for_turn() => (&job.policy.concurrency, job.id),
        false => return Ok(None),
    };
    let Some(group) = group else {
        return Ok(None);
    };
    let members = reader.group(&group.key)?;
    Ok(Some(Line::of(group, &members, id)))
}

async fn view(app: &App, id: JobId) -> Result<JobView, ApiError> {
    let found = app
        .read(move |reader| {
            let (Some(job), Some(run)) = (reader.job(id)?, reader.run(id.run)?) else {
                return Ok(None);
            };
            let current = job.attempts.last().map_or(0, |attempt| attempt.order_key);
            let ahead = reader.ahead(&job.job.policy.requires, current)?;
            let line = line(reader, &job)?;
            Ok(Some((job, run, ahead, line)))
        })
        .await?;
    let (rows, run, ahead, line): (JobRows, RunRows, u64, Option<Line>) =
        found.ok_or_else(|| ApiError::not_found("job"))?;
    let (rows, left) = left_behind(app, rows).await?;
    let mut left = left.into_iter();
    let mut agents = app.presence.agents();
    agents.extend(app.agents.seen());
    let queues = app.queues.all();
    let queue = queue_of(&rows.job.policy.requires).and_then(|name| queues.get(name));
    let around = views::Surroundings {
        settings: &app.writer.shared().settings,
        agents: &agents,
        ahead,
        line,
        paused: queue
            .filter(|it| it.paused.is_some())
            .map(|it| it.name.clone()),
        now: app.writer.now(),
        jobs: &run.jobs,
    };
    Ok(views::job(&rows, &around, |_| {
        left.next().unwrap_or_default()
    }))
}

/// What each attempt left, in their order.
async fn left_behind(app: &App, rows: JobRows) -> Result<(JobRows, Vec<views::Left>), ApiError> {
    app.files(move |objects| {
        let left = rows
            .attempts
            .iter()
            .map(|attempt| log_view::left(objects, &rows, attempt));
        let left = left.collect();
        Ok((rows, left))
    })
    .await
}

/// Ask one job to stop.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", tag = "jobs",
    params(("id" = String, Path)), request_body = CancelRequest,
    responses((status = 200, description = "the job as it is now", body = JobView),
        (status = 404, body = ErrorBody)))]
async fn cancel_job(
    State(app): State<App>,
    Path(id): Path<String>,
    Heard(User(who), body): Heard<User>,
) -> Result<axum::Json<JobView>, ApiError> {
    let job = job_id(&id)?;
    let body = body.without_receipt();
    let request = CancelRequest::parse(&body.bytes)?;
    let command = Command::CancelJob {
        job,
        cause: Cause::CanceledByUser,
        by: by(&who.id, request.reason.as_deref()),
    };
    app.writer.command(Lane::People, body.at, command).await?;
    audit::done("job.cancel", &who, &id);
    view(&app, job).await.map(axum::Json)
}
