//! What libtest and `go test -json` say while tests run: who began, what was printed, who ended.
//!
//! Whoever began and never ended was cut off with the report.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::limits::shorten;
use crate::stream::Cases;
use crate::{Case, Counts, Problem, Status};

/// Tests that run at the same time and print: beyond this their output is dropped.
const RUNNING: usize = 10_000;

/// A package of Go, where none of its tests tells what went wrong.
const PACKAGE: &str = "(the package itself)";

#[derive(Deserialize)]
pub struct Libtest {
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
pub struct Go {
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
pub struct Running {
    /// Packages of Go are there under no test's name.
    tests: BTreeMap<(String, String), String>,
    /// What the compiler printed of packages of Go. It may say something of those that it builds.
    builds: BTreeMap<String, String>,
    /// Packages of Go in which a test failed: the package's own failure says nothing more.
    blamed: BTreeSet<String>,
    /// Suites of libtest that began and have not ended.
    suites: u64,
}

impl Running {
    pub fn libtest(&mut self, event: Libtest, cases: &mut Cases) -> Result<(), Problem> {
        if event.kind == "suite" {
            match event.event.as_str() {
                "started" => self.suites += 1,
                _ => self.suites = self.suites.saturating_sub(1),
            }
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

    pub fn go(&mut self, event: Go, cases: &mut Cases) -> Result<(), Problem> {
        let package = if event.package.is_empty() {
            event.import_path
        } else {
            event.package
        };
        let key = (package, event.test);
        let status = match event.action.as_str() {
            "start" | "run" => {
                self.begin(key);
                return Ok(());
            }
            "output" => {
                print(&mut self.tests, key, &event.output, cases.limits.trace);
                return Ok(());
            }
            "build-output" => {
                print(&mut self.builds, key.0, &event.output, cases.limits.trace);
                return Ok(());
            }
            "pass" => Status::Pass,
            "fail" => Status::Fail,
            "build-fail" => Status::Error,
            "skip" => Status::Skip,
            _ => return Ok(()),
        };
        let printed = match status {
            Status::Error => self.builds.remove(&key.0),
            _ => self.tests.remove(&key),
        };
        let printed = printed.unwrap_or_default();
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
        let (name, status) = if whole {
            (PACKAGE.to_owned(), Status::Error)
        } else {
            (test, status)
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

    /// Tells of those who began and never ended; whether there were none.
    pub fn end(self, cases: &mut Cases) -> Result<bool, Problem> {
        let whole = self.tests.is_empty() && self.suites == 0;
        for ((suite, name), printed) in self.tests {
            let name = if name.is_empty() {
                PACKAGE.to_owned()
            } else {
                name
            };
            let mut case = Case::new(suite, name, Status::Error);
            case.explain(Some("it began and did not end".into()), Some(printed));
            cases.put(case)?;
        }
        Ok(whole)
    }
}

fn print<K: Ord>(running: &mut BTreeMap<K, String>, key: K, text: &str, limit: usize) {
    let many = running.len() >= RUNNING;
    let printed = match running.get_mut(&key) {
        Some(printed) => printed,
        None if many => return,
        None => running.entry(key).or_default(),
    };
    if printed.len() <= limit {
        printed.push_str(text);
        // Beyond the bound it stays, by a little, so that whoever cuts it says so.
        shorten(printed, limit + 64);
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
