//! Jobs: show and cancel.

use axum::extract::{RawQuery, State};
use delta_core::{Attempt, Cause, Command, JobId, RunId, RunState, rights};
use delta_store::StoreError;
use delta_store::read::{JobRows, Reader, RunFilter, RunKind, RunRows};
use delta_wire::api::{CancelRequest, FailedNeed, FailureView, JobSummary, JobView, NamedJobs};
use delta_wire::states::JobState;
use delta_wire::{ErrorBody, Invalid};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, Path, User};
use super::runs::by;
use super::waiting::{self, Groups, InLine, Sight};
use super::{failures, log_view, views};
use crate::app::App;
use crate::audit;
use crate::writer::Lane;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(find_jobs))
        .routes(routes!(show_job))
        .routes(routes!(cancel_job))
}

/// Runs that are looked through for a job of a name, from the newest on: what people mean by a name
/// alone is recent, and each run is a read.
const LOOKED_THROUGH: usize = 100;
/// States of a run in which it may have jobs that have not ended.
const AT_WORK: [RunState; 3] = [
    RunState::Queued,
    RunState::Running,
    RunState::CancelRequested,
];
/// Characters of a name.
const MAX_NAME: usize = 1024;

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

/// Which jobs are asked for.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described; the query is read strictly")]
struct FindJobs {
    /// The job's name, or that of its matrix.
    #[param(min_length = 1, max_length = 1024)]
    name: String,
}

/// Jobs of a name, in the newest run that has any.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", params(FindJobs),
    responses((status = 200, description = "the jobs, or none", body = NamedJobs),
        (status = 422, description = "a parameter that is wrong", body = ErrorBody)))]
async fn find_jobs(
    State(app): State<App>,
    _who: User,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<NamedJobs>, ApiError> {
    let pairs = super::query_pairs(query.as_deref())?;
    let name = match pairs.as_slice() {
        [(key, value)] if key == "name" => value.clone(),
        [] => return Err(Invalid::missing("name").into()),
        _ => return Err(Invalid::field("name", "is the only parameter, and given once").into()),
    };
    if name.is_empty() || name.chars().count() > MAX_NAME {
        let message = format!("must have 1 to {MAX_NAME} characters");
        return Err(Invalid::field("name", message).into());
    }
    let found = app.read(move |reader| named(reader, &name)).await?;
    Ok(axum::Json(found))
}

fn named(reader: &dyn Reader, name: &str) -> Result<NamedJobs, StoreError> {
    let filter = RunFilter {
        kind: RunKind::Plain,
        ..RunFilter::default()
    };
    let mut looked_at = 0;
    for run in reader.runs(&filter, LOOKED_THROUGH)? {
        looked_at += 1;
        let Some(rows) = reader.run(run.id)? else {
            continue;
        };
        let jobs = called(&rows, name);
        if !jobs.is_empty() {
            return Ok(NamedJobs {
                run_id: Some(run.id.to_string()),
                created_at: Some(views::at(run.created_at)),
                jobs,
                unfinished: unfinished(reader, name, run.id)?,
                looked_at,
            });
        }
    }
    Ok(NamedJobs {
        looked_at,
        ..NamedJobs::default()
    })
}

/// Jobs of this name that have not ended, in other runs than this one, the newest first.
fn unfinished(
    reader: &dyn Reader,
    name: &str,
    other_than: RunId,
) -> Result<Vec<JobSummary>, StoreError> {
    let mut runs = Vec::new();
    // The outcome of a run may be fixed while jobs of it go on; such a run is recent.
    for state in AT_WORK.into_iter().map(Some).chain([None]) {
        let filter = RunFilter {
            kind: RunKind::Plain,
            state,
            ..RunFilter::default()
        };
        runs.extend(reader.runs(&filter, LOOKED_THROUGH)?);
    }
    runs.retain(|run| run.live_jobs > 0);
    runs.sort_by_key(|run| std::cmp::Reverse(run.id));
    runs.dedup_by_key(|run| run.id);
    runs.truncate(LOOKED_THROUGH);
    let mut found = Vec::new();
    for run in runs.iter().filter(|run| run.id != other_than) {
        let rows = reader.run(run.id)?;
        let jobs = rows.map_or(vec![], |rows| called(&rows, name));
        let over = [JobState::Succeeded, JobState::Failed, JobState::Canceled];
        found.extend(jobs.into_iter().filter(|job| !over.contains(&job.state)));
    }
    Ok(found)
}

/// The job of exactly this name, or else the cells of a matrix of it: `unit (os=linux)`.
fn called(rows: &RunRows, name: &str) -> Vec<JobSummary> {
    let of = |is: &dyn Fn(&str) -> bool| -> Vec<JobSummary> {
        let jobs = rows.jobs.iter().filter(|(job, _)| is(&job.name));
        jobs.map(|(job, current)| views::summary(job, current))
            .collect()
    };
    let exactly = of(&|it| it == name);
    if exactly.is_empty() {
        of(&|it| {
            it.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(" ("))
        })
    } else {
        exactly
    }
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

/// What is read of a job for its view.
struct Found {
    rows: JobRows,
    run: RunRows,
    place: InLine,
    failure: Option<FailureView>,
    failed_needs: Vec<FailedNeed>,
}

fn found(reader: &dyn Reader, id: JobId) -> Result<Option<Found>, StoreError> {
    let (Some(rows), Some(run)) = (reader.job(id)?, reader.run(id.run)?) else {
        return Ok(None);
    };
    let last = rows.attempts.last();
    let current = last.map_or(0, |attempt| attempt.order_key);
    let place = InLine {
        ahead: reader.ahead(&rows.job.policy.requires, current)?,
        line: Groups::default().line(reader, &rows.run, &rows.job)?,
        holder_revoked: holder_revoked(reader, last)?,
    };
    let failure = last.map(|attempt| failures::in_full(reader, &rows.job, attempt));
    let failure = failure.transpose()?.flatten();
    let failed_needs = failures::needs(&rows.job, &run.jobs);
    Ok(Some(Found {
        rows,
        run,
        place,
        failure,
        failed_needs,
    }))
}

/// Whether the agent that holds this attempt was revoked.
fn holder_revoked(reader: &dyn Reader, attempt: Option<&Attempt>) -> Result<bool, StoreError> {
    let lease = attempt.and_then(|it| it.lease.as_ref());
    let live = lease.filter(|it| it.state.is_live());
    let Some(agent) = live.and_then(|it| rights::agent_of(&it.runner)) else {
        return Ok(false);
    };
    let row = reader.agent(agent)?;
    Ok(row.is_some_and(|it| it.revoked_at.is_some()))
}

async fn view(app: &App, id: JobId) -> Result<JobView, ApiError> {
    let found = app.read(move |reader| found(reader, id)).await?;
    let found = found.ok_or_else(|| ApiError::not_found("job"))?;
    let (rows, left) = left_behind(app, found.rows).await?;
    let mut left = left.into_iter();
    let around = views::Surroundings {
        settings: &app.writer.shared().settings,
        sight: &Sight::of(app),
        place: found.place,
        jobs: &waiting::by_number(&found.run.jobs),
    };
    let view = views::job(&rows, around, |_| left.next().unwrap_or_default());
    Ok(JobView {
        failure: found.failure.map(Box::new),
        failed_needs: found.failed_needs,
        ..view
    })
}

/// What each attempt left, in their order.
async fn left_behind(app: &App, rows: JobRows) -> Result<(JobRows, Vec<views::Left>), ApiError> {
    let left = app.files(move |objects| {
        let left = rows
            .attempts
            .iter()
            .map(|attempt| log_view::left(objects, &rows, attempt));
        let left = left.collect();
        Ok((rows, left))
    });
    Ok(left.await?)
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
