//! From what a person types to an id: the whole id, the beginning of one, `latest`, or `RUN/NAME`
//! for a job.

use delta_wire::api::{Cursor, FunctionList, RunList, RunView};

use super::Client;
use crate::exit::Exit;
use crate::failure::Failure;

/// Runs that are looked at to complete an abbreviation: beyond these, type the whole id.
const MAX_PAGES: usize = 25;

/// A run or a job, by its full id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Run(String),
    Job(String),
}

/// Finds a run.
pub async fn run(client: &Client, typed: &str) -> Result<String, Failure> {
    match any(client, typed).await? {
        Found::Run(id) => Ok(id),
        Found::Job(id) => Err(Failure::new(
            Exit::Usage,
            format!("{id} is a job, and this wants a run"),
        )
        .next("delta-ci runs lists runs")),
    }
}

/// Finds a job; a run with one job stands for it.
pub async fn job(client: &Client, typed: &str) -> Result<String, Failure> {
    match any(client, typed).await? {
        Found::Job(id) => Ok(id),
        Found::Run(id) => {
            let view: RunView = client.get(&format!("/api/v1/runs/{id}")).await?;
            match view.jobs.as_slice() {
                [job] => Ok(job.job_id.clone()),
                jobs => {
                    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
                    let what = format!("{typed} is a run with several jobs");
                    Err(Failure::new(Exit::Usage, what)
                        .because(format!("its jobs are {}", names.join(", ")))
                        .next(format!("name one of them: {typed}/NAME")))
                }
            }
        }
    }
}

/// Finds either.
pub async fn any(client: &Client, typed: &str) -> Result<Found, Failure> {
    if let Some((run_typed, name)) = typed.split_once('/') {
        let run = run_id(client, run_typed).await?;
        return job_by_name(client, &run, name).await.map(Found::Job);
    }
    let (digits, number) = match typed.strip_prefix("job_").unwrap_or(typed).split_once('_') {
        Some((digits, number)) if digits != "run" => (digits, Some(number)),
        _ => (typed, None),
    };
    let run = run_id(client, digits).await?;
    match number {
        None => Ok(Found::Run(run)),
        Some(number) => Ok(Found::Job(format!(
            "job_{}_{number}",
            run.trim_start_matches("run_")
        ))),
    }
}

async fn run_id(client: &Client, typed: &str) -> Result<String, Failure> {
    let digits = typed.strip_prefix("run_").unwrap_or(typed);
    if digits.len() == 32 && is_hex(digits) {
        return Ok(format!("run_{digits}"));
    }
    if typed == "latest" {
        let list: RunList = client.get("/api/v1/runs?limit=1").await?;
        let newest = list.runs.into_iter().next().map(|run| run.run_id);
        return newest.ok_or_else(|| not_found(typed, "there is no run yet"));
    }
    if digits.is_empty() || !is_hex(digits) {
        let what = format!("`{typed}` is no run or job");
        return Err(Failure::new(Exit::Usage, what).next(
            "an id, its beginning, `latest`, or RUN/NAME for a job; delta-ci runs lists runs",
        ));
    }
    by_prefix(client, typed, digits).await
}

/// Finds a call of a function.
pub async fn function(client: &Client, typed: &str) -> Result<String, Failure> {
    let digits = typed.strip_prefix("run_").unwrap_or(typed);
    if digits.is_empty() || digits.len() > 32 || !is_hex(digits) {
        let what = format!("`{typed}` is no call of a function");
        return Err(Failure::new(Exit::Usage, what).next(CALLS));
    }
    if digits.len() == 32 {
        return Ok(format!("run_{digits}"));
    }
    let matches = calls(client, digits).await?;
    one_of(matches, typed, "calls").unwrap_or_else(|| {
        let what = format!("there is no call `{typed}`");
        Err(Failure::new(Exit::NotFound, what)
            .because("no call of a function begins like that")
            .next(CALLS))
    })
}

/// Where ids of calls are.
const CALLS: &str = "its id or the beginning of it; delta-ci dead-letters lists those that failed, \
                     enqueue prints the id of each";

/// Calls whose ids begin with this: a few, newest first. There may be millions, so the list begins
/// where they are: ids are in the order of time.
async fn calls(client: &Client, digits: &str) -> Result<Vec<String>, Failure> {
    let last = u128::from_str_radix(&format!("{digits:f<32}"), 16).unwrap_or(u128::MAX);
    let after = Cursor {
        created_at: delta_wire::Millis(0),
        run: last.saturating_add(1).to_be_bytes(),
    };
    let path = format!("/api/v1/functions?limit=6&cursor={}", after.encode());
    let list: FunctionList = client.get(&path).await?;
    let wanted = format!("run_{digits}");
    let ids = list.functions.into_iter().map(|it| it.id);
    Ok(ids.filter(|id| id.starts_with(&wanted)).collect())
}

/// The only one; nothing when there is none.
fn one_of(mut matches: Vec<String>, typed: &str, what: &str) -> Option<Result<String, Failure>> {
    match matches.len() {
        0 => None,
        1 => Some(Ok(matches.remove(0))),
        count => {
            matches.truncate(5);
            let many = if count > 5 {
                "more than 5"
            } else {
                &count.to_string()
            };
            let words = format!("`{typed}` is the beginning of {many} {what}");
            Some(Err(Failure::new(Exit::Usage, words)
                .because(matches.join("\n"))
                .next("type more of it")))
        }
    }
}

async fn by_prefix(client: &Client, typed: &str, digits: &str) -> Result<String, Failure> {
    let wanted = format!("run_{digits}");
    // A call is a run, too, and no list of runs has it.
    let mut matches: Vec<String> = calls(client, digits).await?;
    let mut path = "/api/v1/runs?limit=200".to_owned();
    for _ in 0..MAX_PAGES {
        let list: RunList = client.get(&path).await?;
        let ids = list.runs.into_iter().map(|run| run.run_id);
        matches.extend(ids.filter(|id| id.starts_with(&wanted)));
        match list.next_cursor {
            Some(cursor) => path = format!("/api/v1/runs?limit=200&cursor={cursor}"),
            None => break,
        }
    }
    one_of(matches, typed, "runs")
        .unwrap_or_else(|| Err(not_found(typed, "no run begins like that")))
}

async fn job_by_name(client: &Client, run: &str, name: &str) -> Result<String, Failure> {
    let view: RunView = client.get(&format!("/api/v1/runs/{run}")).await?;
    let found = view.jobs.iter().find(|job| job.name == name);
    found.map(|job| job.job_id.clone()).ok_or_else(|| {
        let names: Vec<&str> = view.jobs.iter().map(|job| job.name.as_str()).collect();
        Failure::new(Exit::NotFound, format!("{run} has no job `{name}`"))
            .because(format!("its jobs are {}", names.join(", ")))
    })
}

fn not_found(typed: &str, why: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no run `{typed}`"))
        .because(why)
        .next("delta-ci runs lists what there is")
}

fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
