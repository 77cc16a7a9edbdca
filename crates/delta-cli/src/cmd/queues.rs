//! `delta-ci queues`, `pause` and `resume`: how much waits, and whether it is given out.

use std::time::Duration;

use delta_wire::api::{CancelRequest, QueueList, QueueView, RouteQueue};

use super::token::path_part;
use crate::client::{self, Target};
use crate::columns;
use crate::exit::Exit;
use crate::failure::Done;
use crate::human_time;
use crate::sanitize;
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone};

const EXAMPLES: &str = "\
Examples:
  delta-ci queues                          what waits in each, since when, how fast it goes
  delta-ci queues --route mail=python      functions of `mail` that name no runner go to `python`
  delta-ci pause mail --reason 'deploy'    what runs goes on, what comes waits
  delta-ci resume mail";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Set the runner of functions that name none; QUEUE= takes it back
    #[arg(long, value_name = "QUEUE=RUNNER", value_parser = route)]
    route: Option<(String, String)>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Pause {
    /// The queue
    queue: String,
    /// Shown wherever the pause is
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Resume {
    /// The queue
    queue: String,
    #[command(flatten)]
    target: Target,
}

fn route(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let parts = parts.map(|(queue, runner)| (queue.to_owned(), runner.to_owned()));
    parts.ok_or_else(|| "write it as QUEUE=RUNNER".to_owned())
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    if let Some((queue, runner)) = &args.route {
        let runner = Some(runner.clone()).filter(|it| !it.is_empty());
        let path = format!("/api/v1/queues/{}", path_part(queue));
        return client::with(&args.target, async |client| {
            let text = client.put_text(&path, &RouteQueue { runner }).await?;
            tell(&text, terminal)
        })
        .await;
    }
    client::reading(&args.target, async |client| {
        let text = client.get_text("/api/v1/queues").await?;
        if terminal.json {
            terminal.data(&text);
            return Ok(Exit::Ok);
        }
        let list: QueueList = client::read(&text)?;
        if list.queues.is_empty() {
            terminal.say("nothing waits, and nothing was enqueued in the last minute");
            return Ok(Exit::Ok);
        }
        show(&list.queues, terminal);
        Ok(Exit::Ok)
    })
    .await
}

fn show(queues: &[QueueView], terminal: &Terminal) {
    let row = |it: &QueueView| {
        let oldest = it
            .oldest_seconds
            .map(|it| human_time::short(Duration::from_secs_f64(it)));
        let paused = it.paused.as_ref();
        let paused = paused.map(|it| format!("paused by {}", sanitize::text(&it.by)));
        vec![
            Cell::from(sanitize::text(&it.name)),
            Cell::from(it.depth.to_string()),
            Cell::from(oldest.unwrap_or_else(|| "-".to_owned())),
            Cell::from(it.enqueued_per_minute.to_string()),
            Cell::from(it.succeeded_per_minute.to_string()),
            Cell::from(it.failed_per_minute.to_string()),
            Cell::from(sanitize::text(it.runner.as_deref().unwrap_or("-"))),
            Cell::toned(paused.unwrap_or_default(), Tone::Warn),
        ]
    };
    let rows: Vec<Vec<Cell>> = queues.iter().map(row).collect();
    table::show(terminal, &columns::QUEUES, &rows);
}

pub async fn pause(args: Pause, terminal: &Terminal) -> Done {
    client::with(&args.target, async |client| {
        let request = CancelRequest {
            reason: args.reason.clone(),
        };
        let path = format!("/api/v1/queues/{}/pause", path_part(&args.queue));
        tell(&client.post_text(&path, &request).await?, terminal)
    })
    .await
}

pub async fn resume(args: Resume, terminal: &Terminal) -> Done {
    client::with(&args.target, async |client| {
        let path = format!("/api/v1/queues/{}/resume", path_part(&args.queue));
        let text = client.post_text(&path, &CancelRequest::default()).await?;
        tell(&text, terminal)
    })
    .await
}

/// What a queue is like now.
fn tell(text: &str, terminal: &Terminal) -> Done {
    if terminal.json {
        terminal.data(text);
        return Ok(Exit::Ok);
    }
    let queue: QueueView = client::read(text)?;
    let name = sanitize::text(&queue.name);
    let waiting = format!("{} waiting", queue.depth);
    terminal.say(&match (&queue.paused, &queue.runner) {
        (Some(_), _) => format!("{name} is paused, {waiting}; delta-ci resume {name}"),
        (None, Some(runner)) => format!("{name} goes to {}, {waiting}", sanitize::text(runner)),
        (None, None) => format!("{name} is given out, {waiting}"),
    });
    Ok(Exit::Ok)
}
