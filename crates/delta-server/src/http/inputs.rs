//! Inputs of a job: the artifacts of the jobs it needs, for the holder of its lease alone.
//!
//! A job sees what its needs of the same run left, so it is of the same trust. Of a rerun
//! the artifacts of jobs that were kept are those of the run they were kept from.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use delta_core::rights::Right;
use delta_core::{Attempt, Job, JobId, Resolution};
use delta_store::StoreError;
use delta_store::read::Reader;
use delta_wire::ErrorBody;
use delta_wire::api::{ArtifactView, InputArtifact, InputList};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::artifacts::{self, left, left_one, serve};
use super::error::ApiError;
use super::extract::{Caller, Path, Runner};
use super::recheck::LeaseVigil;
use super::uploads::{held_for, lease_header};
use crate::app::App;
use crate::objects::UploadId;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_inputs))
        .routes(routes!(show_input))
}

/// The artifacts of the jobs that this one needs.
#[utoipa::path(get, path = "/api/v1/runner/jobs/{id}/inputs", tag = "runner",
    params(("id" = String, Path), ("Delta-Lease" = String, Header)),
    responses((status = 200, body = InputList),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld"))))]
async fn list_inputs(
    State(app): State<App>,
    Runner(who): Runner,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let needed = match needed_by(&app, &who, &id, &headers).await? {
        Ok(needed) => needed,
        Err(answer) => return Ok(answer),
    };
    let list = app.files(move |objects| {
        let mut inputs = Vec::new();
        for (job, attempt) in &needed {
            let own = left(objects, attempt)?.into_iter();
            inputs.extend(own.filter_map(|(id, view)| input(id?, job, view)));
        }
        Ok(InputList {
            inputs,
            // Where the executed job is there, it stands here in place of the kept one.
            deleted: names(&needed, |job| job.kept.is_some()),
            not_succeeded: names(&needed, |job| job.resolution != Some(Resolution::Succeeded)),
        })
    });
    Ok(axum::Json(list.await?).into_response())
}

fn names(needed: &[(Job, Attempt)], is_meant: impl Fn(&Job) -> bool) -> Vec<String> {
    let jobs = needed.iter().map(|(job, _)| job);
    let meant = jobs.filter(|job| is_meant(job));
    meant.map(|job| job.name.to_string()).collect()
}

/// The bytes of one of them.
#[utoipa::path(get, path = "/api/v1/runner/jobs/{id}/inputs/{artifact}", tag = "runner",
    params(("id" = String, Path), ("artifact" = String, Path, description = "its `id` in the list"),
        ("Delta-Lease" = String, Header)),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 404, body = ErrorBody),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld"))))]
async fn show_input(
    State(app): State<App>,
    Runner(who): Runner,
    Path((id, artifact)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let needed = match needed_by(&app, &who, &id, &headers).await? {
        Ok(needed) => needed,
        Err(answer) => return Ok(answer),
    };
    // An id says whose it is, so that of many only this one is looked at.
    let missing = || ApiError::not_found("input");
    let id: UploadId = artifact.parse().map_err(|()| missing())?;
    let mut needed = needed.into_iter();
    let of = needed.find(|(_, attempt)| attempt.id == id.lease.attempt);
    let (job, attempt) = of.ok_or_else(missing)?;
    let found = app.files(move |objects| {
        let view = left_one(objects, &attempt, id)?;
        Ok(view.and_then(|view| input(id, &job, view)))
    });
    let input = found.await?.ok_or_else(missing)?;
    let kept = artifacts::Kept {
        id,
        name: input.name,
        size: input.size,
        sha256: input.sha256,
    };
    let vigil = LeaseVigil::new(&app, lease_header(&headers)?, &who, Right::Artifact);
    serve(&app, &kept, &headers, Some(vigil)).await
}

fn input(id: UploadId, job: &Job, view: ArtifactView) -> Option<InputArtifact> {
    Some(InputArtifact {
        id: id.to_string(),
        job: job.name.to_string(),
        name: view.name?,
        size: view.size?,
        sha256: view.sha256?,
    })
}

type Needed = Vec<(Job, Attempt)>;

async fn needed_by(
    app: &App,
    who: &Caller,
    id: &str,
    headers: &HeaderMap,
) -> Result<Result<Needed, Response>, ApiError> {
    let job = match held_for(app, who, id, headers, Right::Artifact).await? {
        Ok(held) => held.key.attempt.job,
        Err(answer) => return Ok(Err(answer)),
    };
    Ok(Ok(app.read(move |reader| needed(reader, job)).await?))
}

/// The jobs that a job needs, each with the attempt that ended it. Of a kept job whose run
/// retention deleted there is only the kept one, which left nothing itself.
fn needed(reader: &dyn Reader, job: JobId) -> Result<Needed, StoreError> {
    let Some(rows) = reader.run(job.run)? else {
        return Ok(Needed::new());
    };
    let consumer = rows.jobs.iter().find(|(it, _)| it.id == job);
    let Some(policy) = consumer.map(|(it, _)| it.policy.clone()) else {
        return Ok(Needed::new());
    };
    let needs = rows.jobs.into_iter();
    let needs = needs.filter(|(it, _)| policy.needs.contains(&it.id.n));
    artifacts::sources(reader, needs.collect())
}
