//! `delta-ci doctor`: folds the history of every run and compares it with the tables.
//!
//! A data folder is examined by its server, or by one that is started for it; a PostgreSQL database
//! is read directly.

use std::path::PathBuf;
use std::time::Duration;

use delta_store::doctor::examine;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::clean;
use crate::client::{self, Target};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::terminal::{self, Terminal, Tone};

const EXAMPLES: &str = "\
Examples:
  delta-ci doctor                      the folder ./.delta-ci
  delta-ci doctor --data ./data        beside a running server, too
  delta-ci doctor --store postgres://ci@db/ci --json

It reads, and changes nothing. Exit code 1 when events and tables disagree.";

/// How often the number of runs on the status line changes.
const EVERY: u64 = 100;

/// How often the status line moves.
const TICK: Duration = Duration::from_millis(120);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The data folder [default: ./.delta-ci]
    #[arg(long, value_name = "DIR", env = "DELTA_DATA")]
    data: Option<PathBuf>,
    /// A PostgreSQL database
    #[arg(long, value_name = "URL", env = "DELTA_STORE", hide_env_values = true)]
    store: Option<String>,
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
    let done = match args.store {
        Some(url) => match in_database(url, bar.clone()).await {
            Ok(report) => Ok(show(&report, terminal)),
            Err(failure) => Err(failure),
        },
        None => {
            client::with(&target(args.data), async |client| {
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

fn target(data: Option<PathBuf>) -> Target {
    Target {
        server: None,
        data,
        store: None,
        token_file: None,
        ca_cert: None,
    }
}

async fn in_database(url: String, bar: ProgressBar) -> Result<Report, Failure> {
    let examined = tokio::task::spawn_blocking(move || {
        let (_store, reader) = delta_store::postgres::open(&url)?;
        let mut progress = |runs: u64| {
            if runs.is_multiple_of(EVERY) {
                bar.set_message(format!("{runs} runs examined"));
            }
        };
        let report = examine(&reader, &mut progress);
        bar.finish_and_clear();
        report
    });
    let examined = examined.await.map_err(|error| {
        Failure::new(Exit::Internal, "the doctor did not come to an end").caused_by(&error)
    })?;
    let report = examined.map_err(|error| {
        Failure::new(Exit::Unreachable, "the store cannot be read").caused_by(&error)
    })?;
    Ok(Report {
        healthy: report.different == 0,
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
    })
}

fn show(report: &Report, terminal: &Terminal) -> Exit {
    let exit = if report.healthy {
        Exit::Ok
    } else {
        Exit::Failed
    };
    if terminal.json {
        terminal.value(report);
        return exit;
    }
    let verdict = match report.different {
        0 => terminal.paint_out(Tone::Good, "events and tables agree"),
        count => terminal.paint_out(Tone::Bad, &format!("{count} runs disagree")),
    };
    let (runs, events) = (report.runs, report.events);
    terminal.data(&format!("{runs} runs, {events} events: {verdict}"));
    if report.busy > 0 {
        let busy = report.busy;
        terminal.say(&format!(
            "{busy} runs changed too often to be compared: ask again"
        ));
    }
    if let Some(first) = &report.first_difference {
        let at = first.version.map(|at| format!(" at event {at}"));
        let run = clean::text(&first.run_id);
        terminal.data(&format!("first: {run}{}", at.unwrap_or_default()));
        let lines = [
            ("what", &first.what),
            ("events say", &first.expected),
            ("tables say", &first.found),
        ];
        for (name, text) in lines {
            terminal.data(&format!("{name:>12}  {}", clean::text(text)));
        }
    }
    exit
}

fn status_line(terminal: &Terminal) -> ProgressBar {
    if !terminal.live() {
        return ProgressBar::hidden();
    }
    let bar = terminal::bars().add(ProgressBar::new_spinner());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.set_message("folding the history of every run");
    bar.enable_steady_tick(TICK);
    bar
}
