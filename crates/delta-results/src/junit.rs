//! JUnit XML in the dialects of pytest, Maven, Gradle, cargo-nextest, Jest and others.
//!
//! Nobody owns the format. What they agree on: `testsuite` elements, perhaps inside each other,
//! with `testcase` elements that say what went wrong in `failure`, `error` or `skipped`.

use std::io::BufRead;

use crate::input::Input;
use crate::stream::Cases;
use crate::xml::{Element, Piece, Pieces};
use crate::{Case, Counts, Problem, Status, trx};

pub fn read<R: BufRead>(input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
    if input.peek()?.is_none() {
        // Made, and never written to.
        return Err(Problem::CutOff);
    }
    let mut pieces = Pieces::new(input, cases.limits.depth);
    let mut root = loop {
        match pieces.next()? {
            Piece::Open(root) => break root,
            Piece::End => return Err(Problem::CutOff),
            Piece::Text(_) | Piece::Close => {}
        }
    };
    match root.name.as_str() {
        "TestRun" => trx::read(&mut pieces, cases)?,
        "testsuites" => suites(&mut pieces, cases)?,
        "testsuite" => {
            claim(&mut root, cases);
            let name = root.take("name").unwrap_or_default();
            suite(&mut pieces, cases, name)?;
        }
        name => {
            let why = format!("<{name}> is no test report");
            return Err(Problem::Malformed { at: 0, why });
        }
    }
    pieces.end()
}

/// The outermost element with numbers speaks for everything inside it. `testsuites` often has
/// none, so those of the suites right below it are added up.
fn suites<R: BufRead>(pieces: &mut Pieces<R>, cases: &mut Cases) -> Result<(), Problem> {
    loop {
        match pieces.next()? {
            Piece::Open(mut element) if element.name == "testsuite" => {
                claim(&mut element, cases);
                let name = element.take("name").unwrap_or_default();
                suite(pieces, cases, name)?;
            }
            // Node writes tests outside of any suite so.
            Piece::Open(element) if element.name == "testcase" => {
                let case = test_case(pieces, element, "", cases)?;
                cases.claim(Counts::of(case.status));
                cases.put(case)?;
            }
            Piece::Open(_) => pieces.skip()?,
            Piece::Close | Piece::End => return Ok(()),
            Piece::Text(_) => {}
        }
    }
}

fn claim(element: &mut Element, cases: &mut Cases) {
    let Some(tests) = element.number("tests") else {
        return;
    };
    let failed = element.number("failures").unwrap_or(0);
    let errors = element.number("errors").unwrap_or(0);
    let skipped = element
        .number("skipped")
        .or(element.number("disabled"))
        .unwrap_or(0);
    let bad = failed.saturating_add(errors).saturating_add(skipped);
    cases.claim(Counts {
        passed: tests.saturating_sub(bad),
        failed,
        skipped,
        errors,
    });
}

/// Suites inside suites are read in a loop: depth costs a name each, not a stack frame.
fn suite<R: BufRead>(
    pieces: &mut Pieces<R>,
    cases: &mut Cases,
    name: String,
) -> Result<(), Problem> {
    let mut names = vec![name];
    while let Some(innermost) = names.last() {
        match pieces.next()? {
            Piece::Open(mut element) => match element.name.as_str() {
                "testsuite" => names.push(element.take("name").unwrap_or_default()),
                "testcase" => {
                    let case = test_case(pieces, element, innermost, cases)?;
                    cases.put(case)?;
                }
                _ => pieces.skip()?,
            },
            Piece::Close => drop(names.pop()),
            Piece::End => return Err(Problem::CutOff),
            Piece::Text(_) => {}
        }
    }
    Ok(())
}

fn test_case<R: BufRead>(
    pieces: &mut Pieces<R>,
    mut element: Element,
    suite: &str,
    cases: &mut Cases,
) -> Result<Case, Problem> {
    // Node says `test` of everything.
    let class = element.take("classname");
    let class = class.filter(|class| !class.is_empty() && class != "test");
    let name = element.take("name").unwrap_or_default();
    let mut case = Case::new(class.as_deref().unwrap_or(suite), name, Status::Pass);
    if class.is_some_and(|class| class != suite) {
        case.note("testsuite", suite);
    }
    case.duration_ms = element.take("time").and_then(|time| seconds(&time));
    if let Some(file) = element.take("file") {
        case.note("file", cases.place(&file));
    }
    case.note("line", element.take("line").unwrap_or_default());
    // GoogleTest has no element for a test that is disabled.
    let (status, result) = (element.take("status"), element.take("result"));
    let left_out = |text: &str| matches!(text, "notrun" | "disabled" | "suppressed" | "skipped");
    if [status, result].iter().flatten().any(|it| left_out(it)) {
        case.status = Status::Skip;
    }
    let (mut again, mut failures) = (0u64, 0u64);
    loop {
        let mut inside = match pieces.next()? {
            Piece::Open(inside) => inside,
            Piece::Close => break,
            Piece::End => return Err(Problem::CutOff),
            Piece::Text(_) => continue,
        };
        match inside.name.as_str() {
            "failure" => {
                failures += 1;
                fail(pieces, inside, Status::Fail, &mut case, cases)?;
            }
            "error" => {
                failures += 1;
                fail(pieces, inside, Status::Error, &mut case, cases)?;
            }
            "skipped" => {
                let why = inside.take("message");
                let said = pieces.text(cases.limits.message)?;
                if matches!(case.status, Status::Pass | Status::Skip) {
                    case.status = Status::Skip;
                    case.explain(why.or(Some(said)), None);
                }
            }
            // Failures of earlier tries, as Maven and cargo-nextest write them.
            "flakyFailure" | "flakyError" | "rerunFailure" | "rerunError" => {
                again += 1;
                pieces.skip()?;
            }
            "properties" => properties(pieces, &mut case, cases.limits.metadata)?,
            _ => pieces.skip()?,
        }
    }
    if again > 0 {
        case.note("earlier_failures", again.to_string());
    }
    cases.more_failures(failures.saturating_sub(1));
    Ok(case)
}

/// The first failure is told; an error beside it makes the case an error.
fn fail<R: BufRead>(
    pieces: &mut Pieces<R>,
    mut inside: Element,
    status: Status,
    case: &mut Case,
    cases: &Cases,
) -> Result<(), Problem> {
    let (message, kind) = (inside.take("message"), inside.take("type"));
    let trace = pieces.text(cases.limits.trace)?;
    let first = !matches!(case.status, Status::Fail | Status::Error);
    if first {
        case.explain(message, Some(trace));
        case.note("type", kind.unwrap_or_default());
    }
    if first || status == Status::Error {
        case.status = status;
    }
    Ok(())
}

fn properties<R: BufRead>(
    pieces: &mut Pieces<R>,
    case: &mut Case,
    limit: usize,
) -> Result<(), Problem> {
    loop {
        match pieces.next()? {
            Piece::Open(mut element) => {
                let (name, value) = (element.take("name"), element.take("value"));
                // pytest writes an attribute, others write text.
                let text = pieces.text(1 << 10)?;
                if let Some(name) = name.filter(|_| case.metadata.len() < limit) {
                    case.note(&name, value.unwrap_or(text));
                }
            }
            Piece::Close => return Ok(()),
            Piece::End => return Err(Problem::CutOff),
            Piece::Text(_) => {}
        }
    }
}

/// Seconds with a fraction, sometimes with commas between the thousands.
fn seconds(text: &str) -> Option<u64> {
    let plain: String = text.trim().chars().filter(|c| *c != ',').collect();
    millis(plain.parse::<f64>().ok()? * 1000.0)
}

/// A duration that makes sense, or none: not negative, not endless.
pub fn millis(ms: f64) -> Option<u64> {
    (ms.is_finite() && (0.0..1e15).contains(&ms)).then_some(ms.round() as u64)
}
