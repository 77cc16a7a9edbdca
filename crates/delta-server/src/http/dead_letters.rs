//! Dead letters: functions that failed for good and wait for a person. They are listed, called
//! again as new calls, or put aside; either way the old call stays as it is, for the record.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use delta_core::command::{NewJob, NewRun};
use delta_core::{Command, JobId, Reply, RunId};
use delta_store::read::{JobRows, RunFilter, RunKind};
use delta_wire::api::{ChooseDeadLetters, DeadLettersDone, FunctionList, FunctionView};
use delta_wire::{ErrorBody, Invalid};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, User};
use super::functions::{Judged, Page, find, view};
use super::runs::run_id;
use crate::app::App;
use crate::audit;
use crate::functions::give_up;
use crate::identity::Principal;
use crate::not_done::NotDone;
use crate::writer::sha256;

/// Dead letters that one request deals with; it says when there are more.
const MAX_CHOSEN: usize = 1000;
/// Dead letters that are looked at for a filter.
const MAX_LOOKED_AT: usize = 100_000;
const PAGE: usize = 500;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_dead_letters))
        .routes(routes!(requeue_dead_letters))
        .routes(routes!(purge_dead_letters))
}

/// Dead letters, newest first.
#[utoipa::path(get, path = "/api/v1/dead-letters", tag = "functions",
    params(("queue" = Option<String>, Query), ("function" = Option<String>, Query),
        ("cause" = Option<String>, Query), ("limit" = Option<u32>, Query),
        ("cursor" = Option<String>, Query)),
    responses((status = 200, body = FunctionList), (status = 422, body = ErrorBody)))]
async fn list_dead_letters(
    State(app): State<App>,
    _who: User,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<FunctionList>, ApiError> {
    let page = Page::parse(query.as_deref(), &["function", "cause"])?;
    let wanted = page.more.clone();
    let fits = |it: &FunctionView| {
        wanted.iter().all(|(name, wanted)| match name.as_str() {
            "function" => is_called(it, wanted),
            _ => it.cause.as_deref() == Some(wanted),
        })
    };
    let list = page.read(&app, RunKind::DeadLetters, fits).await?;
    Ok(axum::Json(list))
}

/// Call them again, each as a new call that names the old one. With `dry_run`, only say which.
#[utoipa::path(post, path = "/api/v1/dead-letters/requeue", tag = "functions",
    request_body = ChooseDeadLetters,
    responses((status = 200, body = DeadLettersDone), (status = 404, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn requeue_dead_letters(
    State(app): State<App>,
    Heard(User(who), body): Heard<User>,
) -> Result<axum::Json<DeadLettersDone>, ApiError> {
    let body = body.without_receipt();
    let (request, chosen, next) = chosen(&app, &body.bytes).await?;
    let mut requeued = Vec::new();
    if !request.dry_run {
        requeued = again(&app, &chosen, &who).await?;
        put_aside(&app, &chosen).await?;
        audit::done("dead_letters.requeue", &who, &requeued.len().to_string());
    }
    Ok(axum::Json(done(&request, &chosen, requeued, next)))
}

/// Put them aside: they are no dead letters any more, and go when their time is over.
#[utoipa::path(post, path = "/api/v1/dead-letters/purge", tag = "functions",
    request_body = ChooseDeadLetters,
    responses((status = 200, body = DeadLettersDone), (status = 404, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn purge_dead_letters(
    State(app): State<App>,
    Heard(User(who), body): Heard<User>,
) -> Result<axum::Json<DeadLettersDone>, ApiError> {
    let body = body.without_receipt();
    let (request, chosen, next) = chosen(&app, &body.bytes).await?;
    if !request.dry_run {
        put_aside(&app, &chosen).await?;
        audit::done("dead_letters.purge", &who, &chosen.len().to_string());
    }
    Ok(axum::Json(done(&request, &chosen, Vec::new(), next)))
}

fn done(
    request: &ChooseDeadLetters,
    chosen: &[JobRows],
    requeued: Vec<String>,
    next: Option<RunId>,
) -> DeadLettersDone {
    DeadLettersDone {
        dry_run: request.dry_run,
        chosen: chosen.iter().map(|it| it.run.id.to_string()).collect(),
        requeued,
        more: next.is_some(),
        next_before: next.map(|run| run.to_string()),
    }
}

/// Which are meant, and where the next request goes on when one does not deal with all.
async fn chosen(
    app: &App,
    body: &[u8],
) -> Result<(ChooseDeadLetters, Vec<JobRows>, Option<RunId>), ApiError> {
    let request = ChooseDeadLetters::parse(body)?;
    if request.ids.is_empty() {
        let (rows, next) = fitting(app, &request).await?;
        return Ok((request, rows, next));
    }
    let mut named = Vec::with_capacity(request.ids.len());
    for (index, id) in request.ids.iter().enumerate() {
        let rows = find(app, run_id(id)?).await?;
        if !rows.run.is_dead_letter() {
            let words = format!("`{id}` is no dead letter");
            return Err(Invalid::field(format!("ids[{index}]"), words).into());
        }
        named.push(rows);
    }
    Ok((request, named, None))
}

async fn fitting(
    app: &App,
    request: &ChooseDeadLetters,
) -> Result<(Vec<JobRows>, Option<RunId>), ApiError> {
    let before = request.before.as_deref().map(run_id).transpose()?;
    let (mut chosen, mut before, mut looked_at) = (Vec::<JobRows>::new(), before, 0);
    loop {
        let filter = RunFilter {
            before,
            kind: RunKind::DeadLetters,
            queue: request.queue.as_deref().map(Into::into),
            ..RunFilter::default()
        };
        let page = app.read(move |reader| {
            let runs = reader.runs(&filter, PAGE)?;
            let rows = runs.iter().map(|run| reader.job(run.id.job(1)));
            rows.filter_map(Result::transpose)
                .collect::<Result<Vec<_>, _>>()
        });
        let page = page.await?;
        let (count, last) = (page.len(), page.last().map(|it| it.run.id));
        looked_at += count;
        for rows in page {
            let shown = view(&rows);
            let fits = request
                .function
                .as_deref()
                .is_none_or(|it| is_called(&shown, it))
                && request
                    .cause
                    .as_deref()
                    .is_none_or(|it| shown.cause.as_deref() == Some(it));
            if !fits {
                continue;
            }
            if chosen.len() == MAX_CHOSEN {
                let next = chosen.last().map(|it| it.run.id);
                return Ok((chosen, next));
            }
            chosen.push(rows);
        }
        match last {
            Some(last) if count == PAGE && looked_at < MAX_LOOKED_AT => before = Some(last),
            last => return Ok((chosen, last.filter(|_| count == PAGE))),
        }
    }
}

/// By its whole name, or by its handler's.
fn is_called(view: &FunctionView, wanted: &str) -> bool {
    let handler = view.function.split_once('#').map(|(_, handler)| handler);
    view.function == wanted || handler == Some(wanted)
}

/// Makes the chosen calls again, as new runs in one commit; their ids. A key of its own makes each
/// one, however often it is asked for.
async fn again(app: &App, chosen: &[JobRows], who: &Principal) -> Result<Vec<String>, ApiError> {
    let ids: Vec<JobId> = chosen.iter().map(|rows| rows.job.id).collect();
    let specs = app.read(move |reader| {
        let specs = ids.iter().map(|id| reader.spec(*id));
        specs.collect::<Result<Option<Vec<Arc<str>>>, _>>()
    });
    let specs = specs
        .await?
        .ok_or_else(|| ApiError::not_found("function"))?;
    let unjudged = app.known_runners.is_none(app).await?;
    let now = app.writer.now();
    let commands = chosen.iter().zip(specs).map(|(rows, spec)| {
        let mut new = repeated(rows, app.fresh_run_id(now), who);
        new.header.unjudged = unjudged;
        (Command::CreateRun(Box::new(new)), vec![spec])
    });
    let (mut made, mut hopeless) = (Vec::with_capacity(chosen.len()), Vec::new());
    let mut judged = Judged::default();
    let answers = app.writer.together(now, commands).await?;
    for (answer, rows) in answers.into_iter().zip(chosen) {
        let Reply::Created { run, .. } = answer?.reply else {
            return Err(NotDone::Internal.into());
        };
        if judged.is_hopeless(app, &rows.job.name).await? {
            hopeless.push(run);
        }
        made.push(run.to_string());
    }
    // RQ-45
    give_up(app, hopeless.into_iter()).await?;
    Ok(made)
}

fn repeated(rows: &JobRows, id: RunId, who: &Principal) -> NewRun {
    let mut header = rows.run.header.clone();
    header.run_attempt += 1;
    header.rerun_of = Some(rows.run.id);
    header.created_by = who.id.clone();
    let key = sha256(format!("requeue\n{}", rows.run.id).as_bytes());
    header.idempotency = Some((key, key));
    header.unique = None;
    let mut policy = (*rows.job.policy).clone();
    policy.not_before = None;
    NewRun {
        id,
        header,
        jobs: Some(vec![NewJob {
            name: rows.job.name.clone(),
            policy,
            spec: rows.job.spec,
            kept: None,
        }]),
    }
}

/// Somebody has dealt with them.
async fn put_aside(app: &App, chosen: &[JobRows]) -> Result<(), ApiError> {
    let commands = chosen
        .iter()
        .map(|rows| Command::Report { run: rows.run.id });
    let commands = commands.map(|command| (command, Vec::new()));
    for answer in app.writer.together(app.writer.now(), commands).await? {
        answer?;
    }
    Ok(())
}
