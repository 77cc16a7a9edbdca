//! Letting a stranger's run go on, and what the planner said about a run.

use axum::extract::State;
use delta_store::forges::{Approval, ReportRow, STAGE_NONE, STAGE_QUEUED};
use delta_wire::api::{RunView, Trigger};
use delta_wire::{ErrorBody, ErrorCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Path, User};
use super::runs::{find, run_id};
use super::views;
use crate::app::App;
use crate::audit;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(approve_run))
        .routes(routes!(show_plan))
}

/// Let a run go on that waits for it. It stays untrusted. Repeating it changes nothing.
#[utoipa::path(post, path = "/api/v1/runs/{id}/approve", tag = "runs",
    params(("id" = String, Path)),
    responses((status = 200, description = "the run as it is now", body = RunView),
        (status = 404, body = ErrorBody),
        (status = 409, description = "nobody has to approve it, or it is over",
            body = ErrorBody)))]
async fn approve_run(
    State(app): State<App>,
    User(who): User,
    Path(id): Path<String>,
) -> Result<axum::Json<RunView>, ApiError> {
    let run = run_id(&id)?;
    let rows = find(&app, run).await?;
    let trigger = rows.run.header.trigger.as_deref();
    if !trigger
        .and_then(Trigger::from_text)
        .is_some_and(|it| it.gated)
    {
        let message = "the run does not wait for anybody's approval";
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    if rows.run.state.has_ended() {
        return Err(ApiError::new(ErrorCode::Conflict, "the run is over"));
    }
    let approval = Approval {
        by: who.id.clone(),
        at: app.writer.now(),
    };
    let at = approval.at;
    app.read_and_write(move |sides| {
        sides.tables.approve(run, &approval)?;
        // The forge has heard that it waits: it is told anew.
        match sides.reader.report(run)? {
            Some(row) if row.stage == STAGE_QUEUED => sides.tables.put_report(&ReportRow {
                stage: STAGE_NONE,
                next_at: at,
                ..row
            }),
            _ => Ok(()),
        }
    })
    .await?;
    audit::done("run.approve", &who, &id);
    app.planning.notify_one();
    let rows = find(&app, run).await?;
    let mut view = views::run(&rows, &app.writer.shared().settings);
    if view
        .summary
        .why
        .as_ref()
        .is_some_and(|it| it.code == views::APPROVAL)
    {
        view.summary.why = Some(views::planning());
    }
    Ok(axum::Json(view))
}

/// What the planner said about a run: a reason for each job, or what is wrong.
#[utoipa::path(get, path = "/api/v1/runs/{id}/plan", tag = "runs",
    params(("id" = String, Path)),
    responses((status = 200, body = serde_json::Value), (status = 404, body = ErrorBody)))]
async fn show_plan(
    State(app): State<App>,
    _who: User,
    Path(id): Path<String>,
) -> Result<axum::Json<serde_json::Value>, ApiError> {
    let run = run_id(&id)?;
    let plan = app.read(move |reader| reader.plan(run)).await?;
    let plan = plan.and_then(|text| serde_json::from_str(&text).ok());
    plan.map(axum::Json)
        .ok_or_else(|| ApiError::not_found("plan"))
}
