//! `delta-ci logs`: what a job printed. Control sequences never reach a terminal; `--raw` writes
//! the stored bytes as they are.

use std::time::Duration;

use delta_wire::api::JobView;

use crate::clean::{self, Colours};
use crate::client::{self, Client, Target, find};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::terminal::Terminal;
use crate::words;

const EXAMPLES: &str = "\
Examples:
  delta-ci logs latest/unit
  delta-ci logs -f latest/unit         as it prints it
  delta-ci logs latest/unit --attempt 1
  delta-ci logs latest/unit --raw > unit.log";

/// Between two looks at a log that grows.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A job: its id or the beginning of it, RUN/NAME, or a run with one job
    job: String,
    /// Go on until the job has ended
    #[arg(long, short)]
    follow: bool,
    /// Which attempt [default: the newest]
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// The stored bytes as they are, control sequences included
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::with(&args.target, async |client| {
        let job = find::job(client, &args.job).await?;
        let mut printer = Printer::new(&args, terminal);
        if args.follow {
            follow(client, &job, args.attempt, &mut printer).await?;
        } else {
            let bytes = fetch(client, &job, args.attempt, 0).await?;
            printer.push(&bytes);
        }
        printer.finish();
        Ok(Exit::Ok)
    })
    .await
}

/// Each attempt has a log of its own: a retry begins a new one.
async fn follow(
    client: &Client,
    job: &str,
    only: Option<u32>,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let (mut attempt, mut offset) = (only.unwrap_or(0), 0);
    loop {
        let view: JobView = client.get(&format!("/api/v1/jobs/{job}")).await?;
        let newest = view.attempts.last().map_or(1, |attempt| attempt.attempt);
        if only.is_none() && newest != attempt {
            (attempt, offset) = (newest, 0);
        }
        let bytes = match fetch(client, job, Some(attempt), offset).await {
            // Nothing has been printed yet.
            Err(failure) if failure.exit == Exit::NotFound => Vec::new(),
            fetched => fetched?,
        };
        printer.push(&bytes);
        offset += bytes.len() as u64;
        if words::is_over(view.state) || only.is_some_and(|only| only < newest) {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_PAUSE).await;
    }
}

async fn fetch(
    client: &Client,
    job: &str,
    attempt: Option<u32>,
    offset: u64,
) -> Result<Vec<u8>, Failure> {
    let mut path = format!("/api/v1/jobs/{job}/log?offset={offset}");
    if let Some(attempt) = attempt {
        path.push_str(&format!("&attempt={attempt}"));
    }
    let mut response = client.open(&path, &[]).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| client.away(&error))?
    {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Cuts bytes into lines and cleans them on their way out.
struct Printer<'a> {
    terminal: &'a Terminal,
    raw: bool,
    open: Vec<u8>,
}

impl<'a> Printer<'a> {
    fn new(args: &Args, terminal: &'a Terminal) -> Printer<'a> {
        Printer {
            terminal,
            raw: args.raw,
            open: Vec::new(),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.raw {
            return self.terminal.bytes(bytes);
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.open.extend_from_slice(part);
            if self.open.ends_with(b"\n") {
                self.open.pop();
                self.line();
            }
        }
    }

    fn finish(&mut self) {
        if !self.open.is_empty() {
            self.line();
        }
    }

    fn line(&mut self) {
        let line = std::mem::take(&mut self.open);
        if self.terminal.json {
            let text = String::from_utf8_lossy(&line);
            return self
                .terminal
                .value_line(&serde_json::json!({ "line": text }));
        }
        let colours = match self.terminal.colour_out() {
            true => Colours::Kept,
            false => Colours::Dropped,
        };
        self.terminal.data(&clean::log_line(&line, colours));
    }
}
