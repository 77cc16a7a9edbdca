//! `delta-ci events`: the history of a run, each accepted command with the facts it made.

use delta_wire::api::{EventList, EventView, RunView};

use crate::client::sse::Events;
use crate::client::{self, Client, Target, find};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::sanitize;
use crate::terminal::{Terminal, Tone};

const EXAMPLES: &str = "\
Examples:
  delta-ci events latest
  delta-ci events latest -f            go on until the run has ended
  delta-ci events latest --json        one JSON object per line";

/// Characters of the facts on one line for people; --json has them whole.
const MAX_SHOWN: usize = 160;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run: its id or the beginning of it, or `latest`
    run: String,
    /// Go on until the run has ended
    #[arg(long, short)]
    follow: bool,
    /// Begin after this version
    #[arg(long, value_name = "VERSION", default_value_t = 0)]
    after: u64,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::reading(&args.target, async |client| {
        let run = find::run(client, &args.run, terminal).await?;
        let seen = print_stored(client, &run, args.after, terminal).await?;
        if args.follow {
            follow(client, &run, seen, terminal).await?;
        }
        Ok(Exit::Ok)
    })
    .await
}

async fn print_stored(
    client: &Client,
    run: &str,
    mut after: u64,
    terminal: &Terminal,
) -> Result<u64, Failure> {
    loop {
        let path = format!("/api/v1/runs/{run}/events?after={after}");
        let page: EventList = client.get(&path).await?;
        for event in &page.events {
            after = event.version;
            print(event, terminal);
        }
        if page.next_after.is_none() || page.events.is_empty() {
            return Ok(after);
        }
    }
}

/// Resumes after a broken connection, and ends with the run.
async fn follow(
    client: &Client,
    run: &str,
    mut after: u64,
    terminal: &Terminal,
) -> Result<(), Failure> {
    loop {
        let mut events = open(client, run, after).await?;
        while let Ok(Some(event)) = events.next().await {
            let Ok(event) = serde_json::from_str::<EventView>(&event.data) else {
                continue;
            };
            if event.version > after {
                after = event.version;
                print(&event, terminal);
            }
        }
        let view: RunView = client.get(&format!("/api/v1/runs/{run}")).await?;
        if view.summary.outcome.is_some() && view.version <= after {
            return Ok(());
        }
    }
}

/// The stream of a run's events after a version.
pub async fn open(client: &Client, run: &str, after: u64) -> Result<Events, Failure> {
    let headers = [
        ("accept", "text/event-stream".to_owned()),
        ("last-event-id", after.to_string()),
    ];
    let path = format!("/api/v1/runs/{run}/events?after={after}");
    Ok(Events::new(client.open(&path, &headers).await?))
}

fn print(event: &EventView, terminal: &Terminal) {
    if terminal.json {
        return terminal.value_line(event);
    }
    let facts = sanitize::text(event.facts.get());
    let mut shown: String = facts.chars().take(MAX_SHOWN).collect();
    if facts.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    terminal.data(&format!(
        "{:>5}  {}  {}  {}  {}",
        event.version,
        event.at,
        terminal.paint_out(Tone::Strong, &sanitize::text(&event.command)),
        sanitize::text(&event.actor),
        terminal.paint_out(Tone::Quiet, &shown),
    ));
}
