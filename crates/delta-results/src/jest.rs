//! `jest --json`, and Vitest's JSON, which is the same. One file of tests is held at a time, since
//! its name comes after its results.

use std::io::BufRead;

use serde::de::{IgnoredAny, MapAccess};

use crate::bounded_json::{Held, Joined, Room, list, skip, text};
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

#[derive(Default)]
struct File {
    name: String,
    message: String,
    status: String,
    assertions: Vec<Assertion>,
}

impl Held for File {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "name" => self.name = text(map)?,
            "message" => self.message = text(map)?,
            "status" => self.status = text(map)?,
            "assertionResults" => self.assertions = list(map, room)?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

#[derive(Default)]
struct Assertion {
    /// Of the blocks it is in.
    titles: String,
    title: String,
    status: String,
    duration: Option<f64>,
    failures: String,
    earlier: usize,
}

impl Held for Assertion {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        _room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "ancestorTitles" => self.titles = map.next_value_seed(Joined(" > "))?,
            "title" => self.title = text(map)?,
            "status" => self.status = text(map)?,
            "duration" => self.duration = map.next_value()?,
            "failureMessages" => self.failures = map.next_value_seed(Joined("\n\n"))?,
            "retryReasons" => {
                let reasons: Option<Vec<IgnoredAny>> = map.next_value()?;
                self.earlier = reasons.map_or(0, |reasons| reasons.len());
            }
            _ => skip(map)?,
        }
        Ok(())
    }
}

fn file(file: File, cases: &mut Cases) -> Result<(), Problem> {
    let suite = cases.place(&file.name);
    let mut blamed = false;
    for test in file.assertions {
        let mut name = test.titles;
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
        blamed |= matches!(status, Status::Fail | Status::Error);
        let mut case = Case::new(suite.clone(), name, status);
        case.duration_ms = test.duration.and_then(crate::junit::millis);
        case.explain(None, Some(test.failures));
        if test.earlier > 0 {
            case.note("earlier_failures", test.earlier.to_string());
        }
        cases.put(case)?;
    }
    // It did not even load, or failed outside its tests: none of them tells of it. Vitest may call
    // such a file passed, and has a message of it then.
    if !blamed && (file.status == "failed" || !file.message.trim().is_empty()) {
        let mut case = Case::new(suite, "(the file itself)", Status::Error);
        case.explain(None, Some(file.message));
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
