//! `delta-ci show`: a run with its jobs, or a job with its attempts and leases.

use delta_wire::api::{AttemptView, JobSummary, JobView, RunView};

use super::plan_of_run;
use crate::client::find::{self, Found};
use crate::client::{self, Target};
use crate::columns::Columns;
use crate::exit::Exit;
use crate::failed_job::{self, Room};
use crate::failure::Done;
use crate::sanitize;
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone};
use crate::{columns, human_time, state_words};

const EXAMPLES: &str = "\
Examples:
  delta-ci show latest
  delta-ci show run_0197f3c4           the beginning of an id is enough
  delta-ci show latest/unit            a job by its name
  delta-ci show unit                   the same, of the newest run that has such a job
  delta-ci show --json latest | jq .outcome";

/// Failed jobs of a run that are told below its table: as many as the server tells in full.
const MAX_FAILURES: usize = 10;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run or a job: its id or the beginning of it, `latest`, RUN/NAME, or the name of a job of
    /// the newest run that has it
    #[arg(value_name = "RUN|JOB")]
    what: String,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::reading(&args.target, async |client| {
        let found = find::any(client, &args.what, terminal).await?;
        let path = match &found {
            Found::Run(id) => format!("/api/v1/runs/{id}"),
            Found::Job(id) => format!("/api/v1/jobs/{id}"),
        };
        let text = client.get_text(&path).await?;
        if terminal.json {
            terminal.value(&client::read::<serde_json::Value>(&text)?);
        } else {
            let mut told = Vec::new();
            match &found {
                Found::Run(id) => {
                    let run: RunView = client::read(&text)?;
                    show_run(&run, terminal);
                    told = show_failures(&run, terminal);
                    let said = plan_of_run::of(client, id).await?;
                    for (name, lines) in [("plan", said.faults()), ("left out", said.left_out())] {
                        let facts: Vec<_> = lines.into_iter().map(|line| (name, line)).collect();
                        show_facts(&facts, terminal);
                    }
                }
                Found::Job(_) => {
                    let job: JobView = client::read(&text)?;
                    show_job(&job, terminal);
                    told.extend(job.failure.map(|_| job.job_id));
                }
            }
            super::test_results::in_short(client, &found, &told, terminal).await?;
        }
        Ok(Exit::Ok)
    })
    .await
}

/// The header of a run and a table of its jobs, to stdout.
pub fn show_run(run: &RunView, terminal: &Terminal) {
    let now = human_time::now();
    let state = state_words::run(run.summary.state, run.summary.outcome);
    let tone = state.tone.unwrap_or(Tone::Quiet);
    let id = terminal.paint_out(Tone::Strong, &sanitize::text(&run.summary.run_id));
    terminal.sentence(&format!("{id}  {}", terminal.paint_out(tone, &state.text)));
    let mut facts = vec![
        ("created", human_time::relative(run.summary.created_at, now)),
        (
            "took",
            human_time::taken(run.summary.started_at, run.summary.ended_at, now),
        ),
    ];
    if run.summary.run_attempt > 1 {
        facts.push(("run attempt", run.summary.run_attempt.to_string()));
    }
    let cause = run.summary.cause.as_deref();
    facts.extend(cause.map(|it| ("cause", state_words::cause(it))));
    let texts = [
        ("rerun of", &run.summary.rerun_of),
        ("repository", &run.summary.repository),
        ("ref", &run.summary.git_ref),
        ("commit", &run.summary.commit),
    ];
    for (name, text) in texts {
        facts.extend(text.as_ref().map(|text| (name, sanitize::text(text))));
    }
    let group = run.summary.concurrency.as_ref();
    facts.extend(group.map(|it| ("group", state_words::group(it))));
    for rerun in &run.reruns {
        facts.push(("run again as", sanitize::text(rerun)));
    }
    facts.extend(
        run.summary
            .cancel
            .as_ref()
            .map(|it| ("cancel by", state_words::cancel(it))),
    );
    let begun = run.summary.started_at.is_some();
    let by = run.summary.must_end_by;
    facts.extend(by.map(|at| ("must end by", state_words::latest(at, begun))));
    facts.extend(
        run.summary
            .why
            .as_ref()
            .map(|why| ("why", sanitize::text(&why.message))),
    );
    let untold = run.untold.as_deref();
    facts.extend(untold.map(|why| ("not told", sanitize::text(why))));
    show_facts(&facts, terminal);
    if run.jobs.is_empty() {
        return;
    }
    terminal.data("");
    let jobs: Vec<&JobSummary> = run.jobs.iter().collect();
    show_jobs(&jobs, &columns::JOBS, terminal);
}

/// Why jobs failed, below their table. Returns whose failures were told.
fn show_failures(run: &RunView, terminal: &Terminal) -> Vec<String> {
    let failed = run.jobs.iter().filter(|job| failed_job::is_told(job));
    let failed = failed
        .filter(|job| job.failure.is_some())
        .take(MAX_FAILURES);
    let mut told = Vec::new();
    for job in failed {
        terminal.data("");
        let name = sanitize::text(&job.name);
        let rest = format!("delta-ci tests {}/{name} --failed", run.summary.run_id);
        for line in failed_job::job(job, Room::AMONG_OTHERS, Some(&rest), terminal) {
            terminal.data(&line);
        }
        told.push(job.job_id.clone());
    }
    told
}

/// A table of jobs, with their ids or without them.
pub fn show_jobs(jobs: &[&JobSummary], columns: &Columns, terminal: &Terminal) {
    let now = human_time::now();
    let row = |job: &&JobSummary| {
        let mut row = vec![
            Cell::from(sanitize::text(&job.name)),
            state_words::job(job.state, job.required),
            Cell::from(state_words::begun(job).to_string()),
            Cell::from(human_time::taken(job.started_at, job.ended_at, now)),
        ];
        if columns.header.contains(&"ID") {
            row.push(Cell::toned(sanitize::text(&job.job_id), Tone::Quiet));
        }
        // Last, since it may be a sentence.
        row.push(Cell::from(state_words::note(job)));
        row
    };
    let rows: Vec<Vec<Cell>> = jobs.iter().map(row).collect();
    table::show(terminal, columns, &rows);
}

/// Attempts that somebody took up.
fn begun(job: &JobView) -> usize {
    let attempts = job.attempts.iter();
    attempts.filter(|it| !state_words::is_unbegun(it)).count()
}

fn show_job(job: &JobView, terminal: &Terminal) {
    let id = terminal.paint_out(Tone::Strong, &sanitize::text(&job.job_id));
    let tone = state_words::job_tone(job.state, job.required);
    let state = terminal.paint_out(tone, job.state.as_str());
    terminal.sentence(&format!("{id}  {}  {state}", sanitize::text(&job.name)));
    let mut facts = vec![
        ("run", sanitize::text(&job.run_id)),
        ("required", if job.required { "yes" } else { "no" }.into()),
        (
            "attempts",
            format!("{} of {}", begun(job), job.max_attempts),
        ),
    ];
    let requires = state_words::requirements(&job.requires);
    for (name, words) in [("needs", &job.needs), ("requires", &requires)] {
        if !words.is_empty() {
            facts.push((name, sanitize::text(&words.join(", "))));
        }
    }
    let group = job.concurrency.as_ref();
    facts.extend(group.map(|it| ("group", state_words::group(it))));
    facts.extend(
        job.kept_from
            .as_ref()
            .map(|id| ("kept from", sanitize::text(id))),
    );
    let cause = job.cause.as_deref();
    facts.extend(cause.map(|it| ("cause", state_words::cause(it))));
    let unmet = job.failed_needs.iter().map(state_words::failed_need);
    facts.extend(unmet.map(|it| ("why", it)));
    // Of an attempt that never began nothing else is told.
    let unbegun = job.attempts.iter().filter(|it| state_words::is_unbegun(it));
    let canceled = unbegun.filter_map(|it| it.cancel.as_ref());
    facts.extend(canceled.map(|it| ("cancel by", state_words::cancel(it))));
    let why = job
        .why
        .as_ref()
        .filter(|_| !state_words::is_over(job.state));
    facts.extend(why.map(|why| ("why", sanitize::text(&why.message))));
    let begun = begun(job) > 0;
    facts.extend(
        job.must_end_by
            .map(|at| ("must end by", state_words::latest(at, begun))),
    );
    show_facts(&facts, terminal);
    if let Some(failure) = &job.failure {
        terminal.data("");
        let tone = state_words::job_tone(job.state, job.required);
        let message = sanitize::text(&failure.message);
        terminal.sentence(&terminal.paint_out(tone, &format!("✗ {message}")));
        let rest = format!("delta-ci tests {} --failed", sanitize::text(&job.job_id));
        for line in failed_job::below(failure, Room::ALONE, Some(&rest), terminal) {
            terminal.data(&line);
        }
    }
    for attempt in job
        .attempts
        .iter()
        .filter(|it| !state_words::is_unbegun(it))
    {
        let told = job.failure.as_ref().map(|it| it.attempt);
        show_attempt(attempt, told == Some(attempt.attempt), terminal);
    }
}

/// `told`: how it failed has been said above.
fn show_attempt(attempt: &AttemptView, told: bool, terminal: &Terminal) {
    let now = human_time::now();
    let state = state_words::attempt(attempt.state);
    let state = terminal.paint_out(state.tone.unwrap_or(Tone::Quiet), &state.text);
    terminal.data("");
    terminal.sentence(&format!("attempt {}  {state}", attempt.attempt));
    let mut facts = vec![(
        "took",
        human_time::taken(attempt.started_at, attempt.ended_at, now),
    )];
    let cause = attempt.cause.as_deref();
    facts.extend(cause.map(|it| ("cause", state_words::cause(it))));
    let summary = attempt.summary.as_ref();
    facts.extend(summary.map(|it| ("summary", sanitize::text(it))));
    let cancel = attempt.cancel.as_ref();
    facts.extend(cancel.map(|it| ("cancel by", state_words::cancel(it))));
    facts.extend(
        attempt
            .exit_code
            .map(|code| ("exit code", code.to_string())),
    );
    facts.extend(
        attempt
            .confirmed
            .map(|it| ("end", state_words::confirmed(it))),
    );
    if let Some(evidence) = &attempt.evidence {
        facts.extend(state_words::evidence(evidence).map(|it| ("seen", it)));
        let lines = evidence.last_lines.iter().filter(|_| !told).enumerate();
        facts.extend(lines.map(|(at, line)| match at {
            0 => ("last lines", sanitize::text(line)),
            _ => ("", sanitize::text(line)),
        }));
    }
    if let Some(log) = &attempt.log {
        facts.push(("log", format!("{} bytes, {log}", log.length)));
    }
    facts.extend(
        attempt
            .steps
            .iter()
            .map(|it| ("step", state_words::step(it))),
    );
    for lease in &attempt.leases {
        let stale = if lease.stale { ", stale" } else { "" };
        let reason = match &lease.reason {
            Some(_) => format!(": {}", state_words::lease_reason(lease)),
            None => String::new(),
        };
        facts.push((
            "lease",
            sanitize::text(&format!(
                "{} (epoch {}) {}{stale} by {}{reason}",
                lease.number,
                lease.epoch,
                lease.state.as_str(),
                lease.runner_id,
            )),
        ));
    }
    show_facts(&facts, terminal);
}

fn show_facts(facts: &[(&str, String)], terminal: &Terminal) {
    for (name, text) in facts {
        terminal.fact(name, text);
    }
}
