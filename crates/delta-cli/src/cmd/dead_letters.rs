//! `delta-ci dead-letters` and `requeue`: functions that failed for good, what they were called
//! with, why they failed, and calling them again.

use delta_wire::api::{
    ChooseDeadLetters, DeadLettersDone, FunctionDetail, FunctionList, FunctionView,
};

use crate::client::{self, Client, Target, find};
use crate::columns;
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::human_time;
use crate::sanitize;
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone};

/// How many are listed for people, who look at the first; a program gets all there are.
const MAX_SHOWN: usize = 10_000;

const EXAMPLES: &str = "\
Examples:
  delta-ci dead-letters                          the newest first
  delta-ci dead-letters --queue mail --cause handler_not_found
  delta-ci dead-letters run_0197f3c4             its parameters, and every attempt
  delta-ci dead-letters --json | jq -r '.functions[].id'
  delta-ci requeue run_0197f3c4                  call it again
  delta-ci requeue --queue mail --dry-run        which would be called again?
  delta-ci requeue --all --purge                 put all of them aside instead";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Show one of them: its id
    #[arg(value_name = "ID", conflicts_with_all = ["queue", "function", "cause"])]
    id: Option<String>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Clone, clap::Args)]
struct Which {
    /// Only of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only of this function, with or without its runner
    #[arg(long)]
    function: Option<String>,
    /// Only with this cause
    #[arg(long)]
    cause: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Requeue {
    /// Which, by id
    #[arg(value_name = "ID", conflicts_with_all = ["queue", "function", "cause", "all"])]
    ids: Vec<String>,
    #[command(flatten)]
    which: Which,
    /// Every one there is
    #[arg(long)]
    all: bool,
    /// Only say which they are
    #[arg(long)]
    dry_run: bool,
    /// Put them aside instead of calling them again
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::reading(&args.target, async |client| match &args.id {
        Some(id) => show(client, id, terminal).await,
        None => list(client, &args.which, terminal).await,
    })
    .await
}

async fn list(client: &Client, which: &Which, terminal: &Terminal) -> Done {
    if terminal.json {
        list_for_programs(client, which, terminal).await
    } else {
        list_for_people(client, which, terminal).await
    }
}

/// Every one, written page by page: there may be more than fit into memory.
async fn list_for_programs(client: &Client, which: &Which, terminal: &Terminal) -> Done {
    let (mut cursor, mut before) = (None, "{\"functions\":[\n");
    loop {
        let page = page(client, which, cursor.as_deref()).await?;
        for function in &page.functions {
            let text = serde_json::to_string(function).unwrap_or_else(|_| "null".into());
            terminal.bytes(format!("{before}{text}").as_bytes());
            before = ",\n";
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let begun = before == ",\n";
    terminal.data(if begun { "\n]}" } else { "{\"functions\":[]}" });
    Ok(Exit::Ok)
}

async fn list_for_people(client: &Client, which: &Which, terminal: &Terminal) -> Done {
    let (mut all, mut cursor): (Vec<FunctionView>, Option<String>) = (Vec::new(), None);
    while all.len() < MAX_SHOWN {
        let page = page(client, which, cursor.as_deref()).await?;
        all.extend(page.functions);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if all.is_empty() {
        terminal.say("no dead letters");
        return Ok(Exit::Ok);
    }
    let now = human_time::now();
    let row = |it: &FunctionView| {
        let ended = it.ended_at.map(|at| human_time::relative(at, now));
        let error = it.trouble().and_then(|it| it.lines().next());
        vec![
            Cell::from(it.id.clone()),
            Cell::from(sanitize::text(&it.function)),
            Cell::from(sanitize::text(&it.queue)),
            Cell::from(ended.unwrap_or_default()),
            Cell::from(it.attempts.to_string()),
            Cell::toned(it.cause.clone().unwrap_or_default(), Tone::Bad),
            Cell::from(sanitize::text(error.unwrap_or_default())),
        ]
    };
    let rows: Vec<Vec<Cell>> = all.iter().map(row).collect();
    table::show(terminal, &columns::DEAD_LETTERS, &rows);
    if cursor.is_some() {
        terminal.say("there are more: choose with --queue, --function or --cause, or --json");
    }
    Ok(Exit::Ok)
}

async fn page(
    client: &Client,
    which: &Which,
    cursor: Option<&str>,
) -> Result<FunctionList, Failure> {
    let asked = [
        ("queue", which.queue.as_deref()),
        ("function", which.function.as_deref()),
        ("cause", which.cause.as_deref()),
        ("cursor", cursor),
    ];
    let given = asked
        .iter()
        .filter_map(|(name, value)| Some((*name, (*value)?)));
    let query: String = given
        .map(|(name, value)| format!("&{name}={}", escaped(value)))
        .collect();
    let path = format!("/api/v1/dead-letters?limit=200{query}");
    client.get(&path).await
}

/// For a query: everything that is not plain is written as its bytes.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let each = text.bytes().map(|byte| {
        if plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    each.collect()
}

async fn show(client: &Client, typed: &str, terminal: &Terminal) -> Done {
    let id = find::function(client, typed).await?;
    let text = client.get_text(&format!("/api/v1/functions/{id}")).await?;
    if terminal.json {
        terminal.data(&text);
        return Ok(Exit::Ok);
    }
    let detail = client::understood(FunctionDetail::parse(&text))?;
    let view = &detail.view;
    let (function, queue) = (sanitize::text(&view.function), sanitize::text(&view.queue));
    terminal.sentence(&format!(
        "{}  {function}  queue {queue}  {}",
        view.id,
        view.state.as_str()
    ));
    terminal.sentence(&format!(
        "params  {}",
        sanitize::text(detail.params.as_str())
    ));
    for (name, value) in &detail.trace_context {
        terminal.sentence(&format!(
            "trace   {} {}",
            sanitize::text(name),
            sanitize::text(value)
        ));
    }
    if let Some(of) = &detail.requeue_of {
        terminal.sentence(&format!("again   of {of}"));
    }
    for attempt in &detail.tries {
        let it = &attempt.attempt;
        let cause = it.cause.as_deref().unwrap_or("");
        let line = format!("attempt {}  {}  {cause}", it.attempt, it.state.as_str());
        terminal.sentence(line.trim_end());
        if let Some(error) = &attempt.error {
            let kind = error
                .kind
                .as_deref()
                .map_or_else(String::new, |it| format!("{it}: "));
            terminal.sentence(&format!(
                "  {}",
                sanitize::text(&format!("{kind}{}", error.message))
            ));
            if let Some(details) = &error.details {
                terminal.sentence(&format!("  {}", sanitize::text(details.as_str())));
            }
        } else if let Some(summary) = it.summary.as_ref().filter(|_| it.cause.is_some()) {
            // No handler said anything: what its agent said.
            terminal.sentence(&format!("  {}", sanitize::text(summary)));
        }
    }
    let mut said = detail.tries.iter();
    let said = said.any(|it| it.error.is_some() || it.attempt.summary.is_some());
    if let Some(why) = view.summary.as_ref().filter(|_| !said) {
        // Nobody came to it.
        terminal.sentence(&format!("why     {}", sanitize::text(why)));
    }
    if !view.dead_letter {
        terminal.say("it is no dead letter (any more)");
    }
    Ok(Exit::Ok)
}

pub async fn requeue(args: Requeue, terminal: &Terminal) -> Done {
    let which = &args.which;
    let chosen = [&which.queue, &which.function, &which.cause];
    let chosen = chosen.iter().any(|it| it.is_some()) || args.all || !args.ids.is_empty();
    if !chosen {
        let failure = Failure::new(Exit::Usage, "which dead letters?");
        return Err(failure.next("name them by id, by --queue, --function, --cause, or say --all"));
    }
    let mut request = ChooseDeadLetters {
        ids: Vec::new(),
        queue: which.queue.clone(),
        function: which.function.clone(),
        cause: which.cause.clone(),
        all: args.all,
        dry_run: args.dry_run,
        before: None,
    };
    client::with(&args.target, async |client| {
        for typed in &args.ids {
            request.ids.push(find::function(client, typed).await?);
        }
        let verb = if args.purge { "purge" } else { "requeue" };
        let path = format!("/api/v1/dead-letters/{verb}");
        let mut sum = DeadLettersDone::default();
        loop {
            let done: DeadLettersDone = client::read(&client.post_text(&path, &request).await?)?;
            sum.dry_run = done.dry_run;
            sum.more = done.more;
            sum.chosen.extend(done.chosen);
            sum.requeued.extend(done.requeued);
            // On from there: those called again may be dead letters again by now. Whoever does not
            // say where is not asked for ever.
            let goes_on = done.next_before.is_some() && done.next_before != request.before;
            if !done.more || !goes_on {
                break;
            }
            request.before = done.next_before;
            terminal.say(&format!("{} so far", sum.chosen.len()));
        }
        tell(&sum, args.purge, terminal);
        Ok(Exit::Ok)
    })
    .await
}

fn tell(done: &DeadLettersDone, purge: bool, terminal: &Terminal) {
    if terminal.json {
        terminal.value(done);
        return;
    }
    let count = done.chosen.len();
    for (at, old) in done.chosen.iter().enumerate() {
        match done.requeued.get(at) {
            Some(fresh) => terminal.data(&format!("{old} -> {fresh}")),
            None => terminal.data(old),
        }
    }
    let more = if done.more { ", and more" } else { "" };
    terminal.say(&match (done.dry_run, purge) {
        (true, false) => format!("{count}{more} would be called again"),
        (true, true) => format!("{count}{more} would be put aside"),
        (false, false) => format!("{count} called again"),
        (false, true) => format!("{count} put aside"),
    });
}
