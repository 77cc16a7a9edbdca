//! `delta-ci why`: why a job waits, why it failed, why it ran again, when it must end; of a run,
//! the same in a line for each job that did not succeed, or why it has none. The server gives the
//! answers; this only prints them.

use delta_wire::api::{AttemptView, JobSummary, JobView, RunView};
use delta_wire::states::JobState;

use super::plan_of_run;
use crate::client::find::{self, Found};
use crate::client::{self, Client, Target};
use crate::exit::Exit;
use crate::failed_job::{self, Room};
use crate::failure::Done;
use crate::sanitize;
use crate::terminal::{Terminal, Tone};
use crate::{human_time, state_words};

const EXAMPLES: &str = "\
Examples:
  delta-ci why unit                    of the newest run that has such a job
  delta-ci why latest/unit
  delta-ci why job_0197f3c4_2
  delta-ci why latest                  each job that waits or did not succeed
  delta-ci why run_0197f3c4            a run that waits for its plan, or has none
  delta-ci why latest/unit --json | jq .why.code";

/// Jobs of a run that are told one by one: some screens of them.
const MAX_JOBS: usize = 100;

/// Needs that are named of each.
const MAX_NEEDS: usize = 2;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A job: its name (of the newest run that has it), RUN/NAME, its id or the beginning of it; or
    /// a run
    job: String,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::reading(&args.target, async |client| {
        let id = match find::any(client, &args.job, terminal).await? {
            Found::Job(id) => id,
            Found::Run(id) => {
                let view: RunView = client.get(&format!("/api/v1/runs/{id}")).await?;
                match view.jobs.as_slice() {
                    [] => return of_run(client, &view, terminal).await,
                    [job] => job.job_id.clone(),
                    _ => return of_jobs(&view, terminal),
                }
            }
        };
        let text = client.get_text(&format!("/api/v1/jobs/{id}")).await?;
        let job: JobView = client::read(&text)?;
        if terminal.json {
            terminal.value(&serde_json::json!({
                "job_id": job.job_id,
                "name": job.name,
                "state": job.state,
                "cause": job.cause,
                "failure": job.failure,
                "failed_needs": job.failed_needs,
                "why": job.why,
                "must_end_by": job.must_end_by,
                "attempts": job.attempts.iter().map(again).collect::<Vec<_>>(),
            }));
        } else {
            show(&job, terminal);
        }
        Ok(Exit::Ok)
    })
    .await
}

/// Why a run has no jobs: it waits for somebody or for its plan, or the plan came to nothing.
async fn of_run(client: &Client, run: &RunView, terminal: &Terminal) -> Done {
    let it = &run.summary;
    let said = plan_of_run::of(client, &it.run_id).await?;
    if terminal.json {
        terminal.value(&serde_json::json!({
            "run_id": it.run_id,
            "state": it.state,
            "cause": it.cause,
            "why": it.why,
            "plan_error": said.error,
            "must_end_by": it.must_end_by,
        }));
        return Ok(Exit::Ok);
    }
    let state = state_words::run(it.state, it.outcome);
    let tone = state.tone.unwrap_or(Tone::Quiet);
    let state = terminal.paint_out(tone, &state.text);
    terminal.sentence(&format!("{} is {state}", sanitize::text(&it.run_id)));
    let why = it.why.as_ref().map(|why| sanitize::text(&why.message));
    let cause = it.cause.as_deref().map(sentence);
    let lines = why.into_iter().chain(cause).chain(said.faults());
    for line in lines.chain(said.left_out()) {
        terminal.sentence(&format!("  {line}"));
    }
    Ok(Exit::Ok)
}

/// Why each job of a run is where it is, but for those that succeeded.
fn of_jobs(run: &RunView, terminal: &Terminal) -> Done {
    let it = &run.summary;
    let succeeded = |job: &&JobSummary| job.state == JobState::Succeeded;
    let (well, others): (Vec<_>, Vec<_>) = run.jobs.iter().partition(succeeded);
    if terminal.json {
        let job = |job: &&JobSummary| {
            serde_json::json!({
                "job_id": job.job_id,
                "name": job.name,
                "state": job.state,
                "cause": job.cause,
                "failure": job.failure,
                "failed_needs": job.failed_needs,
                "why": job.why,
            })
        };
        terminal.value(&serde_json::json!({
            "run_id": it.run_id,
            "state": it.state,
            "outcome": it.outcome,
            "cause": it.cause,
            "why": it.why,
            "must_end_by": it.must_end_by,
            "jobs": others.iter().map(job).collect::<Vec<_>>(),
        }));
        return Ok(Exit::Ok);
    }
    let state = state_words::run(it.state, it.outcome);
    let tone = state.tone.unwrap_or(Tone::Quiet);
    let state = terminal.paint_out(tone, &state.text);
    terminal.data(&format!("{} is {state}", sanitize::text(&it.run_id)));
    let why = it.why.as_ref().map(|why| sanitize::text(&why.message));
    for line in why.into_iter().chain(it.cause.as_deref().map(sentence)) {
        terminal.data(&format!("  {line}"));
    }
    for job in others.iter().take(MAX_JOBS) {
        show_in_short(&it.run_id, job, terminal);
    }
    let more = others.len().saturating_sub(MAX_JOBS) as u64;
    let counted = [
        (more, "more did not succeed or wait"),
        (well.len() as u64, "succeeded"),
    ];
    for (count, what) in counted.into_iter().filter(|(count, _)| *count > 0) {
        let line = format!("{} {what}", state_words::count(count, "job"));
        terminal.data(&terminal.paint_out(Tone::Quiet, &line));
    }
    if let Some(first) = others.first() {
        let (run, name) = (sanitize::text(&it.run_id), sanitize::text(&first.name));
        terminal.say(&format!("delta-ci why {run}/{name} has more of one job"));
    }
    Ok(Exit::Ok)
}

/// One job among others, and how it failed.
fn show_in_short(run: &str, job: &JobSummary, terminal: &Terminal) {
    let tone = state_words::job_tone(job.state, job.required);
    let state = terminal.paint_out(tone, job.state.as_str());
    let allowed = if job.state == JobState::Failed && !job.required {
        " (allowed to fail)"
    } else {
        ""
    };
    let name = sanitize::text(&job.name);
    terminal.data(&format!("{name} is {state}{allowed}"));
    for line in in_short(job) {
        terminal.data(&format!("  {line}"));
    }
    // The server tells the tests and the last lines of the first of them.
    if let Some(failure) = job.failure.as_ref().filter(|_| failed_job::is_told(job)) {
        let rest = format!("delta-ci tests {}/{name} --failed", sanitize::text(run));
        for line in failed_job::below(failure, Room::AMONG_OTHERS, Some(&rest), terminal) {
            terminal.data(&line);
        }
    }
}

/// Why one job among others is where it is.
fn in_short(job: &JobSummary) -> Vec<String> {
    let waits = job
        .why
        .as_ref()
        .filter(|_| !state_words::is_over(job.state));
    if let Some(why) = waits {
        return vec![sanitize::text(&why.message)];
    }
    if let Some(failure) = &job.failure {
        return vec![sanitize::text(&failure.message)];
    }
    if !job.failed_needs.is_empty() {
        let needs = job.failed_needs.iter().take(MAX_NEEDS);
        return needs.map(state_words::failed_need).collect();
    }
    job.cause.as_deref().map(sentence).into_iter().collect()
}

fn show(job: &JobView, terminal: &Terminal) {
    let tone = state_words::job_tone(job.state, job.required);
    let state = terminal.paint_out(tone, job.state.as_str());
    terminal.sentence(&format!("{} is {state}", sanitize::text(&job.name)));
    let waits = job
        .why
        .as_ref()
        .filter(|_| !state_words::is_over(job.state));
    if let Some(why) = waits {
        terminal.sentence(&format!("  {}", sanitize::text(&why.message)));
    }
    match (&job.failure, &job.cause) {
        (Some(failure), _) => {
            terminal.sentence(&format!("  {}", sanitize::text(&failure.message)));
            let rest = format!("delta-ci tests {} --failed", sanitize::text(&job.job_id));
            for line in failed_job::below(failure, Room::ALONE, Some(&rest), terminal) {
                terminal.data(&line);
            }
        }
        (None, Some(_)) if !job.failed_needs.is_empty() => {
            for need in &job.failed_needs {
                terminal.sentence(&format!("  {}", state_words::failed_need(need)));
            }
        }
        (None, Some(cause)) => terminal.sentence(&format!("  {}", sentence(cause))),
        (None, None) => {}
    }
    let told = job.failure.as_ref().map(|it| it.attempt);
    for attempt in &job.attempts {
        for line in history(attempt, told == Some(attempt.attempt)) {
            terminal.sentence(&format!("  {line}"));
        }
    }
    if let Some(at) = job.must_end_by {
        let begun = job.attempts.iter().any(|it| it.started_at.is_some());
        let line = format!("  It ends by {}.", state_words::latest(at, begun));
        terminal.sentence(&terminal.paint_out(Tone::Quiet, &line));
    }
}

/// What became of one attempt, and of the leases it lost; of one whose end was `told`, the latter.
fn history(attempt: &AttemptView, told: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for lease in attempt.leases.iter().filter(|lease| lease.stale) {
        let reason = state_words::lease_reason(lease);
        lines.push(sanitize::text(&format!(
            "Attempt {} lost lease {} of {}: {reason}.",
            attempt.attempt, lease.number, lease.runner_id
        )));
    }
    if let Some(cancel) = &attempt.cancel {
        let who = state_words::cancel(cancel);
        let when = human_time::relative(cancel.at, human_time::now());
        lines.push(format!("A cancel was asked for {when} by {who}."));
    }
    if !told && !state_words::is_unbegun(attempt) {
        let (number, state) = (attempt.attempt, attempt.state.as_str());
        let line = match (&attempt.summary, &attempt.cause) {
            (Some(said), Some(_)) => format!("Attempt {number} is {state}: {said}."),
            (None, Some(cause)) => format!("Attempt {number} is {state}: {}", sentence(cause)),
            (_, None) => format!("Attempt {number} is {state}."),
        };
        lines.push(sanitize::text(&line));
    }
    // Of the first it is said above when it begins.
    let again = attempt.not_before.filter(|_| attempt.attempt > 1);
    if let Some(not_before) = again.filter(|_| attempt.started_at.is_none()) {
        let when = human_time::relative(not_before, human_time::now());
        lines.push(format!("It is tried again {when}."));
    }
    lines
}

fn again(attempt: &AttemptView) -> serde_json::Value {
    serde_json::json!({
        "attempt": attempt.attempt,
        "state": attempt.state,
        "cause": attempt.cause,
        "exit_code": attempt.exit_code,
        "cancel": attempt.cancel,
        "not_before": attempt.not_before,
        "losses": attempt.losses,
        "dispatches": attempt.dispatches,
    })
}

/// A cause in a sentence, where this build knows it.
fn sentence(cause: &str) -> String {
    match delta_core::Cause::from_name(cause) {
        Some(known) => known.sentence().to_owned(),
        None => sanitize::text(cause),
    }
}
