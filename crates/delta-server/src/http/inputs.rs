//! Inputs of a job: the artifacts of the jobs it needs, for the holder of its lease alone.
//!
//! A job sees what its needs of the same run left, so it is of the same trust (T8). Of a rerun
//! that leaves out jobs which succeeded before, their artifacts are those of the run it repeats.

use std::collections::BTreeSet;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use delta_core::{Attempt, Job, JobId};
use delta_store::StoreError;
use delta_store::read::{Reader, RunRows};
use delta_wire::ErrorBody;
use delta_wire::api::{InputArtifact, InputList};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::artifacts::{self, named, serve};
use super::error::ApiError;
use super::extract::Runner;
use super::uploads::held_for;
use crate::fence::Right;
use crate::objects::UploadId;

/// Runs that are looked at for what was not run again: reruns of reruns.
const MAX_RERUNS: usize = 32;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_inputs))
        .routes(routes!(show_input))
}

/// The artifacts of the jobs that this one needs.
#[utoipa::path(get, path = "/api/v1/runner/jobs/{id}/inputs", tag = "runner",
    params(("id" = String, Path), ("Delta-Lease" = String, Header)),
    responses((status = 200, body = InputList),
        (status = 409, description = "StaleLease", body = serde_json::Value)))]
async fn list_inputs(
    State(app): State<App>,
    Runner(who): Runner,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let inputs = match found(&app, &who, &id, &headers).await? {
        Ok(found) => found.into_iter().map(|(_, input)| input).collect(),
        Err(answer) => return Ok(answer),
    };
    Ok(axum::Json(InputList { inputs }).into_response())
}

/// The bytes of one of them.
#[utoipa::path(get, path = "/api/v1/runner/jobs/{id}/inputs/{artifact}", tag = "runner",
    params(("id" = String, Path), ("artifact" = String, Path, description = "its `id` in the list"),
        ("Delta-Lease" = String, Header)),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 404, body = ErrorBody),
        (status = 409, description = "StaleLease", body = serde_json::Value)))]
async fn show_input(
    State(app): State<App>,
    Runner(who): Runner,
    Path((id, artifact)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let found = match found(&app, &who, &id, &headers).await? {
        Ok(found) => found,
        Err(answer) => return Ok(answer),
    };
    let asked: Option<UploadId> = artifact.parse().ok();
    let found = found.into_iter().find(|(id, _)| Some(*id) == asked);
    let (id, input) = found.ok_or_else(|| ApiError::not_found("input"))?;
    let kept = artifacts::Kept {
        id,
        name: input.name,
        size: input.size,
        sha256: input.sha256,
    };
    serve(&app, &kept, &headers).await
}

type Inputs = Vec<(UploadId, InputArtifact)>;

async fn found(
    app: &App,
    who: &crate::identity::Principal,
    id: &str,
    headers: &HeaderMap,
) -> Result<Result<Inputs, Response>, ApiError> {
    let job = match held_for(app, who, id, headers, Right::Artifact).await? {
        Ok(held) => held.key.attempt.job,
        Err(answer) => return Ok(Err(answer)),
    };
    let needed = app.read(move |reader| needed(reader, job)).await?;
    let inputs = app.files(move |objects| {
        let mut inputs = Inputs::new();
        for (job, attempt) in &needed {
            let own = named(objects, attempt).into_iter();
            inputs.extend(own.filter_map(|(id, view)| {
                let id = id?;
                let input = InputArtifact {
                    id: id.to_string(),
                    job: job.name.to_string(),
                    name: view.name?,
                    size: view.size?,
                    sha256: view.sha256?,
                };
                Some((id, input))
            }));
        }
        Ok(inputs)
    });
    inputs.await.map(Ok)
}

/// The jobs that a job needs, each with the attempt that ended it.
fn needed(reader: &dyn Reader, job: JobId) -> Result<Vec<(Job, Attempt)>, StoreError> {
    let mut found: Vec<(Job, Attempt)> = Vec::new();
    let mut seen = BTreeSet::new();
    let Some(mut rows) = reader.run(job.run)? else {
        return Ok(found);
    };
    let consumer = rows.jobs.iter().find(|(it, _)| it.id == job);
    let Some(name) = consumer.map(|(it, _)| it.name.clone()) else {
        return Ok(found);
    };
    for _ in 0..MAX_RERUNS {
        let before = rows.run.header.rerun_of;
        take(rows, &name, &mut seen, &mut found);
        let Some(before) = before else {
            break;
        };
        // What retention deleted is gone.
        match reader.run(before)? {
            Some(older) => rows = older,
            None => break,
        }
    }
    Ok(found)
}

fn take(
    rows: RunRows,
    consumer: &str,
    seen: &mut BTreeSet<delta_core::Text>,
    found: &mut Vec<(Job, Attempt)>,
) {
    let policy = rows.jobs.iter().find(|(job, _)| &*job.name == consumer);
    let Some(policy) = policy.map(|(job, _)| job.policy.clone()) else {
        return;
    };
    for (job, attempt) in rows.jobs {
        let needs = policy.needs.contains(&job.id.n);
        if needs && seen.insert(job.name.clone()) {
            found.push((job, attempt));
        }
    }
}
