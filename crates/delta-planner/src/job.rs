//! One job of the pipeline file: its keys, their types and their bounds. The bounds are those of
//! the API the job is sent to, so that a file that passes here is not refused there.

use std::time::Duration;

use delta_core::Cause;
use delta_core::policy::RetryOn;
use delta_core::requirement::Requirement;
use delta_wire::api::create_run::{
    MAX_ATTEMPTS, MAX_NEEDS, MAX_PRIORITY, MAX_REQUIRES, MAX_RETRY_ON, MAX_TIMEOUT, MIN_TIMEOUT,
};
use delta_wire::job_spec::{MAX_ENV, MAX_ENV_VALUE_BYTES};

use crate::around;
use crate::condition::Scope;
use crate::diagnostic::{Collector, shown};
use crate::fields::{self, Keys};
use crate::pipeline::{PlannedJob, Retry};
use crate::steps;
use crate::yaml::{self, Node, Place};

const JOB_KEYS: Keys = Keys {
    known: &[
        "steps",
        "if",
        "env",
        "needs",
        "timeout",
        "retry",
        "allow_failure",
        "requires",
        "once",
        "priority",
        "workdir",
        "no_output_timeout",
        "artifacts",
        "caches",
        "checkout",
        "container",
        "environment",
        "image",
        "inputs",
        "results",
        "secrets",
    ],
    not_yet: &["concurrency", "function", "matrix", "tests"],
};

const RETRY_KEYS: Keys = Keys {
    known: &["attempts", "on"],
    not_yet: &[],
};

/// What a job or a step may take.
pub(crate) const TIMEOUTS: std::ops::RangeInclusive<Duration> =
    MIN_TIMEOUT.as_duration()..=MAX_TIMEOUT.as_duration();

/// Reads one job, and its needs with their places.
pub(crate) fn read_job(
    key: &Node,
    name: &str,
    node: &Node,
    out: &mut Collector<'_>,
) -> (PlannedJob, Vec<(String, Place)>) {
    let what = format!("job `{}`", shown(name));
    let mut job = PlannedJob::new(name, Vec::new());
    let Some(map) = fields::fields(node, &JOB_KEYS, &what, out) else {
        return (job, Vec::new());
    };
    let steps = steps::read(map.get("steps"), key.place, &what, out);
    job.steps = steps.into_iter().map(Into::into).collect();
    if let Some(node) = map.get("if") {
        job.condition = fields::condition(node, Scope::default(), out);
    }
    if let Some(env) = map.get("env") {
        job.env = read_env(env, &what, out);
    }
    let needs = map
        .get("needs")
        .map(|node| fields::texts(node, "`needs`", MAX_NEEDS, out))
        .unwrap_or_default();
    job.needs = needs.iter().map(|(name, _)| name.clone()).collect();
    if let Some(node) = map.get("timeout") {
        job.timeout = fields::duration(node, "the timeout", TIMEOUTS, out);
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
        let range = i64::from(-MAX_PRIORITY)..=i64::from(MAX_PRIORITY);
        let number = fields::integer(node, "`priority`", range, out).unwrap_or_default();
        job.priority = i32::try_from(number).unwrap_or_default();
    }
    if let Some(workdir) = map.get("workdir").and_then(|node| read_workdir(node, out)) {
        job.workdir = workdir;
    }
    job.around = around::read(&map, out);
    (job, needs)
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
        if text.is_some_and(|text| text.len() > MAX_ENV_VALUE_BYTES) {
            let reason = format!("the value of `{}` is too long", shown(name));
            let rule = format!("a value has at most {MAX_ENV_VALUE_BYTES} bytes");
            out.push(value.place, reason, Some(rule));
        }
        env.push((name.to_owned(), text.unwrap_or_default().to_owned()));
    }
    if env.len() > MAX_ENV {
        out.push(
            node.place,
            format!("{what} has more than {MAX_ENV} entries"),
            None,
        );
    }
    env
}

fn read_retry(node: &Node, once: bool, out: &mut Collector<'_>) -> Option<Retry> {
    let map = fields::fields(node, &RETRY_KEYS, "`retry`", out)?;
    let attempts = match map.get("attempts") {
        Some(node) => {
            let range = 1..=i64::from(MAX_ATTEMPTS);
            let number = fields::integer(node, "`attempts`", range, out)?;
            if once && number > 1 {
                let rule = "a job marked `once` is never repeated; remove `retry` or `once`";
                out.push(node.place, "`retry` contradicts `once`", Some(rule.into()));
            }
            u32::try_from(number).ok()
        }
        None => None,
    };
    let mut on = Vec::new();
    if let Some(node) = map.get("on") {
        for (cause, place) in fields::texts(node, "`on`", MAX_RETRY_ON, out) {
            if RetryOn::from_name(&cause).is_none() && !out.counted() {
                let reason = format!("unknown cause `{}`", shown(&cause));
                out.push(place, reason, Some(fields::did_you_mean(&cause, &causes())));
            }
            on.push(cause);
        }
    }
    Some(Retry { attempts, on })
}

/// What `retry.on` is usually about: two families, and whatever an agent may report.
fn causes() -> Vec<&'static str> {
    let single = Cause::ALL.iter().filter(|cause| cause.reportable());
    ["infra", "timeout"]
        .into_iter()
        .chain(single.map(|cause| cause.name()))
        .collect()
}

fn read_requires(node: &Node, out: &mut Collector<'_>) -> Vec<String> {
    let mut requires = Vec::new();
    for (text, place) in fields::texts(node, "`requires`", MAX_REQUIRES, out) {
        if let Err(problem) = Requirement::parse(&text) {
            let reason = format!("`{}` is not a requirement: {}", shown(&text), problem.why);
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
    let inside = !text.starts_with('/') && text.split('/').all(|part| part != "..");
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
