//! The discovered plan as a pipeline file to edit: every job with its reason above it, and what was
//! left out. What is written reads back as exactly the same jobs.

use std::fmt::Write;

use serde_json::Value;

use super::share::{self, Template, Written};
use super::{Discovery, EmptyPlan, Remark};
use crate::around::KEYS as AROUND;
use crate::pipeline::PlannedJob;
use crate::read::MAX_FILE_BYTES;

/// The file would be larger than one that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLong {
    pub bytes: usize,
    pub jobs: usize,
}

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} jobs would make a file of {} bytes, and at most {MAX_FILE_BYTES} are read",
            self.jobs, self.bytes
        )
    }
}

impl std::error::Error for TooLong {}

const HEAD: &str = "\
# What `delta-ci init` found here, written down to be edited. From now on this file decides what
# runs; without it, delta-ci looks at the repository each time and leaves out what did not change.
# All keys: docs/pipeline.md. Check an edit with `delta-ci plan`.
";

const HEAD_OF_NOTHING: &str = "\
# `delta-ci init` found nothing here that it knows how to run. This file decides what runs.
# All keys: docs/pipeline.md. Check an edit with `delta-ci plan`.
";

/// Where jobs have conditions.
const ABOUT_CONDITIONS: &str = "\
#
# `if: changed(...)` names what a job is about: its package, what that is built with, and what
# belongs to nobody. A path that comes later and is in no list starts nothing until it is added.
";

/// What stands in the place of jobs where none was found.
const NO_JOBS: &str = "
jobs:
  test:
    steps:
      - \"echo 'say here what tests this repository' >&2; exit 1\"
";

/// A file to edit for a repository in which nothing was found: what was seen, and a job that fails
/// until somebody says what it is to do.
pub fn skeleton(empty: &EmptyPlan) -> String {
    let mut text = HEAD_OF_NOTHING.to_owned();
    seen(&empty.remarks, &mut text);
    text.push_str(NO_JOBS);
    text
}

fn seen(remarks: &[Remark], text: &mut String) {
    if remarks.is_empty() {
        return;
    }
    text.push_str("#\n# Seen and left out:\n");
    for remark in remarks {
        let _ = writeln!(
            text,
            "#   {}",
            comment(&format!("{}: {}", remark.what, remark.reason))
        );
    }
}

/// A text on one line of remarks, whatever is in it.
fn comment(text: &str) -> String {
    text.replace(
        |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'),
        " ",
    )
}

/// The pipeline file.
pub fn written(discovery: &Discovery<'_>) -> Result<String, TooLong> {
    let plan = discovery.whole();
    let mut text = HEAD.to_owned();
    if plan.jobs.iter().any(|it| it.job.condition.is_some()) {
        text.push_str(ABOUT_CONDITIONS);
    }
    seen(discovery.remarks(), &mut text);
    let jobs: Vec<Written> = plan.jobs.iter().map(|it| written_job(&it.job)).collect();
    let templates = share::templates(&jobs);
    if !templates.is_empty() {
        text.push_str("\n# What several jobs have in common.\ntemplates:\n");
    }
    for template in &templates {
        let _ = writeln!(text, "  {}:", scalar(&template.name));
        text.extend(template.keys.iter().map(|(_, lines)| lines.as_str()));
    }
    text.push_str("\njobs:\n");
    for (at, (included, job)) in plan.jobs.iter().zip(&jobs).enumerate() {
        let _ = writeln!(text, "  # {}", comment(&included.reason));
        let _ = writeln!(text, "  {}:", scalar(&job.name));
        let extended = templates.iter().filter(|it| it.jobs.contains(&at));
        let extended: Vec<&Template> = extended.collect();
        let names: Vec<String> = extended.iter().map(|it| scalar(&it.name)).collect();
        match names.as_slice() {
            [] => {}
            [one] => drop(writeln!(text, "    extends: {one}")),
            more => drop(writeln!(text, "    extends: [{}]", more.join(", "))),
        }
        let shared = |key: &str| {
            extended
                .iter()
                .any(|it| it.keys.iter().any(|(k, _)| *k == key))
        };
        let own = job.keys.iter().filter(|(key, _)| !shared(key));
        text.extend(own.map(|(_, lines)| lines.as_str()));
    }
    if text.len() > MAX_FILE_BYTES {
        Err(TooLong {
            bytes: text.len(),
            jobs: plan.jobs.len(),
        })
    } else {
        Ok(text)
    }
}

/// The keys of a job, each with the lines it takes below the job's name.
fn written_job(job: &PlannedJob) -> Written {
    let mut keys: Vec<(&'static str, String)> = Vec::new();
    if let Some(condition) = &job.condition {
        let condition = single_quoted(&condition.to_string());
        keys.push(("if", format!("    if: {condition}\n")));
    }
    if job.workdir != "." {
        let workdir = scalar(&job.workdir);
        keys.push(("workdir", format!("    workdir: {workdir}\n")));
    }
    if !job.requires.is_empty() {
        let all: Vec<String> = job.requires.iter().map(|it| scalar(it)).collect();
        keys.push(("requires", format!("    requires: [{}]\n", all.join(", "))));
    }
    let mut steps = "    steps:\n".to_owned();
    for step in &job.steps {
        let _ = writeln!(steps, "      - {}", scalar(&step.spec.run));
    }
    keys.push(("steps", steps));
    for key in AROUND {
        match job.around.get(key) {
            None => {}
            Some(Value::Array(items)) => {
                let mut lines = format!("    {key}:\n");
                for item in items {
                    let _ = writeln!(lines, "      - {}", flow(item));
                }
                keys.push((key, lines));
            }
            Some(value) => keys.push((key, format!("    {key}: {}\n", flow(value)))),
        }
    }
    Written {
        name: job.name.clone(),
        keys,
    }
}

/// A value on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields: Vec<String> = fields
                .map(|(key, it)| format!("{key}: {}", flow(it)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// A text in which there are double quotes.
fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Text that YAML reads back as it is: plain where nothing in it means anything, else in quotes.
fn scalar(text: &str) -> String {
    let word = |c: char| c.is_ascii_alphanumeric() || " _./=+-".contains(c);
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let told = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let known = told.iter().any(|it| text.eq_ignore_ascii_case(it));
    if first && !known && !text.ends_with(' ') && text.chars().all(word) {
        return text.to_owned();
    }
    // A text of JSON is one of YAML, but for a few characters that YAML wants spelt.
    let mut quoted = String::new();
    for c in Value::from(text).to_string().chars() {
        if c.is_control() || matches!(c, '\u{2028}'..='\u{2029}' | '\u{feff}'..='\u{ffff}') {
            let _ = write!(quoted, "\\u{:04x}", u32::from(c));
        } else {
            quoted.push(c);
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    #[test]
    fn yaml_reads_back_what_was_written() {
        for text in [
            "cargo test",
            "true",
            "No",
            "1.10",
            "a: b",
            "# x",
            "a #b",
            "'x'",
            "\"",
            "*a",
            "&a",
            "-",
            "- x",
            "a\nb",
            "tab\tx",
            "{a}",
            "[a]",
            "ü",
            "a ",
            " a",
            "",
            "~",
            "\\",
            "{hash:Cargo.lock}",
            "@scope",
            "%x",
            "|",
            ">",
            "\u{7f}",
            "a\u{2028}b",
        ] {
            let node = yaml::read(&format!("k: [{}]\n", scalar(text))).expect(text);
            let yaml::Value::Map(pairs) = node.value else {
                panic!("a map")
            };
            let yaml::Value::List(items) = &pairs[0].1.value else {
                panic!("a list")
            };
            let yaml::Value::Scalar { text: read, .. } = &items[0].value else {
                panic!("text")
            };
            assert_eq!(read, text);
        }
    }
}
