//! From what a person types to an id: the whole id, the beginning of one, `latest`, `RUN/NAME` for
//! a job, or the name of a job alone, which is that of the newest run that has one.
//!
//! What can be read in two ways is said where something is only read, and refused where something
//! is changed: nobody ends another job than the one that was meant.

use delta_wire::api::{Cursor, FunctionList, JobSummary, NamedJobs, RunList, RunView};
use delta_wire::nearest::nearest;

use super::{Client, query_value};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;
use crate::{failed_job, human_time, sanitize, state_words};

/// Runs that are looked at to complete an abbreviation: beyond these, type the whole id.
const MAX_PAGES: usize = 25;

/// Jobs that are listed when a name is that of several.
const MAX_LISTED: usize = 20;

/// Digits of an id.
const DIGITS: usize = 32;

/// A run or a job, by its full id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Run(String),
    Job(String),
}

impl Found {
    fn id(&self) -> &str {
        match self {
            Found::Run(id) | Found::Job(id) => id,
        }
    }
}

/// What somebody wants with what is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Read,
    Change,
}

/// Finds a run. A job of the same name is not in its way: it is not what is asked for.
pub async fn run(client: &Client, typed: &str, terminal: &Terminal) -> Result<String, Failure> {
    let found = match by_id(client, typed).await? {
        Some(found) => found,
        None => any(client, typed, terminal).await?,
    };
    match found {
        Found::Run(id) => Ok(id),
        Found::Job(id) => Err(Failure::new(
            Exit::Usage,
            format!("{id} is a job, and this wants a run"),
        )
        .next("delta-ci runs lists runs")),
    }
}

/// Finds a job; a run with one job stands for it.
pub async fn job(client: &Client, typed: &str, terminal: &Terminal) -> Result<String, Failure> {
    match any(client, typed, terminal).await? {
        Found::Job(id) => Ok(id),
        Found::Run(id) => {
            let view: RunView = client.get(&format!("/api/v1/runs/{id}")).await?;
            match view.jobs.as_slice() {
                [job] => Ok(job.job_id.clone()),
                jobs => Err(several(typed, jobs)),
            }
        }
    }
}

/// Finds the job whose log is meant: of a run with several jobs, the first that failed.
pub async fn logged(client: &Client, typed: &str, terminal: &Terminal) -> Result<String, Failure> {
    let run = match any(client, typed, terminal).await? {
        Found::Job(id) => return Ok(id),
        Found::Run(id) => id,
    };
    let view: RunView = client.get(&format!("/api/v1/runs/{run}")).await?;
    if let [job] = view.jobs.as_slice() {
        return Ok(job.job_id.clone());
    }
    let mut failed = view.jobs.iter().filter(|job| failed_job::is_told(job));
    let first = failed.next();
    let first = first.ok_or_else(|| several(typed, &view.jobs))?;
    let name = sanitize::text(&first.name);
    let others: Vec<String> = failed.map(|job| sanitize::text(&job.name)).collect();
    let others = if others.is_empty() {
        String::new()
    } else {
        format!("; failed, too: {}", others.join(", "))
    };
    terminal.say(&format!(
        "this is the log of `{name}`, which failed{others}; delta-ci logs {typed}/NAME has another"
    ));
    Ok(first.job_id.clone())
}

fn several(typed: &str, jobs: &[JobSummary]) -> Failure {
    if jobs.is_empty() {
        return Failure::new(Exit::NotFound, format!("{typed} is a run without jobs"))
            .next(format!("delta-ci why {typed} says why it has none"));
    }
    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    let what = format!("{typed} is a run with several jobs");
    Failure::new(Exit::Usage, what)
        .because(format!("its jobs are {}", names.join(", ")))
        .next(format!("name one of them: {typed}/NAME"))
}

/// Finds either, to read it. A text that is no id is the name of a job: that of the newest run
/// which has one.
pub async fn any(client: &Client, typed: &str, terminal: &Terminal) -> Result<Found, Failure> {
    sought(client, typed, Wish::Read, terminal).await
}

/// Finds either, to change it: what may mean several is refused, with what to type for each.
pub async fn to_change(
    client: &Client,
    typed: &str,
    terminal: &Terminal,
) -> Result<Found, Failure> {
    sought(client, typed, Wish::Change, terminal).await
}

async fn sought(
    client: &Client,
    typed: &str,
    wish: Wish,
    terminal: &Terminal,
) -> Result<Found, Failure> {
    let by_id = match by_id(client, typed).await {
        Ok(Some(found)) if is_whole_id(typed) => return Ok(found),
        Err(failure) if !matches!(failure.exit, Exit::NotFound | Exit::Usage) => {
            return Err(failure);
        }
        other => other,
    };
    let path = format!("/api/v1/jobs?name={}", query_value(typed));
    let named: NamedJobs = client.get(&path).await?;
    let (found, ambiguous) = match by_id {
        Ok(Some(found)) if named.jobs.is_empty() => return Ok(found),
        Err(failure) if named.jobs.is_empty() => return Err(failure),
        Ok(None) => (None, false),
        Ok(Some(found)) => (Some(found), true),
        // Several runs begin like that.
        Err(failure) => (None, failure.exit == Exit::Usage),
    };
    if ambiguous && wish == Wish::Change {
        return Err(both(typed, found.as_ref(), &named));
    }
    match found {
        Some(found) => {
            let name = sanitize::text(typed);
            let others = addresses(&named.jobs).join(", ");
            let id = found.id();
            terminal.say(&format!(
                "`{name}` is read as {id}; a job is called so, too: {others}"
            ));
            Ok(found)
        }
        None => by_name(client, typed, &named, wish, terminal)
            .await
            .map(Found::Job),
    }
}

/// A text that is an id or its beginning, and a job's name.
fn both(typed: &str, found: Option<&Found>, named: &NamedJobs) -> Failure {
    let mut meant: Vec<String> = found.iter().map(|found| found.id().to_owned()).collect();
    meant.extend(addresses(&named.jobs));
    let what = match found {
        Some(_) => format!("`{typed}` may be an id, and is the name of a job"),
        None => format!("`{typed}` is the name of a job, and several ids begin like that"),
    };
    Failure::new(Exit::Usage, what)
        .because(meant.join("\n"))
        .next("type one of these")
}

/// What to type for each job: its run and its name.
fn addresses(jobs: &[JobSummary]) -> Vec<String> {
    let of = |job: &JobSummary| {
        let digits = job.job_id.strip_prefix("job_").unwrap_or(&job.job_id);
        let run = digits.split('_').next().unwrap_or(digits);
        sanitize::text(&format!("run_{run}/{}", job.name))
    };
    let mut addresses: Vec<String> = jobs.iter().take(MAX_LISTED).map(of).collect();
    if jobs.len() > MAX_LISTED {
        addresses.push(format!("and {} more", jobs.len() - MAX_LISTED));
    }
    addresses
}

/// `latest`, or with all digits of an id, whatever stands behind: nothing else can be meant.
fn is_whole_id(typed: &str) -> bool {
    let first = typed.split('/').next().unwrap_or(typed);
    let digits = first.strip_prefix("run_").or(first.strip_prefix("job_"));
    let digits = digits.unwrap_or(first).split('_').next();
    first == "latest" || digits.is_some_and(|it| it.len() == DIGITS)
}

/// By its id, the beginning of one, `latest`, or RUN/NAME; nothing where it is none of these.
async fn by_id(client: &Client, typed: &str) -> Result<Option<Found>, Failure> {
    if let Some((run_typed, name)) = typed.split_once('/')
        && looks_like_run(run_typed)
    {
        let run = run_id(client, run_typed).await?;
        let run = run.ok_or_else(|| not_found(run_typed, "no run begins like that"))?;
        return job_by_name(client, &run, name)
            .await
            .map(Found::Job)
            .map(Some);
    }
    let (digits, number) = match typed.strip_prefix("job_").unwrap_or(typed).split_once('_') {
        Some((digits, number)) if digits != "run" => (digits, Some(number)),
        _ => (typed, None),
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    if !looks_like_run(digits) || number.is_some_and(|it| !is_number(it)) {
        return Ok(None);
    }
    let run = run_id(client, digits).await?;
    Ok(run.map(|run| match number {
        None => Found::Run(run),
        Some(number) => Found::Job(format!("job_{}_{number}", run.trim_start_matches("run_"))),
    }))
}

/// `latest`, or digits of an id.
fn looks_like_run(typed: &str) -> bool {
    let digits = typed.strip_prefix("run_").unwrap_or(typed);
    typed == "latest" || (!digits.is_empty() && digits.len() <= 32 && is_hex(digits))
}

/// The run of these digits; nothing where no run begins like that.
async fn run_id(client: &Client, typed: &str) -> Result<Option<String>, Failure> {
    let digits = typed.strip_prefix("run_").unwrap_or(typed);
    if digits.len() == DIGITS {
        let run = format!("run_{digits}");
        // Digits alone may be the name of a job.
        if typed == digits && !is_there(client, &run).await? {
            return Ok(None);
        }
        return Ok(Some(run));
    }
    if typed == "latest" {
        let list: RunList = client.get("/api/v1/runs?limit=1").await?;
        let newest = list.runs.into_iter().next().map(|run| run.run_id);
        return match newest {
            Some(newest) => Ok(Some(newest)),
            None => Err(not_found(typed, "there is no run yet")),
        };
    }
    by_prefix(client, typed, digits).await
}

async fn is_there(client: &Client, run: &str) -> Result<bool, Failure> {
    match client.get_text(&format!("/api/v1/runs/{run}")).await {
        Ok(_) => Ok(true),
        Err(failure) if failure.exit == Exit::NotFound => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// The job of this name in the newest run that has one, or the only cell of a matrix of this name.
async fn by_name(
    client: &Client,
    typed: &str,
    named: &NamedJobs,
    wish: Wish,
    terminal: &Terminal,
) -> Result<String, Failure> {
    match (named.jobs.as_slice(), &named.run_id) {
        ([job], Some(_)) if wish == Wish::Change && !named.unfinished.is_empty() => {
            let own = std::slice::from_ref(job);
            let own = own.iter().filter(|job| !state_words::is_over(job.state));
            let meant: Vec<JobSummary> = own.chain(&named.unfinished).cloned().collect();
            Err(several_run(typed, &meant))
        }
        ([job], Some(run)) => {
            let at = named.created_at;
            let when = at.map(|at| format!(" ({})", human_time::relative(at, human_time::now())));
            let others = match addresses(&named.unfinished).join(", ") {
                others if others.is_empty() => others,
                others => format!(", the newest; not ended, too: {others}"),
            };
            let (name, run) = (sanitize::text(typed), sanitize::text(run));
            let when = when.unwrap_or_default();
            terminal.say(&format!("`{name}` of {run}{when}{others}"));
            Ok(job.job_id.clone())
        }
        ([], _) | (_, None) => {
            let what = format!("there is no run or job `{typed}`");
            let why = match named.looked_at {
                0 => "there is no run yet".to_owned(),
                looked_at => format!(
                    "no id begins like that, and no job of the newest {} is called so",
                    state_words::count(looked_at, "run")
                ),
            };
            let list = "delta-ci runs lists runs; a job of an older one is RUN/NAME, its id, or \
                        the beginning of it";
            let next = match nearest_name(client, typed).await {
                Some(near) => format!("did you mean `{near}`? {list}"),
                None => list.to_owned(),
            };
            Err(Failure::new(Exit::NotFound, what).because(why).next(next))
        }
        (jobs, Some(run)) => {
            let count = state_words::count(jobs.len() as u64, "job");
            let what = format!("`{typed}` is the name of {count} of {run}");
            Err(Failure::new(Exit::Usage, what)
                .because(addresses(jobs).join("\n"))
                .next("type one of these"))
        }
    }
}

/// Jobs of one name that have not ended, in more than the newest run that has one.
fn several_run(typed: &str, meant: &[JobSummary]) -> Failure {
    let what = match meant {
        [_] => format!("the newest job `{typed}` has ended, and an older one has not"),
        _ => format!("{} jobs called `{typed}` have not ended", meant.len()),
    };
    Failure::new(Exit::Usage, what)
        .because(addresses(meant).join("\n"))
        .next("type one of these")
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

async fn by_prefix(client: &Client, typed: &str, digits: &str) -> Result<Option<String>, Failure> {
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
    one_of(matches, typed, "runs").transpose()
}

/// The name in the newest run that is nearest to what was typed, if one is near.
async fn nearest_name(client: &Client, typed: &str) -> Option<String> {
    let list: RunList = client.get("/api/v1/runs?limit=1").await.ok()?;
    let newest = &list.runs.first()?.run_id;
    let view: RunView = client.get(&format!("/api/v1/runs/{newest}")).await.ok()?;
    let names = view.jobs.iter().map(|job| job.name.as_str());
    nearest(typed, names).map(sanitize::text)
}

async fn job_by_name(client: &Client, run: &str, name: &str) -> Result<String, Failure> {
    let view: RunView = client.get(&format!("/api/v1/runs/{run}")).await?;
    let found = view.jobs.iter().find(|job| job.name == name);
    found.map(|job| job.job_id.clone()).ok_or_else(|| {
        let names: Vec<&str> = view.jobs.iter().map(|job| job.name.as_str()).collect();
        Failure::new(Exit::NotFound, format!("{run} has no job `{name}`"))
            .because(format!("its jobs are {}", names.join(", ")))
            .next(match nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean {run}/{near}?"),
                None => format!("delta-ci show {run} lists them"),
            })
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
