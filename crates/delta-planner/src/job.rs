//! One job of the pipeline file: its keys, their types and their bounds. The bounds are those of
//! the API the job is sent to, so that a file that passes here is not refused there.

use std::time::Duration;

use delta_core::Cause;
use delta_core::policy::RetryOn;
use delta_core::requirement::{Requirement, facts, is_fact};
use delta_wire::api::create_run::{
    MAX_ATTEMPTS, MAX_NEEDS, MAX_PRIORITY, MAX_REQUIRES, MAX_RETRY_ON, MAX_TIMEOUT, MIN_TIMEOUT,
};
use delta_wire::job_spec::{MAX_ENV, is_inside};
use delta_wire::nearest::nearest;

use crate::around;
use crate::concurrency;
use crate::diagnostic::{Collector, shown};
use crate::env;
use crate::fields::{self, Fields, Keys};
use crate::foreign;
use crate::pipeline::{PlannedJob, Retry};
use crate::steps::{self, Of};
use crate::yaml::{Node, Place};

pub(crate) const JOB_KEYS: Keys = Keys {
    known: &[
        "steps",
        "shell",
        "extends",
        "if",
        "matrix",
        "env",
        "needs",
        "timeout",
        "retry",
        "required",
        "allow_failure",
        "fail_fast",
        "concurrency",
        "requires",
        "once",
        "priority",
        "workdir",
        "no_output_timeout",
        "artifacts",
        "caches",
        "checkout",
        "container",
        "count_tests",
        "environment",
        "image",
        "inputs",
        "results",
        "secrets",
    ],
    not_yet: &["function", "tests"],
    foreign: foreign::JOB,
    look: fields::by_name_alone,
};

/// Keys that make sense for every job of a file alike.
pub(crate) const DEFAULTS_KEYS: Keys = Keys {
    known: &[
        "env",
        "shell",
        "timeout",
        "retry",
        "requires",
        "priority",
        "workdir",
        "no_output_timeout",
        "caches",
        "checkout",
        "container",
        "environment",
        "image",
        "secrets",
    ],
    not_yet: &[],
    foreign: foreign::DEFAULTS,
    look: fields::by_name_alone,
};

const RETRY_KEYS: Keys = Keys {
    known: &["attempts", "on"],
    not_yet: &[],
    foreign: &[],
    look: fields::by_name_alone,
};

/// What a job or a step may take.
pub(crate) const TIMEOUTS: std::ops::RangeInclusive<Duration> =
    MIN_TIMEOUT.as_duration()..=MAX_TIMEOUT.as_duration();

/// Reads one job, and its needs with their places.
pub(crate) fn read_job(
    name: &str,
    node: &Node,
    of: Of<'_>,
    out: &mut Collector<'_>,
) -> (PlannedJob, Vec<(String, Place)>) {
    let what = of.what;
    let mut job = PlannedJob::new(name, Vec::new());
    let Some(map) = fields::fields(node, &JOB_KEYS, what, out) else {
        return (job, Vec::new());
    };
    let misspelt = map.is_misspelt("steps");
    job.steps = steps::read(map.get("steps"), misspelt, of, out);
    if let Some(node) = map.get("shell").filter(|node| !node.is_absent()) {
        steps::give_shell(&mut job.steps, steps::shell(node, what, out));
    }
    steps::forget_usual(&mut job.steps);
    if let Some(node) = map.get("if") {
        job.condition = fields::condition(node, of.scope, out);
    }
    if let Some(node) = map.get("env") {
        job.env = env::read(node, what, MAX_ENV, out);
    }
    let needs = map
        .get("needs")
        .map(|node| fields::texts(node, "`needs`", MAX_NEEDS, out))
        .unwrap_or_default();
    job.needs = needs.iter().map(|(name, _)| name.clone()).collect();
    if let Some(node) = map.get("timeout") {
        job.timeout = fields::duration(node, "the timeout", TIMEOUTS, out);
    }
    read_policy(&map, &mut job, out);
    if let Some(node) = map.get("concurrency").filter(|it| !it.is_absent()) {
        job.concurrency = concurrency::read(node, what, out);
    }
    if let Some(node) = map.get("fail_fast") {
        job.fail_fast = read_fail_fast(node, of, out);
    }
    if let Some(workdir) = map.get("workdir").and_then(|node| read_workdir(node, out)) {
        job.workdir = workdir;
    }
    job.around = around::read(&map, out);
    (job, needs)
}

/// What the server decides the job by.
fn read_policy(map: &Fields<'_>, job: &mut PlannedJob, out: &mut Collector<'_>) {
    job.allow_failure = read_allow_failure(map, out);
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
}

/// About the cells of the job's matrix.
fn read_fail_fast(node: &Node, of: Of<'_>, out: &mut Collector<'_>) -> bool {
    if !of.matrix && !of.partial {
        let reason = format!("`fail_fast` of {} is about the cells of a matrix", of.what);
        let rule = "for the whole run it stands at the top of the file";
        out.push(node.place, reason, Some(rule.into()));
    }
    fields::boolean(node, "`fail_fast`", out).unwrap_or_default()
}

/// `allow_failure: true` and `required: false` are one thing.
fn read_allow_failure(map: &Fields<'_>, out: &mut Collector<'_>) -> bool {
    let allowed = map.get("allow_failure");
    let allowed = allowed.and_then(|node| fields::boolean(node, "`allow_failure`", out));
    let Some(node) = map.get("required") else {
        return allowed.unwrap_or_default();
    };
    let required = fields::boolean(node, "`required`", out);
    if let (Some(allowed), Some(required)) = (allowed, required)
        && allowed == required
    {
        let rule = "they say the same in opposite words; keep one of them";
        out.push(
            node.place,
            "`required` contradicts `allow_failure`",
            Some(rule.into()),
        );
    }
    !required.unwrap_or(true)
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
        warn_of_label(&text, place, out);
        requires.push(text);
    }
    requires
}

/// Letters from which on a label that is nearly a fact is taken for a slip: `gpu` is no `cpu`.
const MIN_NEAR: usize = 4;

/// A label that no agent finds out by itself, and that looks as if one should. Any other one is a
/// word of whoever runs the agents.
fn warn_of_label(text: &str, place: Place, out: &mut Collector<'_>) {
    let name = text.split(['>', '=']).next().unwrap_or_default();
    if is_fact(&name.to_lowercase()) {
        return;
    }
    let long = name.len() >= MIN_NEAR;
    let near = nearest(name, facts().filter(|_| long));
    let hint = match (foreign::machine(name), near) {
        (Some(""), _) => "every agent is one of yours; remove it".to_owned(),
        (Some(here), _) => format!("write `{here}`, or `image: NAME:TAG` for what is installed"),
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) => return,
    };
    let name = shown(name);
    let reason = format!(
        "no agent finds out `{name}` by itself; on a server the job waits for one that was \
         started with `--label {name}`"
    );
    out.warn(place, reason, Some(hint));
}

/// The folder steps start in: inside the workspace, whatever the file says.
fn read_workdir(node: &Node, out: &mut Collector<'_>) -> Option<String> {
    let text = fields::text(node, "`workdir`", out)?;
    if !is_inside(text) {
        let reason = format!("workdir `{}` leaves the workspace", shown(text));
        out.push(
            node.place,
            reason,
            Some("name a folder relative to the root".into()),
        );
    }
    Some(text.to_owned())
}
