//! `delta-ci enqueue`: calls a function in the background, and waits for its result on demand.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::{Duration, Instant};

use delta_core::Span;
use delta_wire::api::{CreateFunctions, FunctionDetail, FunctionView};
use delta_wire::states::JobState;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::client::sse::Events;
use crate::client::{self, Client, Target};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::human_time;
use crate::sanitize;
use crate::terminal::Terminal;
use crate::{timings, traces};

/// How long one question waits for the end; then it is asked again.
const EACH_WAIT: Duration = Duration::from_secs(20);

const EXAMPLES: &str = "\
Examples:
  delta-ci enqueue python#send_email --params '{\"to\":\"ann@example.org\"}'
  delta-ci enqueue python#report --params @params.json --wait     prints the result
  delta-ci enqueue resize --queue images --delay 10m --max-attempts 5
  delta-ci enqueue python#sync --unique-key nightly --unique-for 1h
  delta-ci cancel run_0197f3c4                                      stop one of them

The result goes to stdout as JSON. Exit code with --wait: 0 when it succeeded. The trace in
TRACEPARENT goes on in the call.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// HANDLER, or RUNNER#HANDLER
    function: String,
    /// A JSON object; @FILE reads a file, - reads stdin
    #[arg(long, value_name = "JSON|@FILE|-", default_value = "{}")]
    params: String,
    /// Where it waits
    #[arg(long, default_value = "default")]
    queue: String,
    /// Higher is sooner
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Not before so much time has passed, such as 90s, 10m, 2h
    #[arg(long, value_name = "TIME", value_parser = timings::span, conflicts_with = "at")]
    delay: Option<Span>,
    /// Not before this moment, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "MOMENT")]
    at: Option<String>,
    /// While another call has this key, that one is given back instead
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// For how long the key is its own; an hour when absent
    #[arg(long, value_name = "TIME", value_parser = timings::span, requires = "unique_key")]
    unique_for: Option<Span>,
    /// Attempts in all
    #[arg(long)]
    max_attempts: Option<u32>,
    /// First delay between attempts, doubled each time
    #[arg(long, value_name = "TIME", value_parser = timings::span)]
    backoff: Option<Span>,
    /// The longest of these delays [default: 1m, or 16 times the first]
    #[arg(long, value_name = "TIME", value_parser = timings::span)]
    backoff_cap: Option<Span>,
    /// How long one attempt may take
    #[arg(long, value_name = "TIME", value_parser = timings::span)]
    timeout: Option<Span>,
    /// How long the result is kept, at least a minute
    #[arg(long, value_name = "TIME", value_parser = timings::span)]
    result_ttl: Option<Span>,
    /// Wait for its end and print the result
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    let mut body = body(&args)?;
    let trace = traces::of_environment();
    if !trace.is_empty() {
        let carrier: BTreeMap<String, String> = trace.into_iter().collect();
        body.insert("trace_context", raw(&carrier)?);
    }
    client::with(&args.target, async |client| {
        let text = client.post_text("/api/v1/functions", &body).await?;
        let view: FunctionView = client::read(&text)?;
        if args.wait {
            return wait(client, &view, terminal).await;
        }
        if terminal.json {
            terminal.data(&text);
            return Ok(Exit::Ok);
        }
        terminal.data(&view.id);
        terminal.say(&stands(&view));
        Ok(if view.dead_letter {
            Exit::Failed
        } else {
            Exit::Ok
        })
    })
    .await
}

/// How a call stands right after it was made.
fn stands(view: &FunctionView) -> String {
    let (function, queue) = (sanitize::text(&view.function), sanitize::text(&view.queue));
    match view.state {
        _ if view.existing => format!("{function} was there already: {}", view.state.as_str()),
        JobState::Failed => {
            let cause = view.cause.as_deref().unwrap_or("unknown");
            let why = sanitize::text(view.trouble().unwrap_or_default());
            format!("{function} is a dead letter: {cause}; {why}")
        }
        _ => match view.not_before {
            Some(at) => format!("{function} waits in {queue} until {at}"),
            None => format!(
                "{function} waits in {queue}; delta-ci why {} says for what",
                view.id
            ),
        },
    }
}

/// The fields of a call. Its parameters are what was given, to the last digit.
type Body = BTreeMap<&'static str, Box<RawValue>>;

fn raw(value: &impl serde::Serialize) -> Result<Box<RawValue>, Failure> {
    to_raw_value(value)
        .map_err(|error| Failure::new(Exit::Internal, "the call cannot be written").because(error))
}

/// What is sent; looked at here first, so that a slip is found before anything is sent.
fn body(args: &Args) -> Result<Body, Failure> {
    let params = RawValue::from_string(params(&args.params)?).map_err(|error| {
        Failure::new(Exit::Usage, "--params is no JSON")
            .because(error)
            .next("give an object, such as --params '{\"to\":\"x\"}'")
    })?;
    let seconds = |span: Option<Span>| span.map(|it| json!(it.0 as f64 / 1000.0));
    let fields = [
        ("function", Some(json!(args.function))),
        ("queue", Some(json!(args.queue))),
        ("priority", Some(json!(args.priority))),
        ("delay_seconds", seconds(args.delay)),
        ("not_before", args.at.as_ref().map(|it| json!(it))),
        ("unique_key", args.unique_key.as_ref().map(|it| json!(it))),
        ("unique_seconds", seconds(args.unique_for)),
        ("max_attempts", args.max_attempts.map(|it| json!(it))),
        ("backoff_seconds", seconds(args.backoff)),
        ("backoff_cap_seconds", seconds(args.backoff_cap)),
        ("timeout_seconds", seconds(args.timeout)),
        ("result_ttl_seconds", seconds(args.result_ttl)),
    ];
    let mut body = Body::from([("params", params)]);
    for (name, value) in fields {
        if let Some(value) = value {
            body.insert(name, raw(&value)?);
        }
    }
    match CreateFunctions::parse(raw(&body)?.get().as_bytes()) {
        Ok(_) => Ok(body),
        Err(problems) => Err(Failure::new(Exit::Usage, problems.to_string())
            .next("delta-ci enqueue --help has examples")),
    }
}

fn params(given: &str) -> Result<String, Failure> {
    let unreadable = |place: &str, error: std::io::Error| {
        Failure::new(Exit::NotFound, format!("{place} cannot be read"))
            .because(error)
            .next("--params JSON, --params @FILE, or --params - for standard input")
    };
    match given {
        "-" => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|error| unreadable("stdin", error))?;
            Ok(text)
        }
        given => match given.strip_prefix('@') {
            Some(path) => std::fs::read_to_string(path).map_err(|error| unreadable(path, error)),
            None => Ok(given.to_owned()),
        },
    }
}

async fn wait(client: &Client, made: &FunctionView, terminal: &Terminal) -> Done {
    let began = Instant::now();
    terminal.say(&format!("{}  {}", made.id, stands(made)));
    let mut told = (made.state, made.attempts);
    // A stream may break off where an answer does not; what it told is not told again.
    if let Some((view, text)) = follow(client, &made.id, &mut told, terminal).await {
        return Ok(ended(&view, &text, began, terminal));
    }
    let path = format!("/api/v1/functions/{}?wait={}", made.id, EACH_WAIT.as_secs());
    loop {
        let text = client.get_text(&path).await?;
        let view = client::understood(FunctionDetail::parse(&text))?.view;
        if view.has_ended() {
            return Ok(ended(&view, &text, began, terminal));
        }
        tell(&view, &mut told, terminal);
    }
}

/// Follows it live to its end; nothing when the stream ended before.
async fn follow(
    client: &Client,
    id: &str,
    told: &mut (JobState, u32),
    terminal: &Terminal,
) -> Option<(FunctionView, String)> {
    let path = format!("/api/v1/functions/{id}");
    let accept = [("Accept", "text/event-stream".to_owned())];
    let opened = client.open(&path, &accept).await;
    let mut events = Events::new(opened.ok()?);
    while let Ok(Some(event)) = events.next().await {
        let view = FunctionDetail::parse(&event.data).ok()?.view;
        if view.has_ended() {
            return Some((view, event.data));
        }
        tell(&view, told, terminal);
    }
    None
}

/// Says what has changed since it was last said.
fn tell(view: &FunctionView, told: &mut (JobState, u32), terminal: &Terminal) {
    if *told == (view.state, view.attempts) {
        return;
    }
    *told = (view.state, view.attempts);
    if let Some(does) = does(view.state) {
        let error = view.trouble().map(sanitize::text);
        let error = error.map_or_else(String::new, |it| format!(": {it}"));
        let (attempt, of) = (view.attempts, view.max_attempts);
        terminal.say(&format!("attempt {attempt} of {of} {does}{error}"));
    }
}

/// What an attempt does, for people; nothing where the next state is a moment away.
fn does(state: JobState) -> Option<&'static str> {
    match state {
        JobState::Created => Some("waits for its moment"),
        JobState::Queued => Some("waits for a runner"),
        JobState::Running => Some("runs"),
        JobState::CancelRequested => Some("is being canceled"),
        JobState::Leased
        | JobState::Starting
        | JobState::Uploading
        | JobState::Succeeded
        | JobState::Failed
        | JobState::Canceled => None,
    }
}

fn ended(view: &FunctionView, text: &str, began: Instant, terminal: &Terminal) -> Exit {
    let took = human_time::short(began.elapsed());
    if terminal.json {
        terminal.data(text);
    } else if view.state == JobState::Succeeded {
        let result = view.result.as_ref().map_or("null", |it| it.as_str());
        terminal.data(result);
        terminal.say(&format!(
            "SUCCEEDED after {took}, attempt {}",
            view.attempts
        ));
    } else {
        let cause = view.cause.as_deref().unwrap_or("unknown");
        terminal.say(&format!("{} after {took}: {cause}", view.state.as_str()));
        if let Some(trouble) = view.trouble() {
            terminal.say(&sanitize::text(trouble));
        }
        if view.dead_letter {
            let words = format!("it is a dead letter: delta-ci dead-letters {}", view.id);
            terminal.say(&words);
        }
    }
    match view.state {
        JobState::Succeeded => Exit::Ok,
        JobState::Canceled => Exit::Canceled,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of the API and of this command are the same.
    #[test]
    fn what_is_sent_is_what_the_server_reads() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        const PARAMS: &str = r#"{"b":1.0,"a":123456789012345678901234567890,"a2":1e2}"#;
        let words = "x python#f --queue mail --delay 90s --unique-key k \
                     --unique-for 1h --max-attempts 5 --backoff 2s --backoff-cap 8s \
                     --timeout 1m --result-ttl 1d";
        let words = words.split_whitespace().chain(["--params", PARAMS]);
        let line: Line = clap::Parser::parse_from(words);
        let body = body(&line.args).expect("a body");
        let body = serde_json::to_string(&body).expect("JSON");
        let Ok(CreateFunctions::One(call)) = CreateFunctions::parse(body.as_bytes()) else {
            panic!("{body}");
        };
        // As it was given: 1.0 is not 1, and no digit is lost.
        assert_eq!(call.params.as_str(), PARAMS);
        assert_eq!(call.max_attempts, 5);
        let cap = call.backoff_cap_seconds.map(|it| it.as_millis());
        assert_eq!(cap, Some(8000));
        assert_eq!(call.delay_seconds.map(|it| it.as_millis()), Some(90_000));
    }
}
