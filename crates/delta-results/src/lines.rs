//! JSON line by line: libtest's events, `go test -json`, and our own schema. Each line stands for
//! itself, so a report that breaks off in the middle loses its last line only. Lines that are no
//! JSON are other people's output, and skipped.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Deserialize;

use crate::input::Input;
use crate::json::{self, Own, own};
use crate::limits::shorten;
use crate::stream::Cases;
use crate::{Case, Counts, Problem, Status};

/// A line longer than this is cut, and is then no JSON any more: 4 MiB hold a test's whole output.
const LINE: usize = 4 << 20;
/// Tests that run at the same time and print: beyond this their output is dropped.
const RUNNING: usize = 10_000;

/// Every kind of line has a field that the others lack.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Go(Go),
    Libtest(Libtest),
    Own(Box<Own>),
}

pub fn read<R: BufRead>(input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
    let (mut line, mut running, mut known) = (Vec::new(), Running::default(), false);
    loop {
        // Everything before a document was white space, so it is whole.
        if !known && opens_document(input)? {
            return json::document(input, cases);
        }
        if !input.line(LINE, &mut line)? {
            break;
        }
        match serde_json::from_slice::<Line>(&line) {
            Ok(read) => {
                known = true;
                running.hear(read, cases)?;
            }
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(error) if error.is_eof() && line.trim_ascii().starts_with(b"{") => {
                running.torn = true;
            }
            Err(_) => {}
        }
    }
    let torn = running.torn;
    running.end(cases)?;
    match (known, torn) {
        (_, true) => Err(Problem::CutOff),
        (true, false) => Ok(()),
        (false, false) => Err(Problem::Malformed {
            at: 0,
            why: "no line of it is a test event".into(),
        }),
    }
}

/// Bytes that decide whether it is one document: a brace and the name of its first field.
const DECIDES: usize = 4096;

/// Whether what comes is an object over several lines: a brace, and no more on its line that makes
/// a whole object.
fn opens_document<R: BufRead>(input: &mut Input<R>) -> Result<bool, Problem> {
    if input.peek()? != Some(b'{') {
        return Ok(false);
    }
    let start = input.ahead(DECIDES)?;
    let start = &start[..start.len().min(DECIDES)];
    let line = start.split(|b| *b == b'\n').next().unwrap_or_default();
    let ended = line.len() < start.len();
    let tests = line.trim_ascii_start();
    let begins = tests[1..].trim_ascii_start();
    Ok((ended && begins.is_empty()) || begins.starts_with(b"\"tests\""))
}

#[derive(Deserialize)]
struct Libtest {
    #[serde(rename = "type")]
    kind: String,
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    exec_time: Option<f64>,
    #[serde(default)]
    stdout: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    passed: Option<u64>,
    #[serde(default)]
    failed: Option<u64>,
    #[serde(default)]
    ignored: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Go {
    action: String,
    #[serde(default)]
    package: String,
    #[serde(default)]
    import_path: String,
    #[serde(default)]
    test: String,
    #[serde(default)]
    elapsed: Option<f64>,
    #[serde(default)]
    output: String,
}

/// Tests that have begun and not ended, with what they printed.
#[derive(Default)]
struct Running {
    tests: BTreeMap<(String, String), String>,
    /// Packages of Go in which a test failed: the package's own failure says nothing more.
    blamed: std::collections::BTreeSet<String>,
    torn: bool,
}

impl Running {
    fn hear(&mut self, line: Line, cases: &mut Cases) -> Result<(), Problem> {
        match line {
            Line::Own(test) => own(*test, cases),
            Line::Libtest(event) => self.libtest(event, cases),
            Line::Go(event) => self.go(event, cases),
        }
    }

    fn libtest(&mut self, event: Libtest, cases: &mut Cases) -> Result<(), Problem> {
        if event.kind == "suite" {
            if let (Some(passed), Some(failed)) = (event.passed, event.failed) {
                cases.claim(Counts {
                    passed,
                    failed,
                    skipped: event.ignored.unwrap_or(0),
                    errors: 0,
                });
            }
            return Ok(());
        }
        let (suite, name) = module(&event.name);
        let key = (suite, name);
        let status = match event.event.as_str() {
            "started" => {
                self.begin(key);
                return Ok(());
            }
            "ok" => Status::Pass,
            "failed" => Status::Fail,
            "ignored" => Status::Skip,
            // It still runs, only long.
            "timeout" => return Ok(()),
            _ => return Ok(()),
        };
        self.tests.remove(&key);
        let mut case = Case::new(key.0, key.1, status);
        case.duration_ms = event.exec_time.and_then(|s| crate::junit::millis(s * 1e3));
        case.explain(event.message.or(event.reason), event.stdout);
        cases.put(case)
    }

    fn go(&mut self, event: Go, cases: &mut Cases) -> Result<(), Problem> {
        let package = match event.package.is_empty() {
            true => event.import_path,
            false => event.package,
        };
        let key = (package, event.test);
        let status = match event.action.as_str() {
            "run" => {
                self.begin(key);
                return Ok(());
            }
            "output" | "build-output" => {
                self.print(key, &event.output, cases.limits.trace);
                return Ok(());
            }
            "pass" => Status::Pass,
            "fail" => Status::Fail,
            "build-fail" => Status::Error,
            "skip" => Status::Skip,
            _ => return Ok(()),
        };
        let printed = self.tests.remove(&key).unwrap_or_default();
        let (package, test) = key;
        let whole = test.is_empty();
        if whole && status != Status::Error {
            // The package itself: told only when it failed and none of its tests did.
            if status != Status::Fail || self.blamed.remove(&package) {
                return Ok(());
            }
        } else if status != Status::Pass && status != Status::Skip {
            self.blamed.insert(package.clone());
        }
        let (name, status) = match whole {
            true => ("(the package itself)".to_owned(), Status::Error),
            false => (test, status),
        };
        let mut case = Case::new(package, name, status);
        case.duration_ms = event.elapsed.and_then(|s| crate::junit::millis(s * 1e3));
        if status != Status::Pass {
            case.message = reason(&printed);
            case.trace = Some(printed).filter(|it| !it.is_empty());
        }
        cases.put(case)
    }

    fn begin(&mut self, key: (String, String)) {
        if self.tests.len() < RUNNING {
            self.tests.insert(key, String::new());
        }
    }

    fn print(&mut self, key: (String, String), text: &str, limit: usize) {
        let many = self.tests.len() >= RUNNING;
        let known = self.tests.get_mut(&key);
        let printed = match known {
            Some(printed) => printed,
            None if many => return,
            None => self.tests.entry(key).or_default(),
        };
        if printed.len() <= limit {
            printed.push_str(text);
            // Beyond the bound it stays, by a little, so that whoever cuts it says so.
            shorten(printed, limit + 64);
        }
    }

    /// Whoever began and never ended was cut off with the report.
    fn end(self, cases: &mut Cases) -> Result<(), Problem> {
        for ((suite, name), printed) in self.tests {
            if name.is_empty() {
                continue;
            }
            let mut case = Case::new(suite, name, Status::Error);
            case.explain(Some("it began and did not end".into()), Some(printed));
            cases.put(case)?;
        }
        Ok(())
    }
}

/// `a::b::test` is `test` in `a::b`; cargo-nextest adds the binary: `crate::bin$a::b::test`.
fn module(name: &str) -> (String, String) {
    let (binary, path) = match name.split_once('$') {
        Some((binary, path)) => (Some(binary), path),
        None => (None, name),
    };
    let (module, test) = path.rsplit_once("::").unwrap_or(("", path));
    let suite = match (binary, module) {
        (Some(binary), "") => binary.to_owned(),
        (Some(binary), module) => format!("{binary}::{module}"),
        (None, module) => module.to_owned(),
    };
    (suite, test.to_owned())
}

/// The line that says why a Go test failed: the first that is not a mark of the tool.
fn reason(printed: &str) -> Option<String> {
    let mark = |line: &&str| line.starts_with("---") || line.starts_with("===");
    let mut lines = printed.lines().map(str::trim);
    lines
        .find(|line| !line.is_empty() && !mark(line))
        .map(str::to_owned)
}
