//! The processes behind planning: one fetches a commit, one plans it. Both are started by a server,
//! read one order from standard input, answer once on standard output, and end. Nobody types them.
//!
//! The one that plans reads a stranger's files: it limits its own time and memory before it looks
//! at them, and has no credential.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use delta_git::{CommitEntry, MirroredCommit, NoAnswer, Since};
use delta_planner::no_plain_file;
use delta_planner::{Changed, Event, FILE_NAME, Facts, MAX_FILE_BYTES, Plan, Remark};
use delta_wire::api::TriggerEvent;
use delta_wire::planning::{FETCH_WORKER, FetchAnswer, FetchOrder, PLAN_WORKER};
use delta_wire::planning::{PlanAnswer, PlanOrder};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of an order.
const MAX_ORDER: u64 = 4 << 20;
/// Bytes of one file that a fetch writes: a repository of more is not one to plan from.
const MAX_PACK: u64 = 16 << 30;
/// Memory of each process of a fetch: what it maps of files, and what it keeps of its own.
const MAX_FETCH_MAPPED: u64 = 8 << 30;
const MAX_FETCH_MEMORY: u64 = 2 << 30;
/// Memory of a process that only looks at a ref: the names and places of a million refs.
const MAX_LOOK_MEMORY: u64 = 256 << 20;
/// Bytes that must be free before something is fetched: the server writes to the same disk.
const MIN_FREE: u64 = 256 << 20;
/// Files that a process may have open.
const MAX_FILES: u64 = 256;

/// Does what the word says, if it is one of ours.
pub fn main(word: &str) -> Option<ExitCode> {
    let done = match word {
        FETCH_WORKER => answer(fetch),
        PLAN_WORKER => answer(plan),
        _ => return None,
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Its last words: the server keeps them for whoever asks why there is no plan.
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

fn answer<O: DeserializeOwned, A: Serialize>(
    work: impl FnOnce(O) -> std::io::Result<A>,
) -> std::io::Result<()> {
    let mut text = Vec::new();
    std::io::stdin().take(MAX_ORDER).read_to_end(&mut text)?;
    let answer = work(serde_json::from_slice(&text)?)?;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &answer)?;
    out.flush()
}

fn fetch(order: FetchOrder) -> std::io::Result<FetchAnswer> {
    limit(Resource::Core, 0)?;
    limit(Resource::As, MAX_FETCH_MAPPED)?;
    limit(Resource::Fsize, MAX_PACK)?;
    // A server that lists refs without end is heard no longer.
    let writes = order.commit.is_some();
    let kept = if writes {
        MAX_FETCH_MEMORY
    } else {
        MAX_LOOK_MEMORY
    };
    limit(Resource::Data, kept)?;
    if writes && let Some(why) = make_room(Path::new(&order.mirror))? {
        return Ok(FetchAnswer::Failed(why));
    }
    let home = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(delta_git::mirror(&order, home.path()));
    Ok(match done {
        Ok(it) => FetchAnswer::Fetched {
            commit: it.commit,
            head: it.head,
            base: it.base,
        },
        Err(why) => FetchAnswer::Failed(why.to_string()),
    })
}

/// Sees that there is room to write in, and that a fetch does not take the last of it; why not.
fn make_room(mirror: &Path) -> std::io::Result<Option<String>> {
    let free = || free_below(mirror).unwrap_or(u64::MAX);
    if free() < MIN_FREE {
        // Perhaps it is a fetch that was killed that took it. One that is not there has nothing.
        let _ = delta_git::sweep(mirror);
    }
    let free = free();
    if free < MIN_FREE {
        return Ok(Some(format!("the disk has {} MiB left", free >> 20)));
    }
    limit(Resource::Fsize, MAX_PACK.min(free - MIN_FREE / 2))?;
    Ok(None)
}

fn plan(order: PlanOrder) -> std::io::Result<PlanAnswer> {
    limit(Resource::Cpu, order.cpu_seconds)?;
    limit(Resource::As, order.memory_bytes)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, MAX_FILES)?;
    // Nothing it does writes a file.
    limit(Resource::Fsize, 0)?;
    let commit = MirroredCommit {
        mirror: Path::new(&order.mirror),
        commit: &order.commit,
    };
    let entry = commit.entry(FILE_NAME, MAX_FILE_BYTES);
    let bytes = match entry.map_err(std::io::Error::other)? {
        CommitEntry::Bytes(bytes) => bytes,
        CommitEntry::TooLarge => {
            let why = format!("{FILE_NAME} has more than {MAX_FILE_BYTES} bytes");
            return Ok(PlanAnswer::Fault(why));
        }
        CommitEntry::NoFile(what) => {
            return Ok(PlanAnswer::Fault(no_plain_file(FILE_NAME, what)));
        }
        CommitEntry::Missing => return Ok(discovered(&commit, &order)),
    };
    let pipeline = match delta_planner::parse(FILE_NAME, &bytes) {
        Ok(pipeline) => pipeline,
        Err(diagnostics) => return Ok(PlanAnswer::Fault(diagnostics.to_string())),
    };
    let facts = facts(&order, changed(&commit, &order));
    let plan = match delta_planner::plan(&pipeline, &facts) {
        Ok(plan) => plan,
        Err(faults) => {
            let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
            return Ok(PlanAnswer::Fault(lines.join("\n")));
        }
    };
    Ok(said(&plan, &[], &order))
}

/// What a repository without a pipeline file would run.
fn discovered(commit: &MirroredCommit<'_>, order: &PlanOrder) -> PlanAnswer {
    let tree = match delta_planner::Commit::tree(commit.mirror, commit.commit) {
        Ok(tree) => tree,
        Err(error) => return PlanAnswer::Fault(error.to_string()),
    };
    match delta_planner::discover(&tree) {
        Ok(discovery) => {
            let plan = discovery.plan(&changed(commit, order));
            said(&plan, discovery.remarks(), order)
        }
        Err(empty) => PlanAnswer::Empty(format!(
            "nothing to run was found: {empty}\n`delta-ci init` leaves a file to edit"
        )),
    }
}

/// The plan with a reason for each job, and what else was seen.
fn said(plan: &Plan, remarks: &[Remark], order: &PlanOrder) -> PlanAnswer {
    let reason = |name: &str, reason: &str| serde_json::json!({"name": name, "reason": reason});
    let included = plan.jobs.iter().map(|it| reason(&it.job.name, &it.reason));
    let omitted = plan.omitted.iter().map(|it| reason(&it.name, &it.reason));
    let remarks = remarks.iter().map(|it| reason(&it.what, &it.reason));
    let warnings = plan.warnings().iter().map(|it| {
        let hint = it.suggestion.as_deref().unwrap_or_default();
        let words = format!("{}; {hint}", it.sentence());
        reason(&it.place(), words.trim_end_matches("; "))
    });
    let remarks = remarks.chain(warnings);
    let said = serde_json::json!({
        "jobs": included.collect::<Vec<_>>(),
        "omitted": omitted.collect::<Vec<_>>(),
        "remarks": remarks.collect::<Vec<_>>(),
    });
    if plan.jobs.is_empty() {
        return PlanAnswer::Nothing { plan: said };
    }
    let mut words = facts(order, Changed::All).words();
    words.push(("DELTA_COMMIT".to_owned(), order.commit.clone()));
    let mut pipeline = plan.to_pipeline();
    pipeline.tell(&words);
    PlanAnswer::Jobs {
        request: pipeline.to_request(),
        plan: said,
    }
}

/// Bytes that are free where this folder is or will be; none where it is not known.
fn free_below(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|it| it.is_dir())?;
    let about = rustix::fs::statvfs(there).ok()?;
    Some(about.f_bavail.saturating_mul(about.f_frsize))
}

fn limit(what: Resource, most: u64) -> std::io::Result<()> {
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    setrlimit(what, limit).map_err(Into::into)
}

fn facts(order: &PlanOrder, changed: Changed) -> Facts {
    let trigger = &order.trigger;
    let short = |prefix: &str| {
        let name = order.git_ref.as_deref()?.strip_prefix(prefix)?;
        Some(name.to_owned())
    };
    let event = match trigger.event {
        TriggerEvent::Push => Event::Push,
        TriggerEvent::Tag => Event::Tag,
        TriggerEvent::PullRequest => Event::PullRequest,
        TriggerEvent::Manual => Event::Manual,
    };
    Facts {
        event,
        branch: short("refs/heads/").filter(|_| matches!(event, Event::Push | Event::Manual)),
        tag: short("refs/tags/").filter(|_| matches!(event, Event::Tag | Event::Manual)),
        git_ref: order.git_ref.clone(),
        target: trigger.base.clone(),
        source: trigger.source.clone(),
        changed,
        trusted: order.trusted,
        inputs: trigger.inputs.clone(),
    }
}

/// What changed since what the commit is compared with.
fn changed(commit: &MirroredCommit<'_>, order: &PlanOrder) -> Changed {
    let unknown = |why: &str| Changed::Unknown(why.to_owned());
    let Some(base) = &order.base else {
        let why = order.no_base.as_deref();
        return unknown(why.unwrap_or("there is nothing to compare the commit with"));
    };
    if !commit.knows(base) {
        return unknown("what it is compared with is not in the repository any more");
    }
    // A request is compared with where it left its branch, a push with what went well before.
    let since = match order.trigger.event {
        TriggerEvent::PullRequest => Since::MergeBase,
        TriggerEvent::Push | TriggerEvent::Tag | TriggerEvent::Manual => Since::Commit,
    };
    let listed = match commit.changed(base, since) {
        Ok(listed) => listed,
        Err(NoAnswer::TooMuch { .. }) => return unknown("too much changed to be listed"),
        Err(NoAnswer::Failed { .. }) => return unknown("git does not tell what changed"),
    };
    let Ok(listed) = String::from_utf8(listed) else {
        return unknown("a changed file has a name that is no UTF-8");
    };
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    Changed::files(paths.map(str::to_owned))
}
