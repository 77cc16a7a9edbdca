//! `jest --json`, and Vitest's JSON, which is the same. One file of tests is held at a time, since
//! its name comes after its results.

use std::io::BufRead;

use serde::Deserialize;

use crate::input::Input;
use crate::json::{Listed, Numbers, stream};
use crate::stream::Cases;
use crate::{Case, Counts, Problem, Status};

pub fn read<R: BufRead>(input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
    let lists: &[Listed<File>] = &[Listed {
        field: "testResults",
        put: file,
    }];
    let numbers = stream(input, cases, lists)?;
    claim(&numbers, cases);
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    name: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    assertion_results: Vec<Assertion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Assertion {
    #[serde(default)]
    ancestor_titles: Vec<String>,
    #[serde(default)]
    title: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    duration: Option<f64>,
    #[serde(default)]
    failure_messages: Option<Vec<String>>,
    #[serde(default)]
    retry_reasons: Option<Vec<String>>,
}

fn file(file: File, cases: &mut Cases) -> Result<(), Problem> {
    let suite = cases.place(&file.name);
    // It did not even load: there are no tests to tell of it.
    if file.assertion_results.is_empty() && file.status == "failed" {
        let mut case = Case::new(suite, "(the file itself)", Status::Error);
        case.explain(None, Some(file.message));
        return cases.put(case);
    }
    for test in file.assertion_results {
        let mut name = test.ancestor_titles.join(" > ");
        if !name.is_empty() {
            name.push_str(" > ");
        }
        name.push_str(&test.title);
        let status = match test.status.as_str() {
            "passed" => Status::Pass,
            "failed" => Status::Fail,
            "pending" | "skipped" | "todo" | "disabled" => Status::Skip,
            _ => Status::Error,
        };
        let mut case = Case::new(suite.clone(), name, status);
        case.duration_ms = test.duration.and_then(crate::junit::millis);
        let failures = test.failure_messages.unwrap_or_default();
        case.explain(None, Some(failures.join("\n\n")));
        let earlier = test.retry_reasons.map_or(0, |reasons| reasons.len());
        if earlier > 0 {
            case.note("earlier_failures", earlier.to_string());
        }
        cases.put(case)?;
    }
    Ok(())
}

fn claim(numbers: &Numbers, cases: &mut Cases) {
    let of = |name: &str| numbers.get(name).copied();
    let (Some(passed), Some(failed)) = (of("numPassedTests"), of("numFailedTests")) else {
        return;
    };
    let todo = of("numTodoTests").unwrap_or(0);
    cases.claim(Counts {
        passed,
        failed,
        skipped: of("numPendingTests").unwrap_or(0).saturating_add(todo),
        // Files that did not load are no tests to Jest.
        errors: of("numRuntimeErrorTestSuites").unwrap_or(0),
    });
}
