//! Test reports: JUnit, TRX, Jest, Playwright, TAP and JSON, read as a stream.
//!
//! Reports are written by the code under test, so they are hostile input. This crate owns what a
//! report may cost: bytes, depth, cases and the length of every text have a bound in [`Limits`].
//! Cases are handed over as they are read; a report that breaks off keeps what was read before.
//! What tools print is counted, and of what failed the tests that they name are read from it.
//!
//! It opens no file, resolves no entity, follows no reference and knows nothing of jobs.

mod bounded_json;
mod case;
mod events;
mod input;
mod jest;
mod json;
mod junit;
mod limits;
mod lines;
mod playwright;
mod printed_counts;
mod printed_failures;
mod printed_lines;
mod stream;
mod tap;
mod trx;
mod xml;

use std::io::BufRead;

pub use case::{Case, Counts, Status};
pub use limits::Limits;
pub use printed_counts::{Printed, printed};
pub use printed_failures::printed_failures;

use input::Input;

/// What a report is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// JUnit XML, and the .trx files of .NET, told apart by their first element.
    Junit,
    /// `jest --json`; Vitest writes the same.
    Jest,
    /// Playwright's JSON reporter.
    Playwright,
    /// TAP 13 and 14.
    Tap,
    /// Our own schema, libtest's JSON or `go test -json`, told apart by their first object.
    Json,
}

impl Format {
    pub const ALL: [Format; 5] = [
        Format::Junit,
        Format::Jest,
        Format::Playwright,
        Format::Tap,
        Format::Json,
    ];

    /// The name in a pipeline file.
    pub fn name(self) -> &'static str {
        match self {
            Format::Junit => "junit",
            Format::Jest => "jest",
            Format::Playwright => "playwright",
            Format::Tap => "tap",
            Format::Json => "json",
        }
    }

    /// `trx` is a name of its own for people; the reader tells the two apart.
    pub fn from_name(name: &str) -> Option<Format> {
        match name {
            "trx" => Some(Format::Junit),
            _ => Format::ALL.into_iter().find(|format| format.name() == name),
        }
    }
}

/// What a whole report came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// What was read.
    pub seen: Counts,
    /// Failures and errors that were read: a case may have several.
    pub failures: u64,
    /// What the report says of itself, where it does.
    pub claimed: Option<Counts>,
}

impl Totals {
    /// The report contradicts itself. Only tests and failures are compared: tools count skipped
    /// tests and errors in different ways.
    pub fn is_contradicted(&self) -> bool {
        let Some(claimed) = self.claimed else {
            return false;
        };
        claimed.total() != self.seen.total() || claimed.unhappy() != self.seen.unhappy()
    }

    /// The report says of more failures than are in it. That it says of more tests means nothing:
    /// Catch2 and doctest count assertions, and others count some tests twice.
    pub fn lacks_failures(&self) -> bool {
        let claimed = self.claimed.map_or(0, |claimed| claimed.unhappy());
        claimed > self.failures
    }
}

/// Why a report was not read to its end. The cases before it stand.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("the report ends in the middle")]
    CutOff,
    #[error("the report is larger than {0} bytes")]
    TooLarge(u64),
    #[error("the report has more than {0} test cases")]
    TooMany(u64),
    #[error("the report is nested deeper than {0}")]
    TooDeep(usize),
    #[error("the report declares a document type, which is not read")]
    Doctype,
    #[error("near byte {at}: {why}")]
    Malformed { at: u64, why: String },
    #[error("the report could not be read: {0}")]
    Io(#[from] std::io::Error),
}

/// Takes out of a text what nobody may see, before it is cut. It is told whether the text's end is
/// missing, and with it perhaps the end of what must go.
pub type Redact<'a> = dyn Fn(&mut String, bool) + 'a;

/// What was read, and whether that was all.
#[derive(Debug)]
pub struct Report {
    pub totals: Totals,
    pub problem: Option<Problem>,
}

/// Reads a report and hands over its cases one by one. `root` is the folder the tests ran in: it is
/// cut off paths, so that a test keeps its name wherever it runs.
pub fn read(
    format: Format,
    input: impl BufRead,
    root: &str,
    limits: &Limits,
    sink: &mut dyn FnMut(Case),
) -> Report {
    read_redacted(format, input, root, limits, &|_, _| (), sink)
}

/// Reads a report as [`read`] does, without what nobody may see.
pub fn read_redacted(
    format: Format,
    input: impl BufRead,
    root: &str,
    limits: &Limits,
    redact: &Redact<'_>,
    sink: &mut dyn FnMut(Case),
) -> Report {
    let mut cases = stream::Cases::new(limits, root, redact, sink);
    let mut input = Input::new(input, limits.bytes);
    let read = match format {
        Format::Junit => junit::read(&mut input, &mut cases),
        Format::Jest => jest::read(&mut input, &mut cases),
        Format::Playwright => playwright::read(&mut input, &mut cases),
        Format::Tap => tap::read(&mut input, &mut cases),
        Format::Json => json::read(&mut input, &mut cases),
    };
    // The bound is what stopped it, whatever a parser made of that.
    let problem = match read {
        Err(_) if input.is_over() => Some(Problem::TooLarge(limits.bytes)),
        other => other.err(),
    };
    Report {
        totals: cases.into_totals(),
        problem,
    }
}
