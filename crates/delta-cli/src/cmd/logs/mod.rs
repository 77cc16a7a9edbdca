//! `delta-ci logs`: what a job printed. Control sequences never reach a terminal; into a pipe or a
//! file, or with `--raw`, go the stored bytes as they are.

mod last_lines;
mod live_stream;
mod printer;

use delta_wire::api::{JobView, LogPlace};
use reqwest::Response;
use reqwest::header::HeaderMap;

use crate::client::{self, Client, Target, find};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::state_words;
use crate::terminal::Terminal;
use printer::Printer;

const EXAMPLES: &str = "\
Examples:
  delta-ci logs unit                   of the newest run that has such a job
  delta-ci logs latest                 of its job that failed
  delta-ci logs -f latest/unit         as it prints it, through retries, to the end
  delta-ci logs --tail 50 -f latest/unit
  delta-ci logs latest/unit --attempt 1
  delta-ci logs latest/unit > unit.log

At the end stderr says whether the log is complete, or how many bytes are missing. The exit code
is 0 whenever the log could be read: `delta-ci show JOB` tells how the job went.";

/// How often a download that broke off is taken up again.
const MAX_TRIES: u32 = 5;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A job: its name (of the newest run that has it), RUN/NAME, its id or the beginning of it; or
    /// a run: its only job, or the first that failed
    job: String,
    /// Go on until the job has ended, also over a restart of the server
    #[arg(long, short)]
    follow: bool,
    /// Which attempt [default: the newest, and with -f those after it]
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Only the last lines of what is there
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
    /// The stored bytes as they are, even on a terminal: control sequences included
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::reading(&args.target, async |client| {
        let job = find::logged(client, &args.job, terminal).await?;
        let mut printer = Printer::new(args.raw, terminal);
        let log = Log {
            client,
            job: &job,
            attempt: args.attempt,
        };
        let shown = match args.tail {
            Some(lines) => last_lines::print(&log, lines, &mut printer).await,
            None if args.follow => {
                return live_stream::follow(&log, None, &mut printer, terminal).await;
            }
            None => print(&log, &mut printer).await,
        };
        let from = match shown {
            Ok(said) if args.follow => Some(said.place),
            Ok(said) => {
                printer.end(said.place.attempt, &said.whole);
                return Ok(Exit::Ok);
            }
            // Nothing has been printed yet.
            Err(failure) if args.follow && failure.exit == Exit::NotFound => None,
            Err(failure) if failure.exit == Exit::NotFound && args.attempt.is_none() => {
                return Err(unwritten(client, &job, failure).await);
            }
            Err(failure) => return Err(failure),
        };
        live_stream::follow(&log, from, &mut printer, terminal).await
    })
    .await
}

/// Why there is no log of a job that is there: one that waits has printed nothing yet.
async fn unwritten(client: &Client, id: &str, failure: Failure) -> Failure {
    let Ok(job) = client.get::<JobView>(&format!("/api/v1/jobs/{id}")).await else {
        return failure;
    };
    if !job.attempts.iter().all(state_words::is_unbegun) {
        return failure;
    }
    let over = state_words::is_over(job.state);
    let what = if over {
        format!("`{}` never began, so there is no log", job.name)
    } else {
        format!("`{}` has not begun, so there is no log yet", job.name)
    };
    let waits = job.why.as_ref().filter(|_| !over);
    let waits = waits.map(|why| why.message.clone());
    let need = || job.failed_needs.first().map(state_words::failed_need);
    let cause = || job.cause.as_deref().map(state_words::cause);
    let failure = Failure::new(Exit::NotFound, what);
    let failure = match waits.or_else(need).or_else(cause) {
        Some(why) => failure.because(why),
        None => failure,
    };
    failure.next(if over {
        format!("delta-ci why {id}")
    } else {
        format!("delta-ci logs -f {id} waits for it")
    })
}

/// Whose log is meant.
struct Log<'a> {
    client: &'a Client,
    job: &'a str,
    attempt: Option<u32>,
}

impl Log<'_> {
    fn path(&self) -> String {
        let job = self.job;
        match self.attempt {
            Some(attempt) => format!("/api/v1/jobs/{job}/log?attempt={attempt}"),
            None => format!("/api/v1/jobs/{job}/log"),
        }
    }

    async fn open(&self, headers: &[(&str, String)]) -> Result<Response, Failure> {
        self.client.open(&self.path(), headers).await
    }
}

/// What an answer says of the log.
struct Said {
    /// The end of what there was.
    place: LogPlace,
    /// `open`, `complete` or `incomplete: …`.
    whole: String,
}

impl Said {
    fn of(headers: &HeaderMap) -> Option<Said> {
        let text = |name| headers.get(name).and_then(|it| it.to_str().ok());
        Some(Said {
            place: text("etag")?.trim_matches('"').parse().ok()?,
            whole: text("delta-log")?.to_owned(),
        })
    }

    fn read(response: &Response) -> Result<Said, Failure> {
        Said::of(response.headers()).ok_or_else(|| {
            Failure::new(Exit::Internal, "the server's answer cannot be understood")
                .next("compare `delta-ci --version` here and on the server")
        })
    }
}

/// Everything there is now; what broke off is taken up where it was.
async fn print(log: &Log<'_>, printer: &mut Printer<'_>) -> Result<Said, Failure> {
    let mut response = log.open(&[]).await?;
    let first = Said::read(&response)?;
    let end = first.place.offset;
    printer.begin(first.place.attempt);
    let (mut at, mut tries) = (0, 0);
    loop {
        let broken = match response.chunk().await {
            Ok(Some(chunk)) => {
                at += chunk.len() as u64;
                printer.push(&chunk);
                continue;
            }
            Ok(None) if at >= end => return Ok(first),
            Ok(None) => Failure::new(Exit::Unreachable, "the connection broke off"),
            Err(error) => log.client.away(&error),
        };
        tries += 1;
        if tries > MAX_TRIES {
            return Err(broken);
        }
        response = rest(log, &first, at).await?;
    }
}

async fn rest(log: &Log<'_>, first: &Said, at: u64) -> Result<Response, Failure> {
    let headers = [
        ("range", format!("bytes={at}-{}", first.place.offset - 1)),
        ("if-range", format!("\"{}\"", first.place)),
    ];
    let response = log.open(&headers).await?;
    match response.status().as_u16() {
        206 => Ok(response),
        _ => Err(Failure::new(
            Exit::Refused,
            "the connection broke off, and the log is gone",
        )
        .because("another attempt has begun meanwhile")
        .next("delta-ci logs JOB --attempt N reads one attempt's")),
    }
}
