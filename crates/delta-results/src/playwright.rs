//! Playwright's JSON reporter. One file of tests is held at a time.

use std::io::BufRead;

use serde::de::MapAccess;

use crate::bounded_json::{Held, One, Room, each, list, skip, text};
use crate::input::Input;
use crate::json::{Listed, stream};
use crate::stream::Cases;
use crate::{Case, Problem, Status};

pub fn read<R: BufRead>(input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
    let lists: &[Listed<Top>] = &[
        Listed {
            field: "suites",
            put: |top, cases| walk(&top.suite, &mut Vec::new(), cases),
        },
        Listed {
            field: "errors",
            put: |top, cases| trouble(top.trouble, cases),
        },
    ];
    stream(input, cases, lists).map(drop)
}

/// An element of either list.
#[derive(Default)]
struct Top {
    suite: Suite,
    trouble: Trouble,
}

impl Held for Top {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "message" | "stack" => self.trouble.field(name, map, room),
            _ => self.suite.field(name, map, room),
        }
    }
}

#[derive(Default)]
struct Suite {
    title: String,
    file: String,
    specs: Vec<Spec>,
    suites: Vec<Suite>,
}

impl Held for Suite {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "title" => self.title = text(map)?,
            "file" => self.file = text(map)?,
            "specs" => self.specs = list(map, room)?,
            "suites" => self.suites = list(map, room)?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

#[derive(Default)]
struct Spec {
    title: String,
    tests: Vec<Test>,
    file: String,
    line: u64,
}

impl Held for Spec {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "title" => self.title = text(map)?,
            "tests" => self.tests = list(map, room)?,
            "file" => self.file = text(map)?,
            "line" => self.line = map.next_value::<Option<u64>>()?.unwrap_or(0),
            _ => skip(map)?,
        }
        Ok(())
    }
}

#[derive(Default)]
struct Test {
    project: String,
    status: String,
    /// How often it was tried, and what became of the last try.
    tries: u64,
    last: Option<Box<Try>>,
}

impl Held for Test {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "projectName" => self.project = text(map)?,
            "status" => self.status = text(map)?,
            "results" => each(map, room, |it: Try| {
                self.tries += 1;
                self.last = Some(Box::new(it));
            })?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

#[derive(Default)]
struct Try {
    status: String,
    duration: f64,
    error: Option<Trouble>,
    /// The first of several.
    first: Option<Trouble>,
}

impl Held for Try {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "status" => self.status = text(map)?,
            "duration" => self.duration = map.next_value::<Option<f64>>()?.unwrap_or(0.0),
            "error" => self.error = Some(map.next_value_seed(One::new(room))?),
            "errors" => each(map, room, |trouble: Trouble| {
                self.first.get_or_insert(trouble);
            })?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

#[derive(Default)]
struct Trouble {
    message: Option<String>,
    stack: Option<String>,
}

impl Trouble {
    fn says_something(&self) -> bool {
        self.message.is_some() || self.stack.is_some()
    }
}

impl Held for Trouble {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        _room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "message" => self.message = map.next_value()?,
            "stack" => self.stack = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
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
    let last = test.last.as_deref();
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
    case.note("project", test.project.clone());
    if spec.line > 0 {
        case.note("line", spec.line.to_string());
    }
    let unhappy = matches!(status, Status::Fail | Status::Error);
    if let Some(last) = last.filter(|_| unhappy) {
        let error = last
            .error
            .as_ref()
            .filter(|error| error.says_something())
            .or(last.first.as_ref());
        let message = error.and_then(|error| error.message.clone());
        let stack = error.and_then(|error| error.stack.clone());
        let trace = stack.or_else(|| message.clone());
        case.explain(message, trace);
        if last.status == "timedOut" {
            case.note("outcome", "timed out");
        }
    }
    let earlier = test.tries.saturating_sub(1);
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
