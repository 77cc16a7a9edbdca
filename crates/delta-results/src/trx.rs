//! The .trx files of .NET. Results come before the definitions that say which class a test is in,
//! so cases are held until the end; a report that breaks off gives what it had.

use std::collections::HashMap;
use std::io::BufRead;

use crate::stream::Cases;
use crate::xml::{Element, Piece, Pieces};
use crate::{Case, Counts, Problem, Status};

#[derive(Default)]
struct Run {
    /// With the id of the definition.
    held: Vec<(String, Case)>,
    classes: HashMap<String, String>,
}

/// Called inside `TestRun`.
pub fn read<R: BufRead>(pieces: &mut Pieces<R>, cases: &mut Cases) -> Result<(), Problem> {
    let mut run = Run::default();
    let read = elements(pieces, &mut run, cases);
    for (id, mut case) in run.held {
        if let Some(class) = run.classes.get(&id) {
            // The name repeats the class with most frameworks, and never with MSTest.
            let short = case.name.strip_prefix(class.as_str());
            if let Some(short) = short.and_then(|rest| rest.strip_prefix('.')) {
                case.name = short.to_string();
            }
            case.suite.clone_from(class);
        }
        cases.put(case)?;
    }
    read
}

fn elements<R: BufRead>(
    pieces: &mut Pieces<R>,
    run: &mut Run,
    cases: &mut Cases,
) -> Result<(), Problem> {
    let mut inside: Vec<Open> = Vec::new();
    loop {
        match pieces.next()? {
            Piece::Open(element) => match element.name.as_str() {
                "UnitTestResult" => inside.push(Open::Result(Box::new(begin(element)))),
                "UnitTest" => inside.push(Open::Definition(definition(element))),
                "TestMethod" => {
                    method(element, inside.last(), run);
                    pieces.skip()?;
                }
                "Counters" => {
                    claim(element, cases);
                    pieces.skip()?;
                }
                "Message" => {
                    let text = pieces.text(cases.limits.message)?;
                    told(&mut inside, |result| result.message = Some(text));
                }
                "StackTrace" => {
                    let text = pieces.text(cases.limits.trace)?;
                    told(&mut inside, |result| result.trace = Some(text));
                }
                // What the test printed: kept nowhere, it may be large.
                "StdOut" | "StdErr" | "DebugTrace" => pieces.skip()?,
                _ => inside.push(Open::Other),
            },
            Piece::Close => match inside.pop() {
                Some(Open::Result(result)) => finish(*result, &mut inside, run, cases)?,
                Some(_) => {}
                None => return Ok(()),
            },
            Piece::End => return Err(Problem::CutOff),
            Piece::Text(_) => {}
        }
    }
}

enum Open {
    Result(Box<Unfinished>),
    Definition(String),
    Other,
}

struct Unfinished {
    id: String,
    case: Case,
    message: Option<String>,
    trace: Option<String>,
    /// It has results of its own for each row of its data: those are the cases.
    rows: bool,
}

fn begin(mut element: Element) -> Unfinished {
    let outcome = element.take("outcome").unwrap_or_default();
    let name = element.take("testName").unwrap_or_default();
    let mut case = Case::new("", name, status(&outcome));
    case.duration_ms = element.take("duration").and_then(|text| clock(&text));
    if case.status == Status::Error {
        case.note("outcome", outcome);
    }
    Unfinished {
        id: element.take("testId").unwrap_or_default(),
        case,
        message: None,
        trace: None,
        rows: false,
    }
}

fn status(outcome: &str) -> Status {
    match outcome {
        "Passed" | "Completed" | "Warning" | "PassedButRunAborted" => Status::Pass,
        "Failed" => Status::Fail,
        "NotExecuted" | "Inconclusive" | "Pending" | "NotRunnable" => Status::Skip,
        // Error, Timeout, Aborted, Disconnected, InProgress, or nothing at all.
        _ => Status::Error,
    }
}

fn told(inside: &mut [Open], tell: impl FnOnce(&mut Unfinished)) {
    let result = inside.iter_mut().rev().find_map(|open| match open {
        Open::Result(result) => Some(result),
        _ => None,
    });
    if let Some(result) = result {
        tell(result);
    }
}

fn finish(
    mut result: Unfinished,
    inside: &mut [Open],
    run: &mut Run,
    cases: &Cases,
) -> Result<(), Problem> {
    told(inside, |outer| outer.rows = true);
    if result.rows {
        return Ok(());
    }
    if run.held.len() as u64 >= cases.limits.cases {
        return Err(Problem::TooMany(cases.limits.cases));
    }
    result.case.explain(result.message, result.trace);
    run.held.push((result.id, result.case));
    Ok(())
}

fn definition(mut element: Element) -> String {
    element.take("id").unwrap_or_default()
}

fn method(mut element: Element, around: Option<&Open>, run: &mut Run) {
    let class = element.take("className").unwrap_or_default();
    // Old files add the assembly: `Space.Class, Assembly, Version=…`.
    let class = class.split(',').next().unwrap_or_default().trim();
    if let Some(Open::Definition(id)) = around
        && !class.is_empty()
    {
        run.classes.insert(id.clone(), class.to_string());
    }
}

fn claim(mut element: Element, cases: &mut Cases) {
    let mut count = |name| element.number(name).unwrap_or(0);
    let (total, passed, failed) = (count("total"), count("passed"), count("failed"));
    let errors = count("error")
        .saturating_add(count("timeout"))
        .saturating_add(count("aborted"));
    let known = passed.saturating_add(failed).saturating_add(errors);
    cases.claim(Counts {
        passed,
        failed,
        skipped: total.saturating_sub(known),
        errors,
    });
}

/// `hh:mm:ss.fffffff`.
fn clock(text: &str) -> Option<u64> {
    let mut parts = text.trim().split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    crate::junit::millis((hours * 3600.0 + minutes * 60.0 + seconds) * 1000.0)
}
