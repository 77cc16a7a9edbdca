//! Where a status at a forge links to. There are no web pages: whoever clicks reads what to type.
//!
//! Anybody may ask, so it says the same of every run, whether it is there or not.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use delta_core::RunId;
use delta_wire::ErrorBody;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::Path;
use crate::app::App;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show_signpost))
}

/// What a person types to see a run, as plain text; where statuses link to.
#[utoipa::path(get, path = "/runs/{id}", tag = "system", params(("id" = String, Path)),
    responses(
        (status = 200, description = "plain text, the same of every run", body = String),
        (status = 404, description = "no id of a run", body = ErrorBody)))]
async fn show_signpost(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    // Nothing that was typed is said again, unless it could be a run.
    let run: RunId = id.parse().map_err(|_| ApiError::not_found("run"))?;
    let server = match &app.public_url {
        Some(url) => format!(" --server {url}"),
        None => String::new(),
    };
    let text = format!(
        "This is a run of Delta CI. To see its jobs, what failed and why, type\n\n    \
         delta-ci show {run}{server}\n\nwith a token of yours in DELTA_TOKEN.\n"
    );
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}
