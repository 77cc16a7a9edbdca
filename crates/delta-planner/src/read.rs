//! The pipeline file in its first form: bytes into a [`Pipeline`], or every fault at once.

use std::collections::HashMap;
use std::time::Duration;

use crate::diagnostic::{Collector, Diagnostics, MAX_DIAGNOSTICS, shown};
use crate::fields::{self, Keys};
use crate::graph::{self, Needs};
use crate::pipeline::{Pipeline, PlannedJob, Retry};
use crate::suggest::nearest;
use crate::yaml::{self, Node, Place};

/// A pipeline file is written by hand; the largest known ones are near 100 KiB. Anything beyond
/// this is a mistake or an attack, and is refused before it is looked at.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;

/// Jobs of one file. More than this is a generated file that should be several runs.
const MAX_JOBS: usize = 10_000;

/// Characters of a job name: it stands in tables and file names.
const MAX_NAME_CHARS: usize = 100;

/// A job that runs longer than a week is a service, not a job.
const MAX_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// More tries than this hide a fault instead of riding it out.
const MAX_ATTEMPTS: i64 = 100;

/// One priority step is a minute of waiting time, so a thousand is most of a day each way.
const MAX_PRIORITY: i64 = 1000;

const FILE_KEYS: Keys = Keys {
    known: &["jobs"],
    not_yet: &["concurrency", "env", "fail_fast", "on"],
};

const JOB_KEYS: Keys = Keys {
    known: &[
        "steps",
        "env",
        "needs",
        "timeout",
        "retry",
        "allow_failure",
        "requires",
        "once",
        "priority",
        "workdir",
    ],
    not_yet: &[
        "artifacts",
        "caches",
        "concurrency",
        "function",
        "if",
        "image",
        "matrix",
        "results",
        "secrets",
        "tests",
    ],
};

const RETRY_KEYS: Keys = Keys {
    known: &["attempts", "on"],
    not_yet: &[],
};

/// Reads one pipeline file. `file` is only a name for diagnostics.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Pipeline, Diagnostics> {
    if bytes.len() > MAX_FILE_BYTES {
        let mut out = Collector::new(file, "");
        let reason = format!(
            "the file has {} bytes, at most {MAX_FILE_BYTES} are read",
            bytes.len()
        );
        out.push(
            START,
            reason,
            Some("move long scripts into files of their own".into()),
        );
        return Err(out.finish());
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(problem) => return Err(not_text(file, bytes, problem.valid_up_to())),
    };
    let mut out = Collector::new(file, text);
    if let Some(at) = text.find('\0') {
        out.push(
            place_of(text, at),
            "the file contains a NUL character",
            None,
        );
        return Err(out.finish());
    }
    let root = match yaml::read(text) {
        Ok(root) => root,
        Err(problem) => {
            out.push(problem.place, problem.reason, problem.suggestion);
            return Err(out.finish());
        }
    };
    let jobs = read_file(&root, &mut out);
    if out.is_empty() {
        Ok(Pipeline { jobs })
    } else {
        Err(out.finish())
    }
}

const START: Place = Place {
    line: 1,
    column: 1,
    width: 1,
};

fn not_text(file: &str, bytes: &[u8], valid: usize) -> Diagnostics {
    let text = String::from_utf8_lossy(bytes);
    let mut out = Collector::new(file, &text);
    let reason = format!("byte 0x{:02x} is not UTF-8", bytes[valid]);
    out.push(
        place_of(&text, valid),
        reason,
        Some("save the file as UTF-8".into()),
    );
    out.finish()
}

fn place_of(text: &str, byte: usize) -> Place {
    let before = &text[..byte];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Place {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        width: 1,
    }
}

fn read_file(root: &Node, out: &mut Collector<'_>) -> Vec<PlannedJob> {
    let example = "a file begins like this: `jobs: {build: {steps: [make]}}`";
    if root.is_absent() {
        out.push(root.place, "the file is empty", Some(example.into()));
        return Vec::new();
    }
    let Some(file) = fields::fields(root, &FILE_KEYS, "the file", out) else {
        return Vec::new();
    };
    let Some(jobs) = file.get("jobs") else {
        out.push(root.place, "the file has no `jobs`", Some(example.into()));
        return Vec::new();
    };
    let Some(pairs) = fields::pairs(jobs, "`jobs`", &["build"], out) else {
        return Vec::new();
    };
    if pairs.is_empty() {
        out.push(jobs.place, "`jobs` is empty", Some(example.into()));
    }
    if pairs.len() > MAX_JOBS {
        let reason = format!("{} jobs, at most {MAX_JOBS} are allowed", pairs.len());
        out.push(jobs.place, reason, None);
        return Vec::new();
    }
    let mut read = Vec::new();
    let mut needs = Vec::new();
    for (name, key, node) in pairs {
        check_name(name, key.place, out);
        let (job, job_needs) = read_job(key, name, node, out);
        needs.push(Needs {
            name: name.to_owned(),
            needs: job_needs,
        });
        read.push(job);
    }
    check_needs(&needs, out);
    read
}

fn read_job(
    key: &Node,
    name: &str,
    node: &Node,
    out: &mut Collector<'_>,
) -> (PlannedJob, Vec<(String, Place)>) {
    let what = format!("job `{}`", shown(name));
    let mut job = PlannedJob {
        name: name.to_owned(),
        steps: Vec::new(),
        env: Vec::new(),
        needs: Vec::new(),
        timeout: None,
        retry: None,
        allow_failure: false,
        requires: Vec::new(),
        once: false,
        priority: 0,
        workdir: ".".to_owned(),
    };
    let Some(map) = fields::fields(node, &JOB_KEYS, &what, out) else {
        return (job, Vec::new());
    };
    job.steps = read_steps(map.get("steps"), key.place, &what, out);
    if let Some(env) = map.get("env") {
        job.env = read_env(env, &what, out);
    }
    let needs = map
        .get("needs")
        .map(|node| fields::texts(node, "`needs`", out))
        .unwrap_or_default();
    job.needs = needs.iter().map(|(name, _)| name.clone()).collect();
    if let Some(node) = map.get("timeout") {
        job.timeout = fields::duration(node, "the timeout", MAX_TIMEOUT, out);
    }
    if let Some(node) = map.get("allow_failure") {
        job.allow_failure = fields::boolean(node, "`allow_failure`", out).unwrap_or_default();
    }
    if let Some(node) = map.get("once") {
        job.once = fields::boolean(node, "`once`", out).unwrap_or_default();
    }
    if let Some(node) = map.get("retry") {
        job.retry = read_retry(node, job.once, out);
    }
    if let Some(node) = map.get("requires") {
        job.requires = read_requires(node, out);
    }
    if let Some(node) = map.get("priority") {
        let range = -MAX_PRIORITY..=MAX_PRIORITY;
        let number = fields::integer(node, "`priority`", range, out).unwrap_or_default();
        job.priority = i32::try_from(number).unwrap_or_default();
    }
    if let Some(workdir) = map.get("workdir").and_then(|node| read_workdir(node, out)) {
        job.workdir = workdir;
    }
    (job, needs)
}

fn read_steps(
    steps: Option<&Node>,
    job: Place,
    what: &str,
    out: &mut Collector<'_>,
) -> Vec<String> {
    let example = Some("a job needs at least one step: `steps: [make test]`".to_owned());
    let Some(node) = steps else {
        out.push(job, format!("{what} has no `steps`"), example);
        return Vec::new();
    };
    if matches!(&node.value, yaml::Value::List(items) if items.is_empty()) {
        out.push(node.place, format!("`steps` of {what} is empty"), example);
    }
    let mut steps = Vec::new();
    for (step, place) in fields::texts(node, "`steps`", out) {
        if step.trim().is_empty() {
            out.push(place, format!("a step of {what} is blank"), None);
        }
        steps.push(step);
    }
    steps
}

fn read_env(node: &Node, what: &str, out: &mut Collector<'_>) -> Vec<(String, String)> {
    let what = format!("`env` of {what}");
    let mut env = Vec::new();
    for (name, key, value) in fields::pairs(node, &what, &["NAME"], out).unwrap_or_default() {
        let mut letters = name.chars();
        let first = letters
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !first || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let reason = format!("`{}` is not a name of a variable", shown(name));
            let rule = "use letters, digits and `_`, and begin with no digit";
            out.push(key.place, reason, Some(rule.into()));
        } else if name.starts_with("DELTA_") {
            let reason = format!("`{}` is reserved", shown(name));
            let rule = "names that begin with `DELTA_` are set by the agent; choose another";
            out.push(key.place, reason, Some(rule.into()));
        }
        // `KEY:` with nothing behind it is an empty value, as in a shell.
        let text = match &value.value {
            yaml::Value::Scalar {
                text,
                quoted: false,
            } if text.is_empty() => Some(""),
            yaml::Value::Scalar { text, .. } if !text.contains('\0') => Some(text.as_str()),
            _ => fields::text(value, &format!("the value of `{}`", shown(name)), out),
        };
        env.push((name.to_owned(), text.unwrap_or_default().to_owned()));
    }
    env
}

fn read_retry(node: &Node, once: bool, out: &mut Collector<'_>) -> Option<Retry> {
    let map = fields::fields(node, &RETRY_KEYS, "`retry`", out)?;
    let Some(attempts) = map.get("attempts") else {
        let rule = "write `retry: {attempts: 3}`: the first try counts as one";
        out.push(node.place, "`retry` has no `attempts`", Some(rule.into()));
        return None;
    };
    let place = attempts.place;
    let attempts = fields::integer(attempts, "`attempts`", 1..=MAX_ATTEMPTS, out)?;
    if once && attempts > 1 {
        let rule = "a job marked `once` is never repeated; remove `retry` or `once`";
        out.push(place, "`retry` contradicts `once`", Some(rule.into()));
    }
    let mut on = Vec::new();
    if let Some(causes) = map.get("on") {
        for (cause, place) in fields::texts(causes, "`on`", out) {
            if !crate::CAUSES.contains(&cause.as_str()) {
                let reason = format!("unknown cause `{}`", shown(&cause));
                out.push(
                    place,
                    reason,
                    Some(fields::did_you_mean(&cause, crate::CAUSES)),
                );
            }
            on.push(cause);
        }
    }
    Some(Retry {
        attempts: u32::try_from(attempts).unwrap_or(1),
        on,
    })
}

fn read_requires(node: &Node, out: &mut Collector<'_>) -> Vec<String> {
    let mut requires = Vec::new();
    for (text, place) in fields::texts(node, "`requires`", out) {
        if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            let reason = format!("`{}` is not a requirement", shown(&text));
            let rule = "write `linux`, `zone=eu`, `python>=3.11`, `cpu>=4` or `memory>=2GiB`";
            out.push(place, reason, Some(rule.into()));
        }
        requires.push(text);
    }
    requires
}

/// The folder steps start in: inside the workspace, whatever the file says.
fn read_workdir(node: &Node, out: &mut Collector<'_>) -> Option<String> {
    let text = fields::text(node, "`workdir`", out)?;
    let mut depth = 0_i64;
    let mut inside = !text.starts_with('/');
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => depth -= 1,
            _ => depth += 1,
        }
        inside &= depth >= 0;
    }
    if !inside {
        let reason = format!("workdir `{}` leaves the workspace", shown(text));
        out.push(
            node.place,
            reason,
            Some("name a folder relative to the root".into()),
        );
    }
    Some(text.to_owned())
}

fn check_name(name: &str, place: Place, out: &mut Collector<'_>) {
    let mut letters = name.chars();
    let first = letters
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let rest = letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if !first || !rest || name.chars().count() > MAX_NAME_CHARS {
        let reason = format!("`{}` is not a name of a job", shown(name));
        let rule = format!(
            "use letters, digits, `_`, `-` and `.`, begin with a letter or digit, \
             at most {MAX_NAME_CHARS} characters"
        );
        out.push(place, reason, Some(rule));
    }
}

fn check_needs(jobs: &[Needs], out: &mut Collector<'_>) {
    let names: HashMap<&str, ()> = jobs.iter().map(|job| (job.name.as_str(), ())).collect();
    for job in jobs {
        let mut seen = HashMap::new();
        for (need, place) in &job.needs {
            if !names.contains_key(need.as_str()) && !out.counted() {
                let reason = format!(
                    "job `{}` needs `{}`, which is not here",
                    shown(&job.name),
                    shown(need)
                );
                let near = nearest(need, jobs.iter().map(|job| job.name.as_str()));
                let suggestion = near.map_or_else(
                    || "name a job of this file, or remove the need".to_owned(),
                    |near| format!("did you mean `{}`?", shown(near)),
                );
                out.push(*place, reason, Some(suggestion));
            }
            if seen.insert(need.as_str(), ()).is_some() {
                let reason = format!("job `{}` needs `{}` twice", shown(&job.name), shown(need));
                out.push(*place, reason, Some("keep one of them".into()));
            }
        }
    }
    for cycle in graph::cycles(jobs, MAX_DIAGNOSTICS) {
        let path: Vec<String> = cycle.path.iter().map(|name| shown(name)).collect();
        let reason = format!("the needs go in a circle: {}", shown_path(&path));
        out.push(
            cycle.place,
            reason,
            Some("remove one of these needs".into()),
        );
    }
}

/// A long circle is shown by its two ends.
fn shown_path(path: &[String]) -> String {
    const ENDS: usize = 8;
    if path.len() <= 2 * ENDS {
        return path.join(" → ");
    }
    let (first, last) = (&path[..ENDS], &path[path.len() - ENDS..]);
    let left_out = path.len() - 2 * ENDS;
    format!(
        "{} → … {left_out} more … → {}",
        first.join(" → "),
        last.join(" → ")
    )
}
