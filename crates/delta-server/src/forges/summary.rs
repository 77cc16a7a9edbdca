//! What is said about a run in one line: a pure function of its rows.

use delta_core::{Cause, Resolution, Run, RunState, Span};
use delta_forge::{Commit, State, Status};
use delta_store::read::RunRows;
use delta_store::results::{LeaseResults, ResultCounts};
use delta_wire::api::{Trigger, TriggerEvent};

use super::supersede_runs;
use crate::public_url;

/// What is known of a run when it is told about.
pub struct About<'r> {
    pub rows: &'r RunRows,
    pub trigger: &'r Trigger,
    pub tests: ResultCounts,
    /// What the planner said, where it said something.
    pub plan: Option<&'r str>,
    pub approved: bool,
    /// Other refs have the same commit: the line says whose word it is.
    pub several: bool,
    /// This server's address, as people reach it.
    pub public_url: Option<&'r str>,
}

/// The status of its commit; none where it has no commit.
pub fn status(about: &About<'_>) -> Option<Status> {
    let run = &about.rows.run;
    let commit = Commit::parse(run.header.commit.as_deref()?).ok()?;
    let (state, mut line) = line(about);
    if let Some(git_ref) = run.header.git_ref.as_deref().filter(|_| about.several) {
        line = format!("{}: {line}", short(git_ref));
    }
    let link = about
        .public_url
        .map(|url| public_url::run_page(url, run.id));
    Some(Status {
        commit,
        context: context(about.trigger, run.header.trusted).to_owned(),
        state,
        description: Status::line(&line),
        link,
    })
}

/// A push and a request may be about one commit: each has a name of its own. So has what a stranger
/// sent (T5): whoever opens a request with our commit as its head says nothing about our own.
pub fn context(trigger: &Trigger, trusted: bool) -> &'static str {
    match trigger.event {
        TriggerEvent::PullRequest if !trusted => "delta-ci/pull_request/fork",
        TriggerEvent::Push => "delta-ci/push",
        TriggerEvent::Tag => "delta-ci/tag",
        TriggerEvent::PullRequest => "delta-ci/pull_request",
        TriggerEvent::Manual => "delta-ci/manual",
    }
}

/// A ref as people call it: `main`, `v1`, `#7`.
fn short(git_ref: &str) -> String {
    let pull = git_ref.strip_prefix("refs/pull/");
    let pull = pull.and_then(|it| it.strip_suffix("/head"));
    if let Some(number) = pull {
        return format!("#{number}");
    }
    let kinds = ["refs/heads/", "refs/tags/"];
    let name = kinds.iter().find_map(|it| git_ref.strip_prefix(it));
    name.unwrap_or(git_ref).to_owned()
}

/// The counts of the last attempt of each job.
pub fn counts(results: &[LeaseResults]) -> ResultCounts {
    let mut latest = std::collections::BTreeMap::new();
    for it in results {
        latest.insert(it.lease.attempt.job, it.counts);
    }
    let sum = |mut sum: ResultCounts, it: &ResultCounts| {
        sum.failed += it.failed;
        sum.errors += it.errors;
        sum.skipped += it.skipped;
        sum.passed += it.passed;
        sum
    };
    latest.values().fold(ResultCounts::default(), sum)
}

fn line(about: &About<'_>) -> (State, String) {
    let run = &about.rows.run;
    let waits = about.trigger.gated && !about.approved && run.state == RunState::Planning;
    match run.outcome {
        None if waits => {
            let id = run.id;
            (
                State::Pending,
                format!("Waits for approval: delta-ci approve {id}"),
            )
        }
        None if run.started_at.is_some() => (State::Pending, "Running".into()),
        None => (State::Pending, "Queued".into()),
        Some(RunState::Success) => (State::Success, succeeded(about)),
        Some(RunState::Canceled) => (State::Error, canceled(run)),
        Some(_) => failed(about),
    }
}

fn succeeded(about: &About<'_>) -> String {
    let run = &about.rows.run;
    if run.cause == Some(Cause::NothingToRun) {
        // Where no reason is known, none is made up.
        return match about.plan.and_then(first_omission) {
            Some(why) => format!("Nothing to run: {why}"),
            None => "Nothing to run".into(),
        };
    }
    let came_to = |wanted: Resolution| {
        let jobs = about.rows.jobs.iter();
        let those = jobs.filter(|(job, _)| job.resolution == Some(wanted));
        those.count() as u64
    };
    let jobs = count(came_to(Resolution::Succeeded), "job");
    let mut line = format!("{jobs} succeeded");
    if let failed @ 1.. = came_to(Resolution::Failed) {
        line.push_str(&format!(", {}", count(failed, "allowed failure")));
    }
    if about.tests.passed > 0 {
        line.push_str(&format!(", {} passed", count(about.tests.passed, "test")));
    }
    if let Some(took) = took(run) {
        line.push_str(&format!(", in {took}"));
    }
    line
}

fn canceled(run: &Run) -> String {
    match run.cause {
        Some(Cause::Superseded) if supersede_runs::is_ended_by_its_ref(run) => {
            "Superseded by a newer run".into()
        }
        Some(Cause::Superseded) => "Superseded by another run of its group".into(),
        _ => "Canceled".into(),
    }
}

/// Tests first, then the first job that is to blame, with its cause.
fn failed(about: &About<'_>) -> (State, String) {
    let run = &about.rows.run;
    if matches!(
        run.cause,
        Some(Cause::PlanError | Cause::EmptyPlan | Cause::PlanTimeout)
    ) {
        let said = about.plan.and_then(first_fault);
        let cause = run.cause.map_or("", Cause::sentence).to_owned();
        return (State::Error, said.unwrap_or(cause));
    }
    let mut parts = Vec::new();
    let broken = about.tests.failed + about.tests.errors;
    if broken > 0 {
        parts.push(format!("{} failed", count(broken, "test")));
    }
    let lost = |resolution: Option<Resolution>| resolution == Some(Resolution::Failed);
    let jobs = about.rows.jobs.iter().map(|(job, _)| job);
    let failed: Vec<_> = jobs
        .filter(|job| job.policy.required && lost(job.resolution))
        .collect();
    if let Some(first) = failed.first() {
        let cause = first.cause.map_or("failed", Cause::name);
        parts.push(format!("{}: {cause}", first.name));
        if failed.len() > 1 {
            parts.push(format!(
                "and {} more",
                count(failed.len() as u64 - 1, "job")
            ));
        }
    } else if let Some(cause) = run.cause {
        parts.push(cause.sentence().trim_end_matches('.').to_owned());
    }
    (State::Failure, parts.join(", "))
}

/// The planner's first sentence about what is wrong.
fn first_fault(plan: &str) -> Option<String> {
    let plan: serde_json::Value = serde_json::from_str(plan).ok()?;
    let text = plan["error"].as_str()?;
    text.lines().next().map(str::to_owned)
}

/// Why the first of the jobs that were left out was: where the whole file is not for this event, it
/// is the reason of all of them.
fn first_omission(plan: &str) -> Option<String> {
    let plan: serde_json::Value = serde_json::from_str(plan).ok()?;
    plan["omitted"][0]["reason"].as_str().map(str::to_owned)
}

fn count(n: u64, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

fn took(run: &Run) -> Option<Span> {
    let span = run.ended_at?.since(run.started_at?);
    // Whole seconds are enough for people.
    Some(Span(span.0 / 1000 * 1000)).filter(|it| it.0 > 0)
}
