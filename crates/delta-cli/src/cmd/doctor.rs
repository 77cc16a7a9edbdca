//! `delta-ci doctor`: folds the history of every run and compares it with the tables, asks the
//! database about its own files, and names logs, artifacts and caches that are gone.
//!
//! A data folder is examined by its server, or by one that is started for it; a PostgreSQL database
//! is read directly.

use std::time::Duration;

use delta_store::StoreError;
use delta_store::doctor::examine;
use delta_store::read::Reader as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::client::{self, Target};
use crate::embedded_server;
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::sanitize;
use crate::state_words::count;
use crate::terminal::{self, Terminal, Tone};

const EXAMPLES: &str = "\
Examples:
  delta-ci doctor                      the folder ./.delta-ci
  delta-ci doctor --data ./data        beside a running server, too
  delta-ci doctor --store postgres://ci@db/ci --json

It reads, and changes nothing; a large database takes a while, and may be served meanwhile. Exit
code 1 when events and tables disagree or something that was stored is gone, 70 when the database
itself is damaged. Of PostgreSQL, indexes are looked at where the extension amcheck is installed.";

/// How often the number of runs on the status line changes.
const EVERY: u64 = 100;

/// How often the status line moves.
const TICK: Duration = Duration::from_millis(120);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
}

/// What was found, as the server spells it.
#[derive(Debug, Deserialize, Serialize)]
struct Report {
    healthy: bool,
    runs: u64,
    events: u64,
    /// Runs that changed too often to be compared.
    busy: u64,
    different: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_difference: Option<Difference>,
    /// What the database was asked about its own files.
    #[serde(default)]
    integrity: String,
    #[serde(default)]
    damage: Vec<String>,
    #[serde(default)]
    more_damage: bool,
    /// Not known where only the database was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing_objects: Option<u64>,
    #[serde(default)]
    first_missing: Vec<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Difference {
    run_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    what: String,
    expected: String,
    found: String,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    let bar = status_line(terminal);
    let done = match args.target.store.clone() {
        Some(url) if args.target.server.is_none() => in_database(url, bar.clone())
            .await
            .map(|report| show(&report, terminal)),
        _ => {
            client::reading(&args.target, async |client| {
                let response = client.open("/api/v1/doctor", &[]).await?;
                let text = response.text().await.map_err(|error| client.away(&error))?;
                let report: Report = client::read(&text)?;
                bar.finish_and_clear();
                Ok(show(&report, terminal))
            })
            .await
        }
    };
    bar.finish_and_clear();
    done
}

async fn in_database(url: String, bar: ProgressBar) -> Result<Report, Failure> {
    embedded_server::check_store(&url)?;
    let examined = tokio::task::spawn_blocking(move || {
        let reader = delta_store::postgres::open_reader(&url)?;
        let mut integrity =
            reader.integrity(&mut |what| bar.set_message(format!("looking at {what}")))?;
        let mut progress = |runs: u64| {
            if runs.is_multiple_of(EVERY) {
                bar.set_message(format!("{runs} runs examined"));
            }
        };
        let report = match examine(&reader, &mut progress) {
            Err(StoreError::Corrupt(why)) => {
                integrity.fault(why);
                Ok(delta_store::doctor::Report::default())
            }
            report => report,
        };
        bar.finish_and_clear();
        Ok((report?, integrity))
    });
    let examined = examined.await.map_err(|error| {
        Failure::new(Exit::Internal, "the doctor did not come to an end").caused_by(&error)
    })?;
    let (report, integrity) = examined.map_err(|error: StoreError| {
        let exit = match error {
            StoreError::Corrupt(_) => Exit::Internal,
            StoreError::TooNew { .. } | StoreError::TooOld { .. } => Exit::Refused,
            StoreError::Unavailable(_)
            | StoreError::Full(_)
            | StoreError::Failing(_)
            | StoreError::Conflict => Exit::Unreachable,
        };
        Failure::new(exit, "the store cannot be read")
            .caused_by(&error)
            .next("check --store (or DELTA_STORE), and that the database runs")
    })?;
    Ok(Report {
        healthy: report.different == 0 && integrity.faults.is_empty(),
        runs: report.runs,
        events: report.events,
        busy: report.busy,
        different: report.different,
        first_difference: report.first_difference.map(|first| Difference {
            run_id: first.run.to_string(),
            version: first.version,
            what: first.what,
            expected: first.expected,
            found: first.found,
        }),
        integrity: integrity.checked,
        damage: integrity.faults,
        more_damage: integrity.more,
        missing_objects: None,
        first_missing: Vec::new(),
    })
}

fn show(report: &Report, terminal: &Terminal) -> Exit {
    let exit = match report.healthy {
        true => Exit::Ok,
        false if report.damage.is_empty() => Exit::Failed,
        false => Exit::Internal,
    };
    if terminal.json {
        terminal.value(report);
        return exit;
    }
    let verdict = match report.different {
        0 => terminal.paint_out(Tone::Good, "events and tables agree"),
        1 => terminal.paint_out(Tone::Bad, "1 run disagrees"),
        count => terminal.paint_out(Tone::Bad, &format!("{count} runs disagree")),
    };
    let (runs, events) = (count(report.runs, "run"), count(report.events, "event"));
    terminal.sentence(&format!("{runs}, {events}: {verdict}"));
    if !report.integrity.is_empty() {
        terminal.say(&sanitize::text(&report.integrity));
    }
    damage(report, terminal);
    gone(report, terminal);
    if report.busy > 0 {
        let busy = count(report.busy, "run");
        terminal.say(&format!(
            "{busy} changed too often to be compared: ask again"
        ));
    }
    if let Some(first) = &report.first_difference {
        let at = first.version.map(|at| format!(" at event {at}"));
        let run = sanitize::text(&first.run_id);
        terminal.sentence(&format!("first: {run}{}", at.unwrap_or_default()));
        let lines = [
            ("what", &first.what),
            ("events say", &first.expected),
            ("tables say", &first.found),
        ];
        for (name, text) in lines {
            terminal.fact(name, &sanitize::text(text));
        }
    }
    exit
}

fn damage(report: &Report, terminal: &Terminal) {
    if report.damage.is_empty() {
        return;
    }
    terminal.sentence(&terminal.paint_out(Tone::Bad, "the database is damaged"));
    for fault in &report.damage {
        terminal.sentence(&format!("  {}", sanitize::text(fault)));
    }
    if report.more_damage {
        terminal.sentence("  and more");
    }
    terminal.say("next: stop the server, keep its folder as it is, and go on with a copy");
}

/// What was stored and is not there any more.
fn gone(report: &Report, terminal: &Terminal) {
    let Some(missing) = report.missing_objects else {
        return terminal.say(
            "logs, artifacts and caches were not looked at: ask the server with --data or --server",
        );
    };
    if missing == 0 {
        return;
    }
    let what = format!(
        "{} of logs, artifacts and caches are gone",
        count(missing, "object")
    );
    terminal.sentence(&terminal.paint_out(Tone::Bad, &what));
    for object in &report.first_missing {
        terminal.data(&format!("  {}", sanitize::text(object)));
    }
    let left = missing.saturating_sub(report.first_missing.len() as u64);
    if left > 0 {
        terminal.sentence(&format!("  and {left} more"));
    }
}

fn status_line(terminal: &Terminal) -> ProgressBar {
    if !terminal.live() {
        return ProgressBar::hidden();
    }
    let bar = terminal::bars().add(ProgressBar::new_spinner());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.set_message("looking at the database, and folding the history of every run");
    bar.enable_steady_tick(TICK);
    bar
}
