//! What a job is planned with beside its steps: in a few words for a look at the whole plan, or all
//! of it for one that is looked at itself. Everything in it is a stranger's text and is cleaned.

use std::time::Duration;

use delta_planner::{PlannedJob, PlannedStep};
use delta_wire::duration;
use delta_wire::step::StepWhen;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::{sanitize, wrap};

/// Names of a list that are shown in a few words; the rest is counted.
const SHOWN: usize = 4;

/// The shortest line that is broken: below this nothing is readable anyway.
const MIN_WIDTH: usize = 30;

/// What a reader of the whole plan wants to know of a job.
pub fn in_short(job: &PlannedJob) -> Vec<String> {
    let mut parts = Vec::new();
    let mut say = |word: &str, names: Vec<String>| {
        if !names.is_empty() {
            parts.push(format!("{word} {}", some(&names)));
        }
    };
    say("image", one(job.around.get("image")));
    say("services", services(job, false));
    say("shell", shells(job));
    say("in", where_it_starts(job));
    say("requires", job.requires.clone());
    let times = job.timeout.map(duration::format);
    say("at most", times.into_iter().collect());
    say("caches", texts(job, "caches", "paths"));
    say("takes artifacts of", texts(job, "inputs", "job"));
    say("keeps", texts(job, "artifacts", "path_glob"));
    say("results", texts(job, "results", "path"));
    say("secrets", texts(job, "secrets", "name"));
    say("for", one(job.around.get("environment")));
    if let Some(cell) = job
        .cell
        .as_ref()
        .filter(|cell| !is_in_name(job, &cell.values))
    {
        let values = cell.values.iter();
        say(
            "with",
            values
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
        );
    }
    match job.around.get("count_tests").and_then(Value::as_str) {
        None => {}
        Some("none") => parts.push("tests not counted".to_owned()),
        // Silence is no answer: only what a tool says is believed.
        Some("output") => parts.push("fails if it says that no test ran".to_owned()),
        Some(_) => parts.push("fails if no test ran".to_owned()),
    }
    if job.allow_failure {
        parts.push("may fail".to_owned());
    }
    if job.once {
        parts.push("once".to_owned());
    }
    parts.iter().map(|part| sanitize::text(part)).collect()
}

/// Everything that is known of a job, a line each; what the file leaves out is left out.
pub fn in_full(job: &PlannedJob) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |word: &str, text: String| lines.push(format!("{word}: {text}"));
    if let Some(cell) = &job.cell {
        for (name, value) in &cell.values {
            say("matrix", format!("{name} = {value}"));
        }
    }
    if !job.needs.is_empty() {
        say("needs", job.needs.join(", "));
    }
    for (word, texts) in [
        ("in", where_it_starts(job)),
        ("requires", job.requires.clone()),
    ] {
        if !texts.is_empty() {
            say(word, texts.join(", "));
        }
    }
    for service in services(job, true) {
        say("service", service);
    }
    for (key, value) in &job.around {
        let (key, value) = &as_written(key, value);
        match value {
            Value::Array(items) => items.iter().for_each(|item| say(key, flat(item))),
            Value::Object(_) if key == "container" => {
                let rest = without(value, "services");
                if rest.as_object().is_some_and(|it| !it.is_empty()) {
                    say(key, flat(&rest));
                }
            }
            other => say(key, flat(other)),
        }
    }
    for (name, value) in &job.env {
        say("env", format!("{name}={value}"));
    }
    if let Some(timeout) = job.timeout {
        say("timeout", duration::format(timeout));
    }
    if let Some(retry) = &job.retry {
        let times = retry.attempts.map(|it| format!("{it} attempts"));
        let causes = (!retry.on.is_empty()).then(|| format!("after {}", retry.on.join(", ")));
        let words: Vec<String> = times.into_iter().chain(causes).collect();
        say("retry", words.join(" "));
    }
    if let Some(group) = &job.concurrency {
        say("concurrency", group.group.clone());
    }
    let flags = [
        ("allow_failure", job.allow_failure),
        ("once", job.once),
        ("fail_fast", job.fail_fast),
    ];
    for (word, _) in flags.into_iter().filter(|(_, on)| *on) {
        say(word, "true".to_owned());
    }
    if job.priority != 0 {
        say("priority", job.priority.to_string());
    }
    lines.iter().map(|line| sanitize::text(line)).collect()
}

/// Every line of a step's script, and what is said about it.
pub fn step_in_full(step: &PlannedStep) -> Vec<String> {
    let spec = &step.spec;
    let mut about = Vec::new();
    about.extend(spec.name.clone());
    about.extend(
        spec.timeout
            .map(|it| format!("at most {}", duration::format(it.as_duration()))),
    );
    about.extend(spec.shell.as_ref().map(|it| it.words().join(" ")));
    about.extend(match spec.when {
        StepWhen::Success => None,
        other => Some(format!("after {}", other.as_str())),
    });
    about.extend(
        spec.continue_on_error
            .then(|| "its failure does not count".to_owned()),
    );
    about.extend(
        spec.env
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    let mut lines = Vec::new();
    if !about.is_empty() {
        lines.push(format!("# {}", about.join("; ")));
    }
    for (at, line) in spec.run.lines().enumerate() {
        lines.push(format!("{} {line}", if at == 0 { "$" } else { " " }));
    }
    lines.iter().map(|line| sanitize::text(line)).collect()
}

/// Parts on as few lines as they fit, `; ` between them. One that is longer is folded.
pub fn wrapped(parts: &[String], width: usize) -> Vec<String> {
    let width = width.max(MIN_WIDTH);
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        let fits = |line: &&mut String| line.width() + 2 + part.width() <= width;
        match lines.last_mut().filter(fits) {
            Some(line) => {
                line.push_str("; ");
                line.push_str(part);
            }
            None => lines.extend(wrap::within(part, width, 2)),
        }
    }
    lines
}

fn where_it_starts(job: &PlannedJob) -> Vec<String> {
    let elsewhere = job.workdir != ".";
    elsewhere.then(|| job.workdir.clone()).into_iter().collect()
}

/// What reads its scripts, where that is not the usual shell; each once.
fn shells(job: &PlannedJob) -> Vec<String> {
    let mut shells: Vec<String> = Vec::new();
    for shell in job.steps.iter().filter_map(|it| it.spec.shell.as_ref()) {
        let words = shell.words().join(" ");
        if !shell.is_usual() && !shells.contains(&words) {
            shells.push(words);
        }
    }
    shells
}

/// Whether a cell's name says its values; one with long ones is only numbered.
fn is_in_name(job: &PlannedJob, values: &[(String, String)]) -> bool {
    let mut values = values.iter();
    values.all(|(name, _)| job.name.contains(&format!("{name}=")))
}

/// Each by name and image; in full with how it is known to be ready, and its variables.
fn services(job: &PlannedJob, full: bool) -> Vec<String> {
    let container = job.around.get("container");
    let all = container.and_then(|it| it["services"].as_array());
    let text = |service: &Value| {
        let word = |key: &str| service[key].as_str().unwrap_or_default().to_owned();
        if full {
            let rest = without(&without(service, "name"), "image");
            let rest = if rest.as_object().is_none_or(|it| it.is_empty()) {
                String::new()
            } else {
                format!(" {}", flat(&rest))
            };
            format!("{} ({}){rest}", word("name"), word("image"))
        } else {
            format!("{} ({})", word("name"), word("image"))
        }
    };
    all.into_iter().flatten().map(text).collect()
}

fn without(value: &Value, key: &str) -> Value {
    let mut value = value.clone();
    if let Value::Object(fields) = &mut value {
        fields.remove(key);
    }
    value
}

/// The texts of one field in a list of maps; of a field that is a list, its texts.
fn texts(job: &PlannedJob, key: &str, field: &str) -> Vec<String> {
    let all = job.around.get(key).and_then(Value::as_array);
    let of = |item: &Value| match &item[field] {
        Value::Array(texts) => texts.iter().filter_map(word).collect(),
        one => word(one).into_iter().collect::<Vec<_>>(),
    };
    all.into_iter().flatten().flat_map(of).collect()
}

fn one(value: Option<&Value>) -> Vec<String> {
    value.and_then(word).into_iter().collect()
}

fn word(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// A value on one line, without the marks of JSON where it has none of its own.
fn flat(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(flat).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, it)| as_written(key, it))
                .map(|(key, it)| format!("{key}: {}", flat(&it)))
                .collect();
            fields.join(", ")
        }
        other => other.to_string(),
    }
}

/// A key as the file has it: what is kept as seconds is written as a duration.
fn as_written(key: &str, value: &Value) -> (String, Value) {
    match (key.strip_suffix("_seconds"), value.as_f64()) {
        (Some(key), Some(seconds)) if seconds >= 0.0 => {
            let text = duration::format(Duration::from_secs_f64(seconds));
            (key.to_owned(), Value::String(text))
        }
        _ => (key.to_owned(), value.clone()),
    }
}

fn some(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> PlannedJob {
        let text = format!("jobs:\n  a: {text}\n");
        let pipeline = delta_planner::parse("f", text.as_bytes()).unwrap();
        pipeline.jobs[0].clone()
    }

    const EVERYTHING: &str = "{steps: [x], image: 'rust:1', timeout: 20m, requires: [linux], \
        container: {memory_mb: 64, services: [{name: db, image: 'postgres:16', env: {A: b}}]}, \
        caches: [{key: 'k-{lock_hash}', paths: [target, ~/.cargo]}], artifacts: ['dist/**'], \
        secrets: [TOKEN], results: {format: junit, path: j.xml}, environment: production, \
        allow_failure: true, matrix: {v: [1]}, env: {B: c}, retry: {attempts: 2}}";

    #[test]
    fn a_job_is_told_in_short_with_what_decides_where_and_how_it_runs() {
        assert_eq!(
            in_short(&job(EVERYTHING)),
            [
                "image rust:1",
                "services db (postgres:16)",
                "requires linux",
                "at most 20m",
                "caches target, ~/.cargo",
                "keeps dist/**",
                "results j.xml",
                "secrets TOKEN",
                "for production",
                "may fail",
            ]
        );
        assert!(in_short(&job("{steps: [x]}")).is_empty());
        let text = "{steps: [x], needs: [b], inputs: [b]}\n  b: {steps: [x]}";
        assert_eq!(in_short(&job(text)), ["takes artifacts of b"]);
        // The values of a cell whose name has no room for them.
        let mut cell = job("{steps: [x], matrix: {v: [1]}}");
        cell.name = "a (1)".to_owned();
        assert_eq!(in_short(&cell), ["with v=1"]);
        let five = job("{steps: [x], requires: [a, b, c, d, e]}");
        assert_eq!(in_short(&five), ["requires a, b, c, d and 1 more"]);
    }

    #[test]
    fn in_full_nothing_is_left_out() {
        let lines = in_full(&job(EVERYTHING)).join("\n");
        for wanted in [
            "matrix: v = 1",
            "image: rust:1",
            "service: db (postgres:16) env: A: b",
            "container: memory_mb: 64",
            "caches: key: k-{lock_hash}, paths: [target, ~/.cargo], type: files",
            "artifacts: path_glob: dist/**, type: file",
            "secrets: env: TOKEN, name: TOKEN",
            "env: B=c",
            "timeout: 20m",
            "retry: 2 attempts",
            "allow_failure: true",
        ] {
            assert!(lines.contains(wanted), "{wanted}\n{lines}");
        }
    }

    #[test]
    fn parts_share_lines_as_far_as_the_terminal_goes() {
        let parts = [
            "a".repeat(20),
            "b".repeat(20),
            "c".repeat(50),
            "d".to_owned(),
        ];
        let lines = wrapped(&parts, 45);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[1], "c".repeat(50));
        assert_eq!(wrapped(&parts, usize::MAX).len(), 1);
        let long = ["requires linux, docker, some-label-of-mine".to_owned()];
        assert_eq!(
            wrapped(&long, 36),
            ["requires linux, docker,", "  some-label-of-mine"]
        );
    }

    #[test]
    fn a_strangers_text_moves_no_cursor() {
        let job = job("{steps: [x], env: {A: \"\\e[2J\"}, artifacts: [\"\\e]0;x\"]}");
        let said = format!("{:?}{:?}", in_full(&job), in_short(&job));
        assert!(
            !said.contains("\\u{1b}") && !said.contains('\u{1b}'),
            "{said}"
        );
    }
}
