//! Functions: enqueue, list, show and wait for them. To cancel one, or to hear its events, is to do
//! so with its run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_core::{Attempt, Cause, Class, Command, Digest, Job, Reply, Run, RunId};
use delta_store::read::{JobRows, RunFilter, RunKind};
use delta_wire::api::{
    CreateFunction, CreateFunctions, Cursor, FunctionDetail, FunctionList, FunctionTry,
    FunctionView,
};
use delta_wire::states::JobState;
use delta_wire::{ErrorBody, ErrorCode, FunctionAnswer, Invalid, JobSpec};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, Path, User};
use super::recheck::Vigil;
use super::runs::{idempotency, run_id};
use super::{function_tail, views};
use crate::app::App;
use crate::functions::{self, Asked, give_up};
use crate::not_done::NotDone;
use crate::trace::{self, Enqueue};
use crate::writer::{Answer, sha256};

/// A request of a thousand calls at sixteen kilobytes each.
pub const CALLS_BYTES: usize = 16 * 1024 * 1024;
/// The longest that a caller may wait in one request: below the idle limit of common proxies.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(50);
const MAX_LIMIT: usize = 200;
/// Rows that one request looks at for a filter.
const MAX_LOOKED_AT: usize = 10_000;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(enqueue_functions, list_functions))
        .routes(routes!(show_function))
}

/// Enqueue one call, or up to a thousand in one commit.
#[utoipa::path(post, path = "/api/v1/functions", tag = "functions",
    request_body(content = ref("#/components/schemas/Calls")),
    params(("Idempotency-Key" = Option<String>, Header,
        description = "The same key with the same body gives the same calls"),
        ("traceparent" = Option<String>, Header,
        description = "The producer's trace, for calls that name none in trace_context")),
    responses(
        (status = 201, description = "the call; for `functions`, a FunctionList in their order",
            body = ref("#/components/schemas/CallsMade")),
        (status = 409, description = "the key came with another body", body = ErrorBody),
        (status = 422, description = "everything that is wrong", body = ErrorBody)))]
async fn enqueue_functions(
    State(app): State<App>,
    headers: HeaderMap,
    Heard(User(who), body): Heard<User, CALLS_BYTES>,
) -> Result<Response, ApiError> {
    let body = body.without_receipt();
    let request = CreateFunctions::parse(&body.bytes)?;
    let asked = Asked {
        at: body.at,
        by: who.id.clone(),
        idempotency: idempotency(&headers, &who.id, &body.bytes)?,
        trace: trace::of_request(&headers),
    };
    match request {
        CreateFunctions::One(call) => {
            let views = create(&app, std::slice::from_ref(&*call), &asked).await?;
            let view = views.into_iter().next();
            let view =
                view.ok_or_else(|| ApiError::new(ErrorCode::Internal, "nothing was made"))?;
            let location = [(header::LOCATION, format!("/api/v1/functions/{}", view.id))];
            Ok((StatusCode::CREATED, location, axum::Json(view)).into_response())
        }
        CreateFunctions::Several(calls) => {
            let functions = create(&app, &calls, &asked).await?;
            let list = FunctionList {
                functions,
                next_cursor: None,
            };
            Ok((StatusCode::CREATED, axum::Json(list)).into_response())
        }
    }
}

/// Makes the calls in one commit, each under a key of its own where there is one; where one of the
/// keys came with another request, none. Each begins a span, and is stored as what comes below it.
async fn create(
    app: &App,
    calls: &[CreateFunction],
    asked: &Asked,
) -> Result<Vec<FunctionView>, ApiError> {
    let settings = &app.writer.shared().settings;
    let unjudged = app.known_runners.is_none(app).await?;
    let mut commands = Vec::with_capacity(calls.len());
    let mut spans = Vec::with_capacity(calls.len());
    for (n, call) in calls.iter().enumerate() {
        let runner = app.queues.runner(&call.queue);
        let id = app.fresh_run_id(asked.at);
        let span = Enqueue::begin(app, call, &asked.trace, id);
        let asked = Asked {
            at: asked.at,
            by: asked.by.clone(),
            idempotency: asked.idempotency.map(|key| nth(key, n)),
            trace: span.carrier.clone(),
        };
        spans.push(span);
        let (mut new, spec) = functions::new_run(id, call, runner.as_deref(), asked, settings);
        new.header.keep = new.header.keep.map(|keep| keep.max(app.shortest_keep));
        new.header.unjudged = unjudged;
        commands.push((Command::CreateRun(Box::new(new)), vec![spec]));
    }
    let answers = app
        .writer
        .all_or_none(asked.at, commands.into_iter())
        .await?;
    let mut views = Vec::with_capacity(answers.len());
    for answer in answers {
        views.push(made(app, answer).await?);
    }
    for (span, view) in spans.into_iter().zip(&views) {
        span.end(run_id(&view.id)?, view);
    }
    give_up_hopeless(app, &mut views).await?;
    Ok(views)
}

/// RQ-45: calls of runners that nobody has fail at once, all of them in one commit; those for later
/// too, while whoever made them looks.
async fn give_up_hopeless(app: &App, views: &mut [FunctionView]) -> Result<(), ApiError> {
    let (mut judged, mut given_up) = (Judged::default(), Vec::new());
    for (n, view) in views.iter().enumerate() {
        // Also one from before: whoever asks again may have been cut off in between.
        if !view.has_ended() && judged.is_hopeless(app, &view.function).await? {
            given_up.push((n, run_id(&view.id)?));
        }
    }
    give_up(app, given_up.iter().map(|(_, run)| *run)).await?;
    for (n, run) in given_up {
        views[n] = find(app, run).await.map(|rows| view(&rows))?;
    }
    Ok(())
}

/// Runners that were judged in a request, each once.
#[derive(Default)]
pub(super) struct Judged(HashMap<String, bool>);

impl Judged {
    /// Whether nobody will ever carry out this function.
    pub async fn is_hopeless(&mut self, app: &App, function: &str) -> Result<bool, ApiError> {
        let Some((runner, _)) = function.split_once('#') else {
            return Ok(false);
        };
        if let Some(known) = self.0.get(runner) {
            return Ok(*known);
        }
        let hopeless = app.known_runners.is_hopeless(app, runner).await?;
        self.0.insert(runner.to_owned(), hopeless);
        Ok(hopeless)
    }
}

/// The key of the n-th call of a request.
fn nth((key, request): (Digest, Digest), n: usize) -> (Digest, Digest) {
    let own = [&key[..], &(n as u64).to_be_bytes()].concat();
    (sha256(&own), request)
}

async fn made(app: &App, answer: Answer) -> Result<FunctionView, ApiError> {
    match (answer.created, answer.reply) {
        (Some(made), _) => {
            let job = made.jobs.into_iter().next();
            let (job, attempt) = job.ok_or(NotDone::Internal)?;
            Ok(shown(&made.run, &job, std::slice::from_ref(&*attempt)))
        }
        (None, Reply::Created { run, .. }) => {
            let rows = find(app, run).await?;
            Ok(FunctionView {
                existing: true,
                ..view(&rows)
            })
        }
        (None, _) => Err(NotDone::Internal.into()),
    }
}

/// A call's job; a run that is no function is not found here, nor one whose result was to be kept
/// until now: it is deleted within a minute.
pub(super) async fn find(app: &App, run: RunId) -> Result<JobRows, ApiError> {
    let rows = app.read(move |reader| reader.job(run.job(1))).await?;
    let now = app.writer.now();
    let expired = |rows: &JobRows| rows.run.keep_until().is_some_and(|until| until <= now);
    let rows = rows.filter(|rows| rows.run.header.queue.is_some() && !expired(rows));
    rows.ok_or_else(|| ApiError::not_found("function"))
}

pub(super) fn view(rows: &JobRows) -> FunctionView {
    shown(&rows.run, &rows.job, &rows.attempts)
}

fn shown(run: &Run, job: &Job, attempts: &[Attempt]) -> FunctionView {
    let current = attempts.iter().find(|it| it.id.index == job.attempts);
    let answers = attempts.iter().rev().filter_map(answer);
    let last = answers.into_iter().next().unwrap_or_default();
    let waits = current.filter(|it| it.state == delta_core::AttemptState::Created);
    let lease = current.and_then(|it| it.lease.as_ref());
    FunctionView {
        id: run.id.to_string(),
        function: job.name.to_string(),
        queue: run.header.queue.as_deref().unwrap_or_default().to_owned(),
        state: current.map_or(JobState::Created, |it| {
            JobState::of(job.resolution, it.state)
        }),
        dead_letter: run.is_dead_letter(),
        existing: false,
        attempts: job.attempts,
        max_attempts: job.policy.max_attempts,
        cause: job.cause.map(|cause| cause.name().to_owned()),
        summary: match (&last.result, &last.error) {
            (None, None) => attempts.iter().rev().find_map(said).or_else(|| untold(job)),
            _ => None,
        },
        result: last.result,
        error: last.error,
        created_at: views::at(run.created_at),
        not_before: waits.map(|it| views::at(it.not_before)),
        started_at: lease.and_then(|it| it.acknowledged_at).map(views::at),
        ended_at: job.ended_at.map(views::at),
    }
}

/// What its agent said of an attempt that did not succeed.
fn said(attempt: &Attempt) -> Option<String> {
    let report = attempt.report.as_ref()?;
    report.summary.as_ref().map(|it| it.to_string())
}

/// Why it failed, where nobody came to say anything.
fn untold(job: &Job) -> Option<String> {
    let failed = |cause: &Cause| job.resolution.is_some() && cause.class() != Class::Stopped;
    let cause = job.cause.filter(failed)?;
    Some(match (cause, job.name.split_once('#')) {
        (Cause::HandlerNotFound, Some((runner, _))) => {
            format!("no agent has the runner `{runner}`")
        }
        _ => cause.sentence().to_owned(),
    })
}

/// What an attempt answered, as it was kept.
fn answer(attempt: &Attempt) -> Option<FunctionAnswer> {
    let kept = attempt.report.as_ref()?.answer.as_ref()?;
    serde_json::from_str(kept).ok()
}

/// A call with its parameters and every attempt. With `wait`, once it has ended or so many seconds
/// have passed; with `Accept: text/event-stream`, whenever it changes, until it has ended.
#[utoipa::path(get, path = "/api/v1/functions/{id}", tag = "functions",
    params(("id" = String, Path),
        ("wait" = Option<f64>, Query, description = "seconds to wait for its end, at most 50")),
    responses((status = 200, description = "the call, or a stream whose data are FunctionDetails",
            content((FunctionDetail = "application/json"), (String = "text/event-stream"))),
        (status = 404, body = ErrorBody)))]
async fn show_function(
    State(app): State<App>,
    User(who): User,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let run = run_id(&id)?;
    let wait = wait(query.as_deref())?;
    let accept = headers.get(header::ACCEPT).and_then(|it| it.to_str().ok());
    if accept.is_some_and(|it| it.contains("text/event-stream")) {
        // 404 before anything is streamed.
        find(&app, run).await?;
        return function_tail::stream(app, Vigil::new(who), run);
    }
    ended(&app, run, wait)
        .await
        .map(IntoResponse::into_response)
}

/// The call once it has ended, or as it stands then.
async fn ended(
    app: &App,
    run: RunId,
    wait: Duration,
) -> Result<axum::Json<FunctionDetail>, ApiError> {
    let until = tokio::time::Instant::now() + wait;
    let mut watch = None;
    loop {
        let rows = find(app, run).await?;
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        if rows.job.resolution.is_some() || left.is_zero() {
            return detail(app, rows).await.map(axum::Json);
        }
        let Some(watch) = &mut watch else {
            // What changes between this look and the next is seen by the next.
            let watchers = &app.writer.shared().watchers;
            watch = watchers.watch(run);
            if watch.is_none() {
                let words = "too many callers wait; ask again without wait";
                return Err(ApiError::new(ErrorCode::Overloaded, words));
            }
            continue;
        };
        tokio::select! {
            () = watch.changed() => {}
            () = tokio::time::sleep(left) => {}
            () = app.stop.cancelled() => return detail(app, rows).await.map(axum::Json),
        }
    }
}

fn wait(query: Option<&str>) -> Result<Duration, ApiError> {
    let mut wait = Duration::ZERO;
    for (name, value) in super::query_pairs(query)? {
        if name != "wait" {
            return Err(Invalid::field(name, "is not known; known here: wait").into());
        }
        let seconds = value.parse().ok().filter(|it: &f64| *it >= 0.0);
        let seconds =
            seconds.ok_or_else(|| Invalid::field("wait", "is not a number of seconds"))?;
        wait = Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_WAIT);
    }
    Ok(wait.min(LONGEST_WAIT))
}

pub(super) async fn detail(app: &App, rows: JobRows) -> Result<FunctionDetail, ApiError> {
    let id = rows.job.id;
    let spec: Option<Arc<str>> = app.read(move |reader| reader.spec(id)).await?;
    let spec = spec.and_then(|text| JobSpec::parse(text.as_bytes()).ok());
    let function = spec.and_then(|spec| spec.function);
    let function = function.ok_or_else(|| ApiError::not_found("function"))?;
    let (params, trace_context) = FunctionDetail::asked(&function);
    let tries = rows.attempts.iter().map(|attempt| {
        let answer = answer(attempt).unwrap_or_default();
        FunctionTry {
            attempt: views::attempt(attempt, &rows, views::Left::default()),
            result: answer.result,
            error: answer.error,
        }
    });
    Ok(FunctionDetail {
        tries: tries.collect(),
        params,
        trace_context,
        requeue_of: rows.run.header.rerun_of.map(|id| id.to_string()),
        view: view(&rows),
    })
}

/// Calls, newest first.
#[utoipa::path(get, path = "/api/v1/functions", tag = "functions",
    params(("queue" = Option<String>, Query), ("limit" = Option<u32>, Query),
        ("cursor" = Option<String>, Query)),
    responses((status = 200, body = FunctionList), (status = 422, body = ErrorBody)))]
async fn list_functions(
    State(app): State<App>,
    _who: User,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<FunctionList>, ApiError> {
    let page = Page::parse(query.as_deref(), &[])?;
    page.read(&app, RunKind::Functions, |_| true)
        .await
        .map(axum::Json)
}

/// A page of calls.
#[derive(Default)]
pub(super) struct Page {
    queue: Option<String>,
    /// The rest of what was asked for, by name.
    pub more: Vec<(String, String)>,
    limit: usize,
    before: Option<RunId>,
}

impl Page {
    pub fn parse(query: Option<&str>, more: &[&str]) -> Result<Page, ApiError> {
        let mut page = Page {
            limit: 50,
            ..Page::default()
        };
        for (name, value) in super::query_pairs(query)? {
            match name.as_str() {
                "queue" => page.queue = Some(value),
                "limit" => {
                    let limit = value.parse().ok().filter(|it| (1..=MAX_LIMIT).contains(it));
                    let words = format!("must be a whole number from 1 to {MAX_LIMIT}");
                    page.limit = limit.ok_or_else(|| Invalid::field("limit", words))?;
                }
                "cursor" => {
                    let cursor = Cursor::decode(&value)?;
                    page.before = Some(RunId(u128::from_be_bytes(cursor.run)));
                }
                known if more.contains(&known) => page.more.push((name, value)),
                _ => {
                    let known = ["queue", "limit", "cursor"];
                    let known: Vec<&str> = known.iter().chain(more).copied().collect();
                    let words = format!("is not known; known here: {}", known.join(", "));
                    return Err(Invalid::field(name, words).into());
                }
            }
        }
        Ok(page)
    }

    /// Those that fit, filled from as many rows as it takes: a page that is short is the last one,
    /// but for one that has looked at [`MAX_LOOKED_AT`] rows, which says where to go on.
    pub async fn read(
        self,
        app: &App,
        kind: RunKind,
        fits: impl Fn(&FunctionView) -> bool,
    ) -> Result<FunctionList, ApiError> {
        let (mut chosen, mut before, mut looked_at) = (Vec::new(), self.before, 0);
        let next = loop {
            let filter = RunFilter {
                before,
                kind,
                queue: self.queue.as_deref().map(Into::into),
                ..RunFilter::default()
            };
            let most = self.limit + 1;
            let rows = app.read(move |reader| {
                let runs = reader.runs(&filter, most)?;
                let rows = runs.iter().map(|run| reader.job(run.id.job(1)));
                rows.filter_map(Result::transpose)
                    .collect::<Result<Vec<_>, _>>()
            });
            let rows = rows.await?;
            let (full, last) = (rows.len() == most, rows.last().map(cursor));
            looked_at += rows.len();
            let shown = rows.iter().map(|row| (cursor(row), view(row)));
            chosen.extend(shown.filter(|(_, it)| fits(it)));
            if chosen.len() > self.limit {
                chosen.truncate(self.limit);
                break chosen.last().map(|(at, _)| *at);
            }
            match last.filter(|_| full) {
                None => break None,
                Some(last) if looked_at >= MAX_LOOKED_AT => break Some(last),
                Some(last) => before = Some(RunId(u128::from_be_bytes(last.run))),
            }
        };
        Ok(FunctionList {
            functions: chosen.into_iter().map(|(_, it)| it).collect(),
            next_cursor: next.map(|at| at.encode()),
        })
    }
}

fn cursor(row: &JobRows) -> Cursor {
    Cursor {
        created_at: views::at(row.run.created_at),
        run: row.run.id.0.to_be_bytes(),
    }
}
