//! `delta-ci runs`: what ran lately.

use delta_wire::api::{RunList, RunSummary};
use delta_wire::states::RunOutcome;

use crate::client::{self, Client, Target};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::sanitize;
use crate::table::{self, Cell};
use crate::terminal::Terminal;
use crate::{columns, human_time, state_words};

const EXAMPLES: &str = "\
Examples:
  delta-ci runs                        the newest of ./.delta-ci
  delta-ci runs --outcome FAILED --limit 5
  delta-ci runs --server https://ci.example --token-file token
  delta-ci runs --json | jq -r '.runs[].run_id'";

/// Digits of a commit: enough for every repository there is.
const SHORT_COMMIT: usize = 10;

/// Runs of one page of the server.
const PAGE: u32 = 200;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only runs in this state, such as RUNNING, or with this outcome
    #[arg(long)]
    state: Option<String>,
    /// Only runs that ended so: SUCCESS, FAILED, CANCELED or TIMEOUT
    #[arg(long)]
    outcome: Option<String>,
    /// Only runs of this repository
    #[arg(long)]
    repository: Option<String>,
    /// Only runs of this ref
    #[arg(long = "ref", value_name = "REF")]
    git_ref: Option<String>,
    /// Only runs of this commit
    #[arg(long)]
    commit: Option<String>,
    /// How many at most
    #[arg(long, short = 'n', default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::reading(&args.target, async |client| {
        let runs = load(&args, client).await?;
        show(&runs, terminal);
        Ok(Exit::Ok)
    })
    .await
}

async fn load(args: &Args, client: &Client) -> Result<RunList, Failure> {
    let mut all = RunList {
        runs: Vec::new(),
        next_cursor: None,
    };
    loop {
        let left = args.limit
            - u32::try_from(all.runs.len())
                .unwrap_or(args.limit)
                .min(args.limit);
        if left == 0 {
            return Ok(all);
        }
        let page: RunList = client.get(&path(args, left.min(PAGE), &all)).await?;
        all.runs.extend(page.runs);
        all.next_cursor = page.next_cursor;
        if all.next_cursor.is_none() {
            return Ok(all);
        }
    }
}

fn path(args: &Args, limit: u32, so_far: &RunList) -> String {
    let mut path = format!("/api/v1/runs?limit={limit}");
    let upper = |text: &Option<String>| text.as_ref().map(|text| text.to_uppercase());
    let (mut state, mut outcome) = (upper(&args.state), upper(&args.outcome));
    // A run that has ended is REPORTED at once; what people mean is how it ended.
    let ended = state.as_deref().and_then(RunOutcome::from_text).is_some();
    if ended && outcome.is_none() {
        outcome = state.take();
    }
    let filters = [
        ("state", &state),
        ("outcome", &outcome),
        ("repository", &args.repository),
        ("ref", &args.git_ref),
        ("commit", &args.commit),
        ("cursor", &so_far.next_cursor),
    ];
    for (name, value) in filters {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encode(value)));
        }
    }
    path
}

/// Percent-encodes everything that is not plain in a query.
fn encode(value: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let one = |byte: u8| {
        if plain(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    value.bytes().map(one).collect()
}

fn show(list: &RunList, terminal: &Terminal) {
    if terminal.json {
        return terminal.value(list);
    }
    if list.runs.is_empty() {
        return terminal.say("no runs");
    }
    let now = human_time::now();
    let rows: Vec<Vec<Cell>> = list.runs.iter().map(|run| row(run, now)).collect();
    table::show(terminal, &columns::RUNS, &rows);
    if list.next_cursor.is_some() {
        terminal.say("there are more: raise --limit");
    }
}

fn row(run: &RunSummary, now: delta_wire::Millis) -> Vec<Cell> {
    vec![
        Cell::from(sanitize::text(&run.run_id)),
        state_words::run(run.state, run.outcome),
        Cell::from(human_time::relative(run.created_at, now)),
        Cell::from(human_time::taken(run.started_at, run.ended_at, now)),
        Cell::from(source(run)),
    ]
}

/// What ran, as short as somebody who knows the project needs it: `--json` and `show` have all.
fn source(run: &RunSummary) -> String {
    let repository = run.repository.as_deref().map(|url| {
        let url = url.trim_end_matches('/').trim_end_matches(".git");
        match url.split_once("://") {
            // What is in front of the path is a host, and perhaps a port.
            Some((_, rest)) => {
                let path = rest.split_once('/').map_or(rest, |(_, path)| path);
                let mut parts = path.rsplitn(3, '/');
                match (parts.next(), parts.next()) {
                    (Some(name), Some(owner)) if !owner.is_empty() => format!("{owner}/{name}"),
                    (name, _) => name.unwrap_or(path).to_owned(),
                }
            }
            None => url.rsplit(['/', ':']).next().unwrap_or(url).to_owned(),
        }
    });
    let git_ref = run.git_ref.as_deref().map(|name| {
        let known = ["refs/heads/", "refs/tags/", "refs/"];
        let short = known.iter().find_map(|prefix| name.strip_prefix(prefix));
        short.unwrap_or(name).to_owned()
    });
    let commit = run.commit.as_deref();
    let commit = commit.map(|id| id.chars().take(SHORT_COMMIT).collect::<String>());
    let parts = [repository, git_ref, commit].into_iter().flatten();
    let parts: Vec<String> = parts.map(|text| sanitize::text(&text)).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_cannot_break_out_of_its_place() {
        assert_eq!(encode("a&b=c d/é"), "a%26b%3Dc%20d%2F%C3%A9");
    }

    #[test]
    fn a_source_is_as_short_as_people_need_it() {
        let said = |repository: &str, git_ref: &str| {
            let text = serde_json::json!({
                "run_id": "run_1", "project": "default", "state": "QUEUED", "trust": "trusted",
                "repository": repository, "ref": git_ref,
                "commit": "0123456789abcdef0123456789abcdef01234567",
                "run_attempt": 1, "created_at": "2026-01-01T00:00:00Z", "created_by": "ann",
            });
            source(&serde_json::from_value(text).unwrap())
        };
        let (main, tag) = ("refs/heads/main", "refs/tags/v1");
        let url = "https://git.example/team/app.git";
        assert_eq!(said(url, main), "team/app main 0123456789");
        assert_eq!(
            said("https://git.example/app.git", tag),
            "app v1 0123456789"
        );
        for url in ["http://127.0.0.1:7950/app.git", "http://git.example:80/app"] {
            assert_eq!(said(url, tag), "app v1 0123456789");
        }
        assert_eq!(
            said("ssh://git@git.example:22/a/team/app.git", tag),
            "team/app v1 0123456789"
        );
        assert_eq!(
            said("git@git.example:team/app.git", tag),
            "app v1 0123456789"
        );
        assert_eq!(
            said("app", "refs/pull/7/head"),
            "app pull/7/head 0123456789"
        );
    }
}
