//! Jobs: show and cancel.

use axum::extract::{Path, State};
use delta_core::{Cause, Command, JobId};
use delta_store::read::{JobRows, RunRows};
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

async fn view(app: &App, id: JobId) -> Result<JobView, ApiError> {
    let found = app
        .read(move |reader| {
            let (Some(job), Some(run)) = (reader.job(id)?, reader.run(id.run)?) else {
                return Ok(None);
            };
            let current = job.attempts.last().map_or(0, |attempt| attempt.order_key);
            let ahead = reader.ahead(&job.job.policy.requires, current)?;
            Ok(Some((job, run, ahead)))
        })
        .await?;
    let (rows, run, ahead): (JobRows, RunRows, u64) =
        found.ok_or_else(|| ApiError::not_found("job"))?;
    let (rows, left) = left_behind(app, rows).await?;
    let mut left = left.into_iter();
    let mut agents = app.presence.agents();
    agents.extend(app.agents.seen());
    let around = views::Surroundings {
        settings: &app.writer.shared().settings,
        agents: &agents,
        ahead,
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
