//! Running something again (SM-3): a new run with its own id and `run_attempt + 1`; the old one
//! stays as it is. What is not run again is kept: it is in the new run what it came to in the old.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use delta_core::command::{Kept, NewJob, NewRun};
use delta_core::{Command, Digest, Job, JobId, Resolution, Text};
use delta_store::read::RunRows;
use delta_wire::api::{RerunRequest, RunView};
use delta_wire::nearest::nearest;
use delta_wire::{ErrorBody, ErrorCode, Invalid};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, Path, User};
use super::functions::Judged;
use super::runs::{created, find, idempotency, run_id};
use crate::app::App;
use crate::audit;

/// Names that a refusal lists: enough to see a slip of the finger, not a thousand.
const MAX_NAMES: usize = 20;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(rerun_run))
}

/// Run it again: all of it, what did not succeed, or one job.
#[utoipa::path(post, path = "/api/v1/runs/{id}/rerun", tag = "runs",
    params(("id" = String, Path)), request_body = RerunRequest,
    responses((status = 201, description = "the new run", body = RunView),
        (status = 404, body = ErrorBody),
        (status = 409, description = "it has not ended", body = ErrorBody)))]
async fn rerun_run(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Heard(User(who), body): Heard<User>,
) -> Result<Response, ApiError> {
    let old = run_id(&id)?;
    let body = body.without_receipt();
    let request = RerunRequest::parse(&body.bytes)?;
    let rows = find(&app, old).await?;
    if !rows.run.state.has_ended() || rows.run.live_jobs > 0 {
        let message = "the run has not ended; cancel it or wait for it first";
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    // What was never planned is planned again.
    let unplanned = rows.jobs.is_empty() && rows.run.header.trigger.is_some();
    let chosen = match (unplanned, &request.job) {
        (true, Some(name)) => {
            let why = "it has none, because it was not planned; without `job` it is planned again";
            let why = format!("`{name}` is no job of this run: {why}");
            return Err(Invalid::field("job", why).into());
        }
        (true, None) => BTreeSet::new(),
        (false, _) => choose(&rows, &request)?,
    };
    let jobs: Vec<JobId> = rows.jobs.iter().map(|(job, _)| job.id).collect();
    let specs = app.read(move |reader| {
        let specs = jobs.iter().map(|id| reader.spec(*id));
        specs.collect::<Result<Option<Vec<Arc<str>>>, _>>()
    });
    let specs = specs.await?.ok_or_else(|| ApiError::not_found("run"))?;
    // The address is part of the request: the same key for another run is another request.
    let said = [id.as_bytes(), b"\n", &body.bytes].concat();
    let key = idempotency(&headers, &who.id, &said)?;
    let mut new = again(&rows, &chosen, who.id.clone(), key);
    new.id = app.fresh_run_id(body.at);
    new.header.unjudged = is_unjudged(&app, &rows).await?;
    if unplanned {
        new.jobs = None;
    }
    let command = Command::CreateRun(Box::new(new));
    let answer = app.writer.create(body.at, command, specs).await?;
    audit::done("run.rerun", &who, &id);
    app.planning.notify_one();
    created(&app, answer).await
}

/// Whether it is a call whose runner nobody has now: it is judged again when some have had time to
/// come, and not here (RQ-45).
async fn is_unjudged(app: &App, rows: &RunRows) -> Result<bool, ApiError> {
    let (Some((job, _)), true) = (rows.jobs.first(), rows.run.header.queue.is_some()) else {
        return Ok(false);
    };
    let nobody = app.known_runners.is_none(app).await?;
    Ok(nobody || Judged::default().is_hopeless(app, &job.name).await?)
}

/// Numbers of the jobs to run again: those asked for, those that need them, and needs of theirs
/// that did not end well: nothing runs on a need that was never met.
fn choose(rows: &RunRows, request: &RerunRequest) -> Result<BTreeSet<u32>, ApiError> {
    let jobs = || rows.jobs.iter().map(|(job, _)| job);
    let wanted: Vec<u32> = if request.failed_only {
        let lost = jobs().filter(|job| job.resolution != Some(Resolution::Succeeded));
        lost.map(|job| job.id.n).collect()
    } else if let Some(name) = &request.job {
        let named = |job: &&Job| *job.name == **name || job.id.to_string() == *name;
        let job = jobs().find(named);
        let job = job.ok_or_else(|| {
            let known: Vec<&str> = jobs().map(|job| &*job.name).collect();
            let why = match nearest(name, known.iter().copied()) {
                Some(meant) => format!("`{name}` is no job of this run; did you mean `{meant}`?"),
                None => {
                    let names = known[..known.len().min(MAX_NAMES)].join(", ");
                    format!("`{name}` is no job of this run; it has {names}")
                }
            };
            Invalid::field("job", why)
        })?;
        vec![job.id.n]
    } else {
        jobs().map(|job| job.id.n).collect()
    };
    if wanted.is_empty() {
        return Err(ApiError::new(
            ErrorCode::Conflict,
            "every job of the run succeeded",
        ));
    }
    let by_number: BTreeMap<u32, &Job> = jobs().map(|job| (job.id.n, job)).collect();
    let unmet = |n: &u32| by_number.get(n).is_some_and(|need| !need.meets_needs());
    let (mut chosen, mut open) = (BTreeSet::new(), wanted);
    while let Some(n) = open.pop() {
        let (true, Some(job)) = (chosen.insert(n), by_number.get(&n)) else {
            continue;
        };
        open.extend(job.dependents.iter());
        open.extend(job.policy.needs.iter().copied().filter(unmet));
    }
    Ok(chosen)
}

/// The jobs of the old run under their old numbers. Those that are not chosen are kept: they are
/// in the new run what they came to in the old one, good or bad, so that its outcome is that of
/// all jobs.
fn again(
    rows: &RunRows,
    chosen: &BTreeSet<u32>,
    by: Text,
    idempotency: Option<(Digest, Digest)>,
) -> NewRun {
    let kept = |job: &Job| {
        let resolution = job.resolution.filter(|_| !chosen.contains(&job.id.n))?;
        Some(Kept {
            job: job.source(),
            resolution,
            cause: job.cause,
        })
    };
    let jobs = rows.jobs.iter().map(|(job, _)| NewJob {
        name: job.name.clone(),
        policy: (*job.policy).clone(),
        spec: job.spec,
        kept: kept(job),
    });
    let jobs: Vec<NewJob> = jobs.collect();
    let mut header = rows.run.header.clone();
    header.run_attempt += 1;
    header.rerun_of = Some(rows.run.id);
    header.created_by = by;
    header.idempotency = idempotency;
    // What keeps a delivery from making two runs does not keep a person from a second one.
    header.unique = None;
    // A failure that is kept is known: it is no reason to stop what was asked for.
    let lost = |job: &NewJob| {
        let kept = job.kept.map(|it| it.resolution);
        job.policy.required && kept.is_some_and(|it| it != Resolution::Succeeded)
    };
    header.fail_fast &= !jobs.iter().any(lost);
    NewRun {
        id: rows.run.id,
        header,
        jobs: Some(jobs),
    }
}
