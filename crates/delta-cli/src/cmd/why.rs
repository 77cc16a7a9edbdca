//! `delta-ci why`: why a job waits, why it failed, why it ran again, when it must end; of a run
//! without jobs, why it has none. The server gives the answers; this only prints them.

use delta_wire::api::{AttemptView, JobView, RunView};

use super::planned;
use crate::clean;
use crate::client::find::{self, Found};
use crate::client::{self, Client, Target};
use crate::exit::Exit;
use crate::failed::{self, Room};
use crate::failure::Done;
use crate::terminal::{Terminal, Tone};
use crate::{moment, words};

const EXAMPLES: &str = "\
Examples:
  delta-ci why unit                    of the newest run that has such a job
  delta-ci why latest/unit
  delta-ci why job_0197f3c4_2
  delta-ci why run_0197f3c4            a run that waits for its plan, or has none
  delta-ci why latest/unit --json | jq .why.code";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A job: its name (of the newest run that has it), RUN/NAME, its id or the beginning of it; or
    /// a run with one job or none
    job: String,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::with(&args.target, async |client| {
        let id = match find::any(client, &args.job, terminal).await? {
            Found::Job(id) => id,
            Found::Run(id) => {
                let view: RunView = client.get(&format!("/api/v1/runs/{id}")).await?;
                if view.jobs.is_empty() {
                    return of_run(client, &view, terminal).await;
                }
                find::job(client, &id, terminal).await?
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
    let said = planned::of(client, &it.run_id).await?;
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
    let state = words::run(it.state, it.outcome);
    let tone = state.tone.unwrap_or(Tone::Quiet);
    let state = terminal.paint_out(tone, &state.text);
    terminal.data(&format!("{} is {state}", clean::text(&it.run_id)));
    let why = it.why.as_ref().map(|why| clean::text(&why.message));
    let cause = it.cause.as_deref().map(sentence);
    let lines = why.into_iter().chain(cause).chain(said.faults());
    for line in lines.chain(said.left_out()) {
        terminal.data(&format!("  {line}"));
    }
    Ok(Exit::Ok)
}

fn show(job: &JobView, terminal: &Terminal) {
    let tone = words::job_tone(job.state, job.required);
    let state = terminal.paint_out(tone, job.state.as_str());
    terminal.data(&format!("{} is {state}", clean::text(&job.name)));
    let waits = job.why.as_ref().filter(|_| !words::is_over(job.state));
    if let Some(why) = waits {
        terminal.data(&format!("  {}", clean::text(&why.message)));
    }
    match (&job.failure, &job.cause) {
        (Some(failure), _) => {
            terminal.data(&format!("  {}", clean::text(&failure.message)));
            let rest = format!("delta-ci tests {} --failed", clean::text(&job.job_id));
            for line in failed::below(failure, Room::ALONE, Some(&rest), terminal) {
                terminal.data(&line);
            }
        }
        (None, Some(cause)) => terminal.data(&format!("  {}", sentence(cause))),
        (None, None) => {}
    }
    let told = job.failure.as_ref().map(|it| it.attempt);
    for attempt in &job.attempts {
        for line in history(attempt, told == Some(attempt.attempt)) {
            terminal.data(&format!("  {line}"));
        }
    }
    if let Some(at) = job.must_end_by {
        let when = moment::relative(at, moment::now());
        let line = format!("  It ends by {at} at the latest ({when}).");
        terminal.data(&terminal.paint_out(Tone::Quiet, &line));
    }
}

/// What became of one attempt, and of the leases it lost; of one whose end was `told`, the latter.
fn history(attempt: &AttemptView, told: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for lease in attempt.leases.iter().filter(|lease| lease.stale) {
        let reason = words::lease_reason(lease);
        lines.push(clean::text(&format!(
            "Attempt {} lost lease {} of {}: {reason}.",
            attempt.attempt, lease.number, lease.runner_id
        )));
    }
    if let Some(cancel) = &attempt.cancel {
        let who = words::cancel(cancel);
        let when = moment::relative(cancel.at, moment::now());
        lines.push(format!("A cancel was asked for {when} by {who}."));
    }
    if !told {
        let (number, state) = (attempt.attempt, attempt.state.as_str());
        let line = match (&attempt.summary, &attempt.cause) {
            (Some(said), Some(_)) => format!("Attempt {number} is {state}: {said}."),
            (None, Some(cause)) => format!("Attempt {number} is {state}: {}", sentence(cause)),
            (_, None) => format!("Attempt {number} is {state}."),
        };
        lines.push(clean::text(&line));
    }
    if let Some(not_before) = attempt.not_before.filter(|_| attempt.started_at.is_none()) {
        let when = moment::relative(not_before, moment::now());
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
        None => clean::text(cause),
    }
}
