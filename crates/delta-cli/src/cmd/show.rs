//! `delta-ci show`: a run with its jobs, or a job with its attempts and leases.

use delta_wire::api::{AttemptView, JobSummary, JobView, RunView};

use super::planned;
use crate::clean;
use crate::client::find::{self, Found};
use crate::client::{self, Target};
use crate::exit::Exit;
use crate::failed::{self, Room};
use crate::failure::Done;
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone};
use crate::{moment, words};

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
    client::with(&args.target, async |client| {
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
                    let said = planned::of(client, id).await?;
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
            super::tests::in_short(client, &found, &told, terminal).await?;
        }
        Ok(Exit::Ok)
    })
    .await
}

/// The header of a run and a table of its jobs, to stdout.
pub fn show_run(run: &RunView, terminal: &Terminal) {
    let now = moment::now();
    let state = words::run(run.summary.state, run.summary.outcome);
    let tone = state.tone.unwrap_or(Tone::Quiet);
    let id = terminal.paint_out(Tone::Strong, &clean::text(&run.summary.run_id));
    terminal.data(&format!("{id}  {}", terminal.paint_out(tone, &state.text)));
    let mut facts = vec![
        ("created", moment::relative(run.summary.created_at, now)),
        (
            "took",
            moment::taken(run.summary.started_at, run.summary.ended_at, now),
        ),
    ];
    if run.summary.run_attempt > 1 {
        facts.push(("run attempt", run.summary.run_attempt.to_string()));
    }
    let cause = run.summary.cause.as_deref();
    facts.extend(cause.map(|it| ("cause", words::cause(it))));
    let texts = [
        ("rerun of", &run.summary.rerun_of),
        ("repository", &run.summary.repository),
        ("ref", &run.summary.git_ref),
        ("commit", &run.summary.commit),
    ];
    for (name, text) in texts {
        facts.extend(text.as_ref().map(|text| (name, clean::text(text))));
    }
    let group = run.summary.concurrency.as_ref();
    facts.extend(group.map(|it| ("group", words::group(it))));
    for rerun in &run.reruns {
        facts.push(("run again as", clean::text(rerun)));
    }
    facts.extend(
        run.summary
            .cancel
            .as_ref()
            .map(|it| ("cancel by", words::cancel(it))),
    );
    facts.extend(run.summary.must_end_by.map(|at| {
        (
            "must end by",
            format!(
                "{at} ({}), all waiting and tries counted",
                moment::relative(at, now)
            ),
        )
    }));
    facts.extend(
        run.summary
            .why
            .as_ref()
            .map(|why| ("why", clean::text(&why.message))),
    );
    let untold = run.untold.as_deref();
    facts.extend(untold.map(|why| ("not told", clean::text(why))));
    show_facts(&facts, terminal);
    if run.jobs.is_empty() {
        return;
    }
    terminal.data("");
    let jobs: Vec<&JobSummary> = run.jobs.iter().collect();
    for line in table_of(&jobs, Columns::All, terminal) {
        terminal.data(&line);
    }
}

/// Why jobs failed, below their table. Returns whose failures were told.
fn show_failures(run: &RunView, terminal: &Terminal) -> Vec<String> {
    let failed = run.jobs.iter().filter(|job| failed::is_told(job));
    let failed = failed
        .filter(|job| job.failure.is_some())
        .take(MAX_FAILURES);
    let mut told = Vec::new();
    for job in failed {
        terminal.data("");
        let name = clean::text(&job.name);
        let rest = format!("delta-ci tests {}/{name} --failed", run.summary.run_id);
        for line in failed::job(job, Room::AMONG_OTHERS, Some(&rest), terminal) {
            terminal.data(&line);
        }
        told.push(job.job_id.clone());
    }
    told
}

/// How wide a table of jobs may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    All,
    /// Without ids, which alone are half a line.
    Narrow,
}

/// One line per job.
pub fn table_of(jobs: &[&JobSummary], columns: Columns, terminal: &Terminal) -> Vec<String> {
    let now = moment::now();
    let mut header = vec!["JOB", "STATE", "ATTEMPTS", "TOOK"];
    let row = |job: &&JobSummary| {
        let mut row = vec![
            Cell::from(clean::text(&job.name)),
            words::job(job.state, job.required),
            Cell::from(job.attempts.to_string()),
            Cell::from(moment::taken(job.started_at, job.ended_at, now)),
        ];
        if columns == Columns::All {
            row.push(Cell::toned(clean::text(&job.job_id), Tone::Quiet));
        }
        // Last, since it may be a sentence.
        row.push(Cell::from(words::note(job)));
        row
    };
    let rows: Vec<Vec<Cell>> = jobs.iter().map(row).collect();
    if columns == Columns::All {
        header.push("ID");
    }
    header.push("NOTE");
    table::render(terminal, &header, &rows)
}

fn show_job(job: &JobView, terminal: &Terminal) {
    let now = moment::now();
    let id = terminal.paint_out(Tone::Strong, &clean::text(&job.job_id));
    let tone = words::job_tone(job.state, job.required);
    let state = terminal.paint_out(tone, job.state.as_str());
    terminal.data(&format!("{id}  {}  {state}", clean::text(&job.name)));
    let mut facts = vec![
        ("run", clean::text(&job.run_id)),
        ("required", if job.required { "yes" } else { "no" }.into()),
        (
            "attempts",
            format!("{} of {}", job.attempts.len(), job.max_attempts),
        ),
    ];
    let lists = [("needs", &job.needs), ("requires", &job.requires)];
    for (name, words) in lists {
        if !words.is_empty() {
            facts.push((name, clean::text(&words.join(", "))));
        }
    }
    let group = job.concurrency.as_ref();
    facts.extend(group.map(|it| ("group", words::group(it))));
    facts.extend(
        job.kept_from
            .as_ref()
            .map(|id| ("kept from", clean::text(id))),
    );
    let cause = job.cause.as_deref();
    facts.extend(cause.map(|it| ("cause", words::cause(it))));
    let why = job.why.as_ref().filter(|_| !words::is_over(job.state));
    facts.extend(why.map(|why| ("why", clean::text(&why.message))));
    facts.extend(job.must_end_by.map(|at| {
        (
            "must end by",
            format!(
                "{at} ({}), all waiting and tries counted",
                moment::relative(at, now)
            ),
        )
    }));
    show_facts(&facts, terminal);
    if let Some(failure) = &job.failure {
        terminal.data("");
        let tone = words::job_tone(job.state, job.required);
        let message = clean::text(&failure.message);
        terminal.data(&terminal.paint_out(tone, &format!("✗ {message}")));
        let rest = format!("delta-ci tests {} --failed", clean::text(&job.job_id));
        for line in failed::below(failure, Room::ALONE, Some(&rest), terminal) {
            terminal.data(&line);
        }
    }
    for attempt in &job.attempts {
        let told = job.failure.as_ref().map(|it| it.attempt);
        show_attempt(attempt, told == Some(attempt.attempt), terminal);
    }
}

/// `told`: how it failed has been said above.
fn show_attempt(attempt: &AttemptView, told: bool, terminal: &Terminal) {
    let now = moment::now();
    let state = words::attempt(attempt.state);
    let state = terminal.paint_out(state.tone.unwrap_or(Tone::Quiet), &state.text);
    terminal.data("");
    terminal.data(&format!("attempt {}  {state}", attempt.attempt));
    let mut facts = vec![(
        "took",
        moment::taken(attempt.started_at, attempt.ended_at, now),
    )];
    let cause = attempt.cause.as_deref();
    facts.extend(cause.map(|it| ("cause", words::cause(it))));
    let summary = attempt.summary.as_ref();
    facts.extend(summary.map(|it| ("summary", clean::text(it))));
    let cancel = attempt.cancel.as_ref();
    facts.extend(cancel.map(|it| ("cancel by", words::cancel(it))));
    facts.extend(
        attempt
            .exit_code
            .map(|code| ("exit code", code.to_string())),
    );
    facts.extend(attempt.confirmed.map(|it| ("end", words::confirmed(it))));
    if let Some(evidence) = &attempt.evidence {
        facts.extend(words::evidence(evidence).map(|it| ("seen", it)));
        let lines = evidence.last_lines.iter().filter(|_| !told).enumerate();
        facts.extend(lines.map(|(at, line)| match at {
            0 => ("last lines", clean::text(line)),
            _ => ("", clean::text(line)),
        }));
    }
    if let Some(log) = &attempt.log {
        facts.push(("log", format!("{} bytes, {log}", log.length)));
    }
    facts.extend(attempt.steps.iter().map(|it| ("step", words::step(it))));
    for lease in &attempt.leases {
        let stale = if lease.stale { ", stale" } else { "" };
        let reason = match &lease.reason {
            Some(_) => format!(": {}", words::lease_reason(lease)),
            None => String::new(),
        };
        facts.push((
            "lease",
            clean::text(&format!(
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
        let name = terminal.paint_out(Tone::Quiet, &format!("{name:>12}"));
        terminal.data(&format!("{name}  {}", text.trim_end()));
    }
}
