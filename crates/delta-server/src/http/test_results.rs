//! Results of tests: handed in by runners over HTTP, and shown to people.
//!
//! Only those of the latest lease of an attempt are shown. What is *flaky* or *broken* is found out
//! when it is asked for, from what is stored; nothing of it is kept.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use delta_core::rights::Right;
use delta_core::{Job, RunId};
use delta_store::StoreError;
use delta_store::read::{Reader, RunRows};
use delta_store::results::{
    LeaseResults, PastResult, ResultCounts, ResultPlace, ResultQuery, ResultStatus, StoredResult,
    TestQuery,
};
use delta_wire::api::{
    FindTest, ListTests, PastTest, TestCounts, TestHistory, TestList, TestStanding, TestStatus,
    TestTotals, TestVerdict, TestView,
};
use delta_wire::runner::{TestResults, TestResultsAck};
use delta_wire::{ErrorBody, Invalid};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, Path, Runner, User};
use super::uploads::held;
use super::{jobs, runner, runs};
use crate::app::App;
use crate::results::{self, Ledger, Unusable};
use crate::test_history::{LOOKED_AT, is_broken, is_flaky, judge, passed_again};

/// Failures of one page that are judged; each is a query of its own.
const JUDGED: usize = 50;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(report_results))
        .routes(routes!(list_run_tests))
        .routes(routes!(list_job_tests))
        .routes(routes!(find_tests))
}

/// Hand in results of tests. Repeats do no harm.
#[utoipa::path(post, path = "/api/v1/runner/results", tag = "runner",
    request_body(content = ref("#/components/schemas/TestResults")),
    responses(
        (status = 200, description = "they are on disk",
            body = ref("#/components/schemas/TestResultsAck")),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld")),
        (status = 422, body = ErrorBody)))]
async fn report_results(
    State(app): State<App>,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let body = body.without_receipt();
    let said: TestResults = runner::parse(&app, &body.bytes)?;
    let runner = Some(said.runner_id.as_str());
    let held = match held(&app, &said.lease_id, &who, runner, Right::Results).await? {
        Ok(held) => held,
        Err(answer) => return Ok(answer),
    };
    let rows = said.results.into_iter().map(|it| results::row(it, body.at));
    let rows: Vec<_> = rows.collect::<Result<_, _>>().map_err(missing)?;
    let (lease, received) = (held.key, rows.len() as u64);
    let summary = results::claimed(said.summary.as_ref());
    let full = app.read_and_write(move |sides| {
        let mut ledger = Ledger::default();
        ledger.put(sides, lease, &rows)?;
        ledger.settle(sides, lease, summary)?;
        Ok(ledger.is_full())
    });
    let full = full.await?;
    Ok(axum::Json(TestResultsAck { received, full }).into_response())
}

fn missing(Unusable::Missing(field): Unusable) -> ApiError {
    Invalid::missing(field).into()
}

/// Results of a run: of the latest attempt of each job, what failed first.
#[utoipa::path(get, path = "/api/v1/runs/{id}/tests", tag = "tests",
    params(("id" = String, Path), ListTests),
    responses((status = 200, body = TestList), (status = 404, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn list_run_tests(
    State(app): State<App>,
    _who: User,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<TestList>, ApiError> {
    let run = runs::run_id(&id)?;
    let asked = asked(query.as_deref())?;
    if asked.attempt.is_some() {
        return Err(Invalid::field("attempt", "is asked for of one job").into());
    }
    list(&app, run, None, asked).await
}

/// Results of a job: of its latest attempt, or of the one asked for.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/tests", tag = "tests",
    params(("id" = String, Path), ListTests),
    responses((status = 200, body = TestList), (status = 404, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn list_job_tests(
    State(app): State<App>,
    _who: User,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<TestList>, ApiError> {
    let job = jobs::job_id(&id)?;
    let asked = asked(query.as_deref())?;
    list(&app, job.run, Some(job.n), asked).await
}

/// One test over time, newest first.
#[utoipa::path(get, path = "/api/v1/tests", tag = "tests", params(FindTest),
    responses((status = 200, body = TestHistory), (status = 422, body = ErrorBody)))]
async fn find_tests(
    State(app): State<App>,
    _who: User,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<TestHistory>, ApiError> {
    let pairs = super::query_pairs(query.as_deref())?;
    let find = FindTest::parse(pairs.iter().map(|(name, value)| (&**name, &**value)))?;
    let before = find.cursor.as_deref().map(str::parse).transpose();
    let before = before.map_err(|_| Invalid::field("cursor", "is none of ours"))?;
    let query = TestQuery {
        name: find.name.clone().into(),
        suite: find.suite.map(Into::into),
        repository: find.repository.map(Into::into),
        before,
    };
    let limit = find.limit;
    let found = app.read(move |reader| {
        // Whatever page is asked for: a page that ends before a pass would call it broken.
        let latest = TestQuery {
            before: None,
            ..query.clone()
        };
        let standings = standings(&reader.test_history(&latest, LOOKED_AT)?);
        Ok((standings, reader.test_history(&query, limit)?))
    });
    let (standings, found) = found.await?;
    let next = found.last().filter(|_| found.len() == limit);
    Ok(axum::Json(TestHistory {
        name: find.name,
        standings,
        next_cursor: next.map(|last| last.id.to_string()),
        results: found.iter().map(past_view).collect(),
    }))
}

fn asked(query: Option<&str>) -> Result<ListTests, ApiError> {
    let pairs = super::query_pairs(query)?;
    let pairs = pairs.iter().map(|(name, value)| (&**name, &**value));
    Ok(ListTests::parse(pairs)?)
}

async fn list(
    app: &App,
    run: RunId,
    job: Option<u32>,
    asked: ListTests,
) -> Result<axum::Json<TestList>, ApiError> {
    let query = ResultQuery {
        run,
        job,
        attempt: asked.attempt,
        only: asked.status.iter().copied().map(status).collect(),
        after: asked.cursor.as_deref().map(place).transpose()?,
    };
    let limit = asked.limit;
    let found = app.read(move |reader| page(reader, &query, limit)).await?;
    let list = found.ok_or_else(|| ApiError::not_found(if job.is_some() { "job" } else { "run" }));
    list.map(axum::Json)
}

/// A page with what is known of its failures. Nothing when there is no such run or job.
fn page(
    reader: &dyn Reader,
    query: &ResultQuery,
    limit: usize,
) -> Result<Option<TestList>, StoreError> {
    let Some(rows) = reader.run(query.run)? else {
        return Ok(None);
    };
    let jobs: BTreeMap<u32, &Job> = rows.jobs.iter().map(|(job, _)| (job.id.n, job)).collect();
    if query.job.is_some_and(|job| !jobs.contains_key(&job)) {
        return Ok(None);
    }
    let asked = |job: &Job| query.job.is_none_or(|n| n == job.id.n);
    if rows
        .jobs
        .iter()
        .any(|(job, _)| asked(job) && job.kept.is_some())
    {
        return kept_page(reader, query, rows, limit).map(Some);
    }
    let totals = reader.run_results(query.run)?.into_iter().filter(|it| {
        let attempt = it.lease.attempt;
        let latest = jobs.get(&attempt.job.n).map(|job| job.attempts);
        let wanted = query.attempt.or(latest);
        query.job.is_none_or(|job| job == attempt.job.n) && wanted == Some(attempt.index)
    });
    let totals = totals.map(|it| totals_view(&it)).collect();
    let found = reader.results(query, limit)?;
    let next = found.last().filter(|_| found.len() == limit);
    let next_cursor = next.map(|last| cursor(last.place()));
    let mut tests = Vec::with_capacity(found.len());
    for (index, it) in found.into_iter().enumerate() {
        let judged = it.row.status.is_unhappy() && index < JUDGED;
        let verdict = match jobs.get(&it.lease.attempt.job.n) {
            Some(job) if judged => judge(reader, &rows.run.header, &job.name, &it)?,
            _ => passed_again(&it.row).then_some(TestVerdict::Flaky),
        };
        tests.push(view(it, verdict));
    }
    Ok(Some(TestList {
        totals,
        tests,
        next_cursor,
    }))
}

/// A page of a run with jobs that were kept from earlier ones: job by job, each with the results of
/// the one that was executed, under the name it has in this run.
fn kept_page(
    reader: &dyn Reader,
    query: &ResultQuery,
    rows: RunRows,
    limit: usize,
) -> Result<TestList, StoreError> {
    let mut list = TestList {
        totals: Vec::new(),
        tests: Vec::new(),
        next_cursor: None,
    };
    let mut executed = Executed::default();
    let asked = |job: &Job| query.job.is_none_or(|n| n == job.id.n);
    for (job, _) in rows.jobs.iter().filter(|(job, _)| asked(job)) {
        let source = job.source();
        let Some((run, results)) = executed.of(reader, source.run)? else {
            continue;
        };
        let found = run.jobs.iter().find(|(it, _)| it.id == source);
        let attempt = query.attempt.or(found.map(|(it, _)| it.attempts));
        let own = |it: &&LeaseResults| {
            it.lease.attempt.job == source && Some(it.lease.attempt.index) == attempt
        };
        let Some(totals) = results.iter().find(own) else {
            continue;
        };
        list.totals.push(TestTotals {
            job_id: job.id.to_string(),
            ..totals_view(totals)
        });
        let room = limit - list.tests.len();
        let before = query.after.is_some_and(|after| after.job > job.id.n);
        if before || room == 0 {
            continue;
        }
        let after = query.after.filter(|after| after.job == job.id.n);
        let part = ResultQuery {
            run: source.run,
            job: Some(source.n),
            attempt,
            only: query.only.clone(),
            after: after.map(|after| ResultPlace {
                job: source.n,
                ..after
            }),
        };
        for it in reader.results(&part, room)? {
            let judged = it.row.status.is_unhappy() && list.tests.len() < JUDGED;
            let verdict = if judged {
                judge(reader, &run.run.header, &job.name, &it)?
            } else {
                passed_again(&it.row).then_some(TestVerdict::Flaky)
            };
            let place = ResultPlace {
                job: job.id.n,
                ..it.place()
            };
            list.tests.push(TestView {
                job_id: job.id.to_string(),
                ..view(it, verdict)
            });
            list.next_cursor = (list.tests.len() == limit).then(|| cursor(place));
        }
    }
    Ok(list)
}

/// Runs in which jobs were executed, with what their leases have; each is read once.
#[derive(Default)]
struct Executed(HashMap<RunId, Option<(RunRows, Vec<LeaseResults>)>>);

impl Executed {
    /// Nothing of a run that is deleted.
    fn of(
        &mut self,
        reader: &dyn Reader,
        run: RunId,
    ) -> Result<Option<&(RunRows, Vec<LeaseResults>)>, StoreError> {
        let read = match self.0.entry(run) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(match reader.run(run)? {
                Some(rows) => Some((rows, reader.run_results(run)?)),
                None => None,
            }),
        };
        Ok(read.as_ref())
    }
}

/// What the latest results say of each test of that name.
fn standings(found: &[PastResult]) -> Vec<TestStanding> {
    let mut groups: BTreeMap<(&str, Option<&str>), Vec<&PastResult>> = BTreeMap::new();
    for it in found {
        let key = (&*it.suite, it.repository.as_deref());
        groups.entry(key).or_default().push(it);
    }
    let standing = |((suite, repository), results): ((&str, Option<&str>), Vec<&PastResult>)| {
        let mut sources: BTreeMap<String, Vec<&PastResult>> = BTreeMap::new();
        let mut counts = ResultCounts::default();
        for it in &results {
            *counts.of(it.status) += 1;
            let run = || it.lease.attempt.run().to_string();
            let source = it.commit.as_deref().map_or_else(run, str::to_owned);
            sources.entry(source).or_default().push(it);
        }
        let flaky = sources
            .into_iter()
            .filter(|(_, of_source)| is_flaky(of_source.iter().copied()));
        let flaky_on: Vec<String> = flaky.map(|(source, _)| source).collect();
        let verdict = match (flaky_on.is_empty(), is_broken(results.iter().copied())) {
            (false, _) => Some(TestVerdict::Flaky),
            (true, true) => Some(TestVerdict::Broken),
            (true, false) => None,
        };
        TestStanding {
            suite: suite.to_owned(),
            repository: repository.map(str::to_owned),
            counts: counts_view(&counts),
            verdict,
            flaky_on,
        }
    };
    groups.into_iter().map(standing).collect()
}

fn view(it: StoredResult, verdict: Option<TestVerdict>) -> TestView {
    let (attempt, row) = (it.lease.attempt, it.row);
    let metadata = row.metadata.as_deref();
    let metadata = metadata.and_then(|text| serde_json::from_str(text).ok());
    TestView {
        job_id: attempt.job.to_string(),
        attempt: attempt.index,
        test_id: row.test_id.to_string(),
        suite: row.suite.to_string(),
        name: row.name.to_string(),
        status: status_view(row.status),
        duration_ms: row.duration_ms,
        message: row.message.map(|text| text.to_string()),
        trace: row.trace.map(|text| text.to_string()),
        metadata: metadata.unwrap_or_default(),
        verdict,
        at: row.at.into(),
    }
}

fn past_view(it: &PastResult) -> PastTest {
    let (attempt, text) = (it.lease.attempt, |it: &delta_core::Text| it.to_string());
    PastTest {
        run_id: attempt.run().to_string(),
        job_id: attempt.job.to_string(),
        attempt: attempt.index,
        suite: it.suite.to_string(),
        status: status_view(it.status),
        duration_ms: it.duration_ms,
        message: it.message.as_ref().map(text),
        repository: it.repository.as_ref().map(text),
        git_ref: it.git_ref.as_ref().map(text),
        commit: it.commit.as_ref().map(text),
        at: it.at.into(),
    }
}

/// EP-15: what was received counts; what was claimed is shown where it is not the same.
fn totals_view(it: &LeaseResults) -> TestTotals {
    let claimed = it.claim.and_then(|claim| claim.counts);
    TestTotals {
        job_id: it.lease.attempt.job.to_string(),
        attempt: it.lease.attempt.index,
        counts: counts_view(&it.counts),
        claimed: claimed
            .filter(|it_says| *it_says != it.counts)
            .map(|it| counts_view(&it)),
        dropped: it.claim.map_or(0, |claim| claim.dropped),
    }
}

fn counts_view(counts: &ResultCounts) -> TestCounts {
    TestCounts {
        passed: counts.passed,
        failed: counts.failed,
        skipped: counts.skipped,
        errors: counts.errors,
    }
}

fn status(asked: TestStatus) -> ResultStatus {
    match asked {
        TestStatus::Fail => ResultStatus::Fail,
        TestStatus::Error => ResultStatus::Error,
        TestStatus::Skip => ResultStatus::Skip,
        TestStatus::Pass => ResultStatus::Pass,
    }
}

pub(super) fn status_view(status: ResultStatus) -> TestStatus {
    match status {
        ResultStatus::Fail => TestStatus::Fail,
        ResultStatus::Error => TestStatus::Error,
        ResultStatus::Skip => TestStatus::Skip,
        ResultStatus::Pass => TestStatus::Pass,
    }
}

fn cursor(place: ResultPlace) -> String {
    let status = status_view(place.status);
    format!("{}.{status}.{}", place.job, place.id)
}

fn place(text: &str) -> Result<ResultPlace, ApiError> {
    let mut parts = text.splitn(3, '.');
    let mut read = || {
        Some(ResultPlace {
            job: parts.next()?.parse().ok()?,
            status: status(TestStatus::from_text(parts.next()?)?),
            id: parts.next()?.parse().ok()?,
        })
    };
    read().ok_or_else(|| Invalid::field("cursor", "is none of ours").into())
}
