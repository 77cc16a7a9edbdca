//! Playwright's JSON reporter. One file of tests is held at a time.

use std::io::BufRead;

use serde::Deserialize;

use crate::input::Input;
use crate::json::{Listed, stream};
use crate::stream::Cases;
use crate::{Case, Problem, Status};

pub fn read<R: BufRead>(input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
    let lists: &[Listed<Top>] = &[
        Listed {
            field: "suites",
            put: |top, cases| match top {
                Top::Suite(suite) => walk(&suite, &mut Vec::new(), cases),
                Top::Trouble(_) => Ok(()),
            },
        },
        Listed {
            field: "errors",
            put: |top, cases| match top {
                Top::Trouble(error) => trouble(error, cases),
                Top::Suite(_) => Ok(()),
            },
        },
    ];
    stream(input, cases, lists).map(drop)
}

/// Told apart by what they have: a suite has a title.
#[derive(Deserialize)]
#[serde(untagged)]
enum Top {
    Suite(Suite),
    Trouble(Trouble),
}

#[derive(Deserialize)]
struct Suite {
    title: String,
    #[serde(default)]
    file: String,
    #[serde(default)]
    specs: Vec<Spec>,
    #[serde(default)]
    suites: Vec<Suite>,
}

#[derive(Deserialize)]
struct Spec {
    title: String,
    #[serde(default)]
    tests: Vec<Test>,
    #[serde(default)]
    file: String,
    #[serde(default)]
    line: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Test {
    #[serde(default)]
    project_name: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    results: Vec<Try>,
}

#[derive(Deserialize)]
struct Try {
    #[serde(default)]
    status: String,
    #[serde(default)]
    duration: f64,
    #[serde(default)]
    error: Option<Trouble>,
    #[serde(default)]
    errors: Vec<Trouble>,
}

#[derive(Deserialize)]
struct Trouble {
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    stack: Option<String>,
}

/// The outermost suite is the file; those inside are `describe` blocks.
fn walk<'s>(suite: &'s Suite, titles: &mut Vec<&'s str>, cases: &mut Cases) -> Result<(), Problem> {
    for spec in &suite.specs {
        for test in &spec.tests {
            one(spec, test, titles, &suite.file, cases)?;
        }
    }
    for inner in &suite.suites {
        titles.push(&inner.title);
        walk(inner, titles, cases)?;
        titles.pop();
    }
    Ok(())
}

fn one(
    spec: &Spec,
    test: &Test,
    titles: &[&str],
    file: &str,
    cases: &mut Cases,
) -> Result<(), Problem> {
    let last = test.results.last();
    let status = match (test.status.as_str(), last.map(|last| last.status.as_str())) {
        ("skipped", _) => Status::Skip,
        ("expected" | "flaky", _) => Status::Pass,
        ("unexpected", Some("interrupted")) => Status::Error,
        ("unexpected", _) => Status::Fail,
        _ => Status::Error,
    };
    let mut name = titles.join(" > ");
    if !name.is_empty() {
        name.push_str(" > ");
    }
    name.push_str(&spec.title);
    let file = if spec.file.is_empty() {
        file
    } else {
        &spec.file
    };
    let mut case = Case::new(cases.place(file), name, status);
    case.duration_ms = last.and_then(|last| crate::junit::millis(last.duration));
    case.note("project", test.project_name.clone());
    if spec.line > 0 {
        case.note("line", spec.line.to_string());
    }
    let unhappy = matches!(status, Status::Fail | Status::Error);
    if let Some(last) = last.filter(|_| unhappy) {
        let error = last.error.as_ref().or(last.errors.first());
        let message = error.and_then(|error| error.message.clone());
        let stack = error.and_then(|error| error.stack.clone());
        let trace = stack.or_else(|| message.clone());
        case.explain(message, trace);
        if last.status == "timedOut" {
            case.note("outcome", "timed out");
        }
    }
    let earlier = test.results.len().saturating_sub(1);
    if earlier > 0 {
        case.note("earlier_failures", earlier.to_string());
    }
    cases.put(case)
}

/// What went wrong outside any test, such as a file that does not load.
fn trouble(error: Trouble, cases: &mut Cases) -> Result<(), Problem> {
    let mut case = Case::new("", "(outside any test)", Status::Error);
    let trace = error.stack.or_else(|| error.message.clone());
    case.explain(error.message, trace);
    cases.put(case)
}
